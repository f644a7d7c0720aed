"""Instructions of a selective repeat packet beside those of a go-back-N packet, without loss: `make bench`.

Both ends, whole workers over the `mem` port: no kernel and no ICRC, which would be equal parts of both numbers and hide a difference.
The counts are repeatable, so one run is enough.
"""

import os
import shutil
import subprocess

import pytest

from lab.fabric import build_directory
from lab.instructions import by_object

pytestmark = [
    pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench"),
    pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is missing: apt-get install valgrind"),
]

#: Rounds of the two runs whose difference counts.
ROUNDS = (200, 700)
#: Data packets of one round.
PACKETS = {"pings": 2, "stream": 16, "writes": 64}


def instructions(directory, kind, rounds, *family):
    out = directory / "profile"
    tool = build_directory() / "examples" / "round_trips"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", tool, kind, str(rounds), *family]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return sum(by_object(out.read_text()).values())


def per_packet(directory, kind, *family):
    few, many = (instructions(directory, kind, rounds, *family) for rounds in ROUNDS)
    return (many - few) / (ROUNDS[1] - ROUNDS[0]) / PACKETS[kind]


@pytest.mark.parametrize("kind", PACKETS)
def test_selective_repeat_costs_little_more_than_go_back_n(tmp_path, figure, kind):
    standard, selective = per_packet(tmp_path, kind), per_packet(tmp_path, kind, "selective")
    figure(f"{kind}, both ends per packet, standard family", standard, "instr")
    figure(f"{kind}, both ends per packet, selective repeat", selective, "instr")
    figure(f"{kind}, selective repeat to standard family", selective / standard, "ratio")
    assert 0 < selective <= 1.05 * standard
