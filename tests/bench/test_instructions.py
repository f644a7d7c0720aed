"""Instructions that the library executes to post and to poll one write. The count is repeatable, so bounds are tight."""

import os
import shutil

import pytest

from lab.instructions import post_and_poll

pytestmark = [
    pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench"),
    pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is missing: apt-get install valgrind"),
]


@pytest.mark.parametrize("batch, bound", [(1, 400), (16, 250)])
def test_one_write(fabric, figure, batch, bound):
    """One request per call, which rings the doorbell each time, and sixteen per call, which share one ring."""
    classic, extended = (post_and_poll(fabric.a, interface, batch) for interface in ("classic", "extended"))
    for interface, (posting, polling) in (("classic", classic), ("extended", extended)):
        figure(f"posting one write, batch {batch}, {interface}", posting, "instr")
        figure(f"polling one write, batch {batch}, {interface}", polling, "instr")
    assert 0 < sum(classic) < bound
    assert abs(sum(extended) / sum(classic) - 1) <= 0.1
