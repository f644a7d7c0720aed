"""The cost of probes (`make bench`): the rate of connections while share/cm-steps.bt watches both daemons, against the rate
without it, in turns within one run.

Medians of 15 rounds: the processor on which a worker wakes changes a single run by a third.
"""

import os
import signal
import time
from statistics import median

import pytest

from conftest import BUILD
from lab import Program
from lab.fabric import ROOT
from test_cm import COMMON, await_cm_listener

pytestmark = pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench")

CONNECTIONS, ROUNDS = 2000, 15


def connect_ms(fabric):
    """Milliseconds of cmtime's connect step, and of all its steps from the first address to the last connection."""
    server = fabric.b.start("cmtime", "-b", fabric.b.address)
    try:
        await_cm_listener(fabric.b, server, COMMON)
        code, text = fabric.a.run("cmtime", "-s", fabric.b.address, "-c", CONNECTIONS, seconds=60)
        assert code == 0, text
    finally:
        server.stop()
    total = {line.split(":")[0].strip(): float(line.split(":")[1].split()[0]) for line in text.splitlines() if ":" in line}
    # The server's last connections leave TIMEWAIT.
    time.sleep(0.5)
    return total["connect"], sum(total[step] for step in ("resolve addr", "resolve route", "create qp", "connect"))


def test_attached_probes_cost_less_than_a_fourteenth(fabric, figure):
    rounds = {False: [], True: []}
    for _ in range(ROUNDS):
        for watched, times in rounds.items():
            script = Program(["bpftrace", ROOT / "share" / "cm-steps.bt", BUILD / "burstd"]) if watched else None
            if script:
                script.wait_for_text("watching connection setup", 20)
                time.sleep(1)
            times.append(connect_ms(fabric))
            if script:
                script.stop(signal.SIGINT)
                assert "@req_sent_to_established_us" in script.text(), script.text()
    for phase, name in enumerate(("connect", "setup")):
        without, attached = (median(times[phase] for times in rounds[watched]) for watched in (False, True))
        figure(f"probes: {name} with cm-steps.bt to without", attached / without, "ratio")
        assert attached < 1.07 * without
