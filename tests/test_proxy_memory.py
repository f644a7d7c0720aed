"""`burst proxy` gives the memory of streams back that have ended."""

import contextlib
from pathlib import Path

from lab import wait_until
from lab.proxy import Proxies
from test_proxy import PORT, client, exactly, listen

STREAMS = 1000
#: Bytes that each stream carries: less than its window.
BYTES = 200_000
#: Resident memory of an idle proxy, whatever it has carried before.
IDLE_KIB = 32 << 10


def rss_kib(program):
    lines = Path(f"/proc/{program.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def test_memory_of_a_thousand_streams_is_given_back(make_fabric):
    with Proxies(make_fabric(), memory="4GiB") as proxies:
        a, b = proxies.fabric.hosts
        running = [proxies.running[host.name] for host in (a, b)]
        before = [rss_kib(program) for program in running]
        with contextlib.ExitStack() as end:
            listener = end.enter_context(listen(b))
            for _ in range(STREAMS):
                ours = end.enter_context(client(a, b.address, PORT))
                theirs = end.enter_context(listener.accept()[0])
                ours.sendall(bytes(BYTES))
                assert len(exactly(theirs, BYTES)) == BYTES
            held = [rss_kib(program) for program in running]
            mapped = [sum(link["memory"] for link in proxies.show(host)["links"]) for host in (a, b)]
            assert all(kib > 3 * IDLE_KIB for kib in held), held
        said = lambda: f"before {before}, held {held}, now {[rss_kib(program) for program in running]} KiB"  # noqa: E731
        freed = lambda host: proxies.counters(host).get("bytes_freed", 0)  # noqa: E731
        wait_until(lambda: [freed(host) for host in (a, b)] == mapped, said=said)
        assert all(not link["memory"] for host in (a, b) for link in proxies.show(host)["links"])
        wait_until(lambda: all(rss_kib(program) <= IDLE_KIB for program in running), said=said)
        print(said())
        # Another stream finds memory.
        with listen(b) as listener, client(a, b.address, PORT) as ours, listener.accept()[0] as theirs:
            ours.sendall(b"again")
            assert exactly(theirs, 5) == b"again"
