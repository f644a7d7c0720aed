"""One attack of each kind of tests/hunt/attacks.py (`KINDS`) in short: while it runs, a bystander does a fixed count of everything. The result depends
on counts, and not on how long something takes on a busy machine. `make hunt` runs all attacks, by counts and measured."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from conftest import BUILD
from lab.users import public_copy

sys.path.append(str(Path(__file__).parent / "hunt"))

import attacks  # noqa: E402

#: Verified pings, writes and rounds of control calls of the bystander.
ROUNDS = 20
#: Packets that a forger makes and sends again and again.
PACKETS = 1000
pytestmark = pytest.mark.counts


@pytest.fixture(scope="module")
def place(namespaces):
    if os.geteuid():
        pytest.skip("changing the user needs root")
    if not (BUILD / "examples/attack").exists():
        pytest.skip("the attacker is not built: cargo build --release -p burst-control --example attack")
    place = public_copy(f"/tmp/burst-test-attacks-{os.getpid()}", "programs/calls", "programs/holes", "examples/attack")
    yield place
    shutil.rmtree(place)


@pytest.mark.parametrize("name", attacks.SHORT)
def test_a_bystander_is_served_and_nothing_is_left(place, name, monkeypatch):
    monkeypatch.setattr(attacks, "FLOOD", PACKETS)
    with attacks.fabric_for(name, place) as fabric:
        hunt = attacks.Hunt(fabric, place, 0)
        try:
            assert hunt.short(name, ROUNDS) == []
        finally:
            hunt.users.end()
