"""`burst proxy` where the kernel has NFQUEUE: `connect` has the result that the server gives it, as with TCP."""

import contextlib
import errno
import os
import signal
import socket
import threading
import time

import pytest

from lab import wait_until
from lab.proxy import Proxies
from proxy_connects import kill_while_connecting
from test_proxy import PORT, TCP_CLOSE, await_carried, carried, client, exactly, inside, joined, listen, network_state, read_all
from test_proxy import proxies as proxies  # noqa: PLC0414 - a fixture

#: The policy names this port; nobody listens there, or a firewall drops its SYNs.
SILENT = 7998


def table(host):
    """Rules of nf_tables in the host's namespace."""
    code, text = host.run("nft", "list", "tables", plain=True)
    assert code == 0, text
    return [line for line in text.splitlines() if "burst-proxy" in line]


@contextlib.contextmanager
def firewall(host, port, answer="drop"):
    """Drops SYNs to a port, as a host that is away does, or answers them."""
    words = ["add table inet silent", "add chain inet silent in { type filter hook input priority 0; }",
             f"add rule inet silent in tcp dport {port} tcp flags syn {answer}"]
    for word in words:
        code, text = host.run("nft", word, plain=True)
        assert code == 0, text
    try:
        yield
    finally:
        host.run("nft", "delete table inet silent", plain=True)


def begin(host, address, port):
    """A socket whose connect is under way."""
    with inside(host):
        made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    made.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        made.connect((address, port))
    return made


def state(sock):
    """State of a TCP socket by TCP_INFO: 1 is established, 2 is SYN-SENT."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def test_a_server_that_does_not_answer_leaves_connect_waiting(proxies):
    a, b = proxies.fabric.hosts
    before = carried(proxies)
    with listen(b, port=SILENT) as listener, contextlib.ExitStack() as end:
        with firewall(b, SILENT):
            ours = end.enter_context(begin(a, b.address, SILENT))
            # Two SYNs of the program: the second one is dropped while the first one is held.
            time.sleep(1.3)
            assert state(ours) == 2
        # The SYN of the peer is repeated, gets through, and the held one passes.
        theirs, _ = listener.accept()
        with theirs:
            ours.settimeout(10)
            ours.sendall(b"at last")
            assert exactly(theirs, 7) == b"at last"
    await_carried(proxies, before + 1)


def test_rules_go_with_the_process_and_a_held_connect_goes_on_by_tcp(make_fabric):
    fabric = make_fabric()
    before = network_state(fabric.a)
    with Proxies(fabric) as proxies:
        a, b = fabric.hosts
        assert len(table(a)) == 2, "one for each family"
        with listen(b, port=SILENT) as listener, contextlib.ExitStack() as end:
            with firewall(b, SILENT):
                ours = end.enter_context(begin(a, b.address, SILENT))
                wait_until(lambda: proxies.counters(a).get("syns_held") == 1)
                os.kill(proxies.running["a"].pid, signal.SIGKILL)
                wait_until(lambda: table(a) == [] and network_state(a) == before)
            theirs, _ = listener.accept()
            with theirs:
                ours.settimeout(10)
                ours.sendall(b"by TCP")
                assert exactly(theirs, 6) == b"by TCP"


@pytest.mark.parametrize("family", ["v4", "v6"])
def test_a_host_that_is_unreachable_is_an_error_at_once(proxies, family):
    a, b = proxies.fabric.hosts
    address = b.address if family == "v4" else b.address6
    before = proxies.counters(a).get("syns_unreachable", 0)
    with firewall(b, SILENT, "reject with icmpx host-unreachable"), begin(a, address, SILENT) as ours:
        wait_until(lambda: state(ours) == TCP_CLOSE)
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.EHOSTUNREACH
    wait_until(lambda: proxies.counters(a).get("syns_unreachable", 0) == before + 1)
    assert "proxy_unreachable" in proxies.ask(a, "why", address)


def test_a_socket_bound_to_a_loopback_address_is_left_to_the_kernel(proxies):
    """Beside a port that no rule names, the kernel's answer is the same."""
    a, b = proxies.fabric.hosts
    before = carried(proxies)
    with listen(b), listen(b, port=6999):
        for port in (PORT, 6999):
            with inside(a):
                ours = socket.socket()
            with ours, pytest.raises(OSError) as refused:
                ours.bind(("127.0.0.1", 0))
                ours.connect((b.address, port))
            assert refused.value.errno == errno.EINVAL, port
    assert carried(proxies) == before


@pytest.mark.parametrize("connected", [False, True])
def test_a_connect_from_before_a_restart_goes_on_by_tcp(make_fabric, connected):
    """Its socket has the mark of the proxy that was killed, and the routes of the next one would lead it to `lo`, where nothing knows it."""
    with Proxies(make_fabric()) as proxies:
        a, b = proxies.fabric.hosts

        def kill():
            wait_until(lambda: proxies.counters(a).get("syns_held") == 1)
            os.kill(proxies.running["a"].pid, signal.SIGKILL)
            wait_until(lambda: table(a) == [])
        with listen(b, port=SILENT) as listener, contextlib.ExitStack() as end:
            with firewall(b, SILENT):
                ours = end.enter_context(begin(a, b.address, SILENT))
                kill()
                if not connected:
                    proxies.start(a)
            theirs, _ = listener.accept()
            if connected:
                wait_until(lambda: state(ours) == 1)
                proxies.start(a)
            assert "1 sockets that an earlier proxy had marked go on by TCP" in proxies.running["a"].text()
            proxies.await_links()
            ours.settimeout(20)
            ours.sendall(b"question")
            try:
                question = exactly(theirs, 8)
            except ConnectionResetError:
                # That was what host b's proxy had opened for the killed one, before it noticed its end.
                theirs.close()
                theirs, _ = listener.accept()
                question = exactly(theirs, 8)
            with theirs:
                assert question == b"question"
                theirs.sendall(b"answer")
                assert exactly(ours, 6) == b"answer"
        # The next one is carried.
        with joined(proxies) as (ours, theirs):
            ours.sendall(b"x")
            assert exactly(theirs, 1) == b"x"
        await_carried(proxies, 1)


def test_no_connect_hangs_while_proxies_and_daemons_die(make_fabric):
    """tests/hunt/proxy_connects.py has the bound; a connect that hung did so for a minute and more."""
    with Proxies(make_fabric()) as proxies:
        seen, slowest, slow = kill_while_connecting(proxies, kills=8, seed=3, bound_s=20)
        assert not slow, (seen, slowest, slow)
        assert set(seen) <= {"served", "ECONNREFUSED", "after connect ECONNRESET", "end without a byte"} and seen["served"] > 100, seen


def test_by_tcp_alone_a_refusal_is_a_refusal_too(make_fabric):
    with Proxies(make_fabric(daemons=False), relay="tcp", rdma=False) as proxies:
        a, b = proxies.fabric.hosts
        with pytest.raises(ConnectionRefusedError):
            client(a, b.address, 7999)
        with joined(proxies) as (ours, theirs):
            data = b"x" * 300_000
            sender = threading.Thread(target=lambda: (ours.sendall(data), ours.shutdown(socket.SHUT_WR)))
            sender.start()
            assert read_all(theirs) == (data, "end")
            sender.join()
        counters = proxies.counters(a)
        assert counters["connections_by_tcp"] == 2
        assert counters["bytes_read"] == counters["bytes_delivered"] == len(data)


def test_a_proxy_that_serves_what_it_takes_does_not_hold_its_own_syns(make_fabric):
    """Both proxies name the whole subnet in [[take]] and [[serve]]."""
    fabric = make_fabric()
    proxies = Proxies(fabric)
    written = proxies.configuration

    def wide(host):
        path = written(host)
        other = next(h for h in fabric.hosts if h is not host)
        text = path.read_text().replace(f'to = ["{other.address}", "{other.address6}"]', 'to = ["10.99.0.0/24"]')
        path.write_text(text)
        return path
    proxies.configuration = wide
    with proxies, joined(proxies) as (ours, theirs):
        ours.sendall(b"question")
        assert exactly(theirs, 8) == b"question"
        assert proxies.counters(fabric.b).get("syns_held", 0) == 0
        await_carried(proxies, 1)


def test_without_holding_connect_succeeds_early(make_fabric):
    with Proxies(make_fabric(), extra="hold_syn = false") as proxies:
        a, b = proxies.fabric.hosts
        assert table(a) == []
        # The reset may come before connect has returned.
        with contextlib.suppress(ConnectionResetError), client(a, b.address, 7999) as ours:
            assert read_all(ours) == (b"", "ECONNRESET")
        assert "refused" in proxies.ask(a, "why", b.address)
        with joined(proxies, PORT) as (ours, theirs):
            theirs.sendall(b"early")
            assert exactly(ours, 5) == b"early"
