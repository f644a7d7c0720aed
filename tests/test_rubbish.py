"""Malformed frames on the wire: each is dropped and counted under its reason, and has no other effect. Over the ports that see whole
frames: `packet`, and `dpdk` on an AF_PACKET device."""

import sys
from pathlib import Path

import pytest

from lab import await_true, wait_until
from lab.frames import (
    changed, inject, mac_of, padded, roce_frame, tagged, train_of, with_field, with_fragment_header, with_options
)
from lab.memif import without_dpdk
from lab.perftest import await_listener

sys.path.insert(0, str(Path(__file__).resolve().parent / "interop"))

from rig.peer import Peer, connect  # noqa: E402

WRITE = ["ib_write_bw", "-d", "burst0", "-F", "-s", 4096, "-D", 4]
WRITE_ONLY, NO_OPCODE, ACKNOWLEDGE = 0x0A, 0x1F, 0x11
NOBODY = 0xABCDEF
#: Remote address, key and length, and a payload of the same length.
BODY = bytes(12) + b"\0\0\0\x40" + bytes(64)
TIMES = 3


class Scene:
    """The host that sends malformed frames (`sender`), the host that receives them (`victim`), and both addresses."""

    def __init__(self, sender, victim, victim_mac):
        self.sender, self.victim, self.macs = sender, victim, (mac_of(sender), victim_mac)

    def frame(self, opcode=WRITE_ONLY, qpn=NOBODY, body=BODY, family=4, **changes):
        """A valid frame from one end to the other, except for `changes`."""
        ends = {"src": self.sender, "dst": self.victim}
        ends = {name: host.address if family == 4 else host.address6 for name, host in ends.items()}
        return roce_frame(*self.macs, **{**ends, **changes}, opcode=opcode, qpn=qpn, psn=5, payload=body)

    def rubbish(self):
        """{reason: frames}, each frame with one fault; some frames have only a wrong queue pair number."""
        good, good6, short = self.frame(), self.frame(family=6), self.frame(ACKNOWLEDGE, body=bytes(4))
        return {
            "bad_icrc": [changed(good, 80, 0xFF), changed(good6, 100, 1), with_field(good, 18, b"\x12\x34")],
            "unknown_opcode": [self.frame(NO_OPCODE, body=b"")],
            # A tag with a priority and VLAN 0 is accepted. Ethernet's padding of short frames is ignored.
            # Over IPv6 soft-RoCE leaves out the UDP checksum, too.
            "unknown_qpn": [good, good6, tagged(good, 0x8100, 7 << 13), tagged(good6, 0x8100, 0), padded(short)],
            "not_ours": [self.frame(dst="10.99.0.77"), self.frame(dst="fd99::77", family=6)],
            "foreign_vlan": [tagged(good, 0x8100, 5), tagged(good, 0x88A8, 5), tagged(good6, 0x8100, 5)],
            "ip_fragment": [with_field(good, 20, b"\x20\x00"), with_fragment_header(good6)],
            "bad_ip_header": [changed(good, 24, 0x11), with_options(good)],
            "truncated": [good[:-10], with_field(good, 16, b"\x00\x20"), good6[:-9]],
            "oversize": [self.frame(body=bytes(5000))],
        }

    def meets(self, rubbish):
        """Sends it a few times; all of it must be counted under its names."""
        before = self.victim.stats()
        inject(self.sender, [frame for frames in rubbish.values() for frame in frames] * TIMES)
        expected = {name: TIMES * len(frames) for name, frames in rubbish.items()}
        assert settles(lambda: grown(self.victim, before, expected), expected) == expected


def grown(host, before, names):
    """By how much counters have grown."""
    stats = host.stats()
    return {name: stats[name] - before[name] for name in names}


def settles(what, expected):
    """The expected value if it appears in time, else the last value."""
    await_true(lambda: what() == expected)
    return what()


def test_the_packet_port_counts_rubbish_by_name(make_fabric):
    a, b = make_fabric(ports=("packet:dev=eth0", "packet:dev=eth0")).hosts
    # A program with a queue pair that exists for the whole test, however slow the machine is.
    ends = [Peer(host, "burst0", 0) for host in (a, b)]
    qpn, _ = connect(*ends)
    server = a.start(*WRITE)
    await_listener(a, server, 18515)
    client = b.start(*WRITE, a.address)
    wait_until(lambda: a.stats()["rx_packets"] > 100, program=client)
    scene = Scene(b, a, mac_of(a))
    scene.meets({
        **scene.rubbish(),
        "wrong_source": [scene.frame(src="10.99.0.77", qpn=qpn), scene.frame(src=a.address, qpn=qpn)],
        "bad_udp_checksum": [changed(scene.frame(), 40, 0x12)],
    })
    assert client.wait(60) == 0 and server.wait(60) == 0, client.text() + server.text()
    there = ends[0].region("m", 4096, rights="lrw")
    ends[1].region("m", 4096, rights="lrw")
    ends[1]("post", qp="q", region="m", bytes=4096, op="write", remote=there["addr"], rkey=there["rkey"])
    ends[1].done()
    for end in ends:
        end.end()


def test_the_dpdk_port_counts_rubbish_by_name(make_fabric, tmp_path):
    said = without_dpdk(tmp_path)
    if said:
        pytest.skip(said)
    a, b = make_fabric(daemons=False, mtu=9000).hosts
    b.ip("addr flush dev eth0")
    b.start_daemon(f"dpdk:dev=net_af_packet0,iface=eth0,mtu=4200,addr={b.address}/24,addr={b.address6}/64")
    # The kernel of the other side must not be looking for anybody meanwhile.
    assert a.run("ping", "-c", 3, "-i", 0.2, "-W", 2, b.address, plain=True)[0] == 0
    scene = Scene(a, b, mac_of(b))
    rubbish = scene.rubbish()
    # DPDK's driver lets the kernel put fragments of IPv4 together, which hides them.
    rubbish["ip_fragment"] = rubbish["ip_fragment"][1:]
    # Multicast of the other side's kernel is not for the port either.
    rubbish.pop("not_ours")
    scene.meets(rubbish)
    assert a.run("ping", "-c", 3, "-i", 0.2, "-W", 2, b.address, plain=True)[0] == 0


def test_a_train_loses_its_damaged_packet_only(make_fabric):
    a, b = make_fabric(ports=("packet:dev=eth0", "packet:dev=eth0")).hosts
    ends = mac_of(b), mac_of(a), b.address, a.address
    # The last one is shorter, and each has its own identification, counting on from the first one's.
    good = [roce_frame(*ends, WRITE_ONLY, NOBODY, psn, bytes(16 + (1024 if psn < 9 else 512)), 77 + psn) for psn in range(10)]
    before = a.stats()
    expected = {"unknown_qpn": 0, "bad_icrc": 0, "bad_udp_checksum": 0, "train_unknown": 0, "truncated": 0, "oversize": 0}
    for damaged in (None, 0, 4, 8, 9, None):
        packets = [changed(frame, 300, 1) if number == damaged else frame for number, frame in enumerate(good)]
        inject(b, [train_of(packets)], b"")
        expected["bad_icrc"] += damaged is not None
        expected["unknown_qpn"] += 9 if damaged is not None else 10
        assert settles(lambda: grown(a, before, expected), expected) == expected, f"damaged: {damaged}"
    # Cut otherwise than its packets are long, it is as many wrong ones.
    for segment, wrong in ((500, {"bad_icrc": 21}), (2112, {"bad_icrc": 5}), (8000, {"bad_icrc": 1, "oversize": 1})):
        inject(b, [train_of(good, segment)], b"")
        expected.update({name: expected[name] + count for name, count in wrong.items()})
        assert settles(lambda: grown(a, before, expected), expected) == expected, f"pieces of {segment} bytes"
