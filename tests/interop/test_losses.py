"""Exactly one packet of a kind is lost on the wire; the connection recovers and no request is executed twice."""

import pytest

from rig import Loss
from rig.pairs import CLIENTS

SEND_FIRST, SEND_LAST, SEND_ONLY = 0x00, 0x02, 0x04
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_ONLY = 0x06, 0x07, 0x08, 0x0A
READ_REQUEST, READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY = 0x0C, 0x0D, 0x0E, 0x0F, 0x10
ACK, ATOMIC_ACK, ADD = 0x11, 0x12, 0x14
PSN = 0x100


@pytest.fixture(params=CLIENTS, ids=lambda name: f"{name}-asks")
def ends(rig, request, make_ends):
    made = make_ends(rig, request.param)
    yield made
    rig.keep()


def lose(ends, from_requester, **what):
    ends.rig.lose(Loss(**what), to_guest=ends.towards_guest(from_requester))


#: A message of more packets than Burst sends as messages of their own.
LONG = 40000
REQUESTS = {
    "write-first": ("write", LONG, {"opcode": WRITE_FIRST}), "write-middle": ("write", LONG, {"opcode": WRITE_MIDDLE}),
    "write-last": ("write", LONG, {"opcode": WRITE_LAST}), "write-only": ("write", 500, {"opcode": WRITE_ONLY}),
    "write-psn": ("write", 5000, {"psn": PSN + 2}),
    "read-request": ("read", 5000, {"opcode": READ_REQUEST}),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_a_lost_request(ends, case):
    op, size, what = REQUESTS[case]
    qp = ends.connect(psn=(PSN, 0x200))
    ends.a("fill", region="m", at=0, bytes=size, seed=2)
    ends.b("fill", region="m", at=8192, bytes=size, seed=3)
    lose(ends, True, **what)
    there = 0 if op == "write" else 8192
    ends.a("post", qp=qp, op=op, region="m", bytes=size, **ends.at(there))
    ends.a.done()
    assert ends.rig.lost() == 1
    assert ends.same(size, there=there)


@pytest.mark.parametrize("opcode", [SEND_FIRST, SEND_LAST, SEND_ONLY], ids=["first", "last", "only"])
def test_a_lost_send(ends, opcode):
    size = 500 if opcode == SEND_ONLY else 3000
    qp = ends.connect()
    ends.a("fill", region="m", at=0, bytes=size, seed=2)
    ends.b("receive", qp=qp, region="m", at=8192, bytes=4096)
    ends.b("receive", qp=qp, region="m", at=16384, bytes=4096)
    lose(ends, True, opcode=opcode)
    ends.a("post", qp=qp, op="send", region="m", bytes=size)
    ends.a.done()
    assert ends.rig.lost() == 1
    assert ends.b.done()["bytes"] == size and ends.same(size, there=8192)
    ends.b.nothing()


@pytest.mark.parametrize("opcode", [READ_FIRST, READ_MIDDLE, READ_LAST, READ_ONLY], ids=["first", "middle", "last", "only"])
def test_a_lost_read_response(ends, opcode):
    size = 700 if opcode == READ_ONLY else 5000
    qp = ends.connect()
    ends.b("fill", region="m", at=0, bytes=size, seed=6)
    lose(ends, False, opcode=opcode)
    ends.a("post", qp=qp, op="read", region="m", bytes=size, **ends.at())
    ends.a.done()
    assert ends.rig.lost() == 1
    assert ends.same(size)


@pytest.mark.parametrize("size", [500, 3000])
def test_a_lost_acknowledgement_of_a_send(ends, size):
    """The duplicate is acknowledged again and not delivered again."""
    qp = ends.connect()
    ends.a("fill", region="m", at=0, bytes=size, seed=2)
    for number in range(2):
        ends.b("receive", qp=qp, region="m", at=8192 * (number + 1), bytes=4096, id=number)
    lose(ends, False, opcode=ACK)
    ends.a("post", qp=qp, op="send", region="m", bytes=size)
    ends.a.done()
    assert ends.rig.lost() == 1
    assert ends.b.done()["id"] == 0 and ends.same(size, there=8192)
    ends.b.nothing()


@pytest.mark.parametrize("opcode", [ADD, ATOMIC_ACK], ids=["request", "answer"])
def test_a_lost_atomic(ends, opcode):
    """A repeated atomic is answered from the responder's memory of it, and executed once."""
    qp = ends.connect()
    lose(ends, opcode == ADD, opcode=opcode)
    ends.a("post", qp=qp, op="add", region="m", at=64, bytes=8, operand=3, **ends.at())
    ends.a.done()
    assert ends.rig.lost() == 1
    assert int.from_bytes(ends.a.bytes("m", 64, 8), "little") == 0
    assert int.from_bytes(ends.b.bytes("m", 0, 8), "little") == 3


def test_a_lost_packet_among_many_requests(ends):
    """One loss in a row of READs, atomics and WRITEs leaves each done once and in order."""
    qp = ends.connect(psn=(PSN, 0x200))
    ends.b("fill", region="m", at=8192, bytes=4096, seed=1)
    # WRITEs have bytes of their own: without a fence they may leave, or leave again after a timeout, before a READ has answered.
    ends.a("fill", region="m", at=16384, bytes=4096, seed=2)
    lose(ends, True, psn=PSN + 3)
    ends.a("chain", count=12)
    for number in range(12):
        op = ("add", "read", "write")[number % 3]
        if op == "add":
            ends.a("post", qp=qp, op=op, region="m", at=64, bytes=8, operand=1, id=number, **ends.at())
        elif op == "read":
            ends.a("post", qp=qp, op=op, region="m", at=8192, bytes=2048, id=number, **ends.at(8192))
        else:
            ends.a("post", qp=qp, op=op, region="m", at=16384, bytes=1500, id=number, **ends.at(16384))
    assert [ends.a.done()["id"] for _ in range(12)] == list(range(12))
    assert ends.rig.lost() == 1
    assert int.from_bytes(ends.b.bytes("m", 0, 8), "little") == 4
    assert ends.same(2048, here=8192, there=8192) and ends.same(1500, here=16384, there=16384)
