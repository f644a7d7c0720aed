"""`burst proxy` against its floor (`make bench`): ratios within one run, medians of rounds in turns.

The floor is the same relay with two local TCP connections and no RDMA (scripts/lab/proxy_load.py). The proxies have the engine inside; figures of
proxies beside daemons are noted as well. Both ends and both proxies share the processors of one machine, so the software RDMA device's own work lowers
every ratio: the aims are not reached (docs/proxy.md, "What it costs").
"""

import os
from statistics import median

import pytest

import lab
from lab import proxy_load
from lab.proxy import Proxies
from lab.proxy_load import Floor, Route

pytestmark = pytest.mark.skipif(os.environ.get("BURST_BENCH") != "1", reason="figures are measured by make bench")

ROUNDS = 3
STREAMS = (1, 3, 40, 200, 1000)
#: Of the floor, at any number of streams or clients.
LEAST = 0.9
#: Of the floor's latency.
PING_MOST = 1.3
#: Of the ratio with one stream, the ratio with a thousand.
MANY_LEAST = 0.85
#: Microseconds that a connect may take more than TCP's.
CONNECT_MOST_US = 1300


@pytest.fixture(scope="module")
def rounds():
    """For each way, a list of {name: value}."""
    refused = lab.namespaces_refused()
    if refused:
        pytest.skip(refused)
    runs = {"floor": [], "proxy": [], "daemon": []}
    with lab.Fabric() as fabric, lab.Fabric(in_process=True) as inside:
        for _ in range(ROUNDS):
            with Floor(fabric, memory="4GiB"):
                runs["floor"].append(measure(Route(fabric.a, fabric.a)))
            for way, hosts in (("proxy", inside), ("daemon", fabric)):
                with Proxies(hosts, memory="4GiB") as proxies:
                    runs[way].append(measure(Route(hosts.a, hosts.b)))
                    counters = proxies.counters(hosts.a)
                    assert not counters.get("connections_by_tcp"), proxies.ask(hosts.a, "why")
    return runs


def measure(route):
    figures = {f"iperf3_{count}": proxy_load.gbits(route, count) for count in STREAMS}
    for (clients, what), rate in proxy_load.redis_rates(route).items():
        figures[f"redis_{what.lower()}_{clients}"] = rate
    figures["ping_us"] = proxy_load.ping_pong_us(route)["p50_us"]
    proxy_load.settle()
    return figures


def test_ratios_to_the_floor(rounds, figure):
    to_floor = lambda way: {n: median(p[n] / f[n] for p, f in zip(rounds[way], rounds["floor"])) for n in rounds[way][0]}  # noqa: E731
    ratios = to_floor("proxy")
    for way, prefix in (("proxy", "proxy"), ("daemon", "proxy_by_daemon")):
        for name, ratio in to_floor(way).items():
            figure(f"{prefix}_{name}_to_floor", ratio, "x")
    low = {name: ratio for name, ratio in ratios.items() if name != "ping_us" and ratio < LEAST}
    missed = [f"less than {LEAST} of the floor: {low}"] if low else []
    if ratios["ping_us"] > PING_MOST:
        missed.append(f"more than {PING_MOST} of the floor's latency: {ratios['ping_us']:.2f}")
    if ratios["iperf3_1000"] < MANY_LEAST * ratios["iperf3_1"]:
        missed.append(f"a thousand streams have {ratios['iperf3_1000']:.2f} of the floor, one has {ratios['iperf3_1']:.2f}")
    assert not missed, "; ".join(missed)


def test_a_connect_costs_little_more_than_by_tcp(figure):
    refused = lab.namespaces_refused()
    if refused:
        pytest.skip(refused)
    more = []
    with lab.Fabric(in_process=True) as hosts:
        route = Route(hosts.a, hosts.b)
        for _ in range(ROUNDS):
            by_tcp = proxy_load.connect_us(route)
            with Proxies(hosts) as proxies:
                more.append(proxy_load.connect_us(route) - by_tcp)
                counters = proxies.counters(hosts.a)
                assert not counters.get("connections_by_tcp"), proxies.ask(hosts.a, "why")
    figure("proxy_connect_more_us", median(more), "us")
    assert median(more) <= CONNECT_MOST_US, f"a connect takes {median(more):.0f} us more than by TCP"


def test_what_encryption_costs(figure):
    """Bulk of one stream and values of 2 KiB, with `encrypt` on and off in turns: medians of the ratios of neighbouring runs."""
    refused = lab.namespaces_refused()
    if refused:
        pytest.skip(refused)
    runs = {"on": [], "off": []}
    with lab.Fabric(in_process=True) as hosts:
        route = Route(hosts.a, hosts.b)
        for _ in range(ROUNDS):
            for word, made in runs.items():
                with Proxies(hosts, extra=f'encrypt = "{word}"\n') as proxies:
                    rates = proxy_load.redis_rates(route, clients=(10,), requests=10_000, size=2048)
                    made.append({"iperf3_1": proxy_load.gbits(route, 1), **{f"redis_{what.lower()}_2k": rate for (_, what), rate in rates.items()}})
                    links = [link for host in hosts.hosts for link in proxies.show(host)["links"]]
                    assert {(link["carrier"], link["encrypted"]) for link in links} == {("rdma", word == "on")}
    for name in runs["on"][0]:
        figure(f"proxy_encrypted_{name}_to_clear", median(on[name] / off[name] for on, off in zip(runs["on"], runs["off"])), "x")
