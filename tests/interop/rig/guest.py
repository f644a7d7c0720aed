"""One emulated machine: its start, its end, and commands in it.

QEMU emulates the processor (TCG), because nested machines rarely have KVM; the guest is ready some seconds after the
start. Its wire is a tap made by `Rig`. Commands come through another interface, in QEMU's user-mode network: QEMU
listens on 127.0.0.1 in the rig's namespace and connects to the guest's door (guest/door.c). So nothing of the
control ever passes the wire.

With `icount` the guest's clock counts instructions, 2^ICOUNT_SHIFT ns each: what it measures of itself does not depend on
how busy this machine is. QEMU counts each round of a repeated string instruction, and one that copies bytes would weigh a
thousand times what it costs a processor; so the guest's has no fast one (ERMS, FSRM), and kernel and libraries copy by
words and vectors.
"""

import ctypes
import os
import re
import shlex
import signal
import socket
import threading
import time

from lab import LabError, Program

from . import foreign
from .image import build

DOOR = 7777
BOOT_SECONDS = 120
ICOUNT_SHIFT = 1
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)
EXIT = re.compile(rb"\nEXIT (\d+)\n\Z")


def inside(namespace, work):
    """Calls `work()` in a network namespace (a path) and returns its result, such as a socket; the calling thread does not move."""
    result = []

    def enter():
        fd = os.open(namespace, os.O_RDONLY)
        try:
            if LIBC.setns(fd, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns {namespace}")
            result.append(work())
        except OSError as error:
            result.append(error)
        finally:
            os.close(fd)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if isinstance(result[0], OSError):
        raise result[0]
    return result[0]


def connect_in(namespace, port):
    """A TCP connection to 127.0.0.1:port of a namespace."""
    connection = inside(namespace, lambda: socket.create_connection(("127.0.0.1", port), timeout=5))
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class GuestProgram:
    """A command in the guest, with the methods of `lab.Program`."""

    def __init__(self, guest, line, keep_stdin=False):
        self.guest, self.line = guest, line
        self.words = [f"[{guest.name}]", line]
        self.connection = connect_in(guest.namespace, guest.door)
        self.connection.sendall(line.encode() + b"\n")
        head = b""
        while not head.endswith(b"\n"):
            byte = self.connection.recv(1)
            if not byte:
                raise LabError(f"{guest.name} does not take commands:\n{guest.console()}")
            head += byte
        self.pid = int(head.split()[1])
        self.data = bytearray()
        self.news = threading.Condition()
        self.ended = False
        if not keep_stdin:
            self.connection.shutdown(socket.SHUT_WR)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while True:
            try:
                some = self.connection.recv(1 << 16)
            except OSError:
                some = b""
            with self.news:
                self.data += some
                self.ended = not some or bool(EXIT.search(self.data, max(0, len(self.data) - 32)))
                self.news.notify_all()
            if self.ended:
                return

    def write(self, data):
        """Writes bytes to its standard input."""
        self.connection.sendall(data)

    def close_input(self):
        """Ends its standard input."""
        self.connection.shutdown(socket.SHUT_WR)

    def text(self):
        """The text that it has written so far."""
        with self.news:
            return EXIT.sub(b"", bytes(self.data)).decode(errors="replace")

    def output(self):
        """The bytes it has written so far."""
        with self.news:
            return EXIT.sub(b"", bytes(self.data))

    def running(self):
        return not self.ended

    def code(self):
        """Its exit code, when it has ended."""
        found = EXIT.search(bytes(self.data))
        if not found:
            raise LabError(f"{self.guest.name} went away during {self.line}:\n{self.guest.console()}")
        return int(found.group(1))

    def wait(self, seconds):
        """Its exit code; LabError if it does not end in time (it is killed then)."""
        with self.news:
            in_time = self.news.wait_for(lambda: self.ended, seconds)
        if not in_time:
            self.stop(signal.SIGKILL)
            raise LabError(f"[{self.guest.name}] {self.line} did not end within {seconds} s:\n{self.text()}")
        return self.code()

    def wait_for_text(self, text, seconds):
        """Waits until it has written `text`."""
        with self.news:
            self.news.wait_for(lambda: self.ended or text.encode() in self.data, seconds)
        if text not in self.text():
            raise LabError(f"[{self.guest.name}] {self.line} did not say {text!r}:\n{self.text()}")

    def stop(self, how=signal.SIGTERM):
        """Ends its whole process group; returns the exit code (None if it does not end)."""
        for sign in (how, signal.SIGKILL):
            if self.running():
                self.guest.run("sh", "-c", f"kill -{int(sign)} -{self.pid} 2>/dev/null || true")
            with self.news:
                if self.news.wait_for(lambda: self.ended, 3):
                    break
        self.connection.close()
        return self.code() if EXIT.search(bytes(self.data)) else None


def x86_64(icount):
    """Words of the command line that only an emulated x86-64 has: (QEMU and its processor, kernel's parameters)."""
    words = [
        "qemu-system-x86_64", "-machine", "q35,usb=off,vmport=off", "-accel", "tcg,thread=single,tb-size=256",
        "-cpu", "max,-erms,-fsrm" if icount else "max",
    ]
    return words, "console=ttyS0 mitigations=off nokaslr tsc=reliable no_timer_check random.trust_cpu=on"


def aarch64():
    """Those of an emulated aarch64. Pointer authentication by QEMU's own cipher, which is fast."""
    words = ["qemu-system-aarch64", "-machine", "virt,gic-version=3", "-accel", "tcg,thread=single,tb-size=256", "-cpu", "max,pauth-impdef=on"]
    return words, "console=ttyAMA0 mitigations=off nokaslr random.trust_cpu=on"


class Guest:
    """A booted guest; `number` is the last byte of its addresses, `kernel` a series, `machine` its processor."""

    def __init__(self, host, tap, number, *, kernel="6.1", mtu=1500, rxe=True, icount=False, memory=384, machine="x86_64"):
        image = build(kernel) if machine == "x86_64" else foreign.build()
        emulator, parameters = x86_64(icount) if machine == "x86_64" else aarch64()
        self.name, self.number, self.mtu, self.kernel = f"guest{number}", number, mtu, kernel
        self.address, self.address6 = f"10.77.0.{number}", f"fd77::{number}"
        self.namespace = f"/proc/{host.keeper.pid}/ns/net"
        #: Variables of all its programs.
        self.env = {}
        self.door = DOOR + number
        append = f"{parameters} quiet panic=-1 interop.id={number} interop.mtu={mtu} interop.rxe={'yes' if rxe else 'no'}"
        words = [
            *emulator, "-name", self.name, "-smp", 1, "-m", memory, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-kernel", image / "vmlinux", "-initrd", image / "initrd", "-append", append, "-serial", "stdio", "-monitor", "none",
            "-netdev", f"tap,id=wire,ifname={tap},script=no,downscript=no",
            "-device", f"virtio-net-pci,netdev=wire,mac=52:54:77:00:00:{number:02x},host_mtu={mtu},romfile=",
            "-netdev", f"user,id=control,restrict=on,hostfwd=tcp:127.0.0.1:{self.door}-10.0.2.15:{DOOR}",
            "-device", f"virtio-net-pci,netdev=control,mac=52:54:78:00:00:{number:02x},romfile=",
        ]
        if icount:
            words += ["-icount", f"shift={ICOUNT_SHIFT}"]
        self.machine = Program([*host.prefix(), *words], os.environ)
        try:
            self._await()
        except BaseException:
            self.end()
            raise

    def _await(self):
        self.machine.wait_for_text("the door is open", BOOT_SECONDS)
        limit = time.monotonic() + BOOT_SECONDS
        while True:
            try:
                code, text = self.run("uname", "-r", seconds=5)
                if code == 0 and text.startswith(self.kernel):
                    return
                raise LabError(f"{self.name} runs {text!r}, not {self.kernel}")
            except OSError:
                if time.monotonic() > limit or not self.machine.running():
                    raise LabError(f"{self.name} does not answer:\n{self.console()}") from None
                time.sleep(0.05)

    def console(self):
        """The last lines of its console."""
        return "\n".join(self.machine.text().splitlines()[-20:])

    def start(self, *words, env=None, plain=False, keep_stdin=False):
        """Starts a program in the guest. `plain` has no effect: its programs use the kernel's verbs, or what `self.env` says."""
        del plain
        env = {**self.env, **(env or {})}
        line = " ".join([*(f"{k}={shlex.quote(str(v))}" for k, v in env.items()), shlex.join(map(str, words))])
        return GuestProgram(self, f"exec env {line}" if env else f"exec {line}", keep_stdin)

    def run(self, *words, seconds=30, env=None, plain=False):
        """Runs a program to its end: (exit code, output)."""
        program = self.start(*words, env=env, plain=plain)
        code = program.wait(seconds)
        program.connection.close()
        return code, program.text()

    def shell(self, line, seconds=30):
        """Runs a line of shell, which must succeed; its output."""
        code, text = self.run("sh", "-c", line, seconds=seconds)
        if code:
            raise LabError(f"[{self.name}] {line}: {code}\n{text}")
        return text

    def put(self, local, remote):
        """Copies a file into the guest, executable."""
        program = self.start("sh", "-c", f"cat > {shlex.quote(remote)} && chmod 755 {shlex.quote(remote)}", keep_stdin=True)
        program.write(local.read_bytes())
        program.close_input()
        if program.wait(60):
            raise LabError(f"[{self.name}] cannot write {remote}:\n{program.text()}")

    def install(self, program):
        """Copies a program of this machine into the guest's path if it is missing there. Returns its name."""
        if self.run("test", "-x", f"/bin/{program.name}")[0]:
            self.put(program, f"/bin/{program.name}")
        return program.name

    def files(self, *paths):
        """The text of files in the guest, which must be there."""
        program = GuestProgram(self, " ".join(["files", *paths]))
        code = program.wait(30)
        program.connection.close()
        if code:
            raise LabError(f"[{self.name}] cannot read {paths}:\n{program.text()}")
        return program.text()

    def get(self, remote):
        """The bytes of a file in the guest."""
        program = self.start("cat", remote)
        if program.wait(60):
            raise LabError(f"[{self.name}] cannot read {remote}:\n{program.text()}")
        return program.output()

    def tcp_table(self):
        """Lines of its TCP sockets."""
        return self.files("/proc/net/tcp", "/proc/net/tcp6").splitlines()

    def end(self):
        """Switches the guest off."""
        self.machine.stop(signal.SIGKILL)
