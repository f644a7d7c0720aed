"""What posting and polling cost the program, in instructions of the library: repeatable, so bounds are tight."""

import os
import shutil

import pytest

from lab.instructions import post_and_poll

pytestmark = [
    pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench"),
    pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is missing: apt-get install valgrind"),
]


@pytest.mark.parametrize("batch, bound", [(1, 400), (16, 250)])
def test_one_write(fabric, batch, bound):
    """One request at a time (which rings the doorbell), and sixteen at a time (which shares it)."""
    classic, extended = (post_and_poll(fabric.a, interface, batch) for interface in ("classic", "extended"))
    print(f"batch {batch}: classic {classic}, extended {extended}")
    assert 0 < sum(classic) < bound
    assert abs(sum(extended) / sum(classic) - 1) <= 0.1
