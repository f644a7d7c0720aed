"""Programs with an engine of their own (`BURST_MODE=inprocess`), between two hosts without daemons: Debian's perftest and rdma-core's
programs as with daemons, and what is different: who runs the engine, what a taken address says, fork, kill, and `burst ls`."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

import lab
from conftest import BUILD
from lab import run_pair, wait_until
from lab.perftest import await_listener

# The same tests as with daemons, on the `fabric` of this file.
from test_perftest import *  # noqa: F403
from test_cm import (  # noqa: F401
    test_cmtime, test_mckey, test_rdma_server, test_rping, test_udaddy, test_ucmatose,
)

#: Two programs of one host need an address each here.
WAYS = {
    "IPv4": lambda fabric: (fabric.b, fabric.a, fabric.b.address),
    "IPv6": lambda fabric: (fabric.b, fabric.a, fabric.b.address6),
}


@pytest.fixture(scope="module")
def fabric(namespaces):
    with lab.Fabric(in_process=True) as made:
        yield made


@pytest.fixture(params=WAYS)
def way(request, fabric):
    """(server's host, client's host, address)"""
    return WAYS[request.param](fabric)


def lat(fabric, *words):
    return run_pair(fabric.b, fabric.a, ["ib_send_lat", "-d", "burst0", "-F", *words])


@pytest.fixture(scope="module")
def mixed(namespaces):
    """Host a has a daemon, the programs of host b have engines of their own."""
    with lab.Fabric(daemons=False) as made:
        made.a.start_daemon()
        made.b.in_process = "udp:dev=eth0"
        made.b.socket = made.directory / "b" / "burstd.sock"
        yield made


@pytest.mark.parametrize("tool", ["ib_write_bw", "ib_read_bw", "ib_send_lat"])
@pytest.mark.parametrize("turned", [False, True], ids=["serves", "asks"])
def test_beside_a_daemon(mixed, tool, turned):
    ends = (mixed.b, mixed.a) if turned else (mixed.a, mixed.b)
    assert run_pair(*ends, [tool, "-d", "burst0", "-F", "-n", 500]).row[3] > 0


@pytest.mark.parametrize("words", [["--in-process"], ["--in-process", "--port", "udp:dev=eth0"]], ids=["found", "named"])
def test_burst_run(fabric, words):
    code, text = fabric.a.run(BUILD / "burst", "run", *words, "--", "sh", "-c", "ls /sys/class/infiniband; ibv_devinfo -l")
    assert code == 0 and text.count("burst0") == 2, text


def test_a_packet_port(make_fabric):
    fabric = make_fabric(in_process=True, ports=("packet:dev=eth0", "packet:dev=eth0"))
    assert lat(fabric, "-n", 500).p50_us > 0
    assert run_pair(fabric.b, fabric.a, ["ib_write_bw", "-d", "burst0", "-F", "-n", 500]).row[3] > 0


def test_loss_is_repaired(make_fabric):
    fabric = make_fabric(in_process=True, ports=("udp:dev=eth0", "impair:loss=1%,seed=3/udp:dev=eth0"))
    for tool in ("ib_write_bw", "ib_read_bw", "ib_send_bw"):
        assert run_pair(fabric.b, fabric.a, [tool, "-d", "burst0", "-F", "-n", 200]).row[3] > 0


def test_small_link_mtu(make_fabric):
    fabric = make_fabric(in_process=True, mtu=1500)
    assert run_pair(fabric.b, fabric.a, ["ib_write_bw", "-d", "burst0", "-F", "-n", 500]).row[3] > 0


# Who runs the engine

def computing(seconds):
    """A server that has posted nothing and computes: Python, which polls nothing."""
    return ["python3", "-c", f"import time; end = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"]


def test_a_program_that_never_polls_is_served(fabric):
    """The target of READs does not poll: its keeper answers."""
    result = run_pair(fabric.b, fabric.a, ["ib_read_lat", "-d", "burst0", "-F", "-n", 2000])
    assert 0 < result.p50_us < 3000


def test_a_stopped_keeper_is_needed_only_without_polls(fabric):
    """With BURST_KEEPER=off the polling ends of a SEND pair still reach each other."""
    env = {"BURST_KEEPER": "off"}
    result = run_pair(fabric.b, fabric.a, ["ib_send_lat", "-d", "burst0", "-F", "-n", 500], env=env)
    assert result.p50_us > 0


def test_idle_programs_use_no_processor(fabric):
    """A server that waits for its peer by a socket: its keeper sleeps."""
    server = fabric.b.start("ib_send_lat", "-d", "burst0", "-F")
    try:
        await_listener(fabric.b, server, 18515)
        before = cpu_ticks(server.pid)
        time.sleep(2)
        assert cpu_ticks(server.pid) - before <= 1
    finally:
        server.stop()


def cpu_ticks(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


# Addresses

def test_a_taken_address_says_by_whom(fabric):
    server = fabric.b.start("ibv_rc_pingpong", "-g", "0")
    try:
        fabric.b.await_udp(server, 4791)
        code, text = fabric.b.run("ibv_devinfo")
        sentence = next(line for line in text.splitlines() if "taken" in line)
        assert f"ibv_rc_pingpong (pid {server.pid})" in sentence and "BURST_PORT" in sentence, text
        code, text = fabric.b.run(BUILD / "burst", "run", "--in-process", "--", "true")
        assert code == 125 and "taken" in text, text
    finally:
        server.stop()
    assert fabric.b.run("ibv_devinfo")[0] == 0, "the address is free again"


def test_two_programs_of_one_host_on_two_addresses(make_fabric):
    fabric = make_fabric(in_process=True)
    fabric.b.ip("addr add 10.99.0.3/24 dev eth0")
    other = {"BURST_PORT": "udp:dev=eth0,addr=10.99.0.3"}
    server = fabric.b.start("ib_send_lat", "-d", "burst0", "-F", "-x", "0", env=other)
    try:
        await_listener(fabric.b, server, 18515)
        words = ["ib_send_lat", "-d", "burst0", "-F", "-x", "0", "10.99.0.3"]
        code, text = fabric.b.run(*words, env={"BURST_PORT": f"udp:dev=eth0,addr={fabric.b.address}"})
        assert code == 0, text
    finally:
        server.stop()


def test_a_wrong_port_is_one_sentence(fabric):
    code, text = fabric.a.run(BUILD / "burst", "run", "--in-process", "--port", "udp:dev=nope", "--", "true")
    assert code == 125 and "'nope'" in text and text.count("\n") == 1, text


# Ends

def test_a_peer_learns_of_a_normal_end_at_once(fabric):
    """The connection of a server that exits ends at the client before any time-out."""
    server = fabric.b.start("rping", "-s", "-a", fabric.b.address, "-C", "1")
    client = None
    try:
        wait_until(lambda: listens(fabric.b, 7174), program=server)
        client = fabric.a.start("rping", "-c", "-a", fabric.b.address, "-C", "1000000")
        assert server.wait(20) == 0
        assert client.wait(20) != 0
    finally:
        server.stop()
        if client:
            client.stop()


def listens(host, port):
    code, text = host.burst("cm", "--connections", "--json")
    return code == 0 and any(c["state"] == "listening" and c["local"]["port"] == port for c in json.loads(text)["connections"])


def test_a_killed_program_leaves_its_address_and_no_file(fabric):
    server = fabric.b.start("ibv_rc_pingpong", "-g", "0")
    fabric.b.await_udp(server, 4791)
    sockets = lambda: list(fabric.b.socket.parent.glob("in-process-*.sock"))  # noqa: E731
    wait_until(sockets, program=server)
    server.stop(signal.SIGKILL)
    assert lat(fabric, "-n", 200).p50_us > 0, "the address is free"
    assert sockets() == [], "the next program removes what it left"


def test_a_child_does_not_hold_the_address(fabric):
    """A program forks and ends; the child lives on."""
    script = (
        "import ctypes, os, sys, time\n"
        "verbs = ctypes.CDLL('libibverbs.so.1')\n"
        "verbs.ibv_get_device_list.restype = ctypes.c_void_p\n"
        "assert verbs.ibv_get_device_list(None)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.setsid(); os.close(1); os.close(2); time.sleep(30); os._exit(0)\n"
        "print(child, flush=True)\n"
    )
    code, text = fabric.b.run("python3", "-c", script)
    assert code == 0, text
    child = int(text.split()[-1])
    try:
        assert lat(fabric, "-n", 200).p50_us > 0
    finally:
        os.kill(child, signal.SIGKILL)


# What tools see

def test_tools_see_programs(fabric):
    server = fabric.b.start("ib_send_lat", "-d", "burst0", "-F")
    try:
        await_listener(fabric.b, server, 18515)
        code, text = fabric.b.burst("ls")
        assert code == 0 and f"In ib_send_lat (pid {server.pid})" in text and "burst0" in text, text
        rows = json.loads(fabric.b.burst("ls", "--json")[1])["devices"]
        assert [(row["program"], row["pid"]) for row in rows] == [("ib_send_lat", server.pid)]
        code, text = fabric.b.burst("stats", "--all", "--json")
        assert code == 0 and any(row["name"] == "rx_packets" and row["pid"] == server.pid for row in json.loads(text)["counters"])
        code, text = fabric.b.burst("cm")
        assert code == 0, text
        path = fabric.b.socket.parent / f"in-process-{server.pid}.sock"
        code, text = fabric.b.burst("impair", "burst0", "loss=1%", "for=1s", "--socket", path)
        assert code != 0 and "answers questions only" in text, text
    finally:
        server.stop()
    assert fabric.b.burst("ls")[0] != 0, "nobody is there any more"
