#!/usr/bin/env python3
"""Attacks of hostile programs and of a hostile peer, each beside a bystander, and what the bystander notices (`make hunt`).

usage: attacks.py [--seconds N] [--only NAME]... [--list]

Host b has a daemon of root. A bystander of user 1002 there receives `ib_write_bw` and verified `rping` from host a, and does control calls
in a loop. Each attack runs for N seconds (60): either as programs of user 1001 on host b, or as packets that a forger on host a puts on
the wire. The attack's programs have nice 10, so that most of the two figures' change is the daemon's doing and not the processors'.

Before the first attack the bystander runs alone, and beside a program that only uses a processor, with the same nice. Expected of every
attack: the daemon lives; no program of the bystander fails; its bandwidth is at least 0.8 and the mean time of its control calls at most
three times the value alone; at the end the daemon's memory is back within a tenth and its descriptors are back.
"""

import argparse
import itertools
import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "scripts"), str(HERE.parent)]

import test_hostile_wire as wire  # noqa: E402
from lab import Fabric, LabError, await_true, frames, history, roce  # noqa: E402
from lab.perftest import run_pair  # noqa: E402
from lab.users import ALICE, BOB, Users, public_copy  # noqa: E402
from test_cm import await_cm_listener  # noqa: E402

#: Attacks of programs: the kinds of crates/bytes/control/examples/attack.rs, and how many at once.
PROGRAMS = {
    "regions": 1, "lingering": 2, "xrc-holders": 1, "o-path": 1, "qkey": 1, "objects": 1, "imports": 1, "connects": 2, "rubbish": 1,
    "idle": 1, "unread": 2,
}
#: Packets of one injection of the wire attacks.
FLOOD = 10_000
RPING_PORT, CM_PORT, QUIET_SECONDS, BURST_SECONDS, SETTLE_SECONDS = 7301, 7302, 10, 4, 60
NICE = ["nice", "-n", "10"]
WRITE = ["ib_write_bw", "-d", "burst0", "-F", "--report_gbits", "-s", 65536, "-D", BURST_SECONDS]


@dataclass
class Seen:
    """What the bystander noticed in one phase."""

    gbits: float = 0.0
    call_us: float = 0.0
    longest_us: float = 0.0
    errors: list = field(default_factory=list)


class Bystander:
    """User 1002's programs on host b, and their partners on host a."""

    def __init__(self, fabric, users):
        self.fabric, self.users = fabric, users

    def watch(self, seconds):
        """Runs for so long and says what it noticed."""
        a, b, seen = self.fabric.a, self.fabric.b, Seen()
        served = self.users.start(BOB, "rping", "-s", "-a", "0.0.0.0", "-P", "-p", RPING_PORT)
        await_cm_listener(b, served, RPING_PORT)
        pings = a.start("rping", "-c", "-a", b.address, "-p", RPING_PORT, "-V", "-C", 1 << 30)
        calls = self.users.start(BOB, "calls", "burst0")
        end, bandwidths = time.monotonic() + seconds, []
        while time.monotonic() < end:
            try:
                bandwidths.append(self.bandwidth())
            except LabError as error:
                seen.errors.append(f"ib_write_bw: {error}")
                break
        for name, program in (("rping", pings), ("rping -s", served), ("calls", calls)):
            if not program.running():
                seen.errors.append(f"{name} ended: {program.text()[-500:]}")
        for program in (pings, served, calls):
            program.stop()
        rows = [list(map(float, line.split())) for line in calls.text().splitlines() if line[:1].isdigit()]
        rounds = sum(row[0] for row in rows)
        seen.gbits = sum(bandwidths) / max(len(bandwidths), 1)
        seen.call_us = sum(row[0] * row[1] for row in rows) / max(rounds, 1)
        seen.longest_us = max((row[2] for row in rows), default=0)
        return seen

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

    def __init__(self, users, kind, count, file):
        words = [*NICE, users.place / "bin" / "attack", kind, users.host.socket, file]
        self.kind, self.programs = kind, [users.start(ALICE, *words) for _ in range(count)]

    def end(self):
        """Ends the programs; the sentences of their refusals, and errors."""
        errors = [f"the attack ended: {p.text()[-500:]}" for p in self.programs if not p.running()]
        for program in self.programs:
            program.stop(signal.SIGKILL)
        return [line for p in self.programs for line in p.text().splitlines()], errors


class Burner:
    """A program that uses a processor and nothing of Burst's."""

    def __init__(self, users):
        self.program = users.start(ALICE, *NICE, "sh", "-c", "while :; do :; done")

    def end(self):
        self.program.stop(signal.SIGKILL)
        return [], []


class Flood:
    """Packets from host a, made once and sent again and again."""

    def __init__(self, fabric, made, after=lambda: None):
        self.host, self.made, self.ended, self.after = _NiceHost(fabric.a), made, threading.Event(), after
        self.sent, self.errors = 0, []
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

    def end(self):
        self.ended.set()
        self.thread.join()
        self.after()
        return [f"{self.sent} packets"], self.errors


def forger(fabric):
    return wire.Forger(_NiceHost(fabric.a), fabric.b)


def psns(fabric):
    """SENDs to a connected queue pair whose number the forger knows, with PSNs of the whole space, from another port."""
    a, b = (wire.Peer(host, "burst0", host.gid_index(host.address)) for host in fabric.hosts)
    for end in (a, b):
        end.region("m", 65536, rights="lrwab")
    qpn = wire.connect(a, b)[1]
    b("receive", qp="q", region="m", bytes=64)
    step = wire.PSNS // FLOOD
    made = [forger(fabric).frame(wire.SEND_ONLY, qpn, wire.ACK_REQUESTED | n * step) for n in range(FLOOD)]

    def after():
        b.nothing()
        wire.exchange(a, b)
        for end in (a, b):
            end.end()

    return Flood(fabric, made, after)


def mads(fabric):
    return Flood(fabric, [forger(fabric).mad("DREQ", roce.ids(n + 1, 77), "10.99.0.77") for n in range(FLOOD)])


def requests(fabric):
    """REQs from forged addresses to a listener that does not answer."""
    silent = fabric.b.start("cmtime", "-b", fabric.b.address, "-p", CM_PORT)
    await_cm_listener(fabric.b, silent, CM_PORT)
    silent.stand_still()
    made = [forger(fabric).request(n, CM_PORT, wire.forged_address(n)) for n in range(FLOOD)]
    return Flood(fabric, made, lambda: silent.stop(signal.SIGKILL))


def unknown(fabric):
    """Requests to queue pairs that do not exist."""
    return Flood(fabric, [forger(fabric).frame(wire.SEND_ONLY, 0x5000 + n, wire.ACK_REQUESTED | 1) for n in range(FLOOD)])


WIRE = {"psns": psns, "mads": mads, "requests": requests, "unknown": unknown}


class Hunt:
    """The fabric, and the figures without attack."""

    def __init__(self, fabric, place, seconds):
        self.fabric, self.users, self.seconds = fabric, Users(fabric.b, place), seconds
        self.bystander = Bystander(fabric, self.users)
        # Its group and others have no right to it.
        self.file = place / "private"
        self.file.write_text("")
        os.chmod(self.file, 0o600)
        self.alone = self.burdened = None

    def quiet(self):
        """Measures the bystander alone and beside a burner, in turns."""
        rounds = []
        for _ in range(2):
            rounds.append(self.bystander.watch(QUIET_SECONDS))
            burner = Burner(self.users)
            rounds.append(self.bystander.watch(QUIET_SECONDS))
            burner.end()
        self.alone, self.burdened = (mean(rounds[kind::2]) for kind in (0, 1))
        for name, seen in (("alone", self.alone), ("beside a busy program", self.burdened)):
            print(f"{name:22} {seen.gbits:6.2f} Gbit/s, round of calls {seen.call_us:6.0f} us, longest {seen.longest_us / 1e3:.1f} ms")
            if seen.errors:
                raise SystemExit(f"the bystander fails without an attack: {seen.errors}")

    def start(self, name):
        if name in WIRE:
            return WIRE[name](self.fabric)
        return Hostile(self.users, name, PROGRAMS[name], self.file)

    def attack(self, name):
        """Runs an attack; the sentences of what was not as expected."""
        daemon = self.fabric.b.daemon
        memory, fds = daemon.rss_kib(files=False), descriptors(daemon)
        hostile = self.start(name)
        seen = self.bystander.watch(self.seconds)
        said, errors = hostile.end()
        wrong = [*seen.errors, *errors]
        if not daemon.running():
            return [*wrong, f"the daemon died: {daemon.text()[-1000:]}"]
        bandwidth, calls = seen.gbits / self.alone.gbits, seen.call_us / self.alone.call_us
        if bandwidth < 0.8:
            wrong.append(f"bandwidth {bandwidth:.2f} of the value alone, {seen.gbits / self.burdened.gbits:.2f} of the one beside a busy program")
        if calls > 3:
            wrong.append(f"calls take {calls:.1f} times as long as alone")
        back = lambda: daemon.rss_kib(files=False) <= 1.1 * memory and descriptors(daemon) <= fds  # noqa: E731
        if not await_true(back, SETTLE_SECONDS):
            wrong.append(f"memory {memory} -> {daemon.rss_kib(files=False)} KiB, descriptors {fds} -> {descriptors(daemon)}")
        print(
            f"{name:22} {seen.gbits:6.2f} Gbit/s ({bandwidth:.2f}), round of calls {seen.call_us:6.0f} us ({calls:.2f}), "
            f"longest {seen.longest_us / 1e3:.1f} ms, memory {memory} -> {daemon.rss_kib(files=False)} KiB"
        )
        for line in dict.fromkeys(line for line in said if line.startswith(("refused", "idle")) or "packets" in line):
            print(f"{'':22} {line[:160]}")
        return wrong


def mean(rounds):
    share = lambda name: sum(getattr(seen, name) for seen in rounds) / len(rounds)  # noqa: E731
    errors = [error for seen in rounds for error in seen.errors]
    return Seen(share("gbits"), share("call_us"), max(seen.longest_us for seen in rounds), errors)


def descriptors(daemon):
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", action="append", choices=[*PROGRAMS, *WIRE])
    parser.add_argument("--list", action="store_true", help="print the names of the attacks")
    options = parser.parse_args()
    if options.list:
        print("\n".join(itertools.chain(PROGRAMS, WIRE)))
        return
    # A program that has changed its user does not end with this one: it is ended by `Users.end`, on SIGTERM, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    autogroups = history.autogroups()
    if autogroups:
        history.AUTOGROUPS.write_text("0")
    failed, place = [], Path(f"/tmp/burst-hunt-{os.getpid()}")
    try:
        public_copy(place, "programs/calls", "examples/attack")
        for name in options.only or [*PROGRAMS, *WIRE]:
            # A daemon for each: what one attack leaves behind must not hide in the next one's figures.
            with Fabric() as fabric:
                hunt = Hunt(fabric, place, options.seconds)
                try:
                    hunt.quiet()
                    wrong = hunt.attack(name)
                finally:
                    hunt.users.end()
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
