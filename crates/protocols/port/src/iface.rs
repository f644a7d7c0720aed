//! Interfaces of this host: addresses, MTU, state, speed, and which one to use when the user names none.
//!
//! Addresses come from `getifaddrs`, tentative and deprecated ones are told apart by `/proc/net/if_inet6`, everything
//! else comes from `/sys/class/net` and `/proc/net/route`. All of them follow the network namespace of the caller
//! (`/sys` follows the namespace in which it was mounted, so the MTU is asked by `ioctl`).

use crate::error::PortError;
use crate::{PortAddr, sys};
use std::net::{IpAddr, Ipv6Addr};

/// What is known of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name.
    pub name: String,
    /// Index.
    pub index: u32,
    /// Addresses, default first: IPv4, global IPv6, link-local IPv6.
    pub addrs: Vec<PortAddr>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Up and with carrier.
    pub up: bool,
    /// The loopback interface.
    pub loopback: bool,
    /// Mbit/s, 0 if unknown.
    pub speed_mbps: u32,
    /// MAC address, zero if none.
    pub mac: [u8; 6],
}

/// `IFF_UP`, `IFF_LOOPBACK` and `IFF_RUNNING` of `struct ifreq`.
const IFF_UP: u32 = 1;
const IFF_LOOPBACK: u32 = 8;
const IFF_RUNNING: u32 = 0x40;
/// `IFA_F_DADFAILED` and `IFA_F_TENTATIVE`: the address cannot be bound (yet).
const IFA_UNUSABLE: u32 = 0x08 | 0x40;
/// The loopback interface's MTU exceeds what an IP packet can hold.
const IP_PACKET_MAX: u32 = 65_535;

/// Every interface, in the kernel's order.
///
/// # Errors
/// When the kernel does not list them.
pub fn list() -> Result<Vec<Interface>, PortError> {
    let rows = sys::ifaddrs::rows().map_err(|e| PortError::from_io("list the network interfaces", e))?;
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
        if let Some(ip) = row.ip.filter(|ip| !unusable.contains(ip)) {
            let addr = PortAddr { ip, ifindex: interface.index, ifname: row.name, reach: None };
            if !interface.addrs.contains(&addr) {
                interface.addrs.push(addr);
            }
        }
    }
    for interface in &mut all {
        interface.addrs.sort_by_key(|a| rank(&a.ip));
    }
    Ok(all)
}

/// The interface called `name`.
///
/// # Errors
/// [`PortError::NoInterface`], listing those that exist.
pub fn find(name: &str) -> Result<Interface, PortError> {
    let all = list()?;
    let have = all.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(", ");
    all.into_iter().find(|i| i.name == name).ok_or_else(|| PortError::NoInterface { name: name.to_owned(), have })
}

/// The interface to use when none is named: the default route's, else the first one up with an address, else `lo`.
///
/// # Errors
/// When not even a loopback interface has an address.
pub fn choose() -> Result<Interface, PortError> {
    let all = list()?;
    let usable = |i: &&Interface| i.up && !i.addrs.is_empty();
    let by_route = default_route().and_then(|name| all.iter().find(|i| i.name == name).filter(usable));
    by_route
        .or_else(|| all.iter().filter(|i| !i.loopback).find(usable))
        .or_else(|| all.iter().filter(|i| i.loopback).find(|i| !i.addrs.is_empty()))
        .cloned()
        .ok_or(PortError::NoAddress { name: "lo".to_owned() })
}

/// Order of the GID table: IPv4, global IPv6, link-local IPv6.
fn rank(ip: &IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => 0,
        IpAddr::V6(v6) if is_link_local(v6) => 2,
        IpAddr::V6(_) => 1,
    }
}

/// fe80::/10.
pub(crate) fn is_link_local(ip: &Ipv6Addr) -> bool {
    ip.segments()[0] & 0xffc0 == 0xfe80
}

fn describe(row: &sys::ifaddrs::Row) -> Interface {
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

/// IPv6 addresses that are tentative or failed duplicate address detection.
fn unusable_v6() -> Vec<IpAddr> {
    let text = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
    text.lines().filter_map(unusable_line).collect()
}

/// `ADDRESS INDEX PREFIX SCOPE FLAGS NAME`, all hexadecimal.
fn unusable_line(line: &str) -> Option<IpAddr> {
    let mut words = line.split_whitespace();
    let address = u128::from_str_radix(words.next()?, 16).ok()?;
    let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
    (flags & IFA_UNUSABLE != 0).then_some(IpAddr::V6(address.into()))
}

/// Interface of the IPv4 default route with the lowest metric, else of the IPv6 one.
fn default_route() -> Option<String> {
    let v4 = std::fs::read_to_string("/proc/thread-self/net/route").unwrap_or_default();
    let v6 = std::fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap_or_default();
    default_route_v4(&v4).or_else(|| default_route_v6(&v6))
}

/// Columns: interface, destination, gateway, flags, reference count, use, metric, mask, …
fn default_route_v4(text: &str) -> Option<String> {
    let rows = text.lines().skip(1).filter_map(|line| {
        let w: Vec<&str> = line.split_whitespace().collect();
        let is_default = *w.get(1)? == "00000000" && *w.get(7)? == "00000000";
        is_default.then_some((w[6].parse::<u64>().ok()?, w[0]))
    });
    rows.min_by_key(|(metric, _)| *metric).map(|(_, name)| name.to_owned())
}

/// Columns: destination, prefix, source, prefix, next hop, metric, references, use, flags, interface. `lo` holds the
/// unreachable default route.
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
    fn loopback_is_found_and_unknown_names_list_what_exists() {
        let lo = find("lo").unwrap();
        assert!(lo.loopback && lo.index > 0);
        assert_eq!(lo.mtu, 65_535);
        let error = find("eth99x").unwrap_err().to_string();
        assert!(error.contains("'eth99x'") && error.contains("lo"), "{error}");
    }

    #[test]
    fn something_is_always_chosen_where_lo_has_an_address() {
        assert!(!choose().unwrap().addrs.is_empty());
    }

    #[test]
    fn default_routes_are_read_by_metric() {
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
    fn tentative_addresses_are_not_offered() {
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
