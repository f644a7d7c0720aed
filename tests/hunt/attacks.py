#!/usr/bin/env python3
"""Attacks of hostile programs and of a hostile peer, each beside a bystander, and what the bystander notices (`make hunt`).

usage: attacks.py [--seconds N | --rounds N] [--only NAME]... [--list]

With `--rounds` each attack runs while the bystander does N of everything, and no time is measured: what is expected does not depend on how busy
the machine is. `make test` does so with one attack of each kind (KINDS).

Host b has a daemon of root. A bystander of user 1002 there receives `ib_write_bw` and verified `rping` from host a, and does control calls
in a loop; where BURST_UMDK names UMDK's sources, it also receives `urma_perftest`. Each attack runs for N seconds (60): as programs of user
1001 on host b, or on host a (`urma-guesses`), or as packets that a forger on host a puts on the wire, or by sockets to the control port of a
`burst proxy` on host b (`proxy-front`). The attack's programs have nice 10, so that most of the two figures' change is the daemon's doing and not the processors'. The
attack `huge` needs free huge pages (vm.nr_hugepages); without them it is skipped, with a line that says so.

Before each attack the bystander runs alone. Expected of every attack: the daemon lives; no program of the bystander fails; its bandwidth is
at least 0.8 and the 99th percentile of its rounds of control calls at most three times the value alone; at the end the daemon's memory is back within a
tenth and its descriptors are back. A daemon has some 4 MiB, of which a tenth is less than an allocator keeps; so where memory is not back the attack is
repeated, and must leave no more than the first one did.

Where processors are few, an attack takes some of the bystander's by the kernel's scheduler, whatever the daemon does. So after an attack
that misses a bound of bandwidth or calls, the bystander runs once more, beside programs that use as much processor time as the attack's did
and nothing of Burst's. The figures must then hold against that run, and the output says so (CONTROL RUN).
"""

import argparse
import contextlib
import ipaddress
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "scripts"), str(HERE.parent)]

import test_hostile_wire as wire  # noqa: E402
from lab import Fabric, LabError, await_true, frames, history, roce  # noqa: E402
from lab.fabric import Program  # noqa: E402
from lab.namespaces import inside  # noqa: E402
from lab.perftest import run_pair  # noqa: E402
from lab.proxy import CONTROL, Proxies  # noqa: E402
from lab.urma import Umdk, await_listener  # noqa: E402
from lab.users import ALICE, BOB, Users, as_user, public_copy  # noqa: E402
from test_cm import await_cm_listener  # noqa: E402

#: Attacks of programs: the kinds of crates/bytes/control/examples/attack, and how many at once.
PROGRAMS = {
    "regions": 1, "lingering": 2, "xrc-holders": 1, "o-path": 1, "qkey": 1, "objects": 1, "imports": 1, "connects": 2, "rubbish": 1,
    "idle": 1, "unread": 2, "rings": 1, "ports": 1, "hijack": 1, "large-files": 1, "groups": 1, "urma-objects": 1, "urma-peers": 1,
    "holds": 1, "stops": 1, "sparse": 2, "starving": 2, "urma-same-bits": 1, "urma-silent": 2, "urma-guesses": 1,
}
#: The first of the further ids of user 1001 (subuid(5)), and how many of them attack at once.
SUBUID, SUBUIDS = 300_000, 16
#: Attacks by missing pages: the kinds of tests/programs/holes.c, and how many at once. An account has four threads that may wait for pages.
HOLES = {"punched": 2, "huge": 1, "never": 6, "served": 4, "faults": 4}
#: By which those with late pages choose (BURST_SEED).
SEED = int(os.environ.get("BURST_SEED", "1"))
#: An interpreter that every user may execute.
PYTHON = next((path for path in ("/usr/bin/python3",) if os.access(path, os.X_OK)), sys.executable)
#: Packets of one injection of the wire attacks.
FLOOD = 10_000
#: Requests for the listeners of `listeners`: more than a worker has connections.
REQUESTS, LISTENERS_FROM, LISTENERS = 140_000, 7400, 64
RPING_PORT, CM_PORT, BUS_PORT, QUIET_SECONDS, BURST_SECONDS, SETTLE_SECONDS = 7301, 7302, 21300, 12, 4, 60
#: Rounds of the bystander before a short attack.
WARM_ROUNDS = 10
#: The bystander's bandwidth and the 99th percentile of its rounds of calls, against those without an attack.
BANDWIDTH_MIN, CALLS_MAX = 0.8, 3
NICE = ["nice", "-n", "10"]
WRITE = ["ib_write_bw", "-d", "burst0", "-F", "--report_gbits", "-s", 65536, "-D", BURST_SECONDS]
WRITE_COUNTED, COUNTED_SECONDS = ["ib_write_bw", "-d", "burst0", "-F", "--report_gbits", "-s", 65536], 120


@dataclass
class Seen:
    """What the bystander noticed in one phase."""

    gbits: float = 0.0
    call_us: float = 0.0
    calls: int = 0
    longest_us: float = 0.0
    errors: list = field(default_factory=list)


class Bystander:
    """User 1002's programs on host b, and their partners on host a."""

    def __init__(self, fabric, users, umdk=None):
        self.fabric, self.users, self.umdk = fabric, users, umdk

    def watch(self, seconds):
        """Runs for so long and says what it noticed."""
        a, b, seen = self.fabric.a, self.fabric.b, Seen()
        served = self.users.start(BOB, "rping", "-s", "-a", "0.0.0.0", "-P", "-p", RPING_PORT)
        await_cm_listener(b, served, RPING_PORT)
        pings = a.start("rping", "-c", "-a", b.address, "-p", RPING_PORT, "-V", "-C", 1 << 30)
        calls = self.users.start(BOB, "calls", "burst0")
        bus = self.bus() if self.umdk else []
        end, bandwidths = time.monotonic() + seconds, []
        while time.monotonic() < end:
            try:
                bandwidths.append(self.bandwidth())
            except LabError as error:
                seen.errors.append(f"ib_write_bw: {error}")
                break
        programs = [("rping", pings), ("rping -s", served), ("calls", calls), *bus]
        for name, program in programs:
            if not program.running():
                seen.errors.append(f"{name} ended: {program.text()[-500:]}")
        for _, program in programs:
            program.stop()
        rows = [list(map(float, line.split())) for line in calls.text().splitlines() if line[:1].isdigit()]
        seen.calls = int(sum(row[0] for row in rows))
        seen.gbits = sum(bandwidths) / max(len(bandwidths), 1)
        seen.call_us = next((float(line.split()[1]) for line in calls.text().splitlines() if line.startswith("p99 ")), 0.0)
        seen.longest_us = max((row[2] for row in rows), default=0)
        return seen

    def served(self, rounds):
        """Runs a fixed count of everything; the sentences of what failed. Depends on no clock."""
        a, b, wrong = self.fabric.a, self.fabric.b, []
        served = self.users.start(BOB, "rping", "-s", "-a", "0.0.0.0", "-P", "-p", RPING_PORT)
        await_cm_listener(b, served, RPING_PORT)
        pings = a.start("rping", "-c", "-a", b.address, "-p", RPING_PORT, "-V", "-C", rounds)
        calls = self.users.start(BOB, "calls", "burst0", rounds)
        try:
            run_pair(_HostOf(self.users, BOB), a, [*WRITE_COUNTED, "-n", rounds], seconds=COUNTED_SECONDS)
        except LabError as error:
            wrong.append(f"ib_write_bw: {error}")
        for name, program in (("rping", pings), ("calls", calls)):
            code = program.wait(COUNTED_SECONDS)
            if code:
                wrong.append(f"{name} ended with code {code}: {program.text()[-500:]}")
        served.stop()
        return wrong

    def bus(self):
        """The two ends of a `urma_perftest` that does not end by itself."""
        tool = self.umdk.built / "urma/tools/urma_perftest/urma_perftest"
        words = [tool, "write_bw", "-y", "-s", 4096, "-d", "burst0", "-P", BUS_PORT]
        served = self.users.start(BOB, *words, env=self.umdk.env)
        await_listener(self.fabric.b, served, BUS_PORT)
        return [("urma_perftest", self.fabric.a.start(*words, "-S", self.fabric.b.address, env=self.umdk.env)), ("urma_perftest's server", served)]

    def bandwidth(self):
        as_bob = _HostOf(self.users, BOB)
        return run_pair(as_bob, self.fabric.a, WRITE, seconds=60).gbits


class _HostOf:
    """Host b, with programs of a user."""

    def __init__(self, users, uid):
        self.users, self.uid, self.address = users, uid, users.host.address

    def start(self, *words, env=None):
        return self.users.start(self.uid, *words, env=env)

    def tcp_table(self):
        return self.users.host.tcp_table()


class _NiceHost:
    """A host whose commands give way to others."""

    def __init__(self, host):
        self.host, self.address = host, host.address

    def prefix(self):
        return [*self.host.prefix(), *NICE]

    def run(self, *words, **options):
        return self.host.run(*words, **options)


class Hostile:
    """Programs of user 1001 that repeat an attack."""

    def __init__(self, users, words, count, uids=(ALICE,)):
        self.programs = [users.start(uid, *NICE, *words) for uid in uids for _ in range(count)]

    def cpu_seconds(self):
        """Processor time that each program has used, in the mean."""
        return sum(cpu_seconds(p.pid) for p in self.programs if p.running()) / len(self.programs)

    def end(self):
        """Ends the programs; the sentences of their refusals, and errors."""
        errors = [f"the attack ended: {p.text()[-500:]}" for p in self.programs if not p.running()]
        for program in self.programs:
            program.stop(signal.SIGKILL)
        return [line for p in self.programs for line in p.text().splitlines()], errors


class Silent(Hostile):
    """Programs with pages of a file system that never answers, or late. It ends after them: the daemon's threads wait for it."""

    def __init__(self, users, words, count, place):
        place.mkdir(exist_ok=True)
        host = users.host
        self.system = Program([*host.prefix(), sys.executable, HERE / "silent.py", place, SEED])
        self.system.wait_for_text("mounted", 10)
        super().__init__(users, [*words, place / "f"], count)

    def end(self):
        errors = [f"the attack ended: {p.text()[-500:]}" for p in self.programs if not p.running()]
        # They may wait for their own pages: then they end when the file system has.
        for program in self.programs:
            os.kill(program.pid, signal.SIGKILL)
        self.system.stop(signal.SIGKILL)
        return super().end()[0], errors


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


#: Uses a processor for a part of the time, which is its argument.
BURN = """
import sys, time
part, period = float(sys.argv[1]), 0.02
while True:
    begun = time.thread_time()
    while time.thread_time() - begun < part * period:
        pass
    time.sleep((1 - part) * period)
"""


class Burners:
    """Programs that use processors for a part of the time, and nothing of Burst's."""

    def __init__(self, users, part, count):
        words = [*NICE, sys.executable, "-c", BURN, min(part, 1)]
        self.programs = [users.start(ALICE, *words) for _ in range(count)]

    def end(self):
        for program in self.programs:
            program.stop(signal.SIGKILL)


class Flood:
    """Packets from host a, made once and sent again and again."""

    def __init__(self, fabric, made, after=lambda: None):
        self.host, self.made, self.ended, self.after = _NiceHost(fabric.a), made, threading.Event(), after
        self.sent, self.errors, self.programs, self.begun = 0, [], [self], time.monotonic()
        self.thread = threading.Thread(target=self.send)
        self.thread.start()

    def send(self):
        while not self.ended.is_set():
            try:
                frames.inject(self.host, self.made)
            except Exception as error:  # noqa: BLE001 - said at the end, and the attack has failed
                self.errors.append(f"the flood ended: {error}")
                return
            self.sent += len(self.made)

    def cpu_seconds(self):
        """As of a program that uses a processor all the time: the forger makes one process after the other."""
        return time.monotonic() - self.begun

    def end(self):
        self.ended.set()
        self.thread.join()
        self.after()
        return [f"{self.sent} packets"], self.errors


def forger(fabric):
    """To be called once for all packets of an attack: it runs programs on both hosts."""
    return wire.Forger(_NiceHost(fabric.a), fabric.b)


def psns(fabric):
    """SENDs to a connected queue pair whose number the forger knows, with PSNs of the whole space, from another port."""
    a, b = (wire.Peer(host, "burst0", host.gid_index(host.address)) for host in fabric.hosts)
    for end in (a, b):
        end.region("m", 65536, rights="lrwab")
    qpn = wire.connect(a, b)[1]
    b("receive", qp="q", region="m", bytes=64)
    step, by = wire.PSNS // FLOOD, forger(fabric)
    made = [by.frame(wire.SEND_ONLY, qpn, wire.ACK_REQUESTED | n * step) for n in range(FLOOD)]

    def after():
        b.nothing()
        wire.exchange(a, b)
        for end in (a, b):
            end.end()

    return Flood(fabric, made, after)


def mads(fabric):
    by = forger(fabric)
    return Flood(fabric, [by.mad("DREQ", roce.ids(n + 1, 77), "10.99.0.77") for n in range(FLOOD)])


def requests(fabric):
    """REQs from forged addresses to a listener that does not answer."""
    silent = fabric.b.start("cmtime", "-b", fabric.b.address, "-p", CM_PORT)
    await_cm_listener(fabric.b, silent, CM_PORT)
    silent.stand_still()
    by = forger(fabric)
    made = [by.request(n, CM_PORT, wire.forged_address(n)) for n in range(FLOOD)]
    return Flood(fabric, made, lambda: silent.stop(signal.SIGKILL))


class Listeners:
    """Listeners of user 1001 that accept nothing, and more requests from host a than they could answer. All have come once before the bystander
    begins. Host a answers for them, so its address is proved."""

    def __init__(self, fabric, users):
        self.hostile = Hostile(users, [users.place / "bin" / "attack", "listeners", fabric.b.socket], 1)
        self.programs = self.hostile.programs
        await_cm_listener(fabric.b, self.programs[0], LISTENERS_FROM + LISTENERS - 1)
        by = forger(fabric)
        made = [by.request(n, LISTENERS_FROM + n % LISTENERS, fabric.a.address) for n in range(REQUESTS)]
        for first in range(0, REQUESTS, FLOOD):
            by.send(made[first : first + FLOOD])
        self.flood = Flood(fabric, made[:FLOOD])

    def cpu_seconds(self):
        return self.flood.cpu_seconds()

    def end(self):
        said, errors = self.flood.end()
        more, wrong = self.hostile.end()
        return said + more, errors + wrong


def unknown(fabric):
    """Requests to queue pairs that do not exist."""
    by = forger(fabric)
    return Flood(fabric, [by.frame(wire.SEND_ONLY, 0x5000 + n, wire.ACK_REQUESTED | 1) for n in range(FLOOD)])


#: Sends datagrams, each a line of hexadecimal digits, from argv[2] to UDP port argv[3] of argv[1], again and again.
DATAGRAMS = """
import socket, sys
made = [bytes.fromhex(line) for line in sys.stdin]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[2], 49152))
sent = 0
while True:
    for datagram in made:
        try:
            s.sendto(datagram, (sys.argv[1], int(sys.argv[3])))
            sent += 1
        except OSError:
            pass
"""


class Datagrams:
    """Datagrams in the name of host a, by a UDP socket of user 1001 there: the program has no privilege."""

    def __init__(self, fabric, made, port):
        lines = "\n".join(datagram.hex() for datagram in made)
        user = ["setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--clear-groups", *NICE]
        words = [*fabric.a.prefix(), *user, PYTHON, "-c", DATAGRAMS, fabric.b.address, fabric.a.address, str(port)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, text=True, start_new_session=True)
        self.process.stdin.write(lines)
        self.process.stdin.close()
        self.programs = [self.process]

    def cpu_seconds(self):
        return cpu_seconds(self.process.pid) if self.process.poll() is None else 0

    def end(self):
        errors = [] if self.process.poll() is None else [f"the forger ended with code {self.process.returncode}"]
        self.process.kill()
        self.process.wait()
        return [], errors


def management(fabric):
    """Management datagrams."""
    by = forger(fabric)
    made = [by.mad(name, roce.ids(n + 1, 77)) for n in range(FLOOD // 2) for name in ("DREQ", "REP")]
    # From the BTH on: the kernel writes the headers before. It chooses the same IP header fields that the ICRC covers.
    return Datagrams(fabric, [frame[42:] for frame in made], 4791)


def bus_write(source, dest, token_id, address):
    """A WRITE of eight bytes by mode UM, without channel and without token: `crates/bytes/ubwire`, `Nth`, `Btah`, `Maetah`."""
    cna = lambda ip: ipaddress.ip_address(ip).packed[-3:]  # noqa: E731
    payload = b"\x07" * 8
    congestion_at = 7
    network = b"\0" + cna(source) + cna(dest) + bytes(2) + bytes([0, 1, 0])
    # Environment 1, queue 5, not ordered and unreliable; rc_type 0.
    base = bytes([0x03, 1 << 4, 0, 1, 0, 3, 0, 0]) + (5).to_bytes(3, "big") + bytes(5)
    memory = address.to_bytes(8, "big") + token_id.to_bytes(4, "big") + len(payload).to_bytes(4, "big")
    packet = network + base + memory + payload
    covered = packet[:congestion_at] + b"\xff\xff" + packet[congestion_at + 2 :]
    return packet + zlib.crc32(covered).to_bytes(4, "little")


class BusDatagrams(Datagrams):
    """Writes without token by mode UM to a segment of user 1002 without token, whose numbers the forger knows."""

    def __init__(self, fabric, users):
        self.fabric = fabric
        self.victim = users.start(BOB, users.place / "bin" / "attack", "urma-open-segment", fabric.b.socket)
        self.victim.wait_for_text("\nsegment", 60)
        token_id, address = map(int, re.search(r"segment (\d+) (\d+)", self.victim.text()).groups())
        super().__init__(fabric, [bus_write(fabric.a.address, fabric.b.address, token_id, address)], 4792)

    def end(self):
        said, errors = super().end()
        counters = json.loads(self.fabric.b.burst("stats", "--json")[1])["counters"]
        refused = sum(row["value"] for row in counters if row["name"] == "ub_no_channel")
        if not refused:
            errors.append("no forged write has reached the check of segments")
        if not self.victim.running():
            errors.append(f"the segment was written: {self.victim.text()[-200:]}")
        self.victim.stop()
        return [*said, f"{refused} packets refused"], errors


class ProxyFront:
    """Sockets of one host to the control port of a proxy, as many as can be, with a byte each now and then. Proxies run on both hosts."""

    def __init__(self, fabric):
        self.proxies = Proxies(fabric)
        self.proxies.__enter__()
        self.fabric, self.opened, self.errors = fabric, [], []
        self.ended, self.begun, self.count = threading.Event(), time.monotonic(), 0
        self.programs = [self]
        self.thread = threading.Thread(target=self.attack)
        self.thread.start()

    def attack(self):
        with inside(self.fabric.a):
            while not self.ended.wait(0.02):
                with contextlib.suppress(OSError):
                    one = socket.create_connection((self.fabric.b.address, CONTROL), timeout=5)
                    one.setblocking(False)
                    self.opened.append(one)
                    self.count += 1
                self.opened = [one for one in self.opened if self.says(one)]

    @staticmethod
    def says(one):
        """Sends a byte; whether the proxy has not closed the socket."""
        with contextlib.suppress(BlockingIOError):
            try:
                one.send(b"\x16")
                if one.recv(1) == b"":
                    one.close()
                    return False
            except ConnectionError:
                one.close()
                return False
        return True

    def cpu_seconds(self):
        return time.monotonic() - self.begun

    def end(self):
        """Meanwhile a proxy that is started again must have got in."""
        self.proxies.running["a"].stop()
        self.proxies.start(self.fabric.a)
        try:
            self.proxies.await_links()
        except LabError as error:
            self.errors.append(f"a restarted proxy does not return: {error}")
        held = len(self.opened)
        if held > 16:
            self.errors.append(f"the proxy holds {held} channels of one host")
        self.ended.set()
        self.thread.join()
        for one in self.opened:
            one.close()
        self.proxies.__exit__()
        return [f"{self.count} channels opened, {held} held at the end: no packets"], self.errors


WIRE = {"psns": psns, "mads": mads, "requests": requests, "unknown": unknown, "qp1-socket": management, "proxy-front": ProxyFront}
#: The same beside a program of user 1001: a victim, or one that the packets are for.
WIRE_BESIDE = {"um-socket": BusDatagrams, "listeners": Listeners}
#: Attacks that want other daemons than the usual ones: how the hosts are made.
OTHER_HOSTS = {"packet-groups": {"ports": ("packet:dev=eth0", "packet:dev=eth0")}}
#: Every attack, by the kind of thing that it takes from others or breaks. The first of each kind is the one that `make test` runs in short
#: (tests/test_attacks.py): the kind's simplest, which needs no second program, no huge pages and no time-out of a peer. A new attack is written
#: behind it, a new kind beside the others; there are at most SHORT_MAX kinds.
KINDS = {
    "memory": ["sparse", "large-files", "punched", "huge", "holds"],
    "pages": ["served", "never", "faults"],
    "objects": ["objects", "regions", "imports", "xrc-holders", "subuids", "stops"],
    "descriptors": ["rings", "lingering", "starving"],
    "connections": ["connects", "rubbish", "idle", "unread", "listeners"],
    "names": ["ports", "hijack", "groups", "packet-groups", "o-path", "qkey"],
    "bus": ["urma-objects", "urma-peers", "urma-same-bits", "urma-silent", "urma-guesses"],
    "wire": ["unknown", "psns", "mads", "requests", "qp1-socket", "um-socket"],
    "proxy": ["proxy-front"],
}
SHORT_MAX = 9
ATTACKS = [name for names in KINDS.values() for name in names]
SHORT = [names[0] for names in KINDS.values()]
assert len(SHORT) <= SHORT_MAX and sorted(ATTACKS) == sorted([*PROGRAMS, *HOLES, *WIRE, *WIRE_BESIDE, "subuids", "packet-groups"])


class Hunt:
    """The fabric, and the figures without attack."""

    def __init__(self, fabric, place, seconds, umdk=None):
        self.fabric, self.users, self.seconds = fabric, Users(fabric.b, place), seconds
        self.bystander = Bystander(fabric, self.users, umdk)
        # Its group and others have no right to it.
        self.file = place / "private"
        self.file.write_text("")
        os.chmod(self.file, 0o600)
        self.alone = None

    def quiet(self):
        """Measures the bystander alone."""
        self.alone = self.bystander.watch(QUIET_SECONDS)
        show("alone", self.alone)
        if self.alone.errors:
            raise SystemExit(f"the bystander fails without an attack: {self.alone.errors}")

    def start(self, name):
        if name in WIRE:
            return WIRE[name](self.fabric)
        if name in WIRE_BESIDE:
            return WIRE_BESIDE[name](self.fabric, self.users)
        place, kind = self.users.place, {"subuids": "objects", "packet-groups": "groups"}.get(name, name)
        if name in HOLES:
            words = [place / "bin" / "holes", name, "burst0"]
            if name in ("never", "served"):
                return Silent(self.users, words, HOLES[name], place / "silent")
            # Only with this capability may a program catch faults of the kernel, by which the daemon waits.
            uids = (as_user(ALICE, "sys_ptrace"),) if name == "faults" else (ALICE,)
            return Hostile(self.users, [*words, "-", SEED] if name == "faults" else words, HOLES[name], uids)
        a, b = self.fabric.hosts
        at, victim = (a, b) if name == "urma-guesses" else (b, a)
        users = Users(a, place) if at is a else self.users
        words = [place / "bin" / "attack", kind, at.socket, self.file, victim.address]
        return Hostile(users, words, PROGRAMS[kind], range(SUBUID, SUBUID + SUBUIDS) if name == "subuids" else (ALICE,))

    def short(self, name, rounds):
        """Runs an attack while the bystander does a fixed count of everything; the sentences of what was not as expected."""
        daemon = self.fabric.b.daemon
        # What the daemon keeps after its first program is no trace of the attack.
        wrong = self.bystander.served(WARM_ROUNDS)
        memory, fds = daemon.rss_kib(files=False), descriptors(daemon)
        hostile = self.start(name)
        wrong += self.bystander.served(rounds)
        _, errors = hostile.end()
        wrong += errors
        if not daemon.running() or "panicked" in daemon.text():
            return [*wrong, f"the daemon died: {daemon.text()[-1000:]}"]
        # Of a small daemon a tenth is a few pages.
        back = lambda: daemon.rss_kib(files=False) <= 1.1 * memory + 4096 and descriptors(daemon) <= fds  # noqa: E731
        if not await_true(back, SETTLE_SECONDS):
            wrong.append(f"memory {memory} -> {daemon.rss_kib(files=False)} KiB, descriptors {fds} -> {descriptors(daemon)}")
        return wrong

    def measured(self, name):
        """Runs the bystander alone, then an attack; the sentences of what was not as expected."""
        self.quiet()
        return self.attack(name)

    def attack(self, name):
        """Runs an attack; the sentences of what was not as expected."""
        daemon = self.fabric.b.daemon
        memory, fds = daemon.rss_kib(files=False), descriptors(daemon)
        hostile, begun = self.start(name), time.monotonic()
        seen = self.bystander.watch(self.seconds)
        part, count = hostile.cpu_seconds() / (time.monotonic() - begun), len(hostile.programs)
        said, errors = hostile.end()
        wrong = [*seen.errors, *errors]
        if not daemon.running():
            return [*wrong, f"the daemon died: {daemon.text()[-1000:]}"]
        show(name, seen, self.alone)
        is_back, figures = self.await_back(memory, fds)
        print(f"{'':22} {figures}")
        if not is_back and not self.is_kept(name, fds):
            wrong.append(f"not back within a tenth after {SETTLE_SECONDS} s, and more after a second attack: {figures}")
        for line in dict.fromkeys(line for line in said if line.startswith(("refused", "idle")) or "packets" in line):
            print(f"{'':22} {line[:160]}")
        if missed(seen, self.alone):
            wrong += self.control_run(seen, part, count)
        return wrong

    def await_back(self, memory, fds):
        """Waits until memory and descriptors are back within a tenth; whether they are, and the figures."""
        daemon = self.fabric.b.daemon
        is_back = await_true(lambda: daemon.rss_kib(files=False) <= 1.1 * memory and descriptors(daemon) <= fds, SETTLE_SECONDS)
        return is_back, f"memory {memory} -> {daemon.rss_kib(files=False)} KiB, descriptors {fds} -> {descriptors(daemon)}"

    def is_kept(self, name, fds):
        """Whether what has not come back is what an allocator keeps: a second attack, as long as the first, leaves no more."""
        memory = self.fabric.b.daemon.rss_kib(files=False)
        hostile = self.start(name)
        self.bystander.watch(self.seconds)
        hostile.end()
        is_kept, figures = self.await_back(memory, fds)
        print(f"{'':22} after a second attack: {figures}")
        return is_kept

    def control_run(self, seen, part, count):
        """The bounds that an attack misses also against a run beside programs that use as much processor time as the attack's."""
        burners = Burners(self.users, part, count)
        control = self.bystander.watch(2 * QUIET_SECONDS)
        burners.end()
        print(f"{'CONTROL RUN':22} {count} programs that use {part:.2f} processors each, and nothing of Burst's:")
        show("", control, self.alone)
        wrong = missed(seen, control)
        if not wrong:
            print(f"{'':22} the attack meets the bounds against the control run, and misses them against the bystander alone")
        return [*control.errors, *wrong]


def missed(seen, without):
    """The bounds that the bystander's figures miss."""
    bandwidth, calls = seen.gbits / without.gbits, seen.call_us / without.call_us
    wrong = [f"bandwidth {bandwidth:.2f} of {without.gbits:.2f} Gbit/s"] if bandwidth < BANDWIDTH_MIN else []
    return wrong + ([f"99 of 100 rounds of calls take up to {calls:.1f} times {without.call_us:.0f} us"] if calls > CALLS_MAX else [])


def show(name, seen, without=None):
    """Prints figures, and their ratios to those without an attack."""
    of = lambda value, other: f" ({value / other:.2f})"  # noqa: E731
    bandwidth, calls = (of(seen.gbits, without.gbits), of(seen.call_us, without.call_us)) if without else ("", "")
    print(
        f"{name:22} {seen.gbits:6.2f} Gbit/s{bandwidth}, p99 of {seen.calls} rounds of calls {seen.call_us:6.0f} us{calls}, longest {seen.longest_us / 1e3:.1f} ms"
    )


def huge_pages():
    """How many huge pages are free."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("HugePages_Free:")), 0)


def descriptors(daemon):
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def fabric_for(name, place):
    """The hosts of an attack: on both, user 1001 has further ids."""
    subuids = place / "subuid"
    subuids.write_text(f"{ALICE}:{SUBUID}:65536\n")
    return Fabric(extra=("--subuid-file", subuids, "--socket-mode", "0666"), **OTHER_HOSTS.get(name, {}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--seconds", type=float, default=60)
    how.add_argument("--rounds", type=int, help="pings, writes and rounds of control calls of the bystander, in place of seconds")
    parser.add_argument("--only", action="append", choices=ATTACKS)
    parser.add_argument("--list", action="store_true", help="print the names of the attacks")
    options = parser.parse_args()
    if options.list:
        print("\n".join(ATTACKS))
        return
    # A program that has changed its user does not end with this one: it is ended by `Users.end`, on SIGTERM, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    autogroups = history.autogroups()
    if autogroups:
        history.AUTOGROUPS.write_text("0")
    failed, place = [], Path(f"/tmp/burst-hunt-{os.getpid()}")
    try:
        public_copy(place, "programs/calls", "programs/holes", "examples/attack")
        (place / "umdk").mkdir()
        umdk = Umdk(os.environ["BURST_UMDK"], place / "umdk", daemons=True) if "BURST_UMDK" in os.environ else None
        if not umdk:
            print("the bystander has no urma_perftest: BURST_UMDK names no sources of UMDK (docs/urma.md)")
        for name in options.only or ATTACKS:
            if name == "huge" and not huge_pages():
                print(f"{name:22} SKIPPED: no huge page is free: sysctl vm.nr_hugepages=16")
                continue
            # A daemon for each: what one attack leaves behind must not hide in the next one's figures.
            with fabric_for(name, place) as fabric:
                hunt = Hunt(fabric, place, options.seconds, umdk)
                try:
                    wrong = hunt.measured(name) if options.rounds is None else hunt.short(name, options.rounds)
                finally:
                    hunt.users.end()
            if options.rounds is not None:
                print(f"{name:22} {'FAIL' if wrong else 'ok'}")
            for sentence in wrong:
                print(f"{'':22} FAIL: {sentence}")
            failed += [name] if wrong else []
            sys.stdout.flush()
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if autogroups:
            history.AUTOGROUPS.write_text(str(autogroups))
    print(f"FAIL: {' '.join(failed)}" if failed else "PASS")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
