//! The ids and event channels of one program.

use super::id::{CmIdStage, HostCmId};
use crate::authority::{Caller, ClientProcess};
use crate::host::Host;
use crate::refusal::{refuse, system};
use crate::reply::ReplyParts;
use crate::session_number::SessionNumber;
use burst_base::verbs::QpType;
use burst_cm::Fold;
use burst_control::cm::{CmEvent, CmEventKind, CmId, CmIdOption, CmReply, CmRoute, DAEMON_IDS, PortSpace};
use burst_control::{Refusal, Response};
use burst_engine::gsi::{CmChannel, CmEntry, CmJob, CmPlaces, CmProgram, CmSession};
use burst_ledger::{Charge, Resource};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Maximum number of ids of one program.
const IDS_MAX: usize = 1 << 17;
/// Maximum number of event channels of one program.
const CHANNELS_MAX: usize = 4096;
/// Maximum length of a program's name in characters, so that a page of connections fits into one message.
const NAME_MAX: usize = 32;

/// The connection management of one program.
#[derive(Debug)]
pub struct CmClient {
    pub(super) session: Arc<CmSession>,
    /// The program's process.
    pub(super) caller: Caller,
    channels: HashMap<u32, (Arc<CmChannel>, Charge), Fold>,
    pub(super) ids: HashMap<CmId, HostCmId, Fold>,
    /// The ids that listen.
    pub(super) listening: BTreeSet<CmId>,
    /// The number of the program's session.
    pub(super) number: SessionNumber,
    /// The ids that have not ended, after the program has exited.
    ending: Option<std::collections::hash_map::IntoIter<CmId, HostCmId>>,
}

/// The attributes of a new id (`rdma_create_id`).
pub(super) struct NewCmId {
    /// The program's number of the id.
    pub id: CmId,
    /// Its event channel.
    pub channel: u32,
    /// Its port space.
    pub ps: PortSpace,
    /// The type of its queue pair.
    pub qp_type: QpType,
}

impl CmClient {
    /// Connection management for a process, which runs `program`.
    pub fn new(program: &str, caller: Caller, number: SessionNumber, workers: Arc<[CmPlaces]>) -> CmClient {
        let name = program.chars().filter(char::is_ascii).take(NAME_MAX).collect();
        let ClientProcess { pid, uid } = caller.process;
        let program = CmProgram { name, pid, uid };
        let session = CmSession::of(program, &caller.account, workers);
        CmClient {
            session: Arc::new(session),
            caller,
            channels: HashMap::default(),
            ids: HashMap::default(),
            listening: BTreeSet::new(),
            number,
            ending: None,
        }
    }

    /// Creates an event channel.
    ///
    /// # Errors
    /// EMFILE: the program has too many. EEXIST: the number is in use. Otherwise the system's errno.
    pub fn create_channel(&mut self, channel: u32) -> Result<ReplyParts, Refusal> {
        if self.channels.len() >= CHANNELS_MAX {
            return refuse(libc::EMFILE, format!("a program has at most {CHANNELS_MAX} event channels"));
        }
        let Entry::Vacant(place) = self.channels.entry(channel) else {
            return refuse(libc::EEXIST, format!("event channel {channel} exists"));
        };
        let charge = self.caller.charge(&[(Resource::CmChannel, 1), (Resource::Descriptor, 2)])?;
        let made = CmChannel::of(&self.session).map_err(system("make an event channel"))?;
        let end = made.end().map_err(system("share an event channel"))?;
        place.insert((Arc::new(made), charge));
        Ok(ReplyParts::with_fds(Response::Done, vec![end]))
    }

    /// Destroys an event channel. Later events of ids that still use it are discarded.
    ///
    /// # Errors
    /// EINVAL: there is no such channel.
    pub fn close_channel(&mut self, channel: u32) -> Result<ReplyParts, Refusal> {
        match self.channels.remove(&channel) {
            Some((ended, _charge)) => {
                ended.close();
                Ok(Response::Done.into())
            }
            None => refuse(libc::EINVAL, format!("there is no event channel {channel}")),
        }
    }

    /// Takes over the ids that workers created for connection requests since the last call.
    fn take_arrivals(&mut self, host: &mut Host) {
        while let Some(entry) = self.session.arrivals.pop() {
            debug_assert!(entry.id >= DAEMON_IDS);
            let Some(charge) = entry.take_charge() else {
                debug_assert!(false, "a worker made an id that costs nothing");
                reject_arrival(host, entry);
                continue;
            };
            host.cm.ids += 1;
            let route = entry.route.get().copied().unwrap_or_default();
            self.ids.insert(entry.id, HostCmId::new(entry, CmIdStage::Requested, route, charge));
        }
    }

    /// An id of the program.
    pub(super) fn id(&mut self, id: CmId) -> Result<&mut HostCmId, Refusal> {
        match self.ids.get_mut(&id) {
            Some(found) => Ok(found),
            None => refuse(libc::EINVAL, format!("there is no id {id}")),
        }
    }

    /// An id of the program, which a worker may have created for a connection request.
    pub(super) fn arrived(&mut self, host: &mut Host, id: CmId) -> Result<&mut HostCmId, Refusal> {
        if id >= DAEMON_IDS && !self.ids.contains_key(&id) {
            self.take_arrivals(host);
        }
        self.id(id)
    }

    fn channel(&self, channel: u32) -> Result<Arc<CmChannel>, Refusal> {
        self.channels.get(&channel).map_or_else(
            || refuse(libc::EINVAL, format!("there is no event channel {channel}")),
            |(c, _)| Ok(c.clone()),
        )
    }

    /// Creates an id.
    pub(super) fn create(&mut self, host: &mut Host, new: &NewCmId) -> Result<CmReply, Refusal> {
        let NewCmId { id, channel, ps, qp_type } = *new;
        let channel = self.channel(channel)?;
        let datagrams = qp_type == QpType::Ud;
        if matches!((ps, datagrams), (PortSpace::Tcp, true) | (PortSpace::Udp, false)) {
            return refuse(libc::EINVAL, "the port space does not go with the queue pair type");
        }
        if self.ids.len() >= IDS_MAX {
            return refuse(libc::ENOMEM, format!("a program has at most {IDS_MAX} ids"));
        }
        if id >= DAEMON_IDS || self.ids.contains_key(&id) {
            return refuse(libc::EEXIST, format!("id {id} exists, or is reserved for connection requests"));
        }
        let charge = self.caller.charge(&[(Resource::CmId, 1)])?;
        let entry = Arc::new(CmEntry::new(self.session.clone(), id, ps, qp_type, channel));
        self.ids.insert(id, HostCmId::new(entry, CmIdStage::Idle, CmRoute::default(), charge));
        host.cm.ids += 1;
        Ok(CmReply::Done)
    }

    /// Destroys an id. `read` is how many of its events the program has read. `without_reply`: the command came without a
    /// reply, by which the program says that none of its events is unread.
    pub(super) fn destroy(
        &mut self,
        host: &mut Host,
        id: CmId,
        read: u32,
        without_reply: bool,
    ) -> Result<CmReply, Refusal> {
        self.arrived(host, id)?;
        if let Some(gone) = self.ids.remove(&id) {
            let entry = gone.entry.clone();
            self.end_id(host, gone);
            if !without_reply {
                self.remove_unread_events(host, &entry, read);
            }
        }
        Ok(CmReply::Done)
    }

    /// Removes the unread events of a destroyed id from its channel. The program has read `read` of them. Connection requests
    /// among them can never be accepted: their ids end too.
    fn remove_unread_events(&mut self, host: &mut Host, entry: &Arc<CmEntry>, read: u32) {
        let channel = entry.channel();
        if channel.unread_of(entry, read) == 0 {
            return;
        }
        host.cm.write_events();
        // The id has ended: workers write no more events of it.
        let taken = channel.take_records(channel.unread_of(entry, read), |e| entry.is_of(e));
        for request in taken.iter().filter_map(CmEvent::from_bytes).filter(|e| e.kind == CmEventKind::ConnectRequest) {
            self.take_arrivals(host);
            if let Some(gone) = self.ids.remove(&request.id) {
                self.end_id(host, gone);
            }
        }
    }

    /// Moves an id to another event channel (`rdma_migrate_id`), with its unread events. The ids of unread connection requests
    /// of a listener move too.
    pub(super) fn migrate(&mut self, host: &mut Host, id: CmId, channel: u32) -> Result<CmReply, Refusal> {
        let to = self.channel(channel)?;
        let id = self.arrived(host, id)?;
        let (entry, listens) = (id.entry.clone(), id.stage == CmIdStage::Listening);
        host.cm.write_events();
        let from = entry.channel();
        if Arc::ptr_eq(&from, &to) {
            return Ok(CmReply::Done);
        }
        // Most move while the workers go on.
        let records = entry.records();
        let (mut requests, mut lost) = entry.move_records(&from, &to);
        let rest = move |entry: &CmEntry, from: &CmChannel, to: &CmChannel| {
            if entry.records() == records { (Vec::new(), 0) } else { entry.move_records(from, to) }
        };
        let later = if listens {
            // All workers know a listener. Its events are requests for ids of their own, which have no order among each other, so
            // it is enough that each worker has ended its pass. None waits for another one.
            entry.set_channel(&to);
            host.on_all(|_| ());
            rest(&entry, &from, &to)
        } else {
            // The worker is between two passes, so that it is not writing to the old channel, and what is left comes first.
            let (worker, target) = (entry.worker.load(Ordering::Relaxed) as usize, to.clone());
            host.on_worker(worker, move |_, _| {
                entry.set_channel(&target);
                rest(&entry, &from, &target)
            })
        };
        requests.extend(later.0);
        lost += later.1;
        host.cm.lost += lost;
        if to.has_backlog() {
            host.cm.job(0, CmJob::Retry(to.clone()));
        }
        self.take_arrivals(host);
        for id in requests.iter().filter_map(|id| self.ids.get(id)) {
            // No event of the new id is written before it is accepted.
            *id.entry.channel.lock().unwrap_or_else(|e| e.into_inner()) = to.clone();
        }
        Ok(CmReply::Done)
    }

    /// Sets an option (`rdma_set_option`). As in the kernel, some options can be set only in some states.
    pub(super) fn set_option(&mut self, host: &mut Host, id: CmId, option: CmIdOption) -> Result<CmReply, Refusal> {
        let id = self.arrived(host, id)?;
        let acknowledged = matches!(id.entry.qp_type, QpType::Rc | QpType::XrcSend);
        match option {
            CmIdOption::ReuseAddr(true) | CmIdOption::AfOnly(_) if id.stage == CmIdStage::Listening => {
                return refuse(libc::EINVAL, "the id listens: set the option before");
            }
            CmIdOption::AfOnly(_) if id.stage != CmIdStage::Idle => {
                return refuse(libc::EINVAL, "the id has its address: set the option before");
            }
            CmIdOption::AckTimeout(_) if !acknowledged => {
                return refuse(libc::EINVAL, "only IBV_QPT_RC and IBV_QPT_XRC_SEND have an ACK timeout");
            }
            CmIdOption::Tos(tos) => {
                id.options.tos = tos;
                id.route.traffic_class = tos;
            }
            CmIdOption::ReuseAddr(on) => id.options.reuse = on,
            CmIdOption::AfOnly(on) => id.options.only_v6 = on,
            CmIdOption::AckTimeout(code) if code < 32 => id.options.ack_timeout = Some(code),
            CmIdOption::AckTimeout(code) => return refuse(libc::EINVAL, format!("{code} is no timeout code")),
        }
        Ok(CmReply::Done)
    }

    /// Returns the memory of ended ids to the heap.
    pub fn shrink(&mut self) {
        self.ids.shrink_to_fit();
    }

    /// Ends ids, at most `budget` of them: the program has exited. Peers of connected ids are disconnected. Returns true when all
    /// ids have ended. Listeners end first, so that another program can listen on their ports.
    pub fn end_some(&mut self, host: &mut Host, budget: usize) -> bool {
        let over = self.end_ids(host, budget);
        if over {
            self.channels.values().for_each(|(channel, _)| channel.close());
        }
        over
    }

    /// Releases about `budget` ids: their peers learn that their connections have ended. The event channels stay. Returns true
    /// when all have been released. A call with a budget takes as long with a thousand ids left as with one.
    pub fn end_ids(&mut self, host: &mut Host, budget: usize) -> bool {
        if self.ending.is_none() {
            self.session.end();
            host.note_ended(self.session.backlog_len());
            if !self.listening.is_empty() {
                // No worker creates an id for a session that has ended. When this returns, none is about to.
                host.on_all(|_| ());
            }
        }
        if !self.listening.is_empty() {
            self.end_listeners(host, budget.max(1));
            return false;
        }
        let mut left = budget.max(1);
        while left > 0 {
            let ids = &mut self.ids;
            match self.ending.get_or_insert_with(|| std::mem::take(ids).into_iter()).next() {
                Some((_, gone)) => {
                    // It leaves each of its groups.
                    left = left.saturating_sub(gone.groups.len());
                    self.end_id(host, gone);
                }
                // Ids of connection requests that the program has never seen.
                None => match self.session.arrivals.pop() {
                    Some(entry) => reject_arrival(host, entry),
                    None => return true,
                },
            }
            left = left.saturating_sub(1);
        }
        false
    }

    /// Ends up to `budget` listeners of a program that has exited: together, because the workers stand meanwhile.
    fn end_listeners(&mut self, host: &mut Host, budget: usize) {
        let numbers: Vec<CmId> = std::iter::from_fn(|| self.listening.pop_first()).take(budget).collect();
        let mut gone: Vec<HostCmId> = numbers.iter().filter_map(|number| self.ids.remove(number)).collect();
        let ended: Vec<_> = gone.iter().filter_map(listener).collect();
        host.on_all(move |w| ended.iter().for_each(|(entry, port)| w.cm_unlisten(entry, *port)));
        for mut id in gone.drain(..) {
            host.cm.listeners -= 1;
            id.stage = CmIdStage::Idle;
            self.end_id(host, id);
        }
    }

    /// Releases everything that an id holds.
    fn end_id(&mut self, host: &mut Host, id: HostCmId) {
        let number = id.entry.id;
        if let Some(wait) = &id.wait {
            host.cm.waits.remove((self.number, number), wait);
        }
        self.listening.remove(&number);
        end_id(host, id);
    }
}

/// Rejects a connection request that no program will see. The id is charged until the worker has forgotten the connection.
fn reject_arrival(host: &mut Host, entry: Arc<CmEntry>) {
    entry.end();
    let worker = entry.worker.load(Ordering::Relaxed);
    let charge = entry.take_charge().map(|charge| Box::new(charge) as _);
    host.cm.job(worker, CmJob::Destroy(entry, charge));
}

/// A listener as workers know it: the id, and its port.
fn listener(id: &HostCmId) -> Option<(Arc<CmEntry>, u16)> {
    Some((id.entry.clone(), id.binding.as_ref()?.port))
}

/// Releases everything that an id holds.
fn end_id(host: &mut Host, id: HostCmId) {
    assert!(host.cm.ids > 0, "an id that was not counted");
    host.cm.ids -= 1;
    host.note_ended(1);
    if id.stage == CmIdStage::Listening
        && let Some((entry, port)) = listener(&id)
    {
        // Before the entry ends: a worker drops events of ended entries, and a request delivered at this moment would be lost.
        host.on_all(move |w| w.cm_unlisten(&entry, port));
    }
    id.entry.end();
    if let Some(binding) = &id.binding {
        host.cm.ports.release(binding);
    }
    if let Some(wait) = &id.wait {
        host.cm.hops.leave(&wait.hop);
    }
    for (device, addr) in &id.groups {
        host.leave(id.charge.account(), *device, addr.ip);
    }
    match id.stage {
        CmIdStage::Listening => host.cm.listeners -= 1,
        CmIdStage::Connected | CmIdStage::Requested => {
            let worker = id.entry.worker.load(Ordering::Relaxed);
            host.cm.job(worker, CmJob::Destroy(id.entry, Some(Box::new(id.charge))));
        }
        CmIdStage::Idle | CmIdStage::Resolving | CmIdStage::Addressed => {}
    }
}
