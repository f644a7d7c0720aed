"""Connections per second between two daemons (`make bench`): the table, and the promises about it.

Two rates are reported: connections divided by the time of the connect step, as `cmtime` reports it, and divided by the time of all steps
up to the connection. Processor time bounds what an idle machine could reach: with N cores no rate exceeds N divided by the processor
time that both daemons and both programs spend on one connection.
"""

import json
import os
from statistics import median

import pytest

import lab

pytestmark = pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench")

MANY = lab.build_directory() / "programs" / "cm_many"
SETUP = ("create_id", "resolve_addr", "resolve_route", "create_qp", "connect")
TEARDOWN = ("disconnect", "destroy")
# Promised with one thread, and with several.
ONE, SEVERAL = 12_000, 25_000


def measure(fabric, threads, count):
    """One run: rates by step, and microseconds of processor time of both daemons per connection."""
    server = fabric.b.start(MANY, "-t", threads)
    server.wait_for_text("listening", 20)
    before = sum(host.daemon.cpu_seconds() for host in fabric.hosts)
    code, text = fabric.a.run(MANY, "-t", threads, "-c", count, fabric.b.address, seconds=120)
    spent = sum(host.daemon.cpu_seconds() for host in fabric.hosts) - before
    server.stop()
    assert code == 0, text
    report = json.loads(text.splitlines()[-1])
    assert report["established"] == count, report
    return {
        "connect": count / report["connect"],
        "setup": count / sum(report[step] for step in SETUP),
        "teardown": count / sum(report[step] for step in TEARDOWN),
        "daemons_us": spent / count * 1e6,
    }


def row(fabric, figure, threads, count, rounds=3):
    """Medians of some runs, printed."""
    runs = [measure(fabric, threads, count) for _ in range(rounds)]
    medians = {name: median(run[name] for run in runs) for name in runs[0]}
    name = f"connections: {threads} threads, {count}"
    for step in ("connect", "setup", "teardown"):
        figure(f"{name}, {step}", medians[step], "per s")
    figure(f"{name}, processor time of both daemons", medians["daemons_us"], "us each")
    return medians


def test_rate_with_one_thread(fabric, figure):
    assert row(fabric, figure, 1, 2000)["connect"] >= ONE


def test_rate_with_several_threads(fabric, figure):
    best = max(row(fabric, figure, threads, 2000)["connect"] for threads in (2, 4, 8))
    assert best >= SEVERAL


def test_a_connection_costs_the_same_among_many(fabric, figure):
    few, many = row(fabric, figure, 2, 500), row(fabric, figure, 2, 10_000)
    figure("connections: time of one among 10,000 to one among 500", few["connect"] / many["connect"], "ratio")
    assert many["connect"] >= 0.8 * few["connect"]
    # Teardown has no bound, because 10,000 do other work than 500: 500 ids are destroyed before the first connection leaves TIMEWAIT, of
    # 10,000 many are destroyed later, and rdma_destroy_id waits for the daemon while an event may arrive. Its cost is in the daemons' time.
    figure("connections: teardown of one among 10,000 to one among 500", few["teardown"] / many["teardown"], "ratio")
    assert many["daemons_us"] <= 3 * few["daemons_us"]
