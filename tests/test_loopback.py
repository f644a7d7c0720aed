"""One host, one daemon: what a port sends to itself turns round in the daemon, or goes through the kernel if asked to."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab import build_directory, run_pair

EXERCISE = build_directory() / "programs" / "exercise"
PORTS = ["udp:dev=eth0", "packet:dev=eth0"]


def interface_packets(host):
    """Packets that the kernel has counted on `lo`, where its own traffic to itself goes, and on `eth0`."""
    lines = host.run("cat", "/proc/net/dev")[1].splitlines()
    rows = (re.match(r"\s*(lo|eth0):(.*)", line) for line in lines)
    return sum(int(row[2].split()[1]) + int(row[2].split()[9]) for row in rows if row)


@pytest.mark.parametrize("port", PORTS, ids=["udp", "packet"])
def test_every_operation_within_a_host(make_fabric, port):
    a = make_fabric(ports=(port, port)).a
    before = interface_packets(a)
    run_pair(a, a, [EXERCISE, "-n", 5000, "-s", 9])
    stats = a.stats()
    assert stats["loopback_packets"] == stats["rx_packets"] == stats["tx_packets"] > 5000
    # What else speaks there (neighbour discovery, the programs' own TCP) is little beside this.
    assert interface_packets(a) - before < 500


def test_through_the_kernel_if_asked(make_fabric):
    port = "udp:dev=eth0,loopback=off"
    a = make_fabric(ports=(port, port)).a
    before = interface_packets(a)
    run_pair(a, a, [EXERCISE, "-n", 5000, "-s", 9])
    assert a.stats()["loopback_packets"] == 0
    assert interface_packets(a) - before > 1000


def test_several_workers(make_fabric):
    """Packets between queue pairs of different workers go through the kernel, all others turn round."""
    a = make_fabric(extra=("--workers", 3)).a
    # A queue pair joined to itself.
    status, text = a.run(build_directory() / "programs" / "post_poll", "burst0", "classic", 200)
    assert status == 0, text
    own = a.stats()
    assert own["loopback_packets"] == own["rx_packets"] == own["tx_packets"] >= 200
    # Two programs of one queue pair each: by round robin they are of two workers.
    run_pair(a, a, [EXERCISE, "-n", 2000])
    both = a.stats()
    assert both["loopback_packets"] == own["loopback_packets"] and both["rx_packets"] > own["rx_packets"] + 2000


def test_a_bad_wire_is_bad_within_a_host_too(make_fabric):
    port = "impair:loss=1%,dup=1%,reorder=1%,corrupt=1%,seed=21/udp:dev=eth0"
    a = make_fabric(ports=(port, port)).a
    run_pair(a, a, [EXERCISE, "-n", 5000, "-s", 4], seconds=120)
    stats = a.stats()
    assert stats["loopback_packets"] > 5000 and stats["impaired"] > 0 and stats["sequence_gap"] > 0


def test_beside_a_peer_on_the_wire(fabric):
    """A daemon that is busy with itself serves another host as well."""
    a, b = fabric.a, fabric.b
    with ThreadPoolExecutor() as beside:
        within = beside.submit(run_pair, a, a, ["ib_write_bw", "-d", "burst0", "-F", "-s", 65536, "-D", 4, "-p", 19000])
        run_pair(b, a, [EXERCISE, "-n", 3000])
        assert not within.done()
        assert within.result().row[3] > 0
    stats = a.stats()
    assert 0 < stats["loopback_packets"] < stats["rx_packets"] - 3000
