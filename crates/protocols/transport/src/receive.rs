//! Receives: taking work requests from the receive queue, filling them, completing them.
//!
//! A receive is copied out of shared memory once and then held until a message has filled it; a UC or UD message that
//! breaks leaves it held for the next one (IBA 9.8.3: the receive is not consumed).

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

/// What looking for a receive came to.
pub(crate) enum Load {
    /// One is held.
    Ready,
    /// None is posted.
    Empty,
    /// The queue's indices are impossible.
    Corrupt,
}

/// The receive queue and the receive that is held.
pub(crate) struct Receiver {
    queue: RecvQueue,
    /// XRC target: the domain.
    domain: Option<u32>,
    /// XRC target: the shared receive queue that `queue` is.
    srqn: Option<u32>,
    wqe: RecvWqe,
    sges: [Sge; SGE_MAX as usize],
    loaded: bool,
    /// The held receive claims more entries than the queue allows.
    malformed: bool,
    /// Bytes that the held receive has room for.
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
    /// Makes sure that a receive is held.
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
        self.room = self.held().iter().map(|sge| u64::from(sge.length)).sum();
        Load::Ready
    }
    fn held(&self) -> &[Sge] {
        &self.sges[..self.wqe.num_sge as usize]
    }
    /// Whether the queue is surely empty and a doorbell will tell of the next post.
    pub(crate) fn try_idle(&mut self) -> bool {
        match &mut self.queue {
            RecvQueue::Own(rq) => rq.try_idle(),
            RecvQueue::Shared(_) | RecvQueue::None | RecvQueue::Xrc { .. } => true,
        }
    }
    /// Forgets everything posted so far (the queue pair goes to RESET).
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
    /// Receives come from this shared receive queue of an XRC domain from now on.
    pub(crate) fn take_up(&mut self, srqn: u32, srq: &XrcSrq) {
        let same = matches!(&self.queue, RecvQueue::Shared(queue) if Arc::ptr_eq(queue, &srq.queue));
        if !same {
            // Between messages no receive is held.
            debug_assert!(!self.loaded || self.srqn == Some(srqn));
            self.queue = RecvQueue::Shared(srq.queue.clone());
            self.srqn = Some(srqn);
        }
    }
    /// The shared receive queue is gone, with the receive that is held of it.
    pub(crate) fn forget_srq(&mut self) {
        if let Some(domain) = self.domain {
            (self.queue, self.srqn, self.loaded) = (RecvQueue::Xrc { domain }, None, false);
        }
    }
    /// The shared receive queue has moved to another ring.
    pub(crate) fn follow_srq(&mut self, srq: Arc<SrqConsumer>) {
        self.queue = RecvQueue::Shared(srq);
    }
    /// Whether the held receive is usable.
    pub(crate) fn check(&self) -> Result<(), Reason> {
        if self.malformed { Err(Reason::LocalOperation) } else { Ok(()) }
    }
    /// Whether a receive is held and usable.
    pub(crate) fn is_usable(&self) -> bool {
        self.loaded && !self.malformed
    }
    /// Where the packets of `each` bytes from `offset` of the held receive on go that lie side by side; at most `count`.
    pub(crate) fn run(&self, keys: Keys<'_>, offset: u64, each: u32, count: u32) -> Option<Span> {
        SgeCursor::at(self.held(), offset).run(keys, self.held(), each, count)
    }
    /// Writes `bytes` at `offset` of the held receive.
    pub(crate) fn scatter(&self, keys: Keys<'_>, offset: u64, bytes: &[u8]) -> Result<(), Reason> {
        SgeCursor::at(self.held(), offset).scatter(keys, self.held(), bytes)
    }
}

/// What a completed receive tells.
#[derive(Clone, Copy, Default)]
pub(crate) struct ReceivedMessage {
    pub(crate) byte_len: u32,
    /// Immediate data or invalidated key, and the flags that say which.
    pub(crate) imm: u32,
    pub(crate) wc_flags: u32,
    pub(crate) src_qpn: Qpn,
    pub(crate) with_write: bool,
    pub(crate) solicited: bool,
    /// For datagrams, what kind of IP header lies before the data.
    pub(crate) sl: u8,
}

impl Qp {
    /// The keys of receives.
    pub(crate) fn recv_keys<'a>(&self, env: &Env<'a>) -> Keys<'a> {
        Keys { mem: env.mem, pd: self.id.pd, access: access::LOCAL_WRITE }
    }

    /// Completes the held receive.
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

    /// Completes the held receive with an error.
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
            status: status as u8,
            opcode: opcode as u8,
            is_recv: 1,
            ..Cqe::default()
        }
    }
}
