"""`burst proxy`: connections of unmodified programs over queue pairs, with TCP's own behaviour.

The tests make their sockets themselves, in the namespaces of the two hosts, or run programs that know nothing of the proxy.
"""

import contextlib
import errno
import hashlib
import ipaddress
import os
import random
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest

from lab import await_true, build_directory, wait_until
from lab.namespaces import CLONE_NEWNET, LIBC, inside
from lab.proxy import Proxies
from lab.users import ALICE, as_user

PORT = 7000
#: State of a socket in TCP_INFO.
TCP_CLOSE = 7
#: Bytes that may wait in all queues of one stalled stream.
STALLED_BYTES = 25_000_000


def listen(host, address=None, port=PORT):
    family = socket.AF_INET6 if ":" in (address or host.address) else socket.AF_INET
    with inside(host):
        made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((address or host.address, port))
    made.listen(2000)
    made.settimeout(20)
    return made


def client(host, address, port=PORT, family=None):
    with inside(host):
        made = socket.socket(family or (socket.AF_INET6 if ":" in address else socket.AF_INET))
    made.settimeout(20)
    made.connect((address, port))
    return made


@contextlib.contextmanager
def joined(proxies, port=PORT):
    """A connection from host a to host b: the client's socket and the server's."""
    a, b = proxies.fabric.hosts
    with listen(b, port=port) as listener, client(a, b.address, port) as ours:
        theirs, _ = listener.accept()
        theirs.settimeout(20)
        with theirs:
            yield ours, theirs


def await_listener(host, port, program):
    """Waits until a program listens; many write that late."""
    wait_until(lambda: any(f":{port:04X} " in line and " 0A " in line for line in host.tcp_table()), program=program)


def pattern(count, seed=1):
    return random.Random(seed).randbytes(count)


def exactly(sock, count):
    """So many bytes; MSG_WAITALL does not wait on a socket with a time limit."""
    got = b""
    while len(got) < count and (part := sock.recv(count - len(got))):
        got += part
    return got


def read_all(sock):
    """All bytes up to the end, or the error's name."""
    got = bytearray()
    try:
        while part := sock.recv(1 << 16):
            got += part
    except ConnectionError as error:
        return bytes(got), errno.errorcode[error.errno]
    return bytes(got), "end"


@pytest.fixture(scope="module")
def proxies(fabric):
    with Proxies(fabric) as made:
        yield made
        for host in fabric.hosts:
            text = made.running[host.name].text()
            assert made.running[host.name].running(), f"the proxy of {host.name} ended:\n{text}"
            assert "panicked" not in text, text


def carried(proxies):
    return proxies.counters(proxies.fabric.a).get("streams_opened", 0)


def await_carried(proxies, count):
    """Workers show what they have counted at the end of a pass, which may come after the last byte."""
    wait_until(lambda: carried(proxies) >= count, said=lambda: f"{carried(proxies)} streams instead of {count}")
    assert carried(proxies) == count


# What programs see


@pytest.mark.parametrize("kind", ["v4", "v6", "mapped"])
def test_both_ends_see_true_addresses(proxies, kind):
    a, b = proxies.fabric.hosts
    before = carried(proxies)
    target, source = {"v4": (b.address, a.address), "v6": (b.address6, a.address6), "mapped": (f"::ffff:{b.address}", f"::ffff:{a.address}")}[kind]
    with listen(b, b.address6 if kind == "v6" else b.address) as listener, client(a, target) as ours:
        theirs, peer = listener.accept()
        with theirs:
            plain = lambda address: address.removeprefix("::ffff:")  # noqa: E731
            assert ours.getpeername()[:2] == (target, PORT)
            assert ours.getsockname()[0] == source
            assert peer[:2] == (plain(source), ours.getsockname()[1])
            assert theirs.getsockname()[:2] == (plain(target), PORT)
            ours.sendall(b"question")
            assert theirs.recv(100) == b"question"
            theirs.sendall(b"answer")
            assert ours.recv(100) == b"answer"
    await_carried(proxies, before + 1)


def test_what_the_policy_does_not_name_is_left_alone(proxies):
    a, b = proxies.fabric.hosts
    before = proxies.counters(a)
    with listen(b, port=6999) as listener, client(a, b.address, 6999) as ours:
        theirs, _ = listener.accept()
        with theirs:
            theirs.sendall(b"hello")
            assert ours.recv(100) == b"hello"
    after = proxies.counters(a)
    assert after["connects_without_policy"] > before["connects_without_policy"]
    assert after["connections_taken"] == before["connections_taken"]


def test_a_program_may_listen_at_the_port_of_a_server_elsewhere(proxies):
    with joined(proxies) as (ours, theirs), listen(proxies.fabric.a, "0.0.0.0"):
        ours.sendall(b"still here")
        assert exactly(theirs, 10) == b"still here"
    # The closed connection's TIMEWAIT is no obstacle, either.
    listen(proxies.fabric.a, "0.0.0.0").close()


def test_half_close_both_ways(proxies):
    for first, second in ((0, 1), (1, 0)):
        with joined(proxies) as ends:
            early, late = ends[first], ends[second]
            early.sendall(b"last words")
            early.shutdown(socket.SHUT_WR)
            assert read_all(late) == (b"last words", "end")
            data = pattern(3_000_000)
            sender = threading.Thread(target=lambda: (late.sendall(data), late.shutdown(socket.SHUT_WR)))
            sender.start()
            assert read_all(early) == (data, "end")
            sender.join()


def test_a_reset_stays_a_reset(proxies):
    for first, second in ((0, 1), (1, 0)):
        with joined(proxies) as ends:
            ends[first].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            ends[first].close()
            assert read_all(ends[second]) == (b"", "ECONNRESET")


def test_writing_to_a_closed_program_is_answered_by_a_reset(proxies):
    with joined(proxies) as (ours, theirs):
        theirs.close()
        assert ours.recv(1) == b""
        with pytest.raises(ConnectionError):
            for _ in range(200):
                ours.sendall(b"too late")
                time.sleep(0.01)


@pytest.mark.parametrize("kind", ["v4", "v6"])
def test_a_refused_connection_is_refused(proxies, kind):
    a, b = proxies.fabric.hosts
    before = proxies.counters(a)
    with pytest.raises(ConnectionRefusedError):
        client(a, b.address if kind == "v4" else b.address6, 7999)
    after = proxies.counters(a)
    assert after["syns_refused"] == before.get("syns_refused", 0) + 1
    assert after.get("connections_taken") == before.get("connections_taken"), "nobody was connected"
    assert "refused" in proxies.ask(a, "why", b.address if kind == "v4" else b.address6)


def test_urgent_data_keeps_its_place(proxies):
    with joined(proxies) as (ours, theirs):
        ours.sendall(b"before")
        ours.send(b"!", socket.MSG_OOB)
        ours.sendall(b"after")
        assert exactly(theirs, 6) == b"before"

        def urgent():
            try:
                return theirs.recv(1, socket.MSG_OOB)
            except OSError:
                return None
        assert await_true(urgent, 10) == b"!"
        assert exactly(theirs, 5) == b"after"


@pytest.mark.parametrize("count", [1, 2048, 2049, 262_144, 262_145, 20_000_000])
def test_bytes_arrive_as_they_were_sent(proxies, count):
    data = pattern(count)
    with joined(proxies) as (ours, theirs):
        sender = threading.Thread(target=lambda: (ours.sendall(data), ours.shutdown(socket.SHUT_WR)))
        sender.start()
        assert read_all(theirs) == (data, "end")
        sender.join()


def test_a_stalled_reader_stops_the_writer_and_no_one_else(proxies):
    data = pattern(60_000_000)
    with joined(proxies) as (ours, theirs):
        ours.setblocking(False)
        sent, idle = 0, 0
        while idle < 10 and sent < len(data):
            try:
                sent += ours.send(data[sent:sent + (1 << 20)])
                idle = 0
            except BlockingIOError:
                idle += 1
                time.sleep(0.05)
        assert 0 < sent < STALLED_BYTES
        with joined(proxies, PORT + 1) as (other, end):
            other.sendall(b"x" * 100_000)
            assert len(exactly(end, 100_000)) == 100_000
        ours.settimeout(20)
        rest = threading.Thread(target=lambda: (ours.sendall(data[sent:]), ours.shutdown(socket.SHUT_WR)))
        rest.start()
        got, how = read_all(theirs)
        rest.join()
        assert how == "end" and hashlib.md5(got).digest() == hashlib.md5(data).digest()


@contextlib.contextmanager
def idle_streams(proxies, count):
    """Connections from host a to host b that have carried a byte each."""
    a, b = proxies.fabric.hosts
    with contextlib.ExitStack() as open_sockets:
        listener = open_sockets.enter_context(listen(b))
        for _ in range(count):
            ours = open_sockets.enter_context(client(a, b.address))
            theirs = open_sockets.enter_context(listener.accept()[0])
            ours.sendall(b"1")
            assert theirs.recv(1) == b"1"
        yield


def ticks(program):
    """Clock ticks of a process and its threads so far."""
    fields = open(f"/proc/{program.pid}/stat").read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_idle_streams_cost_no_processor_time(proxies):
    a, b = proxies.fabric.hosts
    with idle_streams(proxies, 40):
        least = []
        while len(least) < 3 and 0 not in least:
            before = [ticks(proxies.running[host.name]) for host in (a, b)]
            time.sleep(10)
            least.append(sum(ticks(proxies.running[host.name]) for host in (a, b)) - sum(before))
        # The control channels' heartbeat is some 100 us each second; a tick is 10 ms, and counts for whom it finds running.
        assert min(least) == 0, f"clock ticks of both proxies in ten seconds, three times: {least}"


# Unmodified programs


def test_iperf3_in_both_directions_and_many_streams(proxies):
    a, b = proxies.fabric.hosts
    server = b.start("iperf3", "-s", plain=True)
    await_listener(b, 5201, server)
    before = carried(proxies)
    for words in (["-t", "1"], ["-t", "1", "-R"], ["-t", "1", "-P", "20"], ["-t", "1", "-6"]):
        target = b.address6 if "-6" in words else b.address
        code, text = a.run("iperf3", "-c", target, *words, plain=True, seconds=40)
        assert code == 0, text
    server.stop()
    await_carried(proxies, before + 3 * 2 + 21)


def test_redis(proxies, tmp_path):
    a, b = proxies.fabric.hosts
    server = b.start("redis-server", "--port", 6379, "--bind", b.address, "--save", "", "--dir", tmp_path, "--protected-mode", "no", plain=True)
    await_listener(b, 6379, server)
    before = carried(proxies)
    code, text = a.run(
        "redis-benchmark", "-h", b.address, "-c", 20, "-n", 4000, "-t", "set,get", "-d", 100, "-q", plain=True, seconds=60)
    assert code == 0 and "GET:" in text, text
    assert carried(proxies) >= before + 40
    replica = a.start(
        "redis-server", "--port", 6379, "--bind", a.address, "--save", "", "--dir", tmp_path, "--protected-mode", "no",
        "--replicaof", b.address, 6379, plain=True)
    asked = lambda: a.run("redis-cli", "-h", a.address, "dbsize", plain=True)[1] == b.run("redis-cli", "-h", b.address, "dbsize", plain=True)[1]  # noqa: E731
    wait_until(lambda: "Finished with success" in replica.text() and asked(), said=replica.text)
    replica.stop()
    server.stop()


def test_nginx_and_curl_and_ab(proxies, tmp_path):
    a, b = proxies.fabric.hosts
    (tmp_path / "data").write_bytes(pattern(10_000_000))
    (tmp_path / "put").mkdir()
    os.chmod(tmp_path, 0o755)
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; pid {tmp_path}/pid; error_log stderr; user root; events {{}} http {{ access_log off; sendfile on; dav_methods PUT; "
        f"client_body_temp_path {tmp_path}/body; proxy_temp_path {tmp_path}/p; fastcgi_temp_path {tmp_path}/f; "
        f"uwsgi_temp_path {tmp_path}/u; scgi_temp_path {tmp_path}/s; client_max_body_size 100m; "
        f"server {{ listen {b.address}:8080; root {tmp_path}; }} }}")
    server = b.start("nginx", "-c", tmp_path / "nginx.conf", plain=True)
    url = f"http://{b.address}:8080/data"
    await_listener(b, 8080, server)
    before = carried(proxies)
    code, text = a.run("curl", "-sS", "-o", tmp_path / "got", url, plain=True)
    assert code == 0, text
    assert (tmp_path / "got").read_bytes() == (tmp_path / "data").read_bytes()
    code, text = a.run("curl", "-sS", "-f", "-T", tmp_path / "data", f"http://{b.address}:8080/put/data", plain=True)
    assert code == 0, text
    assert (tmp_path / "put" / "data").read_bytes() == (tmp_path / "data").read_bytes()
    code, text = a.run("ab", "-n", 200, "-c", 10, f"http://{b.address}:8080/nginx.conf", plain=True)
    assert code == 0 and "Failed requests:        0" in text, text
    assert carried(proxies) >= before + 202
    server.stop()


def test_memcached(proxies):
    a, b = proxies.fabric.hosts
    server = b.start("memcached", "-u", "root", "-l", b.address, "-p", 11211, plain=True)
    await_listener(b, 11211, server)
    with client(a, b.address, 11211) as ours:
        ours.sendall(b"set key 0 0 5\r\nvalue\r\nget key\r\n")
        want = b"STORED\r\nVALUE key 0 5\r\nvalue\r\nEND\r\n"
        assert exactly(ours, len(want)) == want
    server.stop()


# Seen


def test_a_proxy_shows_what_it_does(proxies):
    a = proxies.fabric.a
    with joined(proxies) as (ours, theirs):
        ours.sendall(b"x" * 1000)
        exactly(theirs, 1000)
        streams = [s for s in proxies.show(a)["streams"] if s["peer"] == "b" and s["client"].endswith(f":{ours.getsockname()[1]}")]
        assert len(streams) == 1 and streams[0]["sent"] == 1000 and streams[0]["state"] == "rdma"
        text = proxies.ask(a, "ls")
        assert "carries" in text and f":{PORT}" in text
    assert "streams_opened" in proxies.ask(a, "stats")
    metrics = proxies.ask(a, "metrics")
    assert 'burst_proxy_peer_carries{peer="b"} 1' in metrics and "burst_proxy_streams_opened_total" in metrics
    assert "burst_proxy_peers_that_carry 1" in metrics


def test_metrics_over_http_name_peers_to_their_owner_only(make_fabric):
    made = make_fabric()
    place = str(made.directory / "metrics-{name}.sock")
    with Proxies(made, flags=["--metrics", f"unix:{place}"]) as proxies, joined(proxies) as (ours, theirs):
        a = made.a
        ours.sendall(b"x" * 1000)
        exactly(theirs, 1000)
        words = ["curl", "--silent", "--fail-with-body", "--max-time", 20, "--unix-socket", place.format(name="a")]
        text = a.run(*words, "http://burst/metrics", plain=True)[1]
        assert 'burst_proxy_peer_carries{peer="b"} 1' in text and "# TYPE burst_proxy_streams_opened_total counter" in text, text
        opened = a.run(*words, "--header", "Accept: application/openmetrics-text;version=1.0.0", "http://burst/metrics", plain=True)[1]
        assert "# TYPE burst_proxy_streams_opened counter" in opened and opened.endswith("# EOF\n"), opened
        for directory in [made.directory, *made.directory.parents]:
            if directory.is_relative_to("/tmp") and directory != Path("/tmp"):
                directory.chmod(directory.stat().st_mode | 0o055)
        other = a.run(*as_user(ALICE), *words, "http://burst/metrics", plain=True)[1]
        assert "burst_proxy_peers_that_carry 1" in other and 'peer="' not in other, other


# Failures


class Load:
    """Connections that each carry random bytes both ways and are checked: `outcomes` has `whole` or an error for each end."""

    def __init__(self, proxies, count=4, size=3_000_000):
        self.proxies, self.size, self.outcomes = proxies, size, []
        self.wrong = []
        a, b = proxies.fabric.hosts
        self.listener = listen(b, port=PORT + 5)
        self.threads = [threading.Thread(target=self._client, args=(n,)) for n in range(count)]
        self.server = threading.Thread(target=self._serve, args=(count,))
        self.server.start()
        for thread in self.threads:
            thread.start()

    def _both(self, sock, seed, peer_seed, who):
        data, want = pattern(self.size, seed), pattern(self.size, peer_seed)

        # The first call after a reset gets its error; a read after that only sees the end.
        errors = []

        def send():
            try:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
            except TimeoutError:
                errors.append("timeout")
            except OSError as error:
                errors.append(errno.errorcode[error.errno])
        sender = threading.Thread(target=send)
        sender.start()
        try:
            got, how = read_all(sock)
        except TimeoutError:
            got, how = b"", "timeout"
        # A socket that was reset is closed; one that has read the peer's end, and has sent none, is not.
        clean = how == "end" and sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != TCP_CLOSE
        sender.join()
        clean |= how == "end" and not errors
        how = errors[0] if errors else how
        if clean and got != want:
            self.wrong.append(f"{who}: {len(got)} bytes look whole")
        if how != "end" and not want.startswith(got):
            self.wrong.append(f"{who}: {len(got)} bytes are not what was sent")
        self.outcomes.append("whole" if how == "end" else how)

    def _client(self, number):
        a, b = self.proxies.fabric.hosts
        try:
            with client(a, b.address, PORT + 5) as ours:
                ours.sendall(bytes([number]))
                self._both(ours, 2 * number, 2 * number + 1, f"client {number}")
        except OSError as error:
            self.outcomes.append(errno.errorcode.get(error.errno, str(error)))

    def _serve(self, count):
        def one(theirs):
            with theirs:
                theirs.settimeout(20)
                try:
                    number = theirs.recv(1)
                except OSError as error:
                    self.outcomes.append(errno.errorcode.get(error.errno, str(error)))
                    return
                if not number:
                    self.wrong.append("a server: the end before the first byte")
                else:
                    self._both(theirs, 2 * number[0] + 1, 2 * number[0], f"server {number[0]}")
        children = []
        self.listener.settimeout(0.2)
        while not self.done.is_set() or not children:
            try:
                theirs, _ = self.listener.accept()
            except TimeoutError:
                if self.done.is_set():
                    break
                continue
            children.append(threading.Thread(target=one, args=(theirs,)))
            children[-1].start()
        for child in children:
            child.join()

    def finish(self):
        for thread in self.threads:
            thread.join()
        self.done.set()
        self.server.join()
        self.listener.close()
        assert not self.wrong, self.wrong
        return self.outcomes

    @property
    def done(self):
        return self.__dict__.setdefault("_done", threading.Event())


def moved(proxies):
    return proxies.counters(proxies.fabric.a).get("bytes_read", 0)


def test_broken_queue_pairs_lose_nothing(proxies):
    a, b = proxies.fabric.hosts
    before = proxies.counters(a)
    load = Load(proxies, size=15_000_000)
    breaks = 0
    while any(thread.is_alive() for thread in load.threads) and breaks < 8:
        proxies.ask((a, b)[breaks % 2], "break-queue-pairs")
        breaks += 1
        time.sleep(0.15)
    assert load.finish() == ["whole"] * 8
    proxies.await_links()
    after = proxies.counters(a)
    made = lambda counters: counters.get("links_on_control_channel", 0) + counters["links_on_rdma"]  # noqa: E731
    assert breaks and made(after) > made(before)


def test_the_death_of_a_daemon_loses_nothing(make_fabric):
    with Proxies(make_fabric()) as proxies:
        a = proxies.fabric.a
        load = Load(proxies, size=20_000_000)
        wait_until(lambda: moved(proxies) > 1_000_000)
        a.daemon.stop(signal.SIGKILL)
        assert load.finish() == ["whole"] * 8
        assert any(link["carrier"] == "control channel" for link in proxies.show(a)["links"])
        a.start_daemon()
        proxies.await_links("rdma")
        with joined(proxies) as (ours, theirs):
            ours.sendall(b"over the new daemon")
            assert exactly(theirs, 19) == b"over the new daemon"


def network_state(host):
    """Rules, routes and settings that a proxy changes. Routes of IPv6 come and go by themselves, but for its own table."""
    words = [["ip", "rule"], ["ip", "-6", "rule"], ["ip", "route", "show", "table", "all"]]
    settings = ["net.ipv4.tcp_fwmark_accept", "net.ipv4.fwmark_reflect", "net.ipv6.fwmark_reflect"]
    own = host.run("ip", "-6", "route", "show", "table", "all", plain=True)[1]
    return [host.run(*w, plain=True)[1] for w in (*words, ["sysctl", "-n", *settings])], "table 81" in own


@pytest.mark.parametrize("who", [0, 1])
def test_the_death_of_a_proxy_is_a_reset_and_new_connections_go_by_tcp(make_fabric, who):
    fabric = make_fabric()
    before = network_state(fabric.hosts[who])
    with Proxies(fabric) as proxies:
        a, b = proxies.fabric.hosts
        host = proxies.fabric.hosts[who]
        assert network_state(host) != before
        with joined(proxies) as (ours, theirs):
            ours.sendall(b"x" * 1000)
            assert len(exactly(theirs, 1000)) == 1000
            os.kill(proxies.running[host.name].pid, signal.SIGKILL)
            assert read_all(ours) == (b"", "ECONNRESET")
            assert read_all(theirs) == (b"", "ECONNRESET")
        if who == 1:
            wait_until(lambda: not proxies.show(a)["peers"][0]["carries"])
            taken = proxies.counters(a)["connections_taken"]
        with joined(proxies) as (ours, theirs):
            ours.sendall(b"by TCP")
            assert theirs.recv(100) == b"by TCP"
        if who == 1:
            assert proxies.counters(a)["connections_taken"] == taken
        wait_until(lambda: network_state(host) == before, said=lambda: str(network_state(host)))
        proxies.start(host)
        proxies.await_links()
        before = carried(proxies)
        with joined(proxies) as (ours, theirs):
            ours.sendall(b"again")
            assert theirs.recv(100) == b"again"
        await_carried(proxies, before + 1)


def test_random_deaths_never_shorten_or_alter_a_stream(make_fabric):
    """The short form of tests/hunt/proxy_kills.py."""
    from proxy_deaths import deaths

    with Proxies(make_fabric()) as proxies:
        seen = deaths(proxies, Load, rounds=8, seed=1, daemons=True)
        assert {victim.split()[0] for victim, _ in seen} == {"proxy", "daemon", "queue"}


def janitor_of(program):
    """The process that tidies up after a proxy."""
    children = open(f"/proc/{program.pid}/task/{program.pid}/children").read().split()
    return next(int(pid) for pid in children if b"janitor" in open(f"/proc/{pid}/cmdline", "rb").read())


def test_ending_a_proxy_removes_everything(make_fabric):
    fabric = make_fabric()
    before = network_state(fabric.a)
    with Proxies(fabric) as proxies:
        assert network_state(fabric.a) != before
        # As a signal to the whole control group does.
        os.kill(janitor_of(proxies.running["a"]), signal.SIGTERM)
        assert proxies.running["a"].stop(signal.SIGTERM) == 0
        assert network_state(fabric.a) == before


def test_without_rdma_streams_travel_over_the_control_channel(make_fabric):
    with Proxies(make_fabric(daemons=False), rdma=False) as proxies:
        data = pattern(5_000_000)
        before = carried(proxies)
        with joined(proxies) as (ours, theirs):
            sender = threading.Thread(target=lambda: (ours.sendall(data), ours.shutdown(socket.SHUT_WR)))
            sender.start()
            assert read_all(theirs) == (data, "end")
            sender.join()
        await_carried(proxies, before + 1)
        assert "no RDMA device" in proxies.running["a"].text()


def test_draining_sends_new_connections_by_tcp(make_fabric):
    with Proxies(make_fabric()) as proxies:
        a, b = proxies.fabric.hosts
        with joined(proxies) as (ours, theirs):
            proxies.ask(b, "drain")
            wait_until(lambda: not proxies.show(a)["peers"][0]["carries"])
            before = carried(proxies)
            with joined(proxies, PORT + 1) as (new, end):
                new.sendall(b"by TCP")
                assert end.recv(100) == b"by TCP"
            assert carried(proxies) == before
            ours.sendall(b"open streams go on")
            assert theirs.recv(100) == b"open streams go on"


def test_a_wrong_certificate_is_refused_and_tcp_used(make_fabric):
    fabric = make_fabric()
    proxies = Proxies(fabric)
    burst = [os.fspath(word) for word in (build_directory() / "burst", "proxy", "keys")]
    subprocess.run([*burst, fabric.directory / "keys", "a", "b"], check=True, stdout=subprocess.DEVNULL)
    other = fabric.directory / "others"
    subprocess.run([*burst, other, "b"], check=True, stdout=subprocess.DEVNULL)
    with contextlib.ExitStack() as end:
        end.callback(proxies.__exit__)
        proxies.start(fabric.a)
        configuration = proxies.configuration
        proxies.configuration = lambda host: _replace(configuration(host), f"{fabric.directory}/keys", other)
        proxies.start(fabric.b)
        wait_until(lambda: "certificate" in proxies.running["a"].text(), said=proxies.running["a"].text)
        with joined(proxies) as (ours, theirs):
            ours.sendall(b"by TCP")
            assert theirs.recv(100) == b"by TCP"
        assert proxies.counters(fabric.a)["connects_without_peer"] > 0


def _replace(path, old, new):
    path.write_text(path.read_text().replace(str(old), str(new)))
    return path


def test_a_directory_file_adds_peers(make_fabric):
    fabric = make_fabric()
    directory = fabric.directory / "peers.toml"
    directory.write_text("# none yet\n")
    proxies = Proxies(fabric, extra=f'directory = "{directory}"')
    written = proxies.configuration
    with contextlib.ExitStack() as end:
        end.callback(proxies.__exit__)
        subprocess.run([build_directory() / "burst", "proxy", "keys", fabric.directory / "keys", "a", "b"],
                       check=True, stdout=subprocess.DEVNULL)

        def without_peers(host):
            path = written(host)
            text = path.read_text()
            path.write_text(text[:text.index("[[peer]]")] + text[text.index("[[take]]"):])
            return path
        proxies.configuration = without_peers
        for host in fabric.hosts:
            proxies.start(host)
        assert proxies.show(fabric.a)["peers"] == []
        directory.write_text("".join(f'[[peer]]\nname = "{h.name}"\naddress = "{h.address}:7400"\n' for h in fabric.hosts))
        proxies.await_links()

def cgroup_mount(directory):
    """The control groups of version 2, mounted below `directory`."""
    directory.mkdir()
    subprocess.run(["mount", "-t", "cgroup2", "none", directory], check=True)
    return directory


def test_a_named_namespace_and_control_group(make_fabric, tmp_path):
    """The proxy of host a names a's namespace by path, and takes connections of one control group alone."""
    # Before the hosts, which have mounts of their own from then on.
    groups = cgroup_mount(tmp_path / "groups")
    fabric = make_fabric()
    group = groups / f"burst-proxy-{os.getpid()}"
    group.mkdir()
    wider = ipaddress.ip_network(f"{fabric.b.address}/31", strict=False)
    other = groups / f"burst-proxy-other-{os.getpid()}"
    other.mkdir()
    proxies = Proxies(fabric)
    written = proxies.configuration

    def named(host):
        path = written(host)
        if host is fabric.a:
            place = f'namespace = "/proc/{host.keeper.pid}/ns/net"'
            text = path.read_text().replace("[[take]]\n", f'[[take]]\ncgroup = "{group}"\n{place}\n')
            text += f'[[take]]\ncgroup = "{other}"\n{place}\nto = ["{wider}"]\nports = "6998"\n'
            path.write_text(text.replace("[[serve]]\n", f"[[serve]]\n{place}\n"))
        return path
    proxies.configuration = named
    try:
        with proxies, listen(fabric.b) as named, listen(fabric.b, port=6998) as elsewhere:
            # Each control group has ports of its own.
            cases = [(None, named, 0), (group, named, 1), (other, named, 0), (None, elsewhere, 0), (group, elsewhere, 0), (other, elsewhere, 1)]
            for inside_of, listener, taken in cases:
                port = listener.getsockname()[1]
                ask = "import socket; s = socket.create_connection(('%s', %d)); s.sendall(b'x'); s.recv(1)" % (fabric.b.address, port)
                join = f"echo $$ >{inside_of}/cgroup.procs; " if inside_of else ""
                words = ["sh", "-c", f'{join}exec python3 -c "{ask}"']
                before = carried(proxies)
                program = fabric.a.start(*words, plain=True)
                theirs, _ = listener.accept()
                with theirs:
                    theirs.settimeout(20)
                    assert theirs.recv(1) == b"x"
                    theirs.sendall(b"y")
                assert program.wait(20) == 0, program.text()
                await_carried(proxies, before + taken)
    finally:
        group.rmdir()
        other.rmdir()
        subprocess.run(["umount", groups], check=True)


def test_several_workers_share_the_streams(make_fabric):
    with Proxies(make_fabric(), workers=3) as proxies:
        assert {link["link"] for link in proxies.show(proxies.fabric.a)["links"]} == {0, 1, 2}
        data = pattern(500_000)
        for _ in range(8):
            with joined(proxies) as (ours, theirs):
                sender = threading.Thread(target=lambda sock=ours: (sock.sendall(data), sock.shutdown(socket.SHUT_WR)))
                sender.start()
                assert read_all(theirs) == (data, "end")
                sender.join()
        await_carried(proxies, 8)


def test_a_peer_that_speaks_nonsense_is_refused(proxies):
    a = proxies.fabric.a
    with inside(a):
        stranger = socket.create_connection((a.address, 7400), timeout=10)
    with stranger:
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
        while stranger.recv(1000):
            pass
    wait_until(lambda: f"a control channel from {a.address} is refused" in proxies.running["a"].text(), said=proxies.running["a"].text)
    with joined(proxies) as (ours, theirs):
        ours.sendall(b"unharmed")
        assert exactly(theirs, 8) == b"unharmed"


def test_without_privileges_one_sentence_lists_what_is_needed(namespaces, tmp_path):
    burst = os.fspath(build_directory() / "burst")
    subprocess.run([burst, "proxy", "keys", tmp_path, "a"], check=True, stdout=subprocess.DEVNULL)
    path = tmp_path / "a.toml"
    path.write_text(f'name = "a"\nlisten = "127.0.0.1:7400"\nkeys = "{tmp_path}"\nadmin = "{tmp_path}/s"\n'
                    '[[take]]\nto = ["10.0.0.2"]\nports = "1"\n')
    os.chmod(tmp_path / "a.key", 0o644)
    words = ["setpriv", "--inh-caps=-all", "--bounding-set=-all", burst, "proxy", "run", path]
    done = subprocess.run(["unshare", "--net", *map(str, words)], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1 and "CAP_NET_ADMIN" in done.stderr, done.stderr


@pytest.mark.parametrize("bad, said", [
    ("workers = 99\n", "workers = 99"),
    ("colour = 3\n", "colour"),
    ('window = "5"\n', "window"),
])
def test_bad_configurations_are_refused_in_one_sentence(burst, tmp_path, bad, said):
    path = tmp_path / "bad.toml"
    path.write_text(f'name = "a"\nlisten = "127.0.0.1:1"\nkeys = "{tmp_path}"\n{bad}')
    done = burst("proxy", "run", path)
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_an_absent_proxy_is_named(burst, tmp_path):
    done = burst("proxy", "ls", "--admin", tmp_path / "none")
    assert done.returncode == 1 and "no proxy answers" in done.stderr
