"""Programs of URMA that share the nodes of two daemons: UMDK's own, unmodified.

The sources of UMDK are foreign: BURST_UMDK names a directory with its `src`, or an archive of it (docs/urma.md)."""
import json
import os
import shutil
import signal
import tempfile
from pathlib import Path

import lab
import pytest
from conftest import BUILD
from lab.urma import Umdk, await_listener, source_ports, udp_ports
from lab.waiting import WAIT_SECONDS

SOURCES = os.environ.get("BURST_UMDK")
pytestmark = pytest.mark.skipif(not SOURCES, reason="foreign sources: BURST_UMDK names no sources of UMDK (docs/urma.md)")
#: The user of programs that the daemons do not trust, and who may use their sockets.
UNTRUSTED = 65534
AS_UNTRUSTED = ["setpriv", f"--reuid={UNTRUSTED}", f"--regid={UNTRUSTED}", "--clear-groups"]


@pytest.fixture(scope="module")
def programs(namespaces):
    # Not in pytest's directory: another run of pytest closes that to other users.
    with tempfile.TemporaryDirectory(prefix="burst-urma-") as libraries:
        yield Umdk(SOURCES, Path(libraries), daemons=True)


@pytest.fixture(scope="module")
def hosts(programs):
    with lab.Fabric(mtu=1500, extra=["--socket-mode", "0666"]) as fabric:
        for directory in (fabric.a.socket.parent, programs.env["LD_LIBRARY_PATH"]):
            for path in [os.fspath(directory), *map(os.fspath, lab.fabric.Path(directory).parents)][:-1]:
                if path != "/tmp":
                    os.chmod(path, os.stat(path).st_mode | 0o055)
        yield fabric


def nodes(host):
    return json.loads(host.burst("ls", "--json")[1])["urma"]


def counters(host):
    return {c["name"]: c["value"] for c in json.loads(host.burst("stats", "--json")[1])["counters"]}


class Pair:
    """A test of urma_perftest at two ends, which may be on one host."""

    def __init__(self, programs, server, client, options, port, before=()):
        tool = programs.built / "urma/tools/urma_perftest/urma_perftest"
        words = [*before, tool, *options.split(), "-d", "burst0", "-P", port]
        self.server = server.start(*words, env=programs.env)
        await_listener(server, self.server, port)
        self.client = client.start(*words, "-S", server.address, env=programs.env)

    def end(self):
        """Its last line."""
        codes = self.client.wait(WAIT_SECONDS), self.server.wait(60)
        assert codes == (0, 0), f"client: {self.client.text()}\nserver: {self.server.text()}"
        return self.client.text().strip().splitlines()[-1]

    def kill(self):
        self.client.stop(signal.SIGKILL)
        self.server.stop(signal.SIGKILL)


@pytest.mark.parametrize("order", [("-libverbs", "-l:liburma.so.0"), ("-l:liburma.so.0", "-libverbs")], ids=["verbs first", "urma first"])
def test_verbs_and_urma_register_the_same_memory(programs, hosts, tmp_path, order):
    tool = tmp_path / "urma_both"
    programs.compile("both.c", tool, (*order, "-ldl"))
    libraries = os.pathsep.join([programs.env["LD_LIBRARY_PATH"], str(BUILD / "lib")])
    code, text = hosts.a.run(tool, env=programs.env | {"LD_LIBRARY_PATH": libraries}, seconds=WAIT_SECONDS)
    assert code == 0, text


def test_programs_share_the_node_of_an_address(programs, hosts):
    """Five tests at once, in both directions and within one host, and `burst ls` shows one node with all of them."""
    a, b = hosts.a, hosts.b
    long = "-n 100000000"
    held = Pair(programs, a, b, f"write_bw {long} -s 4096 -J 2", 21200)
    try:
        busy = lambda: any(c["bytes_in_flight"] for node in nodes(b) for c in node["channels"])  # noqa: E731
        lab.wait_until(busy, 60, held.client.text, held.client)
        pairs = [
            Pair(programs, a, b, "write_bw -n 1000 -s 65536", 21201), Pair(programs, b, a, "read_bw -n 500 -s 65536", 21202),
            Pair(programs, a, b, "send_bw -n 1000 -s 4096 -p 1", 21203), Pair(programs, a, a, "write_bw -n 1000 -s 4096", 21204),
        ]
        shown = nodes(a)
        assert [(node["device"], node["address"]) for node in shown] == [("burst0", a.address)]
        assert {channel["peer"] for channel in shown[0]["channels"]} <= {a.address, b.address}
        for pair in pairs:
            pair.end()
        code, text = b.burst("ls")
        assert code == 0 and f"channel to {a.address} " in text and "Jetties and JFSs: 2" in text, text
        assert counters(b)["tx_packets"] > 1000
    finally:
        held.kill()
    lab.wait_until(lambda: not nodes(a) and not nodes(b), 60, a.daemon.text)


@pytest.mark.parametrize("options", ["write_lat -n 200 -s 64", "send_bw -n 300 -s 65536", "atomic_lat -A faa -n 200", "send_lat -e -n 100 -s 64"])
def test_both_ends_may_be_on_one_host(programs, hosts, options):
    Pair(programs, hosts.a, hosts.a, options, 21210).end()


@pytest.mark.parametrize("options", ["write_bw -n 300 -s 65536", "read_lat -n 200 -s 4096", "send_lat -n 200 -s 64", "atomic_bw -A cas -n 200"])
def test_a_program_without_privileges_is_served(programs, hosts, options):
    Pair(programs, hosts.a, hosts.b, options, 21220, before=AS_UNTRUSTED).end()


def test_the_program_runs_by_burst_run(programs, hosts):
    """`burst run -- urma_perftest`: it finds the daemon's library and socket."""
    tool = programs.built / "urma/tools/urma_perftest/urma_perftest"
    env = {"LD_LIBRARY_PATH": str(programs.built / "urma/common")}
    words = [BUILD / "burst", "run", "--no-start", "--", tool, "write_bw", "-n", 300, "-s", 4096, "-d", "burst0", "-P", 21230]
    server = hosts.a.start(*words, env=env)
    await_listener(hosts.a, server, 21230)
    code, text = hosts.b.run(*words, "-S", hosts.a.address, env=env)
    assert code == 0 and server.wait(60) == 0, f"client: {text}\nserver: {server.text()}"
    assert "node of URMA opened" in hosts.a.daemon.text()


def test_ping_runs_by_burst_run_and_is_counted(programs, hosts):
    """`burst run -- urma_ping`, also of a user without privileges; the other host's node is that of a program that sleeps."""
    tool = programs.built / "urma/tools/urma_ping/urma_ping"
    env = {"LD_LIBRARY_PATH": str(programs.built / "urma/common")}
    runs = [BUILD / "burst", "run", "--no-start", "--"]
    sleeper = hosts.a.start(*runs, "stdbuf", "-oL", tool, "-c", 2, "-i", 3600, hosts.a.address, env=env)
    try:
        sleeper.wait_for_text("seq=1 time=", 60)
        before = counters(hosts.a)["ub_echo"]
        code, text = hosts.b.run(*runs, tool, "-c", 5, "-i", 0, "-s", 4096, hosts.a.address, env=env)
        assert code == 0 and "5 packets transmitted, 5 received, 0.0% packet loss" in text, text
        code, text = programs.ping(hosts.b, "-c 5 -i 0", hosts.a.address, before=AS_UNTRUSTED)
        assert code == 0 and "5 packets transmitted, 5 received, 0.0% packet loss" in text, text
        assert counters(hosts.a)["ub_echo"] == before + 10
        assert [(node["jetties"], node["jfrs"]) for node in nodes(hosts.a)] == [(1, 1)], "the echo is no object"
    finally:
        sleeper.stop(signal.SIGKILL)
    lab.wait_until(lambda: not nodes(hosts.a) and not nodes(hosts.b), 60, hosts.a.daemon.text)


def test_killed_programs_leave_nothing_and_hold_up_nobody(programs, hosts):
    before = len(nodes(hosts.a))
    for _ in range(5):
        pair = Pair(programs, hosts.a, hosts.b, "write_bw -n 100000000 -s 65536 -J 4", 21240)
        lab.wait_until(lambda: any(c["bytes_in_flight"] for n in nodes(hosts.b) for c in n["channels"]), 60, pair.client.text, pair.client)
        other = Pair(programs, hosts.a, hosts.b, "send_bw -n 1000 -s 4096", 21241)
        pair.kill()
        other.end()
    lab.wait_until(lambda: len(nodes(hosts.a)) == before == len(nodes(hosts.b)), 60, hosts.a.daemon.text)
    Pair(programs, hosts.a, hosts.b, "write_lat -n 100 -s 64", 21242).end()


@pytest.mark.parametrize("options", ["write_bw -s 65536", "send_bw -e -s 4096"])
def test_programs_learn_that_the_daemon_has_ended(programs, namespaces, options):
    with lab.Fabric(mtu=1500) as fabric:
        pair = Pair(programs, fabric.a, fabric.b, f"{options} -n 100000000", 21260)
        lab.wait_until(lambda: any(c["bytes_in_flight"] for n in nodes(fabric.b) for c in n["channels"]), 60, pair.client.text, pair.client)
        fabric.b.daemon.stop(signal.SIGKILL)
        assert pair.client.wait(60) != 0, "it does not poll for ever"
        assert "the daemon has ended" in pair.client.text()
        pair.kill()


@pytest.mark.parametrize("rule", ["epoll", "blocked"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_descriptors_of_events_rest_after_the_end_of_the_daemon(programs, make_fabric, tmp_path, rule, how):
    """An error once, and then nothing wakes a program that waits for them."""
    tool = tmp_path / "after_end"
    programs.compile("after_end.c", tool, ("-l:liburma.so.0", "-lpthread"))
    host = make_fabric().a
    program = host.start(tool, rule, env=programs.env)
    program.wait_for_text("ready", 60)
    host.daemon.stop(how)
    assert program.wait(60) == 0 and "checked" in program.text(), program.text()


@pytest.fixture
def hosts_of_a_long_program(programs, namespaces):
    """Host b's node outlives the tests between a and b, for a program of it has a long test within b."""
    with lab.Fabric(mtu=1500) as fabric:
        long = Pair(programs, fabric.b, fabric.b, "write_bw -n 100000000 -s 64 -l 1 -Q 1", 21270)
        lab.wait_until(lambda: nodes(fabric.b), 60, long.client.text, long.client)
        yield fabric
        long.kill()


def channels_to(host, peer):
    return [channel for node in nodes(host) for channel in node["channels"] if channel["peer"] == peer.address]


def test_a_node_that_closes_takes_its_channels_with_it(programs, hosts_of_a_long_program):
    """The next program of the address gets a channel of its own, and no request fails for the one before."""
    a, b = hosts_of_a_long_program.a, hosts_of_a_long_program.b
    for count in range(1, 4):
        Pair(programs, a, b, "write_lat -n 100 -s 64", 21280).end()
        lab.wait_until(lambda: not nodes(a) and not channels_to(b, a), 60, b.daemon.text)
        assert counters(b)["ub_channel_ended"] == count
    # A process with a node of its own tells its peers as well.
    a.daemon.stop()
    tool = programs.built / "urma/tools/urma_perftest/urma_perftest"
    words = [tool, "send_lat", "-n", 100, "-s", 64, "-d", "burst0", "-P", 21281]
    server = a.start(*words, env=programs.env, plain=True)
    await_listener(a, server, 21281)
    code, text = b.run(*words, "-S", a.address, env=programs.env)
    assert (code, server.wait(60)) == (0, 0), f"client: {text}\nserver: {server.text()}"
    lab.wait_until(lambda: not channels_to(b, a), 60, b.daemon.text)
    assert counters(b)["ub_channel_ended"] == 4 and "ub_channel_failed" not in counters(b)


def test_a_daemon_that_was_killed_and_started_again_is_noticed(programs, hosts_of_a_long_program):
    """The channel of its former life is open at the peer, and no request of the next program is lost to it."""
    a, b = hosts_of_a_long_program.a, hosts_of_a_long_program.b
    for count in range(1, 4):
        long = Pair(programs, a, a, "write_bw -n 100000000 -s 64 -l 1 -Q 1", 21290)
        lab.wait_until(lambda: nodes(a), 60, long.client.text, long.client)
        Pair(programs, a, b, "write_bw -n 100 -s 64", 21291).end()
        assert channels_to(b, a)
        a.daemon.stop(signal.SIGKILL)
        long.kill()
        a.start_daemon()
        assert channels_to(b, a), "nobody has told the node"
        Pair(programs, a, b, "write_bw -n 100 -s 64", 21291).end()
        seen = counters(b)
        assert seen["ub_peer_restarted"] == count and "ub_channel_failed" not in seen, seen


@pytest.mark.parametrize("port", ["udp:dev=eth0", "packet:dev=eth0"])
def test_lanes_of_a_daemon_leave_by_source_ports_of_their_own(programs, namespaces, port):
    """They are those of the node, however many programs and peers there are, and are closed with it."""
    with lab.Fabric(mtu=1500, ports=(port, port), extra=["--urma-lanes", "4"]) as fabric:
        a, b = fabric.a, fabric.b
        before = udp_ports(b)
        pair = Pair(programs, a, b, "write_bw -n 100000000 -s 4096", 21310)
        open_lanes = lambda: [channel["state"] for channel in channels_to(b, a)] == ["open"] * 4  # noqa: E731
        lab.wait_until(open_lanes, 60, pair.client.text, pair.client)
        ports = source_ports(a, 4)
        assert len(ports) == 4 and ports[0] == 4792, ports
        # 4792 is the daemon's from its start.
        opened = ports[1:] if port.startswith("udp") else []
        assert 4792 in before and (opened or ports[1] >= 0xc000), ports
        assert udp_ports(b) == sorted(before + opened)
        # Another program, and a peer within the host.
        Pair(programs, b, b, "write_bw -n 1000 -s 65536", 21311).end()
        assert udp_ports(b) == sorted(before + opened)
        pair.kill()
        lab.wait_until(lambda: udp_ports(b) == before, 60, b.daemon.text)


@pytest.mark.parametrize("mine, theirs", [(4, 1), (1, 8), (8, 2)])
def test_the_fewer_lanes_of_both_daemons_are_used(programs, namespaces, mine, theirs):
    with lab.Fabric(mtu=1500, daemons=False) as fabric:
        a, b = fabric.a, fabric.b
        a.start_daemon(extra=["--urma-lanes", theirs])
        b.start_daemon(env={"BURST_URMA_LANES": str(mine)})
        held = Pair(programs, a, b, "write_bw -n 100000000 -s 4096", 21320)
        lanes = min(mine, theirs)
        lab.wait_until(lambda: len(channels_to(b, a)) == lanes, 60, held.client.text, held.client)
        # Many requests later there are no more.
        Pair(programs, a, b, "write_bw -n 5000 -s 4096", 21321).end()
        Pair(programs, b, a, "write_bw -n 5000 -s 4096", 21322).end()
        assert [channel["state"] for channel in channels_to(b, a)] == ["open"] * lanes
        held.kill()


def test_packets_of_urma_are_captured(programs, hosts, tmp_path):
    """Also of a node that is opened later."""
    capture = hosts.a.start(BUILD / "burst", "capture", "--socket", hosts.a.socket)
    lab.wait_until(lambda: "burst: capturing" in capture.text(), 60, capture.text, capture)
    Pair(programs, hosts.a, hosts.b, "send_lat -n 20 -s 64", 21300).end()
    capture.process.send_signal(signal.SIGINT)
    assert capture.wait(60) == 0
    lines = [line for line in capture.text().splitlines() if " URMA " in line]
    assert sum(" Send tassn " in line for line in lines) >= 40 and {line.split()[1] for line in lines} == {"<", ">"}
    assert not any("malformed" in line for line in lines)


def test_imports_from_invented_addresses_that_end_like_a_host_s_delay_no_program(programs, hosts):
    """A program of another user imports, again and again, from all networks' addresses with the last 24 bits of host a's, and so it does before each program
    of the test begins. Those import once each, and are not refused."""
    a, b = hosts.a, hosts.b
    with tempfile.TemporaryDirectory(prefix="burst-attack-") as place:
        os.chmod(place, 0o755)
        attack = shutil.copy(BUILD / "examples/attack", place)
        hostile = b.start(*AS_UNTRUSTED, attack, "urma-same-bits", b.socket, attack, a.address)
        try:
            # A Jetty, and a segment with a request, of each of 189 networks: all are accepted.
            hostile.wait_for_text("idle 378 imports and requests", 60)
            for at in range(5):
                Pair(programs, a, b, "write_bw -n 50 -s 4096", 21230 + 2 * at).end()
                Pair(programs, b, a, "send_lat -n 50 -s 64", 21231 + 2 * at).end()
            assert hostile.running(), hostile.text()
        finally:
            hostile.stop(signal.SIGKILL)


def test_the_packets_of_a_jetty_up_to_its_failure(programs, tmp_path):
    """Its memory at the peer goes away with the peer's program, so a WRITE is refused."""
    with lab.Fabric(mtu=1500, extra=["--packet-ring"]) as fabric:
        pair = Pair(programs, fabric.a, fabric.b, "write_bw -n 100000000 -s 64", 21240)
        failed = lambda: [r["jetty"] for r in json.loads(fabric.b.burst("why", "all", "--json")[1])["failures"] if r["jetty"]]  # noqa: E731
        try:
            lab.wait_until(lambda: counters(fabric.b).get("tx_packets", 0) > 1000, 60, pair.client.text, pair.client)
            pair.server.stop(signal.SIGKILL)
            lab.wait_until(failed, 120, pair.client.text)
        finally:
            pair.kill()
        jetty, path = failed()[0], tmp_path / "kept.pcapng"
        code, text = fabric.b.burst("why", f"jetty:{jetty}", "--pcap", path)
        assert code == 0 and f"packets of Jetty {jetty} up to its failure" in text, text
        lines = fabric.b.burst("capture", "--read", path)[1].splitlines()
        assert any(f"> {fabric.a.address} " in line and " Write" in line for line in lines), lines
        assert fabric.b.burst("capture", "--read", path, "--jetty", jetty)[1].splitlines() == lines
        assert fabric.b.burst("capture", "--read", path, "--jetty", jetty + 1)[1] == ""
        code, text = fabric.b.burst("why", "jetty:1048575", "--pcap", path)
        assert code == 1 and "no request of a Jetty of yours with the id 1048575 has failed" in text, text
