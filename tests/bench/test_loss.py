"""Goodput over a wire that loses packets (`make bench`): WRITEs of 1 MiB at path MTU 1024. experiments/loss/run measures the whole table."""

import os

import pytest

from lab import losses

pytestmark = pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench")


def test_selective_repeat_keeps_most_of_the_goodput(namespaces, figure):
    with losses.Losses() as pair:
        _, one, five = losses.sweep(pair, "write", 1024, (0, 1, 5), seconds=2)
    failed = [run["error"] for row in (one, five) for family in losses.FAMILIES for run in row[family]["runs"] if "error" in run]
    assert not failed, failed
    figure("selective repeat at 1 % loss, to its own run without loss", one["selective"]["ratio"], "ratio")
    figure("selective repeat at 5 % loss, to its own run without loss", five["selective"]["ratio"], "ratio")
    figure("go-back-N at 1 % loss, to its own run without loss", one["go-back-n"]["ratio"], "ratio")
    assert one["selective"]["ratio"] >= 0.8
    assert one["selective"]["gbits"] >= 3 * one["go-back-n"]["gbits"]


def frames(host):
    """Frames that the interface has sent: on a veth pair a train of packets is one."""
    return int(host.run("cat", "/sys/class/net/eth0/statistics/tx_packets", plain=True)[1])


def test_messages_of_64_kib_fill_their_trains(namespaces, figure):
    """All heads of selective repeat have one length, so a message is one train as far as the kernel allows: a datagram has at most 64 KiB
    with its heads, which is 15 packets of 4 KiB. A WRITE of the standard family is as good up to 32 packets, which leave as messages of
    their own."""
    counts = {}
    for family in losses.FAMILIES:
        with losses.Losses((family,)) as pair:
            host = pair.fabrics[family].a
            before = frames(host), host.stats()["tx_packets"]
            pair.run(family, "write", 4096, [], seconds=2, size=64 << 10)
            trains, packets = frames(host) - before[0], host.stats()["tx_packets"] - before[1]
        counts[family] = trains / (packets / 16)
        figure(f"frames of 64 KiB WRITEs, path MTU 4096, {family}", counts[family], "frames")
    assert all(16 / 15 <= counts[family] <= 1.5 for family in losses.FAMILIES), counts
