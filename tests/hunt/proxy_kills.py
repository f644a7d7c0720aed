#!/usr/bin/env python3
"""Random deaths of proxies, daemons and queue pairs under checked traffic: every stream is whole or reset, never short, never altered.

usage: tests/hunt/proxy_kills.py [--count N] [--seed N]
"""

import argparse
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "scripts"), str(Path(__file__).resolve().parents[1])]

import lab
from lab.proxy import Proxies
from proxy_deaths import deaths
from test_proxy import Load


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with lab.Fabric() as fabric, Proxies(fabric) as proxies:
        print(deaths(proxies, Load, chosen.count, chosen.seed, daemons=True))


if __name__ == "__main__":
    main()
