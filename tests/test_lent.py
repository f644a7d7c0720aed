"""Lent mode (`BURST_MODE=lent`): programs with an engine of their own on the daemon's addresses. Who can talk to whom, what is refused and
why, and what happens when the program, another program, or the daemon ends."""

import json
import os
import signal

import pytest

from conftest import BUILD
from lab import run_pair, wait_until
from lab.perftest import await_listener
from lab.users import ALICE, Users, public_copy
from test_guarded import child_of

LEND = ["--lend", "same-user"]
ON = ["-d", "burst0", "-F"]
#: Before a transfer of [`LONG`] would end by itself, or a requester would give up.
SOON = 30
LONG = [*ON, "-s", 65536, "-D", 60]
#: IBV_WC_REM_OP_ERR
WC_REM_OP_ERR = 11


class Side:
    """The programs of a host in one mode, for `run_pair`."""

    def __init__(self, host, env):
        self.host, self.env = host, env

    def __getattr__(self, name):
        return getattr(self.host, name)

    def start(self, *words, env=None):
        return self.host.start(*words, env={**self.env, **(env or {})})

    def run(self, *words, env=None, **options):
        return self.host.run(*words, env={**self.env, **(env or {})}, **options)


def lent(host, **env):
    return Side(host, {"BURST_MODE": "lent", **env})


@pytest.fixture(scope="module")
def fabric(namespaces):
    """Host b lends; host a has a daemon that lends as well, and a second address without a daemon."""
    import lab

    with lab.Fabric(ports=("udp:dev=eth0,addr=10.99.0.1", "udp:dev=eth0"), extra=LEND) as made:
        made.a.ip("addr add 10.99.0.9/24 dev eth0")
        yield made
        for host in made.hosts:
            assert host.daemon.running(), host.daemon.text()
            assert "panicked" not in host.daemon.text(), host.daemon.text()


def own_engine(fabric):
    """Programs of host a with an address of their own."""
    return Side(fabric.a, {"BURST_MODE": "inprocess", "BURST_PORT": "udp:dev=eth0,addr=10.99.0.9"})


#: (server's side, client's side): each kind of peer of a lent program, in both roles.
PAIRS = {
    "daemon's program elsewhere serves": lambda f: (f.a, lent(f.b)),
    "daemon's program elsewhere asks": lambda f: (lent(f.b), f.a),
    "program with an address of its own serves": lambda f: (own_engine(f), lent(f.b)),
    "program with an address of its own asks": lambda f: (lent(f.b), own_engine(f)),
    "lent program elsewhere": lambda f: (lent(f.a), lent(f.b)),
    "lent program here": lambda f: (lent(f.b), lent(f.b)),
    "daemon's program here serves": lambda f: (f.b, lent(f.b)),
    "daemon's program here asks": lambda f: (lent(f.b), f.b),
}
TOOLS = ["ib_send_lat", "ib_write_bw", "ib_read_lat", "ib_atomic_lat", "ib_send_lat -e -s 64", "ib_send_lat -c UD"]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("pair", PAIRS)
def test_programs_talk(fabric, pair, tool):
    server, client = PAIRS[pair](fabric)
    assert run_pair(server, client, [*tool.split(), *ON, "-x", 0, "-n", 500]).row[3] > 0


def test_ipv6(fabric):
    assert run_pair(lent(fabric.b), fabric.b, ["ib_write_bw", *ON, "-x", 1, "-n", 300]).row[3] > 0


def test_several_beside_programs_of_the_daemon(fabric):
    """Three lent servers and one of the daemon serve clients of both kinds at the same time."""
    pairs = [(lent(fabric.b), fabric.a), (lent(fabric.b), lent(fabric.b)), (lent(fabric.b), lent(fabric.a)), (fabric.b, lent(fabric.b))]
    words = lambda at: ["ib_write_bw", *ON, "-x", 0, "-n", 2000, "-p", 18600 + at]  # noqa: E731
    started = []
    try:
        for at, (server, client) in enumerate(pairs):
            started.append(server.start(*words(at)))
            await_listener(server, started[-1], 18600 + at)
        clients = [client.start(*words(at), server.address) for at, (server, client) in enumerate(pairs)]
        started += clients
        for program in [*clients, *started[: len(pairs)]]:
            assert program.wait(120) == 0, program.text()
    finally:
        for program in started:
            program.stop(signal.SIGKILL)


def test_the_device_looks_like_the_daemons(fabric):
    of_daemon, of_lent = (side.run("ibv_devinfo", "-v")[1] for side in (fabric.b, lent(fabric.b)))
    for field in ("hca_id", "node_guid", "active_mtu", "GID"):
        lines = [[line for line in text.splitlines() if field in line] for text in (of_daemon, of_lent)]
        assert lines[0] == lines[1] != [], (field, lines)


def test_burst_run(fabric):
    code, text = fabric.a.run(BUILD / "burst", "run", "--lent", "--", "sh", "-c", "ls /sys/class/infiniband; ibv_devinfo -l")
    assert code == 0 and text.count("burst0") == 2, text


def test_loss_is_repaired(make_fabric):
    fabric = make_fabric(ports=("udp:dev=eth0", "impair:loss=1%,seed=3/udp:dev=eth0"), extra=LEND)
    for tool in ("ib_write_bw", "ib_read_bw", "ib_send_bw"):
        assert run_pair(lent(fabric.b), lent(fabric.a), [tool, *ON, "-n", 200]).row[3] > 0


@pytest.mark.parametrize("turned", [False, True], ids=["serves", "asks"])
def test_workers(make_fabric, turned):
    """Beside a daemon with several workers the kernel steers by number: nothing arrives at a wrong process."""
    fabric = make_fabric(extra=[*LEND, "--workers", 3])
    ends = (lent(fabric.b), lent(fabric.a))
    assert run_pair(*(reversed(ends) if turned else ends), ["ib_write_bw", *ON, "-q", 4, "-n", 500]).row[3] > 0
    assert run_pair(fabric.b, lent(fabric.b), ["ib_write_bw", *ON, "-q", 6, "-n", 500]).row[3] > 0
    assert "foreign_worker" not in fabric.b.burst("stats")[1]


def test_selective_repeat_is_agreed_with_peers(make_fabric):
    """The answers to a lent program's questions come to the daemon, which passes them on."""
    fabric = make_fabric(ports=("udp:dev=eth0", "impair:loss=1%,seed=3/udp:dev=eth0"), extra=LEND)
    server, client = start_transfer(fabric.a, lent(fabric.b), "ib_write_bw")
    try:
        wait_until(lambda: program_stats(fabric.b, client.pid).get("sr_repeated", 0) > 0, program=client)
    finally:
        client.stop(signal.SIGKILL)
        server.stop(signal.SIGKILL)


def program_stats(host, pid):
    """Counters of the engine in a program."""
    code, text = host.burst("stats", "--all", "--json")
    rows = json.loads(text)["counters"] if code == 0 else []
    return {row["name"]: row["value"] for row in rows if row.get("pid") == pid}


# Refusals

def refused(side, expected):
    """A program finds no device, and says why in one sentence."""
    code, text = side.run("ibv_devinfo")
    assert code != 0 and expected in text, text
    code, text = side.run(BUILD / "burst", "run", "--lent", "--", "true")
    assert code == 125 and expected in text and text.count("\n") == 1, text


def test_a_daemon_that_lends_nothing_says_so(make_fabric):
    refused(lent(make_fabric().b), "start it with --lend same-user")


def test_other_kinds_of_ports_are_not_lent(make_fabric):
    fabric = make_fabric(ports=("packet:dev=eth0", "packet:dev=eth0"), extra=LEND)
    refused(lent(fabric.b), "only ports of kind udp can")


def test_no_daemon_no_number(make_fabric):
    refused(lent(make_fabric(daemons=False).b), "lent mode needs a running daemon")


def test_the_keeper_is_needed(fabric):
    refused(lent(fabric.b, BURST_KEEPER="off"), "lent mode needs the keeper")


def test_another_network_namespace(fabric):
    code, text = lent(fabric.b).run("unshare", "--net", "ibv_devinfo")
    assert code != 0 and "another network namespace" in text, text


def test_another_user_namespace(fabric):
    code, text = lent(fabric.b).run("unshare", "--user", "--map-root-user", "ibv_devinfo", env={"BURST_TRUST_SOCKET_OF": "0"})
    assert code != 0 and "another user namespace" in text, text


def test_another_user(make_fabric, tmp_path):
    """A hostile program of another user gets no socket, however it asks, and disturbs nobody."""
    fabric = make_fabric(extra=[*LEND, "--socket-mode", "0666"])
    users = Users(fabric.b, public_copy(fabric.directory / "public"))
    text = users.run(ALICE, "ibv_devinfo", env={"BURST_MODE": "lent"})
    assert "worker numbers are lent to programs of its own user only" in text, text
    # Nor can it bind into the group.
    script = (
        "import socket\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n"
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        f"s.bind(('{fabric.b.address}', 4791))\n"
    )
    text = users.run(ALICE, "python3", "-c", script)
    assert "Address already in use" in text, text
    assert run_pair(lent(fabric.b), fabric.a, ["ib_write_bw", *ON, "-n", 200]).row[3] > 0


def test_all_numbers_can_be_lent_and_no_more(make_fabric):
    fabric = make_fabric(extra=[*LEND, "--workers", 14])
    side, servers = lent(fabric.b), []
    try:
        for at in range(2):
            servers.append(side.start("ib_send_lat", *ON, "-p", 18600 + at))
            await_listener(fabric.b, servers[-1], 18600 + at)
        refused(side, "all 2 worker numbers that the daemon can lend are lent")
        # A number is free again when its holder has died, and can be used.
        servers.pop().stop(signal.SIGKILL)
        wait_until(lambda: "worker number returned" in fabric.b.daemon.text())
        assert run_pair(side, fabric.a, ["ib_send_lat", *ON, "-n", 200]).row[3] > 0
    finally:
        for server in servers:
            server.stop(signal.SIGKILL)


def test_what_is_the_daemons(fabric):
    side = lent(fabric.b, BURST_EXPLAIN="1")
    code, text = side.run("ibv_xsrq_pingpong", "-g", "0")
    assert code != 0 and "XRC is not for programs in lent mode" in text, text
    code, text = side.run("mckey", "-m", "239.1.2.3", "-b", fabric.b.address)
    assert code != 0 and "multicast is not for programs in lent mode" in text, text


# Ends

def start_transfer(server_side, client_side, tool="ib_send_bw"):
    """A transfer in full run: (server program, client program)."""
    server = server_side.start(tool, *LONG, "-x", 0)
    await_listener(server_side, server, 18515)
    client = client_side.start(tool, *LONG, "-x", 0, server_side.address)
    moved = lambda: engine_bytes(server_side, server) + engine_bytes(client_side, client)  # noqa: E731
    wait_until(lambda: moved() > 64 << 20, program=client)
    assert server.running(), server.text()
    return server, client


def engine_bytes(side, program):
    """Bytes that the engine of a lent program has sent and received."""
    counters = program_stats(side, program.pid)
    return counters.get("tx_bytes", 0) + counters.get("rx_bytes", 0)


@pytest.mark.parametrize("tool", ["ib_send_bw", "ib_write_bw", "ib_read_bw"])
def test_peers_learn_at_once_of_a_killed_program(fabric, tool):
    server, client = start_transfer(lent(fabric.b), fabric.a, tool)
    server.stop(signal.SIGKILL)
    assert client.wait(SOON) != 0
    # Not by a time-out: the daemon of the dead program has said so.
    assert f"Failed status {WC_REM_OP_ERR}:" in client.text(), client.text()
    assert run_pair(lent(fabric.b), fabric.a, ["ib_write_bw", *ON, "-x", 0, "-n", 200]).row[3] > 0, "the number is lent again"


def test_a_killed_program_disturbs_no_other(fabric):
    victim = start_transfer(lent(fabric.b), fabric.a)
    try:
        other = lent(fabric.b).start("ib_write_bw", *ON, "-x", 0, "-D", 5, "-p", 18700)
        await_listener(fabric.b, other, 18700)
        client = lent(fabric.a).start("ib_write_bw", *ON, "-x", 0, "-D", 5, "-p", 18700, fabric.b.address)
        victim[0].stop(signal.SIGKILL)
        assert (client.wait(60), other.wait(60)) == (0, 0), client.text() + other.text()
    finally:
        for program in victim:
            program.stop(signal.SIGKILL)


@pytest.mark.parametrize("how", ["children", "unhandled", "traffic", "busy", "atomics", "handlers", "opening"])
def test_children_come_and_go(fabric, how):
    code, text = lent(fabric.a).run(BUILD / "programs" / "forks", "burst0", how)
    assert code == 0, text


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_a_program_learns_of_the_daemons_end_and_frees_the_address(make_fabric, how):
    """Its requests are flushed, IBV_EVENT_DEVICE_FATAL comes, and a new daemon gets the address though the program lives on."""
    fabric = make_fabric(extra=LEND)
    program = lent(fabric.b).start(BUILD / "programs" / "falls", "burst0", "poll")
    try:
        program.wait_for_text("running", 60)
        os.kill(fabric.b.daemon.pid, how)
        fabric.b.daemon.wait(20)
        program.wait_for_text("flushed", 60)
        fabric.b.start_daemon(extra=LEND)
        assert run_pair(lent(fabric.b), fabric.a, ["ib_write_bw", *ON, "-n", 200]).row[3] > 0
    finally:
        program.stop(signal.SIGKILL)


def test_a_guarded_daemon_lends_again_after_a_fall(make_fabric, tmp_path):
    fabric = make_fabric(extra=[*LEND, "--guarded", "--state-dir", tmp_path])
    server, client = start_transfer(lent(fabric.b), fabric.a)
    try:
        os.kill(child_of(fabric.b.daemon), signal.SIGKILL)
        assert client.wait(SOON) != 0 and server.wait(SOON) != 0
        for _ in range(2):
            assert run_pair(lent(fabric.b), fabric.a, ["ib_write_bw", *ON, "-n", 200]).row[3] > 0
        assert run_pair(fabric.b, fabric.a, ["ib_write_bw", *ON, "-n", 200]).row[3] > 0
    finally:
        server.stop(signal.SIGKILL)
        client.stop(signal.SIGKILL)


def test_tools_see_lent_programs(fabric):
    server = lent(fabric.b).start("ib_send_lat", *ON)
    try:
        await_listener(fabric.b, server, 18515)
        code, text = fabric.b.burst("ls")
        assert code == 0 and f"In ib_send_lat (pid {server.pid})" in text and text.count("burst0") == 2, text
        assert "rx_packets" in program_stats(fabric.b, server.pid)
    finally:
        server.stop(signal.SIGKILL)
