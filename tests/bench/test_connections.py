"""Connections per second between two daemons (`make bench`): the table, and the promises about it.

A rate is connections by the time of the connect step alone, as `cmtime` reports it, and by the time of all steps up to the
connection. Processor time says what a machine with nothing else to do could reach: on N cores no rate is above N divided by
the time that both daemons and both programs together spend on a connection.
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


def row(fabric, threads, count, rounds=3):
    """Medians of some runs, printed."""
    runs = [measure(fabric, threads, count) for _ in range(rounds)]
    medians = {name: median(run[name] for run in runs) for name in runs[0]}
    print(
        f"{threads:2} threads {count:6} connections: connect {medians['connect']:6.0f}/s, all of setup {medians['setup']:6.0f}/s, "
        f"teardown {medians['teardown']:6.0f}/s, daemons {medians['daemons_us']:4.0f} us each"
    )
    return medians


def test_rate_with_one_thread(fabric):
    assert row(fabric, 1, 2000)["connect"] >= ONE


def test_rate_with_several_threads(fabric):
    best = max(row(fabric, threads, 2000)["connect"] for threads in (2, 4, 8))
    assert best >= SEVERAL


def test_a_connection_costs_the_same_among_many(fabric):
    few, many = row(fabric, 2, 500), row(fabric, 2, 10_000)
    print(f"10,000 against 500: {few['connect'] / many['connect']:.2f} of the time each")
    assert many["connect"] >= 0.8 * few["connect"]
    # Not promised, and other work than with 500: those are gone before the first leaves time-wait, these are not, and the end of an
    # id waits for an answer while news of it may come. What it costs is in the daemons' time.
    print(f"teardown: {few['teardown'] / many['teardown']:.2f} of the time each")
    assert many["daemons_us"] <= 3 * few["daemons_us"]
