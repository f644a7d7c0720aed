//! The last packets of a worker, kept always if the option `packet_ring` is on, for `burst why QPN --pcap FILE`.
//!
//! The ring has [`RING_SLOTS`] slots of 128 bytes, 4 MiB, which are allocated when the worker starts: of each packet the time,
//! the addresses, the queue pair that sent it, the reason why it was dropped and the first [`KEPT_BYTES`] bytes, in which its
//! headers are. Payload that lies in a program's memory is not copied. When a queue pair fails, its packets among the last
//! [`SCANNED`] are copied to an excerpt ([`PacketExcerpts`]), because other traffic overwrites the ring soon. A scan reads
//! a megabyte, so there is at most one in [`SCAN_EVERY`], and [`SCANS_SAVED`] at once: of many queue pairs that fail together
//! the first ones get an excerpt; of the others the ring is asked.
//!
//! Only the worker's thread uses the ring. Its words are atomic because the worker's ports share it, and relaxed stores cost what
//! plain ones do.

use burst_base::{DeviceId, Nanos, Reason};
use burst_control::capture::{CapturedPacket, reason_number};
use burst_frame::{Flow, RxFrame, TRAILER_LEN, TxBatch};
use burst_ledger::{AccountId, AccountRing};
use burst_ubwire::{Dialect, UB_UDP_PORT, UbPacket};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Slots of a ring.
pub const RING_SLOTS: usize = 1 << 15;
/// Words of a slot.
const SLOT_WORDS: usize = 16;
/// Words before the packet: time, facts, sender with flow label and TOS, port and hop limit, two addresses of two words.
const HEAD_WORDS: usize = 8;
/// Bytes of a packet that are kept.
pub const KEPT_BYTES: usize = (SLOT_WORDS - HEAD_WORDS) * 8;
const _: () = assert!(RING_SLOTS * SLOT_WORDS * 8 == 4 << 20, "the ring has 4 MiB");
const _: () = assert!(KEPT_BYTES >= burst_frame::HEAD_MAX, "all headers are kept");

/// Packets that a scan looks at.
pub const SCANNED: usize = 1 << 13;
/// Time for which a scan pays.
pub const SCAN_EVERY: Nanos = Nanos::from_ms(10);
/// Scans that may follow each other at once.
pub const SCANS_SAVED: u64 = 8;
/// Excerpts that a worker keeps.
pub const EXCERPTS: usize = 32;
/// Packets of an excerpt.
pub const EXCERPT_PACKETS: usize = 256;

/// A packet that was kept.
#[derive(Clone, Copy, Debug)]
pub struct KeptPacket([u64; SLOT_WORDS]);

/// The ring.
#[derive(Debug)]
pub struct PacketRing {
    slots: Box<[[AtomicU64; SLOT_WORDS]]>,
    /// Packets that were written since the beginning.
    written: AtomicUsize,
}

/// Where and when packets were sent or received.
#[derive(Clone, Copy, Debug)]
pub struct PacketPlace {
    /// When.
    pub at: Nanos,
    /// UDP port of the encapsulation.
    pub udp_port: u16,
    /// Device.
    pub device: DeviceId,
}

/// Whose packets are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingOwner {
    /// The queue pair with this number.
    QueuePair(u32),
    /// The Jetty with this id at the node of an address of this host: each node counts its own.
    Jetty(u32, IpAddr),
}

/// Packets that are asked for. Numbers are used again: what was sent and received before the object was made is another's.
#[derive(Clone, Copy, Debug)]
pub struct RingQuery {
    /// Device.
    pub device: DeviceId,
    /// Whose.
    pub owner: RingOwner,
    /// Since when it has the number.
    pub since: OwnedSince,
}

/// Since when an object has its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnedSince {
    /// A time.
    Time(Nanos),
    /// The ring had seen so many packets, modulo 2^32.
    Packet(u32),
}

/// What is noted of a packet besides its flow and bytes.
#[derive(Clone, Copy, Debug)]
struct PacketFacts {
    flags: u64,
    reason: Option<Reason>,
    sender: u32,
    /// Bytes of the UDP payload.
    len: usize,
}

const SENT: u64 = 1;
const V6: u64 = 2;

impl Default for PacketRing {
    fn default() -> PacketRing {
        let empty = || std::array::from_fn(|_| AtomicU64::new(0));
        PacketRing { slots: (0..RING_SLOTS).map(|_| empty()).collect(), written: AtomicUsize::new(0) }
    }
}

impl PacketRing {
    /// Packets that were written since the beginning.
    pub fn written(&self) -> usize {
        self.written.load(Relaxed)
    }

    /// Keeps a received packet.
    #[inline]
    pub fn received(&self, place: PacketPlace, frame: &RxFrame<'_>, reason: Option<Reason>) {
        let facts = PacketFacts { flags: 0, reason, sender: 0, len: frame.bytes.len() + TRAILER_LEN };
        self.put(place, facts, &frame.flow, frame.bytes);
    }

    /// Keeps the packets of a batch.
    pub fn sent(&self, place: PacketPlace, batch: &TxBatch) {
        for frame in batch.frames() {
            let facts = PacketFacts { flags: SENT, reason: None, sender: frame.sender, len: frame.udp_payload_len() };
            self.put(place, facts, &frame.flow, frame.head());
        }
    }

    #[inline]
    fn put(&self, place: PacketPlace, facts: PacketFacts, flow: &Flow, bytes: &[u8]) {
        let at = self.written.load(Relaxed);
        self.written.store(at.wrapping_add(1), Relaxed);
        let slot = &self.slots[at % RING_SLOTS];
        let kept = bytes.len().min(KEPT_BYTES);
        let family = if flow.src.is_ipv6() { V6 } else { 0 };
        let ([src, src_high], [dst, dst_high]) = (words_of(flow.src), words_of(flow.dst));
        let lengths = (kept as u64) << 16 | (facts.len as u64 & 0xffff) << 32;
        let number = u64::from(reason_number(facts.reason)) << 8;
        let head = [
            place.at.0,
            facts.flags
                | family
                | number
                | u64::from(place.device.0 as u8) << 24
                | lengths
                | u64::from(flow.src_port) << 48,
            u64::from(facts.sender) | u64::from(flow.flow_label & 0xf_ffff) << 32 | u64::from(flow.tos) << 52,
            u64::from(place.udp_port) | u64::from(flow.hop_limit) << 16,
            src,
            src_high,
            dst,
            dst_high,
        ];
        for (word, value) in slot.iter().zip(head) {
            word.store(value, Relaxed);
        }
        let (chunks, rest) = bytes[..kept].as_chunks::<8>();
        for (word, chunk) in slot[HEAD_WORDS..].iter().zip(chunks) {
            word.store(u64::from_le_bytes(*chunk), Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            slot[HEAD_WORDS + chunks.len()].store(u64::from_le_bytes(last), Relaxed);
        }
    }

    /// The packets of a queue pair or Jetty among the `scanned` packets before number `end`, the oldest first: at most `most`,
    /// the last ones. Those that it has received, and those that it has sent.
    #[cold]
    pub fn packets_of(&self, of: RingQuery, end: usize, scanned: usize, most: usize) -> Vec<KeptPacket> {
        let RingQuery { device, owner, since } = of;
        let written = self.written();
        let (since, from) = match since {
            OwnedSince::Time(time) => (time, 0),
            OwnedSince::Packet(number) => {
                (Nanos(0), written.saturating_sub((written as u32).wrapping_sub(number) as usize))
            }
        };
        let first = end.saturating_sub(scanned).max(written.saturating_sub(RING_SLOTS)).max(from);
        let numbers = (first..end.min(written)).rev();
        let slots = numbers.map(|number| &self.slots[number % RING_SLOTS]);
        let is_asked_for = |slot: &&[AtomicU64; SLOT_WORDS]| {
            let facts = slot[1].load(Relaxed);
            let of_device = (facts >> 24) as u8 == device.0 as u8;
            of_device && slot[0].load(Relaxed) >= since.0 && is_of(owner, slot, facts)
        };
        let copy = |slot: &[AtomicU64; SLOT_WORDS]| KeptPacket(std::array::from_fn(|at| slot[at].load(Relaxed)));
        let mut found: Vec<KeptPacket> = slots.filter(is_asked_for).take(most).map(copy).collect();
        found.reverse();
        found
    }
}

/// Whether a packet was sent by a queue pair or Jetty of this host, or is for it.
fn is_of(owner: RingOwner, slot: &[AtomicU64; SLOT_WORDS], facts: u64) -> bool {
    match (owner, slot[3].load(Relaxed) as u16) {
        (RingOwner::QueuePair(qpn), burst_wire::ROCE_PORT) => queue_pair_of(slot, facts) == qpn,
        (RingOwner::Jetty(id, node), UB_UDP_PORT) => {
            own_words(slot, facts) == words_of(node) && jetty_of(slot, facts) == Some(id)
        }
        _ => false,
    }
}

/// This host's address of a packet.
fn own_words(slot: &[AtomicU64; SLOT_WORDS], facts: u64) -> [u64; 2] {
    let at = if facts & SENT != 0 { 4 } else { 6 };
    [slot[at].load(Relaxed), slot[at + 1].load(Relaxed)]
}

/// The Jetty of this host that a packet of the Unified Bus belongs to.
fn jetty_of(slot: &[AtomicU64; SLOT_WORDS], facts: u64) -> Option<u32> {
    let mut bytes = [0; KEPT_BYTES];
    for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(&slot[HEAD_WORDS..]) {
        *to = word.load(Relaxed).to_le_bytes();
    }
    let kept = ((facts >> 16) as u8 as usize).min(KEPT_BYTES);
    UbPacket::parse(&bytes[..kept], &Dialect::BURST).ok()?.own_jetty(facts & SENT != 0)
}

/// The queue pair that has sent a packet, or that a received one is for.
fn queue_pair_of(slot: &[AtomicU64; SLOT_WORDS], facts: u64) -> u32 {
    if facts & SENT != 0 {
        return slot[2].load(Relaxed) as u32;
    }
    // Bytes 5 to 7 of the BTH, which is the first word (IBA 9.2).
    (slot[HEAD_WORDS].load(Relaxed).swap_bytes() & 0xff_ffff) as u32
}

fn words_of(ip: IpAddr) -> [u64; 2] {
    match ip {
        IpAddr::V4(v4) => [u64::from(v4.to_bits()), 0],
        IpAddr::V6(v6) => [v6.to_bits() as u64, (v6.to_bits() >> 64) as u64],
    }
}

fn address(words: &[u64], is_v6: bool) -> IpAddr {
    match is_v6 {
        false => Ipv4Addr::from_bits(words[0] as u32).into(),
        true => Ipv6Addr::from_bits(u128::from(words[1]) << 64 | u128::from(words[0])).into(),
    }
}

impl KeptPacket {
    /// Appends the packet to a message of [`burst_control::capture`]. `offset_ns` is added to its time.
    pub fn append_to(&self, message: &mut Vec<u8>, offset_ns: u64) {
        let [at_ns, facts, label, ports, ..] = self.0;
        let kept = ((facts >> 16) as u8 as usize).min(KEPT_BYTES);
        let bytes: Vec<u8> = self.0[HEAD_WORDS..].iter().flat_map(|word| word.to_le_bytes()).take(kept).collect();
        let is_v6 = facts & V6 != 0;
        let packet = CapturedPacket {
            at_ns: at_ns.wrapping_add(offset_ns),
            is_sent: facts & SENT != 0,
            reason: usize::from((facts >> 8) as u8).checked_sub(1).and_then(|at| Reason::ALL.get(at)).copied(),
            sender: label as u32,
            src: address(&self.0[4..6], is_v6),
            dst: address(&self.0[6..8], is_v6),
            src_port: (facts >> 48) as u16,
            dst_port: ports as u16,
            tos: (label >> 52) as u8,
            hop_limit: (ports >> 16) as u8,
            flow_label: (label >> 32) as u32 & 0xf_ffff,
            udp_len: (facts >> 32) as u16,
            bytes: &bytes,
        };
        message.extend(packet.head(kept as u16));
        message.extend(&bytes);
    }
}

/// The packets of a queue pair or Jetty that has failed.
#[derive(Debug)]
pub struct PacketExcerpt {
    /// What has failed.
    pub of: RingOwner,
    /// User of its program.
    pub uid: u32,
    /// The packets, the oldest first.
    pub packets: Vec<KeptPacket>,
}

/// A queue pair or Jetty that has failed and whose packets are to be copied.
#[derive(Debug)]
struct DueExcerpt {
    at: Nanos,
    of: RingQuery,
    uid: u32,
    account: AccountId,
}

/// Excerpts for queue pairs and Jetties that have failed, and the ring.
#[derive(Debug)]
pub struct PacketExcerpts {
    ring: Arc<PacketRing>,
    kept: AccountRing<PacketExcerpt>,
    /// Copied in a later pass, when what the failure has sent has left.
    due: Vec<DueExcerpt>,
    /// Until when scans are paid.
    paid_until: Nanos,
    /// By a queue pair's entry in the worker's table: packets that the ring had seen when it came, modulo 2^32.
    from: Vec<u32>,
}

impl PacketExcerpts {
    /// No excerpts.
    pub fn new(ring: Arc<PacketRing>) -> PacketExcerpts {
        PacketExcerpts {
            ring,
            kept: AccountRing::new(EXCERPTS),
            due: Vec::new(),
            paid_until: Nanos(0),
            from: Vec::new(),
        }
    }

    /// The ring.
    pub fn ring(&self) -> &Arc<PacketRing> {
        &self.ring
    }

    /// A queue pair has come. Without memory to note that, none of its packets are shown.
    pub fn begin(&mut self, index: u32) {
        let (at, seen) = (index as usize, self.ring.written() as u32);
        if at >= self.from.len() && self.from.try_reserve(at + 1 - self.from.len()).is_ok() {
            self.from.resize(at + 1, seen);
        }
        if let Some(from) = self.from.get_mut(at) {
            *from = seen;
        }
    }

    /// Since when the queue pair of an entry has its number.
    pub fn owned_since(&self, index: u32) -> OwnedSince {
        let seen = self.ring.written() as u32;
        OwnedSince::Packet(self.from.get(index as usize).copied().unwrap_or(seen))
    }

    /// A queue pair or Jetty has failed: its packets are copied in a later pass, if not too many have been.
    #[cold]
    pub fn note(&mut self, at: Nanos, of: RingQuery, uid: u32, account: &AccountId) {
        let latest = at + Nanos(SCAN_EVERY.0 * SCANS_SAVED);
        let paid = self.paid_until.max(at) + SCAN_EVERY;
        if paid <= latest && self.due.try_reserve(1).is_ok() {
            self.paid_until = paid;
            self.due.push(DueExcerpt { at, of, uid, account: account.clone() });
        }
    }

    /// Copies what is due at `now`: of what failed before.
    #[cold]
    pub fn take_due(&mut self, now: Nanos) {
        while let Some(due) = self.due.first().filter(|due| due.at < now) {
            let packets = self.ring.packets_of(due.of, self.ring.written(), SCANNED, EXCERPT_PACKETS);
            self.kept.push(&due.account, PacketExcerpt { of: due.of.owner, uid: due.uid, packets });
            self.due.remove(0);
        }
    }

    /// The newest excerpt of a user's queue pair or Jetty.
    pub fn find(&self, of: RingOwner, uid: u32) -> Option<&PacketExcerpt> {
        self.kept.iter().rev().find(|excerpt| (excerpt.of, excerpt.uid) == (of, uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_control::capture::captured;
    use burst_ubwire::{
        Atah, Btah, Cna, CongestionField, Mtetah, NextLayer, Nth, TaHeader, TaOpcode, TaRequest, UB_HEAD_MAX, UbHead,
    };

    const PLACE: PacketPlace = PacketPlace { at: Nanos(5), udp_port: burst_wire::ROCE_PORT, device: DeviceId(1) };

    /// What is asked for of device 1.
    fn of_device_1(owner: RingOwner) -> RingQuery {
        RingQuery { device: DeviceId(1), owner, since: OwnedSince::Packet(0) }
    }

    fn bth(qpn: u32) -> [u8; 12] {
        let [_, a, b, c] = qpn.to_be_bytes();
        [4, 0x40, 0xff, 0xff, 0, a, b, c, 0, 0, 0, 9]
    }

    fn flow() -> Flow {
        let (src, dst) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        Flow { src, dst, src_port: 50_000, tos: 3, hop_limit: 63, flow_label: 0xabcde, scope: 0 }
    }

    fn receive(ring: &PacketRing, at: u64, qpn: u32) {
        let place = PacketPlace { at: Nanos(at), ..PLACE };
        ring.received(place, &RxFrame { flow: flow(), bytes: &bth(qpn) }, Some(Reason::UnknownQpn));
    }

    fn times(packets: &[KeptPacket]) -> Vec<u64> {
        packets.iter().map(|packet| packet.0[0]).collect()
    }

    #[test]
    fn a_kept_packet_comes_back_as_it_was() {
        let ring = PacketRing::default();
        let v6 = Flow { src: "2001:db8::1".parse().expect("v6"), dst: "fe80::2:3".parse().expect("v6"), ..flow() };
        let long: Vec<u8> = bth(0x123456).into_iter().chain((0..200).map(|i| i as u8)).collect();
        for (flow, bytes, reason) in
            [(flow(), &long[..13], None), (v6, &long[..], Some(Reason::BadIcrc)), (flow(), &long[..12], None)]
        {
            ring.received(PLACE, &RxFrame { flow, bytes }, reason);
            let found = ring.packets_of(of_device_1(RingOwner::QueuePair(0x123456)), ring.written(), 1, 9);
            let mut message = vec![0; 8];
            found[0].append_to(&mut message, 100);
            let (_, packets) = captured(&message).expect("a message");
            let [packet] = packets[..] else { panic!("one packet") };
            assert_eq!((packet.at_ns, packet.is_sent, packet.reason, packet.sender), (105, false, reason, 0));
            assert_eq!((packet.src, packet.dst, packet.src_port, packet.dst_port), (flow.src, flow.dst, 50_000, 4791));
            assert_eq!((packet.tos, packet.hop_limit, packet.flow_label), (3, 63, 0xabcde));
            assert_eq!(usize::from(packet.udp_len), bytes.len() + TRAILER_LEN);
            assert_eq!(packet.bytes, &bytes[..bytes.len().min(KEPT_BYTES)]);
        }
    }

    #[test]
    fn a_queue_pair_gets_its_own_packets_only_and_the_last_ones() {
        let ring = PacketRing::default();
        (0..10).for_each(|at| receive(&ring, at, 0x11 + at as u32 % 2));
        let mut batch = TxBatch::new(2);
        for sender in [0x11, 0x12] {
            let first = batch.len();
            assert!(batch.push(&flow(), &bth(0x11), &[], 0));
            batch.sign(first, sender);
        }
        ring.sent(PacketPlace { at: Nanos(10), ..PLACE }, &batch);
        let of = |qpn, scanned, most| {
            times(&ring.packets_of(of_device_1(RingOwner::QueuePair(qpn)), ring.written(), scanned, most))
        };
        assert_eq!(of(0x11, SCANNED, 9), [0, 2, 4, 6, 8, 10], "not the packet that another one sent to its number");
        assert_eq!(of(0x12, SCANNED, 2), [9, 10]);
        assert_eq!((of(0x11, 4, 9), of(0x13, SCANNED, 9)), (vec![8, 10], vec![]));
        for (from, seen) in [(0, 6), (4, 4), (12, 0), (u32::MAX, 6)] {
            let since = RingQuery { since: OwnedSince::Packet(from), ..of_device_1(RingOwner::QueuePair(0x11)) };
            assert_eq!(ring.packets_of(since, ring.written(), SCANNED, 9).len(), seen, "since packet {from}");
        }
        assert!(
            ring.packets_of(
                RingQuery { device: DeviceId(0), ..of_device_1(RingOwner::QueuePair(0x11)) },
                ring.written(),
                SCANNED,
                9
            )
            .is_empty(),
            "other device"
        );
        (0..RING_SLOTS as u64).for_each(|at| receive(&ring, 100 + at, 0x99));
        assert!(of(0x11, usize::MAX, 9).is_empty(), "overwritten");
        assert_eq!(of(0x99, usize::MAX, usize::MAX).len(), RING_SLOTS);
    }

    /// A packet of the Unified Bus with a transaction header.
    fn unified_bus(ta: TaHeader) -> Vec<u8> {
        let mut bytes = vec![0; UB_HEAD_MAX];
        let (source, dest, congestion) = (Cna::new(1), Cna::new(2), CongestionField::parse(0));
        let nth = Nth { source, dest, congestion, balance: 0, service_level: 0, next: NextLayer::Bypass };
        let len = UbHead { ta: Some(ta), ..UbHead::new(nth) }.emit(&Dialect::BURST, &mut bytes);
        bytes.truncate(len);
        bytes
    }

    #[test]
    fn a_jetty_gets_what_it_sends_what_answers_it_and_what_is_sent_to_it() {
        let (ring, ours, theirs) = (PacketRing::default(), 20, 30);
        let request = |from, to| {
            let target = Some(Mtetah { hint: 0, kind: Mtetah::JETTY, id: to });
            TaHeader::Request(TaRequest { target, ..TaRequest::new(Btah::new(TaOpcode::Send, 1, from)) })
        };
        let response = |to| TaHeader::Response(Atah::new(TaOpcode::TaAck, 1, to));
        let packets = [request(ours, theirs), request(theirs, ours), response(ours), response(theirs)];
        for (at, ta) in (0..).zip(packets) {
            let (place, bytes) = (PacketPlace { at: Nanos(at), udp_port: UB_UDP_PORT, ..PLACE }, unified_bus(ta));
            ring.received(place, &RxFrame { flow: flow(), bytes: &bytes }, None);
            let mut batch = TxBatch::new(1);
            assert!(batch.push(&flow(), &bytes, &[], 0));
            ring.sent(PacketPlace { at: Nanos(10 + at), ..place }, &batch);
        }
        let of = |owner| times(&ring.packets_of(of_device_1(owner), ring.written(), SCANNED, 9));
        // Sent from one address, and received at the other one: two nodes, which count their own.
        let [sender, receiver] = [flow().src, flow().dst];
        assert_eq!([of(RingOwner::Jetty(ours, sender)), of(RingOwner::Jetty(ours, receiver))], [vec![10], vec![1, 2]]);
        assert_eq!(
            [of(RingOwner::Jetty(theirs, sender)), of(RingOwner::Jetty(theirs, receiver))],
            [vec![11], vec![0, 3]]
        );
        assert!(of(RingOwner::Jetty(0, sender)).is_empty() && of(RingOwner::QueuePair(ours)).is_empty());
        let later = RingQuery { since: OwnedSince::Time(Nanos(2)), ..of_device_1(RingOwner::Jetty(ours, receiver)) };
        assert_eq!(times(&ring.packets_of(later, ring.written(), SCANNED, 9)), [2], "not those of a former one");
    }

    #[test]
    fn of_many_failures_at_once_the_first_ones_get_an_excerpt_and_no_account_pushes_out_another() {
        let mut excerpts = PacketExcerpts::new(Arc::default());
        let account = AccountId::User;
        (0..100).for_each(|qpn| receive(&excerpts.ring, 1, qpn));
        let mut now = Nanos(1_000_000);
        (0..100).for_each(|qpn| excerpts.note(now, of_device_1(RingOwner::QueuePair(qpn)), 7, &account(7)));
        excerpts.take_due(now);
        assert!(excerpts.find(RingOwner::QueuePair(0), 7).is_none(), "not in the pass of the failure");
        now = now + SCAN_EVERY;
        excerpts.take_due(now);
        let has = |excerpts: &PacketExcerpts, uid| {
            (0..100)
                .filter(|qpn| excerpts.find(RingOwner::QueuePair(*qpn), uid).is_some_and(|e| !e.packets.is_empty()))
                .count()
        };
        assert_eq!((has(&excerpts, 7), has(&excerpts, 8)), (SCANS_SAVED as usize, 0));
        for qpn in 0..100 {
            now = now + SCAN_EVERY;
            excerpts.note(now, of_device_1(RingOwner::QueuePair(qpn)), 8, &account(8));
            excerpts.take_due(now + Nanos(1));
        }
        assert_eq!((has(&excerpts, 7), has(&excerpts, 8)), (SCANS_SAVED as usize, EXCERPTS - SCANS_SAVED as usize));
    }
}
