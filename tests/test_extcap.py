"""`burst` as a capture program of Wireshark (extcap): tshark lists the daemon's ports and captures there."""

import os
import re
import shutil
import signal
import subprocess

import lab
import pytest
from conftest import BUILD
from lab import run_pair

FEW = ["ib_send_bw", "-d", "burst0", "-F", "-s", 1024, "-n", 60, "-t", 4]
needs_tshark = pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed (scripts/install-deps installs it)")


@pytest.fixture
def programs(tmp_path):
    """A folder of capture programs as the packages make it: `burst` is a link."""
    folder = tmp_path / "extcap"
    folder.mkdir()
    (folder / "burst").symlink_to(BUILD / "burst")
    return folder


def tshark(programs, *words):
    """Words that run tshark with these capture programs in place of the installed ones: root cannot name another folder."""
    folders = subprocess.run(["tshark", "-G", "folders"], capture_output=True, text=True, check=True).stdout
    place = re.search(r"^Extcap path:\s+(\S+)", folders, re.M)[1]
    return ["unshare", "--mount", "sh", "-c", 'mount --bind "$1" "$2" && shift 2 && exec tshark "$@"', "sh", programs, place, *words]


def asked(*words):
    done = subprocess.run([BUILD / "burst", *words], capture_output=True, text=True, env=dict(os.environ, BURST_SOCKET="/nonexistent"))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_question_has_its_answer_without_a_daemon():
    first, *rest = asked("--extcap-interfaces", "--extcap-version=4.0").splitlines()
    assert re.fullmatch(r"extcap \{version=[\d.]+\}\{help=\S+\}\{display=Burst\}", first), first
    assert rest == ["interface {value=burst}{display=Burst: all ports}"]
    assert asked("--extcap-interface", "burst", "--extcap-dlts") == "dlt {number=101}{name=RAW}{display=IP}\n"
    calls = re.findall(r"^arg \{number=(\d)\}\{call=--(\w+)\}\{display=[^{}]+\}\{type=", asked("--extcap-interface", "burst", "--extcap-config"), re.M)
    assert [call for _, call in calls] == ["snap", "qp", "peer", "opcode", "stage", "socket"] and [int(n) for n, _ in calls] == list(range(6))


@needs_tshark
def test_tshark_lists_the_ports_and_captures_there(make_fabric, programs, tmp_path):
    fabric = make_fabric()
    host, env = fabric.a, {"BURST_SOCKET": str(fabric.a.socket), "HOME": str(tmp_path)}
    code, text = host.run(*tshark(programs, "-D"), env=env)
    assert code == 0 and re.search(r"^\d+\. burst \(Burst: all ports\)$", text, re.M) and re.search(r"^\d+\. burst0 \(Burst: eth0\)$", text, re.M), text
    path = tmp_path / "seen.pcapng"
    capture = host.start(*tshark(programs, "-i", "burst0", "-o", "extcap.burst0.opcode:send", "-w", path), env=env)
    lab.wait_until(lambda: "Capturing on" in capture.text(), 60, capture.text, capture)
    # The extcap program connects on its own time: traffic goes on until a packet has arrived.
    lab.wait_until(lambda: run_pair(fabric.a, fabric.b, FEW) is None or path.exists() and path.stat().st_size > 4096, 120, capture.text)
    capture.process.send_signal(signal.SIGINT)
    assert capture.wait(60) == 0, capture.text()
    code, text = host.burst("capture", "--read", path)
    assert code == 0 and text and all(" SEND " in line for line in text.splitlines()), text[:500]


def test_a_wrong_call_is_answered_in_a_sentence(make_fabric, tmp_path):
    host = make_fabric().a
    for words, sentence in ((["--capture", "--extcap-interface", "burst0"], "needs --fifo"),
                            (["--capture", "--extcap-interface", "burst9", "--fifo", tmp_path / "f"], "there is no port burst9"),
                            (["--capture", "--extcap-interface", "burst", "--fifo", tmp_path / "f", "--stage", "lost"], "refused"),
                            (["--extcap-nothing"], "--extcap-nothing")):
        code, text = host.run(BUILD / "burst", *words, env={"BURST_SOCKET": str(host.socket)})
        assert code == 1 and sentence in text and len(text.splitlines()) == 1, text
    assert not (tmp_path / "f").exists()
