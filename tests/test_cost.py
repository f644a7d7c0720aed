"""The cost of an idle daemon, and of posting and polling in the library."""

import shutil
import time

import pytest

from lab import build_directory
from lab.instructions import post_and_poll

IDLE_SECONDS = 5


def idle_share(daemon):
    """Share of a core used over some idle seconds."""
    time.sleep(1)
    before = daemon.cpu_seconds()
    time.sleep(IDLE_SECONDS)
    return (daemon.cpu_seconds() - before) / IDLE_SECONDS


def test_an_idle_daemon_uses_almost_no_processor_time(make_fabric):
    fabric = make_fabric()
    assert idle_share(fabric.a.daemon) < 0.005
    assert fabric.a.daemon.rss_kib() < 64 << 10


def test_a_thousand_idle_queue_pairs(make_fabric):
    fabric = make_fabric()
    before = fabric.a.daemon.rss_kib()
    program = fabric.a.start(build_directory() / "programs" / "idle_qps", "burst0", 1000)
    program.wait_for_text("ready", 60)
    cost = fabric.a.daemon.rss_kib() - before
    assert cost < 32 << 10, f"1000 idle queue pairs cost {cost} KiB"
    assert idle_share(fabric.a.daemon) < 0.005
    program.stop()


@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is missing: apt-get install valgrind")
def test_posting_and_polling_a_write_costs_few_instructions(make_fabric):
    """The whole table is in bench/test_instructions.py."""
    posting, polling = post_and_poll(make_fabric().a, "classic")
    assert posting > 50 and polling > 50, "the counter does not count"
    assert posting + polling < 400
