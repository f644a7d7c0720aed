//! Accounts of users: how much there is of each resource, whose account a process has, and the refusal of what is over a share.

use crate::authority::ClientProcess;
use crate::descriptors::OWN_DESCRIPTORS;
use crate::host::Host;
use crate::limits::{
    CM_IDS_MAX, CM_REQUESTS_MAX, CONTEXTS_MAX, GROUP_JOINS_MAX, GROUP_QPS_MAX, GROUPS_MAX, LIMITS, PORTS_MAX,
    SESSIONS_MAX, UNREAD_EVENTS_MAX, URMA_JFCS_MAX, URMA_PEERS_MAX, URMA_REQUESTS_MAX, WORKERS_MAX, XRC_DOMAINS_MAX,
    XRC_SRQS_MAX,
};
use crate::owners::ancestor;
use burst_control::Response;
use burst_control::monitor::{UserPage, UserResource, UserTime, UserUse, UserWork};
use burst_engine::tap::TAPS_MAX;
use burst_ledger::{Account, AccountId, AccountUse, Capacities, Resource, WorkSum};
use burst_mem::key::INDEX_MAX;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

/// Mappings that are no user's: libraries, stacks and heaps.
const OWN_MAPPINGS: u64 = 4096;
/// The part of the memory that queues may take: one in this many bytes.
const QUEUE_MEMORY_PART: u64 = 4;
/// The part of the address space that is no user's, for heap, stacks, libraries and the gaps between mappings: one in this many.
const OWN_ADDRESS_PART: u64 = 8;
/// Accounts of one reply: 64 KiB hold them, with the longest names and the largest numbers.
const ACCOUNTS_AT_ONCE: usize = 32;
/// Maximum length of an owner's name in a reply, in characters.
const OWNER_MAX: usize = 200;

/// What an account belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccountBy {
    /// One account for each user id.
    #[default]
    User,
    /// One account for each control group (version 2); for root, in the root group, and where there is none, the user's.
    ControlGroup,
}

/// How much there is of each resource on a host with `devices` devices and `workers` workers that may open `descriptors`
/// descriptors.
pub(crate) fn capacities(devices: u32, workers: usize, descriptors: u64) -> Capacities {
    let devices = u64::from(devices);
    let per_device = |max: u32| u64::from(max) * devices;
    let descriptors = descriptors.saturating_sub(OWN_DESCRIPTORS);
    let mappings = max_map_count();
    let queue_bytes = memory_bytes() / QUEUE_MEMORY_PART;
    let address_space = address_space();
    Capacities::new(|resource| match resource {
        Resource::Channel | Resource::Dm | Resource::CmChannel | Resource::Descriptor => descriptors,
        Resource::Xrcd => descriptors.min(XRC_DOMAINS_MAX.into()),
        Resource::WorkerNumber => (WORKERS_MAX - workers.min(WORKERS_MAX)) as u64,
        Resource::Mapping => mappings,
        Resource::QueueBytes => queue_bytes,
        Resource::AddressSpace => address_space,
        Resource::Capture => devices * TAPS_MAX as u64,
        other => device_objects(other).map_or_else(|| fixed(other), per_device),
    })
}

/// How many objects a device has at most, of those that are limited for each device.
const fn device_objects(resource: Resource) -> Option<u32> {
    Some(match resource {
        Resource::Pd => LIMITS.max_pd,
        Resource::Mr => LIMITS.max_mr,
        Resource::Mw => LIMITS.max_mw,
        Resource::Cq => LIMITS.max_cq,
        Resource::Qp => LIMITS.max_qp,
        Resource::Srq => LIMITS.max_srq,
        Resource::Ah => LIMITS.max_ah,
        _ => return None,
    })
}

/// How much a host has of what depends on nothing.
fn fixed(resource: Resource) -> u64 {
    match resource {
        Resource::Session => SESSIONS_MAX as u64,
        Resource::Context => u64::from(CONTEXTS_MAX),
        Resource::Group => u64::from(GROUPS_MAX),
        Resource::GroupMember => u64::from(GROUPS_MAX) * u64::from(GROUP_QPS_MAX),
        Resource::GroupJoin => u64::from(GROUPS_MAX) * u64::from(GROUP_JOINS_MAX),
        Resource::Key => INDEX_MAX as u64,
        Resource::XrcSrq => XRC_SRQS_MAX.into(),
        Resource::CmId => CM_IDS_MAX,
        Resource::CmRequest => CM_REQUESTS_MAX,
        Resource::UnreadEvent => UNREAD_EVENTS_MAX,
        Resource::Port => PORTS_MAX,
        Resource::UrmaJfc => URMA_JFCS_MAX,
        Resource::UrmaRequest => URMA_REQUESTS_MAX,
        Resource::UrmaPeer => URMA_PEERS_MAX,
        other => unreachable!("{} have a capacity that was found before", other.words()),
    }
}

/// The mappings that users may have together: the kernel's limit less the daemon's own, at least half of the limit.
fn max_map_count() -> u64 {
    /// The kernel's default.
    const DEFAULT: u64 = 65_530;
    let limit = number_in(Path::new("/proc/sys/vm/max_map_count")).unwrap_or(DEFAULT);
    limit.saturating_sub(OWN_MAPPINGS).max(limit / 2)
}

/// Bytes of address space that users may have together: what this process may have, less the daemon's own part.
fn address_space() -> u64 {
    // Stacks lie at the upper end of the address space, whose length is a power of two.
    let local = 0u8;
    let end = (std::ptr::from_ref(&local).addr() as u64).next_power_of_two();
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current.unwrap_or(u64::MAX);
    let all = end.min(limit);
    all - all / OWN_ADDRESS_PART
}

/// The machine's memory, or the smaller limit of a control group above the daemon.
pub(crate) fn memory_bytes() -> u64 {
    memory_limit().0
}

/// How much of [`memory_bytes`] is in use.
pub(crate) fn memory_used() -> u64 {
    let (limit, group) = memory_limit();
    match group.and_then(|group| number_in(&group.join("memory.current"))) {
        Some(used) => used,
        None => limit.saturating_sub(memory_available().unwrap_or(limit)),
    }
}

/// The memory, and the control group that limits it; `None`: the machine does.
fn memory_limit() -> (u64, Option<PathBuf>) {
    let system = rustix::system::sysinfo();
    let all = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit));
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| group_of(&text));
    let group = group.unwrap_or_default();
    let groups =
        Path::new(group.trim_start_matches('/')).ancestors().map(|part| Path::new("/sys/fs/cgroup").join(part));
    let limits = groups.filter_map(|group| Some((number_in(&group.join("memory.max"))?, Some(group))));
    limits.fold((all, None), |least, limit| if limit.0 < least.0 { limit } else { least })
}

/// The machine's memory that is free or can be freed without writing it to a disk.
fn memory_available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The number in a file; `None` if it cannot be read or says `max`.
fn number_in(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The path of a control group (version 2) in the text of `/proc/PID/cgroup`.
fn group_of(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

impl Host {
    /// Whether control groups pay for their processes.
    pub fn counts_groups(&self) -> bool {
        self.account_by == AccountBy::ControlGroup
    }

    /// The account that pays for a process. Where control groups pay, whoever asks has to see afterwards that the process has not
    /// exited: its number, and so the group, may be another one's, or the user's account was found because there is no process.
    pub fn account_of(&self, process: ClientProcess) -> Account {
        let privileged = self.authority.sees_all(process.uid);
        let group = (self.counts_groups() && !privileged && process.pid != 0)
            .then(|| fs::read_to_string(format!("/proc/{}/cgroup", process.pid)).ok())
            .flatten()
            .and_then(|text| group_of(&text))
            .map(|group| ancestor(&group, self.account_depth))
            // All users' programs are in the root group where only groups of version 1 are used.
            .filter(|group| group != "/");
        let id = group.map_or_else(|| AccountId::User(self.owner_of(process.uid)), AccountId::ControlGroup);
        self.ledger.account(id, privileged)
    }

    /// The user whose share an id uses. Root and the daemon's user give ranges to users of their own.
    fn owner_of(&self, uid: u32) -> u32 {
        if self.authority.sees_all(uid) {
            return uid;
        }
        let owner = self
            .subordinate_ids
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .owner_of(uid, |why| tracing::warn!("{why}"));
        if self.authority.sees_all(owner) { uid } else { owner }
    }

    /// The accounts from number `from` on that a user may see, and how many are hidden.
    pub(crate) fn users(&self, viewer: &Account, viewer_uid: u32, from: u32) -> Response {
        let sees = |account: &AccountUse| match &account.id {
            AccountId::User(uid) => self.authority.may_see(viewer_uid, Some(*uid)),
            AccountId::ControlGroup(_) => self.authority.sees_all(viewer_uid) || account.id == *viewer.id(),
        };
        let (seen, hidden): (Vec<_>, Vec<_>) = self.ledger.uses(self.now().0).into_iter().partition(sees);
        let page: Vec<UserUse> = seen.iter().skip(from as usize).take(ACCOUNTS_AT_ONCE).map(user_use).collect();
        let end = from as usize + page.len();
        let next = (end < seen.len()).then_some(end as u32);
        Response::Users(UserPage { users: page, hidden: hidden.len() as u32, next })
    }
}

fn user_use(account: &AccountUse) -> UserUse {
    let resources = account.resources.iter().map(|r| UserResource { used: r.used, limit: r.limit });
    let places = account.places.iter().map(|place| UserResource { used: place.used, limit: place.limit });
    let WorkSum { turns, requests, bytes, .. } = account.work;
    UserUse {
        owner: account.id.to_string().chars().take(OWNER_MAX).collect(),
        privileged: account.privileged,
        refused: account.refused,
        control: UserTime { total_ns: account.control.total_ns, recent_share: account.control.recent_share },
        work: UserWork { turns, requests, bytes },
        resources: resources.collect(),
        places: places.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::XRC_HOLDS_MAX;
    use burst_cm::{CONNECTIONS_CHARGED, WORKER_QUEUE_MAX};
    use burst_engine::qpn::QPS_MAX;
    use burst_ledger::{OpenPool, PlaceOwner, Scope};
    use burst_urma::{OBJECTS_MAX, SEGMENTS_MAX};

    #[test]
    fn every_resource_has_a_capacity() {
        let all = capacities(1, 1, 1024);
        for resource in Resource::ALL {
            assert!(all.of(*resource) > 0, "{resource:?}");
        }
        assert_eq!(all.of(Resource::Descriptor), 960);
        assert_eq!(capacities(2, 1, 1024).of(Resource::Qp), 2 * u64::from(LIMITS.max_qp));
    }

    /// How much there is of a resource, for the table of the documents.
    fn capacity_words(resource: Resource) -> String {
        match resource {
            Resource::Channel | Resource::Dm | Resource::CmChannel | Resource::Descriptor => {
                "the daemon's limit of open files (LimitNOFILE=), less 64".into()
            }
            Resource::Capture => format!("{TAPS_MAX} for each device"),
            Resource::Xrcd => format!("as descriptors, {XRC_DOMAINS_MAX} at most"),
            Resource::WorkerNumber => format!("{WORKERS_MAX}, less the daemon's own"),
            Resource::Mapping => "vm.max_map_count, less 4,096".into(),
            Resource::QueueBytes => "a quarter of the memory".into(),
            Resource::AddressSpace => "seven eighths of a process's".into(),
            other => match device_objects(other) {
                Some(count) => format!("{count} for each device"),
                None => fixed(other).to_string(),
            },
        }
    }

    /// How many of a resource single objects have, for the same table.
    fn scope_words(resource: Resource) -> String {
        let words = |scope: &Scope| {
            let most = match (scope, resource) {
                (Scope::Device, _) => u64::from(device_objects(resource).expect("an object of a device")),
                (Scope::Port, Resource::Capture) => TAPS_MAX as u64,
                (Scope::Port, _) => GROUPS_MAX.into(),
                (Scope::Worker, Resource::Qp) => QPS_MAX.into(),
                (Scope::Worker, Resource::CmRequest) => WORKER_QUEUE_MAX as u64,
                (Scope::Worker, _) => CONNECTIONS_CHARGED.into(),
                (Scope::Group, Resource::GroupJoin) => GROUP_JOINS_MAX.into(),
                (Scope::Group, _) => GROUP_QPS_MAX.into(),
                (Scope::XrcTarget, _) => u64::from(XRC_HOLDS_MAX) - 1,
                (Scope::Node, Resource::Mw) => SEGMENTS_MAX as u64,
                (Scope::Node, _) => OBJECTS_MAX as u64,
            };
            let least = if resource == Resource::Group { " (`packet`: 64)" } else { "" };
            format!("{}: {most}{least}", scope.words())
        };
        resource.scopes().iter().map(words).collect::<Vec<_>>().join("; ")
    }

    /// The table of what others than users fill.
    fn pool_table() -> String {
        let mut table =
            "\n| name | what has a place | places | of one | when full |\n| --- | --- | --- | --- | --- |\n".to_owned();
        for pool in OpenPool::ALL {
            let (name, words, of, places) = (pool.name(), pool.words(), pool.of(), pool.places());
            let of_one = match pool.owner() {
                PlaceOwner::NoOwner => "".into(),
                _ => format!("{}: {}", pool.owner().words(), pool.of_one()),
            };
            table += &format!("| `{name}` | {words} | {of}: {places} | {of_one} | {} |\n", pool.when_full());
        }
        table
    }

    #[test]
    fn the_table_in_the_documents_is_that_of_the_ledger() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/threats.md");
        let found = std::fs::read_to_string(path).expect("docs/threats.md");
        let (begin, end) = ("<!-- cargo test -p burst-host: resources -->\n", "<!-- end -->");
        let (before, rest) = found.split_once(begin).expect("the begin of the table");
        let (_, after) = rest.split_once(end).expect("the end of the table");
        let mut table =
            "\n| name | what is counted | capacity | in single objects |\n| --- | --- | --- | --- |\n".to_owned();
        for resource in Resource::ALL {
            let (name, words) = (resource.name(), resource.words());
            let (capacity, scopes) = (capacity_words(*resource), scope_words(*resource));
            table += &format!("| `{name}` | {words} | {capacity} | {scopes} |\n");
        }
        let want = format!("{before}{begin}{table}\n{end}{after}");
        let (begin, end) = ("<!-- cargo test -p burst-host: pools -->\n", "<!-- end of pools -->");
        let (before, rest) = want.split_once(begin).expect("the begin of the second table");
        let (_, after) = rest.split_once(end).expect("the end of the second table");
        let want = format!("{before}{begin}{}\n{end}{after}", pool_table());
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, &want).expect("write docs/threats.md");
            return;
        }
        assert!(found == want, "docs/threats.md is stale: run BLESS=1 cargo test -p burst-host the_table");
    }

    #[test]
    fn the_control_group_is_that_of_version_2() {
        assert_eq!(group_of("12:cpu:/a\n0::/user.slice/x.scope\n").as_deref(), Some("/user.slice/x.scope"));
        assert_eq!(group_of("12:cpu:/a\n"), None);
    }
}
