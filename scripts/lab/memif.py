"""Two hosts without namespaces: daemons joined by memif, DPDK's shared-memory wire between processes."""

import json
import os
import random
import socket
import subprocess
from pathlib import Path

from .fabric import Daemon, Program, build_directory
from .perftest import run_pair
from .waiting import LabError, wait_until

ADDRESSES = {"a": ("10.77.0.1", "fd77::1"), "b": ("10.77.0.2", "fd77::2")}
LINK_SECONDS = 60
PORTS = 20_000, 32_000


class Wire:
    """A host without a namespace: a burstd on a DPDK device, and programs that use it."""

    def __init__(self, name, directory, device, extra=(), env=None, options="", cpu=None):
        self.name, self.directory = name, Path(directory)
        self.prefix = ["taskset", "-c", cpu] if cpu else []
        self.socket = self.directory / f"{name}.ctl"
        self.address = "127.0.0.1"  # programs meet here to exchange queue pair numbers
        self.roce, self.roce6 = ADDRESSES[name]
        self.port = f"dpdk:dev={device},addr={self.roce}/24,addr={self.roce6}/64{options}"
        self.extra, self.env = extra, {**os.environ, **(env or {})}
        self.daemon = None

    def start_daemon(self):
        self.daemon = Daemon(self.prefix, self.socket, self.port, self.extra, self.env)
        return self

    def environment(self, extra=None):
        libraries = str(build_directory() / "lib")
        return {**os.environ, "BURST_SOCKET": str(self.socket), "LD_LIBRARY_PATH": libraries, **(extra or {})}

    def start(self, *words, env=None, plain=False):
        return Program([*self.prefix, *words], self.environment(env))

    def tcp_table(self):
        lines = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
        return [line for table in lines for line in table]

    def burst(self, *words):
        done = subprocess.run(
            [build_directory() / "burst", *words], env=self.environment(), capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            raise LabError(done.stdout + done.stderr)
        return done.stdout

    def devices(self):
        return json.loads(self.burst("ls", "--json"))["devices"]

    def stats(self):
        sums = {}
        for row in json.loads(self.burst("stats", "--json"))["counters"]:
            sums[row["name"]] = sums.get(row["name"], 0) + row["value"]
        return sums

    def await_link(self, up=True):
        said = lambda: f"the link of {self.name} does not become {'up' if up else 'down'}:\n{self.daemon.text()}"  # noqa: E731
        wait_until(lambda: (self.devices()[0]["state"] == "up") == up, LINK_SECONDS, said, self.daemon)


def memif(directory, role):
    return f"net_memif0,role={role},socket={directory}/memif.sock"


def wires(directory, extra=(), cpus=None):
    """Two daemons joined by memif, both links up; a is the memif server. `cpus`: a processor for each side."""
    cpu_a, cpu_b = cpus or (None, None)
    a = Wire("a", directory, memif(directory, "server"), extra, cpu=cpu_a).start_daemon()
    b = Wire("b", directory, memif(directory, "client"), extra, cpu=cpu_b).start_daemon()
    for wire in (a, b):
        wire.await_link()
    return a, b


def meet(server, client, words):
    """Runs a pair with a free TCP port, because there is no namespace and other programs may use perftest's default port."""
    return run_pair(server, client, [*words, "-p", free_port()])


def free_port():
    """A free TCP port below the kernel's ephemeral range, so that no client takes it before the server binds it."""
    while True:
        port = random.randrange(*PORTS)
        try:
            socket.create_server(("0.0.0.0", port)).close()
            return port
        except OSError:
            continue


def without_dpdk(directory):
    """The message of a burstd that was built without DPDK, else None."""
    words = [build_directory() / "burstd", "--socket", Path(directory) / "probe.ctl", "--port"]
    done = subprocess.run([*words, "dpdk:dev=nothing0,addr=10.0.0.1/24"], capture_output=True, text=True, timeout=60)
    return done.stderr.strip() if "built without dpdk" in done.stderr else None
