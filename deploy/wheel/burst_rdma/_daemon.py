"""A daemon of one's own, and hosts that have one each."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ._place import TEMPORARY_CURE, BurstError, env, program, temporary_base

#: Seconds in which a daemon must say that it serves. Generous: the machine may be busy.
READY_SECONDS = 60
#: Seconds after a request to end; then it is killed. On SIGTERM a daemon gives its programs five seconds.
STOP_SECONDS = 20

Words = Sequence["str | os.PathLike[str]"]


def _impaired(port: str, faults: dict[str, object]) -> str:
    """The port behind the impairments that are not None."""
    given = ",".join(f"{name}={value}" for name, value in faults.items() if value is not None)
    return f"impair:{given}/{port}" if given else port


class Tether:
    """A pipe whose writing end this process has: the program that gets the reading end by `--end-with-fd` ends with this process, however
    this process ends. A child that was forked from this process, and has executed no other program, counts as this process."""

    def __init__(self) -> None:
        #: For the program, which must inherit it.
        self.reading, self._writing = os.pipe()

    def words(self) -> list[str]:
        """Words of the program's command line."""
        return ["--end-with-fd", str(self.reading)]

    def started(self) -> None:
        """The program has its end, or has not started."""
        os.close(self.reading)

    def end(self) -> None:
        """Lets go. Has no effect the second time."""
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1


class Daemon:
    """A running `burstd` and what one asks it. Made by [`daemon`] and [`hosts`]; with `outlives` it does not end with this process."""

    def __init__(
        self, directory: Path, port: str, *, prefix: Words = (), options: Words = (), name: str = "burstd", outlives: bool = False,
    ) -> None:
        #: Control socket.
        self.socket = directory / f"{name}.sock"
        #: File of the log.
        self.log = directory / f"{name}.log"
        self._prefix = [os.fspath(word) for word in prefix]
        burstd = program("burstd")
        ready, announce = os.pipe()
        self._tether = Tether()
        bound = [] if outlives else self._tether.words()
        words = [*self._prefix, burstd, "--socket", self.socket, "--ready-fd", str(announce), *bound, "--port", port, *options]
        # It ends with its block and with this process, not when it has been idle.
        variables = {name: value for name, value in os.environ.items() if name not in ("BURST_IDLE_EXIT", "BURST_END_WITH_FD", "BURST_READY_FD")}
        try:
            with self.log.open("wb") as log:
                self.process = subprocess.Popen(
                    [os.fspath(word) for word in words],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables,
                    pass_fds=[announce, self._tether.reading], start_new_session=True,
                )
        except BaseException:
            os.close(ready)
            self._tether.end()
            raise
        finally:
            os.close(announce)
            self._tether.started()
        self._await(ready)

    def _await(self, ready: int) -> None:
        os.set_blocking(ready, False)
        end = time.monotonic() + READY_SECONDS
        said: bytes | None = None
        with os.fdopen(ready, "rb", buffering=0) as pipe:
            # None: it has said nothing yet; empty: it has ended.
            while said is None and time.monotonic() < end:
                said = pipe.read()
                time.sleep(0.005)
        if said != b"ready\n":
            self.stop()
            text = self.log.read_text(errors="replace").strip().splitlines()
            raise BurstError(f"burstd does not serve: {text[-1] if text else 'it said nothing'}")

    def env(self) -> dict[str, str]:
        """The environment in which a program uses this daemon."""
        return env(self.socket)

    def popen(self, words: Words, **options: Any) -> subprocess.Popen[Any]:
        """Starts a program on this daemon: `subprocess.Popen`, `env` included if none is given."""
        options.setdefault("env", self.env())
        return subprocess.Popen([*self._prefix, *(os.fspath(word) for word in words)], **options)

    def run(self, words: Words, **options: Any) -> subprocess.CompletedProcess[Any]:
        """Runs a program on this daemon to its end: `subprocess.run`, with `env` if none is given."""
        options.setdefault("env", self.env())
        return subprocess.run([*self._prefix, *(os.fspath(word) for word in words)], **options)

    def _asked(self, *words: str) -> Any:
        done = self.run([program(), *words, "--json"], capture_output=True, text=True)
        if done.returncode:
            raise BurstError(done.stderr.strip() or f"burst {' '.join(words)} ended with {done.returncode}")
        return json.loads(done.stdout)

    def stats(self) -> dict[str, int]:
        """Counters by name, summed over devices. A counter that is 0 is absent."""
        sums: dict[str, int] = {}
        for row in self._asked("stats")["counters"]:
            sums[row["name"]] = sums.get(row["name"], 0) + row["value"]
        return sums

    def ls(self) -> Any:
        """Devices, queue pairs and programs, as `burst ls --json` prints them."""
        return self._asked("ls")

    def capture(self, file: os.PathLike[str] | str) -> subprocess.Popen[Any]:
        """Begins to write packets into a pcapng file, until the returned process is ended by SIGINT."""
        return self.popen([program(), "capture", "--write", file], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def stop(self) -> None:
        """Ends the daemon. A daemon that has ended is left alone."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
                break
        self._tether.end()


def _signature(pid: int) -> str:
    """How the names of directories of a process begin: with its number and its PID namespace, because a number says little in another one."""
    return f"burst-py-{pid}-{os.stat('/proc/self/ns/pid').st_ino}-"


def _remove_left(base: Path) -> None:
    """Removes what processes of this user and PID namespace have left that were killed."""
    for place in base.glob("burst-py-*"):
        pid = place.name.split("-")[2]
        with contextlib.suppress(OSError):
            if not pid.isdecimal() or not place.name.startswith(_signature(int(pid))) or place.lstat().st_uid != os.geteuid():
                continue
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    """A private directory, short enough for the name of a socket."""
    base = temporary_base(short=True)
    _remove_left(base)
    try:
        place = Path(tempfile.mkdtemp(prefix=_signature(os.getpid()), dir=base))
    except OSError as error:
        raise BurstError(f"no directory can be made in {base}: {error.strerror}; {TEMPORARY_CURE}") from error
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def daemon(port: str = "udp:dev=lo", *, options: Words = (), **faults: object) -> Iterator[Daemon]:
    """A daemon on a private socket; it ends with the block.

    Args:
        port: which interface it serves, as `burstd --port`.
        options: further options of `burstd`.
        faults: what makes the network worse: `loss="1%"`, `delay="1ms"` and the other options of `impair`.

    >>> with daemon() as one:
    ...     print(one.ls()["devices"][0]["name"])
    burst0

    Raises:
        BurstError: the daemon does not serve; the text is its own last sentence.
    """
    with _directory() as place:
        one = Daemon(place, _impaired(port, faults), options=options)
        try:
            yield one
        finally:
            one.stop()
