"""`burst run`: without root, without configuration, on one host; and without an effect on other programs."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from conftest import BUILD
from lab import Program, await_true
from lab.perftest import await_listener

# A user of this run of the tests alone: what Burst keeps for a user lies under /tmp by the user's number, and tests may run beside
# others of another checkout.
NOBODY = 50_000 + os.getpid() % 10_000
PLACE = Path(f"/tmp/burst-{NOBODY}")


@pytest.fixture
def clean():
    """An environment without variables of Burst; daemons that the test starts end with it."""
    end_daemon(PLACE)
    shutil.rmtree(PLACE, ignore_errors=True)
    yield {k: v for k, v in os.environ.items() if not k.startswith("BURST_") and k not in ("XDG_RUNTIME_DIR", "LD_LIBRARY_PATH")}
    end_daemon(PLACE)
    shutil.rmtree(PLACE, ignore_errors=True)


def daemons_of(directory):
    """Process ids of burstds that were started with a socket in the directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if words and words[0].endswith(b"burstd") and any(w.startswith(os.fsencode(directory)) for w in words):
            found.append(int(entry.name))
    return found


def end_daemon(directory):
    """Sends SIGTERM; the daemons take up to five seconds to end while a program has a device open."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid in daemons_of(directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
        if await_true(lambda: not daemons_of(directory), 30):
            return


class Nobody:
    """The user nobody, in a network namespace with only `lo`; called with words, starts a program."""

    def __init__(self, env):
        self.env, self.started = {**env, "HOME": "/nonexistent"}, []
        self.keeper = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "ip link set lo up; echo ready; exec cat"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        assert self.keeper.stdout.readline() == b"ready\n", "network namespaces need root"

    def __call__(self, *words, **env):
        drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all", "--no-new-privs"]
        program = Program(["nsenter", "-t", self.keeper.pid, "--net", *drop, *words], {**self.env, **env})
        self.started.append(program)
        return program

    def tcp_table(self):
        return Path(f"/proc/{self.keeper.pid}/net/tcp").read_text().splitlines()[1:]

    def end(self):
        for program in self.started:
            program.stop()
        end_daemon(PLACE)
        self.keeper.stdin.close()
        self.keeper.wait(60)


@pytest.fixture
def nobody(clean, reachable):
    if os.geteuid():
        pytest.skip("changing the user needs root")
    user = Nobody(clean)
    yield user
    user.end()


@pytest.fixture
def reachable(tmp_path_factory):
    """A copy of the build that every user may execute (a checkout in /root is not accessible)."""
    place = Path(f"/tmp/burst-test-install-{os.getpid()}")
    shutil.rmtree(place, ignore_errors=True)
    (place / "bin").mkdir(parents=True)
    (place / "lib/burst").mkdir(parents=True)
    for name in ("burst", "burstd"):
        shutil.copy(BUILD / name, place / "bin" / name)
    for path in [*BUILD.glob("lib/lib*.so.1"), BUILD / "lib/burst-pair", BUILD / "lib/burst-exercise"]:
        shutil.copy(path, place / "lib/burst" / path.name)
    os.chmod(place, 0o755)
    yield place / "bin" / "burst"
    shutil.rmtree(place)


def test_two_terminals_without_root(nobody, reachable):
    server = nobody(reachable, "run", "--", "ib_write_bw", "-d", "burst0", "-F", "-n", "500")
    await_listener(nobody, server, 18515)
    client = nobody(reachable, "run", "--", "ib_write_bw", "-d", "burst0", "-F", "-n", "500", "127.0.0.1")
    assert client.wait(60) == 0, client.text() + server.text()
    assert server.wait(60) == 0, server.text()
    assert len(daemons_of(PLACE)) == 1


def test_root_of_a_user_namespace(nobody, reachable):
    """Root of a user namespace may not write to /run: its daemon uses a user's socket path."""
    directory = Path(f"/tmp/burst-test-runtime-{os.getpid()}")
    directory.mkdir()
    os.chown(directory, NOBODY, NOBODY)
    try:
        words = ["unshare", "--user", "--map-root-user", "--", reachable, "run", "--", "ibv_devices"]
        program = nobody(*words, XDG_RUNTIME_DIR=str(directory), BURST_IDLE_EXIT="1s")
        assert program.wait(60) == 0 and "burst0" in program.text(), program.text()
        assert (directory / "burst/burstd.log").exists()
    finally:
        end_daemon(directory)
        shutil.rmtree(directory)


def test_another_users_socket_is_reported(nobody, reachable, make_fabric):
    host = make_fabric(daemons=False).a
    host.start_daemon(extra=["--socket-mode", "0600"])
    program = nobody(reachable, "run", "--", "true", BURST_SOCKET=str(host.socket))
    assert program.wait(60) == 125
    assert f"this user may not connect to {host.socket}" in program.text() and "--socket-mode" in program.text()


def test_doctor_without_root(nobody, reachable):
    doctor = nobody(reachable, "run", "--", reachable, "doctor")
    assert doctor.wait(60) == 0, doctor.text()
    assert "arrived intact" in doctor.text()


def test_the_daemon_ends_when_idle(nobody, reachable):
    assert nobody(reachable, "run", "--", "ibv_devices", BURST_IDLE_EXIT="1s").wait(60) == 0
    assert await_true(lambda: not daemons_of(PLACE)), "the daemon is still there"


def test_a_dead_daemons_socket_is_skipped(nobody, reachable):
    assert nobody(reachable, "run", "--", "ibv_devices").wait(60) == 0
    for pid in daemons_of(PLACE):
        os.kill(pid, signal.SIGKILL)
    assert await_true(lambda: not daemons_of(PLACE))
    again = nobody(reachable, "run", "--", "ibv_devices")
    assert again.wait(60) == 0 and "burst0" in again.text(), again.text()


def test_two_burst_run_at_once_start_one_daemon(nobody, reachable):
    both = [nobody(reachable, "run", "--", "ibv_devices") for _ in range(4)]
    for program in both:
        assert program.wait(60) == 0 and "burst0" in program.text(), program.text()
    assert len(daemons_of(PLACE)) == 1


def free_udp_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def own_daemon(clean, tmp_path):
    """Environment in which `burst run` uses a socket of this test, and a UDP port that a burstd of this machine has not taken."""
    yield {**clean, "BURST_SOCKET": str(tmp_path / "d.sock"), "BURST_PORT": f"udp:dev=lo,udp_port={free_udp_port()}"}
    end_daemon(tmp_path)


def test_the_exit_code_is_the_programs(burst, own_daemon):
    assert burst("run", "--", "sh", "-c", "exit 42", env=own_daemon).returncode == 42
    killed = burst("run", "--", "sh", "-c", "kill -9 $$", env=own_daemon)
    assert killed.returncode == -signal.SIGKILL


def test_a_program_without_rdma_runs_unchanged(burst, own_daemon):
    script = 'read line; echo "got $line"; echo oops >&2; wait; echo "$#:$1:$2"'
    done = burst("run", "--", "sh", "-c", script, "x", "a b", "--json", env=own_daemon, input="hello\n")
    assert done.stdout == "got hello\n2:a b:--json\n" and done.stderr == "oops\n"


def test_the_program_has_no_unknown_child_and_no_open_file_of_ours(burst, own_daemon):
    done = burst("run", "--", "python3", "-c", CHILDLESS, env=own_daemon)
    assert done.stdout == "no children, files [0, 1, 2]\n", done.stdout + done.stderr


CHILDLESS = """
import os
try:
    os.waitpid(-1, os.WNOHANG)
    children = "children"
except ChildProcessError:
    children = "no children"
files = [int(f) for f in os.listdir("/proc/self/fd")]
files = [f for f in sorted(files) if os.path.exists(f"/proc/self/fd/{f}")]
print(f"{children}, files {files}")
"""


def test_a_missing_program_is_127(burst, own_daemon):
    done = burst("run", "--", "no-such-program", env=own_daemon)
    assert done.returncode == 127 and "no-such-program" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("program", ["no-such-program", "/nonexistent", "/bin/sh/x", "./no-such-program"])
def test_no_daemon_is_started_for_a_program_that_does_not_exist(burst, own_daemon, tmp_path, program):
    done = burst("run", "--", program, env=own_daemon)
    assert done.returncode == 127 and program in done.stderr and len(done.stderr.splitlines()) == 1
    assert not daemons_of(tmp_path)


def test_a_place_that_cannot_be_written_is_named_with_the_cure(burst, own_daemon):
    done = burst("run", "--", "true", env={**own_daemon, "BURST_SOCKET": "/proc/sys/burst/d.sock"})
    assert done.returncode == 125 and len(done.stderr.splitlines()) == 1, done.stderr
    assert all(part in done.stderr for part in ("/proc/sys/burst", "BURST_SOCKET", "XDG_RUNTIME_DIR")), done.stderr


def test_flags_that_exclude_each_other_are_both_named(burst, own_daemon):
    done = burst("run", "--in-process", "--lent", "--", "true", env=own_daemon)
    assert done.returncode == 2 and "--in-process" in done.stderr and "--lent" in done.stderr, done.stderr


def test_no_start_starts_no_daemon(burst, own_daemon, tmp_path):
    done = burst("run", "--no-start", "--", "true", env=own_daemon)
    assert done.returncode == 125 and str(tmp_path / "d.sock") in done.stderr
    assert not daemons_of(tmp_path)


def test_a_daemon_that_cannot_start_says_why(burst, own_daemon):
    done = burst("run", "--port", "udp:dev=nosuch0", "--", "true", env=own_daemon)
    assert done.returncode == 125 and "nosuch0" in done.stderr, done.stderr


def test_pipes_close_when_the_program_ends(own_daemon):
    """The daemon must not keep the pipe of the program's output open."""
    pipe = subprocess.Popen([BUILD / "burst", "run", "--", "echo", "x"], env=own_daemon, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = []
    reader = threading.Thread(target=lambda: text.append(pipe.stdout.read()), daemon=True)
    reader.start()
    reader.join(60)
    assert text == [b"x\n"]
    pipe.wait(60)
