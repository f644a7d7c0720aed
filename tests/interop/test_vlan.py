"""Burst on the interface of a VLAN, with rxe in the same VLAN. Both are guests, so the host's kernel need not support VLANs."""

import ipaddress
import re

import pytest

from conftest import KERNELS, PORTS
from lab import LabError, run_pair
from rig import Rig
from rig.burst import BURST, install
from rig.pairs import CLIENTS, FAMILIES

TAG = 5
GID = re.compile(r"GID\[\s*(\d+)\]:\s*([0-9a-f:.]+)")


def addresses(guest):
    return {"ipv4": f"10.78.0.{guest.number}", "ipv6": f"fd78::{guest.number}"}


@pytest.fixture(scope="module", params=[f"{list(KERNELS)[-1]}-{port}" for port in PORTS])
def guests(namespaces, request):
    """{"burst": a guest with burstd on eth0.5, "rxe": one with rxe, which serves the VLANs of its interface}."""
    kernel, port = request.param.split("-")
    with Rig(kernel=kernel, guests=2, daemon=False) as rig:
        for guest in rig.guests:
            own = addresses(guest)
            guest.shell(
                f"ip link add link eth0 name eth0.{TAG} type vlan id {TAG}; ip addr add {own['ipv4']}/24 dev eth0.{TAG}; "
                f"ip addr add {own['ipv6']}/64 dev eth0.{TAG} nodad; ip link set eth0.{TAG} up"
            )
        daemon = install(rig.guests[0], f"{port}:dev=eth0.{TAG}")
        yield dict(zip(CLIENTS, rig.guests))
        assert daemon.running() and "panicked" not in daemon.text(), daemon.text()


def gid_index(guest, device, address, env=None):
    """The index of the GID of an address, as verbs programs see it."""
    address = ipaddress.ip_address(address)
    want = ipaddress.ip_address(f"::ffff:{address}") if address.version == 4 else address
    code, text = guest.run("ibv_devinfo", "-v", "-d", device, env=env)
    for index, gid in GID.findall(text):
        if ipaddress.ip_address(gid) == want:
            return int(index)
    raise LabError(f"{device} has no GID {want}:\n{code} {text}")


@pytest.mark.parametrize("words", [["ib_write_bw", "-s", 8192], ["ib_send_bw", "-c", "UD", "-s", 1024]], ids=lambda words: words[0])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("client", CLIENTS)
def test_in_a_vlan(guests, client, family, words):
    server = next(name for name in CLIENTS if name != client)
    lines = {}
    for name, guest in guests.items():
        device, env = ("burst0", BURST) if name == "burst" else ("rxe0", None)
        lines[name] = [words[0], "-d", device, "-x", gid_index(guest, device, addresses(guest)[family], env), "-F", "-n", 50, *words[1:]]
        if env:
            lines[name] = ["env", *(f"{key}={value}" for key, value in env.items()), *lines[name]]
    result = run_pair(guests[server], guests[client], lines[client], server_words=lines[server])
    assert result.row[1] == 50
