"""The wheel for aarch64 in an emulated machine with that processor, a kernel of Debian for it and Debian's programs: unmodified verbs programs there talk to
each other and to a burstd on x86-64, by a daemon, in process and without rights. Times say nothing here.

`make aarch64` builds the wheel and runs this; BURST_WHEEL is the wheel's file.
"""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "interop"))

import lab  # noqa: E402
from lab import LabError, run_pair, wait_until  # noqa: E402
from lab.perftest import await_listener  # noqa: E402
from rig import ImageError, Rig  # noqa: E402

SITE = "/site"
BURST = f"{SITE}/burst_rdma/root/bin/burst"
LIBRARIES = f"{SITE}/burst_rdma/root/lib/burst"
#: An emulated processor may be away for longer than perftest's usual 67 ms seven times; this is 0.5 s.
TIMEOUT = ("-u", 17)
ROUNDS = 50
TESTS = (
    ["ib_send_bw"], ["ib_write_bw"], ["ib_read_bw"], ["ib_atomic_bw"], ["ib_send_lat"], ["ib_write_lat"], ["ib_read_lat"], ["ib_atomic_lat"],
    ["ib_send_bw", "-c", "UD"], ["ib_write_bw", "-c", "UC"],
)


def patiently(server, client, line):
    """Unreliable services may lose a message on a busy host, and perftest then waits for it for ever: not each time, though."""
    for attempt in range(3):
        try:
            return run_pair(server, client, line, seconds=60)
        except LabError:
            if not {"UD", "UC"} & set(line) or attempt == 2:
                raise


def connections(end):
    """What `burst cm` lists on one end."""
    ask = (BURST,) if hasattr(end, "machine") else (lab.build_directory() / "burst",)
    return end.run(*ask, "cm", "--connections")[1]


def name(words):
    return "-".join(word for word in words if word != "-c")


@pytest.fixture(scope="module")
def rig(namespaces):
    """An emulated aarch64 with the wheel in /site, and a burstd on this machine's side of the wire."""
    try:
        made = Rig(machine="aarch64", memory=1536, rxe=False)
        with made:
            guest = made.guest
            wheel = Path(os.environ["BURST_WHEEL"])
            guest.put(wheel, f"/tmp/{wheel.name}")
            guest.shell(f"python3 -m pip install --no-index --no-compile --quiet --target {SITE} /tmp/{wheel.name}", seconds=300)
            yield made
            assert made.host.daemon.running() and "panicked" not in made.host.daemon.text(), made.host.daemon.text()
            assert "Call Trace" not in guest.machine.text(), guest.machine.text()
    except ImageError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="class")
def daemon(rig):
    """A burstd in the guest, on which the programs of a class are."""
    guest = rig.guest
    program = guest.start(f"{SITE}/burst_rdma/root/bin/burstd", "--socket", "/run/burst.sock", "--port", "udp:dev=eth0")
    guest.env = {"LD_LIBRARY_PATH": LIBRARIES, "BURST_SOCKET": "/run/burst.sock"}
    wait_until(lambda: guest.run(BURST, "ls")[0] == 0, 60, program.text, program)
    yield program
    was_running = program.running()
    guest.env = {}
    program.stop()
    assert was_running and "panicked" not in program.text(), program.text()


def test_it_says_what_it_is(rig):
    guest = rig.guest
    assert "aarch64" in guest.shell("uname -m")
    code, text = guest.run(f"{SITE}/bin/burst", "--version", env={"PYTHONPATH": SITE})
    assert code == 0 and text.startswith("burst "), text


@pytest.mark.usefixtures("daemon")
class TestByDaemon:
    def test_the_doctor_finds_nothing(self, rig):
        code, text = rig.guest.run(BURST, "doctor", seconds=120)
        assert code == 0, text

    def test_devices(self, rig):
        code, text = rig.guest.run("ibv_devinfo", "-v")
        assert code == 0 and "burst0" in text and "PORT_ACTIVE" in text, text

    @pytest.mark.parametrize("number", range(len(TESTS)), ids=lambda number: name(TESTS[number]))
    def test_perftest(self, rig, number):
        """Each with its server here or there, in turns."""
        words, ends = TESTS[number], (rig.host, rig.guest)
        server, client = ends[number % 2], ends[1 - number % 2]
        size = 8 if "atomic" in words[0] else 1024 if "UD" in words else 65536 if "bw" in words[0] else 64
        sized = () if "atomic" in words[0] else ("-s", size)
        line = [words[0], "-d", "burst0", *words[1:], "-F", *TIMEOUT, *sized, "-n", ROUNDS]
        result = patiently(server, client, line)
        assert result.row[0] == size and result.row[1] == ROUNDS

    @pytest.mark.parametrize("words", TESTS[:4], ids=name)
    def test_both_ends_in_one_machine(self, rig, words):
        line = [words[0], "-d", "burst0", "-F", *TIMEOUT, "-n", ROUNDS]
        assert run_pair(rig.guest, rig.guest, line, seconds=60).row[1] == ROUNDS

    @pytest.mark.parametrize("serves", ["aarch64", "x86-64"])
    @pytest.mark.parametrize("words", [["rping", "-C", 20, "-S", 4000, "-V", "-v"], ["ib_send_bw", "-R", "-F", *TIMEOUT, "-n", ROUNDS]], ids=lambda words: words[0])
    def test_connections_by_rdma_cm(self, rig, words, serves):
        """`rping -v` compares what it gets with a pattern of its own."""
        server, client = (rig.guest, rig.host) if serves == "aarch64" else (rig.host, rig.guest)
        is_rping = words[0] == "rping"
        serving = server.start(*words, *(("-s", "-a", server.address) if is_rping else ()))
        try:
            wait_until(lambda: "listening" in connections(server), 60, serving.text, serving)
            code, text = client.run(*words, *(("-c", "-a") if is_rping else ()), server.address, seconds=60)
            assert (code, serving.wait(60)) == (0, 0), text + serving.text()
        finally:
            serving.stop()

    def test_registered_memory_is_shared_with_the_daemon(self, rig):
        """Private memory of a program is replaced by shared memory while it is registered."""
        guest = rig.guest
        program = guest.start("ibv_rc_pingpong", "-d", "burst0", "-g", 0)
        try:
            # It registers its memory, then listens.
            await_listener(guest, program, 18515)
            maps = guest.files(f"/proc/{program.pid}/maps")
            assert "/memfd:burst-pool" in maps, maps
        finally:
            program.stop()


def test_in_process(rig):
    guest = rig.guest
    guest.env = {"LD_LIBRARY_PATH": LIBRARIES, "BURST_MODE": "inprocess", "BURST_PORT": "udp:dev=eth0"}
    try:
        for words in (["ib_send_bw"], ["ib_write_lat"], ["ib_read_bw"]):
            line = [*words, "-d", "burst0", "-F", *TIMEOUT, "-s", 4096, "-n", ROUNDS]
            result = run_pair(guest, rig.host, line, seconds=60)
            assert result.row[1] == ROUNDS
    finally:
        guest.env = {}


def test_without_rights(rig):
    """`burst run` of another user than root starts a daemon of its own."""
    guest = rig.guest
    guest.shell("mkdir -p /home/other && chown 1001:1001 /home/other")
    env = {"HOME": "/home/other", "XDG_RUNTIME_DIR": "/home/other"}
    line = "ib_send_lat -d burst0 -F -s 64 -n 50"
    run = f"busybox su other -s /bin/sh -c '{BURST} run -- {line}"
    server = guest.start("sh", "-c", f"exec {run}'", env=env)
    try:
        await_listener(guest, server, 18515)
        code, text = guest.run("sh", "-c", f"exec {run} 127.0.0.1'", seconds=60, env=env)
        assert (code, server.wait(60)) == (0, 0) and "t_avg" in text, text + server.text()
    finally:
        server.stop()
