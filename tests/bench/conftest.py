"""What holds for all figures: one owner of the processors, and the kernel's autogroups off meanwhile.

With autogroups each session of processes has its share of a processor, so that a poller that yields gives way to its own
session only, and the daemon is of another one (measured on two processors: 64 KiB writes at 60 %, a polled round trip one
and a half times as long). Servers that put daemon and programs into control groups have none; docs/running.md.
"""

import os
from pathlib import Path

import pytest

SWITCH = Path("/proc/sys/kernel/sched_autogroup_enabled")


@pytest.fixture(scope="session", autouse=True)
def no_autogroups():
    before = SWITCH.read_text().strip() if SWITCH.exists() else "0"
    if before == "0":
        yield
        return
    if not os.access(SWITCH, os.W_OK):
        pytest.exit(f"figures are measured with {SWITCH} at 0, which needs root to set", returncode=2)
    SWITCH.write_text("0")
    yield
    SWITCH.write_text(before)
