//! Interception by BPF: the programs of `csrc/steer.bpf.c` and their maps, for one control group in one network namespace.
//!
//! Programs are attached by links whose descriptors this process holds, so its death takes them away.

use crate::config::{Prefix, RANGES, Taken};
use crate::counters::{Counts, ProxyCounter};
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, MapData, SockMap};
use aya::programs::{CgroupAttachMode, CgroupSockAddr, Iter, ProgramError, SkLookup, SockOps};
use aya::{Btf, Ebpf, EbpfLoader};
use std::collections::BTreeMap;
use std::io::Read;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

/// The compiled programs; empty if clang was missing when the proxy was built.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steer.bpf.o"));

/// The iterator of `csrc/unmark.bpf.c`; empty as [`OBJECT`] is.
static UNMARK: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/unmark.bpf.o"));

/// A link always allows other programs beside its own, and takes no flags.
const NO_FLAGS: CgroupAttachMode = CgroupAttachMode::Single;

const ALL_V4: Prefix = (IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// By the indices of the array `counts` in `csrc/steer.bpf.c`.
const COUNTS: [ProxyCounter; 5] = [
    ProxyCounter::ConnectsTaken,
    ProxyCounter::ConnectsWithoutPolicy,
    ProxyCounter::ConnectsWithoutPeer,
    ProxyCounter::ConnectsWithoutListener,
    ProxyCounter::ConnectsMarked,
];

/// The programs of one control group in one namespace.
pub struct BpfPrograms {
    /// Directory of the group; `None`: the root.
    pub group: Option<PathBuf>,
    /// What is taken.
    policy: BTreeMap<Prefix, Vec<(u16, u16)>>,
    bpf: Ebpf,
    alive: LpmTrie<MapData, [u8; 16], u64>,
}

impl BpfPrograms {
    /// Loads and attaches the programs.
    ///
    /// # Errors
    /// One sentence.
    pub fn load(namespace: &OwnedFd, cookie: u64, mark: u32, workers: u32, group: &OwnedFd) -> Result<Self, String> {
        if OBJECT.is_empty() {
            return Err("this burst-proxy was built without clang, so it has no BPF programs".into());
        }
        let mut bpf = EbpfLoader::new()
            .override_global("NAMESPACE", &cookie, true)
            .override_global("MARK", &mark, true)
            .override_global("WORKERS", &workers, true)
            .override_global("CLASSES", &crate::hold::port_classes(workers), true)
            .load(OBJECT)
            .map_err(|e| failed("BPF programs cannot be loaded", &e))?;
        attach(&mut bpf, namespace, group)?;
        let map = bpf.take_map("alive").ok_or("the BPF object has no map alive")?;
        let alive = LpmTrie::try_from(map).map_err(|e| e.to_string())?;
        let mut made = Self { group: None, policy: BTreeMap::new(), bpf, alive };
        // Keys of IPv4 lie within ::ffff:0:0/96, which prefixes of IPv6 such as ::/0 must not name.
        made.write_ports(ALL_V4, &[])?;
        made.set_alive(ALL_V4, false)?;
        Ok(made)
    }

    /// Takes connections to a prefix and to these ports.
    ///
    /// # Errors
    /// One sentence.
    pub fn take(&mut self, prefix: Prefix, ports: &[(u16, u16)]) -> Result<(), String> {
        self.write_ports(prefix, ports)?;
        self.policy.insert(prefix, ports.to_vec());
        Ok(())
    }

    fn write_ports(&mut self, prefix: Prefix, ports: &[(u16, u16)]) -> Result<(), String> {
        let mut value = [0u16; 2 * RANGES];
        for (to, (first, last)) in value.chunks_exact_mut(2).zip(ports) {
            to.copy_from_slice(&[*first, *last]);
        }
        let map = self.bpf.map_mut("policy").ok_or("the BPF object has no map policy")?;
        let mut policy: LpmTrie<_, [u8; 16], [u16; 2 * RANGES]> = LpmTrie::try_from(map).map_err(|e| e.to_string())?;
        policy.insert(&key(prefix), value, 0).map_err(|e| chain(&e))
    }

    /// Takes this and nothing else.
    ///
    /// # Errors
    /// One sentence.
    pub fn set_policy(&mut self, taken: &[Taken]) -> Result<(), String> {
        let each = taken.iter().flat_map(|(prefixes, ports)| prefixes.iter().map(move |prefix| (*prefix, ports)));
        let wanted: BTreeMap<Prefix, Vec<(u16, u16)>> = each.map(|(prefix, ports)| (prefix, ports.clone())).collect();
        let gone: Vec<Prefix> = self.policy.keys().filter(|prefix| !wanted.contains_key(prefix)).copied().collect();
        for prefix in gone {
            self.leave(prefix)?;
        }
        for (prefix, ports) in wanted {
            if self.policy.get(&prefix) != Some(&ports) {
                self.take(prefix, &ports)?;
            }
        }
        Ok(())
    }

    /// Takes connections to a prefix no more.
    fn leave(&mut self, prefix: Prefix) -> Result<(), String> {
        self.policy.remove(&prefix);
        if prefix == ALL_V4 {
            return self.write_ports(prefix, &[]);
        }
        let map = self.bpf.map_mut("policy").ok_or("the BPF object has no map policy")?;
        let mut policy: LpmTrie<_, [u8; 16], [u16; 2 * RANGES]> = LpmTrie::try_from(map).map_err(|e| e.to_string())?;
        policy.remove(&key(prefix)).map_err(|e| chain(&e))
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

    /// Sets whether a connected peer serves a prefix.
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

    /// The values of `COUNTS`.
    pub fn counts(&self) -> Counts {
        let map = self.bpf.map("counts").and_then(|map| Array::<_, u64>::try_from(map).ok());
        let read = |at: usize| map.as_ref().and_then(|map| map.get(&(at as u32), 0).ok()).unwrap_or(0);
        COUNTS.iter().enumerate().map(|(at, counter)| (*counter, read(at))).collect()
    }
}

/// Takes the mark from the sockets of the calling thread's namespace that an earlier proxy has marked; returns from how many.
/// Those that were connecting, or have connected by TCP since that proxy ended, go on by TCP.
///
/// # Errors
/// One sentence. The routes of marked connections would lead such sockets to `lo`, where nothing answers them.
pub fn unmark(mark: u32) -> Result<usize, String> {
    let failed = |e: &dyn std::error::Error| {
        format!("{} (CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN are needed, and Linux 5.15 or newer)", chain(e))
    };
    if UNMARK.is_empty() {
        return Err("this burst-proxy was built without clang".into());
    }
    let mut bpf = EbpfLoader::new().override_global("MARK", &mark, true).load(UNMARK).map_err(|e| failed(&e))?;
    let btf = Btf::from_sys_fs().map_err(|e| failed(&e))?;
    let iterator: &mut Iter = program(&mut bpf, "unmark")?;
    let attached = iterator.load("tcp", &btf).and_then(|()| iterator.attach());
    let link = attached.and_then(|attached| iterator.take_link(attached)).map_err(|e| failed(&e))?;
    // Made in the calling thread's namespace, whose sockets it visits.
    let mut visits = link.into_file().map_err(|e| failed(&e))?;
    let mut done = Vec::new();
    visits.read_to_end(&mut done).map_err(|e| failed(&e))?;
    Ok(done.len())
}

/// Attaches the programs to a control group and a namespace.
fn attach(bpf: &mut Ebpf, namespace: &OwnedFd, group: &OwnedFd) -> Result<(), String> {
    let failed = |e: ProgramError| failed("BPF programs cannot be attached", &e);
    for name in ["connect4", "connect6"] {
        let connect: &mut CgroupSockAddr = program(bpf, name)?;
        connect.load().and_then(|()| connect.attach(group, NO_FLAGS)).map_err(failed)?;
    }
    let tcp_connect: &mut SockOps = program(bpf, "tcp_connect")?;
    tcp_connect.load().and_then(|()| tcp_connect.attach(group, NO_FLAGS)).map_err(failed)?;
    let lookup: &mut SkLookup = program(bpf, "lookup")?;
    lookup.load().and_then(|()| lookup.attach(namespace.as_fd())).map_err(failed)?;
    Ok(())
}

fn failed(what: &str, error: &dyn std::error::Error) -> String {
    format!("{what}: {} (CAP_BPF and CAP_NET_ADMIN are needed, and Linux 5.15 or newer)", chain(error))
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

/// The root of the control groups of version 2, by a mount that no other process sees.
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
