//! Interception without BPF: rules of nf_tables for one network namespace.
//!
//! A program's socket stays as it is, so its packets are marked one by one. A SYN without a mark to a taken prefix
//! and port with a connected peer gets the mark (`SYN`, `DECIDE`), and its addresses and ports go into the set `FLOWS`; later
//! packets with an element there get the mark as well (`FOLLOW`). A chain of type `route` routes a packet anew when its
//! mark has changed: to `lo`. There `tproxy` gives the SYN to a worker's listener (`DEAL`).
//!
//! Connection tracking is not used: the kernel would then track every connection of the namespace, drop new ones when its
//! table is full, and forget a half-closed one after a minute. An element of `FLOWS` leaves `FLOW_MS` after the last
//! packet. A FIN moves it to `CLOSING`, where it stays for `CLOSING_MS`; a RST removes it. Accepted sockets have
//! keepalives (`KEEPALIVE_S`, `HALF_CLOSED_S`), so that an open connection is never forgotten. Each SYN removes its
//! element first: a connection that is not taken never inherits one. Connections that exist without an element, those
//! from before the start among them, are never touched.
//!
//! The table belongs to a netlink socket, and goes with the process. It must be made after the listeners: a process that
//! is killed closes what it opened last first, and a marked SYN without a listener would be refused.

use crate::config::{Prefix, Taken};
use crate::counters::{Counts, ProxyCounter};
use crate::hold::{has_ipv6, port_classes};
use crate::netlink::{Attributes, Netlink};
use crate::nft::{self, HeaderBase, Relation, SetChange, SetForm, TableBatch};
use rustix::net::sockopt;
use std::collections::BTreeSet;
use std::io::{Error, Result};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time for which a connection's element stays after the last packet.
const FLOW_MS: u64 = 3_600_000;
/// The same after a FIN of the program: as long as its socket may be in TIME-WAIT.
const CLOSING_MS: u64 = 60_000;
/// Idle time after which an accepted socket sends a keepalive.
pub const KEEPALIVE_S: u64 = 900;
/// The same once the program has ended its direction.
pub const HALF_CLOSED_S: u64 = 15;
/// Most elements of each set; connections beyond go by TCP.
const FLOWS_MAX: u32 = 1 << 16;
const CLOSING_MAX: u32 = 1 << 18;

const _: () = assert!(FLOW_MS > 2000 * KEEPALIVE_S && CLOSING_MS > 2000 * HALF_CLOSED_S);

/// Prefixes of connected peers.
const ALIVE: &str = "alive";
const FLOWS: &str = "flows";
const CLOSING: &str = "closing";
/// At local output.
const OUTPUT: &str = "output";
/// What begins a connection.
const SYN: &str = "syn";
/// What a policy names.
const DECIDE: &str = "decide";
/// Later packets of what was taken.
const FOLLOW: &str = "follow";
/// Packets that have come to `lo`.
const ARRIVE: &str = "arrive";
/// From there to a worker.
const DEAL: &str = "deal";

/// Counters of the table; rules cannot miss a listener.
const COUNTERS: [ProxyCounter; 5] = [
    ProxyCounter::ConnectsTaken,
    ProxyCounter::ConnectsWithoutPolicy,
    ProxyCounter::ConnectsWithoutPeer,
    ProxyCounter::ConnectsMarked,
    ProxyCounter::ConnectsRefused,
];

const FLAG_FIN: u8 = 1;
const FLAG_SYN: u8 = 2;
const FLAG_RST: u8 = 4;
const FLAG_ACK: u8 = 16;
/// `lo` has this index in each namespace.
const LOOPBACK: u32 = 1;

/// What is taken of the programs of one control group, or of all.
#[derive(Debug)]
pub struct SteerPolicy {
    /// Number of the group and its depth below the root; `None`: all programs.
    pub group: Option<ControlGroup>,
    /// Prefixes and ports.
    pub taken: Vec<Taken>,
}

/// A control group (version 2), as `socket cgroupv2` knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlGroup {
    /// Number of its directory's inode.
    pub id: u64,
    /// Levels below the root.
    pub level: u32,
}

impl ControlGroup {
    /// The group of a directory.
    ///
    /// # Errors
    /// One sentence.
    pub fn at(path: &Path) -> std::result::Result<Self, String> {
        use std::os::unix::fs::MetadataExt;
        let failed = |e: Error| format!("{}: {e}", path.display());
        let facts = std::fs::metadata(path).map_err(failed)?;
        let whole = path.canonicalize().map_err(failed)?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").map_err(failed)?;
        let level = level_of(&mounts, &whole)
            .ok_or_else(|| format!("{}: it is no control group of version 2 below the root", path.display()))?;
        Ok(Self { id: facts.ino(), level })
    }
}

/// Depth of a directory below the root of the control groups of version 2, by the list of mounts.
fn level_of(mounts: &str, path: &Path) -> Option<u32> {
    let found = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (root, at) = (words.nth(3)?, PathBuf::from(words.next()?));
        let kind = line.split_once(" - ")?.1.split(' ').next()?;
        let below = path.strip_prefix(&at).ok()?;
        Some((at.components().count(), kind == "cgroup2", Path::new(root).join(below)))
    });
    // Of several mounts at one place the last one is seen.
    let (_, is_group, whole) = found.enumerate().max_by_key(|(n, (depth, ..))| (*depth, *n))?.1;
    let level = whole.components().filter(|part| matches!(part, std::path::Component::Normal(_))).count();
    let is_plain = !whole.components().any(|part| part == std::path::Component::ParentDir);
    (is_group && is_plain && level > 0).then_some(level as u32)
}

/// The rules of one namespace. They go when this is dropped, and when the process ends.
#[derive(Debug)]
pub struct NftSteering {
    owner: Netlink,
    table: String,
    families: Vec<FamilyRules>,
    alive: BTreeSet<Prefix>,
    /// Chains of policies that exist.
    chains: usize,
}

impl NftSteering {
    /// Makes the rules in the calling thread's namespace: by the mark, and with `is_closed` what cannot be taken is dropped.
    /// `listeners`: of each worker, IPv4 and perhaps IPv6.
    ///
    /// # Errors
    /// One sentence: what the kernel lacks.
    pub fn load(
        (mark, is_closed): (u32, bool),
        listeners: &[Vec<OwnedFd>],
        policies: &[SteerPolicy],
    ) -> std::result::Result<Self, String> {
        let failed = |what: &'static str| move |e: Error| format!("{what}: {e} (CAP_NET_ADMIN is needed)");
        let owner = Netlink::open().map_err(failed("netlink"))?;
        let table = format!("burst-proxy-{mark}-steer");
        let mut families = Vec::new();
        for (which, family) in [libc::AF_INET, libc::AF_INET6].into_iter().enumerate() {
            let own: Option<Vec<&OwnedFd>> = listeners.iter().map(|own| own.get(which)).collect();
            let Some(own) = own.filter(|_| family == libc::AF_INET || has_ipv6()) else { continue };
            let own: Result<Vec<SocketAddr>> = own.into_iter().map(crate::sys::local_address).collect();
            let steering = FamilyRules { mark, family, listeners: own.map_err(failed("a listener"))?, is_closed };
            if let Err(e) = steering.make(&owner, &table, policies) {
                // Its table goes at once.
                let works_otherwise = || Netlink::open().is_ok_and(|other| steering.make(&other, &table, &[]).is_ok());
                return Err(if policies.iter().any(|policy| policy.group.is_some()) && works_otherwise() {
                    format!("nf_tables of this kernel cannot tell control groups apart (socket cgroupv2): {e}")
                } else {
                    failed("rules of nf_tables that take connections (route, dynset, tproxy) cannot be made")(e)
                });
            }
            families.push(steering);
        }
        Ok(Self { owner, table, families, alive: BTreeSet::new(), chains: policies.len() })
    }

    /// Sets for prefixes whether a connected peer serves them.
    ///
    /// # Errors
    /// One sentence.
    pub fn set_alive(&mut self, changes: &[(Prefix, bool)]) -> std::result::Result<(), String> {
        for (prefix, alive) in changes {
            if *alive {
                self.alive.insert(*prefix)
            } else {
                self.alive.remove(prefix)
            };
        }
        for FamilyRules { family, .. } in &self.families {
            let v4 = *family == libc::AF_INET;
            if !changes.iter().any(|((ip, _), _)| ip.is_ipv4() == v4) {
                continue;
            }
            let mut made = TableBatch::new(&self.owner, *family, &self.table);
            made.flush(ALIVE);
            made.ranges(ALIVE, &ranges(&self.alive, v4));
            made.commit(&self.owner).map_err(|e| format!("the set of living prefixes: {e}"))?;
        }
        Ok(())
    }

    /// Takes what these policies say and nothing else. Connections that were taken have their elements, and go on.
    ///
    /// # Errors
    /// One sentence.
    pub fn set_policy(&mut self, policies: &[SteerPolicy]) -> std::result::Result<(), String> {
        for rules in &self.families {
            let mut made = TableBatch::new(&self.owner, rules.family, &self.table);
            [SYN, DECIDE].into_iter().for_each(|chain| made.clear(chain));
            (1..=self.chains).for_each(|number| made.clear(&policy_chain(number)));
            rules.begin(&mut made, policies);
            made.commit(&self.owner).map_err(|e| format!("rules of nf_tables: {e}"))?;
        }
        self.chains = self.chains.max(policies.len());
        Ok(())
    }

    /// The values of `COUNTERS`: SYNs, so a repeated one counts again.
    pub fn counts(&self) -> Counts {
        let read = |counter| {
            let of = |rules: &FamilyRules| nft::counted(&self.owner, rules.family, &self.table, counter).unwrap_or(0);
            self.families.iter().map(of).sum()
        };
        COUNTERS.iter().map(|counter| (*counter, read(*counter))).collect()
    }
}

/// The prefixes of a family as ranges that neither overlap nor touch: the first key of each, and the first behind it.
fn ranges(prefixes: &BTreeSet<Prefix>, v4: bool) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let bits = if v4 { 32 } else { 128 };
    let bytes = |at: u128| at.to_be_bytes()[16 - bits / 8..].to_vec();
    let mut last: Vec<(u128, u128)> = Vec::new();
    for (ip, len) in prefixes.iter().filter(|(ip, _)| ip.is_ipv4() == v4) {
        let first = match ip {
            IpAddr::V4(ip) => u128::from(u32::from(*ip)),
            IpAddr::V6(ip) => u128::from(*ip),
        };
        let end = first | u128::MAX.checked_shr(128 - bits as u32 + u32::from(*len)).unwrap_or(0);
        match last.last_mut() {
            // The set is sorted by address.
            Some((_, before)) if first <= before.saturating_add(1) => *before = (*before).max(end),
            _ => last.push((first, end)),
        }
    }
    let most = u128::MAX >> (128 - bits);
    last.into_iter().map(|(first, end)| (bytes(first), (end < most).then(|| bytes(end + 1)))).collect()
}

/// Address bits of a rule that compares a prefix.
fn when_within(offset: u32, (ip, bits): Prefix) -> Attributes {
    let key = match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0).to_be_bytes();
    let load = nft::load_payload(nft::REG_1, HeaderBase::Network, offset, key.len() as u32);
    load.with(nft::masked(&mask[..key.len()])).with(nft::equal(&key))
}

/// The chain of a policy.
fn policy_chain(number: usize) -> String {
    format!("policy-{number}")
}

/// The rules of one family.
#[derive(Debug)]
struct FamilyRules {
    mark: u32,
    family: i32,
    /// Of each worker.
    listeners: Vec<SocketAddr>,
    /// What cannot be taken is dropped.
    is_closed: bool,
}

impl FamilyRules {
    /// Bytes of an address, and where source and destination stand in the header.
    fn addresses(&self) -> (u32, u32, u32) {
        if self.family == libc::AF_INET { (4, 12, 16) } else { (16, 8, 24) }
    }

    /// Loads source, destination and both ports, each in registers of its own.
    fn load_key(&self) -> Attributes {
        let (len, source, _) = self.addresses();
        let behind = nft::WORD_0 + len / 2;
        let port = |register, offset| nft::load_payload(register, HeaderBase::Transport, offset, 2);
        let both = nft::load_payload(nft::WORD_0, HeaderBase::Network, source, 2 * len);
        both.with(port(behind, 0)).with(port(behind + 1, 2))
    }

    fn change(&self, set: &str, change: SetChange) -> Attributes {
        self.load_key().with(nft::change_set(set, change))
    }

    fn make(&self, owner: &Netlink, table: &str, policies: &[SteerPolicy]) -> Result<()> {
        let mut made = TableBatch::new(owner, self.family, table);
        made.make_table();
        self.make_sets(&mut made);
        COUNTERS.iter().for_each(|counter| made.counter(*counter));
        for chain in [SYN, DECIDE, FOLLOW, DEAL] {
            made.chain(chain);
        }
        made.base_chain(OUTPUT, "route", nft::LOCAL_OUT, nft::MANGLE);
        made.base_chain(ARRIVE, "filter", nft::PREROUTING, nft::MANGLE);
        self.begin(&mut made, policies);
        self.follow(&mut made);
        self.arrive(&mut made);
        made.commit(owner)
    }

    fn make_sets(&self, made: &mut TableBatch) {
        // Types of the keys as the program nft has them: an address of IPv4 or IPv6, and ports; joined, six bits each.
        let (len, ..) = self.addresses();
        let (address, port) = (if len == 4 { 7 } else { 8 }, 13);
        let whole = address << 18 | address << 12 | port << 6 | port;
        let alive = SetForm { flags: nft::SET_INTERVAL, kind: address, key_len: len, size: 0, timeout_ms: 0 };
        let flags = nft::SET_TIMEOUT | nft::SET_EVAL;
        let flows = SetForm { flags, kind: whole, key_len: 2 * len + 8, size: FLOWS_MAX, timeout_ms: FLOW_MS };
        made.set(ALIVE, 1, alive);
        made.set(FLOWS, 2, flows);
        made.set(CLOSING, 3, SetForm { size: CLOSING_MAX, timeout_ms: CLOSING_MS, ..flows });
    }

    /// What begins a connection: chains SYN, DECIDE and one for each policy.
    fn begin(&self, made: &mut TableBatch, policies: &[SteerPolicy]) {
        let (len, _, destination) = self.addresses();
        // An answer to another host's SYN begins one as well, which is not taken.
        for set in [FLOWS, CLOSING] {
            made.rule(SYN, self.change(set, SetChange::Delete));
        }
        made.rule(SYN, nft::when_any_flag(FLAG_ACK).with(nft::accept()));
        for (policy, number) in policies.iter().zip(1..) {
            let chain = policy_chain(number);
            made.chain(&chain);
            let group = policy.group.map_or_else(Attributes::new, |group| {
                nft::load_control_group(group.level).with(nft::equal(&group.id.to_ne_bytes()))
            });
            made.rule(SYN, group.with(nft::jump(&chain)));
            self.policy(made, &chain, &policy.taken);
        }
        made.rule(SYN, nft::count(ProxyCounter::ConnectsWithoutPolicy));

        let is_marked = nft::load_meta(nft::META_MARK).with(nft::when(Relation::NotEqual, &[0; 4]));
        made.rule(DECIDE, is_marked.with(nft::count(ProxyCounter::ConnectsMarked)).with(nft::accept()));
        let is_dead =
            nft::load_payload(nft::WORD_0, HeaderBase::Network, destination, len).with(nft::when_in(ALIVE, false));
        made.rule(DECIDE, is_dead.with(nft::count(ProxyCounter::ConnectsWithoutPeer)).with(nft::accept()));
        // If the set is full, the rule ends here, and the connection is not taken: by TCP, or not at all.
        let noted = self.change(FLOWS, SetChange::Update).with(nft::count(ProxyCounter::ConnectsTaken));
        made.rule(DECIDE, noted.with(nft::set_mark(self.mark)).with(nft::accept()));
        if self.is_closed {
            made.rule(DECIDE, nft::count(ProxyCounter::ConnectsRefused).with(nft::drop_packet()));
        }
        // Not back to SYN, which would count it again.
        made.rule(DECIDE, nft::accept());
    }

    /// The ports of the longest prefix decide, as in the maps of the BPF programs.
    fn policy(&self, made: &mut TableBatch, chain: &str, taken: &[Taken]) {
        let (_, _, destination) = self.addresses();
        let is_ours = |prefix: &Prefix| prefix.0.is_ipv4() == (self.family == libc::AF_INET);
        let each = taken.iter().flat_map(|(prefixes, ports)| prefixes.iter().map(move |prefix| (*prefix, ports)));
        let mut each: Vec<_> = each.filter(|(prefix, _)| is_ours(prefix)).collect();
        each.sort_by_key(|((_, bits), _)| std::cmp::Reverse(*bits));
        for (prefix, ports) in each {
            for (first, last) in ports {
                let port = nft::load_payload(nft::REG_1, HeaderBase::Transport, 2, 2);
                let port = port.with(nft::when(Relation::AtLeast, &first.to_be_bytes()));
                let port = port.with(nft::when(Relation::AtMost, &last.to_be_bytes()));
                made.rule(chain, when_within(destination, prefix).with(port).with(nft::go_to(DECIDE)));
            }
            made.rule(chain, when_within(destination, prefix).with(nft::go_back()));
        }
    }

    /// Chains OUTPUT and FOLLOW.
    fn follow(&self, made: &mut TableBatch) {
        made.rule(
            OUTPUT,
            nft::load_meta(nft::META_L4PROTO)
                .with(nft::when(Relation::NotEqual, &[libc::IPPROTO_TCP as u8]))
                .with(nft::accept()),
        );
        made.rule(OUTPUT, nft::when_any_flag(FLAG_SYN).with(nft::go_to(SYN)));
        let is_marked = nft::load_meta(nft::META_MARK).with(nft::when(Relation::NotEqual, &[0; 4]));
        made.rule(OUTPUT, is_marked.with(nft::accept()));
        made.rule(OUTPUT, self.load_key().with(nft::when_in(FLOWS, true)).with(nft::go_to(FOLLOW)));
        let closing =
            self.load_key().with(nft::when_in(CLOSING, true)).with(nft::change_set(CLOSING, SetChange::Update));
        made.rule(OUTPUT, closing.with(nft::set_mark(self.mark)));

        // The mark comes last: its register is one of the key.
        let reset = nft::when_any_flag(FLAG_RST).with(self.change(FLOWS, SetChange::Delete));
        made.rule(FOLLOW, reset.with(nft::set_mark(self.mark)).with(nft::accept()));
        // If CLOSING is full, the next rule lets the element stay where it is.
        let end = nft::when_any_flag(FLAG_FIN).with(self.change(CLOSING, SetChange::Update));
        let end = end.with(nft::change_set(FLOWS, SetChange::Delete)).with(nft::set_mark(self.mark));
        made.rule(FOLLOW, end.with(nft::accept()));
        made.rule(FOLLOW, self.change(FLOWS, SetChange::Update).with(nft::set_mark(self.mark)));
    }

    /// Chains ARRIVE and DEAL. The latter has all packets before the FIN: an answer to a SYN cookie needs the listener.
    fn arrive(&self, made: &mut TableBatch) {
        let loopback = nft::load_meta(nft::META_IIF).with(nft::equal(&LOOPBACK.to_ne_bytes()));
        let ours = loopback.with(nft::when_mark(self.mark)).with(nft::when_tcp()).with(self.load_key());
        made.rule(ARRIVE, ours.with(nft::when_in(FLOWS, true)).with(nft::go_to(DEAL)));
        let classes = port_classes(self.listeners.len() as u32);
        for (class, to) in (0..classes).zip(self.listeners.iter().cycle()) {
            let address = match to.ip() {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            };
            let listener = nft::put(nft::REG_1, &address).with(nft::put(nft::REG_2, &to.port().to_be_bytes()));
            made.rule(
                DEAL,
                nft::when_port(classes, class).with(listener).with(nft::to_listener(self.family)).with(nft::accept()),
            );
        }
    }
}

/// Gives an accepted socket of a taken connection keepalives, which keep its element.
///
/// # Errors
/// Of `setsockopt`.
pub fn keep_alive(socket: impl AsFd, idle_s: u64) -> Result<()> {
    sockopt::set_tcp_keepidle(&socket, Duration::from_secs(idle_s))?;
    Ok(sockopt::set_socket_keepalive(&socket, true)?)
}

/// Lets it ask more often: the program has ended its direction, so the element is in `CLOSING`.
pub fn keep_half_closed(socket: impl AsFd) {
    if let Err(e) = keep_alive(socket, HALF_CLOSED_S) {
        crate::log(format_args!("a half-closed connection may be forgotten: {e}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn living_prefixes_become_ranges_that_are_apart() {
        let set =
            |texts: &[&str]| texts.iter().map(|text| crate::config::prefix(text).unwrap()).collect::<BTreeSet<_>>();
        let v4 = |texts: &[&str]| ranges(&set(texts), true);
        let (first, end) = (vec![10, 0, 0, 0], Some(vec![10, 0, 1, 0]));
        assert_eq!(v4(&["10.0.0.0/24", "fd00::/64"]), [(first.clone(), end.clone())]);
        assert_eq!(
            v4(&["10.0.0.0/25", "10.0.0.128/25", "10.0.0.7"]),
            [(first, end)],
            "one in another, and one beside it"
        );
        assert_eq!(v4(&["10.0.0.1", "10.0.0.3"]).len(), 2);
        assert_eq!(v4(&["0.0.0.0/0", "10.0.0.3"]), [(vec![0; 4], None)], "nothing is behind it");
        assert_eq!(v4(&["255.255.255.255"]), [(vec![255; 4], None)]);
        let v6 = ranges(&set(&["fd00::/64", "::/0"]), false);
        assert_eq!(v6, [(vec![0; 16], None)]);
        let v6 = ranges(&set(&["fd00::/64"]), false);
        assert_eq!(v6[0].1.as_deref(), Some(&"fd00:0:0:1::".parse::<std::net::Ipv6Addr>().unwrap().octets()[..]));
    }

    #[test]
    fn control_groups_are_found_by_the_list_of_mounts() {
        let mounts = "22 1 0:20 / /sys rw - sysfs sysfs rw\n30 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
            31 22 0:26 /a/b /mnt/part rw - cgroup2 none rw\n32 22 0:26 /../c /mnt/up rw - cgroup2 none rw\n";
        let level = |path: &str| level_of(mounts, Path::new(path));
        assert_eq!(level("/sys/fs/cgroup/system.slice/x.service"), Some(2));
        assert_eq!(level("/mnt/part/c"), Some(3), "a part is mounted there");
        assert_eq!(level("/sys/fs/cgroup"), None, "the root has all programs");
        assert_eq!(level("/sys/kernel"), None, "another file system");
        assert_eq!(level("/mnt/up/d"), None, "outside of the namespace of control groups");
    }
}
