"""The history of benchmark figures: one JSON document per line and run, and a table of a run against earlier ones.

A run is compared with the median of at most `RUNS` earlier runs on the same kind of machine (processor, number of processors, kernel
release up to the second number), because absolute figures of different machines say nothing about each other.
"""

import json
import os
import platform
import re
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

RUNS = 5
AUTOGROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")
#: Printed below the table.
SETTINGS = (
    "make bench sets kernel.sched_autogroup_enabled to 0 while it measures; make demo leaves the setting as it is. With autogroups a program",
    "that polls shares a processor with its own session first, and burstd, in another session, gets less of it. On one machine in one hour",
    "64 KiB writes were 2.1 times one TCP stream without autogroups and 1.3 times with them.",
)


def autogroups():
    """The value of kernel.sched_autogroup_enabled; 0 where the kernel has none."""
    return int(AUTOGROUPS.read_text()) if AUTOGROUPS.exists() else 0


def machine():
    """The facts on which figures depend."""
    info = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", info)
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    return {
        "cpu": model.group(1).strip() if model else platform.machine(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "memory_gib": round(int(memory.group(1)) / (1 << 20)) if memory else None,
    }


def commit(root):
    """The short hash of the commit that was measured, with `+` if files were changed since."""
    run = lambda *words: subprocess.run(["git", *words], cwd=root, capture_output=True, text=True).stdout.strip()  # noqa: E731
    return run("rev-parse", "--short", "HEAD") + ("+" if run("status", "--porcelain", "--untracked-files=no") else "")


def record(root, figures):
    """One run. `figures`: {name: {"value", "unit"}}, each value the median of its test."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"date": now, "commit": commit(root), "machine": machine(), "autogroups": autogroups(), "figures": figures}


def kind(run):
    """What two runs must share to be compared."""
    facts = run["machine"]
    return facts["cpu"], facts["cpus"], ".".join(facts["kernel"].split(".")[:2])


def load(path):
    """All runs of a history file, oldest first."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()] if path.exists() else []


def append(path, run):
    with open(path, "a") as out:
        out.write(json.dumps(run, sort_keys=True) + "\n")


def table(run, earlier):
    """Lines that set each figure beside the median of earlier runs."""
    same = [r for r in earlier if kind(r) == kind(run)]
    lines = [f"{'figure':<64}{'now':>10} {'unit':<9}{'before':>10}{'ratio':>8}  runs"]
    for name, now in sorted(run["figures"].items()):
        before = [r["figures"][name]["value"] for r in same if name in r["figures"]][-RUNS:]
        middle = median(before) if before else None
        compared = f"{middle:>10.4g}{now['value'] / middle:>8.2f}" if middle else f"{'-':>10}{'-':>8}"
        lines.append(f"{name:<64}{now['value']:>10.4g} {now['unit']:<9}{compared}  {len(before)}")
    return lines
