"""The answer of each side to a request that it must refuse, and the completion at the other side."""

import time

import pytest

from rig.pairs import CLIENTS

# enum ibv_wc_status
LENGTH, INVALID_REQUEST, ACCESS, OPERATION, RETRIES, RNR_RETRIES = 1, 9, 10, 11, 12, 13
ERROR_STATE = 6


@pytest.fixture(params=CLIENTS, ids=lambda name: f"{name}-asks")
def ends(rig, request, make_ends):
    return make_ends(rig, request.param)


def test_receiver_not_ready(ends):
    qp = ends.connect(rtr={"rnr_timer": 18})
    ends.a("fill", region="m", at=0, bytes=3000, seed=1)
    ends.a("post", qp=qp, op="send", region="m", bytes=3000)
    time.sleep(0.2)
    ends.a.nothing(50)
    ends.b("receive", qp=qp, region="m", bytes=4096)
    ends.a.done()
    assert ends.b.done()["bytes"] == 3000 and ends.same(3000)


def test_receiver_never_ready(ends):
    qp = ends.connect(rtr={"rnr_timer": 10}, rts={"rnr_retries": 2})
    ends.a("post", qp=qp, op="send", region="m", bytes=20)
    assert ends.a.failed() == RNR_RETRIES
    assert ends.a("state", qp=qp)["state"] == ERROR_STATE


def bad_remote(ends):
    """Requests that the responder's regions do not allow."""
    at, rkey = ends.remote["addr"], ends.remote["rkey"]
    readable = ends.b.region("readable", 4096, rights="r")
    return {
        "write-rkey": {"op": "write", "bytes": 8, "remote": at, "rkey": rkey ^ 1},
        "write-long-rkey": {"op": "write", "bytes": 3000, "remote": at, "rkey": rkey ^ 1},
        "read-rkey": {"op": "read", "bytes": 8, "remote": at, "rkey": rkey ^ 1},
        "add-rkey": {"op": "add", "bytes": 8, "operand": 1, "remote": at, "rkey": rkey ^ 0x100},
        "read-end": {"op": "read", "bytes": 64, "remote": at + (64 << 10) - 32, "rkey": rkey},
        "write-end": {"op": "write", "bytes": 2048, "remote": at + (64 << 10) - 2000, "rkey": rkey},
        "write-right": {"op": "write", "bytes": 2048, "remote": readable["addr"], "rkey": readable["rkey"]},
        "add-right": {"op": "add", "bytes": 8, "operand": 1, "remote": readable["addr"], "rkey": readable["rkey"]},
    }


CASES = ["write-rkey", "write-long-rkey", "read-rkey", "add-rkey", "read-end", "write-end", "write-right", "add-right"]


@pytest.mark.parametrize("case", CASES)
def test_remote_access_error(ends, case):
    qp = ends.connect()
    ends.a("post", qp=qp, region="m", **bad_remote(ends)[case])
    assert ends.a.failed() == ACCESS
    assert ends.a("state", qp=qp)["state"] == ERROR_STATE


@pytest.mark.parametrize("op", ["write", "read", "add"])
def test_a_queue_pair_without_the_right(ends, op):
    qp = ends.connect(init=({}, {"rights": "l"}))
    ends.a("post", qp=qp, op=op, region="m", bytes=8, **ends.at())
    assert ends.a.failed() == INVALID_REQUEST


@pytest.mark.parametrize("size", [64, 3000])
def test_a_receive_that_is_too_short(ends, size):
    """rxe answers remote operational error where IBA wants invalid request."""
    qp = ends.connect()
    ends.b("receive", qp=qp, region="m", bytes=16 if size == 64 else 1500)
    ends.a("post", qp=qp, op="send", region="m", bytes=size)
    assert ends.a.failed() == (OPERATION if ends.requester == "burst" else INVALID_REQUEST)
    assert ends.b.failed() == (2 if ends.requester == "burst" else LENGTH)


def test_no_answer(ends):
    qp = ends.connect(rts={"timeout": 12, "retries": 2})
    ends.b("state", qp=qp, to="reset")
    began = time.monotonic()
    ends.a("post", qp=qp, op="write", region="m", bytes=8, **ends.at())
    assert ends.a.failed() == RETRIES
    assert ends.a("state", qp=qp)["state"] == ERROR_STATE
    assert time.monotonic() - began < 10


def test_the_peer_is_killed(ends):
    """Burst's daemon answers for a dead program; with rxe there is no answer."""
    qp = ends.connect(rts={"timeout": 12, "retries": 2})
    ends.a("post", qp=qp, op="write", region="m", bytes=8, **ends.at())
    ends.a.done()
    ends.b.kill()
    # The memory exists until the daemon or the kernel has noticed the end.
    limit = time.monotonic() + 10
    status = 0
    while not status and time.monotonic() < limit:
        ends.a("post", qp=qp, op="write", region="m", bytes=8, **ends.at())
        status = ends.a.completion(15000)["status"]
    assert status == (RETRIES if ends.requester == "burst" else OPERATION)


def test_errors_leave_other_connections_alone(ends):
    good = ends.connect()
    bad = ends.connect()
    ends.a("post", qp=bad, op="write", region="m", bytes=8, remote=1, rkey=1)
    assert ends.a.failed() == ACCESS
    ends.a("fill", region="m", at=0, bytes=5000, seed=4)
    ends.a("post", qp=good, op="write", region="m", bytes=5000, **ends.at())
    ends.a.done()
    assert ends.same(5000)
