"""`burst proxy` with the engine inside the proxies (`burst run --in-process`): the worker's own thread runs it."""

import os
import threading
import time
from pathlib import Path

import pytest

import lab
from lab import wait_until
from lab.proxy import Proxies
from test_proxy import Load, await_carried, carried, client, exactly, idle_streams, joined, listen, pattern
from test_proxy import test_a_stalled_reader_stops_the_writer_and_no_one_else as a_stalled_reader_stops_the_writer_and_no_one_else
from test_proxy import test_half_close_both_ways as half_close_both_ways


@pytest.fixture(scope="module")
def proxies(namespaces):
    with lab.Fabric(in_process=True) as fabric, Proxies(fabric) as made:
        yield made
        for host in fabric.hosts:
            text = made.running[host.name].text()
            assert made.running[host.name].running() and "panicked" not in text, text


def test_streams_are_whole(proxies):
    before = carried(proxies)
    assert Load(proxies, count=4, size=10_000_000).finish() == ["whole"] * 8
    half_close_both_ways(proxies)
    a_stalled_reader_stops_the_writer_and_no_one_else(proxies)
    await_carried(proxies, before + 4 + 2 + 2)
    assert all(link["carrier"] == "rdma" for link in proxies.show(proxies.fabric.a)["links"])


def test_messages_after_pauses_are_not_left_lying(proxies):
    """The ports change hands between the worker and the library's own thread after 20 ms without messages."""
    with joined(proxies) as (ours, theirs):
        late = []
        relays = [proxies.running[host.name] for host in proxies.fabric.hosts]
        for pause in (0, 0.001, 0.018, 0.019, 0.020, 0.021, 0.022, 0.03, 0.05, 0.12) * 6:
            time.sleep(pause)
            began, waited = time.monotonic(), queued(relays)
            ours.sendall(b"x" * 100)
            assert exactly(theirs, 100) == b"x" * 100
            theirs.sendall(b"y" * 100)
            assert exactly(ours, 100) == b"y" * 100
            late.append(time.monotonic() - began - (queued(relays) - waited))
        # The longest sleep beside the ports is 20 ms: what nobody wakes for waits that long.
        assert sorted(late)[len(late) // 2] < 0.015, late


def queued(programs):
    """Seconds in which threads of these programs and of this one were ready and had no processor."""
    waits = 0
    for pid in (os.getpid(), *(program.pid for program in programs)):
        for task in Path(f"/proc/{pid}/task").iterdir():
            waits += int((task / "schedstat").read_text().split()[1])
    return waits / 1e9


def threads(program):
    """For each thread of a process its name, its processor time in nanoseconds, and how often it has slept."""
    seen = []
    for task in Path(f"/proc/{program.pid}/task").iterdir():
        sleeps = next(line for line in (task / "status").read_text().splitlines() if line.startswith("voluntary"))
        seen.append(((task / "comm").read_text().strip(), int((task / "schedstat").read_text().split()[0]), int(sleeps.split()[1])))
    return seen


def test_idle_streams_wake_no_worker(proxies):
    """A clock tick is 10 ms: in ten seconds each process takes less, for its heartbeat and for the keeper's look once a second. In the half
    minute before, workers give back the memory of streams that have ended."""
    a, b = proxies.fabric.hosts
    with idle_streams(proxies, 40):
        time.sleep(0.5)
        took, gives_back = [], 4
        while len(took) < 3 and (not took or took[-1] >= 10e6):
            before = [threads(proxies.running[host.name]) for host in (a, b)]
            time.sleep(10)
            after = [threads(proxies.running[host.name]) for host in (a, b)]
            worker = lambda seen: [entry for entry in seen if entry[0].startswith("worker")]  # noqa: E731
            if [worker(seen) for seen in before] != [worker(seen) for seen in after]:
                gives_back -= 1
                assert gives_back > 0, "workers go on running"
                continue
            total = lambda seen: sum(nanoseconds for _, nanoseconds, _ in seen)  # noqa: E731
            took.append(max(total(late) - total(early) for early, late in zip(before, after)))
        assert took[-1] < 10e6, took


def test_several_workers_share_one_engine(namespaces):
    with lab.Fabric(in_process=True) as fabric, Proxies(fabric, workers=2) as proxies:
        data = pattern(2_000_000)
        with listen(fabric.b) as listener:
            ends = []
            for _ in range(6):
                ours = client(fabric.a, fabric.b.address)
                ends.append((ours, listener.accept()[0]))
        got = {}

        def receive(number, sock):
            sock.settimeout(20)
            got[number] = exactly(sock, len(data)) == data
        threads = [threading.Thread(target=receive, args=(n, pair[1])) for n, pair in enumerate(ends)]
        threads += [threading.Thread(target=pair[0].sendall, args=(data,)) for pair in ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for pair in ends:
            for sock in pair:
                sock.close()
        assert all(got.values()) and len(got) == 6
        wait_until(lambda: proxies.counters(fabric.a).get("streams_ended", 0) + proxies.counters(fabric.a).get("streams_reset", 0) >= 6)
