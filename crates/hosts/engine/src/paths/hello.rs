//! Hellos on QP1: questions of what a peer's daemon can do, and answers to those of peers.
//!
//! An answer counts only if it has the number of the question, which no other host can compute. Questions are answered without
//! belief in what they say, at most [`AnswerBudget`] of them. What is known of a peer: [`PeerHello`].
//!
//! A path's controller follows what its peer is and has chosen (`DataPath::settle_cc`), with the timers of the pass, when the
//! port is at hand.

use crate::counters::Counters;
use crate::options::{HELLO_DOMAIN, WorkerOptions};
use crate::paths::hello_times::HelloTimes;
use crate::paths::path::Path;
use crate::paths::peer_hello::PeerHello;
use burst_base::{DeviceId, Nanos, Psn, Qpn, Reason, TokenBucket};
use burst_frame::{Flow, TxBatch};
use burst_gsi::GSI_QKEY;
use burst_wire::hello::Hello;
use burst_wire::{Bth, Deth, HeadBuf, Opcode};

/// Questions answered: bursts of 64, and 1,000 per second.
pub(crate) type AnswerBudget = TokenBucket<64, 1_000_000>;
/// Bits of a transaction id that give the worker that asked.
const WORKER_BITS: u64 = 0xf;

/// A question that is to be answered in this pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HelloQuestion {
    pub device: DeviceId,
    pub back: Flow,
    pub tid: u64,
}

/// The questions of a worker.
#[derive(Debug, Default)]
pub(crate) struct Hellos {
    /// Questions asked.
    asked: u64,
    answers: AnswerBudget,
    /// Questions of peers that are to be answered in this pass.
    pub questions: Vec<HelloQuestion>,
    /// Paths whose peers have not answered the last question of this pass; kept for its memory.
    pub unanswered: Vec<u32>,
    /// When peers are to be asked what they can do.
    pub times: HelloTimes,
}

impl Hellos {
    /// This daemon's own choices have changed: peers learn of it by a question, those without queue pairs by the next one.
    pub fn greet_again(&mut self, now: Nanos, paths: &mut [Path]) {
        for (at, path) in (0..).zip(paths) {
            match path.users {
                0 => path.hello = PeerHello::default(),
                _ => path.hello.ask_now(now),
            }
            self.times.note(at, path);
        }
    }

    /// A message of the connection manager from the peer of path `at` has Burst's vendor id.
    pub fn on_vendor_id(&mut self, now: Nanos, at: u32, path: &mut Path) {
        path.hello.on_vendor_id(now);
        self.times.note(at, path);
    }

    /// The number of the next question, in which the worker that asks can be seen.
    pub fn next_tid(&mut self, options: &WorkerOptions) -> u64 {
        self.asked += 1;
        let number = options.cm_secret.number((HELLO_DOMAIN, options.id, self.asked));
        (number | 1 << 4) & !WORKER_BITS | u64::from(options.id)
    }

    /// A peer has asked. False if too many questions came: then none of its words counts.
    pub fn may_answer(&mut self, now: Nanos) -> bool {
        self.answers.take(now)
    }

    /// Answers a question with the timers of this pass, when the port is at hand.
    pub fn answer(&mut self, question: HelloQuestion) {
        self.questions.push(question);
        self.times.note_answer();
    }
}

/// The worker that has asked the question with this number.
pub(crate) fn asker_of(tid: u64) -> u32 {
    (tid & WORKER_BITS) as u32
}

/// Appends a hello to a batch.
pub(crate) fn push_hello(batch: &mut TxBatch, counters: &Counters, flow: &Flow, hello: &Hello) {
    let bth = Bth::new(Opcode::UdSendOnly, Qpn::GSI, Psn::default());
    let head = HeadBuf::new(&bth).deth(Deth { qkey: GSI_QKEY, src_qpn: Qpn::GSI });
    if !batch.push_copied(flow, head.as_slice(), &hello.to_mad()) {
        counters.count(Reason::SendQueueFull);
    }
}
