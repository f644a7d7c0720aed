"""Connection management in lent mode: the daemon has the ids, librdmacm moves the queue pairs. The programs of `test_cm`, between lent
programs and each kind of peer; and what peers learn of a program that dies."""

import os
import signal

import pytest

import lab
from conftest import BUILD

# The same tests as with daemons, in the ways of this file.
from test_cm import (  # noqa: F401
    await_cm_listener, pair, test_cmtime, test_rdma_server, test_rping, test_udaddy, test_ucmatose,
)
from test_lent import LEND, ON, lent

#: (server's side, client's side, address)
WAYS = {
    "lent serves daemon": lambda f: (lent(f.b), f.a, f.b.address),
    "daemon serves lent": lambda f: (f.a, lent(f.b), f.a.address),
    "both lent IPv6": lambda f: (lent(f.a), lent(f.b), f.a.address6),
    "lent on one host": lambda f: (lent(f.b), lent(f.b), f.b.address),
    "lent asks daemon of its host": lambda f: (f.b, lent(f.b), f.b.address),
    "loopback": lambda f: (lent(f.b), lent(f.b), "127.0.0.1"),
}


@pytest.fixture(scope="module")
def fabric(namespaces):
    with lab.Fabric(extra=LEND) as made:
        yield made
        for host in made.hosts:
            assert host.daemon.running() and "panicked" not in host.daemon.text(), host.daemon.text()


@pytest.fixture(params=WAYS, ids=lambda way: way.replace(" ", "-"))
def way(request, fabric):
    return WAYS[request.param](fabric)


@pytest.mark.parametrize("tool", ["ib_write_bw", "ib_read_lat", "ib_atomic_bw", "ib_send_bw -c UD -s 512"])
def test_perftest(fabric, tool):
    words = [*tool.split(), *ON, "-R", "-n", 500]
    server = lent(fabric.b).start(*words)
    try:
        await_cm_listener(fabric.b, server, 18515)
        code, text = lent(fabric.a).run(*words, fabric.b.address)
        assert (code, server.wait(60)) == (0, 0), text + server.text()
    finally:
        server.stop()


def test_a_queue_pair_is_destroyed_while_another_thread_reads_its_end(way):
    """librdmacm moves the queue pairs of lent programs in the thread that reads events, and must not move one that is gone."""
    words = [BUILD / "programs" / "cm_two_threads"]
    pair(way, 7472, [*words, "server", way[2], "7472"], [*words, "client", way[2], "7472", "300"], ends=False)


@pytest.mark.parametrize("turned", [False, True], ids=["server", "client"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGUSR1], ids=["killed", "exits"])
def test_peers_learn_of_an_end(fabric, how, turned):
    """The connection of a program that ends without ending it; nothing is sent on it, so no time-out would tell."""
    words = [BUILD / "programs" / "cm_idle"]
    server = lent(fabric.b).start(*words, "server", fabric.b.address, "7471")
    client = None
    try:
        await_cm_listener(fabric.b, server, 7471)
        client = lent(fabric.a).start(*words, "client", fabric.b.address, "7471")
        client.wait_for_text("connected", 60)
        server.wait_for_text("connected", 60)
        ends, learns = (client, server) if turned else (server, client)
        os.kill(ends.pid, how)
        assert learns.wait(60) == 0 and "DISCONNECTED" in learns.text(), learns.text()
    finally:
        server.stop(signal.SIGKILL)
        if client:
            client.stop(signal.SIGKILL)
