"""Unmodified middleware from Debian between two hosts: perftest's options, UCX, libfabric, Open MPI."""

import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import BUILD
from lab import run_pair
from lab.perftest import await_listener

BURST_RUN = [BUILD / "burst", "run", "--no-start", "--"]
SECONDS = 30


def needs(program, package):
    """Skips where a program is not installed."""
    return pytest.mark.skipif(not shutil.which(program), reason=f"{program} is missing: apt-get install {package}")


# perftest: what RoCE has, service by service. perftest itself has no inline for READ and atomics, no events for WRITE,
# no shared receive queue but for SEND, and no atomics or READ without a reliable connection.
SERVICES = {
    "RC": ["write", "read", "send", "atomic"],
    "UC": ["write", "send"],
    "UD": ["send"],
}
OPTIONS = {
    "plain": [],
    "queue pairs": ["-q", 4],
    "events": ["-e"],
    "IPv6": ["-x", 1],
    "small": ["-s", 2],
    "odd": ["-s", 1777],
    "large": ["-s", 1 << 20],
    "both ways": ["-b"],
    "shared receives": ["--use-srq", "-q", 3],
    "inline": ["--inline_size", 64, "-s", 64],
    "MTU 512": ["-m", 512],
    "MTU 4096": ["-m", 4096],
}


def has(service, operation, kind, option):
    """Whether perftest knows the combination."""
    words = OPTIONS[option]
    if "-s" in words and (operation == "atomic" or (service == "UD" and words[1] > 4096)):
        return False
    if kind == "lat" and option in ("queue pairs", "both ways", "shared receives"):
        return False
    if option == "events":
        return operation != "write"
    if option == "shared receives":
        # On UD perftest posts fewer receives to it than its queue pairs send.
        return operation == "send" and service == "RC"
    if option == "inline":
        return operation in ("write", "send")
    return True


MATRIX = [
    pytest.param(service, operation, kind, option, id=f"{service}-{operation}-{kind}-{option.replace(' ', '-')}")
    for service, operations in SERVICES.items()
    for operation in operations
    for kind in ("bw", "lat")
    for option in OPTIONS
    if has(service, operation, kind, option)
]


@pytest.mark.parametrize("service, operation, kind, option", MATRIX)
def test_perftest(fabric, service, operation, kind, option):
    # Nothing holds back the sender of an unreliable service, and perftest waits for ever for a message that was dropped:
    # a whole run must fit into the receiver's socket buffer (4 MiB).
    iterations = 100 if service == "RC" else 5 if option == "large" else 10
    words = [f"ib_{operation}_{kind}", "-d", "burst0", "-F", "-c", service, "-n", iterations, *OPTIONS[option]]
    # Datagrams carry one packet; perftest wants to be told their size.
    if service == "UD" and "-s" not in words:
        words += ["-s", 512]
    result = run_pair(fabric.b, fabric.a, words, seconds=SECONDS)
    assert result.row[3 if kind == "bw" else 4] > 0


# UCX

UCX = {"UCX_NET_DEVICES": "burst0:1", "UCX_WARN_UNUSED_ENV_VARS": "n"}


@needs("ucx_info", "ucx-utils")
def test_ucx_finds_the_device(fabric):
    code, text = fabric.a.run(*BURST_RUN, "ucx_info", "-d", env=UCX)
    assert code == 0, text
    for transport in ("rc_verbs", "ud_verbs"):
        block = text.split(f"Transport: {transport}\n")[1]
        assert block.splitlines()[0].split() == ["#", "Device:", "burst0:1"], text
    assert "ERROR" not in text and "WARN" not in text, text


def ucx_perftest(fabric, transport, test, *words, **env):
    tool = [*BURST_RUN, "ucx_perftest", "-d", "burst0:1", "-x", transport, "-t", test, "-n", 300, "-w", 10, *words]
    server = fabric.b.start(*tool, env={**UCX, **env})
    try:
        await_listener(fabric.b, server, 13337)
        client = fabric.a.start(*tool, fabric.b.address, env={**UCX, **env})
        code = client.wait(SECONDS)
    finally:
        server.stop()
    text = client.text()
    assert code == 0, text + server.text()
    final = [line.split() for line in text.splitlines() if line.startswith("Final:")]
    assert final and int(final[0][1]) == 300, text
    assert "ERROR" not in text + server.text() and "WARN" not in text + server.text(), text + server.text()


UCX_TESTS = [
    # transport, test, layout and size
    ("rc_verbs", "am_lat", ["-D", "short", "-s", 8]),
    ("rc_verbs", "am_lat", ["-D", "bcopy", "-s", 4000]),
    ("rc_verbs", "am_bw", ["-D", "zcopy", "-s", 8000]),
    ("rc_verbs", "put_lat", ["-D", "short", "-s", 64]),
    ("rc_verbs", "put_bw", ["-D", "zcopy", "-s", 100000]),
    ("rc_verbs", "get", ["-D", "bcopy", "-s", 8000]),
    ("rc_verbs", "get", ["-D", "zcopy", "-s", 100000]),
    ("rc_verbs", "add_lat", ["-s", 8]),
    ("rc_verbs", "fadd", ["-s", 8]),
    ("rc_verbs", "cswap", ["-s", 8]),
    ("ud_verbs", "am_lat", ["-D", "short", "-s", 8]),
    ("ud_verbs", "am_lat", ["-D", "bcopy", "-s", 4000]),
    ("ud_verbs", "am_bw", ["-D", "zcopy", "-s", 4000]),
]


@needs("ucx_perftest", "ucx-utils")
@pytest.mark.parametrize("transport, test, words", UCX_TESTS, ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v)))
def test_ucx_perftest(fabric, transport, test, words):
    ucx_perftest(fabric, transport, test, *words)


@needs("ucx_perftest", "ucx-utils")
@pytest.mark.parametrize("transport", ["rc_verbs", "ud_verbs"])
def test_ucx_over_ipv6(fabric, transport):
    ucx_perftest(fabric, transport, "am_lat", "-s", 8, UCX_IB_GID_INDEX="1")


# libfabric

@needs("fi_info", "libfabric-bin")
def test_libfabric_finds_the_device(fabric):
    code, text = fabric.a.run(*BURST_RUN, "fi_info", "-p", "verbs")
    assert code == 0, text
    found = {tuple(line.split()[1] for line in block.splitlines()[2:5:2]) for block in text.split("provider: ")[1:]}
    assert {("burst0", "FI_EP_MSG"), ("burst0-dgram", "FI_EP_DGRAM")} <= found, text


# Endpoints that need no connection manager.
@needs("fi_pingpong", "libfabric-bin")
def test_fi_pingpong(fabric):
    tool = [*BURST_RUN, "fi_pingpong", "-p", "verbs", "-e", "dgram", "-d", "burst0-dgram", "-c", "-I", 20]
    server = fabric.b.start(*tool)
    try:
        await_listener(fabric.b, server, 47592)
        client = fabric.a.start(*tool, fabric.b.address)
        code, served = client.wait(SECONDS), server.wait(10)
    finally:
        server.stop()
    assert (code, served) == (0, 0), client.text() + server.text()
    assert "20" in client.text() and "error" not in client.text(), client.text()


# Open MPI: mpirun starts its ranks on one host here (its launcher for others is ssh), so both use one daemon.

@pytest.fixture(scope="module")
def mpi_program(tmp_path_factory):
    program = tmp_path_factory.mktemp("mpi") / "mpi_check"
    source = Path(__file__).parent / "programs" / "mpi" / "mpi_check.c"
    subprocess.run(["mpicc", "-O1", "-Wall", "-Werror", source, "-o", program], check=True)
    return program


# rc_verbs is wired up over ud_verbs.
@needs("mpirun", "openmpi-bin")
@needs("mpicc", "libopenmpi-dev")
@pytest.mark.parametrize("transports", ["rc_verbs,ud_verbs,self", "ud_verbs,self"], ids=["rc", "ud"])
def test_open_mpi(fabric, mpi_program, transports):
    before = fabric.a.stats()["tx_packets"]
    ucx = {**UCX, "UCX_TLS": transports}
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 2]
    # UCX or nothing: no shared memory, no TCP, no libfabric.
    words += ["--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "btl", "self"]
    code, text = fabric.a.run(*BURST_RUN, *words, *(w for name in ucx for w in ("-x", name)), mpi_program, env=ucx)
    assert code == 0 and text.splitlines()[-1] == "checked", text
    assert fabric.a.stats()["tx_packets"] > before + 100, "the data did not go over Burst"
