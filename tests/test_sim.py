"""`burst sim` as a user runs it: results that repeat, sentences for wrong files, Ctrl-C, sweeps, the hunt."""
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

import lab
from conftest import BUILD

PAIR = """
time = "{time}"
[topology]
kind = "pair"
[[traffic]]
kind = "stream"
size = "{size}"
"""


def sim(*args, **kwargs):
    return subprocess.run([BUILD / "burst", "sim", *map(str, args)], capture_output=True, text=True, timeout=120, **kwargs)


def scenario(tmp_path, until="2ms", size="64KiB", more=""):
    path = tmp_path / "pair.toml"
    path.write_text(PAIR.format(time=until, size=size) + more)
    return path


def await_computing(process):
    """Until the simulator catches SIGINT and has computed for 0.2 s: `burst` executes it, so it has the same process id."""

    def computes():
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = int(status.split("SigCgt:")[1].split()[0], 16)
        user, system = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return caught >> (signal.SIGINT - 1) & 1 and (int(user) + int(system)) / os.sysconf("SC_CLK_TCK") >= 0.2

    lab.wait_until(computes)


def test_results_are_equal_twice_and_complete(tmp_path):
    path = scenario(tmp_path)
    outputs = []
    for run in "ab":
        done = sim(path, "--json", tmp_path / run, "--svg", tmp_path / "plot.svg")
        assert done.returncode == 0, done.stderr
        assert "stream" in done.stdout and done.stderr.startswith("estimate: ")
        outputs.append((tmp_path / run).read_bytes())
    assert outputs[0] == outputs[1]
    results = json.loads(outputs[0])
    assert results["traffic"][0]["goodput_gbps"] > 90 and not results["partial"] and results["cpu"] == "ideal"
    assert "<polyline" in (tmp_path / "plot.svg").read_text()


def test_a_wrong_file_gets_its_line_and_exit_code_2(tmp_path):
    for more, sentence in [
        ("[links]\nlos = 0.1\n", "line 9: unknown field `los`"),
        ("[links]\nloss = -1\n", "line 9: loss: -1 is not a share"),
        ("to = 5\n", "line 8: to: there is no host 5"),
        ("to = 0\n", "line 8: to: host 0 would send to itself"),
        ('[[fault]]\nkind = "link-down"\nat = 0\nlink = "host2"\n', 'line 11: link: there is no link "host2"'),
        ('[[adapter]]\nhosts = [2]\n', "line 9: hosts: there is no host 2"),
    ]:
        done = sim(scenario(tmp_path, more=more))
        assert done.returncode == 2 and sentence in done.stderr, done.stderr
    assert sim(tmp_path / "absent.toml").returncode == 2


def test_ctrl_c_gives_the_results_so_far(tmp_path):
    path = scenario(tmp_path, until="3600s", size="1GiB")
    process = subprocess.Popen([BUILD / "burst", "sim", path, "--json", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stderr.readline()
    await_computing(process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert json.loads(output)["partial"]
    for words, expected in [(("sweep", path, "--set", "seed=1,2,3"), "PARTIAL"), (("hunt", "--from", "0", "--seeds", "1000000"), " seeds from 0 on: 0 violations")]:
        process = subprocess.Popen([BUILD / "burst", "sim", *map(str, words)], stdout=subprocess.PIPE, text=True)
        await_computing(process)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=100)
        assert process.returncode == 130 and expected in output, output


def test_what_needs_more_memory_than_there_is_gets_refused(tmp_path):
    path = tmp_path / "all.toml"
    path.write_text('''time = "1ms"\n[topology]\nkind = "fat-tree"\nhosts = 4096\n[[traffic]]\nkind = "all-to-all"\nsize = "64KiB"\n''')
    with open("/proc/meminfo") as lines:
        kib = next(int(line.split()[1]) for line in lines if line.startswith("MemTotal:"))
    if kib > 200 << 20:
        pytest.skip(f"{kib >> 20} GiB of memory are enough for the scenario")
    for words in ([path], ["sweep", path, "--set", "seed=1,2"]):
        done = sim(*words)
        assert done.returncode == 1 and "more than 80 % of the" in done.stderr and done.stderr.startswith("estimate: "), done.stderr


def test_a_capture_is_what_one_host_sends_and_receives(tmp_path):
    path = scenario(tmp_path, until="20us", more='[[traffic]]\nkind = "stream"\nfrom = 1\nto = 0\nsize = "1KiB"\n')
    done = sim(path, "--capture", tmp_path / "0.pcap", "--capture-host", 1)
    assert done.returncode == 0, done.stderr
    fields = ["-T", "fields", "-e", "ip.src", "-e", "ip.dst", "-e", "infiniband.bth.opcode"]
    shown = subprocess.run(["tshark", "-r", tmp_path / "0.pcap", *fields], capture_output=True, text=True, check=True).stdout
    ways = {tuple(line.split("\t")[:2]) for line in shown.splitlines()}
    assert ways == {("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "10.0.0.1")} and "\t202\n" in shown, shown[:400]
    full = sim(path, "--capture", "/dev/full")
    assert full.returncode == 1 and "the capture is not whole: No space left on device" in full.stderr
    assert "no host 2 to capture at, only 0 to 1" in sim(path, "--capture", tmp_path / "2.pcap", "--capture-host", 2).stderr


def test_a_sweep_has_a_row_for_each_combination(tmp_path):
    done = sim("sweep", scenario(tmp_path), "--set", "hosts.cc=aimd,dctcp", "--set", "seed=1,2", "--json", tmp_path / "grid")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "grid").read_text())
    assert [row["set"] for row in rows] == [{"hosts.cc": cc, "seed": seed} for cc in ("aimd", "dctcp") for seed in "12"]
    wrong = sim("sweep", scenario(tmp_path), "--set", "hosts.mtu=1")
    assert wrong.returncode == 2 and "hosts.mtu=1: mtu: 1; expected 256" in wrong.stderr


def test_the_hunt_repeats_its_seeds():
    done = sim("hunt", "--from", 5, "--seeds", 40)
    assert done.returncode == 0 and done.stdout == "40 seeds from 5 on: 0 violations\n", done.stdout
    assert sim("replay", 7).stdout == "seed 7: nothing is violated\n"
    assert 'name = "hunt 7"' in sim("replay", 7, "--show").stdout
