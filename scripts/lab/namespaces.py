"""Sockets of the test itself in a host's network namespace."""

import contextlib
import ctypes
import os

CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def inside(host):
    """Sockets made in the block belong to the host's namespace."""
    with open("/proc/thread-self/ns/net") as own, open(f"/proc/{host.keeper.pid}/ns/net") as there:
        assert LIBC.setns(there.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            assert LIBC.setns(own.fileno(), CLONE_NEWNET) == 0
