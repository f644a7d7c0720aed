//! The nodes of a program of URMA in `burst ls`.

use super::ip_address;
use burst_control::urma::{UrmaChannelInfo, UrmaNodeInfo};
use serde_json::{Value, json};
use std::net::Ipv6Addr;

/// A node: what it has, and a line for each channel.
pub fn as_text(node: &UrmaNodeInfo) -> String {
    let UrmaNodeInfo { device, mtu, jetties, jfrs, jfcs, segments, requests, .. } = node;
    let mut text = format!(
        "{device}  URMA  address {}  EID {}  CNA {:#08x}  payload {mtu}\n  Jetties and JFSs: {jetties}, JFRs: {jfrs}, JFCs: \
         {jfcs}, segments: {segments}; requests outstanding: {requests}\n",
        ip_address(node.eid),
        Ipv6Addr::from(node.eid),
        node.cna,
    );
    if node.channels.is_empty() {
        text.push_str("  no channel\n");
    }
    text.extend(node.channels.iter().map(|channel| {
        format!(
            "  channel to {:<15} {:<8} in flight: {} packets, {} bytes; unanswered requests: {}{}\n",
            ip_address(channel.peer),
            state(channel),
            channel.packets,
            channel.bytes,
            channel.unanswered,
            if channel.srtt_ns > 0 { format!("; RTT {} us", channel.srtt_ns / 1000) } else { String::new() },
        )
    }));
    text
}

/// A node as JSON.
pub fn as_json(node: &UrmaNodeInfo) -> Value {
    let channels: Vec<Value> = node.channels.iter().map(channel_json).collect();
    json!({
        "device": node.device,
        "address": ip_address(node.eid),
        "eid": Ipv6Addr::from(node.eid).to_string(),
        "cna": node.cna,
        "payload": node.mtu,
        "jetties": node.jetties,
        "jfrs": node.jfrs,
        "jfcs": node.jfcs,
        "segments": node.segments,
        "requests": node.requests,
        "channels": channels,
    })
}

fn channel_json(channel: &UrmaChannelInfo) -> Value {
    json!({
        "peer": ip_address(channel.peer),
        "cna": cna(channel),
        "tpn": channel.tpns[0],
        "peer_tpn": channel.tpns[1],
        "state": state(channel),
        "packets_in_flight": channel.packets,
        "bytes_in_flight": channel.bytes,
        "unanswered_requests": channel.unanswered,
        "rtt_us": channel.srtt_ns as f64 / 1e3,
    })
}

/// The peer's network address on the bus: the last 24 bits of its EID.
const fn cna(channel: &UrmaChannelInfo) -> u32 {
    let [.., a, b, c] = channel.peer;
    u32::from_be_bytes([0, a, b, c])
}

const fn state(channel: &UrmaChannelInfo) -> &'static str {
    if channel.is_open { "open" } else { "opening" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_node_and_its_channels_are_lines() {
        let eid = |last| Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped().octets();
        let (device, mtu) = ("burst0".to_owned(), 1024);
        let mut node = UrmaNodeInfo { device, eid: eid(1), cna: 1, mtu, jetties: 2, ..UrmaNodeInfo::default() };
        assert!(
            as_text(&node).contains("address 10.0.0.1  EID ::ffff:10.0.0.1")
                && as_text(&node).ends_with("no channel\n")
        );
        let open =
            UrmaChannelInfo { peer: eid(2), is_open: true, packets: 3, bytes: 3072, ..UrmaChannelInfo::default() };
        node.channels = vec![open, UrmaChannelInfo { peer: eid(9), ..UrmaChannelInfo::default() }];
        let text = as_text(&node);
        assert!(text.contains("channel to 10.0.0.2        open     in flight: 3 packets, 3072 bytes"), "{text}");
        assert!(text.contains("channel to 10.0.0.9        opening "), "{text}");
        let value = as_json(&node);
        assert_eq!(
            (&value["channels"][0]["peer"], &value["channels"][0]["packets_in_flight"]),
            (&json!("10.0.0.2"), &json!(3))
        );
        assert_eq!(
            (&value["channels"][1]["peer"], &value["channels"][1]["state"]),
            (&json!("10.0.0.9"), &json!("opening"))
        );
        assert_eq!(value["channels"][1]["cna"], json!(9));
    }
}
