"""`burst proxy` where something is missing or strange: descriptors, routes, one side's memory of the other, connections nobody named."""

import collections
import contextlib
import os
import resource
import signal
import socket
import struct
import sys
import time

from lab import wait_until
from lab.proxy import CONTROL, Proxies
from lab.users import ALICE, BOB, as_user
from test_proxy import LIBC, PORT, await_carried, carried, client, exactly, inside, joined, listen, read_all
from test_proxy import _replace as replace
from test_proxy import proxies as proxies  # noqa: PLC0414 - a fixture
from test_proxy import test_urgent_data_keeps_its_place as urgent_data_keeps_its_place


def test_a_connection_to_the_listener_itself_is_reset(proxies):
    """Carried on, it would lead to the listener again, without end."""
    a = proxies.fabric.a
    listening = [fields[1] for fields in map(str.split, a.tcp_table()) if fields[1].startswith("0100007F:") and fields[3] == "0A"]
    assert listening
    before = proxies.counters(a).get("connections_taken", 0)
    for address in listening:
        with inside(a):
            stranger = socket.socket()
        with stranger:
            stranger.settimeout(20)
            # The reset may come before connect has returned.
            with contextlib.suppress(ConnectionResetError):
                stranger.connect(("127.0.0.1", int(address[9:], 16)))
                assert read_all(stranger) == (b"", "ECONNRESET")
    after = proxies.counters(a)
    assert after["connections_taken"] == before + len(listening) and after["connections_not_named"] >= len(listening)


def test_a_socket_that_connects_again_elsewhere_is_left_alone(proxies):
    a, b = proxies.fabric.hosts
    before = carried(proxies)
    with listen(b, port=6998) as plain, listen(b) as listener, client(a, b.address) as ours:
        theirs, _ = listener.accept()
        # A stream that is reset before its server's answer is known was never open.
        await_carried(proxies, before + 1)
        theirs.close()
        nowhere = struct.pack("=H14x", socket.AF_UNSPEC)
        assert LIBC.connect(ours.fileno(), nowhere, len(nowhere)) == 0
        for port, other, more in ((6998, plain, 1), (PORT, listener, 2)):
            ours.connect((b.address, port))
            theirs, _ = other.accept()
            with theirs:
                theirs.sendall(b"hello")
                assert exactly(ours, 5) == b"hello"
            await_carried(proxies, before + more)
            assert LIBC.connect(ours.fileno(), nowhere, len(nowhere)) == 0


def test_a_client_port_that_is_used_again_at_once_reaches_the_server(proxies):
    """The next connection comes while the last packets of the former one are on their way; as by TCP, the server sees the client's
    port each time. Half of the clients reset their connections, the others wait for the server's end."""
    a, b = proxies.fabric.hosts
    count, source = 200, 7411
    before = proxies.counters(a)
    seen = []
    with listen(b) as listener:
        for number in range(count):
            with inside(a):
                ours = socket.socket()
            with ours:
                ours.settimeout(20)
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                ours.bind((a.address, source))
                ours.connect((b.address, PORT))
                theirs, (_, port) = listener.accept()
                with theirs:
                    seen.append(port)
                    theirs.sendall(b"hello")
                assert exactly(ours, 5) == b"hello"
                if number % 2:
                    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    assert read_all(ours) == (b"", "end")
    assert seen == [source] * count, f"{seen.count(source)} of {count}"
    after = proxies.counters(a)
    assert after.get("connections_by_tcp", 0) == before.get("connections_by_tcp", 0)


def test_without_descriptors_connections_wait(make_fabric):
    with Proxies(make_fabric()) as proxies, contextlib.ExitStack() as end:
        a, b = proxies.fabric.hosts
        pid = proxies.running["a"].pid
        listener = end.enter_context(listen(b))
        used = len(os.listdir(f"/proc/{pid}/fd"))
        limit = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        assert limit[0] == limit[1], "the limit was raised"
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 3, limit[1]))
        waiting = [client(a, b.address) for _ in range(10)]
        for number, ours in enumerate(waiting):
            end.callback(ours.close)
            ours.sendall(bytes([number]))
        time.sleep(1)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
        seen = set()
        while len(seen) < len(waiting):
            theirs = end.enter_context(listener.accept()[0])
            theirs.settimeout(20)
            seen |= set(theirs.recv(1))
        assert seen == set(range(len(waiting)))
        # Four ticks each second; a loop that is woken without end counts thousands.
        assert 1 <= proxies.counters(a)["accepts_paused"] < 100


def cut(a, b, away):
    """Cuts the hosts from each other by wrong neighbour addresses, or joins them again."""
    for host, other in ((a, b), (b, a)):
        device = host.run("ip", "route", "get", other.address, plain=True)[1].split(" dev ")[1].split()[0]
        words = ["replace", other.address, "lladdr", "02:00:00:00:00:99"] if away else ["del", other.address]
        code, text = host.run("ip", "neigh", *words, "dev", device, plain=True)
        assert code == 0, text


def test_unknown_channels_on_the_control_port_are_few_end_soon_and_keep_no_peer_out(make_fabric):
    """64 sockets of one host without a certificate, each of which sends a byte now and then: a TLS record that never ends."""
    with Proxies(make_fabric()) as proxies, contextlib.ExitStack() as end:
        a, b = proxies.fabric.hosts
        opened = []
        with inside(a):
            for _ in range(64):
                unknown = end.enter_context(socket.create_connection((b.address, CONTROL), timeout=20))
                unknown.setblocking(False)
                opened.append(unknown)

        def alive():
            """The sockets that the proxy has not closed. Each sends its next byte."""
            left = []
            for unknown in opened:
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    unknown.send(record[sent[unknown]:][:1])
                    sent[unknown] += 1
                try:
                    ended = unknown.recv(1) == b""
                except BlockingIOError:
                    ended = False
                except ConnectionError:
                    ended = True
                if not ended:
                    left.append(unknown)
            return left

        # A ClientHello of 16 KiB that comes byte by byte.
        record = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc" + bytes(1 << 14)
        sent = collections.Counter()
        wait_until(lambda: len(alive()) <= 8, said=proxies.running["b"].text)
        # The peer on the same host has ended and comes back.
        proxies.running["a"].stop()
        proxies.start(a)
        with inside(a):
            for _ in range(16):
                more = end.enter_context(socket.create_connection((b.address, CONTROL), timeout=20))
                more.setblocking(False)
                opened.append(more)
        proxies.await_links()
        wait_until(lambda: not alive(), said=proxies.running["b"].text)
        refused = [line for line in proxies.running["b"].text().splitlines() if "is refused" in line]
        assert any("it has not introduced itself in time" in line for line in refused), refused
        assert any("its source opens too many channels" in line for line in refused), refused


def test_a_peer_that_only_one_side_has_given_up_begins_anew(make_fabric):
    """The network is away for longer than one proxy waits, and shorter than the other one does."""
    fabric = make_fabric()
    proxies = Proxies(fabric)
    written = proxies.configuration

    def patience(host):
        path = written(host)
        path.write_text(f"resume_s = {1 if host is fabric.a else 100}\n" + path.read_text())
        return path
    proxies.configuration = patience
    with proxies:
        a, b = fabric.hosts
        with joined(proxies) as (ours, theirs):
            ours.sendall(b"before")
            assert exactly(theirs, 6) == b"before"
            cut(a, b, True)
            wait_until(lambda: "is gone" in proxies.running["a"].text(), said=proxies.running["a"].text)
            cut(a, b, False)
            assert read_all(ours) == (b"", "ECONNRESET")
            assert read_all(theirs) == (b"", "ECONNRESET")
        proxies.await_links()
        assert "broke the protocol" not in proxies.running["a"].text() + proxies.running["b"].text()
        before = carried(proxies)
        with joined(proxies) as (ours, theirs):
            ours.sendall(b"anew")
            assert exactly(theirs, 4) == b"anew"
        await_carried(proxies, before + 1)


def test_a_policy_for_all_ipv6_addresses_takes_no_ipv4(make_fabric):
    fabric = make_fabric()
    proxies = Proxies(fabric)
    written = proxies.configuration
    proxies.configuration = lambda host: replace(written(host), f'to = ["{fabric.b.address}", "{fabric.b.address6}"]', 'to = ["::/0"]')
    # A prefix without a route is not taken.
    assert fabric.a.run("ip", "-6", "route", "add", "default", "via", fabric.b.address6, plain=True)[0] == 0
    with proxies:
        a, b = fabric.hosts
        before = proxies.counters(a).get("connections_taken", 0)
        with joined(proxies) as (ours, theirs):
            ours.sendall(b"IPv4")
            assert exactly(theirs, 4) == b"IPv4"
        assert proxies.counters(a).get("connections_taken", 0) == before
        with listen(b, b.address6) as listener, client(a, b.address6) as ours, listener.accept()[0] as theirs:
            theirs.sendall(b"IPv6")
            assert exactly(ours, 4) == b"IPv6"
        assert proxies.counters(a).get("connections_taken", 0) == before + 1


def test_urgent_data_keeps_its_place_by_tcp(make_fabric):
    with Proxies(make_fabric(), relay="tcp") as proxies:
        before = proxies.counters(proxies.fabric.a).get("connections_by_tcp", 0)
        urgent_data_keeps_its_place(proxies)
        assert proxies.counters(proxies.fabric.a)["connections_by_tcp"] == before + 1


def resident_kib(program):
    """Memory of a process: its own and what it shares with its daemon."""
    lines = open(f"/proc/{program.pid}/status").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def test_a_thousand_stalled_streams_take_no_more_than_the_configured_memory(make_fabric):
    """Half of them find no memory and go by TCP, slowly. When the readers go on, all bytes come."""
    count, each = 1000, 400_000
    total = 64 << 10
    with Proxies(make_fabric(), window="64KiB", memory="64MiB") as proxies, contextlib.ExitStack() as end:
        a, b = proxies.fabric.hosts
        before = [resident_kib(proxies.running[host.name]) for host in (a, b)]
        listener = end.enter_context(listen(b))
        pairs = []
        for _ in range(count):
            ours = end.enter_context(client(a, b.address))
            pairs.append((ours, end.enter_context(listener.accept()[0])))
        data = bytes(each)
        left = []
        for ours, _ in pairs:
            ours.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                left.append(each - ours.send(data))
        counters = proxies.counters(a)
        assert counters["connections_by_tcp"] >= count // 4 and counters["streams_opened"] >= count // 4, counters
        for host, first in zip((a, b), before):
            memory = sum(link["memory"] for link in proxies.show(host)["links"])
            assert memory <= total << 10
            # Each connection by TCP has two buffers of 16 KiB, and the process a few structures for each.
            grown = resident_kib(proxies.running[host.name]) - first
            assert grown < total + count * 40, f"{grown} KiB"
        for (ours, theirs), rest in zip(pairs, left):
            ours.settimeout(20)
            theirs.settimeout(20)
            assert len(exactly(theirs, each - rest)) == each - rest


def test_a_taken_prefix_with_several_routes_keeps_the_source_of_each(make_fabric):
    """Also of a route that comes while the proxy runs."""
    fabric = make_fabric()
    a, b = fabric.hosts
    proxies = Proxies(fabric)
    written = proxies.configuration

    def wide(host):
        # What a takes, and b serves.
        return replace(written(host), f'to = ["{b.address}", "{b.address6}"]', 'to = ["10.99.0.0/16"]')
    proxies.configuration = wide
    b.ip("addr add 10.99.5.1/32 dev eth0")
    with proxies:
        shown = lambda: a.run("ip", "route", "show", "table", "81", plain=True)[1]  # noqa: E731
        assert "10.99.5.0/24" not in shown()
        a.ip("addr add 10.99.0.77/32 dev eth0")
        a.ip(f"route add 10.99.5.0/24 via {b.address} src 10.99.0.77")
        wait_until(lambda: "10.99.5.0/24" in shown(), said=shown)
        for address, source in (("10.99.5.1", "10.99.0.77"), (b.address, a.address)):
            before = carried(proxies)
            with listen(b, address) as listener, client(a, address) as ours:
                theirs, peer = listener.accept()
                with theirs:
                    assert peer[0] == ours.getsockname()[0] == source
                    theirs.sendall(b"hello")
                    assert exactly(ours, 5) == b"hello"
            await_carried(proxies, before + 1)


#: An interpreter that every user may execute.
PYTHON = next((path for path in ("/usr/bin/python3",) if os.access(path, os.X_OK)), sys.executable)
#: Opens connections to an address, and keeps them until it is killed.
OPENS = """
import resource, signal, socket, sys
address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
opened = []
for _ in range(count):
    made = socket.socket()
    made.setblocking(False)
    made.connect_ex((address, port))
    opened.append(made)
print("opened", flush=True)
signal.pause()
"""

#: Asks a server that sends bytes back.
ASKS = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60) as made:
    made.sendall(b"hello")
    print("answer", made.recv(5), flush=True)
"""


def answered(a, b, uid):
    """Whether a program of a user on host a reaches a server on host b."""
    with listen(b, port=7001) as listener:
        asking = a.start(*as_user(uid), PYTHON, "-c", ASKS, b.address, 7001, plain=True)
        theirs, _ = listener.accept()
        with theirs:
            theirs.settimeout(60)
            theirs.sendall(theirs.recv(5))
            code = asking.wait(60)
    return code == 0 and "answer b'hello'" in asking.text()


def test_a_user_with_all_sockets_of_a_proxy_leaves_others_theirs(make_fabric):
    """A user opens more connections than the proxy has descriptors. Another user and root connect as before, and carried by the peer; when
    the first user's program ends, its sockets are free again."""
    files, count = 1024, 1200
    # Seven eighths are for connections; half of what the reserve leaves, two for each connection.
    share = files * 7 // 8 * 9 // 10 // 2 // 2
    with Proxies(make_fabric(), before=("prlimit", f"--nofile={files}:{files}")) as proxies:
        a, b = proxies.fabric.hosts
        with listen(b) as _:
            hostile = a.start(*as_user(ALICE), PYTHON, "-c", OPENS, b.address, PORT, count, plain=True)
            hostile.wait_for_text("opened", 60)
            wait_until(lambda: carried(proxies) >= share - 1 and proxies.counters(a).get("connections_over_share", 0) > 0, said=lambda: proxies.show(a)["counters"])
            before = carried(proxies)
            assert before <= share + 1, "more than the share"
            for uid in (BOB, 0):
                assert answered(a, b, uid), uid
            assert carried(proxies) >= before + 2
            assert "accepts_paused" not in proxies.counters(a) and "proxy_user_share" in proxies.ask(a, "why")
            hostile.stop(signal.SIGKILL)
        # SYNs that were in the queue when their program was killed are of no known user, and lead to no socket for 30 s.
        wait_until(lambda: not proxies.show(a)["streams"], 120, said=lambda: proxies.show(a)["counters"])
        assert answered(a, b, ALICE)
