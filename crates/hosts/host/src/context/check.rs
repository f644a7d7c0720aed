//! What must hold of the objects of a context between two requests: each count of users is the number of objects that refer.
//!
//! Debug builds check it after each request while a context has few objects, so that the tests of hosts and daemons, those with
//! random requests and with failing allocations among them, find a count that drifts where it drifts. Nothing is stored for it.

use super::handles::HandleTable;
use super::state::{Context, InUse};
use burst_base::verbs::QpType;
use burst_engine::objects::NO_DOORBELL;
use std::collections::{BTreeMap, BTreeSet};

/// Objects of a context that are checked after each request: a context with thousands is not walked each time.
const OBJECTS_CHECKED: usize = 64;

/// How many objects refer to each handle of one kind.
type Users = BTreeMap<u32, u32>;

fn count(handles: impl Iterator<Item = u32>) -> Users {
    let mut users = Users::new();
    handles.for_each(|handle| *users.entry(handle).or_default() += 1);
    users
}

/// The counts of a table are those of the references, and each reference names an object.
fn check_users<T>(table: &HandleTable<InUse<T>>, mut users: Users, kind: &str) {
    for (handle, object) in table.iter() {
        let referring = users.remove(&handle).unwrap_or(0);
        assert_eq!(object.users, referring, "{kind} {handle}: the count of its users");
    }
    assert!(users.is_empty(), "objects refer to a {kind} that has ended: {users:?}");
}

/// Checks the tables in debug builds, if the context has few objects.
///
/// # Panics
/// If a count or a reference is wrong.
pub(crate) fn check(context: &Context) {
    if !cfg!(debug_assertions) {
        return;
    }
    let objects = [
        context.mrs.len(),
        context.qps.len(),
        context.ahs.len(),
        context.mws.len(),
        context.srqs.len(),
        context.cqs.len(),
    ];
    let urma = context.urma.as_ref().map_or(0, |urma| urma.objects());
    if objects.iter().sum::<usize>() + context.pds.len() + context.channels.len() + urma > OBJECTS_CHECKED {
        return;
    }
    check_references(context);
    check_numbers(context);
    check_places(context);
    // Its end releases the counts in parts.
    context.urma.iter().filter(|urma| !urma.is_ending()).for_each(|urma| urma.check());
}

fn check_references(context: &Context) {
    let with_queues = || context.qps.values().filter(|qp| qp.qp_type != QpType::XrcRecv);
    let regions = context.mrs.values().filter(|mr| mr.holds_pd()).map(|mr| mr.pd);
    let pds = regions.chain(with_queues().map(|qp| qp.pd));
    let pds = pds.chain(context.srqs.values().map(|srq| srq.object.pd));
    let pds = pds.chain(context.ahs.values().map(|ah| ah.pd)).chain(context.mws.values().map(|mw| mw.pd));
    check_users(&context.pds, count(pds), "protection domain");

    let domains = || context.srqs.values().filter_map(|srq| srq.object.domain.as_ref());
    let cqs = with_queues().flat_map(|qp| [qp.send_cq, qp.recv_cq]).chain(domains().map(|of| of.cq));
    let cqs = cqs.chain(context.urma.iter().flat_map(|urma| urma.cqs_in_use()));
    check_users(&context.cqs, count(cqs), "completion queue");

    check_users(&context.srqs, count(with_queues().filter_map(|qp| qp.srq)), "shared receive queue");
    check_users(
        &context.channels,
        count(context.cqs.values().filter_map(|cq| cq.object.channel)),
        "completion channel",
    );
    let xrcds = context.qps.values().filter_map(|qp| qp.xrcd).chain(domains().map(|of| of.xrcd));
    check_users(&context.xrcds, count(xrcds), "XRC domain");
}

/// No two objects have the same key, queue pair number or doorbell.
fn check_numbers(context: &Context) {
    let mut keys = BTreeSet::new();
    let all = context.mrs.values().map(|mr| mr.key).chain(context.mws.values().map(|mw| mw.key));
    all.for_each(|key| assert!(keys.insert(key), "key {key:#x} is of two objects"));
    let mut doorbells = BTreeSet::new();
    let mut targets = 0;
    for qp in context.qps.values() {
        assert_eq!(qp.qp_type == QpType::XrcRecv, qp.xrcd.is_some(), "XRC targets have a domain, others none");
        assert_eq!(qp.place.is_none(), qp.doorbell == NO_DOORBELL, "queues have a doorbell");
        assert!(qp.groups.is_empty() || qp.qp_type == QpType::Ud, "only datagrams have groups");
        let is_new = qp.doorbell == NO_DOORBELL || doorbells.insert((qp.worker, qp.doorbell));
        assert!(is_new, "doorbell {} of worker {} is of two queue pairs", qp.doorbell, qp.worker);
        targets += u32::from(qp.hold != 0);
    }
    assert_eq!(targets, context.targets_open, "XRC targets that it opened");
    for (worker, numbers) in context.doorbells.iter().enumerate() {
        let queue_pairs = doorbells.iter().filter(|(of, _)| *of == worker).count();
        let urma = context.urma.iter().filter(|urma| urma.worker() == worker).count();
        assert_eq!(numbers.taken() as usize, queue_pairs + urma, "doorbells of worker {worker}");
        assert!(numbers.taken_end() <= context.doorbell_room[worker], "a doorbell without room at worker {worker}");
    }
    for (handle, ah) in context.ahs.iter() {
        assert_eq!(ah.number, handle, "an address handle's number is its handle");
    }
}

/// No two queues lie at the same place of the arena, and each ring has a charge.
fn check_places(context: &Context) {
    let mut places = BTreeSet::new();
    let mut add = |place: burst_shm::ShmRef| {
        assert!((place.segment as usize) < context.arena.segments(), "a queue outside of the arena: {place:?}");
        assert!(places.insert((place.segment, place.offset)), "two queues at {place:?}");
    };
    context.qps.values().filter_map(|qp| qp.place).for_each(&mut add);
    context.srqs.values().for_each(|srq| add(srq.object.place));
    for cq in context.cqs.values() {
        let cq = &cq.object;
        cq.old.iter().chain([&cq.place]).for_each(|place| add(*place));
        assert_eq!(cq.rings.len(), cq.old.len() + 1, "a charge for each ring of a completion queue");
    }
    assert!(!context.segment_charges.is_empty(), "segments without a charge");
}
