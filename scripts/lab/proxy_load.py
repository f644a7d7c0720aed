"""Loads of unmodified programs from one host to another, measured: through proxies, by TCP, or through the relay alone.

`Route` names the way: the client's host, the server's host and address. The floor of a proxy pair (docs/proxy.md) is one proxy that relays by TCP
between two programs of one host: the same two local TCP connections, without RDMA.
"""

import json
import os
import shutil
import signal
import tempfile
import time

from . import fabric as base
from .proxy import Proxies
from .waiting import LabError, wait_until

#: iperf3 refuses more streams in one process.
STREAMS_PER_PROCESS = 125
IPERF_PORT, REDIS_PORT, PING_PORT, HTTP_PORT, CONNECT_PORT = 7100, 6379, 7200, 8080, 7300
#: Accepts connections and closes each after its client.
ACCEPTOR = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    peer = server.accept()[0]
    peer.recv(1)
    peer.close()
"""
#: Connects again and again; prints the median time of `connect` in microseconds.
CONNECTOR = """
import socket, statistics, sys, time
times = []
for _ in range(int(sys.argv[3])):
    with socket.socket() as s:
        began = time.perf_counter()
        s.connect((sys.argv[1], int(sys.argv[2])))
        times.append(time.perf_counter() - began)
print(statistics.median(times) * 1e6)
"""


class Route:
    """Programs of `client` reach servers of `server` at `address`; the servers listen there, or at `bind`, to which a relay leads."""

    def __init__(self, client, server, address=None, bind=None):
        self.client, self.server, self.address = client, server, address or server.address
        self.bind = bind or self.address


class Floor(Proxies):
    """One proxy, on host a, which relays connections from a to a by TCP."""

    def __init__(self, made, **options):
        super().__init__(made, relay="tcp", rdma=False, **options)

    def __enter__(self):
        self.keys()
        host = self.fabric.a
        path = self.configuration(host)
        other = self.fabric.b
        text = path.read_text().replace(f'to = ["{other.address}", "{other.address6}"]', f'to = ["{host.address}"]', 1)
        path.write_text(text)
        self.configuration = lambda _: path
        self.start(host)
        return self


class Haproxy:
    """haproxy on host a, one hop: it relays connections from a to servers on b by two TCP connections, as the floor does within a."""

    def __init__(self, made):
        self.a, self.b = made.a, made.b
        self.directory = tempfile.TemporaryDirectory()

    @staticmethod
    def missing():
        """Why there is none, or nothing."""
        return None if shutil.which("haproxy") else "haproxy is not installed"

    def __enter__(self):
        lines = ["global", " maxconn 4000", "defaults", " mode tcp", " timeout connect 5s", " timeout client 1m", " timeout server 1m"]
        for port in (IPERF_PORT, REDIS_PORT, HTTP_PORT):
            lines += [f"listen p{port}", f" bind {self.a.address}:{port}", f" server s {self.b.address}:{port}"]
        path = f"{self.directory.name}/haproxy.cfg"
        with open(path, "w") as file:
            file.write("\n".join(lines) + "\n")
        self.program = self.a.start("haproxy", "-db", "-f", path, plain=True)
        await_listener(self.a, HTTP_PORT, self.program)
        return Route(self.a, self.b, self.a.address, self.b.address)

    def __exit__(self, *_):
        self.program.stop()
        self.directory.cleanup()


def await_listener(host, port, program):
    """Waits until a program listens; many say so late."""
    wait_until(lambda: any(f":{port:04X} " in line and " 0A " in line for line in host.tcp_table()), program=program)


def gbits(route, streams=1, seconds=2):
    """Gb/s that iperf3 receives, summed over its processes."""
    processes = -(-streams // STREAMS_PER_PROCESS)
    servers = []
    try:
        for number in range(processes):
            servers.append(route.server.start("iperf3", "-s", "-1", "-p", IPERF_PORT + number, plain=True))
        for number, server in enumerate(servers):
            await_listener(route.server, IPERF_PORT + number, server)
        clients = []
        for number in range(processes):
            count = streams // processes + (number < streams % processes)
            words = ["iperf3", "-c", route.address, "-p", IPERF_PORT + number, "-t", seconds, "-P", count, "-J"]
            clients.append(route.client.start(*words, plain=True))
        total = 0
        for client in clients:
            code = client.wait(seconds + 60)
            report = json.loads(client.text())
            if code or "sum_received" not in report["end"]:
                raise LabError(f"iperf3: {report.get('error', report['end'])}")
            total += report["end"]["sum_received"]["bits_per_second"] / 1e9
        return total
    finally:
        for server in servers:
            server.stop()


def redis_rates(route, clients=(10, 30, 50, 100), requests=20_000, size=3):
    """Requests per second of redis-benchmark with values of `size` bytes: {(clients, "SET"): rate}."""
    with tempfile.TemporaryDirectory() as directory:
        server = route.server.start(
            "redis-server", "--port", REDIS_PORT, "--bind", route.bind, "--save", "", "--dir", directory,
            "--protected-mode", "no", plain=True)
        try:
            await_listener(route.server, REDIS_PORT, server)
            rates = {}
            for count in clients:
                words = ["redis-benchmark", "-h", route.address, "-p", REDIS_PORT, "-c", count, "-n", requests, "-t", "set,get", "-d", size, "--csv"]
                code, text = route.client.run(*words, plain=True, seconds=120)
                if code:
                    raise LabError(f"redis-benchmark: {text}")
                for line in text.splitlines():
                    fields = [field.strip('"') for field in line.split(",")]
                    if fields[0] in ("SET", "GET"):
                        rates[count, fields[0]] = float(fields[1])
            return rates
        finally:
            server.stop()


def http_rate(route, connections=20, requests=4000):
    """Requests per second of ab for a file of 10 kB from nginx, each over a connection of its own."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        with open(f"{directory}/data", "wb") as data:
            data.write(b"x" * 10_000)
        with open(f"{directory}/nginx.conf", "w") as configuration:
            configuration.write(
                f"daemon off; pid {directory}/pid; error_log stderr; user root; events {{}} http {{ access_log off; sendfile on; "
                f"client_body_temp_path {directory}/body; proxy_temp_path {directory}/p; fastcgi_temp_path {directory}/f; "
                f"uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s; server {{ listen {route.bind}:{HTTP_PORT}; "
                f"root {directory}; }} }}")
        server = route.server.start("nginx", "-c", f"{directory}/nginx.conf", plain=True)
        try:
            await_listener(route.server, HTTP_PORT, server)
            url = f"http://{route.address}:{HTTP_PORT}/data"
            code, text = route.client.run("ab", "-q", "-n", requests, "-c", connections, url, plain=True, seconds=120)
            if code or "Failed requests:        0" not in text:
                raise LabError(f"ab: {text}")
            return next(float(line.split()[3]) for line in text.splitlines() if line.startswith("Requests per second"))
        finally:
            server.stop(signal.SIGQUIT)


def ping_pong_us(route, rounds=4000, size=64):
    """Half round trips of a blocking ping-pong: {"p50_us", "p99_us"}."""
    tool = base.build_directory() / "examples" / "pingpong"
    where = f"{route.address}:{PING_PORT}"
    server = route.server.start(tool, "tcp", "serve", where, plain=True)
    try:
        await_listener(route.server, PING_PORT, server)
        code, text = route.client.run(tool, "tcp", where, rounds, size, seconds=60, plain=True)
        if code:
            raise LabError(f"pingpong: {text}")
        return json.loads(text)
    finally:
        server.stop()


def connect_us(route, count=300):
    """Median time of `connect`, one connection after the other."""
    server = route.server.start("python3", "-c", ACCEPTOR, route.address, CONNECT_PORT, plain=True)
    try:
        await_listener(route.server, CONNECT_PORT, server)
        code, text = route.client.run("python3", "-c", CONNECTOR, route.address, CONNECT_PORT, count, seconds=60, plain=True)
        if code:
            raise LabError(f"connect: {text}")
        return float(text)
    finally:
        server.stop()


def processor_seconds(programs):
    """Processor time of programs so far."""
    total = 0
    for program in programs:
        fields = open(f"/proc/{program.pid}/stat").read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def settle():
    """Lets connections of the last load end."""
    time.sleep(0.3)
