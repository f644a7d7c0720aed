"""Congestion control between two hosts: ECN bits cross the kernel on each kind of port, and marks come back as notifications."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab import build_directory, run_pair, wait_until
from lab.measure import DEVICE

EXERCISE = build_directory() / "programs" / "exercise"
PORTS = ["udp:dev=eth0", "packet:dev=eth0"]


@pytest.mark.parametrize("port", PORTS, ids=["udp", "packet"])
@pytest.mark.parametrize("cc", ["dcqcn", "dctcp"])
def test_marks_are_answered_by_notifications(make_fabric, port, cc):
    """`impair` marks only what arrives ECN-capable, so each mark shows that the codepoint has crossed both kernels."""
    marking = f"impair:ecn=10%,dir=rx/{port}"
    # Acknowledgements of selective repeat tell of marks themselves.
    fabric = make_fabric(ports=(port, marking), extra=("--cc", cc, "--selective-repeat=no"))
    run_pair(fabric.b, fabric.a, [EXERCISE, "-n", 2000, "-s", 9])
    marked = fabric.b.stats()
    assert marked["marked_packets"] > 0 and marked["cnps_sent"] > 0, marked
    assert marked["cnps_sent"] <= marked["marked_packets"]
    # The last of them may still be on its way.
    wait_until(lambda: fabric.a.stats().get("cnp_received", 0) >= marked["cnps_sent"], said=lambda: f"{fabric.a.stats()}")
    sender = fabric.a.stats()
    assert not sender.get("bad_icrc") and sender["cnps_sent"] == 0, sender


@pytest.mark.parametrize("port", PORTS, ids=["udp", "packet"])
def test_without_a_controller_that_reacts_nothing_is_marked(make_fabric, port):
    fabric = make_fabric(ports=(port, f"impair:ecn=100%,dir=rx/{port}"))
    for host in (fabric.a, fabric.b):
        congestion(host, "none")
    run_pair(fabric.b, fabric.a, [EXERCISE, "-n", 1000, "-s", 9])
    assert fabric.b.stats()["marked_packets"] == 0


def congestion(host, *words):
    code, text = host.burst("cc", *words, "--json")
    assert code == 0, text
    return json.loads(text)


def test_the_controller_of_a_running_daemon_is_changed(make_fabric):
    """Packets of `none` are not ECN-capable, those of the others are, so the marks that arrive count which controller sent."""
    fabric = make_fabric(ports=("udp:dev=eth0", "impair:ecn=10%,dir=rx/udp:dev=eth0"))
    sender, receiver = fabric.a, fabric.b
    traffic = [EXERCISE, "-n", 2000, "-s", 9]
    assert congestion(sender) == {"cc": "auto", "algorithm": "auto", "peers": [], "not_shown": 0}
    assert congestion(sender, "none")["cc"] == "none"
    run_pair(receiver, sender, traffic)
    assert receiver.stats()["marked_packets"] == 0
    assert congestion(sender, "dcqcn", "rpg_ai_rate=100M")["cc"] == "dcqcn:rpg_ai_rate=100M"
    run_pair(receiver, sender, traffic)
    marked = receiver.stats()["marked_packets"]
    assert marked > 0
    wait_until(lambda: sender.stats().get("cnp_received", 0) > 0, said=lambda: f"{sender.stats()}")
    for words, sentence in (
        (["dcqnc"], "did you mean 'dcqcn'?"),
        (["dcqcn", "rpg_ai_rat=1M"], "did you mean 'rpg_ai_rate'?"),
        (["swift", "base_target=1h"], "write a value from"),
    ):
        code, text = sender.burst("cc", *words)
        assert code == 1 and sentence in text, (words, text)
    assert congestion(sender)["cc"] == "dcqcn:rpg_ai_rate=100M"
    assert congestion(sender, "none")["algorithm"] == "none"
    run_pair(receiver, sender, traffic)
    assert receiver.stats()["marked_packets"] == marked


def test_daemons_agree_and_kinds_of_peers_differ(make_fabric):
    """The client's configuration holds for both ends; what `burst cc` sets on the server holds there, and the client follows."""
    fabric = make_fabric(daemons=False)
    client, server = fabric.a, fabric.b
    client.start_daemon(extra=("--cc-burst", "dctcp:g=0.5", "--cc-loopback", "none"))
    server.start_daemon()

    def shown(host, kind):
        return [(peer["cc"], peer["peers_choice"]) for peer in congestion(host)["peers"] if peer["kind"] == kind]

    with ThreadPoolExecutor() as pool:
        # Paths are listed while a queue pair uses them.
        words = ["-d", DEVICE, "-F", "-s", 4096, "-D", 8]
        runs = [pool.submit(run_pair, server, client, ["ib_write_bw", *words]), pool.submit(run_pair, client, client, ["ib_read_bw", *words])]
        wait_until(lambda: shown(client, "loopback") == [("none", False)], said=lambda: f"{congestion(client)}")
        wait_until(lambda: shown(server, "burst") == [("dctcp:g=0.5", True)], said=lambda: f"{congestion(server)}")
        assert shown(client, "burst") == [("dctcp:g=0.5", False)]
        why = {host: [peer["why"] for peer in congestion(host)["peers"] if peer["kind"] == "burst"] for host in (client, server)}
        assert why == {client: ["set in this daemon's configuration"], server: ["the peer's choice, from its configuration"]}
        assert congestion(client)["algorithm"] is None, "kinds differ"
        assert congestion(server, "--for", "burst", "swift")["cc"] == "standard auto, burst swift, loopback auto"
        wait_until(lambda: shown(client, "burst") == [("swift", True)], said=lambda: f"{congestion(client)}")
        for run in runs:
            run.result()
    code, text = server.burst("cc", "--for", "brust", "aimd")
    assert code == 1 and "did you mean 'burst'?" in text, text


def test_traffic_goes_on_while_the_controller_changes(make_fabric):
    """Every algorithm in turn takes over the connections of a running program, which checks all its data."""
    port = "impair:ecn=5%,dir=rx/udp:dev=eth0"
    fabric = make_fabric(ports=(port, port))
    changes = 0
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run_pair, fabric.b, fabric.a, [EXERCISE, "-n", 5000, "-s", 9])
        while not running.done() or changes < 8:
            name = ["dcqcn", "swift", "none", "cubic", "dctcp", "timely", "dcqcn-nvidia", "aimd"][changes % 8]
            for host in (fabric.a, fabric.b):
                shown = congestion(host, name)
                assert shown["algorithm"] == name and all(peer["algorithm"] == name for peer in shown["peers"])
            changes += 1
        running.result()
