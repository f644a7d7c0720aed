"""The second transport against the first one, both on the same daemons or both inside programs, in the same run (`make bench`): UMDK's
urma_perftest on Burst's liburma.so.0 against Debian's perftest. Medians of five rounds, in turns.

Inside programs processor time is compared beside throughput and latency: it depends less on what else the machine does.
"""

import os
import resource
from statistics import median

import pytest

import lab
from lab import measure, run_pair
from lab.urma import Umdk

pytestmark = [
    pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench"),
    pytest.mark.skipif(not os.environ.get("BURST_UMDK"), reason="foreign sources: BURST_UMDK names no sources of UMDK (docs/urma.md)"),
]

KIB = 1 << 10
ROUNDS = 5


def made(tmp_path_factory, daemons):
    umdk = Umdk(os.environ["BURST_UMDK"], tmp_path_factory.mktemp("urma"), daemons=daemons)
    return lab.Fabric(in_process=not daemons), umdk


@pytest.fixture(scope="module", params=["in process", "through daemons"])
def hosts(request, namespaces, tmp_path_factory):
    fabric, umdk = made(tmp_path_factory, request.param != "in process")
    with fabric:
        yield fabric, umdk, request.param


@pytest.fixture(scope="module")
def programs(namespaces, tmp_path_factory):
    fabric, umdk = made(tmp_path_factory, False)
    with fabric:
        yield fabric, umdk


def processor_seconds(job):
    """What the programs of a job have used, at both ends, and the job's result."""
    used = lambda: sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])  # noqa: E731
    before = used()
    result = job()
    return used() - before, result


def in_turns(*jobs):
    rows = [[] for _ in jobs]
    for _ in range(ROUNDS):
        for row, job in zip(rows, jobs):
            row.append(processor_seconds(job))
    return [(median(s for s, _ in row), median(v for _, v in row)) for row in rows]


def test_write_bandwidth(hosts, figure):
    """64 KiB WRITEs: at least 95 % of ib_write_bw's throughput. Runs of two seconds: shorter ones scatter by a fifth."""
    fabric, umdk, where = hosts
    words = ["ib_write_bw", "-d", "burst0", "-F", "--report_gbits", "-s", 64 * KIB, "-n", 100_000]
    (ours_s, ours), (theirs_s, theirs) = in_turns(
        lambda: umdk.gbits(fabric, f"write_bw -s {64 * KIB} -n 100000"), lambda: run_pair(fabric.b, fabric.a, words, seconds=60).gbits
    )
    figure(f"urma_perftest write_bw 64 KiB {where}", ours, "Gbit/s")
    figure(f"urma_perftest write_bw 64 KiB to ib_write_bw {where}", ours / theirs, "ratio")
    if where == "in process":
        figure("urma_perftest write_bw 64 KiB to ib_write_bw in process, processor time", ours_s / theirs_s, "ratio")
    assert ours >= 0.95 * theirs


def test_write_latency(hosts, figure):
    """64 B WRITEs, memory polled: at most 1.1 times ib_write_lat's median."""
    fabric, umdk, where = hosts
    (_, ours), (_, theirs) = in_turns(
        lambda: umdk.median_us(fabric, "write_lat -s 64 -n 5000"), lambda: measure.latency(fabric, "ib_write_lat", 64)["p50_us"]
    )
    figure(f"urma_perftest write_lat 64 B {where}", ours, "us")
    figure(f"urma_perftest write_lat 64 B to ib_write_lat {where}", ours / theirs, "ratio")
    assert ours <= 1.1 * theirs


def test_accesses_beside_work_requests(programs, figure, tmp_path):
    """A load without a channel beside a READ of the same bytes; pages of an aperture beside a READ of a page. One program, in turns."""
    fabric, umdk = programs
    rows = [umdk.aperture(fabric, tmp_path, 1000)[0] for _ in range(ROUNDS)]
    times = {name: median(row[name] for row in rows) for name in rows[0]}
    for name in ("load_8", "store_8", "fetch_add", "read_8", "read_4096", "first_load_of_a_page", "next_load", "store_and_flush"):
        figure(f"urma: {name.replace('_', ' ')}", times[name] / 1000, "us")
    figure("urma: aperture read in order", times["scan_mib_s"], "MiB/s")
    figure("urma: load of 8 bytes to READ of 8 bytes", times["load_8"] / times["read_8"], "ratio")
    assert times["load_8"] <= times["read_8"]
    assert times["next_load"] * 100 <= times["first_load_of_a_page"]
