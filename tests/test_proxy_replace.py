"""One proxy takes the place of another: the earlier one ends with its last stream, or when the time that it was given is over."""

import socket
import subprocess

import pytest

from lab import build_directory, wait_until
from lab.fabric import WAIT_SECONDS
from lab.proxy import Proxies
from test_proxy import PORT, await_carried, carried, exactly, joined
from test_proxy_reload import configure, exchanged

BURST = build_directory() / "burst"
#: More than any of these tests takes: what ends earlier ends for another reason.
LONG = 600


def successor(proxies, host, seconds):
    """Starts a host's proxy beside the one that runs; returns both."""
    earlier = proxies.running[host.name]
    path = proxies.directory / f"proxy-{host.name}.toml"
    later = proxies.running[host.name] = host.start(BURST, "proxy", "run", path, "--replace", seconds)
    return earlier, later


def await_drained(proxies, host):
    wait_until(lambda: proxies.show(host)["draining"], said=proxies.running[host.name].text)


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_successor_waits_for_open_streams(make_fabric, name):
    """On the host of the client, and on that of the server."""
    with Proxies(make_fabric()) as proxies:
        host = next(host for host in proxies.fabric.hosts if host.name == name)
        with joined(proxies) as kept:
            exchanged(*kept)
            await_carried(proxies, 1)
            earlier, later = successor(proxies, host, LONG)
            await_drained(proxies, host)
            # By TCP meanwhile.
            with joined(proxies, PORT + 1) as plain:
                exchanged(*plain)
            exchanged(*kept)
            assert carried(proxies) == 1
            assert earlier.running() and "ready" not in later.text()
        assert earlier.wait(WAIT_SECONDS) == 0, earlier.text()
        later.wait_for_text("ready", WAIT_SECONDS)
        assert "are reset" not in earlier.text(), earlier.text()
        proxies.await_links()
        before = carried(proxies)
        with joined(proxies) as ours:
            exchanged(*ours)
        await_carried(proxies, before + 1)


def test_streams_that_do_not_end_are_reset(make_fabric):
    with Proxies(make_fabric()) as proxies, joined(proxies) as kept:
        exchanged(*kept)
        earlier, later = successor(proxies, proxies.fabric.a, 2)
        assert earlier.wait(WAIT_SECONDS) == 0, earlier.text()
        assert "1 connections are reset: the time in which" in earlier.text()
        for end in kept:
            with pytest.raises(ConnectionResetError):
                exactly(end, 1)
        later.wait_for_text("ready", WAIT_SECONDS)
        proxies.await_links()
        with joined(proxies, PORT + 1) as ours:
            exchanged(*ours)


def test_what_cannot_run_replaces_no_proxy(make_fabric):
    with Proxies(make_fabric()) as proxies, joined(proxies) as kept:
        a = proxies.fabric.a
        before = (proxies.directory / "proxy-a.toml").read_text()
        configure(proxies, a, lambda text: text.replace("[[peer]]", "[[per]]"))
        earlier, later = successor(proxies, a, LONG)
        assert later.wait(WAIT_SECONDS) == 2 and "unknown field" in later.text()
        proxies.running["a"] = earlier
        configure(proxies, a, lambda text: before)
        assert not proxies.show(a)["draining"]
        exchanged(*kept)


def test_without_a_proxy_it_starts_and_draining_ends_one(make_fabric):
    proxies = Proxies(make_fabric(), flags=("--replace", "5"))
    with proxies, joined(proxies) as kept:
        a = proxies.fabric.a
        exchanged(*kept)
        # The command waits; so it is asked in the background here.
        words = [BURST, "proxy", "drain", "--end", str(LONG), "--admin", proxies.admin(a)]
        asked = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, text=True)
        await_drained(proxies, a)
        assert asked.poll() is None
        for end in kept:
            end.close()
        said, _ = asked.communicate(timeout=WAIT_SECONDS)
        assert asked.returncode == 0 and "ends with the last open stream" in said
        assert not proxies.running["a"].running() and not proxies.admin(a).exists()


def test_a_supervisor_is_notified(make_fabric, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(WAIT_SECONDS)
        before = ["env", f"NOTIFY_SOCKET={tmp_path / 'notify'}"]
        with Proxies(make_fabric(), before=before) as proxies:
            said = [supervisor.recv(4096).decode().split("\n")[0] for _ in proxies.fabric.hosts]
            assert said == ["READY=1"] * 2
            proxies.running["a"].stop()
            assert supervisor.recv(4096).decode().startswith("STOPPING=1\n")
