"""Storage programs that speak verbs, unmodified from Debian, between two hosts: fio, iSER (tgt and libiscsi), QEMU's migration.

Their ways to the library are others than those of MPI and perftest: fio forks between making its event channel and using it, tgt serves
all initiators from one event loop, libiscsi has a thread for connection events only, and QEMU registers the memory of a
running guest, piece by piece or whole. QEMU is large to install; it runs with BURST_MATRIX=1 only.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import socket

import pytest

from lab import wait_until

SECONDS = 60
ALL = os.environ.get("BURST_MATRIX") == "1"


# fio: the client names the operation, the server executes it.

FIO_BLOCKS, FIO_BLOCK = 80, 256 << 10


def fio(name, *words):
    shape = ["--ioengine=rdma", "--port=8877", f"--bs={FIO_BLOCK}", f"--size={FIO_BLOCKS * FIO_BLOCK}"]
    return ["fio", f"--name={name}", *shape, *words]


@pytest.mark.parametrize("verb", ["write", "read", "send"])
def test_fio(fabric, verb):
    # The server has a receive for each block, because fio's clients fail when a SEND finds none.
    server = fabric.b.start(*fio("server", f"--iodepth={FIO_BLOCKS + 16}", "--rw=read"))
    try:
        server.wait_for_text("waiting for connection", SECONDS)
        before = fabric.a.stats()
        client = fio("client", f"--hostname={fabric.b.address}", f"--verb={verb}", "--iodepth=4", "--rw=write", "--output-format=json")
        code, text = fabric.a.run(*client, seconds=SECONDS)
        served = server.wait(SECONDS)
    finally:
        server.stop()
    assert (code, served) == (0, 0), text + server.text()
    (job,) = json.loads(text)["jobs"]
    assert (job["error"], job["write"]["total_ios"]) == (0, FIO_BLOCKS), text
    after = fabric.a.stats()
    carried = "rx_bytes" if verb == "read" else "tx_bytes"
    assert after[carried] - before[carried] > FIO_BLOCKS * FIO_BLOCK, "the data did not go over Burst"


# iSER: a disk of random bytes, served by tgt, used by libiscsi's tools.

DISK_BYTES = 8 << 20
TARGET = "iqn.2026-01.burst:disk"
INITIATOR = "iqn.2026-01.burst:host-a"


@pytest.fixture(scope="module")
def disk(fabric, tmp_path_factory):
    """A target on host b: the address of its disk."""
    place = tmp_path_factory.mktemp("iser")
    image = place / "disk"
    image.write_bytes(os.urandom(DISK_BYTES))
    env = {"TGT_IPC_SOCKET": str(place / "ipc")}
    server = fabric.b.start("tgtd", "-f", "--iscsi", f"portal={fabric.b.address}:3260", "--iser", "pool_sz_mb=64", env=env)

    def admin(*words):
        return fabric.b.run("tgtadm", "--lld", "iser", *words, "--tid", 1, env=env, plain=True)

    try:
        wait_until(lambda: admin("--mode", "target", "--op", "new", "-T", TARGET)[0] == 0, SECONDS, program=server)
        for words in (
            ["--mode", "logicalunit", "--op", "new", "--lun", 1, "-b", image],
            ["--mode", "target", "--op", "bind", "-I", "ALL"],
            # For iSER this version of tgt also checks the initiator's name.
            ["--mode", "target", "--op", "bind", "-Q", INITIATOR],
        ):
            code, text = admin(*words)
            assert code == 0, text + server.text()
        yield f"iser://{fabric.b.address}:3260/{TARGET}/1"
        assert server.running(), server.text()
    finally:
        server.stop(signal.SIGKILL)


def test_iser_tells_about_its_disk(fabric, disk):
    code, text = fabric.a.run("iscsi-inq", "-i", INITIATOR, disk, seconds=SECONDS)
    assert code == 0 and "Product:VIRTUAL-DISK" in text, text
    code, text = fabric.a.run("iscsi-readcapacity16", "-i", INITIATOR, disk, seconds=SECONDS)
    assert code == 0 and f"Total size:{DISK_BYTES}\n" in text, text


# Verify10 reads blocks and sends them back for the target to compare with its disk.
@pytest.mark.parametrize("suite", ["Write10", "Verify10"])
def test_iser_moves_blocks(fabric, disk, suite):
    # Not the "Async" tests: this version of libiscsi walks a list that it has not initialised.
    words = ["iscsi-test-cu", "--dataloss", "-i", INITIATOR, "-I", INITIATOR, "--test", f"SCSI.{suite}.Simple", disk]
    code, text = fabric.a.run(*words, seconds=SECONDS)
    counts = re.search(r"^ *tests +(\d+) +(\d+) +(\d+) +(\d+)", text, re.M)
    assert code == 0 and counts and counts.groups() == ("1", "1", "1", "0"), text
    assert "SKIPPED" not in text, text


def test_iser_keeps_a_queue_full(fabric, disk):
    before = fabric.b.stats()["tx_bytes"]
    code, text = fabric.a.run("iscsi-perf", "-i", INITIATOR, "-m", 16, "-b", 128, "-t", 1, disk, seconds=SECONDS)
    assert code == 0 and "finished." in text, text
    assert int(re.search(r"iops average (\d+)", text).group(1)) > 0, text
    assert fabric.b.stats()["tx_bytes"] > before + (1 << 20), "the data did not go over Burst"


# QEMU: a guest that counts in its memory migrates to the other host and continues to count there.

GUEST_MIB = 192
PATTERN_AT, PATTERN_BYTES = 32 << 20, 64 << 20
COUNTERS_AT = 0x20000
# In real mode, for ever: adds 1 to each 16th word of 32 bits in the 64 KiB from COUNTERS_AT on.
BOOT_SECTOR = bytes.fromhex(
    "fa"  # cli
    "b80020 8ed8"  # mov ax, 0x2000; mov ds, ax
    "31db"  # again: xor bx, bx
    "66ff07 83c340 75f8"  # next: inc dword [bx]; add bx, 64; jnz next
    "ebf4"  # jmp again
).ljust(510, b"\0") + b"\x55\xaa"


class Guest:
    """A machine of QEMU on a host, and the conversation with its monitor."""

    def __init__(self, host, place, *words):
        self.dump, monitor = place / f"{host.name}.memory", place / f"{host.name}.monitor"
        floppy = place / "floppy"
        floppy.write_bytes(BOOT_SECTOR.ljust(1440 << 10, b"\0"))
        self.program = host.start(
            "qemu-system-x86_64", "-M", "pc,accel=tcg", "-m", GUEST_MIB, "-nodefaults", "-display", "none", "-boot", "a",
            "-drive", f"if=floppy,format=raw,readonly=on,file={floppy}", "-qmp", f"unix:{monitor},server=on,wait=off", *words,
        )
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(SECONDS)
        wait_until(lambda: self.socket.connect_ex(str(monitor)) == 0, SECONDS, program=self.program)
        self.lines = self.socket.makefile("rw")
        assert "QMP" in json.loads(self.lines.readline())
        self.ask("qmp_capabilities")

    def ask(self, command, **arguments):
        """The reply to a command; events are skipped."""
        print(json.dumps({"execute": command, "arguments": arguments}), file=self.lines, flush=True)
        while True:
            answer = json.loads(self.lines.readline())
            if "event" not in answer:
                assert "return" in answer, f"{command}: {answer}\n{self.program.text()}"
                return answer["return"]

    def memory(self, address, size):
        self.ask("pmemsave", val=address, size=size, filename=str(self.dump))
        return self.dump.read_bytes()

    def counter(self):
        return int.from_bytes(self.memory(COUNTERS_AT, 4), "little")

    def end(self):
        self.socket.close()
        self.program.stop()


def migrate(fabric, tmp_path, pin_all):
    pattern = os.urandom(PATTERN_BYTES)
    (tmp_path / "pattern").write_bytes(pattern)
    loaded = f"loader,file={tmp_path / 'pattern'},addr={PATTERN_AT},force-raw=on"
    guests = [Guest(fabric.b, tmp_path, "-incoming", "defer")]
    try:
        guests.append(Guest(fabric.a, tmp_path, "-device", loaded))
        there, here = guests
        wait_until(here.counter, SECONDS, lambda: "the guest does not count")
        for guest in guests:
            guest.ask("migrate-set-capabilities", capabilities=[{"capability": "rdma-pin-all", "state": pin_all}])
        here.ask("migrate-set-parameters", **{"max-bandwidth": 10**10})
        address = f"rdma:{fabric.b.address}:4444"
        there.ask("migrate-incoming", uri=address)
        here.ask("migrate", uri=address)
        state = lambda: here.ask("query-migrate").get("status")  # noqa: E731
        wait_until(lambda: state() in ("completed", "failed"), 3 * SECONDS, lambda: here.ask("query-migrate"))
        assert state() == "completed", here.program.text() + there.program.text()
        wait_until(lambda: there.ask("query-status")["status"] == "running", SECONDS, there.program.text)
        before = there.counter()
        assert before >= here.counter() > 0
        wait_until(lambda: there.counter() > before, SECONDS, lambda: "the guest does not go on counting")
        moved = there.memory(PATTERN_AT, PATTERN_BYTES)
        assert hashlib.sha1(moved).digest() == hashlib.sha1(pattern).digest(), "the guest's memory is another one"
    finally:
        for guest in guests:
            guest.end()


if ALL:

    @pytest.mark.skipif(not shutil.which("qemu-system-x86_64"), reason="qemu-system-x86_64 is missing: scripts/install-deps --interop")
    @pytest.mark.parametrize("pin_all", [False, True], ids=["piecewise", "pinned"])
    def test_qemu_migrates_a_running_guest(fabric, tmp_path, pin_all):
        migrate(fabric, tmp_path, pin_all)
