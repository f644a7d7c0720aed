"""A hostile host on the wire against programs with an engine of their own: nothing that it sends ends or stops a program.

`Siege` has a program on each host. The one on host b is the victim: it has queue pairs that a forger on the path attacks, with the numbers, PSNs
and keys that a listener on the path would know, and one pair of the same program that only gets packets with a wrong ICRC or of strangers. After
each round every work request of the attacked queue pairs has completed exactly once, memory that no remote key gives away is unchanged, and
the other pair carries a message. `make hunt PARTS=in-process` runs more rounds and other seeds (tests/hunt/in_process.py).
"""

import json
import random
import re
import signal
import sys
from pathlib import Path

import pytest

import lab
from conftest import BUILD
from lab import LabError, forge, frames, roce, wait_until
from lab.perftest import await_listener
from test_cm import await_cm_listener

sys.path.insert(0, str(Path(__file__).resolve().parent / "interop"))

from rig.peer import Peer, PeerError, connect  # noqa: E402

SEED = 1
#: Rounds, and frames of each, of the short run.
ROUNDS, FRAMES = 4, 500
REGION, GUARD = 65536, 16384
RECEIVES, SENDS = 16, 8
#: An answered send has no time-out, so that a round does not depend on the clock.
NO_TIMEOUT = 0
NOBODY, STRANGER = 0x7FFFF, "10.99.0.77"
#: First PSN of the pair that is not attacked: far from those of the others.
CALM_PSN = 0x900000
CALM_ID = 99999
CM_PORT, CM_FRAMES, CM_TALKS = 7200, 3000, 30
MESSAGES = 10000
ANSWERED, UNANSWERED, UNRELIABLE, DATAGRAMS = "answered", "unanswered", "uc", "ud"
KINDS = [ANSWERED, UNANSWERED, UNANSWERED, UNANSWERED, UNRELIABLE, DATAGRAMS]
#: States of a queue pair that has not failed, and of one that has.
LIVES, FAILED = (2, 3), (6,)


class Logged:
    """A host whose program's standard error goes to a file."""

    def __init__(self, host, path):
        self.host, self.path, self.address = host, path, host.address

    def prefix(self):
        return [*self.host.prefix(), "sh", "-c", f'exec "$@" 2>>{self.path}', "sh"]

    def environment(self):
        return self.host.environment()


class Siege:
    """Two programs, and a forger that speaks to the one on host b in the name of host a."""

    def __init__(self, fabric, seed):
        self.fabric, self.seed, self.rng = fabric, seed, random.Random(seed)
        self.logs = [Path(fabric.directory) / f"{host.name}.log" for host in fabric.hosts]
        macs = frames.mac_of(fabric.a), frames.mac_of(fabric.b)
        self.forge = forge.Forge(seed, macs, fabric.a.address, fabric.b.address)
        self.stranger = forge.Forge(seed, macs, STRANGER, fabric.b.address)
        ends = zip(fabric.hosts, self.logs)
        self.a, self.b = (Peer(Logged(host, log), "burst0", host.gid_index(host.address)) for host, log in ends)
        for end in (self.a, self.b):
            end.region("calm", REGION)
            self.attacked = end.region("attacked", REGION, rights="lrwab")
        # Local writes only: no key of the wire reaches it.
        self.guard = self.b.region("guard", GUARD, rights="l")
        self.b("fill", region="guard", bytes=GUARD, seed=seed)
        self.guarded = self.b.sum("guard", 0, GUARD)
        self.calm = connect(self.a, self.b, "calm", psn=(CALM_PSN, CALM_PSN + 0x100000))
        self.exchanges = self.failed = 0
        self.calmly = {}

    def round(self, number, count=FRAMES):
        """Attacks new queue pairs of all kinds, and checks what is left."""
        ids, targets, made = set(), [], []
        for index, kind in enumerate(KINDS):
            target, those = self.besieged(f"q{index}", kind, 1000 * index)
            targets.append(target)
            ids |= those
        calm = self.target(self.calm[1], expected=CALM_PSN, sent=CALM_PSN + 0x100000)
        # Only its ICRC or its source is wrong.
        made = [header + frames.changed(frame, len(frame) - 2, 4) for _ in range(20) for header, frame in self.forge.packet(calm)]
        made += [header + frame for _ in range(20) for header, frame in self.stranger.packet(calm)]
        made += self.forge.frames(count, targets)
        self.rng.shuffle(made)
        half = len(made) // 2
        for part in (made[:half], made[half:]):
            frames.inject(self.fabric.a, part, header=b"", may_refuse=len(part))
            # The program, not only its keeper, takes what has come since.
            self.exchange(ids)
        self.end_of_all(ids)
        self.exchange(ids)
        self.check()

    def target(self, qpn, **more):
        words = {"addr": self.attacked["addr"], "rkey": self.attacked["rkey"], "size": REGION, **more}
        if self.rng.random() < 0.1:
            words["addr"], words["rkey"], words["size"] = self.guard["addr"], self.guard["rkey"], GUARD
        return forge.Target(qpn, **words)

    def besieged(self, name, kind, first):
        """A new queue pair with receives and, where they can be answered, requests: (target, ids that have not completed)."""
        b, outstanding = self.b, set(range(first, first + RECEIVES))
        service = {UNRELIABLE: "uc", DATAGRAMS: "ud"}.get(kind, "rc")
        if kind == ANSWERED:
            qpn = connect(self.a, b, name, psn=(0x100, 0x200), rts={"timeout": NO_TIMEOUT})[1]
        else:
            qpn = b("queue", name=name, kind=service)["qpn"]
            b("init", qp=name)
            b("rtr", qp=name, peer=NOBODY, psn=0x100, gid=self.a.gid)
            b("rts", qp=name, psn=0x200, timeout=NO_TIMEOUT)
        for number in range(RECEIVES):
            b("receive", qp=name, region="attacked", at=number * 2048, bytes=2048, id=first + number)
        if kind == ANSWERED:
            for number in range(2):
                self.a("receive", qp=name, region="attacked", bytes=4096)
        if kind in (ANSWERED, UNANSWERED):
            operations = ["send", "write", "read", "cas", "add", "send_imm"]
            count = 2 if kind == ANSWERED else SENDS
            for number in range(count):
                op = "send" if kind == ANSWERED else self.rng.choice(operations)
                size = 8 if op in ("cas", "add") else self.rng.choice([1, 64, 1024, 4096])
                remote = {"remote": self.attacked["addr"], "rkey": self.attacked["rkey"]}
                b("post", qp=name, op=op, region="attacked", at=32768, bytes=size, id=first + RECEIVES + number, **remote)
            outstanding |= set(range(first + RECEIVES, first + RECEIVES + count))
        services = {UNRELIABLE: (forge.UC,), DATAGRAMS: (forge.UD,)}.get(kind, (forge.RC, forge.SELECTIVE))
        return self.target(qpn, services=services), outstanding

    def drain(self, end, ids):
        """Polls until there is no completion. Each must be of a work request that had none."""
        while (got := self.next_completion(end)) is not None:
            if got["id"] not in ids:
                raise LabError(f"a completion that is too much: {got}; open were {sorted(ids)}")
            ids.remove(got["id"])

    def next_completion(self, end):
        """A completion, or None. Those of the calm pair must be successes and are only counted, those of the attacked pairs on host a ignored."""
        while True:
            try:
                got = end.completion(ms=0)
            except PeerError as error:
                if "no completion" in str(error):
                    return None
                raise
            if got["id"] == CALM_ID:
                if got["status"]:
                    raise LabError(f"the pair that nobody attacks has failed: {got}")
                self.calmly[end] += 1
            elif end is self.b:
                return got

    def exchange(self, ids):
        """A message each way between the calm queue pairs. What the victim got before it has been executed then."""
        self.exchanges += 1
        for source, other in ((self.a, self.b), (self.b, self.a)):
            source("fill", region="calm", bytes=8192, seed=self.exchanges)
            other("receive", qp="calm", region="calm", at=8192, bytes=8192, id=CALM_ID)
            source("post", qp="calm", op="send", region="calm", bytes=8192, id=CALM_ID)
            self.calmly = {self.a: 0, self.b: 0}
            both = lambda: [self.drain(end, ids) for end in (self.a, self.b)] and all(self.calmly.values())  # noqa: E731
            wait_until(both, said=lambda: "the pair that nobody attacks does not carry a message")
            if other.sum("calm", 8192, 8192) != source.sum("calm", 0, 8192):
                raise LabError("the pair that nobody attacks got other bytes")

    def end_of_all(self, ids):
        """Queue pairs that have not failed do so now; everything posted completes."""
        for index, kind in enumerate(KINDS):
            name = f"q{index}"
            state = self.b("state", qp=name)["state"]
            if state not in LIVES + FAILED:
                raise LabError(f"{name} ({kind}) is in state {state}")
            self.failed += state in FAILED
            self.b("state", qp=name, to="error")
        wait_until(lambda: self.drain(self.b, ids) or not ids, said=lambda: f"{sorted(ids)} do not complete")
        for index, kind in enumerate(KINDS):
            self.b("drop", qp=f"q{index}")
            if kind == ANSWERED:
                self.a("state", qp=f"q{index}", to="error")
                self.a("drop", qp=f"q{index}")

    def check(self):
        """Memory without remote rights is unchanged, and nothing has panicked."""
        if self.b.sum("guard", 0, GUARD) != self.guarded:
            raise LabError("memory without remote rights has changed")
        for log in self.logs:
            if said := log.read_text():
                raise LabError(said)

    def end(self):
        """Ends the programs, which must leave by themselves."""
        for name, end in (("a", self.a), ("b", self.b)):
            end.end()
            code = end.pipe.process.returncode
            if code:
                raise LabError(f"the program on host {name} ended with {code}: {[log.read_text() for log in self.logs]}")


def besiege(fabric, seed, rounds, count):
    """Rounds of an attack; says where one failed."""
    siege = Siege(fabric, seed)
    for number in range(rounds):
        try:
            siege.round(number, count)
        except Exception as error:
            codes = [end.pipe.process.poll() for end in (siege.a, siege.b)]
            said = f"seed {seed}, round {number} of {count} frames: {error}\nexit codes {codes}\n" + "".join(log.read_text() for log in siege.logs)
            for end in (siege.a, siege.b):
                end.kill()
            raise LabError(said) from error
    siege.end()
    return siege


@pytest.fixture(scope="module")
def fabric(namespaces):
    with lab.Fabric(in_process=True) as made:
        yield made


@pytest.mark.parametrize("port", ["udp:dev=eth0", "packet:dev=eth0"])
def test_a_forger_on_the_path(make_fabric, port):
    siege = besiege(make_fabric(in_process=True, ports=("udp:dev=eth0", port)), SEED, ROUNDS, FRAMES)
    print(f"{ROUNDS} rounds of {FRAMES} frames, seed {SEED}; {siege.failed} queue pairs failed")


@pytest.mark.parametrize("tool", ["ib_write_bw", "ib_send_bw", "ib_read_bw", "ib_atomic_bw"])
def test_perftest_under_strangers_and_wrong_icrcs(fabric, tool):
    """A program that polls all the time goes on as if nothing had come: the forger knows its queue pair, and may not speak for its peer."""
    # Longer where the programs end before the first packets have come.
    assert any(went_on(fabric, tool, messages) for messages in (MESSAGES, 10 * MESSAGES, 100 * MESSAGES)), "never at the same time"


def went_on(fabric, tool, messages):
    """Runs the pair under an attack: whether it ran while packets came. Both programs must end with 0."""
    a, b = fabric.hosts
    words = ["stdbuf", "-oL", tool, "-d", "burst0", "-F", "-n", messages]
    server, client = b.start(*words), None
    try:
        await_listener(b, server, 18515)
        client = a.start(*words, b.address)
        client.wait_for_text("remote address", 60)
        number = re.search(r"remote address:.*?QPN (0x[0-9a-f]+) PSN (0x[0-9a-f]+)", client.text())
        qpn, psn = (int(text, 16) for text in number.groups())
        target = forge.Target(qpn, services=(forge.RC, forge.SELECTIVE), expected=psn, sent=psn)
        macs = frames.mac_of(a), frames.mac_of(b)
        wrong, strange = (forge.Forge(SEED, macs, address, b.address) for address in (a.address, STRANGER))
        made = [header + frames.changed(frame, len(frame) - 1, 1) for _ in range(300) for header, frame in wrong.packet(target)]
        made += [header + frame for _ in range(300) for header, frame in strange.packet(target)]
        rounds = 0
        while client.running() and rounds < 10:
            frames.inject(a, made, header=b"", may_refuse=len(made))
            rounds += client.running()
        assert (client.wait(120), server.wait(120)) == (0, 0), client.text() + server.text()
        assert "panicked" not in server.text(), server.text()
        return rounds > 0
    finally:
        for program in filter(None, (server, client)):
            program.stop()


class Talk:
    """A connection by hand that leaves the rules after its first messages."""

    def __init__(self, maker, peer, number):
        self.maker, self.peer, self.local_id, self.qpn = maker, peer, 0x600000 + number, 0x1000 + number

    def run(self):
        rng, peer = self.maker.rng, self.peer
        data = roce.cm_header(peer.address, peer.peer, 40000) + bytes(56)
        peer.send("REQ", roce.req(self.local_id, self.qpn, CM_PORT, data), self.local_id)
        # The answer to a message of the talk before may come late.
        while (rep := peer.receive()) is not None and rep.tid != self.local_id:
            pass
        assert rep is not None and rep.name == "REP", rep
        for _ in range(rng.randint(1, 12)):
            name = rng.choice(["RTU", "RTU", "DREQ", "DREP", "REJ", "MRA", "LAP", "APR", "REP", "REQ"])
            mine, theirs = rng.choice([(self.local_id, rep.local_id)] * 5 + [(rep.local_id, self.local_id), (self.local_id, 0)])
            body = rep.body if name == "REP" else roce.ids(mine, theirs, rng.choice([rep.body[12:15], rng.randbytes(40)]))
            made = roce.mad(body, roce.ATTRIBUTES[name], self.local_id)
            peer.send_raw(peer.packet(self.maker.altered(made, 2)))
        peer.drain(0.01)


def test_a_listener_under_forged_connection_messages(make_fabric):
    fabric = make_fabric(in_process=True)
    a, b = fabric.hosts
    a.ip("addr add 10.99.0.5/24 dev eth0")
    many = [BUILD / "programs" / "cm_many", "-p", CM_PORT]
    server, peer = b.start(*many), roce.Peer(a, b, "10.99.0.5")
    try:
        await_cm_listener(b, server, CM_PORT)
        maker = forge.Forge(SEED, (frames.mac_of(a), frames.mac_of(b)), a.address, b.address, [CM_PORT])
        made = [header + frame for _ in range(CM_FRAMES) for header, frame in maker.mad(None)]
        frames.inject(a, made, header=b"")
        for number in range(CM_TALKS):
            Talk(maker, peer, number).run()
        code, text = a.run(*many, "-c", 20, b.address, env={"BURST_PORT": f"udp:dev=eth0,addr={a.address}"})
        assert code == 0 and json.loads(text.splitlines()[-1])["established"] == 20, text
        assert server.running() and "panicked" not in server.text(), server.text()
    finally:
        code = server.stop()
        peer.close()
    assert code == -signal.SIGTERM, server.text()
