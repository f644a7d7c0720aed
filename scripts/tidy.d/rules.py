"""The rules. Each is a function from a tree to (place, sentence) pairs, one for each violation, and is listed in `RULES`.

A rule finds nothing that is right: where a rule cannot decide, it says nothing. Every rule has a bad and a good sample in `samples.py`.
"""

import re
from collections import defaultdict

import containers
import documents
import modules
import structure
import words
from rust import ITEM
from structure_rules import STRUCTURE_RULES

#: The place of crates that only measure.
EXPERIMENTS = "experiments"
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800
COMMENT_COLUMNS_MAX = 130
SUBJECT_COLUMNS_MAX = 72
#: Files with lines of their own length: tables of symbols, hexadecimal vectors.
CODE_ENDINGS = (".rs", ".py", ".c", ".h", ".sh", ".awk", ".bt")

#: Kinds of targets that rustdoc can test.
LIBRARIES = {"lib", "rlib", "staticlib"}
#: What follows ``` where rustdoc compiles the block.
RUSTDOC_TESTS = re.compile(r"(|(rust|no_run|should_panic|ignore|compile_fail|edition\d+)(,.*)?)")


def storey_of(package):
    """(storey, crate) from the folder of a crate's manifest: crates/STOREY/CRATE/Cargo.toml. Crates of experiments/ stand on
    all storeys: nothing depends on them."""
    parts = package["manifest_path"].split("/")
    if parts[-3] == "experiments":
        return EXPERIMENTS, parts[-2]
    return (parts[-3], parts[-2]) if len(parts) >= 4 and parts[-4] == "crates" else (None, package["name"])


def storeys(tree):
    """A crate depends on lower storeys, and on neighbours that Cargo.toml lists."""
    table = (tree.metadata.get("metadata") or {}).get("storeys", {})
    order, allowed = table.get("order", []), set(table.get("neighbours", []))
    place = {package["name"]: storey_of(package) for package in tree.metadata["packages"]}
    used = set()
    for package in tree.metadata["packages"]:
        storey, crate = place[package["name"]]
        if storey == EXPERIMENTS:
            continue
        if storey not in order:
            yield package["name"], f"its folder is none of the storeys {', '.join(order)} of [workspace.metadata.storeys]"
            continue
        for dependency in package["dependencies"]:
            below, other = place.get(dependency["name"], (None, None))
            if below == EXPERIMENTS:
                yield package["name"], f"{storey}/{crate} depends on experiments/{other}"
            if below not in order or dependency["kind"] == "dev":
                continue
            edge = f"{crate} -> {other}"
            if order.index(below) > order.index(storey):
                yield package["name"], f"{storey}/{crate} depends on {below}/{other}, which is in a higher storey"
            elif below == storey:
                used.add(edge)
                if edge not in allowed:
                    yield package["name"], f"{crate} depends on its neighbour {other}: not in neighbours of [workspace.metadata.storeys]"
    for edge in sorted(allowed - used):
        yield "Cargo.toml", f'neighbours of [workspace.metadata.storeys] lists "{edge}", which no crate needs'


def function_length(tree):
    """A function fits a screen."""
    for path, source in tree.sources.items():
        for name, first, last, _, _ in source.functions:
            if last - first + 1 > FUNCTION_LINES_MAX:
                yield f"{path}:{first}", f"fn {name} has {last - first + 1} lines; {FUNCTION_LINES_MAX} are allowed"


def file_length(tree):
    """A file has one job."""
    for path in tree.files:
        if path.endswith(CODE_ENDINGS):
            lines = tree.read(path).count("\n")
            if lines > FILE_LINES_MAX:
                yield path, f"{lines} lines; {FILE_LINES_MAX} are allowed"


def comment_width(tree):
    """Comments are narrow enough to be read beside another file."""
    for path, source in tree.sources.items():
        wide = set()
        for start, end in source.comments:
            first = source.line(start)
            begin = source.text.rfind("\n", 0, start) + 1
            for number, line in enumerate(source.text[begin:end].split("\n"), start=first):
                if len(line) > COMMENT_COLUMNS_MAX and number not in wide:
                    wide.add(number)
                    yield f"{path}:{number}", f"a comment reaches column {len(line)}; {COMMENT_COLUMNS_MAX} are allowed"


def abstract(tree):
    """A file opens with what it is and does."""
    for path, source in tree.sources.items():
        first = source.text.split("\n", 1)[0]
        if not first.startswith("//! ") or len(first) < 12:
            yield f"{path}:1", "the file does not open with an abstract (//! what it is and does)"


def module_table(tree):
    """A table of modules in a lib.rs lists the modules that there are."""
    for path, source in tree.sources.items():
        if not path.endswith("src/lib.rs"):
            continue
        header = re.search(r"^//! \| (module|file) \|", source.text, re.MULTILINE)
        if not header:
            continue
        listed = set()
        for line in source.text[header.end() :].split("\n")[1:]:
            if not line.startswith("//! |"):
                break
            listed |= set(re.findall(r"`([a-z_0-9]+)`", line.split("|")[1]))
        declared = {name for name, cfg, _ in source.declared_modules if "test" not in cfg}
        for name in sorted(listed - declared):
            yield path, f"the table lists `{name}`, which is no module of the crate"
        for name in sorted(declared - listed):
            yield path, f"the table does not list the module `{name}`"


def unique_types(tree):
    """A type's name means one thing in the workspace. Alternatives under `cfg` in one crate are one thing."""
    places = defaultdict(list)
    tests = modules.test_files(tree)
    for path, source in tree.sources.items():
        crate = re.match(r"crates/([^/]+/[^/]+)/src/", path)
        if not crate or path in tests:
            continue
        inside = [(o, c) for *_, o, c in source.functions] + source.test_ranges
        for m in ITEM.finditer(source.code):
            if not any(o < m.start() < c for o, c in inside) and not structure.in_macro(source, m.start()):
                cfg = source.cfg_before(m.start()) or modules.cfg_of(tree, path)
                places[m.group(2)].append((crate.group(1), f"{path}:{source.line(m.start())}", bool(cfg)))
    for name, found in sorted(places.items()):
        crates = {crate for crate, _, _ in found}
        if len(found) > 1 and (len(crates) > 1 or not all(cfg for _, _, cfg in found)):
            for _, place, _ in found:
                others = ", ".join(p for _, p, _ in found if p != place)
                yield place, f"type {name} is defined here and in {others}"


def safety(tree):
    """Each unsafe block, `unsafe impl`, `unsafe extern` block and public unsafe function has its reason in a comment that says SAFETY.

    A private unsafe function has it at the operations inside, which are blocks of their own (unsafe_op_in_unsafe_fn). In an
    integration test a `SAFETY:` in the file's abstract counts for the whole file.
    """
    for path, source in tree.sources.items():
        if "/tests/" in path and re.search(r"^//!.*SAFETY:", source.text, re.MULTILINE):
            continue
        for m in re.finditer(r"(\bpub\s+)?\bunsafe\s*(\{|impl\b|extern\s*\{|fn\b)", source.code):
            what = m.group(2).split("{")[0].strip() or "block"
            if what == "fn" and (not m.group(1) or not source.body(m.end())):
                continue
            if not explained(source, m.start()):
                yield f"{path}:{source.line(m.start())}", f"this unsafe {what} has no SAFETY comment"


def explained(source, at):
    """Whether a comment before the statement at `at`, or before one that encloses it, says SAFETY."""
    for _ in range(8):
        begin = max(source.code.rfind(c, 0, at) for c in ";{}")
        if any(begin < start < at and re.search(r"safety", source.text[start:end], re.IGNORECASE) for start, end in source.comments):
            return True
        if begin < 0 or source.code[begin] == ";":
            return False
        if source.code[begin] == "}":
            # `if … { … } else`, `match … { … }.method()`, `let S { a } = …`: the same statement goes on.
            if not re.match(r"\s*(else\b|[.?)=])", source.code[begin + 1 :]):
                return False
            at = source.opening(begin)
        elif re.search(r"\b(fn|impl|trait|mod)\b[^;{}]*$", source.code[:begin]):
            return False
        else:
            # The braces of a struct literal, a closure or an `if`: the comment may stand before the whole statement.
            at = begin
    return False


def doc_tests(tree):
    """A crate whose manifest turns documentation tests off (`doctest = false`; each crate with them costs a run of rustdoc) has none."""
    for package in tree.metadata["packages"]:
        if all(target["doctest"] or not set(target["kind"]) & LIBRARIES for target in package.get("targets", [])):
            continue
        # crates/STOREY/CRATE or experiments/CRATE
        folder = package["manifest_path"].rsplit("/", 1)[0]
        for path, source in tree.sources.items():
            if path.count("/") >= 2 and folder.endswith("/" + path.split("/src/")[0]):
                fences = re.findall(r"^\s*//[/!] ```(.*)$", source.text, re.MULTILINE)[::2]
                if any(RUSTDOC_TESTS.fullmatch(fence.strip()) for fence in fences):
                    yield path, "the example in the documentation is not tested: the crate's Cargo.toml has `doctest = false`"


def subjects(tree):
    """A commit's subject is `crate: what changed`."""
    for commit, subject in tree.subjects:
        if len(subject) > SUBJECT_COLUMNS_MAX:
            yield commit, f"the subject has {len(subject)} characters; {SUBJECT_COLUMNS_MAX} are allowed: {subject}"
        if not re.match(r"[A-Za-z.][A-Za-z0-9_./, -]*: \S", subject):
            yield commit, f"the subject is not of the form `crate: what changed`: {subject}"


RULES = [
    storeys, function_length, file_length, comment_width, abstract, module_table, unique_types, safety, doc_tests,
    subjects,
    *containers.RULES, *documents.RULES, *words.RULES, *STRUCTURE_RULES,
]  # fmt: skip
