//! Received messages and trains, for the ports that receive by `recvmmsg`: how many messages one call asks for, how far they have
//! been delivered, and how their packets are verified.
//!
//! For long trains few buffers are used, so that the bytes that the kernel has just copied are still in the L2 cache when the
//! ICRC is computed and the engine copies them on; for short packets, of which only the first cache lines are read, many are
//! used. The number follows from the length of the last messages. Packets beyond the caller's budget stay in the buffers until
//! the next call ([`RxMessages`]).
//!
//! A *train* is one message of packets of one length; the last packet may be shorter. If all packets of full length have right
//! ICRCs with the expected identifications, one CRC shows it and they go to the engine in one call. Otherwise each packet goes by
//! itself, to the engine or into a counter ([`PacketVerifier`]).
//!
//! How full a socket's receive buffer is, the kernel is asked once in a burst, and only if packets are left in the buffer after
//! the first call ([`BufferLevel`]): a receiver that keeps up pays nothing.

use crate::ether::{ICRC, IcrcChecker, IcrcSeal, IpId, check_length};
use crate::sys::recv::{Message, RecvRing};
use crate::sys::socket;
use crate::{Encapsulation, ReceivePressure, RxSink};
use burst_base::{Nanos, Reason};
use burst_frame::{Flow, RxFrame};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::RawFd;

/// Receive buffers.
const MESSAGES: usize = 32;
/// Bytes that one `recvmmsg` should bring: a part of an L2 cache.
const HOT_BYTES: usize = 64 << 10;
/// Most lost packets reported per message.
const LOST_REPORTED_MAX: u32 = 4096;

/// The received messages, and how far they have been delivered.
pub struct RxMessages {
    ring: RecvRing,
    /// Number of messages of the last `recvmmsg`, index of the present one, and offset in its bytes at which delivery continues.
    have: usize,
    at: usize,
    offset: usize,
    /// Bytes of the messages before the present one.
    bytes: usize,
    /// The beginning of the present burst, by its caller's clock.
    now: Nanos,
    /// The same, for the times of arrival of the messages, if the sockets note them.
    burst: Option<BurstClock>,
    is_timed: bool,
}

/// The beginning of a burst, by the clock of its caller and by the one of the kernel's time stamps.
#[derive(Clone, Copy, Debug)]
struct BurstClock {
    now: Nanos,
    /// What the real-time clock was ahead of the monotonic clock, by which `now` is.
    ahead: u64,
}

impl BurstClock {
    /// Longest wait that is told, against steps of the real-time clock.
    const WAIT_MAX: Nanos = Nanos::from_ms(1_000);

    fn begin(now: Nanos) -> BurstClock {
        let [real, monotonic] = [ClockId::Realtime, ClockId::Monotonic].map(|clock| {
            let time = clock_gettime(clock);
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        });
        BurstClock { now, ahead: real.wrapping_sub(monotonic) }
    }
    /// How long a packet has waited that was received at this time. What came after the beginning of the burst has not waited.
    fn waited(&self, received: Nanos) -> Nanos {
        Nanos(self.now.0.saturating_sub(received.0.wrapping_sub(self.ahead))).min(BurstClock::WAIT_MAX)
    }
}

impl RxMessages {
    /// Without messages.
    pub fn new() -> RxMessages {
        RxMessages {
            ring: RecvRing::new(MESSAGES),
            have: 0,
            at: 0,
            offset: 0,
            bytes: 0,
            now: Nanos(0),
            burst: None,
            is_timed: false,
        }
    }
    /// Receives at most `budget` messages, after all earlier ones were delivered. False if no more are waiting.
    pub fn fill(&mut self, fd: RawFd, budget: usize) -> io::Result<bool> {
        debug_assert!(self.at == self.have);
        // As many messages as fit the cache, if they are as long as the last ones.
        let average = (self.bytes / self.have.max(1)).max(1);
        let asked = (HOT_BYTES / average).clamp(1, MESSAGES).min(budget).max(1);
        let have = self.ring.recv(fd, asked)?;
        debug_assert!(have <= asked && asked <= MESSAGES);
        (self.have, self.at, self.offset, self.bytes) = (have, 0, 0, 0);
        if self.is_timed {
            self.burst = Some(BurstClock::begin(self.now));
        }
        Ok(have == asked)
    }
    /// The present message, and the offset in its bytes.
    #[inline]
    pub fn current(&self) -> Option<(Message<'_>, usize)> {
        (self.at < self.have).then(|| (self.ring.message(self.at), self.offset))
    }
    /// Notes that `bytes` of the present message were delivered, and whether that was the end of the message.
    #[inline]
    pub fn delivered(&mut self, bytes: usize, all: bool) {
        debug_assert!(self.at < self.have);
        self.offset += bytes;
        debug_assert!(self.offset <= self.ring.message(self.at).bytes.len(), "more was delivered than the message has");
        if all {
            self.next();
        }
    }
    /// Goes on to the next message.
    #[inline]
    pub fn next(&mut self) {
        self.bytes += self.ring.message(self.at).bytes.len();
        (self.at, self.offset) = (self.at + 1, 0);
    }
    /// The sockets note when packets arrive.
    pub fn time_arrivals(&mut self) {
        self.is_timed = true;
    }
    /// Whether they do.
    pub fn is_timed(&self) -> bool {
        self.is_timed
    }
    /// A burst begins.
    #[inline]
    pub fn begin_burst(&mut self, now: Nanos) {
        self.now = now;
        if let Some(burst) = &mut self.burst {
            burst.now = now;
        }
    }
    /// Tells how long the present message has waited, if its time of arrival is known.
    #[inline]
    pub fn tell_wait(&self, sink: &mut dyn RxSink) {
        if let Some(burst) = &self.burst
            && let Some((message, _)) = self.current()
        {
            sink.waited(message.facts.received.map_or(Nanos(0), |received| burst.waited(received)));
        }
    }
    /// Number of calls that have received messages, since the last question.
    pub fn take_calls(&mut self) -> u64 {
        self.ring.take_calls()
    }
    /// Discards the messages that are not delivered.
    pub fn forget(&mut self) {
        (self.have, self.at, self.offset, self.bytes) = (0, 0, 0, 0);
    }
}

/// Reports the packets that the kernel has dropped since the last report. `lost` is the kernel's count, `seen` the count at the
/// last report.
pub fn report_lost(seen: &mut u32, lost: u32, sink: &mut dyn RxSink) {
    let new = lost.wrapping_sub(*seen).min(LOST_REPORTED_MAX);
    *seen = lost;
    (0..new).for_each(|_| sink.dropped(Reason::ReceiveOverflow));
}

/// The level of the receive buffers of a port's sockets.
#[derive(Default)]
pub struct BufferLevel {
    /// The highest level in this burst.
    level: ReceivePressure,
    told: ReceivePressure,
}

impl BufferLevel {
    /// Packets are left in a socket's buffer after the first call of a burst.
    pub fn look(&mut self, fd: RawFd) {
        let (used, size) = socket::receive_use(fd);
        self.level = self.level.max(ReceivePressure::of(used.into(), size.into()));
    }
    /// The burst ends: tells a level that has changed.
    #[inline]
    pub fn tell(&mut self, sink: &mut dyn RxSink) {
        let level = std::mem::take(&mut self.level);
        if level != self.told {
            self.told = level;
            sink.pressure(level);
        }
    }
}

/// Packets of one flow side by side: a message from the offset at which delivery continues.
#[derive(Clone, Copy, Debug)]
pub struct RxTrain<'a> {
    /// Flow of the packets.
    pub flow: Flow,
    /// Bytes from the first packet to the last packet's trailer.
    pub bytes: &'a [u8],
    /// Bytes of each packet but the last, which may be shorter; not 0.
    pub segment: usize,
}

/// A packet with a wrong length or checksum.
#[cold]
fn without_trailer(flow: Flow, packet: &[u8]) -> RxFrame<'_> {
    RxFrame { flow, bytes: &packet[..packet.len().saturating_sub(ICRC)] }
}

/// Verifies lengths and checksums of received packets, and delivers the right ones.
pub struct PacketVerifier {
    checker: IcrcChecker,
    /// Bytes of the longest packet.
    len_max: usize,
    encapsulation: Encapsulation,
    /// Seal of the last flow.
    seal: Option<IcrcSeal>,
}

impl PacketVerifier {
    /// For packets of `encapsulation` of at most `len_max` bytes. `strict`: see [`crate::ether::icrc`].
    pub fn new(encapsulation: &Encapsulation, len_max: usize, strict: bool) -> PacketVerifier {
        PacketVerifier { checker: IcrcChecker::new(strict), len_max, encapsulation: *encapsulation, seal: None }
    }
    /// Number of identifications that had to be recovered.
    pub fn recovered(&self) -> u64 {
        self.checker.recovered
    }
    /// Begins a message: packets of `flow` with the identification `header`.
    pub fn begin(&mut self, flow: &Flow, header: IpId) {
        self.seal = self.encapsulation.reuse_seal(self.seal, flow.src, flow.dst, flow.src_port);
        self.checker.begin_train(header);
    }
    /// Delivers the next packets of the present message, at most `budget`; returns how many, and their bytes.
    pub fn pass(&mut self, train: &RxTrain<'_>, budget: usize, sink: &mut dyn RxSink) -> (usize, usize) {
        let RxTrain { flow, bytes, segment } = *train;
        debug_assert!(segment > 0 && budget > 0);
        let (mut taken, mut rest) = (0, bytes);
        let whole = (bytes.len() / segment).min(budget) * segment;
        if whole > segment && self.all_good(&bytes[..whole], segment) {
            sink.train(&flow, &bytes[..whole], segment);
            (taken, rest) = (whole / segment, &bytes[whole..]);
        }
        for packet in rest.chunks(segment).take(budget - taken) {
            match self.check(packet) {
                Ok(bytes) => sink.frame(&RxFrame { flow, bytes }),
                Err(reason) => sink.refused(&without_trailer(flow, packet), reason),
            }
            taken += 1;
        }
        debug_assert!(taken <= budget);
        debug_assert!(taken > 0 || bytes.is_empty(), "each call delivers or drops something");
        (taken, (taken * segment).min(bytes.len()))
    }
    /// Whether packets of one length are all right. False does not say which one is wrong.
    fn all_good(&mut self, packets: &[u8], stride: usize) -> bool {
        (self.encapsulation.packet_min..=self.len_max).contains(&stride)
            && (!self.encapsulation.is_sealed()
                || self.seal.as_mut().is_some_and(|seal| self.checker.check_train(seal, packets, stride)))
    }
    /// The packet without its trailer, if it is right.
    #[inline]
    fn check<'a>(&mut self, packet: &'a [u8]) -> Result<&'a [u8], Reason> {
        check_length(packet, self.encapsulation.packet_min, self.len_max)?;
        let good =
            !self.encapsulation.is_sealed() || self.seal.as_mut().is_some_and(|seal| self.checker.check(seal, packet));
        if good { Ok(&packet[..packet.len() - ICRC]) } else { Err(self.encapsulation.bad_checksum()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PacketChecksum;
    use crate::ether::{TRANSPORT_MAX, TRANSPORT_MIN};
    use crate::testing::{Collect, flow};
    use burst_wire::icrc::PseudoV4;
    use burst_wire::{Icrc, Ipv4, ROCE_PORT};

    const STRIDE: usize = 300;
    const ROCE: &Encapsulation = &Encapsulation::ROCE;
    const UNSEALED: &Encapsulation = &Encapsulation { checksum: PacketChecksum::None, ..Encapsulation::ROCE };
    /// IPv4 from a socket, IPv4 with its header, IPv6; each with the identification of the first packet.
    const KINDS: [(bool, IpId, u16); 3] =
        [(false, IpId::Unknown, 0), (false, seen(700), 700), (true, IpId::Unknown, 0)];

    const fn seen(id: u16) -> IpId {
        IpId::Known { id, flags_fragment: Ipv4::DONT_FRAGMENT }
    }

    fn flow_of(v6: bool) -> Flow {
        let flow = if v6 { flow("fd00::1", "fd00::2") } else { flow("10.0.0.1", "10.0.0.2") };
        Flow { src_port: 50_000, ..flow }
    }

    /// A packet of `len` bytes whose body depends on `number`.
    fn sealed(v6: bool, id: u16, number: usize, len: usize) -> Vec<u8> {
        let Flow { src, dst, src_port, .. } = flow_of(v6);
        let mut packet: Vec<u8> = (0..len - ICRC).map(|i| (i * i + 31 * number) as u8).collect();
        let icrc = IcrcSeal::new(src, dst, src_port, ROCE_PORT).unwrap().begin(id, len, &packet).finish();
        packet.extend_from_slice(&icrc);
        packet
    }

    /// `count` packets of one length and a shorter last one, with identifications from `id` on.
    fn packets(v6: bool, id: u16, count: usize) -> Vec<Vec<u8>> {
        let len = |number| if number == count { 120 } else { STRIDE };
        (0..=count).map(|number| sealed(v6, id + number as u16, number, len(number))).collect()
    }

    /// Delivers the packets as one message, `budget` at a time.
    fn pass(verifier: &mut PacketVerifier, v6: bool, header: IpId, packets: &[Vec<u8>], budget: usize) -> Collect {
        let (flow, bytes, mut sink) = (flow_of(v6), packets.concat(), Collect::default());
        let (mut offset, mut left) = (0, packets.len());
        verifier.begin(&flow, header);
        while left > 0 {
            let train = RxTrain { flow, bytes: &bytes[offset..], segment: packets[0].len() };
            let (taken, length) = verifier.pass(&train, budget, &mut sink);
            assert_eq!(taken, left.min(budget));
            (offset, left) = (offset + length, left - taken);
        }
        assert_eq!(offset, bytes.len());
        sink
    }

    /// Whether all of `packets` were delivered, in order, except those at the indices `missing`.
    fn came(sink: &Collect, packets: &[Vec<u8>], missing: &[usize]) -> bool {
        let bodies =
            packets.iter().enumerate().filter(|(i, _)| !missing.contains(i)).map(|(_, p)| &p[..p.len() - ICRC]);
        sink.frames.iter().map(|(_, bytes)| &bytes[..]).eq(bodies)
    }

    #[test]
    fn a_regular_train_is_delivered_whole_and_its_short_last_packet_alone() {
        for (v6, header, id) in KINDS {
            let packets = packets(v6, id, 40);
            for (budget, trains) in [(64, &[40][..]), (40, &[40]), (25, &[25, 15]), (13, &[13, 13, 13]), (1, &[])] {
                let mut verifier = PacketVerifier::new(ROCE, TRANSPORT_MAX, true);
                let sink = pass(&mut verifier, v6, header, &packets, budget);
                assert!(came(&sink, &packets, &[]) && sink.dropped.is_empty(), "{header:?} {budget}");
                assert_eq!((&sink.trains[..], verifier.recovered()), (trains, 0), "{header:?} {budget}");
            }
        }
    }

    #[test]
    fn only_the_damaged_packet_of_a_train_is_refused() {
        for (v6, header, id) in KINDS {
            let good = packets(v6, id, 20);
            for at in [0, 1, 7, 16, 19, 20] {
                for byte in [0, 5, 60, 118] {
                    let mut bad = good.clone();
                    bad[at][byte] ^= 0x10;
                    let mut verifier = PacketVerifier::new(ROCE, TRANSPORT_MAX, true);
                    let sink = pass(&mut verifier, v6, header, &bad, 64);
                    assert!(came(&sink, &good, &[at]), "{header:?} {at} {byte}");
                    assert_eq!((&sink.dropped[..], verifier.recovered()), (&[Reason::BadIcrc][..], 0));
                    // The damaged last packet does not affect the others.
                    assert_eq!(sink.trains, if at == 20 { vec![20] } else { vec![] });
                }
            }
        }
    }

    #[test]
    fn identifications_that_do_not_count_up_are_recovered_or_refused() {
        let ids = |of: &dyn Fn(usize) -> u16| (0..8).map(|i| sealed(false, of(i), i, STRIDE)).collect::<Vec<_>>();
        let (jump, same) = (ids(&|i| if i < 3 { 700 + i as u16 } else { 900 + i as u16 }), ids(&|_| 0));
        let mut verifier = PacketVerifier::new(ROCE, TRANSPORT_MAX, false);
        let sink = pass(&mut verifier, false, seen(700), &jump, 64);
        assert!(came(&sink, &jump, &[]) && sink.trains.is_empty() && sink.dropped.is_empty());
        assert_eq!(verifier.recovered(), 1);
        let sink = pass(&mut verifier, false, seen(0), &same, 64);
        assert!(came(&sink, &same, &[]) && sink.dropped.is_empty());
        assert_eq!(verifier.recovered(), 2);
        let mut strict = PacketVerifier::new(ROCE, TRANSPORT_MAX, true);
        let sink = pass(&mut strict, false, seen(700), &jump, 64);
        assert!(came(&sink, &jump, &[3, 4, 5, 6, 7]) && strict.recovered() == 0);
        assert_eq!(sink.dropped, [Reason::BadIcrc; 5]);
        // An identification in the header itself is never replaced by a recovered one.
        let sink = pass(&mut PacketVerifier::new(ROCE, TRANSPORT_MAX, false), false, seen(699), &jump, 64);
        assert!(came(&sink, &jump, &[0]) && sink.dropped == [Reason::BadIcrc]);
    }

    #[test]
    fn packets_without_df_go_one_by_one_and_wrong_lengths_are_refused() {
        let Flow { src_port, .. } = flow_of(false);
        let header = IpId::Known { id: 5, flags_fragment: 0 };
        let pseudo = PseudoV4::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), src_port);
        let unfragmented = |id| {
            let mut packet = vec![7; STRIDE - ICRC];
            let icrc = Icrc::ipv4(&PseudoV4 { id, flags_fragment: 0, ..pseudo }, STRIDE, &packet).finish();
            packet.extend_from_slice(&icrc);
            packet
        };
        let mut verifier = PacketVerifier::new(ROCE, TRANSPORT_MAX, true);
        let packets = [unfragmented(5), unfragmented(6), unfragmented(9), unfragmented(8)];
        let sink = pass(&mut verifier, false, header, &packets, 3);
        assert!(came(&sink, &packets, &[2]) && sink.dropped == [Reason::BadIcrc] && sink.trains.is_empty());
        for (len, reason) in [(TRANSPORT_MIN - 1, Reason::Truncated), (TRANSPORT_MAX + 1, Reason::Oversize)] {
            for mut verifier in
                [PacketVerifier::new(ROCE, TRANSPORT_MAX, true), PacketVerifier::new(UNSEALED, TRANSPORT_MAX, true)]
            {
                let sink = pass(&mut verifier, true, IpId::Unknown, &vec![vec![0; len]; 5], 64);
                assert!(sink.frames.is_empty() && sink.dropped == [reason; 5], "{len}");
            }
        }
        for (len, trains) in [(TRANSPORT_MIN, &[][..]), (TRANSPORT_MAX - 3, &[5]), (TRANSPORT_MAX, &[5])] {
            let packets: Vec<_> = (0..5).map(|i| sealed(true, 0, i, len)).collect();
            let sink = pass(&mut verifier, true, IpId::Unknown, &packets, 64);
            assert!(came(&sink, &packets, &[]) && sink.trains == trains, "{len}");
        }
    }

    #[test]
    fn without_checksums_every_train_is_delivered_whole() {
        let mut bad = packets(false, 0, 6);
        bad[2][50] ^= 1;
        let sink = pass(&mut PacketVerifier::new(UNSEALED, TRANSPORT_MAX, true), false, IpId::Unknown, &bad, 64);
        assert!(came(&sink, &bad, &[]) && sink.trains == [6] && sink.dropped.is_empty());
    }

    #[test]
    fn trains_of_the_unified_bus_are_checked_whole_and_their_congestion_field_may_change() {
        let bus = &Encapsulation::UNIFIED_BUS;
        let packet = |number: usize| {
            let mut packet: Vec<u8> = (0..STRIDE - ICRC).map(|i| (i * i + 31 * number) as u8).collect();
            let sum = burst_ubwire::encap::checksum(&packet);
            packet.extend_from_slice(&sum);
            // What a switch may change.
            packet[7] ^= number as u8;
            packet[8] ^= 0x5a;
            packet
        };
        let good: Vec<_> = (0..40).map(packet).collect();
        for (v6, header) in
            [(false, IpId::Unknown), (true, IpId::Unknown), (false, IpId::Known { id: 9, flags_fragment: 0 })]
        {
            let mut verifier = PacketVerifier::new(bus, TRANSPORT_MAX, true);
            let sink = pass(&mut verifier, v6, header, &good, 64);
            assert!(came(&sink, &good, &[]) && sink.trains == [40] && sink.dropped.is_empty());
            for (at, byte) in [(0, 6), (7, 9), (39, 200)] {
                let mut bad = good.clone();
                bad[at][byte] ^= 1;
                let sink = pass(&mut PacketVerifier::new(bus, TRANSPORT_MAX, true), v6, header, &bad, 64);
                assert!(came(&sink, &good, &[at]) && sink.dropped == [Reason::UbChecksum]);
            }
        }
    }

    #[test]
    fn lost_packets_are_reported_once_and_bounded() {
        let (mut seen, mut sink) = (u32::MAX, Collect::default());
        report_lost(&mut seen, 2, &mut sink);
        report_lost(&mut seen, 2, &mut sink);
        assert_eq!((seen, &sink.dropped[..]), (2, &[Reason::ReceiveOverflow; 3][..]));
        report_lost(&mut seen, 1, &mut sink);
        assert_eq!(sink.dropped.len(), 3 + LOST_REPORTED_MAX as usize);
    }
}
