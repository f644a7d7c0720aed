"""Shares of users, with a real daemon: a user who takes connections without end is refused with a reason, and others are not."""

import json
import os
import sys

import pytest

from lab import wait_until

HOSTILE, BYSTANDER = 1001, 1002
SECONDS = 60

#: Connects to the daemon of argv[1] until it is refused or has argv[2] connections, says how many it has and the last words, and waits.
CONNECTOR = """
import socket, sys
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
print("held", len(held), words.decode(errors="replace"), flush=True)
sys.stdin.read()
"""


def connect(host, uid, most, careful_from):
    """A program of a user that holds up to `most` connections; it takes time to read a refusal from `careful_from` on."""
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    words = [*user, sys.executable, "-c", CONNECTOR, host.socket, most, careful_from]
    program = host.start(*words, plain=True)
    program.wait_for_text("held", SECONDS)
    return program, int(program.text().split()[1])


def users_of(host):
    code, text = host.burst("ls", "--users", "--json")
    assert code == 0, text
    return {user["owner"]: user for user in json.loads(text)["users"]}


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")
def test_a_user_with_too_many_connections_is_refused_and_others_are_not(make_fabric):
    host = make_fabric(extra=("--user-share", 1)).a
    # One percent of what the reserve of 10 % leaves of 16,384 connections.
    share = (16384 - 1638) // 100
    hostile, held = connect(host, HOSTILE, 2 * share, share)
    assert held == share
    assert "user_share" in hostile.text() and "user 1001" in hostile.text(), hostile.text()
    bystander, held = connect(host, BYSTANDER, 20, 0)
    assert held == 20, bystander.text()
    users = users_of(host)
    sessions = users["user 1001"]["resources"]["sessions"]
    assert sessions["used"] == share and users["user 1001"]["refused"] > 0
    assert users["user 1002"]["refused"] == 0 and users["user 0"]["privileged"]
    code, text = host.burst("ls", "--users")
    assert code == 0 and "connections to the daemon" in text
    hostile.stop()
    wait_until(lambda: "user 1001" not in users_of(host), SECONDS)
    bystander.stop()
