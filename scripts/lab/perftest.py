"""Running a client/server pair of a verbs program and reading perftest's table."""

import re
import time
from dataclasses import dataclass

from .waiting import LabError, wait_until

SERVER_SECONDS = 60
# perftest may print a deviation of "-nan", the root of a negative rounding error.
NUMBERS = re.compile(r"^[ \t]*\d+([ \t]+-?([\d.]+(e[+-]?\d+)?|nan|inf))+[ \t]*$", re.M)


@dataclass
class Result:
    """The output of a pair and, for perftest, its rows of numbers."""

    client: str
    server: str
    rows: list

    @property
    def impossible(self):
        """Whether a bandwidth is 0.00, which means less than 10 KB/s."""
        bandwidth = "BW average" in self.client
        return bandwidth and any(row[3] == 0 and row[0] * row[1] >= 1 << 20 for row in self.rows)

    @property
    def row(self):
        if not self.rows:
            raise LabError(f"no row of numbers in:\n{self.client}")
        return self.rows[-1]

    @property
    def gbits(self):
        """Average bandwidth in Gbit/s (with --report_gbits)."""
        return self.row[3]

    @property
    def mpps(self):
        """Million messages per second."""
        return self.row[4]

    @property
    def p50_us(self):
        """Median latency of an iterated run, half a round trip where the tool halves it."""
        return self.row[4]

    @property
    def p99_us(self):
        return self.row[7]


def run_pair(server_host, client_host, words, **options):
    """Runs `words` as server on one host, then `words ADDRESS` as client on the other; both must end with 0.

    perftest takes the time from the processor's counter, without a look at the system's clock. Where a host of virtual
    machines sets that counter back within a run, the run "took" centuries and its bandwidth is 0.00: a figure that no run
    can have which ended in time. Such a pair runs once more, and says so.
    """
    result = run_pair_once(server_host, client_host, words, **options)
    if not result.impossible:
        return result
    print(f"the time-stamp counter has stepped back, once more: {' '.join(map(str, words))}\n{result.client}")
    return run_pair_once(server_host, client_host, words, **options)


def run_pair_once(server_host, client_host, words, *, address=None, seconds=60, server_words=None, env=None):
    """As `run_pair`, without checking the figures."""
    port = words_port(words)
    server = server_host.start(*(server_words or words), env=env)
    try:
        await_listener(server_host, server, port)
        client = client_host.start(*words, address or server_host.address, env=env)
        try:
            client_code = client.wait(seconds)
            server_code = server.wait(SERVER_SECONDS)
        except LabError as error:
            raise LabError(f"{error}\n--- client\n{client.text()}--- server\n{server.text()}") from None
        finally:
            client.stop()
    finally:
        server.stop()
    if client_code or server_code:
        raise LabError(
            f"{' '.join(map(str, words))}: client ended with {client_code}, server with {server_code}\n"
            f"--- client\n{client.text()}--- server\n{server.text()}"
        )
    rows = [[float(x) for x in row.group(0).split()] for row in NUMBERS.finditer(client.text())]
    return Result(client.text(), server.text(), rows)


def rping(server_host, client_host, address):
    """Connects by librdmacm and exchanges data; no packet is lost, not even the first, which must find its next hop. The seconds
    that the client took."""
    ways = (server_host, client_host), (client_host, server_host)
    missing = lambda: [sender.stats()["tx_packets"] - receiver.stats()["rx_packets"] for sender, receiver in ways]  # noqa: E731
    before = wait_until(lambda: (first := missing()) == missing() and first)
    server = server_host.start("rping", "-s", "-C", 5, "-a", address)
    try:
        wait_until(lambda: "listening" in server_host.burst("cm", "--connections")[1], program=server)
        began = time.monotonic()
        code, text = client_host.run("rping", "-c", "-v", "-C", 5, "-a", address)
        took = time.monotonic() - began
        assert (code, server.wait(60)) == (0, 0), text + server.text()
        wait_until(lambda: all(now <= was for now, was in zip(missing(), before)), said=lambda: f"lost: {before} to {missing()}")
        return took
    finally:
        server.stop()


def soonest(bound, run, tries=4):
    """The least of the times, or other costs, that `run()` returns; it runs again if that is not below `bound`, because other programs may
    have had the processors."""
    took = []
    while len(took) < tries and not (took and min(took) < bound):
        took.append(run())
    return min(took)


def words_port(words):
    """TCP port on which perftest and the ibv_ examples exchange addresses."""
    words = [str(word) for word in words]
    return int(words[words.index("-p") + 1]) if "-p" in words else 18515


def await_listener(host, program, port, seconds=SERVER_SECONDS):
    """Waits until a program of that host listens on the TCP port."""
    want = f":{port:04X}"

    def listens():
        rows = [line.split() for line in host.tcp_table()]
        return any(len(r) > 3 and r[1].endswith(want) and r[3] == "0A" for r in rows)

    said = lambda: f"{' '.join(program.words)} does not listen on port {port}:\n{program.text()}"  # noqa: E731
    wait_until(listens, seconds, said, program)
