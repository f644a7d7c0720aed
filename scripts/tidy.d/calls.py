"""Which file of a crate needs which: imports (`modules.py`), and calls of methods that another file defines.

A call of a method is resolved by the type of what it is called on. A scanner of text knows that type for
- `self`, parameters, and locals with a type or made by `Type { … }`, `Type::f(…)` or from a known value,
- fields of structs of the crate and results of methods of the crate, in chains: `self.a.b().c()`.
Of a generic type the first type of the crate that it names counts: of `Option<Box<Head>>` it is `Head`.

Where the type is unknown, a method counts if only one function of the whole workspace has its name, and the standard library
has none.

It does not see: methods of traits (the call may lead anywhere), closures' parameters, patterns' bindings, free functions
without an import, and code that macros make. So each edge is one that a reader follows too, and some are missing.
"""

import re
from collections import Counter, defaultdict

import modules
import structure
from rust import ITEM

CALL = re.compile(r"\.\s*([a-z_]\w*)\s*(?:::<[^()]*>)?\(")
PATH_CALL = re.compile(r"\b([A-Z]\w*)::([a-z_]\w*)")
STRUCT = re.compile(r"\bstruct\s+([A-Z]\w*)")
FIELD = re.compile(r"([a-z_]\w*)\s*:(?!:)\s*(.+)$", re.DOTALL)
PARAMETER = re.compile(r"(?:mut\s+)?([a-z_]\w*)\s*:\s*(.+)$", re.DOTALL)
TYPED_LET = re.compile(r"\blet\s+(?:mut\s+)?([a-z_]\w*)\s*:\s*([^=;]+)=")
MADE_LET = re.compile(r"\blet\s+(?:mut\s+)?([a-z_]\w*)\s*=\s*([A-Z]\w*)(?:::(\w+))?\s*[({]")
CHAIN = r"(?:\s*\.\s*[a-z_]\w*(?:\([^()]*\))?(?:\[[^\]]*\])?\??)*"
CHAIN_LET = re.compile(rf"\blet\s+(?:mut\s+|Some\(|Ok\()*([a-z_]\w*)\)*\s*=\s*(?:&\s*(?:mut\s+)?)?([a-z_]\w*)({CHAIN})\s*(?:;|else\b|\{{)")
#: Methods that give what they are called on, or a part of it with the same type in its name.
TRANSPARENT = {"as_mut", "as_ref", "unwrap", "expect", "borrow", "borrow_mut", "lock", "iter", "iter_mut", "get", "get_mut", "first", "last"}
#: Names that types of the standard library have too.
STANDARD = set(
    "abs all and_then any append as_mut as_ref as_slice bytes clear clone close cmp contains count default drain end entry eq err "
    "expect extend fetch_add fill filter find first flush fmt fold for_each from get get_mut insert into is_empty iter iter_mut join "
    "keys last len load lock map max min new next ok open or_else parse pop pop_front position push push_back read recv remove replace "
    "reserve reset retain rev send set shrink_to_fit skip split start store sum swap take unwrap values wait wake write zip".split()
)


def workspace_names(tree):
    """How many functions of the workspace's product code have a name."""
    if not hasattr(tree, "_names"):
        tree._names = Counter(
            f.name.split("::")[-1] for crate in structure.crates(tree).values() for s in crate.sources.values() for f in structure.functions(s)
        )
    return tree._names


class Calls:
    """The calls between the files of one crate."""

    def __init__(self, tree, crate):
        self.names = workspace_names(tree)
        self.sources = structure.crates(tree)[crate].sources
        self.types = {m.group(2) for s in self.sources.values() for m in ITEM.finditer(s.code)}
        self.methods = defaultdict(lambda: defaultdict(set))  # type -> method -> files
        self.files = defaultdict(set)  # method -> files
        self.results = {}  # (type, method) -> text of the result's type
        self.fields = defaultdict(dict)  # type -> field -> text of its type
        for path, source in self.sources.items():
            self.read_fields(source)
            for f in structure.functions(source):
                if f.owner and not f.of_trait:
                    self.read_method(path, source, f)

    def read_fields(self, source):
        for m in STRUCT.finditer(source.code):
            at = structure.angle_end(source.code, m.end()) if source.code[m.end()] == "<" else m.end()
            body = source.body(at)
            for part in structure.parts(source.code[body[0] + 1 : body[1]]) if body else ():
                field = FIELD.search(part)
                if field:
                    self.fields[m.group(1)][field.group(1)] = field.group(2)

    def read_method(self, path, source, function):
        name = function.name.split("::")[-1]
        self.methods[function.owner][name].add(path)
        self.files[name].add(path)
        result = re.search(r"\)\s*->\s*(.+)$", source.code[function.start : function.opening], re.DOTALL)
        if result:
            self.results[function.owner, name] = re.sub(r"\bSelf\b", function.owner, result.group(1))

    def type_in(self, text):
        """The first type of the crate that a text names."""
        return next((t for t in re.findall(r"\b[A-Z]\w*", text or "") if t in self.types), None)

    def follow(self, kind, chain):
        """The type that a chain of fields and calls (`name` or `name()`) leads to from a type."""
        for step in chain:
            if step.endswith("()"):
                name = step[:-2]
                known = self.results.get((kind, name))
                kind = self.type_in(known) if known else kind if name in TRANSPARENT else None
            else:
                kind = self.type_in(self.fields[kind].get(step)) if kind in self.fields else None
            if kind is None:
                return None
        return kind

    def variables(self, source, function):
        """The types of a function's parameters and locals, where the text says them."""
        body = source.code[function.opening : function.closing]
        kinds = {"self": function.owner}
        own = function.owner or "Self"
        for text in function.parameters:
            m = PARAMETER.match(text)
            if m:
                kinds[m.group(1)] = self.type_in(re.sub(r"\bSelf\b", own, m.group(2)))
        for m in TYPED_LET.finditer(body):
            kinds.setdefault(m.group(1), self.type_in(m.group(2)))
        for m in MADE_LET.finditer(body):
            kind = own if m.group(2) == "Self" else m.group(2)
            made = self.type_in(self.results.get((kind, m.group(3)))) if m.group(3) else self.type_in(kind)
            kinds.setdefault(m.group(1), made)
        for m in CHAIN_LET.finditer(body):
            if kinds.get(m.group(2)):
                steps = re.findall(r"\.\s*([a-z_]\w*)(\()?", m.group(3))
                kinds.setdefault(m.group(1), self.follow(kinds[m.group(2)], [name + ("()" if call else "") for name, call in steps]))
        return kinds

    def receiver(self, source, function, at):
        """(variable, chain) that the call whose point stands at `at` is made on; the variable is None if it is none."""
        code, chain = source.code, []
        while True:
            at = len(code[function.opening : at].rstrip().rstrip("?")) + function.opening
            while code[at - 1] == "]":
                at = source.opening(at - 1)
            call = code[at - 1] == ")"
            at = source.opening(at - 1) if call else at
            word = re.search(r"\w*$", code[function.opening : at]).group()
            start = at - len(word)
            before = code[function.opening : start].rstrip()
            if not word:
                return None, chain
            if before.endswith(".") and not before.endswith(".."):
                chain.insert(0, word + ("()" if call else ""))
                at = function.opening + len(before) - 1
                continue
            return None if call or before.endswith("::") else word, chain

    def targets(self, source, function):
        """(file, what is called) of each call of a function that can be resolved."""
        kinds = self.variables(source, function)
        for m in CALL.finditer(source.code, function.opening, function.closing):
            name = m.group(1)
            if name not in self.files:
                continue
            variable, chain = self.receiver(source, function, m.start())
            kind = self.follow(kinds[variable], chain) if kinds.get(variable) else None
            if kind:
                yield from ((path, f"{kind}.{name}") for path in self.methods[kind].get(name, ()))
            elif variable != "self" and self.names[name] == 1 and name not in STANDARD:
                yield from ((path, f"?.{name}") for path in self.files[name])
        for m in PATH_CALL.finditer(source.code, function.opening, function.closing):
            kind = function.owner if m.group(1) == "Self" else m.group(1)
            if kind in self.methods:
                yield from ((path, f"{kind}::{m.group(2)}") for path in self.methods[kind].get(m.group(2), ()))

    def graph(self):
        """Called files by calling file, with one call as the reason."""
        edges = defaultdict(dict)
        for path, source in self.sources.items():
            # lib.rs names its modules' types to offer them, as its `mod` and `pub use` do.
            if not path.endswith(("/src/lib.rs", "/src/main.rs")):
                for function in structure.functions(source):
                    for target, reason in self.targets(source, function):
                        if target != path:
                            edges[path].setdefault(target, reason)
        return edges


def needs(tree):
    """By crate: which file needs which, by import or call."""
    if not hasattr(tree, "_needs"):
        tree._needs = modules.imports(tree)
        for crate, graph in tree._needs.items():
            for path, targets in Calls(tree, crate).graph().items():
                graph[path] |= set(targets)
    return tree._needs
