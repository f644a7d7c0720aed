"""The `packet` port as programs see it: with itself and with `udp` ports, through a gateway, on a wire on which others send
rubbish."""

import contextlib
import socket
import struct
import subprocess
import time
import zlib
from pathlib import Path

import pytest

from lab import Fabric, Host, LabError, build_directory, run_pair
from lab.perftest import await_listener

BUILD = build_directory()
EXERCISE = BUILD / "programs" / "exercise"
PACKET, UDP = "packet:dev=eth0", "udp:dev=eth0"
PERFTEST = ["-d", "burst0", "-F"]


def gid_index(host, address):
    [device] = host.devices()
    return next(gid["index"] for gid in device["gids"] if gid["address"] == address)


def errors_sent(host):
    """ICMP destination unreachable of both versions that this host's kernel has sent."""
    proc = Path(f"/proc/{host.keeper.pid}/net")
    names, values = [line.split() for line in (proc / "snmp").read_text().splitlines() if line.startswith("Icmp:")]
    v4 = int(values[names.index("OutDestUnreachs")])
    v6 = dict(line.split() for line in (proc / "snmp6").read_text().splitlines())
    return v4 + int(v6["Icmp6OutDestUnreachs"])


def rping(server_host, client_host, address):
    """Connects by librdmacm and exchanges data; returns the seconds that the successful client took."""
    server = server_host.start("rping", "-s", "-C", 5, "-a", address)
    try:
        for _ in range(20):
            began = time.monotonic()
            code, text = client_host.run("rping", "-c", "-v", "-C", 5, "-a", address)
            if code == 0:
                assert server.wait(10) == 0, server.text()
                return time.monotonic() - began
            # The server does not listen yet.
            assert server.running(), server.text()
            time.sleep(0.1)
        raise LabError(text)
    finally:
        server.stop()


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
    index = gid_index(a, address(a))
    assert index == gid_index(b, address(b))
    words = [*PERFTEST, "-x", index]
    run_pair(b, a, [EXERCISE, "-n", 1000, "-x", index])
    run_pair(a, b, ["ib_write_bw", *words, "-s", 65536, "-n", 500])
    run_pair(b, a, ["ib_send_bw", *words, "-c", "UC", "-s", 8192, "-n", 500])
    run_pair(a, b, ["ib_send_lat", *words, "-c", "UD", "-s", 512, "-n", 300])


def test_connection_manager_and_first_contact(pair):
    a, b = pair.hosts
    for host in pair.hosts:
        host.ip("neigh flush dev eth0")
    # The very first packet must not be lost: the connection manager would ask again after seconds only.
    for address in (b.address, b.address6):
        assert rping(b, a, address) < 3
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
    for host in fabric.hosts:
        assert not host.stats().get("unknown_qpn"), host.stats()


def test_without_trains(make_fabric):
    fabric = make_fabric(ports=(PACKET + ",gso=off,gro=off", PACKET))
    run_pair(fabric.b, fabric.a, [EXERCISE, "-n", 1000])


@pytest.fixture
def routed(namespaces, tmp_path):
    """Hosts a and b with a router between them, each with a burstd on a `packet` port."""
    with contextlib.ExitStack() as ends:
        hosts = []
        for name in ("a", "b", "r"):
            host = Host(name, tmp_path)
            ends.callback(host.end)
            hosts.append(host)
        a, b, router = hosts
        for number, host in enumerate((a, b), start=1):
            host.ip(f"link add eth0 mtu 9000 type veth peer name to{number} netns {router.keeper.pid}")
            host.address, host.address6 = f"10.9{number}.0.1", f"fd9{number}::1"
            host.ip(f"addr add {host.address}/24 dev eth0")
            host.ip(f"addr add {host.address6}/64 dev eth0 nodad")
            host.ip("link set eth0 up")
            router.ip(f"link set to{number} mtu 9000")
            router.ip(f"addr add 10.9{number}.0.254/24 dev to{number}")
            router.ip(f"addr add fd9{number}::254/64 dev to{number} nodad")
            router.ip(f"link set to{number} up")
            host.ip(f"route add default via 10.9{number}.0.254")
            host.ip(f"route add default via fd9{number}::254")
        for key in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
            code, text = router.run("sh", "-c", f"echo 1 > /proc/sys/net/{key}", plain=True)
            assert code == 0, text
        a.start_daemon(PACKET)
        b.start_daemon(PACKET)
        yield a, b


def test_a_gateway_in_between(routed):
    a, b = routed
    for family, address in ((4, b.address), (6, b.address6)):
        own = a.address if family == 4 else a.address6
        words = [*PERFTEST, "-x", gid_index(a, own), "-s", 65536, "-n", 300]
        run_pair(b, a, ["ib_write_bw", *words], address=b.address)
        run_pair(b, a, ["ib_send_bw", *words[:-3], 1024, "-n", 300, "-c", "UD"], address=b.address)
    rping(b, a, b.address)
    rping(b, a, b.address6)


def wait_until(what, seconds=15):
    limit = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < limit, "did not come about"
        time.sleep(0.1)


def ip_checksum(header):
    """The checksum of an IPv4 header in which it is 0."""
    total = sum(struct.unpack(">10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return struct.pack(">H", ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF)


def roce_frame(mac_src, mac_dst, src, dst, opcode, qpn, psn, payload=b"", ip_id=77):
    """An Ethernet frame with a RoCEv2 packet, ICRC and all; no UDP checksum."""
    bth = struct.pack(">BBHII", opcode, 0, 0xFFFF, qpn, psn) + payload
    udp = struct.pack(">HHHH", 49152, 4791, 8 + len(bth) + 4, 0)
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp) + len(bth) + 4, ip_id, 0x4000, 64, 17, 0, src, dst)
    masked = b"\xff" * 8 + ip[:1] + b"\xff" + ip[2:8] + b"\xff" + ip[9:10] + b"\xff\xff" + ip[12:]
    masked += udp[:6] + b"\xff\xff" + bth[:4] + b"\xff" + bth[5:]
    ip = ip[:10] + ip_checksum(ip) + ip[12:]
    return mac_dst + mac_src + b"\x08\x00" + ip + udp + bth + struct.pack("<I", zlib.crc32(masked))


#: Sends frames, each behind the ten bytes of a virtio header (SOL_PACKET, PACKET_VNET_HDR).
SEND = """
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.setsockopt(263, 15, 1)
s.bind(("eth0", 0))
for line in sys.stdin:
    s.send(bytes.fromhex(line))
"""
SINGLE = bytes(10)


def changed(frame, at, bits):
    """The frame with some bits of one byte inverted."""
    return frame[:at] + bytes([frame[at] ^ bits]) + frame[at + 1:]


def with_field(frame, at, field):
    """The frame with another field in its IPv4 header, whose checksum is right."""
    frame = frame[:at] + field + frame[at + len(field):]
    return frame[:24] + ip_checksum(frame[14:24] + b"\0\0" + frame[26:34]) + frame[26:]


def tagged(frame, kind, tag):
    """The frame as a switch sends it in a VLAN."""
    return frame[:12] + struct.pack(">HH", kind, tag) + frame[12:]


def mac_of(host):
    return bytes.fromhex(host.run("cat", "/sys/class/net/eth0/address", plain=True)[1].strip().replace(":", ""))


def inject(host, frames, header=SINGLE):
    lines = "\n".join((header + frame).hex() for frame in frames)
    words = [*host.prefix(), "python3", "-c", SEND]
    done = subprocess.run(words, input=lines, text=True, capture_output=True, timeout=20)
    assert done.returncode == 0, done.stderr


def test_rubbish_is_counted_by_name_and_harms_nobody(make_fabric):
    fabric = make_fabric(ports=(PACKET, PACKET))
    a, b = fabric.hosts
    macs = mac_of(b), mac_of(a)
    words = ["ib_write_bw", *PERFTEST, "-s", 4096, "-D", 5]
    server = a.start("stdbuf", "-oL", *words)
    await_listener(a, server, 18515)
    client = b.start(*words, a.address)
    server.wait_for_text("remote address", 10)
    line = next(line for line in server.text().splitlines() if "local address" in line)
    qpn = int(line.split("QPN")[1].split()[0], 16)
    peer, ours, stranger = (socket.inet_aton(ip) for ip in (b.address, a.address, "10.99.0.77"))
    body = bytes(16 + 64)
    good = roce_frame(*macs, peer, ours, 0x0A, 0xABCDEF, 5, body)
    rubbish = {
        "wrong_source": [roce_frame(*macs, stranger, ours, 0x0A, qpn, 5, body)],
        "bad_icrc": [changed(good, 80, 0xFF)],
        "unknown_opcode": [roce_frame(*macs, peer, ours, 0x1F, qpn, 5)],
        # A priority without a VLAN is nobody else's: the frame is looked at.
        "unknown_qpn": [good, tagged(good, 0x8100, 7 << 13)],
        "not_ours": [roce_frame(*macs, peer, stranger, 0x0A, qpn, 5, body)],
        "foreign_vlan": [tagged(good, 0x8100, 5), tagged(good, 0x88A8, 5)],
        "ip_fragment": [with_field(good, 20, b"\x20\x00")],
        "bad_ip_header": [changed(good, 24, 0x11)],
        "bad_udp_checksum": [changed(good, 40, 0x12)],
        "truncated": [good[:-10], with_field(good, 16, b"\x00\x20")],
        "oversize": [roce_frame(*macs, peer, ours, 0x0A, qpn, 5, bytes(5000))],
    }
    before = a.stats()
    inject(b, [frame for frames in rubbish.values() for frame in frames] * 3)
    expected = {name: 3 * len(frames) for name, frames in rubbish.items()}

    def seen():
        stats = a.stats()
        return {name: stats.get(name, 0) - before.get(name, 0) for name in rubbish}

    with contextlib.suppress(AssertionError):
        wait_until(lambda: seen() == expected, 3)
    assert seen() == expected
    assert client.wait(30) == 0 and server.wait(30) == 0, client.text() + server.text()


def train_of(packets):
    """One frame of packets with one length but the last: a virtio header, and the headers of the first one."""
    head, bodies = bytearray(packets[0][:42]), b"".join(packet[42:] for packet in packets)
    udp = 8 + len(bodies)
    head[16:18], head[38:40] = struct.pack(">H", 20 + udp), struct.pack(">H", udp)
    head[24:26] = ip_checksum(bytes(head[14:24]) + b"\0\0" + bytes(head[26:34]))
    # The checksum is left to whoever cuts the train: so far it is the sum of the pseudo header.
    pseudo = bytes(head[26:34]) + struct.pack(">HH", 17, udp)
    head[40:42] = struct.pack(">H", 0xFFFF - struct.unpack(">H", ip_checksum(pseudo + bytes(8)))[0])
    virtio = struct.pack("=BBHHHH", 1, 5, 42, len(packets[0]) - 42, 34, 6)
    return virtio + bytes(head) + bodies


def test_a_train_loses_its_damaged_packet_only(make_fabric):
    fabric = make_fabric(ports=(PACKET, PACKET))
    a, b = fabric.hosts
    macs = mac_of(b), mac_of(a)
    peer, ours = (socket.inet_aton(host.address) for host in (b, a))
    # The last one is shorter, and each has its own identification, counting on from the first one's.
    good = [roce_frame(*macs, peer, ours, 0x0A, 0xABCDEF, psn, bytes(16 + (1024 if psn < 9 else 512)), 77 + psn)
            for psn in range(10)]
    before = a.stats()

    def seen():
        stats = a.stats()
        return {name: stats.get(name, 0) - before.get(name, 0) for name in expected}

    expected = {"unknown_qpn": 0, "bad_icrc": 0, "bad_udp_checksum": 0, "train_unknown": 0}
    for damaged in (None, 0, 4, 8, 9, None):
        packets = [changed(frame, 300, 1) if number == damaged else frame for number, frame in enumerate(good)]
        inject(b, [train_of(packets)], b"")
        expected["bad_icrc"] += damaged is not None
        expected["unknown_qpn"] += 9 if damaged is not None else 10
        with contextlib.suppress(AssertionError):
            wait_until(lambda: seen() == expected, 5)
        assert seen() == expected, f"damaged: {damaged}"


def test_no_permission_is_a_sentence(namespaces, tmp_path):
    words = ["setpriv", "--bounding-set", "-net_raw,-net_admin", "--inh-caps", "-net_raw,-net_admin"]
    words += [BUILD / "burstd", "--socket", tmp_path / "s", "--port", "packet:dev=lo"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=10)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2 and len(lines) == 1, (done.returncode, done.stderr)
    assert "CAP_NET_RAW" in lines[0] and "packet socket" in lines[0]


def test_commands_know_the_port(pair):
    a = pair.a
    code, text = a.burst("ls")
    assert code == 0 and a.devices()[0]["port"].split(":")[0] in text
    code, text = a.burst("doctor")
    assert "held by the daemon" in text, text
