//! Interception in one network namespace: the BPF programs of `csrc/steer.bpf.c`, their maps, and the routes for
//! marked connections.
//!
//! Programs are attached by links whose descriptors this process holds, so its death takes them away, and new
//! connections go by TCP at once. Rules, routes and settings would stay: a second process ([`janitor`]) removes them
//! when its standard input ends. Setting up first removes what a predecessor with the same mark may have left.

use crate::config::{self, Prefix, RANGES};
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, MapData, SockMap};
use aya::programs::{CgroupAttachMode, CgroupSockAddr, SkLookup, SockOps};
use aya::{Ebpf, EbpfLoader};
use std::fmt::Display;
use std::io::{BufRead, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

mod claim;
pub mod watch;

use claim::Claim;

/// The compiled programs; empty if clang was missing when the proxy was built.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steer.bpf.o"));

/// Settings of a namespace that are 1 while a proxy works there: a server's socket, and answers of the kernel such as
/// RST, take the mark of what they answer, and so come back to the proxy.
const SETTINGS: [&str; 3] =
    ["/proc/sys/net/ipv4/tcp_fwmark_accept", "/proc/sys/net/ipv4/fwmark_reflect", "/proc/sys/net/ipv6/fwmark_reflect"];

/// Most routes within one prefix that are looked at.
const PARTS_MAX: usize = 1024;

/// A link always allows other programs beside its own, and takes no flags.
const NO_FLAGS: CgroupAttachMode = CgroupAttachMode::Single;

const ALL_V4: Prefix = (IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// What the counters of `csrc/steer.bpf.c` count.
pub const COUNTS: [&str; 5] = [
    "connects_taken",
    "connects_without_policy",
    "connects_without_peer",
    "connects_without_listener",
    "connects_marked",
];

/// The programs of one control group in one namespace.
pub struct Interception {
    bpf: Ebpf,
    alive: LpmTrie<MapData, [u8; 16], u64>,
}

impl Interception {
    /// Loads and attaches the programs.
    ///
    /// # Errors
    /// One sentence.
    pub fn load(namespace: &OwnedFd, cookie: u64, mark: u32, workers: u32, group: &OwnedFd) -> Result<Self, String> {
        if OBJECT.is_empty() {
            return Err(
                "this burst-proxy was built without clang: no connections can be taken, those of peers are served"
                    .into(),
            );
        }
        let needs = |what: &'static str| {
            move |e: &dyn Display| {
                format!("{what}: {e} (CAP_BPF and CAP_NET_ADMIN are needed, and Linux 5.15 or newer)")
            }
        };
        let mut bpf = EbpfLoader::new()
            .override_global("NAMESPACE", &cookie, true)
            .override_global("MARK", &mark, true)
            .override_global("WORKERS", &workers, true)
            .override_global("CLASSES", &crate::hold::port_classes(workers), true)
            .load(OBJECT)
            .map_err(|e| needs("BPF programs cannot be loaded")(&chain(&e)))?;
        let failed = needs("BPF programs cannot be attached");
        for name in ["connect4", "connect6"] {
            let program: &mut CgroupSockAddr = program(&mut bpf, name)?;
            program.load().map_err(|e| failed(&chain(&e)))?;
            program.attach(group, NO_FLAGS).map_err(|e| failed(&chain(&e)))?;
        }
        let tcp_connect: &mut SockOps = program(&mut bpf, "tcp_connect")?;
        tcp_connect.load().map_err(|e| failed(&chain(&e)))?;
        tcp_connect.attach(group, NO_FLAGS).map_err(|e| failed(&chain(&e)))?;
        let program: &mut SkLookup = program(&mut bpf, "lookup")?;
        program.load().map_err(|e| failed(&chain(&e)))?;
        program.attach(namespace.as_fd()).map_err(|e| failed(&chain(&e)))?;
        let map = bpf.take_map("alive").ok_or("the BPF object has no map alive")?;
        let alive = LpmTrie::try_from(map).map_err(|e| e.to_string())?;
        let mut made = Self { bpf, alive };
        // Keys of IPv4 lie within ::ffff:0:0/96, which prefixes of IPv6 such as ::/0 must not name.
        made.take(ALL_V4, &[])?;
        made.set_alive(ALL_V4, false)?;
        Ok(made)
    }

    /// Takes connections to a prefix and to these ports.
    ///
    /// # Errors
    /// One sentence.
    pub fn take(&mut self, prefix: Prefix, ports: &[(u16, u16)]) -> Result<(), String> {
        let mut value = [0u16; 2 * RANGES];
        for (to, (first, last)) in value.chunks_exact_mut(2).zip(ports) {
            to.copy_from_slice(&[*first, *last]);
        }
        let map = self.bpf.map_mut("policy").ok_or("the BPF object has no map policy")?;
        let mut policy: LpmTrie<_, [u8; 16], [u16; 2 * RANGES]> = LpmTrie::try_from(map).map_err(|e| e.to_string())?;
        policy.insert(&key(prefix), value, 0).map_err(|e| chain(&e))
    }

    /// A listener of a worker.
    ///
    /// # Errors
    /// One sentence.
    pub fn listen(&mut self, worker: u32, v6: bool, listener: &impl AsRawFd) -> Result<(), String> {
        let map = self.bpf.map_mut("listeners").ok_or("the BPF object has no map listeners")?;
        let mut listeners: SockMap<_> = SockMap::try_from(map).map_err(|e| e.to_string())?;
        listeners.set(2 * worker + u32::from(v6), listener, 0).map_err(|e| chain(&e))
    }

    /// Whether a living peer serves a prefix.
    ///
    /// # Errors
    /// One sentence.
    pub fn set_alive(&mut self, prefix: Prefix, alive: bool) -> Result<(), String> {
        if alive || prefix == ALL_V4 {
            return self.alive.insert(&key(prefix), u64::from(alive), 0).map_err(|e| chain(&e));
        }
        match self.alive.remove(&key(prefix)) {
            Err(aya::maps::MapError::KeyNotFound) | Ok(()) => Ok(()),
            Err(aya::maps::MapError::SyscallError(e)) if e.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            Err(e) => Err(chain(&e)),
        }
    }

    /// Counters by the names of [`COUNTS`].
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let map = self.bpf.map("counts").and_then(|map| Array::<_, u64>::try_from(map).ok());
        let read = |at: usize| map.as_ref().and_then(|map| map.get(&(at as u32), 0).ok()).unwrap_or(0);
        COUNTS.iter().enumerate().map(|(at, name)| (*name, read(at))).collect()
    }
}

fn program<'a, T>(bpf: &'a mut Ebpf, name: &str) -> Result<&'a mut T, String>
where
    &'a mut T: TryFrom<&'a mut aya::programs::Program>,
{
    let found = bpf.program_mut(name).ok_or_else(|| format!("the BPF object has no program {name}"))?;
    found.try_into().map_err(|_| format!("the BPF program {name} is of another type"))
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        text.push_str(": ");
        text.push_str(&one.to_string());
        cause = one.source();
    }
    text
}

/// A prefix as the maps have it: IPv4 as v4-mapped IPv6.
fn key((ip, bits): Prefix) -> Key<[u8; 16]> {
    match ip {
        IpAddr::V4(v4) => Key::new(96 + u32::from(bits), v4.to_ipv6_mapped().octets()),
        IpAddr::V6(v6) => Key::new(bits.into(), v6.octets()),
    }
}

/// The root of the control groups of version 2, by a mount of its own that nobody else sees.
///
/// # Errors
/// One sentence.
pub fn root_group() -> Result<OwnedFd, String> {
    use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
    let mounted = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC).and_then(|fs| {
        fsconfig_create(fs.as_fd())?;
        fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
    });
    let mounted =
        mounted.map_err(|e| format!("control groups (version 2) cannot be reached: {e} (CAP_SYS_ADMIN is needed)"))?;
    // A mount's descriptor is opened O_PATH; attaching needs an ordinary one.
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::openat(mounted, ".", flags, rustix::fs::Mode::empty()).map_err(|e| format!("control groups: {e}"))
}

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
