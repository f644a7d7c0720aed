"""Programs that only look at devices: ibstat of infiniband-diags, and the InfiniBand collector of Prometheus' node exporter.

Both read /sys/class/infiniband, which `burst run` shows (docs/running.md)."""

import re

import pytest
from lab.rows import burst_run, needs

SECONDS = 60


@needs("ibstat", "infiniband-diags")
@pytest.mark.download
@pytest.mark.program("ibstat", "infiniband-diags")
def test_ibstat_shows_the_device(hosts, command):
    code, text = hosts.a.run(*burst_run(hosts.a), *command("ibstat", "burst0"), seconds=SECONDS)
    assert code == 0, text
    for line in ("CA 'burst0'", "State: Active", "Physical state: LinkUp", "Link layer: Ethernet"):
        assert line in text, text
    assert re.search(r"Port GUID: 0x[0-9a-f]{16}", text), text


#: The node exporter's option that leaves only this collector.
COLLECTOR = ["--collector.disable-defaults", "--collector.infiniband", "--web.listen-address=127.0.0.1:9109"]


@needs("prometheus-node-exporter", "prometheus-node-exporter")
@pytest.mark.download
@pytest.mark.program("node exporter", "prometheus-node-exporter")
def test_the_node_exporter_reads_the_counters(hosts, command):
    exporter = hosts.a.start(*burst_run(hosts.a), *command("prometheus-node-exporter", *COLLECTOR))
    try:
        exporter.wait_for_text("9109", SECONDS)
        code, text = hosts.a.run("curl", "-sS", "http://127.0.0.1:9109/metrics", plain=True)
    finally:
        exporter.stop()
    assert code == 0, text + exporter.text()
    device = 'device="burst0",port="1"'
    figures = dict(re.findall(r"^(node_infiniband_\w+)\{" + device + r"\} (\S+)$", text, re.M))
    assert figures.get("node_infiniband_state_id") == "4" and figures.get("node_infiniband_physical_state_id") == "5", text
    assert float(figures["node_infiniband_rate_bytes_per_second"]) > 0, text
    assert {"node_infiniband_port_data_received_bytes_total", "node_infiniband_port_data_transmitted_bytes_total"} <= set(figures), text
    assert 'node_scrape_collector_success{collector="infiniband"} 1' in text, text
