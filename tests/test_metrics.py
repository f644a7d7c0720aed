"""Metrics: over HTTP by a daemon, by `burst metrics`, by `burst stats`; who sees what; scrapers that stall; counters in the host files."""

import contextlib
import json
import resource
import socket
import time
from pathlib import Path

import pytest

from conftest import BUILD
from lab import run_pair, wait_until
from lab.users import ALICE, BOB, Users, as_user, public_copy
from test_host_files import host, whole_host  # noqa: F401

PORT = 9317
QUEUE_PAIRS, LOOKS = 10_000, 5


@pytest.fixture
def watched(make_fabric, tmp_path):
    """A fabric whose host a shows metrics at a socket file that every user reaches, and by TCP at host b."""
    fabric = make_fabric(daemons=False)
    place = tmp_path / "metrics.sock"
    fabric.a.start_daemon(extra=["--metrics", f"unix:{place}"])
    fabric.b.start_daemon(extra=["--metrics", f"127.0.0.1:{PORT}"])
    for directory in place.parents:
        if directory.is_relative_to("/tmp") and directory != Path("/tmp"):
            directory.chmod(directory.stat().st_mode | 0o055)
    fabric.place = place
    return fabric


def scrape(host, place, *words, user=()):
    where = ["--unix-socket", place, "http://burst/metrics"] if isinstance(place, Path) else [f"http://127.0.0.1:{place}/metrics"]
    code, text = host.run(*user, "curl", "--silent", "--show-error", "--fail-with-body", "--max-time", 20, *words, *where, plain=True)
    assert code == 0, text
    return text


def samples(text):
    """Values by name and labels."""
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")}


def value(text, name, **labels):
    """The sum of the samples of a name that have these labels."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    found = [v for key, v in samples(text).items() if key.split("{")[0] == name and all(word in key for word in wanted)]
    assert found, f"{name} {labels} is not in\n{text}"
    return sum(found)


def traffic(fabric, count=200):
    run_pair(fabric.a, fabric.b, ["ib_send_bw", "-d", "burst0", "-F", "-n", count])


def test_a_page_has_the_daemons_counters(watched):
    traffic(watched, 20_000)
    text = scrape(watched.a, watched.place)
    counted = watched.a.stats()
    for name in ("rx_packets", "tx_bytes", "completions"):
        assert value(text, f"burst_{name}_total", engine="daemon", device="burst0") <= counted[name], name
    assert value(text, "burst_completions_total") >= 20_000
    assert value(text, "burst_worker_seconds_total", state="busy") > 0 and value(text, "burst_worker_seconds_total", state="asleep") > 0
    assert value(text, "burst_device_up", device="burst0", interface="eth0") == 1
    # One turn in 16 is measured; host b sends.
    sender = scrape(watched.b, PORT)
    assert 0 < value(sender, "burst_message_seconds_count") <= value(sender, "burst_completions_total")
    assert value(sender, "burst_round_trip_seconds_count") > 0 and value(sender, "burst_round_trip_seconds_sum") > 0
    assert value(sender, "burst_queueing_seconds_count") >= value(sender, "burst_train_packets_count") > 0
    assert value(sender, "burst_train_packets_sum") <= value(sender, "burst_tx_packets_total")
    assert value(text, "burst_cm_objects", what="listeners") == 0
    opened = scrape(watched.a, watched.place, "--header", "Accept: application/openmetrics-text;version=1.0.0")
    assert opened.endswith("# EOF\n") and "# TYPE burst_rx_packets counter" in opened, opened[-300:]


def test_users_see_their_own_queue_pairs_and_account(watched):
    users = Users(watched.a, public_copy(watched.a.directory / "public", "programs/idle_qps"))
    programs = {user: users.start(user, "idle_qps", "burst0", 3) for user in (ALICE, BOB)}
    as_root = as_root_sees(watched, programs)
    assert value(as_root, "burst_queue_pairs_hidden") == 0
    for user, other in ((ALICE, BOB), (BOB, ALICE)):
        text = scrape(watched.a, watched.place, user=as_user(user))
        pids = {key.split('pid="')[1].split('"')[0] for key in samples(text) if 'pid="' in key}
        assert pids == {str(programs[user].pid)}, text
        assert f'account="user {user}"' in text and f"user {other}" not in text, text
        assert value(text, "burst_queue_pairs_hidden") == 3
        # `burst metrics` asks the daemon as this user.
        own = users.burst(user, "metrics")
        assert f"user {other}" not in own and str(programs[other].pid) not in own, own


def as_root_sees(watched, programs):
    """A page of root's with the three queue pairs of each of these programs: reports of the second before are shared, and may lack some."""
    seen = []

    def all_there():
        seen[:] = [scrape(watched.a, watched.place)]
        number = samples(seen[0])
        processes = {key: count for key, count in number.items() if key.startswith("burst_process_queue_pairs{")}
        return all(any(f'pid="{program.pid}"' in key and count == 3 for key, count in processes.items()) for program in programs.values())

    wait_until(all_there, 60, lambda: seen[0])
    return seen[0]


def test_by_tcp_there_are_totals_only(watched):
    code, text = watched.b.run(BUILD / "burst", "ls")
    assert code == 0, text
    holder = watched.b.start(BUILD / "programs" / "idle_qps", "burst0", 3)
    wait_until(lambda: value(scrape(watched.b, PORT), "burst_queue_pairs_hidden") == 3, 60, lambda: holder.text())
    text = scrape(watched.b, PORT)
    assert "idle_qps" not in text and "account=" not in text and f'pid="{holder.pid}"' not in text, text
    code, refused = watched.b.run("curl", "--silent", "--fail", f"http://{watched.b.address}:{PORT}/metrics", plain=True)
    assert code != 0, "only the configured address answers"


def test_a_scrape_that_stalls_is_cut_off_and_delays_no_one(watched):
    stalled = []
    for _ in range(40):
        one = socket.socket(socket.AF_UNIX)
        one.connect(str(watched.place))
        one.sendall(b"GET /metrics HTTP/1.1\r\n")
        stalled.append(one)
    assert "burst_rx_packets_total" in scrape(watched.a, watched.place, user=as_user(ALICE))
    for one in stalled:
        one.settimeout(60)
        # Displaced at once, perhaps before its bytes were read, or cut off at its time.
        with contextlib.suppress(ConnectionResetError):
            assert one.recv(100) == b""
    assert "burst_rx_packets_total" in scrape(watched.a, watched.place)


def test_rubbish_gets_a_sentence(watched):
    for request, status in ((b"GET / HTTP/1.1\r\n\r\n", b"404"), (b"\0\xff\r\n\r\n", b"400"), (b"a" * 5000, b"431"), (b"POST /metrics HTTP/1.1\r\n\r\n", b"405")):
        with socket.socket(socket.AF_UNIX) as scraper:
            scraper.connect(str(watched.place))
            scraper.sendall(request)
            assert scraper.recv(1000).split(b" ")[1] == status, request[:40]


def test_a_place_that_cannot_be_bound_is_said(watched):
    other = watched.a.directory / "other.sock"
    words = [BUILD / "burstd", "--socket", other, "--port", "udp:dev=lo", "--metrics", f"unix:{watched.place}"]
    code, text = watched.a.run(*words, plain=True)
    assert code == 2 and "another process serves" in text and str(watched.place) in text, text
    code, text = watched.a.run(BUILD / "burstd", "--metrics", "9317", plain=True)
    assert code == 2 and "unix:PATH" in text, text


def test_burst_metrics_shows_programs_with_engines_of_their_own(watched):
    burst = watched.a.start(BUILD / "burst", "metrics", "--listen", f"127.0.0.1:{PORT + 1}")
    wait_until(lambda: burst.process.poll() is not None or reached(watched.a, PORT + 1), 60, burst.text)
    assert 'engine="daemon"' in scrape(watched.a, PORT + 1)
    burst.stop()


def reached(host, port):
    return host.run("curl", "--silent", "--max-time", 5, f"http://127.0.0.1:{port}/metrics", plain=True)[0] == 0


def test_stats_as_rates_and_as_metrics(watched):
    traffic(watched)
    code, text = watched.a.burst("stats", "--prometheus")
    assert code == 0 and value(text, "burst_completions_total") >= 200, text
    server, client = ([*side, "-d", "burst0", "-F", "-D", 4] for side in (["ib_write_bw"], ["ib_write_bw"]))
    running = [watched.b.start(*server)]
    time.sleep(1)
    running.append(watched.a.start(*client, watched.b.address))
    code, text = watched.a.burst("stats", "--watch=500ms", "--count", 6, "--json")
    assert code == 0, text
    intervals = [json.loads(line) for line in text.splitlines()]
    assert len(intervals) == 6
    rows = [row for interval in intervals for row in interval["counters"]]
    assert any(row["name"] == "tx_packets" and row["per_second"] > 0 for row in rows), text
    code, text = watched.a.burst("stats", "--watch=20ms", "--count", 1)
    assert code == 0 and text.startswith("in 0."), text
    for program in running:
        program.wait(60)


@pytest.mark.counts
def test_ten_thousand_queue_pairs_are_listed_within_a_tenth_of_a_second(watched):
    """Processor time of the daemon and of `burst stats` together: the clock of a busy machine says nothing."""
    holder = watched.a.start(BUILD / "programs" / "idle_qps", "burst0", QUEUE_PAIRS)
    holder.wait_for_text("ready", 300)
    spent = lambda: watched.a.daemon.cpu_seconds() + resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime  # noqa: E731
    before = spent()
    for _ in range(LOOKS):
        code, text = watched.a.burst("stats", "--prometheus", seconds=120)
        assert code == 0 and value(text, "burst_queue_pairs") >= QUEUE_PAIRS, text[-2000:]
        assert len([key for key in samples(text) if key.startswith("burst_queue_pair_requests_total")]) == 64
    assert (spent() - before) / LOOKS < 0.1, f"{(spent() - before) / LOOKS:.3f} s of processor time for a page"


def live(whole_host, name):  # noqa: F811
    code, text = whole_host("cat", f"/sys/class/infiniband/burst0/ports/1/hw_counters/{name}")
    assert code == 0, text
    return int(text)


def start_live(whole_host):  # noqa: F811
    """Shows the host files and keeps them up to date: the process id."""
    burst = BUILD / "burst"
    script = f"{burst} host-files on --live >/run/live.log 2>&1 & echo $!"
    code, pid = whole_host("sh", "-c", script)
    assert code == 0, pid
    wait_until(lambda: whole_host("test", "-e", "/sys/class/infiniband/burst0/ports/1/hw_counters/lifespan")[0] == 0, 30, lambda: whole_host("cat", "/run/live.log"))
    return pid.strip()


def test_the_host_files_are_kept_up_to_date(whole_host, host):  # noqa: F811
    pid = start_live(whole_host)
    before = live(whole_host, "tx_packets")
    assert live(whole_host, "lifespan") == 1000 and live(whole_host, "rp_cnp_ignored") == 0
    run_pair(host, host, ["ib_send_bw", "-d", "burst0", "-F", "-n", 200])
    wait_until(lambda: live(whole_host, "tx_packets") >= before + 200, 30, lambda: whole_host("cat", "/run/live.log"))
    assert live(whole_host, "sent_pkts") == live(whole_host, "tx_packets") or live(whole_host, "sent_pkts") >= before + 200
    code, text = whole_host("cat", "/sys/class/infiniband/burst0/ports/1/counters/port_xmit_packets")
    assert code == 0 and int(text) >= before + 200, text
    whole_host("kill", pid)
