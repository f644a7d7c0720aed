"""The ibv_* programs of ibverbs-utils; the ping-pongs validate every byte they receive (-c)."""

import pytest

from lab import run_pair

PROGRAMS = ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"]


def words(program, *extra):
    # UD carries one packet; -g 0 asks for RoCE addressing.
    size = 2048 if "_ud_" in program else 16384
    return [program, "-d", "burst0", "-g", 0, "-n", 500, "-s", size, *extra]


@pytest.mark.parametrize("events", [[], ["-e"]], ids=["polling", "events"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_ping_pong(fabric, program, events):
    result = run_pair(fabric.b, fabric.a, words(program, *events))
    assert "500 iters in" in result.client


@pytest.mark.parametrize("events", [[], ["-e"]], ids=["polling", "events"])
def test_xrc_ping_pong(fabric, events):
    # It prints "success" when every message of every client has returned.
    result = run_pair(fabric.b, fabric.a, ["ibv_xsrq_pingpong", "-d", "burst0", "-g", 0, "-n", 500, *events])
    assert "success" in result.client and "success" in result.server


@pytest.mark.parametrize("program", ["ibv_rc_pingpong", "ibv_uc_pingpong"])
def test_ping_pong_validates_bytes(fabric, program):
    result = run_pair(fabric.b, fabric.a, words(program, "-c"))
    assert "invalid data" not in result.client + result.server


def test_devices_are_listed(fabric):
    code, text = fabric.a.run("ibv_devices")
    assert code == 0 and "burst0" in text


def test_devinfo(fabric):
    code, text = fabric.a.run("ibv_devinfo", "-v", "-d", "burst0")
    assert code == 0, text
    assert "PORT_ACTIVE" in text
    assert "active_mtu:\t\t4096" in text
    assert "::ffff:10.99.0.1" in text and "RoCE v2" in text


@pytest.mark.parametrize("events", [[], ["-e"]], ids=["polling", "events"])
def test_random_operations_against_a_model(fabric, events):
    from lab import build_directory

    program = build_directory() / "programs" / "exercise"
    result = run_pair(fabric.b, fabric.a, [program, "-n", 10000, "-s", 7, *events], seconds=120)
    assert "10000 operations asked" in result.client and "10000 operations asked" in result.server
