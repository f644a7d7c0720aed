"""MTU 1500 (path MTU 1024), with segmentation offloads and without, and the kernel's autogroups, against one TCP stream in the same run
(`make bench`): medians of five rounds, in turns."""

import os
from contextlib import contextmanager

import pytest

from lab import history, measure

pytestmark = pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench")

KIB = 1 << 10
OFFLOADS = ["tso", "gso", "gro", "tx-udp-segmentation"]


@pytest.mark.parametrize("in_process", [True, False], ids=["in-process", "daemons"])
@pytest.mark.parametrize("offloads, bound", [("on", 1.5), ("off", 1.0)])
def test_a_link_of_mtu_1500(make_fabric, figure, in_process, offloads, bound):
    fabric = make_fabric(mtu=1500, in_process=in_process)
    if offloads == "off":
        for host in fabric.hosts:
            code, text = host.run("ethtool", "-K", "eth0", *[word for name in OFFLOADS for word in (name, "off")], plain=True)
            assert code == 0, text
    tcp, write = measure.in_turns(
        lambda: measure.tcp_stream_gbits(fabric, 1), lambda: measure.bandwidth(fabric, "ib_write_bw", 64 * KIB)["gbits"]
    )
    where = f"MTU 1500, offloads {offloads}, {'in process' if in_process else 'daemons'}"
    figure(f"{where}: ib_write_bw 64 KiB", write, "Gbit/s")
    figure(f"{where}: ib_write_bw 64 KiB to one TCP stream", write / tcp, "ratio")
    assert write >= bound * tcp


@contextmanager
def autogroups(value):
    before = history.autogroups()
    history.AUTOGROUPS.write_text(str(value))
    try:
        yield
    finally:
        history.AUTOGROUPS.write_text(str(before))


def test_autogroups_cost_little(make_fabric, figure):
    """A thread belongs to an autogroup if they are on when it starts: each setting has daemons of its own."""

    def job(value, measured):
        with autogroups(value):
            fabric = make_fabric()

        def run():
            with autogroups(value):
                return measured(fabric)

        return run

    write = lambda fabric: measure.bandwidth(fabric, "ib_write_bw", 64 * KIB)["gbits"]  # noqa: E731
    # A tenth of a second on two processors depends on where the four threads begin.
    send = lambda fabric: measure.latency(fabric, "ib_send_lat", 64, rounds=100_000)["p50_us"]  # noqa: E731
    off, on, lat_off, lat_on = measure.in_turns(job(0, write), job(1, write), job(0, send), job(1, send))
    figure("autogroups on to off: ib_write_bw 64 KiB, daemons", on / off, "ratio")
    figure("autogroups on to off: ib_send_lat 64 B, daemons, p50", lat_on / lat_off, "ratio")
    assert on >= 0.9 * off and lat_on <= 1.1 * lat_off
