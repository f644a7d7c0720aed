"""`burst impair`: a running daemon's port loses packets for a time."""

import json
import re

from lab import await_true, run_pair

WRITE = ["ib_write_bw", "-d", "burst0", "-F", "--report_gbits", "-s", 65536, "-n", 2000]


def impairment(host):
    code, text = host.burst("ls", "--json")
    assert code == 0, text
    return json.loads(text)["devices"][0]["impairment"]


def test_a_port_is_impaired_for_a_time_and_recovers(make_fabric):
    fabric = make_fabric()
    host = fabric.a
    assert impairment(host) is None
    run_pair(fabric.b, host, WRITE, seconds=60)
    assert host.stats()["impaired"] == 0
    code, text = host.burst("impair", "burst0", "loss=2%", "dir=tx", "for=1h")
    assert (code, text) == (0, "burst0: loss=2%,dir=tx for 1h\n")
    shown = impairment(host)
    assert shown["options"] == "loss=2%,dir=tx" and 3500 < shown["left_s"] <= 3600
    assert re.search(r"impaired: loss=2%,dir=tx, ends in \d+", host.burst("ls")[1])
    run_pair(fabric.b, host, WRITE, seconds=60)
    lost = host.stats()["impaired"]
    # 2,000 messages of at least sixteen packets each.
    assert lost > 300, lost
    code, text = host.burst("impair", "eth0", "off")
    assert (code, text) == (0, "burst0: no impairment\n")
    assert impairment(host) is None
    run_pair(fabric.b, host, WRITE, seconds=60)
    assert host.stats()["impaired"] == lost


def test_an_impairment_ends_by_itself(make_fabric):
    fabric = make_fabric()
    code, text = fabric.a.burst("impair", "burst0", "loss=100%", "for=1s")
    assert code == 0, text
    assert await_true(lambda: impairment(fabric.a) is None)
    run_pair(fabric.b, fabric.a, WRITE, seconds=60)


def test_bad_input_changes_nothing(make_fabric):
    host = make_fabric().a
    assert host.burst("impair", "burst0", "delay=50us", "for=1h")[0] == 0
    for words, sentence in (
        (["burst0", "los=1%"], "did you mean 'loss'?"),
        (["burst0", "loss=101%"], "is not a rate"),
        (["burst0", "rate=fast"], "is not a bit rate"),
        (["burst0", "loss=1%", "for=48h"], "at most 24h"),
        (["burst7", "loss=1%"], "there is no port burst7; the daemon has burst0 (eth0)"),
        (["burst0", "for=1s"], "name an option"),
    ):
        code, text = host.burst("impair", *words)
        assert code == 1 and sentence in text, (words, text)
    assert impairment(host)["options"] == "delay=50us"
