"""What Burst answers beside what the kernel's rxe answered: `tests/differential`, in each mode. The kernel's answers are stored in the
repository; `make differential` asks the kernel itself (docs/differential.md)."""

import re
import sys
from pathlib import Path

import pytest

import lab

sys.path.insert(0, str(Path(__file__).resolve().parent / "differential"))

import compare  # noqa: E402

PROGRAM = lab.build_directory() / "programs" / "differential"
OWN_ADDRESS = "10.99.0.9"
#: Environment of the programs by mode, on host a.
ENVIRONMENTS = {
    "daemon": {},
    "in process": {"BURST_MODE": "inprocess", "BURST_PORT": f"udp:dev=eth0,addr={OWN_ADDRESS}"},
    "lent": {"BURST_MODE": "lent"},
}
#: Bound on a hang.
SECONDS = 600
#: The MTU of the emulated machine's interface.
MTU = 1500


@pytest.fixture(scope="module")
def host(namespaces):
    """A host whose daemon lends, with a second address for programs that have an engine of their own."""
    with lab.Fabric(mtu=MTU, daemons=False) as fabric:
        fabric.a.start_daemon("udp:dev=eth0,addr=10.99.0.1", ["--lend", "same-user"])
        fabric.a.ip(f"addr add {OWN_ADDRESS}/24 dev eth0")
        yield fabric.a
        assert fabric.a.daemon.running(), fabric.a.daemon.text()
        assert "panicked" not in fabric.a.daemon.text(), fabric.a.daemon.text()


@pytest.fixture(scope="module")
def kernel():
    return compare.load_answers("6.1")


@pytest.mark.parametrize("mode", compare.MODES)
def test_burst_answers_as_the_kernel(host, kernel, mode):
    code, text = host.run(PROGRAM, env={"BURST_QUIET": "1", **ENVIRONMENTS[mode]}, seconds=SECONDS)
    assert code == 0, text
    found = compare.disagreements(kernel, compare.parse(text), compare.expected(mode, compare.load_differences()))
    assert not found, f"{len(found)} facts differ from the kernel's:\n" + "\n".join(found)


#: Behaviours of registered pages that the program unmaps, moves, protects or discards, or of which a fork makes a copy.
CHANGED_PAGES = ["moved_*", "unmapped_*", "protected_*", "discarded_*", "calloc_after_free*", "fork_is_*", "fork_and_*"]


@pytest.mark.parametrize("mode", ["in process", "lent"])
def test_memory_that_is_mapped_twice_is_as_pinned_memory(host, kernel, mode):
    """An engine in a program reaches registered memory by its address; with BURST_REGISTER=shared it keeps the pages, as an adapter."""
    environment = {"BURST_QUIET": "1", "BURST_REGISTER": "shared", **ENVIRONMENTS[mode]}
    code, text = host.run(PROGRAM, *CHANGED_PAGES, env=environment, seconds=SECONDS)
    assert code == 0, text
    found = compare.parse(text)
    names = compare.behaviours(found)
    assert {"moved_and_written", "moved_pages", "unmapped_pages", "protected_pages", "fork_is_a_snapshot"} <= names, text
    theirs = {key: fact for key, fact in kernel.items() if key.split(".", 1)[0] in names}
    # Of this memory the daemon's differences hold.
    listed = {key: value for key, value in compare.expected("daemon", compare.load_differences()).items() if key in theirs}
    differing = compare.disagreements(theirs, found, listed)
    assert not differing, "\n".join(differing)


def test_every_behaviour_has_an_answer(host, kernel):
    code, text = host.run(PROGRAM, "--list")
    names = text.split()
    assert code == 0 and len(names) == len(set(names))
    assert set(names) == compare.behaviours(kernel)


def rows_of_flags():
    """The rows of the table of flags: the flag, and the facts that show what Burst does with it."""
    page = (Path(__file__).resolve().parents[1] / "docs" / "attributes.md").read_text().split("## Flags\n", 1)[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    return [(row[1], re.findall(r"`([a-z0-9_.]+)` ([^;]+)", row[-1])) for row in rows[2:]]


def test_each_flag_of_the_page_is_driven(kernel):
    """Burst's facts are the kernel's, unless the list says otherwise: `test_burst_answers_as_the_kernel`."""
    burst = {key: value for key, (_, value) in kernel.items()} | compare.expected("daemon", compare.load_differences())
    rows = rows_of_flags()
    assert len(rows) >= 16
    for flag, facts in rows:
        assert facts, f"{flag}: no behaviour shows what becomes of it"
        for key, value in facts:
            assert burst.get(key) == value.strip(), f"{flag}: {key}"


def test_the_list_names_facts_and_gives_reasons(kernel):
    for entry in compare.load_differences():
        assert len(entry["reason"].split()) > 3, entry
        assert set(entry["modes"]) <= set(compare.MODES) and entry["modes"], entry
        assert entry["facts"], entry


def test_the_comparison_finds_what_differs_and_what_is_stale():
    there = compare.parse("a.x = 1\na.y = 2\na.z >= 5\na.gone = 1\n")
    here = compare.parse("a.x = 1\na.y = 3\na.z >= 6\na.new = 1\n")
    found = compare.disagreements(there, here, {"a.x": "1", "a.y": "4"})
    assert [sentence.split(":")[0] for sentence in found] == ["a.gone", "a.new", "a.x", "a.y"]
    assert compare.disagreements(there, here, {"a.y": "3", "a.gone": compare.ABSENT, "a.new": "1"}) == []
    assert compare.disagreements(compare.parse("a.z >= 5"), compare.parse("a.z >= 4"), {}) == ["a.z: kernel 5, Burst 4"]
    for wrong in ("no fact", "a.x = 1\na.x = 1"):
        with pytest.raises(ValueError):
            compare.parse(wrong)
