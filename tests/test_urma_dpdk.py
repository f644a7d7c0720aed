"""URMA over the port kind `dpdk`: UMDK's programs, unmodified, on the nodes of two daemons that own DPDK devices, and with devices of their own.

The programs' TCP is the kernel's, their EIDs are addresses of which the kernel knows nothing. Needs the sources of UMDK, as test_urma_daemon.py
does, and a burstd that was built with the kind."""

import json
import os
import signal

import pytest

from lab import build_directory, run_pair, wait_until
from lab.memif import Wire, free_port, meet, memif, wires, without_dpdk
from lab.urma import Umdk, await_listener
from lab.waiting import WAIT_SECONDS
from test_dpdk import on_af_packet, on_tap

SOURCES = os.environ.get("BURST_UMDK")
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not SOURCES, reason="foreign sources: BURST_UMDK names no sources of UMDK (docs/urma.md)"),
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    said = without_dpdk(tmp_path_factory.mktemp("probe"))
    if said:
        pytest.skip(said)
    return Umdk(SOURCES, tmp_path_factory.mktemp("urma"), daemons=True)


@pytest.fixture(scope="module")
def pair(programs, tmp_path_factory):
    a, b = wires(tmp_path_factory.mktemp("memif"))
    yield a, b
    for wire in (a, b):
        assert wire.daemon.running() and "panicked" not in wire.daemon.text(), wire.daemon.text()
        wire.daemon.stop()


class Test:
    """A test of urma_perftest at two ends. `eids`: the numbers of the EIDs at the server and at the client."""

    __test__ = False

    def __init__(self, programs, server, client, options, eids=(0, 0), env=({}, {})):
        port = free_port()
        tool = programs.built / "urma/tools/urma_perftest/urma_perftest"
        words = lambda eid: [tool, *options.split(), "-d", "burst0", "-P", port, "--eid_idx", eid]  # noqa: E731
        self.server = server.start(*words(eids[0]), env=programs.env | env[0])
        await_listener(server, self.server, port)
        self.client = client.start(*words(eids[1]), "-S", server.address, env=programs.env | env[1])

    def end(self):
        codes = self.client.wait(WAIT_SECONDS), self.server.wait(60)
        assert codes == (0, 0), f"client: {self.client.text()}\nserver: {self.server.text()}"

    def kill(self):
        self.client.stop(signal.SIGKILL)
        self.server.stop(signal.SIGKILL)


def nodes(wire):
    return json.loads(wire.burst("ls", "--json"))["urma"]


KINDS = ["write_bw -n 500 -s 65536", "read_bw -n 300 -s 65536 -p 1", "send_bw -n 500 -s 4096", "write_lat -n 300 -s 64", "send_lat -p 2 -n 200 -s 512",
         "send_lat -e -n 100 -s 64", "atomic_lat -A faa -n 300", "write_bw -b -n 512 -s 4096", "write_bw -J 4 -n 500 -s 4096"]


@pytest.mark.parametrize("way", ["there", "back"])
@pytest.mark.parametrize("options", KINDS)
def test_perftest_over_memif(programs, pair, options, way):
    a, b = pair if way == "there" else reversed(pair)
    Test(programs, a, b, options).end()


def test_ipv6_and_both_ends_on_one_host(programs, pair):
    a, b = pair
    Test(programs, a, b, "write_bw -n 300 -s 65536", eids=(1, 1)).end()
    Test(programs, a, a, "write_lat -n 200 -s 64").end()
    # Between two nodes of one device.
    Test(programs, a, a, "write_bw -n 300 -s 65536", eids=(0, 1)).end()


def test_both_transports_share_the_device(programs, pair):
    """Packets of each find their transport while both are busy, and `burst ls` shows the node."""
    a, b = pair
    long = Test(programs, a, b, "write_bw -n 100000000 -s 4096")
    try:
        wait_until(lambda: any(c["bytes_in_flight"] for node in nodes(b) for c in node["channels"]), 60, long.client.text, long.client)
        assert [(node["device"], node["address"]) for node in nodes(a)] == [("burst0", a.roce)]
        meet(a, b, ["ib_write_bw", "-d", "burst0", "-F", "-s", 65536, "-n", 300])
        meet(b, a, ["ibv_rc_pingpong", "-d", "burst0", "-g", 0, "-s", 65536, "-n", 200, "-c"])
        Test(programs, b, a, "read_bw -n 300 -s 65536").end()
        assert long.client.running() and long.server.running()
    finally:
        long.kill()
    wait_until(lambda: not nodes(a) and not nodes(b), 60, a.daemon.text)
    for wire in pair:
        stats = wire.stats()
        for name in ("ub_checksum", "bad_icrc", "ub_channel_failed", "ub_foreign"):
            assert stats.get(name, 0) == 0, stats


def test_packets_that_land_on_another_worker_reach_the_node(programs, tmp_path):
    """memif delivers to the queue of the sender's number: nodes are on different workers at the two ends, because a has one already."""
    a, b = wires(tmp_path, ["--workers", "2"])
    try:
        held = Test(programs, a, a, "write_bw -n 100000000 -s 64 -l 1 -Q 1", eids=(1, 1))
        wait_until(lambda: nodes(a), 60, held.client.text, held.client)
        places = set()
        for _ in range(2):
            Test(programs, a, b, "write_bw -n 500 -s 65536").end()
            Test(programs, b, a, "send_lat -e -n 100 -s 64").end()
            wait_until(lambda: len(nodes(a)) == 1 and not nodes(b), 60, a.daemon.text)
            places |= {wire.daemon.text().rpartition(f"node of URMA opened address={wire.roce} worker=")[2][:1] for wire in (a, b)}
        assert places == {"0", "1"}, places
        held.kill()
    finally:
        for wire in (a, b):
            wire.daemon.stop()


def number_of_eid(host, address):
    """The number of an EID that is an address of a kernel's interface: in the kernel's order."""
    listed = json.loads(host.run("ip", "-j", "-4", "addr", plain=True)[1])
    return [a["local"] for link in listed for a in link["addr_info"] if not a["local"].startswith("127.")].index(address)


@pytest.mark.parametrize("make", [on_af_packet, on_tap], ids=["af_packet", "tap"])
def test_a_kernel_on_the_other_side(programs, make_fabric, make):
    """A node on a dpdk port against one on a udp port."""
    fabric = make_fabric(daemons=False)
    owner, spec, network, peer_port = make(fabric)
    owner.start_daemon(f"dpdk:dev={spec},addr=10.{network}.0.2/24")
    try:
        if network == "97":
            fabric.a.ip("link set tap7 up")
            fabric.a.ip(f"addr add 10.{network}.0.1/24 dev tap7")
        fabric.a.start_daemon(peer_port)
        own = number_of_eid(fabric.a, f"10.{network}.0.1")
        for options in ("write_bw -n 300 -s 65536", "send_lat -n 100 -s 64", "read_bw -n 200 -s 65536"):
            Test(programs, owner, fabric.a, options, eids=(0, own)).end()
            Test(programs, fabric.a, owner, options, eids=(own, 0)).end()
    finally:
        owner.daemon.stop()


def test_packets_of_both_transports_are_captured(programs, pair, tmp_path):
    """`burst capture` on a dpdk port; no kernel sees these packets."""
    a, b = pair
    capture = a.start(build_directory() / "burst", "capture", "burst0")
    wait_until(lambda: "burst: capturing burst0" in capture.text(), 60, capture.text, capture)
    Test(programs, a, b, "send_lat -n 20 -s 64").end()
    meet(a, b, ["ib_send_lat", "-d", "burst0", "-F", "-n", 20, "-s", 64])
    capture.process.send_signal(signal.SIGINT)
    assert capture.wait(60) == 0, capture.text()
    lines = [line for line in capture.text().splitlines() if f" {a.roce}" in line and f" {b.roce}" in line]
    urma = [line for line in lines if " URMA " in line]
    assert sum(" Send tassn " in line for line in urma) >= 40 and {line.split()[1] for line in urma} == {"<", ">"}, capture.text()
    roce = [line for line in lines if " URMA " not in line]
    assert len(roce) >= 40 and {line.split()[1] for line in roce} == {"<", ">"}, capture.text()
    assert not any("malformed" in line for line in lines)


@pytest.fixture(scope="module")
def own(programs, tmp_path_factory):
    """The environment of programs with nodes of their own on a library that was built with the kind."""
    library = build_directory() / "lib" / "dpdk" / "liburma.so.0"
    if not library.exists():
        pytest.skip(f"{library} is not built")
    libraries = tmp_path_factory.mktemp("own")
    (libraries / "liburma.so.0").symlink_to(library)
    (libraries / "liburma_common.so.0").symlink_to(programs.built / "urma/common/liburma_common.so.0")
    return {"LD_LIBRARY_PATH": str(libraries), "BURST_MODE": "inprocess"}


@pytest.mark.parametrize("options", ["write_bw -n 500 -s 65536", "send_lat -e -n 100 -s 64", "atomic_lat -A faa -n 300"])
@pytest.mark.parametrize("eid", [0, 1], ids=["ipv4", "ipv6"])
def test_programs_with_devices_of_their_own(programs, own, tmp_path, options, eid):
    a, b = (Wire(name, tmp_path, memif(tmp_path, role)) for name, role in (("a", "server"), ("b", "client")))
    Test(programs, a, b, options, eids=(eid, eid), env=tuple({**own, "BURST_PORT": wire.port} for wire in (a, b))).end()


def test_a_program_sleeps_on_the_interrupts_of_its_own_device(programs, own, make_fabric):
    """DPDK's tap has some; the other end is the kernel's. The program opens the device when the other end has come, so the interface is there before."""
    fabric = make_fabric(daemons=False)
    a, (owner, spec, _, peer_port) = fabric.a, on_tap(fabric)
    a.ip("tuntap add dev tap7 mode tap multi_queue")
    for command in ("link set lo up", "link set tap7 up", "addr add 10.97.0.1/24 dev tap7"):
        a.ip(command)
    a.start_daemon(peer_port)
    env = {**own, "BURST_PORT": f"dpdk:dev={spec},addr=10.97.0.2/24"}
    index = number_of_eid(a, "10.97.0.1")
    Test(programs, owner, a, "send_lat -e -n 200 -s 64", eids=(0, index), env=(env, {})).end()


def test_what_cannot_be_is_refused_in_a_sentence(programs, own, tmp_path):
    ends = [Wire(name, tmp_path, memif(tmp_path, role)) for name, role in (("a", "server"), ("b", "client"))]
    for env, sentence in (
        ({"BURST_MODE": "inprocess", "BURST_PORT": ends[1].port}, "this liburma.so.0 was built without dpdk ports: load dpdk/liburma.so.0"),
        ({**own, "BURST_PORT": "dpdk:dev=net_nosuch0,addr=10.0.0.1/24"}, "cannot take device 'net_nosuch0"),
    ):
        test = Test(programs, *ends, "send_lat -n 10", env=(env, env))
        try:
            assert test.client.wait(60) != 0 and sentence in test.client.text(), test.client.text()
        finally:
            test.kill()
