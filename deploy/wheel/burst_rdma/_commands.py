"""The commands `burst`, `burst-rdma`, `burstd` and `burst-proxy`: each becomes the program of the wheel."""

from __future__ import annotations

import os
import sys

from ._place import BurstError, program


def _become(name: str) -> None:
    """Executes a program with this process's arguments. Does not return; exit code 125 if it is not there, as of `burst run`."""
    try:
        path = program(name)
        os.execv(path, [name, *sys.argv[1:]])
    except (BurstError, OSError) as error:
        sys.stderr.write(f"{name}: {error}\n")
        sys.exit(125)


def burst() -> None:
    """`burst`; also `burst-rdma`, which is what `uvx burst-rdma` runs."""
    _become("burst")


def burstd() -> None:
    """The daemon."""
    _become("burstd")


def burst_proxy() -> None:
    """The proxy."""
    _become("burst-proxy")
