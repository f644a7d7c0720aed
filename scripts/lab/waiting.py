"""Waiting for what must come about, on machines that are busy and that stand still at times.

A host of virtual machines may stop one for seconds. Nobody has done anything meanwhile, so nobody is late: patience runs by the
clock, but no more than `LOOK_SECONDS` of it between two looks.
"""

import time

LOOK_SECONDS = 0.25
EVERY_SECONDS = 0.02


class LabError(Exception):
    """Something of the laboratory itself does not work."""


class Patience:
    """Seconds in which something must come about."""

    def __init__(self, seconds):
        self.seconds, self.since = seconds, time.monotonic()

    def left(self):
        """Whether there is some left; looks at the clock."""
        now = time.monotonic()
        self.seconds -= min(now - self.since, LOOK_SECONDS)
        self.since = now
        return self.seconds > 0


def await_true(what, seconds=15, every=EVERY_SECONDS):
    """Waits until `what()` is true; its last value, true or not."""
    patience = Patience(seconds)
    while not (value := what()) and patience.left():
        time.sleep(every)
    return value


def wait_until(what, seconds=15, said=None, program=None):
    """Waits until `what()` is true, and returns that. LabError, with what `said()` says, if that does not come about in time, or if
    `program` ends before."""
    patience = Patience(seconds)
    while True:
        # Before the look: what a program did last counts, too.
        running = program is None or program.running()
        if value := what():
            return value
        if not running or not patience.left():
            break
        time.sleep(EVERY_SECONDS)
    why = "does not come about" if running else f"{' '.join(program.words)} has ended"
    details = said() if said else program.text() if program else ""
    raise LabError(f"{why}\n{details}".strip())
