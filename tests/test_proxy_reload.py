"""`burst proxy reload`: rules, peers and certificates without a restart; open streams go on."""

import os
import signal
import subprocess

import pytest

from lab import wait_until
from lab.proxy import Proxies
from test_proxy import PORT, await_carried, carried, exactly, joined

#: No rule names it at first.
LATER = 7050


def exchanged(ours, theirs):
    ours.sendall(b"question")
    assert exactly(theirs, 8) == b"question"
    theirs.sendall(b"answer")
    assert exactly(ours, 6) == b"answer"


def configure(proxies, host, change):
    """Writes the configuration of a host anew, as an editor does."""
    path = proxies.directory / f"proxy-{host.name}.toml"
    new = path.with_suffix(".new")
    new.write_text(change(path.read_text()))
    os.replace(new, path)


def refused(proxies, host):
    with pytest.raises(subprocess.CalledProcessError) as answer:
        proxies.ask(host, "reload")
    return answer.value


@pytest.mark.parametrize("by", ["bpf", "nft"])
def test_rules_change_and_streams_go_on(make_fabric, by):
    proxies = Proxies(make_fabric(), extra=f'intercept = "{by}"')
    proxies.taken = "7000"
    with proxies, joined(proxies) as kept:
        a, b = proxies.fabric.hosts
        exchanged(*kept)
        with joined(proxies, LATER) as plain:
            exchanged(*plain)
            assert carried(proxies) == 1
            configure(proxies, a, lambda text: text.replace('ports = "7000"', f'ports = "{LATER}"'))
            assert "is in use" in proxies.ask(a, "reload")
            exchanged(*kept)
            exchanged(*plain)
        with joined(proxies, LATER) as ours:
            exchanged(*ours)
        await_carried(proxies, 2)
        with joined(proxies, PORT + 1) as ours:
            exchanged(*ours)
        assert f"do not name port {PORT}" in proxies.ask(a, "why", f"{b.address}:{PORT}")
        # A prefix that was not named at all, and one that is none any more.
        configure(proxies, a, lambda text: text.replace(f'["{b.address}", "{b.address6}"]\nports = "{LATER}"', f'["10.99.0.0/24"]\nports = "{PORT + 1}"'))
        wait_until(lambda: "do not name port" in proxies.ask(a, "why", f"{b.address}:{LATER}"), said=proxies.running["a"].text)
        with joined(proxies, PORT + 1) as ours:
            exchanged(*ours)
        await_carried(proxies, 3)
        exchanged(*kept)
        assert proxies.counters(a).get("streams_reset", 0) == 0


def test_a_file_that_needs_a_restart_or_is_wrong_changes_nothing(make_fabric):
    with Proxies(make_fabric()) as proxies:
        a, _ = proxies.fabric.hosts
        path = proxies.directory / "proxy-a.toml"
        before = path.read_text()
        for wrong, why in [
            (before.replace("workers = 1", "workers = 2"), "workers has changed, which needs a restart"),
            (before + "[[serve]]\nto = ['10.1.0.1']\nnamespace = '/run/netns/other'\n", "need a restart"),
            (before.replace("[[peer]]", "[[per]]"), "unknown field"),
        ]:
            path.write_text(wrong)
            assert why in refused(proxies, a).stderr
        # Without being asked: it follows the file.
        path.write_text("mark = 99\n" + before)
        wait_until(lambda: "mark has changed, which needs a restart" in proxies.running["a"].text(), said=proxies.running["a"].text)
        with joined(proxies) as ours:
            exchanged(*ours)
        await_carried(proxies, 1)


def test_what_this_proxy_serves_and_who_is_a_peer(make_fabric):
    with Proxies(make_fabric()) as proxies, joined(proxies) as kept:
        a, b = proxies.fabric.hosts
        serves = lambda: proxies.show(a)["peers"][0]["serves"]  # noqa: E731
        configure(proxies, b, lambda text: text.replace("[[serve]]\nto = [", '[[serve]]\nto = ["10.98.0.0/16", '))
        proxies.ask(b, "reload")
        wait_until(lambda: "10.98.0.0/16" in serves())
        proxies.await_links()
        exchanged(*kept)
        # Another peer, which is away, and then none.
        more = '[[peer]]\nname = "c"\naddress = "10.99.0.3:7400"\n'
        configure(proxies, a, lambda text: text.replace("[[peer]]", more + "[[peer]]", 1))
        proxies.ask(a, "reload")
        assert {peer["name"] for peer in proxies.show(a)["peers"]} == {"b", "c"}
        configure(proxies, a, lambda text: text.replace(more, ""))
        proxies.ask(a, "reload")
        assert [peer["name"] for peer in proxies.show(a)["peers"]] == ["b"]
        exchanged(*kept)


def test_other_certificates(make_fabric):
    with Proxies(make_fabric()) as proxies:
        a, b = proxies.fabric.hosts
        for file in (proxies.directory / "keys").iterdir():
            file.unlink()
        proxies.keys()
        proxies.ask(a, "reload")
        os.kill(proxies.running["b"].pid, signal.SIGKILL)
        wait_until(lambda: not proxies.running["b"].running())
        proxies.start(b)
        proxies.await_links()
        with joined(proxies) as ours:
            exchanged(*ours)
