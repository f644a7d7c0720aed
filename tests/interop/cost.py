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

The column "in process" is Burst without a daemon: client and server have an engine each (`BURST_MODE=inprocess`), on two addresses
of eth0. Their packets go through the kernel, by its loopback device, with ICRCs made and checked. The server waits for the end by
TCP, so its keeper thread answers. 64 B WRITEs are posted one by one and in lists of 64 (`-l 64`), by all.

Bounds (LIMITS), for what users have: at most a third of rxe's instructions per KiB at 64 KiB, at most half per 64 B message; at
least 12 times the connections a second. In process: at most 2,350 instructions per 64 B WRITE, 12 times the connections a second by
the step "connect", and 8 times by all steps. What misses a bound is marked, by lo too; the others make the exit code 1.
"""

import argparse
import json
import re
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(Path(__file__).resolve().parent)]

from lab import LabError, run_pair  # noqa: E402
from rig import Rig  # noqa: E402
from rig.burst import BURST, ProgramEnd, install, serve  # noqa: E402
from rig.guest import ICOUNT_SHIFT  # noqa: E402

TOOLS = {"write": ["ib_write_bw"], "read": ["ib_read_bw"], "send": ["ib_send_bw", "-e"]}
ROUNDS = {64: 4000, 4096: 1500, 65536: 150, 1 << 20: 15}
MTUS = (1024, 4096)
LIST = 64
SHAPES = [(tool, size, mtu, 1) for tool in TOOLS for mtu in MTUS for size in ROUNDS] + [("write", 64, mtu, LIST) for mtu in MTUS]
# Size -> the largest share of rxe's instructions that Burst may take.
LIMITS = {64: 1 / 2, 65536: 1 / 3}
# Instructions of a 64 B WRITE in process.
LIMIT_IN_PROCESS = 2350
CONNECTIONS, CM_FACTOR, CM_FACTOR_OF_ALL, CM_PORT = 2000, 12, 8, 7500
CM_STEP = "connect"
# Addresses of a server and a client with engines of their own.
ENDS = ("10.77.0.20", "10.77.0.21")
REPEATS = 3
RXE, DAEMON = ["-d", "rxe0", "-x", "1"], ["-d", "burst0", "-x", "0"]


@dataclass
class Side:
    """Where server and client run: hosts as `run_pair` takes them, their addresses for the connection manager, their environment."""

    device: list
    server: object
    client: object
    addresses: tuple
    env: dict


def message_cost(side, tool, size, mtu, posted):
    """Instructions from post to completion of one message, both ends together; the median of some runs."""
    rounds = ROUNDS[size] // posted * posted
    words = [*TOOLS[tool], *side.device, "-F", "-s", size, "-m", mtu, "-n", rounds, *(["-l", posted] if posted > 1 else [])]
    costs = []
    for _ in range(REPEATS):
        row = run_pair(side.server, side.client, words, address="127.0.0.1", env=side.env, seconds=240).row
        seconds = size / (row[3] * (1 << 20))
        costs.append(seconds * 1e9 / (1 << ICOUNT_SHIFT))
    return statistics.median(costs)


def connection_steps(guest, side):
    """The cost of a connection by cmtime, step by step, in us of the guest's time."""
    there, here = side.addresses
    server = side.server.start("cmtime", "-b", there, "-p", CM_PORT, env=side.env)
    try:
        guest.shell("usleep 500000")
        program = side.client.start("cmtime", "-s", there, "-b", here, "-p", CM_PORT, "-c", CONNECTIONS, env=side.env)
        if program.wait(480):
            raise LabError(f"cmtime on {side.device} failed:\n{program.text()}\n{server.text()}")
    finally:
        server.stop()
    rows = re.findall(r"^([a-z][a-z ]+?)\s*:\s+[\d.]+\s+[\d.]+\s+[\d.]+\s+([\d.]+)", program.text(), re.M)
    if not rows:
        raise LabError(f"cmtime on {side.device} printed no table:\n{program.text()}")
    return {step: float(us) for step, us in rows}


def report_connections(rxe, burst, by_lo, in_process):
    """Prints the steps and how many connections a second they make; the rows."""
    columns = {"rxe": rxe, "Burst": burst, "by lo": by_lo, "in process": in_process}
    for step in rxe:
        print(f"cmtime {step:26} " + "  ".join(f"{name} {steps[step]:8.0f}" for name, steps in columns.items()) + "  us a connection")
    rows = []
    for what, cost, bounds in (
        ("all steps", lambda steps: sum(steps.values()), {"in process": CM_FACTOR_OF_ALL}),
        (CM_STEP, lambda steps: steps[CM_STEP], {"Burst": CM_FACTOR, "in process": CM_FACTOR}),
    ):
        rates = {name: 1e6 / cost(steps) for name, steps in columns.items()}
        print(f"cmtime, {what:25} " + "  ".join(f"{name} {rate:8.0f}" for name, rate in rates.items()) + "  a second")
        for name, rate in rates.items():
            factor, bound = rate / rates["rxe"], bounds.get(name)
            if name == "rxe":
                continue
            print(f"cmtime, {what}, {name}: {factor:.1f} times rxe's"
                  + (f"  (at least {bound}{'' if factor >= bound else ': MISSED'})" if bound else ""))
            rows.append({"name": f"cmtime, {what}, {name}", "rxe": rates["rxe"], "burst": rate, "share": 1 / factor,
                         "limit": bound and 1 / bound})
    return rows


def measure(guest, side, pattern):
    """{(tool, size, path MTU, requests a post): instructions a message}, and the steps of a connection."""
    costs = {shape: message_cost(side, *shape) for shape in SHAPES if re.search(pattern, name(*shape))}
    return costs, connection_steps(guest, side) if re.search(pattern, "cmtime") else None


def name(tool, size, mtu, posted):
    return f"{' '.join(TOOLS[tool])} -s {size} -m {mtu}" + (f" -l {posted}" if posted > 1 else "")


def report(rxe, burst, by_lo, in_process):
    """Prints the table; the rows."""
    rows = []
    for shape, cost in rxe.items():
        size = shape[1]
        limit = LIMITS.get(size)
        limit_in_process = LIMIT_IN_PROCESS if shape[:2] == ("write", 64) else None
        share, share_by_lo, alone = burst[shape] / cost, by_lo[shape] / cost, in_process[shape]
        rows.append({"name": name(*shape), "rxe": cost, "burst": burst[shape], "share": share, "limit": limit,
                     "by_lo": by_lo[shape], "share_by_lo": share_by_lo})
        rows.append({"name": f"{name(*shape)}, in process", "rxe": cost, "burst": alone, "share": alone / cost,
                     "limit": limit_in_process and limit_in_process / cost})
        per, unit = (size / 1024, "KiB") if size >= 1024 else (1, "message")
        marks = [
            "" if bound is None or value <= bound else " MISSED"
            for value, bound in ((share, limit), (share_by_lo, limit), (alone, limit_in_process))
        ]
        bound = "" if limit is None else f" (at most {limit:.2f})"
        print(f"{name(*shape):33} a {unit:8} rxe {cost / per:8.0f}  Burst {burst[shape] / per:8.0f}, {share:.2f}{marks[0]}{bound}"
              f"  by lo {by_lo[shape] / per:8.0f}, {share_by_lo:.2f}{marks[1]}"
              f"  in process {alone / per:8.0f}, {alone / cost:.2f}{marks[2]}"
              + (f" (at most {limit_in_process})" if limit_in_process else ""))
    return rows


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--kernel", default="6.1")
    options.add_argument("--only", default="", metavar="PATTERN", help="rows whose names match (a regular expression)")
    options.add_argument("--json", metavar="FILE")
    asked = options.parse_args()
    with Rig(kernel=asked.kernel, mtu=9000, icount=True, memory=768, daemon=False) as rig:
        guest = rig.guest
        rxe, rxe_steps = measure(guest, Side(RXE, guest, guest, (guest.address, guest.address), {}), asked.only)
        daemon = install(guest)
        by_daemon = Side(DAEMON, guest, guest, ("127.0.0.1", "127.0.0.1"), BURST)
        burst, burst_steps = measure(guest, by_daemon, asked.only)
        daemon.stop()
        by_lo_daemon = serve(guest, "udp:dev=lo,loopback=off")
        by_lo, by_lo_steps = measure(guest, by_daemon, asked.only)
        if not by_lo_daemon.running():
            raise LabError(f"burstd ended in the guest:\n{by_lo_daemon.text()}")
        by_lo_daemon.stop()
        ends = [ProgramEnd(guest, address) for address in ENDS]
        in_process, in_process_steps = measure(guest, Side(DAEMON, *ends, ENDS, {}), asked.only)
        rows = report(rxe, burst, by_lo, in_process)
        if rxe_steps:
            rows += report_connections(rxe_steps, burst_steps, by_lo_steps, in_process_steps)
    if asked.json:
        Path(asked.json).write_text(json.dumps(rows, indent=2))
    return any(row["limit"] and row["share"] > row["limit"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
