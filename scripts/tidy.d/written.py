"""Parts of documents that a program writes: `scripts/documents` writes them, and the rule `written_parts` compares.

docs/papers is written as a whole (scripts/lab/papers.py). A written part stands between `<!-- scripts/documents: NAME -->` and `<!-- end -->`. The table of crates in ARCHITECTURE.md has no markers: its
last column is written, the rest by hand.
"""

import json
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import modules
from lab import papers, performance

HISTORY = "tests/bench/history.jsonl"
#: A row of the table of crates.
CRATE_ROW = re.compile(r"^(\| `([a-z]+)` \| .*) \| [^|]* \|$", re.MULTILINE)


def unsafe_files(tree, crate):
    """In how many files of a crate `unsafe` code stands, tests left out; `forbidden` where the compiler forbids it."""
    sources = {path: source for path, source in tree.sources.items() if path.startswith(f"{crate}/src/")}
    if any("#![forbid(unsafe_code)]" in sources[path].code for path in (f"{crate}/src/lib.rs", f"{crate}/src/main.rs") if path in sources):
        return "forbidden"
    tests = modules.test_files(tree)
    return str(sum(path not in tests and has_unsafe(source) for path, source in sources.items()))


def has_unsafe(source):
    found = (m.start() for m in re.finditer(r"\bunsafe\b(?!\s*\()", source.code))
    return any(not any(first < at < last for first, last in source.test_ranges) for at in found)


def crate_table(tree, text):
    """The text with the last column of the table of crates as the sources have it."""
    crates = {path.split("/")[2]: "/".join(path.split("/")[:3]) for path in tree.files if re.match(r"crates/[^/]+/[^/]+/src/", path)}

    def row(m):
        return f"{m.group(1)} | {unsafe_files(tree, crates[m.group(2)])} |" if m.group(2) in crates else m.group()

    return CRATE_ROW.sub(row, text)


def part(text, name, lines):
    """The text with a written part replaced."""
    pattern = re.compile(rf"(<!-- scripts/documents: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda m: f"{m.group(1)}\n{lines}\n{m.group(2)}", text)


def runs(tree):
    return [json.loads(line) for line in tree.read(HISTORY).splitlines() if line.strip()] if HISTORY in tree.files else []


def figures(tree, text):
    """The text with the tables of figures that the history of benchmarks has."""
    recorded = runs(tree)
    if not recorded:
        return text
    return part(part(text, "figures", performance.page(recorded)), "speed", performance.short_table(recorded))


#: What is written in which document.
WRITTEN = {"ARCHITECTURE.md": crate_table, "README.md": figures, "docs/performance.md": figures}


def stale(tree):
    """(path, text as it should be) of each document that is not in step."""
    for path, write in WRITTEN.items():
        if path in tree.files:
            text = tree.read(path)
            new = write(tree, text)
            if new != text:
                yield path, new
    for path, new in papers.pages(tree):
        if path not in tree.files or tree.read(path) != new:
            yield path, new
