"""Hosts on the wire that forge addresses and try numbers: connections of others go on, and nothing is amplified.

Bounds are counts of packets and bytes, not times: the machine may be busy.
"""

import signal
import struct
import sys
import threading
from pathlib import Path

import pytest

from lab import frames, roce, wait_until
from test_cm import await_cm_listener

sys.path.insert(0, str(Path(__file__).resolve().parent / "interop"))

from rig.peer import Peer, connect  # noqa: E402

SEND_ONLY, READ_REQUEST, UD_SEND_ONLY = 0x04, 0x0C, 0x64
GSI = 1
ACK_REQUESTED = 1 << 31
PSNS = 1 << 24
# Port of the listener that does not answer, and of the one that does.
SILENT, SERVED = 7175, 7174
FORGED, FLOOD, CLIENTS = 50_000, 10_000, 5


class Forger:
    """Sends packets to `to` from the interface of `at`, in the name of any address."""

    def __init__(self, at, to):
        self.at, self.to = at, to
        self.macs = frames.mac_of(at), frames.mac_of(to)

    def frame(self, opcode, qpn, psn, payload=b"", source=None, port=frames.SOURCE_PORT):
        source = source or self.at.address
        return frames.roce_frame(*self.macs, source, self.to.address, opcode, qpn, psn, payload, source_port=port)

    def mad(self, name, body, source=None, tid=5):
        datagram = struct.pack(">II", roce.GSI_QKEY, GSI) + roce.mad(body, roce.ATTRIBUTES[name], tid)
        return self.frame(UD_SEND_ONLY, GSI, 1, datagram, source)

    def request(self, number, port, source):
        data = roce.cm_header(source, self.to.address, 40000) + bytes(56)
        return self.mad("REQ", roce.req(number + 1, number + 2, port, data), source)

    def send(self, made):
        frames.inject(self.at, made)


def forged_address(number):
    """One of addresses to which the victim has no route."""
    return ".".join(str(byte) for byte in (0x0B000000 + number).to_bytes(4, "big"))


@pytest.fixture
def ends(fabric):
    """Two queue pairs that have exchanged a message: (a, b, numbers, words that address b's region)."""
    a, b = (Peer(host, "burst0", host.gid_index(host.address)) for host in fabric.hosts)
    a.region("m", 65536, rights="lrwab")
    there = b.region("m", 65536, rights="lrwab")
    numbers = connect(a, b)
    exchange(a, b)
    yield a, b, numbers, {"remote": there["addr"], "rkey": there["rkey"]}
    for end in (a, b):
        end.end()


def exchange(a, b):
    b("receive", qp="q", region="m", bytes=64)
    a("post", qp="q", region="m", bytes=5, op="send")
    a.done()
    b.done()


def test_connections_are_made_under_a_flood_of_forged_requests(fabric):
    a, b = fabric.hosts
    forger = Forger(a, b)
    # Its backlog is large: it takes requests of thousands of addresses.
    silent = b.start("cmtime", "-b", b.address, "-p", SILENT)
    served = b.start("rping", "-s", "-a", "0.0.0.0", "-P", "-p", SERVED)
    for server, port in ((silent, SILENT), (served, SERVED)):
        await_cm_listener(b, server, port)
    silent.stand_still()
    flood = [forger.request(number, SILENT, forged_address(number)) for number in range(FORGED)]
    before, asked, done, floods = b.stats(), a.stats()["cm_unknown_id"], threading.Event(), []

    def send():
        while not floods or (not done.is_set() and len(floods) < 40):
            forger.send(flood)
            floods.append(len(flood))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        wait_until(lambda: b.stats()["cm_address_asked"] > before["cm_address_asked"], 60)
        for _ in range(CLIENTS):
            code, text = a.run("rping", "-c", "-a", b.address, "-C", 1, "-p", SERVED, seconds=60)
            assert code == 0, text
    finally:
        done.set()
        thread.join()
        silent.stop(signal.SIGKILL)
        served.stop(signal.SIGKILL)
    after = b.stats()
    assert after["cm_address_asked"] - before["cm_address_asked"] > 1000, after
    assert after["cm_no_room"] == before["cm_no_room"]
    assert a.stats()["cm_unknown_id"] > asked, "the peer was not asked for a proof of its address"


@pytest.mark.parametrize("name", ["DREQ", "REQ"])
def test_connections_are_made_while_one_host_sends_100000_management_datagrams(fabric, name):
    """Messages for no connection, and requests to a port without listener."""
    a, b = fabric.hosts
    forger, stranger = Forger(a, b), "10.99.0.77"
    served = b.start("rping", "-s", "-a", "0.0.0.0", "-P", "-p", SERVED)
    await_cm_listener(b, served, SERVED)
    if name == "REQ":
        flood = [forger.request(number, 9999, stranger) for number in range(FLOOD)]
    else:
        flood = [forger.mad("DREQ", roce.ids(number + 1, 77), stranger) for number in range(FLOOD)]
    before, sent = b.stats(), threading.Event()

    def send():
        for _ in range(100_000 // FLOOD):
            forger.send(flood)
        sent.set()

    thread = threading.Thread(target=send)
    thread.start()
    made = 0
    try:
        while not sent.is_set() or made < CLIENTS:
            code, text = a.run("rping", "-c", "-a", b.address, "-C", 1, "-p", SERVED, seconds=60)
            assert code == 0, text
            made += 1
    finally:
        thread.join()
        served.stop(signal.SIGKILL)
    after = b.stats()
    came = after["rx_packets"] - before["rx_packets"]
    retries = a.stats()["cm_retry"]
    print(f"{made} connections while {came} packets came; {retries} messages were repeated")
    assert after["cm_timeout"] == before["cm_timeout"]


def test_a_scan_of_psns_from_another_port_executes_nothing(fabric, ends):
    a, b, numbers, _ = ends
    forger = Forger(*fabric.hosts)
    before = fabric.b.stats()
    b("receive", qp="q", region="m", bytes=64)
    scan = [forger.frame(SEND_ONLY, numbers[1], ACK_REQUESTED | (PSNS // 2 + psn)) for psn in range(5_000)]
    shut = lambda: fabric.b.stats()["source_port_shut"] - before["source_port_shut"]  # noqa: E731
    # Again and again: the socket drops what does not fit while the daemon has no processor.
    for bursts in range(1, 41):
        forger.send(scan)
        if bursts >= 4 and shut() > 10_000:
            break
    b.nothing()
    assert shut() > 10_000, shut()
    a("post", qp="q", region="m", bytes=5, op="send")
    a.done()
    b.done()
    exchange(a, b)


def test_a_change_of_the_port_is_counted_and_harmless(fabric, ends):
    _, b, numbers, _ = ends
    forger = Forger(*fabric.hosts)
    before = fabric.b.stats()["source_port_changed"]
    b("receive", qp="q", region="m", bytes=64)
    # The first message had PSN 0x100.
    forger.send([forger.frame(SEND_ONLY, numbers[1], ACK_REQUESTED | 0x101, port=50123)])
    b.done()
    assert fabric.b.stats()["source_port_changed"] == before + 1


def test_no_kind_of_packet_is_amplified(fabric, ends):
    """Bytes from the BTH on, ICRC included, that the daemon sends for those that it receives."""
    a, b, numbers, there = ends
    forger = Forger(*fabric.hosts)
    qpn, psn, stranger = numbers[1], 0x101, "10.99.0.77"
    a("post", qp="q", region="m", bytes=16384, op="read", **there)
    a.done()
    read = struct.pack(">QII", there["remote"], there["rkey"], 16384)
    nobody = [forger.request(number, 9999, stranger) for number in range(300)]
    kinds = {
        "request to an unknown queue pair": [forger.frame(SEND_ONLY, qpn ^ 0x5550, ACK_REQUESTED | k) for k in range(300)],
        "request from an address that is not the peer's": [forger.frame(SEND_ONLY, qpn, psn, source=stranger)] * 300,
        "repeated SEND": [forger.frame(SEND_ONLY, qpn, ACK_REQUESTED | psn - 1, port=4791)] * 300,
        "SEND after a gap": [forger.frame(SEND_ONLY, qpn, ACK_REQUESTED | psn + 99, port=4791)] * 300,
        "REQ without listener": nobody,
        "DREQ of no connection": [forger.mad("DREQ", roce.ids(k + 1, 77), stranger) for k in range(300)],
        "REP of no connection": [forger.mad("REP", roce.ids(k + 1, 77), stranger) for k in range(300)],
        "repeated READ of 16 KiB": [forger.frame(READ_REQUEST, qpn, psn, read, port=4791)] * 300,
    }
    # The rule of docs/threats.md: 32 times, and twice for each of the READ's 16 packets.
    limits = {"repeated READ of 16 KiB": 64 * 16384 * 1.1 / (300 * 32)}
    for kind, made in kinds.items():
        before = fabric.b.stats()
        forger.send(made)
        wait_until(lambda: fabric.b.stats()["rx_packets"] - before["rx_packets"] >= len(made), 60)
        last = {}

        def settled():
            now, earlier = fabric.b.stats()["tx_bytes"], last.get("sent")
            last["sent"] = now
            return now == earlier

        wait_until(settled, 60)
        grown = {name: fabric.b.stats()[name] - before[name] for name in ("rx_bytes", "rx_packets", "tx_bytes")}
        # Received bytes are counted without ICRC.
        received, sent = grown["rx_bytes"] + 4 * grown["rx_packets"], grown["tx_bytes"]
        print(f"{kind}: {len(made)} packets, {received} bytes in, {sent} bytes out, factor {sent / received:.2f}")
        assert sent <= limits.get(kind, 1.26) * received, (kind, received, sent)
