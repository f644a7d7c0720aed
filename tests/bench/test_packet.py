"""The `packet` port over veth next to the `udp` port and kernel TCP, in one run (`make bench`).

The daemon and the program of each host are pinned to one processor, a different one for each host.
"""

import os
from statistics import median

import pytest

from lab import Fabric, measure

pytestmark = pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench")

#: Least bandwidth of 64 KiB writes over the packet port on a veth of MTU 9000: absolute, and as a share of the udp port.
GBITS_LEAST = 12
SHARE_LEAST = 0.75


def test_write_bandwidth(namespaces, figure):
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
    figure("pinned hosts: ib_write_bw 64 KiB, packet port", packet, "Gbit/s")
    figure("pinned hosts: ib_write_bw 64 KiB, udp port", udp, "Gbit/s")
    figure("pinned hosts: TCP, one stream", tcp, "Gbit/s")
    assert packet >= SHARE_LEAST * udp
    assert packet >= GBITS_LEAST
