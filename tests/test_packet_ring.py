"""`burst why QPN --pcap FILE`: the packets of a queue pair up to its failure, of a host that keeps its last packets (`packet_ring`)."""

import subprocess
import sys
from pathlib import Path

import lab
import pytest
from conftest import BUILD
from lab.users import ALICE, BOB, as_user, public_copy

sys.path.append(str(Path(__file__).with_name("explain")))
from verbs_end import End, pair  # noqa: E402

RING = ["--packet-ring"]
#: A second for each answer, however busy the machine is: these queue pairs fail because they are refused.
UNHURRIED = {"timeout": 18, "retries": 7}


@pytest.fixture
def ringed(make_fabric):
    return make_fabric(extra=RING)


def kept(host, end_or_qpn, path, *prefix):
    """Exit code, text, and the packets as lines."""
    qpn = end_or_qpn if isinstance(end_or_qpn, int) else end_or_qpn.qpn
    program = [BUILD / "burst"] if not prefix else list(prefix)
    words = ["why", f"qp:{qpn:#x}", "--pcap", path, "--socket", host.socket]
    done = subprocess.run([*map(str, host.prefix()), *map(str, program + words)], capture_output=True, text=True, env=host.environment(), check=False)
    lines = host.burst("capture", "--read", path)[1].splitlines() if done.returncode == 0 else []
    return done.returncode, done.stdout + done.stderr, lines


def fail(a, b):
    """A WRITE with a wrong key: the peer refuses it."""
    a.send(op="write", remote=b.addr, rkey=b.rkey ^ 0x5A5A00)
    assert a.failed() == 10


def test_both_ends_have_the_packets_up_to_the_failure(ringed, tmp_path):
    a, b = pair(ringed, **UNHURRIED)
    others = pair(ringed, **UNHURRIED)
    for sender, receiver in ((a, b), others):
        receiver("receive", qp="q", region="m", bytes=64)
        sender.send(64)
        sender.done()
    fail(a, b)
    for host, end, refused in ((ringed.a, a, 0), (ringed.b, b, 1)):
        code, text, lines = kept(host, end, tmp_path / "kept.pcapng")
        assert code == 0 and f"queue pair {end.qpn:#x} up to its failure" in text, text
        assert [" SEND " in line for line in lines].count(True) == 1, lines
        assert sum("refused (remote_access)" in line for line in lines) == refused, lines
        assert "RDMA WRITE" in lines[-2] and "Acknowledge" in lines[-1], lines
    # The record says the last packets, too.
    code, text = ringed.b.burst("why", f"qp:{b.qpn:#x}")
    assert code == 0 and "last packets" in text and "RDMA WRITE" in text.split("last packets")[1].splitlines()[0], text


def test_packets_outlive_program_and_ring(ringed, tmp_path):
    a, b = pair(ringed, **UNHURRIED)
    fail(a, b)
    a.kill()
    # More packets than the ring has places.
    lab.run_pair(ringed.a, ringed.b, ["ib_send_bw", "-d", "burst0", "-F", "-s", 64, "-n", 60000, "-t", 64])
    code, text, lines = kept(ringed.a, a, tmp_path / "kept.pcapng")
    assert code == 0 and "up to its failure" in text and "RDMA WRITE" in lines[-2], text


def test_a_queue_pair_that_works_gives_its_packets_until_now(ringed, tmp_path):
    a, b = pair(ringed, **UNHURRIED)
    b("receive", qp="q", region="m", bytes=64)
    a.send(64)
    a.done()
    code, text, lines = kept(ringed.a, a, tmp_path / "kept.pcapng")
    assert code == 0 and "until now" in text and len(lines) == 2, (text, lines)


def test_many_failures_at_once_leave_packets_of_some_and_the_ring_of_the_others(ringed, tmp_path):
    a, b = pair(ringed, **UNHURRIED)
    ends = [End(ringed.a).make() for _ in range(2)]
    many = []
    for end in ends:
        for number in range(20):
            name = f"x{number}"
            many.append((end, name, end("queue", name=name, kind="rc")["qpn"]))
            end("init", qp=name, rights="lrwa")
            end("rtr", qp=name, peer=b.qpn ^ 0x700, gid=b.gid, mtu=1024)
            end("rts", qp=name, timeout=10, retries=2)
    for end, name, _ in many:
        end("post", qp=name, op="send", region="m", bytes=64)
    for end, _, _ in many:
        assert end.failed() == 12
    for _, _, qpn in many:
        code, text, lines = kept(ringed.a, qpn, tmp_path / "kept.pcapng")
        assert code == 0 and len(lines) >= 3 and all(" SEND " in line for line in lines), (text, lines)


def test_a_user_gets_the_packets_of_its_own_queue_pairs_only(make_fabric, tmp_path):
    fabric = make_fabric(extra=[*RING, "--socket-mode", "0666"])
    a, b = pair(fabric, **UNHURRIED)
    fail(a, b)
    public = public_copy(fabric.directory / "public")
    place = tmp_path / "users"
    place.mkdir(mode=0o777)
    for directory in (place, *place.parents, *fabric.a.socket.parents):
        if directory not in (Path("/"), Path("/tmp")):
            directory.chmod(directory.stat().st_mode | 0o055)
    place.chmod(0o777)
    sentence = f"no queue pair of yours has or had the number {a.qpn:#x}"
    for user in (ALICE, BOB):
        code, text, _ = kept(fabric.a, a, place / f"{user}.pcapng", *as_user(user), public / "bin" / "burst")
        assert code == 1 and sentence in text, text
        assert not (place / f"{user}.pcapng").exists(), "nothing is written"
    assert kept(fabric.a, a, tmp_path / "root.pcapng")[0] == 0


@pytest.mark.parametrize("mode", ["inprocess", "lent"])
def test_an_engine_inside_the_program_keeps_packets(make_fabric, tmp_path, mode):
    """Beside no daemon, and on the addresses of a daemon that keeps none."""
    fabric = make_fabric(in_process=True) if mode == "inprocess" else make_fabric(extra=["--lend", "same-user"])
    env = {"BURST_PACKET_RING": "on"} | ({"BURST_MODE": "lent"} if mode == "lent" else {})
    a, b = [End(host, env=env).make() for host in (fabric.a, fabric.b)]
    for end, other in ((a, b), (b, a)):
        end.connect(other.qpn, other.gid, **UNHURRIED)
    fail(a, b)
    code, text, lines = kept(fabric.a, a, tmp_path / "kept.pcapng")
    assert code == 0 and "RDMA WRITE" in lines[-2], (text, lines)


def test_what_is_not_kept_or_asked_wrongly_is_said(make_fabric, tmp_path):
    fabric = make_fabric()
    a, b = pair(fabric, **UNHURRIED)
    code, text, _ = kept(fabric.a, a, tmp_path / "kept.pcapng")
    assert code == 1 and "packets are not kept: set packet_ring to on" in text, text
    code, text, _ = kept(fabric.a, 0xFFFFFE, tmp_path / "kept.pcapng")
    assert code == 1 and "no queue pair of yours has or had the number 0xfffffe" in text, text
    for words in ([], ["pid:4711"], ["bad_icrc"], ["all"]):
        code, text = fabric.a.burst("why", *words, "--pcap", tmp_path / "kept.pcapng")
        assert code == 2 and "--pcap needs the number of a queue pair" in text, text
    assert not (tmp_path / "kept.pcapng").exists()
