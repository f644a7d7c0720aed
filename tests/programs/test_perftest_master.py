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


@pytest.mark.parametrize("service, operation, kind", POSSIBLE, ids=["-".join(case) for case in POSSIBLE])
def test_all_options(hosts, command, service, operation, kind):
    for option in POSSIBLE[service, operation, kind]:
        words = run_options(hosts.b, hosts.a, (service, operation, kind, option), SECONDS, PLACE)
        command(*words)


def test_a_null_region_at_the_client(hosts, command):
    """The client's own memory is a null region: what it writes are zeros, what it reads is discarded."""
    for tool in ("ib_write_bw", "ib_read_bw"):
        words = command(PLACE / tool, "-d", "burst0", "-F", "-n", 200, "--use-null-mr")
        result = run_pair(hosts.b, hosts.a, words, server_words=words[:-1], seconds=SECONDS)
        assert result.row[1] == 200, result.client
