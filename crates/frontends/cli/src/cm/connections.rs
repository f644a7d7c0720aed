//! The list of connections.

use super::steps::time;
use crate::sockets::ShownHost;
use burst_control::cm::CmAddr;
use burst_control::monitor::{CmConnection, CmConnectionState};
use serde_json::{Value, json};
use std::fmt::Write;
use std::net::IpAddr;

/// Values of `--state`.
pub fn state_names() -> Vec<&'static str> {
    CmConnectionState::ALL.iter().map(|s| s.name()).collect()
}

/// The connections that this user may see.
pub struct ShownConnections {
    /// Connections, all or those in one state; sorted by state, then address.
    pub list: Vec<CmConnection>,
    /// Number of connections of other users, in any state.
    pub hidden: u64,
}

/// Gets the connections of the daemon and of programs with engines of their own, all or those in one state.
///
/// # Errors
/// A sentence.
pub fn ask_all(hosts: &mut [ShownHost], state: Option<&str>) -> Result<ShownConnections, String> {
    let (mut list, mut hidden) = (Vec::new(), 0);
    for shown in hosts {
        let (its, not_shown) = shown.host.cm_connections().map_err(|e| e.to_string())?;
        list.extend(its);
        hidden += not_shown;
    }
    list.retain(|c| state.is_none_or(|s| s == c.state.name()));
    list.sort_by_key(|c| (c.state as u8, c.local.map(|a| (a.ip, a.port)), c.peer.map(|a| (a.ip, a.port))));
    Ok(ShownConnections { list, hidden })
}

fn address(addr: Option<CmAddr>) -> String {
    let Some(CmAddr { ip, port, .. }) = addr else { return "-".into() };
    match (ip, port) {
        (ip, 0) => ip.to_string(),
        (IpAddr::V6(ip), port) => format!("[{ip}]:{port}"),
        (ip, port) => format!("{ip}:{port}"),
    }
}

fn device(index: Option<u32>) -> String {
    index.map_or_else(|| "all".into(), |n| format!("burst{n}"))
}

/// The table, and the number of connections in each state.
pub fn as_text(shown: &ShownConnections) -> String {
    let mut text = format!(
        "{:<14} {:<5} {:<8} {:<28} {:<28} {:>8} {:>8} {:>9}  {}\n",
        "state", "space", "device", "local", "peer", "qpn", "peer qpn", "since", "program"
    );
    let number = |n: u32| if n == 0 { "-".to_owned() } else { n.to_string() };
    for c in &shown.list {
        let since = if c.state == CmConnectionState::Listening { "-".to_owned() } else { time(c.since_ns) };
        let program = if c.pid == 0 { "-".to_owned() } else { format!("{} ({})", c.program, c.pid) };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<14} {:<5} {:<8} {:<28} {:<28} {:>8} {:>8} {:>9}  {}",
            c.state.name(),
            c.space,
            device(c.device),
            address(c.local),
            address(c.peer),
            number(c.qpn),
            number(c.peer_qpn),
            since,
            program
        );
    }
    let counts = CmConnectionState::ALL.iter().filter_map(|state| {
        let count = shown.list.iter().filter(|c| c.state == *state).count();
        (count > 0).then(|| format!("{count} {}", state.name()))
    });
    let counts: Vec<String> = counts.collect();
    let _ = writeln!(text, "{}", if counts.is_empty() { "no connections".to_owned() } else { counts.join(", ") });
    if shown.hidden > 0 {
        let _ = writeln!(text, "{} connections of other users are not shown; root sees them", shown.hidden);
    }
    text
}

/// The list as JSON.
pub fn as_json(shown: &ShownConnections) -> Value {
    let end = |addr: Option<CmAddr>| addr.map(|a| json!({ "address": a.ip.to_string(), "port": a.port }));
    let rows = shown.list.iter().map(|c| {
        json!({
            "state": c.state.name(),
            "space": c.space,
            "device": c.device.map(|n| device(Some(n))),
            "local": end(c.local),
            "peer": end(c.peer),
            "qpn": c.qpn,
            "peer_qpn": c.peer_qpn,
            "comm_id": c.comm_id,
            "peer_comm_id": c.peer_comm_id,
            "id": c.id,
            "since_ns": c.since_ns,
            "program": c.program,
            "pid": c.pid,
            "uid": c.uid,
        })
    });
    json!({ "connections": rows.collect::<Vec<_>>(), "not_shown": shown.hidden })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_by_state() {
        let addr = |ip: &str, port| Some(CmAddr { ip: ip.parse().expect("ip"), port, scope: 0 });
        let one = CmConnection {
            state: CmConnectionState::Established,
            device: Some(1),
            local: addr("10.0.0.1", 7174),
            peer: addr("fd00::2", 40_000),
            space: "tcp".into(),
            program: "rping".into(),
            pid: 42,
            uid: Some(1000),
            id: 1,
            comm_id: 5,
            peer_comm_id: 6,
            qpn: 17,
            peer_qpn: 0,
            since_ns: 1_500,
        };
        let listener =
            CmConnection { state: CmConnectionState::Listening, device: None, peer: None, qpn: 0, ..one.clone() };
        let mut shown = ShownConnections { list: vec![listener, one.clone(), one], hidden: 0 };
        let text = as_text(&shown);
        assert!(text.ends_with("1 listening, 2 established\n"), "{text}");
        assert!(text.contains("[fd00::2]:40000") && text.contains("burst1") && text.contains("rping (42)"), "{text}");
        shown.hidden = 7;
        let text = as_text(&shown);
        assert!(text.ends_with("\n7 connections of other users are not shown; root sees them\n"), "{text}");
        assert_eq!(as_json(&shown)["not_shown"], 7);
        shown = ShownConnections { list: Vec::new(), hidden: 0 };
        assert!(as_text(&shown).ends_with("no connections\n"));
    }
}
