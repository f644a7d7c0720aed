"""Start and end of namespaces, wires, daemons and programs."""

import contextlib
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from .waiting import WAIT_SECONDS, LabError, await_true, wait_until

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 60
# On SIGTERM a daemon gives its programs five seconds.
STOP_SECONDS = 20


def build_directory():
    """Where burst and burstd were built: BURST_BUILD, else the release build."""
    return Path(os.environ.get("BURST_BUILD", ROOT / "target" / "release")).absolute()


def namespaces_refused():
    """None if network namespaces can be made here, else the reason as a sentence."""
    try:
        done = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unshare does not run: {error}"
    return None if done.returncode == 0 else "network namespaces need root: " + done.stderr.strip()


class Program:
    """A started program; its output goes to a file, so that it never blocks."""

    def __init__(self, words, env=None, directory=None, pass_fds=()):
        self.words = [str(word) for word in words]
        self.output = tempfile.TemporaryFile(dir=directory)
        guarded = ["setpriv", "--pdeathsig", "KILL", *self.words]
        self.process = subprocess.Popen(
            guarded, stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT,
            env=env, start_new_session=True, pass_fds=pass_fds,
        )

    @property
    def pid(self):
        return self.process.pid

    def text(self):
        """What it has written so far."""
        # pread keeps the file's offset, at which the program writes.
        size = os.fstat(self.output.fileno()).st_size
        return os.pread(self.output.fileno(), size, 0).decode(errors="replace")

    def running(self):
        return self.process.poll() is None

    def wait(self, seconds):
        """Its exit code; LabError if it does not end in time (it is killed then)."""
        if not await_true(lambda: not self.running(), seconds):
            self.stop(signal.SIGKILL)
            raise LabError(f"{' '.join(self.words)} did not end within {seconds} s:\n{self.text()}")
        return self.process.returncode

    def wait_for_text(self, text, seconds):
        """Waits until it has written `text`."""
        said = lambda: f"{' '.join(self.words)} did not say {text!r}:\n{self.text()}"  # noqa: E731
        wait_until(lambda: text in self.text(), seconds, said, self)

    def stand_still(self):
        """Sends SIGSTOP and waits until all threads are stopped: a waiting thread may still take data that arrives before it has a
        processor to stop on."""
        os.kill(self.pid, signal.SIGSTOP)
        state = lambda thread: (thread / "stat").read_text().rsplit(")", 1)[1].split()[0]  # noqa: E731
        wait_until(lambda: all(state(thread) == "T" for thread in Path(f"/proc/{self.pid}/task").iterdir()), program=self)

    def stop(self, how=signal.SIGTERM):
        """Ends its whole process group; returns the exit code."""
        for sign in (how, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, sign)
            except (ProcessLookupError, PermissionError):
                pass
            if await_true(lambda: not self.running(), STOP_SECONDS):
                return self.process.returncode
        return None


class Daemon(Program):
    """A running burstd."""

    def __init__(self, prefix, socket, port, extra=(), env=None, pass_fds=(), burstd=None):
        ready, announce = os.pipe()
        words = [*prefix, burstd or build_directory() / "burstd", "--socket", socket, "--ready-fd", announce]
        words += [word for spec in ([port] if isinstance(port, str) else port) for word in ("--port", spec)]
        os.set_inheritable(announce, True)
        self.socket = Path(socket)
        self.words = [str(word) for word in [*words, *extra]]
        self.output = tempfile.TemporaryFile()
        try:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.words], stdin=subprocess.DEVNULL, stdout=self.output,
                stderr=subprocess.STDOUT, env=env, pass_fds=[announce, *pass_fds], start_new_session=True,
            )
        finally:
            os.close(announce)
        self._await(ready)

    def _await(self, ready):
        with os.fdopen(ready, "rb", buffering=0) as pipe:
            os.set_blocking(pipe.fileno(), False)
            # None: no data yet; empty: the daemon has ended.
            if await_true(lambda: (said := pipe.read()) is not None and (said or b"ended"), READY_SECONDS, 0.005) == b"ready\n":
                return
        self.stop()
        raise LabError(f"burstd does not serve: {self.text().strip() or 'it said nothing'}")

    def rss_kib(self, files=True, shared=True):
        """Resident memory in KiB, without that of mapped files or of shared memory if asked."""
        kinds = ("RssAnon:", *(["RssShmem:"] if shared else []), *(["RssFile:"] if files else []))
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        found = [int(line.split()[1]) for line in lines if line.startswith(kinds)]
        if not found:
            raise LabError("burstd is gone")
        return sum(found)

    def cpu_seconds(self):
        """Processor time used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Host:
    """One end: a namespace with an interface `eth0`, its daemon and its programs."""

    def __init__(self, name, directory, cpu=None):
        self.name = name
        self.directory = directory
        self.pin = ["taskset", "-c", cpu] if cpu else []
        self.socket = directory / f"{name}.sock"
        self.daemon = None
        #: Port of the engines inside the programs; None: they use the daemon.
        self.in_process = None
        #: The programs that may still run; those of a failed test disturb no other.
        self.processes = []
        self.address = None
        self.address6 = None
        script = "mount -t sysfs sysfs /sys 2>/dev/null; ip link set lo up; echo ready; exec cat"
        # The namespace exists as long as `cat` reads from this pipe.
        self.keeper = subprocess.Popen(
            ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )
        if self.keeper.stdout.readline() != b"ready\n":
            raise LabError("cannot make a network namespace")

    def prefix(self):
        """Words that put a command into this namespace."""
        return ["nsenter", "-t", str(self.keeper.pid), "--net", "--mount", *self.pin]

    def ip(self, line):
        """Runs one `ip` command here."""
        done = subprocess.run([*self.prefix(), "ip", *line.split()], capture_output=True, text=True)
        if done.returncode:
            raise LabError(f"ip {line}: {done.stderr.strip()}")

    def tcp_table(self):
        """Lines of this namespace's TCP sockets."""
        proc = Path(f"/proc/{self.keeper.pid}/net")
        return [line for name in ("tcp", "tcp6") for line in (proc / name).read_text().splitlines()[1:]]

    def await_udp(self, program, port, seconds=WAIT_SECONDS):
        """Waits until a UDP socket is bound to the port here."""
        want = f":{port:04X} "
        said = lambda: f"{' '.join(program.words)} does not bind UDP port {port}:\n{program.text()}"  # noqa: E731
        wait_until(lambda: want in Path(f"/proc/{self.keeper.pid}/net/udp").read_text(), seconds, said, program)

    def burst_environment(self):
        """The variables by which a program finds its host."""
        if self.in_process:
            return {"BURST_MODE": "inprocess", "BURST_PORT": self.in_process, "BURST_SOCKET": str(self.socket)}
        return {"BURST_SOCKET": str(self.socket)}

    def environment(self, extra=None):
        env = {**os.environ, **self.burst_environment()}
        libraries = str(build_directory() / "lib")
        rest = env.get("LD_LIBRARY_PATH")
        env["LD_LIBRARY_PATH"] = f"{libraries}:{rest}" if rest else libraries
        return {**env, **(extra or {})}

    def start_daemon(self, port="udp:dev=eth0", extra=(), env=None):
        """Starts this host's burstd."""
        self.daemon = Daemon(self.prefix(), self.socket, port, extra, {**os.environ, **(env or {})})
        return self.daemon

    def start(self, *words, env=None, plain=False):
        """Starts a program here, on Burst unless `plain`."""
        program = Program([*self.prefix(), *words], {**os.environ, **(env or {})} if plain else self.environment(env))
        self.processes = [process for process in self.processes if process.poll() is None] + [program.process]
        return program

    def run(self, *words, seconds=WAIT_SECONDS, env=None, plain=False):
        """Runs a program to its end: (exit code, output)."""
        program = self.start(*words, env=env, plain=plain)
        code = program.wait(seconds)
        return code, program.text()

    def burst(self, *words, seconds=WAIT_SECONDS):
        """Runs the command line: (exit code, output)."""
        return self.run(build_directory() / "burst", *words, seconds=seconds)

    def devices(self):
        """The devices of `burst ls --json`."""
        if self.in_process:
            return self._devices_of_programs()
        code, text = self.burst("ls", "--json")
        if code:
            raise LabError(text)
        return json.loads(text)["devices"]

    def _devices_of_programs(self):
        """The devices that a program would see now."""
        code, text = self.burst("in-process-snapshot")
        if code:
            raise LabError(text)
        gids = lambda device: [  # noqa: E731
            {**gid, "index": index, "address": gid_address(gid["gid"])} for index, gid in enumerate(device["gids"])
        ]
        return [{**device, "gids": gids(device)} for device in json.loads(text)[0]]

    def gid_index(self, address):
        """The index of an address in the device's GID table."""
        return next(gid["index"] for gid in self.devices()[0]["gids"] if gid["address"] == address)

    def stats(self):
        """Counters by name, summed over devices; a missing counter is 0."""
        code, text = self.burst("stats", "--json")
        if code:
            raise LabError(text)
        sums = Counter()
        for row in json.loads(text)["counters"]:
            sums[row["name"]] += row["value"]
        return sums

    def end(self):
        """Ends the programs, the daemon and the namespace."""
        for process in self.processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if self.daemon:
            self.daemon.stop()
        self.keeper.stdin.close()
        try:
            self.keeper.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.keeper.kill()
            self.keeper.wait()
        self.keeper.stdout.close()


def gid_address(raw):
    """The address of a GID's 16 bytes."""
    address = ipaddress.IPv6Address(bytes(raw))
    return str(address.ipv4_mapped or address)


class Network:
    """Hosts and their directory; a context manager. `_build` of a subclass makes the hosts."""

    def __init__(self):
        self.directory = None
        self.hosts = []

    def __enter__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="burst-lab-"))
        os.chmod(self.directory, 0o755)
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for host in self.hosts:
            host.end()
        self.hosts = []
        shutil.rmtree(self.directory, ignore_errors=True)


class Fabric(Network):
    """Hosts `a` and `b`, joined by a wire. `cpus`: the processor to which each host's processes are pinned. `in_process`: there
    are no daemons, each program has an engine of its own."""

    def __init__(
        self, mtu=9000, ports=("udp:dev=eth0", "udp:dev=eth0"), daemons=True, extra=(), delay=None, cpus=None, in_process=False,
    ):
        super().__init__()
        self.in_process = in_process
        self.mtu, self.ports, self.daemons, self.extra, self.delay = mtu, ports, daemons, extra, delay
        self.cpus = cpus or (None, None)

    def _build(self):
        for name, cpu in zip(("a", "b"), self.cpus):
            self.hosts.append(Host(name, self.directory, cpu))
        a, b = self.hosts
        a.ip(f"link add eth0 type veth peer name eth0 netns {b.keeper.pid}")
        for number, host in enumerate(self.hosts, start=1):
            host.address, host.address6 = f"10.99.0.{number}", f"fd99::{number}"
            host.ip(f"link set eth0 mtu {self.mtu}")
            host.ip(f"addr add {host.address}/24 dev eth0")
            host.ip(f"addr add {host.address6}/64 dev eth0 nodad")
            host.ip("link set eth0 up")
        self._await_links()
        if self.in_process:
            for host, port in zip(self.hosts, self.ports):
                host.in_process = port
                # The sockets of the programs lie beside the daemon's.
                host.socket = self.directory / host.name / "burstd.sock"
        elif self.daemons:
            for host, port in zip(self.hosts, self.ports):
                host.start_daemon(port, self.extra)

    def _await_links(self):
        """Waits until the link-local addresses exist and duplicate address detection has ended."""
        for host in self.hosts:
            shown = lambda h=host: h.run("ip", "-6", "addr", "show", "dev", "eth0", plain=True)[1]  # noqa: E731
            wait_until(lambda: "inet6 fe80:" in (text := shown()) and "tentative" not in text, said=shown)

    @property
    def a(self):
        return self.hosts[0]

    @property
    def b(self):
        return self.hosts[1]
