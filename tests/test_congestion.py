"""Congestion control between two hosts: ECN bits cross the kernel on each kind of port, and marks come back as notifications."""

import pytest

from lab import build_directory, run_pair, wait_until

EXERCISE = build_directory() / "programs" / "exercise"
PORTS = ["udp:dev=eth0", "packet:dev=eth0"]


@pytest.mark.parametrize("port", PORTS, ids=["udp", "packet"])
@pytest.mark.parametrize("cc", ["dcqcn", "dctcp"])
def test_marks_are_answered_by_notifications(make_fabric, port, cc):
    """`impair` marks only what arrives ECN-capable, so each mark shows that the codepoint has crossed both kernels."""
    marking = f"impair:ecn=10%,dir=rx/{port}"
    fabric = make_fabric(ports=(port, marking), extra=("--cc", cc))
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
    run_pair(fabric.b, fabric.a, [EXERCISE, "-n", 1000, "-s", 9])
    assert fabric.b.stats()["marked_packets"] == 0
