"""`burst proxy` on a long path: windows grow, by as much as is needed and as memory allows, and nothing is lost or doubled by it."""

import contextlib
import threading
import time

import pytest

from lab import wait_until
from lab.proxy import Proxies
from test_proxy import PORT, STALLED_BYTES, Load, client, exactly, joined, listen, pattern

#: At each end; the round trip has four times it, because both ends delay what they send and what they receive.
DELAY = "5ms"
FIRST = 64 << 10


@pytest.fixture
def long_path(make_fabric):
    port = f"impair:delay={DELAY}/udp:dev=eth0"
    return make_fabric(ports=(port, port))


def window_of(proxies, host, sock):
    """What `burst proxy ls` shows of a client's stream: windows of outgoing and of incoming bytes."""
    (found,) = [s for s in proxies.show(host)["streams"] if s["client"].endswith(f":{sock.getsockname()[1]}")]
    return found["window"], found["window_in"]


class Source:
    """Sends a pattern until it is told to stop; another thread reads and compares."""

    def __init__(self, sender, receiver):
        self.part = pattern(1 << 20)
        self.sender, self.receiver = sender, receiver
        self.sent = self.got = 0
        self.wrong = False
        self.ended, self.paused = threading.Event(), threading.Event()
        self.threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]
        for thread in self.threads:
            thread.start()

    def _send(self):
        with contextlib.suppress(TimeoutError):
            while not self.ended.is_set():
                at = self.sent % len(self.part)
                self.sent += self.sender.send(self.part[at:at + (64 << 10)])

    def _receive(self):
        while not self.paused.is_set():
            try:
                self._compare(self.receiver.recv(1 << 16))
            except TimeoutError:
                continue

    def _compare(self, data):
        at = self.got % len(self.part)
        self.wrong |= data != (self.part[at:] + self.part)[:len(data)]
        self.got += len(data)

    def stall(self):
        """Reads no more."""
        self.paused.set()
        self.threads[1].join()

    def go_on(self):
        """Reads again."""
        self.paused.clear()
        self.threads[1] = threading.Thread(target=self._receive)
        self.threads[1].start()

    def stop(self):
        """Ends both; what is under way is read and compared as well."""
        self.ended.set()
        self.threads[0].join()
        self.stall()
        while self.got < self.sent and not self.wrong:
            self._compare(self.receiver.recv(1 << 16))
        assert not self.wrong and self.got == self.sent


def test_windows_of_both_directions_grow_and_a_stall_stays_bounded(long_path):
    with Proxies(long_path, window=str(FIRST)) as proxies, joined(proxies) as (ours, theirs):
        a = proxies.fabric.a
        ours.sendall(b"x")
        assert exactly(theirs, 1) == b"x"
        assert window_of(proxies, a, ours) == (FIRST, FIRST)
        there = Source(ours, theirs)
        wait_until(lambda: window_of(proxies, a, ours)[0] >= 8 * FIRST, said=lambda: str(proxies.show(a)))
        assert window_of(proxies, a, ours)[1] == FIRST, "nothing came back"
        # The reader stalls: the larger window counts against the same bound.
        there.stall()
        last = -1
        while there.sent != last:
            last = there.sent
            time.sleep(0.5)
        assert 0 < there.sent - there.got < STALLED_BYTES
        there.go_on()
        there.stop()
        back = Source(theirs, ours)
        wait_until(lambda: window_of(proxies, a, ours)[1] >= 8 * FIRST, said=lambda: str(proxies.show(a)))
        back.stop()


def test_broken_queue_pairs_lose_nothing_while_windows_grow(long_path):
    with Proxies(long_path, window=str(FIRST)) as proxies:
        hosts = proxies.fabric.hosts
        breaks = 0
        grown = lambda: [proxies.counters(host).get("windows_grown", 0) for host in hosts]  # noqa: E731
        # On a busy machine a load ends before this thread has seen its windows grow three times; each one has windows of its own.
        for _ in range(10):
            load = Load(proxies, count=3, size=12_000_000)
            while any(thread.is_alive() for thread in load.threads):
                before = grown()
                # One of the growths that follow is under way, or was just complete, when the queue pairs break.
                while any(thread.is_alive() for thread in load.threads) and grown() == before:
                    time.sleep(0.02)
                proxies.ask(hosts[breaks % 2], "break-queue-pairs")
                breaks += 1
            assert load.finish() == ["whole"] * 6
            if breaks >= 3 and all(grown()):
                break
        assert breaks >= 3 and all(grown()), (breaks, grown())


@pytest.mark.parametrize("fixed", ["a", "b"])
def test_a_side_without_growing_windows_is_asked_for_none(long_path, fixed):
    """As between two versions: both ends do what both know."""
    with Proxies(long_path, window=str(FIRST), own={fixed: f'window_max = "{FIRST}"'}) as proxies, joined(proxies) as (ours, theirs):
        hosts = proxies.fabric.hosts
        sources = Source(ours, theirs), Source(theirs, ours)
        wait_until(lambda: all(source.got >= 16 * FIRST for source in sources))
        for source in sources:
            source.stop()
        assert window_of(proxies, hosts[0], ours) == (FIRST, FIRST)
        for name in ("windows_wanted", "windows_kept", "windows_grown"):
            assert not any(proxies.counters(host).get(name, 0) for host in hosts), name


def test_windows_grow_within_the_memory(long_path):
    """Half of it is left to first windows."""
    share, count = 2 << 20, 6
    with Proxies(long_path, window=str(FIRST), memory=str(share)) as proxies, contextlib.ExitStack() as end:
        a, b = proxies.fabric.hosts
        listener = end.enter_context(listen(b))
        sources = []
        for _ in range(count):
            ours = end.enter_context(client(a, b.address))
            theirs = end.enter_context(listener.accept()[0])
            theirs.settimeout(20)
            sources.append(Source(ours, theirs))
        memory = lambda: [sum(link["memory"] for link in proxies.show(host)["links"]) for host in (a, b)]  # noqa: E731
        first = memory()
        lacking = lambda: [proxies.counters(b).get("windows_without_memory", 0), proxies.counters(a).get("rings_without_memory", 0)]  # noqa: E731
        wait_until(lambda: any(lacking()), said=lambda: f"{memory()} {proxies.counters(a)} {proxies.counters(b)}")
        assert all(now <= before + share // 2 for now, before in zip(memory(), first)) and max(memory()) <= share
        before = proxies.counters(a)["streams_opened"]
        with joined(proxies, PORT + 1) as (ours, theirs):
            ours.sendall(b"room for another one")
            assert exactly(theirs, 20) == b"room for another one"
        assert proxies.counters(a)["streams_opened"] == before + 1
        for source in sources:
            source.stop()
