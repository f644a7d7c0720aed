"""burstd as the service starts it, with a user, capabilities, limits and a socket of its own, against the kernel's rxe."""

import os
import re
from pathlib import Path

import pytest
from lab.service import SERVICE_UID, Service
from rig.pairs import CLIENTS, by_gid

# An emulated processor may be away for longer than perftest's usual 67 ms seven times; this is 0.5 s.
TIMEOUT = ["-u", 17]


@pytest.fixture
def confined(rig):
    """The rig while its daemon is confined."""
    rig.host.daemon.stop()
    rig.host.daemon = Service(rig.host.prefix(), rig.host.socket, rig.port, dict(os.environ))
    yield rig
    ended = rig.host.daemon.stop()
    text = rig.host.daemon.text()
    rig.host.start_daemon(rig.port, rig.extra)
    assert ended == 0 and "panicked" not in text, text


@pytest.mark.parametrize("client", CLIENTS)
def test_perftest_with_a_confined_daemon(confined, client):
    status = Path(f"/proc/{confined.host.daemon.pid}/status").read_text()
    assert re.search(rf"^Uid:\s+{SERVICE_UID}\s", status, re.M) and re.search(r"^NoNewPrivs:\s+1$", status, re.M), status
    result = by_gid(confined, ["ib_write_bw", "-F", *TIMEOUT, "-s", 65536, "-n", 50], "ipv4", client)
    assert (result.row[0], result.row[1]) == (65536, 50)
