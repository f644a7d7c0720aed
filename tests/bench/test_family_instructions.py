"""Instructions of a selective repeat packet beside those of a go-back-N packet, and of URMA's WRITEs beside RC's, without loss:
`make bench`.

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


def instructions(directory, tool, kind, rounds, *family):
    """Instructions by object."""
    out = directory / "profile"
    program = build_directory() / "examples" / tool
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program, kind, str(rounds), *family]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return by_object(out.read_text())


def per_packet(directory, kind, *family):
    few, many = (sum(instructions(directory, "round_trips", kind, rounds, *family).values()) for rounds in ROUNDS)
    return (many - few) / (ROUNDS[1] - ROUNDS[0]) / PACKETS[kind]


@pytest.mark.parametrize("kind", PACKETS)
def test_selective_repeat_costs_little_more_than_go_back_n(tmp_path, figure, kind):
    standard, selective = per_packet(tmp_path, kind), per_packet(tmp_path, kind, "selective")
    figure(f"{kind}, both ends per packet, standard family", standard, "instr")
    figure(f"{kind}, both ends per packet, selective repeat", selective, "instr")
    figure(f"{kind}, selective repeat to standard family", selective / standard, "ratio")
    assert 0 < selective <= 1.05 * standard


#: URMA's requests have a transaction and a packet of a channel each, where RC has one; a long WRITE's packets after the first
#: take a short way, without which its bound fails.
@pytest.mark.parametrize("kind, bound", [("pings", 1.9), ("writes", 1.3)])
def test_a_write_of_urma_beside_one_of_rc(tmp_path, figure, kind, bound):
    """Round trips of 64 B, and WRITEs of 64 KiB. Without what the C library copies: the harness's ports copy and clear frames."""

    def per_round(transport):
        few, many = (instructions(tmp_path, "urma_round_trips", kind, rounds, transport) for rounds in ROUNDS)
        own = lambda counts: counts["urma_round_trips"]  # noqa: E731
        return (own(many) - own(few)) / (ROUNDS[1] - ROUNDS[0])

    urma, rc = per_round("worker"), per_round("rc")
    figure(f"{kind}, both ends, URMA", urma, "instr")
    figure(f"{kind}, both ends, URMA to RC", urma / rc, "ratio")
    assert 0 < urma <= bound * rc
