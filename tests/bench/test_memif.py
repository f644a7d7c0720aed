"""The dpdk port over memif, two processes on one machine, next to the udp port over veth in the same run (`make bench`).

One worker per side. Each side is kept to one processor, its daemon and its program together, as on two hosts: left to
itself the kernel may put both daemons on one processor, because the polling client looks busy on the other.
"""

import os
from statistics import median

import pytest

import lab
from lab.memif import meet, wires, without_dpdk

pytestmark = pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench")

ROUNDS = 3
LARGE = ["ib_write_bw", "-d", "burst0", "-F", "--report_gbits", "-D", 1, "-s", 64 << 10]
SMALL = ["ib_write_bw", "-d", "burst0", "-F", "--report_gbits", "-D", 1, "-s", 64, "-q", 16, "-l", 16]
GBITS_MIN = 20
MPPS_MIN = 1.0


@pytest.fixture(scope="module")
def memif(tmp_path_factory):
    said = without_dpdk(tmp_path_factory.mktemp("probe"))
    if said:
        pytest.skip(said)
    apart = (os.cpu_count() or 1) > 1
    pair = wires(tmp_path_factory.mktemp("memif"), cpus=("0", "1") if apart else None)
    yield pair
    for wire in pair:
        wire.daemon.stop()


def in_turns(memif, fabric, words, read):
    """Medians over memif and over veth."""
    values = ([], [])
    for _ in range(ROUNDS):
        values[0].append(read(meet(*memif, words)))
        values[1].append(read(lab.run_pair(fabric.b, fabric.a, words)))
    return [median(row) for row in values]


def test_large_writes(memif, fabric):
    own, udp = in_turns(memif, fabric, LARGE, lambda r: r.gbits)
    print(f"64 KiB writes: memif {own:.1f} Gbit/s, udp over veth {udp:.1f} Gbit/s")
    assert own >= GBITS_MIN


def test_small_writes(memif, fabric):
    own, udp = in_turns(memif, fabric, SMALL, lambda r: r.mpps)
    print(f"64 B writes, 16 queue pairs, lists of 16: memif {own:.2f} M/s, udp over veth {udp:.2f} M/s")
    assert own >= MPPS_MIN
