"""Programs with an engine of their own against the kernel's sockets in the same run (`make bench`): medians of five rounds, in turns."""

import os
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

import pytest

import lab
from lab import measure

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))

from rig.peer import Peer, connect  # noqa: E402

pytestmark = pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench")

KIB = 1 << 10
#: Least share of what plain sockets carry.
RAW_SHARE = 0.9


@pytest.fixture(scope="module")
def fabric(namespaces):
    with lab.Fabric(in_process=True) as made:
        yield made


def in_turns(fabric, *jobs):
    """Medians of jobs that are run in turns over a fabric."""
    return measure.in_turns(*(partial(job, fabric) for job in jobs))


@pytest.mark.parametrize("tool", ["ib_send_lat", "ib_write_lat"])
def test_polled_latency(fabric, figure, tool):
    tail = []

    def burst(f):
        measured = measure.latency(f, tool, 64)
        tail.append(measured["p99_us"] / measured["p50_us"])
        return measured["p50_us"]

    udp, p50 = in_turns(fabric, lambda f: measure.kernel_ping_pong(f, "udp")["p50_us"], burst)
    figure(f"{tool} 64 B in process, p50", p50, "us")
    figure(f"{tool} 64 B in process, p50 to the kernel's UDP", p50 / udp, "ratio")
    figure(f"{tool} 64 B in process, p99 to p50", median(tail), "ratio")
    assert p50 <= 2.2 * udp and median(tail) <= 3


def test_read_latency(fabric, figure):
    """A READ is a whole round trip, and its target does not poll: its keeper answers."""
    udp, p50 = in_turns(
        fabric, lambda f: measure.kernel_ping_pong(f, "udp")["p50_us"], lambda f: measure.latency(f, "ib_read_lat", 64)["p50_us"]
    )
    figure("ib_read_lat 64 B in process, p50 to two of the kernel's UDP", p50 / udp / 2, "ratio")
    assert p50 <= 2.2 * 2 * udp


def test_latency_with_events(fabric, figure):
    tcp, p50 = in_turns(
        fabric,
        lambda f: measure.kernel_ping_pong(f, "tcp")["p50_us"],
        lambda f: measure.latency(f, "ib_send_lat", 64, "-e")["p50_us"],
    )
    figure("ib_send_lat 64 B in process, events, p50", p50, "us")
    figure("ib_send_lat 64 B in process, events, p50 to the kernel's TCP", p50 / tcp, "ratio")
    assert p50 <= 0.5 * tcp


@pytest.mark.parametrize("size", [64 * KIB, 1024 * KIB])
def test_bandwidth(fabric, figure, size):
    tcp, write = in_turns(fabric, measure.tcp_stream_gbits, lambda f: measure.bandwidth(f, "ib_write_bw", size)["gbits"])
    figure(f"ib_write_bw {size // KIB} KiB in process", write, "Gbit/s")
    figure(f"ib_write_bw {size // KIB} KiB in process to one TCP stream", write / tcp, "ratio")
    assert write >= 2.86 * tcp


def test_bandwidth_beside_raw_sockets(fabric, figure):
    """The kernel's UDP with trains between two programs that do nothing but copy each byte once: what a protocol above it can reach."""
    raw, write = in_turns(fabric, measure.raw_udp_gbits, lambda f: measure.bandwidth(f, "ib_write_bw", 64 * KIB, seconds=2)["gbits"])
    figure("raw UDP sockets, trains of 4 KiB packets", raw, "Gbit/s")
    figure("ib_write_bw 64 KiB in process to raw UDP sockets", write / raw, "ratio")
    assert write >= RAW_SHARE * raw


def test_a_target_that_computes_answers_soon(fabric, figure):
    """A program that has polled stops calling the library for a second: the first READ waits until its keeper notices."""
    a, b = (Peer(host, "burst0", host.gid_index(host.address)) for host in (fabric.a, fabric.b))
    try:
        a.region("m", 4096, rights="lrwab")
        there = b.region("m", 4096, rights="lrwab")
        connect(a, b)
        words = {"qp": "q", "region": "m", "bytes": 64, "op": "read", "remote": there["addr"], "rkey": there["rkey"]}
        times = []
        for _ in range(5):
            b.nothing(ms=50)
            b.pipe.begin("compute ms=1000")
            began = time.monotonic()
            a("post", **words)
            a.done()
            times.append((time.monotonic() - began) * 1e3)
            b.pipe.answer()
    finally:
        for end in (a, b):
            end.end()
    figure("in process: the first READ of a target that computes", median(times), "ms")
    assert median(times) < 3


def test_message_rate(fabric, figure):
    """64 B WRITEs by lists of 64 posts."""
    words = ["ib_write_bw", "-d", "burst0", "-F", "-s", 64, "-l", 64, "-t", 512, "-n", 1_000_000]
    [rate] = in_turns(fabric, lambda f: lab.run_pair(f.b, f.a, words).mpps)
    figure("ib_write_bw 64 B in process, lists of posts", rate, "M/s")
    assert rate >= 3
