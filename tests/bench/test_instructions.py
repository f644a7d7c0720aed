"""Instructions that the library executes to post and to poll one write. The count is repeatable, so bounds are tight."""

import os
import shutil

import pytest

from lab import Fabric
from lab.fabric import build_directory
from lab.instructions import by_object, post_and_poll

pytestmark = [
    pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench"),
    pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is missing: apt-get install valgrind"),
]


@pytest.fixture(scope="module")
def in_process(namespaces):
    with Fabric(in_process=True) as made:
        yield made


@pytest.mark.parametrize("batch, bound", [(1, 400), (16, 250)])
def test_one_write(fabric, figure, batch, bound):
    """One request per call, which rings the doorbell each time, and sixteen per call, which share one ring."""
    classic, extended = (post_and_poll(fabric.a, interface, batch) for interface in ("classic", "extended"))
    for interface, (posting, polling) in (("classic", classic), ("extended", extended)):
        figure(f"posting one write, batch {batch}, {interface}", posting, "instr")
        figure(f"polling one write, batch {batch}, {interface}", polling, "instr")
    assert 0 < sum(classic) < bound
    assert abs(sum(extended) / sum(classic) - 1) <= 0.1


#: Requests of the two runs whose difference counts.
REQUESTS = (1024, 4096)


@pytest.mark.parametrize("batch, bound", [(1, 9300), (64, 2350)])
def test_one_write_in_process(in_process, figure, tmp_path, batch, bound):
    """All instructions outside of the kernel for a WRITE of a program with an engine of its own to itself: both ends, and the poll."""

    def run(requests):
        out = tmp_path / f"profile-{requests}"
        program = [build_directory() / "programs" / "post_poll", "burst0", "classic", requests, batch, "polling"]
        words = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *program]
        # Without the keeper, whose naps depend on the clock.
        code, text = in_process.a.run(*words, seconds=120, env={"BURST_KEEPER": "off"})
        assert code == 0, text
        return sum(by_object(out.read_text()).values())

    few, many = map(run, REQUESTS)
    each = (many - few) / (REQUESTS[1] - REQUESTS[0])
    figure(f"one 64 B WRITE in process to itself, both ends, batch {batch}", each, "instr")
    assert 0 < each <= bound
