"""Hosts around a switch (`burst switch`), each with a daemon."""

import json
import signal
from pathlib import Path

from .fabric import Host, Network, Program, build_directory

class Switched(Network):
    """`count` hosts `h0`, `h1`, ..., each joined by a wire to the namespace of a switch. The switch is started by
    [`Switched.switch`], as often as its settings are to change; without one no frame passes."""

    def __init__(self, count, mtu=1500, daemons=True, extra=()):
        super().__init__()
        self.count, self.mtu, self.daemons, self.extra = count, mtu, daemons, extra
        self.middle = None

    def _build(self):
        self.middle = Host("switch", self.directory)
        for number in range(self.count):
            host = Host(f"h{number}", self.directory)
            self.hosts.append(host)
            host.ip(f"link add eth0 type veth peer name port{number} netns {self.middle.keeper.pid}")
            host.address = f"10.98.0.{number + 1}"
            host.ip(f"link set eth0 mtu {self.mtu}")
            host.ip(f"addr add {host.address}/24 dev eth0")
            host.ip("link set eth0 up")
            self.middle.ip(f"link set port{number} mtu {self.mtu} up")
        if self.daemons:
            for host in self.hosts:
                host.start_daemon(extra=self.extra)

    def restart_daemons(self, extra):
        """Starts all daemons again, with other flags."""
        for host in self.hosts:
            if host.daemon:
                host.daemon.stop()
            host.start_daemon(extra=extra)

    def switch(self, *flags):
        """Starts the switch with these flags. Returns a context manager, whose `results` are there after its end."""
        return RunningSwitch(self, flags)

    def __exit__(self, *_):
        super().__exit__()
        if self.middle:
            self.middle.end()
        self.middle = None


class RunningSwitch:
    """A `burst switch` between all hosts of a [`Switched`]."""

    def __init__(self, lab, flags):
        self.lab, self.flags = lab, [str(flag) for flag in flags]
        self.program, self.results = None, None

    def __enter__(self):
        ports = [f"port{number}" for number in range(self.lab.count)]
        self.file = self.lab.directory / "switch.json"
        self.file.unlink(missing_ok=True)
        words = [build_directory() / "burst-switch", *self.flags, "--json", self.file, "--quiet", *ports]
        # Before other processes: a switch that waits for a processor is a bottleneck of its own. Nice values compare processes of one
        # session; with autogroups those of sessions count, and the daemons raise theirs.
        self.program = Program([*self.lab.middle.prefix(), "nice", "-n", "-10", *words])
        group = Path(f"/proc/{self.program.pid}/autogroup")
        if group.exists():
            group.write_text("-15")
        self.program.wait_for_text("forwarding", 60)
        return self

    def __exit__(self, kind, *_):
        code = self.program.stop(signal.SIGTERM)
        if kind is None:
            assert code == 0, self.program.text()
            self.results = json.loads(self.file.read_text())

    def port(self, number):
        """What the port of a host has seen."""
        return self.results["ports"][number]

    def link_bytes(self):
        """Of each port: bytes and packets that came in from its host and that left towards it so far, (in, in, out, out). A train of an
        offload is one packet."""
        lines = Path(f"/proc/{self.lab.middle.keeper.pid}/net/dev").read_text().splitlines()
        rows = {words[0]: [int(word) for word in words[1:]] for words in (line.split() for line in lines[2:])}
        ports = (rows[f"port{number}:"] for number in range(self.lab.count))
        return [(port[0], port[1], port[8], port[9]) for port in ports]
