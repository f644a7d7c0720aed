"""The demo's promise to leave nothing behind, however it is ended. What it measures is not tested here."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.fabric import ROOT


def traces():
    """Processes, interfaces and directories that a laboratory makes."""
    found = {entry.name for entry in Path("/sys/class/net").iterdir()}
    found |= {str(path) for path in Path("/tmp").glob("burst-lab-*")}
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if b"burst-lab-" in words or b"ib_write_bw" in words or b"exec cat" in words or b"iperf3" in words:
            found.add(words.decode(errors="replace"))
    return found


def wait_until_clean(before):
    limit = time.monotonic() + 10
    while traces() - before:
        assert time.monotonic() < limit, f"left behind: {traces() - before}"
        time.sleep(0.1)


def start(delay):
    words = [sys.executable, ROOT / "scripts" / "demo"]
    demo = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    for line in demo.stdout:
        if "burstd serves" in line:
            break
    time.sleep(delay)
    assert demo.poll() is None
    return demo


@pytest.mark.parametrize("delay", [0, 4])
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_ended_demo_leaves_nothing(namespaces, sign, delay):
    before = traces()
    demo = start(delay)
    demo.send_signal(sign)
    text, _ = demo.communicate(timeout=20)
    assert demo.returncode == 1 and f"{sign.name}; everything is taken down" in text
    wait_until_clean(before)


def test_a_killed_demo_leaves_no_process(namespaces):
    before = traces()
    demo = start(3)
    demo.kill()
    demo.communicate(timeout=20)
    limit = time.monotonic() + 10
    while left := {t for t in traces() - before if not t.startswith("/tmp/")}:
        assert time.monotonic() < limit, f"left behind: {left}"
        time.sleep(0.1)
    for directory in {t for t in traces() - before if t.startswith("/tmp/")}:
        # Nobody can remove a directory after SIGKILL; it holds two sockets.
        for file in Path(directory).iterdir():
            file.unlink()
        os.rmdir(directory)
