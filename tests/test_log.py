"""The daemon's log: entries of the journal, levels that change at run time, and the budget of its lines."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile

import pytest

from conftest import BUILD
from lab import Daemon, wait_until
from lab.proxy import Proxies
from lab.users import ALICE, as_user
from test_proxy import await_carried, carried, exactly, joined

#: Names of fields begin so.
PREFIX = "BURST"
#: Runs a command with a directory in place of the journal's; JOURNAL_STREAM names its stderr.
IN_JOURNAL = """
mount -t tmpfs none /run && mkdir -p /run/systemd/journal && mount --bind "$0" /run/systemd/journal || exit 1
JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) exec "$@"
"""
#: Runs a command in a network of its own.
ALONE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
#: Two requests a round.
ROUNDS = 30_000
REQUESTS = f"""
import ctypes
verbs = ctypes.CDLL("libibverbs.so.1")
for name in ("ibv_get_device_list", "ibv_open_device", "ibv_alloc_pd"):
    getattr(verbs, name).restype = ctypes.c_void_p
devices = ctypes.cast(verbs.ibv_get_device_list(None), ctypes.POINTER(ctypes.c_void_p))
context = ctypes.c_void_p(verbs.ibv_open_device(ctypes.c_void_p(devices[0])))
for _ in range({ROUNDS}):
    assert verbs.ibv_dealloc_pd(ctypes.c_void_p(verbs.ibv_alloc_pd(context))) == 0
"""


def field(entry, name):
    """The value of a field of a line."""
    return entry[f"{PREFIX}_{name.upper()}"]


class Journal:
    """A socket in place of journald's."""

    def __init__(self):
        self.place = tempfile.TemporaryDirectory(prefix="burst-journal-")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"{self.place.name}/socket")
        self.socket.setblocking(False)
        self.entries = []

    def read(self):
        """All entries so far, each as {name: value}. The native protocol: NAME=value, or NAME, length and value."""
        while True:
            try:
                rest = self.socket.recv(1 << 20)
            except BlockingIOError:
                return self.entries
            entry = {}
            while rest:
                line, _, rest = rest.partition(b"\n")
                name, equals, value = line.partition(b"=")
                if not equals:
                    length = int.from_bytes(rest[:8], "little")
                    value, rest = rest[8:8 + length], rest[9 + length:]
                entry[name.decode()] = value.decode()
            # The library sends an empty datagram first, to see whether there is a journal.
            self.entries += [entry] if entry else []

    def find(self, message):
        """The entry whose message begins so; waits for it."""
        found = lambda: [entry for entry in self.read() if entry["MESSAGE"].startswith(message)]  # noqa: E731
        wait_until(found, said=lambda: f"no entry {message!r} among {self.entries}")
        return found()[-1]


@pytest.fixture
def daemon(tmp_path):
    started = Daemon(ALONE, tmp_path / "s", "udp:dev=lo")
    yield started
    started.stop()


def burst(daemon, *words, prefix=()):
    return subprocess.run([*prefix, BUILD / "burst", *words, "--socket", daemon.socket], capture_output=True, text=True, timeout=60)


def levels(daemon):
    return json.loads(burst(daemon, "log", "--json").stdout)["levels"]


def test_where_stderr_is_the_journal_lines_are_entries_with_fields(tmp_path):
    journal = Journal()
    prefix = [*ALONE, "unshare", "--mount", "--propagation", "private", "sh", "-c", IN_JOURNAL, journal.place.name]
    daemon = Daemon(prefix, tmp_path / "s", "udp:dev=lo")
    try:
        entry = journal.find("serving")
        assert entry["PRIORITY"] == "6" and entry["TARGET"] == "burstd::server" and entry["SYSLOG_IDENTIFIER"] == "burstd"
        assert entry["CODE_FILE"].endswith("burstd/src/server.rs") and int(entry["CODE_LINE"]) > 0
        assert field(entry, "workers").isdigit() and field(entry, "socket") == str(daemon.socket)
        assert burst(daemon, "log", "host=debug").returncode == 0
        entry = journal.find("levels of the log")
        assert field(entry, "levels") == "host=debug" and field(entry, "uid") == "0"
        burst(daemon, "ls")
        entry = journal.find("request")
        assert entry["PRIORITY"] == "7" and int(field(entry, "pid")) > 0 and field(entry, "request")
        assert daemon.text() == "", "every line is an entry"
    finally:
        daemon.stop()


def test_a_stderr_that_is_not_the_journal_gets_lines(tmp_path):
    daemon = Daemon([*ALONE, "env", "JOURNAL_STREAM=1:1"], tmp_path / "s", "udp:dev=lo")
    try:
        daemon.wait_for_text("serving", 60)
    finally:
        daemon.stop()


def test_levels_change_at_run_time(daemon):
    assert set(levels(daemon).values()) == {"info"}
    assert "request=" not in daemon.text()
    assert burst(daemon, "log", "host=debug", "port=error").returncode == 0
    assert {name: level for name, level in levels(daemon).items() if level != "info"} == {"host": "debug", "port": "error"}
    daemon.wait_for_text("request=Log", 60)
    assert burst(daemon, "log", "default").returncode == 0
    assert set(levels(daemon).values()) == {"info"}


def test_another_user_sees_the_levels_and_may_not_change_them():
    with tempfile.TemporaryDirectory(prefix="burst-log-") as place:
        os.chmod(place, 0o755)
        program = shutil.copy(BUILD / "burst", place)
        daemon = Daemon(ALONE, f"{place}/s", "udp:dev=lo", ["--socket-mode", "0666"])
        ask = lambda *words: subprocess.run(  # noqa: E731
            [*as_user(ALICE), program, "log", *words, "--socket", daemon.socket], capture_output=True, text=True, timeout=60,
        )
        try:
            assert "host     info" in ask().stdout
            refused = ask("trace")
            assert refused.returncode == 1 and "only root and the user who runs the daemon" in refused.stderr
            assert set(levels(daemon).values()) == {"info"}
        finally:
            daemon.stop()


@pytest.mark.parametrize("word,near", [("hots=debug", '"host"'), ("host=dbug", '"debug"'), ("inof", '"info"')])
def test_a_wrong_level_changes_nothing(daemon, word, near):
    done = burst(daemon, "log", "warn", word)
    assert done.returncode == 1 and near in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert set(levels(daemon).values()) == {"info"}


def test_a_program_cannot_fill_the_disk_while_requests_are_logged(daemon):
    assert burst(daemon, "log", "debug").returncode == 0
    done = subprocess.run(
        [BUILD / "burst", "run", "--socket", daemon.socket, "--", sys.executable, "-c", REQUESTS], capture_output=True, text=True, timeout=300,
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(burst(daemon, "log", "--json").stdout)
    written = daemon.text().count("request=")
    assert shown["lines_left_out"] > 0 and written + shown["lines_left_out"] >= 2 * ROUNDS, (written, shown)
    assert "lines were left out since the start" in burst(daemon, "log").stdout


def test_a_proxy_has_lines_of_connections_when_they_are_asked_for(make_fabric):
    """With the priority of systemd where stderr is the journal's."""
    journal = ["sh", "-c", 'JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) exec "$@"', "sh"]
    with Proxies(make_fabric(), before=journal) as proxies:
        a, b = proxies.fabric.hosts
        ended = lambda: re.findall(rf"<7>burst-proxy: \S+ to {b.address}:\d+: ended; 5 bytes read here, 0 delivered\n", proxies.running["a"].text())  # noqa: E731
        assert proxies.ask(a, "log") == "info\n"
        for level, lines in (("info", 0), ("debug", 1), ("info", 1)):
            assert proxies.ask(a, "log", level) == f"{level}\n"
            before = carried(proxies)
            with joined(proxies) as (ours, theirs):
                ours.sendall(b"hello")
                assert exactly(theirs, 5) == b"hello"
            await_carried(proxies, before + 1)
            wait_until(lambda: not proxies.show(a)["streams"], said=proxies.running["a"].text)
            assert len(ended()) == lines, proxies.running["a"].text()
        text = proxies.running["a"].text()
        assert len(re.findall(rf"<7>burst-proxy: \S+ to {b.address}:\d+: stream \d+ of link \d+, by rdma\n", text)) == 1, text
        assert "<6>burst-proxy: " in text
        with pytest.raises(subprocess.CalledProcessError):
            proxies.ask(a, "log", "loud")
