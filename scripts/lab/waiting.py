"""Waiting for a condition with a deadline, on machines that are busy or paused at times.

The host of a virtual machine may pause it for seconds, in which no program can make progress; and where many programs want the
processors, each gets a part of them. A deadline therefore advances with the clock, but by at most `LOOK_SECONDS` between two looks, and
more slowly by as much as there are more running threads than processors.
"""

import os
import time
from pathlib import Path

LOOK_SECONDS = 0.25
EVERY_SECONDS = 0.02
#: How long a test waits by default. A bound on a hang, not on a duration: other programs may have the processors for seconds.
WAIT_SECONDS = 60


class LabError(Exception):
    """A part of the test set-up itself does not work."""


def contention():
    """How many threads run or want to run for each processor, at least 1."""
    running = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0])
    return max(1.0, running / len(os.sched_getaffinity(0)))


class Deadline:
    """A number of seconds within which a condition must hold."""

    def __init__(self, seconds):
        self.seconds, self.since = seconds, time.monotonic()

    def left(self):
        """Whether time is left. Reads the clock."""
        now = time.monotonic()
        self.seconds -= min(now - self.since, LOOK_SECONDS) / contention()
        self.since = now
        return self.seconds > 0


def await_true(what, seconds=WAIT_SECONDS, every=EVERY_SECONDS):
    """Waits until `what()` is true; returns its last value, true or not."""
    deadline = Deadline(seconds)
    while not (value := what()) and deadline.left():
        time.sleep(every)
    return value


def wait_until(what, seconds=WAIT_SECONDS, said=None, program=None):
    """Waits until `what()` is true, and returns its value. Raises LabError with the text of `said()` if that does not happen in time, or if
    `program` ends first."""
    deadline = Deadline(seconds)
    while True:
        # Read before `what()`, so that the last action of a program that ends counts.
        running = program is None or program.running()
        if value := what():
            return value
        if not running or not deadline.left():
            break
        time.sleep(EVERY_SECONDS)
    why = "the condition did not become true" if running else f"{' '.join(program.words)} has ended"
    details = said() if said else program.text() if program else ""
    raise LabError(f"{why}\n{details}".strip())
