"""Fixtures of the system tests: two hosts with a burstd each, and skips that say why.

The tests run what was built (`make build`; BURST_BUILD names another directory). Namespaces need root; without it the
tests that need them are skipped with that reason. Reasons also go to the file BURST_SKIPS, for the summary of
`make test`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import lab  # noqa: E402
from lab import history, rows  # noqa: E402

BUILD = lab.build_directory()
#: One line per run of `make bench`: date, commit, facts of the machine, medians.
HISTORY = Path(os.environ.get("BURST_BENCH_HISTORY", Path(__file__).parent / "bench" / "history.jsonl"))
FIGURES = {}
#: Large programs are tested by `make test-matrix` only.
collect_ignore = [] if os.environ.get("BURST_MATRIX") == "1" else ["test_proxy_programs.py", "test_metrics_programs.py"]
#: Files whose tests take longest, the longest first. Several workers (scripts/test) begin with them, so that none of them is the last one that runs.
LONGEST = (
    "urma", "in_process", "perftest", "lent", "ci_step", "wheel", "wire", "run", "faults", "urma_daemon", "proxy_limits", "packet", "proxy", "middleware",
    "demo", "guarded", "next_hops", "storage", "selective_repeat", "attacks", "in_process_hostile", "interface", "proxy_encrypted", "differential",
)
# It needs the wheel for aarch64 and an emulator, which `make aarch64` has.
collect_ignore += [] if "BURST_WHEEL" in os.environ else ["test_aarch64.py"]
# They need a packager, lintian, podman and roots of Debian, which `make packages` has.
collect_ignore += [] if os.environ.get("BURST_PACKAGES") == "1" else ["test_packages.py", "test_image.py"]


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: measures shares or times of the machine, or takes what there is one of: not beside other tests")
    config.addinivalue_line("markers", "counts: depends on counts and processor time, not on the clock")
    config.pluginmanager.register(rows, "rows")
    for part in ("burst", "burstd", "burst-proxy", "burst-sim", "burst-switch", "lib/libibverbs.so.1", "lib/librdmacm.so.1", "lib/burst-pair", "lib/burst-exercise"):
        if not (BUILD / part).exists():
            raise pytest.UsageError(f"{BUILD / part} is missing: run make build first")


def pytest_collection_modifyitems(items):
    order = {f"test_{name}.py": at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(LONGEST)))


def pytest_runtest_logreport(report):
    """Notes skips for the summary."""
    path = os.environ.get("BURST_SKIPS")
    # A fault that is known, with its test, is no skip.
    if report.skipped and path and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        with open(path, "a") as skips:
            skips.write(f"SKIP: {report.nodeid}: {reason.removeprefix('Skipped: ')}\n")


def pytest_terminal_summary(terminalreporter):
    """After a benchmark: appends the run to the history and prints each figure beside the median of earlier runs."""
    if FIGURES:
        run, earlier = history.record(lab.fabric.ROOT, FIGURES), history.load(HISTORY)
        history.append(HISTORY, run)
        terminalreporter.section("figures")
        for line in (*history.table(run, earlier), "", *history.SETTINGS, f"appended to {HISTORY}; scripts/documents writes docs/performance.md from it"):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session", autouse=True)
def no_autogroups():
    """Benchmarks run with the kernel's autogroups switched off. Autogroups give each session an equal share of a processor, so a polling
    program that yields gives way to its own session only, and burstd runs in another session (docs/running.md)."""
    before = history.autogroups()
    if os.environ.get("BURST_BENCH") != "1" or not before:
        yield
        return
    if not os.access(history.AUTOGROUPS, os.W_OK):
        pytest.exit(f"figures are measured with {history.AUTOGROUPS} at 0, which needs root to set", returncode=2)
    history.AUTOGROUPS.write_text("0")
    yield
    history.AUTOGROUPS.write_text(str(before))


@pytest.fixture
def figure():
    """figure(name, value, unit) prints a median and notes it for the history. Names are stable: the history is keyed by them."""

    def note(name, value, unit):
        print(f"{name}: {value:.4g} {unit}")
        FIGURES[name] = {"value": round(float(value), 4), "unit": unit}

    return note


@pytest.fixture(scope="session")
def namespaces():
    """Skips what needs network namespaces where they are refused."""
    refused = lab.namespaces_refused()
    if refused:
        pytest.skip(refused)


@pytest.fixture(scope="module")
def fabric(namespaces):
    """Two hosts, MTU 9000, a burstd on each, for all tests of a file; both daemons must outlive the file."""
    with lab.Fabric() as made:
        yield made
        for host in made.hosts:
            assert host.daemon.running(), f"burstd of {host.name} ended:\n{host.daemon.text()}"
            assert "panicked" not in host.daemon.text(), host.daemon.text()


@pytest.fixture
def make_fabric(namespaces):
    """Makes fabrics of other shapes; they end with the test."""
    made = []

    def make(**options):
        fabric = lab.Fabric(**options)
        made.append(fabric)
        return fabric.__enter__()

    yield make
    for fabric in made:
        fabric.__exit__()


@pytest.fixture
def burst():
    """Runs the command line in the host's own namespace: burst("ls", "--json") -> CompletedProcess."""

    def run(*words, env=None, seconds=60, **options):
        command = [str(BUILD / "burst"), *map(str, words)]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, **options)

    return run
