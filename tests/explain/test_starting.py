"""Daemons, programs and proxies that cannot start, and connections that cannot be made: each says why in one sentence."""

import os
import socket
import stat

import pytest

from lab import build_directory
from lab.users import ALICE, as_user, public_copy
from verbs_end import explained

CM_PEER = build_directory() / "programs" / "cm_peer"


@pytest.fixture(scope="module")
def public(fabric):
    return public_copy(fabric.directory / "public")


def says(host, *command, words, code, user=(), env=None):
    """A command that ends with this exit code and one sentence with these words."""
    got, text = host.run(*user, *command, plain=True, env=env)
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("{")]
    assert got == code and all(any(word in line for line in lines) for word in words), f"exit code {got}, expected {code} with {words}:\n{text}"


@pytest.mark.parametrize("flags,words", [
    (["--port", "udp:dev=nosuch0"], ["nosuch0", "eth0"]),
    (["--port", "rdma:dev=eth0"], ["rdma", "udp"]),
    (["--port", "udp:dev=eth0,mtu=9000"], ["mtu"]),
    (["--port", "udp:dev=eth0,addr=10.1.2.3"], ["10.1.2.3"]),
    (["--workers", "1000"], ["workers", "not between 1 and"]),
    (["--window", "12"], ["window", "not between"]),
    (["--cc", "dcqcm"], ["dcqcm", "dcqcn"]),
    (["--user-share", "0"], ["user-share", "not between 1 and 100"]),
    (["--metrics", "localhost:9317"], ["localhost:9317", "unix:PATH"]),
    (["--config", "/nonexistent/burstd.toml"], ["/nonexistent/burstd.toml"]),
])
def test_a_daemon_with_a_wrong_setting(fabric, tmp_path, flags, words):
    says(fabric.a, build_directory() / "burstd", "--socket", tmp_path / "s", *flags, words=words, code=2)


def test_a_second_daemon_at_the_same_socket(fabric):
    says(fabric.a, build_directory() / "burstd", "--socket", fabric.a.socket, "--port", "udp:dev=lo", words=["another process serves", str(fabric.a.socket)], code=2)


def test_a_second_daemon_on_the_same_address(fabric, tmp_path):
    says(fabric.a, build_directory() / "burstd", "--socket", tmp_path / "s", "--port", "udp:dev=eth0", words=["4791"], code=2)


def test_a_port_that_needs_a_privilege(fabric, public):
    place = f"/tmp/burst-explain-{os.getpid()}.sock"
    says(
        fabric.a, public / "bin/burstd", "--socket", place, "--port", "packet:dev=eth0", words=["CAP_NET_RAW"], code=2, user=as_user(ALICE),
        env={"LD_LIBRARY_PATH": str(public / "lib/burst")},
    )


def test_no_daemon(fabric, tmp_path):
    says(fabric.a, build_directory() / "burst", "ls", "--socket", tmp_path / "none", words=["no daemon answers", "start burstd"], code=1)


def test_a_daemon_that_has_died(fabric, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(tmp_path / "dead"))
    says(fabric.a, build_directory() / "burst", "ls", "--socket", tmp_path / "dead", words=["its daemon is dead", "start burstd"], code=1)


def test_a_socket_of_another_user(fabric, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as foreign:
        foreign.bind(str(tmp_path / "foreign"))
        foreign.listen()
        os.chown(tmp_path / "foreign", ALICE, ALICE)
        says(fabric.a, build_directory() / "burst", "ls", "--socket", tmp_path / "foreign", words=[str(ALICE)], code=1)


def test_a_socket_that_this_user_may_not_use(fabric, public):
    mode = stat.S_IMODE(os.stat(fabric.a.socket).st_mode)
    os.chmod(fabric.a.socket, 0o600)
    try:
        says(
            fabric.a, public / "bin/burst", "ls", "--socket", fabric.a.socket, words=["permission denied"], code=1, user=as_user(ALICE),
        )
    finally:
        os.chmod(fabric.a.socket, mode)


def test_a_program_that_does_not_exist(fabric):
    says(fabric.a, build_directory() / "burst", "run", "--socket", fabric.a.socket, "--", "no-such-program", words=["no-such-program"], code=127)


def test_a_file_that_is_no_program(fabric, tmp_path):
    (tmp_path / "data").write_text("x")
    says(fabric.a, build_directory() / "burst", "run", "--socket", fabric.a.socket, "--", tmp_path / "data", words=[str(tmp_path / "data")], code=126)


def test_a_device_of_another_name(fabric):
    code, text = fabric.a.run("ib_send_bw", "-d", "mlx5_0", "-F")
    assert code != 0 and "mlx5_0" in text, text
    code, text = fabric.a.burst("doctor")
    assert "burst0" in text, text


# --- connections


def client(host, address, port=7471, user=()):
    return host.start(*user, CM_PEER, "client", address, port, "reject")


def test_an_address_that_no_host_has(fabric):
    one = client(fabric.a, "10.99.0.78")
    one.wait(60)
    explained(fabric.a, [f"pid:{one.pid}"], ["No answer from next hop 10.99.0.78"], kind="call")


@pytest.mark.parametrize("address,words", [("10.98.0.1", ["10.98.0.1"]), ("192.0.2.1", ["192.0.2.1"])])
def test_a_server_at_an_address_that_is_not_the_hosts(fabric, address, words):
    one = fabric.a.start(CM_PEER, "server", address, 7472, "reject")
    one.wait(60)
    explained(fabric.a, [f"pid:{one.pid}"], words, kind="call")


def test_two_servers_at_one_port(fabric):
    first = fabric.a.start(CM_PEER, "server", fabric.a.address, 7473, "reject")
    first.wait_for_text("listening", 60)
    second = fabric.a.start(CM_PEER, "server", fabric.a.address, 7473, "reject")
    second.wait(60)
    explained(fabric.a, [f"pid:{second.pid}"], ["Port 7473", "in use"], kind="call")
    first.stop()


def test_a_low_port_without_the_privilege(fabric, public):
    copy = public / "bin" / "cm_peer"
    copy.write_bytes(CM_PEER.read_bytes())
    copy.chmod(0o755)
    one = fabric.a.start(
        *as_user(ALICE), copy, "server", fabric.a.address, 80, "reject",
        env={"LD_LIBRARY_PATH": str(public / "lib/burst"), "BURST_SOCKET": str(fabric.a.socket)},
    )
    one.wait(60)
    explained(fabric.a, [f"pid:{one.pid}"], ["Port 80", "CAP_NET_BIND_SERVICE"], kind="call")


def test_a_connection_is_found_by_its_communication_id(fabric):
    one = client(fabric.a, fabric.b.address, 7474)
    one.wait(60)
    failure = explained(fabric.a, [f"pid:{one.pid}"], ["No program listens on"], kind="connection")
    assert failure["comm_id"], failure
    again = explained(fabric.a, [f"id:{failure['comm_id']:#x}"], ["No program listens on"], kind="connection")
    assert again["pid"] == one.pid


# --- proxies


@pytest.mark.parametrize("change,words", [
    ("listen = \"10.0.0.1\"", ["listen"]),
    ("windov = \"1MiB\"", ["windov", "window"]),
    ("intercept = \"ebpf\"", ["intercept"]),
])
def test_a_proxy_with_a_wrong_setting(fabric, tmp_path, change, words):
    path = tmp_path / "proxy.toml"
    name = change.split(" ")[0]
    lines = {"name": 'name = "a"', "listen": 'listen = "127.0.0.1:7400"', "keys": f'keys = "{tmp_path}"'}
    lines[name] = change
    path.write_text("\n".join(lines.values()) + "\n")
    says(fabric.a, build_directory() / "burst", "proxy", "run", path, words=words, code=2)


def test_a_proxy_without_its_certificate(fabric, tmp_path):
    path = tmp_path / "proxy.toml"
    path.write_text(f'name = "a"\nlisten = "127.0.0.1:7400"\nkeys = "{tmp_path}"\nadmin = "{tmp_path}/admin"\n')
    got, text = fabric.a.run(build_directory() / "burst", "proxy", "run", path, plain=True)
    assert got != 0 and str(tmp_path) in text and "pem" in text, text


def test_a_proxy_that_does_not_run(fabric, tmp_path):
    says(fabric.a, build_directory() / "burst", "proxy", "ls", "--admin", tmp_path / "admin", words=[str(tmp_path / "admin")], code=1)


def test_a_word_that_is_no_reason(fabric):
    says(fabric.a, build_directory() / "burst", "why", "retry_exausted", words=["retry_exausted", "retry_exhausted"], code=2)
