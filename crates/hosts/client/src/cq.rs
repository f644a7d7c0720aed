//! Completion queues.

use crate::context::{ClientContext, read_record};
use crate::error::{ClientError, Result};
use crate::raw::completion::CompletionRing;
use crate::raw::idle;
use crate::raw::lock::SpinLock;
use crate::raw::queue::create_cq;
use burst_base::Reason;
use burst_base::verbs::{WcOpcode, WcStatus, wc_flags};
use burst_control::{CqInitAttr, Request, Response};
use burst_shm::Cqe;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a wait for an event lasts at most before the queue is polled again, in case a signal cut it short.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// A completion queue. Clones are the same queue; it ends when the last queue pair that uses it is dropped.
#[derive(Clone, Debug)]
pub struct CompletionQueue(pub(crate) Arc<CqOwner>);

#[derive(Debug)]
pub(crate) struct CqOwner {
    pub(crate) context: ClientContext,
    pub(crate) handle: u32,
    pub(crate) inner: SpinLock<CompletionRing>,
    /// The queue's own completion channel: the daemon's handle and the read end.
    channel: (u32, OwnedFd),
}

impl Drop for CqOwner {
    fn drop(&mut self) {
        let raw = self.context.raw();
        raw.release_prealloc(|init| [init.send_cq, init.recv_cq].contains(&self.handle));
        // Nothing uses the queue any more, so the daemon does not refuse.
        let _ = raw.end_object(&Request::DestroyCq { cq: self.handle });
        let _ = raw.end_object(&Request::DestroyChannel { channel: self.channel.0 });
    }
}

/// A finished work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number that the program gave to the request.
    pub wr_id: u64,
    /// Success, or the kind of failure.
    pub status: WcStatus,
    /// The operation; only meaningful on success.
    pub opcode: Option<WcOpcode>,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data in host order, if the message carried any.
    pub imm: Option<u32>,
    /// Number of the local queue pair.
    pub qp_num: u32,
    /// The daemon's reason for the failure of the request.
    pub reason: Option<Reason>,
}

impl Completion {
    fn of(cqe: &Cqe) -> Completion {
        let has_imm = cqe.wc_flags & wc_flags::WITH_IMM != 0;
        let reason = (cqe.vendor_err as usize).checked_sub(1).and_then(|index| Reason::ALL.get(index).copied());
        Completion {
            wr_id: cqe.wr_id,
            status: WcStatus::from_number(cqe.status.into()).unwrap_or(WcStatus::GeneralErr),
            opcode: WcOpcode::from_number(cqe.opcode.into()),
            byte_len: cqe.byte_len,
            imm: has_imm.then(|| u32::from_be(cqe.imm)),
            qp_num: cqe.qpn,
            reason,
        }
    }

    /// The completion, unless the request failed.
    ///
    /// # Errors
    /// The status, and the daemon's reason.
    pub fn ok(self) -> Result<Completion> {
        if self.status == WcStatus::Success {
            return Ok(self);
        }
        Err(ClientError::WorkRequest { wr_id: self.wr_id, status: self.status, reason: self.reason })
    }
}

impl CompletionQueue {
    pub(crate) fn new(context: &ClientContext, entries: u32) -> Result<CompletionQueue> {
        let raw = context.raw();
        let mut answer = raw.call(&Request::CreateChannel, &[])?;
        let (Response::Channel { channel }, Some(pipe)) = (answer.response, answer.fds.pop()) else {
            return Err(ClientError::Unexpected("no completion channel"));
        };
        let init = CqInitAttr { entries, channel: Some(channel), cookie: raw.event_cookie(), vector: 0 };
        let created = create_cq(raw, init).inspect_err(|_| {
            let _ = raw.end_object(&Request::DestroyChannel { channel });
        });
        let (handle, ring) = created?;
        let inner = SpinLock::new(CompletionRing::new(ring));
        Ok(CompletionQueue(Arc::new(CqOwner { context: context.clone(), handle, inner, channel: (channel, pipe) })))
    }

    /// The context of the queue.
    pub fn context(&self) -> &ClientContext {
        &self.0.context
    }

    /// The next completion, if there is one. A thread that polls in a loop yields its processor when that lasts.
    ///
    /// # Errors
    /// When the daemon has ended, or after fork.
    pub fn poll(&self) -> Result<Option<Completion>> {
        let context = self.0.context.raw();
        if !context.is_alive() {
            return Err(ClientError::Forked);
        }
        let mut found = None;
        self.0.inner.lock().take_one(&context.send_slots, |cqe| found = Some(Completion::of(cqe)));
        if found.is_some() {
            idle::found();
        } else if idle::pause(context.in_process_calls().is_none(), || self.0.inner.lock().progress.take())
            && context.daemon_has_ended()
        {
            return Err(ClientError::Control(burst_control::ControlError::Closed));
        }
        Ok(found)
    }

    /// Asks for an event at the next completion: [`AsFd`] then becomes readable. Poll once more before waiting.
    pub fn arm(&self) {
        self.0.inner.lock().ring.arm(false);
    }

    /// Takes the events that made [`AsFd`] readable.
    ///
    /// # Errors
    /// When the daemon has ended.
    pub fn clear_events(&self) -> Result<()> {
        let mut cookie = [0; 8];
        while read_record(self.0.channel.1.as_fd(), &mut cookie, Duration::ZERO)? {}
        Ok(())
    }

    /// Waits for the next completion, asleep.
    ///
    /// # Errors
    /// [`ClientError::TimedOut`]; when the daemon has ended.
    pub fn wait(&self, timeout: Duration) -> Result<Completion> {
        let begin = Instant::now();
        loop {
            if let Some(completion) = self.poll()? {
                return Ok(completion);
            }
            self.arm();
            if let Some(completion) = self.poll()? {
                return Ok(completion);
            }
            let left = timeout.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(ClientError::TimedOut(timeout));
            }
            crate::context::wait_readable(self.0.channel.1.as_fd(), left.min(WAIT_MAX))?;
            self.clear_events()?;
        }
    }
}

impl AsFd for CompletionQueue {
    /// Readable when a completion has come since [`CompletionQueue::arm`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.channel.1.as_fd()
    }
}
