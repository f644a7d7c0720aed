"""The attacks of tests/hunt/attacks.py in short: while each runs, a bystander does a fixed count of everything. The result depends on counts, and not on
how long something takes on a busy machine; `make hunt` measures times."""

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
ROUNDS = 200
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


@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_a_bystander_is_served_and_nothing_is_left(place, name):
    if name == "huge" and not attacks.huge_pages():
        pytest.skip("no huge page is free: sysctl vm.nr_hugepages=16")
    with attacks.fabric_for(name, place) as fabric:
        hunt = attacks.Hunt(fabric, place, 0)
        try:
            assert hunt.short(name, ROUNDS) == []
        finally:
            hunt.users.end()
