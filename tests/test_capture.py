"""`burst capture`: what a daemon sends and receives, as lines and as a file for Wireshark, without privileges for the interface."""

import re
import shutil
import subprocess
from pathlib import Path

import lab
import pytest
from conftest import BUILD
from lab import run_pair

ROOT = Path(__file__).resolve().parent.parent
SEND = ["ib_send_bw", "-d", "burst0", "-F", "-s", 4096, "-n", 2000, "-t", 16]
#: So little that it waits for a reader that gets no processor.
FEW = ["ib_send_bw", "-d", "burst0", "-F", "-s", 1024, "-n", 60, "-t", 4]
LINE = re.compile(r"\d\d:\d\d:\d\d\.\d{6} [<>] [0-9a-f.:]+ > [0-9a-f.:]+ \S.*")
AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


class Capture:
    """A running `burst capture` of a host."""

    def __init__(self, host, *words):
        self.program = host.start(BUILD / "burst", "capture", "--socket", host.socket, *words)
        lab.wait_until(lambda: "burst: capturing" in self.program.text(), 60, self.program.text, self.program)

    def end(self):
        """Ends it as Ctrl-C does; the packets that it has, and those that it says are missing."""
        self.program.process.send_signal(2)
        assert self.program.wait(60) == 0, self.program.text()
        return self.totals()

    def totals(self):
        found = re.search(r"burst: (\d+) packets captured(?:; (\d+) more came too fast)?", self.program.text())
        assert found, self.program.text()
        return int(found[1]), int(found[2] or 0)


def traffic(host):
    """Packets that the device has sent and received."""
    counters = host.stats()
    return counters["tx_packets"] + counters["rx_packets"]


def tshark(path, *words):
    command = ["tshark", "-X", f"lua_script:{ROOT / 'share/wireshark/burst.lua'}", "-r", path, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("workers", [1, 2])
def test_each_packet_is_in_the_capture_or_said_to_be_missing(make_fabric, tmp_path, workers):
    fabric = make_fabric(mtu=1500, extra=["--workers", str(workers)])
    path, before = tmp_path / "packets.pcapng", traffic(fabric.a)
    capture = Capture(fabric.a, "burst0", "-w", path)
    run_pair(fabric.a, fabric.b, FEW)
    captured, missing = capture.end()
    assert captured > 60 and captured + missing == traffic(fabric.a) - before
    if not shutil.which("tshark"):
        pytest.skip("tshark is not installed (scripts/install-deps installs it): the file was not read")
    fields = ["-T", "fields", "-e", "ip.src", "-e", "udp.dstport", "-e", "frame.interface_name", "-e", "frame.packet_flags_direction", "-e", "ip.len"]
    rows = [line.split("\t") for line in tshark(path, *fields)]
    assert len(rows) == captured and {row[1] for row in rows} == {"4791"} and {row[2] for row in rows} == {"burst0"}
    sent = {fabric.a.address: "2", fabric.b.address: "1"}
    assert all(int(row[3], 0) == int(sent[row[0]]) for row in rows)
    # One packet for each SEND.
    assert sum(int(row[4]) > 1024 for row in rows if row[0] == fabric.b.address) >= 60 - missing
    assert not tshark(path, "-Y", "_ws.malformed")


def test_lines_show_both_ends_of_a_connection_and_its_setup(make_fabric):
    fabric = make_fabric()
    capture = Capture(fabric.a)
    server = fabric.a.start("rping", "-s", "-C", 5, "-a", fabric.a.address)
    lab.wait_until(lambda: fabric.b.run("rping", "-c", "-C", 5, "-a", fabric.a.address)[0] == 0, 60, server.text)
    assert server.wait(60) == 0, server.text()
    captured, missing = capture.end()
    lines = [line for line in capture.program.text().splitlines() if not line.startswith("burst: ")]
    assert len(lines) == captured and missing == 0 and all(LINE.fullmatch(line) for line in lines), lines[:5]
    assert {line.split()[1] for line in lines} == {"<", ">"}
    assert any("qp 0x000001" in line for line in lines), "the connection manager's datagrams"
    assert not any("malformed" in line for line in lines)


def test_packets_within_the_host_are_seen(make_fabric):
    host = make_fabric().a
    capture = Capture(host)
    run_pair(host, host, SEND, address=host.address)
    assert capture.end()[0] > 200


def test_it_ends_by_itself_and_with_its_reader(make_fabric):
    fabric = make_fabric()
    capture = Capture(fabric.a, "--count", 7)
    run_pair(fabric.a, fabric.b, SEND)
    assert capture.program.wait(60) == 0 and capture.totals()[0] == 7
    code, text = fabric.a.burst("capture", "--for", "100ms")
    assert code == 0 and "0 packets captured" in text
    script = f"set -o pipefail; {BUILD / 'burst'} capture --socket {fabric.a.socket} | head -n 3"
    reader = fabric.a.start("bash", "-c", script)
    lab.wait_until(lambda: "burst: capturing" in reader.text(), 60, reader.text, reader)
    for _ in range(3):
        run_pair(fabric.a, fabric.b, SEND)
    assert reader.wait(60) == 0, reader.text()
    capture = Capture(fabric.a)
    fabric.a.daemon.stop()
    assert capture.program.wait(60) == 0 and "the daemon has ended" in capture.program.text()


def test_what_is_asked_wrongly_is_refused_in_a_sentence(make_fabric, tmp_path):
    host = make_fabric(extra=["--socket-mode", "0666"]).a
    for words, sentence in (
        (["burst7"], "there is no port burst7; the daemon has burst0 (eth0)"),
        (["-w", tmp_path / "no" / "file"], "No such file or directory"),
        (["--for", "ever"], "is not a duration"),
    ):
        code, text = host.burst("capture", *words)
        assert code != 0 and sentence in text, (words, text)
    host.socket.parent.chmod(0o755)
    copy = tmp_path / "burst"
    shutil.copy(BUILD / "burst", copy)
    for directory in [tmp_path, *tmp_path.parents]:
        if directory not in (Path("/"), Path("/tmp")):
            directory.chmod(directory.stat().st_mode | 0o055)
    for directory in host.socket.parents:
        if directory not in (Path("/"), Path("/tmp")):
            directory.chmod(directory.stat().st_mode | 0o055)
    code, text = host.run(*AS_NOBODY, copy, "capture", "--socket", host.socket, "--for", "1s", env={"BURST_TRUST_SOCKET_OF": "0"})
    assert code == 1 and "only root and the user who runs the daemon may capture packets" in text


def test_the_ninth_reader_is_refused_until_one_has_gone(make_fabric, tmp_path):
    host = make_fabric().a
    captures = [Capture(host) for _ in range(8)]
    path = tmp_path / "earlier.pcapng"
    path.write_text("an earlier capture")
    code, text = host.burst("capture", "-w", path)
    assert code == 1 and "8 capture the packets of burst0 already" in text
    assert path.read_text() == "an earlier capture", "a refused capture takes nothing away"
    captures.pop().end()
    captures.append(Capture(host))
    for capture in captures:
        capture.end()
