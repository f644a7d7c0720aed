"""Senders that share one link, in simulated time (`make bench`): equal shares, and a queue as the controllers promise it."""

import os

import pytest

from lab import fairness

pytestmark = pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench")


@pytest.mark.parametrize("senders", [2, 16])
@pytest.mark.parametrize("cc", fairness.CONTROLLERS)
def test_senders_share_a_link_fairly(cc, senders, figure):
    found = fairness.measure(cc, senders)
    figure(f"Jain's index of {senders} senders, {cc}", found["jain"], "index")
    figure(f"mean queue of {senders} senders, {cc}", found["queue_kb"]["mean"], "kB")
    assert found["jain"] > 0.95
    assert found["queue_kb"]["mean"] <= found["queue_bound_kb"]


def test_runs_are_equal():
    assert fairness.run("dctcp", 2, ms=20) == fairness.run("dctcp", 2, ms=20)
