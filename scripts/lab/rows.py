"""A plugin of pytest, for `tests/programs`. Rows of the table of programs: what each test there runs, of which version, in which mode, and how it ended.

`make programs` (BURST_PROGRAMS=1) runs all rows, daemon and in process, and writes target/programs.md. `make test` takes the rows
whose program is among the packages that it installs anyway, with a daemon; the marker `download` keeps the others out of it.
"""

import os
import re
import shutil
import subprocess
import time

import pytest

from .fabric import ROOT, Fabric, build_directory

ALL = os.environ.get("BURST_PROGRAMS") == "1"
#: What `scripts/install-deps --programs` brings beside packages of Debian.
PLACE = ROOT / "target" / "programs"
TABLE = ROOT / "target" / "programs.md"
FOLDER = ROOT / "tests" / "programs"
#: (program, mode, test) -> the row.
ROWS = {}


def pytest_configure(config):
    config.addinivalue_line("markers", "program(name, version, mode=…): the row of the table; `version` is a package of Debian or a function, `mode` daemon or in process if not given")
    config.addinivalue_line("markers", "download: needs what only `scripts/install-deps --programs` brings, or takes long")


def pytest_collection_modifyitems(config, items):
    """Without BURST_PROGRAMS=1 only quick rows of programs that are there anyway."""
    kept, left = [], []
    for item in items:
        here = FOLDER in item.path.parents
        (left if here and not ALL and item.get_closest_marker("download") else kept).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def debian_version(package):
    """The version of an installed package, without epoch and Debian's revision."""
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True)
    return re.sub(r"^\d+:|[-+~].*", "", done.stdout) or "?"


def python_version(package):
    """The version of a package of PyPI in target/programs/venv."""
    program = f"import importlib.metadata as m; print(m.version('{package}'))"
    done = subprocess.run([PLACE / "venv" / "bin" / "python3", "-c", program], capture_output=True, text=True)
    return done.stdout.strip() or "?"


@pytest.fixture(scope="module", params=["daemon", "in process"] if ALL else ["daemon"])
def hosts(namespaces, request):
    """Two hosts: with daemons, or with an engine in each program."""
    with Fabric(in_process=request.param == "in process") as made:
        yield made
        for host in made.hosts:
            if host.daemon:
                assert host.daemon.running(), f"burstd of {host.name} ended:\n{host.daemon.text()}"
                assert "panicked" not in host.daemon.text(), host.daemon.text()


@pytest.fixture
def command(request):
    """command(words): the words that the row shows; returns them."""

    def note(*words):
        request.node.user_properties.append(("command", " ".join(str(word).replace(str(ROOT), ".") for word in words)))
        return words

    return note


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    marker = item.get_closest_marker("program")
    if not marker or (report.when != "call" and report.passed):
        return
    callspec = getattr(item, "callspec", None)
    mode = marker.kwargs.get("mode") or (callspec.params.get("hosts", "daemon") if callspec else "daemon")
    if hasattr(report, "wasxfail"):
        result = f"known failure: {report.wasxfail}" if report.skipped else f"right, though a failure is known: {report.wasxfail}"
    elif report.skipped:
        result = "skipped: " + str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr).removeprefix("Skipped: ")
    else:
        result = "right" if report.passed else "WRONG"
    name, version = marker.args
    commands = [text for key, text in item.user_properties if key == "command"]
    row = ROWS.setdefault((name, mode, item.nodeid), {"version": version, "command": "", "result": result, "seconds": 0.0})
    row["command"] = commands[0] if commands else row["command"]
    row["seconds"] += call.duration
    row["result"] = result


def cell(text):
    """Text for a cell of the table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def pytest_sessionfinish(session):
    """Writes the table, where all rows ran."""
    if not ALL or not ROWS or hasattr(session.config, "workerinput"):
        return
    lines = [f"Programs over Burst, {time.strftime('%Y-%m-%d')}.", ""]
    lines += ["| program | version | command | mode | result | seconds | test |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for (name, mode, node), row in ROWS.items():
        version = row["version"]
        version = version() if callable(version) else debian_version(version)
        shown = f"`{cell(row['command'])}`" if row["command"] else ""
        test = node.removeprefix("tests/programs/").split("[")[0]
        lines.append(f"| {name} | {cell(version)} | {shown} | {mode} | {cell(row['result'])} | {row['seconds']:.1f} | `{test}` |")
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text("\n".join(lines) + "\n")


def needs(program, package):
    """Skips where a program is not installed."""
    return pytest.mark.skipif(not shutil.which(program), reason=f"{program} is missing: scripts/install-deps --programs installs {package}")


def foreign(variable, what):
    """Skips where an environment variable does not name a directory with foreign programs."""
    value = os.environ.get(variable)
    return pytest.mark.skipif(not value, reason=f"foreign sources: {variable} names no directory with {what} (docs/programs.md)")


def burst_run(host):
    """Words that run a program on Burst, with the files of a device."""
    return [build_directory() / "burst", "run", "--in-process" if host.in_process else "--no-start", "--"]
