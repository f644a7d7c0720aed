"""Debian's perftest, one side on burstd and the other on the kernel's rxe: every transport, operation and family."""

import pytest

from rig.pairs import CLIENTS, FAMILIES, by_gid

# rxe lets a peer have 128 READs outstanding and perftest takes that for the client's limit, whatever the client's device says.
READS = ["-o", 16]
RELIABLE = [
    ["ib_send_bw"], ["ib_write_bw"], ["ib_read_bw", *READS], ["ib_atomic_bw", *READS],
    ["ib_send_lat"], ["ib_write_lat"], ["ib_read_lat", *READS], ["ib_atomic_lat", *READS],
]
UNRELIABLE = [
    ["ib_send_bw", "-c", "UC"], ["ib_write_bw", "-c", "UC"], ["ib_send_lat", "-c", "UC"], ["ib_write_lat", "-c", "UC"],
    ["ib_send_bw", "-c", "UD"], ["ib_send_lat", "-c", "UD"],
]
ROUNDS = 50
# An emulated processor may be away for longer than perftest's usual 67 ms seven times; this is 0.5 s.
PATIENCE = ["-u", 17]
MTUS = (1500, 4200, 9000)


def name(words):
    return "-".join(str(word) for word in words if word not in ("-c", *READS))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("words", RELIABLE + UNRELIABLE, ids=name)
def test_perftest(rig, words, family, client):
    size = 8 if "atomic" in words[0] else 1024 if "UD" in words else 65536 if "bw" in words[0] else 64
    sized = [] if "atomic" in words[0] else ["-s", size]
    result = by_gid(rig, [*words, "-F", *PATIENCE, *sized, "-n", ROUNDS], family, client)
    assert result.row[0] == size and result.row[1] == ROUNDS
