"""Doorbells beside the designs that BURST compares (table 2, figure 3): `make bench`. Nanoseconds for one item, medians of five rounds in turns.

The paper's times grow with the contention of many processors. Where processors are few, more threads than processors show what a producer
without a processor costs the others.
"""

import json
import os
import subprocess
from statistics import mean

import pytest

from lab.fabric import build_directory

pytestmark = pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench")


@pytest.fixture(scope="module")
def costs():
    tool = build_directory() / "examples" / "doorbells"
    return json.loads(subprocess.run([tool], check=True, capture_output=True, text=True, timeout=300).stdout)


def test_many_producers(costs, figure):
    ours, block = costs["producers"]["bitmap"], costs["producers"]["block"]
    for design, by_threads in costs["producers"].items():
        for threads, ns in by_threads.items():
            figure(f"doorbells: {threads} producers, {design}", ns, "ns")
    # The block queue has one atomic operation less, and loses the ring of a producer that is late. Threads that lose their processor make
    # single figures noisy.
    assert mean(ours[threads] / block[threads] for threads in ours) <= 1.25
    assert mean(ours.values()) < mean(costs["producers"]["mutex"].values())


def test_many_queue_pairs(costs, figure):
    for design, by_queues in costs["queues"].items():
        for queues, ns in by_queues.items():
            figure(f"doorbells: {queues} queue pairs, {design}", ns, "ns")
    ours, polled = costs["queues"]["bitmap"], costs["queues"]["per_qp"]
    # A ring changes up to three words more when no other has come before it; it does not grow with the queue pairs.
    assert ours["65536"] <= 1.5 * ours["4096"]
    assert polled["65536"] >= 10 * ours["65536"]
