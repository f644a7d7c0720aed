//! The path to one peer address, shared by all queue pairs and channels of URMA that talk to it: its congestion controller and
//! its next hop.
//!
//! The window of the path's controller (crate `cc`) bounds the bytes in flight to the peer. A queue pair may always have one
//! packet in flight, so that one stuck peer queue pair cannot stop the others. READ responses that the peer
//! acknowledges count as bytes in flight; the window bounds them before requests, which get what they leave. Below a controller
//! that does not react to full receive buffers the window of `aimd` remains: a software peer drops packets there before a switch
//! marks them.
//!
//! While the peer's next hop is being resolved, packets wait in a small store of the port or of the kernel, which drops what
//! does not fit. RC repeats dropped packets. For unacknowledged services, a path lets only [`UNRESOLVED_BYTES`] leave before it
//! asks the port whether the next hop is resolved, and waits for the answer to the first hello ([`Path::may_send`]).

use crate::objects::QpSlot;
use crate::paths::WindowLine;
use crate::paths::pacing::{FRAME_OVERHEAD, PACE_LAG, Pacer};
use crate::paths::peer_hello::PeerHello;
use crate::paths::peer_report::PeerReport;
use crate::probes;
use crate::tally::DEVICE_REASONS;
use burst_base::{DeviceId, Nanos};
use burst_cc::{
    AckSample, Aimd, Algorithm, ChoiceRank, ChoiceReason, Controller, LossKind, Params, PathConditions, PeerKind,
    RATE_UNPACED, SendLimits,
};
use burst_frame::{Flow, TxFrame};
use burst_port::{PortCaps, UNRESOLVED_BYTES};
use burst_transport::{AckReport, Signal};
use std::net::IpAddr;

mod cc_peer;
mod channels;

pub(crate) use channels::{ChannelWakes, PathChannels};

/// Instead of a queue pair: none.
pub(crate) const NO_QP: u32 = u32::MAX;
/// Bytes that a work request takes in that store besides its payload: stores count the memory that keeps a packet.
const WQE_BYTES: u64 = 512;
/// Time without unacknowledged messages after which a next hop counts as unknown again. Ports and kernels keep it longer.
pub const IDLE: Nanos = Nanos::from_ms(20_000);
/// Time without bytes in flight after which a controller is asked whether it trusts its window.
const IDLE_WINDOW: Nanos = Nanos::from_ms(100);
/// Time without acknowledgements after which a path may be down: as long as a receipt is waited for at least.
const SILENCE: Nanos = Nanos::from_ms(20);
/// A round trip is measured in one of so many turns, towards a peer that does not report it.
const TURNS_PER_PROBE: u8 = 16;
/// Longest wait for a next hop. A kernel asks three times at intervals of a second.
pub const RESOLVING_MAX: Nanos = Nanos::from_ms(4_000);

impl PathLink {
    /// For a port with these properties.
    pub fn new(cc: Params, caps: &PortCaps) -> PathLink {
        PathLink { cc, line_rate_bps: u64::from(caps.speed_mbps) * 1_000_000, mtu: caps.active_mtu().bytes() }
    }
}

/// State of the next hop, for unacknowledged messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HopKnowledge {
    /// The next hop is resolved, or its resolution was given up.
    Found,
    /// The next hop is unknown. The value is the number of bytes sent meanwhile.
    Unknown(u64),
    /// The next hop is being resolved since this time.
    Resolving(Nanos),
}

/// What a controller must know of the link.
#[derive(Clone, Copy, Debug)]
pub struct PathLink {
    /// The controller.
    pub cc: Params,
    /// Bits per second, 0 if unknown.
    pub line_rate_bps: u64,
    /// Largest payload of a packet in bytes.
    pub mtu: u32,
}

/// What a path has for a controller other than `aimd` and `none`.
#[derive(Debug)]
struct Tuned {
    /// The window against full receive buffers; `cubic` has one of its own.
    guard: Option<Aimd>,
    /// The peer's acknowledgements say what the path is like, so that nothing else need be measured.
    is_reported: bool,
    /// Time by which a late path may catch up: this part of a round trip, if a window clocks itself; 0: a rate does not.
    lag: Nanos,
    lag_part: u64,
    pacer: Pacer,
    probe: Option<RttProbe>,
    /// What acknowledgements have said since bytes were last acknowledged.
    reported: Option<AckReport>,
}

/// A measurement of the round trip: the bytes that a queue pair had in flight after a turn, and when that was.
#[derive(Clone, Copy, Debug)]
struct RttProbe {
    qp: u32,
    /// Bytes that are still to be acknowledged.
    left: u64,
    at: Nanos,
}

/// The path to one address on one device.
#[derive(Debug)]
pub struct Path {
    /// The peer's address.
    pub peer: IpAddr,
    /// Device.
    pub device: DeviceId,
    /// Queue pairs and channels that use it.
    pub users: u32,
    /// Channels of URMA among them.
    pub(crate) channels: PathChannels,
    controller: Controller,
    /// What controllers other than `aimd` and `none` need besides.
    tuned: Option<Box<Tuned>>,
    /// Bytes that a queue pair may have in flight whatever the window is: one packet.
    qp_min_bytes: u64,
    inflight: u64,
    /// When nothing was in flight any more.
    idle_since: Nanos,
    /// When bytes were last acknowledged.
    acked_at: Nanos,
    /// Whose bytes those were; [`NO_QP`] for none, [`URMA_ENTRY`] for a channel's.
    acked_by: u32,
    /// When a flight was last given up that says something of the path.
    timed_out_at: Nanos,
    /// Sends are not paced, and nothing is measured: most turns and acknowledgements concern the count of bytes only.
    is_quiet: bool,
    /// Since the last acknowledgement the window had no room for what was to leave next. A piece of a READ may be longer than
    /// what the window leaves free, so the bytes in flight do not show it.
    pub(crate) was_full: bool,
    /// Turns until the next one that may measure a round trip, where the peer reports none.
    unprobed: u8,
    /// The queue pair whose bytes are counted next repairs losses.
    pub(crate) is_recovering: bool,
    /// Bytes of READ responses among them.
    responses: u64,
    /// When a marked packet is next answered by a congestion notification.
    pub(crate) cnp_from: Nanos,
    /// What the peer's daemon can do.
    pub(crate) hello: PeerHello,
    /// Time of its entry in [`crate::paths::hello_times::HelloTimes`] that counts; [`Nanos::NEVER`] for none.
    pub(crate) hello_listed: Nanos,
    report: PeerReport,
    hop: HopKnowledge,
    /// When an unacknowledged message was last about to be sent.
    used_at: Nanos,
    /// Who waits for room in the window, or for the rate.
    pub(crate) waiting: WindowLine,
    /// Who was first in the line and has a turn next, [`NO_QP`] for none: a queue pair, or the channels ([`URMA_ENTRY`]).
    pub(crate) turn_of: u32,
    /// The last turn of an open gate was that of answers.
    pub(crate) was_answerers: bool,
    /// Whether it is in the list of unused paths.
    pub(crate) is_listed_unused: bool,
    /// What the controller was made of.
    pub(crate) params: Params,
    /// Which condition of the path chose these parameters, for `burst cc`.
    pub(crate) why: ChoiceReason,
    /// What packets have met, for the automatic choice.
    pub(crate) conditions: PathConditions,
    /// Whether the peer's address is one of this device's own.
    pub(crate) is_own_address: bool,
    /// The device's counts of [`crate::tally::DEVICE_REASONS`] when the path began.
    pub(crate) counts_before: [u64; DEVICE_REASONS.len()],
}

impl Path {
    /// A path with the largest window.
    pub fn new(now: Nanos, peer: IpAddr, device: DeviceId, link: &PathLink) -> Path {
        let PathLink { cc, line_rate_bps, mtu } = *link;
        let plain = matches!(cc.algorithm(), Algorithm::Aimd | Algorithm::None);
        Path {
            peer,
            device,
            users: 0,
            channels: PathChannels::default(),
            controller: Controller::new(&cc, now, line_rate_bps, mtu),
            tuned: (!plain).then(|| Box::new(Tuned::new(&cc, mtu))),
            qp_min_bytes: u64::from(mtu),
            inflight: 0,
            idle_since: now,
            acked_at: Nanos(0),
            acked_by: NO_QP,
            timed_out_at: Nanos(0),
            is_quiet: false,
            was_full: false,
            unprobed: 0,
            is_recovering: false,
            responses: 0,
            cnp_from: Nanos(0),
            hello: PeerHello::default(),
            hello_listed: Nanos::NEVER,
            report: PeerReport::default(),
            hop: HopKnowledge::Unknown(0),
            used_at: Nanos(0),
            waiting: WindowLine::default(),
            turn_of: NO_QP,
            was_answerers: false,
            is_listed_unused: false,
            params: cc,
            why: ChoiceReason::Given,
            conditions: PathConditions::new(now),
            is_own_address: false,
            counts_before: [0; DEVICE_REASONS.len()],
        }
    }
    /// A queue pair or a channel has joined: the peer is asked what it can do, unless it was.
    pub(crate) fn greet(&mut self, now: Nanos, flow: &Flow, asks: bool) {
        if !self.is_own_address {
            self.hello.join(now, flow, asks);
        }
    }

    /// Replaces the controller by one in its first state. The caller gives a turn to the queue pairs that wait, and removes the
    /// path from the queue of gates.
    pub(crate) fn retune(&mut self, now: Nanos, link: &PathLink) {
        let Path { controller, tuned, qp_min_bytes, .. } = Path::new(now, self.peer, self.device, link);
        (self.controller, self.tuned, self.qp_min_bytes) = (controller, tuned, qp_min_bytes);
        self.is_quiet = false;
        self.params = link.cc;
    }

    /// Whether the peer's controller follows congestion notifications: that of any peer but a Burst daemon with another algorithm
    /// than DCQCN. The peer's algorithm is the one on which both have settled, or what the peer was commanded. One that may have
    /// changed follows them, too: a notification too many does no harm.
    pub(crate) fn peer_follows_notifications(&self) -> bool {
        let commanded = self.hello.choice().filter(|peer| peer.choice.rank == ChoiceRank::Commanded);
        let params = commanded.map_or(&self.params, |peer| &peer.choice.params);
        let is_burst = self.peer_kind() == PeerKind::Burst;
        !is_burst
            || self.hello.is_choice_old()
            || matches!(params.algorithm(), Algorithm::Dcqcn | Algorithm::DcqcnNvidia)
    }

    /// What the peer is, as far as it is known.
    pub(crate) fn peer_kind(&self) -> PeerKind {
        match (self.is_own_address, self.hello.is_burst()) {
            (true, _) => PeerKind::Loopback,
            (false, true) => PeerKind::Burst,
            (false, false) => PeerKind::Standard,
        }
    }

    /// Passes the controller's variables to `visit`, and what the peer says of the path; returns the rate in bits per second, 0
    /// for none.
    pub(crate) fn observe(&self, visit: &mut dyn FnMut(&'static str, f64)) -> u64 {
        self.controller.observe(visit);
        self.report.observe(visit);
        self.controller.limits().rate_bps
    }

    /// Bytes that a queue pair with `own` bytes in flight may add now.
    pub fn room(&self, own: u64) -> u64 {
        let shared = self.window().saturating_sub(self.inflight);
        shared.max(self.qp_min_bytes.saturating_sub(own))
    }
    /// As [`Path::room`], in a turn of queue pair `qp`, which `waits` in the path's line or does not. Room belongs to the first
    /// in the line while others wait: an acknowledgement gives a turn to its queue pair, too, and who has much in flight would
    /// keep it.
    #[inline]
    pub(crate) fn turn_room(&self, qp: u32, own: u64, waits: bool) -> u64 {
        match self.is_others_turn(qp, waits) {
            true => self.qp_min_bytes.saturating_sub(own),
            false => self.room(own),
        }
    }
    /// Whether others wait in the line, or have the next turn of it.
    #[inline]
    pub(super) fn is_others_turn(&self, qp: u32, waits: bool) -> bool {
        self.turn_of != qp && (self.waiting.len() > u32::from(waits) || self.turn_of != NO_QP)
    }
    /// Charges a turn while others wait, or of the first in the line: what has left, READ responses asked for included.
    #[inline(never)]
    pub(crate) fn charge_turn(&mut self, slot: &QpSlot, used: u64) {
        if self.turn_of == slot.index {
            self.turn_of = NO_QP;
        }
        let asked = slot.qp.inflight_bytes().saturating_sub(slot.inflight_seen);
        self.waiting.charge(slot.line, used.max(asked));
    }
    /// The first of the line may be looked for: none has its turn yet.
    #[inline]
    pub(crate) fn awaits_turn(&self) -> bool {
        self.turn_of == NO_QP && !self.waiting.is_empty()
    }
    /// Bytes of READ responses that a queue pair with `own` such bytes in flight may add now. What the requests of this host have
    /// in flight does not count here: READ requests of both ends fill the windows of both, and each waits for responses.
    pub fn response_room(&self, own: u64) -> u64 {
        let shared = self.window().saturating_sub(self.responses);
        shared.max(self.qp_min_bytes.saturating_sub(own))
    }
    /// Of the bytes in flight of a queue pair, those of READ responses have changed from `before` to `after`.
    pub fn responses_moved(&mut self, before: u64, after: u64) {
        debug_assert!(before <= self.responses, "more bytes of responses than in flight");
        self.responses = (self.responses + after).saturating_sub(before);
    }
    /// The bytes in flight of queue pair `qp` have changed from `before` to `after`.
    pub fn moved(&mut self, now: Nanos, qp: u32, before: u64, after: u64) {
        if after >= before {
            self.inflight += after - before;
            return;
        }
        let acked_bytes = before - after;
        debug_assert!(acked_bytes <= self.inflight, "more bytes acknowledged than in flight");
        self.inflight = self.inflight.saturating_sub(acked_bytes);
        (self.acked_at, self.acked_by) = (now, qp);
        if self.inflight == 0 {
            self.idle_since = now;
        }
        let is_full = std::mem::take(&mut self.was_full);
        if self.is_quiet && !is_full && self.controller.ignores(self.inflight + acked_bytes) {
            return;
        }
        let (inflight_bytes, is_recovering) = (self.inflight, self.is_recovering);
        let sample = AckSample { acked_bytes, inflight_bytes, is_recovering, is_full, ..AckSample::default() };
        match &mut self.tuned {
            None => self.controller.on_ack(now, &sample),
            Some(tuned) => tuned.on_ack(now, qp, &sample, &mut self.controller),
        }
        self.settle_quiet();
    }

    /// So many bytes of queue pair `qp` are not in flight any more, and were not acknowledged: that says nothing of the path.
    /// Below 0: they count again, because an acknowledgement of them follows.
    #[cold]
    pub(crate) fn release(&mut self, now: Nanos, qp: u32, bytes: i64) {
        debug_assert!(bytes <= self.inflight as i64, "more bytes released than in flight");
        self.inflight = self.inflight.saturating_add_signed(-bytes);
        if self.inflight == 0 {
            self.idle_since = now;
        }
        self.forget(qp);
    }

    /// When bytes were last acknowledged; 0: never.
    pub(crate) fn acked_at(&self) -> Nanos {
        self.acked_at
    }
    /// Whether nothing was acknowledged since the last time-out, or for longer than any flight takes.
    pub(crate) fn is_silent(&self, now: Nanos) -> bool {
        self.acked_at <= self.timed_out_at || now.since(self.acked_at) >= SILENCE.max(Nanos(2 * self.report.rtt().0))
    }

    /// Whether nothing of others was acknowledged since something of queue pair `qp` was.
    pub(crate) fn is_acked_by(&self, qp: u32) -> bool {
        self.acked_by == qp || self.acked_by == NO_QP
    }

    /// Nothing is measured, reported or paced until the controller gets another event.
    fn settle_quiet(&mut self) {
        self.is_quiet = self.tuned.as_ref().is_some_and(|tuned| {
            let is_silent = tuned.guard.is_none() && tuned.probe.is_none() && tuned.reported.is_none();
            is_silent && self.controller.limits().rate_bps == RATE_UNPACED
        });
    }

    /// Acknowledgements of selective repeat say this of the path. The controller gets it with the bytes that they acknowledge; at
    /// once, if there are none, because repaired responses do not count as in flight. `aimd` and `none`, which need not know both
    /// together, get it at once, too.
    #[inline(never)]
    pub(crate) fn on_report(&mut self, now: Nanos, report: &AckReport) {
        self.report.add(report);
        self.conditions.on_report(now, report.packets, report.ce_packets, report.pressure);
        match &mut self.tuned {
            Some(tuned) => {
                tuned.reported.get_or_insert_default().add(report);
                tuned.is_reported = true;
                if self.inflight == 0 {
                    tuned.on_ack(now, NO_QP, &AckSample::default(), &mut self.controller);
                }
                self.settle_quiet();
            }
            None => {
                let AckReport { rtt, remote_delay, packets, ce_packets, pressure } = *report;
                let inflight_bytes = self.inflight;
                let sample = AckSample {
                    rtt,
                    remote_delay,
                    packets,
                    ce_packets,
                    pressure,
                    inflight_bytes,
                    ..AckSample::default()
                };
                self.controller.on_report(now, &sample);
            }
        }
    }

    /// Most bytes that may leave in a turn now; `None` while the rate allows nothing. [`u64::MAX`] if sends are not paced.
    #[inline]
    pub(crate) fn burst(&mut self, now: Nanos) -> Option<u64> {
        if self.tuned.is_none() || self.is_quiet { Some(u64::MAX) } else { self.paced_burst(now) }
    }

    #[cold]
    fn paced_burst(&mut self, now: Nanos) -> Option<u64> {
        if self.controller.next_deadline() <= now {
            let before = self.controller.limits().rate_bps;
            self.controller.on_timer(now);
            probes::rate_change(self.peer, before, self.controller.limits().rate_bps);
        }
        let SendLimits { rate_bps, burst_bytes, .. } = self.controller.limits();
        match &mut self.tuned {
            Some(tuned) if rate_bps != RATE_UNPACED => {
                tuned.pacer.speed_up(now, rate_bps);
                (!tuned.pacer.is_closed(now)).then_some(burst_bytes)
            }
            _ => Some(u64::MAX),
        }
    }

    /// Whether this path measures what leaves now ([`Path::left`]).
    #[inline]
    pub(crate) fn is_measured(&self) -> bool {
        self.tuned.is_some() && (!self.is_quiet || self.unprobed == 0)
    }

    /// Whether each acknowledgement is to be reported. `cubic` needs a round trip now and then.
    pub(crate) fn wants_each_report(&self) -> bool {
        self.tuned.as_ref().is_some_and(|tuned| tuned.guard.is_some())
    }

    /// A turn begins. After a time without packets in flight the controller cannot trust its window.
    #[inline]
    pub(crate) fn begin_turn(&mut self, now: Nanos) {
        if self.inflight == 0 && now.since(self.idle_since) >= IDLE_WINDOW {
            let since = std::mem::replace(&mut self.idle_since, now);
            self.controller.on_idle(now, since);
            let guard = self.tuned.as_mut().and_then(|tuned| tuned.guard.as_mut());
            guard.into_iter().for_each(Aimd::on_idle);
            self.settle_quiet();
        }
        self.unprobed = self.unprobed.saturating_sub(1);
    }

    /// Frames left in a turn of queue pair `qp`. `inflight`: its bytes in flight before and now.
    #[cold]
    #[inline(never)]
    pub(crate) fn left(&mut self, now: Nanos, qp: u32, frames: &[TxFrame], inflight: (u64, u64)) {
        let wire_bytes = frames.iter().map(|f| (f.udp_payload_len() + FRAME_OVERHEAD) as u64).sum();
        let payload = frames.iter().map(|f| u64::from(f.payload_len)).sum();
        self.left_bytes(now, qp, (wire_bytes, payload), inflight);
    }

    /// As [`Path::left`]. `sent`: bytes on the link, and those of them that are the programs'.
    fn left_bytes(&mut self, now: Nanos, qp: u32, sent: (u64, u64), inflight: (u64, u64)) {
        let ((wire_bytes, payload), (before, after)) = (sent, inflight);
        let rate = self.controller.limits().rate_bps;
        let Some(tuned) = &mut self.tuned else { return };
        if rate != RATE_UNPACED {
            tuned.pacer.charge(now, wire_bytes, (rate, tuned.lag));
        }
        // What a READ asks for takes longer than a round trip.
        let wants_probe = tuned.probe.is_none() && !(tuned.is_reported && tuned.guard.is_none());
        self.unprobed = TURNS_PER_PROBE;
        if wants_probe && after > before && payload >= after - before {
            tuned.probe = Some(RttProbe { qp, left: after, at: now });
        }
        self.settle_quiet();
    }

    /// Queue pair `qp` leaves the path: what it has in flight measures nothing.
    pub(crate) fn forget(&mut self, qp: u32) {
        if let Some(tuned) = &mut self.tuned
            && tuned.probe.is_some_and(|probe| probe.qp == qp)
        {
            tuned.probe = None;
        }
    }

    /// The gate, if it opens earlier now, because the rate has risen while it was closed.
    pub(crate) fn faster_gate(&mut self, now: Nanos) -> Option<&mut Pacer> {
        let rate_bps = self.controller.limits().rate_bps;
        self.gate().and_then(|gate| gate.speed_up(now, rate_bps).then_some(gate))
    }

    /// The gate, if it is closed.
    pub(crate) fn closed_gate(&mut self, now: Nanos) -> Option<&mut Pacer> {
        self.tuned.as_mut().map(|tuned| &mut tuned.pacer).filter(|gate| gate.is_closed(now))
    }

    /// Whether nothing comes of the gate: it wakes no line.
    pub(crate) fn is_gate_unarmed(&self) -> bool {
        self.tuned.as_ref().is_none_or(|tuned| tuned.pacer.is_unarmed())
    }

    /// The gate, if sends may be paced.
    pub(crate) fn gate(&mut self) -> Option<&mut Pacer> {
        self.tuned.as_mut().map(|tuned| &mut tuned.pacer)
    }

    /// Passes a signal of a queue pair to the controller.
    pub fn on_signal(&mut self, now: Nanos, signal: Signal) {
        // Nothing was acknowledged since a time-out: what is missing is of the flight that it was about, or a repetition of it.
        if signal == Signal::Loss && self.timed_out_at > Nanos(0) && self.acked_at <= self.timed_out_at {
            self.conditions.on_loss(now);
            // A packet that is sent twice measures nothing.
            self.tuned.iter_mut().for_each(|tuned| tuned.probe = None);
            return self.settle_quiet();
        }
        if let Some(tuned) = &mut self.tuned {
            tuned.on_signal(now, signal);
        }
        match signal {
            Signal::Loss | Signal::Timeout => self.conditions.on_loss(now),
            Signal::Cnp => self.conditions.on_cnp(now),
            Signal::Spurious | Signal::Unanswered => {}
        }
        if signal == Signal::Timeout {
            self.timed_out_at = now;
        }
        let before = self.controller.limits().rate_bps;
        match signal {
            Signal::Loss => self.controller.on_loss(now, LossKind::Fast),
            Signal::Timeout => self.controller.on_loss(now, LossKind::Timeout),
            Signal::Cnp => self.controller.on_cnp(now),
            Signal::Spurious => self.controller.on_spurious(now),
            Signal::Unanswered => {}
        }
        probes::rate_change(self.peer, before, self.controller.limits().rate_bps);
        self.settle_quiet();
    }
    /// Bytes of unacknowledged messages that may be sent now; 0 while the next hop is being resolved, which `is_resolving` asks
    /// the port.
    pub fn may_send(&mut self, now: Nanos, is_resolving: impl FnOnce() -> bool) -> u64 {
        if now.since(self.used_at) >= IDLE {
            self.hop = HopKnowledge::Unknown(0);
        }
        self.used_at = now;
        let since = match self.hop {
            HopKnowledge::Found => return u64::MAX,
            HopKnowledge::Unknown(sent) if sent < UNRESOLVED_BYTES => return UNRESOLVED_BYTES - sent,
            HopKnowledge::Unknown(_) => now,
            HopKnowledge::Resolving(since) => since,
        };
        if now.since(since) < RESOLVING_MAX && is_resolving() {
            self.hop = HopKnowledge::Resolving(since);
            return 0;
        }
        self.hop = HopKnowledge::Found;
        u64::MAX
    }
    /// Unacknowledged messages were sent: `bytes` of payload in `wqes` work requests.
    pub fn sent(&mut self, bytes: u64, wqes: u32) {
        if let HopKnowledge::Unknown(sent) = &mut self.hop {
            *sent += bytes + u64::from(wqes) * WQE_BYTES;
        }
    }
    /// Bytes in flight.
    pub fn inflight(&self) -> u64 {
        self.inflight
    }
    /// Bytes of READ responses among them.
    pub(crate) fn responses(&self) -> u64 {
        self.responses
    }
    /// Bytes that a queue pair may have in flight whatever the window is.
    pub(crate) fn qp_min_bytes(&self) -> u64 {
        self.qp_min_bytes
    }
    /// The limits of the controller.
    pub(crate) fn limits(&self) -> SendLimits {
        self.controller.limits()
    }
    /// The window in bytes.
    pub fn window(&self) -> u64 {
        let window = self.controller.limits().window_bytes;
        let guard = self.tuned.as_ref().and_then(|tuned| tuned.guard.as_ref());
        guard.map_or(window, |guard| window.min(guard.limits().window_bytes))
    }
    /// Whether a queue pair with `own` bytes in flight could not send `next` more if no other had any in flight.
    pub(crate) fn is_hopeless(&self, own: u64, next: u64) -> bool {
        own > 0 && own.saturating_add(next) > self.window().max(self.qp_min_bytes)
    }
    /// Whether a waiting queue pair with `own` bytes in flight may send `next` more bytes. A queue pair with nothing in flight
    /// may send whenever the window is open. Others are woken only if their whole next packet fits; otherwise they would be
    /// woken again and again without sending.
    pub fn has_room(&self, own: u64, next: u64) -> bool {
        let room = self.room(own);
        room >= next.max(1) || (own == 0 && room > 0)
    }
}

impl Tuned {
    fn new(cc: &Params, mtu: u32) -> Tuned {
        let is_guarded = cc.algorithm() != Algorithm::Cubic;
        Tuned {
            guard: is_guarded.then(|| Aimd::starting(cc.window_max_bytes, mtu.into())),
            is_reported: false,
            lag: PACE_LAG,
            lag_part: match cc.algorithm() {
                Algorithm::Cubic => 1,
                // A whole window that has left at once comes back at once, and would leave at once for ever.
                Algorithm::Dctcp | Algorithm::Swift => 16,
                _ => 0,
            },
            pacer: Pacer::default(),
            probe: None,
            reported: None,
        }
    }

    /// A queue pair has found a loss, or that one was none.
    fn on_signal(&mut self, now: Nanos, signal: Signal) {
        match signal {
            Signal::Loss | Signal::Timeout => {
                self.guard.iter_mut().for_each(|guard| guard.on_loss(now));
                // A packet that is sent twice measures nothing.
                self.probe = None;
            }
            Signal::Spurious => self.guard.iter_mut().for_each(Aimd::on_spurious),
            Signal::Cnp => self.guard.iter_mut().for_each(Aimd::end_slow_start),
            Signal::Unanswered => {}
        }
    }

    /// Bytes of queue pair `qp` were acknowledged. A peer that reports measures round trips better than the probe: it says what
    /// it took to answer.
    #[cold]
    #[inline(never)]
    fn on_ack(&mut self, now: Nanos, qp: u32, sample: &AckSample, controller: &mut Controller) {
        let measured = self.measure(now, qp, sample.acked_bytes);
        let sample = match self.reported.take() {
            Some(AckReport { rtt, remote_delay, packets, ce_packets, pressure }) => {
                AckSample { rtt, remote_delay, packets, ce_packets, pressure, ..*sample }
            }
            None => AckSample { rtt: measured, ..*sample },
        };
        controller.on_ack(now, &sample);
        if let Some(guard) = &mut self.guard {
            // The controller above has taken over, and nothing is to grow.
            match sample.ce_packets {
                0 => guard.on_ack(now, &sample),
                _ => guard.end_slow_start(),
            }
        }
        if let Some(part) = sample.rtt.and_then(|rtt| rtt.0.checked_div(self.lag_part)) {
            self.lag = Nanos(part).max(PACE_LAG);
        }
    }

    /// The round trip, if the bytes of the probe are acknowledged now.
    fn measure(&mut self, now: Nanos, qp: u32, acked_bytes: u64) -> Option<Nanos> {
        let probe = self.probe.as_mut().filter(|probe| probe.qp == qp)?;
        probe.left = probe.left.saturating_sub(acked_bytes);
        if probe.left > 0 {
            return None;
        }
        let rtt = now.since(probe.at);
        self.probe = None;
        Some(rtt)
    }
}

#[cfg(test)]
mod tests;
