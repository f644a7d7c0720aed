"""Unmodified programs of rdma-core and perftest over rdma_cm and by addresses exchanged over TCP."""

import pytest

from lab import LabError
from rig import Loss
from rig.pairs import CLIENTS, FAMILIES, address_of, by_cm, by_gid

RELIABLE = ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw", "ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_lat"]
PERFTEST_PORT, RPING_PORT = 18515, 7174
# perftest connects twice by rdma_cm, and its server listens for the second connection a little after a fast client's request.
TOO_EARLY = ("RDMA_CM_EVENT_REJECTED; error: 8", "RDMA_CM_EVENT_UNREACHABLE; error: 1")
ATTEMPTS = 4
# Attributes of a connection's request and of a datagram service's.
REQ, SIDR_REQ = 0x10, 0x17
EXAMPLE_PORTS = {"ucmatose": 7471, "udaddy": 7174}

clients = pytest.mark.parametrize("client", CLIENTS, ids=lambda name: f"{name}-client")
families = pytest.mark.parametrize("family", FAMILIES)


@clients
@families
@pytest.mark.parametrize("kind", ["rc", "uc", "ud", "srq"])
def test_pingpong(rig, kind, family, client):
    """-c compares the bytes; the datagram program has no such option in every release and is run without."""
    checked = [] if kind == "ud" else ["-c"]
    text = by_gid(rig, [f"ibv_{kind}_pingpong", "-n", 100, *checked], family, client, flag="-g").client
    assert "bytes in" in text


@clients
@families
def test_rping(rig, family, client):
    def words(server):
        return ["rping", "-v", "-V", "-C", 5, "-S", 3000, "-a", address_of(server, family)]

    server, text = by_cm(rig, client, lambda end: [*words(end), "-s"], lambda end: [*words(end), "-c"], RPING_PORT)
    assert text.count("ping data:") == 5 and server.count("server ping data:") == 5


@clients
@pytest.mark.parametrize("program", EXAMPLE_PORTS)
def test_cm_examples(rig, program, client):
    own = ["-c", 2, "-C", 3, "-S", 512]
    _, text = by_cm(
        rig, client, lambda end: [program, "-b", end.address, *own], lambda end: [program, "-s", end.address, *own],
        EXAMPLE_PORTS[program],
    )
    assert "return status 0" in text


@clients
@pytest.mark.parametrize("words", [*([tool] for tool in RELIABLE), ["ib_send_bw", "-c", "UD"], ["ib_send_lat", "-c", "UD"]], ids="-".join)
def test_perftest_by_rdma_cm(rig, words, client):
    amount = [] if "atomic" in words[0] else ["-s", 1024]
    line = [*words, "-R", "-F", "-n", 50, *amount]
    for attempt in range(ATTEMPTS):
        try:
            by_cm(rig, client, lambda end: line, lambda end: [*line, end.address], PERFTEST_PORT, seconds=60)
            return rig.keep()
        except LabError as error:
            if attempt + 1 == ATTEMPTS or not any(said in str(error) for said in TOO_EARLY):
                raise
            # The second request is lost and repeated when the server listens. (For UD it is the first SIDR request.) A server
            # without processor listens later: each attempt loses one repetition more.
            late = {"loss": Loss(attribute=SIDR_REQ), "skip": 0} if "UD" in words else {"loss": Loss(attribute=REQ), "skip": 1}
            rig.lose(**late, to_guest=client == "burst", count=attempt + 1)


@clients
def test_connection_setup_many_times(rig, client):
    """The server of cmtime does not end by itself."""
    _, text = by_cm(
        rig, client, lambda end: ["cmtime", "-b", end.address, "-p", 7500],
        lambda end: ["cmtime", "-s", end.address, "-p", 7500, "-c", 20], 7500, server_ends=False,
    )
    assert "disconnect" in text
