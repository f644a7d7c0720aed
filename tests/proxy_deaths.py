"""Random deaths of proxies and queue pairs under checked traffic, for test_proxy.py and tests/hunt/proxy.py."""

import os
import random
import signal
import time

from lab import wait_until


def deaths(proxies, load, rounds, seed):
    """Each round: traffic, and after a random time the death of a proxy or of the queue pairs. Every stream must be whole or reset."""
    dice = random.Random(seed)
    a, b = proxies.fabric.hosts
    for number in range(rounds):
        running = load(proxies, count=3, size=8_000_000)
        time.sleep(dice.random() * 0.3)
        victim = dice.choice(["a", "b", "queue pairs"])
        if victim == "queue pairs":
            proxies.ask(dice.choice([a, b]), "break-queue-pairs")
        else:
            os.kill(proxies.running[victim].pid, signal.SIGKILL)
        outcomes = running.finish()
        bad = [outcome for outcome in outcomes if outcome not in ("whole", "ECONNRESET", "ECONNREFUSED", "EPIPE")]
        assert not bad, f"seed {seed}, round {number}, death of {victim}: {outcomes}"
        if victim == "queue pairs":
            assert set(outcomes) == {"whole"}, f"seed {seed}, round {number}: {outcomes}"
        else:
            host = a if victim == "a" else b
            wait_until(lambda: not proxies.running[victim].running())
            proxies.start(host)
        proxies.await_links()
