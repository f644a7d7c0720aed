#!/usr/bin/env python3
"""A forger on the path against programs with an engine of their own, for many rounds and seeds (`make hunt PARTS=in-process`).

usage: in_process.py [--rounds N] [--frames N] [--seed N]... [--port SPEC]

Each seed is two programs and N rounds (default 200), each with N forged frames (default 2000); tests/test_in_process_hostile.py says what is
forged and what is checked. Without --seed: four seeds drawn from the clock. They are printed, and with the same options repeat the same attack.
"""

import argparse
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "scripts"), str(HERE.parent)]

import test_in_process_hostile as hostile  # noqa: E402
from lab import Fabric, LabError  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--frames", type=int, default=2000)
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--port", action="append", help="port of the victim (udp:dev=eth0 and packet:dev=eth0)")
    options = parser.parse_args()
    first = time.time_ns() % (1 << 32)
    failed = False
    for seed in options.seed or range(first, first + 4):
        for port in options.port or ["udp:dev=eth0", "packet:dev=eth0"]:
            with Fabric(in_process=True, ports=("udp:dev=eth0", port)) as fabric:
                print(f"seed {seed}, {port}: {options.rounds} rounds of {options.frames} frames", flush=True)
                try:
                    siege = hostile.besiege(fabric, seed, options.rounds, options.frames)
                except LabError as error:
                    print(f"FAIL: {error}", flush=True)
                    failed = True
                else:
                    print(f"  {siege.failed} queue pairs failed; the program lived", flush=True)
    print("FAIL" if failed else "PASS")
    sys.exit(failed)


if __name__ == "__main__":
    main()
