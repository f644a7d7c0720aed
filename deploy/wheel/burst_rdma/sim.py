"""The simulator: hosts that run the real engine on a modelled network, in virtual time."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ._place import BurstError, program, temporary_base


def _value(value: object) -> str:
    """A value of TOML on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(str(key))} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, Sequence):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    raise BurstError(f"a scenario cannot hold {value!r}")


def toml(scenario: Mapping[str, Any]) -> str:
    """A scenario as the text of its file.

    >>> print(toml({"time": "1ms", "topology": {"kind": "star", "hosts": 3}, "traffic": [{"kind": "incast"}]}), end="")
    "time" = "1ms"
    "topology" = { "kind" = "star", "hosts" = 3 }
    "traffic" = [{ "kind" = "incast" }]
    """
    return "".join(f"{json.dumps(key)} = {_value(value)}\n" for key, value in scenario.items())


@dataclass(frozen=True)
class Result:
    """What a simulation found."""

    #: What `burst sim --json` prints.
    data: dict[str, Any]
    #: The values that a sweep set, by their names.
    settings: dict[str, Any] = field(default_factory=dict)

    def frame(self) -> Any:
        """This result as a table of pandas.

        Raises:
            BurstError: pandas is not installed.
        """
        return frame([self])


def run(scenario: Mapping[str, Any] | os.PathLike[str] | str, *, seed: int | None = None, settings: Mapping[str, Any] | None = None) -> Result:
    """Simulates one scenario: a dictionary, or the path of a file.

    Raises:
        BurstError: the simulator refuses the scenario; the text is its sentence.
    """
    with tempfile.TemporaryDirectory(prefix="burst-sim-", dir=temporary_base()) as place:
        if isinstance(scenario, Mapping):
            file = Path(place) / "scenario.toml"
            file.write_text(toml(scenario))
        else:
            file = Path(scenario)
        words = [str(program("burst-sim")), str(file), "--json", "-", *([] if seed is None else ["--seed", str(seed)])]
        done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise BurstError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"burst-sim ended with {done.returncode}")
    return Result(json.loads(done.stdout), dict(settings or {}))


def _changed(scenario: Mapping[str, Any], name: str, value: object) -> dict[str, Any]:
    """The scenario with one value set; `name` is a path: `hosts.cc`, `traffic.0.size`."""
    made: dict[str, Any] = json.loads(json.dumps(scenario))
    *steps, last = name.split(".")
    here: Any = made
    for step in steps:
        here = here[int(step)] if isinstance(here, list) else here.setdefault(step, {})
    here[int(last) if isinstance(here, list) else last] = value
    return made


class Submits(Protocol):
    """What runs calls elsewhere: any `concurrent.futures.Executor`, and what has its method `submit`, such as submitit's executors."""

    def submit(self, fn: Any, /, *args: Any) -> Any:
        """Begins a call; `result()` of what it returns waits for the call's result."""


def _one(task: tuple[dict[str, Any], int | None, dict[str, Any]]) -> Result:
    scenario, seed, settings = task
    return run(scenario, seed=seed, settings=settings)


def sweep(
    scenario: Mapping[str, Any], values: Mapping[str, Sequence[Any]], *, seeds: Sequence[int | None] = (None,), executor: Submits | None = None,
) -> list[Result]:
    """Simulates all combinations of values, in the order of `itertools.product`.

    Args:
        scenario: the dictionary that each simulation begins with.
        values: what to try, by path: `{"hosts.cc": ["dctcp", "swift"], "traffic.0.senders": [2, 8]}`.
        seeds: each combination is simulated with each of them.
        executor: any `concurrent.futures.Executor`, that of Dask included, or what has its method `submit`, as submitit's; None: one after
            the other. Its workers need burst-rdma.

    Raises:
        BurstError: the simulator refuses one of them; the text is its sentence.
    """
    tasks = []
    for combination in itertools.product(*values.values()):
        chosen: dict[str, Any] = dict(zip(values, combination))
        made = dict(scenario)
        for name, value in chosen.items():
            made = _changed(made, name, value)
        tasks += [(made, seed, {**chosen, **({} if seed is None else {"seed": seed})}) for seed in seeds]
    if executor is None:
        return [_one(task) for task in tasks]
    return [future.result() for future in [executor.submit(_one, task) for task in tasks]]


def frame(results: Sequence[Result]) -> Any:
    """All results as one table of pandas: a row for each `[[traffic]]`, a column for each setting and each figure (`time_us.p99`).

    Raises:
        BurstError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise BurstError("pandas is not installed: pip install pandas") from error
    rows = [{**result.settings, **traffic} for result in results for traffic in result.data["traffic"]]
    return pandas.json_normalize(rows)


__all__ = ["Result", "Submits", "frame", "run", "sweep", "toml"]
