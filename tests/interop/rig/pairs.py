"""Runs one verbs program on burstd's side and its counterpart in the guest, either of them as the client."""

import functools
import ipaddress

from lab import LabError, run_pair

FAMILIES = ("ipv4", "ipv6")
CLIENTS = ("burst", "rxe")


def address_of(end, family):
    """A host's or guest's address on the wire."""
    return end.address if family == "ipv4" else end.address6


@functools.cache
def burst_gid(rig, family):
    """The index of burst0's GID for an address family."""
    [device] = rig.host.devices()
    return next(gid["index"] for gid in device["gids"] if gid["address"] == address_of(rig.host, family))


@functools.cache
def guest_gid(guest, family):
    """The index of rxe0's GID for an address family."""
    want = ipaddress.ip_address(address_of(guest, family))
    if family == "ipv4":
        want = ipaddress.ip_address(f"::ffff:{want}")
    rows = guest.shell("cd /sys/class/infiniband/rxe0/ports/1/gids; grep -H . 0 1 2 3 4").splitlines()
    for row in rows:
        index, gid = row.split(":", 1)
        if ipaddress.ip_address(gid) == want:
            return int(index)
    raise LabError(f"rxe0 has no GID for {want}:\n{rows}")


def gid_words(rig, family):
    """`-d DEVICE -g|-x INDEX` for both sides: {"burst": (device, index), "rxe": (device, index)}."""
    return {"burst": ("burst0", burst_gid(rig, family)), "rxe": ("rxe0", guest_gid(rig.guest, family))}


def ends(rig, client):
    """(server end, client end, server's name, client's name)."""
    both = {"burst": rig.host, "rxe": rig.guest}
    server = next(name for name in CLIENTS if name != client)
    return both[server], both[client], server, client


def by_gid(rig, words, family, client, flag="-x", seconds=60, device="-d"):
    """A pair that exchanges addresses over TCP: perftest and the ibv_ examples; `flag` is how they are told the GID index."""
    server_end, client_end, server, client = ends(rig, client)
    gids = gid_words(rig, family)

    def line(side):
        name, index = gids[side]
        return [words[0], device, name, flag, index, *words[1:]]

    return run_pair(server_end, client_end, line(client), server_words=line(server), address=server_end.address, seconds=seconds)
