"""Runs one verbs program on burstd's side and its counterpart in the guest, either of them as the client."""

import functools
import ipaddress
import json
import time

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
    """A pair that exchanges addresses over TCP: perftest and the ibv_ examples; `flag` is their flag for the GID index."""
    server_end, client_end, server, client = ends(rig, client)
    gids = gid_words(rig, family)

    def line(side):
        name, index = gids[side]
        return [words[0], device, name, flag, index, *words[1:]]

    return run_pair(server_end, client_end, line(client), server_words=line(server), address=server_end.address, seconds=seconds)


def listens(end, port):
    """Whether a program listens for rdma_cm connections (or datagram requests) at a port there."""
    if hasattr(end, "burst"):
        code, text = end.burst("cm", "--connections", "--json")
        rows = json.loads(text)["connections"] if code == 0 else []
        return any(row["state"] == "listening" and row["local"] and row["local"]["port"] == port for row in rows)
    return f":{port} " in end.shell("rdma resource show cm_id | grep LISTEN || true")


def by_cm(rig, client, server_words, client_words, port, *, seconds=60, server_ends=True):
    """A pair that connects by rdma_cm; the words come from functions of the server's end. The outputs of server and client."""
    server_end, client_end, *_ = ends(rig, client)
    server = server_end.start(*server_words(server_end))
    try:
        limit = time.monotonic() + 20
        while not listens(server_end, port):
            if not server.running() or time.monotonic() > limit:
                raise LabError(f"{server.words} does not listen:\n{server.text()}")
            time.sleep(0.05)
        asking = client_end.start(*client_words(server_end))
        try:
            code = asking.wait(seconds)
            server_code = server.wait(30) if server_ends and not code else 0
        finally:
            asking.stop()
    finally:
        server.stop()
    if code or server_code:
        raise LabError(f"client {code}, server {server_code}\n--- client\n{asking.text()}--- server\n{server.text()}")
    return server.text(), asking.text()
