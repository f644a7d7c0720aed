"""The rule about containers: what bounds each field of a struct of daemon or proxy that can grow.

`containers.txt` names every such field, and what bounds it; the rule finds fields that are not listed, entries for what is not there, rows that
the table of resources does not have, and constants that do not exist.
"""

import re

LIST = "scripts/tidy.d/containers.txt"
#: The table of resources, whose rows bound what is charged.
ROWS = "crates/base/ledger/src/resource.rs"
#: Crates whose structs are listed: those that keep something for programs and peers in the daemon, an engine or a proxy.
CRATES = (
    "hosts/host", "hosts/engine", "hosts/gsi", "hosts/metrics", "protocols/cm", "protocols/port", "protocols/port-dpdk", "protocols/relay",
    "protocols/transport", "protocols/urma", "bytes/mem", "bytes/netif", "frontends/burstd", "frontends/inprocess", "frontends/proxy",
)
#: Files that only tests have.
OF_TESTS = re.compile(r"/(?:tests|testing)\.rs$")
GROWS = re.compile(r"\b(?:VecDeque|HashMap|HashSet|BTreeMap|BTreeSet|Vec|BinaryHeap|SegQueue|Slab|AccountRing)<")
STRUCT = re.compile(r"(?m)^(?:pub(?:\([a-z]+\))? )?struct (\w+)[^;{(]*\{\n(.*?)^\}", re.DOTALL)
FIELD = re.compile(r"(?m)^    (?:pub(?:\([a-z ]+\))? )?(\w+): (.*),$")
ENTRY = re.compile(r"(\S+) (\w+): ([\w ]+) = (row|most|within|config|turn|account) ?(.*)")


def fields(tree):
    """(crate, struct, field) with the place, for each field that can grow."""
    found = {}
    for path, source in tree.sources.items():
        crate = re.match(r"crates/([^/]+/[^/]+)/src/", path)
        if not crate or crate.group(1) not in CRATES or OF_TESTS.search(path):
            continue
        for struct in STRUCT.finditer(source.code):
            if any(begin <= struct.start() < end for begin, end in source.test_ranges):
                continue
            for field in FIELD.finditer(struct.group(2)):
                if GROWS.search(field.group(2)):
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
