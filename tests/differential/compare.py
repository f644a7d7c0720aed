"""Facts of the program `differential`: parsing, the stored answers of a kernel, the list of known differences, and the comparison.

A fact is a line `BEHAVIOUR.KEY = VALUE`, or `BEHAVIOUR.KEY >= VALUE` for a limit, of which Burst may have more than the kernel. A key that one side
does not print has the value ABSENT.

`differences.toml` lists what may differ: for each entry a reason, the modes in which it holds (default: all), and Burst's value of each
fact. An entry whose fact does not differ, or has another value, is a failure too: so the list cannot become stale.
"""

import re
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ANSWERS = HERE / "answers"
DIFFERENCES = HERE / "differences.toml"
MODES = ("daemon", "in process", "lent")
ABSENT = "(absent)"
LINE = re.compile(r"(\w+\.[^ ]+) (=|>=) (.*)")


def parse(text):
    """Facts by key: (relation, value). A line that is no fact, or a key that comes twice, is an error."""
    facts = {}
    for line in text.splitlines():
        found = LINE.fullmatch(line)
        if not found:
            raise ValueError(f"not a fact: {line!r}")
        key, relation, value = found.groups()
        if key in facts:
            raise ValueError(f"{key} comes twice")
        facts[key] = (relation, value)
    return facts


def behaviours(facts):
    """Names of the behaviours that have facts."""
    return {key.split(".", 1)[0] for key in facts}


def load_answers(series):
    """The facts that a kernel has printed, from the repository. Lines that begin with # say which kernel, and when."""
    lines = (ANSWERS / f"{series}.txt").read_text().splitlines()
    return parse("\n".join(line for line in lines if not line.startswith("#")))


def store_answers(series, release, libraries, date, facts):
    """Writes the facts of a kernel, sorted."""
    head = [f"# Linux {release}, rxe; rdma-core {libraries}; {date}. Written by tests/differential/run --store."]
    lines = [f"{key} {relation} {value}" for key, (relation, value) in sorted(facts.items())]
    (ANSWERS / f"{series}.txt").write_text("\n".join(head + lines) + "\n")


def load_differences():
    """The entries of the list, each with `reason`, `modes` and `facts`."""
    entries = tomllib.loads(DIFFERENCES.read_text())["difference"]
    return [{"modes": MODES, **entry} for entry in entries]


def expected(mode, entries):
    """Burst's listed values by key, in a mode."""
    listed = {}
    for entry in entries:
        if mode in entry["modes"]:
            for key, value in entry["facts"].items():
                if key in listed:
                    raise ValueError(f"{key} is listed twice for {mode}")
                listed[key] = value
    return listed


def same(kernel, burst):
    """Whether Burst's fact agrees with the kernel's."""
    if kernel and burst and kernel[0] == burst[0] == ">=":
        return int(burst[1]) >= int(kernel[1])
    return kernel == burst


def disagreements(kernel, burst, listed):
    """A sentence for each fact that differs and is not listed, and for each listed one that does not differ as the list says."""
    sentences = []
    for key in sorted({*kernel, *burst, *listed}):
        there, here = kernel.get(key), burst.get(key)
        differs = not same(there, here)
        theirs, ours = (fact[1] if fact else ABSENT for fact in (there, here))
        if key in listed and not differs:
            sentences.append(f"{key}: no difference any more ({ours}), but the list has Burst's {listed[key]}: remove the entry")
        elif key in listed and listed[key] != ours:
            sentences.append(f"{key}: kernel {theirs}, Burst {ours}, but the list has Burst's {listed[key]}")
        elif differs and key not in listed:
            sentences.append(f"{key}: kernel {theirs}, Burst {ours}")
    return sentences
