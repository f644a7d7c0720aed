//! The program's end of a node in the daemon: a context of its own there, a ring for posts, completion queues in shared memory.
//!
//! What can be checked here is checked here, so that a refusal is the status of the call as with a node in this process. What
//! the node refuses later (a Jetty that was stopped meanwhile, a segment that ended) is a completion.

use crate::lane::AccessLane;
use crate::log::{because, explain};
use burst_base::gid::{gid_of, ip_of};
use burst_client::raw::RawContext;
use burst_client::raw::idle::SendProgress;
use burst_client::raw::lock::HeldSignals;
use burst_client::raw::memory::{self, MemoryRange, RawMr};
use burst_client::raw::place::HostPlace;
use burst_client::raw::queue;
use burst_client::{ClientError, Result};
use burst_control::urma_calls::{URMA_FLUSHED_MAX, UrmaAnswer, UrmaCall, UrmaJettyAttr, UrmaPost};
use burst_control::{AsyncRecord, ControlError, CqInitAttr, DeviceInfo, Request, Response};
use burst_engine::urma::records::entry_of;
use burst_engine::urma::records::{post_of, receive_post, record_of};
use burst_shm::Cqe;
use burst_shm::arena::Segment;
use burst_shm::cq::CqConsumer;
use burst_shm::record_ring::{RECORD_BYTES_MAX, RecordRingProducer};
use burst_urma::{
    CompletionRecord, JettyConfig, JfrConfig, JfrWr, JfsWr, LocalRange, NodeEid, RemoteJetty, RemoteSegment,
    SegmentConfig, TransMode, URMA_INLINE_MAX, UrmaError, UrmaNode, WrData,
};
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Longest wait for room in the ring of posts.
const RING_WAIT: Duration = Duration::from_secs(1);
/// Rights of memory regions (`burst_base::verbs::access`): the node checks those of segments.
const MAY_WRITE: u32 = burst_base::verbs::access::LOCAL_WRITE;

/// A new event channel of completions.
pub struct NewChannel {
    pub fd: RawFd,
    pub number: u64,
}

struct DaemonJfc {
    cq: u32,
    ring: CqConsumer,
    cookie: u64,
}

/// A queue of requests, or of receives.
struct PostedCount {
    depth: u32,
    posted: u32,
    finished: u32,
}

impl PostedCount {
    const fn new(depth: u32) -> PostedCount {
        PostedCount { depth, posted: 0, finished: 0 }
    }
    const fn is_full(&self) -> bool {
        self.outstanding() >= self.depth
    }
    const fn outstanding(&self) -> u32 {
        self.posted.wrapping_sub(self.finished)
    }
}

struct DaemonJetty {
    config: JettyConfig,
    bound: Option<NodeEid>,
    count: PostedCount,
}

struct DaemonSegment {
    addr: u64,
    len: u64,
    mr: RawMr,
}

/// The program's end.
pub struct DaemonNode {
    context: RawContext,
    pd: u32,
    ring: RecordRingProducer,
    worker: usize,
    doorbell: u32,
    /// Payload of a packet.
    pub mtu: u16,
    is_posted: bool,
    has_ended: bool,
    /// What the send completions so far say of their Jetties.
    progress: SendProgress,
    /// The Jetty of the last one.
    last_jetty: u32,
    jfcs: HashMap<u32, DaemonJfc>,
    /// JFCs by the records of their events.
    cookies: HashMap<u64, u32>,
    jfrs: HashMap<u32, PostedCount>,
    jetties: HashMap<u32, DaemonJetty>,
    segments: HashMap<u32, DaemonSegment>,
    remote_segments: HashMap<u32, NodeEid>,
    targets: HashMap<u32, RemoteJetty>,
    /// For loads, stores and atomics without a Jetty of the program.
    pub lane: Option<AccessLane>,
    /// Descriptors of event channels, by handle.
    channels: HashMap<u64, RawFd>,
}

/// The refusal of the node or of the daemon.
fn refused(error: &ClientError) -> UrmaError {
    let refusal = match error.errno() {
        libc::ENOMEM | libc::EMFILE | libc::ENFILE => UrmaError::Full,
        libc::EBUSY => UrmaError::Busy,
        libc::EFAULT | libc::EPERM | libc::EACCES => UrmaError::Access,
        _ => UrmaError::Value,
    };
    because(refusal, error.to_string())
}

/// The devices of the daemon at a place.
///
/// # Errors
/// There is no daemon; as the inner result, that it does not answer.
fn devices_of(place: &HostPlace) -> std::result::Result<Result<Vec<DeviceInfo>>, ControlError> {
    let held = HeldSignals::hold();
    let mut client = place.connect(&burst_client::raw::program_name(), &held)?;
    Ok(match client.call(&Request::ListDevices, &[]).map(|reply| reply.response) {
        Ok(Response::Devices(devices)) => Ok(devices),
        Ok(_) => Err(ClientError::Unexpected("no list of devices")),
        Err(why) => Err(why.into()),
    })
}

/// The devices of all daemons that a context of this process may be opened with. A daemon that does not answer has none here;
/// opening a context says why.
pub fn devices() -> Vec<DeviceInfo> {
    let daemons = HostPlace::candidates().into_iter().filter(|place| *place != HostPlace::InProcess);
    daemons.filter_map(|place| devices_of(&place).ok()?.ok()).flatten().collect()
}

impl DaemonNode {
    /// The node of an address in the daemon; `None` if no daemon runs, or it does not have the address.
    ///
    /// # Errors
    /// A sentence: the daemon refuses.
    pub fn open(address: IpAddr) -> std::result::Result<Option<DaemonNode>, String> {
        for place in HostPlace::candidates() {
            if place == HostPlace::InProcess {
                return Ok(None);
            }
            let Ok(devices) = devices_of(&place) else { continue };
            let devices = devices.map_err(|why| why.to_string())?;
            let has = |device: &&DeviceInfo| device.gids.iter().any(|gid| ip_of(gid.gid) == address);
            let Some(device) = devices.iter().find(has) else { continue };
            return DaemonNode::connect(&place, device.index, address).map(Some).map_err(|why| why.to_string());
        }
        Ok(None)
    }

    fn connect(place: &HostPlace, device: u32, address: IpAddr) -> Result<DaemonNode> {
        let context = RawContext::open(place, device, None)?;
        let mut answer = context.call(&Request::UrmaOpen { eid: gid_of(address) }, &[])?;
        let (Response::UrmaOpened { mtu, worker, doorbell, .. }, Some(fd)) = (answer.response, answer.fds.pop()) else {
            return Err(ClientError::Unexpected("no node of URMA"));
        };
        let unusable = |_| ClientError::Unexpected("a ring for posts that cannot be mapped");
        let ring = RecordRingProducer::new(Segment::map(fd).map_err(unusable)?).map_err(unusable)?;
        let Response::Handle(pd) = context.ask(&Request::AllocPd)? else {
            return Err(ClientError::Unexpected("no protection domain"));
        };
        Ok(DaemonNode {
            context,
            pd,
            ring,
            worker: worker as usize,
            doorbell,
            mtu,
            is_posted: false,
            has_ended: false,
            progress: SendProgress::default(),
            last_jetty: 0,
            jfcs: HashMap::new(),
            cookies: HashMap::new(),
            jfrs: HashMap::new(),
            jetties: HashMap::new(),
            segments: HashMap::new(),
            remote_segments: HashMap::new(),
            targets: HashMap::new(),
            lane: None,
            channels: HashMap::new(),
        })
    }

    /// A descriptor of asynchronous events, for the program.
    pub fn async_fd(&self) -> std::io::Result<RawFd> {
        self.context.async_fd().try_clone_to_owned().map(OwnedFd::into_raw_fd)
    }

    /// Carries out a call.
    pub fn call(&self, call: UrmaCall) -> std::result::Result<UrmaAnswer, UrmaError> {
        match self.context.ask(&Request::UrmaCall(call)) {
            Ok(Response::UrmaDone(UrmaAnswer::Refused(number))) => {
                Err(UrmaError::ALL.get(usize::from(number)).copied().unwrap_or(UrmaError::Value))
            }
            Ok(Response::UrmaDone(answer)) => Ok(answer),
            Ok(_) => Err(UrmaError::Value),
            Err(why) => {
                explain(&why.to_string());
                Err(refused(&why))
            }
        }
    }

    /// A call that only succeeds.
    pub fn execute(&self, call: UrmaCall) -> std::result::Result<(), UrmaError> {
        self.call(call).map(drop)
    }

    /// A call that makes an object.
    pub fn number(&self, call: UrmaCall) -> std::result::Result<u32, UrmaError> {
        match self.call(call)? {
            UrmaAnswer::Number(number) => Ok(number),
            _ => Err(UrmaError::Value),
        }
    }

    pub fn open_channel(&mut self) -> std::result::Result<NewChannel, UrmaError> {
        let mut answer = self.context.call(&Request::CreateChannel, &[]).map_err(|why| refused(&why))?;
        let (Response::Channel { channel }, Some(fd)) = (answer.response, answer.fds.pop()) else {
            return Err(UrmaError::Value);
        };
        // SAFETY: changes flags of a descriptor that is this library's.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        let fd = fd.into_raw_fd();
        self.channels.insert(u64::from(channel), fd);
        Ok(NewChannel { fd, number: u64::from(channel) })
    }

    pub fn close_channel(&mut self, number: u64) {
        self.channels.remove(&number);
        // No queue uses it any more; a daemon that has ended has none.
        let _ = self.context.end_object(&Request::DestroyChannel { channel: number as u32 });
    }

    /// The queue of the next event of a channel.
    pub fn next_queue(&mut self, channel: u64) -> Option<u32> {
        let fd = *self.channels.get(&channel)?;
        loop {
            let mut cookie = [0u8; 8];
            // SAFETY: the buffer has eight bytes; the descriptor does not block.
            if unsafe { libc::read(fd, cookie.as_mut_ptr().cast(), cookie.len()) } != 8 {
                return None;
            }
            // Of a queue that was deleted meanwhile: nobody's.
            if let Some(jfc) = self.cookies.get(&u64::from_ne_bytes(cookie)) {
                return Some(*jfc);
            }
        }
    }

    /// The next asynchronous event.
    pub fn next_event(&mut self) -> Option<AsyncRecord> {
        let fd = self.context.async_fd().as_raw_fd();
        loop {
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut record = [0u8; AsyncRecord::BYTES];
            // SAFETY: one valid entry; the buffer is as long as a record. Whoever reads holds the lock of the host, so that a
            // pipe with a record does not block.
            let read = unsafe {
                if libc::poll(&raw mut poll, 1, 0) != 1 || poll.revents & libc::POLLIN == 0 {
                    return None;
                }
                libc::read(fd, record.as_mut_ptr().cast(), record.len())
            };
            if read != AsyncRecord::BYTES as isize {
                return None;
            }
            if let Some(record) = AsyncRecord::from_bytes(&record) {
                return Some(record);
            }
        }
    }

    pub fn create_jfc(&mut self, depth: u32, channel: Option<u64>) -> std::result::Result<u32, UrmaError> {
        let cookie = self.context.event_cookie();
        let init = CqInitAttr { entries: depth, channel: channel.map(|channel| channel as u32), cookie, vector: 0 };
        let (cq, ring) = queue::create_cq(&self.context, init).map_err(|why| refused(&why))?;
        let jfc = self.number(UrmaCall::CreateJfc { cq });
        let jfc = jfc.inspect_err(|_| drop(self.context.end_object(&Request::DestroyCq { cq })))?;
        self.jfcs.insert(jfc, DaemonJfc { cq, ring, cookie });
        self.cookies.insert(cookie, jfc);
        Ok(jfc)
    }

    pub fn delete_jfc(&mut self, jfc: u32) -> std::result::Result<(), UrmaError> {
        self.execute(UrmaCall::DeleteJfc { jfc })?;
        if let Some(DaemonJfc { cq, ring, cookie }) = self.jfcs.remove(&jfc) {
            self.cookies.remove(&cookie);
            drop(ring);
            // Nothing uses it any more.
            let _ = self.context.end_object(&Request::DestroyCq { cq });
        }
        Ok(())
    }

    pub fn create_jfr(&mut self, config: JfrConfig) -> std::result::Result<u32, UrmaError> {
        let JfrConfig { depth, jfc, token, rnr_timer, is_unreliable, .. } = config;
        let jfr = self.number(UrmaCall::CreateJfr { jfc, depth, token, rnr_timer, is_unreliable })?;
        self.jfrs.insert(jfr, PostedCount::new(u32::from(depth)));
        Ok(jfr)
    }

    pub fn delete_jfr(&mut self, jfr: u32) -> std::result::Result<(), UrmaError> {
        self.send_posted();
        self.execute(UrmaCall::DeleteJfr { jfr })?;
        self.jfrs.remove(&jfr);
        Ok(())
    }

    pub fn create_jetty(&mut self, config: JettyConfig) -> std::result::Result<u32, UrmaError> {
        let attr = UrmaJettyAttr {
            mode: match config.mode {
                TransMode::Rm => 1,
                TransMode::Rc => 2,
                TransMode::Um => 4,
            },
            service: config.service as u8,
            jfc: config.jfc,
            jfr: config.jfr,
            depth: config.depth,
            token: config.token,
            error_suspend: config.error_suspend,
            outorder_comp: config.outorder_comp,
            rnr_retry: config.rnr_retry,
            err_timeout: config.err_timeout,
            group: config.group,
        };
        let jetty = self.number(UrmaCall::CreateJetty(attr))?;
        let count = PostedCount::new(u32::from(config.depth));
        self.jetties.insert(jetty, DaemonJetty { config, bound: None, count });
        Ok(jetty)
    }

    pub fn delete_jetty(&mut self, jetty: u32) -> std::result::Result<(), UrmaError> {
        self.send_posted();
        let mut deleted = self.execute(UrmaCall::DeleteJetty { jetty });
        // One call drops a part of the requests that were not executed. Without any left, some are under way.
        while deleted == Err(UrmaError::Busy) && !self.flush_jetty(jetty, URMA_FLUSHED_MAX).is_empty() {
            deleted = self.execute(UrmaCall::DeleteJetty { jetty });
        }
        deleted?;
        self.jetties.remove(&jetty);
        Ok(())
    }

    pub fn flush_jetty(&mut self, jetty: u32, most: usize) -> Vec<CompletionRecord> {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let Ok(UrmaAnswer::Flushed { records, finished }) = self.call(UrmaCall::FlushJetty { jetty, most }) else {
            return Vec::new();
        };
        if let Some(known) = self.jetties.get_mut(&jetty) {
            known.count.finished = finished;
        }
        records.iter().map(|words| record_of(&entry_of(words))).collect()
    }

    pub fn bind(&mut self, jetty: u32, target: u32) -> std::result::Result<(), UrmaError> {
        self.execute(UrmaCall::BindJetty { jetty, target })?;
        let peer = self.targets.get(&target).map(|remote| remote.eid);
        if let Some(known) = self.jetties.get_mut(&jetty) {
            known.bound = peer;
        }
        Ok(())
    }

    pub fn unbind(&mut self, jetty: u32) -> std::result::Result<(), UrmaError> {
        self.execute(UrmaCall::UnbindJetty { jetty })?;
        if let Some(known) = self.jetties.get_mut(&jetty) {
            known.bound = None;
        }
        Ok(())
    }

    pub fn register(&mut self, config: SegmentConfig) -> std::result::Result<u32, UrmaError> {
        let SegmentConfig { addr, len, token, access } = config;
        let range = |access| MemoryRange { addr: addr as usize, len: len as usize, iova: addr, access, replaces: None };
        let mr = memory::register(&self.context, self.pd, range(MAY_WRITE));
        // Memory that the program itself cannot write to can be read.
        let is_read_only = access & (burst_urma::access::WRITE | burst_urma::access::ATOMIC) == 0;
        let mr = match mr {
            Err(why) if is_read_only && why.errno() == libc::EFAULT => {
                memory::register(&self.context, self.pd, range(0))
            }
            other => other,
        };
        let mr =
            mr.map_err(|why| because(refused(&why), format!("{len} bytes at {addr:#x} cannot be registered: {why}")))?;
        let made = self.number(UrmaCall::RegisterSegment { mr: mr.handle, addr, len, token, access });
        match made {
            Ok(token_id) => {
                self.segments.insert(token_id, DaemonSegment { addr, len, mr });
                Ok(token_id)
            }
            Err(error) => {
                self.deregister(mr);
                Err(error)
            }
        }
    }

    pub fn unregister(&mut self, token_id: u32) -> std::result::Result<(), UrmaError> {
        self.send_posted();
        self.execute(UrmaCall::UnregisterSegment { token_id })?;
        if let Some(segment) = self.segments.remove(&token_id) {
            self.deregister(segment.mr);
        }
        Ok(())
    }

    fn deregister(&self, mr: RawMr) {
        // Its segment has ended: nothing uses it.
        let _ = self.context.end_object(&Request::DeregMr { mr: mr.handle });
        memory::unshare(&self.context, mr.registration);
    }

    pub fn import_segment(&mut self, segment: RemoteSegment) -> std::result::Result<u32, UrmaError> {
        let RemoteSegment { eid, token_id, addr, len, token } = segment;
        let number = self.number(UrmaCall::ImportSegment { eid: eid.octets(), token_id, addr, len, token })?;
        self.remote_segments.insert(number, eid);
        Ok(number)
    }

    pub fn unimport_segment(&mut self, segment: u32) -> std::result::Result<(), UrmaError> {
        self.send_posted();
        self.execute(UrmaCall::UnimportSegment { segment })?;
        self.remote_segments.remove(&segment);
        Ok(())
    }

    pub fn import_jetty(&mut self, kind: u8, jetty: RemoteJetty) -> std::result::Result<u32, UrmaError> {
        let RemoteJetty { eid, id, token, .. } = jetty;
        let number = self.number(UrmaCall::ImportJetty { eid: eid.octets(), id, kind, token })?;
        self.targets.insert(number, jetty);
        Ok(number)
    }

    pub fn unimport_jetty(&mut self, jetty: u32) -> std::result::Result<(), UrmaError> {
        self.send_posted();
        self.execute(UrmaCall::UnimportJetty { jetty })?;
        self.targets.remove(&jetty);
        Ok(())
    }

    fn is_local(&self, range: &LocalRange) -> bool {
        self.segments.get(&range.token_id).is_some_and(|segment| {
            let end = range.addr.checked_add(u64::from(range.len));
            range.addr >= segment.addr && end.is_some_and(|end| end <= segment.addr + segment.len)
        })
    }

    /// The checks of a node, as far as its objects are known here.
    fn check(&self, jetty: &DaemonJetty, wr: &JfsWr) -> std::result::Result<(), UrmaError> {
        UrmaNode::check_request(&jetty.config, self.mtu, wr)?;
        if let WrData::Local(range) = &wr.data
            && !self.is_local(range)
        {
            return Err(UrmaError::Access);
        }
        let peer = match (jetty.config.mode, wr.target) {
            (TransMode::Rc, _) => Some(jetty.bound.ok_or(UrmaError::State)?),
            (_, Some(target)) => Some(self.targets.get(&target).ok_or(UrmaError::NoObject)?.eid),
            (_, None) => None,
        };
        if peer.is_none() && UrmaNode::needs_target(wr.opcode) {
            return Err(UrmaError::Value);
        }
        if wr.opcode.has_memory() {
            let segment = wr.segment.ok_or(UrmaError::Value)?;
            let owner = *self.remote_segments.get(&segment).ok_or(UrmaError::NoObject)?;
            if peer.is_some_and(|peer| peer != owner) {
                return Err(UrmaError::Value);
            }
        }
        Ok(())
    }

    pub fn post_send(&mut self, jetty: u32, wr: &JfsWr) -> std::result::Result<(), UrmaError> {
        let known = self.jetties.get(&jetty).ok_or(UrmaError::NoObject)?;
        self.check(known, wr)?;
        if known.count.is_full() {
            self.count_finished(jetty)?;
        }
        let (post, inline) = post_of(jetty, wr);
        let mut record = [0; UrmaPost::BYTES + URMA_INLINE_MAX];
        record[..UrmaPost::BYTES].copy_from_slice(&post.to_bytes());
        let len = UrmaPost::BYTES + inline.len();
        record[UrmaPost::BYTES..len].copy_from_slice(inline);
        self.write(&record[..len])?;
        if let Some(known) = self.jetties.get_mut(&jetty) {
            known.count.posted = known.count.posted.wrapping_add(1);
        }
        Ok(())
    }

    /// A Jetty looks full: requests without completions may have ended.
    #[cold]
    fn count_finished(&mut self, jetty: u32) -> std::result::Result<(), UrmaError> {
        self.send_posted();
        let UrmaAnswer::State { finished, .. } = self.call(UrmaCall::QueryJetty { jetty })? else {
            return Err(UrmaError::Value);
        };
        let known = self.jetties.get_mut(&jetty).ok_or(UrmaError::NoObject)?;
        known.count.finished = finished;
        if known.count.is_full() { Err(UrmaError::Full) } else { Ok(()) }
    }

    pub fn post_recv(&mut self, jfr: u32, wr: &JfrWr) -> std::result::Result<(), UrmaError> {
        if !self.is_local(&wr.range) {
            return Err(UrmaError::Access);
        }
        if self.jfrs.get(&jfr).ok_or(UrmaError::NoObject)?.is_full() {
            self.send_posted();
            let UrmaAnswer::State { finished, .. } = self.call(UrmaCall::QueryJfr { jfr })? else {
                return Err(UrmaError::Value);
            };
            let known = self.jfrs.get_mut(&jfr).ok_or(UrmaError::NoObject)?;
            known.finished = finished;
            if known.is_full() {
                return Err(UrmaError::Full);
            }
        }
        self.write(&receive_post(jfr, wr).to_bytes())?;
        if let Some(known) = self.jfrs.get_mut(&jfr) {
            known.posted = known.posted.wrapping_add(1);
        }
        Ok(())
    }

    fn write(&mut self, record: &[u8]) -> std::result::Result<(), UrmaError> {
        const { assert!(UrmaPost::BYTES + URMA_INLINE_MAX <= RECORD_BYTES_MAX) };
        if !self.ring.has_room(1) {
            self.wait_for_room()?;
        }
        self.ring.write(record);
        self.is_posted = true;
        Ok(())
    }

    #[cold]
    fn wait_for_room(&mut self) -> std::result::Result<(), UrmaError> {
        let start = Instant::now();
        self.send_posted();
        while !self.ring.has_room(1) {
            if start.elapsed() > RING_WAIT || self.context.daemon_has_ended() {
                return Err(UrmaError::Full);
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Shows the worker what was written.
    pub fn send_posted(&mut self) {
        if std::mem::take(&mut self.is_posted) && self.ring.post() {
            self.context.doorbells.ring(self.worker, self.doorbell);
        }
    }

    pub fn poll_jfc(&mut self, jfc: u32) -> Option<CompletionRecord> {
        let mut cqe = Cqe::default();
        let queue = self.jfcs.get_mut(&jfc)?;
        if !queue.ring.poll(&mut cqe) {
            return None;
        }
        let count = match cqe.is_recv {
            0 => self.jetties.get_mut(&cqe.qp_cookie).map(|jetty| &mut jetty.count),
            _ => self.jfrs.get_mut(&cqe.qp_cookie),
        };
        if let Some(count) = count {
            let finished = cqe.sq_consumer.wrapping_sub(count.finished);
            count.finished = cqe.sq_consumer;
            if cqe.is_recv == 0 {
                self.progress.note(finished, 0);
                self.last_jetty = cqe.qp_cookie;
            }
        }
        Some(record_of(&cqe))
    }

    /// What the send completions since the last question say of the requests of the last one's Jetty, with those that were posted
    /// meanwhile: a program that asks for one completion of many posts most of them after it.
    pub fn progress(&mut self) -> SendProgress {
        let outstanding = self.jetties.get(&self.last_jetty).map_or(0, |jetty| jetty.count.outstanding());
        SendProgress { outstanding, ..self.progress.take() }
    }

    /// Asks for an event with the next record of a queue; one that has records already has the event at once.
    pub fn arm(&mut self, jfc: u32) {
        let Some(queue) = self.jfcs.get_mut(&jfc) else { return };
        queue.ring.arm(false);
        if queue.ring.has_next() {
            // What came before has no event of its own: the worker looks again.
            let _ = self.execute(UrmaCall::Remind { jfc });
        }
    }

    /// Whether the daemon has ended. A sentence says so, once.
    pub fn has_ended(&mut self) -> bool {
        if !self.has_ended && self.context.daemon_has_ended() {
            self.has_ended = true;
            explain("the daemon has ended: requests are not answered any more");
        }
        self.has_ended
    }
}

impl Drop for DaemonNode {
    fn drop(&mut self) {
        for (token_id, segment) in std::mem::take(&mut self.segments) {
            // Its objects are the context's, and nothing refuses their end; a daemon that has ended has none.
            let _ = self.execute(UrmaCall::UnregisterSegment { token_id });
            self.deregister(segment.mr);
        }
    }
}
