"""Random deaths of proxies, daemons and queue pairs under checked traffic, for test_proxy.py and tests/hunt/proxy_kills.py."""

import os
import random
import signal
import time
from collections import Counter

from lab import wait_until


def deaths(proxies, load, rounds, seed, daemons=False):
    """Each round: traffic, and after a random time the death of a proxy, of a daemon or of the queue pairs. Every stream must be whole or
    reset; only the death of a proxy may reset any. Returns how often each outcome was seen for each victim."""
    dice = random.Random(seed)
    a, b = proxies.fabric.hosts
    victims = ["proxy a", "proxy b", "queue pairs", *(["daemon a", "daemon b"] if daemons else [])]
    seen = Counter()
    for number in range(rounds):
        running = load(proxies, count=3, size=8_000_000)
        time.sleep(dice.random() * 0.3)
        victim = dice.choice(victims)
        host = a if victim.endswith("a") else b
        if victim == "queue pairs":
            proxies.ask(dice.choice([a, b]), "break-queue-pairs")
        elif victim.startswith("daemon"):
            host.daemon.stop(signal.SIGKILL)
        else:
            os.kill(proxies.running[host.name].pid, signal.SIGKILL)
        outcomes = running.finish()
        seen.update((victim, outcome) for outcome in outcomes)
        said = f"seed {seed}, round {number}, death of {victim}: {outcomes}"
        allowed = {"whole"} if not victim.startswith("proxy") else {"whole", "ECONNRESET", "ECONNREFUSED", "EPIPE", "ENOTCONN"}
        assert set(outcomes) <= allowed, said
        if victim.startswith("daemon"):
            host.start_daemon()
        elif victim.startswith("proxy"):
            wait_until(lambda host=host: not proxies.running[host.name].running())
            proxies.start(host)
        proxies.await_links()
    return dict(seen)
