//! The sending half of a channel: PSNs, packets in flight, selective repeat, go-back-N, retransmission time-outs.
//!
//! Packets are kept as descriptions ([`TxPacket`]), not as bytes: a repetition reads the data again. Transmissions are numbered,
//! repetitions included, as in RFC 9002. A packet is *lost* when one has arrived that was sent at least `reorder_degree`
//! transmissions after it: of first transmissions these are PSNs, and a lost repetition is found in the same way. The arrival of
//! a repeated packet proves nothing within the smallest round trip, because its first transmission may have been late (RFC
//! 8985, 6.2). Of fewer packets in flight than that degree the last arrival suffices (RFC 5827). If no acknowledgement comes for
//! about two round trips, and for twice as long again, the oldest and the newest packet are sent again as a probe,
//! whatever may be in flight, because the loss of the last packets shows in no acknowledgement. Time-out n is `rto_base *
//! 2^(rto_shift * n)`; then everything that is not acknowledged is lost, and leaves again as the limits on what is in flight
//! ([`TxLimits`]) allow. After `rto_tries` in a row the channel has failed.
//!
//! **Congestion.** Losses are one signal for each window ([`Acked::is_signal`], RFC 6582): a loss is reported if the lost
//! transmission was sent after the last report, be it a first one or a repetition. From a report until what was sent before it
//! is acknowledged the channel is *recovering*, but not after a time-out, which slow start follows. The acknowledgement of a
//! probe's repetition is a loss, too, unless it comes so early that the first transmission was late (RFC 8985, 7.4.2): where one
//! or two packets are in flight, most losses are found in no other way.

use crate::api::{LossRecovery, UrmaConfig};
use crate::paths::{FlightBytes, PathRoom};
use crate::pool::PoolRef;
use burst_base::{Nanos, Psn, Reason};
use burst_ubwire::{Saetph, ServiceMode};
use std::collections::VecDeque;

/// Packets in flight at most. The receiver accepts as many ([`crate::channels::rx_window::RX_WINDOW`]).
pub(crate) const TX_WINDOW: usize = 1000;
/// Packets in flight up to which requests are sent.
pub(crate) const REQUEST_WINDOW: usize = TX_WINDOW - 200;
/// Shortest time without acknowledgement after which a probe is sent, and probes without progress at most.
const PROBE_MIN: Nanos = Nanos(50_000);
const PROBES_MAX: u8 = 2;
/// Transmissions since the last report of a loss that are counted: numbers are compared within half of their range.
const REPORTED_MAX: u32 = 1 << 24;
/// Packets of a probe that may leave whatever is in flight: the first one.
const PROBE_PACKETS: u8 = 1;
/// Queues longer than this give their memory back when they are empty.
const KEEP: usize = 32;

/// Whose packet it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxOwner {
    /// Of a request of this node; the number counts its attempts.
    Request(PoolRef, u8),
    /// Of a response.
    Response(PoolRef),
    /// An RNR answer that needs no record.
    Busy {
        /// The peer's Jetty.
        rc_id: u32,
        /// The request.
        tassn: u16,
        /// Its service mode.
        mode: ServiceMode,
    },
    /// Of nothing: asks for a sign of life.
    Filler,
}

/// A packet, described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TxPacket {
    pub(crate) owner: TxOwner,
    /// Offset in the message.
    pub(crate) offset: u32,
    /// Payload bytes.
    pub(crate) len: u16,
    /// Last packet of its message.
    pub(crate) last: bool,
    /// Number of the message.
    pub(crate) tpmsn: u32,
}

impl TxPacket {
    const fn is_request(&self) -> bool {
        matches!(self.owner, TxOwner::Request(..))
    }
}

/// What a channel may have in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TxLimits {
    /// Bytes of payload; responses may have twice as many.
    pub(crate) window: u32,
    /// Largest payload of a packet.
    pub(crate) mtu: u32,
    /// What the network path to the peer takes now.
    pub(crate) path: PathRoom,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    packet: TxPacket,
    sent_at: Nanos,
    /// Number of the last transmission.
    order: u32,
    acked: bool,
    lost: bool,
    repeated: bool,
    /// It is sent again by a probe, and no loss of its flight was reported.
    suspect: bool,
}

/// Packets in flight.
#[derive(Debug)]
pub(crate) struct TxWindow {
    /// Oldest PSN that is not acknowledged.
    una: Psn,
    flight: VecDeque<InFlight>,
    /// Payload of the packets that are neither acknowledged nor lost, and their number.
    bytes: FlightBytes,
    open: u32,
    lost: u32,
    /// No packet before this one is lost.
    lost_from: Psn,
    /// Packets that may leave whatever is in flight.
    probes: u8,
    /// Number of the next transmission, and of the newest one that has arrived.
    order_next: u32,
    order_arrived: u32,
    /// Losses of transmissions from this one on are reported.
    reported: u32,
    /// The newest PSN sent when a loss was reported, until it is acknowledged.
    recover: Option<Psn>,
    tries: u8,
    /// An acknowledgement came since the last time-out.
    is_heard: bool,
    /// Probes that were sent since the last progress.
    probed: u8,
    progress_at: Nanos,
    srtt: Nanos,
    /// Its mean deviation (RFC 6298).
    rttvar: Nanos,
    /// The smallest round trip; 0 before the first.
    rtt_min: Nanos,
    gbn: bool,
    /// Oldest PSN when a NAK was followed last: one for each gap.
    nak_followed: Option<Psn>,
}

/// What an acknowledgement did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acked {
    /// Packets that are newly lost.
    pub(crate) losses: u32,
    /// A packet was lost that was sent after the last loss that was reported to congestion control.
    pub(crate) is_signal: bool,
    /// Another acknowledgement covered more: nothing was done.
    pub(crate) is_old: bool,
    /// Packets that are newly acknowledged.
    pub(crate) packets: u32,
    /// Bytes of their payload.
    pub(crate) bytes: u32,
    /// Time since the newest of them was sent, if it was sent once.
    pub(crate) rtt: Option<Nanos>,
}

/// Whether one transmission was before another one. Numbers wrap around.
const fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl TxWindow {
    pub(crate) fn new(first: Psn, config: &UrmaConfig) -> Self {
        TxWindow {
            una: first,
            flight: VecDeque::new(),
            bytes: FlightBytes::default(),
            open: 0,
            lost: 0,
            lost_from: first,
            probes: 0,
            order_next: 1,
            order_arrived: 0,
            reported: 0,
            recover: None,
            tries: 0,
            is_heard: false,
            probed: 0,
            progress_at: Nanos(0),
            srtt: Nanos(0),
            rttvar: Nanos(0),
            rtt_min: Nanos(0),
            gbn: config.recovery == LossRecovery::GoBackN,
            nak_followed: None,
        }
    }
    /// PSN of the next new packet.
    pub(crate) fn next_psn(&self) -> Psn {
        self.una.add(self.flight.len() as u32)
    }
    /// Whether a new packet of a response, or of a request, may be sent. One packet is always within the window.
    #[inline]
    pub(crate) fn has_room(&self, limits: &TxLimits, is_answer: bool) -> bool {
        let packets_max = if is_answer { TX_WINDOW } else { REQUEST_WINDOW };
        (self.flight.is_empty() || self.flight.len() < packets_max && self.is_below(limits.window, is_answer))
            && limits.path.admits(is_answer, limits.mtu, self.bytes)
    }
    fn is_below(&self, window: u32, is_answer: bool) -> bool {
        self.bytes.all < if is_answer { window.saturating_mul(2) } else { window }
    }
    /// Whether packets wait for a limit, all of them: nothing is in flight.
    pub(crate) fn is_waiting(&self) -> bool {
        self.open == 0 && self.lost > 0
    }
    /// Whether losses are being repaired that were found without a time-out.
    pub(crate) fn is_recovering(&self) -> bool {
        self.recover.is_some()
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.flight.is_empty()
    }
    /// Whether packets wait to be sent again.
    pub(crate) fn has_lost(&self) -> bool {
        self.lost > 0
    }
    /// Whether the packet with a PSN is sent and not acknowledged cumulatively.
    pub(crate) fn is_in_flight(&self, psn: Psn) -> bool {
        usize::try_from(psn.diff(self.una)).is_ok_and(|ahead| ahead < self.flight.len())
    }
    /// The messages to which these packets belong, once for each packet.
    pub(crate) fn owners(&self) -> impl Iterator<Item = TxOwner> + '_ {
        self.flight.iter().map(|in_flight| in_flight.packet.owner)
    }
    /// Packets from the oldest one on that is not acknowledged.
    pub(crate) fn packets(&self) -> usize {
        self.flight.len()
    }
    /// Payload bytes that are neither acknowledged nor lost.
    pub(crate) fn bytes(&self) -> FlightBytes {
        self.bytes
    }
    pub(crate) fn srtt(&self) -> Nanos {
        self.srtt
    }
    /// A new packet is sent.
    pub(crate) fn push(&mut self, now: Nanos, packet: TxPacket) -> Psn {
        if self.flight.is_empty() {
            (self.progress_at, self.probed) = (now, 0);
        }
        debug_assert!(self.flight.len() < TX_WINDOW, "more packets are in flight than the peer accepts");
        let (psn, order) = (self.next_psn(), self.take_order());
        self.flight.push_back(InFlight {
            packet,
            sent_at: now,
            order,
            acked: false,
            lost: false,
            repeated: false,
            suspect: false,
        });
        self.bytes.add(packet.len, !packet.is_request());
        self.open += 1;
        psn
    }
    fn take_order(&mut self) -> u32 {
        let order = self.order_next;
        if order.wrapping_sub(self.reported) > REPORTED_MAX {
            self.reported = order.wrapping_sub(REPORTED_MAX);
        }
        self.order_next = order.wrapping_add(1);
        order
    }
    fn first_lost(&self) -> Option<usize> {
        let from = self.lost_from.diff(self.una).max(0) as usize;
        self.flight.range(from..).position(|p| p.lost).map(|at| from + at)
    }
    /// Whether the oldest lost packet may leave again.
    pub(crate) fn may_repeat(&self, limits: &TxLimits) -> bool {
        self.first_lost().is_some_and(|at| {
            let is_answer = !self.flight[at].packet.is_request();
            let is_below = self.open == 0 || self.is_below(limits.window, is_answer);
            self.probes > 0 || is_below && limits.path.admits(is_answer, limits.mtu, self.bytes)
        })
    }
    /// The oldest lost packet, which counts as sent again, if the limits allow it.
    pub(crate) fn take_lost(&mut self, now: Nanos, limits: &TxLimits) -> Option<(Psn, TxPacket)> {
        if self.lost == 0 {
            return None;
        }
        let at = self.first_lost()?;
        self.lost_from = self.una.add(at as u32);
        if !self.may_repeat(limits) {
            return None;
        }
        let is_answer = !self.flight[at].packet.is_request();
        self.probes = self.probes.saturating_sub(1);
        if self.open == 0 {
            self.progress_at = self.progress_at.max(now);
        }
        let order = self.take_order();
        let entry = &mut self.flight[at];
        (entry.lost, entry.repeated, entry.sent_at, entry.order) = (false, true, now, order);
        self.lost -= 1;
        if !entry.acked {
            self.bytes.add(entry.packet.len, is_answer);
            self.open += 1;
        }
        Some((self.lost_from, entry.packet))
    }
    /// All packets up to `cumulative` are acknowledged, and those of the bitmap. `done` gets each packet of a request when
    /// all before it are acknowledged, too, and each other packet when it is acknowledged: a response that has arrived makes
    /// room although the peer cannot take a request in front of it. [`Reason::UbBadAck`] for packets that were never sent.
    pub(crate) fn on_ack(
        &mut self,
        now: Nanos,
        cumulative: Psn,
        sack: Option<(&Saetph, u32)>,
        done: &mut dyn FnMut(TxPacket),
    ) -> Result<Acked, Reason> {
        let count = cumulative.next().diff(self.una);
        if count > self.flight.len() as i32 {
            return Err(Reason::UbBadAck);
        }
        self.is_heard = true;
        let mut acked = Acked { is_old: count < 0, ..Acked::default() };
        if acked.is_old {
            return Ok(acked);
        }
        for _ in 0..count {
            let Some(entry) = self.flight.pop_front() else { break };
            self.leave(&entry);
            self.una = self.una.next();
            if !entry.acked {
                self.arrived(now, &entry, &mut acked);
            }
            if !entry.acked || entry.packet.is_request() {
                done(entry.packet);
            }
        }
        if count > 0 {
            self.progress(now);
        }
        if self.recover.is_some_and(|recover| self.una.is_after(recover)) {
            self.recover = None;
        }
        if let Some((saetph, degree)) = sack {
            self.on_bitmap(now, saetph, &mut acked, done)?;
            self.find_losses(degree, &mut acked);
        }
        self.report_loss(acked.is_signal);
        if self.flight.is_empty() && self.flight.capacity() > KEEP {
            self.flight = VecDeque::new();
        }
        Ok(acked)
    }
    /// Something was acknowledged for the first time.
    fn progress(&mut self, now: Nanos) {
        (self.tries, self.probed, self.progress_at, self.probes) = (0, 0, now, 0);
    }
    /// A packet has arrived at the peer.
    #[inline]
    fn arrived(&mut self, now: Nanos, entry: &InFlight, acked: &mut Acked) {
        acked.packets += 1;
        acked.bytes += u32::from(entry.packet.len);
        let rtt = now.since(entry.sent_at);
        if !entry.repeated {
            acked.rtt = Some(rtt);
            self.sample_rtt(rtt);
        }
        let is_proof = !entry.repeated || self.rtt_min.0 > 0 && rtt >= self.rtt_min;
        // An acknowledgement of the first transmission that is late by so much is rarer than a lost one.
        let is_own = entry.suspect && 2 * rtt.0 >= self.srtt.0;
        acked.is_signal |= is_own && !is_before(entry.order, self.reported);
        if is_proof && is_before(self.order_arrived, entry.order) {
            self.order_arrived = entry.order;
        }
    }
    /// The peer keeps nothing behind a gap (go-back-N) and says so, once for each gap. Whether that is to be reported as a loss.
    pub(crate) fn on_nak(&mut self) -> bool {
        debug_assert!(self.gbn, "selective repeat knows no NAK");
        if self.nak_followed == Some(self.una) {
            return false;
        }
        self.nak_followed = Some(self.una);
        let is_signal = self.flight.front().is_some_and(|first| !is_before(first.order, self.reported));
        self.lose_all();
        self.report_loss(is_signal);
        is_signal
    }
    /// All packets that are not acknowledged are lost.
    fn lose_all(&mut self) {
        for i in 0..self.flight.len() {
            if self.gbn || !self.flight[i].acked {
                self.lose(i);
            }
        }
    }
    fn report_loss(&mut self, is_signal: bool) {
        if is_signal {
            self.reported = self.order_next;
            self.recover = Some(self.next_psn().prev());
        }
    }
    fn leave(&mut self, entry: &InFlight) {
        debug_assert!(!entry.lost || self.lost > 0);
        if entry.lost {
            self.lost -= 1;
        } else if !entry.acked {
            self.close(entry.packet);
        }
    }
    /// A packet is not in flight any more.
    fn close(&mut self, packet: TxPacket) {
        debug_assert!(self.open > 0, "more packets are acknowledged or lost than were sent");
        self.bytes.take(packet.len, !packet.is_request());
        self.open -= 1;
    }
    fn lose(&mut self, at: usize) {
        let entry = &mut self.flight[at];
        if entry.lost {
            return;
        }
        entry.lost = true;
        let (is_open, packet, psn) = (!entry.acked, entry.packet, self.una.add(at as u32));
        if self.lost == 0 || psn.is_before(self.lost_from) {
            self.lost_from = psn;
        }
        self.lost += 1;
        if is_open {
            self.close(packet);
        }
    }
    fn sample_rtt(&mut self, rtt: Nanos) {
        if self.srtt.0 == 0 {
            (self.srtt, self.rttvar) = (rtt, Nanos(rtt.0 / 2));
        } else {
            let error = rtt.0.abs_diff(self.srtt.0);
            self.rttvar = Nanos(self.rttvar.0 - self.rttvar.0 / 4 + error / 4);
            self.srtt = Nanos(self.srtt.0 - self.srtt.0 / 8 + rtt.0 / 8);
        }
        self.rtt_min = if self.rtt_min.0 == 0 { rtt } else { self.rtt_min.min(rtt) };
    }
    fn on_bitmap(
        &mut self,
        now: Nanos,
        saetph: &Saetph,
        acked: &mut Acked,
        done: &mut dyn FnMut(TxPacket),
    ) -> Result<(), Reason> {
        if saetph.max_psn.diff(self.una) >= self.flight.len() as i32 {
            return Err(Reason::UbBadAck);
        }
        for i in 0..saetph.bits().min(self.flight.len() as u32) {
            let entry = &mut self.flight[i as usize];
            if saetph.has(i) && !entry.acked {
                let copy = *entry;
                (entry.acked, entry.lost) = (true, false);
                self.leave(&copy);
                self.arrived(now, &copy, acked);
                if !copy.packet.is_request() {
                    done(copy.packet);
                }
                // A sign of life, although the oldest packet is still missing.
                self.progress(now);
            }
        }
        Ok(())
    }
    /// Packets are lost that were sent `degree` transmissions before one that has arrived.
    fn find_losses(&mut self, degree: u32, acked: &mut Acked) {
        // Of few packets in flight as many cannot arrive (early retransmit, RFC 5827).
        let degree = degree.min((self.flight.len() as u32).saturating_sub(1)).max(1);
        let end = self.order_arrived.wrapping_sub(degree);
        for i in 0..self.flight.len() {
            let InFlight { acked: has_arrived, lost, order, .. } = self.flight[i];
            if !has_arrived && !lost && !is_before(end, order) {
                acked.losses += 1;
                acked.is_signal |= !is_before(order, self.reported);
                self.lose(i);
            }
        }
    }
    /// When the next time-out is due.
    pub(crate) fn deadline(&self, config: &UrmaConfig) -> Nanos {
        if self.flight.is_empty() {
            return Nanos::NEVER;
        }
        let rto = self.time_out(config);
        let may_probe = self.probed < PROBES_MAX && self.tries == 0 && self.srtt.0 > 0 && !self.gbn;
        self.progress_at + if may_probe { self.probe_wait().min(rto) } else { rto }
    }
    /// The next time-out: up to an eighth longer than [`rto`], by an amount of its own, so that senders that have lost their
    /// packets at the same time do not lose them again at the same time.
    fn time_out(&self, config: &UrmaConfig) -> Nanos {
        let rto = rto(config, self.tries, self.srtt);
        let mixed = (self.una.get() ^ u32::from(self.tries) << 24).wrapping_mul(0x9e37_79b1);
        Nanos(rto.0 + (rto.0 / 8).saturating_mul(u64::from(mixed >> 16)) / (1 << 16))
    }
    /// Time without progress after which the next probe is sent: twice as long for the second one.
    fn probe_wait(&self) -> Nanos {
        let wait = (2 * self.srtt.0).max(self.srtt.0 + 4 * self.rttvar.0).max(PROBE_MIN.0);
        Nanos(wait << self.probed.min(PROBES_MAX))
    }
    /// The deadline has come: true if a probe is sent instead of a time-out.
    pub(crate) fn probe(&mut self, now: Nanos, config: &UrmaConfig) -> bool {
        if now >= self.progress_at + self.time_out(config) || self.probed >= PROBES_MAX {
            return false;
        }
        (self.probed, self.probes) = (self.probed + 1, PROBE_PACKETS);
        let is_open = |p: &InFlight| !p.acked && !p.lost;
        let (first, last) = (self.flight.iter().position(is_open), self.flight.iter().rposition(is_open));
        for at in [first, last].into_iter().flatten() {
            let entry = &mut self.flight[at];
            entry.suspect = !is_before(entry.order, self.reported);
            self.lose(at);
        }
        if first.is_none() {
            self.lose(0);
        }
        true
    }
    /// Time-outs in a row in which nothing at all was acknowledged. Otherwise the peer is alive and has no room, or waits for
    /// something else.
    pub(crate) fn silent_tries(&self) -> u8 {
        if self.is_heard { 0 } else { self.tries }
    }
    /// No acknowledgement of more packets came in time: all that are not acknowledged are lost.
    pub(crate) fn on_timeout(&mut self, now: Nanos) {
        self.tries = self.silent_tries().saturating_add(1);
        self.is_heard = false;
        (self.progress_at, self.recover, self.reported, self.probes) = (now, None, self.order_next, 0);
        self.lose_all();
        if self.lost == 0 {
            // All have arrived but the acknowledgement is missing: the first one asks for it.
            self.lose(0);
        }
    }
    /// Nothing was in flight when the time-out came: packets wait for a limit.
    pub(crate) fn wait_on(&mut self, now: Nanos) {
        debug_assert!(self.is_waiting(), "packets are in flight");
        self.progress_at = now;
    }
    /// Whether the counts are those of the packets.
    pub(crate) fn is_consistent(&self) -> bool {
        let lost = self.flight.iter().filter(|packet| packet.lost).count();
        let (mut bytes, mut open) = (FlightBytes::default(), 0);
        for packet in self.flight.iter().filter(|packet| !packet.acked && !packet.lost) {
            bytes.add(packet.packet.len, !packet.packet.is_request());
            open += 1;
        }
        let first = self.flight.iter().position(|packet| packet.lost);
        let is_found = first.is_none_or(|at| !self.una.add(at as u32).is_before(self.lost_from));
        (lost, bytes, open) == (self.lost as usize, self.bytes, self.open) && is_found && self.flight.len() <= TX_WINDOW
    }
    pub(crate) fn heap_bytes(&self) -> usize {
        self.flight.capacity() * size_of::<InFlight>()
    }
}

/// Time-out number `tries`; never shorter than four round trips.
pub(crate) fn rto(config: &UrmaConfig, tries: u8, srtt: Nanos) -> Nanos {
    let base = config.rto_base.0.max(4 * srtt.0);
    let shift = u32::from(config.rto_shift) * u32::from(tries);
    Nanos(base.saturating_mul(1u64.checked_shl(shift).unwrap_or(u64::MAX)).min(5_000_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_eid::NodeEid;
    use burst_ubwire::SACK_WORDS_MAX;

    fn window(count: u32) -> TxWindow {
        let mut window = TxWindow::new(Psn::new(0xff_fff0), &UrmaConfig::new(NodeEid::numbered(1), 1));
        for i in 0..count {
            let owner = TxOwner::Response(PoolRef::NONE);
            window.push(Nanos(0), TxPacket { owner, offset: i, len: 100, last: true, tpmsn: i });
        }
        window
    }

    /// Acknowledges: everything before `base`, and these numbers; all counted from the first packet.
    fn sack(window: &mut TxWindow, base: u32, numbers: &[u32]) -> u32 {
        let first = Psn::new(0xff_fff0);
        let mut bitmap = [0u64; SACK_WORDS_MAX];
        for n in numbers {
            bitmap[(n - base) as usize / 64] |= 1 << ((n - base) % 64);
        }
        let max_psn = first.add(*numbers.iter().max().expect("one"));
        let saetph = Saetph { max_psn, bitmap, size_code: 4 };
        window.on_ack(Nanos(1), first.add(base).prev(), Some((&saetph, 1)), &mut |_| ()).expect("sound").losses
    }

    const ALL: TxLimits = TxLimits { window: u32::MAX, mtu: 100, path: PathRoom::UNBOUNDED };

    fn lost(window: &mut TxWindow) -> Vec<u32> {
        std::iter::from_fn(|| window.take_lost(Nanos(2), &ALL).map(|(_, p)| p.offset)).collect()
    }

    #[test]
    fn only_missing_packets_are_repeated_and_once_until_something_newer_has_arrived() {
        let mut w = window(20);
        assert_eq!(sack(&mut w, 2, &[3, 4, 6]), 2);
        assert_eq!(lost(&mut w), [2, 5]);
        assert_eq!(sack(&mut w, 2, &[3, 4, 6, 8]), 1, "2 and 5 are not repeated again, 7 is");
        assert_eq!(lost(&mut w), [7]);
        let owner = TxOwner::Response(PoolRef::NONE);
        w.push(Nanos(3), TxPacket { owner, offset: 20, len: 100, last: true, tpmsn: 20 });
        assert_eq!(
            sack(&mut w, 6, &[6, 8, 20]),
            12,
            "packet 20 was sent after the repetitions: 7 and 9 to 19 are lost"
        );
        assert_eq!(lost(&mut w), [7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]);
    }

    #[test]
    fn bytes_in_flight_are_those_neither_acknowledged_nor_lost() {
        let mut w = window(10);
        assert_eq!(w.bytes.all, 1000);
        sack(&mut w, 2, &[4, 5]);
        assert_eq!((w.bytes.all, w.lost), (400, 2), "6 to 9");
        assert_eq!(lost(&mut w).len(), 2);
        assert_eq!(w.bytes.all, 600);
        let all = w.next_psn().prev();
        w.on_ack(Nanos(5), all, None, &mut |_| ()).expect("sound");
        assert_eq!((w.bytes.all, w.lost, w.is_empty()), (0, 0, true));
    }

    #[test]
    fn acknowledgements_of_what_was_never_sent_are_refused_and_old_ones_ignored() {
        let mut w = window(3);
        let next = w.next_psn();
        assert_eq!(w.on_ack(Nanos(1), next, None, &mut |_| ()), Err(Reason::UbBadAck));
        let saetph = Saetph { max_psn: next, bitmap: [1; SACK_WORDS_MAX], size_code: 0 };
        let before = Psn::new(0xff_fff0).prev();
        assert_eq!(w.on_ack(Nanos(1), before, Some((&saetph, 1)), &mut |_| ()), Err(Reason::UbBadAck));
        let mut seen = Vec::new();
        w.on_ack(Nanos(1), next.sub(2), None, &mut |p| seen.push(p.offset)).expect("sound");
        assert_eq!(seen, [0, 1]);
        assert_eq!(w.on_ack(Nanos(1), before, None, &mut |_| ()), Ok(Acked { is_old: true, ..Acked::default() }));
    }

    /// Of two packets in flight both are lost, which no acknowledgement shows.
    #[test]
    fn what_a_probe_repairs_is_one_loss_unless_it_was_late() {
        let (config, rtt, first) = (UrmaConfig::new(NodeEid::numbered(1), 1), 100_000, Psn::new(0xff_fff0));
        for (wait, is_loss) in [(rtt, true), (rtt / 10, false)] {
            let mut w = window(3);
            w.on_ack(Nanos(rtt), first, None, &mut |_| ()).expect("sound");
            let at = w.deadline(&config);
            assert!(w.probe(at, &config));
            let limits = ALL;
            assert_eq!([w.take_lost(at, &limits), w.take_lost(at, &limits)].iter().flatten().count(), 2);
            let signals = [first.add(1), first.add(2)].map(|psn| {
                let acked = w.on_ack(at + Nanos(wait), psn, None, &mut |_| ());
                acked.expect("sound").is_signal
            });
            assert_eq!(signals, [is_loss, false]);
            assert!(w.is_empty() && !w.is_recovering());
        }
    }

    #[test]
    fn time_outs_double_and_end() {
        let config = UrmaConfig::new(NodeEid::numbered(1), 1);
        let mut w = window(40);
        let mut at = Nanos(0);
        for n in 0..config.rto_tries {
            let least = Nanos(config.rto_base.0 << n);
            let wait = w.deadline(&config).since(at);
            assert!(wait >= least && wait.0 <= least.0 + least.0 / 8, "{wait:?} for {least:?}");
            at = w.deadline(&config);
            assert!(w.silent_tries() < config.rto_tries);
            w.on_timeout(at);
            assert_eq!(lost(&mut w).len(), 40, "all that were sent");
        }
        assert_eq!(w.silent_tries(), config.rto_tries);
    }
}
