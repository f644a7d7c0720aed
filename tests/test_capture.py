"""`burst capture`: what a daemon sends and receives, as lines and as a file for Wireshark, without privileges for the interface."""

import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import lab
import pytest
from conftest import BUILD
from lab import run_pair

sys.path.append(str(Path(__file__).with_name("explain")))
from verbs_end import End, pair  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
SEND = ["ib_send_bw", "-d", "burst0", "-F", "-s", 4096, "-n", 2000, "-t", 16]
#: So little that it waits for a reader that gets no processor.
FEW = ["ib_send_bw", "-d", "burst0", "-F", "-s", 1024, "-n", 60, "-t", 4]
LINE = re.compile(r"\d\d:\d\d:\d\d\.\d{6} [<>] [0-9a-f.:]+ > [0-9a-f.:]+ \S.*")
AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


class Capture:
    """A running `burst capture` of a host."""

    def __init__(self, host, *words, socket=None):
        self.program = host.start(BUILD / "burst", "capture", "--socket", socket or host.socket, *words)
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


def lines_of(capture):
    return [line for line in capture.program.text().splitlines() if not line.startswith("burst: ")]


def test_what_was_dropped_has_its_reason_in_the_line_and_as_comment(make_fabric, tmp_path):
    fabric = make_fabric()
    assert fabric.a.burst("impair", "burst0", "loss=20%", "dir=rx", "for=5m")[0] == 0
    path = tmp_path / "packets.pcapng"
    counted = fabric.a.stats()["impaired"]
    seen, file = Capture(fabric.a), Capture(fabric.a, "-w", path)
    run_pair(fabric.a, fabric.b, FEW)
    assert fabric.a.burst("impair", "burst0", "off")[0] == 0
    assert seen.end()[1] == file.end()[1] == 0
    dropped = [line for line in lines_of(seen) if line.endswith(" dropped (impaired)")]
    assert len(dropped) == fabric.a.stats()["impaired"] - counted > 0
    # What a lost packet leads to is judged, too.
    assert any(re.search(r"(dropped|refused|noted) \((?!impaired)", line) for line in lines_of(seen))
    if shutil.which("tshark"):
        comments = tshark(path, "-T", "fields", "-e", "frame.comment", "-Y", 'frame.comment contains "impaired"')
        assert len(comments) == len(dropped) and all("dropped: impaired. The impairment wrapper" in comment for comment in comments)
    code, text = fabric.a.burst("capture", "--read", path, "--stage", "dropped")
    assert code == 0 and text.count(" dropped (impaired)") == len(dropped) and " > " in text


def test_filters_choose_queue_pairs_peers_opcodes_and_stages(make_fabric):
    fabric = make_fabric()
    captures = {
        words: Capture(fabric.a, *words)
        for words in ((), ("--opcode", "send"), ("--stage", "sent"), ("--peer", fabric.b.address), ("--peer", "10.99.99.99"))
    }
    run_pair(fabric.a, fabric.b, FEW)
    assert all(capture.end()[1] == 0 for capture in captures.values())
    lines = {words: lines_of(capture) for words, capture in captures.items()}
    every = lines.pop(())
    assert lines[("--opcode", "send")] == [line for line in every if " SEND " in line] != []
    assert lines[("--stage", "sent")] == [line for line in every if line.split()[1] == ">"] != []
    assert lines[("--peer", fabric.b.address)] == every and lines[("--peer", "10.99.99.99")] == []
    # Both ends' numbers are in the lines: what one queue pair has sent and received.
    qpns = {re.search(r" from (0x[0-9a-f]{6})", line)[1] for line in every if " from 0x" in line} - {"0x000001"}
    assert len(qpns) == 1, every[:5]
    capture = Capture(fabric.a, "--qp", "0x2,7")
    run_pair(fabric.a, fabric.b, FEW)
    assert capture.end() == (0, 0)
    for words, sentence in (("--opcode", "sned"), "the nearest is"), (("--stage", "lost"), "refused"), (("--qp", "0x1000000"), "below 0x1000000"):
        code, text = fabric.a.burst("capture", *words)
        assert code == 2 and sentence in text, text


def test_one_queue_pair_of_many_is_filtered_in_both_directions(make_fabric):
    fabric = make_fabric()
    a, b = pair(fabric, timeout=18, retries=7)
    others = pair(fabric, timeout=18, retries=7)
    mine, all_of_them = Capture(fabric.a, "--qp", hex(a.qpn)), Capture(fabric.a)
    for sender, receiver in ((a, b), others):
        receiver("receive", qp="q", region="m", bytes=64)
        sender.send(64)
        sender.done()
    assert all_of_them.end()[1] == mine.end()[1] == 0
    own = [line for line in lines_of(all_of_them) if f" from 0x{a.qpn:06x}" in line or " < " in line and f" qp 0x{a.qpn:06x} " in line]
    assert lines_of(mine) == own and len(own) >= 2
    assert {line.split()[1] for line in own} == {"<", ">"}


def test_a_ladder_of_two_captures_marks_what_was_lost_between_them(make_fabric, tmp_path):
    fabric = make_fabric()
    a, b = pair(fabric, timeout=12, retries=7)
    paths = [tmp_path / "a.pcapng", tmp_path / "b.pcapng"]
    captures = [Capture(host, "-w", path) for host, path in zip((fabric.a, fabric.b), paths, strict=True)]
    assert fabric.a.burst("impair", "burst0", "loss=30%", "dir=tx", "for=5m")[0] == 0
    for _ in range(20):
        b("receive", qp="q", region="m", bytes=64)
        a.send(64)
        a.done()
    assert all(capture.end()[1] == 0 for capture in captures)
    svg = tmp_path / "ladder.svg"
    both = ["capture", "--read", paths[0], "--read", paths[1], "--opcode", "rc", "--count", 1000]
    code, text = fabric.a.burst(*both)
    ways = [tuple(line.split()[1:5:1]) for line in text.splitlines()]
    sent = sum(way[:2] == (">", fabric.a.address) for way in ways)
    lost = sent - sum(way[:2] == ("<", fabric.a.address) for way in ways)
    assert code == 0 and 0 < lost < sent, text
    code, text = fabric.a.burst(*both, "--svg", svg)
    drawing = svg.read_text()
    assert code == 0 and drawing.count('class="cross"') == lost and f", {lost} lost, " in drawing, text
    xml.etree.ElementTree.parse(svg)
    code, text = fabric.a.burst("capture", "--read", paths[0], "--svg", "-", "--peer", "10.99.99.99")
    assert code == 1 and "there is no packet to draw" in text
    code, text = fabric.a.burst("capture", "--read", paths[0], "--svg", svg, "--count", 1001)
    assert code == 1 and "1000 packets at most" in text


def test_a_ladder_of_a_running_capture(make_fabric, tmp_path):
    fabric, svg = make_fabric(), tmp_path / "ladder.svg"
    capture = Capture(fabric.a, "--svg", svg, "--count", 12)
    run_pair(fabric.a, fabric.b, FEW)
    assert capture.program.wait(60) == 0, capture.program.text()
    root = xml.etree.ElementTree.parse(svg).getroot()
    text = "".join(root.itertext())
    assert "12 packets, 0 lost" in text and fabric.a.address in text and fabric.b.address in text


@pytest.mark.parametrize("mode", ["inprocess", "lent"])
def test_a_program_with_an_engine_of_its_own_is_captured(make_fabric, mode):
    """By its own socket, beside no daemon, or on the addresses of one. Its user and root may."""
    fabric = make_fabric(in_process=True) if mode == "inprocess" else make_fabric(extra=["--lend", "same-user"])
    env = {"BURST_MODE": "lent"} if mode == "lent" else {}
    a, b = [End(host, env=env).make() for host in (fabric.a, fabric.b)]
    for end, other in ((a, b), (b, a)):
        end.connect(other.qpn, other.gid, timeout=18, retries=7)
    path = fabric.a.socket.parent / f"in-process-{a.process.pid}.sock"
    capture = Capture(fabric.a, "--qp", hex(a.qpn), "--count", 2, socket=path)
    b("receive", qp="q", region="m", bytes=64)
    a.send(64)
    a.done()
    assert capture.program.wait(60) == 0
    lines = [line for line in capture.program.text().splitlines() if LINE.fullmatch(line)]
    assert len(lines) == 2 and f" > {fabric.b.address} " in lines[0] and " SEND Only " in lines[0] and " Acknowledge " in lines[1], lines
    # It has left: the program is captured again.
    again = Capture(fabric.a, "--for", "1ms", socket=path)
    assert again.program.wait(60) == 0, again.program.text()
