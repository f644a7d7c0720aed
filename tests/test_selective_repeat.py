"""Selective repeat between two daemons over a wire that loses packets: agreed on by hello, repaired by counters, fallbacks."""

import pytest

from lab import build_directory, run_pair

EXERCISE = build_directory() / "programs" / "exercise"
LOSSY = "impair:loss=1%,seed={}/udp:dev=eth0"
PORTS = (LOSSY.format(31), LOSSY.format(32))
#: The default, said.
SELECTIVE = ("--selective-repeat",)
STANDARD = ("--selective-repeat=no",)
#: Runs of a pair until a hello has come through and a packet was lost after it. A hello may be lost with its answer, and is
#: repeated later than a short run ends.
RUNS = 12


def counted(fabric, *names):
    """Sum of these counters of both hosts."""
    return sum(host.stats().get(name, 0) for host in fabric.hosts for name in names)


def run_until(fabric, words, *names, **options):
    """Runs the pair until one of these counters has risen."""
    before = counted(fabric, *names)
    for _ in range(RUNS):
        result = run_pair(fabric.b, fabric.a, words, seconds=120, **options)
        if counted(fabric, *names) > before:
            return result
    raise AssertionError(f"{RUNS} runs without {names}: {[host.stats() for host in fabric.hosts]}")


def restart(host, port, *extra):
    host.daemon.stop()
    return host.start_daemon(port, extra)


@pytest.mark.parametrize("tool", ["ib_write_bw", "ib_send_bw", "ib_read_bw"])
def test_lost_packets_are_repeated_alone(make_fabric, tool):
    fabric = make_fabric(ports=PORTS, extra=SELECTIVE)
    words = [tool, "-d", "burst0", "-F", "-s", 65536, "-n", 500]
    # The responder of a READ repeats what the requester names; packets that arrive behind a gap stay where they are.
    repaired = ["read_repaired"] if tool == "ib_read_bw" else ["sr_repeated"]
    assert run_until(fabric, words, *repaired).row[3] > 0
    if tool != "ib_read_bw":
        assert counted(fabric, "sr_early") > 0 and counted(fabric, "sr_recovery") > 0
    assert counted(fabric, "sr_refused", "retry_exhausted") == 0


def test_xrc_uses_it_as_well(make_fabric):
    fabric = make_fabric(ports=PORTS, extra=SELECTIVE)
    words = ["ib_send_bw", "-d", "burst0", "-F", "-c", "XRC", "-s", 65536, "-n", 500]
    assert run_until(fabric, words, "sr_repeated").row[3] > 0
    assert counted(fabric, "sr_early") > 0
    assert counted(fabric, "sr_refused", "sr_not_negotiated", "retry_exhausted") == 0


def test_every_operation_arrives_once_and_in_order(make_fabric):
    """`exercise` compares each byte and completion, and the memory at the end, with a model."""
    fabric = make_fabric(ports=PORTS, extra=SELECTIVE)
    run_until(fabric, [EXERCISE, "-n", 3000, "-s", 5], "sr_repeated")
    run_pair(fabric.b, fabric.a, [EXERCISE, "-n", 3000, "-s", 6, "-e"], seconds=120)
    assert counted(fabric, "sr_early") > 0 and counted(fabric, "sr_refused") == 0


def test_a_daemon_without_it_gets_standard_packets(make_fabric):
    fabric = make_fabric(ports=PORTS, daemons=False)
    fabric.a.start_daemon(PORTS[0], SELECTIVE)
    fabric.b.start_daemon(PORTS[1], STANDARD)
    run_until(fabric, [EXERCISE, "-n", 3000, "-s", 7], "sequence_nak_received")
    # The other daemon answered that it does not use the family, and no packet was of it.
    assert counted(fabric, "sr_repeated", "sr_early", "sr_refused", "sr_not_negotiated") == 0


def test_a_daemon_that_is_started_again_is_asked_again(make_fabric):
    fabric = make_fabric(ports=PORTS, extra=SELECTIVE)
    words = [EXERCISE, "-n", 2000, "-s", 8]
    run_until(fabric, words, "sr_repeated")
    restart(fabric.b, PORTS[1], *STANDARD)
    # Packets of the family that the new daemon drops are sent again as standard packets: no run fails.
    run_until(fabric, words, "sequence_nak_received")
    assert not fabric.b.stats().get("sr_early")
    restart(fabric.b, PORTS[1], *SELECTIVE)
    run_until(fabric, words, "sr_repeated")
