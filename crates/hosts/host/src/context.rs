//! The objects of one client: protection domains, regions, channels, queues, queue pairs, address handles.
//!
//! Handles are numbers of this context alone; each use looks them up here, so a client can name only its own. What a
//! handle needs while others use it is counted, and destroying it then is refused with `EBUSY`, as verbs documents.
//! [`Context::close`] gives everything back in the right order, whatever state the client died in.

mod handles;
mod memory;
mod queue_pair;
mod queues;
mod xrc;

use crate::host::Host;
use crate::session::refuse;
use burst_base::verbs::{EventType, QpType};
use burst_base::{DeviceId, Qpn};
use burst_control::events::{EventPipe, EventSink};
use burst_control::{AsyncObject, Refusal, Request, Response};
use burst_engine::objects::{SrqShared, write_async};
use burst_engine::{AddressHandle, ContextSlot, CqShared, QpHolder};
use burst_mem::ProcessMemory;
use burst_shm::ShmRef;
use burst_shm::arena::Arena;
use burst_shm::doorbell::DoorbellDrain;
use handles::HandleTable;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Queue pairs that a worker ends between two of its passes when a program dies.
const QPS_ENDED_AT_ONCE: usize = 64;

/// An answer and the descriptors that go with it.
pub struct ReplyParts {
    /// The answer.
    pub response: Response,
    /// Its descriptors.
    pub fds: Vec<OwnedFd>,
    /// New arena segments.
    pub segments: Vec<OwnedFd>,
}

impl From<Response> for ReplyParts {
    fn from(response: Response) -> ReplyParts {
        ReplyParts { response, fds: Vec::new(), segments: Vec::new() }
    }
}

/// Something that is in use by a count of others.
struct InUse<T> {
    users: u32,
    it: T,
}

struct HostCq {
    /// Number in the workers' tables.
    number: u32,
    shared: Arc<CqShared>,
    place: ShmRef,
    /// Rings from before a resize, drained by the program.
    old: Vec<ShmRef>,
    channel: Option<u32>,
}

struct HostSrq {
    shared: Arc<SrqShared>,
    place: ShmRef,
    pd: u32,
    /// In an XRC domain.
    domain: Option<SrqInDomain>,
}

/// A shared receive queue's place in an XRC domain.
#[derive(Clone, Copy)]
struct SrqInDomain {
    /// Its number.
    srqn: u32,
    xrcd: u32,
    cq: u32,
}

struct HostQp {
    qpn: Qpn,
    qp_type: QpType,
    worker: usize,
    doorbell: u32,
    /// Of its queues, if it has any.
    place: Option<ShmRef>,
    pd: u32,
    send_cq: u32,
    recv_cq: u32,
    srq: Option<u32>,
    /// Of a target.
    xrcd: Option<u32>,
    event_cookie: u64,
    /// Multicast groups that it is attached to.
    groups: Vec<IpAddr>,
}

struct HostMr {
    key: u32,
    pd: u32,
}

struct HostMw {
    key: u32,
    pd: u32,
}

/// See the module.
pub struct Context {
    id: u32,
    device: DeviceId,
    pid: u32,
    uid: u32,
    /// Of the process, once a region needed it.
    memory: Option<Arc<ProcessMemory>>,
    arena: Arena,
    /// Segments that the client has been sent.
    segments_sent: usize,
    async_events: Arc<dyn EventSink>,
    pds: HandleTable<InUse<u32>>,
    mrs: HandleTable<HostMr>,
    mws: HandleTable<HostMw>,
    dms: HandleTable<()>,
    channels: HandleTable<InUse<Arc<dyn EventSink>>>,
    cqs: HandleTable<InUse<HostCq>>,
    srqs: HandleTable<InUse<HostSrq>>,
    xrcds: HandleTable<InUse<u32>>,
    qps: HandleTable<HostQp>,
    ahs: HandleTable<(u32, u32)>,
    /// Free doorbell numbers, by worker.
    doorbells: Vec<crate::id_allocator::IdAllocator>,
}

/// errno of a lack of memory, descriptors or numbers.
fn no_room<T>(what: &str) -> Result<T, Refusal> {
    refuse(libc::ENOMEM, format!("no room for another {what}"))
}

fn unknown<T>(what: &str, handle: u32) -> Result<T, Refusal> {
    refuse(libc::EINVAL, format!("there is no {what} {handle} in this context"))
}

fn busy<T>(what: &str, users: u32) -> Result<T, Refusal> {
    refuse(libc::EBUSY, format!("the {what} is still used by {users} other object(s)"))
}

impl Context {
    /// A new context on `device` for process `pid` of user `uid`.
    ///
    /// # Errors
    /// ENODEV for an unknown device, ENOMEM/EMFILE when resources are short.
    pub fn open(host: &mut Host, device: u32, (pid, uid): (u32, u32)) -> Result<(Context, ReplyParts), Refusal> {
        let Some(dev) = host.devices.get(device as usize) else {
            return refuse(libc::ENODEV, format!("there is no device {device}"));
        };
        let (device, info) = (dev.id, dev.info());
        let arena = Arena::new()
            .map_err(|e| Refusal { errno: libc::ENOMEM, sentence: format!("cannot make an arena: {e}") })?;
        let (pipe, events_fd) = EventPipe::new().map_err(system("make the event pipe"))?;
        let async_events: Arc<dyn EventSink> = Arc::new(pipe);
        let mut fds = vec![status_fd(host)?, events_fd];
        let mut wakes = Vec::new();
        for worker in host.workers() {
            let (wake, fd) = worker.lend_wake().map_err(system("make a wake descriptor"))?;
            wakes.push(wake);
            fds.push(fd);
        }
        let Some(id) = host.contexts.take() else { return no_room("context") };
        for (worker, wake) in wakes.into_iter().enumerate() {
            let Some(doorbells) = DoorbellDrain::new(arena.context(), worker) else { return no_room("worker") };
            let slot =
                ContextSlot { doorbells, queues: Vec::new(), async_events: async_events.clone(), wake: Some(wake) };
            host.on_worker(worker, move |w, _| w.add_context(id, slot));
        }
        let workers = host.workers().len();
        let doorbells =
            (0..workers).map(|_| crate::id_allocator::IdAllocator::new(burst_shm::DOORBELL_QUEUES)).collect();
        let mut context = Context {
            id,
            device,
            pid,
            uid,
            memory: None,
            arena,
            segments_sent: 0,
            async_events,
            pds: HandleTable::default(),
            mrs: HandleTable::default(),
            mws: HandleTable::default(),
            dms: HandleTable::default(),
            channels: HandleTable::default(),
            cqs: HandleTable::default(),
            srqs: HandleTable::default(),
            xrcds: HandleTable::default(),
            qps: HandleTable::default(),
            ahs: HandleTable::default(),
            doorbells,
        };
        let segments = match context.new_segments() {
            Ok(segments) => segments,
            Err(refusal) => {
                context.close(host);
                return Err(refusal);
            }
        };
        let response = Response::Context { workers: workers as u32, device: info };
        Ok((context, ReplyParts { response, fds, segments }))
    }

    /// Its number in the workers.
    pub fn number(&self) -> u32 {
        self.id
    }

    /// Device number.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Gives back the room of what has ended.
    pub fn shrink(&self) {
        self.arena.trim();
    }

    /// This context as a holder of a queue pair whose asynchronous events carry `event_cookie`.
    fn qp_holder(&self, event_cookie: u64) -> QpHolder {
        QpHolder { context: self.id, async_events: self.async_events.clone(), event_cookie }
    }

    /// Writes an asynchronous event.
    pub fn tell(&self, event: EventType, object: AsyncObject, cookie: u64) {
        write_async(&*self.async_events, event, object, cookie);
    }

    /// Segments that the client does not have yet.
    fn new_segments(&mut self) -> Result<Vec<OwnedFd>, Refusal> {
        let numbers = self.segments_sent..self.arena.segments();
        let fds = numbers.filter_map(|n| self.arena.segment_fd(n)).map(|fd| fd.try_clone_to_owned());
        let fds = fds.collect::<Result<Vec<_>, _>>().map_err(system("share an arena segment"))?;
        self.segments_sent += fds.len();
        Ok(fds)
    }

    /// A response, with the segments that it may refer to.
    fn with_segments(&mut self, response: Response) -> Result<ReplyParts, Refusal> {
        Ok(ReplyParts { response, fds: Vec::new(), segments: self.new_segments()? })
    }

    /// Carries out a request on this context's objects.
    pub fn handle(&mut self, host: &mut Host, request: Request, fds: Vec<OwnedFd>) -> Result<ReplyParts, Refusal> {
        match request {
            Request::AllocPd => self.alloc_pd(host),
            Request::DeallocPd { pd } => self.dealloc_pd(host, pd),
            Request::RegMr { pd, addr, len, iova, access, pieces, replaces } => {
                let wish = memory::MrRequest { pd, addr, len, iova, access, pieces, fds };
                match replaces {
                    None => self.reg_mr(host, wish),
                    Some(mr) => self.rereg_mr(host, mr, wish),
                }
            }
            Request::AllocDm { len } => self.alloc_dm(host, len, fds),
            Request::FreeDm { dm } => self.free_dm(host, dm),
            Request::Import { token, object } => self.import(host, token, object),
            Request::DeregMr { mr } => self.dereg_mr(host, mr),
            Request::AllocMw { pd, mw_type } => self.alloc_mw(host, pd, mw_type),
            Request::DeallocMw { mw } => self.dealloc_mw(host, mw),
            Request::CreateChannel => self.create_channel(host),
            Request::DestroyChannel { channel } => self.destroy_channel(channel),
            Request::CreateCq(init) => self.create_cq(host, &init),
            Request::ResizeCq { cq, entries } => self.resize_cq(host, cq, entries),
            Request::RetireCq { cq } => self.retire_cq(host, cq),
            Request::DestroyCq { cq } => self.destroy_cq(host, cq),
            Request::OpenXrcd { with_file, flags } => self.open_xrcd(host, with_file, flags, fds),
            Request::CloseXrcd { xrcd } => self.close_xrcd(host, xrcd),
            Request::CreateTarget { xrcd, event_cookie } => self.create_target(host, xrcd, event_cookie),
            Request::OpenQp { xrcd, qpn, event_cookie } => self.open_qp(host, xrcd, qpn, event_cookie),
            Request::CreateSrq(init) => self.create_srq(host, init),
            Request::ModifySrq { srq, limit } => self.modify_srq(srq, limit),
            Request::ResizeSrq { srq, max_wr } => self.resize_srq(host, srq, max_wr),
            Request::QuerySrq { srq } => self.query_srq(srq),
            Request::DestroySrq { srq } => self.destroy_srq(host, srq),
            Request::CreateQp { init, names } => self.create_qps(host, init, &names),
            Request::ModifyQp { qp, attr, mask } => self.modify_qp(host, qp, attr, mask),
            Request::QueryQp { qp } => self.query_qp(host, qp),
            Request::DestroyQp { qp } => self.destroy_qp(host, qp),
            Request::AttachMcast { qp, gid } => self.attach_mcast(host, qp, gid),
            Request::DetachMcast { qp, gid } => self.detach_mcast(host, qp, gid),
            Request::CreateAh { pd, attr } => self.create_ah(host, pd, attr),
            Request::DestroyAh { ah } => self.destroy_ah(host, ah),
            Request::ResolveMac { attr } => self.resolve_mac(host, attr),
            Request::Hello { .. }
            | Request::DaemonInfo
            | Request::ListDevices
            | Request::Stats
            | Request::OpenContext { .. }
            | Request::Token
            | Request::CmCommandRing
            | Request::CmChannel { .. }
            | Request::CmCloseChannel { .. }
            | Request::Cm { .. }
            | Request::ModifyQpWithoutReply { .. }
            | Request::DropQps { .. }
            | Request::CmStats
            | Request::CmConnections { .. } => refuse(libc::EPROTO, "not a request to a context"),
        }
    }

    fn alloc_pd(&mut self, host: &mut Host) -> Result<ReplyParts, Refusal> {
        let Some(number) = host.pds.take() else { return no_room("protection domain") };
        Ok(Response::Handle(self.hold_pd(host, number)).into())
    }

    fn dealloc_pd(&mut self, host: &mut Host, pd: u32) -> Result<ReplyParts, Refusal> {
        match self.pds.get(pd) {
            None => unknown("protection domain", pd),
            Some(p) if p.users > 0 => busy("protection domain", p.users),
            Some(p) => {
                let number = p.it;
                self.pds.remove(pd);
                host.exports.of(self.id).pds.remove(&pd);
                drop_pd(host, number);
                Ok(Response::Done.into())
            }
        }
    }

    /// A protection domain that this context holds from now on.
    fn hold_pd(&mut self, host: &mut Host, number: u32) -> u32 {
        let handle = self.pds.insert(InUse { users: 0, it: number });
        host.exports.hold_pd(number);
        host.exports.of(self.id).pds.insert(handle, number);
        handle
    }

    /// The workers' number of a protection domain.
    fn pd_number(&self, pd: u32) -> Result<u32, Refusal> {
        self.pds.get(pd).map_or_else(|| unknown("protection domain", pd), |p| Ok(p.it))
    }

    /// Whether it may hold one more descriptor of those that a program can ask for without end.
    fn another_descriptor(&self, host: &Host) -> Result<(), Refusal> {
        let held = self.channels.len() + self.dms.len() + self.xrcds.len();
        crate::descriptors::check_share(held, host.descriptors)
    }

    fn create_channel(&mut self, host: &Host) -> Result<ReplyParts, Refusal> {
        self.another_descriptor(host)?;
        let (pipe, read) = EventPipe::new().map_err(system("make a completion channel"))?;
        let channel = self.channels.insert(InUse { users: 0, it: Arc::new(pipe) });
        Ok(ReplyParts { response: Response::Channel { channel }, fds: vec![read], segments: Vec::new() })
    }

    fn destroy_channel(&mut self, channel: u32) -> Result<ReplyParts, Refusal> {
        match self.channels.get(channel) {
            None => unknown("completion channel", channel),
            Some(c) if c.users > 0 => busy("completion channel", c.users),
            Some(_) => {
                self.channels.remove(channel);
                Ok(Response::Done.into())
            }
        }
    }

    fn create_ah(&mut self, host: &mut Host, pd: u32, attr: burst_base::verbs::AhAttr) -> Result<ReplyParts, Refusal> {
        let number = self.pd_number(pd)?;
        let caps = &host.devices[self.device.index()].caps;
        let flow =
            burst_engine::flow::flow_of(caps, &attr, pd).map_err(|e| Refusal { errno: libc::EINVAL, sentence: e.0 })?;
        let Some(ah) = host.ahs.take() else { return no_room("address handle") };
        host.on_all(move |w| w.add_ah(ah, AddressHandle { pd: number, flow }));
        self.ahs.put(ah, (ah, pd));
        if let Some(p) = self.pds.get_mut(pd) {
            p.users += 1;
        }
        Ok(Response::Handle(ah).into())
    }

    fn destroy_ah(&mut self, host: &mut Host, ah: u32) -> Result<ReplyParts, Refusal> {
        let Some((number, pd)) = self.ahs.remove(ah) else { return unknown("address handle", ah) };
        host.on_all(move |w| w.remove_ah(number));
        host.ahs.put(number);
        self.release_pd(pd);
        Ok(Response::Done.into())
    }

    fn resolve_mac(&self, host: &Host, attr: burst_base::verbs::AhAttr) -> Result<ReplyParts, Refusal> {
        let caps = &host.devices[self.device.index()].caps;
        let ip = burst_base::gid::ip_of(attr.dgid);
        if caps.addrs.iter().any(|a| a.ip == ip) {
            return Ok(Response::Mac(caps.mac).into());
        }
        refuse(libc::EOPNOTSUPP, format!("the Ethernet address of {ip} is the kernel's business on this port"))
    }

    fn release_pd(&mut self, pd: u32) {
        if let Some(p) = self.pds.get_mut(pd) {
            p.users -= 1;
        }
    }

    /// Moves all queue pairs to error, so that their completions are flushed while the program can still see them.
    pub fn fail_queue_pairs(&mut self, host: &mut Host) {
        use burst_base::verbs::{QpAttr, QpState, attr_mask};
        for qp in self.qps.values() {
            let (qpn, attr) = (qp.qpn, QpAttr { qp_state: QpState::Err, ..QpAttr::default() });
            // A queue pair in RESET cannot fail; that is no loss.
            let _ =
                host.on_worker(qp.worker, move |w, now| w.modify_qp(now, qpn, &attr, attr_mask::STATE, None).map(drop));
        }
    }

    /// Gives everything back. Returns how many queue pairs the program had left.
    pub fn close(&mut self, host: &mut Host) -> usize {
        let left = self.qps.len();
        for qps in self.qps.handles().chunks(QPS_ENDED_AT_ONCE) {
            self.end_qps(host, qps, true);
        }
        for mw in self.mws.handles() {
            // Handles come from the table itself.
            let _ = self.dealloc_mw(host, mw);
        }
        for mr in self.mrs.handles() {
            // Handles come from the table itself.
            let _ = self.dereg_mr(host, mr);
        }
        for ah in self.ahs.handles() {
            let _ = self.destroy_ah(host, ah);
        }
        for srq in self.srqs.handles() {
            // Handles come from the table itself, and no queue pair is left.
            let _ = self.destroy_srq(host, srq);
        }
        for xrcd in self.xrcds.handles() {
            let _ = self.close_xrcd(host, xrcd);
        }
        for cq in self.cqs.handles() {
            if let Some(c) = self.cqs.remove(cq) {
                let number = c.it.number;
                host.on_all(move |w| w.remove_cq(number));
                host.cqs.put(number);
            }
        }
        for pd in self.pds.handles() {
            if let Some(p) = self.pds.remove(pd) {
                drop_pd(host, p.it);
            }
        }
        let id = self.id;
        host.exports.forget(id);
        host.on_all(move |w| w.remove_context(id));
        host.contexts.put(id);
        left
    }
}

/// Lets go of a protection domain; the last holder gives its number back.
fn drop_pd(host: &mut Host, number: u32) {
    if host.exports.drop_pd(number) {
        host.pds.put(number);
    }
}

/// The status page, for the application.
fn status_fd(host: &Host) -> Result<OwnedFd, Refusal> {
    let fd = host.status.fd().map(|fd| fd.try_clone_to_owned());
    fd.unwrap_or_else(|| Err(std::io::ErrorKind::NotFound.into())).map_err(system("share the status page"))
}

/// A refusal from a failed system call.
pub(crate) fn system(what: &'static str) -> impl Fn(std::io::Error) -> Refusal {
    move |e| Refusal { errno: e.raw_os_error().unwrap_or(libc::EIO), sentence: format!("cannot {what}: {e}") }
}
