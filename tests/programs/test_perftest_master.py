"""perftest as it is developed (branch master), beside Debian's: every service, operation and option (lab.perftest_options), and what only it has.

BURST_PERFTEST names a folder with its built programs."""

import os
import subprocess
from pathlib import Path

import pytest
from lab import run_pair
from lab.perftest_options import POSSIBLE, run_options
from lab.rows import foreign

SECONDS = 120
PLACE = Path(os.environ.get("BURST_PERFTEST", "/nonexistent"))


def version():
    done = subprocess.run([PLACE / "ib_send_bw", "--version"], capture_output=True, text=True)
    return done.stdout.split()[-1] if done.stdout.split() else "?"


pytestmark = [
    pytest.mark.download, foreign("BURST_PERFTEST", "ib_send_bw"), pytest.mark.program("perftest of its branch master", version)
]


@pytest.mark.parametrize("service, operation, kind", POSSIBLE, ids="-".join)
def test_all_options(hosts, command, service, operation, kind):
    for option in POSSIBLE[service, operation, kind]:
        words = run_options(hosts.b, hosts.a, (service, operation, kind, option), SECONDS, PLACE)
        command(*words)


@pytest.mark.parametrize("words", [["ib_write_bw", "--use-null-mr"], ["ib_read_bw", "--use-null-mr"], ["ib_send_bw", "-c", "RC", "--tos", 96]], ids=lambda words: " ".join(map(str, words)))
def test_options_of_master(hosts, command, words):
    tool, *rest = words
    words = command(PLACE / tool, "-d", "burst0", "-F", "-n", 200, *rest)
    assert run_pair(hosts.b, hosts.a, words, seconds=SECONDS).row[1] == 200
