"""One host, one daemon: packets to the port's own addresses are looped back in the daemon, or sent through the kernel with loopback=off."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab import build_directory, run_pair, wait_until

EXERCISE = build_directory() / "programs" / "exercise"
MANY = build_directory() / "programs" / "cm_many"
PORTS = ["udp:dev=eth0", "packet:dev=eth0"]


def interface_packets(host):
    """Packets that the kernel has counted on `lo`, where it sends packets to its own addresses, and on `eth0`."""
    lines = host.run("cat", "/proc/net/dev")[1].splitlines()
    rows = (re.match(r"\s*(lo|eth0):(.*)", line) for line in lines)
    return sum(int(row[2].split()[1]) + int(row[2].split()[9]) for row in rows if row)


@pytest.mark.parametrize("port", PORTS, ids=["udp", "packet"])
def test_every_operation_within_a_host(make_fabric, port):
    a = make_fabric(ports=(port, port)).a
    before = interface_packets(a)
    run_pair(a, a, [EXERCISE, "-n", 5000, "-s", 9])
    wait_until(lambda: (stats := a.stats())["loopback_packets"] == stats["rx_packets"] == stats["tx_packets"] > 5000, said=lambda: f"{a.stats()}")
    # Other traffic (neighbour discovery, the programs' own TCP) is small in comparison.
    assert interface_packets(a) - before < 500


def test_through_the_kernel_with_loopback_off(make_fabric):
    port = "udp:dev=eth0,loopback=off"
    a = make_fabric(ports=(port, port)).a
    before = interface_packets(a)
    run_pair(a, a, [EXERCISE, "-n", 5000, "-s", 9])
    assert a.stats()["loopback_packets"] == 0
    assert interface_packets(a) - before > 1000


@pytest.mark.parametrize("port", PORTS, ids=["udp", "packet"])
def test_several_workers(make_fabric, port):
    """Packets between queue pairs of any two workers bypass the kernel."""
    a = make_fabric(ports=(port, port), extra=("--workers", 3)).a
    before = interface_packets(a)
    # A queue pair joined to itself, two of two workers, and sixteen.
    status, text = a.run(build_directory() / "programs" / "post_poll", "burst0", "classic", 200)
    assert status == 0, text
    run_pair(a, a, [EXERCISE, "-n", 2000])
    run_pair(a, a, ["ib_send_bw", "-d", "burst0", "-F", "-q", 8, "-s", 16384, "-n", 200])
    # Packets may still wait for a worker without processor. One without room is dropped and counted.
    arrived = lambda stats: stats["tx_packets"] - stats["receive_overflow"]  # noqa: E731
    wait_until(lambda: (stats := a.stats())["loopback_packets"] == stats["rx_packets"] == arrived(stats) > 10000, said=lambda: f"{a.stats()}")
    assert interface_packets(a) - before < 500


def test_several_workers_through_the_kernel_with_loopback_off(make_fabric):
    port = "udp:dev=eth0,loopback=off"
    a = make_fabric(ports=(port, port), extra=("--workers", 3)).a
    run_pair(a, a, [EXERCISE, "-n", 2000])
    stats = a.stats()
    assert stats["loopback_packets"] == 0 and stats["rx_packets"] > 2000


def test_connections_within_a_host_of_several_workers(make_fabric):
    """Management datagrams are looped back, too, and reach the worker of the connection."""
    a = make_fabric(extra=("--workers", 3)).a
    server = a.start(MANY)
    server.wait_for_text("listening", 60)
    code, text = a.run(MANY, "-c", 300, a.address, seconds=60)
    assert code == 0, text
    assert json.loads(text.splitlines()[-1])["established"] == 300
    stats = a.stats()
    # REQ, REP, RTU; messages of the end may still be in flight.
    assert stats["loopback_packets"] >= 900 and stats["rx_packets"] <= stats["tx_packets"]
    assert a.stats().get("unknown_qpn", 0) == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_impairment_applies_within_a_host(make_fabric, workers):
    port = "impair:loss=1%,dup=1%,reorder=1%,corrupt=1%,seed=21/udp:dev=eth0"
    a = make_fabric(ports=(port, port), extra=("--workers", workers)).a
    run_pair(a, a, [EXERCISE, "-n", 5000, "-s", 4], seconds=120)
    stats = a.stats()
    assert stats["loopback_packets"] > 5000 and stats["impaired"] > 0 and stats["sequence_gap"] > 0


def test_beside_a_peer_on_the_wire(fabric):
    """A daemon that loops back packets also serves another host."""
    a, b = fabric.a, fabric.b
    # Longer, if the other pair did not end meanwhile: other programs may have the processors.
    for seconds in (4, 12, 36):
        with ThreadPoolExecutor() as beside:
            words = ["ib_write_bw", "-d", "burst0", "-F", "-s", 65536, "-D", seconds, "-p", 19000]
            within = beside.submit(run_pair, a, a, words, seconds=seconds + 60)
            run_pair(b, a, [EXERCISE, "-n", 3000])
            in_time = not within.done()
            assert within.result().row[3] > 0
        if in_time:
            break
    assert in_time
    stats = a.stats()
    assert 0 < stats["loopback_packets"] < stats["rx_packets"] - 3000
