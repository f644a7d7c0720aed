"""`burst proxy` with a peer that has keys and wants to harm: it never acknowledges, or acknowledges what it does not read."""

import contextlib
import socket
import ssl
import struct

import pytest

from lab import wait_until
from lab.proxy import CONTROL, Proxies
from test_proxy import client, exactly, listen
from test_proxy_limits import resident_kib

#: Kinds of control messages, by their place in the enum (crates/frontends/proxy/src/message.rs).
INTRODUCE, LINK_HELLO, BATCH = 0, 3, 4
#: Bytes of a batch with its header, and of the header.
BATCH_BYTES, HEADER_BYTES = 16 << 10, 24
#: A question for an answer at once: tag 11, stream 0, no answer.
PROBE = struct.pack("<BIB", 11, 0, 0)
#: Most batches that an end sends without acknowledgement.
BATCHES = 64


def number(value):
    """An integer as postcard writes it: seven bits per byte."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


class Reader:
    """Fields of a message."""

    def __init__(self, data):
        self.data = data

    def number(self):
        value = shift = 0
        while True:
            byte, self.data = self.data[0], self.data[1:]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def bytes(self):
        count = self.number()
        taken, self.data = self.data[:count], self.data[count:]
        return taken


class HostilePeer:
    """Takes the place of the proxy of host b, with its keys. A context manager; then one link is up, over the control channel. `features`:
    those of the other proxy that it has, too."""

    def __init__(self, proxies, features=~0):
        self.features = features
        self.host, keys = proxies.fabric.b, proxies.directory / "keys"
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.context.load_cert_chain(keys / "b.pem", keys / "b.key")
        self.context.load_verify_locations(keys / "ca.pem")
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.seq = 0

    def __enter__(self):
        with listen(self.host, port=CONTROL) as listener:
            plain, _ = listener.accept()
        plain.settimeout(20)
        self.channel = self.context.wrap_socket(plain, server_side=True)
        kind, said = self.receive()
        assert kind == INTRODUCE
        version, features, name = said.number(), said.number(), said.bytes()
        assert (version, name) == (1, b"a")
        address = b"\0" + socket.inet_aton(self.host.address) + number(CONTROL)
        served = number(1) + b"\0" + socket.inet_aton(self.host.address) + bytes([32])
        self.send(INTRODUCE, number(1) + number(features & self.features) + number(1) + b"b" + number(12345) + number(1) + address + served + b"\0")
        # Without a device, the dialling side offers the control channel.
        here = kind = None
        while kind != LINK_HELLO or not here:
            kind, said = self.receive()
            here, hello = (said.number(), said.bytes()) if kind == LINK_HELLO else (None, None)
        self.attempt, _, self.link, _ = struct.unpack("<QQII", hello[8:32])
        self.send(LINK_HELLO, b"\1" + number(32) + struct.pack("<BB6xQQII", 1, 2, self.attempt, 0, self.link, 0))
        return self

    def __exit__(self, *_):
        self.channel.close()

    def receive(self):
        (count,) = struct.unpack("<I", self.exactly(4))
        said = Reader(self.exactly(count))
        return said.number(), said

    def exactly(self, count):
        got = b""
        while len(got) < count:
            part = self.channel.recv(count - len(got))
            assert part, "the proxy closed the channel"
            got += part
        return got

    def send(self, kind, body):
        body = number(kind) + body
        self.channel.sendall(struct.pack("<I", len(body)) + body)

    def batch(self, frames, ack=0):
        """A batch of frames, which acknowledges up to `ack`."""
        self.seq += 1
        message = struct.pack("<BB6xQQ", 1, 1, self.seq, ack) + frames
        self.send(BATCH, number(self.link) + number(self.attempt) + number(len(message)) + message)


@pytest.fixture
def hostile(make_fabric):
    """A proxy of host a with 64 MiB, and a hostile one in the place of its peer."""
    with Proxies(make_fabric(), window="64KiB", memory="64MiB", rdma=False) as proxies:
        proxies.running["b"].stop()
        a = proxies.running["a"]
        wait_until(lambda: "peer b is gone" in a.text(), said=a.text)
        before = proxies.counters(proxies.fabric.a).get("messages_sent", 0)
        with HostilePeer(proxies) as peer:
            peer.sent = lambda: proxies.counters(proxies.fabric.a)["messages_sent"] - before
            wait_until(lambda: any(link["carrier"] == "control channel" for link in proxies.show(proxies.fabric.a)["links"]), said=a.text)
            yield proxies, peer


def is_unharmed(proxies):
    """The true peer returns, and streams are carried again."""
    a, b = proxies.fabric.hosts
    proxies.start(b)
    proxies.await_links()
    with listen(b) as listener, client(a, b.address) as ours:
        theirs, _ = listener.accept()
        with theirs:
            ours.sendall(b"unharmed")
            assert exactly(theirs, 8) == b"unharmed"


def test_questions_without_acknowledgements_end_the_channel(hostile):
    """Each asks for a frame. 16 MiB of them are more than an end keeps."""
    proxies, peer = hostile
    a = proxies.running["a"]
    before = resident_kib(a)
    questions = PROBE * 10_000
    with contextlib.suppress(OSError):
        for _ in range(1_000):
            peer.batch(questions)
    wait_until(lambda: "more streams or unacknowledged frames than an end keeps" in a.text(), said=a.text)
    assert proxies.counters(proxies.fabric.a)["peer_faults"] == 1
    assert resident_kib(a) - before < 100 << 10
    is_unharmed(proxies)


def test_a_peer_that_does_not_read_what_it_acknowledges_is_left(hostile):
    """Answers that were acknowledged need not be kept, but those that it does not read wait in the channel."""
    proxies, peer = hostile
    a = proxies.running["a"]
    before = resident_kib(a)
    questions = PROBE * (BATCHES * (BATCH_BYTES - HEADER_BYTES) // len(PROBE))
    peer.batch(questions * 4)
    acknowledged = 0
    with contextlib.suppress(OSError):
        for _ in range(600):
            if "it does not read" in a.text():
                break
            # As many as may be without acknowledgement.
            wait_until(lambda: peer.sent() >= acknowledged + BATCHES - 1 or "it does not read" in a.text(), said=a.text)
            acknowledged = peer.sent()
            peer.batch(questions, acknowledged)
    wait_until(lambda: "it does not read what it is sent" in a.text(), said=a.text)
    grown = resident_kib(a) - before
    assert grown < 2 * (64 + 32) << 10, f"{grown} KiB"
    is_unharmed(proxies)
