"""Mooncake's transfer engine, which moves the key-value caches of language models between hosts, unmodified from PyPI.

It finds the device in /sys/class/infiniband, takes the IPv6 address of it by itself, connects its queue pairs over a TCP
conversation of its own, and has threads that poll. It is 46 MB of wheel: the test runs with BURST_MATRIX=1 only, after
`scripts/install-deps --matrix`.
"""

import os
from pathlib import Path

import pytest
from conftest import BUILD

SECONDS = 60
#: A Python with mooncake.
PYTHON = Path(__file__).parents[1] / "target" / "matrix" / "bin" / "python3"
PEER = Path(__file__).parent / "programs" / "mooncake_peer.py"

if os.environ.get("BURST_MATRIX") == "1":

    @pytest.mark.skipif(not PYTHON.exists(), reason="mooncake is missing: scripts/install-deps --matrix")
    def test_transfer_engine(fabric, tmp_path):
        words = [BUILD / "burst", "run", "--no-start", "--", PYTHON, PEER]
        server = fabric.b.start(*words, "serve", fabric.b.address, tmp_path / "place")
        try:
            before = fabric.a.stats()
            code, text = fabric.a.run(*words, "use", fabric.a.address, tmp_path / "place", seconds=SECONDS)
            assert code == 0 and "checked" in text, text + server.text()
            assert server.wait(SECONDS) == 0 and "checked" in server.text(), server.text()
        finally:
            server.stop()
        after = fabric.a.stats()
        for counter in ("rx_bytes", "tx_bytes"):
            assert after[counter] - before[counter] > 8 << 20, "the data did not go over Burst, but over TCP"
