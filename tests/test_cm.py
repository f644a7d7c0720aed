"""Connection management: unmodified programs over librdmacm between two hosts and within one, the rules of its API, and
what `burst cm` shows of it."""

import json

import pytest

from conftest import BUILD
from lab import wait_until
from lab.perftest import await_listener
from test_middleware import burst_run, fi_pingpong, needs

SECONDS = 60
# The ports on which programs listen by default.
RPING, COMMON, MCKEY = 7174, 7471, 7174

# Server's host, client's host, the address of the server that both use.
WAYS = {
    "IPv4": ("b", "a", lambda fabric: fabric.b.address),
    "IPv6": ("b", "a", lambda fabric: fabric.b.address6),
    "loopback": ("b", "b", lambda fabric: "127.0.0.1"),
    "loopback IPv6": ("b", "b", lambda fabric: "::1"),
    "own address": ("a", "a", lambda fabric: fabric.a.address),
}


@pytest.fixture(params=WAYS, ids=lambda way: way.replace(" ", "-"))
def way(request, fabric):
    """(server's host, client's host, address)"""
    server, client, address = WAYS[request.param]
    return getattr(fabric, server), getattr(fabric, client), address(fabric)


def connections(host):
    """The rows of `burst cm --connections`."""
    code, text = host.burst("cm", "--connections", "--json")
    if code and host.in_process:
        # No program with an engine of its own runs yet.
        return []
    assert code == 0, text
    return json.loads(text)["connections"]


def steps(host):
    """The table of steps, by name."""
    code, text = host.burst("cm", "--json")
    assert code == 0, text
    return {row["step"]: row for row in json.loads(text)["steps"]}


def await_cm_listener(host, program, port):
    """Waits until a program listens on the port of the connection manager."""
    listens = lambda: any(c["state"] == "listening" and c["local"]["port"] == port for c in connections(host))  # noqa: E731
    wait_until(listens, program=program)


def pair(way, port, server_words, client_words, *, ends=True, env=None):
    """Runs server and client; both must exit with 0 (without `ends` only the client). Returns the client's output."""
    server_host, client_host, _ = way
    server = server_host.start(*server_words, env=env)
    client = None
    try:
        await_cm_listener(server_host, server, port)
        client = client_host.start(*client_words, env=env)
        code = client.wait(SECONDS)
        served = server.wait(SECONDS) if ends else 0
        assert (code, served) == (0, 0), f"{client.words}:\n{client.text()}\n{server.words}:\n{server.text()}"
    finally:
        server.stop()
        if client:
            client.stop()
    return client.text()


# rdma-core's programs

@pytest.mark.parametrize("words", [["-V"], ["-S", 4000], ["-q"]], ids=["validated", "large", "own queue pair"])
def test_rping(way, words):
    common = ["rping", "-a", way[2], "-C", 10, *words]
    pair(way, RPING, [*common, "-s"], [*common, "-c"])


@pytest.mark.parametrize("words", [[], ["-c", 20, "-C", 5, "-S", 1000], ["-m"]], ids=["one", "twenty", "migrated"])
def test_ucmatose(way, words):
    text = pair(way, COMMON, ["ucmatose", "-b", way[2], *words], ["ucmatose", "-s", way[2], *words])
    assert "return status 0" in text


@pytest.mark.parametrize("words", [[], ["-c", 20, "-C", 5]], ids=["one", "twenty"])
def test_udaddy(way, words):
    text = pair(way, RPING, ["udaddy", "-b", way[2], *words], ["udaddy", "-s", way[2], *words])
    assert "return status 0" in text


def test_cmtime(way):
    # cmtime's server does not end by itself.
    text = pair(way, COMMON, ["cmtime", "-b", way[2]], ["cmtime", "-s", way[2], "-c", 50], ends=False)
    rows = {line.split(":")[0].strip(): line.split(":")[1].split() for line in text.splitlines() if ":" in line}
    assert {"resolve addr", "create qp", "connect", "disconnect"} <= rows.keys() and float(rows["connect"][0]) > 0


def test_rdma_server(way):
    # Without -s it listens on the first wildcard address, which is IPv4's.
    server = ["rdma_server", *(["-s", "::"] if ":" in way[2] else [])]
    assert "rdma_client: end 0" in pair(way, COMMON, server, ["rdma_client", "-s", way[2]])


@pytest.mark.parametrize("mode", ["r", "x"], ids=["RC", "XRC"])
@pytest.mark.parametrize("local", [False, True], ids=["two-hosts", "one-host"])
def test_rdma_xserver(fabric, mode, local):
    way = fabric.b, fabric.b if local else fabric.a, fabric.b.address
    words = ["rdma_xserver", "-c", mode], ["rdma_xclient", "-c", mode, "-s", way[2]]
    assert "rdma_xclient: end 0" in pair(way, COMMON, *words)


# A sender waits five seconds before it sends, so both families run at once.
def test_mckey(fabric):
    groups = {"239.1.2.3": lambda host: host.address, "ff05::1234": lambda host: host.address6}
    tool = ["stdbuf", "-oL", "mckey"]
    started = []
    try:
        for group, of in groups.items():
            started.append(fabric.b.start(*tool, "-m", group, "-b", of(fabric.b)))
            started[-1].wait_for_text("receiving data transfers", SECONDS)
        for group, of in groups.items():
            started.append(fabric.a.start(*tool, "-m", group, "-s", "-b", of(fabric.a)))
        for program in reversed(started):
            code = program.wait(SECONDS)
            assert code == 0 and "return status 0" in program.text(), program.text()
    finally:
        for program in started:
            program.stop()


# perftest 4.5 with -R supports IPv4 only, even with --ipv6, and only RC and UD.
@pytest.mark.parametrize(
    "words",
    [["ib_write_bw"], ["ib_read_lat"], ["ib_send_lat"], ["ib_atomic_bw"], ["ib_send_bw", "-q", 4], ["ib_send_bw", "-c", "UD", "-s", 512]],
    ids=lambda words: "-".join(map(str, words)),
)
def test_perftest(fabric, words):
    way = fabric.b, fabric.a, fabric.b.address
    words = [*words, "-R", "-F", "-n", 50]
    pair(way, 18515, words, [*words, way[2]])


# qperf connects its RC tests by the connection manager. Its UD and UC tests ignore -cm and address their peers by LID, which RoCE does
# not have.
@needs("qperf", "qperf")
def test_qperf(fabric):
    server = fabric.b.start("qperf", "-lp", 19000)
    try:
        await_listener(fabric.b, server, 19000)
        tests = ["rc_lat", "rc_bw", "rc_rdma_read_lat"]
        words = ["qperf", "-lp", 19000, fabric.b.address, "-t", 1, "-cm", 1, *tests]
        code, text = fabric.a.run(*words, seconds=SECONDS)
        assert code == 0 and all(f"{name}:" in text for name in tests), text
    finally:
        server.stop()


# Middleware

@needs("fi_pingpong", "libfabric-bin")
@pytest.mark.parametrize("endpoint", ["msg", "rdm"])
@pytest.mark.parametrize("local", [False, True], ids=["two-hosts", "one-host"])
def test_fi_pingpong(fabric, endpoint, local):
    client = fabric.b if local else fabric.a
    fi_pingpong(fabric.b, client, "-p", "verbs", "-e", endpoint, "-S", 4096)


# io_demo listens on IPv4 only.
@needs("io_demo", "ucx-utils")
def test_ucx_connects_by_rdmacm(fabric):
    # Verbs only, so rdmacm is the only connection manager.
    env = {"UCX_NET_DEVICES": "burst0:1", "UCX_TLS": "rc_verbs", "UCX_SOCKADDR_TLS_PRIORITY": "rdmacm"}
    before = steps(fabric.a)["REQ to established"]["count"]
    words = [*burst_run(fabric.b), "io_demo", "-p", 1337, "-q", "-d", "1000:50000"]
    way = fabric.b, fabric.a, fabric.b.address
    pair(way, 1337, words, [*words, "-i", 20, "-o", "read,write", way[2]], ends=False, env=env)
    assert steps(fabric.a)["REQ to established"]["count"] > before


# The rules of the API.

@pytest.mark.parametrize("address", ["address", "address6"])
@pytest.mark.parametrize("program", ["cm_exercise", "cm_more", "cm_edge", "cm_strict"])
def test_rules(fabric, program, address):
    code, text = fabric.a.run(BUILD / "programs" / program, getattr(fabric.a, address), seconds=120)
    assert code == 0, text


# What `burst cm` shows

def test_steps_are_counted_at_both_ends(fabric):
    before = steps(fabric.a), steps(fabric.b)
    way = fabric.b, fabric.a, fabric.b.address
    pair(way, COMMON, ["cmtime", "-b", way[2]], ["cmtime", "-s", way[2], "-c", 40], ends=False)

    def grown(host, old):
        return {name: row["count"] - old[name]["count"] for name, row in steps(host).items()}

    # The server, and then the client, may count the end of the last connections a moment later.
    wait_until(lambda: grown(fabric.b, before[1])["REQ to established"] >= 40, said=lambda: grown(fabric.b, before[1]))
    wait_until(lambda: grown(fabric.a, before[0])["DREQ sent to DREP received"] >= 40, said=lambda: grown(fabric.a, before[0]))
    active, passive = (grown(host, old) for host, old in zip((fabric.a, fabric.b), before))
    for name in ("resolve address", "resolve route", "REQ sent to REP received", "REQ to established"):
        assert active[name] == 40, (name, active)
    # The library may preallocate queue pairs.
    assert active["create queue pair"] >= 40, active
    assert active["REQ received to REP sent"] == 0 and active["DREQ sent to DREP received"] == 40, active
    for name in ("REQ received to REP sent", "REP sent to RTU received", "REQ to established"):
        assert passive[name] == 40, (name, passive)
    row = steps(fabric.a)["REQ sent to REP received"]
    assert 0 < row["p50_ns"] <= row["p99_ns"] <= row["max_ns"]
    code, text = fabric.a.burst("cm")
    assert code == 0 and "REQ sent to REP received" in text and "p99" in text, text


def test_connections_are_listed_by_state(fabric):
    server = fabric.b.start("rping", "-s", "-a", "0.0.0.0", "-P")
    client = None
    try:
        await_cm_listener(fabric.b, server, RPING)
        (listener,) = [c for c in connections(fabric.b) if c["state"] == "listening"]
        assert (listener["program"], listener["space"], listener["local"]["address"]) == ("rping", "tcp", "0.0.0.0")
        client = fabric.a.start("rping", "-c", "-a", fabric.b.address, "-C", 1000000)
        ends = [established(fabric.a, client), established(fabric.b, server)]
        assert ends[0]["peer"] == {"address": fabric.b.address, "port": RPING} == ends[1]["local"]
        assert ends[0]["local"] == ends[1]["peer"]
        assert (ends[0]["qpn"], ends[0]["comm_id"]) == (ends[1]["peer_qpn"], ends[1]["peer_comm_id"])
        code, text = fabric.a.burst("cm", "--connections", "--state", "established")
        assert code == 0 and text.splitlines()[-1] == "1 established", text
        client.stop()
        # The peer gets a DREQ, and its connection passes through TIMEWAIT.
        quiet = lambda: all(c["state"] == "listening" for c in connections(fabric.b))  # noqa: E731
        wait_until(quiet, said=lambda: connections(fabric.b))
    finally:
        server.stop()
        if client:
            client.stop()


def established(host, program):
    found = wait_until(lambda: [c for c in connections(host) if c["state"] == "established"], program=program)
    assert len(found) == 1, found
    return found[0]


def shown(watch):
    """Its output so far, whole lines only."""
    return [json.loads(line) for line in watch.text().splitlines(keepends=True) if line.endswith("\n")]


def counts(watch):
    """The number of connections in each interval except the first."""
    return [row["count"] for one in shown(watch)[1:] for row in one["steps"] if row["step"] == "REQ to established"]


def test_watch_shows_what_happened_since(fabric):
    watch = fabric.a.start(BUILD / "burst", "cm", "--watch", "0.3", "--json")
    try:
        wait_until(watch.text, program=watch)
        way = fabric.b, fabric.a, fabric.b.address
        pair(way, RPING, ["rping", "-s", "-a", way[2], "-C", 3], ["rping", "-c", "-a", way[2], "-C", 3])
        # An interval shows its own connections only.
        wait_until(lambda: sum(counts(watch)) > 0 and counts(watch)[-2:] == [0, 0], program=watch)
    finally:
        watch.stop()
    first, *later = shown(watch)
    assert sum(counts(watch)) == 1 and len(counts(watch)) >= 3, watch.text()
    assert len(first["steps"]) == len(later[0]["steps"])
