"""Many connections: all at once, over a lossy wire, as a flood, and of programs that die."""

import json
import signal
import time

import pytest

from conftest import BUILD
from lab import await_true, run_pair

MANY = BUILD / "programs" / "cm_many"
FLOOD = BUILD / "programs" / "cm_flood"
PORT = 7200
ROCE, DISCARD = 4791, 4793
COUNT = 10_000
#: Requests that wait for each place of a full backlog, at most (`QUEUED_PER_PLACE` of the crate cm).
QUEUED_PER_PLACE = 16


def serve(host, *options):
    """The listening program."""
    program = host.start(MANY, *options)
    program.wait_for_text("listening", 60)
    return program


def connect(fabric, *options, seconds=200):
    """Runs the connecting program to its end. Returns its report."""
    code, text = fabric.a.run(MANY, *options, fabric.b.address, seconds=seconds)
    assert code == 0, text
    return json.loads(text.splitlines()[-1])


def outcomes(report):
    return {name: report[name] for name in ("established", "rejected", "unreachable", "failed", "stuck")}


def connections(host, without=("listening",)):
    """The daemon's connections in any state, without listeners."""
    code, text = host.burst("cm", "--connections", "--json")
    assert code == 0, text
    return sum(row["state"] not in without for row in json.loads(text)["connections"])


def rss(fabric):
    """Anonymous memory of the daemons in KiB. Pages of files are not counted, because their number grows with the code that has run."""
    return [host.daemon.rss_kib(files=False) for host in fabric.hosts]


def ten_thousand(fabric, server, idle):
    """Establishes all connections, then closes them; returns the memory while they exist."""
    client = fabric.a.start(MANY, "-t", 2, "-c", COUNT, "-k", 1, fabric.b.address)
    client.wait_for_text("up", 120)
    up = rss(fabric)
    assert client.wait(200) == 0, client.text()
    report = json.loads(client.text().splitlines()[-1])
    assert outcomes(report) == {"established": COUNT, "rejected": 0, "unreachable": 0, "failed": 0, "stuck": 0}
    server.wait_for_text(f"idle {idle}\n", 60)
    assert await_true(lambda: connections(fabric.a) + connections(fabric.b) == 0)
    return up


def test_ten_thousand_connections_leave_nothing_behind(make_fabric):
    fabric = make_fabric()
    fresh = rss(fabric)
    server = serve(fabric.b, "-t", 2)
    up = ten_thousand(fabric, server, COUNT)
    assert min(up) > 6 * max(fresh), "a test of nothing"
    # Memory is freed in pages; a page with one used byte stays. At most a tenth may stay, and another ten thousand connections may add
    # nothing to it (a leak of 200 bytes per connection would).
    kept = lambda: [now - was for now, was in zip(rss(fabric), fresh)]
    assert await_true(lambda: max(kept()) < min(up) / 10), f"{fresh} KiB became {rss(fabric)}, with {up} in between"
    time.sleep(1)
    before = rss(fabric)
    ten_thousand(fabric, server, 2 * COUNT)
    more = lambda: [now - was for now, was in zip(rss(fabric), before)]
    assert await_true(lambda: max(more()) < COUNT * 200 >> 10), f"{before} KiB became {rss(fabric)}"
    server.stop()


def test_a_storm_over_a_lossy_wire_ends(make_fabric):
    lossy = "impair:loss=5%,seed={}/udp:dev=eth0"
    fabric = make_fabric(ports=(lossy.format(3), lossy.format(4)))
    server = serve(fabric.b, "-t", 2)
    report = connect(fabric, "-t", 2, "-c", COUNT, "-d", 60)
    ended = outcomes(report)
    assert ended["stuck"] == 0 and sum(ended.values()) == COUNT, report
    # With fifteen retries at 5 % loss every request succeeds.
    assert ended["established"] > COUNT * 0.99, report
    assert fabric.a.stats()["impaired"] > COUNT // 20
    # Both ends have the same connections.
    assert await_true(lambda: connections(fabric.a) + connections(fabric.b) == 0, 120)
    server.stop()


def bandwidth_during_flood(fabric, port):
    """ib_write_bw's Gbit/s while requests are sent to a UDP port of its receiver."""
    flood = fabric.a.start(FLOOD, fabric.a.address, fabric.b.address, port, PORT, 20_000, 3.5, plain=True)
    words = ["ib_write_bw", "-d", "burst0", "-F", "--report_gbits", "-s", 65536, "-D", 2]
    gbits = run_pair(fabric.b, fabric.a, words, seconds=60).gbits
    assert flood.wait(60) == 0, flood.text()
    assert int(flood.text()) > 5_000, "hardly a flood"
    return gbits


@pytest.mark.alone
def test_a_flood_of_requests_is_bounded_and_the_data_flows(make_fabric):
    fabric = make_fabric()
    backlog = 256
    server = serve(fabric.b, "-m", "-b", backlog)
    # In turns, because the machine has other load; the sender of the flood costs the same in both.
    alone, flooded = [], []
    while len(alone) < 5 and not (flooded and max(flooded) >= 0.8 * max(alone)):
        alone.append(bandwidth_during_flood(fabric, DISCARD))
        flooded.append(bandwidth_during_flood(fabric, ROCE))
    print(f"Gbit/s in a flood to nobody {alone}, to the connection manager {flooded}")
    stats = fabric.b.stats()
    assert connections(fabric.b, without=("listening", "queued")) <= backlog
    assert connections(fabric.b) <= backlog * (1 + QUEUED_PER_PLACE)
    assert stats["cm_backlog_full"] > 1_000, stats
    assert fabric.b.daemon.rss_kib() < 64 << 10
    assert max(flooded) >= 0.8 * max(alone), f"the flood leaves {flooded} of {alone} Gbit/s"
    server.stop()


@pytest.fixture
def hosts(fabric):
    """The file's fabric, without connections."""
    assert await_true(lambda: connections(fabric.a) + connections(fabric.b) == 0)
    return fabric


def test_a_client_that_dies_while_it_waits_leaves_nothing(hosts):
    server = serve(hosts.b, "-m")
    client = hosts.a.start(MANY, "-c", 500, hosts.b.address)
    assert await_true(lambda: connections(hosts.b) >= 400)
    client.stop(signal.SIGKILL)
    # The daemon withdraws the requests by REJ.
    assert await_true(lambda: connections(hosts.a) + connections(hosts.b) == 0), hosts.b.stats()
    server.stop()


def test_requests_are_withdrawn_from_every_worker(make_fabric):
    # A REJ that withdraws a request does not contain a communication id of the receiver.
    fabric = make_fabric(extra=("--workers", 3))
    test_a_client_that_dies_while_it_waits_leaves_nothing(fabric)


def test_a_client_that_dies_connected_is_disconnected(hosts):
    server = serve(hosts.b)
    client = hosts.a.start(MANY, "-c", 500, "-k", 60, hosts.b.address)
    client.wait_for_text("up", 120)
    client.stop(signal.SIGKILL)
    server.wait_for_text("idle 500\n", 60)
    assert await_true(lambda: connections(hosts.a) + connections(hosts.b) == 0)
    server.stop()


def test_clients_of_a_dead_server_are_disconnected(hosts):
    server = serve(hosts.b)
    client = hosts.a.start(MANY, "-c", 300, "-k", 3, "-d", 20, hosts.b.address)
    client.wait_for_text("up", 120)
    server.stop(signal.SIGKILL)
    # The peer's DREQs arrive while the program sleeps; it need not handle them.
    assert client.wait(60) == 0, client.text()
    assert outcomes(json.loads(client.text().splitlines()[-1]))["stuck"] == 0
    assert await_true(lambda: connections(hosts.a) + connections(hosts.b) == 0)


def test_a_program_without_listener_is_refused_with_a_reason(hosts):
    report = connect(hosts, "-c", 50, "-p", PORT + 300)
    assert outcomes(report) == {"established": 0, "rejected": 50, "unreachable": 0, "failed": 0, "stuck": 0}


def test_the_successor_of_a_killed_daemon_connects(make_fabric):
    fabric = make_fabric()
    server = serve(fabric.b)
    # The peer still has connections with the queue pairs of the killed daemon. The new daemon starts at another queue pair number seven
    # times of eight; otherwise the peer finds the connection stale once.
    for _ in range(6):
        client = fabric.a.start(MANY, "-c", 20, "-k", 60, fabric.b.address)
        client.wait_for_text("up", 120)
        fabric.a.daemon.stop(signal.SIGKILL)
        client.stop(signal.SIGKILL)
        fabric.a.start_daemon()
        first = outcomes(connect(fabric, "-c", 20))
        if first["established"] == 20:
            server.stop()
            return
    raise AssertionError(first)


def test_a_program_outlives_its_daemon(make_fabric):
    fabric = make_fabric()
    program = fabric.a.start(BUILD / "programs" / "cm_orphan", fabric.a.address)
    program.wait_for_text("ready", 60)
    fabric.a.daemon.stop(signal.SIGKILL)
    assert program.wait(60) == 0, program.text()
