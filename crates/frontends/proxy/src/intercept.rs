//! Interception in one network namespace: by the BPF programs of `csrc/steer.bpf.c` ([`bpf`]), or where they cannot be
//! loaded by rules of nf_tables ([`steer`]); and the routes for marked connections.
//!
//! Programs and rules belong to descriptors of this process, so its death takes them away, and new connections go by TCP
//! at once. Routing rules, routes and settings would stay: a second process ([`janitor`]) removes them when its standard
//! input ends. Setting up first removes what a predecessor with the same mark may have left.

use crate::config::{self, Prefix};
use crate::counters::ProxyCounter;
use std::fmt::Display;
use std::io::{BufRead, Read, Write};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub mod bpf;
mod claim;
pub mod steer;
pub mod watch;

use bpf::BpfPrograms;
use claim::Claim;
use steer::NftSteering;

/// Values of counters.
pub type Counts = Vec<(ProxyCounter, u64)>;

/// What takes connections in one network namespace.
pub enum Interception {
    /// Programs for each control group.
    Bpf(Vec<BpfPrograms>),
    /// Rules.
    Nft(NftSteering),
}

impl Interception {
    /// `bpf` or `nft`, as in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bpf(_) => "bpf",
            Self::Nft(_) => "nft",
        }
    }

    /// Says of prefixes whether a living peer serves them.
    ///
    /// # Errors
    /// One sentence.
    pub fn set_alive(&mut self, changes: &[(Prefix, bool)]) -> Result<(), String> {
        match self {
            Self::Bpf(groups) => groups.iter_mut().try_for_each(|group| {
                changes.iter().try_for_each(|((ip, bits), alive)| {
                    group.set_alive((*ip, *bits), *alive).map_err(|why| format!("{ip}/{bits}: {why}"))
                })
            }),
            Self::Nft(rules) => rules.set_alive(changes),
        }
    }

    /// Connections that were taken, and those that were not, by reason.
    pub fn counts(&self) -> Counts {
        match self {
            Self::Bpf(groups) => groups.iter().flat_map(BpfPrograms::counts).collect(),
            Self::Nft(rules) => rules.counts(),
        }
    }
}

/// Settings of a namespace that are 1 while a proxy works there: a server's socket, and answers of the kernel such as
/// RST, take the mark of what they answer, and so come back to the proxy.
const SETTINGS: [&str; 3] =
    ["/proc/sys/net/ipv4/tcp_fwmark_accept", "/proc/sys/net/ipv4/fwmark_reflect", "/proc/sys/net/ipv6/fwmark_reflect"];

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
    // The kernel takes an address of zeros for this host. Of a prefix of all addresses the default route tells the
    // source, to which addresses for documentation lead (RFC 5737, RFC 3849).
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
fn set_routes(mark: u32, taken: &[Prefix]) -> Result<Vec<Prefix>, String> {
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

/// The settings that this kernel has.
fn present_settings() -> impl Iterator<Item = &'static str> {
    SETTINGS.into_iter().filter(|path| Path::new(path).exists())
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

/// Starts the process that tidies up after this one. `namespaces`: paths; empty is the present one.
///
/// # Errors
/// One sentence.
pub fn start_janitor(namespaces: &[String], mark: u32) -> Result<Child, String> {
    let failed = |e: &dyn Display| format!("the process that removes routes later cannot be started: {e}");
    let program = std::env::current_exe().map_err(|e| failed(&e))?;
    let mut child = Command::new(program)
        .arg("janitor")
        .arg(mark.to_string())
        .args(namespaces)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|e| failed(&e))?;
    let mut line = String::new();
    let out = child.stdout.take().ok_or_else(|| failed(&"no pipe"))?;
    std::io::BufReader::new(out).read_line(&mut line).map_err(|e| failed(&e))?;
    if line.trim() == "ready" { Ok(child) } else { Err(failed(&"it has ended")) }
}

/// The janitor: claims the mark in each namespace and switches the settings on, and undoes both when standard input
/// ends. Signals to the group of the proxy do not end it before.
///
/// # Errors
/// One sentence.
pub fn janitor(mark: u32, namespaces: &[String]) -> Result<(), String> {
    crate::sys::ignore_signals(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE]);
    let (mut kept, mut failed) = (Vec::new(), Vec::new());
    for path in namespaces {
        match claim_in(path, mark) {
            Ok(claimed) => kept.push(claimed),
            Err(why) => failed.push(format!("{path}: {why}")),
        }
    }
    if failed.is_empty() {
        // A proxy that has ended meanwhile does not read it; then standard input ends at once.
        let _ = writeln!(std::io::stdout(), "ready").and_then(|()| std::io::stdout().flush());
        failed.extend(std::io::stdin().read_to_end(&mut Vec::new()).err().map(|e| e.to_string()));
    }
    for (namespace, claim) in kept {
        let tidied = crate::sys::enter_namespace(&namespace).map_err(|e| e.to_string()).and_then(|()| {
            remove_routes(mark);
            claim.end()
        });
        // The other namespaces are tidied all the same.
        failed.extend(tidied.err());
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

fn claim_in(path: &str, mark: u32) -> Result<(std::fs::File, Claim), String> {
    let namespace = std::fs::File::open(path).map_err(|e| e.to_string())?;
    crate::sys::enter_namespace(&namespace).map_err(|e| e.to_string())?;
    Ok((namespace, Claim::new(mark)?))
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
