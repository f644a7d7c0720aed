//! Packets that a responder has received before the packets in front of them (selective repeat).
//!
//! Their payload lies in its final place already; there is no reorder buffer. What must wait until the packets in front have
//! arrived is here: which PSNs have arrived, what each of them continues, the ranges that WRITEs have written, the last bytes of
//! WRITEs, and operations (receive completions, invalidations, READs, ATOMICs). `docs/protocol.md`, "Receiver", has the rules.
//!
//! **Overlap.** Of two WRITEs to the same bytes the one with the higher PSN wins, whatever the order of arrival. So each WRITE
//! packet that arrived early leaves the range of its bytes ([`WriteRun`]), and a packet that arrives after it with a lower PSN
//! writes only what no such range covers ([`Arrivals::next_uncovered`]).
//!
//! A record exists only while PSNs are missing. It is borrowed from the pool of the worker ([`crate::records`]), which lets its
//! lists grow within limits: what finds no room is dropped as if it had been lost.

use crate::peer_shares::NO_PEER;
use crate::psn_bits::{PsnBits, WINDOW_PSNS};
use crate::responder::received_message::ReceivedMessage;
use burst_base::heap::OutOfMemory;
use burst_base::{Psn, Rkey, heap};
use burst_wire::selective::{BITMAP_WORDS_MAX, PSNS_PER_WORD};
use burst_wire::{AtomicEth, OpKind};
use std::net::IpAddr;

/// Ranges of written bytes for which a new record has room; adjacent ones are one.
pub(crate) const RUNS_FIRST: usize = 64;
/// Last bytes of WRITEs that are kept back, in a new record.
pub(crate) const TAILS_FIRST: usize = 64;
/// Operations that wait for their turn, in a new record.
pub(crate) const OPS_FIRST: usize = 64;
/// Entries of each list at most: half of the PSNs that are kept track of.
pub(crate) const ENTRIES_MAX: usize = WINDOW_PSNS as usize / 2;
/// The last bytes of a WRITE that are written when everything before it has arrived: programs poll the last byte of a message.
pub const TAIL_BYTES: usize = 64;

/// What an early packet continues, in one word: its kind, whether it begins and ends a message, and the low bits of its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct ArrivalNote(u16);

const INDEX_MASK: u16 = (WINDOW_PSNS - 1) as u16;
const STARTS: u16 = 1 << 11;
const ENDS: u16 = 1 << 12;
const KIND_SHIFT: u16 = 13;

/// Kind of an early packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrivalKind {
    Send,
    Write,
    /// READ or ATOMIC, which is executed in its turn.
    Operation,
}

impl ArrivalNote {
    pub(crate) fn new(kind: ArrivalKind, (starts, ends): (bool, bool), index: u32) -> ArrivalNote {
        let flags = if starts { STARTS } else { 0 } | if ends { ENDS } else { 0 };
        ArrivalNote((kind as u16) << KIND_SHIFT | flags | index as u16 & INDEX_MASK)
    }
    pub(crate) fn kind(self) -> ArrivalKind {
        match self.0 >> KIND_SHIFT {
            0 => ArrivalKind::Send,
            1 => ArrivalKind::Write,
            _ => ArrivalKind::Operation,
        }
    }
    pub(crate) fn starts(self) -> bool {
        self.0 & STARTS != 0
    }
    pub(crate) fn ends(self) -> bool {
        self.0 & ENDS != 0
    }
    /// Whether its index may be `index`.
    pub(crate) fn has_index(self, index: u32) -> bool {
        self.0 & INDEX_MASK == index as u16 & INDEX_MASK
    }
}

/// Bytes that WRITE packets `first..=last` have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteRun {
    pub(crate) first: Psn,
    pub(crate) last: Psn,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) rkey: Rkey,
}

impl WriteRun {
    fn end(&self) -> u64 {
        self.addr.saturating_add(self.len)
    }
    /// Joins `next` if it continues this run in PSNs and bytes.
    fn join(&mut self, next: &WriteRun) -> bool {
        let joins = self.last.next() == next.first && self.end() == next.addr && self.rkey == next.rkey;
        if joins {
            (self.last, self.len) = (next.last, self.len + next.len);
        }
        joins
    }
}

/// Bytes of a key's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteRange {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) rkey: Rkey,
}

/// The last bytes of a WRITE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldTail {
    psn: Psn,
    pub(crate) range: RemoteRange,
    bytes: [u8; TAIL_BYTES],
}

impl HeldTail {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.range.len as usize]
    }
}

/// An operation that waits for its turn.
#[derive(Clone, Copy)]
pub(crate) enum HeldWork {
    /// The end of a message completes a receive, after this key, if any, has been invalidated.
    Receive(ReceivedMessage, Option<Rkey>),
    Read(RemoteRange),
    Atomic(OpKind, AtomicEth),
}

#[derive(Clone, Copy)]
struct HeldOp {
    psn: Psn,
    work: HeldWork,
}

/// The record of one queue pair.
pub(crate) struct Arrivals {
    pub(crate) peer: IpAddr,
    bits: PsnBits,
    notes: Box<[ArrivalNote]>,
    /// XRC: the shared receive queue that each packet names; empty in a record that no XRC target has had.
    srqs: Vec<u32>,
    has_srqs: bool,
    runs: Vec<WriteRun>,
    /// The last PSN of all runs, while there are any. Runs that were withdrawn may have had it.
    newest: Psn,
    tails: Vec<HeldTail>,
    ops: Vec<HeldOp>,
}

fn has_place<T>(list: &Vec<T>) -> bool {
    list.len() < list.capacity()
}

/// Doubles a full list up to `most` entries, if that takes no more than `budget` bytes. Returns the bytes.
pub(crate) fn grow<T>(list: &mut Vec<T>, most: usize, budget: usize) -> usize {
    let more = list.len().min(most - list.len().min(most));
    let bytes = more * size_of::<T>();
    let grows = !has_place(list) && bytes <= budget && heap::reserve(list, list.len() + more).is_ok();
    if grows { bytes } else { 0 }
}

impl Arrivals {
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        let mut notes = heap::with_room(WINDOW_PSNS as usize)?;
        notes.resize(WINDOW_PSNS as usize, ArrivalNote::default());
        Ok(Arrivals {
            peer: NO_PEER,
            bits: PsnBits::new(),
            notes: notes.into_boxed_slice(),
            srqs: Vec::new(),
            has_srqs: false,
            runs: heap::with_room(RUNS_FIRST)?,
            newest: Psn::new(0),
            tails: heap::with_room(TAILS_FIRST)?,
            ops: heap::with_room(OPS_FIRST)?,
        })
    }
    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.bits.clear();
        self.has_srqs = false;
        self.runs.clear();
        self.tails.clear();
        self.ops.clear();
    }
    /// Whether no packet is noted.
    pub(crate) fn is_empty(&self) -> bool {
        self.bits.is_empty()
    }
    /// Whether one of the `count` PSNs from `psn` on has arrived.
    pub(crate) fn has_any(&self, psn: Psn, count: u32) -> bool {
        self.bits.has_any(psn, count)
    }
    /// Whether there is room for one more run, tail and operation, as far as they are wanted. A run is counted although it may
    /// join another one.
    pub(crate) fn has_room(&self, run: bool, tail: bool, op: bool) -> bool {
        (!run || has_place(&self.runs)) && (!tail || has_place(&self.tails)) && (!op || has_place(&self.ops))
    }
    /// Doubles those lists that have no room, within `budget` bytes. Returns the bytes; what could not grow has no room still.
    #[cold]
    pub(crate) fn grow(&mut self, budget: usize) -> usize {
        let used = grow(&mut self.runs, ENTRIES_MAX, budget);
        let used = used + grow(&mut self.tails, ENTRIES_MAX, budget - used);
        used + grow(&mut self.ops, ENTRIES_MAX, budget - used)
    }
    /// A packet that takes `count` PSNs from `psn` on has arrived.
    pub(crate) fn note(&mut self, psn: Psn, count: u32, note: ArrivalNote) {
        debug_assert!(!self.has_any(psn, count) && count < WINDOW_PSNS);
        self.notes[(psn.get() % WINDOW_PSNS) as usize] = note;
        (0..count).for_each(|k| {
            self.bits.add(psn.add(k));
        });
    }
    /// Makes room for the numbers of shared receive queues.
    pub(crate) fn reserve_srqs(&mut self) -> Result<(), OutOfMemory> {
        if self.srqs.is_empty() {
            self.srqs = heap::with_room(WINDOW_PSNS as usize)?;
            self.srqs.resize(WINDOW_PSNS as usize, u32::MAX);
        }
        self.has_srqs = true;
        Ok(())
    }
    /// The packet of `psn` names this shared receive queue. There must be room.
    pub(crate) fn note_srq(&mut self, psn: Psn, srqn: u32) {
        self.srqs[(psn.get() % WINDOW_PSNS) as usize] = srqn;
    }
    /// The shared receive queue that the packet of `psn` has named, if this is the record of an XRC target.
    pub(crate) fn srq_of(&self, psn: Psn) -> Option<u32> {
        if self.has_srqs { Some(self.srqs[(psn.get() % WINDOW_PSNS) as usize]) } else { None }
    }
    /// Removes the packet of `psn`, if it has arrived. It is the first missing one no more, so its turn has come.
    pub(crate) fn take(&mut self, psn: Psn) -> Option<ArrivalNote> {
        self.bits.remove(psn).then(|| self.notes[(psn.get() % WINDOW_PSNS) as usize])
    }
    /// Removes the packets from `psn` on, at most up to `last`, that have arrived and are middle packets of one message of this
    /// kind, of which the first has this index, and name the queue of the packet in front of them. Returns how many.
    pub(crate) fn take_middles(&mut self, psn: Psn, last: Psn, kind: ArrivalKind, index: u32) -> u32 {
        let (mut count, srq) = (0, self.srq_of(psn.prev()));
        loop {
            let next = psn.add(count);
            let note = self.notes[(next.get() % WINDOW_PSNS) as usize];
            let is_middle = !note.starts() && !note.ends() && note.kind() == kind && note.has_index(index + count);
            let continues = is_middle && self.srq_of(next) == srq;
            if next.is_after(last) || !continues || !self.bits.remove(next) {
                return count;
            }
            count += 1;
        }
    }
    /// Removes what is noted of the `count` PSNs from `psn` on.
    pub(crate) fn forget(&mut self, psn: Psn, count: u32) {
        (0..count).for_each(|k| {
            self.bits.remove(psn.add(k));
        });
    }
    /// The packet of `psn`, whose turn has come, could not be executed and will be sent again.
    pub(crate) fn withdraw(&mut self, psn: Psn) {
        self.bits.remove(psn);
        self.runs.retain(|run| run.last != psn);
        self.tails.retain(|tail| tail.psn != psn);
        self.ops.retain(|op| op.psn != psn);
    }
    /// Everything before `expected` was executed: its ranges and what it held are not needed any more.
    pub(crate) fn forget_before(&mut self, expected: Psn) {
        self.runs.retain(|run| !run.last.is_before(expected));
        self.tails.retain(|tail| !tail.psn.is_before(expected));
        self.ops.retain(|op| !op.psn.is_before(expected));
    }
    /// The bitmap of an acknowledgement: the PSNs behind `expected`, which is missing. Returns the number of words, at least one.
    pub(crate) fn bitmap(&self, expected: Psn, out: &mut [u64; BITMAP_WORDS_MAX]) -> usize {
        let first = expected.next();
        let end = self.bits.end_of_last(first, expected.add(WINDOW_PSNS));
        let words = (end.diff(first) as u32).div_ceil(PSNS_PER_WORD).clamp(1, BITMAP_WORDS_MAX as u32) as usize;
        for (w, word) in out.iter_mut().enumerate().take(words) {
            *word = self.bits.word_from(first.add(w as u32 * PSNS_PER_WORD));
        }
        words
    }

    /// Notes the bytes that the WRITE packet `psn` has written. There must be room.
    pub(crate) fn add_run(&mut self, psn: Psn, range: RemoteRange) {
        self.add_runs(psn, 1, range);
    }
    /// Notes the bytes that `count` WRITE packets from `psn` on have written side by side. There must be room for one run.
    pub(crate) fn add_runs(&mut self, psn: Psn, count: u32, range: RemoteRange) {
        debug_assert!(range.len > 0 && count > 0 && has_place(&self.runs));
        let RemoteRange { addr, len, rkey } = range;
        let mut new = WriteRun { first: psn, last: psn.add(count - 1), addr, len: len.into(), rkey };
        // Packets come in order, as a rule: the last run is the only one in front of a new one.
        if let Some(last) = self.runs.last_mut().filter(|run| run.last.next() == psn && psn.is_after(self.newest)) {
            self.newest = new.last;
            if !last.join(&new) {
                self.runs.push(new);
            }
            return;
        }
        if self.runs.is_empty() || new.last.is_after(self.newest) {
            self.newest = new.last;
        }
        if let Some(at) = self.runs.iter().position(|run| new.join(run)) {
            self.runs.swap_remove(at);
        }
        if !self.runs.iter_mut().any(|run| run.join(&new)) {
            self.runs.push(new);
        }
    }
    /// Whether no packet behind `psn` has left a range.
    fn is_newest(&self, psn: Psn) -> bool {
        self.runs.is_empty() || !psn.is_before(self.newest)
    }
    /// The run of which `psn` is a packet.
    pub(crate) fn run_of(&self, psn: Psn) -> Option<&WriteRun> {
        self.runs.iter().find(|run| !psn.is_before(run.first) && !psn.is_after(run.last))
    }
    /// The first part of `range`, which packet `psn` is to write, that no later packet of the same key has written.
    pub(crate) fn next_uncovered(&self, psn: Psn, range: RemoteRange) -> Option<RemoteRange> {
        let end = range.addr.saturating_add(range.len.into());
        if self.is_newest(psn) {
            return (range.addr < end).then_some(range);
        }
        let later = || self.runs.iter().filter(|run| run.first.is_after(psn) && run.rkey == range.rkey);
        let mut from = range.addr;
        while let Some(over) = later().find(|run| run.addr <= from && from < run.end()) {
            from = over.end();
        }
        let to = later().map(|run| run.addr).filter(|addr| *addr > from).fold(end, u64::min);
        (from < end).then(|| RemoteRange { addr: from, len: (to - from) as u32, ..range })
    }
    /// Parts of `range` at whose addresses later packets have written by other keys, which may be the same memory; and one of
    /// these packets.
    pub(crate) fn aliases(&self, psn: Psn, range: RemoteRange) -> impl Iterator<Item = (Psn, RemoteRange)> {
        let end = range.addr.saturating_add(range.len.into());
        let runs = if self.is_newest(psn) { &[] } else { &self.runs[..] };
        let later = runs.iter().filter(move |run| run.first.is_after(psn) && run.rkey != range.rkey);
        later.filter_map(move |run| {
            let (from, to) = (run.addr.max(range.addr), run.end().min(end));
            (from < to).then(|| (run.first, RemoteRange { addr: from, len: (to - from) as u32, rkey: run.rkey }))
        })
    }

    /// Keeps the last bytes of a WRITE back. There must be room.
    pub(crate) fn hold_tail(&mut self, psn: Psn, range: RemoteRange, bytes: &[u8]) {
        debug_assert!(bytes.len() <= TAIL_BYTES && bytes.len() == range.len as usize);
        let mut tail = HeldTail { psn, range, bytes: [0; TAIL_BYTES] };
        tail.bytes[..bytes.len()].copy_from_slice(bytes);
        self.tails.push(tail);
    }
    /// Removes the last bytes of the WRITE that ends with `psn`.
    pub(crate) fn take_tail(&mut self, psn: Psn) -> Option<HeldTail> {
        let at = self.tails.iter().position(|tail| tail.psn == psn)?;
        Some(self.tails.swap_remove(at))
    }
    /// Keeps an operation until its turn. There must be room.
    pub(crate) fn hold(&mut self, psn: Psn, work: HeldWork) {
        debug_assert!(has_place(&self.ops));
        self.ops.push(HeldOp { psn, work });
    }
    /// Removes the operation of `psn`.
    pub(crate) fn take_work(&mut self, psn: Psn) -> Option<HeldWork> {
        let at = self.ops.iter().position(|op| op.psn == psn)?;
        Some(self.ops.swap_remove(at).work)
    }
    /// Whether the lists agree with the set: what is held belongs to a PSN that has arrived.
    pub(crate) fn is_consistent(&self, expected: Psn) -> bool {
        let inside = |psn: Psn| psn.is_within(expected, WINDOW_PSNS) && self.bits.has(psn);
        self.tails.iter().all(|tail| inside(tail.psn))
            && self.ops.iter().all(|op| inside(op.psn))
            && self.runs.iter().all(|run| !run.last.is_before(run.first) && inside(run.last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_base::rng::Rng;

    const KEY: Rkey = Rkey(7);

    fn range(addr: u64, len: u32) -> RemoteRange {
        RemoteRange { addr, len, rkey: KEY }
    }

    /// The parts of a range that a packet writes.
    fn written(arrivals: &Arrivals, psn: Psn, whole: RemoteRange) -> Vec<RemoteRange> {
        let (mut rest, mut parts) = (whole, Vec::new());
        while let Some(part) = arrivals.next_uncovered(psn, rest) {
            parts.push(part);
            let end = part.addr + u64::from(part.len);
            rest = RemoteRange { addr: end, len: (whole.addr + u64::from(whole.len) - end) as u32, ..whole };
        }
        parts
    }

    #[test]
    fn a_late_packet_writes_only_what_no_later_packet_has_written() {
        let mut arrivals = Arrivals::new().expect("memory");
        let psn = Psn::new(10);
        assert_eq!(written(&arrivals, psn, range(100, 50)), [range(100, 50)]);
        arrivals.add_run(Psn::new(12), range(110, 10));
        arrivals.add_run(Psn::new(14), range(130, 100));
        assert_eq!(written(&arrivals, psn, range(100, 50)), [range(100, 10), range(120, 10)]);
        assert_eq!(written(&arrivals, Psn::new(13), range(100, 50)), [range(100, 30)], "12 came before 13");
        assert_eq!(written(&arrivals, psn, range(135, 10)), []);
        let other = RemoteRange { rkey: Rkey(8), ..range(115, 20) };
        assert_eq!(written(&arrivals, psn, other), [other], "another key");
        let aliases: Vec<_> = arrivals.aliases(psn, other).map(|(_, part)| part).collect();
        assert_eq!(aliases, [range(115, 5), range(130, 5)]);
    }

    #[test]
    fn adjacent_packets_are_one_run_in_whatever_order_they_come() {
        let mut arrivals = Arrivals::new().expect("memory");
        let whole = WriteRun { first: Psn::new(0xff_ffff), last: Psn::new(2), addr: 0, len: 40, rkey: KEY };
        for k in [0u32, 2, 3, 1] {
            arrivals.add_run(Psn::new(0xff_ffff).add(k), range(u64::from(k) * 10, 10));
        }
        assert_eq!(arrivals.run_of(Psn::new(1)), Some(&whole));
        assert_eq!(arrivals.runs.len(), 1);
        arrivals.add_run(Psn::new(4), range(40, 10));
        assert_eq!(arrivals.runs.len(), 2, "3 is missing");
    }

    #[test]
    fn memory_is_that_of_execution_in_order_for_any_order_of_arrival() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let base = Psn::new(0xff_ffe0 + rng.below(64) as u32);
            let packets: Vec<RemoteRange> = (0..24).map(|_| range(rng.below(60), 1 + rng.below(20) as u32)).collect();
            let mut expect = [0u8; 96];
            for (k, packet) in packets.iter().enumerate() {
                expect[packet.addr as usize..][..packet.len as usize].fill(k as u8 + 1);
            }
            let mut order: Vec<usize> = (0..packets.len()).collect();
            (0..order.len()).for_each(|k| order.swap(k, k + rng.below((packets.len() - k) as u64) as usize));
            let (mut arrivals, mut memory, mut next) = (Arrivals::new().expect("memory"), [0u8; 96], 0);
            for k in order {
                let psn = base.add(k as u32);
                for part in written(&arrivals, psn, packets[k]) {
                    memory[part.addr as usize..][..part.len as usize].fill(k as u8 + 1);
                }
                arrivals.note(psn, 1, ArrivalNote::default());
                arrivals.add_run(psn, packets[k]);
                while arrivals.take(base.add(next)).is_some() {
                    next += 1;
                    arrivals.forget_before(base.add(next));
                }
                assert!(arrivals.is_consistent(base.add(next)), "seed {seed}");
            }
            assert_eq!((memory, next, arrivals.runs.len()), (expect, 24, 0), "seed {seed}");
        }
    }

    #[test]
    fn the_bitmap_ends_with_the_last_arrival_and_has_at_least_one_word() {
        let (mut arrivals, mut words) = (Arrivals::new().expect("memory"), [0; BITMAP_WORDS_MAX]);
        let expected = Psn::new(0xff_fff0);
        assert_eq!((arrivals.bitmap(expected, &mut words), words[0]), (1, 0));
        arrivals.note(expected.add(1), 1, ArrivalNote::default());
        arrivals.note(expected.add(66), 2, ArrivalNote::default());
        assert_eq!((arrivals.bitmap(expected, &mut words), words[0], words[1]), (2, 1, 0b110));
        arrivals.note(expected.add(2047), 1, ArrivalNote::default());
        assert_eq!(arrivals.bitmap(expected, &mut words), BITMAP_WORDS_MAX);
    }

    #[test]
    fn a_note_tells_what_its_packet_continues() {
        let note = ArrivalNote::new(ArrivalKind::Write, (false, true), 5000);
        assert_eq!((note.kind(), note.starts(), note.ends()), (ArrivalKind::Write, false, true));
        assert!(note.has_index(5000) && !note.has_index(5001));
        assert_eq!(ArrivalNote::new(ArrivalKind::Operation, (true, true), 0).kind(), ArrivalKind::Operation);
    }
}
