"""Proxies on the two hosts of a fabric: keys, configurations, processes."""

import json
import subprocess

from . import fabric as base

#: Ports that the policy takes on host a, to host b.
TAKEN = "5201,6379,7000-7999,8080,11211"
CONTROL = 7400


def addresses(host):
    """A host's addresses as elements of a list in TOML."""
    return ", ".join(f'"{address}"' for address in (host.address, host.address6) if address)


class Proxies:
    """A `burst proxy run` on each host of a fabric: a takes connections to b, and b those to a. A context manager. `before`: words before the
    command, such as those that drop capabilities; `own`: further lines of the configuration of one host, by its name; `flags`: flags of `run`, in which {name}
    is that of the host."""

    taken = TAKEN

    def __init__(self, made, window="512KiB", memory="512MiB", workers=1, extra="", relay="rdma", rdma=True, before=(), own=None, flags=()):
        self.fabric, self.relay, self.rdma, self.before = made, relay, rdma, before
        self.options = f'window = "{window}"\nmemory = "{memory}"\nworkers = {workers}\n{extra}'
        self.own = own or {}
        self.flags = flags
        self.directory = made.directory
        self.running = {}

    def __enter__(self):
        self.keys()
        for host in self.fabric.hosts:
            self.start(host)
        self.await_links()
        return self

    def keys(self):
        """Makes the certificates."""
        words = [base.build_directory() / "burst", "proxy", "keys", self.directory / "keys", *(host.name for host in self.fabric.hosts)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    def admin(self, host):
        return self.directory / f"proxy-{host.name}.sock"

    def configuration(self, host):
        """Writes a host's configuration; returns its path."""
        path = self.directory / f"proxy-{host.name}.toml"
        peers = [
            f'[[peer]]\nname = "{other.name}"\naddress = "{other.address}:{CONTROL}"\n'
            f'[[take]]\nto = [{addresses(other)}]\nports = "{self.taken}"\nrelay = "{self.relay}"\n'
            for other in self.others(host)
        ]
        path.write_text(
            f'name = "{host.name}"\nlisten = "{host.address}:{CONTROL}"\nkeys = "{self.directory}/keys"\n'
            f'admin = "{self.admin(host)}"\n{self.options}\n{self.own.get(host.name, "")}\n{"".join(peers)}'
            f'[[serve]]\nto = [{addresses(host)}]\n'
        )
        return path

    def others(self, host):
        """The peers of a host's proxy."""
        return [other for other in self.fabric.hosts if other is not host]

    def start(self, host):
        """Starts a host's proxy."""
        words = [*self.before, base.build_directory() / "burst", "proxy", "run", self.configuration(host), *(flag.format(name=host.name) for flag in self.flags)]
        self.running[host.name] = host.start(*words, plain=not self.rdma)
        self.running[host.name].wait_for_text("ready", base.WAIT_SECONDS)
        return self.running[host.name]

    def show(self, host):
        """The answer of `burst proxy ls --json`."""
        words = [base.build_directory() / "burst", "proxy", "ls", "--json", "--admin", self.admin(host)]
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
        if done.returncode:
            raise base.LabError(f"{done.stderr}\n{self.running[host.name].text()}")
        return json.loads(done.stdout)

    def ask(self, host, *words):
        """Output of another subcommand."""
        words = [base.build_directory() / "burst", "proxy", *words, "--admin", self.admin(host)]
        return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True).stdout

    def counters(self, host):
        return self.show(host)["counters"]

    def links_are(self, carrier):
        """Whether all links of both proxies travel so, and both take new connections."""
        answers = [self.show(host) for host in self.fabric.hosts]
        carried = [answer["links"] and all(link["carrier"] == carrier for link in answer["links"]) for answer in answers]
        return all(carried) and all(peer["carries"] for answer in answers for peer in answer["peers"])

    def await_links(self, carrier=None):
        """Waits until each proxy carries connections of the other."""
        carrier = carrier or ("rdma" if self.rdma else "control channel")
        said = lambda: "\n".join(p.text() for p in self.running.values())  # noqa: E731
        base.wait_until(lambda: self.links_are(carrier), said=said)

    def __exit__(self, *_):
        for program in self.running.values():
            program.stop()


class StarProxies(Proxies):
    """Proxies of the hosts of a [`lab.switched.Switched`]: host 0 is the peer of each other, and there are no further links."""

    taken = "29000-30999"

    def others(self, host):
        first, *rest = self.fabric.hosts
        return rest if host is first else [first]
