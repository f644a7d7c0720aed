"""`burst proxy` without BPF: rules of nf_tables take the connections, of proxies that have CAP_NET_ADMIN and nothing else."""

import contextlib
import os
import signal
import socket
import struct
import subprocess

import pytest

from lab import LabError, wait_until
from lab.proxy import Proxies
from test_proxy import PORT, Load, _replace, await_carried, carried, cgroup_mount, client, exactly, inside, joined, listen, network_state, read_all
from test_proxy import test_a_program_may_listen_at_the_port_of_a_server_elsewhere as a_program_may_listen_at_the_port_of_a_server_elsewhere
from test_proxy import test_a_refused_connection_is_refused as a_refused_connection_is_refused
from test_proxy import test_a_reset_stays_a_reset as a_reset_stays_a_reset
from test_proxy import test_a_stalled_reader_stops_the_writer_and_no_one_else as a_stalled_reader_stops_the_writer_and_no_one_else
from test_proxy import test_both_ends_see_true_addresses as both_ends_see_true_addresses
from test_proxy import test_broken_queue_pairs_lose_nothing as broken_queue_pairs_lose_nothing
from test_proxy import test_half_close_both_ways as half_close_both_ways
from test_proxy import test_urgent_data_keeps_its_place as urgent_data_keeps_its_place
from test_proxy import test_what_the_policy_does_not_name_is_left_alone as what_the_policy_does_not_name_is_left_alone
from test_proxy import test_writing_to_a_closed_program_is_answered_by_a_reset as writing_to_a_closed_program_is_answered_by_a_reset
from test_proxy_limits import test_a_taken_prefix_with_several_routes_keeps_the_source_of_each as a_taken_prefix_with_several_routes_keeps_the_source_of_each
from test_proxy_syn import table

SO_MARK = 36
#: Bit of the capability.
NET_ADMIN = 12
#: As in `intercept/steer.rs`.
FLOWS_MAX = 1 << 16
#: Leaves a program no other one.
ALONE = ("setpriv", "--inh-caps=-all", "--bounding-set=-all,+net_admin")


@pytest.fixture(scope="module")
def proxies(fabric):
    with Proxies(fabric, before=ALONE, workers=2) as made:
        yield made
        for host in fabric.hosts:
            text = made.running[host.name].text()
            assert made.running[host.name].running() and "panicked" not in text, text


def elements(host, name):
    """Elements of a set of host a's table for IPv4, as text."""
    code, text = host.run("nft", "list", "set", "ip", "burst-proxy-81-steer", name, plain=True)
    assert code == 0, text
    return text.split("elements = {")[1].split("}")[0].split(",\n") if "elements" in text else []


def test_one_capability_is_enough_and_the_way_is_told(proxies):
    for host in proxies.fabric.hosts:
        program = proxies.running[host.name]
        held = next(line for line in open(f"/proc/{program.pid}/status") if line.startswith("CapEff:"))
        assert int(held.split()[1], 16) == 1 << NET_ADMIN
        assert "are taken by nft: " in program.text()
        (place,) = proxies.show(host)["intercept"]
        assert place["by"] == "nft" and "CAP_SYS_ADMIN" in place["why"], "the reason why not by BPF"
        assert "are taken by nft: " in proxies.ask(host, "ls")


def test_programs_see_what_they_see_with_bpf(proxies):
    for kind in ("v4", "v6", "mapped"):
        both_ends_see_true_addresses(proxies, kind)
    for kind in ("v4", "v6"):
        a_refused_connection_is_refused(proxies, kind)
    for test in (
        what_the_policy_does_not_name_is_left_alone, a_program_may_listen_at_the_port_of_a_server_elsewhere, half_close_both_ways,
        a_reset_stays_a_reset, writing_to_a_closed_program_is_answered_by_a_reset, urgent_data_keeps_its_place,
        a_stalled_reader_stops_the_writer_and_no_one_else, broken_queue_pairs_lose_nothing,
    ):
        test(proxies)


def test_streams_are_whole_both_ways_on_all_workers(proxies):
    before = proxies.counters(proxies.fabric.a)
    assert Load(proxies, count=8, size=5_000_000).finish() == ["whole"] * 16
    await_carried(proxies, before["streams_opened"] + 8)
    assert proxies.counters(proxies.fabric.a)["connects_taken"] >= before["connects_taken"] + 8


def test_a_marked_socket_is_not_taken(proxies):
    a, b = proxies.fabric.hosts
    before = proxies.counters(a)
    with listen(b) as listener, inside(a), socket.socket() as ours:
        ours.setsockopt(socket.SOL_SOCKET, SO_MARK, 7)
        ours.settimeout(20)
        ours.connect((b.address, PORT))
        theirs, _ = listener.accept()
        with theirs:
            theirs.sendall(b"by TCP")
            assert exactly(ours, 6) == b"by TCP"
    after = proxies.counters(a)
    assert after.get("connections_taken") == before.get("connections_taken") and after["connects_marked"] > before["connects_marked"]


def test_a_socket_bound_to_an_interface_goes_by_tcp(proxies):
    a, b = proxies.fabric.hosts
    taken = lambda: proxies.counters(a).get("connections_taken", 0)  # noqa: E731
    before = taken()
    with inside(a):
        ours = socket.socket()
    with ours, listen(b) as listener:
        ours.settimeout(20)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
        ours.connect((b.address, PORT))
        theirs, _ = listener.accept()
        with theirs:
            theirs.sendall(b"by TCP")
            assert exactly(ours, 6) == b"by TCP"
            ours.sendall(b"both ways")
            assert exactly(theirs, 9) == b"both ways"
    assert taken() == before


def test_an_mptcp_socket_falls_back_to_tcp_and_is_taken(proxies):
    a, b = proxies.fabric.hosts
    before = carried(proxies)
    with inside(a):
        ours = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
    with ours, listen(b) as listener:
        ours.settimeout(20)
        ours.connect((b.address, PORT))
        theirs, _ = listener.accept()
        with theirs:
            theirs.sendall(b"hello")
            assert exactly(ours, 5) == b"hello"
    await_carried(proxies, before + 1)


def test_a_half_closed_connection_is_kept(proxies):
    """Its element would leave the set of closing connections after a minute without packets."""
    a = proxies.fabric.a
    with joined(proxies) as (ours, theirs):
        port = ours.getsockname()[1]
        # Of the proxy's socket; the program has set none.
        kept = lambda: a.run("ss", "-tnoH", "dport", "=", port, plain=True)[1]  # noqa: E731
        ours.sendall(b"x")
        assert exactly(theirs, 1) == b"x"
        assert any(f" {port} " in element for element in elements(a, "flows"))
        assert "keepalive" in kept() and "min" in kept(), kept()
        ours.shutdown(socket.SHUT_WR)
        assert theirs.recv(1) == b""
        assert not any(f" {port} " in element for element in elements(a, "flows"))
        assert any(f" {port} " in element for element in elements(a, "closing"))
        wait_until(lambda: "keepalive" in kept() and "min" not in kept(), said=kept)
        theirs.sendall(b"still here")
        assert exactly(ours, 10) == b"still here"


def test_a_connection_that_is_not_taken_inherits_nothing_from_an_earlier_one(proxies):
    """The same addresses and ports again, while the element of the taken connection is still there."""
    a, b = proxies.fabric.hosts
    with listen(b) as listener:
        def connected(mark):
            with inside(a):
                ours = socket.socket()
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            ours.setsockopt(socket.SOL_SOCKET, SO_MARK, mark)
            ours.settimeout(20)
            ours.bind((a.address, 40_123))
            ours.connect((b.address, PORT))
            theirs, _ = listener.accept()
            # Repeated packets find the element gone at last.
            theirs.settimeout(10)
            return ours, theirs
        before = carried(proxies)
        ours, theirs = connected(0)
        with ours, theirs:
            # The server ends first, so that the client's port is free at once.
            theirs.close()
            assert ours.recv(1) == b""
        await_carried(proxies, before + 1)
        wait_until(lambda: any(" 40123 " in element for element in elements(a, "closing")))
        # The server's socket is in TIME-WAIT, which a new SYN ends.
        ours, theirs = connected(7)
        with ours, theirs:
            # Later packets without a mark must not be taken, either.
            ours.setsockopt(socket.SOL_SOCKET, SO_MARK, 0)
            ours.sendall(b"by TCP")
            assert exactly(theirs, 6) == b"by TCP"
        assert carried(proxies) == before + 1


def test_when_the_peer_dies_new_connections_go_by_tcp_at_once(make_fabric):
    with Proxies(make_fabric(), before=ALONE) as proxies:
        a, b = proxies.fabric.hosts
        assert len(elements(a, "alive")) == 1
        with joined(proxies) as (ours, theirs):
            ours.sendall(b"x")
            assert exactly(theirs, 1) == b"x"
            os.kill(proxies.running["b"].pid, signal.SIGKILL)
            assert read_all(ours) == (b"", "ECONNRESET")
        wait_until(lambda: elements(a, "alive") == [])
        before = proxies.counters(a)
        with joined(proxies) as (ours, theirs):
            ours.sendall(b"by TCP")
            assert exactly(theirs, 6) == b"by TCP"
        after = proxies.counters(a)
        assert after["connections_taken"] == before["connections_taken"]
        assert after["connects_without_peer"] == before["connects_without_peer"] + 1
        proxies.start(b)
        proxies.await_links()
        with joined(proxies) as (ours, theirs):
            ours.sendall(b"again")
            assert exactly(theirs, 5) == b"again"
        await_carried(proxies, 2)


def syns(source, target, count):
    """SYNs from addresses and ports that differ, without a checksum of TCP: rules see them, and no listener takes them."""
    end = socket.inet_aton(target)
    for k in range(count):
        sender = bytes([*socket.inet_aton(source)[:2], 200, k >> 14])
        header = struct.pack(">BBHHHBBH", 0x45, 0, 40, 0, 0x4000, 64, socket.IPPROTO_TCP, 0) + sender + end
        yield header + struct.pack(">HHIIBBHHH", 1024 + (k & 0x3FFF), PORT, k, 0, 5 << 4, 2, 1024, 0, 0)


def test_a_full_set_sends_new_connections_by_tcp(make_fabric):
    fabric = make_fabric()
    a, b = fabric.hosts
    with Proxies(fabric, before=ALONE) as proxies, joined(proxies) as (ours, theirs):
        taken = lambda: proxies.counters(a).get("connects_taken", 0)  # noqa: E731
        assert taken() == 1
        with inside(a), socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
            for packet in syns(a.address, b.address, FLOWS_MAX + 1000):
                raw.sendto(packet, (b.address, 0))
        assert taken() == FLOWS_MAX, "the set is full"
        opened = proxies.counters(a)["streams_opened"]
        with listen(b, port=PORT + 1) as listener, client(a, b.address, port=PORT + 1) as late, listener.accept()[0] as accepted:
            late.sendall(b"by TCP")
            assert exactly(accepted, 6) == b"by TCP"
        assert (taken(), proxies.counters(a)["streams_opened"]) == (FLOWS_MAX, opened)
        # What was taken stays so, to its end.
        ours.sendall(b"carried")
        ours.shutdown(socket.SHUT_WR)
        assert read_all(theirs) == (b"carried", "end")
        theirs.sendall(b"back")
        assert exactly(ours, 4) == b"back"

        def is_taken():
            with joined(proxies, PORT + 2) as (again, peer):
                again.sendall(b"x")
                assert exactly(peer, 1) == b"x"
            return taken() > FLOWS_MAX

        # Its end has made room, when the kernel has looked for elements that have gone.
        wait_until(is_taken)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_a_proxy_leaves_nothing_behind(make_fabric, how):
    """A connection by TCP from before the start goes on, during the proxy's life and after it."""
    fabric = make_fabric()
    a, b = fabric.hosts
    state = lambda: (network_state(a), table(a))  # noqa: E731
    before = state()
    proxies = Proxies(fabric, before=ALONE)
    with joined(proxies) as (early, theirs_early):
        def goes_on(text):
            for one, other in ((early, theirs_early), (theirs_early, early)):
                one.sendall(text)
                assert exactly(other, len(text)) == text
        goes_on(b"before")
        with proxies:
            assert len(table(a)) == 4, "rules that hold and rules that take, of two families"
            goes_on(b"during")
            with joined(proxies, PORT + 1) as (ours, theirs):
                ours.sendall(b"x")
                assert exactly(theirs, 1) == b"x"
                await_carried(proxies, 1)
                os.kill(proxies.running["a"].pid, how)
                assert read_all(ours) == (b"", "ECONNRESET")
            wait_until(lambda: state() == before, said=lambda: str(state()))
            goes_on(b"after")
            with joined(proxies, PORT + 1) as (ours, theirs):
                ours.sendall(b"by TCP")
                assert exactly(theirs, 6) == b"by TCP"
            proxies.start(a)
            proxies.await_links()
            goes_on(b"again")
            with joined(proxies, PORT + 1) as (ours, theirs):
                ours.sendall(b"taken")
                assert exactly(theirs, 5) == b"taken"
            await_carried(proxies, 1)


def test_rules_for_a_prefix_of_several_routes(make_fabric):
    original = Proxies.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Proxies, "__init__", lambda self, made: original(self, made, before=ALONE))
        a_taken_prefix_with_several_routes_keeps_the_source_of_each(make_fabric)


def test_the_ports_of_the_longest_prefix_decide(make_fabric):
    fabric = make_fabric()
    a, b = fabric.hosts
    proxies = Proxies(fabric, before=ALONE, extra='intercept = "nft"')
    written = proxies.configuration

    def nested(host):
        path = written(host)
        if host is a:
            rules = ''.join(f'[[take]]\nto = ["{to}"]\nports = "{ports}"\n' for to, ports in (("10.99.0.0/24", "7000"), (f"{b.address}/32", "7001-7002")))
            text = path.read_text()
            path.write_text(text[:text.index("[[take]]")] + rules + text[text.index("[[serve]]"):])
        return path
    proxies.configuration = nested
    with proxies:
        assert proxies.show(a)["intercept"][0]["why"] == "the configuration asks for it"
        for port, taken in ((7000, 0), (7001, 1), (7002, 1), (7003, 0)):
            before = proxies.counters(a).get("connections_taken", 0)
            with joined(proxies, port) as (ours, theirs):
                ours.sendall(b"x")
                assert exactly(theirs, 1) == b"x"
            assert proxies.counters(a).get("connections_taken", 0) == before + taken, port


def test_a_control_group_by_rules(make_fabric, tmp_path):
    """Only programs of the named groups; each has ports of its own."""
    # Before the hosts, which have mounts of their own from then on.
    groups = cgroup_mount(tmp_path / "groups")
    fabric = make_fabric()
    a, b = fabric.hosts
    group, other = (groups / f"burst-proxy-nft-{os.getpid()}-{number}" for number in (1, 2))
    proxies = Proxies(fabric, extra='intercept = "nft"')
    written = proxies.configuration

    def named(host):
        path = written(host)
        if host is a:
            text = path.read_text().replace("[[take]]\n", f'[[take]]\ncgroup = "{group}"\n')
            path.write_text(text + f'[[take]]\ncgroup = "{other}/inner"\nto = ["10.99.0.0/29"]\nports = "6998"\n')
        return path
    proxies.configuration = named
    try:
        group.mkdir()
        (other / "inner").mkdir(parents=True)
        with proxies, listen(b) as first, listen(b, port=6998) as second:
            cases = [(None, first, 0), (group, first, 1), (other / "inner", first, 0), (group, second, 0), (other, second, 0), (other / "inner", second, 1)]
            for inside_of, listener, taken in cases:
                port = listener.getsockname()[1]
                ask = "import socket; s = socket.create_connection(('%s', %d)); s.sendall(b'x'); s.recv(1)" % (b.address, port)
                join = f"echo $$ >{inside_of}/cgroup.procs; " if inside_of else ""
                before = carried(proxies)
                program = a.start("sh", "-c", f'{join}exec python3 -c "{ask}"', plain=True)
                theirs, _ = listener.accept()
                with theirs:
                    theirs.settimeout(20)
                    assert theirs.recv(1) == b"x"
                    theirs.sendall(b"y")
                assert program.wait(20) == 0, program.text()
                await_carried(proxies, before + taken)
    finally:
        for path in (group, other / "inner", other):
            with contextlib.suppress(FileNotFoundError):
                path.rmdir()
        subprocess.run(["umount", groups], check=True)


def test_a_directory_that_is_no_control_group_is_refused(make_fabric):
    fabric = make_fabric(daemons=False)
    proxies = Proxies(fabric, extra='intercept = "nft"', rdma=False)
    proxies.keys()
    written = proxies.configuration
    proxies.configuration = lambda host: _replace(written(host), "[[take]]\n", f'[[take]]\ncgroup = "{fabric.directory}"\n')
    with pytest.raises(LabError, match="no control group of version 2"):
        proxies.start(fabric.a)


def test_bpf_alone_without_its_capabilities_is_refused(make_fabric):
    fabric = make_fabric(daemons=False)
    proxies = Proxies(fabric, extra='intercept = "bpf"', rdma=False, before=ALONE)
    proxies.keys()
    with pytest.raises(LabError, match="CAP_SYS_ADMIN, CAP_BPF"):
        proxies.start(fabric.a)
    assert network_state(fabric.a)[1] is False and table(fabric.a) == []
