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

BUILD = lab.build_directory()
AUTOGROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")


def pytest_configure(config):
    for part in ("burst", "burstd", "lib/libibverbs.so.1", "lib/librdmacm.so.1", "lib/burst-pair"):
        if not (BUILD / part).exists():
            raise pytest.UsageError(f"{BUILD / part} is missing: run make build first")


def pytest_runtest_logreport(report):
    """Notes skips for the summary."""
    path = os.environ.get("BURST_SKIPS")
    if report.skipped and path:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        with open(path, "a") as skips:
            skips.write(f"SKIP: {report.nodeid}: {reason.removeprefix('Skipped: ')}\n")


@pytest.fixture(scope="session", autouse=True)
def no_autogroups():
    """Figures are measured without the kernel's autogroups, which give each session of processes its share of a processor:
    a poller that yields gives way to its own session only, and the daemon is of another one (docs/running.md)."""
    before = AUTOGROUPS.read_text().strip() if AUTOGROUPS.exists() else "0"
    if os.environ.get("BURST_BENCH") != "1" or before == "0":
        yield
        return
    if not os.access(AUTOGROUPS, os.W_OK):
        pytest.exit(f"figures are measured with {AUTOGROUPS} at 0, which needs root to set", returncode=2)
    AUTOGROUPS.write_text("0")
    yield
    AUTOGROUPS.write_text(before)


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

    def run(*words, env=None, seconds=30, **options):
        command = [str(BUILD / "burst"), *map(str, words)]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, **options)

    return run
