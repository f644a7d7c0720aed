"""Shares of users, with a real daemon: a user who takes connections without end is refused with a reason, and others are not; a user who
sends requests without end leaves others their turn; a client that says nothing is disconnected."""

import json
import os
import re
import socket
import struct
import sys

import pytest

from lab import wait_until
from lab.fabric import ROOT
from lab.perftest import soonest

pytestmark = pytest.mark.alone

HOSTILE, BYSTANDER = 1001, 1002
SECONDS = 60

#: Connects to the daemon of argv[1] until it is refused or has argv[2] connections, says how many it has and the last words, and waits.
CONNECTOR = """
import signal, socket, sys
held, words = [], b""
while len(held) < int(sys.argv[2]):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect(sys.argv[1])
    # The daemon answers at once only if it refuses: nothing was asked.
    one.settimeout(0.05 if len(held) >= int(sys.argv[3]) else 0.0001)
    try:
        words = one.recv(4096)
        break
    except (TimeoutError, BlockingIOError):
        held.append(one)
# A refusal may come after its client has stopped waiting for it.
kept = []
for one in held:
    one.setblocking(False)
    try:
        words = one.recv(4096) or words
    except BlockingIOError:
        kept.append(one)
print("held", len(kept), words.decode(errors="replace"), flush=True)
signal.pause()
"""


#: Sends DaemonInfo over argv[2] connections to the daemon of argv[1], at most 16 unanswered ones over each, and prints the number of
#: replies after every 100. argv[3] and argv[4] are a hello and the request, in hexadecimal.
FLOOD = """
import socket, sys
hello, request = map(bytes.fromhex, sys.argv[3:5])
sockets, waiting, replies = [], {}, 0
for _ in range(int(sys.argv[2])):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect(sys.argv[1])
    one.send(hello)
    one.recv(65536)
    one.setblocking(False)
    sockets.append(one)
    waiting[one] = 0
print("flooding", flush=True)
while True:
    for one in sockets:
        try:
            while True:
                one.recv(65536)
                waiting[one] -= 1
                replies += 1
                if replies % 100 == 0:
                    print("replies", replies, flush=True)
        except BlockingIOError:
            pass
        while waiting[one] < 16:
            one.send(request)
            waiting[one] += 1
"""


def packet(sequence, body):
    """A control packet: magic, version, number, and a message as postcard encodes it."""
    layout = (ROOT / "crates/bytes/shm/src/layout.rs").read_text()
    version = int(re.search(r"ABI_VERSION: u32 = (\d+)", layout)[1])
    return struct.pack("<III", 0x4243544C, version, sequence) + body


#: The first two requests of the enumeration: `Hello { program: "x" }` and `DaemonInfo`.
HELLO, DAEMON_INFO = packet(1, b"\x00\x01x"), packet(2, b"\x01")


def as_user(uid, program, *words):
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    return [*user, sys.executable, "-c", program, *words]


def connect(host, uid, most, careful_from):
    """A program of a user that holds up to `most` connections; it takes time to read a refusal from `careful_from` on."""
    program = host.start(*as_user(uid, CONNECTOR, host.socket, most, careful_from), plain=True)
    program.wait_for_text("held", SECONDS)
    return program, int(program.text().split()[1])


def users_of(host):
    code, text = host.burst("ls", "--users", "--json")
    assert code == 0, text
    return {user["owner"]: user for user in json.loads(text)["users"]}


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")
def test_a_user_with_too_many_connections_is_refused_and_others_are_not(make_fabric):
    host = make_fabric(extra=("--user-share", 1)).a
    # One percent of what the reserve of 10 % leaves of 16,384 connections; fewer where descriptors are scarce.
    most = (16384 - 1638) // 100
    hostile, held = connect(host, HOSTILE, 2 * most, 20)
    assert 20 < held <= most
    assert "user_share" in hostile.text() and "user 1001" in hostile.text(), hostile.text()
    bystander, others = connect(host, BYSTANDER, 20, 0)
    assert others == 20, bystander.text()
    users = users_of(host)
    resources = users["user 1001"]["resources"]
    sessions, descriptors = resources["sessions"], resources["descriptors"]
    assert sessions["used"] == held and users["user 1001"]["refused"] > 0
    # A connection costs two descriptors. The bystander's have made the share a little smaller since.
    assert sessions["used"] >= sessions["limit"] or descriptors["used"] + 2 > descriptors["limit"]
    assert users["user 1002"]["refused"] == 0 and users["user 0"]["privileged"]
    code, text = host.burst("ls", "--users")
    assert code == 0 and "connections to the daemon" in text
    hostile.stop()
    wait_until(lambda: "user 1001" not in users_of(host), SECONDS)
    bystander.stop()


def replies_of(flood):
    return int(re.findall(r"replies (\d+)\n", flood.text())[-1])


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")
def test_a_user_who_sends_requests_without_end_leaves_others_their_turn(make_fabric):
    """Counted in requests: while a bystander gets one answer, the flooding user gets a bounded number, over however many connections."""
    host = make_fabric().a
    flood = host.start(*as_user(HOSTILE, FLOOD, host.socket, 100, HELLO.hex(), DAEMON_INFO.hex()), plain=True)
    flood.wait_for_text("replies", SECONDS)
    calls = 200
    # 256 requests of one account are served before another account's; a call can just miss its turn.
    bound = 2 * 256 * (calls + 1)

    def served_meanwhile():
        first = replies_of(flood)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bystander:
            bystander.connect(str(host.socket))
            for request in (HELLO, *[DAEMON_INFO] * calls):
                bystander.send(request)
                bystander.recv(65536)
        # Without a reply the flood had no processor, and nothing was shown.
        return replies_of(flood) - first or 2 * bound

    # The least of several, if the bystander has no processor: the daemon then serves the other user only.
    least = soonest(bound + 1, served_meanwhile, tries=10)
    assert least <= bound, least
    flood.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")
def test_the_time_of_the_control_thread_is_shown_for_each_user(make_fabric):
    host = make_fabric().a
    flood = host.start(*as_user(HOSTILE, FLOOD, host.socket, 10, HELLO.hex(), DAEMON_INFO.hex()), plain=True)
    flood.wait_for_text("replies", SECONDS)
    silent, _ = connect(host, BYSTANDER, 1, 0)
    users = users_of(host)
    busy, idle = (users[f"user {uid}"]["control"] for uid in (HOSTILE, BYSTANDER))
    assert idle["time_ns"] > 0 and busy["time_ns"] > 0 and 0 < busy["recent_share"] <= 1
    assert users[f"user {HOSTILE}"]["work"] == {"turns": 0, "requests": 0, "bytes": 0}
    code, text = host.burst("ls", "--users")
    assert code == 0 and "of the control thread" in text
    flood.stop()
    silent.stop()


def test_a_client_that_says_no_hello_is_disconnected(fabric):
    """After ten seconds; one that has said hello stays."""
    silent, polite = (socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    with silent, polite:
        for one in (silent, polite):
            one.connect(str(fabric.a.socket))
            one.settimeout(SECONDS)
        polite.send(HELLO)
        assert polite.recv(65536)
        assert silent.recv(65536) == b"", "the end of the connection"
        polite.send(DAEMON_INFO)
        assert polite.recv(65536)
