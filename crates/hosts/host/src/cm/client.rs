//! The ids and channels of one program.

use super::ports::PortBinding;
use super::waits::{HopWait, HopWaits};
use crate::context::ReplyParts;
use crate::host::Host;
use crate::session::refuse;
use burst_base::DeviceId;
use burst_base::verbs::QpType;
use burst_cm::Fold;
use burst_control::cm::{
    CM_COMMANDS_MAX, CmAddr, CmCommand, CmEvent, CmEventKind, CmId, CmIdOption, CmReply, CmRoute, DAEMON_IDS, PortSpace,
};
use burst_control::{Refusal, Response};
use burst_engine::gsi::{CmChannel, CmEntry, CmJob, CmSession};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Ids of one program.
const IDS_MAX: usize = 1 << 17;
/// Channels of one program.
const CHANNELS_MAX: usize = 4096;

/// How far an id has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CmIdStage {
    /// Created, perhaps bound.
    Idle,
    /// It waits for the next hop to its destination.
    AddrResolution,
    /// It knows device and destination.
    Addressed,
    /// It listens.
    Listening,
    /// A worker has its connection, or had it.
    Connected,
    /// A request that came, not yet answered.
    Requested,
}

/// CmIdOptions of an id.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CmIdOptions {
    pub tos: u8,
    pub reuse: bool,
    pub only_v6: bool,
    pub ack_timeout: Option<u8>,
}

/// One id.
#[derive(Debug)]
pub(super) struct HostCmId {
    pub entry: Arc<CmEntry>,
    pub stage: CmIdStage,
    pub route: CmRoute,
    pub options: CmIdOptions,
    pub binding: Option<PortBinding>,
    /// What it waits for, while it is resolved.
    pub wait: Option<Box<HopWait>>,
    /// Multicast groups that it has joined, by device.
    pub groups: Vec<(DeviceId, CmAddr)>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct CmClient {
    pub(super) session: Arc<CmSession>,
    channels: HashMap<u32, Arc<CmChannel>, Fold>,
    pub(super) ids: HashMap<CmId, HostCmId, Fold>,
    /// Those of them that wait for a next hop.
    pub(super) waits: HopWaits,
}

pub(super) fn system(what: &'static str) -> impl Fn(std::io::Error) -> Refusal {
    move |e| Refusal { errno: e.raw_os_error().unwrap_or(libc::EIO), sentence: format!("cannot {what}: {e}") }
}

impl CmClient {
    /// Of a program.
    pub fn new(program: &str, pid: u32) -> CmClient {
        let client = CmClient::default();
        // Short, so that a page of connections fits into a message.
        let program = program.chars().filter(char::is_ascii).take(32).collect();
        // Set once: the session has just been made.
        let _ = client.session.who.set((program, pid));
        client
    }

    /// A new event channel.
    pub fn create_channel(&mut self, channel: u32) -> Result<ReplyParts, Refusal> {
        if self.channels.len() >= CHANNELS_MAX {
            return refuse(libc::EMFILE, format!("a program has at most {CHANNELS_MAX} event channels"));
        }
        let Entry::Vacant(place) = self.channels.entry(channel) else {
            return refuse(libc::EEXIST, format!("event channel {channel} exists"));
        };
        let made = CmChannel::of(&self.session).map_err(system("make an event channel"))?;
        let end = made.end().map_err(system("share an event channel"))?;
        place.insert(Arc::new(made));
        Ok(ReplyParts { response: Response::Done, fds: vec![end], segments: Vec::new() })
    }

    /// Ends a channel; ids that still use it write into the void.
    pub fn close_channel(&mut self, channel: u32) -> Result<ReplyParts, Refusal> {
        match self.channels.remove(&channel) {
            Some(ended) => {
                ended.close();
                Ok(Response::Done.into())
            }
            None => refuse(libc::EINVAL, format!("there is no event channel {channel}")),
        }
    }

    /// Carries out operations in order. One reply each.
    pub fn carry_out(&mut self, host: &mut Host, ops: &[CmCommand]) -> Vec<CmReply> {
        if ops.len() > CM_COMMANDS_MAX {
            let sentence = format!("more than {CM_COMMANDS_MAX} operations in one request");
            return vec![CmReply::Failed { errno: libc::E2BIG, sentence }];
        }
        ops.iter().map(|op| self.one(host, op, false).unwrap_or_else(|refusal| refused(host, op, refusal))).collect()
    }

    /// Carries out a wish: a failure becomes an event.
    pub fn wish(&mut self, host: &mut Host, op: &CmCommand) {
        let Err(refusal) = self.one(host, op, true) else { return };
        let (status, sentence) = (-refusal.errno, refusal.sentence.clone());
        refused(host, op, refusal);
        if let (Some(kind), Some(id)) = (op.failure_event(), self.ids.get(&op.id())) {
            let event = CmEvent { status, route: id.route, ..CmEvent::new(kind, id.entry.id) };
            host.cm.write(&id.entry, &event.with_sentence(&sentence));
        }
    }

    fn one(&mut self, host: &mut Host, op: &CmCommand, quiet: bool) -> Result<CmReply, Refusal> {
        match *op {
            CmCommand::Create { id, channel, ps, qp_type } => self.create(host, id, channel, ps, qp_type),
            CmCommand::Destroy { id, read } => self.destroy(host, id, read, quiet),
            CmCommand::Migrate { id, channel } => self.migrate(host, id, channel),
            CmCommand::Bind { id, addr } => self.bind(host, id, addr),
            CmCommand::ResolveAddr { id, src, dst, timeout_ms } => self.resolve_addr(host, id, (src, dst), timeout_ms),
            CmCommand::ResolveRoute { id, .. } => self.resolve_route(host, id),
            CmCommand::Connect { id, qp, ref param } => self.connect(host, id, qp, param),
            CmCommand::Listen { id, backlog } => self.listen(host, id, backlog),
            CmCommand::Accept { id, qp, ref param } => self.accept(host, id, qp, param),
            CmCommand::Reject { id, reason, ref data } => self.reject(host, id, reason, data),
            CmCommand::Establish { id } => self.pass_on(host, id, CmJob::Establish),
            CmCommand::Notify { id } => self.pass_on(host, id, CmJob::Notify),
            CmCommand::Disconnect { id } => self.disconnect(host, id),
            CmCommand::SetOption { id, option } => self.set_option(host, id, option),
            CmCommand::Join { id, addr, cookie } => self.join(host, id, addr, cookie),
            CmCommand::Leave { id, addr } => self.leave(host, id, addr),
            CmCommand::Query { id } => Ok(CmReply::Route(self.id(id)?.route)),
            CmCommand::QueryConn { .. } => refuse(libc::EOPNOTSUPP, "the connection's attributes are in its events"),
        }
    }

    /// Ids that came with requests since the last look.
    fn take_arrivals(&mut self, host: &mut Host) {
        while let Some(entry) = self.session.arrivals.pop() {
            host.cm.ids += 1;
            let route = entry.route.get().copied().unwrap_or_default();
            let id = HostCmId {
                stage: CmIdStage::Requested,
                route,
                options: CmIdOptions::default(),
                binding: None,
                wait: None,
                groups: Vec::new(),
                entry,
            };
            self.ids.insert(id.entry.id, id);
        }
    }

    pub(super) fn id(&mut self, id: CmId) -> Result<&mut HostCmId, Refusal> {
        match self.ids.get_mut(&id) {
            Some(found) => Ok(found),
            None => refuse(libc::EINVAL, format!("there is no id {id}")),
        }
    }

    /// An id that may have come with a request.
    pub(super) fn arrived(&mut self, host: &mut Host, id: CmId) -> Result<&mut HostCmId, Refusal> {
        if id >= DAEMON_IDS && !self.ids.contains_key(&id) {
            self.take_arrivals(host);
        }
        self.id(id)
    }

    fn channel(&self, channel: u32) -> Result<Arc<CmChannel>, Refusal> {
        self.channels
            .get(&channel)
            .map_or_else(|| refuse(libc::EINVAL, format!("there is no event channel {channel}")), |c| Ok(c.clone()))
    }

    fn create(
        &mut self,
        host: &mut Host,
        id: CmId,
        channel: u32,
        ps: PortSpace,
        qp_type: QpType,
    ) -> Result<CmReply, Refusal> {
        let channel = self.channel(channel)?;
        let datagrams = qp_type == QpType::Ud;
        if matches!((ps, datagrams), (PortSpace::Tcp, true) | (PortSpace::Udp, false)) {
            return refuse(libc::EINVAL, "the port space does not go with the queue pair type");
        }
        if self.ids.len() >= IDS_MAX {
            return refuse(libc::ENOMEM, format!("a program has at most {IDS_MAX} ids"));
        }
        if id >= DAEMON_IDS || self.ids.contains_key(&id) {
            return refuse(libc::EEXIST, format!("id {id} is taken, or not for programs to choose"));
        }
        let entry = Arc::new(CmEntry::new(self.session.clone(), id, ps, qp_type, channel));
        let route = CmRoute::default();
        let (stage, options) = (CmIdStage::Idle, CmIdOptions::default());
        self.ids.insert(id, HostCmId { entry, stage, route, options, binding: None, wait: None, groups: Vec::new() });
        host.cm.ids += 1;
        Ok(CmReply::Done)
    }

    fn destroy(&mut self, host: &mut Host, id: CmId, read: u32, quiet: bool) -> Result<CmReply, Refusal> {
        self.arrived(host, id)?;
        if let Some(gone) = self.ids.remove(&id) {
            let entry = gone.entry.clone();
            if let Some(wait) = &gone.wait {
                self.waits.remove(id, wait);
            }
            end_id(host, gone);
            // A quiet wish says that nothing is unread.
            if !quiet {
                self.take_back_events(host, &entry, read);
            }
        }
        Ok(CmReply::Done)
    }

    /// Takes the unread events of an id that has ended out of its channel; nobody will accept the requests among them. The
    /// program has read so many.
    fn take_back_events(&mut self, host: &mut Host, entry: &Arc<CmEntry>, read: u32) {
        let channel = entry.channel();
        if channel.unread_of(entry, read) == 0 {
            return;
        }
        host.cm.write_events();
        // The id is over: what a worker has not written yet it does not write any more.
        let taken = channel.take_records(channel.unread_of(entry, read), |e| entry.is_of(e));
        for request in taken.iter().filter_map(CmEvent::from_bytes).filter(|e| e.kind == CmEventKind::ConnectRequest) {
            self.take_arrivals(host);
            if let Some(gone) = self.ids.remove(&request.id) {
                end_id(host, gone);
            }
        }
    }

    /// The events not yet read go along, and so do the ids of a listener's requests among them.
    fn migrate(&mut self, host: &mut Host, id: CmId, channel: u32) -> Result<CmReply, Refusal> {
        let to = self.channel(channel)?;
        let id = self.arrived(host, id)?;
        let (entry, listens) = (id.entry.clone(), id.stage == CmIdStage::Listening);
        host.cm.write_events();
        // Between two passes of its worker, so that no event is on its way into the old channel. A listener has all workers.
        let worker = entry.worker.load(Ordering::Relaxed) as usize;
        let target = to.clone();
        let (requests, lost) = if listens {
            host.while_all_stand(move |_| entry.migrate(&target))
        } else {
            host.on_worker(worker, move |_, _| entry.migrate(&target))
        };
        host.cm.lost += lost;
        if to.has_backlog() {
            host.cm.job(0, CmJob::Retry(to.clone()));
        }
        self.take_arrivals(host);
        for id in requests.iter().filter_map(|id| self.ids.get(id)) {
            // Nothing is written of it before it is accepted.
            *id.entry.channel.lock().unwrap_or_else(|e| e.into_inner()) = to.clone();
        }
        Ok(CmReply::Done)
    }

    /// Each has its time, as the kernel has it.
    fn set_option(&mut self, host: &mut Host, id: CmId, option: CmIdOption) -> Result<CmReply, Refusal> {
        let id = self.arrived(host, id)?;
        let acknowledged = matches!(id.entry.qp_type, QpType::Rc | QpType::XrcSend);
        match option {
            CmIdOption::ReuseAddr(true) | CmIdOption::AfOnly(_) if id.stage == CmIdStage::Listening => {
                return refuse(libc::EINVAL, "the id listens: say it before");
            }
            CmIdOption::AfOnly(_) if id.stage != CmIdStage::Idle => {
                return refuse(libc::EINVAL, "the id has its address: say it before");
            }
            CmIdOption::AckTimeout(_) if !acknowledged => {
                return refuse(libc::EINVAL, "ACK timeouts are of IBV_QPT_RC and IBV_QPT_XRC_SEND");
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

    /// Gives back the room of ids that are gone.
    pub fn shrink(&mut self) {
        self.ids.shrink_to_fit();
    }

    /// The program has gone: its peers are told.
    pub fn end(&mut self, host: &mut Host) {
        self.session.end();
        host.trimmer.ended(self.session.owed());
        if self.ids.values().any(|id| id.stage == CmIdStage::Listening) {
            // When this returns no worker makes another id for the session.
            let session = self.session.clone();
            host.on_all(move |w| w.cm_end_listeners(&session));
        }
        self.take_arrivals(host);
        for (_, mut gone) in std::mem::take(&mut self.ids) {
            if gone.stage == CmIdStage::Listening {
                host.cm.listeners -= 1;
                gone.stage = CmIdStage::Idle;
            }
            end_id(host, gone);
        }
        self.channels.values().for_each(|channel| channel.close());
    }
}

/// Notes that an operation was refused; the reply that says so.
fn refused(host: &mut Host, op: &CmCommand, Refusal { errno, sentence }: Refusal) -> CmReply {
    host.cm.refused += 1;
    host.cm.log_refusal(op.id(), errno, &sentence);
    CmReply::Failed { errno, sentence }
}

/// Gives back what an id holds.
fn end_id(host: &mut Host, id: HostCmId) {
    host.cm.ids -= 1;
    host.trimmer.ended(1);
    if id.stage == CmIdStage::Listening {
        // Before it is over: a worker drops events of ids that are over, and a request shown at this moment would be nobody's.
        let entry = id.entry.clone();
        host.on_all(move |w| w.cm_unlisten(&entry));
    }
    id.entry.end();
    if let Some(binding) = &id.binding {
        host.cm.ports.release(binding);
    }
    if let Some(wait) = &id.wait {
        host.cm.hops.leave(&wait.hop);
    }
    for (device, addr) in &id.groups {
        host.leave(*device, addr.ip);
    }
    match id.stage {
        CmIdStage::Listening => host.cm.listeners -= 1,
        CmIdStage::Connected | CmIdStage::Requested => {
            let worker = id.entry.worker.load(Ordering::Relaxed);
            host.cm.job(worker, CmJob::Destroy(id.entry));
        }
        CmIdStage::Idle | CmIdStage::AddrResolution | CmIdStage::Addressed => {}
    }
}
