"""The port kind `dpdk`: two daemons joined by memif, and devices with the kernel as their other side.

memif needs neither root nor namespaces: two processes and a socket file. `make build` builds the kind where libdpdk is
installed (scripts/install-deps does that); without it the tests are skipped with that reason.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from lab import Daemon, build_directory, run_pair, wait_until
from lab.memif import Wire, meet, memif, wires, without_dpdk
from lab.perftest import await_listener

pytestmark = pytest.mark.alone


@pytest.fixture(scope="session")
def dpdk(tmp_path_factory):
    """Skips where burstd was built without DPDK."""
    said = without_dpdk(tmp_path_factory.mktemp("probe"))
    if said:
        pytest.skip(said)


@pytest.fixture(scope="module")
def pair(dpdk, tmp_path_factory):
    a, b = wires(tmp_path_factory.mktemp("memif"))
    yield a, b
    for wire in (a, b):
        assert wire.daemon.running(), wire.daemon.text()
        assert "panicked" not in wire.daemon.text(), wire.daemon.text()
        wire.daemon.stop()


def refused(port, directory):
    """The message of a burstd that cannot start with this port."""
    words = [build_directory() / "burstd", "--socket", directory / "refused.ctl", "--port", port]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    return done.stderr


PERFTEST = [
    ("ib_send_bw", "-c", "RC", "-s", 65536, "-n", 300),
    ("ib_send_bw", "-c", "UC", "-s", 8192, "-n", 300),
    ("ib_send_bw", "-c", "UD", "-s", 1024, "-n", 300),
    ("ib_write_bw", "-c", "RC", "-s", 1 << 20, "-n", 50),
    ("ib_write_bw", "-c", "RC", "-s", 64, "-n", 2000, "-q", 16, "-l", 16),
    ("ib_read_bw", "-s", 65536, "-n", 300),
    ("ib_atomic_bw", "-A", "FETCH_AND_ADD", "-n", 1000),
    ("ib_send_lat", "-c", "RC", "-s", 64, "-n", 500),
    ("ib_write_bw", "-b", "-s", 65536, "-n", 300),
]


@pytest.mark.parametrize("words", PERFTEST, ids=lambda words: "-".join(str(w) for w in words[:5]))
@pytest.mark.parametrize("way", ["there", "back"])
def test_perftest_over_memif(pair, words, way):
    a, b = pair if way == "there" else reversed(pair)
    meet(a, b, [words[0], "-d", "burst0", "-F", *words[1:]])


@pytest.mark.parametrize("program", ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong"])
@pytest.mark.parametrize("gid", [0, 1], ids=["ipv4", "ipv6"])
def test_data_is_verified(pair, program, gid):
    """-c of the examples compares what arrived with what was sent."""
    a, b = pair
    size = 2048 if "ud" in program else 65536
    meet(a, b, [program, "-d", "burst0", "-g", gid, "-s", size, "-n", 200, "-c"])


def test_connections_over_a_network_unknown_to_the_kernel(pair):
    """rping resolves the address, connects by librdmacm, and verifies its data."""
    a, b = pair
    server = a.start("rping", "-s", "-a", a.roce, "-V", "-C", 20)
    try:
        wait_until(lambda: "listening" in a.burst("cm", "--connections"), program=server)
        client = b.start("rping", "-c", "-a", a.roce, "-V", "-C", 20)
        assert client.wait(60) == 0, client.text()
        assert server.wait(60) == 0, server.text()
    finally:
        server.stop()


def test_a_host_that_does_not_exist(pair):
    """The port resolves neighbours itself, with a shorter timeout than the kernel."""
    a, b = pair
    gone = a.roce.rpartition(".")[0] + ".99"
    client = b.start(build_directory() / "programs" / "cm_resolve", "-n", 100, "-t", 20000, gone, a.roce)
    assert client.wait(60) == 0, client.text()
    assert "100 RDMA_CM_EVENT_ADDR_ERROR -113 in" in client.text(), client.text()
    assert "1 RDMA_CM_EVENT_ADDR_RESOLVED 0 in" in client.text(), client.text()
    b.daemon.wait_for_text(f"no answer from next hop {gone} on ", 60)


def test_nothing_was_damaged(pair):
    """After all of the above: no packet was damaged."""
    for wire in pair:
        stats = wire.stats()
        assert stats["rx_packets"] > 1000
        for name in ("bad_icrc", "truncated", "oversize", "bad_ip_header", "unknown_opcode"):
            assert stats.get(name, 0) == 0, stats


def test_an_idle_daemon_sleeps(pair):
    for wire in pair:
        shares = []
        while len(shares) < 5 and not (shares and min(shares) < 0.10):
            time.sleep(0.5)
            before, began = wire.daemon.cpu_seconds(), time.monotonic()
            time.sleep(2)
            shares.append((wire.daemon.cpu_seconds() - before) / (time.monotonic() - began))
        assert min(shares) < 0.10, f"an idle {wire.name} uses {shares} of a processor"


def await_events(watch, expected):
    """Waits until ibv_asyncwatch has printed these events of the port."""
    told = lambda: [word.removeprefix("IBV_EVENT_") for word in watch.text().split() if word.startswith("IBV_EVENT_")]  # noqa: E731
    wait_until(lambda: told() == expected, program=watch)


def test_the_peer_comes_back(dpdk, tmp_path):
    """Either end may start first and may be restarted, also after SIGKILL; programs get events of the link."""
    client = Wire("b", tmp_path, memif(tmp_path, "client")).start_daemon()
    watch = client.start("stdbuf", "-oL", "ibv_asyncwatch", "-d", "burst0")
    try:
        assert client.devices()[0]["state"] == "down", "nobody is there yet"
        watch.wait_for_text("burst0", 60)
        told = []
        for how in (signal.SIGKILL, signal.SIGTERM):
            server = Wire("a", tmp_path, memif(tmp_path, "server")).start_daemon()
            server.await_link()
            told.append("PORT_ACTIVE")
            await_events(watch, told)
            meet(server, client, ["ib_send_bw", "-d", "burst0", "-F", "-n", 100, "-s", 4096])
            server.daemon.stop(how)
            told.append("PORT_ERR")
            await_events(watch, told)
            assert client.devices()[0]["state"] == "down"
        assert client.daemon.running(), client.daemon.text()
    finally:
        watch.stop()
        client.daemon.stop()


def test_two_workers_hand_over_what_lands_on_the_wrong_one(dpdk, tmp_path):
    a, b = wires(tmp_path, ["--workers", "2"])
    try:
        meet(a, b, ["ib_write_bw", "-d", "burst0", "-F", "-q", 8, "-n", 200, "-s", 16384])
        meet(a, b, ["ibv_rc_pingpong", "-d", "burst0", "-g", 0, "-n", 200, "-c"])
    finally:
        for wire in (a, b):
            wire.daemon.stop()


REFUSED = [
    ("dev=net_nosuch0,addr=10.0.0.1/24", "cannot take device 'net_nosuch0"),
    ("dev=net_memif0,rol=server,addr=10.0.0.1/24", "has no argument 'rol=server'; it has role"),
    ("dev=net_memif0,role=king,addr=10.0.0.1/24", "cannot take device"),
    ("dev=net_memif0,role=server,socket=/no/such/directory/x.sock,addr=10.0.0.1/24", "DPDK cannot"),
    ("dev=net_memif0", "needs an address"),
    ("dev=net_memif0,addr=10.0.0.1/24,mtu=9000", "carries up to"),
    ("dev=ffff:ff:1e.0,addr=10.0.0.1/24,huge=off", "DPDK cannot take device 'ffff:ff:1e.0'"),
    ("dev=net_af_packet0,iface=nosuch0,addr=10.0.0.1/24", "DPDK cannot take device"),
]


@pytest.mark.parametrize("port,said", REFUSED, ids=[port for port, _ in REFUSED])
def test_a_wrong_device_gets_one_sentence(dpdk, tmp_path, port, said):
    text = refused("dpdk:" + port, tmp_path)
    lines = [line for line in text.splitlines() if " INFO " not in line]
    assert len(lines) == 1 and lines[0].startswith("burstd: ") and said in lines[0], text


def test_no_huge_pages_is_one_sentence(dpdk, tmp_path):
    free = sum(
        int(page.read_text()) * int(page.parent.name.removeprefix("hugepages-").removesuffix("kB"))
        for page in Path("/sys/kernel/mm/hugepages").glob("hugepages-*/free_hugepages")
    )
    if free >= 64 << 10:
        # With enough huge pages there is no refusal; then the test checks that they are used.
        wire = Wire("a", tmp_path, "net_null0", options=",huge=on").start_daemon()
        assert "on huge pages" in wire.daemon.text()
        wire.daemon.stop()
        return
    text = refused("dpdk:dev=net_null0,addr=10.0.0.1/24,huge=on", tmp_path)
    assert text.startswith("burstd: huge=on: 64 MiB of free huge pages are needed"), text
    text = refused("dpdk:dev=0000:00:1f.7,addr=10.0.0.1/24", tmp_path)
    assert text.startswith("burstd: device 0000:00:1f.7: 64 MiB of free huge pages are needed"), text


class Beside:
    """A second daemon in a host's namespace: the one that owns a DPDK device."""

    def __init__(self, host, address):
        self.host, self.address = host, address
        self.socket = host.directory / "beside.sock"
        self.daemon = None

    def start_daemon(self, port):
        self.daemon = Daemon(self.host.prefix(), self.socket, port, env=os.environ)

    def start(self, *words, env=None):
        return self.host.start(*words, env={"BURST_SOCKET": str(self.socket), **(env or {})})

    def tcp_table(self):
        return self.host.tcp_table()


def on_af_packet(fabric):
    """Burst owns eth0 of b; the kernel of b has another wire for the programs' TCP: (owner, spec, network, dev)."""
    a, b = fabric.hosts
    a.ip(f"link add ctl0 type veth peer name ctl0 netns {b.keeper.pid}")
    for number, host in enumerate(fabric.hosts, start=1):
        host.ip(f"addr add 10.98.0.{number}/24 dev ctl0")
        host.ip("link set ctl0 up")
    b.ip("addr flush dev eth0")
    a.address = "10.98.0.1"
    # Whole trains do not fit the frames of an AF_PACKET ring.
    return Beside(b, "10.98.0.2"), "net_af_packet0,iface=eth0,mtu=4200", "99", "udp:dev=eth0,gso=off"


def on_tap(fabric):
    """Burst owns one side of a tap device of a, the kernel of a the other. DPDK's driver carries an MTU of 1500."""
    fabric.a.address = "127.0.0.1"
    return Beside(fabric.a, "127.0.0.1"), "net_tap0,iface=tap7", "97", "udp:dev=tap7"


def gid_of(host, address):
    return next(gid["index"] for gid in host.devices()[0]["gids"] if gid["address"] == address)


@pytest.mark.parametrize("make", [on_af_packet, on_tap], ids=["af_packet", "tap"])
def test_a_kernel_on_the_other_side(dpdk, make_fabric, make):
    """A dpdk port against a udp port: echo answered, each side once as server, IPv4 and IPv6, data verified; and the kernel's
    interface goes down and comes back while data flows."""
    fabric = make_fabric(daemons=False)
    owner, spec, network, peer_port = make(fabric)
    a = fabric.a
    own = (f"10.{network}.0.2", f"fd{network}::2")
    owner.start_daemon(f"dpdk:dev={spec},addr={own[0]}/24,addr={own[1]}/64")
    try:
        dev = "eth0" if network == "99" else "tap7"
        if dev == "tap7":
            a.ip("link set tap7 up")
            a.ip(f"addr add 10.{network}.0.1/24 dev tap7")
            a.ip(f"addr add fd{network}::1/64 dev tap7 nodad")
        for address in own:
            code, text = a.run("ping", "-c", 3, "-i", 0.2, "-W", 2, address, plain=True)
            assert code == 0, text + owner.daemon.text()
        a.start_daemon(peer_port)
        for index, address in enumerate((f"10.{network}.0.1", f"fd{network}::1")):
            words = ["ibv_rc_pingpong", "-d", "burst0", "-n", 100, "-s", 16384, "-c", "-g"]
            own_words, kernel_words = [*words, index], [*words, gid_of(a, address)]
            run_pair(owner, a, kernel_words, server_words=own_words)
            run_pair(a, owner, own_words, server_words=kernel_words)
        words = ["ib_write_bw", "-d", "burst0", "-F", "-s", 16384, "-m", 1024, "-u", 17, "-D", 3]
        server = owner.start(*words)
        await_listener(owner, server, 18515)
        before = a.stats()["tx_packets"]
        client = a.start(*words, owner.address)
        while a.stats()["tx_packets"] < before + 1000:
            assert client.running(), client.text()
        a.ip(f"link set {dev} down")
        time.sleep(0.5)
        a.ip(f"link set {dev} up")
        assert (client.wait(60), server.wait(60)) == (0, 0), client.text() + server.text()
    finally:
        owner.daemon.stop()
