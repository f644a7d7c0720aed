//! What a peer's daemon can do: asked by a hello on QP1, kept for each path, forgotten with it.
//!
//! A worker asks when the first RC queue pair joins a path, without waiting for the answer: queue pairs use the standard family
//! until it comes. It asks again after [`WAITS`]; then the peer counts as standard for [`STANDARD_FOR`]. A peer that has answered
//! is asked again every [`REFRESH`], because its daemon may have been replaced by one that can do less.
//!
//! An answer counts only if it has the number of the question, which nobody else can compute. Questions are answered without
//! belief in what they say, at most [`AnswerBudget`] of them.

use crate::counters::Counters;
use crate::objects::NO_PATH;
use crate::receive::RxBurst;
use crate::worker::{Core, PortSlot, Worker};
use burst_base::verbs::Mtu;
use burst_base::{DeviceId, Nanos, Psn, Qpn, Reason, TokenBucket};
use burst_frame::{Flow, TxBatch};
use burst_gsi::GSI_QKEY;
use burst_transport::WINDOW_PSNS;
use burst_wire::hello::{FEATURE_SELECTIVE, Hello};
use burst_wire::{Bth, Deth, HeadBuf, MAD_LEN, Opcode};

/// Waits for the answers to the first question and its repetitions.
const WAITS: [Nanos; 3] = [Nanos::from_ms(250), Nanos::from_ms(1_000), Nanos::from_ms(4_000)];
/// Time until a peer that has not answered is asked again.
pub const STANDARD_FOR: Nanos = Nanos::from_ms(600_000);
/// Time until a peer that has answered is asked again.
pub const REFRESH: Nanos = Nanos::from_ms(60_000);
/// Questions answered: bursts of 64, and 1,000 per second.
pub(crate) type AnswerBudget = TokenBucket<64, 1_000_000>;
/// Domain of the numbers of this file among those of the secret; `cm` and the agent use 0 to 3.
const DOMAIN: u8 = 4;
/// Bits of a transaction id that give the worker that asked.
const WORKER_BITS: u64 = 0xf;

/// What is known of the daemon at the other end of a path.
#[derive(Debug)]
pub(crate) struct PeerHello {
    /// PSNs of the peer's window for the selective repeat family; 0: the standard family is used.
    window: u32,
    boot_id: u64,
    /// The flow of questions, once a queue pair has joined.
    flow: Option<Flow>,
    /// Number of the question that is not answered yet, or 0.
    tid: u64,
    /// Questions without an answer.
    tries: u8,
    /// When to ask, or to give up.
    due: Nanos,
}

impl Default for PeerHello {
    fn default() -> Self {
        PeerHello { window: 0, boot_id: 0, flow: None, tid: 0, tries: 0, due: Nanos::NEVER }
    }
}

impl PeerHello {
    /// PSNs of the peer's window; 0: the standard family is used.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }
    /// A queue pair has joined the path: the peer is asked, unless it was.
    pub(crate) fn join(&mut self, now: Nanos, flow: &Flow) {
        if self.flow.is_none() {
            self.flow = Some(Flow { tos: 0, ..*flow });
            self.due = now;
        }
    }
    pub(crate) fn due(&self) -> Nanos {
        self.due
    }
    /// The time has come: asks with this number, and returns the flow; or gives up.
    fn on_due(&mut self, now: Nanos, tid: u64) -> Option<Flow> {
        let Some(wait) = WAITS.get(usize::from(self.tries)) else {
            (self.window, self.tid, self.tries, self.due) = (0, 0, 0, now + STANDARD_FOR);
            return None;
        };
        (self.tid, self.tries, self.due) = (tid, self.tries + 1, now + *wait);
        self.flow
    }
    /// An answer has come. False if nobody asked.
    fn on_answer(&mut self, now: Nanos, hello: &Hello) -> bool {
        if self.tid == 0 || hello.tid != self.tid {
            return false;
        }
        self.window = if hello.features & FEATURE_SELECTIVE != 0 { hello.window.min(WINDOW_PSNS) } else { 0 };
        (self.boot_id, self.tid, self.tries, self.due) = (hello.boot_id, 0, 0, now + REFRESH);
        true
    }
    /// The peer asks. If its daemon was started anew, or has not answered until now, it is asked soon.
    fn on_question(&mut self, now: Nanos, boot_id: u64) {
        if self.flow.is_some() && boot_id != self.boot_id && self.tid == 0 {
            self.due = now;
        }
    }
    /// The peer does not answer packets of the selective repeat family.
    #[cold]
    pub(crate) fn refused(&mut self, now: Nanos) {
        (self.window, self.tid, self.tries, self.due) = (0, 0, 0, now + STANDARD_FOR);
    }
}

/// A question that is to be answered in this pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HelloQuestion {
    device: DeviceId,
    back: Flow,
    tid: u64,
}

/// Appends a hello to a batch.
fn push_hello(batch: &mut TxBatch, counters: &Counters, flow: &Flow, hello: &Hello) {
    let bth = Bth::new(Opcode::UdSendOnly, Qpn::GSI, Psn::default());
    let head = HeadBuf::new(&bth).deth(Deth { qkey: GSI_QKEY, src_qpn: Qpn::GSI });
    if !batch.push_copied(flow, head.as_slice(), &hello.to_mad()) {
        counters.count(Reason::SendQueueFull);
    }
}

impl Core {
    /// What this daemon says of itself.
    fn own_hello(&self, mtu: Mtu, tid: u64) -> Hello {
        Hello {
            is_answer: false,
            tid,
            boot_id: self.options.cm_secret.number((DOMAIN, "boot")),
            features: if self.options.selective { FEATURE_SELECTIVE } else { 0 },
            window: WINDOW_PSNS,
            tail_bytes: burst_transport::TAIL_BYTES as u16,
            mtu: mtu as u8,
        }
    }

    /// A queue pair has joined path `at`.
    pub(crate) fn greet(&mut self, now: Nanos, at: u32, flow: &Flow) {
        if self.options.selective
            && let Some(path) = self.paths.get_mut(at as usize)
        {
            path.hello.join(now, flow);
            self.hello_due = self.hello_due.min(path.hello.due());
        }
    }

    /// Tells the queue pairs of a path which family they are to use.
    fn tell_family(&mut self, at: usize) {
        let window = self.paths[at].hello.window();
        for slot in self.qps.iter_mut().flatten().filter(|slot| slot.path as usize == at && slot.path != NO_PATH) {
            slot.endpoint.qp_mut().use_selective(window);
        }
    }
}

impl Worker {
    /// Answers questions, and asks the peers whose time has come.
    #[cold]
    pub(crate) fn run_hellos(&mut self, now: Nanos) -> bool {
        let mut any = !self.core.hello_questions.is_empty();
        while let Some(HelloQuestion { device, back, tid }) = self.core.hello_questions.pop() {
            self.send_hello(now, device, &back, (tid, true));
        }
        for at in 0..self.core.paths.len() {
            if self.core.paths[at].hello.due() > now {
                continue;
            }
            any = true;
            self.core.hellos_asked += 1;
            let number = self.core.options.cm_secret.number((DOMAIN, self.core.options.id, self.core.hellos_asked));
            let tid = (number | 1 << 4) & !WORKER_BITS | u64::from(self.core.options.id);
            let path = &mut self.core.paths[at];
            if path.users == 0 {
                // The next queue pair asks again.
                path.hello = PeerHello::default();
                continue;
            }
            let device = path.device;
            match path.hello.on_due(now, tid) {
                Some(flow) => self.send_hello(now, device, &flow, (tid, false)),
                None => self.core.tell_family(at),
            }
        }
        self.core.hello_due = self.core.paths.iter().map(|path| path.hello.due()).min().unwrap_or(Nanos::NEVER);
        any
    }

    fn send_hello(&mut self, now: Nanos, device: DeviceId, flow: &Flow, (tid, is_answer): (u64, bool)) {
        if !self.ports[device.index()].batch.has_room() {
            self.flush_all(now);
        }
        let PortSlot { port, batch, counters } = &mut self.ports[device.index()];
        let hello = Hello { is_answer, ..self.core.own_hello(port.caps().active_mtu(), tid) };
        push_hello(batch, counters, flow, &hello);
        self.flush_all(now);
    }
}

impl RxBurst<'_> {
    /// A hello has arrived.
    #[cold]
    pub(crate) fn on_hello(&mut self, frame: &burst_frame::RxFrame<'_>, mad: &[u8; MAD_LEN]) {
        let Some(hello) = Hello::parse(mad) else { return self.counters.count(Reason::MadUnknown) };
        if !self.core.options.selective {
            return self.counters.count(Reason::MadClass);
        }
        let owner = (hello.tid & WORKER_BITS) as u32;
        if hello.is_answer && owner != self.core.options.id {
            let is_worker = (owner as usize) < self.core.inboxes.len() && !self.handed_over;
            return if is_worker {
                self.hand_over_mad(owner, frame)
            } else {
                self.counters.count(Reason::HelloUnexpected)
            };
        }
        let (now, device, src) = (self.now, self.device, frame.flow.src);
        let at = self.core.paths.iter().position(|path| path.peer == src && path.device == device);
        match (hello.is_answer, at) {
            (true, Some(at)) if self.core.paths[at].hello.on_answer(now, &hello) => self.core.tell_family(at),
            (true, _) => self.counters.count(Reason::HelloUnexpected),
            (false, at) => {
                if let Some(at) = at {
                    self.core.paths[at].hello.on_question(now, hello.boot_id);
                    self.core.hello_due = self.core.hello_due.min(self.core.paths[at].hello.due());
                }
                self.answer_hello(&frame.flow, &hello);
            }
        }
    }

    fn answer_hello(&mut self, from: &Flow, hello: &Hello) {
        if !self.core.hello_answers.take(self.now) {
            return self.counters.count(Reason::HelloWithheld);
        }
        // With the timers of this pass, when the port is at hand.
        let back = Flow { src: from.dst, dst: from.src, tos: 0, ..*from };
        self.core.hello_questions.push(HelloQuestion { device: self.device, back, tid: hello.tid });
        self.core.hello_due = self.now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(tid: u64) -> Hello {
        Hello { is_answer: true, tid, boot_id: 5, features: FEATURE_SELECTIVE, window: 9999, ..Hello::default() }
    }

    #[test]
    fn a_silent_peer_is_asked_three_times_and_then_counts_as_standard() {
        let mut peer = PeerHello::default();
        peer.join(Nanos(7), &Flow::default());
        let mut asked = Vec::new();
        for tid in 1..=4 {
            let now = peer.due();
            asked.push(peer.on_due(now, tid).map(|_| now.0 / 1_000_000));
        }
        assert_eq!(asked, [Some(0), Some(250), Some(1250), None]);
        assert_eq!((peer.window(), peer.due()), (0, Nanos(7) + Nanos::from_ms(5_250) + STANDARD_FOR));
        // By its question it shows that it can answer by now.
        peer.on_question(Nanos(9), 5);
        assert_eq!(peer.due(), Nanos(9));
    }

    #[test]
    fn only_the_answer_to_the_question_counts_and_only_once() {
        let mut peer = PeerHello::default();
        assert!(!peer.on_answer(Nanos(0), &answer(0)), "nobody asked");
        peer.join(Nanos(0), &Flow::default());
        assert!(peer.on_due(Nanos(0), 77).is_some());
        assert!(!peer.on_answer(Nanos(1), &answer(78)));
        assert!(peer.on_answer(Nanos(1), &answer(77)) && !peer.on_answer(Nanos(1), &answer(77)));
        assert_eq!((peer.window(), peer.due()), (WINDOW_PSNS, Nanos(1) + REFRESH));
        // A question with another boot id brings the next question forward, and changes nothing else.
        peer.on_question(Nanos(2), 5);
        assert_eq!(peer.due(), Nanos(1) + REFRESH);
        peer.on_question(Nanos(2), 6);
        assert_eq!((peer.due(), peer.window()), (Nanos(2), WINDOW_PSNS));
        peer.on_due(Nanos(2), 79);
        assert!(peer.on_answer(Nanos(3), &Hello { features: 0, ..answer(79) }));
        assert_eq!(peer.window(), 0);
    }
}
