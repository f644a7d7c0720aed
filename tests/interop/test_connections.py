"""How connections are refused and how they end: the end that rejects or disconnects first, and the events at the other end.

`tests/programs/cm_peer.c` runs on both sides and says each event with its status and private data.
"""

import pytest

from lab import build_directory
from rig.guest import Guest
from rig.pairs import CLIENTS, FAMILIES, address_of, by_cm

PROGRAM = "cm_peer"
PORT = 7600
# The connection manager's reason for a refusal by the program (IBA table 108: consumer reject).
CONSUMER = 28
RESOLVED = ["RDMA_CM_EVENT_ADDR_RESOLVED 0", "RDMA_CM_EVENT_ROUTE_RESOLVED 0"]
FLUSHED = "flushed Work Request Flushed Error"


@pytest.fixture(params=CLIENTS, ids=lambda name: f"{name}-client")
def client(request):
    return request.param


@pytest.fixture(params=FAMILIES)
def talk(rig, client, request):
    """Runs the program on both sides: the lines of server and client."""

    def program(end):
        if isinstance(end, Guest):
            return end.install(build_directory() / "programs" / PROGRAM)
        return build_directory() / "programs" / PROGRAM

    def run(how):
        def words(end, part, server):
            return [program(end), part, address_of(server, request.param), PORT, how]

        asking = rig.host if client == "burst" else rig.guest
        texts = by_cm(rig, client, lambda end: words(end, "server", end), lambda end: words(asking, "client", end), PORT)
        return [[line.rstrip() for line in text.splitlines()] for text in texts]

    return run


def test_the_program_rejects(talk):
    server, client = talk("reject")
    assert server == ["listening", "RDMA_CM_EVENT_CONNECT_REQUEST 0 hello", "end"]
    assert client == [*RESOLVED, f"RDMA_CM_EVENT_REJECTED {CONSUMER} no, thank you", "end"]


@pytest.mark.parametrize("first", ["server", "client"])
def test_one_end_disconnects(talk, first):
    server, client = talk(first)
    said = ["listening", "RDMA_CM_EVENT_CONNECT_REQUEST 0 hello", "RDMA_CM_EVENT_ESTABLISHED 0", "received 0 a message"]
    assert server == [*said, "RDMA_CM_EVENT_DISCONNECTED 0", *[FLUSHED] * 2, "end"]
    said = [*RESOLVED, "RDMA_CM_EVENT_ESTABLISHED 0 welcome", "sent 0"]
    assert client == [*said, "RDMA_CM_EVENT_DISCONNECTED 0", *[FLUSHED] * 3, "end"]


def test_the_peer_has_no_extended_connections(rig):
    """XRC is tested between Bursts only. This test fails when a kernel's rxe offers XRC."""
    _, ours = rig.host.run("ibv_devinfo", "-v", "-d", "burst0")
    _, theirs = rig.guest.run("ibv_devinfo", "-v", "-d", "rxe0")
    assert "device_cap_flags" in theirs
    assert ("XRC" in ours.split(), "XRC" in theirs.split()) == (True, False)
