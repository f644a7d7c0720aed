//! The receive queue: loads receives, fills them, completes them.
//!
//! A receive is copied out of shared memory once (it is *loaded* then) and completes when a message has filled it. If a UC or UD
//! message breaks, the receive stays loaded for the next message (IBA 9.8.3: the receive is not consumed).

use crate::api::{Env, RecvQueue, XrcSrq};
use crate::finish::vendor_err;
use crate::gather::{Keys, SgeCursor};
use crate::qp::Qp;
use burst_base::verbs::{WcOpcode, WcStatus, access};
use burst_base::{Qpn, Reason};
use burst_shm::Fetch;
use burst_shm::layout::{Cqe, RecvWqe, SGE_MAX, Sge};
use burst_shm::rq::SrqConsumer;
use burst_span::Span;
use std::sync::Arc;

/// Result of loading a receive.
pub(crate) enum Load {
    /// A receive is loaded.
    Ready,
    /// No receive is posted.
    Empty,
    /// The queue's indices are impossible.
    Corrupt,
}

/// The receive queue and the loaded receive.
pub(crate) struct Receiver {
    queue: RecvQueue,
    /// XRC target: the domain.
    domain: Option<u32>,
    /// XRC target: number of the shared receive queue in `queue`.
    srqn: Option<u32>,
    wqe: RecvWqe,
    sges: [Sge; SGE_MAX as usize],
    loaded: bool,
    /// The loaded receive has more entries than the queue allows.
    malformed: bool,
    /// Bytes for which the loaded receive has room.
    pub(crate) room: u64,
}

impl Receiver {
    pub(crate) fn new(queue: RecvQueue) -> Self {
        let domain = if let RecvQueue::Xrc { domain } = queue { Some(domain) } else { None };
        Receiver {
            queue,
            domain,
            srqn: None,
            wqe: RecvWqe::default(),
            sges: [Sge::default(); SGE_MAX as usize],
            loaded: false,
            malformed: false,
            room: 0,
        }
    }
    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded
    }
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.queue, RecvQueue::Shared(_) | RecvQueue::Xrc { .. })
    }
    /// Loads a receive unless one is loaded.
    pub(crate) fn load(&mut self) -> Load {
        if self.loaded {
            return Load::Ready;
        }
        let fetched = match &mut self.queue {
            RecvQueue::Own(rq) => rq.fetch(&mut self.wqe, &mut self.sges),
            RecvQueue::Shared(srq) => srq.fetch(&mut self.wqe, &mut self.sges),
            RecvQueue::None | RecvQueue::Xrc { .. } => Fetch::Empty,
        };
        match fetched {
            Fetch::Empty => return Load::Empty,
            Fetch::Corrupt => return Load::Corrupt,
            Fetch::Taken(_) => self.malformed = false,
            Fetch::Malformed(_) => {
                self.malformed = true;
                self.wqe.num_sge = 0;
            }
        }
        self.loaded = true;
        self.room = self.entries().iter().map(|sge| u64::from(sge.length)).sum();
        Load::Ready
    }
    fn entries(&self) -> &[Sge] {
        &self.sges[..self.wqe.num_sge as usize]
    }
    /// Whether the queue is empty and the next post will ring the doorbell.
    pub(crate) fn try_idle(&mut self) -> bool {
        match &mut self.queue {
            RecvQueue::Own(rq) => rq.try_idle(),
            RecvQueue::Shared(_) | RecvQueue::None | RecvQueue::Xrc { .. } => true,
        }
    }
    /// Removes all posted receives without completions (the queue pair goes to RESET).
    pub(crate) fn discard(&mut self) {
        self.loaded = false;
        if let RecvQueue::Own(rq) = &mut self.queue {
            rq.discard_all();
        }
    }
    pub(crate) fn domain(&self) -> Option<u32> {
        self.domain
    }
    pub(crate) fn srqn(&self) -> Option<u32> {
        self.srqn
    }
    /// Takes receives from this shared receive queue of an XRC domain from now on.
    pub(crate) fn take_up(&mut self, srqn: u32, srq: &XrcSrq) {
        let same = matches!(&self.queue, RecvQueue::Shared(queue) if Arc::ptr_eq(queue, &srq.queue));
        if !same {
            // Between messages no receive is loaded.
            debug_assert!(!self.loaded || self.srqn == Some(srqn));
            self.queue = RecvQueue::Shared(srq.queue.clone());
            self.srqn = Some(srqn);
        }
    }
    /// Forgets the shared receive queue, which was destroyed, and the loaded receive.
    pub(crate) fn forget_srq(&mut self) {
        if let Some(domain) = self.domain {
            (self.queue, self.srqn, self.loaded) = (RecvQueue::Xrc { domain }, None, false);
        }
    }
    /// Takes receives from another ring: the shared receive queue was resized.
    pub(crate) fn follow_srq(&mut self, srq: Arc<SrqConsumer>) {
        self.queue = RecvQueue::Shared(srq);
    }
    /// Checks that the loaded receive is usable.
    pub(crate) fn check(&self) -> Result<(), Reason> {
        if self.malformed { Err(Reason::LocalOperation) } else { Ok(()) }
    }
    /// Whether a receive is loaded and usable.
    pub(crate) fn is_usable(&self) -> bool {
        self.loaded && !self.malformed
    }
    /// Contiguous memory for packets of `each` bytes from `offset` of the loaded receive on, at most `count` packets.
    pub(crate) fn run(&self, keys: Keys<'_>, offset: u64, each: u32, count: u32) -> Option<Span> {
        SgeCursor::at(self.entries(), offset).run(keys, self.entries(), each, count)
    }
    /// Writes `bytes` at `offset` of the loaded receive.
    pub(crate) fn scatter(&self, keys: Keys<'_>, offset: u64, bytes: &[u8]) -> Result<(), Reason> {
        SgeCursor::at(self.entries(), offset).scatter(keys, self.entries(), bytes)
    }
}

/// The variable part of a receive completion.
#[derive(Clone, Copy, Default)]
pub(crate) struct ReceivedMessage {
    pub(crate) byte_len: u32,
    /// Immediate data or invalidated key; `wc_flags` says which.
    pub(crate) imm: u32,
    pub(crate) wc_flags: u32,
    pub(crate) src_qpn: Qpn,
    pub(crate) with_write: bool,
    pub(crate) solicited: bool,
    /// Datagrams: code of the IP version ([`crate::ud`]).
    pub(crate) sl: u8,
}

impl Qp {
    /// Arguments of key look-ups for receives.
    pub(crate) fn recv_keys<'a>(&self, env: &Env<'a>) -> Keys<'a> {
        Keys { mem: env.mem, pd: self.id.pd, access: access::LOCAL_WRITE }
    }

    /// Completes the loaded receive.
    pub(crate) fn complete_receive(&mut self, got: ReceivedMessage, env: &mut Env<'_>) {
        let opcode = if got.with_write { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
        let cqe = Cqe {
            byte_len: got.byte_len,
            imm: got.imm,
            src_qpn: got.src_qpn.get(),
            wc_flags: got.wc_flags,
            sl: got.sl,
            ..self.receive_cqe(WcStatus::Success, opcode, None, env)
        };
        env.fx.complete(self.id.recv_cq, cqe, got.solicited);
    }

    /// Completes the loaded receive with an error.
    pub(crate) fn complete_receive_error(&mut self, status: WcStatus, reason: Reason, env: &mut Env<'_>) {
        env.fx.count(reason);
        let cqe = self.receive_cqe(status, WcOpcode::Recv, Some(reason), env);
        env.fx.complete(self.id.recv_cq, cqe, true);
    }

    fn receive_cqe(&mut self, status: WcStatus, opcode: WcOpcode, reason: Option<Reason>, env: &Env<'_>) -> Cqe {
        debug_assert!(self.recv.loaded);
        self.recv.loaded = false;
        Cqe {
            wr_id: self.recv.wqe.wr_id,
            timestamp_ns: env.now.0,
            qpn: self.id.qpn.get(),
            vendor_err: vendor_err(reason),
            qp_cookie: self.id.cookie,
            sq_consumer: self.recv.wqe.reserved,
            status: status as u8,
            opcode: opcode as u8,
            is_recv: 1,
            ..Cqe::default()
        }
    }
}
