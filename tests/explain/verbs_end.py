"""One end of a connection (tests/programs/peer.c), driven a line at a time, and the sentence that `burst why` must give.

    a, b = pair(fabric)                          # connected queue pairs, each with a region of 4096 bytes
    a("post", qp="q", op="write", region="m", bytes=64, remote=b.addr, rkey=b.rkey)
    a.failed()
    explained(fabric.b, a.peer, cause=["no region of this host has this key"], cure=["ibv_reg_mr"])
"""

import json
import re
import subprocess
import time

from lab import LabError, build_directory, wait_until

NUMBER = re.compile(r"-?\d+|0x[0-9a-f]+")
REGION_BYTES = 4096
#: A queue pair that gives up within a second: 4.2 ms, three times.
HASTY = {"timeout": 10, "retries": 2}
ANSWER_SECONDS = 60


class End:
    """A program that uses verbs; calling it sends a command with its words and returns the answer's."""

    def __init__(self, host, gid=None, env=None):
        self.host = host
        words = [*host.prefix(), build_directory() / "programs" / "peer"]
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, bufsize=1, env=host.environment(env), start_new_session=True,
        )
        host.processes.append(self.process)
        index = host.gid_index(gid or host.address)
        self.gid = self("open", device="burst0", gid=index)["gid"]

    def ask(self, command, **words):
        """The answer as text."""
        line = " ".join([command, *(f"{key}={value}" for key, value in words.items())])
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def __call__(self, command, **words):
        answer = self.ask(command, **words)
        if not answer or answer.startswith("error"):
            raise LabError(f"{command} {words}: {answer or 'the program has ended'}")
        pairs = (word.split("=", 1) for word in answer.split() if "=" in word)
        return {key: int(value, 0) if NUMBER.fullmatch(value) else value for key, value in pairs}

    def refused(self, command, **words):
        """A command that must fail."""
        answer = self.ask(command, **words)
        assert answer.startswith("error"), f"{command} {words}: {answer}"

    def make(self, rights="lrwa", grants="lrwa", size=REGION_BYTES, **words):
        """Makes a region `m` with these rights, and a queue pair `q` in INIT, which grants these."""
        self.region = self("region", name="m", bytes=size, rights=rights)
        self.addr, self.rkey = self.region["addr"], self.region["rkey"]
        self.qpn = self("queue", name="q", kind=words.pop("kind", "rc"))["qpn"]
        self("init", qp="q", rights=grants, **words)
        return self

    def connect(self, qpn, gid, mtu=1024, **words):
        """Moves `q` to RTS, towards queue pair `qpn` at `gid`."""
        self("rtr", qp="q", peer=qpn, gid=gid, mtu=mtu)
        self("rts", qp="q", **{**HASTY, **words})
        return self

    def send(self, count=64, op="send", **words):
        self("post", qp="q", op=op, region="m", bytes=count, **words)

    def failed(self):
        """The next completion, which must be a failure: its status."""
        got = self("poll", ms=20000)
        assert got["status"], got
        return got["status"]

    def done(self):
        got = self("poll", ms=20000)
        assert got["status"] == 0, got

    def kill(self):
        self.process.kill()
        self.process.wait(ANSWER_SECONDS)

    def finish(self):
        """Ends the program; returns what it wrote to standard error."""
        self.process.stdin.close()
        self.process.wait(ANSWER_SECONDS)
        return self.process.stderr.read()


def pair(fabric, a=None, b=None, mtu=1024, size=REGION_BYTES, **words):
    """Connected ends. `a`, `b`: words of `make`; others of the move to RTS."""
    ends = [End(host).make(size=size, **(how or {})) for host, how in ((fabric.a, a), (fabric.b, b))]
    for end, other in (ends, reversed(ends)):
        end.connect(other.qpn, other.gid, mtu, **words)
    return ends


def failures(host, *about):
    """What `burst why --json` says."""
    code, text = host.burst("why", *about, "--json")
    assert code == 0, text
    return json.loads(text)["failures"]


def explained(host, about, cause, cure=(), kind=None, seconds=20):
    """Waits until `burst why ABOUT` gives a sentence with these words; returns the failure."""
    seen = []

    def found():
        seen[:] = [f for f in failures(host, *about) if kind is None or f["kind"] == kind]
        return any(has_words(failure, cause, cure) for failure in seen)

    wait_until(found, seconds, lambda: f"no failure has {cause} and {list(cure)}:\n" + json.dumps(seen, indent=1))
    return next(failure for failure in seen if has_words(failure, cause, cure))


def has_words(failure, cause, cure):
    return all(word in failure["cause"] for word in cause) and all(word in failure["cure"] for word in cure)


def of(end):
    """The words by which `burst why` finds an end's queue pair."""
    return [f"qp:{end.qpn:#x}"]


def program(end):
    return [f"pid:{end.process.pid}"]


def settle(seconds=0.05):
    time.sleep(seconds)
