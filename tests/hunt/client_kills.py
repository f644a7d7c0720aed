#!/usr/bin/env python3
"""Kills programs at random points under load; a bystander and the daemon must not notice (`make hunt`).

usage: client_kills.py [--count N] [--seed N]

Host b has a daemon of root. Eight programs of user 1001 at a time run there: control calls in a loop, a verified rping and cmtime with
servers on host a, and a server that waits. Each gets SIGKILL after a random time of at most 0.3 s. A bystander of user 1002 does what
tests/hunt/attacks.py says. At the end nothing of user 1001 is left, the daemon has as many descriptors as before, and its memory is
within a tenth of that after the first tenth of the kills.
"""

import argparse
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time

from attacks import BOB, Bystander, descriptors
from lab import Fabric, await_true
from lab.users import ALICE, Users, public_copy
from test_cm import await_cm_listener

AT_ONCE, LONGEST_S, PING_PORT, TIME_PORT = 8, 0.3, 7401, 7402
SETTLE_SECONDS = 60


def kill_inside(count, seed, address, place):
    """Runs as user 1001 in host b's namespace: starts programs and kills them. Prints how many of each kind were killed."""
    choose = random.Random(seed)
    kinds = {
        "calls": [f"{place}/bin/calls", "burst0"],
        "rping": ["rping", "-c", "-a", address, "-p", PING_PORT, "-V", "-C", 1 << 30],
        "cmtime": ["cmtime", "-s", address, "-p", TIME_PORT, "-c", 200],
        "server": ["rping", "-s", "-a", "0.0.0.0", "-P", "-p", 7500],
    }
    killed, running, done = dict.fromkeys(kinds, 0), [], 0
    while done < count or running:
        while done < count and len(running) < AT_ONCE:
            kind = choose.choice(list(kinds))
            words = list(map(str, kinds[kind]))
            program = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            running.append((time.monotonic() + choose.uniform(0, LONGEST_S), kind, program))
            done += 1
        running.sort(key=lambda each: each[0])
        at, kind, program = running.pop(0)
        time.sleep(max(0, at - time.monotonic()))
        # One that has ended by itself was not killed.
        killed[kind] += program.poll() is None
        program.kill()
        program.wait()
        if done % 500 == 0:
            print("started", done, flush=True)
    print(json.dumps(killed), flush=True)


class Kills:
    """Host b with its daemon, the bystander, and servers on host a."""

    def __init__(self, fabric, place):
        self.fabric, self.users = fabric, Users(fabric.b, place)
        self.bystander = Bystander(fabric, self.users)
        self.seen, self.done = [], threading.Event()
        servers = (["rping", "-s", "-a", "0.0.0.0", "-P", "-p", PING_PORT], ["cmtime", "-b", fabric.a.address, "-p", TIME_PORT])
        self.servers = [fabric.a.start(*words) for words in servers]
        for server, port in zip(self.servers, (PING_PORT, TIME_PORT)):
            await_cm_listener(fabric.a, server, port)

    def watch(self):
        while not self.done.is_set():
            self.seen.append(self.bystander.watch(20))

    def kill(self, count, seed, place):
        """Kills as many programs and returns the output."""
        words = [sys.executable, os.path.abspath(__file__), "--inside", self.fabric.a.address, "--place", place]
        killer = self.users.start(ALICE, *words, "--count", count, "--seed", seed)
        if code := killer.wait(3600):
            raise SystemExit(f"the killing program ended with {code}: {killer.text()}")
        return killer.text().splitlines()[-1]

    def left(self):
        """What user 1001 still uses, by resource."""
        code, text = self.fabric.b.burst("ls", "--users", "--json")
        assert code == 0, text
        users = [user for user in json.loads(text)["users"] if user["owner"] == f"user {ALICE}"]
        return {name: use["used"] for user in users for name, use in user["resources"].items() if use["used"]}


def open_files(daemon):
    """How many descriptors of each kind the daemon has."""
    links = [os.readlink(f"/proc/{daemon.pid}/fd/{fd}").split(":")[0] for fd in os.listdir(f"/proc/{daemon.pid}/fd")]
    return dict(collections.Counter(links))


def hunt(fabric, place, count, seed):
    """Runs it; the sentences of what was not as expected."""
    kills, daemon = Kills(fabric, place), fabric.b.daemon
    # What the first use of each kind leaves open and allocated.
    kills.bystander.watch(5)
    kills.kill(max(count // 10, 1), seed, place)
    await_true(lambda: not kills.left(), SETTLE_SECONDS)
    memory, fds = daemon.rss_kib(files=False), descriptors(daemon)
    watcher = threading.Thread(target=kills.watch)
    watcher.start()
    killed = kills.kill(count - count // 10, seed + 1, place)
    kills.done.set()
    watcher.join()
    if not daemon.running():
        return [f"the daemon died: {daemon.text()[-1000:]}"]
    wrong = [error for seen in kills.seen for error in seen.errors]
    back = lambda: not kills.left() and descriptors(daemon) <= fds and daemon.rss_kib(files=False) <= 1.1 * memory  # noqa: E731
    await_true(back, SETTLE_SECONDS)
    if left := kills.left():
        wrong.append(f"user {ALICE} still uses {left}")
    if descriptors(daemon) > fds:
        wrong.append(f"descriptors {fds} -> {descriptors(daemon)}: {open_files(daemon)}")
    after = daemon.rss_kib(files=False)
    if after > 1.1 * memory:
        wrong.append(f"memory {memory} -> {after} KiB")
    gbits = [f"{seen.gbits:.1f}" for seen in kills.seen]
    print(f"{count} programs, killed while they ran: {killed}; memory {memory} -> {after} KiB, descriptors {fds} -> {descriptors(daemon)}")
    print(f"bystander, user {BOB}: Gbit/s in phases of 20 s: {' '.join(gbits)}")
    kills.users.end()
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--place", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        kill_inside(options.count, options.seed, options.inside, options.place)
        return
    place = public_copy(f"/tmp/burst-kills-{os.getpid()}", "programs/calls")
    try:
        with Fabric() as fabric:
            wrong = hunt(fabric, place, options.count, options.seed)
    finally:
        shutil.rmtree(place)
    print("\n".join(f"FAIL: {sentence}" for sentence in wrong) or "PASS")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
