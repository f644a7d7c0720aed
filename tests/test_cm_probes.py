"""The static probes of connection setup: their presence in the daemon, and the output of the shipped bpftrace scripts."""

import re
import signal
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from conftest import BUILD
from lab import Program, wait_until
from lab.fabric import ROOT
from test_cm import RPING, pair
from test_middleware import needs

pytestmark = pytest.mark.alone

BURSTD = BUILD / "burstd"
STEPS = [
    "addr_resolved", "route_resolved", "qp_created", "req_sent", "req_received", "rep_sent", "rep_received", "rtu_sent",
    "rtu_received", "established", "setups", "rej_sent", "rej_received", "failed", "dreq_sent", "dreq_received", "drep_received",
    "disconnected", "timewait_exit", "sidr_req_sent", "sidr_req_received", "sidr_rep_sent", "sidr_rep_received",
]


def notes():
    """The probes in the daemon's executable: {name: its places and arguments}."""
    text = subprocess.run(["readelf", "-n", BURSTD], capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"Provider: (\S+)\s+Name: (\S+)\s+(.*\n.*)", text)
    return {name: place for provider, name, place in rows if provider == "burst"}


def attached(pid):
    """The names of the probes that are attached to a daemon: the kernel counts in a semaphore of each."""
    base = int(next(line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if line.endswith("/burstd")).split("-")[0], 16)
    names = set()
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for name, place in notes().items():
            memory.seek(base + int(re.search(r"Semaphore: (0x\w+)", place)[1], 16))
            if any(memory.read(2)):
                names.add(name)
    return names


def probes_of(script):
    """The names of the probes that a shipped script attaches."""
    patterns = re.findall(r"^usdt:\$1:burst:([\w*]+)", (ROOT / "share" / script).read_text(), re.M)
    return {step for step in STEPS if any(fnmatch(step, pattern) for pattern in patterns)}


@needs("readelf", "binutils")
def test_the_notes_are_in_the_binary():
    found = notes()
    # Those of the data path are there, too (test_data_path_probes.py).
    assert set(STEPS) <= set(found)
    for name in STEPS:
        place = found[name]
        # Arguments of eight bytes, and a semaphore, so that an unattached probe costs a load and a branch.
        assert len(re.findall(r"-8@", place)) == {"established": 6, "setups": 2}.get(name, 5), (name, place)
        assert not re.search(r"Semaphore: 0x0+\b", place), (name, place)


@pytest.fixture
def bpftrace(fabric):
    """Attaches a shipped script to the daemons' executable; skips where the kernel offers no uprobes."""
    refused = subprocess.run(
        ["bpftrace", "-e", f"usdt:{BURSTD}:burst:failed {{ }} BEGIN {{ exit(); }}"], capture_output=True, text=True, timeout=60,
    )
    if refused.returncode:
        pytest.skip(f"the kernel refuses to attach probes: {refused.stderr.strip()[-200:]}")
    started = []

    def start(script, ready):
        program = Program(["bpftrace", ROOT / "share" / script, BURSTD])
        started.append(program)
        program.wait_for_text(ready, 60)
        # The script prints this line before the probes are attached.
        daemons = [host.daemon.pid for host in fabric.hosts]
        wait_until(lambda: all(probes_of(script) <= attached(pid) for pid in daemons), program=program)
        return program

    yield start
    for program in started:
        program.stop()


def ended(program):
    """The output of a script when it has ended."""
    program.stop(signal.SIGINT)
    return program.text()


def connect(fabric):
    way = fabric.b, fabric.a, fabric.b.address
    pair(way, RPING, ["rping", "-s", "-a", way[2], "-C", 3], ["rping", "-c", "-a", way[2], "-C", 3])


def reject(fabric):
    code, _ = fabric.a.run("rping", "-c", "-a", fabric.b.address, "-C", 1)
    assert code != 0, "nobody listens any more"


@needs("bpftrace", "bpftrace")
def test_each_step_is_traced(fabric, bpftrace):
    script = bpftrace("cm-trace.bt", "took us")
    connect(fabric)
    reject(fabric)
    # TIMEWAIT takes 250 ms.
    wait_until(lambda: "timewait_exit" in script.text() and "rej_received" in script.text(), program=script)
    lines = [line.split() for line in ended(script).splitlines()]
    rows = [dict(zip(("at", "pid", "id", "comm", "step", "took", "peer"), line)) for line in lines if len(line) == 7 and line[4] in STEPS]
    of = {host.daemon.pid: [row for row in rows if int(row["pid"]) == host.daemon.pid] for host in fabric.hosts}
    active, passive = of[fabric.a.daemon.pid], of[fabric.b.daemon.pid]
    expected = ["req_sent", "rep_received", "rtu_sent", "established"]
    first = [row for row in active if row["comm"] == next(r["comm"] for r in active if r["step"] == "established")]
    assert [row["step"] for row in first][:4] == expected, active
    assert {row["peer"] for row in first} == {fabric.b.address} and first[-1]["step"] == "timewait_exit", first
    assert all(float(row["took"]) >= 0 for row in rows) and float(first[3]["took"]) > 0, rows
    steps = [row["step"] for row in passive]
    for step in ["req_received", "rep_sent", "rtu_received", "established", "rej_sent"]:
        assert step in steps, passive
    steps = [row["step"] for row in active]
    for step in ["addr_resolved", "route_resolved", "qp_created", "rej_received"]:
        assert step in steps, active


@needs("bpftrace", "bpftrace")
def test_the_script_prints_the_latency_of_each_step(fabric, bpftrace):
    script = bpftrace("cm-steps.bt", "watching connection setup")
    connect(fabric)
    reject(fabric)
    text = ended(script)
    for step in ["resolve_address", "resolve_route", "create_queue_pair", "req_sent_to_rep_received",
                 "rep_received_to_rtu_sent", "req_sent_to_established", "req_received_to_rep_sent", "rep_sent_to_rtu_received",
                 "req_received_to_established", "dreq_sent_to_drep_received"]:
        block = re.search(rf"@{step}_us: *\n((?:[\[(].*\n)+)", text)
        assert block and re.search(r"\s\d+ \|", block[1]), (step, text)
    assert "@times[rej_sent]: 1" in text and "@times[rej_received]: 1" in text, text
