"""The wheel `burst-rdma`, installed by pip into an environment of its own: programs, Python module, fixtures of pytest, the simulator."""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import lab
import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = lab.build_directory()
#: Of a release build; the bound of the download.
BYTES_MAX = 12_000_000
#: Who has no rights.
UNPRIVILEGED = 65534


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the build, whose burstd is the one without the port kind dpdk."""
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run([ROOT / "scripts" / "wheel", "--build", BUILD, "--out", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def place(wheel):
    """A virtual environment with the wheel and the pytest of this one, which every user can read."""
    directory = Path(tempfile.mkdtemp(prefix="burst-wheel-", dir="/tmp"))
    directory.chmod(0o755)
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", directory / "venv"], check=True)
    pip(directory, "install", "--no-deps", wheel)
    yield directory
    shutil.rmtree(directory)


def pip(directory, *words):
    done = subprocess.run(
        [directory / "venv/bin/python", "-m", "pip", "--disable-pip-version-check", *words, *(["--no-index"] if words[0] == "install" else [])],
        capture_output=True, text=True, cwd=directory,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def clean_environment(place, **more):
    """Nothing but directories of this test: no variable of these tests reaches the wheel."""
    runtime = place / "run"
    runtime.mkdir(mode=0o777, exist_ok=True)
    return {"PATH": f"{place}/venv/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(place), "XDG_RUNTIME_DIR": str(runtime), "BURST_IDLE_EXIT": "1s", **more}


def run(place, *words, **more):
    # In a network namespace of its own: port 4791 of lo is not another test's.
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    return subprocess.run(
        [*alone, *(str(word) for word in words)], env=clean_environment(place, **more), capture_output=True, text=True, timeout=120, cwd=place, stdin=subprocess.DEVNULL,
    )


def test_the_same_files_make_the_same_bytes(wheel, tmp_path):
    subprocess.run([ROOT / "scripts" / "wheel", "--build", BUILD, "--out", tmp_path], check=True, capture_output=True)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()
    assert BUILD.name != "release" or wheel.stat().st_size <= BYTES_MAX


def test_the_tag_is_that_of_the_files(wheel, tmp_path):
    major, minor = re.search(r"manylinux_(\d+)_(\d+)_", wheel.name).groups()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    needed = set()
    for file in tmp_path.rglob("*"):
        if file.is_file() and file.read_bytes()[:4] == b"\x7fELF":
            text = subprocess.run(["objdump", "-T", file], capture_output=True, text=True, check=True).stdout
            needed |= {(int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", text)}
    assert max(needed) == (int(major), int(minor))


def test_a_program_runs_by_the_name_of_the_package(place):
    # As uv does: a link elsewhere.
    link = place / "burst-rdma"
    link.unlink(missing_ok=True)
    link.symlink_to(place / "venv/bin/burst-rdma")
    done = run(place, link, "run", "--port", "udp:dev=lo", "--", "ibv_devices")
    assert done.returncode == 0 and "burst0" in done.stdout, done.stdout + done.stderr


def test_the_names_without_version_lead_to_the_library(place):
    """NCCL opens `libibverbs.so` before `libibverbs.so.1`."""
    code = "import ctypes, burst_rdma; print(bool(ctypes.CDLL(str(burst_rdma.library('libibverbs.so'))).ibv_get_device_list))"
    assert run(place, "python", "-c", code).stdout == "True\n"


def test_examples_of_the_module_are_true(place):
    code = "import doctest; from burst_rdma import _daemon, _place, sim; "
    done = run(place, "python", "-c", code + "r = [doctest.testmod(one) for one in (_daemon, _place, sim)]; print(sum(x.failed for x in r), all(x.attempted for x in r))")
    assert done.stdout == "0 True\n", done.stdout + done.stderr


HOSTS = """
import subprocess, sys, burst_rdma
count, namespaces = int(sys.argv[1]), {"yes": True, "no": False}[sys.argv[2]]
with burst_rdma.hosts(count, namespaces=namespaces, loss="1%") as hosts:
    a, b = hosts[0], hosts[-1]
    words = ["ib_write_bw", "-d", "burst0", "-F", "-n", "500"]
    server = a.popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while b.run([*words, a.address], capture_output=True).returncode and server.poll() is None:
        pass
    said = server.communicate()[0].decode()
    print(server.returncode, b.stats().get("impaired", 0) > 0, "" if server.returncode == 0 else said)
"""


@pytest.mark.parametrize("user", ["root", "unprivileged"])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("namespaces", ["yes", "no"])
def test_hosts_move_bytes(place, user, count, namespaces):
    as_user = ["setpriv", "--reuid", UNPRIVILEGED, "--regid", UNPRIVILEGED, "--clear-groups"] if user == "unprivileged" else []
    python = place / "venv/bin/python" if user == "root" else "/usr/bin/python3"
    site = next((place / "venv/lib").glob("python*/site-packages"))
    done = run(place, *as_user, python, "-c", HOSTS, count, namespaces, PYTHONPATH=str(site))
    assert done.stdout == "0 True \n", done.stdout + done.stderr


def test_what_cannot_be_is_said_in_one_sentence(place):
    code = "import burst_rdma as b\ntry: b.daemon('udp:dev=none').__enter__()\nexcept b.BurstError as error: print(error)"
    done = run(place, "python", "-c", code)
    assert re.fullmatch(r"burstd does not serve: .*none.*\n", done.stdout), done.stdout + done.stderr


def said(place, call, *prefix, **more):
    """The text of the BurstError that a call of the module raises."""
    code = f"import burst_rdma as b\ntry:\n    with {call}: print('nothing is wrong')\nexcept b.BurstError as error: print(error)"
    done = run(place, *prefix, "python", "-c", code, **more)
    assert done.stdout.count("\n") == 1, done.stdout + done.stderr
    return done.stdout.strip()


def test_what_no_packet_fits_is_refused(place):
    for mtu in (100, 290, 347, 100_000):
        assert said(place, f"b.hosts(2, mtu={mtu})") == f"an MTU of {mtu} is not possible: RoCE packets need 348 to 65535"
    for count in (0, 251):
        assert said(place, f"b.hosts({count})") == f"{count} hosts are not possible: 1 to 250 are"


def test_without_a_place_for_temporary_files_there_is_one_sentence(place):
    """All that is usually written is read-only; the variable of the cure works."""
    binds = "; ".join(f"if [ -d {name} ]; then mount -o bind {name} {name} && mount -o remount,bind,ro {name}; fi" for name in ("/tmp", "/var/tmp", "/usr/tmp"))
    # The working directory is the last that is tried.
    readonly = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{binds}; mount -t tmpfs none /mnt; cd /proc; exec "$@"', "sh"]
    with_place = said(place, "b.daemon()", *readonly, TMPDIR="/mnt")
    assert with_place == "nothing is wrong"
    for call in ("b.daemon()", "b.hosts(1)"):
        assert said(place, call, *readonly) == "no directory for temporary files can be written: set TMPDIR to a directory that can be written"


def test_one_host_is_alone(place):
    for namespaces, address in ((True, "10.97.0.1"), (False, "127.0.0.1")):
        code = f"import burst_rdma as b\nwith b.hosts(1, namespaces={namespaces}) as (a,): print(a.address, a.ls()['devices'][0]['state'])"
        done = run(place, "python", "-c", code)
        assert done.stdout == f"{address} up\n", done.stdout + done.stderr


LEAVES = """
import contextlib, os, sys, time, burst_rdma as b
with contextlib.ExitStack() as stack:
    made = stack.enter_context(b.hosts(3)) if sys.argv[1] == "hosts" else [stack.enter_context(b.daemon())]
    print(made[0].socket.parent, flush=True)
    time.sleep(600)
"""


def processes_with(word):
    """Numbers of the processes that have a word in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and os.fsencode(word) in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("kind", ["daemon", "hosts"])
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_process(place, kind, sign):
    alone = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    process = subprocess.Popen([*alone, "python", "-c", LEAVES, kind], env=clean_environment(place), stdout=subprocess.PIPE, text=True, cwd=place)
    try:
        directory = Path(process.stdout.readline().strip())
        # The switch is known by its place in this environment; other tests have other places.
        words = [str(directory), *([str(place / "venv")] if kind == "hosts" else [])]
        assert all(processes_with(word) for word in words), "nothing runs"
        process.send_signal(sign)
        process.wait(60)
        assert lab.await_true(lambda: not any(processes_with(word) for word in words), 60), [processes_with(word) for word in words]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    # Another start removes what is left, and nothing of a process that lives.
    assert directory.name.startswith(f"burst-py-{process.pid}-") and directory.is_dir()
    living = Path(tempfile.mkdtemp(prefix=f"burst-py-{os.getpid()}-{os.stat('/proc/self/ns/pid').st_ino}-", dir="/tmp"))
    elsewhere = Path(tempfile.mkdtemp(prefix=f"burst-py-{process.pid}-1-", dir="/tmp"))
    assert said(place, "b.daemon()") == "nothing is wrong"
    assert not directory.exists() and living.is_dir() and elsewhere.is_dir()
    living.rmdir()
    elsewhere.rmdir()


TESTS = """
import subprocess

def test_devices(burst):
    assert "burst0" in burst.run(["ibv_devices"], capture_output=True, text=True).stdout

def test_a_pair(burst_pair):
    a, b = burst_pair(loss="1%", delay="10us")
    assert a.address != b.address
    assert len(a.ls()["devices"]) == 1

def test_that_fails(burst):
    burst.run(["ibv_devinfo"], capture_output=True)
    assert False, "on purpose"
"""


@pytest.fixture(scope="module")
def suite(place):
    file = place / "suite" / "test_suite.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(TESTS)
    return file.parent


def test_a_failed_test_keeps_what_explains_it(place, suite):
    done = run(place, "python", "-m", "pytest", "-p", "no:cacheprovider", "-q", "--rootdir", suite, "--burst-capture", suite)
    assert done.returncode == 1 and "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    kept = sorted(path.relative_to(suite / "burst-artifacts") for path in (suite / "burst-artifacts").rglob("*") if path.is_file())
    name = Path("test_suite.py_test_that_fails")
    assert kept == [name / "burstd.log", name / "burstd.pcapng", name / "counters.json"], kept
    assert str(suite / "burst-artifacts" / name) in done.stdout


def test_a_counter_that_does_not_exist_is_refused(place, suite):
    done = run(place, "python", "-m", "pytest", "-p", "no:cacheprovider", "-q", suite, "--burst-fail-on=cq_overrun,bad_icrcc,nonsense")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "--burst-fail-on: there is no counter 'bad_icrcc'; the nearest is 'bad_icrc'" in done.stderr, done.stderr


def test_a_counter_can_fail_a_test(place, suite):
    words = ["python", "-m", "pytest", "-p", "no:cacheprovider", "-q", "--rootdir", suite, suite, "-k", "devices"]
    assert run(place, *words, "--burst-fail-on=bad_icrc").returncode == 0
    rubbish = suite / "test_rubbish.py"
    rubbish.write_text(
        "import socket\n\ndef test_rubbish(burst):\n    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "    while not burst.stats().get('bad_icrc'):\n        sock.sendto(bytes([0x04, 0x40, 0xff, 0xff]) + bytes(60), ('127.0.0.1', 4791))\n",
    )
    done = run(place, *words[:-2], "-k", "rubbish", "--burst-fail-on=cq_overrun,bad_icrc")
    assert done.returncode == 1 and "counters that must be 0: burstd: bad_icrc is " in done.stdout, done.stdout + done.stderr


SWEEP = """
import concurrent.futures, burst_rdma.sim as sim
scenario = {"time": "1ms", "topology": {"kind": "star", "hosts": 3}, "traffic": [{"kind": "incast", "to": 0, "size": "64KiB"}]}
if __name__ == "__main__":
    values, seeds = {"hosts.cc": ["dctcp", "swift"], "traffic.0.size": ["4KiB", "64KiB"]}, [1, 2]
    with concurrent.futures.ProcessPoolExecutor(2) as executor:
        apart = sim.sweep(scenario, values, seeds=seeds, executor=executor)
    assert apart == sim.sweep(scenario, values, seeds=seeds)
    print(len(apart), apart[-1].settings, apart[0].data["traffic"][0]["failed"])
    try: sim.run({"time": "never"})
    except sim.BurstError as error: print(error)
"""


def test_a_sweep_by_an_executor_equals_one_without(place):
    (place / "sweep.py").write_text(SWEEP)
    done = run(place, "python", place / "sweep.py")
    first, second = done.stdout.splitlines() or [done.stderr, ""]
    assert first == "8 {'hosts.cc': 'swift', 'traffic.0.size': '64KiB', 'seed': 2} 0", done.stderr
    assert '"never" is not a duration' in second


def test_a_sweep_by_dask_has_two_worker_processes(place):
    """The example that docs/python.md names."""
    if importlib.util.find_spec("distributed") is None:
        pytest.skip("this Python has no Dask: scripts/install-deps installs it where Python is not Debian's")
    done = run(place, "python", ROOT / "deploy/wheel/examples/sweep_by_dask.py")
    first, *rest = done.stdout.splitlines() or [done.stderr]
    assert first == "8 simulations on 2 workers", done.stdout + done.stderr
    assert len(rest) == 8 and rest[-1].startswith("{'hosts.cc': 'swift', 'traffic.0.size': '64KiB', 'seed': 2} p99 "), rest


def test_the_wheel_says_what_it_contains(wheel):
    """Licences of the crates in its programs, and a bill of materials whose references are all there."""
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name).name: name for name in archive.namelist()}
        bill = json.loads(archive.read(names["burst-rdma.cdx.json"]))
        licences = archive.read(names["THIRD-PARTY"]).decode()
        metadata = archive.read(names["METADATA"]).decode()
    known = {component["bom-ref"] for component in bill["components"]} | {"burst-rdma"}
    assert all({row["ref"], *row["dependsOn"]} <= known for row in bill["dependencies"])
    components = {component["name"]: component["version"] for component in bill["components"]}
    assert {"burstd", "libc", "rustix", "ring", "rust-std"} <= components.keys() and not {"proptest", "criterion", "bindgen"} & components.keys()
    assert f"\nlibc {components['libc']}: MIT OR Apache-2.0; [" in licences and "proptest" not in licences
    assert re.search(r"^Version: (.*)$", metadata, re.M).group(1) == components["burstd"]


def test_a_directory_of_ones_own_and_a_removal_that_leaves_nothing(wheel, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    before = sorted((tmp_path / "venv").rglob("*"))
    pip(tmp_path, "install", "--target", tmp_path / "target", wheel)
    code = "import burst_rdma; print(burst_rdma.library())"
    found = run(tmp_path, sys.executable, "-c", code, PYTHONPATH=str(tmp_path / "target")).stdout.strip()
    assert found == str(tmp_path / "target/burst_rdma/root/lib/burst/libibverbs.so.1")
    pip(tmp_path, "install", wheel)
    pip(tmp_path, "uninstall", "--yes", "burst-rdma")
    left = [path for path in (tmp_path / "venv").rglob("*") if path not in before and path.is_file()]
    assert not left, left
