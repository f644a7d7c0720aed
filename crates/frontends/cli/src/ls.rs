//! `burst ls`: devices, ports, addresses; nodes of URMA and their channels.

mod urma;

use burst_client::Daemon;
use burst_control::socket_path::ProgramKind;
use burst_control::{DeviceInfo, GidInfo};
use clap::ArgMatches;
use serde_json::{Value, json};
use std::net::Ipv6Addr;
use std::process::ExitCode;

/// Lists the devices.
pub fn ls(matches: &ArgMatches) -> ExitCode {
    if matches.get_flag("users") {
        let daemon = crate::sockets::connect(crate::chosen_socket(matches).as_deref());
        let shown = daemon.and_then(|mut c| crate::users::show(&mut c, matches.get_flag("json")));
        return shown.map_or_else(crate::fail, |text| crate::finish(&text));
    }
    list(matches).map_or_else(crate::fail, |text| crate::finish(&text))
}

fn list(matches: &ArgMatches) -> Result<String, String> {
    let (mut rows, mut nodes, mut text) = (Vec::new(), Vec::new(), String::new());
    for mut shown in crate::sockets::hosts(crate::chosen_socket(matches).as_deref(), &ProgramKind::ALL)? {
        // One that has ended meanwhile is not shown.
        let found = shown.host.urma_nodes().unwrap_or_default();
        nodes.extend(found.iter().map(|node| shown.label(urma::as_json(node))));
        if shown.kind == ProgramKind::Urma {
            text.extend((!found.is_empty()).then(|| shown.heading()));
        } else {
            let devices = devices(&mut shown.host)?;
            rows.extend(devices.iter().map(|device| shown.label(as_json(device))));
            text.push_str(&shown.heading());
            text.extend(devices.iter().map(as_text));
        }
        text.extend(found.iter().map(urma::as_text));
    }
    if matches.get_flag("json") {
        return Ok(crate::json_text(&json!({ "devices": rows, "urma": nodes })));
    }
    Ok(if text.is_empty() { "The daemon has no device: start burstd with --port.\n".to_owned() } else { text })
}

/// Gets the devices from the daemon.
///
/// # Errors
/// A sentence.
pub fn devices(daemon: &mut Daemon) -> Result<Vec<DeviceInfo>, String> {
    daemon.devices().map_err(|e| e.to_string())
}

/// A GID in the notation of IPv6 or IPv4 addresses.
pub fn address(gid: &GidInfo) -> String {
    ip_address(gid.gid)
}

/// The address in a GID or an EID.
fn ip_address(bytes: [u8; 16]) -> String {
    let ip = Ipv6Addr::from(bytes);
    ip.to_ipv4_mapped().map_or_else(|| ip.to_string(), |v4| v4.to_string())
}

/// Kind of a port in its specification: `udp` of `udp:dev=eth0`; wrappers are included (`impair/udp`).
fn kind(port: &str) -> String {
    let parts = port.split('/').map(|p| p.split(':').next().unwrap_or_default());
    parts.collect::<Vec<_>>().join("/")
}

/// RDMA MTU in bytes.
pub fn path_mtu(device: &DeviceInfo) -> u32 {
    device.active_mtu.bytes()
}

fn speed(mbps: u32) -> String {
    match mbps {
        0 => "speed unknown".to_owned(),
        m if m.is_multiple_of(1000) => format!("{} Gbit/s", m / 1000),
        m => format!("{m} Mbit/s"),
    }
}

fn guid(device: &DeviceInfo) -> String {
    let parts = device.guid.to_be_bytes();
    parts.chunks(2).map(|p| format!("{:02x}{:02x}", p[0], p[1])).collect::<Vec<_>>().join(":")
}

fn as_text(device: &DeviceInfo) -> String {
    let default = if device.index == 0 { " (default)" } else { "" };
    let state = if device.up { "up" } else { "DOWN" };
    let mac: Vec<String> = device.mac.iter().map(|b| format!("{b:02x}")).collect();
    let mut text = format!(
        "{}{default}  port {} [{}]  {state}  interface {} {}\n  MTU: link {}, path {}; {}; GUID {}\n",
        device.name,
        kind(&device.port),
        device.port,
        device.ifname,
        mac.join(":"),
        device.link_mtu,
        path_mtu(device),
        speed(device.speed_mbps),
        guid(device),
    );
    for (index, gid) in device.gids.iter().enumerate() {
        let default = if index == 0 { "  default" } else { "" };
        text.push_str(&format!("  GID {index}: {:<39} {}{default}\n", address(gid), gid.ifname));
    }
    if device.gids.is_empty() {
        text.push_str("  no GID: the interface has no address\n");
    }
    text.extend(device.impairment.as_ref().map(crate::impair::as_text));
    text
}

fn as_json(device: &DeviceInfo) -> Value {
    let gids = device.gids.iter().enumerate().map(|(index, gid)| {
        json!({
            "index": index,
            "gid": Ipv6Addr::from(gid.gid).to_string(),
            "address": address(gid),
            "interface": gid.ifname,
            "default": index == 0,
        })
    });
    json!({
        "name": device.name,
        "default": device.index == 0,
        "port": device.port,
        "kind": kind(&device.port),
        "state": if device.up { "up" } else { "down" },
        "interface": device.ifname,
        "link_mtu": device.link_mtu,
        "path_mtu": path_mtu(device),
        "speed_mbps": device.speed_mbps,
        "guid": guid(device),
        "impairment": device.impairment.as_ref().map(|i| json!({ "options": i.options, "left_s": i.left_ns as f64 / 1e9 })),
        "gids": gids.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_ports_and_speeds() {
        assert_eq!(kind("udp:dev=eth0"), "udp");
        assert_eq!(kind("impair:loss=1%/udp:dev=eth0"), "impair/udp");
        assert_eq!(speed(10_000), "10 Gbit/s");
        assert_eq!(speed(2_500), "2500 Mbit/s");
    }

    #[test]
    fn gids_read_as_addresses() {
        let gid =
            |ip: &str| GidInfo { gid: ip.parse::<Ipv6Addr>().unwrap().octets(), ifname: String::new(), ifindex: 1 };
        assert_eq!(address(&gid("::ffff:10.0.0.1")), "10.0.0.1");
        assert_eq!(address(&gid("fe80::1")), "fe80::1");
    }
}
