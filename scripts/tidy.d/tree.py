"""What the rules look at: the tracked files, the workspace's crates, and the commits. Tests replace it by a small tree."""

import json
import subprocess
from collections import Counter
from functools import cached_property
from pathlib import Path

from rust import Source

#: Folders whose files come from elsewhere and keep their form.
FOREIGN = ("tests/programs/third-party/",)
#: In a repository without tag and origin/main subjects are judged from the commit on that added this file.
SUBJECTS_SINCE = "scripts/tidy.d/README.md"
#: Sizes of commits are judged in descendants of the commit that added this file.
SIZES_SINCE = "scripts/tidy.d/structure_rules.py"
#: Files whose lines are no part of a commit's size.
UNSIZED = ("Cargo.lock",)


class Tree:
    """The working tree of a checkout."""

    def __init__(self, root):
        self.root = Path(root)
        self.warnings = []  # (rule, item of its list, number that is true now or None)

    @cached_property
    def files(self):
        """Paths of all tracked and new files, relative to the root."""
        listed = self._git("ls-files", "--cached", "--others", "--exclude-standard").splitlines()
        return sorted(f for f in set(listed) if not f.startswith(FOREIGN) and (self.root / f).is_file())

    def read(self, path):
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    @cached_property
    def sources(self):
        """Every Rust file by its path."""
        return {path: Source(path, self.read(path)) for path in self.files if path.endswith(".rs")}

    @cached_property
    def metadata(self):
        """The answer of `cargo metadata` for the workspace alone."""
        words = ["cargo", "metadata", "--no-deps", "--format-version=1", "--locked"]
        return json.loads(subprocess.run(words, cwd=self.root, check=True, capture_output=True, text=True).stdout)

    @cached_property
    def subjects(self):
        """(hash, subject) of the commits that the rule about subjects judges: those after the last tag, or that are not in
        origin/main; without either those after the commit that added `SUBJECTS_SINCE`."""
        base = self._base
        if not base:
            return []
        log = self._git("log", "--no-merges", "--format=%h %s", f"{base}..HEAD", may_fail=True)
        return [tuple(line.split(" ", 1)) for line in log.splitlines()]

    @cached_property
    def _base(self):
        base = self._git("rev-parse", "--verify", "--quiet", "origin/main^{commit}", may_fail=True)
        base = base or self._git("describe", "--tags", "--abbrev=0", may_fail=True)
        return (base or self._added(SUBJECTS_SINCE)).strip()

    def _added(self, path):
        """The commit that added a file."""
        return self._git("log", "--diff-filter=A", "--format=%H", "--", path, may_fail=True).split("\n")[-1]

    @cached_property
    def commit_sizes(self):
        """(hash, new lines, body) of the commits that the rule about sizes judges: of those that `subjects` judges, the ones that
        have the rule. A line is new if the commit removes no equal one, in whatever file."""
        start = self._added(SIZES_SINCE)
        if not start or not self._base:
            return []
        words = ["log", "--no-merges", "--format=%h", "--ancestry-path", f"{start}..HEAD", f"^{self._base}"]
        return [(c, self._new_lines(c), self._git("show", "-s", "--format=%b", c)) for c in self._git(*words, may_fail=True).split()]

    def _new_lines(self, commit):
        added, removed = Counter(), Counter()
        excluded = [f":(exclude){path}" for path in UNSIZED]
        for line in self._git("show", "--format=", "--unified=0", "--no-renames", commit, "--", ".", *excluded).splitlines():
            if line[:1] in "+-" and not line.startswith(("+++ ", "--- ")) and line[1:].strip():
                (added if line[0] == "+" else removed)[line[1:].strip()] += 1
        return (added - removed).total()

    def _git(self, *words, may_fail=False):
        result = subprocess.run(["git", *words], cwd=self.root, capture_output=True, text=True)
        if result.returncode and not may_fail:
            raise SystemExit(f"tidy: git {' '.join(words)}: {result.stderr.strip()}")
        return result.stdout.strip() if result.returncode == 0 else ""


class Sample(Tree):
    """A tree that exists only in a self-test: file contents, and optionally metadata and subjects."""

    def __init__(self, files, metadata=None, subjects=(), sizes=()):
        self._contents = files
        self.files = sorted(files)
        self.metadata = metadata or {"packages": [], "metadata": None}
        self.subjects = list(subjects)
        self.commit_sizes = list(sizes)
        self.warnings = []

    def read(self, path):
        return self._contents[path]
