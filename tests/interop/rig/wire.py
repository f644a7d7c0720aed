"""The wire between burstd and the guests: loss, injection and capture of packets.

In the namespace of a `lab.Host` lies a bridge named eth0 (10.77.0.1/24, fd77::1/64), which burstd opens like any other
interface; guest N (10.77.0.N, fd77::N, N from 2 on) has the port tapN. Datagrams that burstd gives to the kernel in one
train are cut apart on the bridge, so that a tap sees what a wire would see: one packet each.

`Rig.lose` makes nftables drop a packet that matches; `Rig.inject` puts a frame on the bridge as from a third
machine; `Rig.capture` writes a pcap file of a tap.
"""

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from lab import Host, LabError

from .guest import Guest, inside

ROCE = "udp dport 4791"


class Loss:
    """A packet to be lost: a rule of nftables for the first packet that matches all given conditions.

    `opcode` and `psn` are BTH's; `attribute` is the attribute of a connection management datagram.
    """

    def __init__(self, opcode=None, psn=None, attribute=None):
        bits = [("@th,64,8", opcode), ("@th,136,24", psn), ("@th,352,16", attribute)]
        self.match = " ".join(f"{field} {value:#x}" for field, value in bits if value is not None)


class Rig:
    """burstd on a bridge and guests at its ports; a context manager."""

    def __init__(self, *, kernel="6.1", mtu=1500, port="udp:dev=eth0", guests=1, daemon=True, icount=False, memory=384, extra=(), machine="x86_64", rxe=True):
        self.kernel, self.mtu, self.port, self.count, self.daemon = kernel, mtu, port, guests, daemon
        self.icount, self.memory, self.extra, self.machine, self.rxe = icount, memory, extra, machine, rxe
        self.directory = None
        self.host = None
        self.guests = []
        self.captures = []
        self.injector = None

    @property
    def guest(self):
        return self.guests[0]

    def __enter__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="burst-interop-"))
        self.directory.chmod(0o755)
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self):
        self.host = Host("host", self.directory)
        self.host.address, self.host.address6 = "10.77.0.1", "fd77::1"
        ip = self.host.ip
        ip("link add eth0 address 52:54:77:00:00:01 type bridge mcast_snooping 0")
        ip("addr add 10.77.0.1/24 dev eth0")
        for number in range(2, 2 + self.count):
            ip(f"tuntap add dev tap{number} mode tap vnet_hdr")
            ip(f"link set tap{number} mtu {self.mtu} txqueuelen 10000 master eth0 up")
        ip("link add inject type veth peer name injected")
        for end in ("inject", "injected"):
            ip(f"link set {end} mtu {self.mtu} addrgenmode none up")
        ip("link set injected master eth0")
        ip(f"link set eth0 mtu {self.mtu} up")
        ip("addr add fd77::1/64 dev eth0 nodad")
        self._command("ethtool", "-K", "eth0", "tx-udp-segmentation", "off")
        for number in range(2, 2 + self.count):
            shape = {"kernel": self.kernel, "mtu": self.mtu, "icount": self.icount, "memory": self.memory, "machine": self.machine, "rxe": self.rxe}
            self.guests.append(Guest(self.host, f"tap{number}", number, **shape))
        self._await_addresses()
        # A kernel keeps few packets for a neighbour that it must find first: a long first message of UC would not be whole.
        for guest in self.guests:
            for address in (guest.address, guest.address6):
                self._command("ping", "-c", "1", "-W", "10", address)
        if self.daemon:
            self.host.start_daemon(self.port, self.extra)

    def _await_addresses(self):
        limit = time.monotonic() + 5
        while "tentative" in self._command("ip", "-6", "addr", "show", "dev", "eth0"):
            if time.monotonic() > limit:
                raise LabError("the bridge's addresses stay tentative")
            time.sleep(0.05)

    def _command(self, *words, text=None):
        done = subprocess.run([*self.host.prefix(), *words], input=text, capture_output=True, text=True)
        if done.returncode:
            raise LabError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def lose(self, loss, to_guest=False, skip=0, count=1):
        """Loses `count` packets that match, from guest 2 or to it, after `skip` others have passed."""
        hook = "egress" if to_guest else "ingress"
        self.keep()
        self._command("nft", "-f", "-", text=(
            f'table netdev burst {{\nchain loss {{ type filter hook {hook} device "tap2" priority 0; '
            f"{ROCE} {loss.match} numgen inc mod 16777216 {skip}-{skip + count - 1} counter drop;\n}}\n}}\n"
        ))

    def lost(self):
        """Number of packets that `lose` has lost."""
        text = self._command("nft", "list", "table", "netdev", "burst")
        return int(text.split("counter packets ")[1].split()[0])

    def keep(self):
        """Ends the loss."""
        subprocess.run([*self.host.prefix(), "nft", "delete", "table", "netdev", "burst"], capture_output=True)

    def inject(self, frame):
        """Puts a frame on the bridge, as from another machine."""
        if not self.injector:
            self.injector = inside(self.guest.namespace, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
            self.injector.bind(("inject", 0))
        self.injector.send(frame)

    def capture(self, path, interface="tap2"):
        """Starts to write RoCEv2 packets into a pcap file; `stop` of the result ends it."""
        words = ["tcpdump", "-U", "-p", "--immediate-mode", "-Z", "root", "-s", "0", "-i", interface, "-w", path, "udp", "port", "4791"]
        program = self.host.start(*words, plain=True)
        self.captures.append(program)
        program.wait_for_text("listening on", 10)
        return program

    def __exit__(self, *_):
        if self.injector:
            self.injector.close()
        for program in self.captures:
            program.stop(signal.SIGINT)
        for guest in self.guests:
            guest.end()
        self.guests = []
        if self.host:
            self.host.end()
        shutil.rmtree(self.directory, ignore_errors=True)
