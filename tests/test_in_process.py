"""Programs with an engine of their own (`BURST_MODE=inprocess`), between two hosts without daemons: Debian's perftest and rdma-core's
programs as with daemons, and what is different: who runs the engine, what a taken address says, fork, kill, and `burst ls`."""

import json
import os
import shutil
import signal
import statistics
import subprocess
import time
from pathlib import Path

import pytest

import lab
from conftest import BUILD
from lab import run_pair, wait_until
from lab.perftest import await_listener
from lab.waiting import contention

# The same tests as with daemons, on the `fabric` of this file.
from test_cm import (  # noqa: F401
    await_cm_listener, test_cmtime, test_rdma_server, test_rping, test_udaddy, test_ucmatose,
)
from test_events import test_events_of_queues_come_once_and_in_order  # noqa: F401
from test_examples import test_random_operations_against_a_model  # noqa: F401
from test_perftest import (  # noqa: F401
    test_atomics, test_bandwidth, test_bandwidth_both_ways, test_bandwidth_with_events, test_every_size_in_one_run, test_latency,
    test_latency_with_events, test_many_queue_pairs,
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

def test_a_program_that_never_polls_is_served(fabric):
    """The target of READs does not poll: its keeper answers, as soon as it has a processor. What waited for the keeper's next look would
    take 20 ms."""
    before = contention()
    result = run_pair(fabric.b, fabric.a, ["ib_read_lat", "-d", "burst0", "-F", "-n", 2000])
    assert 0 < result.p50_us < 3000 * max(before, contention())


@pytest.mark.parametrize("port", ["udp:dev=eth0,loopback=off", "udp:dev=eth0", "packet:dev=eth0"])
def test_polls_run_the_engine_on_small_stacks(fabric, port):
    code, text = fabric.a.run(BUILD / "programs" / "small_stack", "burst0", env={"BURST_PORT": port})
    assert code == 0 and int(text.split()[1]) < 16 << 10, text


@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is missing: apt-get install valgrind")
def test_a_program_under_valgrind(fabric):
    """Valgrind hides the kernel's vDSO from programs, but not from those that read /proc/self/auxv."""
    words = ["valgrind", "--tool=none", BUILD / "programs" / "post_poll", "burst0", "classic", "16", "1", "polling"]
    code, text = fabric.a.run(*words)
    assert code == 0 and "posted and polled 16" in text, text


@pytest.mark.parametrize("calls", ["classic", "extended"])
def test_a_completion_that_is_due_is_found_by_the_next_poll(fabric, calls):
    """Request, acknowledgement and completion take several passes of the engine, and no other thread runs any."""
    words = [BUILD / "programs" / "post_poll", "burst0", calls, "500", "1", "polling"]
    code, text = fabric.a.run(*words, env={"BURST_KEEPER": "off"})
    assert code == 0 and "500, 0 polls found nothing" in text, text


@pytest.mark.parametrize("keeper", ["on", "off"])
def test_the_keeper_is_one_thread_that_takes_no_signal(fabric, keeper):
    script = (
        "import ctypes, pathlib\n"
        "verbs = ctypes.CDLL('libibverbs.so.1')\n"
        "verbs.ibv_get_device_list.restype = ctypes.c_void_p\n"
        "assert verbs.ibv_get_device_list(None)\n"
        "for task in pathlib.Path('/proc/self/task').iterdir():\n"
        "    status = dict(line.split(':', 1) for line in (task / 'status').read_text().splitlines())\n"
        "    print(status['SigBlk'].strip())\n"
    )
    code, text = fabric.a.run("python3", "-c", script, env={"BURST_KEEPER": keeper})
    blocked = sorted(int(line, 16) for line in text.splitlines())
    assert code == 0 and len(blocked) == (2 if keeper == "on" else 1), text
    # The program's own thread blocks none. The keeper blocks all but SIGKILL, SIGSTOP, the two of the C library, and, once it has begun,
    # those of its own faults.
    assert blocked[0] == 0, text
    if keeper == "on":
        exempt = sum(1 << number - 1 for number in (signal.SIGKILL, signal.SIGSTOP, 32, 33, signal.SIGSEGV, signal.SIGBUS))
        assert blocked[1] | exempt == (1 << 64) - 1, text


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


def test_requests_that_leave_nothing_do_not_wake_the_keeper(fabric):
    """It runs for a small part of the time that the program's requests take. Awake, it would look for packets all the time."""
    script = (
        "import ctypes, pathlib, time\n"
        "verbs = ctypes.CDLL('libibverbs.so.1')\n"
        "for name in ('ibv_get_device_list', 'ibv_open_device', 'ibv_alloc_pd'):\n"
        "    getattr(verbs, name).restype = ctypes.c_void_p\n"
        "devices = ctypes.cast(verbs.ibv_get_device_list(None), ctypes.POINTER(ctypes.c_void_p))\n"
        "context = ctypes.c_void_p(verbs.ibv_open_device(ctypes.c_void_p(devices[0])))\n"
        "time.sleep(0.3)\n"
        "tasks = {(task / 'comm').read_text().strip(): task for task in pathlib.Path('/proc/self/task').iterdir()}\n"
        "keeper = tasks.pop('burst-keeper')\n"
        "[own] = tasks.values()\n"
        "ran = lambda: [int((task / 'schedstat').read_text().split()[0]) for task in (keeper, own)]\n"
        "for _ in range(11):\n"
        "    before = ran()\n"
        "    for _ in range(20_000):\n"
        "        pd = verbs.ibv_alloc_pd(context)\n"
        "        assert pd and verbs.ibv_dealloc_pd(ctypes.c_void_p(pd)) == 0\n"
        "    took = [after - was for after, was in zip(ran(), before)]\n"
        "    print(took[0] / took[1])\n"
    )
    code, text = fabric.a.run("python3", "-c", script)
    # The median: a program that has lost its processor within a request keeps the keeper waiting, and looking, for that long.
    assert code == 0 and statistics.median(map(float, text.split())) < 0.05, text


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is missing: apt-get install strace")
def test_on_one_processor_the_keeper_sleeps_at_once_and_asks_little(fabric, tmp_path):
    """A server that waits by TCP: its keeper answers READs on the client's only processor. A yield of the keeper would return while the
    client has had more of the processor; and what its sleep has told of the control plane needs no call."""
    counts = tmp_path / "counts"
    words = ["taskset", "-c", min(os.sched_getaffinity(0)), "ib_read_lat", "-d", "burst0", "-F", "-s", "64", "-n", "2000"]
    traced = ["strace", "-f", "-c", "-U", "calls,name", "-o", counts, *words]
    run_pair(fabric.b, fabric.a, words, server_words=traced)
    rows = (line.split() for line in counts.read_text().splitlines())
    calls = {row[1]: int(row[0]) for row in rows if len(row) == 2 and row[0].isdigit()}
    passes, sleeps = calls["epoll_pwait"], calls["ppoll"]
    assert passes > 1000 and "sched_yield" not in calls, calls
    # It looks at the tools' socket after 64 passes with work or 16 naps, and at its beginning.
    assert calls.get("accept4", 0) <= passes / 64 + sleeps / 16 + 8, calls


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

def test_peers_learn_of_an_exit(fabric):
    """The connection of a program that exits without ending it; nothing is sent on it, so no time-out would tell."""
    words = [BUILD / "programs" / "cm_idle"]
    server = fabric.b.start(*words, "server", fabric.b.address, "7471")
    client = None
    try:
        await_cm_listener(fabric.b, server, 7471)
        client = fabric.a.start(*words, "client", fabric.b.address, "7471")
        client.wait_for_text("connected", 60)
        server.wait_for_text("connected", 60)
        # The program is the child of nsenter and setpriv, which have become it.
        os.kill(server.pid, signal.SIGUSR1)
        assert server.wait(60) == 0
        assert client.wait(60) == 0 and "DISCONNECTED" in client.text(), client.text()
    finally:
        server.stop()
        if client:
            client.stop()


@pytest.mark.parametrize("how", ["children", "unhandled", "traffic", "busy", "atomics", "handlers", "opening"])
def test_children_come_and_go(fabric, how):
    code, text = fabric.a.run(BUILD / "programs" / "forks", "burst0", how)
    assert code == 0, text


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
        # Nor does it hold the socket by which tools see the parent.
        code, text = fabric.b.burst("ls", seconds=20)
        assert code != 0 and "no daemon answers" in text, text
    finally:
        os.kill(child, signal.SIGKILL)


# The rules of the API. cm_exercise is left out: its child opens a channel while the parent holds the address.

@pytest.mark.parametrize("address", ["address", "address6"])
@pytest.mark.parametrize("program", ["cm_more", "cm_edge", "cm_strict"])
def test_rules(fabric, program, address):
    code, text = fabric.a.run(BUILD / "programs" / program, getattr(fabric.a, address), seconds=120)
    assert code == 0, text


@pytest.mark.parametrize(("group", "family"), [("239.1.2.3", "address"), ("ff05::1234", "address6")], ids=["IPv4", "IPv6"])
def test_mckey(fabric, group, family):
    words = ["stdbuf", "-oL", "mckey", "-m", group]
    receiver = fabric.b.start(*words, "-b", getattr(fabric.b, family))
    try:
        receiver.wait_for_text("receiving data transfers", 60)
        code, text = fabric.a.run(*words, "-s", "-b", getattr(fabric.a, family))
        assert (code, receiver.wait(60)) == (0, 0), text + receiver.text()
    finally:
        receiver.stop()


@pytest.mark.alone
def test_the_live_tests_of_libibverbs(namespaces):
    """The tests that run against a daemon, with the engine in their process. Alone, because cargo's directory of debug builds is one."""
    # The packages of `make test`: others have other features, and all below them would be compiled once more.
    features = subprocess.run(["scripts/features"], cwd=lab.fabric.ROOT, capture_output=True, text=True, check=True).stdout.split()
    cargo = ["cargo", "test", "--workspace", "--exclude", "burst-liburma-dpdk", *features, "--locked", "--test", "live", "--no-run", "--message-format=json"]
    built = subprocess.run(cargo, cwd=lab.fabric.ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    made = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    place = lab.fabric.ROOT / "crates" / "frontends" / "ibverbs"
    [live] = [one["executable"] for one in made if one.get("executable") and one["manifest_path"] == str(place / "Cargo.toml")]
    script = 'ip link set lo up && ip addr add 10.3.3.3/32 dev lo && exec "$@"'
    env = {**os.environ, "BURST_MODE": "inprocess", "BURST_PORT": "udp:dev=lo", "LD_LIBRARY_PATH": str(BUILD / "lib")}
    done = subprocess.run(["unshare", "--net", "sh", "-c", script, "sh", live, "-q"], cwd=place, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "test result: ok" in done.stdout, done.stdout + done.stderr


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
        # One that is stopped is named, and holds up nobody for long.
        server.stand_still()
        code, text = fabric.b.burst("ls", seconds=30)
        assert code != 0 and f"ib_send_lat (pid {server.pid}) does not answer" in text, text
    finally:
        server.stop(signal.SIGKILL)
    assert Path(path).exists()
    assert fabric.b.burst("ls")[0] != 0, "nobody is there any more"
    assert not Path(path).exists(), "the next that looks removes the socket of a killed program"


def test_a_misspelt_mode_is_named(fabric):
    code, text = fabric.b.run("ibv_devices", env={"BURST_MODE": "inproces"})
    assert 'BURST_MODE="inproces" has no effect: the nearest valid word is "inprocess"' in text, text
