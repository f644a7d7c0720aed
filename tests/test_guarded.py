"""A guarded daemon that falls: its supervisor starts a successor, peers and programs are told, and the fall is reported."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest

from lab import await_true, build_directory, run_pair, wait_until
from lab.perftest import await_listener
from test_cm import await_cm_listener

LONG = ["-d", "burst0", "-F", "-s", 65536, "-D", 60]
#: Before the transfer would end by itself.
SOON = 45
FALLS = [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT]


def child_of(supervisor):
    """The daemon's process: the supervisor's only child; None while there is none."""
    children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()
    return int(children[0]) if children else None


def fall(host, how=signal.SIGKILL):
    """Kills the daemon of a host; returns its process."""
    pid = child_of(host.daemon)
    # Again, because the first SIGSEGV goes to the handler of Rust's runtime, which looks for a stack overflow and restores the default
    # action; and one that is sent before the first is handled is lost.
    while child_of(host.daemon) == pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)
        await_true(lambda: child_of(host.daemon) != pid, 0.2)
    return pid


def crashes(host):
    code, text = host.burst("why", "daemon", "--json")
    assert code == 0, text
    return json.loads(text)


def await_successor(host, pid, seconds=60):
    """Waits until another daemon than `pid` answers."""
    wait_until(lambda: child_of(host.daemon) not in (None, pid), seconds, host.daemon.text, host.daemon)
    assert host.devices()


def restart_guarded(host, directory, *extra):
    """Replaces the host's daemon by a guarded one."""
    if host.daemon:
        host.daemon.stop()
    return host.start_daemon(extra=["--guarded", "--state-dir", directory / f"state-{host.name}", *extra])


@pytest.fixture
def pair(make_fabric, tmp_path):
    """Two hosts with guarded daemons, for one test."""
    fabric = make_fabric()
    for host in fabric.hosts:
        restart_guarded(host, tmp_path)
    return fabric


def test_a_daemon_whose_supervisor_was_killed_serves_on_and_says_that_it_is_not_guarded(pair):
    daemon = child_of(pair.a.daemon)
    assert crashes(pair.a)["guarded"]
    os.kill(pair.a.daemon.pid, signal.SIGKILL)
    try:
        pair.a.daemon.wait(60)
        assert not crashes(pair.a)["guarded"]
        assert "not guarded" in pair.a.burst("why", "daemon")[1]
        assert run_pair(pair.b, pair.a, ["ib_write_bw", "-d", "burst0", "-F", "-n", 200]).row[3] > 0
    finally:
        os.kill(daemon, signal.SIGTERM)


def test_a_guarded_daemon_serves_and_ends_as_another(pair):
    assert run_pair(pair.b, pair.a, ["ib_write_bw", "-d", "burst0", "-F", "-n", 200]).row[3] > 0
    assert crashes(pair.a)["guarded"] and crashes(pair.a)["crashes"] == 0
    daemon = child_of(pair.a.daemon)
    os.kill(pair.a.daemon.pid, signal.SIGTERM)
    assert pair.a.daemon.wait(60) == 0, pair.a.daemon.text()
    assert not Path(f"/proc/{daemon}").exists() and not pair.a.socket.exists()


def test_what_cannot_start_is_not_started_again(pair, tmp_path):
    pair.a.daemon.stop()
    words = [build_directory() / "burstd", "--guarded", "--socket", pair.a.socket, "--port", "udp:dev=none"]
    code, text = pair.a.run(*words, "--state-dir", tmp_path / "state", seconds=60)
    assert code == 2 and "none" in text and text.count("started the daemon") == 1, text
    assert not pair.a.socket.exists()


@pytest.mark.parametrize("mode", ["poll", "event", "extended"])
@pytest.mark.parametrize("how", FALLS, ids=lambda how: how.name)
def test_the_library_flushes_and_the_device_opens_again(pair, mode, how):
    program = pair.a.start(build_directory() / "programs" / "falls", "burst0", mode)
    program.wait_for_text("running", 60)
    time.sleep(0.2)
    fall(pair.a, how)
    assert program.wait(60) == 0, program.text()
    said = dict(line.split(" ", 1) for line in program.text().splitlines() if line.startswith("flushed"))
    vendor = said["flushed"].split()[2]
    code, text = pair.a.burst("why", vendor)
    assert code == 0 and text.startswith("daemon_died"), text
    assert "again" in program.text()


def told_after(pair, tool):
    """The daemon of the peer falls during a transfer: seconds until the client has ended by the error that the successor reports."""
    server = pair.b.start(tool, *LONG)
    await_listener(pair.b, server, 18515)
    client = pair.a.start(tool, *LONG, pair.b.address)
    moved = lambda: pair.b.stats()["rx_packets"]  # noqa: E731
    before, reported = moved(), pair.a.stats()["remote_operation_reported"]
    wait_until(lambda: moved() > before + 1000, program=client)
    pid = fall(pair.b)
    began = time.monotonic()
    assert client.wait(SOON) != 0
    took = time.monotonic() - began
    assert "Completion with error" in client.text() or "Failed" in client.text(), client.text()
    assert pair.a.stats()["remote_operation_reported"] > reported, pair.a.stats()
    assert server.wait(60) != 0, server.text()
    await_successor(pair.b, pid)
    return took


@pytest.mark.parametrize("tool", ["ib_send_bw", "ib_write_bw", "ib_read_bw"])
def test_peers_of_a_fallen_daemon_are_told(pair, tool):
    # Without a successor the client would wait for its retries, which take seconds. The bound is generous: the client also ends. The best
    # of three falls, after each of which the successor starts at once: other programs may have the processors.
    took = []
    while len(took) < 3 and not (took and min(took) < 3):
        took.append(told_after(pair, tool))
    assert min(took) < 3, took
    assert run_pair(pair.b, pair.a, ["ib_write_bw", "-d", "burst0", "-F", "-n", 200, "-p", 18600]).row[3] > 0


def test_a_peer_of_the_connection_manager_is_told_without_traffic(pair):
    idle = build_directory() / "programs" / "cm_idle"
    server = pair.b.start(idle, "server", pair.b.address, 7471)
    await_cm_listener(pair.b, server, 7471)
    client = pair.a.start(idle, "client", pair.b.address, 7471)
    for program in (client, server):
        program.wait_for_text("connected", 60)
    # Both have their event of the established connection: what was noted of it is in the tombstone file.
    fall(pair.b)
    assert client.wait(60) == 0 and client.text().split()[-1] == "RDMA_CM_EVENT_DISCONNECTED", client.text()
    assert server.wait(60) == 0 and server.text().split()[-1] == "RDMA_CM_EVENT_DEVICE_REMOVAL", server.text()


def test_workers_each_answer_for_their_queue_pairs(make_fabric, tmp_path):
    fabric = make_fabric(daemons=False)
    fabric.a.start_daemon()
    restart_guarded(fabric.b, tmp_path, "--workers", "2")
    servers = [fabric.b.start("ib_write_bw", *LONG, "-q", 4, "-p", 18515 + n) for n in range(2)]
    for n, server in enumerate(servers):
        await_listener(fabric.b, server, 18515 + n)
    clients = [fabric.a.start("ib_write_bw", *LONG, "-q", 4, "-p", 18515 + n, fabric.b.address) for n in range(2)]
    before = fabric.b.stats()["rx_packets"]
    wait_until(lambda: fabric.b.stats()["rx_packets"] > before + 1000, program=clients[0])
    pid = fall(fabric.b)
    assert [client.wait(SOON) != 0 for client in clients] == [True, True]
    await_successor(fabric.b, pid)
    assert "answering for queue pairs" in fabric.b.daemon.text(), fabric.b.daemon.text()


@pytest.mark.parametrize("port", [4791, 4792])
def test_no_icmp_error_answers_packets_while_no_daemon_runs(pair, tmp_path, port):
    """4792 is URMA's, which no program has used: the daemon and its supervisor hold it all the same."""
    code, text = pair.a.run("python3", "-c", ICMP, pair.b.address, pair.b.daemon.pid, port, plain=True, seconds=60)
    assert (code, text.strip()) == (0, "silence"), text


# Stops the supervisor, kills the daemon, and sends a datagram, which must be answered by nothing: the socket still exists.
ICMP = """
import os, signal, socket, sys, time
address, supervisor, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
child = int(open(f"/proc/{supervisor}/task/{supervisor}/children").read().split()[0])
os.kill(supervisor, signal.SIGSTOP)
os.kill(child, signal.SIGKILL)
time.sleep(0.5)
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
probe.connect((address, port))
try:
    for _ in range(3):
        probe.send(bytes(60))
        time.sleep(0.1)
    print("silence")
except ConnectionRefusedError:
    print("an ICMP error")
os.kill(supervisor, signal.SIGCONT)
"""


def test_programs_that_connect_meanwhile_wait(pair):
    supervisor, pid = pair.a.daemon.pid, child_of(pair.a.daemon)
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    waiting = pair.a.start(build_directory() / "burst", "ls")
    time.sleep(0.5)
    assert waiting.running(), waiting.text()
    os.kill(supervisor, signal.SIGCONT)
    assert waiting.wait(60) == 0 and "burst0" in waiting.text(), waiting.text()


def test_after_three_restarts_there_are_pauses(pair):
    for count in range(1, 4):
        await_successor(pair.a, fall(pair.a))
        assert crashes(pair.a)["crashes"] == count
    began, pid = time.monotonic(), fall(pair.a)
    await_successor(pair.a, pid)
    assert time.monotonic() - began > 0.9
    # A signal ends the pause, and with it the supervisor. The fourth pause takes eight seconds.
    for _ in range(2):
        await_successor(pair.a, fall(pair.a))
    fall(pair.a)
    wait_until(lambda: child_of(pair.a.daemon) is None)
    os.kill(pair.a.daemon.pid, signal.SIGTERM)
    assert await_true(lambda: not pair.a.daemon.running(), 6), pair.a.daemon.text()
    assert not pair.a.socket.exists()


def test_falls_are_reported_and_reports_are_kept(pair, tmp_path):
    for how in (signal.SIGKILL, signal.SIGSEGV):
        await_successor(pair.a, fall(pair.a, how))
    found = crashes(pair.a)
    assert (found["guarded"], found["crashes"]) == (True, 2)
    assert ["SIGSEGV" in found["reports"][0]["cause"], "SIGKILL" in found["reports"][1]["cause"]] == [True, True], found
    assert found["directory"] == str(tmp_path / "state-a")
    # A new supervisor with the same directory shows them as well.
    restart_guarded(pair.a, tmp_path)
    again = crashes(pair.a)
    assert (again["crashes"], again["reports"]) == (0, found["reports"])
    code, text = pair.a.burst("why", "daemon")
    assert code == 0 and "SIGSEGV" in text and "has not fallen since" in text, text


def test_reports_are_shown_while_no_daemon_answers(pair, tmp_path):
    await_successor(pair.a, fall(pair.a, signal.SIGSEGV))
    directory = tmp_path / "state-a"
    child = child_of(pair.a.daemon)
    os.kill(child, signal.SIGSTOP)
    code, text = pair.a.burst("why", "daemon", "--reports", directory)
    assert code == 1 and "SIGSEGV" in text and "no answer comes" in text, text
    os.kill(child, signal.SIGCONT)
    assert pair.a.burst("why", "daemon")[0] == 0
    pair.a.daemon.stop()
    code, text = pair.a.burst("why", "daemon", "--reports", directory)
    assert code == 1 and "SIGSEGV" in text and "no daemon answers" in text, text
    code, text = pair.a.burst("why", "daemon", "--reports", tmp_path / "missing")
    assert code == 1 and "SIGSEGV" not in text and "no daemon answers" in text, text


def test_a_daemon_that_ends_as_it_should_is_fatal_once_too(make_fabric):
    host = make_fabric().a
    program = host.start(build_directory() / "programs" / "falls", "burst0", "event")
    program.wait_for_text("running", 60)
    # It waits five seconds for its programs, and flushes their queue pairs itself.
    host.daemon.stop()
    host.start_daemon()
    assert program.wait(60) == 0, program.text()


def test_a_daemon_that_is_not_guarded_says_so(make_fabric):
    code, text = make_fabric().a.burst("why", "daemon")
    assert code == 0 and "not guarded" in text, text
