"""Rules for documents: what they name exists, they are not longer than they should be, and what a program writes is in step."""

import re
from pathlib import PurePosixPath

import written
from lab import papers

ARCHITECTURE_WORDS_MAX = 1500
README_LINES_MAX = 150
ENDINGS = ("rs", "py", "c", "h", "sh", "lua", "bt", "md", "toml", "jsonl")
#: Files that a document names although they are not part of the tree: they are a user's.
FOREIGN_FILES = {"/etc/burst/burstd.toml", "burstd.toml", "incast.toml"}
FOLDERS = ("crates", "docs", "experiments", "fuzz", "scripts", "share", "tests")
NAMED = re.compile(r"`([\w.][\w./-]*)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
#: A document, and perhaps a section of it, that a comment or a string names.
DOCUMENT = re.compile(r"\bdocs/[\w./-]+\.md(?:#[\w-]+)?")
#: Quoted names of environment variables, as a program or a script reads them.
VARIABLE = re.compile(r"[\"'](BURST_[A-Z_]*[A-Z])[\"']")
SHELL_VARIABLE = re.compile(r"\$\{?(BURST_[A-Z_]*[A-Z])|\b(BURST_[A-Z_]*[A-Z])=")
#: Samples of this program, and bytes for fuzz targets.
SAMPLES = ("scripts/tidy.d/samples.py", "fuzz/corpus/")
#: The table from which docs/configuration.md is written: what stands there is not read there.
TABLE = "crates/hosts/config/src/environment.rs"


def parents(path):
    """All folders above a path."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


class Places:
    """What a document may name: files and folders of the tree, whole or without what is before the crate's name."""

    def __init__(self, tree):
        self.files = set(tree.files)
        self.folders = {folder for path in tree.files for folder in parents(path)}
        self.crates = {path.split("/")[2]: "/".join(path.split("/")[:3]) for path in tree.files if re.match(r"crates/[^/]+/[^/]+/", path)}
        self.ends = {}
        for path in self.files | self.folders:
            self.ends.setdefault(PurePosixPath(path).name, []).append(path)

    def has(self, name):
        """Whether a whole path, or `crate/module.rs`, `folder/file` or `file.rs`, is in the tree."""
        name = name.rstrip("/")
        if name in self.files or name in self.folders:
            return True
        if any(path.endswith(f"/{name}") for path in self.ends.get(PurePosixPath(name).name, [])):
            return True
        crate, _, rest = name.partition("/")
        return crate in self.crates and any(
            f"{self.crates[crate]}/{folder}/{rest}" in self.files for folder in ("src", "tests", "examples", "benches", "csrc")
        )

    def is_path(self, name):
        """Whether a name in backticks must be a path of the tree."""
        if name in FOREIGN_FILES or re.search(r"\b[A-Z]+\b", name.split("/")[-1].split(".")[0]):
            return False  # A last part in capital letters is a placeholder.
        first = name.split("/")[0]
        return ("/" in name and first in FOLDERS) or re.search(rf"\.({'|'.join(ENDINGS)})$", name) is not None


def document_paths(tree):
    """Files that documents name exist; so do documents that code names."""
    places = Places(tree)
    for path in tree.files:
        is_read = path.endswith((".md", ".rs", ".py", ".lua", ".h", ".toml", ".service")) or "." not in path
        text = tree.read(path) if is_read and not path.startswith(SAMPLES) else ""
        for number, line in enumerate(text.split("\n"), start=1):
            names = [n for n in NAMED.findall(line) if places.is_path(n)] if path.endswith(".md") else DOCUMENT.findall(line)
            for name in names:
                if not places.has(name.split("#")[0]):
                    yield f"{path}:{number}", f"there is no {name}"


def anchors(text):
    """The anchors of a document's headings, as GitHub makes them."""
    found, fenced = set(), False
    for line in text.split("\n"):
        fenced ^= line.startswith("```")
        if not fenced and (m := re.match(r"#{1,6} (.*)", line)):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", m.group(1)).replace("`", "").strip().lower()
            slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            found.add(slug if slug not in found else next(f"{slug}-{i}" for i in range(1, 99) if f"{slug}-{i}" not in found))
    return found


def links(tree):
    """Links of documents lead to files and headings that exist; so do anchors that code names."""
    headings = {path: anchors(tree.read(path)) for path in tree.files if path.endswith(".md")}
    folders = {folder for path in tree.files for folder in parents(path)}
    for path in headings:
        for number, line in enumerate(tree.read(path).split("\n"), start=1):
            for target in LINK.findall(line):
                if re.match(r"[a-z]+:", target):
                    continue
                name, _, anchor = target.partition("#")
                there = join(path, name) if name else path
                if there not in tree.files and there not in folders:
                    yield f"{path}:{number}", f"the link {target} leads to no file"
                elif anchor and anchor not in headings.get(there, ()):
                    yield f"{path}:{number}", f"the link {target} leads to no heading"


def join(path, name):
    """The path in the tree of a link `name` in the document `path`."""
    parts = path.split("/")[:-1]
    for part in name.rstrip("/").split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def document_lengths(tree):
    """The first pages that a reader opens stay short."""
    if "ARCHITECTURE.md" in tree.files:
        words = len(tree.read("ARCHITECTURE.md").split())
        if words > ARCHITECTURE_WORDS_MAX:
            yield "ARCHITECTURE.md", f"{words} words; {ARCHITECTURE_WORDS_MAX} are allowed"
    if "README.md" in tree.files:
        lines = tree.read("README.md").count("\n")
        if lines > README_LINES_MAX:
            yield "README.md", f"{lines} lines; {README_LINES_MAX} are allowed"


def document_index(tree):
    """docs/README.md leads to every document of docs, directly or by the index of its folder."""
    index = "docs/README.md"
    if index not in tree.files:
        return
    for path in tree.files:
        if path.startswith("docs/") and path.endswith(".md") and path != index:
            folder = "/".join(path.split("/")[:-1])
            above = index if folder == "docs" or path.endswith("/README.md") else f"{folder}/README.md"
            listed = {join(above, target.split("#")[0]) for target in LINK.findall(tree.read(above))} if above in tree.files else set()
            if path not in listed:
                yield above, f"the index does not lead to {path}"


def written_parts(tree):
    """What scripts/documents writes is in step with code and measurements."""
    for path, _ in written.stale(tree):
        yield path, "a part that is made from code or measurements is stale: run scripts/documents"


def paper_tables(tree):
    """Rows about figures of publications name commands and sections that exist, and numbers that stand there."""
    yield from papers.faults(tree)


def variables(tree):
    """Each environment variable that the product reads stands in docs/configuration.md, and each of tests and scripts in CONTRIBUTING.md."""
    tables = {"docs/configuration.md": set(), "CONTRIBUTING.md": set()}
    for document in tables:
        if document in tree.files:
            tables[document] = set(re.findall(r"`(BURST_[A-Z0-9_]+)`", tree.read(document)))
    both = tables["docs/configuration.md"] | tables["CONTRIBUTING.md"]
    read = set()
    for path, number, name, is_product in variables_read(tree):
        read.add(name)
        document = "docs/configuration.md" if is_product else "CONTRIBUTING.md"
        if name not in (tables[document] if is_product else both):
            yield f"{path}:{number}", f"{name} does not stand in {document}"
    for document, names in tables.items():
        for name in sorted(names - read):
            yield document, f"no code reads {name}"


def variables_read(tree):
    """(file, line, name, whether it is the product that reads it) of each environment variable."""
    for path in tree.files:
        if path.endswith(".rs") and path != TABLE:
            source = tree.sources[path]
            is_product = re.match(r"crates/[^/]+/[^/]+/src/", path) is not None and not re.search(r"/tests?(\.rs|/)", path)
            unread = source.comments + (source.test_ranges if is_product else [])
            for m in VARIABLE.finditer(source.text):
                if not any(first <= m.start() < last for first, last in unread):
                    yield path, source.line(m.start()), m.group(1), is_product
        elif path.startswith(("scripts/", "tests/", "fuzz/", "experiments/", ".ci/", "Makefile")) and not path.startswith(SAMPLES):
            text = tree.read(path) if path.endswith((".py", ".sh")) or "." not in path.split("/")[-1] else ""
            for number, line in enumerate(text.split("\n"), start=1):
                for name in VARIABLE.findall(line) + [a or b for a, b in SHELL_VARIABLE.findall(line)]:
                    yield path, number, name, False


RULES = [document_paths, links, document_lengths, document_index, written_parts, paper_tables, variables]
