"""Other paths than the usual one: IPv6, a small MTU, a lossy wire, several workers, several devices."""

import time

import pytest

from lab import await_true, build_directory, run_pair, wait_until
from lab.perftest import await_listener

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


@pytest.mark.parametrize("kind", ["udp", "packet"])
def test_a_long_first_message_waits_for_a_neighbour_that_answers_late(make_fabric, kind):
    """UC does not retransmit, and few packets are queued before the next hop has answered: the rest must wait at the queue pair."""
    fabric = make_fabric(daemons=False)
    a, b = fabric.hosts
    for number, (host, peer) in enumerate([(a, b), (b, a)], start=1):
        host.ip(f"addr add 10.98.0.{number}/24 dev eth0")
        # perftest's own TCP connection uses resolved addresses.
        assert host.run("ping", "-c", 1, "-W", 5, peer.address, plain=True)[0] == 0
        host.ip(f"neigh change {peer.address} dev eth0 nud permanent")
        host.start_daemon(f"{kind}:dev=eth0")

    def answers(yes):
        ignore = f"echo {0 if yes else 8} > /proc/sys/net/ipv4/conf/eth0/arp_ignore"
        assert b.run("sh", "-c", ignore, plain=True) == (0, "")

    # b has no need to ask for a's address: its question, for its own first packet, would say where b is.
    mac = a.run("cat", "/sys/class/net/eth0/address", plain=True)[1].strip()
    b.ip(f"neigh add 10.98.0.1 lladdr {mac} dev eth0 nud permanent")
    answers(False)
    # Three requests, a second apart, are few for what this test does meanwhile on a busy machine.
    tries = "echo 60 > /proc/sys/net/ipv4/neigh/eth0/mcast_solicit"
    assert a.run("sh", "-c", tries, plain=True) == (0, "")
    # The kernel sends what it has queued on the processor of the answer, and the next packets come from another one: one queue of the receiver for
    # both, because a packet that is overtaken breaks a message of UC.
    assert b.run("sh", "-c", "echo 1 > /sys/class/net/eth0/queues/rx-0/rps_cpus", plain=True) == (0, "")
    # 640 packets: nothing regulates UC, and the kernel of a busy machine queues 1,000 at an interface (net.core.netdev_max_backlog).
    words = ["ib_send_bw", "-d", "burst0", "-F", "-c", "UC", "-m", 1024, "-s", 128 << 10, "-n", 5]
    words += ["-x", gid_index(a, "10.98.0.1")]
    server = b.start(*words)
    await_listener(b, server, 18515)
    client = a.start(*words, b.address)
    wait_until(lambda: a.stats()["tx_packets"], program=client)
    time.sleep(0.3)
    assert a.stats()["tx_packets"] < 100 and b.stats()["rx_packets"] == 0
    answers(True)
    await_true(lambda: not client.running() and not server.running(), 60)
    # Each message is whole; questions about the peer and receipts are packets, too.
    assert b.stats()["completions"] == 5 and b.stats()["rx_packets"] >= 5 << 7, f"{a.stats()}\n{b.stats()}\n{client.text()}\n{server.text()}"
    assert (client.wait(60), server.wait(60)) == (0, 0), client.text() + server.text()


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
