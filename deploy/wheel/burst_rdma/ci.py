"""A daemon for a job of continuous integration: one step starts it, a last one reports and ends it.

    python -m burst_rdma.ci start --impair loss=1%     a daemon on lo; later steps find it
    python -m burst_rdma.ci report --fail-on bad_icrc  counters, explanations, log and capture into a directory; the daemon ends

Steps of GitHub get the environment by the files that GITHUB_ENV, GITHUB_PATH and GITHUB_OUTPUT name; elsewhere a shell evaluates what `start` prints.
A second `start` replaces the daemon of the first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from ._daemon import STOP_SECONDS, Daemon
from ._place import BurstError, env, program

#: What later steps get; PATH is apart.
VARIABLES = ("LD_LIBRARY_PATH", "BURST_SOCKET", "NCCL_IBVERBS_LIB", "NCCL_IB_GID_INDEX")


def _appended(variable: str, text: str) -> None:
    """Adds to the file that a variable of the runner names, if there is one."""
    if name := os.environ.get(variable):
        with open(name, "a", encoding="utf-8") as file:
            file.write(text)


def _alive(pid: int, word: str) -> bool:
    """Whether a process runs that has a word in its command line: numbers of processes are used again."""
    try:
        return os.fsencode(word) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _end(place: Path, name: str, word: str, how: signal.Signals) -> None:
    """Ends the process that a file names, and waits until it has ended."""
    file = place / f"{name}.pid"
    with contextlib.suppress(OSError, ValueError):
        pid = int(file.read_text())
        for sign in (how, signal.SIGKILL):
            end = time.monotonic() + STOP_SECONDS
            while _alive(pid, word) and time.monotonic() < end:
                os.kill(pid, sign)
                time.sleep(0.1)
    file.unlink(missing_ok=True)


def _stop(place: Path) -> None:
    """Ends capture and daemon of a directory."""
    _end(place, "capture", str(place), signal.SIGINT)
    _end(place, "burstd", str(place), signal.SIGTERM)


def start(place: Path, *, port: str = "udp:dev=lo", impair: str = "", capture: bool = False) -> dict[str, str]:
    """Starts a daemon that outlives this process, and returns the variables by which programs find it.

    Args:
        place: a directory for socket, log, capture and numbers of processes. Its path must be short enough for a socket (90 bytes).
        port: which interface it serves, as `burstd --port`.
        impair: faults, as `loss=1%,delay=1ms`.
        capture: whether packets are written into `packets.pcapng`.

    Raises:
        BurstError: the daemon does not serve; the text is its own last sentence.
    """
    place = place.absolute()
    place.mkdir(parents=True, exist_ok=True)
    _stop(place)
    one = Daemon(place, f"impair:{impair}/{port}" if impair else port, outlives=True)
    (place / "burstd.pid").write_text(f"{one.process.pid}\n")
    if capture:
        writing = subprocess.Popen(
            [program(), "capture", "--write", place / "packets.pcapng"], env=one.env(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=(place / "capture.log").open("wb"), start_new_session=True,
        )
        (place / "capture.pid").write_text(f"{writing.pid}\n")
    # Evaluated again, a path must not grow.
    ours = str(program().parent.parent / "lib" / "burst")
    rest = [one for one in os.environ.get("LD_LIBRARY_PATH", "").split(":") if one and one != ours]
    base = {**os.environ, "LD_LIBRARY_PATH": ":".join(rest)}
    made = env(one.socket, base)
    return {name: made[name] for name in VARIABLES}


def report(place: Path, artifacts: Path, fail_on: str = "") -> list[str]:
    """Keeps counters, explanations, log and capture in `artifacts`, ends the daemon, and returns one sentence for each counter of `fail_on` (names with
    commas) that is not 0, or for the daemon, if it does not answer."""
    place = place.absolute()
    artifacts.mkdir(parents=True, exist_ok=True)
    variables = env(place / "burstd.sock")
    counters: dict[str, int] = {}
    bad: list[str] = []
    done = subprocess.run([program(), "stats", "--json"], env=variables, capture_output=True, text=True)
    if done.returncode == 0:
        for row in json.loads(done.stdout)["counters"]:
            counters[row["name"]] = counters.get(row["name"], 0) + row["value"]
    else:
        bad.append(f"the daemon does not answer: {done.stderr.strip()}")
    why = subprocess.run([program(), "why"], env=variables, capture_output=True, text=True)
    (artifacts / "counters.json").write_text(json.dumps(counters, indent=1, sort_keys=True) + "\n")
    (artifacts / "why.txt").write_text(why.stdout + why.stderr)
    _stop(place)
    for name in ("burstd.log", "packets.pcapng", "capture.log"):
        if (place / name).exists():
            (artifacts / name).write_bytes((place / name).read_bytes())
    named = [name.strip() for name in fail_on.split(",") if name.strip()]
    known = subprocess.run([program(), "stats", "--names"], capture_output=True, text=True).stdout.split() if named else []
    bad += [f"there is no counter {name!r}" for name in named if name not in known]
    bad += [f"{name} is {counters[name]}, and must be 0" for name in named if counters.get(name)]
    rows = "".join(f"| {name} | {value} |\n" for name, value in sorted(counters.items()))
    _appended("GITHUB_STEP_SUMMARY", f"### RDMA by Burst\n\n| counter | value |\n|---|---|\n{rows}\n```\n{why.stdout}```\n")
    return bad


def _start(given: argparse.Namespace) -> int:
    made = start(given.directory, port=given.port, impair=given.impair, capture=given.capture)
    _appended("GITHUB_ENV", "".join(f"{name}={value}\n" for name, value in made.items()))
    _appended("GITHUB_PATH", f"{Path(sys.executable).parent}\n{program().parent}\n")
    _appended("GITHUB_OUTPUT", f"socket={made['BURST_SOCKET']}\nlibrary={made['NCCL_IBVERBS_LIB']}\n")
    print("".join(f"export {name}={shlex.quote(value)}\n" for name, value in made.items()), end="")
    return 0


def _report(given: argparse.Namespace) -> int:
    bad = report(given.directory, given.artifacts, given.fail_on)
    for one in bad:
        # GitHub shows such a line beside the job.
        print(f"::error title=Burst::{one}" if os.environ.get("GITHUB_ACTIONS") else f"burst: {one}")
    print(f"counters, log and explanations are in {given.artifacts}")
    return 1 if bad else 0


def main(words: list[str] | None = None) -> int:
    """The command. Returns its exit code: 1 for what is bad, 125 if Burst does not run."""
    parser = argparse.ArgumentParser(prog="python -m burst_rdma.ci", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--directory", type=Path, default=Path(os.environ.get("RUNNER_TEMP") or "/tmp", f"burst-ci-{os.geteuid()}"))
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("start", help="start a daemon that outlives this step")
    one.add_argument("--port", default="udp:dev=lo")
    one.add_argument("--impair", default="", metavar="FAULTS", help="as loss=1%%,delay=1ms")
    one.add_argument("--capture", action="store_true", help="write packets, for the report")
    one.set_defaults(call=_start)
    two = commands.add_parser("report", help="keep what explains the job, and end the daemon")
    two.add_argument("--artifacts", type=Path, default=Path("burst-artifacts"))
    two.add_argument("--fail-on", default="", metavar="COUNTERS", help="fail if one of these counters is not 0: bad_icrc,cq_overrun")
    two.set_defaults(call=_report)
    given = parser.parse_args(words)
    try:
        result: int = given.call(given)
        return result
    except (BurstError, OSError) as error:
        print(f"burst: {error}", file=sys.stderr)
        return 125


if __name__ == "__main__":
    sys.exit(main())
