"""Several hosts at a bottleneck of 300 Mbit/s with a buffer of 50 kB (`burst switch`): what connects, and what shares a path, does no harm there.

Only counts and ratios are asserted: how much passes in a second depends on the machine's other work."""

import itertools
import json
import os
import shutil
from contextlib import contextmanager

import pytest

from lab import build_directory, flows, wait_until
from lab.proxy import StarProxies
from lab.switched import Switched
from lab.users import ALICE, BOB, Users, public_copy

MANY = build_directory() / "programs" / "cm_many"
BOTTLENECK = ["--rate", "300Mbit", "--buffer", 50_000, "--delay", "500us"]
CONNECTIONS = 500
#: Sockets of earlier streams stay in TIME-WAIT for a minute.
PORTS = itertools.count()


@pytest.fixture(scope="module")
def hosts(namespaces):
    with Switched(4) as made:
        yield made
        for host in made.hosts:
            assert host.daemon.running(), host.daemon.text()


def endless(host, to, port, start=None, more=()):
    """RC WRITEs without end, which print how many there were every second. Returns the two ends."""
    words = ["stdbuf", "-oL", "ib_write_bw", "-d", "burst0", "-F", "-D", 1, "--run_infinitely", "-p", port, "--report_gbits", *more]
    server = to.start(*words)
    wait_until(lambda: any(f":{port:04X} " in line and " 0A " in line for line in to.tcp_table()), said=server.text, program=server)
    return (start or host.start)(*words, to.address), server


def periods(program):
    """Messages of each second so far."""
    return [int(line.split()[1]) for line in program.text().splitlines() if line.split()[:1] == ["65536"]]


@contextmanager
def elephants(hosts, senders, first_port=18_600):
    """Streams of RC WRITEs to host 0, which flow."""
    pairs = [endless(hosts.hosts[number], hosts.hosts[0], first_port + number) for number in senders]
    try:
        for client, _ in pairs:
            wait_until(lambda: len(periods(client)) >= 2, said=client.text, program=client)
        yield [client for client, _ in pairs]
    finally:
        for pair in pairs:
            for program in pair:
                program.stop()


def test_a_storm_of_connects_ends(hosts):
    """All connections are made, each message is repeated a few times at most, and the streams go on."""
    server_host, client_host = hosts.hosts[:2]
    with hosts.switch(*BOTTLENECK) as switch:
        with elephants(hosts, (2, 3)) as streams:
            server = server_host.start(MANY, "-t", 2)
            server.wait_for_text("listening", 60)
            before = [host.stats() for host in (server_host, client_host)]
            written = [len(periods(stream)) for stream in streams]
            code, text = client_host.run(MANY, "-t", 2, "-c", CONNECTIONS, "-d", 100, server_host.address, seconds=200)
            assert code == 0, text
            after = [host.stats() for host in (server_host, client_host)]
            for stream, count in zip(streams, written):
                wait_until(lambda: len(periods(stream)) > count, said=stream.text, program=stream)
            server.stop()
    report = json.loads(text.splitlines()[-1])
    assert (report["established"], report["stuck"]) == (CONNECTIONS, 0), report
    sent_again = sum(now["cm_retry"] - was["cm_retry"] for now, was in zip(after, before))
    port = switch.port(0)
    print(f"{report}\nmessages sent again: {sent_again}; at the bottleneck: {port}")
    # A connection is made and ended by six messages.
    assert sent_again <= 2 * CONNECTIONS, sent_again
    assert port["missing"] < 0.05 * port["offered"], port


def test_links_of_proxies_obey_the_paths(hosts):
    """Streams through two proxies lose as few packets as other queue pairs, and `burst cc` shows one path with their queue pairs."""
    with hosts.switch():
        proxies = StarProxies(hosts, memory="64MiB").__enter__()
    try:
        with hosts.switch(*BOTTLENECK) as switch:
            streams = [flows.flow(hosts, number, "proxy", 3) for number in (1, 2)]
            for stream in streams:
                stream.begin()
            stats = lambda: proxies.counters(hosts.hosts[1]).get("streams_opened", 0)  # noqa: E731
            wait_until(lambda: stats() >= 2, said=lambda: f"{proxies.counters(hosts.hosts[1])}")
            code, text = hosts.hosts[1].burst("cc", "--json")
            assert code == 0, text
            [peer] = [peer for peer in json.loads(text)["peers"] if peer["peer"] == hosts.hosts[0].address]
            assert peer["queue_pairs"] >= 1 and peer["algorithm"] == "cubic", peer
            assert all(stream.mbits() > 0 for stream in streams), [stream.failure for stream in streams]
    finally:
        proxies.__exit__()
    port = switch.port(0)
    assert port["missing"] < 0.05 * port["offered"], port


@pytest.fixture(scope="module")
def users(hosts):
    """Programs of users on host 1, from a copy of the build that every user may execute."""
    if os.geteuid():
        pytest.skip("changing the user needs root")
    place = public_copy(f"/tmp/burst-test-bottleneck-{os.getpid()}")
    yield Users(hosts.hosts[1], place)
    shutil.rmtree(place)


#: Periods in which messages are counted: the one that is under way at each end makes a figure wrong by less than its part.
COUNTED = 14


def messages_of(clients):
    """Messages of each client in as many periods, in which all send. A client whose output comes late has not sent less than those with more."""
    wait_until(lambda: all(len(periods(client)) >= 2 for client in clients), 200, said=clients[0].text)
    began = [len(periods(client)) for client in clients]
    wait_until(lambda: all(len(periods(client)) >= least + COUNTED for client, least in zip(clients, began)), 200, said=clients[0].text)
    return [sum(periods(client)[first : first + COUNTED]) for client, first in zip(clients, began)]


def messages_to_shares(hosts, users, of, queue_pairs):
    """Programs of these users, with so many queue pairs each, write to one peer: each one's messages, as a multiple of its share. Users have
    equal shares, and so have the programs of a user."""
    receiver, sender = hosts.hosts[:2]
    with hosts.switch(*BOTTLENECK):
        pairs = []
        for number, (user, count) in enumerate(zip(of, queue_pairs)):
            start = lambda *words, user=user: users.start(user, *words)  # noqa: E731
            pairs.append(endless(sender, receiver, 18_700 + next(PORTS), start, ("-q", count)))
        try:
            got = messages_of([client for client, _ in pairs])
        finally:
            for pair in pairs:
                for program in pair:
                    program.stop()
    figures = [messages / sum(got) * len(set(of)) * of.count(user) for messages, user in zip(got, of)]
    print(f"messages {got}, to the share {[round(figure, 2) for figure in figures]}")
    return figures


@pytest.mark.alone
def test_programs_of_one_user_have_equal_shares_of_a_path(hosts, users):
    """Nine programs share the window towards their peer."""
    assert all(0.8 <= figure <= 1.2 for figure in messages_to_shares(hosts, users, [ALICE] * 9, [1] * 9))


@pytest.mark.alone
def test_a_user_with_one_program_has_half_of_a_path_beside_a_user_with_eight(hosts, users):
    assert all(0.8 <= figure <= 1.2 for figure in messages_to_shares(hosts, users, [ALICE] + [BOB] * 8, [1] * 9))


@pytest.mark.alone
def test_a_program_with_one_queue_pair_has_half_of_a_path_beside_one_with_eight(hosts, users):
    assert all(0.8 <= figure <= 1.2 for figure in messages_to_shares(hosts, users, [ALICE] * 2, [1, 8]))
