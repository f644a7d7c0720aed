"""The static probes of the data path: their presence in the daemon, and what the shipped scripts print of real traffic."""

import re
import signal
import subprocess

import pytest

from conftest import BUILD
from lab import Program, wait_until
from lab.fabric import ROOT
from test_cm_probes import BURSTD
from test_middleware import needs

pytestmark = pytest.mark.alone

#: Number of arguments of each, and whether it has a semaphore: those that packets meet have none, and cost a `nop`.
PROBES = {
    "doorbell": (2, False), "turn": (3, False), "completion": (2, False), "retransmit": (3, True), "nak": (4, True), "drop": (3, True), "cnp": (2, True),
    "rate_change": (3, True),
}
SIZE = 1000
#: Of ibv_rc_pingpong.
PORT = 18515


def places(path):
    """{name: its places, arguments and semaphores} in an executable."""
    text = subprocess.run(["readelf", "-n", path], capture_output=True, text=True, check=True).stdout
    found = {}
    for provider, name, place in re.findall(r"Provider: (\S+)\s+Name: (\S+)\s+(.*\n.*)", text):
        if provider == "burst":
            found.setdefault(name, []).append(place)
    return found


@needs("readelf", "binutils")
@pytest.mark.parametrize("path", [BURSTD, BUILD / "lib" / "libburst-inprocess.so.1"], ids=["daemon", "in-process"])
def test_the_notes_are_there(path):
    found = places(path)
    for name, (count, has_semaphore) in PROBES.items():
        for place in found[name]:
            assert len(re.findall(r"-8@", place)) == count, (name, place)
            assert bool(re.search(r"Semaphore: 0x0+\b", place)) != has_semaphore, (name, place)


@pytest.fixture
def traced(make_fabric):
    """Attaches a shipped script to the daemons of a new fabric; skips where the kernel offers no uprobes."""
    refused = subprocess.run(["bpftrace", "-e", f"usdt:{BURSTD}:burst:drop {{ }} BEGIN {{ exit(); }}"], capture_output=True, text=True, timeout=60)
    if refused.returncode:
        pytest.skip(f"the kernel refuses to attach probes: {refused.stderr.strip()[-200:]}")
    started = []

    def start(script, ready):
        program = Program(["bpftrace", ROOT / "share" / script, BURSTD])
        started.append(program)
        program.wait_for_text(ready, 60)
        return make_fabric(), program

    yield start
    for program in started:
        program.stop()


def sends(fabric, count):
    """So many SENDs of a program from b to a, by an unmodified program."""
    a, b = fabric.hosts
    server = a.start("ibv_rc_pingpong", "-g", "0", "-s", SIZE, "-n", count)
    wait_until(lambda: any(f":{PORT:04X} " in line and " 0A " in line for line in a.tcp_table()), program=server)
    code, text = b.run("ibv_rc_pingpong", "-g", "0", "-s", SIZE, "-n", count, a.address)
    assert code == 0, text
    assert server.wait(60) == 0, server.text()


def ended(program):
    program.stop(signal.SIGINT)
    return program.text()


def rows(text, name):
    """The sum of a histogram's rows."""
    block = re.search(rf"@{name}: *\n((?:[\[(].*\n)+)", text)
    assert block, (name, text)
    return sum(int(count) for count in re.findall(r"[\])]\s+(\d+) \|", block[1]))


@needs("bpftrace", "bpftrace")
@needs("ibv_rc_pingpong", "ibverbs-utils")
def test_doorbells_turns_and_completions_of_real_traffic(traced):
    fabric, script = traced("data-path.bt", "watching the data path")
    count = 200
    # The script says that it watches some moments before its probes are attached: the first traffic gives it time.
    for _ in range(2):
        sends(fabric, count)
    text = ended(script)
    # Both ends send and receive each message.
    assert rows(text, "bytes_of_a_receive") >= 2 * count, text
    assert rows(text, "doorbells_of_a_pass") > 0 and rows(text, "requests_of_a_turn") >= 2 * count, text
    assert re.search(r"@completions_by_status\[0\]: \d+", text), text
    assert re.search(r"\[512, 1K\)\s+\d+ \|", text), f"messages of {SIZE} bytes: {text}"


@needs("bpftrace", "bpftrace")
@needs("ibv_rc_pingpong", "ibverbs-utils")
def test_losses_are_printed_with_their_reasons(traced):
    fabric, script = traced("losses.bt", "reason")
    code, text = fabric.a.burst("impair", "burst0", "loss=5%", "for=60s")
    assert code == 0, text
    sends(fabric, 300)
    wait_until(lambda: re.search(r"retransmit +[0-9a-f]+ +\w+", script.text()), program=script)
    lines = [line.split() for line in ended(script).splitlines()]
    names = set(re.findall(r"^\| \d+ \| `(\w+)`", (ROOT / "docs" / "reasons.md").read_text(), re.M))
    printed = [line for line in lines if len(line) >= 5 and line[2] == "retransmit"]
    assert printed and all(line[4] in names for line in printed), (printed, sorted(names)[:5])
    daemons = {str(host.daemon.pid) for host in fabric.hosts}
    assert {line[1] for line in printed} <= daemons and all(int(line[3], 16) > 1 for line in printed), printed
