//! Routes for marked connections, by the program `ip`.

use crate::config::{self, Prefix};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};

/// Most routes within one prefix that are looked at.
const PARTS_MAX: usize = 1024;

fn ip(words: &[&str]) -> Result<String, String> {
    let done = Command::new("ip").args(words).stdin(Stdio::null()).output();
    let done = done.map_err(|e| format!("the program ip cannot be run: {e} (Debian: apt-get install iproute2)"))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    Err(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&done.stderr).trim()))
}

/// The source address that the kernel chooses for a destination: a route to `lo` must name it, or it would be chosen
/// for `lo`.
fn source_for(address: IpAddr) -> Option<String> {
    // The kernel takes an address of zeros for this host. For a prefix of all addresses the source is that of
    // the default route, to which addresses for documentation lead (RFC 5737, RFC 3849).
    let address = match address {
        IpAddr::V4(v4) if v4.is_unspecified() => IpAddr::from([198, 51, 100, 1]),
        IpAddr::V6(v6) if v6.is_unspecified() => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]),
        other => other,
    };
    let answer = ip(&["route", "get", &address.to_string()]).ok()?;
    let mut words = answer.split_whitespace().skip_while(|word| *word != "src");
    words.nth(1).map(str::to_owned)
}

/// Routes marked connections of the calling thread's namespace to `lo`: those to the prefixes taken, with the source
/// that they would have anyway, and all others, which are answers of servers to the addresses of clients. Removes
/// first what was left by a proxy that ended badly. Returns the prefixes to which there is no route, and so no source:
/// they must not be taken, because the kernel would choose the destination's own address as source.
///
/// # Errors
/// One sentence.
pub fn add_routes(mark: u32, taken: &[Prefix]) -> Result<Vec<Prefix>, String> {
    remove_routes(mark);
    let number = mark.to_string();
    let without = set_routes(mark, taken)?;
    for family in ["-4", "-6"] {
        if family == "-6" && !Path::new("/proc/net/if_inet6").exists() {
            continue;
        }
        ip(&[family, "rule", "add", "fwmark", &number, "lookup", &number])?;
        ip(&[family, "route", "replace", "local", "default", "dev", "lo", "table", &number])?;
    }
    Ok(without)
}

/// The routes of the calling thread's namespace to taken prefixes. Where a prefix contains the destinations of several
/// routes, each gets the source of its own. Returns the prefixes to which there is no route.
///
/// # Errors
/// One sentence.
pub fn set_routes(mark: u32, taken: &[Prefix]) -> Result<Vec<Prefix>, String> {
    let number = mark.to_string();
    let mut without = Vec::new();
    for prefix in taken {
        let parts = parts_of(*prefix)?;
        for (address, bits) in std::iter::once(*prefix).chain(parts) {
            let (family, to) = (family(address), format!("{address}/{bits}"));
            match source_for(address) {
                Some(source) => {
                    ip(&[family, "route", "replace", "local", &to, "dev", "lo", "src", &source, "table", &number])?;
                }
                None if (address, bits) == *prefix => without.push(*prefix),
                // Gone since the list was read.
                None => {}
            }
        }
    }
    Ok(without)
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "-4" } else { "-6" }
}

/// Destinations of routes that lie within a prefix and are smaller than it.
fn parts_of(prefix: Prefix) -> Result<Vec<Prefix>, String> {
    let list = ip(&[family(prefix.0), "-j", "route", "show"])?;
    Ok(parts_in(&list, prefix))
}

/// The same of a list of routes in JSON.
fn parts_in(list: &str, prefix: Prefix) -> Vec<Prefix> {
    let routes: serde_json::Value = serde_json::from_str(list).unwrap_or_default();
    let to = |route: &serde_json::Value| config::prefix(route["dst"].as_str()?).ok();
    let found = routes.as_array().into_iter().flatten().filter_map(to);
    // Link-local addresses are those of several links at once: a policy cannot name them.
    let is_local = |ip: IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    found.filter(|to| *to != prefix && config::inside(*to, prefix) && !is_local(to.0)).take(PARTS_MAX).collect()
}

/// Removes rules and routes; what is not there is no error.
pub fn remove_routes(mark: u32) {
    let number = mark.to_string();
    for family in ["-4", "-6"] {
        while ip(&[family, "rule", "del", "fwmark", &number, "lookup", &number]).is_ok() {}
        // Fails if the table was never made.
        let _ = ip(&[family, "route", "flush", "table", &number]);
    }
}

#[cfg(test)]
mod tests {
    use super::parts_in;

    #[test]
    fn routes_within_a_prefix_are_its_parts() {
        let list = r#"[{"dst":"default","gateway":"10.0.0.254"},{"dst":"10.0.0.0/24","prefsrc":"10.0.0.1"},
            {"dst":"10.1.0.0/16"},{"dst":"10.1.2.3"},{"dst":"192.168.0.0/24"},{"type":"blackhole","dst":"10.0.0.0/8"},{}]"#;
        let parts = |text: &str| parts_in(list, crate::config::prefix(text).unwrap());
        let want = |texts: &[&str]| texts.iter().map(|text| crate::config::prefix(text).unwrap()).collect::<Vec<_>>();
        assert_eq!(parts("10.0.0.0/8"), want(&["10.0.0.0/24", "10.1.0.0/16", "10.1.2.3"]));
        assert_eq!(parts("10.0.0.0/24"), []);
        let v6 = r#"[{"dst":"fe80::/64"},{"dst":"fd99::/64"}]"#;
        assert_eq!(parts_in(v6, crate::config::prefix("::/0").unwrap()), want(&["fd99::/64"]));
        assert_eq!(parts("0.0.0.0/0").len(), 5);
        assert_eq!(parts_in("no JSON", crate::config::prefix("10.0.0.0/8").unwrap()), []);
    }
}
