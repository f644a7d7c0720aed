"""Packets of a hostile or broken peer to the connection manager of a real daemon, made by hand: each is
answered as IBA 12 says, or dropped with a named reason; and the daemon goes on."""

import random
import signal

import pytest

from lab import Fabric, Deadline, await_true, roce, wait_until
from test_cm import await_cm_listener, connections

PORT = 7174
TID = 0x1122334455667788
# Reasons of a REJ (IBA 12.6.7.2).
UNSUPPORTED, UNKNOWN_ID, NOBODY, BAD_TRANSPORT, STALE, BAD_MTU, DUPLICATE = 5, 6, 8, 9, 10, 26, 30
DATA = b"x" * 56


@pytest.fixture(scope="module")
def wire(namespaces):
    """(peer without a daemon, host with one, the peer's host)"""
    with Fabric(daemons=False) as fabric:
        fabric.a.ip("addr add 10.99.0.77/24 dev eth0")
        fabric.b.start_daemon()
        peer = roce.Peer(fabric.a, fabric.b)
        yield peer, fabric.b, fabric.a
        assert fabric.b.daemon.running() and "panicked" not in fabric.b.daemon.text(), fabric.b.daemon.text()
        peer.close()


@pytest.fixture
def peer(wire):
    wire[0].drain()
    return wire[0]


@pytest.fixture
def counts(wire):
    """counts(NAME): waits until the counter has grown during this test by exactly one (or `by`)."""
    host, before = wire[1], wire[1].stats()

    def grown(name, by=1):
        difference = lambda: host.stats()[name] - before[name]  # noqa: E731
        await_true(lambda: difference() >= by)
        assert difference() == by, (name, difference())

    return grown


@pytest.fixture(scope="module")
def server(wire):
    """A program that accepts every request."""
    program = wire[1].start("rping", "-s", "-a", "0.0.0.0", "-P")
    await_cm_listener(wire[1], program, PORT)
    yield program
    program.stop()


def request(peer, local_id, qpn, port=PORT, tid=TID, *, header={}, **fields):
    data = roce.cm_header(peer.address, peer.peer, 40000, **header) + DATA
    peer.send("REQ", roce.req(local_id, qpn, port, data, **fields), tid)


# Envelope

def drop(peer, counts, packet, reason):
    peer.send_raw(packet)
    counts(reason)
    assert peer.receive(0.05) is None


def test_a_wrong_icrc_is_dropped(peer, counts):
    packet = bytearray(peer.packet(roce.mad(b"", 0x10)))
    packet[-1] ^= 1
    drop(peer, counts, bytes(packet), "bad_icrc")


@pytest.mark.parametrize("length", [0, 23, 24, 255, 257, 1024])
def test_a_management_datagram_has_256_bytes(peer, counts, length):
    drop(peer, counts, peer.packet(roce.mad(b"", 0x10).ljust(length, b"\0")[:length]), "mad_malformed")


def test_qp1_has_its_key(peer, counts):
    drop(peer, counts, peer.packet(roce.mad(b"", 0x10), qkey=0x12345678), "bad_qkey")


def test_only_qp1_sends_management_datagrams(peer, counts):
    """A program of a host that lets it set the Q_Key has a queue pair number of its own."""
    drop(peer, counts, peer.packet(roce.mad(b"", 0x10), source_qpn=0x1234), "mad_source")


@pytest.mark.parametrize("mgmt_class", [0x00, 0x01, 0x03, 0x04, 0x81, 0xFF])
def test_other_classes_are_dropped(peer, counts, mgmt_class):
    drop(peer, counts, peer.packet(roce.mad(b"", 0x10, mgmt_class=mgmt_class)), "mad_unknown_class")


@pytest.mark.parametrize("version", [0, 1, 3])
def test_other_versions_are_dropped(peer, counts, version):
    drop(peer, counts, peer.packet(roce.mad(b"", 0x10, version=version)), "mad_unknown_version")


@pytest.mark.parametrize("attribute, method", [(0x10, 0x01), (0x10, 0x81), (0x0F, 3), (0x1B, 3), (0xFFFF, 3)])
def test_other_attributes_and_methods_are_dropped(peer, counts, attribute, method):
    drop(peer, counts, peer.packet(roce.mad(b"", attribute, method=method)), "mad_unknown_attribute")


# Requests

def test_a_request_without_a_listener_is_rejected_with_reason_8(peer, counts):
    request(peer, 0x51, 77, port=4711)
    rej = peer.expect("REJ")
    assert (rej.tid, rej.remote_id, rej.reason, rej.body[8] >> 6) == (TID, 0x51, NOBODY, 0)
    counts("cm_nobody_listens")


BAD_REQUESTS = [
    ({"transport": 2}, BAD_TRANSPORT),
    ({"transport": 3}, BAD_TRANSPORT),
    ({"extended": 1}, BAD_TRANSPORT),
    ({"pkey": 0x8001}, UNSUPPORTED),
    ({"pkey": 0}, UNSUPPORTED),
    ({"mtu": 0}, BAD_MTU),
    ({"mtu": 6}, BAD_MTU),
    ({"header": {"version": 1}}, UNSUPPORTED),
    ({"header": {"family": 5}}, UNSUPPORTED),
    ({"header": {"family": 0}}, UNSUPPORTED),
]


@pytest.mark.parametrize("fields, reason", BAD_REQUESTS, ids=str)
def test_a_request_that_cannot_be_served_is_rejected(peer, server, counts, fields, reason):
    request(peer, 0x52, 78, **fields)
    rej = peer.expect("REJ")
    assert (rej.tid, rej.remote_id, rej.reason) == (TID, 0x52, reason)
    if reason == BAD_MTU:
        # The supported MTU, 4096, is in the additional information, one byte.
        assert (rej.body[9] >> 1, rej.body[12]) == (1, 5)
    counts("cm_bad_request")


@pytest.mark.parametrize("local_id, qpn", [(0, 79), (0x53, 0), (0x53, 1)])
def test_invalid_ids_and_queue_pairs(peer, server, counts, local_id, qpn):
    request(peer, local_id, qpn)
    assert peer.expect("REJ").reason == UNSUPPORTED
    counts("cm_bad_request")


@pytest.mark.parametrize("space", [0x0002, 0x0107, 0x0000, 0xFFFF])
def test_services_of_other_port_spaces_are_rejected(peer, server, space):
    body = bytearray(roce.req(0x54, 80, PORT, roce.cm_header(peer.address, peer.peer, 40000)))
    body[8:16] = roce.service_id(PORT, space)
    peer.send("REQ", bytes(body), TID)
    assert peer.expect("REJ").reason == NOBODY


def test_a_datagram_service_without_a_listener(peer, counts):
    body = roce.put({0: roce.u32(0x55), 4: b"\xff\xff", 8: roce.service_id(4711, 0x0111), 16: roce.cm_header(peer.address, peer.peer, 1)})
    peer.send("SIDR_REQ", body, TID)
    rep = peer.expect("SIDR_REP")
    assert (rep.tid, rep.body[:5]) == (TID, roce.u32(0x55) + b"\x01")
    counts("cm_nobody_listens")


# An established connection

class Connection:
    """A connection established by hand; rping is the peer."""

    def __init__(self, peer, local_id, qpn):
        self.peer, self.local_id, self.qpn = peer, local_id, qpn
        request(peer, local_id, qpn)
        rep = peer.expect("REP")
        assert (rep.tid, rep.remote_id) == (TID, local_id)
        self.rep, self.remote_id, self.remote_qpn = rep, rep.local_id, int.from_bytes(rep.body[12:15], "big")

    def say(self, name, local_id=None, remote_id=None, more=b"", peer=None):
        mine, theirs = self.local_id if local_id is None else local_id, self.remote_id if remote_id is None else remote_id
        (peer or self.peer).send(name, roce.ids(mine, theirs, more), TID)

    def part(self):
        self.say("DREQ", more=roce.u24(self.remote_qpn))
        drep = self.peer.expect("DREP")
        assert (drep.local_id, drep.remote_id) == (self.remote_id, self.local_id)


QPNS = iter(range(0x1000, 0x2000))


@pytest.fixture
def connection(peer, server, wire):
    made = Connection(peer, 0x600000 + next(QPNS), next(QPNS))
    made.say("RTU")
    established = lambda: [c["peer_comm_id"] for c in connections(wire[1]) if c["state"] == "established"]  # noqa: E731
    wait_until(lambda: established() == [made.local_id], said=lambda: connections(wire[1]))
    yield made
    made.part()
    # rping disconnects as well; its DREQ is answered, so that it does not retry.
    for answer in peer.drain(0.1):
        if answer.name == "DREQ":
            peer.send("DREP", roce.ids(answer.remote_id, answer.local_id), answer.tid)


def state_of(wire, connection):
    return [c["state"] for c in connections(wire[1]) if c["peer_comm_id"] == connection.local_id]


def test_a_repeated_request_gets_the_same_reply(peer, server, counts):
    made = Connection(peer, 0x61, next(QPNS))
    request(peer, 0x61, made.qpn)
    assert peer.expect("REP", again=True).body == made.rep.body
    counts("cm_duplicate")
    made.say("RTU")
    made.part()


@pytest.mark.parametrize("other", ["queue pair", "transaction"])
def test_a_communication_id_that_is_in_use(peer, server, connection, counts, other):
    qpn, tid = (next(QPNS), TID) if other == "queue pair" else (connection.qpn, TID + 1)
    request(peer, connection.local_id, qpn, tid=tid)
    rej = peer.expect("REJ")
    assert (rej.reason, rej.remote_id, rej.tid) == (DUPLICATE, connection.local_id, tid)
    counts("cm_bad_request")


def test_a_queue_pair_that_is_connected_already(peer, server, counts):
    made = Connection(peer, 0x62, next(QPNS))
    made.say("RTU")
    # A restarted peer: another communication id, the same queue pair.
    request(peer, 0x63, made.qpn)
    answers = {answer.name: answer for answer in [peer.receive(), peer.receive()]}
    assert answers["REJ"].reason == STALE and answers["REJ"].remote_id == 0x63, answers
    # IBA 12.9.8.3.1: the old connection ends.
    assert (answers["DREQ"].local_id, answers["DREQ"].remote_id) == (made.remote_id, 0x62)
    made.say("DREP")
    counts("cm_stale")


def test_a_connection_ignores_messages_of_other_hosts(wire, peer, connection, counts):
    stranger = roce.Peer(wire[2], wire[1], "10.99.0.77")
    try:
        parting = roce.u24(connection.remote_qpn)
        connection.say("DREQ", more=parting, peer=stranger)
        connection.say("DREQ", more=roce.u24(connection.remote_qpn ^ 1))
        connection.say("DREQ", local_id=connection.local_id ^ 1, more=parting)
        connection.say("DREP", local_id=connection.local_id ^ 1)
        connection.say("RTU", local_id=connection.local_id ^ 1)
        connection.say("RTU", peer=stranger)
        counts("cm_forged", by=6)
        assert (stranger.receive(0.05), peer.receive(0.05)) == (None, None)
        assert state_of(wire, connection) == ["established"]
    finally:
        stranger.close()


def test_messages_that_do_not_fit_the_state(wire, peer, connection, counts):
    connection.say("DREP")
    connection.say("MRA", more=b"\0\x08")
    connection.say("APR")
    counts("cm_unexpected", by=3)
    connection.say("RTU")
    counts("cm_duplicate")
    assert peer.receive(0.05) is None and state_of(wire, connection) == ["established"]


def test_an_alternate_path_is_declined(wire, peer, connection):
    connection.say("LAP")
    apr = peer.expect("APR")
    assert (apr.local_id, apr.remote_id, apr.body[9]) == (connection.remote_id, connection.local_id, 2)
    assert state_of(wire, connection) == ["established"]


def test_a_stopped_program_gets_no_more_requests_than_its_backlog(wire, peer, counts):
    # rping's backlog is three. A request that is withdrawn keeps its place in the backlog.
    program = wire[1].start("rping", "-s", "-a", "0.0.0.0", "-p", PORT + 1)
    try:
        await_cm_listener(wire[1], program, PORT + 1)
        program.stand_still()
        for local_id in range(0x9000, 0x9040):
            request(peer, local_id, next(QPNS), port=PORT + 1)
            timeout = roce.put({0: roce.u32(local_id), 9: b"\x10", 11: b"\x04", 12: (0x1234).to_bytes(8, "big")})
            peer.send("REJ", timeout, TID)
        # Three were shown to the program, the others were queued, and left the queue when they were withdrawn.
        counts("cm_rejected", by=64)
        assert not [c for c in connections(wire[1]) if c["peer_comm_id"] in range(0x9000, 0x9040)]
    finally:
        program.stop(signal.SIGKILL)


# Messages for connections that do not exist

STRANGER = 0x7A7A7A7A


def test_a_rep_for_an_unknown_connection_is_rejected(peer, counts):
    peer.send("REP", roce.ids(0x64, STRANGER), TID)
    rej = peer.expect("REJ")
    assert (rej.reason, rej.remote_id, rej.body[8] >> 6) == (UNKNOWN_ID, 0x64, 1)
    counts("cm_unknown_id")


def test_a_dreq_for_an_unknown_connection_is_answered(peer, counts):
    peer.send("DREQ", roce.ids(0x65, STRANGER, roce.u24(99)), TID)
    drep = peer.expect("DREP")
    assert (drep.tid, drep.local_id, drep.remote_id) == (TID, STRANGER, 0x65)
    counts("cm_unknown_id")


@pytest.mark.parametrize("name", ["RTU", "REJ", "MRA", "DREP", "SIDR_REP"])
def test_other_messages_for_an_unknown_connection_are_dropped(peer, counts, name):
    peer.send(name, roce.ids(STRANGER if name == "SIDR_REP" else 0x66, STRANGER), TID)
    counts("cm_unknown_id")
    assert peer.receive(0.05) is None


def test_a_lap_for_an_unknown_connection(peer):
    peer.send("LAP", roce.ids(0x67, STRANGER), TID)
    assert peer.expect("APR").body[9] == 1


# All at once

def test_noise_leaves_nothing_behind(wire, peer, server):
    noise = random.Random(4)
    for _ in range(3000):
        attribute = noise.choice(list(roce.ATTRIBUTES.values()))
        body = bytearray(noise.randbytes(232))
        if attribute == 0x10 and noise.random() < 0.5:
            # Almost a valid message.
            header = roce.cm_header(peer.address, peer.peer, 40000)
            body = bytearray(roce.req(noise.randrange(1 << 32), noise.randrange(1 << 24), PORT, header))
            body[noise.randrange(232)] ^= 1 << noise.randrange(8)
        peer.send_raw(peer.packet(roce.mad(bytes(body), attribute, noise.randrange(1 << 64))))
    assert peer.drain(0.3), "nothing was answered"
    # Connections that rping accepted wait for an RTU that never arrives; they end with rping.
    server.stop()
    deadline = Deadline(60)
    while connections(wire[1]):
        for answer in peer.drain(0.02):
            if answer.name == "DREQ":
                peer.send("DREP", roce.ids(answer.remote_id, answer.local_id), answer.tid)
        assert deadline.left(), connections(wire[1])[:3]
