"""Debian's perftest, one side on burstd and the other on the kernel's rxe: every transport, operation and family."""

import pytest

from lab import LabError
from rig.pairs import CLIENTS, FAMILIES, by_gid

RELIABLE = [
    ["ib_send_bw"], ["ib_write_bw"], ["ib_read_bw"], ["ib_atomic_bw"],
    ["ib_send_lat"], ["ib_write_lat"], ["ib_read_lat"], ["ib_atomic_lat"],
]
UNRELIABLE = [
    ["ib_send_bw", "-c", "UC"], ["ib_write_bw", "-c", "UC"], ["ib_send_lat", "-c", "UC"], ["ib_write_lat", "-c", "UC"],
    ["ib_send_bw", "-c", "UD"], ["ib_send_lat", "-c", "UD"],
]
ROUNDS = 50
# An emulated processor may be away for longer than perftest's usual 67 ms seven times; this is 0.5 s.
TIMEOUT = ["-u", 17]
ATTEMPTS = 3
MTUS = (1500, 4200, 9000)


def name(words):
    return "-".join(str(word) for word in words if word != "-c")


def patiently(rig, words, family, client):
    """Unreliable services may lose a message on a busy host, and perftest then waits for it for ever: not each time, though."""
    for attempt in range(ATTEMPTS):
        try:
            return by_gid(rig, words, family, client, seconds=20)
        except LabError:
            if attempt + 1 == ATTEMPTS:
                raise


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("words", RELIABLE + UNRELIABLE, ids=name)
def test_perftest(rig, words, family, client):
    size = 8 if "atomic" in words[0] else 1024 if "UD" in words else 65536 if "bw" in words[0] else 64
    sized = [] if "atomic" in words[0] else ["-s", size]
    words = [*words, "-F", *TIMEOUT, *sized, "-n", ROUNDS]
    result = patiently(rig, words, family, client) if "-c" in words else by_gid(rig, words, family, client)
    assert result.row[0] == size and result.row[1] == ROUNDS
