"""The `packet` port over veth next to the `udp` port and kernel TCP, in one run (`make bench`).

Each host is kept to one processor, its daemon and its program together, as two hosts would be.
"""

import os
from statistics import median

import pytest

from lab import Fabric, measure

pytestmark = pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench")

#: Gbit/s of 64 KiB writes that the port promises on a veth of MTU 9000, and its share of what the udp port carries.
GBITS_LEAST = 12
SHARE_LEAST = 0.75


def test_write_bandwidth(namespaces):
    kinds = ("packet", "udp")
    values = {name: [] for name in (*kinds, "tcp")}
    cpus = ("0", "1") if (os.cpu_count() or 1) > 1 else None
    fabrics = {kind: Fabric(ports=(f"{kind}:dev=eth0",) * 2, cpus=cpus) for kind in kinds}
    try:
        for fabric in fabrics.values():
            fabric.__enter__()
        for _ in range(3):
            for kind, fabric in fabrics.items():
                values[kind].append(measure.bandwidth(fabric, "ib_write_bw", 64 << 10)["gbits"])
            values["tcp"].append(measure.tcp_stream_gbits(fabrics["udp"]))
    finally:
        for fabric in fabrics.values():
            fabric.__exit__()
    packet, udp, tcp = (median(values[name]) for name in (*kinds, "tcp"))
    print(f"ib_write_bw 64 KiB: packet {packet:.2f} Gbit/s, udp {udp:.2f} Gbit/s; TCP {tcp:.2f} Gbit/s")
    assert packet >= SHARE_LEAST * udp
    assert packet >= GBITS_LEAST
