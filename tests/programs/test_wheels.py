"""Wheels that carry a libibverbs of their own, as PyPI has them: `burst run` alone puts Burst's before it."""

import subprocess
from pathlib import Path

import pytest
from lab.rows import PLACE, burst_run

SECONDS = 180
#: Environments of their own: a copy in one makes `burst run` preload for each program of it.
PYTHON = PLACE / "wheels" / "bin" / "python3"
HERE = Path(__file__).parent
BYTES = 1 << 24

pytestmark = [
    pytest.mark.download,
    pytest.mark.skipif(not PYTHON.exists(), reason="wheels of PyPI are missing: scripts/install-deps --programs installs them"),
]


def version():
    done = subprocess.run([PYTHON, "-c", "import importlib.metadata as m; print(m.version('nixl-cu12'))"], capture_output=True, text=True)
    return done.stdout.strip() or "?"


@pytest.mark.program("NIXL (PyPI `nixl-cu12`)", version)
def test_nixl_writes_by_ucx(hosts, command):
    """No transport but verbs: without the device the agents have no backend, and a copy that is not replaced finds none."""
    env = {"UCX_TLS": "rc_verbs,ud_verbs,self", "UCX_NET_DEVICES": "burst0:1"}
    words = [PYTHON, *command(HERE / "nixl_write.py")]
    code, text = hosts.a.run(*burst_run(hosts.a), *words, env=env, seconds=SECONDS)
    assert code == 0 and f"checked {BYTES} bytes" in text, text
    code, text = hosts.a.run(*burst_run(hosts.a), "env", "LD_PRELOAD=", *words, env=env, seconds=SECONDS)
    assert code != 0 and "NIXL_ERR_BACKEND" in text, text
