"""Attributes and calls that are refused, and queue pairs whose two ends do not fit together."""

import pytest

from verbs_end import End, explained, of, pair, program

REM_INVALID, RETRY_EXHAUSTED, RNR_EXHAUSTED, REM_ACCESS = 9, 12, 13, 10


def ends(fabric, a=None, b=None):
    """Two ends in INIT."""
    return End(fabric.a).make(**(a or {})), End(fabric.b).make(**(b or {}))


@pytest.mark.parametrize("move,words,attribute", [
    ("rts", {"timeout": 40}, "timeout"), ("rts", {"reads": 200}, "max_rd_atomic"), ("rtr", {"reads": 200}, "max_dest_rd_atomic"),
])
def test_an_attribute_out_of_range(fabric, move, words, attribute):
    a = End(fabric.a).make()
    peer = {"peer": a.qpn, "gid": a.gid}
    if move == "rts":
        a("rtr", qp="q", **peer)
        peer = {}
    a.refused(move, qp="q", **peer, **words)
    explained(fabric.a, program(a), [f"The value of {attribute} is out of range"], ["Change what the sentence names"], kind="call")


def test_a_queue_pair_that_was_not_moved_to_init(fabric):
    a = End(fabric.a)
    a("queue", name="q")
    a.refused("rtr", qp="q", peer=0x123, gid=a.gid)
    explained(fabric.a, program(a), ["A queue pair in Reset cannot be moved to Rtr"], kind="call")


def test_a_gid_that_is_none(fabric):
    a = End(fabric.a).make()
    a.refused("rtr", qp="q", peer=0x123, gid="::")
    explained(fabric.a, program(a), ["The destination GID is zero"], kind="call")


def test_a_shared_receive_queue_that_is_too_long(fabric):
    a = End(fabric.a)
    a.refused("shared", name="s", depth=1 << 24)
    explained(fabric.a, program(a), ["A shared receive queue has 1 to"], kind="call")


def test_a_region_under_a_window(fabric):
    a, b = pair(fabric, a={"rights": "lrwab"})
    a("window", name="w")
    a.send(64, op="bind", window="w", rkey=0x1234)
    a.done()
    a.refused("drop", region="m")
    explained(fabric.a, program(a), ["1 memory window(s) are bound to the memory region"], kind="call")


@pytest.mark.parametrize("ours,theirs", [(100, 200), (200, 100)])
def test_starting_psns_that_differ(fabric, ours, theirs):
    a, b = ends(fabric)
    for end, other, own, expected in ((a, b, ours, 7), (b, a, 7, theirs)):
        end("rtr", qp="q", peer=other.qpn, gid=other.gid, psn=expected)
        end("rts", qp="q", psn=own, timeout=10, retries=2)
    b("receive", qp="q", region="m", bytes=64)
    a.send(64)
    assert a.failed() == RETRY_EXHAUSTED
    explained(
        fabric.a, of(a), [f"{b.qpn:#x} at {fabric.b.address} answers, but to none of the packets", f"from PSN {ours} on", "rq_psn is not the sq_psn"],
        ["Exchange the starting PSNs"],
    )


def test_ends_of_different_types(fabric):
    a, b = ends(fabric, b={"kind": "uc"})
    a.connect(b.qpn, b.gid)
    b.connect(a.qpn, a.gid)
    a.send(64)
    assert a.failed() == RETRY_EXHAUSTED
    explained(fabric.b, of(b), ["packets were dropped", "another service type"], ["with the same"], kind="present")
    explained(fabric.a, of(a), ["its Burst daemon answers", f"queue pair {b.qpn:#x} there has never answered"], ["burst why QPN on the peer"])


def test_path_mtus_that_differ(fabric):
    a, b = ends(fabric, a={"size": 65536}, b={"size": 65536})
    a.connect(b.qpn, b.gid, mtu=1024)
    b.connect(a.qpn, a.gid, mtu=512)
    b("receive", qp="q", region="m", bytes=8192)
    a.send(4000)
    assert a.failed() == REM_INVALID
    explained(fabric.b, of(b), ["length does not fit its opcode, MTU"], ["same path MTU"], kind="peer_request")
    explained(fabric.a, of(a), ["refused a SEND of 4000 bytes as invalid", "disagree on MTU"], ["burst why on the peer"])


def test_an_atomic_that_is_not_aligned(fabric):
    a, b = pair(fabric)
    a.send(8, op="add", remote=b.addr + 4, rkey=b.rkey)
    assert a.failed() == REM_INVALID
    explained(fabric.b, of(b), ["not a multiple of 8"], ["Align atomic targets"], kind="peer_request")


def test_more_reads_than_the_peer_takes(fabric):
    a, b = ends(fabric)
    a("rtr", qp="q", peer=b.qpn, gid=b.gid)
    b("rtr", qp="q", peer=a.qpn, gid=a.gid, reads=1)
    for end, reads in ((a, 16), (b, 1)):
        end("rts", qp="q", timeout=14, retries=2, reads=reads)
    a("chain", count=16)
    for _ in range(16):
        a.send(4096, op="read", remote=b.addr, rkey=b.rkey)
    explained(fabric.b, of(b), ["more READs and atomics outstanding than max_dest_rd_atomic"], ["max_rd_atomic"], kind="peer_request", seconds=30)


def test_a_write_with_immediate_data_without_a_receive(fabric):
    a, b = pair(fabric, rnr_retries=0)
    a.send(64, op="write_imm", remote=b.addr, rkey=b.rkey, imm=7)
    assert a.failed() == RNR_EXHAUSTED
    explained(fabric.a, of(a), ["had no receive posted for a RDMA WRITE with immediate data of 64 bytes"], ["Post receives"])


def test_a_shared_receive_queue_that_is_empty(fabric):
    a, b = End(fabric.a).make(), End(fabric.b)
    b("region", name="m", bytes=4096, rights="lrw")
    b("shared", name="s", depth=16)
    b.qpn = b("queue", name="q", srq="s")["qpn"]
    b("init", qp="q", rights="lrw")
    a.connect(b.qpn, b.gid, rnr_retries=0)
    b.connect(a.qpn, a.gid)
    a.send(64)
    assert a.failed() == RNR_EXHAUSTED
    explained(fabric.a, of(a), ["had no receive posted for a SEND"], ["Post receives at the peer"])


def test_a_queue_pair_that_was_reset(fabric):
    a, b = pair(fabric)
    b("receive", qp="q", region="m", bytes=64)
    a.send(64)
    a.done()
    b("state", qp="q", to="reset")
    a.send(64)
    assert a.failed() == RETRY_EXHAUSTED
    explained(fabric.a, of(a), ["has answered and does not any more", "destroyed or reset"], ["in order"])


def test_a_queue_pair_in_error_at_the_peer(fabric):
    a, b = pair(fabric)
    b("receive", qp="q", region="m", bytes=64)
    a.send(64)
    a.done()
    b("state", qp="q", to="error")
    a.send(64)
    assert a.failed()
    explained(fabric.b, of(b), ["is in ERR, without a failure of its own"], ["other end"], kind="present")


def test_a_timeout_of_0_waits_without_end(fabric):
    a, b = ends(fabric)
    a.connect(b.qpn, b.gid, timeout=0)
    a.send(64)
    explained(fabric.a, of(a), ["Requests wait for an answer without end, because timeout is 0", f"queue pair {b.qpn:#x}"], kind="present")


def test_a_request_to_the_own_address_instead_of_the_peers(fabric):
    a, b = ends(fabric)
    a.connect(b.qpn ^ 0x40, a.gid)
    a.send(64)
    assert a.failed() == RETRY_EXHAUSTED
    explained(fabric.a, of(a), [f"of this host ({fabric.a.address}) has never answered"], ["Exchange the queue pair numbers"])


def test_a_datagram_from_a_queue_pair_that_is_not_ready(fabric):
    a = End(fabric.a).make(kind="ud")
    explained(fabric.a, of(a), ["is in INIT"], ["Move it to RTR"], kind="present")
