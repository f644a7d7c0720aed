"""Packets of a hostile host on the wire, made from a seed: every opcode, headers with right and with impossible values, changed and cut
packets, trains, fragments and management datagrams. Most have a correct ICRC, and name a queue pair and a region that exist.

    forge = Forge(seed, macs, "10.99.0.1", "10.99.0.2")
    made = forge.frames(1000, targets)                               # a frame comes with its virtio header
    frames.inject(host, made, header=b"", may_refuse=len(made))      # the kernel refuses trains that cannot be

The same seed, targets and number make the same frames.
"""

import random
import struct
from dataclasses import dataclass

from . import frames, roce

MTU, LINK_MTU = 1024, 1500
GSI = 1
ACK_REQUESTED = 1 << 31
RC, UC, UD, XRC, SELECTIVE, SELECTIVE_XRC = 0x00, 0x20, 0x60, 0xA0, 0xC0, 0xE0
#: Headers behind the BTH by the low five bits of the opcode (IBA 9.2, table 38).
BEHIND = {
    0x03: ["imm"], 0x05: ["imm"], 0x06: ["reth"], 0x09: ["imm"], 0x0A: ["reth"], 0x0B: ["reth", "imm"], 0x0C: ["reth"], 0x0D: ["aeth"],
    0x0F: ["aeth"], 0x10: ["aeth"], 0x11: ["aeth"], 0x12: ["aeth", "original"], 0x13: ["atomic"], 0x14: ["atomic"], 0x16: ["ieth"],
    0x17: ["ieth"],
}
#: The same of the selective family (docs/protocol.md), behind the SETH.
BEHIND_SELECTIVE = {
    **{low: ["weth"] for low in (0x06, 0x07, 0x08, 0x0A)}, 0x03: ["imm"], 0x05: ["imm"], 0x09: ["weth", "imm"], 0x0B: ["weth", "imm"],
    0x0C: ["reth"], 0x12: ["aeth", "original"], 0x13: ["atomic"], 0x14: ["atomic"], 0x16: ["ieth"], 0x17: ["ieth"],
}
#: Messages as the opcodes of their packets: SEND, with immediate data, with invalidation, WRITE, with immediate data, READ responses.
MESSAGES = [(0x00, 0x01, 0x02), (0x00, 0x01, 0x03), (0x00, 0x01, 0x16), (0x06, 0x07, 0x08), (0x06, 0x07, 0x09), (0x0D, 0x0E, 0x0F)]
#: Low five bits of the opcodes of a service that has not all of them.
LOWS = {UC: range(0x0C), UD: [4, 5]}
LENGTHS = [0, 1, 3, 4, 5, 63, 64, 65, 252, 256, 1020, 1023, MTU, MTU, MTU, MTU, 1025, 1028]
#: Syndromes: ACK, RNR NAKs, NAKs of each code, reserved ones.
SYNDROMES = [0x00, 0x1F, 0x05, 0x20, 0x2E, 0x3F, 0x60, 0x61, 0x62, 0x63, 0x64, 0x65, 0x40, 0x7F, 0x80, 0xFF]
METHODS = [0x01, 0x02, 0x03, 0x81, 0xFF]
CLASSES = [roce.CM_CLASS, roce.CM_CLASS, roce.CM_CLASS, 0x01, 0x03, 0x32, 0x81]


@dataclass
class Target:
    """A queue pair of the victim, and what a forger on the path would know of it."""

    qpn: int
    #: Services that the queue pair may have; others come now and then.
    services: tuple = (RC, SELECTIVE)
    #: The PSN that it expects, and the first of its own requests.
    expected: int = 0x100
    sent: int = 0x200
    addr: int = 0
    rkey: int = 0
    size: int = 4096
    qkey: int = 0x11111111


class Forge:
    """Makes frames from one address to another."""

    def __init__(self, seed, macs, source, destination, listeners=(7174,)):
        self.rng = random.Random(seed)
        self.macs, self.source, self.destination, self.listeners = macs, source, destination, listeners

    def frames(self, count, targets):
        """At least `count` frames, each behind its virtio header."""
        made = []
        while len(made) < count:
            make = self.rng.choices([self.message, self.packet, self.changed, self.cut, self.wrong_icrc, self.train, self.fragments, self.mad],
                                    [30, 40, 20, 8, 6, 8, 4, 8])[0]
            made += [frame if header is None else header + frame for header, frame in make(self.rng.choice(targets))]
        return made

    # Kinds: each returns pairs of a virtio header and a frame.

    def packet(self, target):
        """One packet of any opcode."""
        return [self.single(self.transport(target, *self.opcode(target)))]

    def message(self, target):
        """Packets with consecutive PSNs, as a whole message has them; one of them may be missing or repeated."""
        rng, service = self.rng, self.service(target)
        first, middle, last = rng.choice(MESSAGES)
        opcodes = [first, *[middle] * rng.choice([0, 1, 2, 6]), last]
        psn = self.psn(target, service, first)
        length = MTU * len(opcodes) + rng.choice([-4, 0, 0, 0, 1, -MTU])
        packets = []
        for index, low in enumerate(opcodes):
            size = MTU if low != last else max(0, min(MTU, length - MTU * (len(opcodes) - 1)))
            packets.append(self.transport(target, service, low, psn=psn + index, size=size, index=index, length=max(length, 0)))
        if rng.random() < 0.3:
            del packets[rng.randrange(len(packets))]
        elif rng.random() < 0.2:
            packets.insert(0, rng.choice(packets))
        return [self.single(packet) for packet in packets]

    def changed(self, target):
        """A packet of which some bytes were changed before the ICRC was made."""
        made = bytearray(self.transport(target, *self.opcode(target)))
        for _ in range(self.rng.randint(1, 4)):
            made[self.rng.randrange(min(len(made), 60))] = self.rng.choice([0, 0xFF, self.rng.randrange(256)])
        return [self.single(bytes(made))]

    def cut(self, target):
        """A packet that ends early, or has bytes behind its end."""
        made = self.transport(target, *self.opcode(target))
        if self.rng.random() < 0.3:
            return [self.single(made + self.rng.randbytes(self.rng.randint(1, 40)))]
        return [self.single(made[:self.rng.randrange(len(made))])]

    def wrong_icrc(self, target):
        header, frame = self.packet(target)[0]
        return [(header, frames.changed(frame, len(frame) - 1 - self.rng.randrange(4), 1 << self.rng.randrange(8)))]

    def train(self, target):
        """One frame of several packets, which the victim's kernel hands over as a train. What the virtio header says may be untrue."""
        rng, service = self.rng, self.service(target)
        first, middle, last = rng.choice(MESSAGES)
        psn, packets = self.psn(target, service, first), []
        size = rng.choice([64, 256, 256, MTU])
        for index in range(rng.randint(2, 8)):
            low = middle if index or rng.random() < 0.8 else first
            # The kernel numbers the packets of a train.
            packets.append(self.frame(self.transport(target, service, low, psn=psn + index, size=size, index=index + 1), 77 + index))
        packets = [packet for packet in packets if len(packet) == len(packets[0])]
        if rng.random() < 0.5:
            packets.append(packets[-1][:-rng.randint(1, 60)])
        segment = rng.choice([*[None] * 12, rng.choice([1, 8]), 60, len(packets[0]) - 42 + rng.randint(-20, 20)])
        return [(None, frames.train_of(packets, segment))]

    def fragments(self, target):
        """A packet in two IPv4 fragments: right ones, one of them, or overlapping ones."""
        rng = self.rng
        frame = self.frame(self.transport(target, *self.opcode(target)), ip_id=rng.randrange(1 << 16))
        body = frame[34:]
        at = min(8 * rng.randint(1, 40), len(body) // 8 * 8)
        again = max(0, at - 8 * rng.choice([0, 0, 0, 1, 2]))
        pieces = [(body[:at], 0x2000), (body[again:], again // 8)]
        rng.shuffle(pieces)
        if rng.random() < 0.3:
            pieces.pop()
        made = []
        for piece, offset in pieces:
            head = frames.with_field(frame[:34], 16, struct.pack(">HHH", 20 + len(piece), struct.unpack(">H", frame[18:20])[0], offset))
            made.append((frames.SINGLE, head + piece))
        return made

    def mad(self, _target):
        """A management datagram: a connection message with plausible or random fields, one of another class, or a hello."""
        rng = self.rng
        if rng.random() < 0.2:
            return [self.single(self.datagram(self.altered(self.hello(), 2)))]
        name = rng.choice(list(roce.ATTRIBUTES))
        if name in ("REQ", "SIDR_REQ"):
            data = roce.cm_header(self.source, self.destination, rng.randrange(1 << 16)) + bytes(56)
            body = roce.req(rng.randint(1, 5), rng.randrange(1 << 24), rng.choice([*self.listeners, rng.randrange(1 << 16)]), data)
        else:
            body = roce.ids(rng.choice([0, 1, 2, rng.getrandbits(32)]), rng.choice([0, 1, 2, rng.getrandbits(32)]), rng.randbytes(60))
        attribute = rng.choice([roce.ATTRIBUTES[name]] * 8 + [rng.randrange(1 << 16), 0x0010])
        made = roce.mad(body, attribute, rng.randint(0, 9), mgmt_class=rng.choice(CLASSES), version=rng.choice([2, 2, 2, 1, 0xFF]),
                        method=rng.choice([3, 3, 3, 3, *METHODS]))
        return [self.single(self.datagram(self.altered(made, 3)))]

    def hello(self):
        """The question or answer of a Burst daemon (docs/protocol.md)."""
        rng = self.rng
        cc = rng.choice([b"", b"cubic", b"aimd", b"dcqcn:rpg_ai_rate=100M", b"none", b"dcqcn:rpg_ai_rate=-1", rng.randbytes(192)])
        head = roce.mad(b"", 0x0010, rng.getrandbits(64), mgmt_class=0x32, version=1, method=rng.choice([1, 1, 1, 0x81]))[:24]
        fields = bytes([1, rng.choice([1, 3, 5, 0, 255])]) + struct.pack(">HQII", 64, rng.choice([1, 2]), rng.choice([0, 7, 7, 3]), 2048)
        return (head + bytes(13) + b"BUR" + fields + bytes([rng.randrange(4), len(cc)]) + cc).ljust(256, b"\0")

    def altered(self, made, most):
        """Up to `most` bytes changed, half the time none."""
        made = bytearray(made)
        for _ in range(self.rng.choice([0, self.rng.randint(1, most)])):
            made[self.rng.randrange(len(made))] = self.rng.choice([0, 0xFF, self.rng.randrange(256)])
        return bytes(made[:self.rng.choice([256, 256, 256, 256, self.rng.randrange(257)])])

    # Parts.

    def datagram(self, payload, qkey=roce.GSI_QKEY):
        rng = self.rng
        bth = struct.pack(">BBHII", UD | 4, (-len(payload) % 4) << 4, 0xFFFF, GSI, rng.randrange(1 << 24))
        return bth + struct.pack(">II", rng.choice([qkey] * 9 + [rng.getrandbits(32)]), GSI) + payload + bytes(-len(payload) % 4)

    def service(self, target):
        others = [RC, UC, UD, XRC, SELECTIVE, SELECTIVE_XRC]
        return self.rng.choice(target.services if self.rng.random() < 0.95 else others)

    def opcode(self, target):
        """(service, low five bits) of an opcode, one that exists most of the time."""
        rng = self.rng
        if rng.random() < 0.05:
            opcode = rng.randrange(256)
            return opcode & 0xE0, opcode & 0x1F
        service = self.service(target)
        return service, rng.choice(LOWS.get(service, [*range(0x18), 0x0C, 0x11, 0x11]))

    def psn(self, target, service, low):
        """A PSN that the queue pair waits for or has had, or any."""
        rng = self.rng
        answer = low in range(0x0D, 0x13)
        near = (target.sent if answer else target.expected) + rng.choice([0, 0, 0, 1, 2, 3, rng.randint(-8, 24), rng.randint(-70, 2100)])
        return rng.choice([near] * 12 + [rng.randrange(1 << 24), near + (1 << 23)])

    def transport(self, target, service, low, psn=None, size=None, index=None, length=None):
        """A packet from the BTH on, without ICRC."""
        rng = self.rng
        psn = self.psn(target, service, low) if psn is None else psn
        size = rng.choice([*LENGTHS, rng.randrange(1400)]) if size is None else size
        if low in (0x0C, 0x11, 0x12, 0x13, 0x14, 0x15) and rng.random() < 0.95:
            size = 0
        length = rng.choice([size, size, size, 0, 1, 16, 4096, 1 << 16, 1 << 31, (1 << 31) + 1, (1 << 32) - 1]) if length is None else length
        headers = self.headers(target, service, low, rng.choice([0, 1, 2]) if index is None else index, length)
        pad = -size % 4 if rng.random() < 0.97 else rng.randrange(4)
        qpn = target.qpn | rng.choice([0] * 20 + [1 << 31, 1 << 30])
        flags = pad << 4 | rng.choice([*[0, 0x80, 0x40] * 10, rng.randrange(256)])
        pkey = rng.choice([0xFFFF] * 60 + [0x7FFF, 0, rng.randrange(1 << 16)])
        asked = rng.choice([0, ACK_REQUESTED])
        bth = struct.pack(">BBHII", service | low, flags, pkey, qpn, asked | psn % (1 << 24))
        return bth + headers + rng.randbytes(size) + bytes(pad)

    def headers(self, target, service, low, index, length):
        rng, made = self.rng, b""
        selective = service in (SELECTIVE, SELECTIVE_XRC)
        if service in (XRC, SELECTIVE_XRC) and low not in range(0x0D, 0x13):
            made += struct.pack(">I", rng.choice([0, 1, 2, rng.getrandbits(24)]))
        if service == UD:
            return struct.pack(">II", rng.choice([target.qkey] * 5 + [0, 0xFFFFFFFF]), rng.getrandbits(24)) + (rng.randbytes(4) if low == 5 else b"")
        if selective and low in (0x11, 0x15):
            return made + (self.field(target, "aeth", length, index) if low == 0x11 else b"") + self.acknowledgement(target)
        if selective:
            seth = rng.choice([0] * 12 + [0x20, 0x10, 0x0F, rng.randrange(256)]) << 24 | rng.choice([0, 0, 1, 2, rng.getrandbits(24)])
            made += struct.pack(">II", seth, rng.choice([index] * 9 + [0, rng.getrandbits(24), rng.getrandbits(32)]))
        kinds = (BEHIND_SELECTIVE if selective else BEHIND).get(low, [])
        return made + b"".join(self.field(target, kind, length, index) for kind in kinds)

    def acknowledgement(self, target):
        """SAETH and bitmap."""
        rng = self.rng
        words = rng.choice([0, 0, 1, 1, 2, 15])
        first = rng.choice([0, 0, 0x60, 0x10]) | words if rng.random() < 0.95 else rng.randrange(256)
        trigger = (target.sent + rng.choice([0, 1, 2, 3, rng.randint(-4, 40), rng.getrandbits(24)])) % (1 << 24)
        counts = struct.pack(">HHHH", *(rng.choice([0, 1, 100, 0xFFFF]) for _ in range(3)), rng.choice([0, 0, 1 << 12, 0xFFFF]))
        return struct.pack(">I", first << 24 | trigger) + counts + rng.randbytes(8 * words)

    def field(self, target, kind, length, index):
        rng = self.rng
        edges = [0, 1, target.size - 1, target.size, target.size + 1, -1, -(1 << 20)]
        inside = rng.randrange(max(1, target.size - min(max(length, 1), target.size)) + 1)
        address = (target.addr + rng.choice([0, 8, inside, inside, inside, rng.choice(edges), rng.getrandbits(64)])) % (1 << 64)
        rkey = rng.choice([target.rkey] * 15 + [0, target.rkey ^ 1, target.rkey ^ 0x100, rng.getrandbits(32)])
        if kind == "reth":
            return struct.pack(">QII", address, rkey, length % (1 << 32))
        if kind == "weth":
            return struct.pack(">QI", (address + MTU * index) % (1 << 64), rkey)
        if kind == "atomic":
            return struct.pack(">QIQQ", address, rkey, rng.getrandbits(64), rng.choice([0, rng.getrandbits(64)]))
        if kind == "aeth":
            return struct.pack(">I", rng.choice(SYNDROMES) << 24 | rng.choice([0, 1, 2, 3, rng.getrandbits(24)]))
        if kind == "ieth":
            return struct.pack(">I", rkey)
        return rng.randbytes(8 if kind == "original" else 4)

    def frame(self, transport, ip_id=77):
        port = self.rng.choice([4791] * 6 + [frames.SOURCE_PORT, self.rng.randrange(1 << 16)])
        return frames.udp_frame(*self.macs, self.source, self.destination, transport, ip_id, port)

    def single(self, transport):
        return frames.SINGLE, self.frame(transport)
