//! Interfaces of this host: addresses, MTU, state, speed; and the choice of an interface when the user names none.
//!
//! Addresses come from `getifaddrs`; `/proc/net/if_inet6` tells which of them are tentative or duplicates; the MTU comes from an
//! `ioctl`, the speed from `/sys/class/net`, the default route from `/proc/net/route` and `/proc/net/ipv6_route`. All of these
//! follow the network namespace of the calling thread except `/sys`, which shows the namespace in which it was mounted. For that
//! reason only the speed, which nothing depends on, is read there.

use crate::error::NetifError;
use crate::{is_link_local, sys};
use std::net::IpAddr;

/// A network interface and its addresses at the time of the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Interface name.
    pub name: String,
    /// Interface index.
    pub index: u32,
    /// Usable addresses, the default one first: IPv4, global IPv6, link-local IPv6. No address is listed twice.
    pub addrs: Vec<IpAddr>,
    /// MTU in bytes, at most 65,535.
    pub mtu: u32,
    /// Whether the interface is up and has carrier.
    pub up: bool,
    /// Whether it is a loopback interface.
    pub loopback: bool,
    /// Link speed in Mbit/s, 0 if unknown.
    pub speed_mbps: u32,
    /// MAC address, all zero if the interface has none.
    pub mac: [u8; 6],
}

// Flags of linux/if.h.
const IFF_UP: u32 = 1;
const IFF_LOOPBACK: u32 = 8;
const IFF_RUNNING: u32 = 0x40;
/// `IFA_F_DADFAILED` and `IFA_F_TENTATIVE`: the address cannot be bound, or not yet.
const IFA_UNUSABLE: u32 = 0x08 | 0x40;
/// Largest IP packet in bytes. The loopback interface has a larger MTU.
const IP_PACKET_MAX: u32 = 65_535;

/// Lists the interfaces of this network namespace, in the kernel's order.
///
/// # Errors
/// [`NetifError::List`] when the kernel refuses.
pub fn list() -> Result<Vec<Interface>, NetifError> {
    let rows = sys::ifaddrs::rows().map_err(NetifError::List)?;
    let unusable = unusable_v6();
    let mut all: Vec<Interface> = Vec::new();
    for row in rows {
        let at = match all.iter().position(|i| i.name == row.name) {
            Some(at) => at,
            None => {
                all.push(describe(&row));
                all.len() - 1
            }
        };
        let interface = &mut all[at];
        if let Some(mac) = row.mac {
            interface.mac = mac;
        }
        if let Some(ip) = row.ip.filter(|ip| !unusable.contains(ip) && !interface.addrs.contains(ip)) {
            interface.addrs.push(ip);
        }
    }
    for interface in &mut all {
        interface.addrs.sort_by_key(rank);
    }
    Ok(all)
}

/// Finds the interface called `name`.
///
/// # Errors
/// [`NetifError::NoInterface`], which lists the interfaces that exist.
pub fn find(name: &str) -> Result<Interface, NetifError> {
    let all = list()?;
    let have = all.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(", ");
    all.into_iter().find(|i| i.name == name).ok_or_else(|| NetifError::NoInterface { name: name.to_owned(), have })
}

/// Chooses the interface to use when the user names none: the default route's, else the first one that is up and has an address,
/// else the loopback interface.
///
/// # Errors
/// [`NetifError::NoAddress`] when not even the loopback interface has an address.
pub fn choose() -> Result<Interface, NetifError> {
    let all = list()?;
    let usable = |i: &&Interface| i.up && !i.addrs.is_empty();
    let by_route = default_route().and_then(|name| all.iter().find(|i| i.name == name).filter(usable));
    by_route
        .or_else(|| all.iter().filter(|i| !i.loopback).find(usable))
        .or_else(|| all.iter().filter(|i| i.loopback).find(|i| !i.addrs.is_empty()))
        .cloned()
        .ok_or(NetifError::NoAddress { name: "lo".to_owned() })
}

/// Rank of an address in the order of [`Interface::addrs`], which becomes the order of the GID table.
fn rank(ip: &IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => 0,
        IpAddr::V6(v6) if is_link_local(v6) => 2,
        IpAddr::V6(_) => 1,
    }
}

/// Reads the properties of the interface of `row`, without its addresses.
fn describe(row: &sys::ifaddrs::IfaddrsRow) -> Interface {
    let name = row.name.clone();
    let index = sys::ifaddrs::index(&name);
    let mtu = sys::ifaddrs::mtu(&name).unwrap_or(1500).min(IP_PACKET_MAX);
    let speed = std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).unwrap_or_default();
    Interface {
        index,
        addrs: Vec::new(),
        mtu,
        up: row.flags & IFF_UP != 0 && row.flags & IFF_RUNNING != 0,
        loopback: row.flags & IFF_LOOPBACK != 0,
        speed_mbps: speed.trim().parse::<i64>().ok().and_then(|s| u32::try_from(s).ok()).unwrap_or(0),
        mac: [0; 6],
        name,
    }
}

/// Lists the IPv6 addresses that are tentative or have failed duplicate address detection (RFC 4862 section 5.4).
fn unusable_v6() -> Vec<IpAddr> {
    let text = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
    text.lines().filter_map(unusable_line).collect()
}

/// Returns the address of a line of `if_inet6` if it is unusable. Columns: address, index, prefix length, scope, flags, name; the
/// numbers are hexadecimal.
fn unusable_line(line: &str) -> Option<IpAddr> {
    let mut words = line.split_whitespace();
    let address = u128::from_str_radix(words.next()?, 16).ok()?;
    let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
    (flags & IFA_UNUSABLE != 0).then_some(IpAddr::V6(address.into()))
}

/// Name of the interface of the IPv4 default route with the lowest metric, else of the IPv6 default route.
fn default_route() -> Option<String> {
    let v4 = std::fs::read_to_string("/proc/thread-self/net/route").unwrap_or_default();
    let v6 = std::fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap_or_default();
    default_route_v4(&v4).or_else(|| default_route_v6(&v6))
}

/// Reads `/proc/net/route`. Columns: interface, destination, gateway, flags, reference count, use, metric, mask, …
fn default_route_v4(text: &str) -> Option<String> {
    let rows = text.lines().skip(1).filter_map(|line| {
        let w: Vec<&str> = line.split_whitespace().collect();
        let is_default = *w.get(1)? == "00000000" && *w.get(7)? == "00000000";
        is_default.then_some((w[6].parse::<u64>().ok()?, w[0]))
    });
    rows.min_by_key(|(metric, _)| *metric).map(|(_, name)| name.to_owned())
}

/// Reads `/proc/net/ipv6_route`. Columns: destination, prefix length, source, prefix length, next hop, metric, references, use,
/// flags, interface. The route by `lo` is left out: it is the kernel's unreachable default route.
fn default_route_v6(text: &str) -> Option<String> {
    let rows = text.lines().filter_map(|line| {
        let w: Vec<&str> = line.split_whitespace().collect();
        let is_default = w.first()?.bytes().all(|b| b == b'0') && *w.get(1)? == "00" && *w.get(9)? != "lo";
        is_default.then_some((u64::from_str_radix(w[5], 16).ok()?, w[9]))
    });
    rows.min_by_key(|(metric, _)| *metric).map(|(_, name)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lo_is_found_and_an_unknown_name_lists_the_existing_ones() {
        let lo = find("lo").unwrap();
        assert!(lo.loopback && lo.index > 0);
        assert_eq!(lo.mtu, 65_535);
        let error = find("eth99x").unwrap_err().to_string();
        assert!(error.contains("'eth99x'") && error.contains("lo"), "{error}");
    }

    #[test]
    fn an_interface_is_chosen_where_lo_has_an_address() {
        assert!(!choose().unwrap().addrs.is_empty());
    }

    #[test]
    fn the_default_route_with_the_lowest_metric_wins() {
        let v4 = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                  wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
                  eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
                  eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(default_route_v4(v4).as_deref(), Some("eth0"));
        assert_eq!(default_route_v4("Iface\n"), None);
        let zero = "00000000000000000000000000000000";
        let v6 = format!(
            "{zero} 00 {zero} 00 fd000000000000000000000000000001 00000400 00000001 00000000 00000003 eth0\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n"
        );
        assert_eq!(default_route_v6(&v6).as_deref(), Some("eth0"));
    }

    #[test]
    fn tentative_addresses_are_unusable() {
        let line = "fe8000000000000000fc00fffe000001 02 40 20 40 eth0";
        assert_eq!(unusable_line(line), Some("fe80::fc:ff:fe00:1".parse().unwrap()));
        assert_eq!(unusable_line("fe8000000000000000fc00fffe000001 02 40 20 80 eth0"), None);
        assert_eq!(unusable_line("rubbish"), None);
    }

    #[test]
    fn ipv4_comes_before_global_before_link_local() {
        let ranks: Vec<u8> = ["10.0.0.1", "fd00::1", "fe80::1"].iter().map(|a| rank(&a.parse().unwrap())).collect();
        assert_eq!(ranks, [0, 1, 2]);
    }
}
