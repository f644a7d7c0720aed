//! Where the node of a context is: in this process, or in the daemon. The calls of the interface are the same for both.

use crate::daemon::{DaemonNode, NewChannel};
use crate::host::Inner;
use crate::reports::{CLASS_JFC, CLASS_JFR, JFR_LIMIT};
use burst_base::Nanos;
use burst_client::raw::idle::SendProgress;
use burst_control::urma_calls::{UrmaAnswer, UrmaCall};
use burst_control::{AsyncObject, AsyncRecord};
use burst_engine::urma::UrmaEndpoint;
use burst_urma::{
    CompletionRecord, GroupPolicy, JettyConfig, JettyState, JfrConfig, JfrState, JfrWr, JfsWr, RemoteJetty,
    RemoteSegment, SegmentConfig, TargetKind, UrmaError,
};
use std::net::IpAddr;

/// A node.
pub enum Home {
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

impl Inner {
    /// The node in this process.
    ///
    /// # Panics
    /// If it is in the daemon.
    pub fn own(&mut self) -> &mut UrmaEndpoint {
        match &mut self.home {
            Home::Own(end) => end,
            Home::Daemon(_) => unreachable!("only hosts with a node of their own are run here"),
        }
    }
    /// Whether the node is in the daemon.
    pub fn is_daemons(&self) -> bool {
        matches!(self.home, Home::Daemon(_))
    }
    /// An event channel.
    pub fn open_channel(&mut self) -> Result<NewChannel, UrmaError> {
        match &mut self.home {
            Home::Own(_) => {
                // SAFETY: makes a descriptor; no memory is passed.
                let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
                if fd < 0 {
                    return Err(UrmaError::Full);
                }
                Ok(NewChannel { fd, number: self.reports.open_channel(fd) })
            }
            Home::Daemon(daemon) => daemon.open_channel(),
        }
    }
    /// The channel ends; its descriptor is closed by the caller.
    pub fn close_channel(&mut self, number: u64) {
        match &mut self.home {
            Home::Own(_) => self.reports.close_channel(number),
            Home::Daemon(daemon) => daemon.close_channel(number),
        }
    }
    /// The next completion queue of an event channel that has news.
    pub fn next_queue(&mut self, channel: u64) -> Option<u32> {
        match &mut self.home {
            Home::Own(_) => self.reports.next_queue(channel),
            Home::Daemon(daemon) => daemon.next_queue(channel),
        }
    }
    /// The next asynchronous event of a context: its number and the program's object.
    pub fn next_event(&mut self, context: u64) -> Option<(u32, u64)> {
        let Home::Daemon(daemon) = &mut self.home else { return self.reports.next_event(context) };
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
        match &mut self.home {
            Home::Own(end) => end.node.create_jfc(depth),
            Home::Daemon(daemon) => daemon.create_jfc(depth, channel),
        }
    }
    pub fn delete_jfc(&mut self, jfc: u32) -> Result<(), UrmaError> {
        match &mut self.home {
            Home::Own(end) => end.node.delete_jfc(jfc),
            Home::Daemon(daemon) => daemon.delete_jfc(jfc),
        }
    }
    pub fn create_jfr(&mut self, config: JfrConfig) -> Result<u32, UrmaError> {
        match &mut self.home {
            Home::Own(end) => end.node.create_jfr(config),
            Home::Daemon(daemon) => daemon.create_jfr(config),
        }
    }
    pub fn delete_jfr(&mut self, jfr: u32) -> Result<(), UrmaError> {
        match &mut self.home {
            Home::Own(end) => end.node.delete_jfr(jfr),
            Home::Daemon(daemon) => daemon.delete_jfr(jfr),
        }
    }
    /// State and limit of a receive queue.
    pub fn jfr_state(&mut self, jfr: u32) -> Option<(JfrState, u16)> {
        match &mut self.home {
            Home::Own(end) => end.node.jfr_state(jfr),
            Home::Daemon(daemon) => match daemon.call(UrmaCall::QueryJfr { jfr }).ok()? {
                UrmaAnswer::State { state: 0, limit, .. } => Some((JfrState::Reset, limit)),
                UrmaAnswer::State { state: 1, limit, .. } => Some((JfrState::Ready, limit)),
                UrmaAnswer::State { limit, .. } => Some((JfrState::Error, limit)),
                _ => None,
            },
        }
    }
    pub fn set_jfr_limit(&mut self, jfr: u32, limit: u16) -> Result<(), UrmaError> {
        match &mut self.home {
            Home::Own(end) => end.node.set_jfr_limit(jfr, limit),
            Home::Daemon(daemon) => daemon.execute(UrmaCall::LimitJfr { jfr, limit }),
        }
    }
    pub fn modify_jfr(&mut self, now: Nanos, jfr: u32, state: JfrState) -> Result<(), UrmaError> {
        match &mut self.home {
            Home::Own(_) => self.with(now, |node, env| node.modify_jfr(jfr, state, env.fx)),
            Home::Daemon(daemon) => daemon.execute(UrmaCall::ModifyJfr { jfr, state: state as u8 }),
        }
    }
    pub fn create_jetty(&mut self, config: JettyConfig) -> Result<u32, UrmaError> {
        match &mut self.home {
            Home::Own(end) => end.node.create_jetty(config),
            Home::Daemon(daemon) => daemon.create_jetty(config),
        }
    }
    /// Deletes a Jetty as an adapter does: the queue is stopped, and what was not executed is dropped.
    pub fn delete_jetty(&mut self, now: Nanos, jetty: u32) -> Result<(), UrmaError> {
        let end = match &mut self.home {
            Home::Own(end) => end,
            Home::Daemon(daemon) => return daemon.delete_jetty(jetty),
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
        match &mut self.home {
            Home::Own(end) => end.node.jetty_state(jetty),
            Home::Daemon(daemon) => match daemon.call(UrmaCall::QueryJetty { jetty }).ok()? {
                UrmaAnswer::State { state, .. } => Some(jetty_states(state)),
                _ => None,
            },
        }
    }
    pub fn modify_jetty(&mut self, now: Nanos, jetty: u32, state: JettyState) -> Result<(), UrmaError> {
        match &mut self.home {
            Home::Own(_) => self.with(now, |node, env| node.modify_jetty(jetty, state, env.fx)),
            Home::Daemon(daemon) => daemon.execute(UrmaCall::ModifyJetty { jetty, state: state as u8 }),
        }
    }
    /// Up to `most` requests of a stopped Jetty, handed back.
    pub fn flush_jetty(&mut self, jetty: u32, most: usize) -> Vec<CompletionRecord> {
        match &mut self.home {
            Home::Own(end) => std::iter::from_fn(|| end.node.flush_jetty(jetty)).take(most).collect(),
            Home::Daemon(daemon) => daemon.flush_jetty(jetty, most),
        }
    }
    pub fn bind_jetty(&mut self, jetty: u32, target: u32) -> Result<(), UrmaError> {
        match &mut self.home {
            Home::Own(end) => end.node.bind_jetty(jetty, target),
            Home::Daemon(daemon) => daemon.bind(jetty, target),
        }
    }
    pub fn unbind_jetty(&mut self, jetty: u32) -> Result<(), UrmaError> {
        match &mut self.home {
            Home::Own(end) => end.node.unbind_jetty(jetty),
            Home::Daemon(daemon) => daemon.unbind(jetty),
        }
    }
    pub fn create_group(&mut self, policy: GroupPolicy, token: Option<u32>) -> Result<u32, UrmaError> {
        match &mut self.home {
            Home::Own(end) => end.node.create_group(policy, token),
            Home::Daemon(daemon) => {
                let policy = match policy {
                    GroupPolicy::HashHint => 1,
                    GroupPolicy::RoundRobin | GroupPolicy::Depth => 0,
                };
                daemon.number(UrmaCall::CreateGroup { policy, token })
            }
        }
    }
    pub fn delete_group(&mut self, group: u32) -> Result<(), UrmaError> {
        match &mut self.home {
            Home::Own(end) => end.node.delete_group(group),
            Home::Daemon(daemon) => daemon.execute(UrmaCall::DeleteGroup { group }),
        }
    }
    pub fn register_segment(&mut self, config: SegmentConfig) -> Result<u32, UrmaError> {
        match &mut self.home {
            Home::Own(end) => end.node.register_segment(config),
            Home::Daemon(daemon) => daemon.register(config),
        }
    }
    pub fn unregister_segment(&mut self, token_id: u32) -> Result<(), UrmaError> {
        match &mut self.home {
            Home::Own(end) => end.node.unregister_segment(token_id),
            Home::Daemon(daemon) => daemon.unregister(token_id),
        }
    }
    /// Imports the segment of a peer at `address`. [`UrmaError::Bound`]: another peer has the same CNA.
    pub fn import_segment(&mut self, address: IpAddr, segment: RemoteSegment) -> Result<u32, UrmaError> {
        match &mut self.home {
            Home::Own(end) => {
                if !end.learn(address) {
                    return Err(UrmaError::Bound);
                }
                end.node.import_segment(segment)
            }
            Home::Daemon(daemon) => daemon.import_segment(address, segment),
        }
    }
    pub fn unimport_segment(&mut self, segment: u32) -> Result<(), UrmaError> {
        match &mut self.home {
            Home::Own(end) => end.node.unimport_segment(segment),
            Home::Daemon(daemon) => daemon.unimport_segment(segment),
        }
    }
    /// Imports a Jetty, JFR or group of a peer at `address`. [`UrmaError::Bound`]: another peer has the same CNA.
    pub fn import_jetty(&mut self, address: IpAddr, jetty: RemoteJetty) -> Result<u32, UrmaError> {
        match &mut self.home {
            Home::Own(end) => {
                if !end.learn(address) {
                    return Err(UrmaError::Bound);
                }
                end.node.import_jetty(jetty)
            }
            Home::Daemon(daemon) => {
                let kind = kind_number(jetty.kind);
                daemon.import_jetty(address, kind, jetty)
            }
        }
    }
    pub fn unimport_jetty(&mut self, jetty: u32) -> Result<(), UrmaError> {
        match &mut self.home {
            Home::Own(end) => end.node.unimport_jetty(jetty),
            Home::Daemon(daemon) => daemon.unimport_jetty(jetty),
        }
    }
    /// Posts a work request. [`crate::host::UrmaHost::flush`] must follow.
    pub fn post_send(&mut self, now: Nanos, jetty: u32, wr: &JfsWr) -> Result<(), UrmaError> {
        match &mut self.home {
            Home::Own(_) => self.with(now, |node, env| node.post_send(jetty, wr, env)),
            Home::Daemon(daemon) => daemon.post_send(jetty, wr),
        }
    }
    /// Posts a receive. [`crate::host::UrmaHost::flush`] must follow if the node is the daemon's.
    pub fn post_recv(&mut self, jfr: u32, wr: JfrWr) -> Result<(), UrmaError> {
        match &mut self.home {
            Home::Own(end) => end.node.post_recv(jfr, wr),
            Home::Daemon(daemon) => daemon.post_recv(jfr, &wr),
        }
    }
    /// Takes the oldest record of a completion queue.
    pub fn poll_jfc(&mut self, jfc: u32) -> Option<CompletionRecord> {
        match &mut self.home {
            Home::Own(end) => end.node.poll_jfc(jfc),
            Home::Daemon(daemon) => daemon.poll_jfc(jfc),
        }
    }
    /// What the daemon's send completions since the last question say of their queues; the polls of an own node run the node.
    pub fn progress(&mut self) -> SendProgress {
        match &mut self.home {
            Home::Own(_) => SendProgress::default(),
            Home::Daemon(daemon) => daemon.progress(),
        }
    }
    /// Shows the daemon the receives that were posted.
    pub fn show_receives(&mut self) {
        if let Home::Daemon(daemon) = &mut self.home {
            daemon.send_posted();
        }
    }
    /// Whether the daemon has ended.
    pub fn has_ended(&mut self) -> bool {
        match &mut self.home {
            Home::Own(_) => false,
            Home::Daemon(daemon) => daemon.has_ended(),
        }
    }
    /// Whether a completion queue has records; of the daemon's nobody asks.
    pub fn has_completions(&self, jfc: u32) -> bool {
        match &self.home {
            Home::Own(end) => end.node.has_completions(jfc),
            Home::Daemon(_) => true,
        }
    }
}
