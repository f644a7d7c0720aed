//! Hellos on QP1: questions of what a peer's daemon can do, and answers to those of peers.
//!
//! An answer counts only if it has the number of the question, which nobody else can compute. Questions are answered without
//! belief in what they say, at most [`AnswerBudget`] of them. What is known of a peer: [`PeerHello`].
//!
//! A path's controller follows what its peer is and has chosen ([`Worker::settle_cc`]), with the timers of the pass, when the
//! port is at hand.

use crate::core::Core;
use crate::counters::Counters;
use crate::objects::NO_PATH;
use crate::peer_hello::PeerHello;
use crate::port_slot::PortSlot;
use crate::receive::RxBurst;
use crate::worker::Worker;
use burst_base::verbs::Mtu;
use burst_base::{DeviceId, Nanos, Psn, Qpn, Reason, TokenBucket};
use burst_cc::PeerKind;
use burst_frame::{Flow, TxBatch};
use burst_gsi::GSI_QKEY;
use burst_transport::WINDOW_PSNS;
use burst_wire::hello::{FEATURE_READ_ACKS, FEATURE_SELECTIVE, FEATURE_XRC_SELECTIVE, Hello, HelloCc};
use burst_wire::{Bth, Deth, HeadBuf, MAD_LEN, Opcode};
use std::net::IpAddr;

/// Questions answered: bursts of 64, and 1,000 per second.
pub(crate) type AnswerBudget = TokenBucket<64, 1_000_000>;
/// What this daemon can do if it uses selective repeat.
const FEATURES: u32 = FEATURE_SELECTIVE | FEATURE_XRC_SELECTIVE | FEATURE_READ_ACKS;
/// Separates the numbers that hellos derive from the secret from those that other code derives from it: `cm` and the GSI agent
/// use the domains 0 to 3.
const DOMAIN: u8 = 4;
/// Bits of a transaction id that give the worker that asked.
const WORKER_BITS: u64 = 0xf;

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
    /// Identifies the life of this daemon.
    fn boot_id(&self) -> u64 {
        self.options.boot_id.unwrap_or_else(|| self.options.cm_secret.number((DOMAIN, "boot")))
    }
    /// Whether this daemon asks its peers what they are.
    fn asks(&self) -> bool {
        self.options.selective || self.options.cc.asks_for_kinds()
    }
    /// What this daemon says of itself.
    fn own_hello(&self, mtu: Mtu, tid: u64) -> Hello {
        let cc = self.options.cc.of(PeerKind::Burst);
        Hello {
            is_answer: false,
            tid,
            boot_id: self.boot_id(),
            features: if self.options.selective { FEATURES } else { 0 },
            window: WINDOW_PSNS,
            tail_bytes: burst_transport::TAIL_BYTES as u16,
            mtu: mtu as u8,
            cc: HelloCc::new(cc.rank.code(), &cc.params.to_string()),
        }
    }

    /// A queue pair has joined path `at`.
    pub(crate) fn greet(&mut self, now: Nanos, at: u32, flow: &Flow) {
        let asks = self.asks();
        if let Some(path) = self.paths.get_mut(at as usize)
            && !path.is_own_address
        {
            path.hello.join(now, flow, asks);
            self.outbox.hello_due = self.outbox.hello_due.min(path.hello.due());
        }
    }

    /// This daemon's own choices have changed: peers are told by a question, those without queue pairs by that of the next one.
    pub(crate) fn greet_again(&mut self, now: Nanos) {
        if self.asks() {
            for path in &mut *self.paths {
                match path.users {
                    0 => path.hello = PeerHello::default(),
                    _ => path.hello.ask_now(now),
                }
            }
            self.outbox.hello_due = now;
        }
    }

    /// A message of the connection manager from `src` has Burst's vendor id.
    #[cold]
    pub(crate) fn on_vendor_id(&mut self, now: Nanos, device: DeviceId, src: IpAddr) {
        if self.asks()
            && let Some(at) = self.paths.find(device, src)
            && let Some(path) = self.paths.get_mut(at as usize)
        {
            path.hello.on_vendor_id(now);
            self.outbox.hello_due = self.outbox.hello_due.min(path.hello.due());
        }
    }

    /// Tells the queue pairs of a path which family they are to use.
    fn tell_family(&mut self, at: usize) {
        let Core { paths, qps, options, .. } = self;
        let hello = &paths[at].hello;
        for slot in qps.iter_mut().flatten().filter(|slot| slot.path as usize == at && slot.path != NO_PATH) {
            hello.tell(slot.endpoint.qp_mut(), options.selective);
        }
    }
}

impl Worker {
    /// The number in hellos that stands for this start of the daemon.
    pub fn boot_id(&self) -> u64 {
        self.core.boot_id()
    }

    /// What this worker answers to a peer that asks through `device`.
    pub fn hello(&self, device: DeviceId) -> Hello {
        self.core.own_hello(self.ports[device.index()].port.caps().active_mtu(), 0)
    }

    /// Tells the worker what `peer` has answered, so that it need not ask: queue pairs of the path use it from now on. Nothing
    /// changes if the peer is known, or if no queue pair has joined the path. For a simulation, whose connections begin between
    /// hosts that know each other; a daemon believes nobody but the peer itself.
    pub fn know_peer(&mut self, now: Nanos, device: DeviceId, peer: IpAddr, hello: &Hello) {
        let (own_boot_id, Some(at)) = (self.core.boot_id(), self.core.paths.find(device, peer)) else { return };
        let path = &mut self.core.paths[at as usize];
        if path.hello.is_burst() || path.is_own_address {
            return;
        }
        path.hello.know(now, hello, own_boot_id);
        self.core.tell_family(at as usize);
        let _ = self.core.paths[at as usize].hello.take_change() && self.data_path().settle_cc(now, at as usize);
    }

    /// Answers questions, and asks the peers whose time has come.
    #[cold]
    pub(crate) fn run_hellos(&mut self, now: Nanos) -> bool {
        let mut any = !self.core.hello_questions.is_empty();
        while let Some(HelloQuestion { device, back, tid }) = self.core.hello_questions.pop() {
            self.send_hello(now, device, &back, (tid, true));
        }
        for at in 0..self.core.paths.len() {
            any |= self.core.paths[at].hello.take_change() && self.data_path().settle_cc(now, at);
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
                None => {
                    self.core.tell_family(at);
                    let _ = self.core.paths[at].hello.take_change() && self.data_path().settle_cc(now, at);
                }
            }
        }
        self.core.outbox.hello_due = self.core.paths.iter().map(|path| path.hello.due()).min().unwrap_or(Nanos::NEVER);
        any
    }

    fn send_hello(&mut self, now: Nanos, device: DeviceId, flow: &Flow, (tid, is_answer): (u64, bool)) {
        if !self.ports[device.index()].batch.has_room() {
            self.data_path().flush_all(now);
        }
        let PortSlot { port, batch, counters, .. } = &mut self.ports[device.index()];
        let hello = Hello { is_answer, ..self.core.own_hello(port.caps().active_mtu(), tid) };
        push_hello(batch, counters, flow, &hello);
        self.data_path().flush_all(now);
    }
}

impl RxBurst<'_> {
    /// A hello has arrived.
    #[cold]
    pub(crate) fn on_hello(&mut self, frame: &burst_frame::RxFrame<'_>, mad: &[u8; MAD_LEN]) {
        let Some(hello) = Hello::parse(mad) else { return self.counters.count(Reason::MadUnknown) };
        let owner = (hello.tid & WORKER_BITS) as u32;
        if hello.is_answer && owner != self.core.options.id {
            return if self.core.inbox_of(owner).is_some() && !self.handed_over {
                self.hand_over_mad(owner, frame)
            } else if !self.mail(owner, frame) {
                self.counters.count(Reason::HelloUnexpected)
            };
        }
        let (now, device, src) = (self.now, self.device, frame.flow.src);
        let at = self.core.paths.find(device, src).map(|at| at as usize);
        let own_boot_id = self.core.boot_id();
        match (hello.is_answer, at) {
            (true, Some(at)) if self.core.paths[at].hello.on_answer(now, &hello, own_boot_id) => {
                self.core.tell_family(at);
                // The controller follows with the timers of this pass.
                self.core.outbox.hello_due = now;
            }
            (true, _) => self.counters.count(Reason::HelloUnexpected),
            // Before anything is read of it: a flood of questions costs no more than its packets.
            (false, _) if !self.core.hello_answers.take(now) => self.counters.count(Reason::HelloWithheld),
            (false, at) => {
                if let Some(at) = at {
                    self.core.paths[at].hello.on_question(now, &hello);
                    self.core.outbox.hello_due = self.core.outbox.hello_due.min(self.core.paths[at].hello.due());
                }
                self.answer_hello(&frame.flow, &hello);
            }
        }
    }

    fn answer_hello(&mut self, from: &Flow, hello: &Hello) {
        // With the timers of this pass, when the port is at hand.
        let back = Flow { src: from.dst, dst: from.src, tos: 0, ..*from };
        self.core.hello_questions.push(HelloQuestion { device: self.device, back, tid: hello.tid });
        self.core.outbox.hello_due = self.now;
    }
}
