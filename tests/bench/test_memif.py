"""The dpdk port over memif, two processes on one machine, next to the udp port over veth in the same run (`make bench`).

One worker per side. The daemon and the program of each side are pinned to one processor. Without pinning the kernel may put both
daemons on one processor, because the polling client keeps the other one busy.
"""

import os

import pytest

import lab
from lab import measure
from lab.memif import meet, wires, without_dpdk

pytestmark = pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench")

ROUNDS = 3
LARGE = ["ib_write_bw", "-d", "burst0", "-F", "--report_gbits", "-D", 1, "-s", 64 << 10]
SMALL = ["ib_write_bw", "-d", "burst0", "-F", "--report_gbits", "-D", 1, "-s", 64, "-q", 16, "-l", 16]
GBITS_MIN = 20
MPPS_MIN = 1.0


@pytest.fixture(scope="module")
def memif(tmp_path_factory):
    reason = without_dpdk(tmp_path_factory.mktemp("probe"))
    if reason:
        pytest.skip(reason)
    apart = (os.cpu_count() or 1) > 1
    pair = wires(tmp_path_factory.mktemp("memif"), cpus=("0", "1") if apart else None)
    yield pair
    for wire in pair:
        wire.daemon.stop()


def in_turns(memif, fabric, words, read):
    """Medians over memif and over veth."""
    return measure.in_turns(lambda: read(meet(*memif, words)), lambda: read(lab.run_pair(fabric.b, fabric.a, words)), rounds=ROUNDS)


def test_large_writes(memif, fabric, figure):
    own, udp = in_turns(memif, fabric, LARGE, lambda r: r.gbits)
    figure("memif: ib_write_bw 64 KiB", own, "Gbit/s")
    figure("memif: ib_write_bw 64 KiB to udp over veth", own / udp, "ratio")
    assert own >= GBITS_MIN


def test_small_writes(memif, fabric, figure):
    own, udp = in_turns(memif, fabric, SMALL, lambda r: r.mpps)
    figure("memif: ib_write_bw 64 B -q 16 -l 16", own, "M/s")
    figure("memif: ib_write_bw 64 B -q 16 -l 16 to udp over veth", own / udp, "ratio")
    assert own >= MPPS_MIN
