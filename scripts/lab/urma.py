"""UMDK's programs, unmodified, on Burst's liburma.so.0 between the hosts of a fabric.

UMDK's sources are foreign: a directory with its `src`, or an archive of it (docs/urma.md). They are built once into target/umdk."""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from .fabric import ROOT, build_directory
from .waiting import WAIT_SECONDS, LabError, wait_until

#: The TCP port on which urma_perftest agrees on its objects.
PERFTEST_PORT = 21115


def build(sources):
    """The directories of UMDK's sources and of what is built of them."""
    sources = Path(sources).resolve()
    if not sources.exists():
        raise LabError(f"BURST_UMDK={sources}: there is no such file or directory")
    if sources.is_dir():
        name = hashlib.sha256(str(sources).encode()).hexdigest()[:12]
        unpacked = sources
    else:
        name = hashlib.sha256(sources.read_bytes()).hexdigest()[:12]
        unpacked = ROOT / "target" / "umdk" / name / "sources"
    built = ROOT / "target" / "umdk" / name / "built"
    if not (built / "complete").exists():
        shutil.rmtree(built, ignore_errors=True)
        built.mkdir(parents=True)
        if sources.is_file():
            shutil.rmtree(unpacked, ignore_errors=True)
            with tarfile.open(sources) as archive:
                archive.extractall(unpacked, filter="data")
        flags = ["-DBUILD_ALL=disable", "-DBUILD_URMA=enable", "-DBUILD_UDMA=disable"]
        for command in (["cmake", unpacked / "src", *flags], ["make", "-j2"]):
            done = subprocess.run(command, cwd=built, capture_output=True, text=True)
            if done.returncode:
                raise LabError(f"{command}: {(done.stdout + done.stderr)[-3000:]}")
        (built / "complete").touch()
    return unpacked, built


def await_listener(host, program, port):
    want = f":{port:04X} "
    listens = lambda: any(want in line and " 0A " in line for line in host.tcp_table())  # noqa: E731
    wait_until(listens, 60, program.text, program)


#: Prints the UDP source ports of packets to port 4792 that come in within 30 s, until there are as many as its argument says.
SOURCE_PORTS = """
import socket, sys, time
s, ports, end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)), set(), time.monotonic() + 30
s.settimeout(1)
while len(ports) < int(sys.argv[1]) and time.monotonic() < end:
    try:
        frame = s.recv(65535)
    except TimeoutError:
        continue
    if frame[23] == 17 and frame[36:38] == (4792).to_bytes(2, "big"):
        ports.add(int.from_bytes(frame[34:36], "big"))
print(*sorted(ports))
"""


def source_ports(host, count):
    """The UDP source ports of URMA's packets that come to a host, until there are so many or 30 s have passed."""
    code, text = host.run(sys.executable, "-c", SOURCE_PORTS, count, plain=True)
    if code:
        raise LabError(text)
    return [int(word) for word in text.split()]


def udp_ports(host):
    """The ports of all UDP sockets over IPv4 in a host's namespace."""
    lines = Path(f"/proc/{host.keeper.pid}/net/udp").read_text().splitlines()[1:]
    return sorted(int(line.split()[1].rsplit(":", 1)[1], 16) for line in lines)


class Umdk:
    """UMDK's programs and the libraries that they load."""

    def __init__(self, sources, libraries, daemons=False):
        #: Whether the programs are on the hosts' daemons; else each has a node of its own.
        self.plain = not daemons
        self.sources, self.built = build(sources)
        (libraries / "liburma.so.0").symlink_to(build_directory() / "lib" / "liburma.so.0")
        (libraries / "liburma_common.so.0").symlink_to(self.built / "urma/common/liburma_common.so.0")
        self.env = {"LD_LIBRARY_PATH": str(libraries)}

    def start_perftest(self, fabric, options, env=None):
        """Starts urma_perftest: its server on host a, its client on host b."""
        env = self.env | (env or {})
        words = [self.built / "urma/tools/urma_perftest/urma_perftest", *options.split(), "-d", "burst0"]
        server = fabric.a.start(*words, env=env, plain=self.plain)
        await_listener(fabric.a, server, PERFTEST_PORT)
        return server, fabric.b.start(*words, "-S", fabric.a.address, env=env, plain=self.plain)

    def perftest(self, fabric, options, env=None):
        """Runs urma_perftest to its end: the client's output."""
        server, client = self.start_perftest(fabric, options, env)
        if client.wait(WAIT_SECONDS) or server.wait(60):
            raise LabError(f"client: {client.text()}\nserver: {server.text()}")
        return client.text()

    def ping(self, host, options, destination, env=None, before=()):
        """Runs urma_ping on a host: its exit code and what it says."""
        words = [*before, self.built / "urma/tools/urma_ping/urma_ping", *options.split(), destination]
        return host.run(*words, env=self.env | (env or {}), plain=self.plain)

    def compile(self, name, tool, libraries=("-l:liburma.so.0",)):
        """Compiles a program of tests/programs/urma, linked with these libraries in this order."""
        include = [self.sources / "src/urma/lib/urma/core/include", ROOT / "crates/frontends/liburma/include"]
        command = ["gcc", "-O2", "-Wall", "-o", tool, ROOT / "tests/programs/urma" / name, *(f"-I{path}" for path in include)]
        command += [f"-L{self.env['LD_LIBRARY_PATH']}", "-Wl,--no-as-needed", *libraries, "-Wl,--allow-shlib-undefined"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise LabError(f"{command}: {done.stderr}")

    def aperture(self, fabric, directory, rounds, env=None):
        """Runs tests/programs/urma/aperture.c: the client's times, and what the server has in its memory at the end."""
        tool, description, env = directory / "urma_aperture", directory / "segment", self.env | (env or {})
        self.compile("aperture.c", tool)
        description.unlink(missing_ok=True)
        keeps = directory / "keeps"
        keeps.touch()
        # The end of its input is the end of the loop.
        server = fabric.a.start("sh", "-c", f"while [ -e {keeps} ]; do sleep 0.1; done | {tool} serve {description}", env=env, plain=self.plain)
        try:
            wait_until(description.exists, 60, server.text, server)
            code, text = fabric.b.run(tool, "use", description, rounds, seconds=WAIT_SECONDS, env=env, plain=self.plain)
            if code:
                raise LabError(f"client: {text}\nserver: {server.text()}")
        finally:
            keeps.unlink()
        if server.wait(60):
            raise LabError(f"server: {server.text()}")
        return json.loads(text), [int(word) for word in server.text().split()]

    def row(self, fabric, options):
        """The numbers of the last line of its table."""
        return [float(word) for word in self.perftest(fabric, options).strip().splitlines()[-1].split()]

    def gbits(self, fabric, options):
        """Average throughput of a test of bandwidth; the tool counts in MiB/s."""
        return self.row(fabric, options)[3] * 8 * (1 << 20) / 1e9

    def median_us(self, fabric, options):
        """Median of a test of latency."""
        return self.row(fabric, options)[4]
