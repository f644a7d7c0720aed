"""Ceph over its messenger async+rdma: a monitor and two storage daemons on two hosts, objects with two replicas, read back and compared.

Storage daemons keep their objects in memory. Authentication is switched off."""

import os
import shutil
import subprocess

import pytest
from lab import wait_until
from lab.rows import burst_run, needs

SECONDS = 240
FSID = "5b8e9d4e-3c6a-4a57-9d0e-0b5bd1a8f9a1"
OBJECTS = 6

pytestmark = [pytest.mark.download, needs("ceph-osd", "ceph-osd"), needs("ceph-mon", "ceph-mon"), pytest.mark.alone]

SETTINGS = """[global]
fsid = {fsid}
mon host = [v1:{mon}:6789]
mon initial members = a
ms bind msgr2 = false
ms type = async+rdma
ms async rdma device name = burst0
ms async rdma local gid = {gid}
ms async rdma roce ver = 1
ms async rdma buffer size = 65536
ms async rdma send buffers = 128
ms async rdma receive buffers = 1024
ms async rdma receive queue len = 512
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 2
osd pool default min size = 2
osd pool default pg num = 8
osd crush chooseleaf type = 0
osd crush update on start = false
osd class update on start = false
osd objectstore = memstore
osd heartbeat grace = 120
public addr = {address}
run dir = {place}
log file = {place}/$name.log
admin socket = {place}/$name.asok
mon data = {place}/mon
mon data avail warn = 1
mon data avail crit = 0
osd data = {place}/osd$id
"""


class Node:
    """The part of a cluster on one host."""

    def __init__(self, host, monitor, place):
        self.host, self.place = host, place
        place.mkdir()
        gid = "0000:0000:0000:0000:0000:ffff:" + "{:02x}{:02x}:{:02x}{:02x}".format(*map(int, host.address.split(".")))
        text = SETTINGS.format(fsid=FSID, mon=monitor.address, gid=gid, address=host.address, place=place)
        (place / "ceph.conf").write_text(text)
        (place / "keyring").write_text("")

    def words(self, program, *words):
        # CEPH_ARGS may have words for another cluster.
        return ["env", "-u", "CEPH_ARGS", program, "-c", self.place / "ceph.conf", *words]

    def ask(self, *words):
        """What `ceph` or `rados` answers, over RDMA as well."""
        code, text = self.host.run(*burst_run(self.host), *self.words(*words), seconds=SECONDS)
        assert code == 0, f"{words}: {text}\n{self.logs()}"
        return text

    def start(self, program, *words):
        return self.host.start(*burst_run(self.host), *self.words(program, "-f", *words))

    def add_osd(self, number):
        """Makes and starts a storage daemon."""
        (self.place / f"osd{number}").mkdir()
        unique = f"{number:08x}-0000-4000-8000-000000000000"
        assert self.ask("ceph", "osd", "new", unique, str(number)).split()[-1] == str(number)
        made = self.words("ceph-osd", "-i", number, "--mkfs", "--osd-uuid", unique)
        code, text = self.host.run(*burst_run(self.host), *made, seconds=SECONDS)
        assert code == 0, text
        self.ask("ceph", "osd", "crush", "add", f"osd.{number}", "1.0", "root=default")
        return self.start("ceph-osd", "-i", number)

    def logs(self):
        """The ends of the logs."""
        return "\n".join(f"{log.name}: {log.read_text()[-1500:]}" for log in self.place.glob("*.log"))


def version():
    done = subprocess.run(["ceph-osd", "--version"], capture_output=True, text=True)
    return done.stdout.split()[2] if done.stdout else "?"


@pytest.mark.program("Ceph, messenger async+rdma", version)
def test_objects_with_two_replicas(hosts, command, tmp_path):
    if hosts.in_process:
        pytest.skip("several programs of a host need RDMA, and each program with an engine needs an address of its own")
    nodes = [Node(host, hosts.a, tmp_path / host.name) for host in (hosts.a, hosts.b)]
    first, second = nodes
    members = ["monmaptool", "--create", "--fsid", FSID, "--addv", "a", f"[v1:{hosts.a.address}:6789]", first.place / "monmap"]
    subprocess.run(members, check=True, capture_output=True)
    code, text = hosts.a.run(*first.words("ceph-mon", "--mkfs", "-i", "a", "--monmap", first.place / "monmap"), plain=True, seconds=SECONDS)
    assert code == 0, text
    programs = [first.start(*command("ceph-mon", "-i", "a"))]
    try:
        programs += [node.add_osd(number) for number, node in enumerate(nodes)]
        wait_until(lambda: "2 up" in first.ask("ceph", "osd", "stat"), SECONDS, first.logs)
        first.ask("ceph", "osd", "pool", "create", "data", "8")
        write_and_read(nodes, tmp_path, hosts)
        assert all(program.running() for program in programs), first.logs() + second.logs()
    finally:
        for program in programs[::-1]:
            program.stop()
        shutil.rmtree(first.place / "mon", ignore_errors=True)


def write_and_read(nodes, place, hosts):
    """Objects of several sizes, written from one host and read from the other."""
    before = hosts.b.stats()["rx_bytes"]
    sizes = [1 + 499_979 * number for number in range(OBJECTS)]
    for number, size in enumerate(sizes):
        (place / "in").write_bytes(os.urandom(size))
        nodes[0].ask("rados", "-p", "data", "put", f"object-{number}", str(place / "in"))
        nodes[1].ask("rados", "-p", "data", "get", f"object-{number}", str(place / "out"))
        assert (place / "out").read_bytes() == (place / "in").read_bytes(), f"object {number} of {size} bytes"
    assert hosts.b.stats()["rx_bytes"] - before > sum(sizes), "the data did not go over RDMA"
