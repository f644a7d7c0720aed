"""What Burst costs beside the kernel's rxe, in instructions: both in one emulated machine whose clock counts them.

    cost.py [--kernel 6.1] [--only PATTERN] [--json FILE]

The guest has one processor and `icount`: an instruction takes 2 ns of its time, whatever else this machine does. Client and
server run in the guest, rxe looping back inside its driver and Burst (its udp port) over the guest's `lo`. So a figure is
what both ends together execute, from post to completion, kernel included. perftest knows no events (`-e`) for WRITE, so that its
client polls; for SEND both ends wait for events. Then `cmtime` sets connections up, by the kernel's rdma_cm over rxe and by Burst.

Bounds (LIMITS): at most a third of rxe's instructions per KiB at 64 KiB, at most half per 64 B message; at least 12 times the
connections a second. What misses a bound is marked and makes the exit code 1.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(Path(__file__).resolve().parent)]

from lab import LabError, build_directory, run_pair  # noqa: E402
from rig import Rig  # noqa: E402
from rig.guest import ICOUNT_SHIFT  # noqa: E402

TOOLS = {"write": ["ib_write_bw"], "send": ["ib_send_bw", "-e"]}
ROUNDS = {64: 4000, 4096: 1500, 65536: 150, 1 << 20: 15}
MTUS = (1024, 4096)
# Size -> the largest share of rxe's instructions that Burst may take.
LIMITS = {64: 1 / 2, 65536: 1 / 3}
CONNECTIONS, CM_FACTOR = 200, 12
REPEATS = 3
BURST = {"LD_LIBRARY_PATH": "/burst/lib", "BURST_SOCKET": "/tmp/burst.sock"}
SIDES = {
    "rxe": {"device": ["-d", "rxe0", "-x", "1"], "address": "10.77.0.2", "env": {}},
    "Burst": {"device": ["-d", "burst0", "-x", "0"], "address": "127.0.0.1", "env": BURST},
}


def install(guest):
    """Puts Burst into the guest, where rxe has gone (both want UDP port 4791), and starts its daemon."""
    guest.shell("rdma link delete rxe0 && rmmod rdma_rxe && mkdir -p /burst/lib")
    built = build_directory().resolve()
    with tempfile.TemporaryDirectory() as directory:
        for part in ("burstd", "lib/libibverbs.so.1", "lib/librdmacm.so.1"):
            bare = Path(directory) / "bare"
            subprocess.run(["strip", "-o", bare, built / part], check=True)
            guest.put(bare, f"/burst/{part}")
    socket = BURST["BURST_SOCKET"]
    daemon = guest.start("/burst/burstd", "--socket", socket, "--port", "udp:dev=lo")
    guest.shell(f"n=0; while [ ! -S {socket} ] && [ $n -lt 500 ]; do usleep 20000; n=$((n+1)); done")
    if not daemon.running():
        raise LabError(f"burstd does not run in the guest:\n{daemon.text()}")
    return daemon


def message_cost(guest, side, tool, size, mtu):
    """Instructions from post to completion of one message, both ends together; the median of some runs."""
    at = SIDES[side]
    words = [*TOOLS[tool], *at["device"], "-F", "-s", size, "-m", mtu, "-n", ROUNDS[size]]
    costs = []
    for _ in range(REPEATS):
        row = run_pair(guest, guest, words, address="127.0.0.1", env=at["env"], seconds=240).row
        seconds = size / (row[3] * (1 << 20))
        costs.append(seconds * 1e9 / (1 << ICOUNT_SHIFT))
    return statistics.median(costs)


def connections_per_second(guest, side):
    """What cmtime makes, by the guest's clock: connections a second from its "connect" and all steps' rows."""
    at = SIDES[side]
    server = guest.start("cmtime", "-b", at["address"], "-p", 7500, env=at["env"])
    try:
        guest.shell("usleep 500000")
        program = guest.start("cmtime", "-s", at["address"], "-b", at["address"], "-p", 7500, "-c", CONNECTIONS, env=at["env"])
        if program.wait(300):
            raise LabError(f"cmtime on {side} failed:\n{program.text()}\n{server.text()}")
        return program.text()
    finally:
        server.stop()


def steps(text):
    """cmtime's rows: {step: total ms}."""
    return {m.group(1).strip(): float(m.group(2)) for m in re.finditer(r"^([a-z][a-z /]+?)\s*:\s+([\d.]+)", text, re.M)}


def measure(guest, side, pattern):
    """{(tool, size, path MTU): instructions a message} and what cmtime said."""
    shapes = [(tool, size, mtu) for tool in TOOLS for mtu in MTUS for size in ROUNDS]
    costs = {shape: message_cost(guest, side, *shape) for shape in shapes if re.search(pattern, name(*shape))}
    rate = connections_per_second(guest, side) if re.search(pattern, "cmtime") else None
    return costs, rate


def name(tool, size, mtu):
    return f"{' '.join(TOOLS[tool])} -s {size} -m {mtu}"


def report(rxe, burst):
    """Prints the table; the rows."""
    rows = []
    for shape, cost in rxe.items():
        size = shape[1]
        share, limit = burst[shape] / cost, LIMITS.get(size)
        rows.append({"name": name(*shape), "rxe": cost, "burst": burst[shape], "share": share, "limit": limit})
        per, unit = (size / 1024, "KiB") if size >= 1024 else (1, "message")
        mark = "" if limit is None else f"  (at most {limit:.2f}{'' if share <= limit else ': MISSED'})"
        print(f"{name(*shape):33} rxe {cost / per:8.0f}  Burst {burst[shape] / per:8.0f}  a {unit:8} share {share:.2f}{mark}")
    return rows


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--kernel", default="6.1")
    options.add_argument("--only", default="", metavar="PATTERN", help="rows whose names match (a regular expression)")
    options.add_argument("--json", metavar="FILE")
    asked = options.parse_args()
    with Rig(kernel=asked.kernel, mtu=9000, icount=True, memory=768, daemon=False) as rig:
        rxe, rxe_rate = measure(rig.guest, "rxe", asked.only)
        daemon = install(rig.guest)
        burst, burst_rate = measure(rig.guest, "Burst", asked.only)
        rows = report(rxe, burst)
        print(rxe_rate, burst_rate)
        if not daemon.running():
            raise LabError(f"burstd ended in the guest:\n{daemon.text()}")
    if asked.json:
        Path(asked.json).write_text(json.dumps(rows, indent=2))
    return any(row["limit"] and row["share"] > row["limit"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
