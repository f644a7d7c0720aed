//! Where the node of a context is: in this process, or in the daemon. The calls of the interface are the same for both.

use crate::daemon::{DaemonNode, NewChannel};
use crate::reports::{CLASS_JFC, CLASS_JFR, JFR_LIMIT, Reports};
use burst_base::Nanos;
use burst_client::raw::idle::SendProgress;
use burst_control::urma_calls::{UrmaAnswer, UrmaCall};
use burst_control::{AsyncObject, AsyncRecord};
use burst_engine::urma::UrmaEndpoint;
use burst_span::Span;
use burst_urma::{
    CompletionRecord, GroupPolicy, JettyConfig, JettyState, JfrConfig, JfrState, JfrWr, JfsWr, MemoryGone, RemoteJetty,
    RemoteSegment, SegmentConfig, TargetKind, UrmaEnv, UrmaError, UrmaMemory, UrmaNode,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// A node.
pub enum ProgramNode {
    /// In this process, with its port.
    Own(Box<UrmaEndpoint>),
    /// In the daemon.
    Daemon(Box<DaemonNode>),
}

const fn kind_number(kind: TargetKind) -> u8 {
    match kind {
        TargetKind::Jfr => 0,
        TargetKind::Jetty => 1,
        TargetKind::Group => 2,
    }
}

const fn jetty_states(state: u8) -> JettyState {
    match state {
        0 => JettyState::Reset,
        1 => JettyState::Ready,
        2 => JettyState::Suspended,
        _ => JettyState::Error,
    }
}

/// Packets taken from the port at once.
const BURST: usize = 256;

/// The program's own memory. The node has checked that the range is registered.
struct OwnMemory;

impl UrmaMemory for OwnMemory {
    fn read(&self, _region: u32, addr: u64, out: &mut [u8]) -> Result<(), MemoryGone> {
        // SAFETY: the program has registered the range, and keeps it mapped until it deregisters it; bytes may change
        // meanwhile, as with an adapter.
        unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, out.as_mut_ptr(), out.len()) };
        Ok(())
    }
    fn write(&mut self, _region: u32, addr: u64, bytes: &[u8]) -> Result<(), MemoryGone> {
        let Some((last, head)) = bytes.split_last() else { return Ok(()) };
        // SAFETY: as in `read`.
        unsafe {
            std::ptr::copy_nonoverlapping(head.as_ptr(), addr as *mut u8, head.len());
            // Programs poll the last byte: it appears after the others. Pairs with their load.
            let at = (addr as usize + head.len()) as *mut std::sync::atomic::AtomicU8;
            (*at).store(*last, Ordering::Release);
        }
        Ok(())
    }
    fn update(&mut self, _region: u32, addr: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, MemoryGone> {
        // SAFETY: as in `read`; the node has checked that the address is a multiple of eight.
        let word = unsafe { &*(addr as *const AtomicU64) };
        let mut old = word.load(Ordering::Acquire);
        while let Err(now) = word.compare_exchange(old, change(old), Ordering::AcqRel, Ordering::Acquire) {
            old = now;
        }
        Ok(old)
    }
    fn lend(&self, _region: u32, addr: u64, len: u32) -> Option<Span> {
        // SAFETY: as in `read`; the batch is sent before the lock of the node is given back.
        Some(unsafe { Span::local(addr as *mut u8, len) })
    }
}

/// What the lock covers.
pub struct Inner {
    pub node: ProgramNode,
    pub reports: Reports,
}

impl Inner {
    /// Calls something of the node.
    pub fn with<R>(&mut self, now: Nanos, call: impl FnOnce(&mut UrmaNode, &mut UrmaEnv<'_>) -> R) -> R {
        let Inner { node, reports } = self;
        let ProgramNode::Own(end) = node else { unreachable!("a node in the daemon is called by messages") };
        end.with(now, &mut OwnMemory, reports, call)
    }
    /// Sends what may be sent, handles what is due, takes what has arrived. True if there was anything to do.
    ///
    /// What a burst makes ready waits for the next pass or post: a program that answers a request at once sends answer and
    /// acknowledgement together, so the peer, which polls for its completion, has the answer with it.
    pub fn pass(&mut self, now: Nanos) -> bool {
        let is_active = self.send(now);
        let Inner { node: ProgramNode::Own(end), reports } = self else { return false };
        let is_active = is_active | end.run_timers(now, &mut OwnMemory, reports);
        let burst = end.receive(now, &mut OwnMemory, reports, BURST);
        is_active | (burst.packets > 0)
    }
    /// The node ends: its peers are told.
    pub fn leave(&mut self, now: Nanos) {
        let Inner { node: ProgramNode::Own(end), reports } = self else { return };
        end.leave(now, &mut OwnMemory, reports);
    }
    pub fn send(&mut self, now: Nanos) -> bool {
        let Inner { node: ProgramNode::Own(end), reports } = self else { return false };
        let sent = end.send(now, &mut OwnMemory, reports, u64::MAX);
        end.flush(now);
        sent > 0
    }
    /// The node in this process.
    ///
    /// # Panics
    /// If it is in the daemon.
    pub fn own(&mut self) -> &mut UrmaEndpoint {
        match &mut self.node {
            ProgramNode::Own(end) => end,
            ProgramNode::Daemon(_) => unreachable!("only hosts with a node of their own are run here"),
        }
    }
    /// Whether the node is in the daemon.
    pub fn is_daemons(&self) -> bool {
        matches!(self.node, ProgramNode::Daemon(_))
    }
    /// An event channel.
    pub fn open_channel(&mut self) -> Result<NewChannel, UrmaError> {
        match &mut self.node {
            ProgramNode::Own(_) => {
                // SAFETY: makes a descriptor; no memory is passed.
                let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
                if fd < 0 {
                    return Err(UrmaError::Full);
                }
                Ok(NewChannel { fd, number: self.reports.open_channel(fd) })
            }
            ProgramNode::Daemon(daemon) => daemon.open_channel(),
        }
    }
    /// The channel ends; its descriptor is closed by the caller.
    pub fn close_channel(&mut self, number: u64) {
        match &mut self.node {
            ProgramNode::Own(_) => self.reports.close_channel(number),
            ProgramNode::Daemon(daemon) => daemon.close_channel(number),
        }
    }
    /// The next completion queue of an event channel that has news.
    pub fn next_queue(&mut self, channel: u64) -> Option<u32> {
        match &mut self.node {
            ProgramNode::Own(_) => self.reports.next_queue(channel),
            ProgramNode::Daemon(daemon) => daemon.next_queue(channel),
        }
    }
    /// The next asynchronous event of a context: its number and the program's object.
    pub fn next_event(&mut self, context: u64) -> Option<(u32, u64)> {
        let ProgramNode::Daemon(daemon) = &mut self.node else { return self.reports.next_event(context) };
        while let Some(AsyncRecord { event, object, cookie }) = daemon.next_event() {
            let id = cookie as u32;
            let (kind, class) = match object {
                AsyncObject::Jfc => (CLASS_JFC, CLASS_JFC),
                AsyncObject::Jfr if event == 1 => (JFR_LIMIT, CLASS_JFR),
                AsyncObject::Jfr => (CLASS_JFR, CLASS_JFR),
                AsyncObject::Jetty => (self.reports.sender_class(id), self.reports.sender_class(id)),
                _ => continue,
            };
            // Of an object that was deleted meanwhile: nobody's.
            if let pointer @ 1.. = self.reports.pointer_of(class, id) {
                return Some((kind, pointer));
            }
        }
        None
    }
    /// A completion queue, with its event channel.
    pub fn create_jfc(&mut self, depth: u32, channel: Option<u64>) -> Result<u32, UrmaError> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.create_jfc(depth),
            ProgramNode::Daemon(daemon) => daemon.create_jfc(depth, channel),
        }
    }
    pub fn delete_jfc(&mut self, jfc: u32) -> Result<(), UrmaError> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.delete_jfc(jfc),
            ProgramNode::Daemon(daemon) => daemon.delete_jfc(jfc),
        }
    }
    pub fn create_jfr(&mut self, config: JfrConfig) -> Result<u32, UrmaError> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.create_jfr(config),
            ProgramNode::Daemon(daemon) => daemon.create_jfr(config),
        }
    }
    pub fn delete_jfr(&mut self, jfr: u32) -> Result<(), UrmaError> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.delete_jfr(jfr),
            ProgramNode::Daemon(daemon) => daemon.delete_jfr(jfr),
        }
    }
    /// State and limit of a receive queue.
    pub fn jfr_state(&mut self, jfr: u32) -> Option<(JfrState, u16)> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.jfr_state(jfr),
            ProgramNode::Daemon(daemon) => match daemon.call(UrmaCall::QueryJfr { jfr }).ok()? {
                UrmaAnswer::State { state: 0, limit, .. } => Some((JfrState::Reset, limit)),
                UrmaAnswer::State { state: 1, limit, .. } => Some((JfrState::Ready, limit)),
                UrmaAnswer::State { limit, .. } => Some((JfrState::Error, limit)),
                _ => None,
            },
        }
    }
    pub fn set_jfr_limit(&mut self, jfr: u32, limit: u16) -> Result<(), UrmaError> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.set_jfr_limit(jfr, limit),
            ProgramNode::Daemon(daemon) => daemon.execute(UrmaCall::LimitJfr { jfr, limit }),
        }
    }
    pub fn modify_jfr(&mut self, now: Nanos, jfr: u32, state: JfrState) -> Result<(), UrmaError> {
        match &mut self.node {
            ProgramNode::Own(_) => self.with(now, |node, env| node.modify_jfr(jfr, state, env.fx)),
            ProgramNode::Daemon(daemon) => daemon.execute(UrmaCall::ModifyJfr { jfr, state: state as u8 }),
        }
    }
    pub fn create_jetty(&mut self, config: JettyConfig) -> Result<u32, UrmaError> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.create_jetty(config),
            ProgramNode::Daemon(daemon) => daemon.create_jetty(config),
        }
    }
    /// Deletes a Jetty as an adapter does: the queue is stopped, and what was not executed is dropped.
    pub fn delete_jetty(&mut self, now: Nanos, jetty: u32) -> Result<(), UrmaError> {
        let end = match &mut self.node {
            ProgramNode::Own(end) => end,
            ProgramNode::Daemon(daemon) => return daemon.delete_jetty(jetty),
        };
        let result = end.node.delete_jetty(jetty);
        if result != Err(UrmaError::Busy) {
            return result;
        }
        let stopped = self.with(now, |node, env| node.modify_jetty(jetty, JettyState::Error, env.fx));
        let node = &mut self.own().node;
        while stopped.is_ok() && node.flush_jetty(jetty).is_some() {}
        node.delete_jetty(jetty)
    }
    pub fn jetty_state(&mut self, jetty: u32) -> Option<JettyState> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.jetty_state(jetty),
            ProgramNode::Daemon(daemon) => match daemon.call(UrmaCall::QueryJetty { jetty }).ok()? {
                UrmaAnswer::State { state, .. } => Some(jetty_states(state)),
                _ => None,
            },
        }
    }
    pub fn modify_jetty(&mut self, now: Nanos, jetty: u32, state: JettyState) -> Result<(), UrmaError> {
        match &mut self.node {
            ProgramNode::Own(_) => self.with(now, |node, env| node.modify_jetty(jetty, state, env.fx)),
            ProgramNode::Daemon(daemon) => daemon.execute(UrmaCall::ModifyJetty { jetty, state: state as u8 }),
        }
    }
    /// Up to `most` requests of a stopped Jetty, handed back.
    pub fn flush_jetty(&mut self, jetty: u32, most: usize) -> Vec<CompletionRecord> {
        match &mut self.node {
            ProgramNode::Own(end) => std::iter::from_fn(|| end.node.flush_jetty(jetty)).take(most).collect(),
            ProgramNode::Daemon(daemon) => daemon.flush_jetty(jetty, most),
        }
    }
    pub fn bind_jetty(&mut self, jetty: u32, target: u32) -> Result<(), UrmaError> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.bind_jetty(jetty, target),
            ProgramNode::Daemon(daemon) => daemon.bind(jetty, target),
        }
    }
    pub fn unbind_jetty(&mut self, jetty: u32) -> Result<(), UrmaError> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.unbind_jetty(jetty),
            ProgramNode::Daemon(daemon) => daemon.unbind(jetty),
        }
    }
    pub fn create_group(&mut self, policy: GroupPolicy, token: Option<u32>) -> Result<u32, UrmaError> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.create_group(policy, token),
            ProgramNode::Daemon(daemon) => {
                let policy = match policy {
                    GroupPolicy::HashHint => 1,
                    GroupPolicy::RoundRobin | GroupPolicy::Depth => 0,
                };
                daemon.number(UrmaCall::CreateGroup { policy, token })
            }
        }
    }
    pub fn delete_group(&mut self, group: u32) -> Result<(), UrmaError> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.delete_group(group),
            ProgramNode::Daemon(daemon) => daemon.execute(UrmaCall::DeleteGroup { group }),
        }
    }
    pub fn register_segment(&mut self, config: SegmentConfig) -> Result<u32, UrmaError> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.register_segment(config),
            ProgramNode::Daemon(daemon) => daemon.register(config),
        }
    }
    pub fn unregister_segment(&mut self, token_id: u32) -> Result<(), UrmaError> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.unregister_segment(token_id),
            ProgramNode::Daemon(daemon) => daemon.unregister(token_id),
        }
    }
    /// Imports the segment of a peer.
    pub fn import_segment(&mut self, segment: RemoteSegment) -> Result<u32, UrmaError> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.import_segment(segment),
            ProgramNode::Daemon(daemon) => daemon.import_segment(segment),
        }
    }
    pub fn unimport_segment(&mut self, segment: u32) -> Result<(), UrmaError> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.unimport_segment(segment),
            ProgramNode::Daemon(daemon) => daemon.unimport_segment(segment),
        }
    }
    /// Imports a Jetty, JFR or group of a peer.
    pub fn import_jetty(&mut self, jetty: RemoteJetty) -> Result<u32, UrmaError> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.import_jetty(jetty),
            ProgramNode::Daemon(daemon) => daemon.import_jetty(kind_number(jetty.kind), jetty),
        }
    }
    pub fn unimport_jetty(&mut self, jetty: u32) -> Result<(), UrmaError> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.unimport_jetty(jetty),
            ProgramNode::Daemon(daemon) => daemon.unimport_jetty(jetty),
        }
    }
    /// Posts a work request. [`crate::host::UrmaHost::flush`] must follow.
    pub fn post_send(&mut self, now: Nanos, jetty: u32, wr: &JfsWr) -> Result<(), UrmaError> {
        match &mut self.node {
            ProgramNode::Own(_) => self.with(now, |node, env| node.post_send(jetty, wr, env)),
            ProgramNode::Daemon(daemon) => daemon.post_send(jetty, wr),
        }
    }
    /// Posts a receive. [`crate::host::UrmaHost::flush`] must follow if the node is the daemon's.
    pub fn post_recv(&mut self, jfr: u32, wr: JfrWr) -> Result<(), UrmaError> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.post_recv(jfr, wr),
            ProgramNode::Daemon(daemon) => daemon.post_recv(jfr, &wr),
        }
    }
    /// Takes the oldest record of a completion queue.
    pub fn poll_jfc(&mut self, jfc: u32) -> Option<CompletionRecord> {
        match &mut self.node {
            ProgramNode::Own(end) => end.node.poll_jfc(jfc),
            ProgramNode::Daemon(daemon) => daemon.poll_jfc(jfc),
        }
    }
    /// What the daemon's send completions since the last question say of their queues; the polls of an own node run the node.
    pub fn progress(&mut self) -> SendProgress {
        match &mut self.node {
            ProgramNode::Own(_) => SendProgress::default(),
            ProgramNode::Daemon(daemon) => daemon.progress(),
        }
    }
    /// Shows the daemon the receives that were posted.
    pub fn show_receives(&mut self) {
        if let ProgramNode::Daemon(daemon) = &mut self.node {
            daemon.send_posted();
        }
    }
    /// Whether the daemon has ended.
    pub fn has_ended(&mut self) -> bool {
        match &mut self.node {
            ProgramNode::Own(_) => false,
            ProgramNode::Daemon(daemon) => daemon.has_ended(),
        }
    }
    /// Whether a completion queue has records; of the daemon's nobody asks.
    pub fn has_completions(&self, jfc: u32) -> bool {
        match &self.node {
            ProgramNode::Own(end) => end.node.has_completions(jfc),
            ProgramNode::Daemon(_) => true,
        }
    }
}
