"""The demo leaves no process, interface or file behind, however it ends. Its measurements are not tested here."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from lab import wait_until, waiting
from lab.fabric import ROOT


class Place:
    """A directory for a demo's temporary files. Its name, in the environment, identifies the demo's processes."""

    def __init__(self):
        # It contains sockets, and their paths must be short.
        self.directory = tempfile.mkdtemp(prefix="burst-demo-")
        self.interfaces = set(os.listdir("/sys/class/net"))

    def start(self, delay):
        """A running demo whose daemons serve."""
        words, env = [sys.executable, ROOT / "scripts" / "demo"], {**os.environ, "TMPDIR": self.directory}
        demo = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=env
        )
        for line in demo.stdout:
            if "burstd serves" in line:
                break
        assert os.listdir(self.directory) and len(self.processes()) > 3, "traces would not be found"
        time.sleep(delay)
        assert demo.poll() is None
        return demo

    def processes(self):
        found = set()
        mark = f"TMPDIR={self.directory}".encode()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.add((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
        return found

    def await_clean(self, files=True):
        """Waits until no process, no interface and, with `files`, nothing in the directory is left."""
        left = lambda: [  # noqa: E731
            *self.processes(),
            *(set(os.listdir("/sys/class/net")) - self.interfaces),
            *(os.listdir(self.directory) if files else []),
        ]
        wait_until(lambda: not left(), said=lambda: f"left behind: {left()}")


@pytest.fixture
def place(namespaces):
    made = Place()
    yield made
    shutil.rmtree(made.directory)


@pytest.mark.parametrize("delay", [0, 4])
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_ended_demo_leaves_nothing(place, sign, delay):
    demo = place.start(delay)
    demo.send_signal(sign)
    text, _ = demo.communicate(timeout=60 * waiting.contention())
    assert demo.returncode == 1 and f"{sign.name}; everything is taken down" in text
    place.await_clean()


def test_a_killed_demo_leaves_no_process(place):
    demo = place.start(3)
    demo.kill()
    demo.communicate(timeout=60 * waiting.contention())
    # After SIGKILL the directory with two sockets stays.
    place.await_clean(files=False)
