"""Libraries of collective operations over verbs: Gloo's transport ibverbs, and the Intel MPI Benchmarks over Open MPI and MPICH."""

import os
import subprocess
from pathlib import Path

import pytest
from lab.rows import burst_run, foreign, needs

SECONDS = 300
HERE = Path(__file__).parent

pytestmark = pytest.mark.download


def compiled(name, folder):
    """A program of this folder that uses Gloo."""
    program = folder / name
    subprocess.run(["g++", "-std=c++14", "-O1", HERE / f"{name}.cpp", "-o", program, "-lgloo", "-libverbs", "-lpthread"], check=True)
    return program


def gloo(hosts, command, program, tmp_path):
    """Two ranks of a program, one on each host, that meet in a folder."""
    words = command(program, tmp_path, 0, hosts.a.gid_index(hosts.a.address))
    other = [program, tmp_path, 1, hosts.b.gid_index(hosts.b.address)]
    second = hosts.b.start(*burst_run(hosts.b), *other)
    try:
        code, text = hosts.a.run(*burst_run(hosts.a), *words, seconds=SECONDS)
        assert code == 0 and "checked" in text, text + second.text()
        assert second.wait(SECONDS) == 0 and "checked" in second.text(), second.text()
    finally:
        second.stop()


needs_gloo = pytest.mark.skipif(
    not Path("/usr/include/gloo").exists(), reason="Gloo is missing: scripts/install-deps --programs installs libgloo-dev"
)


@needs_gloo
@pytest.mark.program("Gloo, transport ibverbs", "libgloo-dev")
def test_gloo_makes_and_destroys_contexts(hosts, command, tmp_path):
    gloo(hosts, command, compiled("gloo_pair", tmp_path), tmp_path)


@needs_gloo
@pytest.mark.program("Gloo, collective operations over ibverbs", "libgloo-dev")
def test_gloo_runs_collective_operations(hosts, command, tmp_path):
    gloo(hosts, command, compiled("gloo_collectives", tmp_path), tmp_path)


#: A folder with IMB-MPI1.openmpi and IMB-MPI1.mpich.
IMB = "BURST_IMB"
#: How an MPI is started over UCX alone: no shared memory, no TCP.
MPIS = {
    "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", 2, "--mca", "pml", "ucx", "--mca", "btl", "self"],
    # UCX alone carries what MPICH's ranks say to each other on one host, too.
    "mpich": ["mpirun.mpich", "-env", "MPIR_CVAR_NOLOCAL", "1", "-n", 2],
}
UCX = {"UCX_NET_DEVICES": "burst0:1", "UCX_WARN_UNUSED_ENV_VARS": "n", "UCX_TLS": "rc_verbs,ud_verbs,self"}
BENCHMARKS = ["PingPong", "Sendrecv", "Exchange", "Allreduce", "Allgather", "Alltoall", "Bcast", "Barrier"]
IMB_WORDS = ["-npmin", 2, "-msglog", "16", "-iter", "50", "-time", "2"]


def imb_program(mpi):
    return Path(os.environ.get("BURST_IMB", "/nonexistent")) / f"IMB-MPI1.{mpi}"


def imb(hosts, command, mpi):
    if hosts.in_process:
        pytest.skip("both ranks run on one host, and each program with an engine needs an address of its own")
    before = hosts.a.stats()["tx_packets"]
    words = command(*MPIS[mpi], imb_program(mpi), *BENCHMARKS, *IMB_WORDS)
    code, text = hosts.a.run(*burst_run(hosts.a), *words, seconds=SECONDS, env=UCX)
    assert code == 0 and "All processes entering MPI_Finalize" in text, text
    assert all(f"# Benchmarking {name}" in text for name in BENCHMARKS), text
    assert hosts.a.stats()["tx_packets"] > before + 1000, "the data did not go over Burst"


@foreign(IMB, "IMB-MPI1.openmpi")
@needs("mpirun.openmpi", "openmpi-bin")
@pytest.mark.program("IMB-MPI1 over Open MPI", "openmpi-bin")
def test_imb_over_open_mpi(hosts, command):
    imb(hosts, command, "openmpi")


@foreign(IMB, "IMB-MPI1.mpich")
@needs("mpirun.mpich", "mpich")
@pytest.mark.program("IMB-MPI1 over MPICH", "mpich")
def test_imb_over_mpich(hosts, command):
    imb(hosts, command, "mpich")
