"""Instructions of Burst and of the kernel's rxe: both in one emulated machine whose clock counts instructions.

    cost.py [--kernel 6.1] [--only PATTERN] [--json FILE]      (make bench-rxe; needs what scripts/install-deps --interop installs)

The guest has one processor and `icount`: an instruction takes 2 ns of its time, whatever else this machine does. Client and
server run in the guest; rxe loops back inside its driver, and so does Burst (its udp port on `lo`) as users have it. So a
figure is what both ends together execute, from post to completion, kernel included. The column "by lo" is Burst with
`loopback=off`: through its sockets and the kernel's loopback device, with ICRCs made and checked, which rxe does too. perftest
knows no events (`-e`) for WRITE and READ, so that its client polls; for SEND both ends wait for events. Then `cmtime` sets
CONNECTIONS up, by the kernel's rdma_cm over rxe and by Burst.
The rate is that of its step "connect": from the first rdma_connect to the last event, at both ends, with the accepting
program's queue pairs. The other steps and their sum are told as well. cmtime's main thread yields in a loop while it waits, so
that a fair share of each step is waiting, in both.

Bounds (LIMITS), for what users have: at most a third of rxe's instructions per KiB at 64 KiB, at most half per 64 B message; at
least 12 times the connections a second. What misses a bound is marked, by lo too; the former makes the exit code 1.
"""

import argparse
import json
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(Path(__file__).resolve().parent)]

from lab import LabError, run_pair  # noqa: E402
from rig import Rig  # noqa: E402
from rig.burst import BURST, install, serve  # noqa: E402
from rig.guest import ICOUNT_SHIFT  # noqa: E402

TOOLS = {"write": ["ib_write_bw"], "read": ["ib_read_bw"], "send": ["ib_send_bw", "-e"]}
ROUNDS = {64: 4000, 4096: 1500, 65536: 150, 1 << 20: 15}
MTUS = (1024, 4096)
# Size -> the largest share of rxe's instructions that Burst may take.
LIMITS = {64: 1 / 2, 65536: 1 / 3}
CONNECTIONS, CM_FACTOR, CM_PORT = 2000, 12, 7500
CM_STEP = "connect"
REPEATS = 3
SIDES = {
    "rxe": {"device": ["-d", "rxe0", "-x", "1"], "address": "10.77.0.2", "env": {}},
    "Burst": {"device": ["-d", "burst0", "-x", "0"], "address": "127.0.0.1", "env": BURST},
}


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


def connection_steps(guest, side):
    """The cost of a connection by cmtime, step by step, in us of the guest's time."""
    address, env = SIDES[side]["address"], SIDES[side]["env"]
    server = guest.start("cmtime", "-b", address, "-p", CM_PORT, env=env)
    try:
        guest.shell("usleep 500000")
        program = guest.start("cmtime", "-s", address, "-b", address, "-p", CM_PORT, "-c", CONNECTIONS, env=env)
        if program.wait(480):
            raise LabError(f"cmtime on {side} failed:\n{program.text()}\n{server.text()}")
    finally:
        server.stop()
    rows = re.findall(r"^([a-z][a-z ]+?)\s*:\s+[\d.]+\s+[\d.]+\s+[\d.]+\s+([\d.]+)", program.text(), re.M)
    if not rows:
        raise LabError(f"cmtime on {side} printed no table:\n{program.text()}")
    return {step: float(us) for step, us in rows}


def report_connections(rxe, burst, by_lo):
    """Prints the steps and how many connections a second they make; the row."""
    for step, us in rxe.items():
        print(f"cmtime {step:26} rxe {us:8.0f}  Burst {burst[step]:8.0f}  by lo {by_lo[step]:8.0f}  us a connection")
    sums = [1e6 / sum(steps.values()) for steps in (rxe, burst, by_lo)]
    print(f"cmtime, all steps                 rxe {sums[0]:8.0f}  Burst {sums[1]:8.0f}  by lo {sums[2]:8.0f}  a second   "
          f"{sums[1] / sums[0]:.1f} and {sums[2] / sums[0]:.1f} times")
    rates = [1e6 / steps[CM_STEP] for steps in (rxe, burst, by_lo)]
    factor = rates[1] / rates[0]
    mark = "" if factor >= CM_FACTOR else ": MISSED"
    print(f"cmtime, {CM_STEP:25} rxe {rates[0]:8.0f}  Burst {rates[1]:8.0f}  by lo {rates[2]:8.0f}  a second   "
          f"{factor:.1f} and {rates[2] / rates[0]:.1f} times  (at least {CM_FACTOR}{mark})")
    return {"name": "cmtime", "rxe": rates[0], "burst": rates[1], "share": 1 / factor, "limit": 1 / CM_FACTOR}


def measure(guest, side, pattern):
    """{(tool, size, path MTU): instructions a message}, and the steps of a connection."""
    shapes = [(tool, size, mtu) for tool in TOOLS for mtu in MTUS for size in ROUNDS]
    costs = {shape: message_cost(guest, side, *shape) for shape in shapes if re.search(pattern, name(*shape))}
    return costs, connection_steps(guest, side) if re.search(pattern, "cmtime") else None


def name(tool, size, mtu):
    return f"{' '.join(TOOLS[tool])} -s {size} -m {mtu}"


def report(rxe, burst, by_lo):
    """Prints the table; the rows."""
    rows = []
    for shape, cost in rxe.items():
        size = shape[1]
        limit = LIMITS.get(size)
        share, share_by_lo = burst[shape] / cost, by_lo[shape] / cost
        rows.append({"name": name(*shape), "rxe": cost, "burst": burst[shape], "share": share, "limit": limit,
                     "by_lo": by_lo[shape], "share_by_lo": share_by_lo})
        per, unit = (size / 1024, "KiB") if size >= 1024 else (1, "message")
        marks = ["" if limit is None or s <= limit else " MISSED" for s in (share, share_by_lo)]
        bound = "" if limit is None else f"  (at most {limit:.2f})"
        print(f"{name(*shape):33} rxe {cost / per:8.0f}  Burst {burst[shape] / per:8.0f}  a {unit:8} share {share:.2f}{marks[0]}"
              f"  by lo {by_lo[shape] / per:8.0f}, {share_by_lo:.2f}{marks[1]}{bound}")
    return rows


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--kernel", default="6.1")
    options.add_argument("--only", default="", metavar="PATTERN", help="rows whose names match (a regular expression)")
    options.add_argument("--json", metavar="FILE")
    asked = options.parse_args()
    with Rig(kernel=asked.kernel, mtu=9000, icount=True, memory=768, daemon=False) as rig:
        rxe, rxe_steps = measure(rig.guest, "rxe", asked.only)
        daemon = install(rig.guest)
        burst, burst_steps = measure(rig.guest, "Burst", asked.only)
        daemon.stop()
        by_lo_daemon = serve(rig.guest, "udp:dev=lo,loopback=off")
        by_lo, by_lo_steps = measure(rig.guest, "Burst", asked.only)
        rows = report(rxe, burst, by_lo)
        if rxe_steps:
            rows.append(report_connections(rxe_steps, burst_steps, by_lo_steps))
        if not by_lo_daemon.running():
            raise LabError(f"burstd ended in the guest:\n{by_lo_daemon.text()}")
    if asked.json:
        Path(asked.json).write_text(json.dumps(rows, indent=2))
    return any(row["limit"] and row["share"] > row["limit"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
