"""The cost of an idle daemon, and of posting and polling in the library."""

import shutil
import time

import pytest

from lab import build_directory
from lab.instructions import post_and_poll

IDLE_SECONDS, IDLE_SHARE = 5, 0.005
# Idle queue pairs, and the bytes that each may cost.
COUNT, IDLE_BYTES = 10_000, 2048


def idle_share(daemon):
    """Share of a core used over some idle seconds: the least of up to four measurements, because beside other programs the same work
    takes more time, and what the daemon did before may not have ended."""
    shares = []
    while len(shares) < 4 and not (shares and min(shares) < IDLE_SHARE):
        time.sleep(1)
        before = daemon.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        shares.append((daemon.cpu_seconds() - before) / IDLE_SECONDS)
    return min(shares)


@pytest.mark.alone
def test_an_idle_daemon_uses_almost_no_processor_time(make_fabric):
    fabric = make_fabric()
    assert idle_share(fabric.a.daemon) < IDLE_SHARE
    assert fabric.a.daemon.rss_kib() < 64 << 10


@pytest.mark.alone
def test_ten_thousand_idle_queue_pairs(make_fabric):
    """What each connected queue pair costs the daemon beside the application's rings, which are shared memory."""
    fabric = make_fabric()
    idle_qps = build_directory() / "programs" / "idle_qps"
    # The first program shows what the daemon needs for any.
    few = fabric.a.start(idle_qps, "burst0", 1)
    few.wait_for_text("ready", 60)
    before = fabric.a.daemon.rss_kib(files=False, shared=False)
    many = fabric.a.start(idle_qps, "burst0", COUNT)
    many.wait_for_text("ready", 120)
    cost = (fabric.a.daemon.rss_kib(files=False, shared=False) - before) * 1024 / COUNT
    assert cost < IDLE_BYTES, f"an idle queue pair costs {cost:.0f} bytes of the daemon's memory"
    assert idle_share(fabric.a.daemon) < IDLE_SHARE
    many.stop()
    few.stop()


@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is missing: apt-get install valgrind")
def test_posting_and_polling_a_write_costs_few_instructions(make_fabric):
    """The whole table is in bench/test_instructions.py."""
    posting, polling = post_and_poll(make_fabric().a, "classic")
    assert posting > 50 and polling > 50, "the counter does not count"
    assert posting + polling < 400
