"""Users who do not trust each other: what a user sees of others, which requests need a right, which daemon a program trusts, and that no
user can fill the log. Daemons of root and of users, programs of the users 1001 and 1002."""

import errno
import json
import os
import shutil
import socket
import struct
import subprocess
import threading
from pathlib import Path

import pytest

from lab import Daemon, Program, await_true, wait_until
from lab.users import ALICE, BOB, SECONDS, Users, as_user, public_copy

#: The kernel's number for users without a number in a user namespace.
OVERFLOW = 65534
O_PATH = 0o10000000


@pytest.fixture(scope="module")
def place(namespaces):
    """A copy of the build that every user may execute."""
    if os.geteuid():
        pytest.skip("changing the user needs root")
    place = public_copy(f"/tmp/burst-test-tenants-{os.getpid()}", "programs/tenant")
    yield place
    shutil.rmtree(place)


@pytest.fixture
def users(fabric, place):
    users = Users(fabric.a, place)
    yield users
    users.end()


# What users see

def listed(users, user):
    return json.loads(users.burst(user, "cm", "--connections", "--json"))


def test_a_user_sees_the_own_connections_and_the_number_of_others(users):
    server = users.start(ALICE, "rping", "-s", "-a", "0.0.0.0", "-p", "7301", "-P")
    wait_until(lambda: listed(users, 0)["connections"], said=server.text, program=server)
    client = users.start(ALICE, "rping", "-c", "-a", users.host.address, "-p", "7301", "-C", "1000000000")
    wait_until(lambda: len(listed(users, 0)["connections"]) == 3, said=client.text, program=client)
    for user, shown in ((0, 3), (ALICE, 3), (BOB, 0)):
        seen = listed(users, user)
        assert (len(seen["connections"]), seen["not_shown"]) == (shown, 3 - shown), (user, seen)
        assert all(row["uid"] == ALICE for row in seen["connections"])
        text = users.burst(user, "cm", "--connections")
        assert ("3 connections of other users are not shown; root sees them" in text) == (shown == 0), text
    # Sums over all users are everyone's.
    numbers = json.loads(users.burst(BOB, "cm", "--json"))["numbers"]
    assert numbers["listeners"] == 1 and "7301" not in users.burst(BOB, "cm", "--connections")


# Privileges

WITHOUT = {"net_raw": ["setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw"]}
NEW_NAMESPACE = [*as_user(ALICE), "unshare", "--user", "--map-root-user"]


@pytest.mark.parametrize("user, result", [
    (as_user(0), 0),
    (as_user(ALICE), errno.EPERM),
    (as_user(ALICE, "net_raw"), 0),
    (as_user(ALICE, "net_bind_service"), errno.EPERM),
    (WITHOUT["net_raw"], errno.EPERM),
], ids=["root", "user", "with-the-capability", "with-another", "root-without"])
def test_a_privileged_qkey_needs_the_capability(users, user, result):
    assert users.run(user, "tenant", "qkey") == f"qkey {result}\n"


def test_the_capabilities_of_an_own_user_namespace_do_not_count(users):
    trust = {"BURST_TRUST_SOCKET_OF": str(OVERFLOW)}
    assert users.run(NEW_NAMESPACE, "tenant", "qkey", env=trust) == f"qkey {errno.EPERM}\n"
    assert users.run(NEW_NAMESPACE, "tenant", "port", "700", env=trust) == f"port {errno.EACCES}\n"


def test_a_program_that_a_client_becomes_lends_it_no_capability(users):
    """A process connects, leaves its memory and descriptors to a child, and executes a program with a capability."""
    privileged = users.place / "bin/sleep-with-capability"
    shutil.copy("/bin/sleep", privileged)
    done = subprocess.run(["setcap", "cap_net_raw+ep", privileged], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this file system has no file capabilities: {done.stderr.strip()}")
    program = users.start(ALICE, "tenant", "exec", privileged, "20")
    program.wait_for_text("exec ", SECONDS)
    assert program.text() == f"exec {errno.EPERM}\n"


def test_privileged_ports(users):
    bind = lambda user, port: users.run(user, "tenant", "port", str(port))  # noqa: E731
    assert bind(ALICE, 700) == f"port {errno.EACCES}\n"
    assert bind(ALICE, 7302) == "port 0\n"
    assert bind(as_user(ALICE, "net_bind_service"), 700) == "port 0\n"
    assert bind(0, 700) == "port 0\n"
    limit = ["sysctl", "-q", "-w"]
    users.run([], *limit, "net.ipv4.ip_unprivileged_port_start=600")
    try:
        assert (bind(ALICE, 600), bind(ALICE, 599)) == ("port 0\n", f"port {errno.EACCES}\n")
    finally:
        users.run([], *limit, "net.ipv4.ip_unprivileged_port_start=1024")
    assert "needs CAP_NET_BIND_SERVICE" in users.host.daemon.text()


#: Binds UDP ports of an address that is its argument, with every option to share them.
BINDS = """
import socket, sys
for port in (4791, 4792):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        one.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        one.bind((sys.argv[1], port))
        print(port, "bound")
    except OSError as error:
        print(port, error.errno)
"""


@pytest.mark.parametrize("ip", ["own", "0.0.0.0"])
def test_no_program_binds_the_ports_of_the_daemons_transports(users, ip):
    """4792 is URMA's, which no program uses here."""
    program = users.start(ALICE, "/usr/bin/python3", "-c", BINDS, users.host.address if ip == "own" else ip)
    assert program.wait(SECONDS) == 0
    assert program.text() == f"4791 {errno.EADDRINUSE}\n4792 {errno.EADDRINUSE}\n"


@pytest.mark.parametrize("first", ["0.0.0.0", "own"])
def test_no_other_listener_shares_a_listeners_address(users, first):
    """As in the kernel: ids may be bound to one address if all allow it, but a listener's address, or a part of it, is its own."""
    own = users.host.address
    first, second = (own, "0.0.0.0") if first == "own" else (first, own)
    victim = users.start(ALICE, "tenant", "listen", first, "7303")
    victim.wait_for_text("listen 0\n", SECONDS)
    for user in (BOB, ALICE, 0):
        assert users.run(user, "tenant", "listen", second, "7303") == f"listen {errno.EADDRNOTAVAIL}\n"
    assert victim.running()
    victim.stop()
    successor = users.start(BOB, "tenant", "listen", second, "7303")
    successor.wait_for_text("listen 0\n", SECONDS)


def test_the_user_of_a_private_daemon_owns_its_devices(users):
    """Another user who may connect to it does not."""
    directory = Path(f"/tmp/burst-test-private-{os.getpid()}")
    directory.mkdir()
    os.chown(directory, ALICE, ALICE)
    own = {"BURST_SOCKET": str(directory / "burstd.sock"), "BURST_TRUST_SOCKET_OF": str(ALICE)}
    keeper = subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up; echo ready; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert keeper.stdout.readline() == b"ready\n"
    prefix = ["nsenter", "-t", str(keeper.pid), "--net", *as_user(ALICE), str(users.place / "bin/burstd")]
    try:
        daemon = Daemon.__new__(Daemon)
        ready, announce = os.pipe()
        os.set_inheritable(announce, True)
        Program.__init__(daemon, [*prefix, "--socket", own["BURST_SOCKET"], "--ready-fd", announce, "--port", "udp:dev=lo"], pass_fds=[announce])
        os.close(announce)
        daemon._await(ready)
        assert users.run(ALICE, "tenant", "qkey", env=own) == "qkey 0\n"
        assert users.run(ALICE, "tenant", "port", "700", env=own) == "port 0\n"
        assert users.run(BOB, "tenant", "qkey", env=own) == f"qkey {errno.EPERM}\n"
        daemon.stop()
    finally:
        keeper.stdin.close()
        keeper.wait(60)
        shutil.rmtree(directory)


def test_an_xrc_domain_needs_access_to_its_file(users, tmp_path):
    file = users.place / "domain"
    file.write_text("")
    os.chown(file, ALICE, ALICE)
    os.chmod(file, 0o600)
    assert users.run(ALICE, "tenant", "xrcd", os.O_RDONLY, file) == "xrcd 0\n"
    assert users.run(BOB, "tenant", "xrcd", O_PATH, file) == f"xrcd {errno.EBADF}\n"


def test_an_import_needs_the_descriptor_of_the_context(users):
    """A descriptor of the same name, but not of the same context, opens nothing."""
    holder = users.start(ALICE, "tenant", "hold")
    holder.wait_for_text("hold ", SECONDS)
    number = holder.text().split()[1]
    real = os.open(f"/proc/{holder.pid}/fd/{number}", os.O_RDONLY)
    content = bytearray(os.pread(real, 4096, 0))
    content[8] ^= 1
    forged = os.memfd_create("burst-context", 0)
    os.write(forged, content)
    assert users.run(ALICE, "tenant", "import", str(real), pass_fds=[real]) == "import 0\n"
    assert users.run(BOB, "tenant", "import", str(forged), pass_fds=[forged]) != "import 0\n"
    os.close(real)
    os.close(forged)


# Namespaces

def test_a_program_outside_the_daemons_pid_namespace(users, place):
    """SO_PEERCRED has the process number 0 for it: it is served, but its memory cannot be reached and it has no privilege."""
    socket_path = place / "in-a-pid-namespace.sock"
    prefix = [*users.host.prefix(), "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    users.host.daemon.stop()
    daemon = Daemon(prefix, socket_path, "udp:dev=eth0")
    try:
        env = {"BURST_SOCKET": str(socket_path)}
        assert "burst0" in users.burst(0, "ls", env=env)
        plain, whole = map(int, users.run(0, "tenant", "memory", env=env).split()[1:])
        assert plain == 0 and whole != 0, "only a region that is mapped is independent of the process"
        assert users.run(0, "tenant", "qkey", env=env) == f"qkey {errno.EPERM}\n"
        assert daemon.running() and "panicked" not in daemon.text(), daemon.text()
    finally:
        daemon.stop()
        users.host.start_daemon()


# Which daemon a program trusts

class Trap:
    """A socket of user BOB at a path; whatever is said to it is kept."""

    def __init__(self, path):
        self.said = []
        self.path, ready = path, threading.Event()
        self.listener = None
        threading.Thread(target=self.serve, args=[ready], daemon=True).start()
        assert ready.wait(60)

    def serve(self, ready):
        # Credentials of one thread: the kernel's call, since Python's changes those of all threads.
        import ctypes

        libc = ctypes.CDLL(None)
        assert libc.syscall(117, BOB, BOB, -1) == 0, "setresuid"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.path))
        os.chmod(self.path, 0o777)
        self.listener.listen()
        ready.set()
        while True:
            try:
                client, _ = self.listener.accept()
                self.said.append(client.recv(4096))
                client.close()
            except OSError:
                return

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.mark.parametrize("owner", [BOB, ALICE])
def test_a_socket_of_another_user_gets_no_word(users, owner):
    """In a directory of the other user, and in the own one, whose files all may replace."""
    directory = Path(f"/tmp/burst-test-trap-{os.getpid()}")
    directory.mkdir()
    os.chmod(directory, 0o777)
    trap = Trap(directory / "burstd.sock")
    os.chown(directory, owner, owner)
    try:
        env = {"BURST_SOCKET": str(trap.path)}
        for text in (users.run(ALICE, "ibv_devices", env=env), users.burst(ALICE, "ls", env=env)):
            assert f"{trap.path} belongs to user {BOB}" in text and f"BURST_TRUST_SOCKET_OF={BOB}" in text, text
        assert "burst0" not in users.burst(ALICE, "run", "--no-start", "--", "ibv_devices", env=env)
        # The file's owner may be changed; the listener's credentials may not.
        os.chown(trap.path, ALICE, ALICE)
        os.chown(directory, ALICE, ALICE)
        os.chmod(directory, 0o755)
        text = users.run(ALICE, "ibv_devices", env=env)
        assert f"the daemon behind {trap.path} runs as user {BOB}" in text, text
        assert [words for words in trap.said if words] == []
        # An explicit wish: the hello.
        users.burst(ALICE, "ls", env={**env, "BURST_TRUST_SOCKET_OF": f"5,{BOB}"})
        assert await_true(lambda: any(trap.said))
    finally:
        trap.close()
        shutil.rmtree(directory)


def test_the_hosts_daemon_in_a_user_namespace(users):
    """Its owner has no number there: refused with the cure, unless listed. `burst run` lists it for its program."""
    inside = [*as_user(ALICE), "unshare", "--user", "--map-current-user"]
    refused = users.run(inside, "ibv_devices")
    assert "burst0" not in refused, refused
    assert f"no number in this user namespace (shown as {OVERFLOW})" in refused and f"BURST_TRUST_SOCKET_OF={OVERFLOW}" in refused, refused
    assert "burst0" in users.run(inside, "ibv_devices", env={"BURST_TRUST_SOCKET_OF": str(OVERFLOW)})
    assert "burst0" in users.burst(ALICE, "run", "--no-start", "--", "ibv_devices")


# The log

#: Lines of one cause and user in a minute, and more than the bytes of any.
LINES, LINE_BYTES = 32, 300


def test_nobody_fills_the_log(users):
    """Thousands of bad connects of three kinds. The test runs as root, whose lines are bounded, too."""
    kinds = (b"nonsense", b"", struct.pack("<III", 0x4243544C, 1, 1))
    before = len(users.host.daemon.text())
    for number in range(6000):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(str(users.host.socket))
            client.send(kinds[number % 3] or bytes(70000))
    assert "burst0" in users.burst(ALICE, "ls")
    written = len(users.host.daemon.text()) - before
    assert written < 3 * LINES * LINE_BYTES, users.host.daemon.text()[-2000:]
