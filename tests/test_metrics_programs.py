"""Programs of others on Burst's metrics: Prometheus's check of the text, and node_exporter on the shown host files (`make test-matrix`)."""

import subprocess

from lab import run_pair, wait_until
from test_host_files import host, whole_host  # noqa: F401
from test_metrics import live, scrape, start_live, traffic, value, watched  # noqa: F401

#: Without other collectors its output is small.
NODE_EXPORTER = ["prometheus-node-exporter", "--collector.disable-defaults", "--collector.infiniband", "--web.listen-address"]
#: Counters that node_exporter's collector reads of an adapter, and the daemon's they must equal, in its unit.
EXPORTED = {"node_infiniband_port_packets_transmitted_total": "tx_packets", "node_infiniband_port_packets_received_total": "rx_packets"}


def test_promtool_finds_no_fault(watched):  # noqa: F811
    traffic(watched)
    text = scrape(watched.a, watched.place)
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_node_exporter_reads_the_shown_tree_as_an_adapters(whole_host, host):  # noqa: F811
    live_pid = start_live(whole_host)
    run_pair(host, host, ["ib_send_bw", "-d", "burst0", "-F", "-n", 200])
    wait_until(lambda: live(whole_host, "tx_packets") >= 200, 30, lambda: whole_host("cat", "/run/live.log"))
    script = f"{' '.join(NODE_EXPORTER)} 127.0.0.1:9100 >/run/exporter.log 2>&1 & echo $!"
    code, pid = whole_host("sh", "-c", script)
    assert code == 0, pid
    page = []

    def answers():
        page[:] = whole_host("curl", "--silent", "http://127.0.0.1:9100/metrics")
        return page[0] == 0 and "node_infiniband_info" in page[1]

    try:
        wait_until(answers, 30, lambda: whole_host("cat", "/run/exporter.log"))
    finally:
        whole_host("kill", pid.strip(), live_pid)
    for name, counter in EXPORTED.items():
        assert value(page[1], name, device="burst0", port="1") <= live(whole_host, counter), page[1]
    assert value(page[1], "node_infiniband_port_packets_transmitted_total", device="burst0") >= 200, page[1]
