"""The command line and the daemon's flags: their output, and their messages for wrong arguments."""

import json
import os
import signal
import subprocess

import pytest

from conftest import BUILD
from lab import Daemon, wait_until
from lab.perftest import await_listener

NO_DAEMON = {**os.environ, "BURST_SOCKET": "/nonexistent/burstd.sock"}


@pytest.mark.parametrize(
    "program,words,wrong,near",
    [
        ("burst", ["sl"], "sl", "ls"),
        ("burst", ["ls", "--jsn"], "--jsn", "--json"),
        ("burst", ["run", "--sokcet", "x", "--", "true"], "--sokcet", "--socket"),
        ("burst", ["why", "bad_icrk"], "bad_icrk", "bad_icrc"),
        ("burst", ["why", "IBV_WC_RETRY"], "IBV_WC_RETRY", "IBV_WC_RETRY_EXC_ERR"),
        ("burst", ["capture", "--count", "0"], "--count", "from 1"),
        ("burst", ["capture", "--for", "0"], "--for", "10s"),
        ("burstd", ["--cc", "auto:beta=1"], "auto", "takes no parameters"),
        ("burstd", ["--guarded=maybe"], "maybe", "neither on nor off"),
        ("burstd", ["--end-with-fd", "pipe"], "pipe", "whole number"),
        ("burstd", ["--prot", "udp"], "--prot", "--port"),
        ("burstd", ["--log-level", "inof"], "inof", "info"),
        ("burstd", ["--port", "upd"], "upd", "udp"),
        ("burstd", ["--port", "udp:dve=lo"], "dve", "dev"),
    ],
)
def test_a_wrong_word_gets_a_sentence_and_exit_code_2(program, words, wrong, near):
    done = subprocess.run([BUILD / program, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and wrong in lines[0] and near in lines[0], done.stderr


def test_a_wrong_key_in_the_file(tmp_path):
    path = tmp_path / "burstd.toml"
    path.write_text("wrokers = 2\n")
    done = subprocess.run([BUILD / "burstd", "--config", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert str(path) in done.stderr and "wrokers" in done.stderr and '"workers"' in done.stderr


def test_an_interface_that_does_not_exist(tmp_path):
    words = [BUILD / "burstd", "--socket", tmp_path / "s", "--port", "udp:dev=nosuch0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode not in (0, 101) and "nosuch0" in done.stderr and "lo" in done.stderr


def test_without_a_daemon_there_is_one_sentence():
    env = {**NO_DAEMON, "LD_LIBRARY_PATH": str(BUILD / "lib")}
    done = subprocess.run(["ibv_devices"], env=env, capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if "/nonexistent/burstd.sock" in line]
    assert len(said) == 1, done.stderr
    done = subprocess.run(["ibv_devinfo"], env=env, capture_output=True, text=True, timeout=60)
    assert "No IB devices found" in done.stdout + done.stderr


@pytest.mark.parametrize("variable,value,near", [("MODE", "inproces", "inprocess"), ("SWAP", "of", "off"), ("REGISTER", "share", "shared"), ("KEEPER", "offf", "off")])
def test_a_misspelt_variable_is_named_once(variable, value, near):
    env = {**NO_DAEMON, "LD_LIBRARY_PATH": str(BUILD / "lib"), f"BURST_{variable}": value}
    done = subprocess.run(["ibv_devices"], env=env, capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if f'BURST_{variable}="{value}" has no effect: the nearest valid word is "{near}"' in line]
    assert len(said) == 1, done.stderr
    for quiet in ("1", "on", "yes"):
        done = subprocess.run(["ibv_devices"], env={**env, "BURST_QUIET": quiet}, capture_output=True, text=True, timeout=60)
        assert not done.stderr, done.stderr


def test_the_names_of_counters_need_no_daemon():
    done = subprocess.run([BUILD / "burst", "stats", "--names"], env=NO_DAEMON, capture_output=True, text=True, timeout=60)
    names = done.stdout.split()
    assert done.returncode == 0 and {"bad_icrc", "rx_packets", "cq_overrun"} <= set(names) and len(names) == len(set(names))


@pytest.mark.parametrize("command", ["ls", "stats"])
def test_commands_name_the_sockets_that_they_tried(burst, command):
    done = burst(command, env=NO_DAEMON)
    assert done.returncode == 1 and "/nonexistent/burstd.sock" in done.stderr


def test_doctor_without_daemon(burst):
    done = burst("doctor", "--json", env=NO_DAEMON)
    report = json.loads(done.stdout)
    assert done.returncode == 1 and report["ok"] is False
    socket = report["checks"][0]
    assert socket["check"] == "socket" and socket["result"] == "fail" and "burst run" in socket["cure"]


def test_why(burst):
    by_name = burst("why", "retry_exhausted")
    assert by_name.returncode == 0 and "cure:" in by_name.stdout
    code = by_name.stdout.split("vendor_err ")[1].split(")")[0]
    assert burst("why", code).stdout == by_name.stdout


def test_why_explains_the_status_that_programs_print(burst):
    assert "retry_exhausted (" in burst("why", "IBV_WC_RETRY_EXC_ERR").stdout
    assert "burst why IBV_WC_RETRY_EXC_ERR" in burst("why", "12").stdout


@pytest.mark.parametrize("words,code", [(["why", "reasons"], 0), (["doctor"], 0), (["doctor", "--json"], 0), (["--help"], 0)])
def test_a_closed_pipe_at_the_reader_is_no_error(words, code):
    reader, writer = os.pipe()
    os.close(reader)
    command = [BUILD / "burst", *words]
    done = subprocess.run(command, env=NO_DAEMON, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (code, "")


def test_a_full_disk_gives_one_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run([BUILD / "burst", "why", "reasons"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and "No space left" in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_daemon_outlives_its_log(make_fabric):
    """The daemon's stderr is on a full disk. When the terminal closes, the daemon ends as on SIGTERM."""
    fabric = make_fabric(daemons=False)
    # SIGHUP has its default action here, as in a terminal; under nohup the daemon continues.
    script = ["env", "--default-signal=HUP", "sh", "-c", 'exec "$@" 2>/dev/full', "sh"]
    host = fabric.a
    host.daemon = Daemon([*host.prefix(), *script], host.socket, "udp:dev=eth0")
    code, text = host.run("ibv_devices")
    assert code == 0 and "burst0" in text
    assert host.daemon.stop(signal.SIGHUP) == 0
    assert not host.socket.exists()


def test_a_program_prints_why_its_devices_are_gone(make_fabric):
    host = make_fabric().a
    watchers = [host.start("ibv_asyncwatch", "-d", "burst0"), host.start("rping", "-s")]
    host.daemon.wait_for_text('program="ibv_asyncwatch"', 60)
    wait_until(lambda: "listening" in host.burst("cm", "--connections")[1], program=watchers[1])
    host.daemon.stop(signal.SIGKILL)
    for watcher in watchers:
        watcher.wait_for_text("the daemon has ended", 60)


def test_a_refused_call_is_explained_on_request(fabric):
    """The program gets EINVAL only; the daemon's log always has the reason."""
    explain = {"BURST_EXPLAIN": "1"}
    server = fabric.a.start("ibv_rc_pingpong", "-d", "burst0", env=explain)
    try:
        await_listener(fabric.a, server, 18515)
        code, text = fabric.a.run("ibv_rc_pingpong", "-d", "burst0", fabric.a.address, env=explain)
    finally:
        server.stop()
    assert code == 1
    assert "refused: RoCE needs a global address" in text + server.text(), text
    assert "refused: RoCE needs a global address" in fabric.a.daemon.text()


def test_the_log_has_the_reason_for_an_unreachable_address(fabric):
    code, text = fabric.a.run("rping", "-c", "-C", "1", "-a", "10.55.0.1")
    assert code != 0 and "ADDR_ERROR" in text
    fabric.a.daemon.wait_for_text("there is no route to 10.55.0.1", 60)


def test_all_counters_have_names(fabric):
    shown = json.loads(fabric.a.burst("stats", "--all", "--json")[1])["counters"]
    assert {row["name"] for row in shown} == set(fabric.a.burst("stats", "--names")[1].split())


def test_cc_without_peers_says_when_there_are_some(fabric):
    assert "a peer leaves this list with its last queue pair" in fabric.a.burst("cc")[1]


def test_ls(fabric):
    [device] = fabric.a.devices()
    assert (device["name"], device["kind"], device["state"], device["interface"]) == ("burst0", "udp", "up", "eth0")
    assert (device["link_mtu"], device["path_mtu"]) == (9000, 4096)
    addresses = [gid["address"] for gid in device["gids"]]
    assert addresses[0] == fabric.a.address and fabric.a.address6 in addresses
    assert device["gids"][0]["default"] and not device["gids"][1]["default"]
    code, text = fabric.a.burst("ls")
    assert code == 0 and "burst0 (default)" in text and fabric.a.address in text


def test_doctor_finds_no_fault(fabric):
    code, text = fabric.a.burst("doctor")
    assert code == 0, text
    assert "FAIL" not in text and "arrived intact" in text and "skip" not in text


def test_doctor_reports_a_port_in_use(make_fabric):
    fabric = make_fabric(daemons=False)
    holder = fabric.a.start("python3", "-c", HOLD_4791, plain=True)
    holder.wait_for_text("held", 60)
    code, text = fabric.a.burst("doctor")
    assert code == 1 and "taken by python3" in text
    daemon = fabric.a.run(BUILD / "burstd", "--socket", fabric.directory / "s", "--port", "udp:dev=eth0", seconds=60)
    assert daemon[0] not in (0, 101) and "4791" in daemon[1]


HOLD_4791 = """
import socket, time
held = [socket.socket(f, socket.SOCK_DGRAM) for f in (socket.AF_INET, socket.AF_INET6)]
held[1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
[s.bind(("", 4791)) for s in held]
print("held", flush=True)
time.sleep(60)
"""


def test_stats_count_what_was_sent(fabric):
    before = fabric.a.stats()
    assert fabric.a.burst("doctor")[0] == 0
    after = fabric.a.stats()
    assert sum(after.values()) > sum(before.values())
