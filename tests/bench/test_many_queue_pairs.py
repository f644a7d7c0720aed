"""Message rate with 128 to 32,768 queue pairs (SRNIC's figure 9): `make bench`. Processor time of both ends, without a kernel between them.

All numbers of queue pairs take turns in one process, so their ratios hold on a busy machine, too.
"""

import json
import os
import shutil
import subprocess

import pytest

from lab.fabric import build_directory
from lab.instructions import by_function

pytestmark = pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench")


@pytest.fixture(scope="module")
def costs():
    tool = build_directory() / "examples" / "many_queue_pairs"
    return json.loads(subprocess.run([tool], check=True, capture_output=True, text=True, timeout=300).stdout)


def test_message_rate(costs, figure):
    ns = {int(queue_pairs): cost for queue_pairs, cost in costs["message_ns"].items()}
    for queue_pairs, cost in ns.items():
        figure(f"512 B SEND over {queue_pairs} queue pairs, both ends", cost, "ns")
    rate = {queue_pairs: ns[128] / cost for queue_pairs, cost in ns.items()}
    assert rate[10_240] >= 0.95, f"the rate with 10,240 queue pairs is {rate[10_240]:.2f} of that with 128"
    assert rate[32_768] >= 0.90, f"the rate with 32,768 queue pairs is {rate[32_768]:.2f} of that with 128"


#: A level 1 data cache of 48 KiB and a level 2 cache of 2 MiB.
CACHES = ["--cache-sim=yes", "--D1=49152,12,64", "--LL=2097152,16,64"]
#: Messages of one round of the example.
MESSAGES = 1 << 17


def lines_missed(directory, rounds, queue_pairs):
    """Cache lines that the example has not found in the level 2 cache: of all functions, of the program's."""
    out = directory / f"profile-{rounds}"
    tool = build_directory() / "examples" / "many_queue_pairs"
    command = ["valgrind", "--tool=callgrind", *CACHES, f"--callgrind-out-file={out}", tool, str(rounds), str(queue_pairs)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    missed = {name: events["DLmr"] + events["DLmw"] for name, events in by_function(out.read_text()).items()}
    return sum(missed.values()), sum(count for name, count in missed.items() if name.startswith("many_queue_pairs::"))


@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is missing: apt-get install valgrind")
def test_lines_of_memory_for_each_message(tmp_path, figure):
    """What the rate depends on: lines that are in no cache. The simulated cache ignores prefetches, so it counts the lines themselves."""
    none, one = (lines_missed(tmp_path, rounds, 10_240) for rounds in (0, 1))
    total, program = ((b - a) / MESSAGES for a, b in zip(none, one))
    figure("lines of a message over 10,240 queue pairs, both daemons", total - program, "lines")
    figure("lines of a message over 10,240 queue pairs, both programs", program, "lines")
    assert total - program <= 29
    assert program <= 6


def test_connections_and_ends_do_not_grow_with_the_square(costs, figure):
    for what, name in (("connect_ns", "connection"), ("end_ns", "end")):
        ns = {int(queue_pairs): cost for queue_pairs, cost in costs[what].items()}
        for queue_pairs, cost in ns.items():
            figure(f"{name} of one of {queue_pairs} queue pairs, both ends", cost, "ns")
        # Caches make each dearer; a search through all queue pairs would make it 32 times as dear.
        assert ns[32_768] <= 4 * ns[1024]
