"""Programs and daemons that die, and the effect on the others."""

import errno
import os
import random
import signal
import socket
import time

import pytest

from lab import await_true, build_directory, run_pair, wait_until
from lab.fabric import Daemon
from lab.perftest import await_listener

LONG = ["-d", "burst0", "-F", "-s", 65536, "-D", 60]
#: Before the transfer would end by itself.
SOON = 45


@pytest.fixture
def pair(make_fabric):
    """A separate fabric per test, because the tests kill its programs and daemons."""
    return make_fabric()


def start_transfer(fabric, tool="ib_send_bw"):
    """A transfer in full run: (server program, client program)."""
    server = fabric.b.start(tool, *LONG)
    await_listener(fabric.b, server, 18515)
    client = fabric.a.start(tool, *LONG, fabric.b.address)
    moved = lambda: [host.stats()["tx_bytes"] + host.stats()["rx_bytes"] for host in fabric.hosts]  # noqa: E731
    before = moved()
    wait_until(lambda: all(now > was + (64 << 20) for now, was in zip(moved(), before)), program=client)
    assert server.running(), server.text()
    return server, client


def still_serves(fabric):
    """Both daemons carry another pair."""
    assert run_pair(fabric.b, fabric.a, ["ib_write_bw", "-d", "burst0", "-F", "-n", 200, "-p", 18600]).row[3] > 0


@pytest.mark.parametrize("tool", ["ib_send_bw", "ib_write_bw", "ib_read_bw"])
def test_a_killed_server_is_an_error_at_the_client(pair, tool):
    server, client = start_transfer(pair, tool)
    server.stop(signal.SIGKILL)
    assert client.wait(SOON) != 0
    assert "Completion with error" in client.text() or "Failed" in client.text(), client.text()
    still_serves(pair)


def test_a_killed_client_does_not_disturb_others(pair):
    server, client = start_transfer(pair)
    client.stop(signal.SIGKILL)
    server.stop()
    still_serves(pair)


def forks(fabric, mode):
    return fabric.a.start(build_directory() / "programs" / "forks", "burst0", mode)


def test_a_child_that_keeps_the_descriptors_does_not_hide_its_parents_death(pair):
    program = forks(pair, "orphan")
    assert program.wait(60) == -signal.SIGKILL, program.text()
    child = int(program.text().split()[1])
    try:
        pair.a.daemon.wait_for_text("context closed", 60)
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
    still_serves(pair)


def test_children_come_and_go(pair):
    program = forks(pair, "children")
    assert program.wait(60) == 0, program.text()
    still_serves(pair)


def test_children_without_fork_handlers_have_memory_of_their_own(pair):
    program = forks(pair, "unhandled")
    assert program.wait(60) == 0, program.text()
    still_serves(pair)


def test_writes_arrive_while_the_program_forks(pair):
    program = forks(pair, "traffic")
    assert program.wait(120) == 0, program.text()
    still_serves(pair)


def test_a_peer_goes_on_while_a_child_copies_its_memory(pair):
    program = forks(pair, "busy")
    assert program.wait(120) == 0, program.text()
    still_serves(pair)


def test_atomics_wait_for_the_end_of_a_fork(pair):
    program = forks(pair, "atomics")
    assert program.wait(240) == 0, program.text()
    still_serves(pair)


@pytest.mark.parametrize("how", ["calls", "opens"])
def test_a_program_beside_a_stopped_daemon_can_be_ended(pair, how):
    """While a thread talks to the daemon it takes no signals; those that end a program come all the same."""
    program = forks(pair, how)
    program.wait_for_text("ready", 60)
    pair.a.daemon.stand_still()
    try:
        # The program is the child of nsenter, which has become it.
        os.kill(program.pid, signal.SIGTERM)
        assert program.wait(60) == -signal.SIGTERM, program.text()
    finally:
        os.kill(pair.a.daemon.pid, signal.SIGCONT)
    still_serves(pair)


@pytest.mark.parametrize("how", ["handlers", "opening"])
def test_handlers_of_signals_fork_inside_control_calls(pair, how):
    program = forks(pair, how)
    assert program.wait(120) == 0, program.text()
    still_serves(pair)


def test_a_program_that_steals_wake_ups_delays_only_itself(pair):
    thieves = [host.start(build_directory() / "programs" / "thief", "burst0") for host in pair.hosts]
    for thief in thieves:
        thief.wait_for_text("ready", 60)
    # Workers are asleep again when the next program starts.
    for size in (64, 65536):
        time.sleep(0.2)
        result = run_pair(pair.b, pair.a, ["ib_send_lat", "-d", "burst0", "-F", "-e", "-s", size, "-n", 200], seconds=20)
        assert result.row[4] > 0
    still_serves(pair)
    assert all(thief.running() for thief in thieves)
    for thief in thieves:
        thief.stop(signal.SIGKILL)


def test_a_program_that_hoards_descriptors_leaves_enough_for_others(pair):
    host = pair.a
    host.daemon.stop()
    few = [*host.prefix(), "prlimit", "--nofile=800"]
    host.daemon = Daemon(few, host.socket, "udp:dev=eth0", (), dict(os.environ))
    hoarder = host.start(build_directory() / "programs" / "hoarder", "burst0")
    hoarder.wait_for_text("ready", 60)
    assert hoarder.text().split()[1:3] == ["200", str(errno.EMFILE)], hoarder.text()
    still_serves(pair)
    # Clients until no descriptor is left: further clients are refused at once, at no cost for the daemon.
    crowd = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(700)]
    for client in crowd:
        client.connect(str(host.socket))
    host.daemon.wait_for_text("daemon_full", 60)
    # A client that is not refused at once waits for seconds. The best of several: other programs may have the processors.
    took = []
    while len(took) < 5 and not (took and min(took) < 5):
        began = time.monotonic()
        code, text = host.burst("stats")
        took.append(time.monotonic() - began)
        assert code != 0 and "file descriptors of the daemon" in text, "the refused client learns why"
    assert min(took) < 5, took
    for client in crowd:
        client.close()
    hoarder.stop(signal.SIGKILL)
    still_serves(pair)


def test_a_killed_daemon_is_an_error_not_a_hang(pair):
    server, client = start_transfer(pair)
    os.kill(pair.a.daemon.pid, signal.SIGKILL)
    assert client.wait(SOON) != 0
    server.stop()


def test_a_killed_daemon_of_the_peer_is_an_error_not_a_hang(pair):
    server, client = start_transfer(pair)
    os.kill(pair.b.daemon.pid, signal.SIGKILL)
    assert client.wait(SOON) != 0
    server.stop()


def test_a_program_gets_new_ids_from_a_new_daemon(pair):
    program = pair.a.start(build_directory() / "programs" / "cm_again", pair.a.address)
    program.wait_for_text("first", 60)
    pair.a.daemon.stop(signal.SIGKILL)
    program.wait_for_text("gone", 60)
    pair.a.start_daemon()
    assert program.wait(60) == 0, program.text()


@pytest.mark.parametrize("rule", ["level", "edge", "blocked"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_descriptors_of_events_rest_after_the_end_of_the_daemon(pair, rule, how):
    """What is due comes once, then an error, and then nothing wakes a program that waits for them."""
    program = pair.a.start(build_directory() / "programs" / "after_end", pair.a.address, rule)
    program.wait_for_text("ready", 60)
    pair.a.daemon.stop(how)
    assert program.wait(180) == 0, program.text()


def test_a_terminated_daemon_drains_and_ends(pair):
    server, client = start_transfer(pair)
    os.kill(pair.a.daemon.pid, signal.SIGTERM)
    # It gives its programs five seconds.
    assert pair.a.daemon.wait(10) == 0, pair.a.daemon.text()
    assert client.wait(SOON) != 0
    assert not pair.a.socket.exists(), "the socket is left behind"
    server.stop()


def test_an_idle_daemon_ends_on_sigterm_at_once(pair):
    # Not after the five seconds that it gives to programs. The best of several: other programs may have the processors.
    took = []
    while len(took) < 5 and not (took and min(took) < 2):
        began = time.monotonic()
        os.kill(pair.a.daemon.pid, signal.SIGTERM)
        assert pair.a.daemon.wait(60) == 0
        took.append(time.monotonic() - began)
        pair.a.start_daemon()
    assert min(took) < 2, took


def connect(host):
    conversation = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    conversation.settimeout(60)
    conversation.connect(str(host.socket))
    return conversation


def test_garbage_on_the_control_socket(pair):
    rng = random.Random(1)
    header = b"LTCB" + b"\x01\0\0\0" + b"\x01\0\0\0"
    messages = [b"x", b"", header, header + b"\xff" * 50, b"LTCB" + b"\x63\0\0\0" * 2, bytes(60000)]
    messages += [header + rng.randbytes(rng.randrange(200)) for _ in range(300)]
    messages += [rng.randbytes(rng.randrange(1, 2000)) for _ in range(100)]
    for message in messages:
        with connect(pair.a) as conversation:
            try:
                conversation.send(message)
                conversation.recv(65536)
            except (ConnectionError, BrokenPipeError):
                pass
    assert pair.a.daemon.running(), pair.a.daemon.text()
    assert "panicked" not in pair.a.daemon.text()
    still_serves(pair)


def test_silent_and_vanishing_connections(pair):
    silent = [connect(pair.a) for _ in range(200)]
    still_serves(pair)
    for conversation in silent:
        conversation.close()
    still_serves(pair)


def test_garbage_on_the_wire(pair):
    """Garbage on UDP port 4791 is counted and not answered."""
    rng = random.Random(2)
    packets = [rng.randbytes(rng.randrange(0, 1500)).hex() for _ in range(500)]
    code, text = pair.b.run("python3", "-c", SEND, pair.a.address, *packets, plain=True)
    assert code == 0 and text.strip() == "no answer", text
    counted = lambda: (stats := pair.a.stats())["truncated"] + stats["bad_icrc"]  # noqa: E731
    wait_until(lambda: counted() >= 490, said=lambda: f"{pair.a.stats()}")
    still_serves(pair)


SEND = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i, packet in enumerate(sys.argv[2:]):
    s.sendto(bytes.fromhex(packet), (sys.argv[1], 4791))
s.settimeout(0.5)
try:
    s.recv(2000)
    print("answer")
except TimeoutError:
    print("no answer")
"""


def test_many_programs_come_and_die(pair):
    """Half of the programs are killed at a random moment; the daemons continue and free all resources."""
    rng = random.Random(3)
    program = build_directory() / "programs" / "idle_qps"
    before = pair.a.daemon.rss_kib()
    for _ in range(20):
        victim = pair.a.start(program, "burst0", 50)
        time.sleep(rng.uniform(0, 0.3))
        victim.stop(signal.SIGKILL)
    still_serves(pair)
    assert await_true(lambda: pair.a.daemon.rss_kib() - before < 32 << 10), "memory of dead programs is kept"
    assert await_true(lambda: len(os.listdir(f"/proc/{pair.a.daemon.pid}/fd")) < 100), "descriptors of dead programs are kept"
