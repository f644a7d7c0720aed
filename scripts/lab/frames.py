"""Frames made by hand: RoCEv2 packets with a correct ICRC, functions that damage them, and a sender for raw frames.

They go out by AF_PACKET behind a virtio header, as a machine's own trains do, so that one frame may be a train.
"""

import ipaddress
import struct
import subprocess
import zlib

ETHERNET, IPV4, IPV6, UDP = 14, 20, 40, 8
ROCE_PORT, SOURCE_PORT = 4791, 49152
SINGLE = bytes(10)

#: Sends frames, each behind the ten bytes of a virtio header (SOL_PACKET, PACKET_VNET_HDR). Says how many the kernel refused.
SEND = """
import errno, socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.setsockopt(263, 15, 1)
s.bind((sys.argv[1], 0))
refused = 0
for line in sys.stdin:
    try:
        s.send(bytes.fromhex(line))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EMSGSIZE):
            raise
        refused += 1
print(refused)
"""


def ones_sum(data):
    """The one's complement sum of an Internet checksum, before the complement."""
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return (total & 0xFFFF) + (total >> 16)


def ip_checksum(header):
    """The checksum of an IPv4 header in which it is 0."""
    return struct.pack(">H", ~ones_sum(header) & 0xFFFF)


def ip_header(source, destination, length, ip_id):
    """An IP header over `length` bytes of UDP (RFC 791, RFC 8200)."""
    ends = [ipaddress.ip_address(address) for address in (source, destination)]
    packed = b"".join(address.packed for address in ends)
    if ends[0].version == 6:
        return struct.pack(">IHBB", 6 << 28, length, 17, 64) + packed
    head = struct.pack(">BBHHHBBH", 0x45, 0, IPV4 + length, ip_id, 0x4000, 64, 17, 0) + packed
    return head[:10] + ip_checksum(head) + head[12:]


def roce_frame(mac_src, mac_dst, src, dst, opcode, qpn, psn, payload=b"", ip_id=77, source_port=SOURCE_PORT):
    """An Ethernet frame with a RoCEv2 packet and its ICRC, without UDP checksum."""
    bth = struct.pack(">BBHII", opcode, 0, 0xFFFF, qpn, psn)
    return udp_frame(mac_src, mac_dst, src, dst, bth + payload, ip_id, source_port)


def udp_frame(mac_src, mac_dst, src, dst, transport, ip_id=77, source_port=SOURCE_PORT):
    """As `roce_frame`, of a packet given from the BTH on, of any length."""
    length = UDP + len(transport) + 4
    ip, udp = ip_header(src, dst, length, ip_id), struct.pack(">HHHH", source_port, ROCE_PORT, length, 0)
    masked = bytearray(ip + udp + transport)
    if len(ip) == IPV6:
        masked[0] |= 0x0F
        masked[1:4] = b"\xff\xff\xff"
    for at in (7,) if len(ip) == IPV6 else (1, 8, 10, 11):
        masked[at] = 0xFF
    for at in (6, 7, UDP + 4):
        if len(ip) + at < len(masked):
            masked[len(ip) + at] = 0xFF
    kind = b"\x86\xdd" if len(ip) == IPV6 else b"\x08\x00"
    icrc = struct.pack("<I", zlib.crc32(b"\xff" * 8 + masked))
    return mac_dst + mac_src + kind + ip + udp + transport + icrc


def changed(frame, at, bits):
    """The frame with some bits of one byte inverted."""
    return frame[:at] + bytes([frame[at] ^ bits]) + frame[at + 1:]


def with_field(frame, at, field):
    """The frame with another field in its IPv4 header, and a correct header checksum."""
    frame = frame[:at] + field + frame[at + len(field):]
    return frame[:24] + ip_checksum(frame[14:24] + b"\0\0" + frame[26:34]) + frame[26:]


def with_options(frame):
    """The frame with four bytes of options (no operation) in its IPv4 header."""
    longer = frame[:34] + b"\x01\x01\x01\x01" + frame[34:]
    longer = longer[:14] + b"\x46" + longer[15:16] + struct.pack(">H", len(frame) - 14 + 4) + longer[18:]
    return longer[:24] + ip_checksum(longer[14:24] + b"\0\0" + longer[26:38]) + longer[26:]


def with_fragment_header(frame):
    """The first fragment of an IPv6 packet (RFC 8200 4.5), with the flag for more fragments."""
    length = struct.unpack(">H", frame[18:20])[0] + 8
    return frame[:18] + struct.pack(">H", length) + b"\x2c" + frame[21:54] + b"\x11\0\0\x01\0\0\0\x07" + frame[54:]


def tagged(frame, kind, tag):
    """The frame as a switch sends it in a VLAN."""
    return frame[:12] + struct.pack(">HH", kind, tag) + frame[12:]


def padded(frame):
    """The frame padded to the minimum length of Ethernet, without frame check sequence."""
    return frame.ljust(60, b"\x5a")


def train_of(packets, segment=None):
    """One frame of IPv4 packets with one length but the last: a virtio header, and the headers of the first one. `segment`:
    what the virtio header says of the packets' length, if that is not true."""
    head, bodies = bytearray(packets[0][:42]), b"".join(packet[42:] for packet in packets)
    udp = UDP + len(bodies)
    head[16:18], head[38:40] = struct.pack(">H", IPV4 + udp), struct.pack(">H", udp)
    head[24:26] = ip_checksum(bytes(head[14:24]) + b"\0\0" + bytes(head[26:34]))
    # The kernel or NIC that segments the train completes the checksum; here it is the sum of the pseudo header.
    head[40:42] = struct.pack(">H", ones_sum(bytes(head[26:34]) + struct.pack(">HH", 17, udp)))
    virtio = struct.pack("=BBHHHH", 1, 5, 42, segment or len(packets[0]) - 42, 34, 6)
    return virtio + bytes(head) + bodies


def mac_of(host, interface="eth0"):
    return bytes.fromhex(host.run("cat", f"/sys/class/net/{interface}/address", plain=True)[1].strip().replace(":", ""))


def inject(host, frames, header=SINGLE, interface="eth0", may_refuse=0):
    """Puts frames on the wire of a host's interface. `may_refuse`: of how many the kernel may say that they are none."""
    lines = "\n".join((header + frame).hex() for frame in frames)
    words = [*host.prefix(), "python3", "-c", SEND, interface]
    done = subprocess.run(words, input=lines, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0 and int(done.stdout) <= may_refuse, done.stdout + done.stderr
