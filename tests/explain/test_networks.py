"""Networks and peers that fail: links, addresses, routes, neighbours, processes that are stopped, impairments."""

import signal

import pytest

from test_silence import block, fresh, gives_up, nft, used  # noqa: F401
from verbs_end import End, explained, of, pair, program

RNR_EXHAUSTED = 13


@pytest.fixture
def paused():
    """Stops processes; lets them go on at the end."""
    stopped = []

    def stop(process):
        process.send_signal(signal.SIGSTOP)
        stopped.append(process)

    yield stop
    for process in stopped:
        process.send_signal(signal.SIGCONT)


def test_a_daemon_that_is_stopped(fresh, paused):  # noqa: F811
    a, b = used(fresh)
    paused(fresh.b.daemon.process)
    gives_up(a)
    explained(fresh.a, of(a), [f"{fresh.b.address} has answered and is silent now", "host or daemon is down"], ["that its daemon runs"])


def test_a_program_that_is_stopped_and_posts_no_receives(fabric, paused):
    a, b = pair(fabric, rnr_retries=1)
    paused(b.process)
    a.send(64)
    assert a.failed() == RNR_EXHAUSTED
    explained(fabric.a, of(a), ["had no receive posted", "it said so 2 times"], ["Post receives at the peer before this end sends"])


def test_a_link_of_the_peer_that_goes_down(fresh):  # noqa: F811
    a, b = used(fresh)
    fresh.b.ip("link set eth0 down")
    gives_up(a)
    explained(fresh.a, of(a), [fresh.b.address], [f"ping {fresh.b.address}"])


def test_an_address_that_the_peer_has_lost(fresh):  # noqa: F811
    a, b = used(fresh)
    fresh.b.ip(f"addr del {fresh.b.address}/24 dev eth0")
    gives_up(a)
    explained(fresh.a, of(a), [fresh.b.address], [f"ping {fresh.b.address}"])


def test_a_route_that_is_a_black_hole(fresh):  # noqa: F811
    a, b = pair(fresh)
    fresh.a.ip(f"route add blackhole {fresh.b.address}")
    gives_up(a)
    explained(fresh.a, of(a), [f"no route from {fresh.a.address} to {fresh.b.address}"], [f"ip route get {fresh.b.address}"])


def test_a_neighbour_with_a_wrong_link_layer_address(fresh):  # noqa: F811
    fresh.a.ip(f"neigh replace {fresh.b.address} lladdr 02:00:00:00:00:77 dev eth0 nud permanent")
    a, b = pair(fresh)
    gives_up(a)
    explained(fresh.a, of(a), [f"Nothing has ever come from {fresh.b.address}"], ["burst capture"])


def test_a_firewall_that_rejects(fresh):  # noqa: F811
    a, b = pair(fresh)
    nft(fresh.b, "add table inet wall", "add chain inet wall input { type filter hook input priority 0; }", "add rule inet wall input udp dport 4791 reject")
    gives_up(a)
    explained(fresh.a, of(a), ["nothing listens on UDP port 4791"], ["start burstd"])


def test_a_firewall_for_output_in_use(fresh):  # noqa: F811
    a, b = used(fresh)
    block(fresh.a, "output")
    gives_up(a)
    explained(fresh.a, of(a), [f"{fresh.b.address} has answered and is silent now", "firewall"], ["firewalls"])


@pytest.mark.parametrize("host", ["a", "b"])
def test_a_port_that_loses_everything(make_fabric, host):
    fabric = make_fabric(daemons=False)
    for one in (fabric.a, fabric.b):
        one.start_daemon("impair:loss=100%/udp:dev=eth0" if one is getattr(fabric, host) else "udp:dev=eth0")
    a, b = pair(fabric)
    gives_up(a)
    explained(fabric.a, of(a), [f"Nothing has ever come from {fabric.b.address}"], ["burst capture"])


def test_packets_that_are_damaged_on_the_way(make_fabric):
    fabric = make_fabric(daemons=False)
    fabric.a.start_daemon("impair:corrupt=100%/udp:dev=eth0")
    fabric.b.start_daemon()
    a, b = pair(fabric)
    gives_up(a)
    explained(fabric.a, of(a), ["arrived with a wrong CRC", "changes or damages them"], ["between the hosts"])


def test_a_peer_of_another_family(fabric):
    a = End(fabric.a).make()
    a.refused("rtr", qp="q", peer=0x123, gid="fd00::77")
    explained(fabric.a, program(a), ["fd00::77"], kind="call")


def test_a_gateway_that_is_gone(fresh):  # noqa: F811
    fresh.a.ip("route add 10.77.0.0/16 via 10.99.0.99")
    a = End(fresh.a).make()
    a.connect(0x123, "::ffff:10.77.0.1")
    gives_up(a)
    explained(fresh.a, of(a), ["No host answers for 10.77.0.1", "ARP"], ["ping 10.77.0.1"])
