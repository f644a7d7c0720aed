"""Goodput of one RC queue pair over a wire that loses packets: selective repeat beside go-back-N.

Each family of packets has a fabric of its own: two namespaces and two daemons, without congestion control, because a window that
is halved by each loss would be measured instead of the repair. The wrapper `impair` loses packets in both directions at the server's
port; it draws per packet, inside trains too. Runs of the families follow each other at once, so a ratio compares runs of one minute.
"""

from statistics import median

from .fabric import Fabric
from .measure import DEVICE
from .perftest import run_pair
from .waiting import LabError

KIB, MIB = 1 << 10, 1 << 20
FAMILIES = {"selective": ("--cc", "none", "--selective-repeat"), "go-back-n": ("--cc", "none", "--selective-repeat=no")}
TOOLS = {"write": "ib_write_bw", "read": "ib_read_bw", "send": "ib_send_bw"}
#: Counters that say what a run repeated, and why; sums of both hosts.
COUNTERS = (
    "impaired", "sr_repeated", "read_repaired", "sr_timeout", "sr_probe", "sr_recovery", "sr_reordered", "sr_record_full", "sr_window",
    "sr_pool_empty", "duplicate_request", "sequence_nak_received", "ack_timeout", "retry_exhausted",
)


class Losses:
    """Fabrics of both families; a context manager."""

    def __init__(self, families=tuple(FAMILIES)):
        self.fabrics = {family: Fabric(extra=FAMILIES[family]) for family in families}

    def __enter__(self):
        try:
            for family, fabric in self.fabrics.items():
                fabric.__enter__()
                # The hello comes and goes while nothing is lost.
                run_pair(fabric.b, fabric.a, ["ib_write_bw", "-d", DEVICE, "-F", "-s", 64 * KIB, "-n", 100])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for fabric in self.fabrics.values():
            fabric.__exit__()

    def impair(self, family, options):
        """Changes what happens to packets from now on; `options` as of `burst impair`, none: nothing happens."""
        words = [*options, "for=1h"] if options else ["off"]
        code, text = self.fabrics[family].b.burst("impair", DEVICE, *words)
        if code:
            raise LabError(text)

    def run(self, family, operation, mtu, options, seconds=3, size=MIB):
        """One run: goodput in Gbit/s, processor seconds of both daemons, and what was counted. LabError if a request failed."""
        fabric = self.fabrics[family]
        self.impair(family, options)
        before = [(host.stats(), host.daemon.cpu_seconds()) for host in fabric.hosts]
        words = [TOOLS[operation], "-d", DEVICE, "-F", "--report_gbits", "-s", size, "-m", mtu, "-D", seconds]
        result = run_pair(fabric.b, fabric.a, words, seconds=seconds + 60)
        after = [(host.stats(), host.daemon.cpu_seconds()) for host in fabric.hosts]
        counted = {name: sum(now[name] - was[name] for (was, _), (now, _) in zip(before, after)) for name in COUNTERS}
        cpu = [round(now - was, 2) for (_, was), (_, now) in zip(before, after)]
        return {"gbits": result.gbits, "cpu_s": cpu, "counters": {name: count for name, count in counted.items() if count}}


def loss_options(percent):
    return [f"loss={percent}%"] if percent else []


def sweep(losses, operation, mtu, percents, seconds=3, rounds=3, note=print):
    """Rows {operation, mtu, loss_percent, family: {gbits, ratio, runs}}, one per rate of loss. The first rate must be 0."""
    ways = {percent: loss_options(percent) for percent in percents}
    found = in_turns(losses, operation, mtu, ways, seconds, rounds, note)
    return [{"operation": operation, "mtu": mtu, "loss_percent": percent, **families} for percent, families in found.items()]


def reordering(losses, operation, mtu, options, seconds=3, rounds=3, note=print):
    """A row as of `sweep`: runs over a wire that reorders, beside runs over one that does not."""
    found = in_turns(losses, operation, mtu, {"in order": [], "reordered": options}, seconds, rounds, note)
    return {"operation": operation, "mtu": mtu, "reordered": options, **found["reordered"]}


def in_turns(losses, operation, mtu, ways, seconds, rounds, note):
    """Medians by way of impairment and family. Ratios are those of a run to the run of the first way in the same round. A run that fails
    counts as one of 0 Gbit/s, and has its error."""
    runs = {(way, family): [] for way in ways for family in losses.fabrics}
    for number in range(rounds):
        for way, family in runs:
            try:
                run = losses.run(family, operation, mtu, ways[way], seconds)
            except LabError as error:
                run = {"gbits": 0.0, "error": str(error)}
            runs[way, family].append(run)
            what = f"{operation} MTU {mtu} {' '.join(ways[way]) or 'no loss'}, {family}, round {number + 1}"
            note(f"{what}: {run['gbits']:.3f} Gbit/s {run.get('error', '')}")
    first, found = next(iter(ways)), {}
    for way, family in runs:
        these, clean = runs[way, family], runs[first, family]
        ratios = [run["gbits"] / base["gbits"] for run, base in zip(these, clean) if base["gbits"]]
        row = {"gbits": median(run["gbits"] for run in these), "ratio": median(ratios or [0.0]), "runs": these}
        found.setdefault(way, {})[family] = row
    return found
