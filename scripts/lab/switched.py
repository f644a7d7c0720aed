"""Hosts around a switch (`burst switch`), each with a daemon."""

import json
import os
import shutil
import signal
import tempfile
from pathlib import Path

from .fabric import Host, Program, build_directory


class Switched:
    """`count` hosts `h0`, `h1`, ..., each joined by a wire to the namespace of a switch; a context manager. The switch is started by
    [`Switched.switch`], as often as its settings are to change; without one no frame passes."""

    def __init__(self, count, mtu=1500, daemons=True, extra=()):
        self.count, self.mtu, self.daemons, self.extra = count, mtu, daemons, extra
        self.directory, self.middle, self.running = None, None, None
        self.hosts = []

    def __enter__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="burst-lab-"))
        os.chmod(self.directory, 0o755)
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

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
        for host in [*self.hosts, *([self.middle] if self.middle else [])]:
            host.end()
        self.hosts, self.middle = [], None
        shutil.rmtree(self.directory, ignore_errors=True)


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
        # Before other processes: a switch that waits for a processor is a bottleneck of its own.
        self.program = Program([*self.lab.middle.prefix(), "nice", "-n", "-10", *words])
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
