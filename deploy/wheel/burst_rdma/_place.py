"""Where the programs and libraries of this wheel lie."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

#: Names the directory that has `bin` and `lib/burst`, in place of the wheel's own.
PREFIX_VARIABLE = "BURST_PREFIX"


class BurstError(RuntimeError):
    """Burst cannot do what was asked; the text is one sentence that says why."""


#: What to do if there is no place for temporary files.
TEMPORARY_CURE = "set TMPDIR to a directory that can be written"


def temporary_base(*, short: bool = False) -> Path:
    """The directory for temporary files; a short one if possible, because names of sockets are limited.

    Raises:
        BurstError: there is none that can be written.
    """
    if short and os.access("/tmp", os.W_OK):
        return Path("/tmp")
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise BurstError(f"no directory for temporary files can be written: {TEMPORARY_CURE}") from error


def prefix() -> Path:
    """The directory that has `bin/burst` and `lib/burst`: `root` beside this module, or what BURST_PREFIX names.

    Raises:
        BurstError: it has not; the text names the place that was looked at.
    """
    given = os.environ.get(PREFIX_VARIABLE)
    place = Path(given) if given else Path(__file__).resolve().parent / "root"
    if not (place / "lib" / "burst" / "libibverbs.so.1").exists() or not (place / "bin" / "burst").exists():
        raise BurstError(f"there is no bin/burst with lib/burst below {place}: install burst-rdma again, or set {PREFIX_VARIABLE}")
    return place


def program(name: str = "burst") -> Path:
    """The path of a program of Burst: `burst`, `burstd`, `burst-proxy`, `burst-sim` or `burst-switch`.

    Raises:
        BurstError: Burst has no such program, or is not installed.
    """
    path = prefix() / "bin" / name
    if not path.exists():
        raise BurstError(f"Burst has no program {name!r}")
    return path


def library(name: str = "libibverbs.so.1") -> Path:
    """The path of a library of Burst.

    >>> library().name
    'libibverbs.so.1'

    Raises:
        BurstError: Burst has no such library, or is not installed.
    """
    path = prefix() / "lib" / "burst" / name
    if not path.exists():
        raise BurstError(f"Burst has no library {name!r}")
    return path


def env(socket: os.PathLike[str] | str | None = None, base: dict[str, str] | None = None) -> dict[str, str]:
    """An environment in which a child process finds Burst's libraries first.

    Args:
        socket: control socket of the daemon; None: the usual places.
        base: environment to add to; None: this process's.

    >>> "lib/burst" in env()["LD_LIBRARY_PATH"]
    True
    """
    made = dict(os.environ if base is None else base)
    libraries = str(library().parent)
    rest = made.get("LD_LIBRARY_PATH")
    made["LD_LIBRARY_PATH"] = f"{libraries}:{rest}" if rest else libraries
    # Where NCCL looks, and the first GID, which is RoCEv2 on each device of Burst.
    made["NCCL_IBVERBS_LIB"] = str(library())
    made.setdefault("NCCL_IB_GID_INDEX", "0")
    path = made.get("PATH")
    programs = str(program().parent)
    made["PATH"] = f"{programs}:{path}" if path else programs
    if socket is not None:
        made["BURST_SOCKET"] = os.fspath(socket)
    return made
