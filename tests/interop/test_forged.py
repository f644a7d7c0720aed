"""Forged frames to each side: frames that must be dropped are dropped, and the connection continues.

Each test ends with the same frame without its fault, which is executed: so the fault alone was the reason. (An unknown
opcode makes rxe refuse, and its queue pair then takes nothing more.)
"""

import pytest

from rig import frames
from rig.pairs import CLIENTS

PSN = 0x500
MACS = {"burst": "52:54:77:00:00:01", "rxe": "52:54:77:00:00:02"}
GOOD, EVIL = b"\x11" * 16, b"\x66" * 16


@pytest.fixture(params=CLIENTS, ids=lambda name: f"to-{'rxe' if name == 'burst' else 'burst'}")
def ends(rig, request, make_ends):
    return make_ends(rig, request.param)


class Forger:
    """Writes to the responder's region in the requester's name."""

    def __init__(self, ends):
        self.ends = ends
        name = ends.connect(psn=(PSN, 0x900))
        self.qpn = ends.qpns[name][1]
        both = {"burst": ends.rig.host.address, "rxe": ends.rig.guest.address}
        self.victim = "rxe" if ends.requester == "burst" else "burst"
        self.source, self.destination = both[ends.requester], both[self.victim]

    def write(self, data, *, psn=PSN, source=None, corrupt=False, cut=0, **words):
        remote = self.ends.remote
        transport = frames.write_only(self.qpn, psn, remote["addr"], remote["rkey"], data, **words)
        made = frames.frame(transport, source or self.source, self.destination, MACS[self.victim], corrupt=corrupt)
        self.ends.rig.inject(made[:len(made) - cut])

    def holds(self, data, ms=3000):
        """Whether the region contains these bytes in time."""
        return self.ends.b.becomes("m", 0, data, ms)


FAULTS = {
    "pkey": {"pkey": 0x1234},
    "limited-pkey-of-another-partition": {"pkey": 0x9234},
    "icrc": {"corrupt": True},
    "source": {"source": "10.77.0.99"},
    "psn": {"psn": PSN + 0x700000},
    "cut": {"cut": 6},
    "opcode": {"opcode": 0x1F},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_dropped(ends, fault):
    forger = Forger(ends)
    forger.write(EVIL, **FAULTS[fault])
    assert not forger.holds(EVIL, ms=200)
    if fault != "opcode" or forger.victim == "burst":
        forger.write(GOOD)
        assert forger.holds(GOOD)


def test_a_duplicate_is_not_executed_again(ends):
    forger = Forger(ends)
    forger.write(GOOD)
    assert forger.holds(GOOD)
    forger.write(EVIL)
    assert not forger.holds(EVIL, ms=300)
    forger.write(EVIL, psn=PSN + 1)
    assert forger.holds(EVIL)
