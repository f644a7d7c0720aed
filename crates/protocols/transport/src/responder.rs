//! The receiving half of a queue pair: what it keeps of the peer's requests, and what of it is to be answered.
//!
//! `requests` checks and executes request packets, `answers` sends the answers: `ack_due` and `nak_due` coalesce, READ and ATOMIC
//! responses wait in a ring of `max_dest_rd_atomic` resources. A resource stays after it was answered, so that a repeated READ
//! (any part of it) or ATOMIC (the saved result) can be answered again (IBA 9.7.5.1.3). A repeated request rewinds its resource;
//! responses behind it that are still pending follow in order.
//!
//! | file | what it holds |
//! |---|---|
//! | `requests`, `refusal` | request packets: checks and execution; why one is refused |
//! | `receiver`, `received_message`, `completions` | the receive queue; what a completion says; completions and flushing |
//! | `answers`, `resource` | acknowledgements, NAKs, READ and ATOMIC responses; READs and ATOMICs that were accepted |
//! | `repairs`, `repair_queue` | lost parts of READ responses that the peer asks for again |
//! | `response_window` | the READ responses in flight |
//! | `fork_hold` | requests for memory of a program that forks |
//! | `selective` | the selective repeat family: requests in any order, acknowledgements, records of early packets |
//! | `early_receives` | receives that were taken before their turn |
//! | `trains` | request packets of a train, many at a time |
//! | `uc`, `datagrams`, `xrc` | unreliable connections, datagrams, XRC targets |
//! | `check` | what must hold between two calls |

pub(crate) mod answers;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod datagrams;
pub(crate) mod early_receives;
pub(crate) mod fork_hold;
pub(crate) mod received_message;
pub(crate) mod receiver;
pub(crate) mod refusal;
pub(crate) mod repair_queue;
pub(crate) mod repairs;
pub(crate) mod requests;
pub(crate) mod resource;
pub(crate) mod response_window;
pub(crate) mod selective;
pub(crate) mod trains;
pub(crate) mod uc;
pub(crate) mod xrc;

use crate::api::RecvQueue;
use crate::qp_shared::{QpHalf, QpShared};
use crate::responder::fork_hold::ForkHold;
use crate::responder::receiver::Receiver;
use crate::responder::repair_queue::{READ_REPAIR_DUE, ResponseRepairs};
use crate::responder::resource::ResponderResource;
use crate::responder::response_window::ResponseWindow;
use crate::responder::selective::SelectiveResponder;
use burst_base::heap::OutOfMemory;
use burst_base::{Nanos, Psn, Rkey, TokenBucket, heap};
use burst_wire::{OpKind, Syndrome};

/// Answers to repeated and out-of-order packets: bursts of 1,024, and 10,000 per second. A peer that repeats a whole window gets
/// one such answer in a turn, because answers coalesce.
pub(crate) type AnswerBudget = TokenBucket<1024, 100_000>;
/// A gap that stays is reported again when a packet comes: a lost NAK costs the peer a whole ACK timeout otherwise. A peer
/// that has sent the missing packet again ignores it, but others may send everything once more. So a gap is repeated after
/// twice the time for which packets behind the last gap came, which is a round trip if the peer has kept sending; not sooner
/// than the first of these times, nor later than the second, which is also for the first gap.
pub(crate) const NAK_REPEATED_AFTER: [Nanos; 2] = [Nanos::from_us(50), Nanos::from_us(500)];

/// A SEND or WRITE of which some packets have arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InboundMessage {
    pub(crate) kind: OpKind,
    pub(crate) addr: u64,
    pub(crate) rkey: Rkey,
    /// WRITE: announced length.
    pub(crate) length: u32,
    pub(crate) received: u64,
}

/// A bit of [`Responder::pending`].
pub(crate) const READ_ACK_DUE: u32 = 1 << 31;
/// The bits of [`Responder::pending`] that do not count resources.
pub(crate) const FLAGS: u32 = READ_ACK_DUE | READ_REPAIR_DUE;

/// State of the receiving half.
// In the order of use: see `qp::prefetch`.
#[repr(C)]
pub(crate) struct Responder {
    /// ERR: the receive queue may hold receives to flush.
    pub(crate) flush_recv: bool,
    /// ERR: LAST_WQE_REACHED was raised.
    pub(crate) last_wqe_raised: bool,
    /// Requests of the selective repeat family are accepted.
    pub(crate) accepts_selective: bool,
    /// Whether the program forks.
    fork: ForkHold,
    /// PSN and syndrome of the pending NAK.
    pub(crate) nak_due: Option<(Psn, Syndrome)>,
    /// Bytes of READ responses in flight.
    pub(crate) response_bytes: u64,
    /// When the responses in flight stop counting; never, if there are none.
    pub(crate) response_deadline: Nanos,
    /// PSN and MSN of the pending acknowledgement.
    pub(crate) ack_due: Option<(Psn, u32)>,
    /// Resources with pending packets; [`READ_ACK_DUE`] if READ responses are to be acknowledged; and [`READ_REPAIR_DUE`] if
    /// parts of responses are to be sent again: so one comparison tells whether anything is to be sent.
    pub(crate) pending: u32,
    /// Resources with pending packets that wait for the window: then `pending` counts none.
    pub(crate) parked: u32,
    /// A NAK was sent for the expected packet. Later packets are dropped silently until it arrives (IBA 9.7.4.1.2).
    pub(crate) nak_given: bool,
    /// It was that of a gap, sent at `nak_at` (which has another meaning with [`ForkHold::Dropped`]): it may have been lost,
    /// and is repeated if the gap stays.
    nak_is_gap: bool,
    /// The pending acknowledgement is for a message that has just completed a receive.
    pub(crate) ack_follows_receive: bool,
    /// COMM_EST was raised.
    pub(crate) established: bool,
    pub(crate) expected: Psn,
    pub(crate) msn: u32,
    pub(crate) message: Option<InboundMessage>,
    /// The selective repeat family.
    pub(crate) sel: SelectiveResponder,
    /// Grows with use, up to `depth` resources.
    pub(crate) resources: Vec<ResponderResource>,
    depth: usize,
    /// Index of the oldest resource; `count` of them follow each other from there.
    first: usize,
    count: usize,
    /// Number of the oldest resources that have nothing pending.
    served: usize,
    pub(crate) answers: AnswerBudget,
    nak_at: Nanos,
    /// Time from the NAK of the last gap to the last packet that came behind it, in nanoseconds.
    gap_lasted_ns: u32,
    /// After which time the NAK of a gap is repeated, in nanoseconds.
    nak_wait_ns: u32,
    /// READ responses are acknowledged.
    pub(crate) window: Option<Box<ResponseWindow>>,
    /// Parts of READ responses that the peer asks for again.
    pub(crate) repairs: ResponseRepairs,
    pub(crate) recv: Receiver,
}

impl Responder {
    pub(crate) fn new(queue: RecvQueue) -> Self {
        Responder {
            flush_recv: false,
            last_wqe_raised: false,
            accepts_selective: false,
            fork: ForkHold::None,
            window: None,
            repairs: ResponseRepairs::default(),
            recv: Receiver::new(queue),
            expected: Psn::new(0),
            msn: 0,
            nak_given: false,
            nak_is_gap: false,
            nak_at: Nanos(0),
            gap_lasted_ns: 0,
            nak_wait_ns: NAK_REPEATED_AFTER[1].0 as u32,
            message: None,
            ack_due: None,
            ack_follows_receive: false,
            nak_due: None,
            resources: Vec::new(),
            depth: 0,
            first: 0,
            count: 0,
            served: 0,
            pending: 0,
            parked: 0,
            response_bytes: 0,
            response_deadline: Nanos::NEVER,
            established: false,
            answers: AnswerBudget::default(),
            sel: SelectiveResponder::new(),
        }
    }
    /// Reserves memory for one READ or ATOMIC, if `depth` allows any (the queue pair is about to enter RTR).
    pub(crate) fn reserve(&mut self, depth: u8) -> Result<(), OutOfMemory> {
        heap::reserve(&mut self.resources, usize::from(depth.min(1)))
    }
    /// Reserves memory for the next READ or ATOMIC: most queue pairs never have as many as they may.
    fn reserve_place(&mut self) -> Result<(), OutOfMemory> {
        let used = self.resources.len();
        if used < self.resources.capacity() || used == self.depth {
            return Ok(());
        }
        self.grow()
    }
    #[cold]
    fn grow(&mut self) -> Result<(), OutOfMemory> {
        let places = (2 * self.resources.len()).clamp(1, self.depth);
        heap::reserve(&mut self.resources, places)
    }
    /// Begins at `psn`, with places for `depth` READs and ATOMICs (the queue pair enters RTR).
    pub(crate) fn start(&mut self, psn: Psn, depth: u8) {
        let mut resources = std::mem::take(&mut self.resources);
        resources.clear();
        self.begin_anew();
        (self.expected, self.resources, self.depth) = (psn, resources, usize::from(depth));
        self.recv.consumed = 0;
    }
    /// Removes all receives without completions (the queue pair goes to RESET).
    pub(crate) fn reset(&mut self) {
        self.recv.discard();
        self.begin_anew();
        self.forget_responses();
        debug_assert!(self.resources.is_empty() && !self.has_pending() && !self.recv.is_loaded());
    }
    /// Forgets everything but the receive queue and what is kept for acknowledgements of READ responses.
    fn begin_anew(&mut self) {
        let old = std::mem::replace(self, Responder::new(RecvQueue::None));
        let Responder { recv, window, repairs, accepts_selective, .. } = old;
        (self.recv, self.window, self.repairs, self.accepts_selective) = (recv, window, repairs, accepts_selective);
    }
    /// The queue pair goes to ERR: only a pending NAK and the responses before it are still sent.
    pub(crate) fn stop(&mut self) {
        self.message = None;
        self.ack_due = None;
        if self.nak_due.is_none() {
            self.drop_pending();
        }
        self.forget_responses();
        self.flush_recv = true;
        debug_assert!(self.nak_due.is_some() || !self.has_pending(), "only a NAK and what is before it is still sent");
    }
    /// An error of a request of the peer moves the queue pair to ERR.
    pub(crate) fn fail(&mut self, qp: &mut QpShared) {
        if qp.fail(QpHalf::Responder) {
            self.stop();
        }
    }
    /// Drops the pending responses.
    pub(crate) fn drop_pending(&mut self) {
        self.count = 0;
        self.served = 0;
        (self.pending, self.parked) = (0, 0);
        (self.response_bytes, self.response_deadline) = (0, Nanos::NEVER);
    }
    /// The resources that are kept.
    pub(crate) fn held_resources(&mut self) -> impl Iterator<Item = &mut ResponderResource> {
        let (ahead, behind) = self.resources.split_at_mut(self.first);
        behind.iter_mut().chain(ahead).take(self.count)
    }
    /// Ends access to memory for requests that named this shared receive queue.
    pub(crate) fn revoke(&mut self, srqn: u32) {
        for resource in self.resources.iter_mut().filter(|r| r.srqn == srqn) {
            resource.pd = u32::MAX;
        }
    }
    /// Whether an answer is pending.
    pub(crate) fn has_pending(&self) -> bool {
        self.ack_due.is_some() || self.nak_due.is_some() || self.pending > 0
    }
    /// Whether an acknowledgement is pending and nothing else.
    pub(crate) fn has_only_ack_pending(&self) -> bool {
        self.ack_due.is_some() && self.nak_due.is_none() && self.pending == 0
    }
    /// The oldest resource with pending packets.
    pub(crate) fn oldest_pending(&mut self) -> Option<&mut ResponderResource> {
        if self.pending & !FLAGS == 0 {
            return None;
        }
        let age = (self.served..self.count).find(|&age| self.resources[self.place(age)].has_pending())?;
        // Responses are sent in order: older resources need not be searched again unless one is rewound.
        self.served = age;
        let place = self.place(age);
        Some(&mut self.resources[place])
    }
    /// Index of the resource that has `age` older ones.
    fn place(&self, age: usize) -> usize {
        let place = self.first + age;
        if place < self.depth { place } else { place - self.depth }
    }
    /// Whether a new READ or ATOMIC may be accepted: a place is free, or the oldest resource has been answered.
    fn has_place(&self) -> bool {
        self.depth > 0 && (self.count < self.depth || self.resources[self.first].answered)
    }
    /// Stores a resource, over the oldest if no place is free.
    fn store(&mut self, resource: ResponderResource) {
        debug_assert!(self.has_place() && resource.has_pending());
        self.unpark();
        if self.count == self.depth {
            let oldest = &self.resources[self.first];
            if oldest.has_pending() {
                self.pending -= 1;
            }
            // The peer asks for more than `depth` READs and ATOMICs, so it has the answer to the first.
            self.response_bytes -= u64::from(oldest.counted_bytes - oldest.acked_bytes);
            self.first = self.place(1);
            self.count -= 1;
            self.served = self.served.saturating_sub(1);
        }
        debug_assert!(self.count < self.depth && self.served <= self.count);
        match self.place(self.count) {
            unused if unused == self.resources.len() => {
                debug_assert!(unused < self.resources.capacity(), "`reserve_place` made room");
                self.resources.push(resource);
            }
            place => self.resources[place] = resource,
        }
        self.count += 1;
        self.pending += 1;
    }
    /// The packets that were asked for again are sent: the response that they interrupted goes on. False if there was none.
    pub(crate) fn continue_rest(&mut self) -> bool {
        let place = self.place(self.served);
        let Some(resource) = self.resources.get_mut(place) else { return false };
        let Some((start, next, end)) = resource.rest.take() else { return false };
        debug_assert!(!resource.has_pending() && next < end);
        (resource.start, resource.next, resource.end) = (start, next, end);
        true
    }
    /// Age and index of the resource that contains `psn`. If several do, the youngest: PSNs wrap, and a resource may stay for
    /// longer than that takes.
    fn find(&self, psn: Psn) -> Option<(usize, usize)> {
        (0..self.count).rev().map(|age| (age, self.place(age))).find(|&(_, place)| {
            let resource = &self.resources[place];
            psn.is_within(resource.psn, resource.packets)
        })
    }
    /// Whether a resource that has fewer than `age` older ones has pending packets.
    pub(crate) fn is_older_pending(&self, age: usize) -> bool {
        (self.served.min(age)..age).any(|age| self.resources[self.place(age)].has_pending())
    }
    /// The READ of which `count` packets from `psn` on are a part.
    pub(crate) fn response_of(&self, psn: Psn, count: u32) -> Option<&ResponderResource> {
        let (_, place) = self.find(psn)?;
        let is_whole = |resource: &&ResponderResource| {
            resource.kind == OpKind::ReadRequest && psn.add(count).diff(resource.psn) <= resource.packets as i32
        };
        self.resources.get(place).filter(is_whole)
    }
    /// Makes packets `index..end` of the resource of this age pending again.
    fn rewind(&mut self, age: usize, index: u32, end: u32) {
        debug_assert!(age < self.count);
        self.unpark();
        let place = self.place(age);
        let resource = &mut self.resources[place];
        debug_assert!(index < end && end <= resource.packets);
        if !resource.has_pending() {
            self.pending += 1;
        }
        (resource.start, resource.next, resource.end) = (index, index, end);
        self.served = self.served.min(age);
    }

    /// READs and ATOMICs of the selective repeat family are answered in the standard one from now on, those too whose response
    /// the peer asks for again: it understands no other. What is left of a response begins as a whole one.
    #[cold]
    pub(crate) fn answer_in_standard_family(&mut self) {
        self.pending &= !READ_REPAIR_DUE;
        for resource in &mut self.resources {
            (resource.selective, resource.is_repair, resource.rest) = (false, false, None);
            // What acknowledgements of the other family have said does not count: a response begins with its first packet.
            resource.held = 0;
            resource.start = resource.next;
        }
    }
}

#[cfg(test)]
mod tests;
