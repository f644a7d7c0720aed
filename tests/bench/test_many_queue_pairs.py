"""Message rate with 128 to 32,768 queue pairs (SRNIC's figure 9): `make bench`. Processor time of both ends, without a kernel between them.

All numbers of queue pairs take turns in one process, so their ratios hold on a busy machine, too.
"""

import json
import os
import subprocess

import pytest

from lab.fabric import build_directory

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


def test_connections_and_ends_do_not_grow_with_the_square(costs, figure):
    for what, name in (("connect_ns", "connection"), ("end_ns", "end")):
        ns = {int(queue_pairs): cost for queue_pairs, cost in costs[what].items()}
        for queue_pairs, cost in ns.items():
            figure(f"{name} of one of {queue_pairs} queue pairs, both ends", cost, "ns")
        # Caches make each dearer; a search through all queue pairs would make it 32 times as dear.
        assert ns[32_768] <= 4 * ns[1024]
