"""Fixtures of pytest: `burst`, a daemon, and `burst_pair`, two hosts with faults between them.

    def test_a_ping(burst_pair):
        a, b = burst_pair(loss="1%", delay="1ms")
        ...

After a failed test the counters, the logs and, with `--burst-capture`, the packets of its daemons are kept in a directory that the report names.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ._daemon import Daemon, daemon
from ._hosts import Host, hosts
from ._place import BurstError, program

_REPORTS: pytest.StashKey[dict[str, pytest.CollectReport]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("burst", "RDMA by Burst")
    group.addoption("--burst-fail-on", default="", metavar="COUNTERS", help="fail a test after which one of these counters is not 0: bad_icrc,cq_overrun")
    group.addoption("--burst-artifacts", default="burst-artifacts", metavar="DIRECTORY", help="where counters, logs and captures of failed tests are kept")
    group.addoption("--burst-capture", action="store_true", help="capture the packets of each test, and keep those of failed ones")


def _named_counters(config: pytest.Config) -> list[str]:
    return [name.strip() for name in config.getoption("--burst-fail-on").split(",") if name.strip()]


def pytest_configure(config: pytest.Config) -> None:
    """Refuses names in `--burst-fail-on` that no counter has: they would never fail a test."""
    if not (named := _named_counters(config)):
        return
    try:
        done = subprocess.run([program(), "stats", "--names"], capture_output=True, text=True, check=True)
    except (BurstError, OSError, subprocess.CalledProcessError) as error:
        raise pytest.UsageError(f"--burst-fail-on: the names of the counters are not known: {error}") from error
    known = done.stdout.split()
    for name in named:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise pytest.UsageError(f"--burst-fail-on: there is no counter {name!r}; the nearest is {near!r}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    item.stash.setdefault(_REPORTS, {})[report.when] = report
    return report


class _Watch:
    """The daemons of one test: their captures, and what is kept if it fails."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.request = request
        self.captures: list[subprocess.Popen[Any]] = []
        self.daemons: list[Daemon] = []

    def add(self, one: Daemon) -> None:
        self.daemons.append(one)
        if self.request.config.getoption("--burst-capture"):
            self.captures.append(one.capture(one.socket.with_suffix(".pcapng")))

    def end(self) -> None:
        """Keeps what a failed test leaves, and fails for counters. Called while the daemons live."""
        for capture in self.captures:
            capture.send_signal(signal.SIGINT)
            capture.wait(20)
        counters: dict[str, dict[str, int]] = {}
        for one in self.daemons:
            # A test may have ended it.
            with contextlib.suppress(BurstError):
                counters[one.socket.stem] = one.stats()
        report = self.request.node.stash.get(_REPORTS, {}).get("call")
        named = _named_counters(self.request.config)
        bad = [f"{host}: {name} is {of[name]}" for host, of in counters.items() for name in named if of.get(name)]
        if bad or (report is not None and report.failed):
            self._keep(counters, report)
        if bad:
            pytest.fail("counters that must be 0: " + "; ".join(bad), pytrace=False)

    def _keep(self, counters: dict[str, dict[str, int]], report: pytest.CollectReport | None) -> None:
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", self.request.node.nodeid)
        place = Path(self.request.config.rootpath, self.request.config.getoption("--burst-artifacts"), name)
        place.mkdir(parents=True, exist_ok=True)
        (place / "counters.json").write_text(json.dumps(counters, indent=1, sort_keys=True) + "\n")
        for one in self.daemons:
            for file in (one.log, one.socket.with_suffix(".pcapng")):
                if file.exists():
                    shutil.copyfile(file, place / file.name)
        if report is not None:
            report.sections.append(("burst", f"counters, logs and captures: {place}"))


@pytest.fixture
def burst(request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """A daemon on the loopback interface, for this test."""
    watch = _Watch(request)
    with daemon() as one:
        watch.add(one)
        yield one
        watch.end()


@pytest.fixture
def burst_pair(request: pytest.FixtureRequest) -> Iterator[Callable[..., list[Host]]]:
    """A function that makes two hosts and takes faults, as `burst_rdma.hosts` does."""
    watch = _Watch(request)
    with contextlib.ExitStack() as stack:

        def pair(**options: Any) -> list[Host]:
            made = stack.enter_context(hosts(2, **options))
            for one in made:
                watch.add(one)
            return made

        yield pair
        watch.end()
