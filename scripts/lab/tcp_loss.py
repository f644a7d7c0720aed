"""The kernel's TCP and Burst on one wire that loses packets.

Every packet on the wire is one packet of at most the link's MTU: segmentation and aggregation are switched off, for TCP and for the
trains of UDP alike. A rule of nftables at both ends drops received packets at random, whatever they carry.
"""

import json

from .fabric import Fabric
from .measure import DEVICE
from .perftest import await_listener, run_pair
from .waiting import LabError

PORT = 5301
MIB = 1 << 20
TCP = ("cubic", "bbr")
FEATURES = ("tso", "gso", "gro", "tx-udp-segmentation")


class LossyWire:
    """A fabric whose wire loses packets; a context manager. `mtu`: of the link; the path MTU of RDMA follows."""

    def __init__(self, mtu):
        self.fabric = Fabric(mtu=mtu, extra=("--cc", "none", "--selective-repeat"))
        self.path_mtu = 4096 if mtu >= 4188 else 1024

    def __enter__(self):
        self.fabric.__enter__()
        try:
            for host in self.fabric.hosts:
                for feature in FEATURES:
                    plain(host, "ethtool", "-K", "eth0", feature, "off")
            # The hello comes and goes while nothing is lost.
            run_pair(self.fabric.b, self.fabric.a, ["ib_write_bw", "-d", DEVICE, "-F", "-s", 65536, "-n", 100])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.fabric.__exit__()

    def lose(self, percent):
        """From now on each end drops this share of the packets that it receives."""
        for host in self.fabric.hosts:
            plain(host, "nft", "flush", "ruleset")
            if percent:
                plain(host, "nft", "add table netdev lossy")
                plain(host, "nft", "add chain netdev lossy in { type filter hook ingress device eth0 priority 0; }")
                plain(host, "nft", f"add rule netdev lossy in numgen random mod 1000000 < {round(percent * 10_000)} drop")

    def tcp_gbits(self, congestion, seconds):
        """One iperf3 stream from a to b with this congestion control."""
        a, b = self.fabric.a, self.fabric.b
        server = b.start("iperf3", "-s", "-1", "-p", PORT, plain=True)
        try:
            await_listener(b, server, PORT)
            words = ["iperf3", "-c", b.address, "-p", PORT, "-C", congestion, "-t", seconds, "-J"]
            code, text = a.run(*words, seconds=seconds + 60, plain=True)
            if code:
                raise LabError(f"iperf3 -C {congestion}: {text}")
            return json.loads(text)["end"]["sum_received"]["bits_per_second"] / 1e9
        finally:
            server.stop()

    def burst_gbits(self, seconds):
        """WRITEs of 1 MiB over one RC queue pair from a to b."""
        words = ["ib_write_bw", "-d", DEVICE, "-F", "--report_gbits", "-s", MIB, "-m", self.path_mtu, "-D", seconds]
        return run_pair(self.fabric.b, self.fabric.a, words, seconds=seconds + 60).gbits


def plain(host, *words):
    """Runs a command in the host's namespace, without Burst."""
    code, text = host.run(*words, plain=True)
    if code:
        raise LabError(f"{' '.join(words)}: {text.strip()}")
