"""Measures of one Rust file: its `impl` blocks and methods, complexity and parameters of functions, assertions, lines of code.

Tests are left out everywhere: modules under `#[cfg(test)]`, and files of such modules (`modules.test_files`).

Complexity is McCabe's: 1, and 1 for each `if`, `while`, `for`, `&&`, `||`, `?`, `let … else`, and each arm of a `match` but its first.
Closures count for the function around them; functions inside of a function count for themselves.

Lines of code are neither blank nor comment. Assertions are counted per 1,000 of all lines, comments and blank ones among them.

Parameters include `self`. A pattern such as `(min, max): (u64, u64)` counts as two. Functions of a C interface (`extern "C"`) have no
limit: another project's header gives their signatures.
"""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

import modules
from rust import FUNCTION, ITEM

IMPL = re.compile(r"\bimpl\b")
TRAIT = re.compile(r"\btrait\s+([A-Za-z_]\w*)")
MACRO = re.compile(r"macro_rules!\s*\w+\s*[{(]")
BRANCH = re.compile(r"\b(?:if|while)\b|\bfor\b(?!\s*<)(?=[^{;]*\bin\b)|=>|\?(?!\s*Sized)")
MATCH = re.compile(r"\bmatch\b")
LET = re.compile(r"\blet\b")
LOGICAL = re.compile(r"&&|\|\|")
#: Before `&&` and `||` these make a reference to a reference and a closure of them.
NO_OPERAND = "(,:<=|{;&>"
ASSERTION = re.compile(r"\b(?:debug_)?assert(?:_eq|_ne)?!")


@dataclass(frozen=True)
class Function:
    """A function with a body, outside of tests."""

    name: str  # `Type::name` in an impl or a trait
    owner: str | None  # the type of the impl around it
    of_trait: bool  # in `impl Trait for Type`, or in a trait
    line: int
    start: int  # offset of `fn`
    opening: int
    closing: int
    parameters: tuple[str, ...]
    foreign: bool  # extern "C"


def angle_end(code, at):
    """Offset behind the `>` that closes the `<` at `at`."""
    depth = 0
    for i in range(at, len(code)):
        if code[i] == "<":
            depth += 1
        elif code[i] == ">" and code[i - 1] not in "-=":
            depth -= 1
            if depth == 0:
                return i + 1
    return len(code)


def parts(code):
    """The parts between commas that are in no bracket."""
    depth, part, found = 0, "", []
    for i, c in enumerate(code):
        depth += (c in "([{<") - (c in ")]}") - (c == ">" and code[i - 1] not in "-=")
        if c == "," and depth == 0:
            found.append(part)
            part = ""
        else:
            part += c
    return [p.strip() for p in (*found, part) if p.strip()]


def self_type(header):
    """(type, whether of a trait) of the text between `impl` and its brace. The type is None for slices and tuples."""
    flat, at = "", 0
    while at < len(header):
        if header[at] == "<":
            at = angle_end(header, at)
        else:
            flat += header[at]
            at += 1
    halves = re.split(r"\bfor\b", re.split(r"\bwhere\b", flat)[0])
    words = re.findall(r"[A-Za-z_]\w*", re.sub(r"'\w+|\b(?:mut|dyn|const)\b", "", halves[-1]))
    named = words and halves[-1].strip()[0] not in "(["
    return words[-1] if named else None, len(halves) > 1


def is_test(source, at):
    return any(start < at < end for start, end in source.test_ranges)


def in_macro(source, at):
    """Whether an offset lies in a `macro_rules!` definition."""
    return any(start < at < end for start, end in cached(source, "macros", macros))


def macros(source):
    return [(m.end() - 1, source.closing(m.end() - 1)) for m in MACRO.finditer(source.code)]


def cached(source, name, make):
    """A measure is made once for each file."""
    if name not in source.measures:
        source.measures[name] = make(source)
    return source.measures[name]


def impls(source):
    """(type, whether of a trait, opening, closing) of each `impl` block outside of tests and macros."""
    return cached(source, "impls", find_impls)


def find_impls(source):
    found = []
    for m in IMPL.finditer(source.code):
        before = source.code[: m.start()].rstrip()
        if before.endswith("unsafe"):
            before = before[: -len("unsafe")].rstrip()
        if (before and before[-1] not in ";{}]") or is_test(source, m.start()) or in_macro(source, m.start()):
            continue
        body = source.body(m.end())
        if body:
            found.append((*self_type(source.code[m.end() : body[0]]), *body))
    return found


def functions(source):
    """Every function with a body, outside of tests and macros."""
    return cached(source, "functions", find_functions)


def find_functions(source):
    traits = [(m.group(1), True, *body) for m in TRAIT.finditer(source.code) if (body := source.body(m.end()))]
    found = []
    for m in FUNCTION.finditer(source.code):
        body = source.body(m.end())
        if not body or is_test(source, m.start()) or in_macro(source, m.start()):
            continue
        around = [i for i in (*impls(source), *traits) if i[2] < m.start() < i[3]]
        # A function in the body of a method is no method.
        if any(f.opening < m.start() < f.closing for f in found):
            around = []
        owner, of_trait, *_ = max(around, key=lambda i: i[2], default=(None, False))
        name = f"{owner}::{m.group(1)}" if owner else m.group(1)
        foreign = bool(re.search(r"\bextern\s*$", source.code[: m.start()]))
        found.append(Function(name, owner, of_trait, source.line(m.start()), m.start(), *body, parameters(source, m.end()), foreign))
    return found


def parameters(source, at):
    """The texts of the parameters of the function whose name ends at `at`."""
    if source.code[at] == "<":
        at = angle_end(source.code, at)
    at = source.code.index("(", at)
    return tuple(parts(source.code[at + 1 : source.closing(at)]))


def parameter_count(function):
    """Parameters, `self` included; each name of a tuple pattern is one."""
    count = 0
    for text in function.parameters:
        pattern = re.match(r"\(([^()]*)\)\s*:", text)
        count += len(parts(pattern.group(1))) if pattern else 1
    return count


def complexity(source, function):
    """McCabe's number of a function, as the abstract above says."""
    code = source.code
    inner = [f for f in functions(source) if function.opening < f.start < function.closing]

    def own(pattern):
        for m in pattern.finditer(code, function.opening, function.closing):
            if not any(f.start <= m.start() < f.closing for f in inner):
                yield m.start()

    arms = sum(1 for _ in own(BRANCH)) - sum(1 for _ in own(MATCH))
    return 1 + arms + sum(is_logical(source, at) for at in own(LOGICAL)) + sum(is_let_else(source, at) for at in own(LET))


def is_logical(source, at):
    # In `text`, where a string still has its quotes.
    before = source.text[:at].rstrip()
    return before[-1] not in NO_OPERAND and not re.search(r"\b(?:move|return|else)$", before)


def is_let_else(source, at):
    """Whether the statement that begins with this `let` is `let … else {`."""
    code = source.code
    if re.search(r"\b(?:if|while)\s*$|&&\s*$", code[max(0, at - 16) : at]):
        return False
    branch = False
    while at < len(code) and code[at] not in ";}":
        if code[at] in "([{":
            at = source.closing(at) + 1
        elif code.startswith("if ", at) and not code[at - 1].isalnum():
            branch = True
            at += 3
        elif code.startswith("else", at) and not code[at - 1].isalnum():
            return not branch
        else:
            at += 1
    return False


def assertions(source):
    """How often a file asserts something, outside of tests."""
    return sum(1 for m in ASSERTION.finditer(source.code) if not is_test(source, m.start()))


def lines_of(source):
    """(lines of code, all lines): the first are neither blank nor comment; tests are in neither."""
    tests = [(source.line(a), source.line(b)) for a, b in source.test_ranges]
    kept = [line for n, line in enumerate(source.code.split("\n")[:-1], start=1) if not any(a <= n <= b for a, b in tests)]
    return sum(1 for line in kept if line.strip()), len(kept)


class CrateStructure:
    """The product files of a crate, its types, and which methods stand outside their type's file."""

    def __init__(self, tree, crate):
        tests = modules.test_files(tree)
        self.crate = crate
        self.sources = {p: s for p, s in tree.sources.items() if modules.crate_of(p) == crate and p not in tests}
        self.types = {}  # name -> files that define it; several under `cfg`
        for path, source in self.sources.items():
            for m in ITEM.finditer(source.code):
                if not is_test(source, m.start()) and not in_macro(source, m.start()):
                    self.types.setdefault(m.group(2), set()).add(path)

    def methods(self):
        """(path, function) of each method."""
        return [(p, f) for p, s in self.sources.items() for f in functions(s) if f.owner and self.in_impl(s, f)]

    def in_impl(self, source, function):
        return any(i[2] < function.start < i[3] for i in impls(source))

    def is_outside(self, path, owner):
        """Whether a file is neither the one of a type of this crate nor a module below it."""
        return owner in self.types and not any(path == file or path.startswith(f"{below(file)}/") for file in self.types[owner])

    def outside(self):
        return [(p, f) for p, f in self.methods() if self.is_outside(p, f.owner)]

    def lines(self):
        """(lines of code, all lines) without tests."""
        counts = [cached(s, "lines", lines_of) for s in self.sources.values()]
        return sum(code for code, _ in counts), sum(every for _, every in counts)

    def assertions(self):
        return sum(cached(s, "assertions", assertions) for s in self.sources.values())

    def density(self):
        """Assertions per 1,000 lines, comments among them."""
        return 1000 * self.assertions() / max(1, self.lines()[1])


def below(file):
    """The folder of the modules below a file. Below lib.rs is the whole crate: there a type's file is lib.rs alone."""
    path = PurePosixPath(file)
    if path.name in ("lib.rs", "main.rs"):
        return path
    return path.parent if path.name == "mod.rs" else path.parent / path.stem


def crates(tree):
    """The structure of each crate, made once."""
    if not hasattr(tree, "_structure"):
        tree._structure = {c: CrateStructure(tree, c) for c in sorted({modules.crate_of(p) for p in tree.sources} - {None})}
    return tree._structure
