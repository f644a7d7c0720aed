"""Recomputes the ICRC of every RoCEv2 packet of a capture, with scapy's contrib.roce; run by the distribution's Python.

    icrc_by_scapy.py FILE.pcap

scapy knows the sum over IPv4 only; for IPv6 it is computed here from the layout of the specification's annex A17. Prints
"N packets, M wrong" and exits with 1 if any is wrong.
"""

import struct
import sys
import zlib

from scapy.contrib.roce import BTH
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6
from scapy.utils import PcapReader

ROCE = 4791


def over_ipv6(packet):
    """CRC-32 of eight bytes of ones and the packet, whose variable fields count as ones."""
    octets = bytearray(bytes(packet[IPv6])[:40 + packet[IPv6].plen])
    octets[0] |= 0x0F  # traffic class and flow label
    octets[1:4] = b"\xff\xff\xff"
    octets[7] = 0xFF  # hop limit
    octets[46:48] = b"\xff\xff"  # UDP checksum
    octets[52] = 0xFF  # FECN, BECN, reserved
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + octets[:-4]))


def sums(packet):
    """(the ICRC in the packet, the one it should have)."""
    if IPv6 in packet:
        end = 40 + packet[IPv6].plen
        return bytes(packet[IPv6])[end - 4:end], over_ipv6(packet)
    return struct.pack("!I", packet[BTH].icrc), packet[BTH].compute_icrc(None)


def main():
    total = wrong = 0
    for number, packet in enumerate(PcapReader(sys.argv[1]), start=1):
        if UDP not in packet or packet[UDP].dport != ROCE:
            continue
        total += 1
        there, computed = sums(packet)
        if there != computed:
            wrong += 1
            print(f"packet {number}: {there.hex()} should be {computed.hex()}: {packet.summary()}")
    print(f"{total} packets, {wrong} wrong")
    return wrong != 0


if __name__ == "__main__":
    sys.exit(main())
