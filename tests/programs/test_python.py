"""Packages of PyPI that speak verbs: DLSlime, InfiniStore, and rdma4py (the package `ibverbs`) with its own test suite."""

import os
import re
from functools import partial
from pathlib import Path

import pytest
from lab.rows import PLACE, burst_run, foreign, python_version

SECONDS = 120
PYTHON = PLACE / "venv" / "bin" / "python3"
HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.download,
    pytest.mark.skipif(not PYTHON.exists(), reason="packages of PyPI are missing: scripts/install-deps --programs installs them"),
]


@pytest.mark.program("DLSlime (PyPI)", partial(python_version, "dlslime"))
def test_dlslime_writes_and_reads(hosts, command):
    words = [*burst_run(hosts.a), PYTHON, *command(HERE / "dlslime_peer.py")]
    server = hosts.b.start(*words, "serve", hosts.b.address, 5555)
    try:
        server.wait_for_text("listening", SECONDS)
        code, text = hosts.a.run(*words, "use", hosts.b.address, 5555, seconds=SECONDS)
        assert code == 0 and "checked" in text, text + server.text()
        assert server.wait(SECONDS) == 0 and "checked" in server.text(), server.text()
    finally:
        server.stop()


@pytest.mark.program("InfiniStore (PyPI)", partial(python_version, "infinistore"))
def test_infinistore_keeps_blocks(hosts, command):
    server = hosts.b.start(*burst_run(hosts.b), PYTHON, HERE / "infinistore_server.py", 22345)
    try:
        server.wait_for_text("serving", SECONDS)
        words = command(HERE / "infinistore_client.py", hosts.b.address, 22345)
        code, text = hosts.a.run(*burst_run(hosts.a), PYTHON, *words, seconds=SECONDS)
        assert code == 0 and "checked" in text, text + server.text()
        assert server.running(), server.text()
    finally:
        server.stop()


#: The folder `ibverbs/tests` of rdma4py's sources, which the wheel does not contain.
SUITE = "BURST_RDMAPY"


@foreign("BURST_RDMAPY", "the tests of rdma4py's package ibverbs")
@pytest.mark.program("rdma4py's suite (PyPI `ibverbs`)", partial(python_version, "ibverbs"))
def test_the_suite_of_rdma4py(hosts, command):
    words = [PYTHON, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-m", "not gpu", os.environ.get("BURST_RDMAPY", "")]
    code, text = hosts.a.run(*burst_run(hosts.a), *command(*words), seconds=5 * SECONDS)
    passed = re.search(r"(\d+) passed", text)
    assert code == 0 and passed and int(passed.group(1)) >= 50, text
