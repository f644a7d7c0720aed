"""Peers that do not answer: why not."""

import subprocess

import pytest

from lab import wait_until
from verbs_end import End, explained, of, pair

RETRY_EXHAUSTED, REM_OPERATION = 12, 11


@pytest.fixture
def fresh(make_fabric):
    """A fabric for one test, which breaks it."""
    return make_fabric()


def nft(host, *rules):
    """Adds rules for UDP port 4791."""
    for line in rules:
        done = subprocess.run([*host.prefix(), "nft", *line.split()], capture_output=True, text=True)
        assert done.returncode == 0, f"nft {line}: {done.stderr}"


def block(host, hook):
    nft(host, "add table inet wall", f"add chain inet wall {hook} {{ type filter hook {hook} priority 0; }}", f"add rule inet wall {hook} udp dport 4791 drop")


def gives_up(a):
    a.send(64)
    assert a.failed() == RETRY_EXHAUSTED


def test_the_number_of_a_queue_pair_that_was_destroyed(fabric):
    a, b = pair(fabric)
    b("drop", qp="q")
    gives_up(a)
    explained(
        fabric.a, of(a), [f"{fabric.b.address} is reached and its Burst daemon answers", f"queue pair {b.qpn:#x} there has never answered"],
        ["Exchange the queue pair numbers of this run"],
    )


def test_a_peer_that_was_never_connected(fabric):
    a, b = End(fabric.a).make(), End(fabric.b).make()
    a.connect(b.qpn, b.gid)
    gives_up(a)
    explained(fabric.a, of(a), ["its Burst daemon answers", "not in RTR when the request came"], ["move both ends to RTR before either sends"])
    explained(fabric.b, of(b), ["is in INIT", "packets were dropped"], ["Move the queue pair to RTR"], kind="present")


def test_a_queue_pair_that_was_destroyed_in_use(fabric):
    a, b = pair(fabric)
    b("receive", qp="q", region="m", bytes=64)
    a.send(64)
    a.done()
    b("drop", qp="q")
    gives_up(a)
    explained(fabric.a, of(a), ["has answered and does not any more", "destroyed or reset"], ["End connections at both sides in order"])


def test_a_peer_whose_program_was_killed(fabric):
    a, b = pair(fabric)
    b.kill()
    fabric.b.daemon.wait_for_text("context closed", 60)
    a.send(64)
    assert a.failed() == REM_OPERATION
    explained(fabric.a, of(a), ["its program has ended while the queue pair was connected"], ["Look for the end of the program at the peer"])


def test_an_own_queue_pair_that_does_not_exist(fabric):
    a = End(fabric.a).make()
    a.connect(a.qpn ^ 0x700, a.gid)
    gives_up(a)
    explained(fabric.a, of(a), ["of this host", "has never answered"], ["Exchange the queue pair numbers"])


def test_an_address_that_no_host_has(fabric):
    a = End(fabric.a).make()
    a.connect(0x123, "::ffff:10.99.0.77")
    gives_up(a)
    explained(fabric.a, of(a), ["No host answers for 10.99.0.77", "ARP"], ["ping 10.99.0.77"])


def test_an_address_to_which_no_route_leads(fabric):
    a = End(fabric.a).make()
    a.connect(0x123, "::ffff:10.200.0.1")
    gives_up(a)
    explained(fabric.a, of(a), [f"There is no route from {fabric.a.address} to 10.200.0.1"], ["ip route get 10.200.0.1"])


def test_a_peer_that_uses_another_gid(fresh):
    fresh.b.ip("addr add 10.99.0.22/24 dev eth0")
    wait_until(lambda: "10.99.0.22" in [gid["address"] for gid in fresh.b.devices()[0]["gids"]])
    a, b = End(fresh.a).make(), End(fresh.b, gid="10.99.0.22").make()
    a.connect(b.qpn, f"::ffff:{fresh.b.address}")
    b.connect(a.qpn, a.gid)
    b("receive", qp="q", region="m", bytes=64)
    gives_up(a)
    explained(fresh.a, of(a), ["came from another address than", "another GID index"], ["sgid_index of the peer's queue pair"])


def test_a_firewall_for_output_here(fresh):
    a, b = pair(fresh)
    block(fresh.a, "output")
    gives_up(a)
    explained(fresh.a, of(a), ["kernel of this host refused to send", "firewall rule for output"], ["nft list ruleset"])


@pytest.mark.parametrize("host,hook", [("a", "input"), ("b", "input"), ("b", "output")])
def test_a_firewall_in_one_direction(fresh, host, hook):
    block(getattr(fresh, host), hook)
    a, b = pair(fresh)
    gives_up(a)
    explained(fresh.a, of(a), ["Nothing has ever come from", "UDP port 4791 is blocked in one direction"], ["allow UDP port 4791 for input and output"])


def test_no_daemon_at_the_peer(make_fabric):
    fabric = make_fabric(daemons=False)
    fabric.a.start_daemon()
    a = End(fabric.a).make()
    a.connect(0x123, f"::ffff:{fabric.b.address}")
    gives_up(a)
    explained(fabric.a, of(a), ["nothing listens on UDP port 4791", "no RDMA stack runs there"], ["start burstd"])


def used(fabric, **words):
    """A pair over which a message has gone."""
    a, b = pair(fabric, **words)
    b("receive", qp="q", region="m", bytes=64)
    a.send(64)
    a.done()
    return a, b


def test_a_daemon_that_ended(fresh):
    a, b = used(fresh)
    fresh.b.daemon.stop(9)
    gives_up(a)
    explained(fresh.a, of(a), ["nothing listens on UDP port 4791"], ["start burstd"])


def test_a_network_that_fails_in_use(fresh):
    a, b = used(fresh)
    block(fresh.b, "input")
    gives_up(a)
    explained(fresh.a, of(a), ["has answered and is silent now", "firewall has stopped UDP port 4791"], ["ping"])


def test_a_daemon_that_was_started_anew(fresh):
    a, b = used(fresh)
    fresh.b.daemon.stop(9)
    fresh.b.start_daemon()
    gives_up(a)
    explained(fresh.a, of(a), ["was started anew", "its queue pairs are gone"], ["Connect a new queue pair"])


def test_a_black_hole_for_long_packets(fresh):
    # A wire end drops what is longer than its MTU, and says nothing.
    fresh.b.ip("link set eth0 mtu 1500")
    a, b = End(fresh.a).make(size=65536), End(fresh.b).make(size=65536)
    a.connect(b.qpn, b.gid, mtu=4096)
    b.connect(a.qpn, a.gid, mtu=1024)
    b("receive", qp="q", region="m", bytes=8192)
    # One packet: the wire lets trains pass.
    a.send(4000)
    assert a.failed() == RETRY_EXHAUSTED
    explained(fresh.a, of(a), ["answers short packets", "packets of 4000 bytes had no answer", "smaller MTU than path_mtu"], ["ping -M do -s 4050", "1024"])


def test_a_lost_packet_without_retries(fresh):
    a, b = used(fresh, retries=0)
    block(fresh.b, "output")
    a.send(64)
    assert a.failed() == RETRY_EXHAUSTED
    nft(fresh.b, "flush ruleset")
    explained(fresh.a, of(a), ["retry_cnt is 0", "gave up at once"], ["retry_cnt to 7"])
