"""The service of systemd: its unit files are right and closed enough, burstd speaks systemd's protocols, and with the unit's user, capabilities,
limits and socket it serves memory of every kind of another user's programs."""

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from lab import Daemon, LabError, Program, build_directory
from lab.proxy import Proxies
from lab.service import SERVICE_UID, UNITS, Service, open_files, settings
from test_proxy import await_carried, carried, exactly, joined

BUILD = build_directory()
PROGRAM_UID = 1003
#: Exposure in tenths, of systemd-analyze security; 10.0 is a service without any protection.
EXPOSURE_MAX = 30
SECONDS = 60


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The unit files, with the path of a burstd that exists."""
    directory = tmp_path_factory.mktemp("units")
    for unit in UNITS.iterdir():
        (directory / unit.name).write_text(unit.read_text().replace("/usr/local/bin/", f"{BUILD}/"))
    return directory


def analyze(*words):
    done = subprocess.run(["systemd-analyze", *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed (package systemd)")
def test_the_units_are_right_and_closed(installed):
    said = analyze("verify", "--man=no", *(installed / unit for unit in ("burstd.service", "burstd.socket", "burst-proxy.service")))
    # It also reads the units of this machine, which are not ours.
    assert "burst" not in said, said
    for unit in ("burstd.service", "burst-proxy.service"):
        said = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", installed / unit)
        assert "Overall exposure level" in said


def test_the_units_agree_with_each_other_and_with_the_library():
    service, unit = settings("burstd.service"), settings("burstd.socket")
    assert f"--socket={unit['ListenSequentialPacket']}" in service["ExecStart"]
    rust = Path(__file__).parents[1] / "crates/bytes/control/src/socket_path.rs"
    assert f'SYSTEM_SOCKET: &str = "{unit["ListenSequentialPacket"]}"' in rust.read_text()
    users = (UNITS / "burst.sysusers").read_text()
    for unit in ("burstd.service", "burst-proxy.service"):
        assert re.search(rf"^u {settings(unit)['User']} ", users, re.M)


def test_a_proxy_works_with_the_capabilities_of_its_unit(make_fabric):
    """Connections are carried by proxies that have what the unit gives, and no more."""
    if os.geteuid():
        pytest.skip("dropping capabilities needs root")
    unit = settings("burst-proxy.service")
    assert unit["ExecStart"].split()[1:] == ["proxy", "run", "/etc/burst/proxy.toml"]
    assert unit["AmbientCapabilities"] == unit["CapabilityBoundingSet"] and unit["NoNewPrivileges"] == "yes"
    kept = ",".join(f"+{cap.removeprefix('CAP_').lower()}" for cap in unit["CapabilityBoundingSet"].split())
    words = ["setpriv", f"--bounding-set=-all,{kept}", f"--inh-caps=-all,{kept}", "--no-new-privs"]
    with Proxies(make_fabric(), before=words) as proxies:
        before = carried(proxies)
        with joined(proxies) as (ours, theirs):
            ours.sendall(b"hello")
            assert exactly(theirs, 5) == b"hello"
        await_carried(proxies, before + 1)


def receive(supervisor, seconds=SECONDS):
    supervisor.settimeout(seconds)
    return supervisor.recv(4096).decode().split("\n")


def test_a_supervisor_is_notified(make_fabric, tmp_path):
    host = make_fabric(daemons=False).a
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        env = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        daemon = host.daemon = Daemon(host.prefix(), host.socket, "udp:dev=eth0", env=env)
        assert receive(supervisor) == ["READY=1", f"STATUS=serving burst0 at {host.socket}"]
        assert [receive(supervisor) for _ in range(5)] == [["WATCHDOG=1"]] * 5
        daemon.stand_still()
        # What was sent before it stopped.
        supervisor.settimeout(1)
        with pytest.raises(TimeoutError):
            while True:
                supervisor.recv(4096)
        os.kill(daemon.pid, 18)
        assert receive(supervisor) == ["WATCHDOG=1"]
        daemon.process.terminate()
        while receive(supervisor)[0] != "STOPPING=1":
            pass
        assert daemon.wait(SECONDS) == 0


def test_a_socket_of_a_supervisor_is_served_and_left(make_fabric):
    if os.geteuid():
        pytest.skip("changing the user needs root")
    host = make_fabric(daemons=False).a
    host.daemon = Service(host.prefix(), host.socket, "udp:dev=eth0", dict(os.environ))
    status = Path(f"/proc/{host.daemon.pid}/status").read_text()
    assert re.search(rf"^Uid:\s+{SERVICE_UID}\s", status, re.M), status
    limits = Path(f"/proc/{host.daemon.pid}/limits").read_text()
    assert re.search(rf"^Max open files\s+{open_files(settings('burstd.service'))}\s", limits, re.M), limits
    # Root's socket: every user trusts it, and no variable is needed.
    user = ["setpriv", f"--reuid={PROGRAM_UID}", f"--regid={PROGRAM_UID}", "--clear-groups"]
    code, text = host.run(*user, "ibv_devinfo", "-d", "burst0")
    assert code == 0 and "PORT_ACTIVE" in text, text
    # The daemon falls: its successor serves the same socket.
    [child] = Path(f"/proc/{host.daemon.pid}/task/{host.daemon.pid}/children").read_text().split()
    os.kill(int(child), 9)
    code, text = host.run(*user, "ibv_devinfo", "-d", "burst0")
    assert code == 0 and "PORT_ACTIVE" in text, text + host.daemon.text()
    assert host.daemon.stop() == 0, host.daemon.text()
    assert host.socket.is_socket(), "the file belongs to the supervisor"


def test_a_wrong_socket_is_refused(make_fabric, tmp_path):
    host = make_fabric(daemons=False).a
    with open(os.devnull), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "stream"))
        listener.listen()
        prefix = [*host.prefix(), "bash", "-c", 'exec 3<&"$0"; LISTEN_FDS=1 exec "$@"', listener.fileno()]
        with pytest.raises(LabError, match="ListenSequentialPacket="):
            Daemon(prefix, host.socket, "udp:dev=eth0", env=os.environ, pass_fds=[listener.fileno()])


KINDS = [
    "heap", "stack", "data", "anonymous-private", "anonymous-shared", "file-shared", "file-private", "shm-file", "memfd", "sysv", "hugetlb-private",
    "hugetlb-shared", "hugetlb-memfd",
]


@pytest.mark.parametrize("port", ["udp:dev=eth0", "packet:dev=eth0"])
def test_memory_of_every_kind_of_another_user(make_fabric, port):
    if os.geteuid():
        pytest.skip("changing the user needs root")
    host = make_fabric(daemons=False).a
    host.daemon = Service(host.prefix(), host.socket, port, dict(os.environ))
    place = Path(f"/tmp/burst-test-service-{os.getpid()}")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    try:
        for path in [BUILD / "programs/memories", *BUILD.glob("lib/lib*.so.1")]:
            shutil.copy(path, place)
        os.chown(place, PROGRAM_UID, PROGRAM_UID)
        os.chmod(place, 0o755)
        user = ["setpriv", f"--reuid={PROGRAM_UID}", f"--regid={PROGRAM_UID}", "--clear-groups"]
        program = Program([*host.prefix(), *user, place / "memories", "burst0", place], host.environment({"LD_LIBRARY_PATH": str(place)}))
        assert program.wait(SECONDS) == 0, program.text() + host.daemon.text()
        lines = dict(line.split(" ", 1) for line in program.text().splitlines())
    finally:
        shutil.rmtree(place)
    assert list(lines) == KINDS
    wrong = {kind: said for kind, said in lines.items() if said != "ok"}
    if any(said.startswith("unavailable") for kind, said in wrong.items() if kind.startswith("hugetlb")):
        pytest.skip(f"too few huge pages: {wrong}")
    assert not wrong, f"{wrong}\n{host.daemon.text()}"


def session_nice(daemon):
    """The nice value of a daemon's autogroup."""
    return int(Path(f"/proc/{daemon.pid}/autogroup").read_text().split()[2])


def may_lower_nice():
    """Whether this process has CAP_SYS_NICE."""
    return next(int(line.split()[1], 16) >> 23 & 1 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))


@pytest.mark.skipif(not os.access("/proc/self/autogroup", os.W_OK), reason="this kernel has no autogroups")
@pytest.mark.skipif(not may_lower_nice(), reason="these tests run without CAP_SYS_NICE")
def test_the_daemon_takes_a_larger_share_for_its_own_session_if_it_may(make_fabric):
    host = make_fabric(daemons=False).a
    may_not = [*host.prefix(), "setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice"]
    for prefix, nice in (
        (host.prefix(), -5),
        (may_not, 0),
        # A session that it shares with its starter.
        ([*host.prefix(), "setpriv", "--reuid=0", "sh", "-c", '"$@" & wait', "sh"], 0),
    ):
        daemon = host.daemon = Daemon(prefix, host.socket, "udp:dev=eth0", [])
        assert session_nice(daemon) == nice, prefix
        host.run("ibv_devinfo", "-d", "burst0")
        daemon.stop()
