"""The rule about containers: what bounds each field of a struct of daemon or proxy that can grow.

`containers.txt` names every such field, and what bounds it, those of structs without names of fields (0) and of values of the process
(`static`) included; the rule finds fields that are not listed, entries for what is not there, rows that
the table of resources does not have, and constants that do not exist.
"""

import re

LIST = "scripts/tidy.d/containers.txt"
#: The table of resources, whose rows bound what is charged.
ROWS = "crates/base/ledger/src/resource.rs"
#: Crates whose structs are listed: those that keep something for programs and peers in the daemon, an engine or a proxy.
CRATES = (
    "hosts/host", "hosts/engine", "hosts/gsi", "hosts/metrics", "protocols/cm", "protocols/port", "protocols/port-dpdk", "protocols/relay",
    "protocols/transport", "protocols/urma", "bytes/mem", "bytes/netif", "bytes/shm", "base/base", "base/ledger", "base/peer", "base/span",
    "frontends/burstd", "frontends/inprocess", "frontends/proxy",
)
#: Files that only tests have.
OF_TESTS = re.compile(r"/(?:tests|testing)\.rs$")
GROWS = r"\b(?:VecDeque|HashMap|HashSet|BTreeMap|BTreeSet|Vec|BinaryHeap|SegQueue|Slab|AccountRing|UrmaPool|HandleTable)<"
CRATE = re.compile(r"crates/([^/]+/[^/]+)/src/")
#: Another name of such a type, in its crate.
ALIAS = re.compile(r"(?m)^(?:pub(?:\([a-z]+\))? )?type (\w+)(?:<[^=]*>)? = ([^;]*);")
STRUCT = re.compile(r"(?m)^(?:pub(?:\([a-z]+\))? )?struct (\w+)[^;{(]*\{\n(.*?)^\}", re.DOTALL)
#: A struct without names of fields: its field is called 0.
TUPLE = re.compile(r"(?m)^(?:pub(?:\([a-z]+\))? )?struct (\w+)[^;{(]*\(([^;{]*)\)(?: where [^;]*)?;")
#: A value of the process: its field is called `static`.
STATIC = re.compile(r"(?m)^\s*(?:pub(?:\([a-z]+\))? )?static (\w+): ([^;]*?)=")
FIELD = re.compile(r"(?m)^    (?:pub(?:\([a-z ]+\))? )?(\w+): (.*),$")
ENTRY = re.compile(r"(\S+) (\w+): ([\w ]+) = (row|most|within|config|turn|account) ?(.*)")


def fields(tree):
    """(crate, struct, field) with the place, for each field that can grow."""
    found, of_crate = {}, {}
    for path, source in tree.sources.items():
        crate = CRATE.match(path)
        names = [name for name, what in ALIAS.findall(source.code) if re.match(GROWS, what)]
        of_crate.setdefault(crate and crate.group(1), []).extend(rf"\b{name}\b" for name in names)
    for path, source in tree.sources.items():
        crate = CRATE.match(path)
        if not crate or crate.group(1) not in CRATES or OF_TESTS.search(path):
            continue
        grows = re.compile("|".join([GROWS, *of_crate[crate.group(1)]]))
        is_tested = lambda at, ranges=source.test_ranges: any(begin <= at < end for begin, end in ranges)  # noqa: E731
        for pattern, field in ((TUPLE, "0"), (STATIC, "static")):
            for one in pattern.finditer(source.code):
                if grows.search(one.group(2)) and not is_tested(one.start()):
                    found[crate.group(1), one.group(1), field] = f"{path}:{source.line(one.start(1))}"
        for struct in STRUCT.finditer(source.code):
            if is_tested(struct.start()):
                continue
            for field in FIELD.finditer(struct.group(2)):
                if grows.search(field.group(2)):
                    found[crate.group(1), struct.group(1), field.group(1)] = f"{path}:{source.line(struct.start(2) + field.start())}"
    return found


def containers(tree):
    """What can grow in the daemon has a bound that is written down."""
    if LIST not in tree.files:
        return
    there, listed = fields(tree), set()
    rows = set(re.findall(r'^    \w+, "(\w+)", "', tree.read(ROWS), re.MULTILINE)) if ROWS in tree.files else set()
    constants = {name for source in tree.sources.values() for name in re.findall(r"\bconst (\w+):", source.code)}
    for number, line in enumerate(tree.read(LIST).splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        entry = ENTRY.fullmatch(line)
        if not entry:
            yield f"{LIST}:{number}", "not of the form `CRATE STRUCT: FIELD... = BOUND`"
            continue
        crate, struct, names, kind, what = entry.groups()
        for name in names.split():
            listed.add((crate, struct, name))
            if (crate, struct, name) not in there:
                yield f"{LIST}:{number}", f"{struct} of {crate} has no field {name} that can grow"
        known, of = {"row": (rows, "row of the table of resources"), "most": (constants, "constant")}.get(kind, (None, None))
        for word in what.split() if known is not None else ():
            if word not in known:
                yield f"{LIST}:{number}", f"there is no {of} {word}"
    for key, place in sorted(there.items()):
        if key not in listed:
            yield place, f"{key[1]}.{key[2]} can grow: say in {LIST} what bounds it"


RULES = [containers]
