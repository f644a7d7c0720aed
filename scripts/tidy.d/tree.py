"""What the rules look at: the tracked files, the workspace's crates, and the commits. Tests replace it by a small tree."""

import json
import subprocess
from functools import cached_property
from pathlib import Path

from rust import Source

#: Folders whose files come from elsewhere and keep their form.
FOREIGN = ("tests/programs/third-party/",)
#: In a repository without tag and origin/main subjects are judged from the commit on that added this file.
SUBJECTS_SINCE = "scripts/tidy.d/README.md"


class Tree:
    """The working tree of a checkout."""

    def __init__(self, root):
        self.root = Path(root)

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
        base = self._git("rev-parse", "--verify", "--quiet", "origin/main^{commit}", may_fail=True)
        base = base or self._git("describe", "--tags", "--abbrev=0", may_fail=True)
        base = base or self._git("log", "--diff-filter=A", "--format=%H", "--", SUBJECTS_SINCE, may_fail=True).split("\n")[-1]
        if not base:
            return []
        log = self._git("log", "--no-merges", "--format=%h %s", f"{base.strip()}..HEAD", may_fail=True)
        return [tuple(line.split(" ", 1)) for line in log.splitlines()]

    def _git(self, *words, may_fail=False):
        result = subprocess.run(["git", *words], cwd=self.root, capture_output=True, text=True)
        if result.returncode and not may_fail:
            raise SystemExit(f"tidy: git {' '.join(words)}: {result.stderr.strip()}")
        return result.stdout.strip() if result.returncode == 0 else ""


class Sample(Tree):
    """A tree that exists only in a self-test: file contents, and optionally metadata and subjects."""

    def __init__(self, files, metadata=None, subjects=()):
        self._contents = files
        self.files = sorted(files)
        self.metadata = metadata or {"packages": [], "metadata": None}
        self.subjects = list(subjects)

    def read(self, path):
        return self._contents[path]
