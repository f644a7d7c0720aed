"""Every operation of RC, UC and UD between Burst and rxe, with the bytes compared."""

import pytest

from rig.pairs import CLIENTS, FAMILIES

SIZES = (0, 1, 4, 1024, 1025, 3072, 3075)
WITH_IMM = 2
# rxe gives programs the kernel's number of this flag, which is IBV_WC_IP_CSUM_OK to them.
WITH_INV = {"burst": 8, "rxe": 4}


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(params=CLIENTS, ids=lambda name: f"{name}-asks")
def ends(rig, request, make_ends, family):
    return make_ends(rig, request.param, family)


def test_writes_and_reads(ends):
    qp = ends.connect()
    for seed, size in enumerate(SIZES, start=1):
        ends.a("fill", region="m", at=0, bytes=size, seed=seed)
        ends.a("post", qp=qp, op="write", region="m", bytes=size, **ends.at(3))
        ends.a.done()
        assert ends.same(size, there=3)
        ends.a("post", qp=qp, op="read", region="m", at=8192, bytes=size, **ends.at(3))
        ends.a.done()
        assert ends.same(size, here=8192, there=3)


def test_sends(ends):
    qp = ends.connect()
    for seed, size in enumerate(SIZES, start=1):
        ends.a("fill", region="m", at=0, bytes=size, seed=seed)
        ends.b("receive", qp=qp, region="m", at=16384, bytes=4096, id=seed)
        imm = {"op": "send_imm", "imm": 0x11223344 + seed} if seed % 2 else {"op": "send"}
        ends.a("post", qp=qp, region="m", bytes=size, flags="s", **imm)
        ends.a.done()
        got = ends.b.done()
        assert (got["id"], got["bytes"], got["imm"]) == (seed, size, imm.get("imm", 0))
        assert ends.same(size, there=16384)


def test_write_with_immediate_data(ends):
    qp = ends.connect()
    for size in (0, 9, 1024, 2500):
        ends.b("receive", qp=qp, region="m", bytes=0)
        ends.a("fill", region="m", at=0, bytes=size, seed=size)
        ends.a("post", qp=qp, op="write_imm", region="m", bytes=size, imm=0xA0B0C0D0 + size, **ends.at())
        ends.a.done()
        got = ends.b.done()
        assert (got["bytes"], got["imm"], got["flags"] & WITH_IMM) == (size, 0xA0B0C0D0 + size, WITH_IMM)
        assert ends.same(size)


def test_atomics(ends):
    qp = ends.connect()
    steps = [
        ({"op": "add", "operand": 5}, 0, 5),
        ({"op": "add", "operand": 1 << 40}, 5, (1 << 40) + 5),
        ({"op": "cas", "operand": (1 << 40) + 5, "swap": 77}, (1 << 40) + 5, 77),
        ({"op": "cas", "operand": 1, "swap": 2}, 77, 77),
    ]
    for words, before, after in steps:
        ends.a("post", qp=qp, region="m", at=64, bytes=8, **words, **ends.at(128))
        ends.a.done()
        assert int.from_bytes(ends.a.bytes("m", 64, 8), "little") == before
        assert int.from_bytes(ends.b.bytes("m", 128, 8), "little") == after


def test_a_chain_of_all_kinds(ends):
    qp = ends.connect()
    ends.a("fill", region="m", at=0, bytes=4096, seed=9)
    for number in range(4):
        ends.b("receive", qp=qp, region="m", at=32768 + 4096 * number, bytes=4096, id=number)
    posts = [
        {"op": "send", "bytes": 100}, {"op": "write", "bytes": 2000, **ends.at()}, {"op": "read", "bytes": 1200, "at": 8192, **ends.at()},
        {"op": "add", "bytes": 8, "at": 16384, "operand": 1, **ends.at(16384)}, {"op": "send", "bytes": 1100, "flags": "f"},
        {"op": "write_imm", "bytes": 10, "imm": 1, **ends.at(8192)}, {"op": "read", "bytes": 8, "at": 20480, **ends.at()},
        {"op": "send", "bytes": 0},
    ]
    ends.a("chain", count=len(posts))
    for number, post in enumerate(posts):
        ends.a("post", qp=qp, region="m", id=number, **post)
    assert [ends.a.done()["id"] for _ in posts] == list(range(len(posts)))
    assert [ends.b.done()["bytes"] for _ in range(4)] == [100, 1100, 10, 0]
    assert ends.same(1200, here=8192) and ends.same(1100, there=32768 + 4096)


def test_sequence_numbers_wrap(ends):
    qp = ends.connect(psn=(0xFFFFFE, 0xFFFFFD))
    ends.a("fill", region="m", at=0, bytes=8192, seed=3)
    ends.a("post", qp=qp, op="write", region="m", bytes=8192, **ends.at())
    ends.a.done()
    ends.a("post", qp=qp, op="read", region="m", at=16384, bytes=8192, **ends.at())
    ends.a.done()
    assert ends.same(8192) and ends.same(8192, here=16384)


def test_invalidation_of_a_window(ends):
    qp = ends.connect()
    ends.b("window", name="w")
    rkey = ends.b("post", qp=qp, op="bind", window="w", region="m", bytes=4096)["rkey"]
    ends.b.done()
    ends.a("post", qp=qp, op="write", region="m", bytes=16, remote=ends.remote["addr"], rkey=rkey)
    ends.a.done()
    ends.b("receive", qp=qp, region="m", at=8192, bytes=2048)
    ends.a("post", qp=qp, op="send_inv", region="m", bytes=1500, rkey=rkey)
    ends.a.done()
    got = ends.b.done()
    server = "rxe" if ends.requester == "burst" else "burst"
    assert got["flags"] & WITH_INV[server]
    assert server == "rxe" or got["imm"] == rkey
    ends.a("post", qp=qp, op="write", region="m", bytes=16, remote=ends.remote["addr"], rkey=rkey)
    assert ends.a.failed() == 10


def test_shared_receive_queue(ends):
    ends.b("shared", name="s")
    both = [ends.connect(queue=({}, {"srq": "s"})) for _ in range(2)]
    for number in range(4):
        ends.b("receive", srq="s", region="m", at=16384 + 4096 * number, bytes=4096, id=number)
    ends.a("fill", region="m", at=0, bytes=2000, seed=5)
    for number in range(4):
        ends.a("post", qp=both[number % 2], op="send", region="m", bytes=2000)
        ends.a.done()
        assert ends.b.done()["id"] == number
        assert ends.same(2000, there=16384 + 4096 * number)


def test_unreliable_connection(ends):
    qp = ends.connect("uc")
    ends.a("fill", region="m", at=0, bytes=4096, seed=8)
    for number, size in enumerate((5, 2500)):
        ends.b("receive", qp=qp, region="m", at=16384, bytes=4096)
        ends.b("receive", qp=qp, region="m", at=16384, bytes=4096)
        ends.b("receive", qp=qp, region="m", bytes=0)
        ends.a("post", qp=qp, op="send", region="m", bytes=size)
        ends.a("post", qp=qp, op="send_imm", region="m", bytes=size, imm=number + 1)
        ends.a("post", qp=qp, op="write_imm", region="m", bytes=size, imm=number + 11, **ends.at())
        ends.a("post", qp=qp, op="write", region="m", bytes=size, **ends.at(8192))
        ends.a.done(4)
        assert [ends.b.done()["imm"] for _ in range(3)] == [0, number + 1, number + 11]
        assert ends.same(size) and ends.same(size, there=16384)


def datagrams(ends):
    """UD queue pairs on both sides; the responder's number."""
    numbers = []
    for end in (ends.a, ends.b):
        numbers.append(end("queue", name="u", kind="ud")["qpn"])
        end("init", qp="u")
        end("rtr", qp="u")
        end("rts", qp="u", psn=0x300)
    ends.a("handle", name="h", gid=ends.b.gid)
    return numbers


def test_datagrams_and_a_wrong_qkey(ends):
    mine, peer = datagrams(ends)
    ends.a("fill", region="m", at=0, bytes=1000, seed=4)
    for number in range(3):
        ends.b("receive", qp="u", region="m", at=8192 + 2048 * number, bytes=2048, id=number)
    ends.a("post", qp="u", op="send", region="m", bytes=8, handle="h", peer=peer, qkey=0x22222222)
    ends.a.done()
    ends.b.nothing()
    for number, (size, words) in enumerate([(33, {"op": "send"}), (0, {"op": "send_imm", "imm": 7}), (1000, {"op": "send_imm", "imm": 0xCAFE})]):
        ends.a("post", qp="u", region="m", bytes=size, handle="h", peer=peer, **words)
        ends.a.done()
        got = ends.b.done()
        assert (got["id"], got["bytes"], got["from"], got["imm"]) == (number, size + 40, mine, words.get("imm", 0))
        assert ends.same(size, there=8192 + 2048 * number + 40)
