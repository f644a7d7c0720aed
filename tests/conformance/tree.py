"""Brings rdma-core's test suite onto this machine: from PyPI's source package of pyverbs, built once, kept in a cache.

pyverbs carries a whole rdma-core tree. Of it the Cython modules are built, and what they link with; at run time our
libraries take the place of the tree's libibverbs and librdmacm. The cache is XDG_CACHE_HOME/burst/conformance; the
source package is pinned by its hash.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

VERSION = "59.0"
SHA256 = "b30d56bb620b3d3b4301876f9a04c964be1c76cc6553a451e1465f1c6ac9f20e"
# Later versions of Cython refuse the tree's syntax.
CYTHON = "3.0.12"


class Missing(Exception):
    """A part is missing and cannot be built."""


def cache():
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "burst" / "conformance" / f"{VERSION}-{sysconfig.get_config_var('SOABI')}"


def run(words, **options):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, **options)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise Missing(f"{' '.join(str(w) for w in words)}\n{tail}")
    return done.stdout


class Tree:
    """The unpacked and built tree."""

    def __init__(self, place):
        self.place = place
        self.source = place / f"pyverbs-{VERSION}" / "rdma-core"
        self.build = place / "build"
        self.modules = self.build / "python"
        # The provider libraries without the tree's own libibverbs and librdmacm.
        self.providers = place / "providers"
        self.python = place / "venv" / "bin" / "python"


def prepare(say):
    """The source tree, created if it is missing."""
    tree = Tree(cache())
    done = tree.place / "complete"
    if done.exists():
        return tree
    for tool in ("cmake", "ninja", "pkg-config", "cc"):
        if not shutil.which(tool):
            raise Missing(f"{tool} is missing: run scripts/install-deps --conformance")
    shutil.rmtree(tree.place, ignore_errors=True)
    tree.place.mkdir(parents=True)
    say(f"fetching pyverbs {VERSION} from PyPI")
    fetch(tree)
    say("building it (once; about two minutes)")
    build(tree)
    done.touch()
    return tree


def fetch(tree):
    run([sys.executable, "-m", "venv", tree.place / "venv"])
    pip = [tree.python, "-m", "pip", "--disable-pip-version-check", "-q"]
    run([*pip, "install", f"cython=={CYTHON}"])
    run([*pip, "download", "--no-deps", "--no-binary", ":all:", "-d", tree.place, f"pyverbs=={VERSION}"])
    archive = tree.place / f"pyverbs-{VERSION}.tar.gz"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SHA256:
        raise Missing(f"{archive.name} has the hash {digest}, not {SHA256}")
    run(["tar", "-xf", archive, "-C", tree.place])


def build(tree):
    """Built without optimization: the suite measures nothing, and compiling takes most of the time."""
    run([
        "cmake", "-S", tree.source, "-B", tree.build, "-G", "Ninja", "-DNO_MAN_PAGES=1", "-DNO_PYVERBS=0",
        "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_C_FLAGS=-O0", "-DCMAKE_SKIP_RPATH=ON",
        f"-DPYTHON_EXECUTABLE={tree.python}", f"-DCYTHON_EXECUTABLE={tree.python.parent / 'cython'}",
    ])
    targets = run(["ninja", "-C", tree.build, "-t", "targets", "all"]).splitlines()
    names = [line.split(":")[0] for line in targets if line.startswith("python/pyverbs/")]
    run(["ninja", "-C", tree.build, *(name for name in names if name.endswith(".so"))])
    tree.providers.mkdir()
    for name in ("libmlx5.so.1", "libefa.so.1"):
        (tree.providers / name).symlink_to(tree.build / "lib" / name)
