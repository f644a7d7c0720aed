"""`burst proxy why`: connections that ended in error, each really provoked, with facts, cause and cure."""

import contextlib
import json
import shutil
import signal
import socket
import struct
import subprocess

import pytest

from lab import build_directory, wait_until
from lab.proxy import Proxies
from test_proxy import PORT, client, exactly, joined, listen, read_all
from test_proxy import proxies as proxies  # noqa: PLC0414 - a fixture
from test_proxy_limits import cut
from test_proxy_reload import configure

NOW = struct.pack("ii", 1, 0)


def failures(proxies, host, *words):
    return json.loads(proxies.ask(host, "why", *words, "--json"))["failures"]


def explained(proxies, host, cause, cure, reason, **facts):
    """The last failure, whose sentences have these words, in text and in JSON; found by its number as well."""
    wait_until(lambda: failures(proxies, host) and failures(proxies, host)[0]["reason"] == reason, said=lambda: proxies.ask(host, "why"))
    last = failures(proxies, host)[0]
    assert cause in last["cause"] and cure in last["cure"], last
    assert last["facts"].items() >= facts.items(), last
    text = proxies.ask(host, "why", str(last["number"]))
    assert f"cause: {last['cause']}\ncure:  {last['cure']}\n" in text
    assert proxies.ask(host, "why").startswith(text.splitlines()[0][:8])
    assert last["cause"] in proxies.ask(host, "why", "all")
    return last


def exchanged(ours, theirs):
    ours.sendall(b"question")
    assert exactly(theirs, 8) == b"question"


def test_a_program_that_resets_its_connection_is_named_at_both_ends(proxies):
    a, b = proxies.fabric.hosts
    with joined(proxies) as (ours, theirs):
        exchanged(ours, theirs)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NOW)
        theirs.close()
        assert read_all(ours) == (b"", "ECONNRESET")
        port = ours.getsockname()[1]
    here = explained(proxies, b, "The server, a program of this host, reset", "server's log", "proxy_program_reset", this_host="the server's end", client=f"{a.address}:{port}")
    assert here["facts"]["from_the_peer"] == "8 bytes, 8 of them taken here"
    there = explained(proxies, a, "The server, at the other proxy's end, reset", "server's log", "proxy_peer_reset", this_host="the client's end")
    assert there["facts"]["to_the_peer"].startswith("8 bytes, ") and "link 0 by rdma" in there["facts"]["peer"]
    counted = proxies.counters(a)["failures_noted"]
    assert counted == len(failures(proxies, a, "all")) and f"burst_proxy_failures_noted_total {counted}" in proxies.ask(a, "metrics")


def test_a_program_that_is_killed_with_unread_bytes_resets_as_well(proxies):
    a, b = proxies.fabric.hosts
    script = f"import socket, time; s = socket.create_server(('{b.address}', {PORT})); print('listens', flush=True); c, _ = s.accept(); print('has', flush=True); time.sleep(1000)"
    server = b.start("python3", "-c", script, plain=True)
    server.wait_for_text("listens", 30)
    with client(a, b.address) as ours:
        server.wait_for_text("has", 30)
        ours.sendall(b"never read")
        wait_until(lambda: any(stream["delivered"] == 10 for stream in proxies.show(b)["streams"]))
        server.process.send_signal(signal.SIGKILL)
        assert read_all(ours) == (b"", "ECONNRESET")
        explained(proxies, b, "ended or closed its socket without reading", "server's log", "proxy_program_reset")


def test_a_server_that_does_not_listen_and_one_that_is_found_by_address(proxies):
    a, b = proxies.fabric.hosts
    with pytest.raises(ConnectionRefusedError):
        client(a, b.address, 7123)
    at = f"{b.address}:7123"
    explained(proxies, a, f"nothing listens at {at}", "Start the server", "proxy_refused", state=failures(proxies, a)[0]["facts"]["state"])
    assert [failure["server"] for failure in failures(proxies, a, at)] == [at]
    assert f"nothing listens at {at}" in proxies.ask(a, "why", at)
    assert "cause:" not in proxies.ask(a, "why", f"{b.address}:7124")
    with pytest.raises(subprocess.CalledProcessError) as unknown:
        proxies.ask(a, "why", "999999")
    assert unknown.value.returncode == 1


def test_a_proxy_that_is_killed(make_fabric):
    with Proxies(make_fabric()) as proxies, joined(proxies) as (ours, theirs):
        a, _ = proxies.fabric.hosts
        exchanged(ours, theirs)
        proxies.running["b"].process.send_signal(signal.SIGKILL)
        assert read_all(ours) == (b"", "ECONNRESET")
        explained(proxies, a, "gave the proxy b up: its process has ended", "Start the other proxy", "proxy_peer_lost", error="its process has ended")


def test_a_network_that_is_away_for_too_long(make_fabric):
    with Proxies(make_fabric(), extra="resume_s = 1") as proxies, joined(proxies) as (ours, theirs):
        a, b = proxies.fabric.hosts
        exchanged(ours, theirs)
        cut(a, b, True)
        assert read_all(ours) == (b"", "ECONNRESET")
        explained(proxies, a, "it has not come back in time", "resume_s", "proxy_peer_lost")


def test_a_policy_that_names_the_peer_no_more(make_fabric):
    with Proxies(make_fabric()) as proxies, joined(proxies) as (ours, theirs):
        a, b = proxies.fabric.hosts
        exchanged(ours, theirs)
        configure(proxies, a, lambda text: text.replace(f'[[peer]]\nname = "b"\naddress = "{b.address}:7400"\n', ""))
        proxies.ask(a, "reload")
        assert read_all(ours) == (b"", "ECONNRESET")
        explained(proxies, a, "the configuration names it no more", "burst proxy reload", "proxy_peer_lost")


def test_broken_queue_pairs_are_no_failure(make_fabric):
    """The streams go on over the control channel; nothing ended in error, so nothing is kept."""
    with Proxies(make_fabric()) as proxies, joined(proxies) as (ours, theirs):
        a, _ = proxies.fabric.hosts
        exchanged(ours, theirs)
        proxies.ask(a, "break-queue-pairs")
        exchanged(ours, theirs)
        assert failures(proxies, a) == [] and "No connection has ended in error" in proxies.ask(a, "why", "all")


def test_a_wrong_certificate_and_nothing_in_clear(make_fabric):
    """Proxy b gets a certificate of another authority; a may send nothing in clear."""
    proxies = Proxies(make_fabric(), own={"a": 'encrypt = "only"'})
    a, b = proxies.fabric.hosts
    proxies.keys()
    other = proxies.directory / "other"
    subprocess.run([build_directory() / "burst", "proxy", "keys", other, "b"], check=True, stdout=subprocess.DEVNULL)
    proxies.start(a)
    for name in ("b.pem", "b.key", "ca.pem"):
        shutil.copy(other / name, proxies.directory / "keys" / name)
    proxies.start(b)
    with contextlib.ExitStack() as end:
        end.callback(proxies.__exit__)
        trouble = lambda: proxies.show(a)["peers"][0]["trouble"]  # noqa: E731
        wait_until(lambda: "certificate" in trouble().lower(), said=trouble)
        with listen(b), pytest.raises(ConnectionRefusedError):
            client(a, b.address)
        last = explained(proxies, a, "the proxy b is away", "certificates of one authority", "proxy_encrypt_only", by_TCP="proxy_no_peer")
        assert 'encrypt = "only"' in last["cause"] and "certificate" in last["cause"].lower()


def test_a_connection_by_tcp_that_fails(make_fabric):
    with Proxies(make_fabric(), relay="tcp") as proxies:
        a, b = proxies.fabric.hosts
        with pytest.raises(ConnectionRefusedError):
            client(a, b.address)
        explained(proxies, a, 'the policy says relay = "tcp", and there it failed: Connection refused', "as without a proxy", "proxy_tcp_failed", by_TCP="proxy_policy_tcp")
