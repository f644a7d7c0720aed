"""Drives tests/programs/peer.c on burstd's side or in a guest, a line at a time.

    a = Peer(rig.host, "burst0", gid_index)
    mr = a.region("m", 4096)                     # {"addr": …, "rkey": …}
    a("post", qp="q", op="write", region="m", bytes=64, remote=…, rkey=…)
    a.done()                                     # its completion, which must be a success
"""

import re
import subprocess
import time

from lab import LabError, build_directory

from .guest import Guest

PROGRAM = "peer"
NUMBER = re.compile(r"-?\d+|0x[0-9a-f]+")


class PeerError(LabError):
    """An answer that begins with "error"."""


class HostPipe:
    """Lines to and from the program on burstd's side."""

    def __init__(self, host):
        words = [*host.prefix(), build_directory() / "programs" / PROGRAM]
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            bufsize=1, env=host.environment(),
        )

    def ask(self, line):
        self.begin(line)
        return self.answer()

    def begin(self, line):
        """Sends a command whose answer is read later."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline().strip()

    def kill(self):
        self.process.kill()
        self.process.wait(60)

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process.stdout.close()


class GuestPipe:
    """Lines to and from the program in a guest."""

    def __init__(self, guest):
        guest.install(build_directory() / "programs" / PROGRAM)
        self.program = guest.start(PROGRAM, keep_stdin=True)
        self.taken = 0

    def ask(self, line):
        self.program.write(line.encode() + b"\n")
        program = self.program
        with program.news:
            program.news.wait_for(lambda: program.ended or b"\n" in program.data[self.taken:], 60)
            answer = bytes(program.data[self.taken:]).split(b"\n", 1)[0]
        self.taken += len(answer) + 1
        return answer.decode()

    def kill(self):
        self.program.stop(9)

    def end(self):
        if self.program.running():
            self.program.close_input()
            self.program.wait(60)
        self.program.connection.close()


class Peer:
    """One process that uses verbs; calling it sends a command with its words and returns the answer's."""

    def __init__(self, end, device, gid_index):
        self.pipe = GuestPipe(end) if isinstance(end, Guest) else HostPipe(end)
        try:
            self.gid = self("open", device=device, gid=gid_index)["gid"]
        except BaseException:
            self.pipe.end()
            raise

    def __call__(self, command, **words):
        line = " ".join([command, *(f"{key}={value}" for key, value in words.items())])
        answer = self.pipe.ask(line)
        if not answer or answer.startswith("error"):
            raise PeerError(f"{line}: {answer or 'the program has ended'}")
        pairs = (word.split("=", 1) for word in answer.split() if "=" in word)
        return {key: int(value, 0) if key != "hex" and NUMBER.fullmatch(value) else value for key, value in pairs}

    def region(self, name, size, **words):
        return self("region", name=name, bytes=size, **words)

    def completion(self, ms=15000):
        return self("poll", ms=ms)

    def done(self, count=1, ms=15000):
        """The next completions, all successes; the last one."""
        for _ in range(count):
            got = self.completion(ms)
            if got["status"]:
                raise PeerError(f"completion with status {got['status']}: {got}")
        return got

    def failed(self, ms=15000):
        """The status of the next completion, which is not a success."""
        got = self.completion(ms)
        if not got["status"]:
            raise PeerError(f"a success was not expected: {got}")
        return got["status"]

    def nothing(self, ms=300):
        """Checks that no completion comes."""
        try:
            got = self.completion(ms)
        except PeerError:
            return
        raise PeerError(f"a completion was not expected: {got}")

    def bytes(self, region, at, count):
        return bytes.fromhex(self("hex", region=region, at=at, bytes=count)["hex"])

    def becomes(self, region, at, data, ms):
        """Whether a range comes to hold these bytes within a time."""
        limit = time.monotonic() + ms / 1000
        while self.bytes(region, at, len(data)) != data:
            if time.monotonic() > limit:
                return False
            time.sleep(0.01)
        return True

    def sum(self, region, at, count):
        return self("sum", region=region, at=at, bytes=count)["sum"]

    def kill(self):
        self.pipe.kill()

    def end(self):
        self.pipe.end()


def connect(a, b, name="q", kind="rc", *, psn=(0x100, 0x200), init=({}, {}), rtr=None, rts=None, queue=({}, {})):
    """Makes and connects queue pairs of that name on both sides; `psn` has the first PSNs of a and b."""
    qpns = [end("queue", name=name, kind=kind, **more)["qpn"] for end, more in zip((a, b), queue)]
    for end, more in zip((a, b), init):
        end("init", qp=name, **more)
    for end, other, mine, qpn in ((a, b, 0, qpns[1]), (b, a, 1, qpns[0])):
        end("rtr", qp=name, peer=qpn, psn=psn[1 - mine], gid=other.gid, **(rtr or {}))
        end("rts", qp=name, psn=psn[mine], **(rts or {}))
    return qpns
