#!/usr/bin/env python3
"""Random deaths of proxies, daemons and queue pairs every two seconds under clients that connect all the time: no connect waits longer than `open_ms` and
one repetition of its SYN.

usage: tests/hunt/proxy_connects.py [--count N] [--seed N]
"""

import argparse
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "scripts"), str(Path(__file__).resolve().parents[1])]

import lab
from lab.proxy import Proxies
from proxy_connects import kill_while_connecting


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bound", type=float, default=5.0, help="seconds: open_ms, one repetition of a SYN, and a second for a busy machine")
    parser.add_argument("--victims", default="", help="only these, such as \"proxy a,queue pairs\"")
    chosen = parser.parse_args()
    with lab.Fabric() as fabric, Proxies(fabric) as proxies:
        victims = [victim for victim in chosen.victims.split(",") if victim]
        seen, slowest, slow = kill_while_connecting(proxies, chosen.count, chosen.seed, chosen.bound, victims=victims)
    print(f"{sum(seen.values())} connects: {dict(seen)}; the slowest took {slowest:.2f} s; slower than {chosen.bound} s: {slow}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
