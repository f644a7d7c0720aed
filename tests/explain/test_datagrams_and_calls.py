"""Datagrams that are dropped, calls that are refused, connections that fail, and whose failures a user sees."""

from lab import build_directory
from lab.users import ALICE, as_user, public_copy
from verbs_end import End, explained, failures, of, program

LOCAL_LENGTH = 1


def datagrams(fabric, qkey=0x11111111):
    ends = [End(host).make(kind="ud", qkey=0x11111111) for host in (fabric.a, fabric.b)]
    for end in ends:
        end("rtr", qp="q")
        end("rts", qp="q")
    a, b = ends
    a("handle", name="h", gid=b.gid)
    a("post", qp="q", op="send", region="m", bytes=64, handle="h", peer=b.qpn, qkey=qkey)
    a.done()
    return a, b


def test_a_datagram_with_another_qkey(fabric):
    a, b = datagrams(fabric, qkey=0x2222)
    explained(fabric.b, of(b), ["1 of its packets were dropped", "Q_Key"], ["Use the same Q_Key on both ends"], kind="present")


def test_a_datagram_without_a_receive(fabric):
    a, b = datagrams(fabric)
    explained(fabric.b, of(b), ["dropped", "no posted receive"], ["Post more receives"], kind="present")


def test_a_datagram_longer_than_the_receive(fabric):
    ends = [End(host).make(kind="ud") for host in (fabric.a, fabric.b)]
    for end in ends:
        end("rtr", qp="q")
        end("rts", qp="q")
    a, b = ends
    b("receive", qp="q", region="m", bytes=64)
    a("handle", name="h", gid=b.gid)
    a("post", qp="q", op="send", region="m", bytes=64, handle="h", peer=b.qpn)
    a.done()
    explained(fabric.b, of(b), ["longer than its receive buffer"], ["Leave 40 bytes for the GRH"], kind="present")


def test_a_queue_pair_that_is_not_connected_yet(fabric):
    a = End(fabric.a).make()
    explained(fabric.a, of(a), ["is in INIT: it drops what the peer sends"], ["Move it to RTR"], kind="present")
    a("rtr", qp="q", peer=a.qpn, gid=a.gid)
    explained(fabric.a, of(a), ["is in RTR: it receives, and sends no requests yet"], ["Move it to RTS"], kind="present")
    a("rts", qp="q")
    explained(fabric.a, of(a), ["nothing is wrong"], kind="present")
    a("state", qp="q", to="error")
    explained(fabric.a, of(a), ["is in ERR, without a failure of its own"], ["other end"], kind="present")


def test_a_path_mtu_above_the_interface(make_fabric):
    fabric = make_fabric(mtu=1500)
    a = End(fabric.a).make()
    a.refused("rtr", qp="q", peer=0x123, gid=a.gid, mtu=4096)
    explained(fabric.a, program(a), ["is larger than the MTU of the interface allows"], kind="call")


def test_a_state_that_is_skipped(fabric):
    a = End(fabric.a).make()
    a.refused("rts", qp="q")
    explained(fabric.a, program(a), ["cannot be moved to"], kind="call")


def test_a_refused_call_is_explained_in_the_program(fabric):
    a = End(fabric.a, env={"BURST_EXPLAIN": "1"}).make()
    a.refused("rts", qp="q")
    said = a.finish()
    assert "burst: refused: " in said, said


def test_the_same_refusal_again_takes_one_record(fabric):
    a = End(fabric.a).make()
    for _ in range(20):
        a.refused("rts", qp="q")
    [only] = failures(fabric.a, *program(a))
    assert "19 times before" in only["facts"]["what"], only



def connect(fabric, how):
    return fabric.a.start(build_directory() / "programs" / "cm_peer", "client", fabric.b.address, 7471, how)


def test_no_listener(fabric):
    client = connect(fabric, "reject")
    client.wait(60)
    explained(
        fabric.a, [f"pid:{client.pid}"], [f"No program listens on {fabric.b.address} port 7471 in port space RDMA_PS_TCP"],
        ["Start the server before the client"], kind="connection",
    )


def test_a_server_that_rejects(fabric):
    server = fabric.b.start(build_directory() / "programs" / "cm_peer", "server", fabric.b.address, 7471, "reject")
    server.wait_for_text("listening", 60)
    client = connect(fabric, "reject")
    client.wait(60)
    explained(fabric.a, [f"pid:{client.pid}"], ["The program at", "rejected the connection"], ["rdma_reject"], kind="connection")
    server.wait(60)


def test_an_address_to_which_no_route_leads(fabric):
    client = fabric.a.start(build_directory() / "programs" / "cm_peer", "client", "10.200.0.1", 7471, "reject")
    client.wait(60)
    explained(fabric.a, [f"pid:{client.pid}"], ["10.200.0.1"], kind="call")


def test_failures_of_another_user_are_not_shown(fabric):
    a = End(fabric.a).make()
    a.refused("rts", qp="q")
    explained(fabric.a, program(a), ["cannot be moved"], kind="call")
    public = public_copy(fabric.directory / "public")
    code, text = fabric.a.run(*as_user(ALICE), public / "bin" / "burst", "why", f"pid:{a.process.pid}")
    assert code == 0 and "1 failures of other users are not shown" in text and "cannot be moved" not in text, text


def test_a_datagram_longer_than_a_packet(fabric):
    a = End(fabric.a).make(kind="ud", size=65536)
    a("rtr", qp="q")
    a("rts", qp="q")
    a("handle", name="h", gid=a.gid)
    a("post", qp="q", op="send", region="m", bytes=20000, handle="h", peer=a.qpn)
    assert a.failed() == LOCAL_LENGTH
    explained(fabric.a, of(a), ["SEND is longer than this queue pair may send"], ["shorter messages"], kind="request")
    explained(fabric.a, of(a), ["is in SQE"], kind="present")


def test_a_number_that_nothing_has(fabric):
    code, text = fabric.a.burst("why", "qp:0xfffffe")
    assert code == 0 and "nothing is known of a queue pair or process" in text, text
