"""More unmodified programs through `burst proxy`: PostgreSQL, ssh, scp, rsync, wrk, and clients in Java and Go.

They take a while and large packages (`scripts/install-deps --matrix`), so they run with BURST_MATRIX=1 only (`make test-matrix`).
"""

import filecmp
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from test_proxy import await_listener, carried, listen, pattern
from test_proxy import proxies as proxies  # noqa: PLC0414 - a fixture

PROGRAMS = Path(__file__).parent / "programs"
POSTGRES, SSH, RSYNC, HTTP, ECHO = 7432, 7022, 7873, 7080, 7007
ECHOED = 5_000_000


def found(*names):
    """Paths of programs; skips the test if one is missing."""
    places = "/usr/sbin:/usr/local/go/bin:" + ":".join(map(str, Path("/usr/lib/postgresql").glob("*/bin")))
    paths = [shutil.which(name) or shutil.which(name, path=places) for name in names]
    missing = [name for name, path in zip(names, paths) if not path]
    if missing:
        pytest.skip(f"{', '.join(missing)} missing: scripts/install-deps --matrix")
    return paths


def good(host, *words, seconds=120, env=None):
    code, text = host.run(*words, plain=True, seconds=seconds, env=env)
    assert code == 0, text
    return text


@pytest.fixture
def place():
    """A directory that other users reach."""
    path = Path(tempfile.mkdtemp(prefix="burst-programs-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def test_postgresql_and_pgbench(proxies, place):
    initdb, postgres, pgbench = found("initdb", "postgres", "pgbench")
    a, b = proxies.fabric.hosts
    shutil.chown(place, "postgres", "postgres")
    as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
    data = place / "data"
    subprocess.run([*as_postgres, initdb, "-D", data, "--no-sync", "-A", "trust", "-U", "postgres"], check=True, capture_output=True, cwd=place)
    (data / "pg_hba.conf").write_text(f"host all all {a.address}/32 trust\n")
    server = b.start(*as_postgres, postgres, "-D", data, "-h", b.address, "-p", POSTGRES, "-k", place, "-c", "fsync=off", plain=True)
    await_listener(b, POSTGRES, server)
    before = carried(proxies)
    target = ["-h", b.address, "-p", POSTGRES, "-U", "postgres"]
    # The server listens a little before it takes connections.
    for _ in range(100):
        if a.run(shutil.which("pg_isready") or Path(pgbench).parent / "pg_isready", *target, plain=True)[0] == 0:
            break
    good(a, pgbench, *target, "-i", "-q", "postgres")
    text = good(a, pgbench, *target, "-c", 8, "-j", 2, "-t", 100, "postgres")
    assert "number of transactions actually processed: 800/800" in text, text
    assert carried(proxies) >= before + 9
    server.stop()


def test_ssh_scp_and_rsync(proxies, place):
    sshd, ssh, scp, rsync, keygen = found("sshd", "ssh", "scp", "rsync", "ssh-keygen")
    a, b = proxies.fabric.hosts
    for key in ("host", "user"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", place / key], check=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    (place / "sshd").write_text(
        f"Port {SSH}\nListenAddress {b.address}\nHostKey {place}/host\nAuthorizedKeysFile {place}/user.pub\nStrictModes no\n"
        f"PermitRootLogin yes\nPidFile none\nUsePAM no\nSubsystem sftp internal-sftp\n")
    server = b.start(sshd, "-D", "-e", "-f", place / "sshd", plain=True)
    await_listener(b, SSH, server)
    before = carried(proxies)
    options = ["-i", place / "user", "-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={place}/known", "-o", "BatchMode=yes"]
    assert b.address in good(a, ssh, *options, "-p", SSH, f"root@{b.address}", "echo $SSH_CONNECTION")
    (place / "file").write_bytes(pattern(20_000_000))
    good(a, scp, "-q", *options, "-P", SSH, place / "file", f"root@{b.address}:{place}/there")
    good(a, scp, "-q", *options, "-P", SSH, f"root@{b.address}:{place}/there", place / "back")
    assert filecmp.cmp(place / "file", place / "back", shallow=False)
    with open(place / "there", "r+b") as changed:
        changed.seek(3_000_000)
        changed.write(b"changed")
    shell = " ".join(map(str, [ssh, *options, "-p", SSH]))
    good(a, rsync, "--checksum", "-e", shell, place / "file", f"root@{b.address}:{place}/there")
    assert filecmp.cmp(place / "file", place / "there", shallow=False)
    server.stop()
    assert carried(proxies) == before + 4


def test_rsync_by_its_daemon(proxies, place):
    (rsync,) = found("rsync")
    a, b = proxies.fabric.hosts
    (place / "tree").mkdir()
    for number in range(200):
        (place / "tree" / str(number)).write_bytes(pattern(10_000, number))
    (place / "conf").write_text(f"address = {b.address}\nport = {RSYNC}\nuse chroot = no\nuid = root\n[tree]\npath = {place}/tree\n")
    server = b.start(rsync, "--daemon", "--no-detach", "--config", place / "conf", plain=True)
    await_listener(b, RSYNC, server)
    before = carried(proxies)
    good(a, rsync, "-a", f"rsync://{b.address}:{RSYNC}/tree/", place / "copy")
    assert not filecmp.dircmp(place / "tree", place / "copy").diff_files and len(os.listdir(place / "copy")) == 200
    server.stop()
    assert carried(proxies) == before + 1


def test_nginx_and_wrk(proxies, place):
    wrk, nginx = found("wrk", "nginx")
    a, b = proxies.fabric.hosts
    (place / "data").write_bytes(pattern(10_000))
    paths = " ".join(f"{name}_temp_path {place}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (place / "conf").write_text(
        f"daemon off; pid {place}/pid; error_log stderr; user root; events {{}} http {{ access_log off; sendfile on; {paths} "
        f"server {{ listen {b.address}:{HTTP}; root {place}; }} }}")
    server = b.start(nginx, "-c", place / "conf", plain=True)
    await_listener(b, HTTP, server)
    before = carried(proxies)
    text = good(a, wrk, "-t", 1, "-c", 20, "-d", "2s", f"http://{b.address}:{HTTP}/data")
    assert "Requests/sec" in text and "Socket errors" not in text and "Non-2xx" not in text, text
    assert carried(proxies) >= before + 20
    server.stop()


@pytest.fixture
def echo(proxies):
    """A server on host b that sends back what it receives, for each connection to its end; yields the peers' addresses."""
    listener = listen(proxies.fabric.b, port=ECHO)
    listener.settimeout(None)
    peers = []

    def serve(sock):
        with sock:
            while part := sock.recv(1 << 16):
                sock.sendall(part)

    def accept():
        while True:
            try:
                sock, peer = listener.accept()
            except OSError:
                return
            peers.append(peer)
            threading.Thread(target=serve, args=(sock,), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
    yield peers
    # A thread that waits in accept keeps a closed listener.
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_a_client_in_java(proxies, echo):
    (java,) = found("java")
    a, b = proxies.fabric.hosts
    before = carried(proxies)
    text = good(a, java, PROGRAMS / "Echo.java", b.address, ECHO, 4, ECHOED)
    assert text.strip().endswith("4 connections are whole"), text
    assert carried(proxies) == before + 4 and {peer[0] for peer in echo} == {a.address}


def test_a_client_in_go(proxies, echo, place):
    (go,) = found("go")
    a, b = proxies.fabric.hosts
    environment = {"GOCACHE": str(place / "cache"), "GOFLAGS": "-mod=mod", "GO111MODULE": "off", "HOME": str(place), "GOTOOLCHAIN": "local"}
    subprocess.run([go, "build", "-o", place / "echo", PROGRAMS / "echo.go"], check=True, env={**os.environ, **environment})
    before = carried(proxies)
    text = good(a, place / "echo", b.address, ECHO, 4, ECHOED)
    assert text.strip() == "4 connections are whole", text
    assert carried(proxies) == before + 4 and {peer[0] for peer in echo} == {a.address}
