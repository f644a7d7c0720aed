"""Asynchronous events as programs get them: type, object, order and number."""

import pytest
from lab import build_directory, wait_until
from lab.users import ALICE, Users, public_copy

EXPECTED = """\
established
communication established receiver
end
limit
SRQ limit reached srq
end
last request
last WQE reached receiver
end
wrong key
local access violation work queue error receiver
last WQE reached receiver
end
no right
invalid request local work queue error receiver
last WQE reached receiver
end
drained
send queue drained sender
end
overrun
CQ error cq
local work queue catastrophic error sender
end
overrun by receives
CQ error cq
local work queue catastrophic error receiver
last WQE reached receiver
end
target
communication established receiver
end
communication established other
end
"""


def test_events_of_queues_come_once_and_in_order(fabric):
    code, text = fabric.a.run(build_directory() / "programs" / "events", "burst0", 0)
    assert (code, text) == (0, EXPECTED)


UNREAD = "ok completion events\nok events of queue pairs\nok events of shared receive queues\n"


@pytest.mark.parametrize("in_process", [False, True], ids=["daemon", "in process"])
def test_unread_events_go_with_their_object(make_fabric, in_process):
    fabric = make_fabric(in_process=in_process)
    assert fabric.a.run(build_directory() / "programs" / "unread_events") == (0, UNREAD)


def test_unread_events_go_where_the_daemon_is_another_user(make_fabric):
    """The pipe is root's; the program may open it again all the same."""
    fabric = make_fabric()
    place = public_copy(fabric.directory / "public", "programs/unread_events")
    assert Users(fabric.a, place).run(ALICE, "unread_events") == UNREAD


def await_lines(program, lines):
    """Waits until the program has printed these lines, in this order, and no others after the first."""
    said = lambda: [line.strip().split(",")[0] for line in program.text().splitlines() if "event_type" in line]  # noqa: E731
    wait_until(lambda: len(said()) >= len(lines), program=program)
    assert said() == [f"event_type {line}" for line in lines], program.text()


def test_events_of_the_port(make_fabric):
    host = make_fabric().a
    watch = host.start("stdbuf", "-oL", "ibv_asyncwatch", "-d", "burst0")
    watch.wait_for_text("burst0", 60)
    seen = []
    for change, lines in [
        ("addr add 10.99.7.1/24 dev eth0", ["IBV_EVENT_GID_CHANGE (18)"]),
        ("addr del 10.99.7.1/24 dev eth0", ["IBV_EVENT_GID_CHANGE (18)"]),
        # Without a link the IPv6 addresses are removed; they return some time after the link.
        ("link set eth0 down", ["IBV_EVENT_PORT_ERR (10)", "IBV_EVENT_GID_CHANGE (18)"]),
    ]:
        host.ip(change)
        seen += lines
        await_lines(watch, seen)
    host.ip("link set eth0 up")
    watch.wait_for_text("IBV_EVENT_PORT_ACTIVE (9)", 60)
    watch.stop()
