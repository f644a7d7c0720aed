"""What several workers of a daemon cost each message: packets handed over, workers woken, system calls."""

import pytest

import lab
from lab import run_pair

pytestmark = pytest.mark.usefixtures("namespaces")
MESSAGES = 2000


def counted(workers):
    """Counters of both hosts for each message of three programs at once, each with a queue pair of its own."""
    with lab.Fabric(extra=["--workers", workers]) as fabric:
        a, b = fabric.a, fabric.b
        words = lambda port: ["ib_send_bw", "-d", "burst0", "-F", "-s", 4096, "-n", MESSAGES, "-p", port]  # noqa: E731
        servers = [b.start(*words(port)) for port in (18601, 18602)]
        for server, port in zip(servers, (18601, 18602)):
            lab.perftest.await_listener(b, server, port)
        clients = [a.start(*words(port), b.address) for port in (18601, 18602)]
        run_pair(b, a, words(18603))
        for program in clients + servers:
            assert program.wait(60) == 0, program.text()
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
