"""perftest's services, operations and options, in all combinations that perftest knows."""

from .perftest import run_pair

# The operations that RoCE has for each service. perftest itself has no inline for READ and atomics, no events for WRITE, shared receive queues
# only for SEND, and READ and atomics only over a reliable connection (RC, XRC).
SERVICES = {
    "RC": ["write", "read", "send", "atomic"],
    "UC": ["write", "send"],
    "UD": ["send"],
    "XRC": ["write", "read", "send", "atomic"],
}
OPTIONS = {
    "plain": [],
    "queue pairs": ["-q", 4],
    "events": ["-e"],
    "IPv6": ["-x", 1],
    "small": ["-s", 2],
    "odd": ["-s", 1777],
    "large": ["-s", 1 << 20],
    "both ways": ["-b"],
    "shared receives": ["--use-srq", "-q", 3],
    "inline": ["--inline_size", 64, "-s", 64],
    "MTU 512": ["-m", 512],
    "MTU 4096": ["-m", 4096],
}


def has(service, operation, kind, option):
    """Whether perftest knows the combination."""
    words = OPTIONS[option]
    if "-s" in words and (operation == "atomic" or (service == "UD" and words[1] > 4096)):
        return False
    if kind == "lat" and option in ("queue pairs", "both ways", "shared receives"):
        return False
    if option == "events":
        return operation != "write"
    if option == "shared receives":
        # On UD perftest posts fewer receives to the shared queue than its queue pairs send. XRC always uses shared receive queues.
        return operation == "send" and service == "RC"
    if option == "inline":
        return operation in ("write", "send")
    return True


TRIPLES = [
    (service, operation, kind)
    for service, operations in SERVICES.items() for operation in operations for kind in ("bw", "lat")
]
POSSIBLE = {triple: [option for option in OPTIONS if has(*triple, option)] for triple in TRIPLES}


def run_options(server, client, case, seconds, folder=None):
    """Runs a (service, operation, kind, option) between two hosts, with the tools of `folder` or those in PATH. Returns the words."""
    service, operation, kind, option = case
    # A sender of an unreliable service has no flow control, and perftest waits for ever for a message that was dropped: all messages of a
    # run must fit into the receiver's socket buffer (4 MiB).
    iterations = 100 if service in ("RC", "XRC") else 5 if option == "large" else 10
    tool = f"ib_{operation}_{kind}"
    words = [folder / tool if folder else tool, "-d", "burst0", "-F", "-c", service, "-n", iterations, *OPTIONS[option]]
    # A datagram is one packet: perftest's default size does not fit.
    if service == "UD" and "-s" not in words:
        words += ["-s", 512]
    result = run_pair(server, client, words, seconds=seconds)
    # Few small messages on a busy machine are reported as 0.00 MB/s, so the number of messages is checked.
    queue_pairs = words[words.index("-q") + 1] if "-q" in words else 1
    assert result.row[1] == iterations * queue_pairs, result.client
    return words
