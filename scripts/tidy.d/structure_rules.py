"""Rules of structure, with lists of what was there before the rule: `exceptions/RULE.txt`.

A list has one item a line, sorted, and only gets shorter: `scripts/tidy --shrink` removes what is no longer true and lowers numbers
that have become lower; nothing adds an item. An item that is no longer true is a warning, not a violation, so that branches can be merged.
"""

import calls
import modules
import structure

CIRCLE_FILES_MAX = 8
COMPLEXITY_MAX = 15
PARAMETERS_MAX = 5
ASSERTIONS_MIN = 8.0
#: Crates whose code is held to `ASSERTIONS_MIN` assertions per 1,000 lines.
ASSERTING = ("transport", "urma", "engine", "relay", "host", "port", "cm", "shm", "mem")
COMMIT_LINES_MAX = 500
COMMIT_REASON = "Size:"


def exceptions_path(rule):
    return f"scripts/tidy.d/exceptions/{rule}.txt"


def exceptions(tree, rule):
    """The items of a rule's list."""
    path = exceptions_path(rule)
    lines = tree.read(path).splitlines() if path in tree.files else []
    return [line for line in lines if line and not line.startswith("#")]


def limits(tree, rule):
    """The items of a list whose last words are numbers: number by the words before it."""
    return {key: float(number) for key, number in (line.rsplit(" ", 1) for line in exceptions(tree, rule))}


def complex_functions(crate):
    """(path, function, complexity) of each function that is over."""
    for path, source in crate.sources.items():
        for f in structure.functions(source):
            number = structure.complexity(source, f)
            if number > COMPLEXITY_MAX:
                yield path, f, number


def wide_functions(crate):
    """(path, function, parameters) of each function that has too many."""
    for path, source in crate.sources.items():
        for f in structure.functions(source):
            number = structure.parameter_count(f)
            if number > PARAMETERS_MAX and not f.foreign:
                yield path, f, number


def judge(tree, rule, found, sentence):
    """Violations among (key, place, number), and warnings for items of the list that are no longer true."""
    listed, numbers = limits(tree, rule), {}
    for key, place, number in found:
        numbers[key] = max(number, numbers.get(key, 0))
        if number > listed.get(key, 0):
            limit = f"; its limit in {exceptions_path(rule)} is {listed[key]:g}" if key in listed else ""
            yield place, sentence.format(number=number, name=key.split()[-1]) + limit
    for key, limit in listed.items():
        if numbers.get(key, 0) < limit:
            tree.warnings.append((rule, key, numbers.get(key)))


def impl_outside(tree):
    """`impl T` stands in T's file or in modules below it."""
    listed, found = set(exceptions(tree, "impl_outside")), {}
    for crate in structure.crates(tree).values():
        for path, f in crate.outside():
            found.setdefault(f"{path} {f.owner}", (f"{path}:{f.line}", f.owner))
    for key, (place, owner) in found.items():
        if key not in listed:
            yield place, f"a method of {owner} stands outside of the type's file and the modules below it"
    for key in sorted(listed - found.keys()):
        tree.warnings.append(("impl_outside", key, None))


def complexity(tree):
    """A function has few ways through it."""
    found = [(f"{p} {f.name}", f"{p}:{f.line}", n) for crate in structure.crates(tree).values() for p, f, n in complex_functions(crate)]
    yield from judge(tree, "complexity", found, "fn {name} has a complexity of {number}; " + f"{COMPLEXITY_MAX} are allowed")


def parameters(tree):
    """A function's call can be read without counting."""
    found = [(f"{p} {f.name}", f"{p}:{f.line}", n) for crate in structure.crates(tree).values() for p, f, n in wide_functions(crate)]
    yield from judge(tree, "parameters", found, "fn {name} has {number} parameters; " + f"{PARAMETERS_MAX} are allowed")


def circles(tree):
    """Files of a crate that need each other in a circle, by imports or calls of methods, can only be understood together."""
    found = []
    for crate, graph in calls.needs(tree).items():
        for circle in modules.circles(graph):
            if len(circle) > CIRCLE_FILES_MAX:
                names = ", ".join(sorted(path.split("/src/")[1] for path in circle))
                found.append((crate, f"{crate} ({names})", len(circle)))
    yield from judge(tree, "circles", found, "{number} files need each other in a circle; " + f"{CIRCLE_FILES_MAX} are allowed")


def assertion_density(tree):
    """Crates of the protocol and around shared memory assert what they believe."""
    least = limits(tree, "assertion_density")
    for path, crate in structure.crates(tree).items():
        if path.split("/")[-1] in ASSERTING:
            density = crate.density()
            wanted = least.get(path, ASSERTIONS_MIN)
            if density < wanted:
                yield path, f"{density:.2f} assertions per 1,000 lines; {wanted:g} are the least"
            elif path in least and density >= min(wanted + 0.1, ASSERTIONS_MIN):
                tree.warnings.append(("assertion_density", path, min(int(10 * density) / 10, ASSERTIONS_MIN)))


def commit_size(tree):
    """A commit of many new lines says why it is not several. Lines that the commit removes elsewhere are moved, not new."""
    for commit, lines, body in tree.commit_sizes:
        if lines > COMMIT_LINES_MAX and not any(line.startswith(COMMIT_REASON) for line in body.splitlines()):
            yield commit, f"{lines} new lines; a commit of more than {COMMIT_LINES_MAX} needs a line `{COMMIT_REASON} why` in its body"


STRUCTURE_RULES = [impl_outside, complexity, parameters, circles, assertion_density, commit_size]


def shrink(tree):
    """Removes items of the lists that are no longer true, and lowers their numbers (raises: of assertions)."""
    for rule, key, number in tree.warnings:
        path = tree.root / exceptions_path(rule)
        lines = path.read_text().splitlines()
        at = lines.index(key) if rule == "impl_outside" else next(i for i, line in enumerate(lines) if line.rsplit(" ", 1)[0] == key)
        done = number is None or (rule == "assertion_density" and number >= ASSERTIONS_MIN)
        lines[at : at + 1] = [] if done else [f"{key} {number:g}"]
        path.write_text("\n".join(lines) + "\n")
