"""Ways in which Burst's library gets into a program, and programs that were compiled against other releases of it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import BUILD
from lab import run_pair

LIB = BUILD / "lib"
PROGRAMS = BUILD / "programs"
PRELOAD = {"LD_PRELOAD": f"{LIB / 'libibverbs.so.1'}:{LIB / 'librdmacm.so.1'}"}


def plainly(host, *words, env):
    """Runs a program with only the given environment and the socket: (exit code, output)."""
    return host.run(*words, env={"BURST_SOCKET": str(host.socket), **env}, plain=True)


@pytest.mark.parametrize("env", [{"LD_LIBRARY_PATH": str(LIB)}, PRELOAD], ids=["library-path", "preload"])
def test_a_linked_program(fabric, env):
    code, text = plainly(fabric.a, "ibv_devinfo", "-d", "burst0", env=env)
    assert code == 0 and "PORT_ACTIVE" in text, text

def test_without_them_the_program_finds_no_device_of_burst(fabric):
    code, text = plainly(fabric.a, "ibv_devices", env={})
    assert "burst0" not in text, text


def test_data_of_a_preloaded_program(fabric, monkeypatch):
    """The library search path does not name our folder here."""
    for host in fabric.hosts:
        monkeypatch.setattr(host, "environment", lambda extra=None, h=host: {**os.environ, "BURST_SOCKET": str(h.socket), **(extra or {})})
    assert run_pair(fabric.b, fabric.a, ["ib_write_bw", "-d", "burst0", "-F", "-n", 100], env=PRELOAD).row[1] == 100


@pytest.fixture(scope="module")
def vendored(tmp_path_factory):
    """A program with a run path to a verbs library under a hashed name, as Python wheels carry it."""
    place = tmp_path_factory.mktemp("wheel")
    source = Path(__file__).parent / "programs" / "vendored"
    library = "libibverbs-1de1263b.so.1.14.48.0"
    compile_ = ["cc", "-Wall", "-Wextra", "-Werror", source / "vendored.c"]
    as_library = ["-DLIBRARY", "-shared", "-fPIC", f"-Wl,-soname,{library}", f"-Wl,--version-script={source / 'versions.map'}"]
    subprocess.run([*compile_, *as_library, "-o", place / library], check=True)
    packages = "lib/python3.11/site-packages/some.libs"
    run_paths = ["-Wl,-rpath,$ORIGIN", f"-Wl,-rpath,$ORIGIN/../{packages}"]
    subprocess.run([*compile_, place / library, *run_paths, "-o", place / "program"], check=True)
    # And an environment of Python, in which the copy lies where auditwheel puts it.
    for directory, file in (("environment/bin", place / "program"), (f"environment/{packages}", place / library)):
        (place / directory).mkdir(parents=True)
        shutil.copy(file, place / directory)
    return place / "program"


def test_a_vendored_copy_gives_way_to_a_preload_alone(fabric, vendored):
    assert plainly(fabric.a, vendored, env={"LD_LIBRARY_PATH": str(LIB)}) == (0, "0 found\n")
    assert plainly(fabric.a, vendored, env=PRELOAD) == (0, "burst0\n1 found\n")


def test_burst_run_finds_the_copy_of_an_environment(fabric, vendored):
    """By the place of the program, of the interpreter that a script names, and by PYTHONPATH."""
    run = [BUILD / "burst", "run", "--no-start", "--no-host-files", "--"]
    environment = vendored.parent / "environment"
    assert plainly(fabric.a, *run, environment / "bin" / "program", env={}) == (0, "burst0\n1 found\n")
    script = vendored.parent / "script"
    script.write_text(f"#!{environment / 'bin' / 'program'}\n")
    script.chmod(0o755)
    assert plainly(fabric.a, *run, script, env={}) == (0, "burst0\n1 found\n")
    assert plainly(fabric.a, *run, vendored, env={"PYTHONPATH": str(environment / "lib/python3.11/site-packages")}) == (0, "burst0\n1 found\n")
    # By an active environment, for a program that is not in it; the doctor names the copy.
    active = {"VIRTUAL_ENV": str(environment), "PATH": "/usr/bin:/bin"}
    assert plainly(fabric.a, *run, "sh", "-c", str(vendored), env=active) == (0, "burst0\n1 found\n")
    _, text = plainly(fabric.a, BUILD / "burst", "doctor", env=active)
    assert re.search(rf"^ok +wheels +{re.escape(str(environment))}/.*/libibverbs-1de1263b.so.1.14.48.0: burst run preloads", text, re.M), text
    # Nothing is preloaded where no environment has a copy.
    assert plainly(fabric.a, *run, "sh", "-c", "echo preloaded: $LD_PRELOAD", env={"PATH": "/usr/bin:/bin"}) == (0, "preloaded:\n")


def test_structs_of_other_releases(fabric):
    assert fabric.a.run(PROGRAMS / "old_layout", "burst0") == (0, "every layout\n")


@pytest.mark.parametrize("name", ["libibverbs.so.1", "libibverbs.so", LIB / "libibverbs.so.1"], ids=["soname", "unversioned", "path"])
def test_loaded_again_and_again(fabric, name):
    """By dlopen, from threads, and in children."""
    code, text = fabric.a.run(PROGRAMS / "reload", name, "burst0")
    assert (code, text) == (0, "loaded and closed\n")
    # The daemon serves other programs afterwards.
    code, text = fabric.a.run("ibv_devices")
    assert code == 0 and "burst0" in text


@pytest.mark.skipif(not shutil.which("python3"), reason="python3 is missing")
def test_by_name_and_version(fabric):
    """As NCCL does: dlopen, then dlvsym for each function; here for all public functions of the library."""
    script = (
        "import ctypes, sys\n"
        "libc = ctypes.CDLL(None); libc.dlvsym.restype = ctypes.c_void_p\n"
        "libc.dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]\n"
        "lib = ctypes.CDLL('libibverbs.so.1')\n"
        "missing = [w for w in sys.argv[1:] if not libc.dlvsym(lib._handle, *w.encode().split(b'@'))]\n"
        "sys.exit(f'missing: {missing}' if missing else 0)\n"
    )
    table = Path(__file__).resolve().parents[1] / "crates" / "frontends" / "ibverbs" / "abi" / "public.txt"
    rows = [line.split() for line in table.read_text().splitlines() if line and not line.startswith("#")]
    names = [f"{name}@{version}" for version, name, *_ in rows]
    assert len(names) > 80
    assert fabric.a.run("python3", "-c", script, *names) == (0, "")
