"""`burst switch` between real hosts: any traffic passes, with offloads and without; a bottleneck's rate, buffer, marks and faults hold for it."""

import json
import os
import shutil
import subprocess

import pytest

from lab import build_directory, wait_until
from lab.switched import Switched

BUILD = build_directory()
RATE = ["--rate", "200Mbit"]


@pytest.fixture(scope="module")
def hosts(namespaces):
    with Switched(3) as made:
        yield made
        for host in made.hosts:
            assert host.daemon.running(), host.daemon.text()


def send(hosts, seconds=2, plain=False, sender=1):
    """WRITEs, or a TCP stream, from host 1 to host 0. Returns Gbit/s as the receiver sees them."""
    a, b = hosts.hosts[0], hosts.hosts[sender]
    if plain:
        server = a.start("iperf3", "-s", "-1", "--forceflush", plain=True)
        server.wait_for_text("listening", 60)
        code, text = b.run("iperf3", "-c", a.address, "-t", seconds, "-J", plain=True)
        assert code == 0, text
        return json.loads(text)["end"]["sum_received"]["bits_per_second"] / 1e9
    words = ["ib_write_bw", "-d", "burst0", "-F", "-D", seconds, "--report_gbits"]
    server = a.start(*words)
    wait_until(lambda: any(":4853 " in line for line in a.tcp_table()), program=server)
    code, text = b.run(*words, a.address)
    assert code == 0 and server.wait(60) == 0, text + server.text()
    return next(float(line.split()[3]) for line in text.splitlines() if line.split()[:1] == ["65536"])


@pytest.mark.parametrize("offloads", ["on", "off"])
def test_programs_meet_the_rate(hosts, offloads):
    """TCP and RoCE, whose hosts send trains or single packets. Goodput is bounded by the modelled rate, which is far below the wire's."""
    for host in hosts.hosts:
        subprocess.run([*host.prefix(), "ethtool", "-K", "eth0", "tso", offloads, "gso", offloads, "tx-udp-segmentation", offloads], check=True, capture_output=True)
    for plain in (True, False):
        with hosts.switch(*RATE, "--buffer", "256KiB") as switch:
            goodput = send(hosts, plain=plain)
        # How much less depends on the machine's other work; that the queue was the bottleneck does not.
        assert 0 < goodput <= 0.2, (plain, goodput)
        port = switch.port(0)
        assert port["queue_max"] > 16 << 10, port
        assert port["refused"] == 0 and port["not_sent"] == 0, port
        assert port["queue_max"] <= 256 << 10, port
        assert port["sent"] + port["missing"] == port["offered"], port


def test_a_small_buffer_drops_and_the_default_controller_adapts(hosts):
    """Before the controllers knew a bottleneck, 61 % of all packets were dropped at such a buffer."""
    with hosts.switch(*RATE, "--buffer", 100_000) as switch:
        send(hosts, seconds=3)
    port = switch.port(0)
    assert port["missing"] < 0.05 * port["offered"], port


def test_marks_take_the_place_of_drops(hosts):
    hosts.restart_daemons(["--cc", "dctcp"])
    with hosts.switch(*RATE, "--buffer", "1MiB", "--ecn", "64KiB") as switch:
        goodput = send(hosts)
    port = switch.port(0)
    assert port["marked"] > 0 and port["missing"] == 0, port
    assert 0 < goodput <= 0.2
    hosts.restart_daemons([])


def test_faults_are_repaired(hosts):
    with hosts.switch("--loss", "1%", "--dup", "1%", "--reorder", "1%", "--late", "200us", "--seed", 7) as switch:
        assert send(hosts) > 0
    assert switch.results["lost_on_purpose"] > 0 and switch.results["buffer_drops"] == 0, switch.results


def test_a_capture_shows_what_was_dropped(hosts, tmp_path):
    file, samples = tmp_path / "passed.pcapng", tmp_path / "queues"
    with hosts.switch(*RATE, "--loss", "20%", "--capture", file, "--samples", samples):
        code, text = hosts.hosts[1].run("ping", "-c", 40, "-i", "0.01", "-W", 1, hosts.hosts[0].address, plain=True)
    shown = subprocess.run(["tshark", "-r", file, "-Y", "icmp", "-T", "fields", "-e", "frame.interface_name", "-e", "icmp.seq"], capture_output=True, text=True, check=True).stdout
    places = [line.split("\t")[0] for line in shown.splitlines()]
    came, left = places.count("port1 in"), places.count("port0 out")
    assert came == 40 and 0 < left < 40, (places, text)
    assert len(samples.read_text().split("\n")[0].split()) == 4


def run(hosts, *words):
    return hosts.middle.run(BUILD / "burst", "switch", *words, plain=True)


def test_wrong_use_is_one_sentence(hosts):
    for words, code, part in [
        (["port0", "nowhere"], 1, "there is no interface nowhere"),
        (["port0", "port0"], 1, "port0 is named twice"),
        (["port0"], 2, "INTERFACE"),
        (["--rate", "fast", "port0", "port1"], 2, '--rate "fast" is not a bit rate'),
        (["--loss", "-1%", "port0", "port1"], 2, '--loss "-1%" is not a rate'),
        (["--loss", "5", "port0", "port1"], 2, ": write 5%"),
        (["--for", "0", "port0", "port1"], 2, "--for 0 would end"),
        (["--for", "soon", "port0", "port1"], 2, "--for"),
        (["--rat", "1Gbit", "port0", "port1"], 2, 'the nearest valid one is "--rate"'),
    ]:
        got, text = run(hosts, *words)
        assert got == code and part in text and text.count("\n") == 1, (words, text)


def test_it_ends_by_itself_and_says_what_passed(hosts):
    code, text = run(hosts, "--for", "300ms", "port0", "port1", "port2")
    assert code == 0 and text.startswith("forwarding between port0, port1, port2\n"), text
    assert [line.split()[0] for line in text.splitlines()[2:]] == ["port0", "port1", "port2"], text


def test_what_cannot_be_written_is_said(hosts):
    code, text = run(hosts, "--json", "/nowhere/at/all", "--for", "300ms", "port0", "port1")
    assert code == 1 and text.count("\n") == 1 and "/nowhere/at/all: No such file" in text, text
    for option in ("--capture", "--samples"):
        code, text = run(hosts, option, "/dev/full", "--for", "300ms", "port0", "port1")
        assert code == 1 and "cannot be written: No space left" in text and "port1 " in text, (option, text)


def test_it_ends_with_its_starter(hosts):
    read, write = os.pipe()
    words = [*hosts.middle.prefix(), BUILD / "burst-switch", "--end-with-fd", str(read), "port0", "port1"]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, pass_fds=[read])
    os.close(read)
    assert running.stdout.readline() == b"forwarding between port0, port1\n"
    os.write(write, b"this is no end")
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(0.3)
    os.close(write)
    assert running.wait(60) == 0 and b"Mbit/s" in running.stdout.read()
    running.stdout.close()


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is not installed (package util-linux)")
def test_without_privileges_it_says_what_is_missing(hosts):
    code, text = hosts.middle.run("setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=-all", "/usr/bin/env", BUILD / "burst-switch", "port0", "port1", plain=True)
    assert code in (1, 126), text
    if code == 1:
        assert "CAP_NET_RAW" in text, text
