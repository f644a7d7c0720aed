"""The tables of docs/performance.md and README.md: the newest figure of each name in the history of `make bench`, beside its goal.

A figure is shown if it was measured on the kind of machine of the newest run (`history.kind`). Groups and goals are listed here. The last table has
the figures that no group names, so none is lost."""

import re
from statistics import median

from lab import history

#: Goals: figure, and what it should at least (or at most) be. Not every goal is reached, and tests/bench asserts bounds of its own.
AT_LEAST = {
    "ib_write_bw 64 KiB in process to one TCP stream": 2.86,
    "ib_write_bw 1024 KiB in process to one TCP stream": 2.86,
    "ib_write_bw 64 KiB to one TCP stream": 2.5,
    "ib_write_bw 64 KiB, 16 queue pairs to one": 1.0,
    "ib_write_bw 64 KiB in process to raw UDP sockets": 0.9,
    "ib_write_bw 64 B in process, lists of posts": 3.0,
    "MTU 1500, offloads on, in process: ib_write_bw 64 KiB to one TCP stream": 1.5,
    "MTU 1500, offloads on, daemons: ib_write_bw 64 KiB to one TCP stream": 1.5,
    "MTU 1500, offloads off, in process: ib_write_bw 64 KiB to one TCP stream": 1.0,
    "MTU 1500, offloads off, daemons: ib_write_bw 64 KiB to one TCP stream": 1.0,
    "autogroups on to off: ib_write_bw 64 KiB, daemons": 0.9,
    "urma_perftest write_bw 64 KiB to ib_write_bw in process": 0.95,
    "urma_perftest write_bw 64 KiB to ib_write_bw through daemons": 0.95,
    "selective repeat at 1 % loss, to its own run without loss": 0.8,
}
AT_MOST = {
    "ib_send_lat 64 B in process, p50 to the kernel's UDP": 2.2,
    "ib_write_lat 64 B in process, p50 to the kernel's UDP": 2.2,
    "ib_read_lat 64 B in process, p50 to two of the kernel's UDP": 2.2,
    "ib_send_lat 64 B in process, events, p50 to the kernel's TCP": 0.5,
    "ib_send_lat 64 B, polling, p50 to the kernel's UDP": 3.5,
    "autogroups on to off: ib_send_lat 64 B, daemons, p50": 1.1,
    "urma_perftest write_lat 64 B to ib_write_lat in process": 1.1,
    "urma_perftest write_lat 64 B to ib_write_lat through daemons": 1.1,
    "in process: the first READ of a target that computes": 3.0,
    "guarded: SIGKILL to the NAK at the peer": 100.0,
}

#: Title, and the beginning of the names of its figures.
GROUPS = [
    ("Bandwidth", r"ib_write_bw|TCP, one stream|raw UDP"),
    ("Latency", r"ib_\w+_lat|in process: |guarded: "),
    ("MTU 1500, and autogroups", r"MTU 1500|autogroups"),
    ("Loss", r"selective repeat|go-back-N|frames of"),
    ("Connections", r"connections|probes"),
    ("Within one host", r"one host"),
    ("Ports `packet` and `dpdk` (memif)", r"memif|pinned hosts"),
    ("Unified Bus", r"urma"),
    ("Proxies, to a relay without RDMA", r"proxy"),
    ("Instructions (callgrind)", r"polling one|posting one|one 64 B|pings|stream|writes"),
    ("Others", r""),
]

#: The rows of README.md: what a reader compares, by the ratio's name; the absolute figure that belongs to it.
SHORT = [
    ("64 KiB WRITEs, engine in the program, to one TCP stream", "ib_write_bw 64 KiB in process to one TCP stream", "ib_write_bw 64 KiB in process"),
    ("64 KiB WRITEs, daemons, to one TCP stream", "ib_write_bw 64 KiB to one TCP stream", "ib_write_bw 64 KiB"),
    (
        "the same, MTU 1500, segmentation offloads off",
        "MTU 1500, offloads off, daemons: ib_write_bw 64 KiB to one TCP stream",
        "MTU 1500, offloads off, daemons: ib_write_bw 64 KiB",
    ),
    (
        "64 B SEND, half a round trip, engine in the program, polled, to a UDP socket",
        "ib_send_lat 64 B in process, p50 to the kernel's UDP",
        "ib_send_lat 64 B in process, p50",
    ),
    ("the same, daemons", "ib_send_lat 64 B, polling, p50 to the kernel's UDP", "ib_send_lat 64 B, polling, p50"),
    (
        "the same, daemons, waiting for events, to a TCP socket",
        "ib_send_lat 64 B, events, p50 to the kernel's TCP",
        "ib_send_lat 64 B, events, p50",
    ),
    ("goodput at 1 % loss to that without loss, `cc = none`", "selective repeat at 1 % loss, to its own run without loss", None),
]


def newest(runs):
    """{name: (value, unit, day, commit)} on the kind of machine of the newest run. Of a figure that the last commit that has it was measured
    for several times, the median."""
    found = {}
    for run in runs:
        if history.kind(run) == history.kind(runs[-1]):
            commit = run["commit"].rstrip("+")
            for name, figure in run["figures"].items():
                before = found[name]["values"] if name in found and found[name]["commit"] == commit else []
                values = [*before, figure["value"]]
                found[name] = {"values": values, "unit": figure["unit"], "day": run["date"][:10], "commit": commit}
    return {name: (median(f["values"]), f["unit"], f["day"], f["commit"]) for name, f in found.items()}


def goal_of(name):
    """The goal of a figure as text; empty without one."""
    if name in AT_LEAST:
        return f"at least {AT_LEAST[name]:g}"
    return f"at most {AT_MOST[name]:g}" if name in AT_MOST else ""


def is_missed(name, value):
    return value < AT_LEAST.get(name, value) or value > AT_MOST.get(name, value)


def shown(value, unit):
    """Four digits, and the unit."""
    if unit in ("ratio", "x"):
        return f"{value:.3g} times"
    unit = {"instr": "instructions"}.get(unit, unit)
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{digits} {unit}"


def row(name, figure):
    value, unit, day, commit = figure
    goal = goal_of(name) + (", missed" if is_missed(name, value) else "")
    return f"| {name} | {shown(value, unit)} | {goal} | {day} | {commit} |"


def page(runs):
    """The written part of docs/performance.md."""
    figures, machine = newest(runs), runs[-1]["machine"]
    lines = [
        f"Machine: {machine['cpu']}, {machine['cpus']} processors, Linux {machine['kernel']}, {machine['memory_gib']} GiB."
        f" {len(figures)} figures, {sum(is_missed(name, figure[0]) for name, figure in figures.items())} goals missed.",
    ]
    for title, pattern in GROUPS:
        names = sorted(name for name in figures if re.match(pattern, name))
        if names:
            lines += ["", f"### {title}", "", "| figure | value | goal | measured | commit |", "| --- | --- | --- | --- | --- |"]
            lines += [row(name, figures.pop(name)) for name in names]
    return "\n".join(lines) + "\n"


def short_table(runs):
    """The table of README.md."""
    figures = newest(runs)
    lines = ["| | figure | ratio | goal |", "| --- | --- | --- | --- |"]
    for label, ratio, absolute in SHORT:
        if ratio not in figures:
            continue
        value, unit, *_ = figures[ratio]
        own = shown(*figures[absolute][:2]) if absolute in figures else ""
        lines.append(f"| {label} | {own} | {shown(value, unit)} | {goal_of(ratio)}{', missed' if is_missed(ratio, value) else ''} |")
    return "\n".join(lines) + "\n"
