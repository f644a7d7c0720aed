"""UMDK's own programs, unmodified, on Burst's liburma.so.0 between two namespaces.

The sources of UMDK are foreign: BURST_UMDK names a directory with its `src`, or an archive of it (docs/urma.md). They are built once into
target/umdk."""
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import lab
import pytest
from conftest import BUILD
from lab.urma import Umdk, await_listener, source_ports, udp_ports

SOURCES = os.environ.get("BURST_UMDK")
ROOT = lab.fabric.ROOT
LAYOUT = ROOT / "crates/frontends/liburma/tests/layout.c"
#: The TCP port on which urma_sample agrees on its objects.
SAMPLE_PORT = 13857

pytestmark = pytest.mark.skipif(not SOURCES, reason="foreign sources: BURST_UMDK names no sources of UMDK (docs/urma.md)")


@pytest.fixture(scope="module")
def own(namespaces, tmp_path_factory):
    """Two hosts without daemons, and UMDK's programs, each with a node of its own."""
    programs = Umdk(SOURCES, tmp_path_factory.mktemp("urma"))
    with lab.Fabric(mtu=1500, daemons=False) as fabric:
        yield fabric, programs


@pytest.fixture(scope="module")
def shared(namespaces, tmp_path_factory):
    """Two hosts with daemons, and UMDK's programs on them."""
    programs = Umdk(SOURCES, tmp_path_factory.mktemp("urma"), daemons=True)
    with lab.Fabric(mtu=1500) as fabric:
        yield fabric, programs


@pytest.fixture(params=["own", "shared"])
def umdk(request):
    """Both ways in which programs have a node."""
    return request.getfixturevalue(request.param)


def perftest(umdk, options):
    """Runs urma_perftest at both ends; the client's output."""
    fabric, programs = umdk
    return programs.perftest(fabric, options)


def test_structures_are_those_of_the_headers(own):
    include = own[1].sources / "src/urma/lib/urma/core/include"
    done = subprocess.run(["gcc", "-fsyntax-only", "-I", include, LAYOUT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def symbols(library):
    """The functions of the interface that a library exports."""
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in listed.splitlines() if line.split()[-1].startswith("urma_")}


def test_every_symbol_of_umdk_s_library_is_there(own):
    theirs, ours = symbols(own[1].built / "urma/lib/urma/core/liburma.so.0"), symbols(BUILD / "lib" / "liburma.so.0")
    assert len(theirs) == 350 and theirs - ours == set() and ours - theirs == set()


KINDS = [f"{test} -n 200 -s {size}" for test, size in (
    ("send_lat", 64), ("write_lat", 64), ("read_lat", 64), ("send_bw", 4096), ("write_bw", 4096), ("read_bw", 4096))]
ATOMICS = ["atomic_lat -A faa -n 200", "atomic_bw -A faa -n 200", "atomic_bw -A cas -J 4 -n 200"]
#: urma_perftest counts 100 requests for the last, incomplete group of each Jetty. If the groups do not come out even, three Jetties that are
#: done can reach the total: it polls no more, and waits forever for room in the queue of the fourth (tot_ccnt in run_once_bw).
MULTIPLE = "write_bw -J 4 -n 500 -s 4096"
ORDERS = [f"write_bw --order_type {order} -n 300 -s 4096" for order in (1, 2, 3)]


@pytest.mark.parametrize("mode", ["-p 0", "-p 1"], ids=["RM", "RC"])
@pytest.mark.parametrize("kind", KINDS + ATOMICS + ORDERS)
def test_perftest_runs_in_each_mode(umdk, kind, mode):
    perftest(umdk, f"{kind} {mode}")


@pytest.mark.parametrize("options", [
    "send_lat -p 2 -n 200 -s 512", "send_bw -p 2 -n 200 -s 512",
    "write_bw -b -n 512 -s 4096", "write_bw -b -f -n 512 -s 4096", MULTIPLE, "write_bw -l 8 -Q 8 -n 512 -s 4096",
    "write_bw -Q 8 -n 512 -s 4096", "write_bw -B -n 512 -s 4096", "write_bw -K 1 -n 512 -s 4096", "write_bw --enable_imm -n 512 -s 4096",
    "write_bw --enable_notify -n 512 -s 4096",
    "write_bw --eid_idx 1 -n 512 -s 4096", "send_lat -e -n 200 -s 64", "send_bw -e -n 200 -s 64", "write_lat -I 32 -n 200 -s 32",
    "read_lat -a -n 50", "write_bw -n 20 -s 16777215",
])
def test_perftest_runs_with_its_options(umdk, options):
    perftest(umdk, options)


@pytest.mark.parametrize("port", ["impair:loss=1%,reorder=1%,seed=3/udp", "packet:dev=eth0"])
def test_any_port_of_burst_carries_the_transport(own, port):
    fabric, programs = own
    programs.perftest(fabric, "write_bw -n 512 -s 65536", env={"BURST_PORT": port})


@pytest.mark.parametrize("options", ["", "-m 1", "-e"])
def test_the_sample_moves_its_messages(umdk, options):
    fabric, programs = umdk
    env, words = programs.env, [programs.built / "urma/examples/urma_sample", "-d", "burst0", *options.split()]
    # A daemon holds the port itself.
    is_open = lambda: ":12B8 " in Path(f"/proc/{fabric.a.keeper.pid}/net/udp").read_text()  # noqa: E731
    was_open = is_open()
    # The server ends with its standard input, or by a signal.
    server = fabric.a.start("sh", "-c", f"sleep 600 | {' '.join(map(str, words))}", env=env, plain=programs.plain)
    await_listener(fabric.a, server, SAMPLE_PORT)
    code, text = fabric.b.run(*words, "-i", fabric.a.address, env=env, plain=programs.plain)
    server.stop()
    # The next server needs the port, which the shell's children leave when they have ended, too.
    lab.wait_until(lambda: is_open() == was_open, 60, server.text)
    assert code == 0 and "Response received" in text, f"client: {text}\nserver: {server.text()}"


# urma_ping

@contextmanager
def node(umdk, host, address, env=None):
    """A node at one of a host's addresses: that of a program that has pinged itself and sleeps."""
    _, programs = umdk
    words = ["stdbuf", "-oL", programs.built / "urma/tools/urma_ping/urma_ping", "-c", 2, "-i", 3600, address]
    program = host.start(*words, env=programs.env | (env or {}), plain=programs.plain)
    try:
        program.wait_for_text("seq=1 time=", 60)
        yield
    finally:
        program.stop(signal.SIGKILL)


def replies(text):
    """The sequence numbers and sizes of the answers, and what the last lines say: sent, received, lost in percent."""
    answers = [(int(seq), int(size)) for size, seq in re.findall(r"^(\d+) bytes from [0-9a-f:]+: seq=(\d+) time=[0-9.]+ ms$", text, re.M)]
    sent, received, lost = re.search(r"(\d+) packets transmitted, (\d+) received, ([0-9.]+)% packet loss", text).groups()
    return answers, (int(sent), int(received), float(lost))


@pytest.mark.parametrize("options", ["-c 20 -i 0", "-c 2", "-c 5 -i 0 -s 1", "-c 5 -i 0 -s 1025", "-c 5 -i 0 -s 4096 -v", "-c 3 -i 0 -W 5 -w 60"])
def test_ping_has_an_answer_to_each_message(umdk, options):
    fabric, programs = umdk
    words = options.split()
    count, size = int(words[1]), int(words[words.index("-s") + 1]) if "-s" in words else 4
    with node(umdk, fabric.a, fabric.a.address):
        code, text = programs.ping(fabric.b, options, fabric.a.address)
    assert code == 0 and replies(text) == ([(i + 1, size) for i in range(count)], (count, count, 0.0)), text


def test_ping_takes_addresses_of_both_families_and_a_source(umdk):
    """The map of the network needs no configuration; without -I the source is of the destination's family."""
    fabric, programs = umdk
    a, b = fabric.a, fabric.b
    for ours, theirs in ((b.address, a.address), (b.address6, a.address6)):
        with node(umdk, a, theirs):
            for options in ("-c 3 -i 0", f"-c 3 -i 0 -I {ours}"):
                code, text = programs.ping(b, options, theirs)
                assert code == 0 and replies(text)[1] == (3, 3, 0.0), f"{options} {theirs}: {text}"
    code, text = programs.ping(b, "-c 3 -i 0", b.address)
    assert code == 0 and replies(text)[1] == (3, 3, 0.0), f"itself: {text}"


def test_ping_of_nobody_ends_and_says_so(umdk):
    fabric, programs = umdk
    for nobody in ("10.99.0.77", "fd99::77"):
        code, text = programs.ping(fabric.b, "-c 2 -i 0", nobody)
        assert code == 0 and replies(text) == ([], (2, 0, 100.0)) and text.count("Request timeout") == 2, text
    code, text = programs.ping(fabric.b, "-c 1", "10.44.0.1")
    assert code == 1 and "Failed to find the destination primary EID" in text, text


def test_the_map_of_the_network_may_be_named(own):
    """Hosts in other networks are not known; who names one gets an answer, or its absence."""
    fabric, programs = own
    code, text = programs.ping(fabric.b, "-c 1 -i 0", "10.44.0.9", {"BURST_URMA_TOPOLOGY": "fd44::/64 10.44.0.0/24"})
    assert code == 0 and replies(text)[1] == (1, 0, 100.0), text
    code, text = programs.ping(fabric.b, "-c 1 -vvv", fabric.a.address, {"BURST_URMA_TOPOLOGY": "host-a"})
    assert code == 1 and 'BURST_URMA_TOPOLOGY: "host-a" is neither an address nor a network' in text, text


#: Sends an empty datagram to the discard port of its argument.
GREET = "import socket, sys; socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b'', (sys.argv[1], 9))"


def test_a_neighbour_of_which_the_kernel_has_heard_is_in_the_map(own):
    """IPv6 networks cannot be listed beyond their first addresses."""
    fabric, programs = own
    address = "fd99::9:beef"
    fabric.a.ip(f"addr add {address}/64 dev eth0 nodad")
    with node(own, fabric.a, address):
        code, text = programs.ping(fabric.b, "-c 1", address)
        assert code == 1 and "Failed to find the destination primary EID" in text, text
        assert fabric.b.run(sys.executable, "-c", GREET, address, plain=True)[0] == 0
        answered = lambda: programs.ping(fabric.b, "-c 1", address)[0] == 0  # noqa: E731
        lab.wait_until(answered, 60)
        code, text = programs.ping(fabric.b, "-c 2 -i 0", address)
        assert code == 0 and replies(text)[1] == (2, 2, 0.0), text


@pytest.mark.parametrize("port", ["impair:loss=10%,reorder=5%,dup=5%,seed=3/udp", "packet:dev=eth0"])
def test_ping_goes_over_any_port(own, port):
    fabric, programs = own
    with node(own, fabric.a, fabric.a.address, {"BURST_PORT": port}):
        code, text = programs.ping(fabric.b, "-c 60 -i 0 -s 4000 -W 10", fabric.a.address, {"BURST_PORT": port})
    assert code == 0 and replies(text)[1] == (60, 60, 0.0), text


def test_an_address_has_a_node_only_while_a_program_uses_it(shared):
    fabric, programs = shared
    code, text = programs.ping(fabric.b, "-c 1 -i 0", fabric.a.address)
    assert code == 0 and replies(text)[1] == (1, 0, 100.0), text


def test_a_program_that_uses_libnl_otherwise_reaches_it(own, tmp_path):
    """The library answers for one family of generic netlink; all others are the kernel's, whoever loads libnl and however."""
    fabric, programs = own
    tool = tmp_path / "families"
    command = ["gcc", "-O2", "-Wall", "-Werror", "-I/usr/include/libnl3", "-o", tool, ROOT / "tests/programs/urma/families.c"]
    libraries = [f"-L{programs.env['LD_LIBRARY_PATH']}", "-Wl,--no-as-needed", "-l:liburma.so.0", "-Wl,--allow-shlib-undefined"]
    for late in ([], ["-DLATE", "-ldl"]):
        linked = late or ["-lnl-genl-3", "-lnl-3"]
        done = subprocess.run([*command, *libraries, *linked], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        code, text = fabric.a.run(tool, env=programs.env, plain=True)
        assert code == 0 and text.split() == ["nlctrl", "16", "UBAGG_GENL", "16981", "unknown", "-12"], text


@pytest.mark.parametrize("port", ["udp", "impair:loss=1%,reorder=1%,seed=3/udp", "packet:dev=eth0"])
def test_lanes_carry_the_transport(own, port):
    fabric, programs = own
    programs.perftest(fabric, "write_bw -n 512 -s 65536", env={"BURST_PORT": port, "BURST_URMA_LANES": "4"})
    programs.perftest(fabric, "read_bw -n 512 -s 65536", env={"BURST_PORT": port, "BURST_URMA_LANES": "4"})


@pytest.mark.parametrize("port", ["udp", "impair:reorder=1%,seed=3/udp", "packet:dev=eth0"])
def test_lanes_are_seen_and_have_source_ports_of_their_own(own, port):
    fabric, programs = own
    env = {"BURST_SOCKET": str(fabric.a.socket), "BURST_PORT": port, "BURST_URMA_LANES": "4"}
    server, client = programs.start_perftest(fabric, "write_bw -n 100000000 -s 4096", env)

    def lanes():
        code, text = fabric.a.burst("ls", "--json")
        if code:
            return []  # no program has a socket yet
        nodes = {row["pid"]: row for row in json.loads(text)["urma"]}
        return [(c["peer"], c["state"]) for c in nodes[client.pid]["channels"]] if client.pid in nodes else []

    try:
        lab.wait_until(lambda: lanes() == [(fabric.a.address, "open")] * 4, 60, client.text, client)
        ports = source_ports(fabric.a, 4)
        assert len(ports) == 4 and ports[0] == 4792, ports
        # A port of sockets has one for each lane; the other one writes source ports, and its socket reserves the usual one.
        if port.endswith("udp"):
            assert udp_ports(fabric.b) == ports
        else:
            assert udp_ports(fabric.b) == [4792] and ports[1] >= 0xc000, ports
        assert fabric.a.burst("ls")[1].count(f"channel to {fabric.a.address} ") == 4
    finally:
        client.stop(signal.SIGKILL)
        server.stop(signal.SIGKILL)


@pytest.mark.parametrize("lanes", ["0", "9", "two"])
def test_lanes_of_another_number_are_refused_with_a_sentence(own, lanes):
    fabric, programs = own
    words = [programs.built / "urma/examples/urma_sample", "-d", "burst0"]
    code, text = fabric.a.run(*words, env=programs.env | {"BURST_URMA_LANES": lanes}, plain=True)
    assert code != 0 and text.count(f'BURST_URMA_LANES is "{lanes}": the number of lanes to a peer is 1 to 8') == 1, text


# Burst's own functions

@pytest.mark.parametrize("port", ["udp", "packet:dev=eth0", "impair:loss=2%,reorder=2%,dup=2%,seed=3/udp"])
def test_loads_stores_and_apertures_of_a_remote_segment(own, tmp_path, port):
    """Under losses each addition is counted once, and the aperture has every byte."""
    fabric, programs = own
    rounds = 600
    times, (first, counter, last) = programs.aperture(fabric, tmp_path, rounds, {"BURST_PORT": port})
    assert (first, counter, last) == (rounds - 1, 2 + rounds, rounds - 1)
    # A rate in whole MiB/s is 0 on a busy machine.
    assert all(time > 0 for name, time in times.items() if name != "scan_mib_s")


def test_loads_stores_and_apertures_work_through_daemons(shared, tmp_path):
    fabric, programs = shared
    _, (first, counter, last) = programs.aperture(fabric, tmp_path, 200)
    assert (first, counter, last) == (199, 202, 199)


# What tools see

def test_tools_see_jetties_and_channels(own):
    fabric, programs = own
    env = {"BURST_SOCKET": str(fabric.a.socket)}
    sockets = lambda: sorted(fabric.a.socket.parent.glob("urma-*.sock"))  # noqa: E731
    nodes = lambda: {row["pid"]: row for row in json.loads(fabric.a.burst("ls", "--json")[1])["urma"]}  # noqa: E731
    server, client = programs.start_perftest(fabric, "write_bw -n 100000000 -s 4096 -J 2", env)
    try:
        busy = lambda: any(channel["bytes_in_flight"] for node in nodes().values() for channel in node["channels"])  # noqa: E731
        lab.wait_until(lambda: len(sockets()) == 2 and busy(), 60, client.text, client)
        rows = nodes()
        assert {pid: row["address"] for pid, row in rows.items()} == {server.pid: fabric.a.address, client.pid: fabric.b.address}
        row = rows[client.pid]
        assert (row["program"], row["device"], row["jetties"]) == ("urma_perftest", "burst0", 2) and row["jfcs"] and row["segments"], row
        assert [(c["peer"], c["state"]) for c in row["channels"]] == [(fabric.a.address, "open")], "Jetties share one channel"
        code, text = fabric.a.burst("ls")
        assert code == 0 and f"In urma_perftest (pid {client.pid}):" in text and f"channel to {fabric.a.address} " in text, text
        code, text = fabric.a.burst("stats", "--json")
        assert code == 0 and any(c["name"] == "tx_packets" and c["pid"] == client.pid for c in json.loads(text)["counters"]), text
        code, text = fabric.a.burst("cc", "--json")
        peers = {of["pid"]: of["peers"] for of in json.loads(text)["programs"]}
        assert code == 0 and [(p["peer"], p["channels"], p["queue_pairs"]) for p in peers[client.pid]] == [(fabric.a.address, 1, 0)], text
        code, text = fabric.a.burst("cm")
        assert code != 0 and "no daemon answers" in text, "they have no connections"
        # One that is stopped is named, and holds up nobody for long.
        server.stand_still()
        code, text = fabric.a.burst("ls", seconds=30)
        assert code == 0 and f"urma_perftest (pid {server.pid}) does not answer" in text and f"(pid {client.pid}):" in text, text
    finally:
        client.stop(signal.SIGKILL)
        server.stop(signal.SIGKILL)
    assert len(sockets()) == 2 and fabric.a.burst("ls")[0] != 0, "what killed programs leave is no program"
    programs.perftest(fabric, "send_lat -n 20 -s 8", env)
    assert sockets() == [], "the next program removes it, and at its end its own"
    assert "ub_token" in fabric.a.burst("why", "ub_token")[1]
