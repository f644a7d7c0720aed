"""RoCEv2 frames made by hand, which no program would send."""

import socket
import struct
import zlib

ETHERTYPE_IPV4, UDP, ROCE_PORT = 0x0800, 17, 4791
WRITE_ONLY = 0x0A
DEFAULT_PKEY = 0xFFFF


def write_only(qpn, psn, address, rkey, data, *, pkey=DEFAULT_PKEY, opcode=WRITE_ONLY):
    """BTH, RETH and payload of an RDMA WRITE in one packet; the data's length is a multiple of four."""
    base = struct.pack("!BBHII", opcode, 0x40, pkey, qpn, 1 << 31 | psn)
    return base + struct.pack("!QII", address, rkey, len(data)) + data


def frame(transport, source, destination, destination_mac, *, corrupt=False):
    """The Ethernet frame around it: IPv4, UDP, ICRC."""
    udp_length = 8 + len(transport) + 4
    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + udp_length, 7, 0x4000, 64, UDP, 0) + addresses
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    udp = struct.pack("!HHHH", 50000, ROCE_PORT, udp_length, 0)
    masked = bytearray(b"\xff" * 8 + head + udp + transport)
    for at in (8 + 1, 8 + 8, 8 + 10, 8 + 11, 28 + 6, 28 + 7, 36 + 4):
        masked[at] = 0xFF  # TOS, TTL, checksums, FECN and BECN
    icrc = zlib.crc32(masked) ^ corrupt
    ethernet = bytes.fromhex(destination_mac.replace(":", "")) + b"\x52\x54\x77\x00\x00\xee" + struct.pack("!H", ETHERTYPE_IPV4)
    return ethernet + head + udp + transport + struct.pack("<I", icrc)


def checksum(head):
    """The Internet checksum of a header whose checksum field is 0."""
    total = sum(struct.unpack(f"!{len(head) // 2}H", head))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF
