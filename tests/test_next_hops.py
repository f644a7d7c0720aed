"""Next hops of the `packet` port, which the kernel resolves and changes while data flows: gateways, neighbours that get another
Ethernet address or stop answering, addresses that are added and removed, a firewall, a daemon that dies."""

import contextlib

import pytest

from lab import Host, build_directory, run_pair, wait_until
from lab.perftest import await_listener, rping, soonest

PACKET = "packet:dev=eth0"
EXERCISE = build_directory() / "programs" / "exercise"
PERFTEST = ["-d", "burst0", "-F"]
#: 1.1 s, seven times: longer than any of the outages here. The writes last longer than what a test does meanwhile, on a busy machine, too.
WRITES = ["ib_write_bw", *PERFTEST, "-s", 65536, "-u", 18, "-D", 8]


@contextlib.contextmanager
def writes(a, b, *more):
    """WRITEs from a to b meanwhile, which must all succeed; at the end some must have gone since the last change."""
    words = [*WRITES, *more]
    server = b.start(*words)
    await_listener(b, server, 18515)
    client = a.start(*words, b.address)
    flow(a, b)
    yield
    flow(a, b)
    assert (client.wait(60), server.wait(60)) == (0, 0), client.text() + server.text()


def flow(a, b):
    """Waits until packets have passed since now."""
    sent, received = a.stats()["tx_packets"], b.stats()["rx_packets"]
    wait_until(lambda: a.stats()["tx_packets"] > sent + 100 and b.stats()["rx_packets"] > received + 100)


@pytest.fixture
def routed(namespaces, tmp_path):
    """Hosts a and b with a router between them, each with a burstd on a `packet` port."""
    with contextlib.ExitStack() as ends:
        hosts = []
        for name in ("a", "b", "r"):
            host = Host(name, tmp_path)
            ends.callback(host.end)
            hosts.append(host)
        a, b, router = hosts
        for number, host in enumerate((a, b), start=1):
            host.ip(f"link add eth0 mtu 9000 type veth peer name to{number} netns {router.keeper.pid}")
            host.address, host.address6 = f"10.9{number}.0.1", f"fd9{number}::1"
            host.ip(f"addr add {host.address}/24 dev eth0")
            host.ip(f"addr add {host.address6}/64 dev eth0 nodad")
            host.ip("link set eth0 up")
            router.ip(f"link set to{number} mtu 9000")
            router.ip(f"addr add 10.9{number}.0.254/24 dev to{number}")
            router.ip(f"addr add fd9{number}::254/64 dev to{number} nodad")
            router.ip(f"link set to{number} up")
            host.ip(f"route add default via 10.9{number}.0.254")
            host.ip(f"route add default via fd9{number}::254")
        for key in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
            code, text = router.run("sh", "-c", f"echo 1 > /proc/sys/net/{key}", plain=True)
            assert code == 0, text
        a.start_daemon(PACKET)
        b.start_daemon(PACKET)
        yield a, b, router


def test_a_gateway_in_between(routed):
    a, b, _ = routed
    for family, address in ((4, b.address), (6, b.address6)):
        own = a.address if family == 4 else a.address6
        words = [*PERFTEST, "-x", a.gid_index(own), "-s", 65536, "-n", 300]
        run_pair(b, a, ["ib_write_bw", *words], address=b.address)
        run_pair(b, a, ["ib_send_bw", *words[:-3], 1024, "-n", 300, "-c", "UD"], address=b.address)
    rping(b, a, b.address)
    rping(b, a, b.address6)


@pytest.mark.parametrize("family", [4, 6])
def test_another_gateway(routed, family):
    """The old next hop is gone with its address, and the new one has an unresolved Ethernet address."""
    a, b, router = routed
    length, old, new = (24, "10.91.0.254", "10.91.0.253") if family == 4 else (64, "fd91::254", "fd91::253")
    with writes(a, b, "-x", a.gid_index(a.address if family == 4 else a.address6)):
        router.ip(f"addr del {old}/{length} dev to1")
        router.ip("link set to1 address 02:00:00:00:00:fd")
        router.ip(f"addr add {new}/{length} dev to1" + (" nodad" if family == 6 else ""))
        a.ip(f"route replace default via {new}")
        if family == 6:
            # perftest's own conversation, over IPv4, must learn the router's new address, too.
            assert router.run("ping", "-c", 1, "-W", 5, a.address, plain=True)[0] == 0


@pytest.fixture
def pair(make_fabric):
    return make_fabric(ports=(PACKET, PACKET)).hosts


@pytest.mark.parametrize("changed", ["ours", "the-peers"])
def test_another_ethernet_address(pair, changed):
    """As when a machine is replaced; the new one speaks to the old one's peers, and so they learn its address."""
    a, b = pair
    host, other = (a, b) if changed == "ours" else (b, a)
    with writes(a, b):
        host.ip("link set eth0 address 02:00:00:00:00:99")
        assert host.run("ping", "-c", 1, "-W", 5, other.address, plain=True)[0] == 0


def test_a_neighbour_falls_silent_and_speaks_again(pair):
    a, b = pair

    def answers(yes):
        ignore = f"echo {0 if yes else 8} > /proc/sys/net/ipv4/conf/eth0/arp_ignore"
        assert b.run("sh", "-c", ignore, plain=True) == (0, "")

    def state():
        return a.run("ip", "neigh", "show", b.address, "dev", "eth0", plain=True)[1]

    with writes(a, b):
        answers(False)
        a.ip(f"neigh replace {b.address} dev eth0 nud failed")
        wait_until(lambda: a.stats()["no_neighbour"] > 0)
        assert "REACHABLE" not in state()
        answers(True)
    assert "lladdr" in state()


def test_addresses_that_are_added_and_removed(pair):
    """Each address is served as soon as it is configured, an IPv6 address after the kernel's duplicate address detection."""
    a, b = pair
    for number, host in enumerate(pair, start=1):
        host.ip(f"addr add 10.98.0.{number}/24 dev eth0")
        host.ip(f"addr add fd98::{number}/64 dev eth0")
    for first, second in (("10.99.0.{}", "10.98.0.{}"), ("fd99::{}", "fd98::{}")):
        for address in (first, second):
            wait_until(lambda: all(address.format(n) in str(h.devices()) for n, h in enumerate(pair, start=1)))
            assert soonest(5, lambda to=address.format(2): rping(b, a, to)) < 5
    with writes(a, b, "-x", a.gid_index(a.address)):
        for host in pair:
            host.ip("addr flush to 10.98.0.0/24 dev eth0")
        wait_until(lambda: all("10.98.0" not in str(host.devices()) for host in pair))


FIREWALL = """table inet filter {
    chain input {
        type filter hook input priority 0; policy accept;
        ct state invalid drop
        udp dport 4791 reject with icmpx type port-unreachable
    }
}
"""


def test_a_firewall_of_the_host_does_not_affect_the_port(pair, tmp_path):
    """The port receives frames before the kernel's rules apply. Errors that these rules send to the peer are harmless."""
    a, b = pair
    (tmp_path / "rules").write_text(FIREWALL)
    for host in pair:
        code, text = host.run("nft", "-f", tmp_path / "rules", plain=True)
        assert code == 0, text
        host.ip("neigh flush dev eth0")
    run_pair(b, a, [EXERCISE, "-n", 1000])
    assert soonest(5, lambda: rping(b, a, b.address6)) < 5


def test_a_killed_daemon_leaves_nothing(pair):
    """The kernel answers for the port from then on, and a new daemon has it at once."""
    a, b = pair
    run_pair(b, a, [EXERCISE, "-n", 200])
    a.daemon.stop(9)
    sockets = a.run("ss", "-anu", plain=True)[1] + a.run("ss", "-an0", plain=True)[1]
    assert "4791" not in sockets and "eth0" not in sockets, sockets
    a.start_daemon(PACKET)
    run_pair(b, a, [EXERCISE, "-n", 200])
    run_pair(a, b, [EXERCISE, "-n", 200])
