"""Whose account a program has, with the kernel's own mappings and control groups: a user who has many ids, or makes many groups, has one share."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lab import Daemon, wait_until
from lab.fabric import Program
from test_proxy import cgroup_mount
from test_shares import CONNECTOR, users_of

pytestmark = [
    pytest.mark.counts,
    pytest.mark.skipif(os.geteuid() != 0, reason="changing the user, mapping ids and making control groups need root"),
]

ALICE, BOB = 1001, 1002
#: The ids that ALICE's line of subuid(5) gives.
FIRST, COUNT = 300_000, 65_536
SECONDS = 60
#: The percent of what the reserve of 10 % leaves of 16,384 connections that a user may use: 147.
SHARE = 1
#: Connections that each program asks for: two have more than a share together.
ASKED = 80
#: An interpreter that every user may execute.
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
AS = "exec setpriv --reuid={0} --regid={0} --clear-groups "
#: Executes the rest of its arguments in a control group, whose directory is the first: `Joined`.
JOIN = 'echo $$ >"$1/cgroup.procs" || exit 1; shift; '
#: Makes a group below a delegated one, moves there, and executes the rest.
BELOW = 'mkdir "$1/$2" && echo $$ >"$1/$2/cgroup.procs" || exit 1; shift 2; exec "$@"'


#: Holds connections that children make and leave to it: each child has exited before the next one is made. Prints how many the daemon keeps
#: when the file argv[3] is gone.
ORPHANS = """
import os, signal, socket, sys, time
held, words = [], b""
for _ in range(int(sys.argv[2])):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if not child:
        one.connect(sys.argv[1])
        os._exit(0)
    os.waitpid(child, 0)
    held.append(one)
print("made", flush=True)
while os.path.exists(sys.argv[3]):
    time.sleep(0.01)
kept = 0
for one in held:
    one.settimeout(0.5)
    try:
        words = one.recv(4096)
    except TimeoutError:
        kept += 1
print("held", kept, words.decode(errors="replace"), flush=True)
signal.pause()
"""


@pytest.fixture
def host(make_fabric):
    """A host whose daemon the test starts."""
    host = make_fabric().a
    host.daemon.stop()
    return host


@contextlib.contextmanager
def daemon_of(host, prefix=(), *extra):
    words = [*host.prefix(), *prefix]
    host.daemon = Daemon(words, host.socket, "udp:dev=eth0", ["--user-share", SHARE, "--socket-mode", "0666", *extra])
    try:
        yield host.daemon
    finally:
        host.daemon.stop()


def connect(host, *prefix):
    """A program that holds as many connections as it gets, at most ASKED; how many it has."""
    program = host.start(*prefix, PYTHON, "-c", CONNECTOR, host.socket, ASKED, 20, plain=True)
    program.wait_for_text("held", SECONDS)
    return program, int(program.text().split()[1])


def sessions(host):
    """Connections by account. The one of `burst ls` itself is root's."""
    return {owner: user["resources"]["sessions"]["used"] for owner, user in users_of(host).items() if owner != "user 0"}


def most(host, owner):
    return users_of(host)[owner]["resources"]["sessions"]["limit"]


def plain_user(uid):
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


class Mapped:
    """A user namespace of ALICE, whose ids from 0 on are those of her range, as newuidmap and newgidmap map them."""

    def __init__(self, host):
        self.keeper = Program([*host.prefix(), *plain_user(ALICE), "unshare", "--user", "sh", "-c", "echo ready; exec sleep infinity"])
        self.keeper.wait_for_text("ready", SECONDS)
        # `nsenter`, `setpriv` and `unshare` become the command.
        self.pid = self.keeper.pid
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{self.pid}/{kind}").write_text(f"0 {FIRST} {COUNT}\n")

    def prefix(self, uid):
        """Words that run a program there as a user of the namespace."""
        return ["nsenter", "-t", str(self.pid), "--user", f"--setuid={uid}", f"--setgid={uid}"]

    def end(self):
        self.keeper.stop()


def test_the_ids_of_a_users_range_have_one_share(host):
    """Ids of the range that root gives to processes, and ids of a namespace that a user maps."""
    if not Path("/etc/subuid").exists():
        pytest.skip("there is no /etc/subuid to mount a file on")
    with tempfile.NamedTemporaryFile("w", suffix="-subuid") as ranges:
        ranges.write(f"{ALICE}:{FIRST}:{COUNT}\n")
        ranges.flush()
        # The daemon's own view of the machine's file.
        seen = ["unshare", "--mount", "sh", "-c", f'mount --bind {ranges.name} /etc/subuid && exec "$@"', "sh"]
        with daemon_of(host, seen):
            started, namespace = [], Mapped(host)
            try:
                alice, held = connect(host, *plain_user(ALICE))
                started.append(alice)
                assert held == ASKED, alice.text()
                total = held
                for prefix in (plain_user(FIRST + 7), plain_user(FIRST + COUNT - 1), namespace.prefix(0), namespace.prefix(1000)):
                    program, held = connect(host, *prefix)
                    started.append(program)
                    total += held
                    assert sessions(host) == {f"user {ALICE}": total}, program.text()
                assert total <= most(host, f"user {ALICE}") < 2 * ASKED
                assert all("user_share" in program.text() for program in started[1:]), [program.text() for program in started]
                # Ids outside the range, and another user, have shares of their own.
                for uid in (FIRST + COUNT, BOB):
                    program, held = connect(host, *plain_user(uid))
                    started.append(program)
                    assert held == ASKED and sessions(host)[f"user {uid}"] == held, program.text()
            finally:
                for program in started:
                    program.stop()
                namespace.end()
        assert "panicked" not in host.daemon.text(), host.daemon.text()


@pytest.fixture
def groups():
    """A control group of this test's own, in a mount of its own."""
    place = Path(tempfile.mkdtemp(prefix="burst-test-groups-"))
    place.chmod(0o755)
    mounted = cgroup_mount(place / "mount")
    own = mounted / f"burst-test-{os.getpid()}"
    own.mkdir()
    try:
        yield own
    finally:
        # A group is in use for a moment after its last process has gone.
        for group in [*sorted((path for path in own.rglob("*") if path.is_dir()), reverse=True), own]:
            wait_until(lambda group=group: removed(group), SECONDS)
        subprocess.run(["umount", mounted], check=True)
        shutil.rmtree(place)


def removed(group):
    with contextlib.suppress(FileNotFoundError):
        try:
            group.rmdir()
        except OSError:
            return False
    return True


def in_group(group, uid):
    """Words that run a program as a user in a control group."""
    return ["sh", "-c", JOIN + AS.format(uid) + '"$@"', "sh", group]


def delegated(group, uid, name):
    """The same in a group that the user's own program makes below."""
    return [*in_group(group, uid), "sh", "-c", BELOW, "sh", group, name]


def test_groups_below_a_delegated_one_have_its_share(groups, host):
    """ALICE's programs make groups below the one that was delegated to her, and move there."""
    unit, other = groups / "unit", groups / "other"
    for group in (unit, other):
        group.mkdir()
    for path in (unit, unit / "cgroup.procs", unit / "cgroup.subtree_control"):
        os.chown(path, ALICE, ALICE)
    # The mount's root is the root of the daemon's control groups.
    names = {group: f"control group /{group.relative_to(groups.parent)}" for group in (unit, other)}
    with daemon_of(host, (), "--account-by", "cgroup", "--account-depth", 2):
        started = []
        try:
            first, held = connect(host, *in_group(unit, ALICE))
            started.append(first)
            assert held == ASKED, first.text()
            total = held
            for name in ("one", "two", "three"):
                program, held = connect(host, *delegated(unit, ALICE, name))
                started.append(program)
                where = Path(f"/proc/{program.pid}/cgroup").read_text()
                assert f"0::/{(unit / name).relative_to(groups.parent)}\n" in where, where
                total += held
                assert sessions(host) == {names[unit]: total}, program.text()
            assert total <= most(host, names[unit]) < 2 * ASKED
            assert all("user_share" in program.text() for program in started[1:]), [program.text() for program in started]
            # Another group of the same user's programs is another account.
            program, held = connect(host, *in_group(other, ALICE))
            started.append(program)
            assert held == ASKED and sessions(host)[names[other]] == held, program.text()
        finally:
            for program in started:
                program.stop()


def test_programs_in_the_root_group_have_their_users_shares(groups, host):
    """The root group is everyone's on machines whose programs are in groups of version 1: it is no account that users share."""
    with daemon_of(host, (), "--account-by", "cgroup"):
        started = []
        try:
            for uid in (ALICE, BOB):
                program, held = connect(host, *in_group(groups.parent, uid))
                started.append(program)
                assert held == ASKED and sessions(host)[f"user {uid}"] == held, (program.text(), sessions(host))
        finally:
            for program in started:
                program.stop()


def test_a_process_that_has_exited_gives_its_group_no_second_account(groups, host):
    """A child connects and exits before the daemon looks at its group. While it is stopped, the daemon looks later."""
    with daemon_of(host, (), "--account-by", "cgroup"):
        host.daemon.stand_still()
        stopped = Path(host.socket).with_name("stopped")
        stopped.touch()
        orphans = host.start(*in_group(groups, ALICE), PYTHON, "-c", ORPHANS, host.socket, 20, stopped, plain=True)
        try:
            # All wait in the listener's queue.
            orphans.wait_for_text("made", SECONDS)
            os.kill(host.daemon.pid, signal.SIGCONT)
            stopped.unlink()
            orphans.wait_for_text("held", SECONDS)
            assert "has exited" in orphans.text() and "held 0 " in orphans.text(), orphans.text()
            assert sessions(host) == {}
            # One that lives on has its group's.
            program, held = connect(host, *in_group(groups, ALICE))
            try:
                assert held == ASKED and list(sessions(host)) == [f"control group /{groups.relative_to(groups.parent)}"]
            finally:
                program.stop()
        finally:
            orphans.stop()
