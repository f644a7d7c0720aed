"""Several hosts on one machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ._daemon import READY_SECONDS, Daemon, Tether, Words, _directory, _impaired
from ._place import BurstError, program

#: Hosts at most: their addresses are 10.97.0.1 to 10.97.0.250.
HOSTS_MAX = 250
#: The smallest and the largest MTU of a wire: 256 bytes of a packet with RoCE's longest headers, and the most that Ethernet interfaces take.
MTU_MIN, MTU_MAX = 348, 65535


class Namespace:
    """A network namespace that exists until [`Namespace.end`]. The first of an unprivileged user has a user namespace, which the others share."""

    def __init__(self, within: Namespace | None = None) -> None:
        self.owner: Namespace | None = within.owner if within else None if os.geteuid() == 0 else self
        unshare = ["unshare", "--net", "--mount", "--propagation", "private"]
        if self.owner is self:
            unshare += ["--user", "--map-root-user"]
        words = [*(within.prefix() if within and self.owner else []), *unshare, "sh", "-c", "ip link set lo up && echo ready && exec cat"]
        try:
            # It lives as long as `cat` reads from this pipe.
            self.keeper = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        except OSError as error:
            raise BurstError(f"unshare does not run: {error}") from error
        assert self.keeper.stdout and self.keeper.stderr
        if self.keeper.stdout.readline() != b"ready\n":
            reason = self.keeper.stderr.read().decode(errors="replace").strip()
            self.end()
            raise BurstError(f"network namespaces are not possible here: {reason}")

    def prefix(self) -> list[str]:
        """Words that put a command into this namespace."""
        user = ["--user", "--preserve-credentials"] if self.owner else []
        return ["nsenter", "-t", str(self.keeper.pid), *user, "--net", "--mount"]

    def ip(self, line: str) -> None:
        """Runs one `ip` command here."""
        done = subprocess.run([*self.prefix(), "ip", *line.split()], capture_output=True, text=True)
        if done.returncode:
            raise BurstError(f"ip {line}: {done.stderr.strip()}")

    def end(self) -> None:
        """Ends it, once no process uses it."""
        for pipe in (self.keeper.stdin, self.keeper.stdout, self.keeper.stderr):
            if pipe:
                pipe.close()
        self.keeper.wait()


class Host(Daemon):
    """A daemon with an address of its own; `run` and `popen` start programs on it."""

    #: Its IPv4 address.
    address: str

    def await_link(self) -> None:
        """Waits until its device is up: the kernel tells of a new wire after the daemon has started.

        Raises:
            BurstError: it does not come up.
        """
        end = time.monotonic() + READY_SECONDS
        while self.ls()["devices"][0]["state"] != "up":
            if time.monotonic() > end:
                raise BurstError(f"the device of {self.address} does not come up")
            time.sleep(0.02)


def _namespaces_of(count: int, stack: contextlib.ExitStack) -> tuple[Namespace, list[Namespace]]:
    """The namespace of the wires' other ends, and one for each host."""
    middle = Namespace()
    stack.callback(middle.end)
    ends = []
    for _ in range(count):
        end = Namespace(middle)
        stack.callback(end.end)
        ends.append(end)
    return middle, ends


def _wires(middle: Namespace, ends: list[Namespace], mtu: int) -> list[str]:
    """Gives each host an interface `eth0`. Returns the switch's ports; there are none without a third host."""
    if len(ends) == 2:
        ends[0].ip(f"link add eth0 mtu {mtu} type veth peer name eth0 mtu {mtu} netns {ends[1].keeper.pid}")
        return []
    for number, end in enumerate(ends):
        end.ip(f"link add eth0 mtu {mtu} type veth peer name port{number} mtu {mtu} netns {middle.keeper.pid}")
        middle.ip(f"link set port{number} up")
    # The wire of a host that is alone ends in the middle.
    return [f"port{number}" for number in range(len(ends))] if len(ends) > 1 else []


def _switch(middle: Namespace, ports: list[str], stack: contextlib.ExitStack) -> None:
    """Starts `burst switch` between the ports."""
    tether = Tether()
    stack.callback(tether.end)
    try:
        words = [*middle.prefix(), str(program("burst-switch")), "--quiet", *tether.words(), *ports]
        running = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=[tether.reading], start_new_session=True,
        )
    finally:
        tether.started()
    assert running.stdout
    stack.callback(running.stdout.close)
    stack.callback(running.wait)
    stack.callback(running.terminate)
    if b"forwarding" not in (said := running.stdout.readline()):
        raise BurstError(f"burst switch does not run: {said.decode(errors='replace').strip()}")


def _in_namespaces(count: int, mtu: int, place: Path, options: Words, faults: dict[str, Any], stack: contextlib.ExitStack) -> list[Host]:
    middle, ends = _namespaces_of(count, stack)
    ports = _wires(middle, ends, mtu)
    for number, end in enumerate(ends, start=1):
        address = f"10.97.0.{number}"
        end.ip(f"addr add {address}/24 dev eth0")
        end.ip("link set eth0 up")
    if ports:
        _switch(middle, ports, stack)
    made = []
    for number, end in enumerate(ends, start=1):
        host = Host(place, _impaired("udp:dev=eth0", faults), prefix=end.prefix(), options=options, name=f"host{number}")
        stack.callback(host.stop)
        host.address = f"10.97.0.{number}"
        host.await_link()
        made.append(host)
    return made


def _on_loopback(count: int, place: Path, options: Words, faults: dict[str, Any], stack: contextlib.ExitStack) -> list[Host]:
    made = []
    for number in range(1, count + 1):
        address = f"127.0.0.{number}"
        host = Host(place, _impaired(f"udp:dev=lo,addr={address}", faults), options=options, name=f"host{number}")
        stack.callback(host.stop)
        host.address = address
        made.append(host)
    return made


@contextlib.contextmanager
def hosts(count: int = 2, *, mtu: int = 1500, namespaces: bool | None = None, options: Words = (), **faults: object) -> Iterator[list[Host]]:
    """Hosts with a daemon each, joined by a network; all end with the block.

    Where the kernel allows it each host is a network namespace: two are joined by a wire, more by `burst switch`. Elsewhere they are
    addresses 127.0.0.1, 127.0.0.2, … of the loopback interface.

    Args:
        count: how many, 1 to 250.
        mtu: of the wires, in bytes, at least 348: the payload of a packet is the largest of 256, 512, 1024, 2048 and 4096 bytes that fits
            with 92 bytes of headers. Interfaces with less than 1280 bytes have no IPv6.
        namespaces: True demands namespaces, False does without; None: if they are possible.
        options: further options of each `burstd`.
        faults: of each host's port: `loss="1%"`, `delay="1ms"` and the other options of `impair`.

    Raises:
        BurstError: it cannot be done here; the text says why.
    """
    if not 1 <= count <= HOSTS_MAX:
        raise BurstError(f"{count} hosts are not possible: 1 to {HOSTS_MAX} are")
    if not MTU_MIN <= mtu <= MTU_MAX:
        raise BurstError(f"an MTU of {mtu} is not possible: RoCE packets need {MTU_MIN} to {MTU_MAX}")
    with _directory() as place, contextlib.ExitStack() as stack:
        if namespaces is None:
            try:
                _namespaces_of(1, stack)
                namespaces = True
            except BurstError:
                namespaces = False
        if namespaces:
            yield _in_namespaces(count, mtu, place, options, faults, stack)
        else:
            yield _on_loopback(count, place, options, faults, stack)
