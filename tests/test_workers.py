"""What several workers of a daemon cost each message: packets handed over, workers woken, system calls."""

import re
from pathlib import Path

import pytest

import lab
from lab import run_pair

pytestmark = pytest.mark.usefixtures("namespaces")
MESSAGES = 2000


LATER = {"a": "10.99.7.1", "b": "10.99.7.2"}


def counted(workers, is_later=False):
    """Counters of both hosts for each message of three programs at once, each with a queue pair of its own, over addresses that
    came when the daemons ran, or not."""
    # Questions of daemons to each other come to QP1, which is one worker's.
    with lab.Fabric(extra=["--workers", workers, "--selective-repeat=no"]) as fabric:
        a, b = fabric.a, fabric.b
        for host, address in ((a, LATER["a"]), (b, LATER["b"])) if is_later else ():
            host.ip(f"addr add {address}/24 dev eth0")
            has_it = lambda: address in [gid["address"] for gid in host.devices()[0]["gids"]]  # noqa: B023, E731
            lab.wait_until(has_it, 20, lambda: f"no GID of {address}")  # noqa: B023
        index = {host: host.gid_index(later if is_later else host.address) for host, later in ((a, LATER["a"]), (b, LATER["b"]))}
        words = lambda host, port: [  # noqa: E731
            "ib_send_bw", "-d", "burst0", "-F", "-s", 4096, "-n", MESSAGES, "-p", port, "-x", index[host]
        ]
        servers = [b.start(*words(b, port)) for port in (18601, 18602)]
        for server, port in zip(servers, (18601, 18602)):
            lab.perftest.await_listener(b, server, port)
        clients = [a.start(*words(a, port), b.address) for port in (18601, 18602)]
        run_pair(b, a, words(a, 18603), server_words=words(b, 18603))
        for program in clients + servers:
            assert program.wait(60) == 0, program.text()
        numbers = {int(number, 16) for client in clients for number in re.findall(r"QPN (0x[0-9a-f]+)", client.text())}
        # The low four bits name the worker.
        assert workers == 1 or len({number & 15 for number in numbers}) > 1
        sums = a.stats() + b.stats()
    return {name: sums[name] / (3 * MESSAGES) for name in ("handed_over", "handover_wakes", "send_calls", "receive_calls")}


def test_a_message_costs_no_more_with_more_workers():
    one, *others = [counted(workers) for workers in (1, 2, 4)]
    assert 0 < one["send_calls"] and 0 < one["receive_calls"]
    for figures in others:
        # Each queue pair's packets come to its own worker: the kernel steers them, and no train is for two workers.
        assert figures["handed_over"] == 0 and figures["handover_wakes"] == 0, figures
        # At most one call for a message and one for its acknowledgement, and never several for a packet.
        assert figures["send_calls"] <= 2.2 and figures["receive_calls"] <= 2.2, (one, figures)


def test_packets_to_an_address_that_came_later_reach_their_worker():
    """The kernel numbers the sockets of a new address as they are bound, so the first one must be the first worker's."""
    figures = counted(2, is_later=True)
    assert figures["receive_calls"] > 0 and figures["handed_over"] == 0, figures


def affinities(fabric, name):
    """Processors of the threads of the host's daemon that are called so."""
    tasks = list(Path(f"/proc/{fabric.a.daemon.pid}/task").iterdir())
    named = [task for task in tasks if (task / "comm").read_text().strip() == name]
    status = lambda task: (task / "status").read_text()  # noqa: E731
    return sorted(re.search(r"Cpus_allowed_list:\s*(\S+)", status(task)).group(1) for task in named)


def test_a_port_names_its_workers_and_their_processors():
    port = "udp:dev=eth0,workers=1,cpus=1"
    with lab.Fabric(ports=(port, port), extra=["--workers", 2]) as fabric:
        anywhere = re.search(r"Cpus_allowed_list:\s*(\S+)", Path("/proc/self/status").read_text()).group(1)
        assert affinities(fabric, "burst-worker") == sorted([anywhere, "1"])
        said = run_pair(fabric.b, fabric.a, ["ib_send_bw", "-d", "burst0", "-F", "-s", 4096, "-n", 200, "-q", 3]).client
        numbers = [int(number, 16) for number in re.findall(r"QPN (0x[0-9a-f]+)", said)]
        # The low four bits name the worker.
        assert len(numbers) == 6 and {number & 15 for number in numbers} == {1}, said
        # Requests of the connection manager are dealt to all workers.
        for _ in range(4):
            lab.perftest.rping(fabric.b, fabric.a, fabric.b.address)


def test_a_worker_or_processor_that_is_not_there_is_refused():
    for option, why in (("workers=1-2", "worker 2, but the daemon has workers 0 to 1"), ("cpus=1023", "cpus= names 1023")):
        with lab.Fabric(daemons=False) as fabric:
            code, said = fabric.a.run(lab.build_directory() / "burstd", "--workers", 2, "--port", f"udp:dev=eth0,{option}")
            assert code == 2 and why in said, said
