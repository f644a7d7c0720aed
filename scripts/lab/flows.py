"""Streams of each transport to one host, for experiments at a bottleneck.

A [`Flow`] is a server on host 0 and a client on another host, which sends for some seconds; `mbits` is what arrived. By kind:

    rc      RC WRITEs of 64 KiB (ib_write_bw) on the daemons
    ud      datagrams of 1000 bytes by UCX's transport `ud`, which repairs losses and has a window of its own
    urma    writes of 64 KiB by UMDK's urma_perftest on the daemons' nodes
    proxy   iperf3 through proxies ([`lab.proxy.StarProxies`] must run)
    cubic, bbr, reno    iperf3 by a TCP controller of the kernel
"""

import itertools
import json
import signal

from .fabric import build_directory
from .waiting import LabError, wait_until

MIB = 1 << 20
#: Each stream has a port of its own, because sockets of earlier ones stay in TIME-WAIT for a minute. Proxies take the others.
PORTS, TAKEN = itertools.cycle(range(19_000, 29_000)), itertools.cycle(range(29_000, 31_000))
#: Goes on until it is stopped.
ENDLESS = 1_000_000_000


class Flow:
    """One stream. It begins with [`Flow.begin`]."""

    ports = PORTS

    def __init__(self, hosts, number, seconds):
        self.port, self.seconds = next(self.ports), seconds
        self.receiver, self.sender = hosts.hosts[0], hosts.hosts[number]
        self.failure = None
        self.server = self.start(self.receiver, self.server_words())
        listens = lambda: any(f":{self.port:04X} " in line and " 0A " in line for line in self.receiver.tcp_table())  # noqa: E731
        wait_until(listens, said=self.server.text, program=self.server)

    def start(self, host, words):
        return host.start(*words)

    def begin(self):
        self.client = self.start(self.sender, self.client_words())

    def client_words(self):
        return [*self.server_words(), self.receiver.address]

    def mbits(self):
        """Goodput in Mbit/s, after the stream's end. 0 if it did not end in time, or failed; `failure` says how."""
        try:
            code = self.client.wait(self.seconds * 5 + 30)
            text = self.client.text()
            if code == 0:
                return self.read(text)
            self.failure = f"exit code {code}: {text[-1000:]}"
        except (LabError, ValueError, LookupError) as error:
            self.failure = f"{type(error).__name__}: {error}"[-1000:]
        finally:
            self.server.stop()
        return 0.0


class Rc(Flow):
    def server_words(self):
        return ["ib_write_bw", "-d", "burst0", "-F", "-D", self.seconds, "-p", self.port, "--report_gbits"]

    def read(self, text):
        return next(float(line.split()[3]) * 1e3 for line in text.splitlines() if line.split()[:1] == ["65536"])


class Ud(Flow):
    def server_words(self):
        tool = ["ucx_perftest", "-d", "burst0:1", "-x", "ud_verbs", "-t", "am_bw", "-D", "bcopy", "-s", 1000, "-w", 10, "-p", self.port]
        return [build_directory() / "burst", "run", "--no-start", "--", "stdbuf", "-oL", *tool, "-n", ENDLESS]

    def start(self, host, words):
        return host.start(*words, env={"UCX_NET_DEVICES": "burst0:1", "UCX_WARN_UNUSED_ENV_VARS": "n"})

    def mbits(self):
        """ucx_perftest counts messages, not seconds, and prints the goodput every second: that of the last line."""
        try:
            self.client.wait(self.seconds + 0.5)
        except LabError:
            rows = [line.split() for line in self.client.text().splitlines() if line.startswith("[thread 0]")]
            if rows:
                return float(rows[-1][7]) * 8 * MIB / 1e6
        finally:
            self.server.stop(signal.SIGKILL)
        self.failure = self.client.text()[-1000:]
        return 0.0


class Urma(Flow):
    #: [`lab.urma.Umdk`], whose programs run.
    umdk = None

    def server_words(self):
        tool = self.umdk.built / "urma/tools/urma_perftest/urma_perftest"
        return [tool, "write_bw", "-D", self.seconds, "-Q", 1, "-s", 65536, "-d", "burst0", "-P", self.port]

    def client_words(self):
        return [*self.server_words(), "-S", self.receiver.address]

    def start(self, host, words):
        return host.start(*words, env=self.umdk.env, plain=self.umdk.plain)

    def read(self, text):
        return float(text.strip().splitlines()[-1].split()[3]) * 8 * MIB / 1e6


class Tcp(Flow):
    cc = "cubic"

    def start(self, host, words):
        return host.start(*words, plain=True)

    def server_words(self):
        return ["iperf3", "-s", "-1", "-p", self.port]

    def client_words(self):
        return ["iperf3", "-c", self.receiver.address, "-p", self.port, "-t", self.seconds, "-C", self.cc, "-J"]

    def read(self, text):
        return json.loads(text)["end"]["sum_received"]["bits_per_second"] / 1e6


class Proxy(Tcp):
    ports = TAKEN


class Bbr(Tcp):
    cc = "bbr"


class Reno(Tcp):
    cc = "reno"


KINDS = {"rc": Rc, "ud": Ud, "urma": Urma, "proxy": Proxy, "cubic": Tcp, "bbr": Bbr, "reno": Reno}
#: Kinds that the kernel's TCP carries.
TCP = ("cubic", "bbr", "reno")


def flow(hosts, number, kind, seconds):
    """A stream of this kind from host `number` to host 0."""
    return KINDS[kind](hosts, number, seconds)
