"""RoCEv2 by hand: sends management datagrams with a correct ICRC from a host without burstd, and receives the answers.

Nothing here knows Burst: the bytes are put together as the InfiniBand specification has them (chapters 5 and 12, annex
A17), so that tests can send what no well-behaved peer would.
"""

import ctypes
import os
import socket
import struct
import threading
import zlib

from .waiting import LOOK_SECONDS, WAIT_SECONDS, LabError, Deadline

PORT = 4791
UD_SEND_ONLY = 0x64
GSI_QPN = 1
GSI_QKEY = 0x80010000
MAD_BYTES = 256
CM_CLASS, CM_VERSION, METHOD_SEND = 0x07, 2, 0x03
ATTRIBUTES = {
    "REQ": 0x10, "MRA": 0x11, "REJ": 0x12, "REP": 0x13, "RTU": 0x14, "DREQ": 0x15, "DREP": 0x16, "SIDR_REQ": 0x17,
    "SIDR_REP": 0x18, "LAP": 0x19, "APR": 0x1A,
}
NAMES = {number: name for name, number in ATTRIBUTES.items()}
CLONE_NEWNET = 0x40000000
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2
# The kernel numbers the packets of one GSO send from 0; a socket cannot read these identifications.
TRAIN_MAX = 128


def icrc(source, destination, source_port, transport, identification=0):
    """The invariant CRC of a packet with IPv4 and DF; `transport` begins with the BTH."""
    length = 8 + len(transport) + 4
    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    ip = struct.pack("!BBHHHBBH", 0x45, 0xFF, 20 + length, identification, 0x4000, 0xFF, 17, 0xFFFF) + addresses
    udp = struct.pack("!HHHH", source_port, PORT, length, 0xFFFF)
    masked = transport[:4] + b"\xff" + transport[5:]
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + ip + udp + masked))


def mad(body, attribute, tid=0, *, modifier=0, mgmt_class=CM_CLASS, version=CM_VERSION, method=METHOD_SEND):
    """A management datagram."""
    head = struct.pack("!BBBBHHQHHI", 1, mgmt_class, version, method, 0, 0, tid, attribute, 0, modifier)
    return (head + body).ljust(MAD_BYTES, b"\0")


def put(fields, size=MAD_BYTES - 24):
    """Bytes from {offset: bytes}."""
    out = bytearray(size)
    for at, value in fields.items():
        out[at:at + len(value)] = value
    return bytes(out)


def u24(number):
    return number.to_bytes(3, "big")


def u32(number):
    return number.to_bytes(4, "big")


def cm_header(source, destination, port, *, version=0, family=4):
    """The RDMA-CM header before the private data of a request (IBA annex A11)."""
    addresses = bytes(12) + socket.inet_aton(source) + bytes(12) + socket.inet_aton(destination)
    return bytes([version, family << 4]) + port.to_bytes(2, "big") + addresses


def service_id(port, space=0x0106):
    return (space << 16 | port).to_bytes(8, "big")


def req(local_id, qpn, port, data, *, transport=0, extended=0, pkey=0xFFFF, mtu=3, guid=0x1234):
    """Body of a REQ."""
    return put({
        0: u32(local_id), 8: service_id(port), 16: guid.to_bytes(8, "big"), 32: u24(qpn), 35: b"\x01", 39: b"\x01",
        43: bytes([20 << 3 | transport << 1]), 44: u24(1000), 47: bytes([20 << 3 | 7]), 48: pkey.to_bytes(2, "big"),
        50: bytes([mtu << 4 | 7]), 51: bytes([15 << 4 | extended]), 52: b"\xff\xff\xff\xff", 93: b"\x40",
        95: bytes([16 << 3]), 140: data,
    })


def ids(local_id, remote_id, more=b""):
    """Body of a message that begins with two communication ids."""
    return put({0: u32(local_id), 4: u32(remote_id), 8: more})


class Answer:
    """A received management datagram."""

    def __init__(self, packet):
        transport = packet[:-4]
        (self.opcode, self.qpn) = packet[0], int.from_bytes(packet[5:8], "big")
        self.mad = transport[20:]
        self.management_class = self.mad[1]
        self.tid, attribute = struct.unpack("!QH", self.mad[8:18])
        self.name = NAMES.get(attribute, hex(attribute))
        self.body = self.mad[24:]
        self.local_id, self.remote_id = struct.unpack("!II", self.body[:8])

    @property
    def reason(self):
        """The reason of a REJ."""
        return int.from_bytes(self.body[10:12], "big")

    def __repr__(self):
        return f"{self.name}(tid={self.tid:#x}, ids={self.local_id:#x}/{self.remote_id:#x}, {self.body[8:16].hex()})"


class Peer:
    """A host of the fabric that sends RoCEv2 packets by hand. Its burstd must not run."""

    def __init__(self, host, peer, address=None):
        self.address, self.peer = address or host.address, peer.address
        self.socket = in_network_of(host, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        # With DF the kernel sends identification 0, which the ICRC covers.
        self.socket.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        self.socket.bind((self.address, PORT))
        self.psn = 0
        # Messages received since the last `drain`.
        self.seen = set()

    def close(self):
        self.socket.close()

    def packet(self, payload, *, qkey=GSI_QKEY, qpn=GSI_QPN, source_qpn=GSI_QPN):
        """BTH, DETH, payload and ICRC."""
        self.psn += 1
        bth = struct.pack("!BBHII", UD_SEND_ONLY, 0x40 | (-len(payload) % 4) << 4, 0xFFFF, qpn, self.psn)
        transport = bth + struct.pack("!II", qkey, source_qpn) + payload + bytes(-len(payload) % 4)
        return transport + icrc(self.address, self.peer, PORT, transport)

    def send_raw(self, packet):
        self.socket.sendto(packet, (self.peer, PORT))

    def send(self, name, body, tid=0, **options):
        """A connection message by its name."""
        self.send_raw(self.packet(mad(body, ATTRIBUTES[name], tid, **options)))

    def receive(self, seconds=WAIT_SECONDS, *, again=False):
        """The next management datagram, whose ICRC must be correct; None if none arrives. Others (a dead program's queue
        pair answers by NAKs) are skipped, and, unless `again`, what came before: a daemon repeats itself after 80 ms."""
        deadline = Deadline(seconds)
        while deadline.left():
            self.socket.settimeout(min(max(deadline.seconds, 0.001), LOOK_SECONDS))
            try:
                packet, (source, port) = self.socket.recvfrom(4096)
            except TimeoutError:
                continue
            right = (icrc(source, self.address, port, packet[:-4], number) for number in range(TRAIN_MAX))
            if packet[-4:] not in right:
                raise LabError(f"an answer has a wrong ICRC: {packet.hex()}")
            if packet[0] != UD_SEND_ONLY:
                continue
            answer = Answer(packet)
            if answer.management_class != CM_CLASS:
                # A daemon asks whether the peer is one, too.
                continue
            known = answer.mad in self.seen
            self.seen.add(answer.mad)
            if again or not known:
                return answer
        return None

    def expect(self, name, seconds=WAIT_SECONDS, *, again=False):
        """The next datagram, which must be this message."""
        answer = self.receive(seconds, again=again)
        if answer is None or answer.name != name:
            raise LabError(f"{answer} came instead of {name}")
        return answer

    def drain(self, seconds=0.05):
        """Returns and forgets all messages until none has arrived for `seconds`."""
        deadline, all_of_them = Deadline(5), []
        while deadline.left() and (answer := self.receive(seconds, again=True)) is not None:
            all_of_them.append(answer)
        self.seen.clear()
        return all_of_them


def in_network_of(host, make):
    """Calls `make` in the network namespace of a host, on a thread of its own."""
    result = []

    def inside():
        with open(f"/proc/{host.keeper.pid}/ns/net") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                result.append(OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno())))
                return
        result.append(make())

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    if not result or isinstance(result[0], OSError):
        raise LabError(f"cannot make a socket in {host.name}: {result}")
    return result[0]
