"""What registering each kind of memory costs, and how fast WRITEs reach it (tests/programs/memory_kinds.c). The kinds take turns."""

import json
import os

import pytest

from lab import build_directory

pytestmark = pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench")

SECONDS = 600
SIZES = {4 << 10: "4 KiB", 64 << 10: "64 KiB", 1 << 20: "1 MiB", 2 << 20: "2 MiB", 1 << 30: "1 GiB"}


def test_kinds_of_memory(fabric, figure):
    code, text = fabric.a.run(build_directory() / "programs" / "memory_kinds", "burst0", 5, seconds=SECONDS)
    assert code == 0, text
    lines = [json.loads(line) for line in text.splitlines()]
    registered = {(line["kind"], line["bytes"]): line for line in lines if "bytes" in line}
    for (kind, size), line in registered.items():
        for what in ("register", "deregister"):
            figure(f"memory, {kind}: {what} {SIZES[size]}, processor time of the program", line[f"{what}_cpu_us"], "us")
    reached = {line["kind"]: line for line in lines if "gbit_s" in line}
    for kind, line in reached.items():
        figure(f"memory, {kind}: write 64 KiB within the host to swapped memory", line["to_swapped"], "times")
    for line in lines:
        if "missing" in line:
            print(f"no {line['kind']} memory here: {line['missing']}")
    assert {"swapped", "in_process", "shared", "unsealed"} <= reached.keys()
    assert ("swapped", 1 << 30) in registered and registered["swapped", 1 << 30]["register_cpu_us"] < 500_000
