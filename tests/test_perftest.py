"""Debian's unmodified perftest between two hosts: each tool, polling and with events, several sizes and numbers of QPs."""

import pytest

from lab import run_pair

BANDWIDTH = ["ib_write_bw", "ib_read_bw", "ib_send_bw"]
LATENCY = ["ib_write_lat", "ib_read_lat", "ib_send_lat"]


def pair(fabric, tool, *words):
    return run_pair(fabric.b, fabric.a, [tool, "-d", "burst0", "-F", *words])


@pytest.mark.parametrize("size", [2, 4096, 65536, 1 << 20, 8 << 20])
@pytest.mark.parametrize("tool", BANDWIDTH)
def test_bandwidth(fabric, tool, size):
    result = pair(fabric, tool, "-s", size, "-n", 50 if size >= 1 << 20 else 1000)
    assert result.row[0] == size and result.row[3] > 0


@pytest.mark.parametrize("tool", BANDWIDTH)
def test_bandwidth_both_ways(fabric, tool):
    assert pair(fabric, tool, "-b", "-s", 65536, "-n", 500).row[3] > 0


# perftest itself has no events for WRITE.
@pytest.mark.parametrize("tool", ["ib_read_bw", "ib_send_bw"])
def test_bandwidth_with_events(fabric, tool):
    assert pair(fabric, tool, "-e", "-s", 65536, "-n", 500).row[3] > 0


@pytest.mark.parametrize("tool", BANDWIDTH)
def test_many_queue_pairs(fabric, tool):
    assert pair(fabric, tool, "-q", 16, "-s", 16384, "-n", 200).row[3] > 0


@pytest.mark.parametrize("size", [2, 64, 65536])
@pytest.mark.parametrize("tool", LATENCY)
def test_latency(fabric, tool, size):
    result = pair(fabric, tool, "-s", size, "-n", 500)
    assert 0 < result.p50_us <= result.p99_us


@pytest.mark.parametrize("tool", ["ib_send_lat", "ib_read_lat"])
def test_latency_with_events(fabric, tool):
    assert pair(fabric, tool, "-e", "-s", 64, "-n", 500).p50_us > 0


def test_a_program_with_a_send_queue_of_one_posts_before_it_has_polled(fabric):
    """
    perftest asks for a send queue of one request and has one event channel for both completion queues. If the event of an answer comes
    before that of its own send, it posts the next one before it has polled. How often is chance, so it runs several times.
    """
    for _ in range(6):
        assert pair(fabric, "ib_send_lat", "-e", "-s", 2, "-n", 500).p50_us > 0


@pytest.mark.parametrize("kind", ["FETCH_AND_ADD", "CMP_AND_SWAP"])
def test_atomics(fabric, kind):
    assert pair(fabric, "ib_atomic_bw", "-A", kind, "-n", 1000).row[3] > 0
    assert pair(fabric, "ib_atomic_lat", "-A", kind, "-n", 500).p50_us > 0


def test_every_size_in_one_run(fabric):
    sizes = [row[0] for row in pair(fabric, "ib_write_bw", "-a", "-n", 20).rows]
    assert sizes == [2**power for power in range(1, 24)]


@pytest.mark.parametrize("connection", ["UC", "UD"])
def test_other_services(fabric, connection):
    size = 2048 if connection == "UD" else 65536
    assert pair(fabric, "ib_send_lat", "-c", connection, "-s", size, "-n", 200).p50_us > 0


@pytest.mark.parametrize("in_process", [False, True], ids=["daemon", "in process"])
@pytest.mark.parametrize("mtu", [1500, 4200, 9000])
def test_unreliable_connections_lose_nothing_on_an_idle_link(make_fabric, mtu, in_process):
    """Receipts hold the sender back while the receiver does not run. perftest waits for ever for a lost message."""
    fabric = make_fabric(mtu=mtu, in_process=in_process)
    for words in [("ib_send_bw", "-c", "UC")] * 5 + [("ib_write_lat", "-c", "UC", "-s", 8 << 20, "-n", 5), ("ib_send_bw", "-c", "UC", "-s", 2)]:
        pair(fabric, *words)
    if not in_process:
        stats = fabric.b.stats()
        assert not stats["receive_overflow"] and not stats["receiver_not_ready"] and not stats["uc_message_broken"], stats


def test_receives_from_a_shared_queue(fabric):
    assert pair(fabric, "ib_send_bw", "--use-srq", "-q", 4, "-s", 4096, "-n", 500).row[3] > 0


@pytest.mark.parametrize("mtu", [256, 512, 1024, 2048, 4096])
def test_every_path_mtu(fabric, mtu):
    messages, size = 100, 65536
    before = fabric.a.stats()
    result = pair(fabric, "ib_write_bw", "-m", mtu, "-s", size, "-n", messages)
    assert result.row[:2] == [size, messages] and result.row[3] > 0, result.client
    # Each packet is as long as that MTU lets it be.
    after = fabric.a.stats()
    packets = after["tx_packets"] - before["tx_packets"]
    assert packets >= messages * size // mtu
    assert mtu < (after["tx_bytes"] - before["tx_bytes"]) / packets < mtu + 100


def test_the_default_multicast_group_reaches_its_host(fabric):
    """perftest's group is in ff01::/16, the scope of one interface: both programs run on one host. No datagram may find a full queue."""
    b = fabric.b
    words = ["ib_send_bw", "-d", "burst0", "-F", "-c", "UD", "-g", "-x", b.gid_index(b.address6), "-s", 64, "-n", 200, "-t", 100, "-r", 512]
    assert run_pair(b, b, words).row[3] > 0
    assert "interface-local scope" in b.daemon.text()
