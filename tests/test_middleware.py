"""Unmodified middleware from Debian between two hosts: perftest's options, UCX, libfabric, qperf, Open MPI.

A case takes a few seconds; all cases take minutes. `make test` runs a part that contains each program, transport and option;
`make test-matrix` (BURST_MATRIX=1) runs all, and all a second time with the engine inside the programs.
"""

import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import lab
from conftest import BUILD
from lab import LabError
from lab.perftest import await_listener
from lab.perftest_options import OPTIONS, POSSIBLE, run_options

SECONDS = 60
ALL = os.environ.get("BURST_MATRIX") == "1"


@pytest.fixture(scope="module", params=["daemon", "in-process"] if ALL else ["daemon"])
def fabric(namespaces, request):
    """Two hosts: with daemons, or with an engine in each program."""
    with lab.Fabric(in_process=request.param == "in-process") as made:
        yield made
        for host in made.hosts:
            if host.daemon:
                assert host.daemon.running(), f"burstd of {host.name} ended:\n{host.daemon.text()}"
                assert "panicked" not in host.daemon.text(), host.daemon.text()


def burst_run(host):
    """Words that run a program on Burst, with the files of a device (UCX reads them)."""
    return [BUILD / "burst", "run", "--in-process" if host.in_process else "--no-start", "--"]


def some(cases, step):
    """All cases, or every `step`-th."""
    return cases if ALL else cases[::step]


def needs(program, package):
    """Skips where a program is not installed."""
    return pytest.mark.skipif(not shutil.which(program), reason=f"{program} is missing: apt-get install {package}")


# Number of options with which each combination runs in `make test`.
OPTIONS_EACH = 2


def chosen():
    """For each combination of service, operation and kind, the least used options, rare ones first."""
    rarity = Counter(option for options in POSSIBLE.values() for option in options)
    used = Counter()
    for triple, options in POSSIBLE.items():
        picked = options if ALL else sorted(options, key=lambda o: (used[o], rarity[o]))[:OPTIONS_EACH]
        used.update(picked)
        yield from ((*triple, option) for option in picked)


MATRIX = [pytest.param(*case, id="-".join(case).replace(" ", "-")) for case in chosen()]


def test_the_part_that_always_runs_knows_every_option():
    assert {case.values[3] for case in MATRIX} == set(OPTIONS)


@pytest.mark.parametrize("service, operation, kind, option", MATRIX)
def test_perftest(fabric, service, operation, kind, option):
    run_options(fabric.b, fabric.a, (service, operation, kind, option), SECONDS)


# UCX

UCX = {"UCX_NET_DEVICES": "burst0:1", "UCX_WARN_UNUSED_ENV_VARS": "n"}


@needs("ucx_info", "ucx-utils")
def test_ucx_finds_the_device(fabric):
    code, text = fabric.a.run(*burst_run(fabric.a), "ucx_info", "-d", env=UCX)
    assert code == 0, text
    for transport in ("rc_verbs", "ud_verbs"):
        block = text.split(f"Transport: {transport}\n")[1]
        assert block.splitlines()[0].split() == ["#", "Device:", "burst0:1"], text
    assert "ERROR" not in text and "WARN" not in text, text


def ucx_perftest(fabric, transport, test, *words, **env):
    tool = [*burst_run(fabric.a), "ucx_perftest", "-d", "burst0:1", "-x", transport, "-t", test, "-n", 300, "-w", 10, *words]
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
@pytest.mark.parametrize("transport, test, words", some(UCX_TESTS, 2), ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v)))
def test_ucx_perftest(fabric, transport, test, words):
    ucx_perftest(fabric, transport, test, *words)


@needs("ucx_perftest", "ucx-utils")
@pytest.mark.parametrize("transport", ["rc_verbs", "ud_verbs"])
def test_ucx_over_ipv6(fabric, transport):
    ucx_perftest(fabric, transport, "am_lat", "-s", 8, UCX_IB_GID_INDEX="1")


# libfabric

@needs("fi_info", "libfabric-bin")
def test_libfabric_finds_the_device(fabric):
    code, text = fabric.a.run(*burst_run(fabric.a), "fi_info", "-p", "verbs")
    assert code == 0, text
    found = {tuple(line.split()[1] for line in block.splitlines()[2:5:2]) for block in text.split("provider: ")[1:]}
    assert {("burst0", "FI_EP_MSG"), ("burst0-dgram", "FI_EP_DGRAM")} <= found, text


# Connected and reliable endpoints are set up by librdmacm, datagram ones without. The program checks the data (-c).
FABRICS = {
    "msg": ["-p", "verbs", "-e", "msg"],
    "rdm": ["-p", "verbs;ofi_rxm", "-e", "rdm"],
    "dgram": ["-p", "verbs", "-e", "dgram", "-d", "burst0-dgram"],
}


def fi_pingpong(server_host, client_host, *words):
    """Runs libfabric's ping-pong, 20 times each size, on both hosts, until it ends well; what the client wrote.

    With rdm, libfabric's own thread closes a connection when the peer has left, and what the main thread has not polled by then
    goes with the queue pair, as with most providers. On a busy machine that may be the last message, which says that all is over;
    so there are more tries for the end, but every try must have moved all its data at both ends.
    """
    said = []
    for _ in range(3 if "rdm" in words else 1):
        codes, texts = fi_pingpong_once(server_host, client_host, words)
        said.append(f"{codes}: {texts}")
        assert all("=20" in text for text in texts), said
        if codes == (0, 0):
            return texts[0]
    raise AssertionError("\n".join(said))


def fi_pingpong_once(server_host, client_host, words):
    """Exit codes of client and server, or the error of the program that did not end; and their output."""
    tool = [*burst_run(server_host), "stdbuf", "-oL", "fi_pingpong", *words, "-c", "-I", 20]
    server = server_host.start(*tool)
    try:
        await_listener(server_host, server, 47592)
        client = client_host.start(*tool, server_host.address)
        try:
            codes = client.wait(SECONDS), server.wait(SECONDS)
        except LabError as error:
            codes = str(error)
    finally:
        server.stop()
    return codes, (client.text(), server.text())


@needs("fi_pingpong", "libfabric-bin")
@pytest.mark.parametrize("endpoint", FABRICS)
def test_fi_pingpong(fabric, endpoint):
    text = fi_pingpong(fabric.b, fabric.a, *FABRICS[endpoint])
    rows = [line.split() for line in text.splitlines()[1:]]
    assert {row[0] for row in rows} >= {"64", "1k"} and all(row[1:3] == ["20", "=20"] for row in rows), text


# qperf, connected by librdmacm (-cm). Its UC and UD tests cannot: they address without a GRH, which RoCE does not have.
QPERF = [
    "ver_rc_fetch_add", "ver_rc_compare_swap", "rc_lat", "rc_bw", "rc_bi_bw", "rc_rdma_read_bw", "rc_rdma_read_lat",
    "rc_rdma_write_bw", "rc_rdma_write_lat", "rc_rdma_write_poll_lat", "rc_fetch_add_mr", "rc_compare_swap_mr",
]


@pytest.fixture(scope="module")
def qperf_server(fabric):
    server = fabric.b.start(*burst_run(fabric.b), "qperf")
    await_listener(fabric.b, server, 19765)
    yield fabric.b.address
    server.stop()


@needs("qperf", "qperf")
@pytest.mark.parametrize("test", some(QPERF, 3))
def test_qperf(fabric, qperf_server, test):
    code, text = fabric.a.run(*burst_run(fabric.a), "qperf", "-t", 1, "-to", 20, "-cm", 1, qperf_server, test)
    assert code == 0 and "failed" not in text, text
    (line,) = [line for line in text.splitlines() if "=" in line]
    assert float(line.split()[2]) > 0, text


# Open MPI: two ranks on one host, and one on each of two.

@pytest.fixture(scope="module")
def mpi_program(tmp_path_factory):
    program = tmp_path_factory.mktemp("mpi") / "mpi_check"
    source = Path(__file__).parent / "programs" / "mpi" / "mpi_check.c"
    subprocess.run(["mpicc", "-O1", "-Wall", "-Werror", source, "-o", program], check=True)
    return program


# UCX only: no shared memory, no TCP, no libfabric.
UCX_ONLY = ["--mca", "pml", "ucx", "--mca", "osc", "ucx", "--mca", "btl", "self"]
# rc_verbs is wired up over ud_verbs.
MPI_TRANSPORTS = pytest.mark.parametrize("transports", ["rc_verbs,ud_verbs,self", "ud_verbs,self"], ids=["rc", "ud"])


def sent(host):
    """Packets sent so far. Programs with engines of their own take their counters with them; they have no other transport."""
    return 0 if host.in_process else host.stats()["tx_packets"]


def mpirun(host, transports, program, *words, prefix=()):
    """Runs a program of two ranks on Burst; its data must be right and have gone over Burst."""
    before = sent(host)
    env = {**UCX, "UCX_TLS": transports}
    exported = [word for name in env for word in ("-x", name)]
    words = [*prefix, *burst_run(host), "mpirun", "--allow-run-as-root", "-n", 2, *words, *UCX_ONLY, *exported, program]
    code, text = host.run(*words, env=env)
    assert code == 0 and text.splitlines()[-1] == "checked", text
    assert host.in_process or sent(host) > before + 100, "the data did not go over Burst"


@needs("mpirun", "openmpi-bin")
@needs("mpicc", "libopenmpi-dev")
@MPI_TRANSPORTS
def test_open_mpi_on_one_host(fabric, mpi_program, transports):
    if fabric.in_process:
        pytest.skip("each program with an engine needs an address of its own")
    mpirun(fabric.a, transports, mpi_program, "--oversubscribe")


@pytest.fixture
def agent(fabric, tmp_path):
    """A replacement for ssh, for mpirun: `agent HOST COMMAND...` runs the command on host b, under another host name."""
    path = tmp_path / "agent"
    enter = " ".join(map(str, fabric.b.prefix()))
    variables = {**fabric.b.burst_environment(), "LD_LIBRARY_PATH": BUILD / "lib"}
    environment = " ".join(f"{name}={value}" for name, value in variables.items())
    inside = f'hostname lab-b; export {environment}; exec {" ".join(map(str, burst_run(fabric.b)))} sh -c "$0"'
    path.write_text(f"#!/bin/sh\nshift\nexec {enter} unshare --uts sh -c '{inside}' \"$*\"\n")
    path.chmod(0o755)
    return path


@needs("mpirun", "openmpi-bin")
@needs("mpicc", "libopenmpi-dev")
@MPI_TRANSPORTS
def test_open_mpi_on_two_hosts(fabric, mpi_program, agent, transports):
    words = ["-H", f"{fabric.a.address},{fabric.b.address}", "--map-by", "node"]
    words += ["--mca", "plm_rsh_agent", agent, "--mca", "oob_tcp_if_include", "eth0"]
    before = sent(fabric.b)
    rename = ["unshare", "--uts", "sh", "-c", 'hostname lab-a; exec "$@"', "sh"]
    mpirun(fabric.a, transports, mpi_program, *words, prefix=rename)
    assert fabric.in_process or sent(fabric.b) > before + 100, "the second rank was not on the other host"
