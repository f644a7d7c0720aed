"""Modules of a crate: which file holds which module, what a file imports, and circles of imports."""

import re
from collections import defaultdict
from pathlib import PurePosixPath

USE = re.compile(r"\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")
INLINE = re.compile(r"\b(?:crate|super|self)(?:::\w+)+")
HOPS_MAX = 8


def crate_of(path):
    """The folder of the crate to whose `src` a file belongs, or None."""
    m = re.match(r"(crates/[^/]+/[^/]+)/src/", path)
    return m.group(1) if m else None


def module_files(tree, crate):
    """File by module path (a tuple of names; the root is empty), from the `mod` declarations."""
    root = f"{crate}/src/lib.rs" if f"{crate}/src/lib.rs" in tree.sources else f"{crate}/src/main.rs"
    found, todo = {}, [((), root)]
    while todo:
        module, path = todo.pop()
        if path not in tree.sources or module in found:
            continue
        found[module] = path
        here = PurePosixPath(path)
        folder = here.parent if here.name in ("lib.rs", "main.rs", "mod.rs") else here.parent / here.stem
        for name, _, explicit in tree.sources[path].declared_modules:
            candidates = [here.parent / explicit] if explicit else [folder / f"{name}.rs", folder / name / "mod.rs"]
            todo += [((*module, name), str(c)) for c in candidates if str(c) in tree.sources]
    return found


def declarations(tree):
    """(file, text of cfg attributes, declaring file) of each module of each crate that has a file of its own."""
    if not hasattr(tree, "_declarations"):
        tree._declarations = []
        for crate in sorted({crate_of(p) for p in tree.sources} - {None}):
            files = module_files(tree, crate)
            for module, path in files.items():
                if module:
                    parent = files[module[:-1]]
                    cfg = next(c for name, c, _ in tree.sources[parent].declared_modules if name == module[-1])
                    tree._declarations.append((path, cfg, parent))
    return tree._declarations


def cfg_of(tree, path):
    """The cfg attributes of the declarations of a file's module and of those around it."""
    text = ""
    while path:
        path, cfg = next(((parent, cfg) for file, cfg, parent in declarations(tree) if file == path), (None, ""))
        text += cfg
    return text


def test_files(tree):
    """Files of modules that are compiled for tests only."""
    return {file for file, _, _ in declarations(tree) if re.search(r"\btest\b", cfg_of(tree, file))}


def use_paths(text):
    """(path, name) of each leaf of a use tree: `a::{b, c as d}` is (a, b) under b and (a, c) under d."""
    text = re.sub(r"\s+", " ", text).strip()
    opening = text.find("{")
    if opening >= 0 and text.endswith("}"):
        prefix = [s for s in text[:opening].strip().split("::") if s]
        for part in split(text[opening + 1 : -1]):
            for path, name in use_paths(part):
                yield prefix + path, name if path != ["self"] else prefix[-1]
        return
    words = text.split(" as ")
    path = [s.strip() for s in words[0].split("::") if s.strip()]
    if path:
        yield path, words[1].strip() if len(words) > 1 else path[-1]


def split(text):
    """The parts between commas that are not in braces."""
    depth, part, parts = 0, "", []
    for c in text:
        depth += (c == "{") - (c == "}")
        if c == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += c
    return [p for p in (*parts, part) if p.strip()]


def absolute(path, module, depth_inline):
    """A path of crate, self or super as names from the root; None for another crate's."""
    module = list(module)
    if path[0] == "crate":
        return path[1:]
    if path[0] == "self":
        return module + path[1:]
    ups = 0
    while ups < len(path) and path[ups] == "super":
        ups += 1
    if not ups:
        return None
    # In an inline module the first `super` is the file itself.
    ups_file = max(0, ups - depth_inline)
    return module[: len(module) - ups_file] + path[ups:] if ups_file <= len(module) else None


class Crate:
    """Imports of one crate, with re-exports followed to the file that defines a name."""

    def __init__(self, tree, crate):
        self.tree = tree
        tests = test_files(tree)
        self.files = {m: p for m, p in module_files(tree, crate).items() if p not in tests}
        self.reexports = defaultdict(dict)  # module -> name -> absolute path
        for module, path in self.files.items():
            for used, name in self.uses(module, path):
                self.reexports[module][name] = used

    def uses(self, module, path):
        source = self.tree.sources[path]
        for m in USE.finditer(source.code):
            if any(o < m.start() < c for o, c in source.test_ranges):
                continue
            depth = sum(1 for _, o, c, _ in source.inline_modules if o < m.start() < c)
            for words, name in use_paths(m.group(2)):
                names = absolute(words, module, depth)
                # Since 2018 a path may begin with a child module.
                if names is None and (*module, words[0]) in self.files:
                    names = [*module, *words]
                if names is not None:
                    yield tuple(n for n in names if n not in ("*", "self")), name

    def inline(self, module, path):
        source = self.tree.sources[path]
        for m in INLINE.finditer(source.code):
            if not any(o < m.start() < c for o, c in source.test_ranges):
                depth = sum(1 for _, o, c, _ in source.inline_modules if o < m.start() < c)
                names = absolute(m.group().split("::"), module, depth)
                if names:
                    yield tuple(names), names[-1]

    def resolve(self, names, hops=0):
        """The file that defines what `names` leads to."""
        at = ()
        for i, name in enumerate(names):
            if (*at, name) in self.files:
                at = (*at, name)
                continue
            onward = self.reexports[at].get(name)
            if onward and onward != tuple(names[: i + 1]) and hops < HOPS_MAX:
                return self.resolve((*onward, *names[i + 1 :]), hops + 1)
            break
        return self.files.get(at)

    def graph(self):
        edges = defaultdict(set)
        for module, path in self.files.items():
            for names, _ in (*self.uses(module, path), *self.inline(module, path)):
                target = self.resolve(names)
                # A facade that names its children imports them; children that name each other through it are resolved.
                if target and target != path:
                    edges[path].add(target)
        return edges


def imports(tree):
    """By crate: which file imports which."""
    return {crate: Crate(tree, crate).graph() for crate in sorted({crate_of(p) for p in tree.sources} - {None})}


def circles(graph):
    """Strongly connected components with more than one member (Tarjan, without recursion)."""
    index, low, on, stack, found = {}, {}, set(), [], []
    for root in sorted(graph):
        if root in index:
            continue
        work = [(root, iter(sorted(graph.get(root, ()))))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on.add(root)
        while work:
            node, children = work[-1]
            child = next(children, None)
            if child is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = set()
                    while True:
                        member = stack.pop()
                        on.discard(member)
                        component.add(member)
                        if member == node:
                            break
                    if len(component) > 1:
                        found.append(component)
            elif child not in index:
                index[child] = low[child] = len(index)
                stack.append(child)
                on.add(child)
                work.append((child, iter(sorted(graph.get(child, ())))))
            elif child in on:
                low[node] = min(low[node], index[child])
    return found
