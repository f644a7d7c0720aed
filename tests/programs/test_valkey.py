"""Valkey over RDMA, with a snapshot each second (BGSAVE forks) while a client writes over RDMA. Every snapshot must load, and must be what
the server held at one moment: valkey_writer.c says why its values name that moment.

BURST_VALKEY names a folder with valkey-server, valkey-rdma.so and valkey's own rdma-test. BURST_VALKEY_SECONDS: how long the writer
writes (20)."""

import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from lab import build_directory, wait_until
from lab.rows import burst_run, foreign

HERE = Path(__file__).parent
PLACE = Path(os.environ.get("BURST_VALKEY", "/nonexistent"))
SECONDS, KEYS = int(os.environ.get("BURST_VALKEY_SECONDS", "20")), 100
WAIT = 120


def version():
    done = subprocess.run([PLACE / "valkey-server", "--version"], capture_output=True, text=True)
    return re.search(r"sha=(\w+)|v=(\S+)", done.stdout).group(0)


pytestmark = [pytest.mark.download, foreign("BURST_VALKEY", "valkey-server and valkey-rdma.so"), pytest.mark.alone]


class Valkey:
    """A server, and a conversation with it over a Unix socket."""

    def __init__(self, host, place, *words, plain=False):
        self.path = place / "socket"
        limits = ["--port", 0, "--unixsocket", self.path, "--save", "", "--appendonly", "no", "--dir", place]
        prefix = [] if plain else burst_run(host)
        self.program = host.start(*prefix, PLACE / "valkey-server", *limits, *words, plain=plain)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(WAIT)
        wait_until(lambda: self.socket.connect_ex(str(self.path)) == 0, WAIT, program=self.program)
        self.lines = self.socket.makefile("rb")
        wait_until(lambda: self.ask("PING") == "PONG", WAIT, program=self.program)

    def ask(self, *words):
        """The reply to a command: text, number, list; an error is text that begins with '-'."""
        parts = [str(word).encode() for word in words]
        assert self.program.running(), self.program.text()[-4000:]
        self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
        try:
            return self.reply()
        except ConnectionError as error:
            raise AssertionError(f"{error}\n{self.program.text()[-4000:]}") from None

    def reply(self):
        line = self.lines.readline().decode()
        assert line, "the server has ended:\n" + self.program.text()[-4000:]
        kind, rest = line[:1], line[1:].rstrip("\r\n")
        if kind == "$":
            return None if rest == "-1" else self.lines.read(int(rest) + 2)[:-2].decode()
        if kind == "*":
            return [self.reply() for _ in range(int(rest))]
        return rest if kind == "+" else int(rest) if kind == ":" else line

    def end(self):
        self.socket.close()
        self.program.stop()


def value_of(number):
    """What valkey_writer writes."""
    return f"{number}:" + "".join(chr(ord("a") + (number + i) % 26) for i in range(16 + number % KEYS * 37 % 8000))


def check_snapshot(host, dump, place, acknowledged):
    """Loads a snapshot: its values must be those of one moment, not before `acknowledged` commands were done."""
    place.mkdir()
    shutil.copy(dump, place / "dump.rdb")
    loaded = Valkey(host, place, plain=True)
    try:
        values = loaded.ask("MGET", *(f"k{key:05}" for key in range(KEYS)))
    finally:
        loaded.end()
    numbers = sorted(int(value.split(":")[0]) for value in values)
    assert numbers == list(range(numbers[0], numbers[0] + KEYS)), f"not one moment: {numbers}"
    assert [number % KEYS for number in (int(value.split(":")[0]) for value in values)] == list(range(KEYS))
    for value in values:
        assert value == value_of(int(value.split(":")[0])), value[:80]
    assert numbers[-1] + 1 >= acknowledged, "the snapshot is older than its fork"
    shutil.rmtree(place)


def over_rdma(host):
    # In protected mode the server closes the connection, and then touches freed memory: its timer of keepalives outlives the connection.
    return ["--protected-mode", "no", "--loadmodule", PLACE / "valkey-rdma.so", "port=6379", f"bind={host.address}"]


def acknowledged(program):
    found = re.findall(r"acknowledged (\d+)", program.text())
    return int(found[-1]) if found else 0


def save_each_second(server, load, hosts, place):
    """Snapshots until the load ends; their number."""
    saved = 0
    while load.running():
        began, before = time.monotonic(), acknowledged(load)
        assert server.ask("BGSAVE") == "Background saving started"
        wait_until(lambda: "rdb_bgsave_in_progress:0" in server.ask("INFO", "persistence"), WAIT, program=server.program)
        assert "rdb_last_bgsave_status:ok" in server.ask("INFO", "persistence"), server.program.text()
        if before >= KEYS:
            check_snapshot(hosts.b, place / "dump.rdb", place / f"snapshot-{saved}", before)
            saved += 1
        time.sleep(max(0, began + 1 - time.monotonic()))
    return saved


@pytest.mark.program("Valkey over RDMA, BGSAVE each second", version)
def test_snapshots_under_load_are_moments(hosts, command, tmp_path):
    server = Valkey(hosts.b, tmp_path, *command(*over_rdma(hosts.b)))
    try:
        writer = [build_directory() / "programs" / "valkey_writer", hosts.b.address, 6379, KEYS, SECONDS]
        load = hosts.a.start(*burst_run(hosts.a), *writer)
        saved = save_each_second(server, load, hosts, tmp_path)
        assert load.wait(WAIT) == 0 and "checked" in load.text(), load.text()[-2000:] + server.program.text()
        assert saved >= 2, f"{saved} snapshots beside {acknowledged(load)} commands"
        print(f"{saved} snapshots, {acknowledged(load)} commands")
    finally:
        server.end()


@pytest.mark.program("Valkey's rdma-test", version)
def test_the_suite_of_valkey(hosts, command, tmp_path):
    server = Valkey(hosts.b, tmp_path, *over_rdma(hosts.b))
    try:
        words = command(PLACE / "rdma-test", "--thread", 4, "--minkeys", 128, "--maxkeys", 256, "-h", hosts.b.address)
        for _ in range(4):
            code, text = hosts.a.run(*burst_run(hosts.a), *words, seconds=3 * WAIT)
            # It gives each step of connecting 100 ms, and a second to each reply.
            if not any(why in text for why in ("resolve failed", "timeout")):
                break
        assert code == 0 and text.count("GET") >= 4, text + server.program.text()
        assert server.ask("PING") == "PONG"
    finally:
        server.end()
