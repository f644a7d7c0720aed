"""Several senders on one link, in simulated time, and what their controllers promise: shares by Jain's index, and the length of the queue.

`shared_link` runs whole workers with a simulated link of 10 Gbit/s that marks. The bounds of the queue are those that follow from the
controllers' publications for this link; they hold for its mean, because a train of 64 KiB leaves at once.

* `dctcp` (Alizadeh et al., SIGCOMM 2010, section 3.3): the queue's peak is K + N packets. Tolerance 15 % for 2 senders, 25 % for 16.
* `dcqcn` (Zhu et al., CoNEXT 2016): p* = (R_AI N^2 / (tau C^2) (1/B + N/(T C))^2)^(1/3), q* = Kmin + p*/Pmax (Kmax - Kmin); where p* is above
  Pmax, the queue leaves the ramp and stays at Kmax, above which every packet is marked. Tolerance 20 %.
* `swift` (Kumar et al., SIGCOMM 2020): the delay of the queue stays under the target, base_target + 2 round trips + fs(window of a sender).
"""

import json
import subprocess
from math import sqrt

from .fabric import build_directory

LINK = 10e9
#: Bytes of a full packet on the link: payload, headers of RoCEv2, UDP, IPv4 and Ethernet.
PACKET, PAYLOAD = 1024 + 94, 1024
STEP_BYTES = 72_000
RED = (40_000, 160_000, 0.2)
BASE_RTT_US = 20.0
#: What Swift's default target, 25 us and two round trips, leaves to the queue, in microseconds; its other defaults, and the MTU of its windows.
SWIFT_BASE, SWIFT_RANGE, SWIFT_MIN, SWIFT_MAX, SWIFT_MTU = 25.0 + BASE_RTT_US, 125.0, 0.1, 100.0, 4096
CONTROLLERS = ("dcqcn", "dctcp", "swift")


def run(cc, senders, ms=400, selective=True):
    """One run of `shared_link`."""
    tool = build_directory() / "examples" / "shared_link"
    words = [tool, cc, str(senders), str(ms), *(["selective"] if selective else [])]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True, timeout=300).stdout)


def queue_bound_kb(cc, senders):
    """The longest mean queue that the controller promises on this link, with its tolerance."""
    if cc == "dctcp":
        return (STEP_BYTES + senders * PACKET) / 1e3 * (1.15 if senders <= 2 else 1.25)
    if cc == "swift":
        # The window at which delay and target are equal.
        delay = SWIFT_BASE
        for _ in range(100):
            window = max((delay + BASE_RTT_US) * 1e-6 * LINK / 8 / senders / SWIFT_MTU, SWIFT_MIN)
            a = SWIFT_RANGE / (1 / sqrt(SWIFT_MIN) - 1 / sqrt(SWIFT_MAX))
            delay = SWIFT_BASE + min(max(a / sqrt(window) - a / sqrt(SWIFT_MAX), 0), SWIFT_RANGE)
        return delay * 1e-6 * LINK / 8 / 1e3
    rate = LINK / 8 / PACKET
    increase, period, bytes_reset = 40e6 / 8 / PACKET, 55e-6, 10e6 / PACKET
    p = (increase * senders**2 / (period * rate**2) * (1 / bytes_reset + senders / (period * rate)) ** 2) ** (1 / 3)
    kmin, kmax, pmax = RED
    return (kmin + min(p / pmax, 1) * (kmax - kmin)) / 1e3 * 1.2


def measure(cc, senders, selective=True):
    """A run beside its bounds."""
    found = run(cc, senders, selective=selective)
    return {**found, "selective": selective, "queue_bound_kb": round(queue_bound_kb(cc, senders), 1)}
