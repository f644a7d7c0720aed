"""Clients that connect all the time while proxies, daemons and queue pairs die, for test_proxy_syn.py and tests/hunt/proxy_connects.py.

Every connect must have an answer within a bound: the server's byte, or a refusal."""

import contextlib
import errno
import os
import random
import select
import signal
import socket
import subprocess
import threading
import time
from collections import Counter

from lab import wait_until
from lab.namespaces import inside

#: A port of the policy.
PORT = 7040
#: Most time of one connect before the clients stop to wait.
GIVE_UP_S = 60


class Server:
    """Accepts on host b, sends a byte, and reads the client's end. Every second connection is ended by the server first."""

    def __init__(self, host):
        with inside(host):
            self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind((host.address, PORT))
        self.listener.listen(2000)
        self.listener.setblocking(False)
        self.stopped = False
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        poll, open_ones, number = select.epoll(), {}, 0
        poll.register(self.listener, select.EPOLLIN)
        while not self.stopped:
            for fd, _ in poll.poll(0.2):
                if fd != self.listener.fileno():
                    self._read(poll, open_ones, fd)
                    continue
                with contextlib.suppress(OSError):
                    while True:
                        theirs, _ = self.listener.accept()
                        theirs.setblocking(False)
                        open_ones[theirs.fileno()] = theirs
                        poll.register(theirs, select.EPOLLIN)
                        with contextlib.suppress(OSError):
                            theirs.send(b"!")
                            number += 1
                            if number % 2:
                                theirs.shutdown(socket.SHUT_WR)
        for theirs in open_ones.values():
            theirs.close()
        self.listener.close()

    @staticmethod
    def _read(poll, open_ones, fd):
        theirs = open_ones[fd]
        try:
            over = theirs.recv(100) == b""
        except BlockingIOError:
            return
        except OSError:
            over = True
        if over:
            poll.unregister(fd)
            open_ones.pop(fd).close()

    def stop(self):
        self.stopped = True
        self.thread.join()


class Clients:
    """Threads that connect from host a one after the other. `done`: (age of the connect in seconds, outcome) of each."""

    def __init__(self, a, b, count, pause_s=0.02):
        self.a, self.target, self.pause_s = a, (b.address, PORT), pause_s
        self.stopped = False
        self.done = []
        #: By client: when its present connect began, and its socket.
        self.pending = {}
        self.threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]
        for thread in self.threads:
            thread.start()

    def _run(self, number):
        while not self.stopped:
            self._one(number)
            time.sleep(self.pause_s)

    def _one(self, number):
        with inside(self.a):
            ours = socket.socket()
        with ours:
            ours.setblocking(False)
            began = time.monotonic()
            with contextlib.suppress(BlockingIOError):
                ours.connect(self.target)
            self.pending[number] = (began, ours)
            waiting = select.poll()
            waiting.register(ours, select.POLLOUT)
            answered = waiting.poll(GIVE_UP_S * 1000)
            age = time.monotonic() - began
            del self.pending[number]
            self.done.append((age, self._outcome(ours) if answered else "no answer"))

    @staticmethod
    def _outcome(ours):
        """How a connect has ended, and whether the server has served it."""
        error = ours.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error == errno.ECONNRESET:
            # A reset in answer to a SYN is ECONNREFUSED: this one came when the connection stood, before this thread looked.
            return "after connect ECONNRESET"
        if error:
            return errno.errorcode[error]
        waiting = select.poll()
        waiting.register(ours, select.POLLIN)
        if not waiting.poll(GIVE_UP_S * 1000):
            return "no byte"
        try:
            served = ours.recv(1) == b"!"
        except OSError as error:
            return "after connect " + errno.errorcode[error.errno]
        # A reset may have come since.
        with contextlib.suppress(OSError):
            ours.shutdown(socket.SHUT_WR)
        return "served" if served else "end without a byte"

    def oldest(self):
        """Age of the oldest connect that waits, and its port."""
        now, ages = time.monotonic(), []
        for began, ours in list(self.pending.values()):
            with contextlib.suppress(OSError):
                ages.append((now - began, ours.getsockname()[1]))
        return max(ages, default=(0, 0))

    def stop(self):
        self.stopped = True
        for thread in self.threads:
            thread.join()


def explain(proxies, port):
    """What both hosts know of a connect that waits."""
    a, b = proxies.fabric.hosts
    facts = []
    for host in (a, b):
        code, text = host.run("ss", "-tanoeip", f"( sport = :{PORT} or dport = :{PORT} )", plain=True)
        lines = text.splitlines()
        shown = [line for at, line in enumerate(lines) if f":{port}" in line or "SYN-" in line or (at and f":{port}" in lines[at - 1])]
        facts.append(f"{host.name}: ss {code}\n" + "\n".join(shown))
        for words in (["ls"], ["why"], ["stats"]):
            with contextlib.suppress(subprocess.CalledProcessError):
                facts.append(f"{host.name}: {words[0]}\n" + "\n".join(proxies.ask(host, *words).splitlines()[-60:]))
        facts.append(proxies.running[host.name].text()[-3000:])
    return "\n".join(facts)


def kill_while_connecting(proxies, kills, seed, bound_s, period_s=2.0, clients=8, victims=None, said=print):
    """Kills a victim every period; returns outcomes by how often, the slowest connect, and those slower than the bound."""
    a, b = proxies.fabric.hosts
    dice = random.Random(seed)
    victims = victims or ["proxy a", "proxy b", "queue pairs", "daemon a", "daemon b"]
    server, slow, explained = Server(b), [], set()
    connecting = Clients(a, b, clients)
    try:
        for number in range(kills):
            due = time.monotonic() + period_s * (0.5 + dice.random())
            victim = dice.choice(victims)
            kill(proxies, victim, dice)
            while time.monotonic() < due:
                time.sleep(0.05)
                age, port = connecting.oldest()
                if age > bound_s and port not in explained:
                    explained.add(port)
                    said(f"kill {number} of seed {seed}, {victim}: a connect from port {port} waits for {age:.1f} s\n{explain(proxies, port)}")
    finally:
        connecting.stop()
        server.stop()
    slow = [(round(age, 2), outcome) for age, outcome in connecting.done if age > bound_s]
    slowest = max((age for age, _ in connecting.done), default=0)
    return Counter(outcome for _, outcome in connecting.done), slowest, slow


def kill(proxies, victim, dice):
    """Kills one, and starts it again."""
    host = proxies.fabric.hosts[victim.endswith("b")]
    if victim == "queue pairs":
        with contextlib.suppress(subprocess.CalledProcessError):
            proxies.ask(dice.choice(proxies.fabric.hosts), "break-queue-pairs")
    elif victim.startswith("daemon"):
        host.daemon.stop(signal.SIGKILL)
        host.start_daemon()
    else:
        os.kill(proxies.running[host.name].pid, signal.SIGKILL)
        wait_until(lambda: not proxies.running[host.name].running())
        proxies.start(host)
