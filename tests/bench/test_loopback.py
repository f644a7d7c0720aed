"""Two programs of one host: packets looped back in the daemon, beside the kernel's loopback device under TCP, UDP and Burst."""

import os
from statistics import median
from types import SimpleNamespace

import pytest

from lab import Fabric, measure

pytestmark = pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench")

PORTS = {"looped back": "udp:dev=eth0", "by the kernel": "udp:dev=eth0,loopback=off"}


def within_a_host(jobs, workers=1):
    """Medians of three rounds by job and port, in turns. `jobs` take a pair of hosts; both are the same host here."""
    fabrics = {name: Fabric(ports=(port,) * 2, extra=("--workers", workers)) for name, port in PORTS.items()}
    values = {(job, name): [] for job in jobs for name in PORTS}
    try:
        for fabric in fabrics.values():
            fabric.__enter__()
        for _ in range(3):
            for (job, name), row in values.items():
                host = fabrics[name].a
                row.append(jobs[job](SimpleNamespace(a=host, b=host)))
    finally:
        for fabric in fabrics.values():
            fabric.__exit__()
    return {key: median(row) for key, row in values.items()}


def test_bandwidth(namespaces, figure):
    figures = within_a_host({
        "write": lambda pair: measure.bandwidth(pair, "ib_write_bw", 64 << 10)["gbits"],
        "read": lambda pair: measure.bandwidth(pair, "ib_read_bw", 64 << 10)["gbits"],
        "tcp": measure.tcp_stream_gbits,
    })
    for (job, name), gbits in figures.items():
        figure(f"one host: {job} 64 KiB, {name}", gbits, "Gbit/s")
    assert figures["write", "looped back"] >= 2 * figures["write", "by the kernel"]
    assert figures["read", "looped back"] >= 2 * figures["read", "by the kernel"]
    assert figures["write", "looped back"] >= figures["tcp", "looped back"]


def test_bandwidth_between_two_workers(namespaces, figure):
    """Queue pairs are assigned to workers in turn, so the two programs' queue pairs belong to different workers."""
    figures = within_a_host({
        "write": lambda pair: measure.bandwidth(pair, "ib_write_bw", 64 << 10)["gbits"],
        "read": lambda pair: measure.bandwidth(pair, "ib_read_bw", 64 << 10)["gbits"],
    }, workers=2)
    for (job, name), gbits in figures.items():
        figure(f"one host, two workers: {job} 64 KiB, {name}", gbits, "Gbit/s")
    # Two polling programs and two workers share two processors.
    assert figures["write", "looped back"] >= 1.5 * figures["write", "by the kernel"]
    assert figures["read", "looped back"] >= 1.5 * figures["read", "by the kernel"]


def test_latency(namespaces, figure):
    figures = within_a_host({
        "send": lambda pair: measure.latency(pair, "ib_send_lat", 64)["p50_us"],
        "udp": lambda pair: measure.kernel_ping_pong(pair, "udp")["p50_us"],
    })
    for (job, name), us in figures.items():
        figure(f"one host: {job} 64 B, {name}, p50", us, "us")
    # Three polling threads may share two processors.
    assert figures["send", "looped back"] <= 0.75 * figures["send", "by the kernel"]
    assert figures["send", "looped back"] <= 2 * figures["udp", "looped back"]
