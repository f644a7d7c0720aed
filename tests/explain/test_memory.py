"""Wrong keys, rights and ranges, at the end whose memory it is and at the end that used them; receives that do not fit."""

import pytest

from verbs_end import End, explained, of, pair

REM_INVALID, REM_ACCESS, RNR_EXHAUSTED, LOCAL_PROTECTION = 9, 10, 13, 4


def refused(fabric, a, b, cause, cure, status=REM_ACCESS):
    """Both ends explain the refused access of `a`."""
    assert a.failed() == status
    explained(fabric.b, of(b), cause, cure, kind="peer_request")
    words = ["refused", f"{b.qpn:#x} at {fabric.b.address}"]
    explained(fabric.a, of(a), words, ["burst why on the peer"], kind="request")


def test_an_rkey_that_no_region_has(fabric):
    a, b = pair(fabric)
    a.send(op="write", remote=b.addr, rkey=b.rkey ^ 0x5a5a00)
    refused(fabric, a, b, ["no region of this host has this key"], ["ibv_reg_mr returned, in this run"])


def test_an_rkey_of_a_region_that_was_deregistered(fabric):
    a, b = pair(fabric)
    b("drop", region="m")
    a.send(op="read", remote=b.addr, rkey=b.rkey)
    refused(fabric, a, b, ["no region of this host has this key", "deregistered"], ["keep the region registered"])


@pytest.mark.parametrize("op,rights,missing", [
    ("write", "lr", "IBV_ACCESS_REMOTE_WRITE"), ("read", "lw", "IBV_ACCESS_REMOTE_READ"), ("add", "lrw", "IBV_ACCESS_REMOTE_ATOMIC"),
])
def test_a_region_without_the_right(fabric, op, rights, missing):
    a, b = pair(fabric)
    other = b("region", name="n", bytes=4096, rights=rights)
    a.send(8, op=op, remote=other["addr"], rkey=other["rkey"])
    refused(fabric, a, b, [f"registered without {missing}"], [missing])


@pytest.mark.parametrize("op,right", [("write", "IBV_ACCESS_REMOTE_WRITE"), ("read", "IBV_ACCESS_REMOTE_READ"), ("add", "IBV_ACCESS_REMOTE_ATOMIC")])
def test_a_queue_pair_without_the_right(fabric, op, right):
    a, b = End(fabric.a).make(), End(fabric.b).make(grants="l")
    a.connect(b.qpn, b.gid)
    b.connect(a.qpn, a.gid)
    a.send(8, op=op, remote=b.addr, rkey=b.rkey)
    refused(fabric, a, b, [f"asked for {right}", "does not grant"], ["qp_access_flags"], REM_INVALID)


@pytest.mark.parametrize("at,count", [(4096, 8), (4090, 64), (-8, 16)])
def test_a_range_outside_the_region(fabric, at, count):
    a, b = pair(fabric)
    a.send(count, op="write", remote=b.addr + at, rkey=b.rkey)
    begin, end = f"{b.addr:#x}", f"{b.addr + 4096:#x}"
    refused(fabric, a, b, [f"has the addresses {begin} to {end} (4096 bytes)"], ["Correct address or length"])


def test_a_region_of_another_protection_domain(fabric):
    a, b = pair(fabric)
    other = End(fabric.b).make()
    a.send(op="write", remote=other.addr, rkey=other.rkey)
    refused(fabric, a, b, ["another protection domain"], ["with which the queue pair was created"])


def test_a_message_longer_than_the_receive(fabric):
    a, b = pair(fabric)
    b("receive", qp="q", region="m", bytes=16)
    a.send(64)
    assert a.failed() == REM_INVALID
    explained(fabric.b, of(b), ["longer than the receive"], ["Post receives as long as the longest message"])
    explained(fabric.a, of(a), ["refused a SEND of 64 bytes as invalid"], ["burst why on the peer"])


def test_no_receive_posted(fabric):
    a, b = pair(fabric, rnr_retries=0)
    a.send(64)
    assert a.failed() == RNR_EXHAUSTED
    explained(fabric.a, of(a), ["had no receive posted for a SEND of 64 bytes", "rnr_retry is 0"], ["Post receives", "rnr_retry = 7"])


def test_receives_too_late_for_all_retries(fabric):
    a, b = pair(fabric, rnr_retries=2)
    a.send(64)
    assert a.failed() == RNR_EXHAUSTED
    explained(fabric.a, of(a), ["it said so 3 times"], ["Post receives"])


def test_a_local_range_outside_its_region(fabric):
    a, b = pair(fabric)
    a.send(8192, op="write", remote=b.addr, rkey=b.rkey)
    assert a.failed() == LOCAL_PROTECTION
    explained(fabric.a, of(a), ["RDMA WRITE of 8192 bytes names local memory that its lkey does not give"], ["lkey of a region"])


def test_a_receive_without_the_right_to_write(fabric):
    a, b = pair(fabric)
    b("region", name="readonly", bytes=4096, rights="r")
    b("receive", qp="q", region="readonly", bytes=64)
    a.send(64)
    a.failed()
    explained(fabric.b, of(b), ["A receive names local memory"], ["IBV_ACCESS_LOCAL_WRITE"])


def test_a_program_that_asks_for_it_hears_at_once(fabric):
    a, b = End(fabric.a, env={"BURST_EXPLAIN": "1"}).make(), End(fabric.b).make()
    a.connect(b.qpn, b.gid)
    b.connect(a.qpn, a.gid)
    a.send(op="write", remote=b.addr, rkey=b.rkey ^ 0x5a5a00)
    a.failed()
    said = a.finish()
    assert f"queue pair {a.qpn:#x} has failed" in said and "cause: Queue pair" in said and "cure:  Run burst why" in said, said
    assert b.finish() == "", "without the variable nothing is said"


def test_the_record_outlives_the_program(fabric):
    a, b = pair(fabric)
    a.send(op="write", remote=b.addr, rkey=b.rkey ^ 0x5a5a00)
    a.failed()
    a.kill()
    failure = explained(fabric.a, of(a), ["refused"], kind="request")
    assert failure["pid"] == a.process.pid and failure["program"] == "peer" and failure["status"] == REM_ACCESS, failure
    code, text = fabric.a.burst("why")
    assert code == 0 and f"{a.qpn:#x}" in text and "\ncause: " in text and "\ncure: " in text, text
    code, text = fabric.a.burst("why", "all")
    assert code == 0 and f"qp {a.qpn:#x}" in text, text


def test_an_engine_inside_the_program_keeps_records_while_it_runs(make_fabric):
    fabric = make_fabric(in_process=True)
    a, b = pair(fabric)
    a.send(op="write", remote=b.addr, rkey=b.rkey ^ 0x5a5a00)
    # The engine of b runs when its program calls it, or in the library's thread.
    refused(fabric, a, b, ["no region of this host has this key"], ["ibv_reg_mr"])
