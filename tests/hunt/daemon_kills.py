#!/usr/bin/env python3
"""Kills a guarded daemon again and again, at random points under load (`make hunt`).

usage: daemon_kills.py [--count N] [--seed N]

Host b has a guarded daemon. In each round, a program on host a sends to one on b, and programs on b use the daemon (`falls`: one that
polls, one that waits, one with an extended CQ). After a random time the daemon of b is killed by SIGKILL. Expected of every round: the programs on b
get every posted request flushed once, open the device again and use it; the peer on a is told by an error, without waiting for its retries;
a bystander (a verified transfer within host a) notices nothing. At the end: descriptors and memory of the supervisor and of a's daemon are
back, and no kill has a second cause than SIGKILL. It prints how long the peer took to end, and how long the successor took to serve; of the
longest, what else happened meanwhile: a peer that took long without a time-out waited for the successor, or for a processor.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "scripts"), str(HERE.parent)]

from lab import Fabric, LabError, await_true, build_directory, wait_until  # noqa: E402
from lab.perftest import await_listener  # noqa: E402
from test_guarded import await_successor, child_of  # noqa: E402

#: Their clients always have requests in flight, which the successor answers. A client that waits for a message and has none in flight,
#: as that of ib_send_lat half of the time, cannot be told: IBA has no packet from a responder that no request has asked for.
TOOLS = ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_read_lat"]
#: Packets of the client before the kill: more than a few, so that they are not those of an earlier program.
PACKETS_MIN = 100
LOAD = ["-d", "burst0", "-F", "-s", 4096, "-D", 60]
#: Time-outs of the queue pairs: 67 ms and 4.3 s. Peers must be told at once whatever theirs is, also if all their requests had arrived.
TIMEOUTS = [14, 20]
#: The longest time until the peer's program has ended, without its retries (seconds). The program's own end is part of it.
TOLD_SECONDS = 5
#: The supervisor pauses after more falls in a row; a daemon that ran for this long ends the row (docs/running.md).
KILLS_IN_A_ROW = 3
STEADY_SECONDS = 20


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def anonymous_kib(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def bystander(host):
    """A verified transfer within a host, without end."""
    server = host.start("rping", "-s", "-a", host.address, "-p", 7400)
    time.sleep(0.5)
    return server, host.start("rping", "-c", "-a", host.address, "-p", 7400, "-V", "-C", 1 << 30)


class Round:
    """One kill, and what must follow."""

    def __init__(self, fabric, number, choice):
        self.a, self.b, self.number, self.choice = fabric.a, fabric.b, number, choice
        self.wrong = []
        self.detail = ""

    def run(self):
        port, tool = 18515 + self.number % 1000, self.choice.choice(TOOLS)
        load = [*LOAD, "-u", self.choice.choice(TIMEOUTS)]
        server = self.b.start(tool, *load, "-p", port)
        await_listener(self.b, server, port)
        moved = lambda: self.b.stats()["rx_packets"]  # noqa: E731
        before = moved()
        client = self.a.start(tool, *load, "-p", port, self.b.address)
        # Before other programs on b have traffic: the packets are the client's, so its connection is in use.
        wait_until(lambda: moved() > before + PACKETS_MIN, 20, client.text, client)
        falls = [self.b.start(build_directory() / "programs" / "falls", "burst0", mode) for mode in ("poll", "event", "extended")]
        for program in falls:
            program.wait_for_text("running", 20)
        time.sleep(self.choice.uniform(0, 0.5))
        timeouts = self.a.stats()["ack_timeout"]
        told, served = self.kill(client)
        timeouts = self.a.stats()["ack_timeout"] - timeouts
        self.detail = f"{tool} -u {load[-1]}, successor served after {served * 1e3:.0f} ms, {timeouts} acknowledgement time-outs"
        self.judge(client, falls, server, told, tool)
        for program in (*falls, server, client):
            program.stop(signal.SIGKILL)
        return told, served

    def kill(self, client):
        """Kills the daemon of b. Returns after how many seconds the client has ended and the successor has answered: each is measured
        by itself, so that neither waits for the other. Infinite: not at all."""
        told = []
        pid, began = child_of(self.b.daemon), time.monotonic()

        def await_client():
            ended = await_true(lambda: not client.running(), 30, 0.001)
            told.append(time.monotonic() - began if ended else float("inf"))

        waiting = threading.Thread(target=await_client)
        waiting.start()
        os.kill(pid, signal.SIGKILL)
        await_successor(self.b, pid, 30)
        served = time.monotonic() - began
        waiting.join()
        return told[0], served

    def judge(self, client, falls, server, told, tool):
        if told > TOLD_SECONDS or client.process.returncode == 0:
            self.wrong.append(f"{tool}: the peer was told after {told} s: {client.text()[-500:]}")
        for program in falls:
            try:
                if program.wait(60) != 0 or "again" not in program.text():
                    self.wrong.append(f"{program.words[-1]}: {program.text()[-500:]}")
            except LabError as error:
                self.wrong.append(str(error)[-500:])
        if not await_true(lambda: not server.running(), 30):
            self.wrong.append(f"{tool}: the program of the fallen daemon does not end: {server.text()[-500:]}")


def hunt(fabric, state, count, seed):
    """The kills; returns the sentences of what was not as expected."""
    choice, wrong, told, served, details = random.Random(seed), [], [], [], []
    a, b = fabric.a, fabric.b
    b.daemon.stop()
    b.start_daemon(extra=["--guarded", "--state-dir", state, "--log-level", "warn"])
    beside = bystander(a)
    before = None
    for number in range(count):
        if number and number % KILLS_IN_A_ROW == 0:
            time.sleep(STEADY_SECONDS)
        this = Round(fabric, number, choice)
        times = this.run()
        told.append(times[0])
        served.append(times[1])
        details.append(this.detail)
        wrong += [f"round {number}: {sentence}" for sentence in this.wrong]
        wrong += [f"round {number}: the bystander ended: {p.text()[-500:]}" for p in beside if not p.running()]
        if wrong:
            break
        if number == min(9, count - 1):
            before = figures(a, b)
    for program in beside:
        program.stop(signal.SIGKILL)
    if before and not await_true(lambda: is_back(before, figures(a, b)), 30):
        wrong.append(f"descriptors and memory (KiB) of the supervisor and of a's daemon: {before} -> {figures(a, b)}")
    crashes = json.loads(b.burst("why", "daemon", "--json")[1])
    if crashes["crashes"] != len(told) or any("SIGKILL" not in report["cause"] for report in crashes["reports"]):
        wrong.append(f"other falls than the kills: {crashes}")
    for name, times in (("peer ended after", told), ("successor served after", served)):
        print(f"{name}: median {statistics.median(times) * 1e3:.0f} ms, longest {max(times) * 1e3:.0f} ms, of {len(times)} kills")
    print(f"the peer that ended last: {details[told.index(max(told))]}")
    return wrong


def figures(a, b):
    pids = (b.daemon.pid, a.daemon.pid)
    return [(descriptors(pid), anonymous_kib(pid)) for pid in pids]


def is_back(before, now):
    return all(fds <= old_fds + 2 and kib <= 1.1 * old_kib + 1024 for (old_fds, old_kib), (fds, kib) in zip(before, now))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with Fabric() as fabric, tempfile.TemporaryDirectory() as state:
        wrong = hunt(fabric, Path(state) / "crashes", options.count, options.seed)
    for sentence in wrong:
        print(f"FAIL: {sentence}")
    print("FAIL" if wrong else "PASS")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
