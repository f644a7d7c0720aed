"""Packets that Burst sends, checked by third parties: tshark's dissectors and scapy's ICRC.

Two hosts exchange at least one packet of every kind that Burst emits, over IPv4 and IPv6 and over a wire that loses packets; the
interface's trains of datagrams are cut apart in the kernel before the capture, so that it holds what a wire would.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab import Deadline, roce, run_pair, wait_until

sys.path.insert(0, str(Path(__file__).resolve().parent / "interop"))

from rig.peer import Peer, connect  # noqa: E402

# Opcodes: RC (SEND, WRITE, READ, ACK, atomics, SEND with invalidate), UC, UD, XRC SEND.
RELIABLE = {*range(0x15), 0x16, 0x17}
UNRELIABLE = {*range(0x20, 0x2C)}
DATAGRAMS = {0x64, 0x65}
XRC_SENDS, XRC_ACKNOWLEDGE = {0xA0, 0xA1, 0xA2, 0xA4}, 0xB1
PSN_GAP, INVALID_REQUEST, ACCESS, OPERATION = 0x60, 0x61, 0x62, 0x63
RNR_CLASS = 1
# Attributes of connection management: REQ, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP; and those that others provoke.
CM = {0x10, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18}
MRA, APR = 0x11, 0x1A
PORT, TID = 7174, 9
FIELDS = ["infiniband.bth.opcode", "infiniband.aeth.syndrome", "infiniband.mad.attributeid", "_ws.malformed", "_ws.expert.message"]
FIELDS += ["udp.srcport"]
QUIET_SECONDS = 2
SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.fixture
def wire(make_fabric):
    """A fabric whose interface on `a` shows single packets, those of RoCEv2."""

    def make(extra=("--selective-repeat=no",), **options):
        fabric = make_fabric(mtu=1500, extra=extra, **options)
        for host in fabric.hosts:
            # Trains are cut and checksums completed before the capture.
            words = ["ethtool", "-K", "eth0", "tx-udp-segmentation", "off", "gro", "off", "tx-checksum-ip-generic", "off"]
            code, text = host.run(*words, plain=True)
            assert code == 0, text
        return fabric

    return make


class Capture:
    """RoCEv2 packets at a host's interface."""

    def __init__(self, host, path, source=None):
        self.path = path
        which = "udp port 4791" + (f" and src host {source}" if source else "")
        words = ["dumpcap", "-q", "-P", "-i", "eth0", "-f", which, "-w", path]
        self.program = host.start(*words, plain=True)
        self.program.wait_for_text("File:", 60)

    def settle(self):
        """Waits until the file has stopped growing: tshark writes packets in blocks."""
        size, deadline = -1, Deadline(QUIET_SECONDS)
        while deadline.left():
            if self.path.stat().st_size != size:
                size, deadline = self.path.stat().st_size, Deadline(QUIET_SECONDS)
            time.sleep(0.05)

    def rows(self):
        """Ends the capture; a list of fields by packet."""
        self.settle()
        self.program.stop(signal.SIGINT)
        words = ["tshark", "-r", str(self.path), "--disable-protocol", "rpcordma", "-T", "fields", "-E", "separator=|"]
        words += ["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]
        for field in FIELDS:
            words += ["-e", field]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return [line.split("|") for line in done.stdout.splitlines()]


def number(text):
    """A field that may be absent, decimal or hexadecimal."""
    return int(text.split(",")[0], 0) if text else None


def judge(capture):
    """No packet is malformed or notable, every ICRC is right; {opcodes}, {syndromes}, {attributes}, {source ports}."""
    rows = capture.rows()
    assert rows, "nothing was captured"
    bad = [row for row in rows if row[3] or row[4]]
    assert not bad, f"{len(bad)} of {len(rows)} packets, the first: {bad[0]}"
    script = Path(__file__).with_name("icrc_by_scapy.py")
    done = subprocess.run([SYSTEM_PYTHON, script, capture.path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.endswith(f"{len(rows)} packets, 0 wrong\n"), done.stdout
    return [{number(row[column]) for row in rows} - {None} for column in (0, 1, 2, 5)]


@pytest.fixture
def ends():
    """Makes the two programs with their regions: ends(fabric, family) -> (a, b, words that address b's region)."""
    made = []

    def make(fabric, family="ipv4"):
        for host in fabric.hosts:
            address = host.address if family == "ipv4" else host.address6
            index = next(gid["index"] for gid in host.devices()[0]["gids"] if gid["address"] == address)
            made.append(Peer(host, "burst0", index))
        a, b = made
        a.region("m", 40960, rights="lrwab")
        there = b.region("m", 40960, rights="lrwab")
        return a, b, {"remote": there["addr"], "rkey": there["rkey"]}

    yield make
    for peer in made:
        peer.end()


def reliable_operations(a, b, there):
    """Every opcode of RC."""
    connect(a, b, "rc")
    for size in (5, 1500, 3001):
        for words in ({"op": "send"}, {"op": "send_imm", "imm": 7}):
            b("receive", qp="rc", region="m", bytes=4096)
            a("post", qp="rc", region="m", bytes=size, **words)
            a.done()
            b.done()
        b("receive", qp="rc", region="m", bytes=0)
        a("post", qp="rc", region="m", bytes=size, op="write", **there)
        a("post", qp="rc", region="m", bytes=size, op="write_imm", imm=9, **there)
        a("post", qp="rc", region="m", bytes=size, op="read", **there)
        a.done(3)
        b.done()
    # A message of more packets than are sent as messages of their own.
    a("post", qp="rc", region="m", bytes=34000, op="write", **there)
    a.done()
    a("post", qp="rc", region="m", bytes=8, op="cas", operand=0, swap=1, **there)
    a("post", qp="rc", region="m", bytes=8, op="add", operand=1, **there)
    a.done(2)
    b("window", name="w")
    for size in (5, 1500):
        rkey = b("post", qp="rc", op="bind", window="w", region="m", bytes=4096)["rkey"]
        b.done()
        b("receive", qp="rc", region="m", bytes=4096)
        a("post", qp="rc", region="m", bytes=size, op="send_inv", rkey=rkey)
        a.done()
        b.done()


def unreliable_operations(a, b, there):
    """Every opcode of UC and UD."""
    connect(a, b, "uc", "uc")
    for size in (5, 3001):
        for words in ({"op": "send"}, {"op": "send_imm", "imm": 7}, {"op": "write", **there}, {"op": "write_imm", "imm": 8, **there}):
            b("receive", qp="uc", region="m", bytes=4096)
            a("post", qp="uc", region="m", bytes=size, **words)
            a.done()
    b.done(6)
    numbers = []
    for end in (a, b):
        numbers.append(end("queue", name="ud", kind="ud")["qpn"])
        end("init", qp="ud")
        end("rtr", qp="ud")
        end("rts", qp="ud", psn=5)
    a("handle", name="h", gid=b.gid)
    for words in ({"op": "send"}, {"op": "send_imm", "imm": 7}):
        b("receive", qp="ud", region="m", bytes=2048)
        a("post", qp="ud", region="m", bytes=99, handle="h", peer=numbers[1], **words)
        a.done()
        b.done()


def refusals(a, b, there):
    """A NAK of every kind but that of a gap."""
    connect(a, b, "rnr", rtr={"rnr_timer": 10}, rts={"rnr_retries": 1})
    a("post", qp="rnr", region="m", bytes=5, op="send")
    assert a.failed() == 13
    connect(a, b, "access")
    a("post", qp="access", region="m", bytes=5, op="write", **{**there, "rkey": there["rkey"] ^ 1})
    assert a.failed() == 10
    connect(a, b, "right", init=({}, {"rights": "l"}))
    a("post", qp="right", region="m", bytes=5, op="write", **there)
    assert a.failed() == 9
    connect(a, b, "gone")
    b.region("gone", 4096)
    b("receive", qp="gone", region="gone", bytes=64)
    b("drop", region="gone")
    a("post", qp="gone", region="m", bytes=5, op="send")
    assert a.failed() == 11


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
@pytest.mark.parametrize("port", ["udp", "packet"])
def test_every_packet_of_the_transports(wire, ends, tmp_path, port, family):
    fabric = wire(ports=(f"{port}:dev=eth0",) * 2)
    capture = Capture(fabric.a, tmp_path / "all.pcap")
    a, b, there = ends(fabric, family)
    reliable_operations(a, b, there)
    unreliable_operations(a, b, there)
    refusals(a, b, there)
    opcodes, syndromes, _, ports = judge(capture)
    assert opcodes == RELIABLE | UNRELIABLE | DATAGRAMS
    assert {INVALID_REQUEST, ACCESS, OPERATION} <= syndromes
    assert any(syndrome >> 5 == RNR_CLASS for syndrome in syndromes)
    # Each queue pair has a source port of its own, by which paths are spread; a socket's is that of the protocol.
    assert ports == {4791} if port == "udp" else len(ports) > 4, ports


def test_packets_of_recovery(wire, ends, tmp_path):
    """Repeated requests, NAKs for gaps, READs repeated from the middle."""
    fabric = wire(ports=("impair:loss=10%,seed=3/udp:dev=eth0", "impair:loss=10%,seed=4/udp:dev=eth0"))
    capture = Capture(fabric.b, tmp_path / "loss.pcap")
    a, b, there = ends(fabric)
    # 67 ms, seven times: a peer without a processor is not given up.
    connect(a, b, "rc", rts={"timeout": 14})
    for _ in range(8):
        for op in ("write", "read"):
            a("post", qp="rc", region="m", bytes=8000, op=op, **there)
            a.done()
        a("post", qp="rc", region="m", bytes=8, op="add", operand=1, **there)
        a.done()
    syndromes = judge(capture)[1]
    assert PSN_GAP in syndromes


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_every_message_of_connection_management(wire, tmp_path, family):
    fabric = wire()
    a, b = fabric.a, fabric.b
    address = b.address if family == "ipv4" else b.address6
    capture = Capture(a, tmp_path / "cm.pcap")
    code, text = a.run("rping", "-c", "-a", address, "-C", 1, "-p", 7999)
    assert code != 0, f"nobody listens there, and yet: {text}"
    for server, client in (
        (["rping", "-s", "-a", address, "-C", 2], ["rping", "-c", "-a", address, "-C", 2]),
        (["udaddy", "-b", address, "-c", 1, "-C", 1], ["udaddy", "-s", address, "-c", 1, "-C", 1]),
    ):
        serving = b.start(*server)
        await_listener(b)
        code, text = a.run(*client)
        assert (code, serving.wait(60)) == (0, 0), text + serving.text()
    attributes = judge(capture)[2]
    assert attributes == CM


def test_messages_that_others_provoke(wire, tmp_path):
    """A request arrives again before its program answers (MRA); a peer requests another path (APR)."""
    a, b = wire(daemons=False).hosts
    b.start_daemon()
    peer = roce.Peer(a, b)
    capture = Capture(a, tmp_path / "provoked.pcap", b.address)
    server = b.start("rping", "-s", "-a", b.address, "-p", PORT)
    await_listener(b)
    server.stand_still()
    request = roce.req(0x77, 0x1234, PORT, roce.cm_header(peer.address, b.address, 40000))
    peer.send("REQ", request, TID)
    peer.send("REQ", request, TID)
    peer.expect("MRA")
    peer.send("LAP", roce.ids(0x67, 0x68), TID)
    peer.expect("APR")
    attributes = judge(capture)[2]
    assert attributes == {MRA, APR}
    peer.close()
    server.stop(signal.SIGKILL)


def test_packets_to_groups(wire, tmp_path):
    fabric = wire()
    a, b = fabric.hosts
    capture, started = Capture(b, tmp_path / "groups.pcap", a.address), []
    tool = ["stdbuf", "-oL", "mckey", "-m", "239.1.2.3"]
    try:
        started.append(b.start(*tool, "-b", b.address))
        started[0].wait_for_text("receiving data transfers", 60)
        started.append(a.start(*tool, "-s", "-b", a.address))
        assert [program.wait(60) for program in started] == [0, 0], "".join(program.text() for program in started)
    finally:
        for program in started:
            program.stop()
    # mckey sends with immediate data.
    assert judge(capture)[0] == {0x65}


def test_packets_of_xrc(wire, tmp_path):
    fabric = wire()
    a, b = fabric.hosts
    capture = Capture(a, tmp_path / "xrc.pcap")
    for size in (64, 5000):
        run_pair(b, a, ["ibv_xsrq_pingpong", "-d", "burst0", "-g", 0, "-n", 10, "-s", size])
    assert judge(capture)[0] == {*XRC_SENDS, XRC_ACKNOWLEDGE}


def await_listener(host):
    """Waits until a program on that host listens by rdma_cm."""
    wait_until(lambda: '"listening"' in host.burst("cm", "--connections", "--json")[1], 60)
