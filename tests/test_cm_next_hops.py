"""An address is resolved when its next hop answers: hosts and gateways that do not exist, that answer late, that
need not be asked; and many ids that wait for one."""

import contextlib
import json
import re
import signal
import time
from pathlib import Path

import pytest

from lab import build_directory, wait_until
from lab.fabric import Daemon
from lab.perftest import rping, soonest
from test_cm import steps
from test_packet import errors_sent

RESOLVE = build_directory() / "programs" / "cm_resolve"
EXPLAIN = {"BURST_EXPLAIN": "1"}
#: The kernel sends three requests, one second apart.
KERNEL_GIVES_UP_MS = 3000
NO_ANSWER, TIMED_OUT = -113, -110
#: The programs wait for two seconds; without resolution of the next hop a connection would fail after 25. With a margin for a busy machine.
SOON = 15


def dead(host, family):
    """An unused address of the host's network."""
    return host.address.rpartition(".")[0] + ".99" if family == 4 else host.address6.rpartition(":")[0] + ":99"


def resolve(host, *words):
    """[(ids, event, status, milliseconds)] of cm_resolve."""
    code, text = host.run(RESOLVE, *words, seconds=60)
    assert code == 0, text
    found = re.findall(r"^(\d+) (\w+) (-?\d+) in (\d+) ms$", text, re.MULTILINE)
    return [(int(ids), event.removeprefix("RDMA_CM_EVENT_"), int(status), int(ms)) for ids, event, status, ms in found]


@contextlib.contextmanager
def patience(host, tries=60):
    """Meanwhile, the kernel of the host asks each new next hop so many times, a second apart, before it gives up. What a test does while
    an address is being resolved may take longer than the usual three on a busy machine."""
    keys = [f"/proc/sys/net/{family}/neigh/eth0/mcast_solicit" for family in ("ipv4", "ipv6")]

    def ask(times):
        code, text = host.run("sh", "-c", "; ".join(f"echo {times} > {key}" for key in keys), plain=True)
        assert (code, text) == (0, "")

    ask(tries)
    yield
    ask(KERNEL_GIVES_UP_MS // 1000)


def numbers(host):
    """The numbers below the table of `burst cm`."""
    code, text = host.burst("cm", "--json")
    assert code == 0, text
    return json.loads(text)["numbers"]


def resolved(host, *words):
    """Asserts the condition."""
    assert [row[:3] for row in resolve(host, *words)] == [(1, "ADDR_RESOLVED", 0)]


@pytest.mark.parametrize("family", [4, 6])
def test_rping_to_a_host_that_is_not_there(fabric, family):
    a, address = fabric.a, dead(fabric.a, family)
    before = a.stats()["cm_no_next_hop"]
    begun = time.monotonic()
    code, text = a.run("rping", "-c", "-C", 1, "-a", address, env=EXPLAIN)
    took = time.monotonic() - begun
    assert code != 0 and "RDMA_CM_EVENT_ADDR_ERROR" in text and took < SOON, (took, text)
    why = f"no answer from next hop {address} on eth0 ({'ARP' if family == 4 else 'neighbour discovery'})"
    assert f"burst: the address is not resolved: {why}" in text
    a.daemon.wait_for_text(why, 60)
    assert a.stats()["cm_no_next_hop"] == before + 1
    assert steps(a)["resolve address"]["max_ns"] > 1e9, "the wait belongs to the step"
    code, text = a.burst("why", "cm_no_next_hop")
    assert code == 0 and "next hop" in text


def test_ucmatose_to_a_host_that_is_not_there(fabric):
    begun = time.monotonic()
    code, text = fabric.a.run("ucmatose", "-s", dead(fabric.a, 4))
    assert code != 0 and "RDMA_CM_EVENT_ADDR_ERROR" in text and time.monotonic() - begun < SOON, text


@pytest.mark.parametrize("kind", [(), ("-u",)], ids=["connections", "datagrams"])
def test_the_first_of_answer_and_timeout_ends_the_wait(fabric, kind):
    a = fabric.a

    def milliseconds(timeout, error):
        [(ids, event, status, ms)] = resolve(a, *kind, "-t", timeout, dead(a, 4))
        assert (ids, event, status) == (1, "ADDR_ERROR", error)
        return ms

    assert 300 <= soonest(KERNEL_GIVES_UP_MS, lambda: milliseconds(300, TIMED_OUT)) < KERNEL_GIVES_UP_MS
    # The kernel's timeout, which began with the first request.
    assert soonest(4 * KERNEL_GIVES_UP_MS, lambda: milliseconds(20000, NO_ANSWER)) < 4 * KERNEL_GIVES_UP_MS


def test_a_synchronous_id_gets_the_error(fabric):
    assert [row[:3] for row in resolve(fabric.a, "-s", "-t", 200, dead(fabric.a, 6))] == [(1, "error", TIMED_OUT)]
    assert [row[:3] for row in resolve(fabric.a, "-s", fabric.b.address6)] == [(1, "resolved", 0)]


def test_an_id_that_failed_can_be_resolved_to_another_address(fabric):
    rows = resolve(fabric.a, "-t", 200, dead(fabric.a, 4), fabric.b.address)
    assert [row[:3] for row in rows] == [(1, "ADDR_ERROR", TIMED_OUT), (1, "ADDR_RESOLVED", 0)]


def test_link_local(fabric):
    a = fabric.a
    there = next(g["address"] for g in fabric.b.devices()[0]["gids"] if g["address"].startswith("fe80"))
    resolved(a, f"{there}%eth0")
    assert [row[1:3] for row in resolve(a, "-t", 200, "fe80::99%eth0")] == [("ADDR_ERROR", TIMED_OUT)]


@pytest.mark.parametrize("kind", ["udp", "packet"])
@pytest.mark.parametrize("family", [4, 6])
def test_a_host_that_answers_late(make_fabric, kind, family):
    a, b = make_fabric(ports=(f"{kind}:dev=eth0",) * 2).hosts
    address = dead(a, family)
    with patience(a):
        program = a.start(RESOLVE, "-t", 20000, address)
        wait_until(lambda: numbers(a)["waiting for next hops"] == 1, program=program)
        time.sleep(0.7)
        assert program.running(), program.text()
        b.ip(f"addr add {address}/24 dev eth0" if family == 4 else f"addr add {address}/64 dev eth0 nodad")
        assert program.wait(60) == 0 and "1 RDMA_CM_EVENT_ADDR_RESOLVED 0 in" in program.text(), program.text()
    resolved(a, address)
    assert b.gid_index(address) > 0, "the daemon has seen the new address"
    rping(b, a, address)


@pytest.mark.parametrize("kind", ["udp", "packet"])
def test_gateways(make_fabric, kind):
    """The gateway must answer, not the host behind it."""
    a, b = make_fabric(ports=(f"{kind}:dev=eth0",) * 2).hosts
    gone, gone6 = dead(a, 4), dead(a, 6)
    for network, gateway in (("10.55.0.0/24", b.address), ("10.56.0.0/24", gone), ("fd55::/64", b.address6), ("fd56::/64", gone6),
                             ("10.57.0.0/24", f"inet6 {b.address6}"), ("10.58.0.0/24", f"inet6 {gone6}")):
        a.ip(f"route add {network} via {gateway} dev eth0")
    for there in ("10.55.0.7", "fd55::7", "10.57.0.7"):
        resolved(a, there)
    for not_there, gateway in (("10.56.0.7", gone), ("fd56::7", gone6), ("10.58.0.7", gone6)):
        assert [row[1:3] for row in resolve(a, "-t", 200, not_there)] == [("ADDR_ERROR", TIMED_OUT)], not_there
        a.daemon.wait_for_text(f"no answer from next hop {gateway} on eth0", 60)
        assert f", which leads to {not_there}" in a.daemon.text()
    # During the wait the route changes to a gateway that exists.
    with patience(a):
        program = a.start(RESOLVE, "-t", 20000, "10.56.0.7")
        wait_until(lambda: numbers(a)["waiting for next hops"] == 1, program=program)
        a.ip(f"route replace 10.56.0.0/24 via {b.address}")
        assert program.wait(60) == 0 and "1 RDMA_CM_EVENT_ADDR_RESOLVED 0 in" in program.text(), program.text()


def test_next_hops_that_need_no_resolution(make_fabric):
    """A permanent neighbour entry, and a link without neighbours."""
    fabric = make_fabric(daemons=False)
    a = fabric.a
    a.ip("link add alone type veth peer name other")
    a.ip("link set other up")
    a.ip("link set alone arp off up")
    a.ip("addr add 10.77.0.1/24 dev alone")
    a.ip(f"neigh add {dead(a, 4)} lladdr 02:00:00:00:00:99 nud permanent dev eth0")
    a.start_daemon("udp:dev=alone", extra=("--port", "udp:dev=eth0"))
    resolved(a, "10.77.0.9")
    resolved(a, dead(a, 4))
    resolved(a, a.address)


@pytest.mark.parametrize("privileged", [True, False])
def test_the_kernel_resolves_with_and_without_privileges(make_fabric, privileged):
    """With privileges only ARP and neighbour discovery reach the next hop; without, also a datagram to a closed port."""
    fabric = make_fabric(daemons=False)
    a, b = fabric.hosts
    without = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]
    a.daemon = Daemon([*a.prefix(), *([] if privileged else without)], a.socket, "udp:dev=eth0")
    effective = re.search(r"CapEff:\s+(\w+)", Path(f"/proc/{a.daemon.pid}/status").read_text())[1]
    assert (int(effective, 16) != 0) == privileged
    for family, address in ((4, b.address), (6, b.address6)):
        a.ip("neigh flush dev eth0")
        refused = errors_sent(b)
        resolved(a, address)
        assert [row[1:3] for row in resolve(a, "-t", 200, dead(a, family))] == [("ADDR_ERROR", TIMED_OUT)]
        assert not privileged or errors_sent(b) == refused


def test_neighbours_are_resolved_without_a_link_local_address(make_fabric):
    a, b = make_fabric(daemons=False).hosts
    for host in (a, b):
        host.ip("addr flush dev eth0 scope link")
    a.start_daemon("udp:dev=eth0")
    resolved(a, b.address6)
    assert [row[1:3] for row in resolve(a, "-t", 200, dead(a, 6))] == [("ADDR_ERROR", TIMED_OUT)]


def test_a_group_has_no_next_hop(fabric):
    resolved(fabric.a, "-u", "239.1.2.3")


def test_ten_thousand_ids_that_wait_for_one_host_delay_no_others(fabric):
    a, b = fabric.hosts
    before, frames = a.stats()["cm_no_next_hop"], sent(a)
    # The ids' own timeouts do not end before the kernel gives up.
    program = None
    try:
        with patience(a):
            program = a.start(RESOLVE, "-n", 10000, "-t", 200_000, dead(a, 4))
            wait_until(lambda: numbers(a)["waiting for next hops"] == 10000, 30, program=program)
            assert sent(a) - frames < 100, "they are asked for together"
            rping(b, a, b.address)
            assert program.running(), program.text()
        assert program.wait(60) == 0, program.text()
    finally:
        if program:
            program.stop()
    assert f"10000 RDMA_CM_EVENT_ADDR_ERROR {NO_ANSWER} in" in program.text()
    assert a.stats()["cm_no_next_hop"] == before + 10000
    assert numbers(a)["waiting for next hops"] == 0


def sent(host):
    """Frames that the host has sent."""
    return int(host.run("cat", "/sys/class/net/eth0/statistics/tx_packets", plain=True)[1])


def test_destroyed_ids_leave_nothing(fabric):
    a = fabric.a
    with patience(a):
        program = a.start(RESOLVE, "-n", 500, "-t", 20000, "-d", 200, dead(a, 4))
        program.wait_for_text("destroyed", 60)
        assert numbers(a)["waiting for next hops"] == 0
        assert program.wait(60) == 0, program.text()
        # The same for a program that dies.
        program = a.start(RESOLVE, "-n", 500, "-t", 20000, dead(a, 6))
        wait_until(lambda: numbers(a)["waiting for next hops"] == 500, program=program)
        program.stop(how=signal.SIGKILL)
        wait_until(lambda: not any(numbers(a)[what] for what in ("waiting for next hops", "ids")), said=lambda: f"{numbers(a)}")
