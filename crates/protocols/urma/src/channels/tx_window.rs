//! The sending half of a channel: PSNs, packets in flight, selective repeat with MarkPSN, go-back-N, retransmission time-outs.
//!
//! Packets are kept as descriptions ([`TxPacket`]), not as bytes: a repetition reads the data again. MarkPSN: when a
//! selective acknowledgement shows losses, the greatest PSN sent so far is marked, and until a packet behind it is
//! acknowledged each missing packet is repeated once only. A packet counts as lost when one at least `reorder_degree` PSNs
//! behind it has arrived. If no acknowledgement comes for a few round trips, the oldest and the newest packet are sent again
//! as a probe, because the loss of the last packets shows in no acknowledgement. Time-out n is `rto_base * 2^(rto_shift *
//! n)`; after `rto_tries` in a row the channel has failed.

use crate::api::{LossRecovery, UrmaConfig};
use crate::pool::PoolRef;
use burst_base::{Nanos, Psn, Reason};
use burst_ubwire::{Saetph, ServiceMode};
use std::collections::VecDeque;

/// Packets in flight at most. The receiver accepts as many ([`crate::channels::rx_window::RX_WINDOW`]).
pub(crate) const TX_WINDOW: usize = 1000;
/// Smoothed round trips without acknowledgement after which a probe is sent, and the shortest such time.
const PROBE_ROUND_TRIPS: u64 = 4;
const PROBE_MIN: Nanos = Nanos(50_000);
/// Packets repeated at one time-out.
const TIMEOUT_BURST: usize = 16;
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

#[derive(Clone, Copy, Debug)]
struct InFlight {
    packet: TxPacket,
    sent_at: Nanos,
    acked: bool,
    lost: bool,
    repeated: bool,
}

/// Packets in flight.
#[derive(Debug)]
pub(crate) struct TxWindow {
    /// Oldest PSN that is not acknowledged.
    una: Psn,
    flight: VecDeque<InFlight>,
    /// Payload bytes that are neither acknowledged nor lost.
    flight_bytes: u32,
    lost: u32,
    mark: Option<Psn>,
    /// In the present recovery, PSNs before this one have been judged.
    scanned: Psn,
    tries: u8,
    /// An acknowledgement came since the last time-out.
    is_heard: bool,
    /// The probe was sent since the last progress.
    is_probed: bool,
    progress_at: Nanos,
    srtt: Nanos,
    gbn: bool,
    /// Oldest PSN when a NAK was followed last: one for each gap.
    nak_followed: Option<Psn>,
}

/// What an acknowledgement did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acked {
    /// Packets that are newly lost.
    pub(crate) losses: u32,
    /// Another acknowledgement covered more: nothing was done.
    pub(crate) is_old: bool,
}

impl TxWindow {
    pub(crate) fn new(first: Psn, config: &UrmaConfig) -> Self {
        TxWindow {
            una: first,
            flight: VecDeque::new(),
            flight_bytes: 0,
            lost: 0,
            mark: None,
            scanned: first,
            tries: 0,
            is_heard: false,
            is_probed: false,
            progress_at: Nanos(0),
            srtt: Nanos(0),
            gbn: config.recovery == LossRecovery::GoBackN,
            nak_followed: None,
        }
    }
    /// PSN of the next new packet.
    pub(crate) fn next_psn(&self) -> Psn {
        self.una.add(self.flight.len() as u32)
    }
    /// Whether a new packet may be sent with these limits on bytes and packets in flight. One packet is always allowed.
    pub(crate) fn has_room(&self, bytes_max: u32, packets_max: usize) -> bool {
        self.flight.is_empty() || self.flight.len() < packets_max && self.flight_bytes < bytes_max
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
    pub(crate) fn bytes(&self) -> u32 {
        self.flight_bytes
    }
    pub(crate) fn srtt(&self) -> Nanos {
        self.srtt
    }
    /// A new packet is sent.
    pub(crate) fn push(&mut self, now: Nanos, packet: TxPacket) -> Psn {
        if self.flight.is_empty() {
            (self.progress_at, self.is_probed) = (now, false);
        }
        debug_assert!(self.flight.len() < TX_WINDOW, "more packets are in flight than the peer accepts");
        let psn = self.next_psn();
        self.flight.push_back(InFlight { packet, sent_at: now, acked: false, lost: false, repeated: false });
        self.flight_bytes += u32::from(packet.len);
        psn
    }
    /// The oldest lost packet, which counts as sent again.
    pub(crate) fn take_lost(&mut self, now: Nanos) -> Option<(Psn, TxPacket)> {
        if self.lost == 0 {
            return None;
        }
        let at = self.flight.iter().position(|p| p.lost)?;
        let entry = &mut self.flight[at];
        (entry.lost, entry.repeated, entry.sent_at) = (false, true, now);
        self.lost -= 1;
        if !entry.acked {
            self.flight_bytes += u32::from(entry.packet.len);
        }
        Some((self.una.add(at as u32), entry.packet))
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
        let mut acked = Acked { losses: 0, is_old: count < 0 };
        if acked.is_old {
            return Ok(acked);
        }
        for _ in 0..count {
            let Some(entry) = self.flight.pop_front() else { break };
            self.leave(&entry);
            if !entry.repeated {
                self.sample_rtt(now.since(entry.sent_at));
            }
            self.una = self.una.next();
            if !entry.acked || entry.packet.is_request() {
                done(entry.packet);
            }
        }
        if count > 0 {
            (self.tries, self.is_probed, self.progress_at) = (0, false, now);
        }
        if self.mark.is_some_and(|mark| self.una.is_after(mark)) {
            self.mark = None;
        }
        if let Some((saetph, degree)) = sack {
            acked.losses = self.on_bitmap(now, saetph, degree, done)?;
        }
        if self.flight.is_empty() && self.flight.capacity() > KEEP {
            self.flight = VecDeque::new();
        }
        Ok(acked)
    }
    /// The peer keeps nothing behind a gap (go-back-N) and says so, once for each gap.
    pub(crate) fn on_nak(&mut self) {
        debug_assert!(self.gbn, "selective repeat knows no NAK");
        if self.nak_followed != Some(self.una) {
            self.nak_followed = Some(self.una);
            self.go_back();
        }
    }
    /// All packets are lost.
    fn go_back(&mut self) -> u32 {
        let before = self.lost;
        for i in 0..self.flight.len() {
            self.lose(i);
        }
        self.lost - before
    }
    fn leave(&mut self, entry: &InFlight) {
        debug_assert!(!entry.lost || self.lost > 0);
        if entry.lost {
            self.lost -= 1;
        } else if !entry.acked {
            self.flight_bytes -= u32::from(entry.packet.len);
        }
    }
    fn lose(&mut self, at: usize) {
        let entry = &mut self.flight[at];
        if !entry.lost {
            entry.lost = true;
            self.lost += 1;
            if !entry.acked {
                self.flight_bytes -= u32::from(entry.packet.len);
            }
        }
    }
    fn sample_rtt(&mut self, rtt: Nanos) {
        self.srtt = if self.srtt.0 == 0 { rtt } else { Nanos(self.srtt.0 - self.srtt.0 / 8 + rtt.0 / 8) };
    }
    fn on_bitmap(
        &mut self,
        now: Nanos,
        saetph: &Saetph,
        degree: u32,
        done: &mut dyn FnMut(TxPacket),
    ) -> Result<u32, Reason> {
        let greatest = saetph.max_psn.diff(self.una);
        if greatest >= self.flight.len() as i32 {
            return Err(Reason::UbBadAck);
        }
        for i in 0..saetph.bits().min(self.flight.len() as u32) {
            let entry = &mut self.flight[i as usize];
            if saetph.has(i) && !entry.acked {
                let copy = *entry;
                (entry.acked, entry.lost) = (true, false);
                self.leave(&copy);
                if !copy.packet.is_request() {
                    done(copy.packet);
                }
                // A sign of life, although the oldest packet is still missing.
                (self.tries, self.is_probed, self.progress_at) = (0, false, now);
            }
        }
        let end = greatest + 1 - degree as i32;
        let is_new = self.mark.is_none_or(|mark| saetph.max_psn.is_after(mark));
        let start = if is_new { 0 } else { self.scanned.diff(self.una).max(0) };
        let before = self.lost;
        for i in start..end {
            if !self.flight[i as usize].acked {
                self.lose(i as usize);
            }
        }
        if self.lost > before {
            if is_new {
                self.mark = Some(self.next_psn().prev());
                self.scanned = self.una;
            }
            self.scanned = self.una.add(end as u32);
        }
        Ok(self.lost - before)
    }
    /// When the next time-out is due.
    pub(crate) fn deadline(&self, config: &UrmaConfig) -> Nanos {
        if self.flight.is_empty() {
            return Nanos::NEVER;
        }
        let rto = rto(config, self.tries, self.srtt);
        let probe = Nanos((PROBE_ROUND_TRIPS * self.srtt.0).max(PROBE_MIN.0));
        let is_probe = !self.is_probed && self.tries == 0 && self.srtt.0 > 0 && !self.gbn;
        self.progress_at + if is_probe { probe.min(rto) } else { rto }
    }
    /// The deadline has come: true if a probe is sent instead of a time-out.
    pub(crate) fn probe(&mut self, now: Nanos, config: &UrmaConfig) -> bool {
        if now >= self.progress_at + rto(config, self.tries, self.srtt) || self.is_probed {
            return false;
        }
        self.is_probed = true;
        let is_open = |p: &InFlight| !p.acked && !p.lost;
        let (first, last) = (self.flight.iter().position(is_open), self.flight.iter().rposition(is_open));
        for at in [first, last].into_iter().flatten() {
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
    /// No acknowledgement of more packets came in time: the oldest ones are lost.
    pub(crate) fn on_timeout(&mut self, now: Nanos) {
        self.tries = self.silent_tries().saturating_add(1);
        self.is_heard = false;
        (self.progress_at, self.mark) = (now, None);
        if self.gbn {
            self.go_back();
            return;
        }
        let mut count = 0;
        for i in 0..self.flight.len() {
            if !self.flight[i].acked {
                self.lose(i);
                count += 1;
            }
            if count == TIMEOUT_BURST {
                break;
            }
        }
        if count == 0 {
            // All have arrived but the acknowledgement is missing: the first one asks for it.
            self.lose(0);
        }
    }
    /// Whether the counts are those of the packets.
    pub(crate) fn is_consistent(&self) -> bool {
        let lost = self.flight.iter().filter(|packet| packet.lost).count();
        let open = self.flight.iter().filter(|packet| !packet.acked && !packet.lost);
        let bytes: u32 = open.map(|packet| u32::from(packet.packet.len)).sum();
        (lost, bytes) == (self.lost as usize, self.flight_bytes) && self.flight.len() <= TX_WINDOW
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
    use burst_ubwire::{Cna, SACK_WORDS_MAX};

    fn window(count: u32) -> TxWindow {
        let mut window = TxWindow::new(Psn::new(0xff_fff0), &UrmaConfig::new(Cna::new(1), 1));
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

    fn lost(window: &mut TxWindow) -> Vec<u32> {
        std::iter::from_fn(|| window.take_lost(Nanos(2)).map(|(_, p)| p.offset)).collect()
    }

    #[test]
    fn only_missing_packets_are_repeated_and_once_until_mark_psn_is_passed() {
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
        assert_eq!(w.flight_bytes, 1000);
        sack(&mut w, 2, &[4, 5]);
        assert_eq!((w.flight_bytes, w.lost), (400, 2), "6 to 9");
        assert_eq!(lost(&mut w).len(), 2);
        assert_eq!(w.flight_bytes, 600);
        let all = w.next_psn().prev();
        w.on_ack(Nanos(5), all, None, &mut |_| ()).expect("sound");
        assert_eq!((w.flight_bytes, w.lost, w.is_empty()), (0, 0, true));
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
        assert_eq!(w.on_ack(Nanos(1), before, None, &mut |_| ()), Ok(Acked { losses: 0, is_old: true }));
    }

    #[test]
    fn time_outs_double_and_end() {
        let config = UrmaConfig::new(Cna::new(1), 1);
        let mut w = window(40);
        let mut at = Nanos(0);
        for n in 0..config.rto_tries {
            assert_eq!(w.deadline(&config), at + Nanos(config.rto_base.0 << n));
            at = w.deadline(&config);
            assert!(w.silent_tries() < config.rto_tries);
            w.on_timeout(at);
            assert_eq!(lost(&mut w).len(), TIMEOUT_BURST);
        }
        assert_eq!(w.silent_tries(), config.rto_tries);
    }
}
