"""Other paths than the usual one: IPv6, a small MTU, a lossy wire, several workers, several devices."""

import pytest

from lab import build_directory, run_pair

EXERCISE = build_directory() / "programs" / "exercise"
LOSSY = "impair:loss=1%,dup=1%,reorder=1%,seed={seed}/udp:dev=eth0"


def gid_index(host, address):
    [device] = host.devices()
    return next(gid["index"] for gid in device["gids"] if gid["address"] == address)


def test_ipv6(fabric):
    a, b = fabric.a, fabric.b
    indices = gid_index(a, a.address6), gid_index(b, b.address6)
    assert indices[0] == indices[1]
    result = run_pair(b, a, ["ib_write_bw", "-d", "burst0", "-F", "-x", indices[0], "-s", 65536, "-n", 500])
    assert result.row[3] > 0
    run_pair(b, a, [EXERCISE, "-n", 2000, "-x", indices[0]])


def test_link_local(fabric):
    a, b = fabric.a, fabric.b
    index = next(g["index"] for g in a.devices()[0]["gids"] if g["address"].startswith("fe80"))
    run_pair(b, a, [EXERCISE, "-n", 500, "-x", index])


def test_small_link_mtu(make_fabric):
    fabric = make_fabric(mtu=1500)
    assert fabric.a.devices()[0]["path_mtu"] == 1024
    assert run_pair(fabric.b, fabric.a, ["ib_write_bw", "-d", "burst0", "-F", "-s", 65536, "-n", 500]).row[3] > 0
    run_pair(fabric.b, fabric.a, [EXERCISE, "-n", 2000])


def test_ten_thousand_operations_over_a_bad_wire(make_fabric):
    fabric = make_fabric(ports=(LOSSY.format(seed=11), LOSSY.format(seed=12)))
    run_pair(fabric.b, fabric.a, [EXERCISE, "-n", 10000, "-s", 3], seconds=120)
    stats = fabric.a.stats()
    assert stats.get("sequence_gap", 0) + stats.get("sequence_nak_received", 0) > 0, "the wire was not bad at all"


def test_corruption_is_noticed(make_fabric):
    fabric = make_fabric(ports=("impair:corrupt=1%,seed=5/udp:dev=eth0", "udp:dev=eth0"))
    run_pair(fabric.b, fabric.a, [EXERCISE, "-n", 1000])
    assert fabric.a.stats().get("bad_icrc", 0) + fabric.b.stats().get("bad_icrc", 0) > 0


@pytest.mark.parametrize("workers", [2, 4])
def test_several_workers(make_fabric, workers):
    fabric = make_fabric(extra=("--workers", workers))
    run_pair(fabric.b, fabric.a, ["ib_write_bw", "-d", "burst0", "-F", "-q", 8, "-s", 16384, "-n", 200])
    run_pair(fabric.b, fabric.a, [EXERCISE, "-n", 2000])


def test_memory_of_a_program_can_be_large(fabric):
    result = run_pair(fabric.b, fabric.a, ["ib_write_bw", "-d", "burst0", "-F", "-s", 64 << 20, "-n", 5, "-t", 2])
    assert result.row[0] == 64 << 20
