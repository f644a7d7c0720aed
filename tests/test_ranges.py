"""Attributes and flags at the edge of what is allowed: `tests/programs/ranges.c`."""

import pytest

from lab import build_directory

RANGES = "ok counts and timers\nok overruns cannot be ignored\nok a region has bytes\n"


@pytest.mark.parametrize("in_process", [False, True], ids=["daemon", "in process"])
def test_what_the_kernel_accepts_is_accepted(make_fabric, in_process):
    assert make_fabric(in_process=in_process).a.run(build_directory() / "programs" / "ranges") == (0, RANGES)
