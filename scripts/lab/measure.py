"""Single measurements over a fabric: verbs by Debian's perftest, and the kernel's TCP and UDP on the same wire."""

import json
from pathlib import Path
from statistics import median

from .fabric import build_directory
from .perftest import await_listener, run_pair
from .waiting import LabError

REFERENCE_PORT = 5301
DEVICE = "burst0"


def in_turns(*jobs, rounds=5):
    """Medians of jobs that are run in turns."""
    values = [[] for _ in jobs]
    for _ in range(rounds):
        for row, job in zip(values, jobs):
            row.append(job())
    return [median(row) for row in values]


def without_processor_ns(pid):
    """Time for which the threads of a process were ready to run and had no processor; 0 if it has ended."""
    try:
        return sum(int((thread / "schedstat").read_text().split()[1]) for thread in Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return 0


def tcp_stream_gbits(fabric, seconds=2):
    """One iperf3 stream from a to b."""
    server = fabric.b.start("iperf3", "-s", "-1", "-p", REFERENCE_PORT, plain=True)
    try:
        await_listener(fabric.b, server, REFERENCE_PORT)
        words = ["iperf3", "-c", fabric.b.address, "-p", REFERENCE_PORT, "-t", seconds, "-J"]
        code, text = fabric.a.run(*words, seconds=seconds + 20, plain=True)
        if code:
            raise LabError(f"iperf3: {text}")
        return json.loads(text)["end"]["sum_received"]["bits_per_second"] / 1e9
    finally:
        server.stop()


def raw_udp_gbits(fabric, seconds=2):
    """Trains from a to b between two programs that poll plain UDP sockets and touch each byte once (programs/datagrams)."""
    tool = build_directory() / "programs" / "datagrams"
    server = fabric.b.start(tool, "serve", REFERENCE_PORT + 2, plain=True)
    try:
        fabric.b.await_udp(server, REFERENCE_PORT + 2)
        code, text = fabric.a.run(tool, fabric.b.address, REFERENCE_PORT + 2, seconds, seconds=seconds + 20, plain=True)
        if code:
            raise LabError(f"datagrams: {text}")
        return json.loads(text)["gbits"]
    finally:
        server.stop()


def kernel_ping_pong(fabric, kind, rounds=10_000, size=64):
    """Half round trips of `tcp` (blocking) or `udp` (spinning): {"p50_us", "p99_us"}."""
    tool = build_directory() / "examples" / "pingpong"
    where = f"{fabric.b.address}:{REFERENCE_PORT + 1}"
    server = fabric.b.start(tool, kind, "serve", where, plain=True)
    try:
        await_port(fabric.b, server, kind)
        code, text = fabric.a.run(tool, kind, where, rounds, size, seconds=60, plain=True)
        if code:
            raise LabError(f"pingpong {kind}: {text}")
        return json.loads(text)
    finally:
        server.stop()


def await_port(host, program, kind):
    if kind == "tcp":
        await_listener(host, program, REFERENCE_PORT + 1)
    else:
        host.await_udp(program, REFERENCE_PORT + 1)


def bandwidth(fabric, tool, size, *extra, seconds=1):
    """perftest's average over about `seconds` (with -e, which knows no duration, over 1 GiB): {"gbits", "mpps"}."""
    amount = ["-n", max(100, (1 << 30) // size)] if "-e" in extra else ["-D", seconds]
    words = [tool, "-d", DEVICE, "-F", "--report_gbits", "-s", size, *amount, *extra]
    result = run_pair(fabric.b, fabric.a, words, seconds=seconds + 30)
    return {"gbits": result.gbits, "mpps": result.mpps}


def latency(fabric, tool, size, *extra, rounds=5000):
    """perftest's median and 99th percentile: {"p50_us", "p99_us"}."""
    words = [tool, "-d", DEVICE, "-F", "-s", size, "-n", rounds, *extra]
    result = run_pair(fabric.b, fabric.a, words, seconds=60)
    return {"p50_us": result.p50_us, "p99_us": result.p99_us}


def atomics(fabric, kind, seconds=1):
    """Rate of FETCH_AND_ADD or CMP_AND_SWAP: {"gbits", "mpps"}."""
    words = ["ib_atomic_bw", "-d", DEVICE, "-F", "--report_gbits", "-A", kind, "-D", seconds]
    result = run_pair(fabric.b, fabric.a, words, seconds=seconds + 30)
    return {"gbits": result.gbits, "mpps": result.mpps}
