"""The tables of figures of publications: what is taken from a run, and what a comparison with the recorded run finds."""

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "experiments" / "papers" / "run"


@pytest.fixture(scope="module")
def runner():
    loader = importlib.machinery.SourceFileLoader("papers_run", str(PROGRAM))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("papers_run", loader))
    loader.exec_module(module)
    return module


SWEEP = [
    {"set": {"links.loss": loss, "seed": seed}, "results": {"traffic": [{"goodput_gbps": rate}]}}
    for loss, seed, rate in (("0", "1", 100.0), ("0", "2", 90.0), ("1%", "1", 40.0), ("1%", "2", 36.0))
]
TAKE = "results.traffic.0.goodput_gbps"


def test_a_value_is_the_mean_over_seeds(runner):
    figure = {"value": [{"what": "a", "take": TAKE, "where": {"links.loss": "1%"}, "paper": 25}]}
    [value] = runner.values_of(figure, SWEEP)
    assert (value["ours"], value["paper"]) == (38.0, 25)


def test_a_ratio_divides_two_rows_of_one_run(runner):
    figure = {"value": [{"what": "a", "take": TAKE, "where": {"links.loss": "1%"}, "over": {"where": {"links.loss": "0"}}}]}
    assert runner.values_of(figure, SWEEP)[0]["ours"] == 0.4


def test_rows_of_a_study_are_taken_by_their_names(runner):
    rows = [{"case": case, "stack": "A", "paper": 1.0, "artefact": None, "ours": ours, "why": "w"} for case, ours in (("READ", 2.0), ("SEND", 3.0), ("FAA", None))]
    values = runner.values_of({"rows": "READ|FAA"}, {"unit": "ns", "rows": rows})
    assert [(value["what"], value["ours"], value["unit"]) for value in values] == [("READ, A", 2.0, "ns")]


@pytest.mark.parametrize("units, case, unit", [("ns", "READ", "ns"), ("ns, mean", "2", "ns"), ("ns; packets", "READ, packets", "packets"), ("ns; packets", "READ", "ns")])
def test_the_unit_of_a_row(runner, units, case, unit):
    assert runner.unit_of(units, case) == unit


@pytest.mark.parametrize("figure", [{"value": [{"what": "a", "take": TAKE, "where": {"links.loss": "2%"}}]}, {"value": []}])
def test_a_result_without_the_row_is_an_error(runner, figure):
    with pytest.raises(runner.NoResult):
        runner.values_of(figure, SWEEP)


def report(ours, quick=False):
    return {"quick": quick, "values": [{"what": "a", "ours": ours}]}


def test_a_number_moves_by_more_than_its_noise(runner):
    assert runner.moved({}, report(101.0), report(100.0)) == []
    assert runner.moved({}, report(103.0), report(100.0)) == ["a: 103, recorded 100"]
    assert runner.moved({"noise": 0.1}, report(103.0), report(100.0)) == []


def test_runs_of_different_length_are_not_compared(runner):
    [sentence] = runner.moved({}, report(1.0, quick=True), report(100.0))
    assert "not compared" in sentence
    assert runner.moved({}, report(1.0), None) == ["there is no recorded run"]


def test_a_record_has_one_line_for_each_value(runner, tmp_path):
    path = tmp_path / "results" / "a.json"
    runner.write(path, {"paper": "p", "values": [{"what": "a", "ours": 1.0}, {"what": "b", "ours": 2.0}]})
    assert len(path.read_text().splitlines()) == 4
    assert [value["what"] for value in json.loads(path.read_text())["values"]] == ["a", "b"]


def test_the_list_has_every_row_and_unknown_names_are_refused():
    done = subprocess.run([sys.executable, PROGRAM, "srnic", "--list"], capture_output=True, text=True)
    assert done.returncode == 0 and "Figure 11" in done.stdout and "Table 2" in done.stdout
    done = subprocess.run([sys.executable, PROGRAM, "srnic", "Figure 99"], capture_output=True, text=True)
    assert done.returncode == 1 and "figure-99" in done.stderr
    assert subprocess.run([sys.executable, PROGRAM, "ssrnic"], capture_output=True).returncode == 1
