"""`burst lab`: each exercise refuses a wrong answer and takes the right one, with real traffic, as root and as a user without rights."""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import lab
import pytest

from lab import users, wait_until

UNPRIVILEGED = 65534
NAMES = ("pingpong", "keys", "rnr", "mtu", "loss", "incast", "cm", "atomics", "srq", "congestion")


class Learner:
    """A user in a network namespace of its own, with a directory for the lab and no variable of these tests."""

    def __init__(self, uid, burst):
        self.root = Path(tempfile.mkdtemp(prefix="burst-learner-", dir="/tmp"))
        self.burst = burst
        self.place = self.root / "lab"
        os.chmod(self.root, 0o755)
        self.place.mkdir()
        os.chown(self.place, uid, uid)
        keep = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec cat"]
        self.keeper = subprocess.Popen(keep, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.keeper.stdout.readline() == b"up\n"
        self.enter = ["nsenter", "-t", str(self.keeper.pid), "--net"]
        if uid:
            self.enter += ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]

    def lab(self, *words):
        """Runs `burst lab`: (exit code, stdout, stderr)."""
        # A port in the learner's shell is not the hosts'.
        env = {"PATH": "/usr/bin:/bin", "BURST_LAB_DIR": str(self.place), "BURST_PORT": "udp:dev=none", "BURST_SOCKET": "/nonexistent"}
        done = subprocess.run([*self.enter, self.burst, "lab", *words], env=env, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, cwd="/")
        return done.returncode, done.stdout, done.stderr

    def addresses(self):
        """Addresses of the hosts, as the question names them."""
        return set(re.findall(r"127\.\d+\.\d+\.\d+", self.lab("again")[1]))

    def processes(self):
        """Process numbers of daemons and traffic of this lab."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and str(self.place).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found

    def end(self):
        self.lab("stop")
        left = self.processes()
        self.keeper.stdin.close()
        self.keeper.wait()
        shutil.rmtree(self.root)
        assert not left, "burst lab stop left processes"


@pytest.fixture(scope="module")
def burst():
    """`burst` in a copy of the build that every user may execute."""
    place = users.public_copy(tempfile.mkdtemp(prefix="burst-lab-build-", dir="/tmp"))
    yield place / "bin/burst"
    shutil.rmtree(place)


@pytest.fixture(params=[0, UNPRIVILEGED], ids=["root", "unprivileged"])
def learner(request, burst):
    one = Learner(request.param, burst)
    yield one
    one.end()


@pytest.fixture
def plain(burst):
    one = Learner(UNPRIVILEGED, burst)
    yield one
    one.end()


def test_every_exercise_refuses_a_wrong_answer_and_takes_the_right_one(learner):
    code, text, error = learner.lab("solve", "--all")
    assert code == 0 and not error, text + error
    parts = re.split(r"^== (\w+): ", text, flags=re.M)[1:]
    assert tuple(parts[::2]) == NAMES
    for name, said in zip(parts[::2], parts[1::2]):
        assert said.index("Not yet.") < said.index("Solved."), name
        assert re.search(r"^ +\d+\.\d{3} ms  [|]", said.split("Solved.")[1], re.M), f"{name}: no ladder"
    assert not learner.processes()
    assert learner.lab()[1].count("solved") == len(NAMES)


def test_each_fault_of_a_write_is_found_and_only_what_is_wrong_mends_it(plain):
    seen = set()
    # Which of three is drawn: a hundred draws that miss one come once in 10^17.
    for _ in range(100):
        code, text, error = plain.lab("solve", "keys")
        assert code == 0, text + error
        seen.add(re.search(r"It was the (\w+)", text).group(1))
        if len(seen) == 3:
            break
    assert seen == {"rights", "key", "size"}


def test_a_learner_finds_the_way_step_by_step(plain):
    code, text, _ = plain.lab()
    assert code == 0 and "Begin with: burst lab pingpong" in text and all(f" {name} " in text for name in NAMES)
    for words in (["check", "3"], ["run"], ["ladder"], ["on", "b", "burst", "ls"], ["again"]):
        code, _, error = plain.lab(*words)
        assert code == 1 and "no exercise has begun" in error and error.count("\n") == 1, words
    code, _, error = plain.lab("key")
    assert code == 1 and "did you mean \"keys\"?" in error
    code, question, _ = plain.lab("3")
    assert code == 0 and "Question 1" in question and "rnr=0..7" in question
    assert plain.lab("again")[1] == question
    assert "in hand" in plain.lab()[1]

    taken = int(re.search(r"not ready \(RNR\) #(\d+)", plain.lab("ladder", "--all")[1]).group(1)) - 100
    assert 2 <= taken <= 9
    assert plain.lab("check")[0] == 1 and plain.lab("check", "many")[0] == 1
    code, text, _ = plain.lab("check", str(taken + 1))
    assert code == 1 and f"It was not {taken + 1}" in text and "#100" in text
    code, text, _ = plain.lab("check", "rnr", str(taken))
    assert code == 1 and "question 2" in text
    why = plain.lab("on", "a", "burst", "why")
    assert why[0] == 0 and "had no receive posted" in why[1]
    code, _, error = plain.lab("run", "rnr=8")
    assert code == 1 and "rnr=0..7" in error
    code, _, error = plain.lab("run", "mtu=256")
    assert code == 1 and "there is no setting" in error and "rnr=0..7" in error
    assert "all 12 messages are complete" in plain.lab("run", "rnr=7")[1]
    code, text, _ = plain.lab("check", str(taken))
    assert code == 0 and text.startswith("Solved.") and "Next: burst lab pingpong" in text
    assert re.search(r"3  rnr .* in hand", plain.lab()[1]) and "rnr" in (plain.place / "solved").read_text()


def test_hosts_end_with_the_exercise_and_a_dead_host_is_named(plain):
    assert plain.lab("pingpong")[0] == 0
    first = set(plain.processes())
    assert len(first) == 2
    assert plain.lab("cm")[0] == 0
    second = set(plain.processes())
    assert len(second) == 3 and not first & second
    daemon = next(pid for pid in second if f"--socket\0{plain.place}/b.sock" in Path(f"/proc/{pid}/cmdline").read_text())
    os.kill(daemon, 9)
    wait_until(lambda: daemon not in plain.processes())
    code, _, error = plain.lab("run")
    assert code == 1 and "host b does not answer" in error and "begin the exercise again" in error
    assert plain.lab("cm")[0] == 0
    assert plain.lab("stop")[0] == 0
    assert not plain.processes() and plain.lab("stop")[0] == 0


def test_two_labs_on_one_machine_have_addresses_of_their_own(plain):
    assert plain.lab("pingpong")[0] == 0
    first, own = plain.addresses(), plain.place
    plain.place = own / "second"
    assert plain.lab("pingpong")[0] == 0
    second = plain.addresses()
    assert len(first) == len(second) == 2 and not first & second
    assert plain.lab("stop")[0] == 0
    plain.place = own
    assert plain.lab("ladder")[0] == 0 and len(plain.processes()) == 2


def test_a_directory_of_another_user_is_refused(plain):
    other = plain.root / "roots"
    other.mkdir()
    plain.place = other
    code, _, error = plain.lab("pingpong")
    assert code == 1 and "belongs to another user" in error and error.count("\n") == 1


def test_without_its_traffic_program_the_lab_says_what_is_missing(plain):
    program = plain.burst.parent.parent / "lib/burst/burst-exercise"
    program.rename(program.with_suffix(".away"))
    code, _, error = plain.lab()
    program.with_suffix(".away").rename(program)
    assert code == 1 and "burst-exercise is missing" in error and error.count("\n") == 1


def test_the_build_has_the_traffic_program():
    done = subprocess.run([lab.build_directory() / "lib/burst-exercise"], capture_output=True, text=True)
    assert done.returncode == 2 and "burst lab starts it" in done.stderr
