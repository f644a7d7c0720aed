"""`burst proxy` with `encrypt`: what is on the wire, who agrees with whom, queue pairs that break, and packets of somebody in between."""

import contextlib
import hashlib
import socket
import ssl
import struct
import threading

import pytest

from lab import frames, wait_until
from lab.proxy import CONTROL, Proxies
from test_proxy import PORT, client, exactly, inside, joined, listen, pattern, read_all
from test_proxy_hostile import INTRODUCE, HostilePeer, number

#: What the programs send; long enough that no other bytes look like it.
TEXT = b"the quick brown fox jumps over the lazy dog; "
ETH_P_IP, ROCE, BTH, SEND_ONLY, ACK_REQUESTED = 0x800, 4791, 42, 4, 1 << 31
ON, OFF, ONLY = (f'encrypt = "{word}"\n' for word in ("on", "off", "only"))
#: Features of a proxy that does not know encryption: urgent data, windows that grow. And of one that does.
OLDER, ENCRYPTS = 1 | 2, 4


class Sniffer:
    """What a host's interface brings from the other host by RoCEv2. A context manager."""

    def __init__(self, host):
        with inside(host):
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUFFORCE if hasattr(socket, "SO_RCVBUFFORCE") else 33, 64 << 20)
        self.socket.bind(("eth0", ETH_P_IP))
        self.socket.settimeout(0.1)
        self.packets, self.ended = [], threading.Event()
        self.thread = threading.Thread(target=self.receive)

    def receive(self):
        while not self.ended.is_set():
            with contextlib.suppress(TimeoutError):
                packet = self.socket.recv(1 << 16)
                if packet[23] == socket.IPPROTO_UDP and struct.unpack(">H", packet[36:38])[0] == ROCE:
                    self.packets.append(packet)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        self.socket.close()

    def has(self, text):
        return any(text in packet for packet in self.packets)


def encrypted(proxies):
    """For each link of both proxies, whether it is encrypted."""
    return {link["encrypted"] for host in proxies.fabric.hosts for link in proxies.show(host)["links"]}


def moved(proxies, data):
    """Sends bytes both ways."""
    with joined(proxies) as (ours, theirs):
        for one, other in ((ours, theirs), (theirs, ours)):
            sender = threading.Thread(target=one.sendall, args=(data,))
            sender.start()
            assert exactly(other, len(data)) == data
            sender.join()


@pytest.mark.parametrize("extra, is_on", [(ON, True), (OFF, False), ("", False)], ids=["on", "off", "default"])
def test_clear_bytes_are_on_the_wire_without_encryption_only(make_fabric, extra, is_on):
    with Proxies(make_fabric(), extra=extra) as proxies, Sniffer(proxies.fabric.b) as there, Sniffer(proxies.fabric.a) as back:
        # A few bytes inside of messages, and many by WRITEs.
        for data in (TEXT, TEXT * 20_000):
            moved(proxies, data)
            # A byte of each text may be at the end of a packet; not all of them are.
            wait_until(lambda: len(there.packets) > 4 and len(back.packets) > 4)
            assert [seen.has(TEXT[:-1]) for seen in (there, back)] == [not is_on] * 2
        assert encrypted(proxies) == {is_on}
        for host in proxies.fabric.hosts:
            counters = proxies.counters(host)
            assert counters["writes_sent"] > 0 and counters.get("links_encrypted", 0) == is_on
            row = next(line for line in proxies.ask(host, "ls").splitlines() if " rdma " in line)
            assert f" {'yes' if is_on else 'no'} " in row, row


def test_one_side_asks_and_the_other_agrees(make_fabric):
    with Proxies(make_fabric(), own={"b": ON}) as proxies:
        assert encrypted(proxies) == {True}
        moved(proxies, pattern(1 << 20))


@pytest.mark.parametrize("demands", ["a", "b"])
def test_a_side_that_demands_encryption_refuses_one_that_does_not_offer_it(make_fabric, demands):
    """Of the two names a dials. Connections go by TCP, and both sides say why."""
    other = "b" if demands == "a" else "a"
    proxies = Proxies(make_fabric(), own={demands: ON, other: OFF})
    proxies.await_links = lambda: None
    with proxies:
        running, sentences = proxies.running, {demands: "it does not offer encryption, which this proxy demands", other: "it demands encryption, which is off here"}
        for name, sentence in sentences.items():
            wait_until(lambda: sentence in running[name].text(), said=running[name].text)  # noqa: B023
        assert not any(link for host in proxies.fabric.hosts for link in proxies.show(host)["links"])
        moved(proxies, TEXT)
        asking = next(host for host in proxies.fabric.hosts if host.name == demands)
        assert "it does not offer encryption" in proxies.ask(asking, "ls")
        assert not proxies.counters(proxies.fabric.a).get("streams_opened")


def test_an_encrypted_stream_survives_broken_queue_pairs_and_channels(make_fabric):
    """Batches are sent again by the control channel and by other queue pairs, with other keys. Windows grow meanwhile."""
    with Proxies(make_fabric(), extra=ON, window="64KiB", workers=2) as proxies, joined(proxies) as (ours, theirs):
        data = pattern(6 << 20)
        for sock in (ours, theirs):
            # Of all bytes together, in Python.
            sock.settimeout(300)
        got, counts = [hashlib.sha256(), hashlib.sha256()], [0, 0]

        def take(sock, digest, at):
            while counts[at] < len(data) and (part := sock.recv(1 << 16)):
                digest.update(part)
                counts[at] += len(part)

        threads = [threading.Thread(target=sock.sendall, args=(data,)) for sock in (ours, theirs)]
        threads += [threading.Thread(target=take, args=(sock, digest, at)) for at, (sock, digest) in enumerate(zip((ours, theirs), got))]
        for thread in threads:
            thread.start()
        # After each quarter, and while queue pairs carry the links.
        for breaks in range(3):
            wait_until(lambda: min(counts) >= (breaks + 1) * len(data) // 4)  # noqa: B023
            proxies.await_links()
            proxies.ask(proxies.fabric.hosts[breaks % 2], "break-queue-pairs")
        for thread in threads:
            thread.join()
        assert [digest.digest() for digest in got] == [hashlib.sha256(data).digest()] * 2
        proxies.await_links()
        assert encrypted(proxies) == {True}
        said = "".join(program.text() for program in proxies.running.values())
        assert "broke the protocol" not in said, said
        # Two links, at first and after each of three breaks.
        assert all(proxies.counters(host)["links_encrypted"] >= 2 * 4 for host in proxies.fabric.hosts)


def last_request(packets, source):
    """Queue pair number and PSN of the last request of a connected queue pair from an address."""
    for packet in reversed(packets):
        if packet[26:30] == socket.inet_aton(source) and packet[BTH] <= 0xC:
            return struct.unpack(">I", packet[BTH + 4:BTH + 8])[0] & 0xFFFFFF, struct.unpack(">I", packet[BTH + 8:BTH + 12])[0] & 0xFFFFFF
    raise AssertionError("no request was seen")


@pytest.mark.parametrize("kind", ["rubbish", "repeated"])
def test_a_forged_message_ends_the_link_with_a_reason_and_is_not_delivered(make_fabric, kind):
    """Somebody who reads the wire knows queue pair number and PSN, and sends the next packet: bytes of his own, or those of an earlier message."""
    with Proxies(make_fabric(extra=["--selective-repeat=no"]), extra=ON) as proxies, Sniffer(proxies.fabric.b) as sniffer:
        a, b = proxies.fabric.hosts
        with joined(proxies) as (ours, theirs):
            ours.sendall(TEXT)
            assert exactly(theirs, len(TEXT)) == TEXT
            # Until what was sent is acknowledged and credited: then the wire is quiet.
            before = -1
            while before != len(sniffer.packets):
                before = len(sniffer.packets)
                proxies.show(b)
            qpn, psn = last_request(sniffer.packets, a.address)
            earlier = next(packet for packet in sniffer.packets if packet[26:30] == socket.inet_aton(a.address) and packet[BTH] == SEND_ONLY)
            payload = bytes(100) if kind == "rubbish" else earlier[BTH + 12:-4]
            macs = frames.mac_of(a), frames.mac_of(b)
            made = [frames.roce_frame(*macs, a.address, b.address, SEND_ONLY, qpn, ACK_REQUESTED | psn + n, payload) for n in (1, 2)]
            frames.inject(a, made)
            said = proxies.running["b"].text
            wait_until(lambda: "altered, repeated, missing, out of order or cut" in said(), said=said)
            assert read_all(theirs) == (b"", "ECONNRESET")
            assert read_all(ours) == (b"", "ECONNRESET")
        # Once: a hello of the other proxy, which learns later that the link has ended, may be a fault of its own.
        assert said().count("altered, repeated, missing, out of order or cut") == 1, said()
        assert proxies.counters(b)["peer_faults"] >= 1
        # The proxies agree anew, with other keys.
        proxies.await_links()
        with listen(b) as listener, client(a, b.address) as ours, listener.accept()[0] as theirs:
            ours.sendall(b"anew")
            assert exactly(theirs, 4) == b"anew"
        assert encrypted(proxies) == {True}


def refusal(host, address):
    """What `connect` says. Where SYNs are not held the connection is made and then reset, which `connect` may say, too."""
    with inside(host):
        sock = socket.socket()
    with sock:
        sock.settimeout(20)
        try:
            sock.connect((address, PORT))
        except ConnectionRefusedError:
            return "ECONNREFUSED"
        except ConnectionResetError:
            return "ECONNRESET"
        return read_all(sock)[1]


def is_refused(proxies, answer, why):
    """A connection from host a to a server of host b is refused, which is counted and said, and the server sees nothing of it."""
    a, b = proxies.fabric.hosts
    before = proxies.counters(a).get("connections_refused", 0)
    with listen(b) as listener:
        assert refusal(a, b.address) == answer
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    counters = proxies.counters(a)
    assert counters["connections_refused"] == before + 1 and not counters.get("connections_by_tcp")
    said = proxies.ask(a, "why", b.address)
    assert "proxy_encrypt_only" in said and why in said and "no peer that serves" not in said, said


@pytest.mark.parametrize("extra, answer", [("", "ECONNREFUSED"), ('intercept = "nft"\n', "ECONNREFUSED"), ("hold_syn = false\n", "ECONNRESET")],
                         ids=["default", "nft", "early"])
def test_what_no_peer_can_carry_is_refused(make_fabric, extra, answer):
    """Without its peer, and while it drains. In between connections are carried, encrypted."""
    with Proxies(make_fabric(), own={"a": ONLY + extra}) as proxies:
        a, b = proxies.fabric.hosts
        moved(proxies, TEXT)
        assert encrypted(proxies) == {True}
        proxies.running["b"].stop()
        wait_until(lambda: not proxies.show(a)["links"], said=proxies.running["a"].text)
        is_refused(proxies, answer, "proxy_no_peer")
        proxies.start(b)
        proxies.await_links()
        moved(proxies, TEXT)
        proxies.ask(a, "drain")
        is_refused(proxies, answer, "proxy_draining")


def test_a_peer_that_does_not_encrypt_carries_nothing(make_fabric):
    proxies = Proxies(make_fabric(), own={"a": ONLY, "b": OFF})
    proxies.await_links = lambda: None
    with proxies:
        said = proxies.running["a"].text
        wait_until(lambda: "it does not offer encryption" in said(), said=said)
        is_refused(proxies, "ECONNREFUSED", "proxy_no_peer")


class Dialler(HostilePeer):
    """Takes the place of the proxy of host a, which dials. A context manager; then both have introduced themselves."""

    def __init__(self, proxies, features):
        super().__init__(proxies, features)
        (self.host, self.other), keys = proxies.fabric.hosts, proxies.directory / "keys"
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.context.load_cert_chain(keys / "a.pem", keys / "a.key")
        self.context.load_verify_locations(keys / "ca.pem")

    def __enter__(self):
        with inside(self.host):
            plain = socket.create_connection((self.other.address, CONTROL), timeout=20)
        self.channel = self.context.wrap_socket(plain, server_hostname="b")
        address = b"\0" + socket.inet_aton(self.host.address)
        introduction = number(1) + number(self.features) + number(1) + b"a" + number(12345) + number(1) + address + number(CONTROL)
        self.send(INTRODUCE, introduction + number(1) + address + bytes([32]) + b"\0")
        kind, said = self.receive()
        assert kind == INTRODUCE and said.number() == 1
        self.theirs = said.number()
        return self


@pytest.fixture
def one_proxy(make_fabric):
    """Makes a proxy of one of two hosts; the other one's place is free."""
    ended = contextlib.ExitStack()

    def make(name, extra):
        proxies = Proxies(make_fabric(), rdma=False, extra=extra)
        proxies.keys()
        proxies.start(next(host for host in proxies.fabric.hosts if host.name == name))
        ended.callback(proxies.running[name].stop)
        return proxies

    with ended:
        yield make


@pytest.mark.parametrize("features, extra, is_taken", [(OLDER, "", True), (OLDER, ON, False), (OLDER, ONLY, False), (OLDER | ENCRYPTS, ON, True)],
                         ids=["agree", "on", "only", "new-on"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_a_peer_of_an_earlier_version(one_proxy, name, features, extra, is_taken):
    """It dials, or is dialled. It ignores the features that it does not know, and has no more than those that it has."""
    proxies = one_proxy(name, extra)
    (host,) = [host for host in proxies.fabric.hosts if host.name == name]
    said = proxies.running[name].text
    peer = HostilePeer(proxies, features) if name == "a" else Dialler(proxies, features)
    with contextlib.ExitStack() as end:
        if is_taken:
            end.enter_context(peer)
            wait_until(lambda: proxies.show(host)["peers"][0]["channel"], said=said)
            if name == "b":
                assert peer.theirs & ENCRYPTS
            else:
                assert [link["carrier"] for link in proxies.show(host)["links"]] == ["control channel"]
        else:
            # The proxy says what it has, and ends the channel.
            with contextlib.suppress(AssertionError, ConnectionError, ssl.SSLError):
                end.enter_context(peer)
            wait_until(lambda: "it does not offer encryption, which this proxy demands" in said(), said=said)
            assert not proxies.show(host)["links"] and not proxies.show(host)["peers"][0]["channel"]
