"""Fixtures of the interoperation tests: a rig for each requested kernel, MTU and port.

They run by `make interop`, not by `make test`. BURST_INTEROP_PORTS (default: udp,packet) says over which ports burstd is tried.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from rig import ImageError, Rig  # noqa: E402
from rig.ends import Ends  # noqa: E402
from rig.image import KERNELS  # noqa: E402

PORTS = os.environ.get("BURST_INTEROP_PORTS", "udp,packet").split(",")


def boot(kernel, mtu, port):
    try:
        return Rig(kernel=kernel, mtu=mtu, port=f"{port}:dev=eth0")
    except ImageError as error:
        pytest.fail(str(error))


def shapes(mtus):
    """Each port, kernel and MTU."""
    return [pytest.param((k, m, p), id=f"{k}-{m}-{p}") for p in PORTS for k in KERNELS for m in mtus]


def pytest_generate_tests(metafunc):
    """A module lists its MTUs in MTUS; other modules run at 1500 (path MTU 1024), where a message is many packets."""
    if "rig" in metafunc.fixturenames:
        metafunc.parametrize("rig", shapes(getattr(metafunc.module, "MTUS", (1500,))), indirect=True, scope="session")


def healthy(rig):
    """Both ends must outlive the tests."""
    assert rig.host.daemon.running(), f"burstd ended:\n{rig.host.daemon.text()}"
    assert "panicked" not in rig.host.daemon.text(), rig.host.daemon.text()
    assert "Call Trace" not in rig.guest.machine.text(), rig.guest.machine.text()


@pytest.fixture(scope="session")
def rig(namespaces, request):
    """burstd and a guest, of one shape after the other."""
    kernel, mtu, port = request.param
    with boot(kernel, mtu, port) as made:
        yield made
        healthy(made)


@pytest.fixture
def make_ends():
    """Makes pairs of programs that use verbs: make_ends(rig, "burst" or "rxe" asks, family)."""
    made = []

    def make(*words):
        made.append(Ends(*words))
        return made[-1]

    yield make
    for ends in made:
        ends.end()
