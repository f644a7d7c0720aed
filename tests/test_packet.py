"""The `packet` port as programs see it: with itself and with `udp` ports."""

import subprocess
from pathlib import Path

import pytest

from lab import Fabric, build_directory, run_pair
from lab.perftest import rping, soonest

BUILD = build_directory()
EXERCISE = BUILD / "programs" / "exercise"
PACKET, UDP = "packet:dev=eth0", "udp:dev=eth0"
PERFTEST = ["-d", "burst0", "-F"]


def errors_sent(host):
    """ICMP destination unreachable of both versions that this host's kernel has sent."""
    proc = Path(f"/proc/{host.keeper.pid}/net")
    names, values = [line.split() for line in (proc / "snmp").read_text().splitlines() if line.startswith("Icmp:")]
    v4 = int(values[names.index("OutDestUnreachs")])
    v6 = dict(line.split() for line in (proc / "snmp6").read_text().splitlines())
    return v4 + int(v6["Icmp6OutDestUnreachs"])


@pytest.fixture(scope="module", params=[(PACKET, PACKET, 9000), (PACKET, UDP, 1500), (UDP, PACKET, 4200), (PACKET, UDP, 9000)],
                ids=["packet-packet", "packet-udp-1500", "udp-packet-4200", "packet-udp-9000"])
def pair(request, namespaces):
    """Two hosts with these ports; the kernels of both must have kept silent."""
    *ports, mtu = request.param
    with Fabric(ports=tuple(ports), mtu=mtu) as fabric:
        before = [errors_sent(host) for host in fabric.hosts]
        yield fabric
        assert [errors_sent(host) for host in fabric.hosts] == before, "a kernel answered"
        for host in fabric.hosts:
            assert host.daemon.running() and "panicked" not in host.daemon.text(), host.daemon.text()
            stats = host.stats()
            assert not stats.get("bad_icrc") and not stats.get("bad_udp_checksum"), stats


@pytest.mark.parametrize("family", [4, 6])
def test_perftest(pair, family):
    a, b = pair.hosts
    address = (lambda h: h.address) if family == 4 else (lambda h: h.address6)
    index = a.gid_index(address(a))
    assert index == b.gid_index(address(b))
    words = [*PERFTEST, "-x", index]
    run_pair(b, a, [EXERCISE, "-n", 1000, "-x", index])
    run_pair(a, b, ["ib_write_bw", *words, "-s", 65536, "-n", 500])
    run_pair(b, a, ["ib_send_bw", *words, "-c", "UC", "-s", 8192, "-n", 100])
    run_pair(a, b, ["ib_send_lat", *words, "-c", "UD", "-s", 512, "-n", 300])


def test_connection_manager_and_first_contact(pair):
    a, b = pair.hosts

    def first_contact(address):
        for host in pair.hosts:
            host.ip("neigh flush dev eth0")
        return rping(b, a, address)

    for address in (b.address, b.address6):
        # The very first packet must not be lost; the connection manager would hide the loss by a retry.
        assert soonest(3, lambda to=address: first_contact(to)) < 3
    for host in pair.hosts:
        host.ip("neigh flush dev eth0")
    run_pair(b, a, ["ibv_ud_pingpong", "-d", "burst0", "-g", "0", "-n", 50])


def test_two_programs_of_one_host(pair):
    a = pair.a
    run_pair(a, a, ["ib_write_bw", *PERFTEST, "-s", 65536, "-n", 500])
    run_pair(a, a, [EXERCISE, "-n", 1000])


def test_several_workers(make_fabric):
    fabric = make_fabric(ports=(PACKET, PACKET), extra=("--workers", 3))
    run_pair(fabric.b, fabric.a, ["ib_write_bw", *PERFTEST, "-q", 8, "-s", 16384, "-n", 100])
    run_pair(fabric.b, fabric.a, [EXERCISE, "-n", 1000])
    # A packet that reaches another worker is handed over. What was sent again, on a busy machine, may come after the program's end.
    seen = [host.stats() for host in fabric.hosts]
    again = sum(stats.get(name, 0) for stats in seen for name in ("sr_repeated", "sr_probe", "sr_read_timeout"))
    assert sum(stats.get("unknown_qpn", 0) for stats in seen) <= again, seen


def test_without_trains(make_fabric):
    fabric = make_fabric(ports=(PACKET + ",gso=off,gro=off", PACKET))
    run_pair(fabric.b, fabric.a, [EXERCISE, "-n", 1000])


def test_no_permission_is_a_sentence(namespaces, tmp_path):
    words = ["setpriv", "--bounding-set", "-net_raw,-net_admin", "--inh-caps", "-net_raw,-net_admin"]
    words += [BUILD / "burstd", "--socket", tmp_path / "s", "--port", "packet:dev=lo"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2 and len(lines) == 1, (done.returncode, done.stderr)
    assert "CAP_NET_RAW" in lines[0] and "packet socket" in lines[0]


def test_commands_show_the_port(pair):
    a = pair.a
    code, text = a.burst("ls")
    assert code == 0 and a.devices()[0]["port"].split(":")[0] in text
    code, text = a.burst("doctor")
    assert "held by the daemon" in text, text
