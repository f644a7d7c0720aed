//! Connected queue pairs (RC, UC): posting, and connecting without the connection manager.
//!
//! A queue pair is made in state INIT. [`QueuePair::connect`] moves it to RTS towards a peer whose [`QpEndpoint`] the program got
//! by its own means (a socket, a file); [`crate::cm`] does the same by the connection manager's messages.

use crate::cq::CompletionQueue;
use crate::error::{ClientError, Result};
use crate::memory::{LocalSlice, ProtectionDomain, RemoteSlice};
use crate::raw::lock::SpinLock;
use crate::raw::queue::{QueueDoorbell, RawQp, SendQueue, create_qp};
use burst_base::verbs::{AhAttr, Mtu, QpAttr, QpCap, QpState, QpType, WrOpcode, access, attr_mask, send_flags};
use burst_base::{Psn, Qpn};
use burst_control::{QpInitAttr, Request, Response};
use burst_shm::rq::RqProducer;
use burst_shm::{SGE_MAX, SendWqe, Sge};
use std::hash::{BuildHasher, RandomState};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// All attributes of a move to INIT.
const TO_INIT: u32 = attr_mask::STATE | attr_mask::PKEY_INDEX | attr_mask::PORT | attr_mask::ACCESS_FLAGS;
/// All attributes of a move to RTR of any connected queue pair; RC adds two.
const TO_RTR: u32 = attr_mask::STATE | attr_mask::AV | attr_mask::PATH_MTU | attr_mask::DEST_QPN | attr_mask::RQ_PSN;
const TO_RTR_RC: u32 = TO_RTR | attr_mask::MAX_DEST_RD_ATOMIC | attr_mask::MIN_RNR_TIMER;
/// All attributes of a move to RTS; RC adds four.
const TO_RTS: u32 = attr_mask::STATE | attr_mask::SQ_PSN;
const TO_RTS_RC: u32 =
    TO_RTS | attr_mask::TIMEOUT | attr_mask::RETRY_CNT | attr_mask::RNR_RETRY | attr_mask::MAX_QP_RD_ATOMIC;
/// Local ACK timeout: 4.096 us * 2^14 = 67 ms.
const TIMEOUT_CODE: u8 = 14;
/// Retries after timeouts, and after RNR NAKs (7: for ever).
const RETRIES: u8 = 7;
/// Minimum RNR NAK timer code 12: 0.64 ms (IBA table 45).
const RNR_TIMER_CODE: u8 = 12;
/// READs and atomics in flight, either side.
const READ_DEPTH: u8 = 16;

/// Attributes of a queue pair to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpOptions {
    /// RC or UC.
    pub qp_type: QpType,
    /// Least capacities; the daemon rounds up.
    pub cap: QpCap,
    /// Access rights of the peer through this queue pair, within the rights of each region ([`access`]).
    pub access: u32,
}

impl Default for QpOptions {
    /// RC, 64 requests of 4 SGEs in each direction, all remote rights.
    fn default() -> QpOptions {
        let cap = QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 0 };
        let access = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
        QpOptions { qp_type: QpType::Rc, cap, access }
    }
}

/// The address of a queue pair, which the other end needs to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpEndpoint {
    /// GID of the port: an IPv6 address, or an IPv4 address mapped.
    pub gid: [u8; 16],
    /// Queue pair number.
    pub qpn: u32,
    /// First packet sequence number that the end sends.
    pub psn: u32,
    /// Largest path MTU that the end's link carries.
    pub mtu: Mtu,
}

/// A work request for the send queue.
#[derive(Clone, Copy, Debug)]
pub enum WorkRequest<'a> {
    /// A message into the peer's next receive.
    Send(&'a [LocalSlice<'a>]),
    /// As [`WorkRequest::Send`], with four bytes of immediate data.
    SendWithImm(&'a [LocalSlice<'a>], u32),
    /// Bytes into the peer's memory; the peer's program gets no completion.
    Write(&'a [LocalSlice<'a>], RemoteSlice),
    /// As [`WorkRequest::Write`]; it consumes a receive of the peer, whose completion carries the immediate data.
    WriteWithImm(&'a [LocalSlice<'a>], RemoteSlice, u32),
    /// Bytes from the peer's memory. RC only.
    Read(&'a [LocalSlice<'a>], RemoteSlice),
    /// Adds to a word of the peer's memory; the old value comes back. RC only.
    FetchAdd(&'a [LocalSlice<'a>], RemoteSlice, u64),
    /// Sets a word of the peer's memory to the second number if it equals the first; the old value comes back. RC only.
    CompareSwap(&'a [LocalSlice<'a>], RemoteSlice, u64, u64),
}

/// A first PSN that other hosts cannot guess: a forged packet is executed only if it has the PSN that is expected next. The keys
/// of a `RandomState` come from the system's generator, and each new one has others.
fn unpredictable_psn() -> u32 {
    RandomState::new().hash_one(()) as u32 >> 8
}

/// A connected queue pair.
#[derive(Debug)]
pub struct QueuePair {
    // In a box of its own: the table of send queues holds its address.
    owner: Arc<QpOwner>,
}

#[derive(Debug)]
struct QpOwner {
    pd: ProtectionDomain,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    qp_type: QpType,
    handle: u32,
    qpn: u32,
    cookie: u32,
    psn: u32,
    sq: SendQueue<()>,
    rq: SpinLock<RqProducer>,
    /// Whether the queue pair has been moved to RTS.
    connected: AtomicBool,
}

impl Drop for QpOwner {
    fn drop(&mut self) {
        let raw = self.pd.context().raw();
        // On return the daemon writes no completion of the queue pair any more. A refusal (it is attached to something) leaves it
        // idle at the daemon until the context is closed.
        let _ = raw.end_object(&Request::DestroyQp { qp: self.handle });
        raw.send_slots.remove(self.cookie);
        // Passing through the locks of both completion queues: a poll that found the send queue before is done with it.
        for cq in [&self.send_cq, &self.recv_cq] {
            cq.0.inner.lock().purge(self.cookie);
        }
    }
}

impl QueuePair {
    pub(crate) fn new(
        pd: &ProtectionDomain,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        options: &QpOptions,
    ) -> Result<QueuePair> {
        let context = pd.context();
        if [send_cq, recv_cq].iter().any(|cq| !cq.context().is_same(context)) {
            return Err(ClientError::Invalid("a completion queue belongs to another context"));
        }
        if !matches!(options.qp_type, QpType::Rc | QpType::Uc) {
            return Err(ClientError::Invalid("only RC and UC queue pairs are offered by this interface"));
        }
        let raw = context.raw();
        let init = QpInitAttr {
            pd: pd.handle(),
            qp_type: options.qp_type,
            send_cq: send_cq.0.handle,
            recv_cq: recv_cq.0.handle,
            srq: None,
            cap: options.cap,
        };
        let RawQp { made, sq, rq } = create_qp(raw, &init)?;
        let Some(rq) = rq else { return Err(ClientError::Unexpected("a queue pair without receive queue")) };
        let doorbell = QueueDoorbell { worker: made.grant.worker as usize, number: made.grant.doorbell };
        let owner = Arc::new(QpOwner {
            pd: pd.clone(),
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            qp_type: options.qp_type,
            handle: made.grant.qp,
            qpn: made.grant.qpn,
            cookie: made.name.cookie,
            psn: unpredictable_psn(),
            sq: SendQueue::new(sq, doorbell),
            rq: SpinLock::new(rq),
            connected: AtomicBool::new(false),
        });
        // SAFETY: the owner stays where it is; its drop takes the entry out and passes through the locks of both queues.
        unsafe { raw.send_slots.put(owner.cookie, NonNull::from(&owner.sq.slots)) };
        let qp = QueuePair { owner };
        let attr =
            QpAttr { qp_state: QpState::Init, port_num: 1, qp_access_flags: options.access, ..QpAttr::default() };
        qp.modify(attr, TO_INIT)?;
        Ok(qp)
    }

    fn modify(&self, attr: QpAttr, mask: u32) -> Result<()> {
        let request = Request::ModifyQp { qp: self.owner.handle, attr, mask };
        match self.owner.pd.context().raw().ask(&request)? {
            Response::QpAttr(_) => Ok(()),
            _ => Err(ClientError::Unexpected("no attributes")),
        }
    }

    /// Queue pair number.
    pub fn number(&self) -> u32 {
        self.owner.qpn
    }

    /// The domain of the queue pair.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.owner.pd
    }

    /// The attributes as the daemon has them, the state among them.
    ///
    /// # Errors
    /// When the connection to the daemon fails.
    pub fn query(&self) -> Result<QpAttr> {
        match self.owner.pd.context().raw().ask(&Request::QueryQp { qp: self.owner.handle })? {
            Response::QpAttr(attr) => Ok(attr),
            _ => Err(ClientError::Unexpected("no attributes")),
        }
    }

    /// The data that the peer needs to connect to this queue pair, by the device's first GID.
    ///
    /// # Errors
    /// When the device has no address.
    pub fn endpoint(&self) -> Result<QpEndpoint> {
        let device = self.owner.pd.context().device_now()?;
        let gid = device.gids.first().ok_or(ClientError::Invalid("the device has no address"))?.gid;
        Ok(QpEndpoint { gid, qpn: self.owner.qpn, psn: self.owner.psn, mtu: device.active_mtu })
    }

    /// Connects the queue pair to a peer: INIT to RTR to RTS, by the device's first GID, with the smaller MTU of both ends.
    ///
    /// # Errors
    /// EINVAL when the queue pair is connected already; else the daemon's refusal.
    pub fn connect(&self, peer: &QpEndpoint) -> Result<()> {
        let ours = self.endpoint()?;
        let mtu = if (peer.mtu as u8) < ours.mtu as u8 { peer.mtu } else { ours.mtu };
        let attr = QpAttr {
            qp_state: QpState::Rtr,
            path_mtu: mtu,
            rq_psn: Psn::new(peer.psn),
            dest_qpn: Qpn::new(peer.qpn),
            ah: AhAttr { dgid: peer.gid, hop_limit: 64, is_global: true, port_num: 1, ..AhAttr::default() },
            max_dest_rd_atomic: READ_DEPTH,
            min_rnr_timer: RNR_TIMER_CODE,
            ..QpAttr::default()
        };
        let reliable = self.owner.qp_type == QpType::Rc;
        self.modify(attr, if reliable { TO_RTR_RC } else { TO_RTR })?;
        let attr = QpAttr {
            qp_state: QpState::Rts,
            sq_psn: Psn::new(ours.psn),
            timeout: TIMEOUT_CODE,
            retry_cnt: RETRIES,
            rnr_retry: RETRIES,
            max_rd_atomic: READ_DEPTH,
            ..QpAttr::default()
        };
        self.modify(attr, if reliable { TO_RTS_RC } else { TO_RTS })?;
        self.set_connected();
        Ok(())
    }

    /// Lets requests be posted: the connection manager has moved the queue pair to RTS.
    pub(crate) fn set_connected(&self) {
        self.owner.connected.store(true, Ordering::Release);
    }

    /// Posts a receive for one message. The message fills the slices in order; a longer message is an error of both ends.
    ///
    /// # Errors
    /// ENOMEM when the queue is full; EINVAL for more slices than the queue's entries hold.
    pub fn post_recv(&self, wr_id: u64, to: &[LocalSlice<'_>]) -> Result<()> {
        let raw = self.raw()?;
        let mut list = [Sge { addr: 0, length: 0, lkey: 0 }; SGE_MAX as usize];
        let sges = sges_of(to, &mut list)?;
        let mut ring = self.owner.rq.lock();
        ring.write(wr_id, sges)?;
        let rings = ring.post();
        drop(ring);
        if rings {
            self.owner.sq.doorbell.ring(raw);
        }
        Ok(())
    }

    /// Posts a request, whose completion comes to the send completion queue under the number `wr_id`. Requests are carried out in
    /// the order in which they are posted.
    ///
    /// # Errors
    /// ENOMEM when the queue is full: poll completions first. EINVAL before the queue pair is connected, for a request that the
    /// service does not carry, and for more slices than the queue's entries hold.
    pub fn post_send(&self, wr_id: u64, request: WorkRequest<'_>) -> Result<()> {
        let raw = self.raw()?;
        if !self.owner.connected.load(Ordering::Acquire) {
            return Err(ClientError::Invalid("the queue pair is not connected"));
        }
        let (mut wqe, slices) = wqe_of(&request)?;
        if self.owner.qp_type == QpType::Uc && wqe.opcode >= WrOpcode::RdmaRead as u8 {
            return Err(ClientError::Invalid("READs and atomics need a reliable queue pair"));
        }
        (wqe.wr_id, wqe.flags) = (wr_id, send_flags::SIGNALED as u16);
        let mut list = [Sge { addr: 0, length: 0, lkey: 0 }; SGE_MAX as usize];
        let sges = sges_of(slices, &mut list)?;
        Ok(self.owner.sq.post(raw, |ring| ring.write(&wqe, sges))?)
    }

    /// The context, in the process that opened it.
    fn raw(&self) -> Result<&crate::raw::RawContext> {
        let raw = self.owner.pd.context().raw();
        if raw.is_alive() { Ok(raw) } else { Err(ClientError::Forked) }
    }
}

/// The SGEs of slices.
fn sges_of<'a>(slices: &[LocalSlice<'_>], list: &'a mut [Sge; SGE_MAX as usize]) -> Result<&'a [Sge]> {
    let used = list.get_mut(..slices.len()).ok_or(ClientError::Post(burst_shm::WriteError::TooManySges))?;
    for (sge, slice) in used.iter_mut().zip(slices) {
        *sge = slice.sge;
    }
    Ok(used)
}

/// A request's entry without number and flags, and its slices.
fn wqe_of<'a>(request: &WorkRequest<'a>) -> Result<(SendWqe, &'a [LocalSlice<'a>])> {
    let entry = |opcode: WrOpcode, remote: Option<RemoteSlice>, imm: u32| SendWqe {
        opcode: opcode as u8,
        imm: imm.to_be(),
        remote_addr: remote.map_or(0, |r| r.addr),
        rkey: remote.map_or(0, |r| r.rkey),
        ..SendWqe::default()
    };
    let bytes = |slices: &[LocalSlice<'_>]| slices.iter().map(|s| u64::from(s.sge.length)).sum::<u64>();
    let (wqe, slices, remote) = match *request {
        WorkRequest::Send(from) => (entry(WrOpcode::Send, None, 0), from, None),
        WorkRequest::SendWithImm(from, imm) => (entry(WrOpcode::SendWithImm, None, imm), from, None),
        WorkRequest::Write(from, to) => (entry(WrOpcode::RdmaWrite, Some(to), 0), from, Some(to)),
        WorkRequest::WriteWithImm(from, to, imm) => (entry(WrOpcode::RdmaWriteWithImm, Some(to), imm), from, Some(to)),
        WorkRequest::Read(to, from) => (entry(WrOpcode::RdmaRead, Some(from), 0), to, Some(from)),
        WorkRequest::FetchAdd(to, word, add) => {
            (SendWqe { compare_add: add, ..entry(WrOpcode::AtomicFetchAndAdd, Some(word), 0) }, to, Some(word))
        }
        WorkRequest::CompareSwap(to, word, compare, swap) => {
            let wqe = entry(WrOpcode::AtomicCmpAndSwp, Some(word), 0);
            (SendWqe { compare_add: compare, swap, ..wqe }, to, Some(word))
        }
    };
    if remote.is_some_and(|r| bytes(slices) > r.len) {
        return Err(ClientError::Invalid("the request is longer than the remote slice"));
    }
    Ok((wqe, slices))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_psns_have_24_bits_and_do_not_follow_from_each_other() {
        let psns: Vec<u32> = (0..256).map(|_| unpredictable_psn()).collect();
        assert!(psns.iter().all(|psn| psn >> 24 == 0));
        for bit in 0..24 {
            let flipped = psns.windows(2).filter(|w| (w[0] ^ w[1]) >> bit & 1 == 1).count();
            assert!((70..185).contains(&flipped), "bit {bit} differs between {flipped} of 255 pairs");
        }
    }
}
