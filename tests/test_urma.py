"""UMDK's own programs, unmodified, on Burst's liburma.so.0 between two namespaces.

The sources of UMDK are foreign: BURST_UMDK names a directory with its `src`, or an archive of it (docs/urma.md). They are built once into
target/umdk."""
import hashlib
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import lab
import pytest
from conftest import BUILD

SOURCES = os.environ.get("BURST_UMDK")
ROOT = lab.fabric.ROOT
LAYOUT = ROOT / "crates/frontends/liburma/tests/layout.c"
#: The TCP port on which urma_perftest and urma_sample agree on their objects.
PERFTEST_PORT, SAMPLE_PORT = 21115, 13857

pytestmark = pytest.mark.skipif(not SOURCES, reason="foreign sources: BURST_UMDK names no sources of UMDK (docs/urma.md)")


def build(sources):
    """The directories of UMDK's sources and of what is built of them."""
    sources = Path(sources).resolve()
    if not sources.exists():
        pytest.fail(f"BURST_UMDK={sources}: there is no such file or directory")
    if sources.is_dir():
        name = hashlib.sha256(str(sources).encode()).hexdigest()[:12]
        unpacked = sources
    else:
        name = hashlib.sha256(sources.read_bytes()).hexdigest()[:12]
        unpacked = ROOT / "target" / "umdk" / name / "sources"
    built = ROOT / "target" / "umdk" / name / "built"
    if not (built / "complete").exists():
        shutil.rmtree(built, ignore_errors=True)
        built.mkdir(parents=True)
        if sources.is_file():
            shutil.rmtree(unpacked, ignore_errors=True)
            with tarfile.open(sources) as archive:
                archive.extractall(unpacked, filter="data")
        flags = ["-DBUILD_ALL=disable", "-DBUILD_URMA=enable", "-DBUILD_UDMA=disable"]
        for command in (["cmake", unpacked / "src", *flags], ["make", "-j2"]):
            done = subprocess.run(command, cwd=built, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}: {(done.stdout + done.stderr)[-3000:]}"
        (built / "complete").touch()
    return unpacked, built


@pytest.fixture(scope="module")
def umdk(namespaces, tmp_path_factory):
    """Two hosts without daemons, and what UMDK's programs need."""
    sources, built = build(SOURCES)
    libraries = tmp_path_factory.mktemp("urma")
    (libraries / "liburma.so.0").symlink_to(BUILD / "lib" / "liburma.so.0")
    (libraries / "liburma_common.so.0").symlink_to(built / "urma/common/liburma_common.so.0")
    with lab.Fabric(mtu=1500, daemons=False) as fabric:
        yield fabric, sources, built, {"LD_LIBRARY_PATH": str(libraries)}


def await_listener(host, program, port):
    want = f":{port:04X} "
    listens = lambda: any(want in line and " 0A " in line for line in host.tcp_table())  # noqa: E731
    lab.wait_until(listens, 60, program.text, program)


def perftest(umdk, options):
    """Runs urma_perftest at both ends; the client's output."""
    fabric, _, built, env = umdk
    words = [built / "urma/tools/urma_perftest/urma_perftest", *options.split(), "-d", "burst0"]
    server = fabric.a.start(*words, env=env, plain=True)
    await_listener(fabric.a, server, PERFTEST_PORT)
    code, text = fabric.b.run(*words, "-S", fabric.a.address, env=env, plain=True)
    assert code == 0, f"client: {text}\nserver: {server.text()}"
    assert server.wait(60) == 0, server.text()
    return text


def test_structures_are_those_of_the_headers(umdk):
    _, sources, _, _ = umdk
    include = sources / "src/urma/lib/urma/core/include"
    done = subprocess.run(["gcc", "-fsyntax-only", "-I", include, LAYOUT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


KINDS = [f"{test} -n 200 -s {size}" for test, size in (
    ("send_lat", 64), ("write_lat", 64), ("read_lat", 64), ("send_bw", 4096), ("write_bw", 4096), ("read_bw", 4096))]
ATOMICS = ["atomic_lat -A faa -n 200", "atomic_bw -A faa -n 200", "atomic_bw -A cas -J 4 -n 200"]
ORDERS = [f"write_bw --order_type {order} -n 300 -s 4096" for order in (1, 2, 3)]


@pytest.mark.parametrize("mode", ["-p 0", "-p 1"], ids=["RM", "RC"])
@pytest.mark.parametrize("kind", KINDS + ATOMICS + ORDERS)
def test_perftest_runs_in_each_mode(umdk, kind, mode):
    perftest(umdk, f"{kind} {mode}")


@pytest.mark.parametrize("options", [
    "send_lat -p 2 -n 200 -s 512", "send_bw -p 2 -n 200 -s 512",
    "write_bw -b -n 512 -s 4096", "write_bw -b -f -n 512 -s 4096", "write_bw -J 4 -n 512 -s 4096", "write_bw -l 8 -Q 8 -n 512 -s 4096",
    "write_bw -Q 8 -n 512 -s 4096", "write_bw -B -n 512 -s 4096", "write_bw -K 1 -n 512 -s 4096", "write_bw --enable_imm -n 512 -s 4096",
    "write_bw --enable_notify -n 512 -s 4096",
    "write_bw --eid_idx 1 -n 512 -s 4096", "send_lat -e -n 200 -s 64", "send_bw -e -n 200 -s 64", "write_lat -I 32 -n 200 -s 32",
    "read_lat -a -n 50", "write_bw -n 20 -s 16777215",
])
def test_perftest_runs_with_its_options(umdk, options):
    perftest(umdk, options)


@pytest.mark.parametrize("options", ["", "-m 1", "-e"])
def test_the_sample_moves_its_messages(umdk, options):
    fabric, _, built, env = umdk
    words = [built / "urma/examples/urma_sample", "-d", "burst0", *options.split()]
    # The server ends with its standard input, or by a signal.
    server = fabric.a.start("sh", "-c", f"sleep 600 | {' '.join(map(str, words))}", env=env, plain=True)
    await_listener(fabric.a, server, SAMPLE_PORT)
    code, text = fabric.b.run(*words, "-i", fabric.a.address, env=env, plain=True)
    server.stop()
    # The next server needs the port, which the shell's children leave when they have ended, too.
    lab.wait_until(lambda: ":12B8 " not in Path(f"/proc/{fabric.a.keeper.pid}/net/udp").read_text(), 60, server.text)
    assert code == 0 and "Response received" in text, f"client: {text}\nserver: {server.text()}"
