"""Output of `make demo` and `make bench`: the last lines, the plot's labels, the history; and how make builds."""

import json
import os
import re
import subprocess
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest

from lab import history, plot
from lab.fabric import ROOT

KIB, MIB = 1 << 10, 1 << 20
SIZES = (2, KIB, 8 * KIB, 64 * KIB, 256 * KIB, MIB, 8 * MIB)


@pytest.fixture(scope="module")
def demo():
    loader = SourceFileLoader("demo", str(ROOT / "scripts" / "demo"))
    module = module_from_spec(spec_from_loader("demo", loader))
    loader.exec_module(module)
    return module


def report(demo, autogroups):
    medians = {
        "iperf3 TCP, 1 stream": {"gbits": 10.0},
        "ib_write_bw 64 KiB": {"gbits": 21.0},
        "ib_write_bw 256 KiB": {"gbits": 13.0},
        "ib_write_bw 1 MiB": {"gbits": 20.0},
        "ib_write_bw 64 KiB -q 16": {"gbits": 22.0},
        "TCP ping-pong, blocking": {"p50_us": 20.0, "p99_us": 30.0},
        "UDP ping-pong, spinning": {"p50_us": 10.0, "p99_us": 12.0},
        "ib_send_lat 64 B -e": {"p50_us": 24.0, "p99_us": 40.0},
        "ib_send_lat 64 B": {"p50_us": 25.0, "p99_us": 40.0},
        "ib_send_lat 64 B -e" + demo.INSIDE: {"p50_us": 8.0, "p99_us": 10.0},
        "ib_send_lat 64 B" + demo.INSIDE: {"p50_us": 18.0, "p99_us": 20.0},
    }
    results = [{"name": name, **values} for name, values in medians.items()]
    return {"machine": {"cpus": 2, "autogroups": autogroups}, "results": results, "promises": demo.promises(medians, 2, 0)}


def test_the_demo_says_what_was_shown(demo):
    shown, _ = demo.words(report(demo, 0))
    assert "at least 1.30 times the bandwidth of one kernel TCP stream" in shown
    assert "24 us one way" in shown and "1.2 times a blocking TCP message" in shown and "2.5 times a spinning UDP message" in shown
    assert "With the engine inside the program these are 0.4 and 1.8 times" in shown


def test_the_demo_explains_each_missed_promise_in_a_sentence(demo):
    medians = {row["name"]: {k: v for k, v in row.items() if k != "name"} for row in report(demo, 0)["results"]}
    medians["ib_send_lat 64 B"]["p99_us"] = 2500.0
    del medians["ib_write_bw 64 KiB -q 16"]
    for cpus, load, words in ((2, 0.1, "with 2 processors"), (8, 0.1, "the hypervisor took the processor away"), (2, 3, "load average was 3.0")):
        rows = {p["what"]: p for p in demo.promises(medians, cpus, load)}
        assert words in rows["ib_send_lat polling, p99 to p50"]["why"]
        assert rows["ib_write_bw -q 16 to -q 1"]["why"] == "a measurement failed, see above."
        explained = [p for p in rows.values() if p["why"]]
        assert len(explained) == 2 and all(not p["met"] and p["why"].endswith(".") for p in explained)


def test_the_table_has_the_engine_in_the_program_beside_the_daemon(demo, capsys):
    shown = {**report(demo, 0), "errors": []}
    demo.show(shown)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("ib_send_lat 64 B ")]
    assert [line[-2:] for line in lines] == [["8.0", "10.0"], ["18.0", "20.0"]]
    assert [line[-4:-2] for line in lines] == [["24.0", "40.0"], ["25.0", "40.0"]]


def test_the_demo_says_what_the_settings_cost(demo):
    _, with_them = demo.words(report(demo, 1))
    _, without = demo.words(report(demo, 0))
    assert "kernel.sched_autogroup_enabled is 1" in with_them and "sysctl kernel.sched_autogroup_enabled=0" in with_them
    assert "kernel.sched_autogroup_enabled is 0" in without and "sysctl" not in without
    for text in (with_them, without):
        assert "2.1" in text and "1.3" in text and "make bench" in text and "2 processors" in text
    assert any("make demo" in line for line in history.SETTINGS) and any("1.3 times" in line for line in history.SETTINGS)


def test_a_demo_whose_measurements_failed_says_so(demo):
    empty = {"machine": {"cpus": 8, "autogroups": 0}, "results": [], "promises": demo.promises({}, 8, 0)}
    assert "measurements failed" in demo.words(empty)[0]


def test_labels_of_the_plot_do_not_overlap():
    picture = plot.svg({"ib_write_bw": [(size, 10.0) for size in SIZES]}, 9.0, [("ib_send_lat -e", 20, 30), ("TCP\nblocking", 20, 30)])
    boxes = []
    for x, y, anchor, text in re.findall(r'font-size="12" x="([0-9.]+)" y="([0-9.]+)"(?: text-anchor="(\w+)")?[^>]*>([^<]*)<', picture):
        width = len(text) * plot.CHARACTER_W
        left = float(x) - {"middle": width / 2, "end": width, "": 0}[anchor]
        boxes.append((left, left + width, float(y) - 12, float(y), text))
    assert {plot.size_label(size) for size in SIZES} <= {text for *_, text in boxes}
    for i, one in enumerate(boxes):
        for other in boxes[i + 1 :]:
            apart = one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2]
            assert apart, f"{one[4]} overlaps {other[4]}"


def run_of(value, cpu="A", kernel="6.1.0-9"):
    machine = {"cpu": cpu, "cpus": 2, "kernel": kernel, "memory_gib": 8}
    return {"date": "2026-01-01T00:00:00+00:00", "commit": "abc", "machine": machine, "autogroups": 0, "figures": {"f": {"value": value, "unit": "us"}}}


def test_a_run_is_compared_with_earlier_ones_of_its_kind_of_machine(tmp_path):
    path = tmp_path / "history.jsonl"
    assert history.load(path) == []
    for run in (run_of(10), run_of(30), run_of(20), run_of(999, cpu="B"), run_of(999, kernel="6.12.1")):
        history.append(path, run)
    assert len(history.load(path)) == 5
    [_, line] = history.table(run_of(40, kernel="6.1.0-11"), history.load(path))
    assert line.split() == ["f", "40", "us", "20", "2.00", "3"]
    [_, line] = history.table(run_of(40, cpu="C"), history.load(path))
    assert line.split() == ["f", "40", "us", "-", "-", "0"]


def test_a_record_names_commit_and_machine():
    run = history.record(ROOT, {})
    assert json.loads(json.dumps(run)) == run
    assert run["machine"]["cpus"] == os.cpu_count() and run["machine"]["memory_gib"] >= 0 and run["autogroups"] in (0, 1)


@pytest.fixture
def pkg_config(tmp_path):
    """A pkg-config whose answer about libdpdk the test chooses; it notes each question."""
    asked = tmp_path / "asked"

    def make(known):
        tool = tmp_path / "pkg-config"
        tool.write_text(f"#!/bin/sh\necho \"$@\" >>{asked}\nexit {0 if known else 1}\n")
        tool.chmod(0o755)
        return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    make.asked = asked
    return make


def features(env, **variables):
    return subprocess.run([ROOT / "scripts" / "features"], env={**env, **variables}, capture_output=True, text=True, check=True).stdout.strip()


def test_whether_dpdk_is_built_is_decided_when_the_build_begins(pkg_config):
    env = pkg_config(known=False)
    # What make would run, without running it: `make bench` installs libdpdk-dev first, so nothing may have asked for it before.
    done = subprocess.run(["make", "-n", "-C", ROOT, "bench"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.index("scripts/install-deps") < lines.index("scripts/build")
    assert not pkg_config.asked.exists()
    assert features(env) == ""
    env = pkg_config(known=True)
    assert features(env) == features(env, DPDK="auto") == features(env, DPDK="yes") == "--features burstd/dpdk"
    assert features(env, DPDK="no") == ""
