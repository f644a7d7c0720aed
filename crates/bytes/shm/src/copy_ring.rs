//! Copies that a program makes for the daemon: a ring of records from a worker to the program, and a staging area.
//!
//! A worker cannot reach the memory of a device (a GPU). It puts bytes into the staging area and writes a record, and a thread
//! of the program copies them to the device; or the thread copies bytes of the device into the staging area. Each record has a
//! ticket: 1, 2, and so on. The program counts in `done` up to which ticket all copies have ended, and names in `failed` the
//! first one that has not ended well; it ends them in their order.
//!
//! | bytes | what | who writes |
//! |---|---|---|
//! | 0, 4 | records written; whether the program sleeps | worker; both |
//! | 64, 72 | `done`, `failed` (0: none) | program |
//! | 128 | [`COPY_RING_ENTRIES`] records of 32 bytes: ticket, direction and staging offset, device address, length | worker |
//! | [`STAGING_AT`] | the staging area, [`STAGING_BYTES`] | both |
//!
//! The worker checks each range before it writes a record. What the program says only ends its own copies: counts that cannot be
//! are cut to what was begun, and never go back. The rule of sleeping is that of a send queue ([`crate::protocol::post`]); the
//! word is a futex, so that no descriptor is needed.
use crate::area::Area;
use crate::arena::{Segment, SegmentError};
use crate::protocol;
use burst_span::Span;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::fence;
use rustix::thread::futex;
use std::sync::Arc;
use std::time::Duration;

/// Records, and so copies that are open at a time.
pub const COPY_RING_ENTRIES: u32 = 256;
/// Bytes of the staging area.
pub const STAGING_BYTES: usize = 4 << 20;
/// Offset of the staging area in the segment.
pub const STAGING_AT: usize = 12 << 10;
/// Bytes of the segment.
pub const COPY_RING_BYTES: usize = STAGING_AT + STAGING_BYTES;
const PRODUCER: usize = 0;
const IDLE: usize = 4;
const DONE: usize = 64;
const FAILED: usize = 72;
const RECORDS: usize = 128;
const RECORD_BYTES: usize = 32;
const _: () = assert!(RECORDS + COPY_RING_ENTRIES as usize * RECORD_BYTES <= STAGING_AT);
const _: () = assert!(COPY_RING_ENTRIES.is_power_of_two() && STAGING_BYTES <= u32::MAX as usize);

/// Where a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// From the staging area to the device.
    ToDevice,
    /// From the device to the staging area.
    FromDevice,
}

/// A copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRecord {
    /// Its number, from 1 on.
    pub ticket: u64,
    /// Where it goes.
    pub direction: CopyDirection,
    /// Offset in the staging area.
    pub offset: u32,
    /// Address on the device.
    pub device: u64,
    /// Bytes.
    pub len: u32,
}

impl CopyRecord {
    fn words(&self) -> [u64; 4] {
        let direction = u64::from(self.direction == CopyDirection::FromDevice);
        [self.ticket, direction << 32 | u64::from(self.offset), self.device, u64::from(self.len)]
    }
    /// `None` unless the bytes lie in the staging area.
    fn from_words([ticket, place, device, len]: [u64; 4]) -> Option<CopyRecord> {
        let direction = match place >> 32 {
            0 => CopyDirection::ToDevice,
            1 => CopyDirection::FromDevice,
            _ => return None,
        };
        let (offset, len) = (place as u32, u32::try_from(len).ok()?);
        let is_inside = u64::from(offset) + u64::from(len) <= STAGING_BYTES as u64;
        is_inside.then_some(CopyRecord { ticket, direction, offset, device, len })
    }
}

/// Offset of the record of a ticket.
fn record_at(ticket: u64) -> usize {
    RECORDS + (ticket as usize & (COPY_RING_ENTRIES as usize - 1)) * RECORD_BYTES
}

/// How far the program is, as the daemon's end believes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// All tickets up to this one have ended well.
    pub done: u64,
    /// The first ticket behind `done` whose copy has not ended well.
    pub failed: Option<u64>,
}

/// The daemon's end.
#[derive(Debug)]
pub struct CopyRingProducer {
    area: Area,
    /// The last ticket that was written.
    last: u64,
    counts: CopyCounts,
}

impl CopyRingProducer {
    /// Makes a ring: the segment, to be sent to the program ([`Segment::fd`]), and the daemon's end.
    ///
    /// # Errors
    /// When the system has no memory or no descriptor left.
    pub fn create() -> Result<(Arc<Segment>, CopyRingProducer), SegmentError> {
        let segment = Arc::new(Segment::create(COPY_RING_BYTES)?);
        let area = Area::new(&segment, 0, COPY_RING_BYTES).ok_or(SegmentError::BadSize)?;
        Ok((segment, CopyRingProducer { area, last: 0, counts: CopyCounts::default() }))
    }
    /// The last ticket that has begun.
    #[inline]
    pub fn last(&self) -> u64 {
        self.last
    }
    /// What [`CopyRingProducer::refresh`] has last seen.
    #[inline]
    pub fn counts(&self) -> CopyCounts {
        self.counts
    }
    /// Records that may still be written.
    pub fn room(&self) -> usize {
        COPY_RING_ENTRIES as usize - (self.last - self.counts.done) as usize
    }
    /// How far the program is. A first failure stays, and nothing counts behind it.
    fn look(&self) -> CopyCounts {
        if self.counts.failed.is_some() {
            return self.counts;
        }
        // Acquire: pairs with the Release in `end`; what the program has copied into the staging area is there.
        let failed = self.area.word64(FAILED).load(Acquire);
        let done = self.area.word64(DONE).load(Acquire).min(self.last).max(self.counts.done);
        let oldest = done + 1;
        CopyCounts { done, failed: (failed != 0).then(|| failed.clamp(oldest, self.last.max(oldest))) }
    }
    /// Notes how far the program is. True if that has changed.
    pub fn refresh(&mut self) -> bool {
        let now = self.look();
        std::mem::replace(&mut self.counts, now) != now
    }
    /// Whether [`CopyRingProducer::refresh`] would see a change. For a worker that is about to sleep.
    pub fn has_changes(&self) -> bool {
        self.look() != self.counts
    }
    /// Writes the next record, for which there must be room (panics otherwise), and returns its ticket. The program does not see
    /// it before [`CopyRingProducer::post`].
    pub fn write(&mut self, direction: CopyDirection, offset: u32, device: u64, len: u32) -> u64 {
        assert!(self.room() > 0, "the caller has asked for room");
        assert!(offset as usize + len as usize <= STAGING_BYTES, "inside the staging area");
        self.last += 1;
        let record = CopyRecord { ticket: self.last, direction, offset, device, len };
        self.area.store_words(record_at(self.last), record.words());
        self.last
    }
    /// Makes all records written so far visible, and wakes the program if it sleeps.
    pub fn post(&mut self) {
        let (producer, idle) = (self.area.word32(PRODUCER), self.area.word32(IDLE));
        if protocol::post(producer, idle, self.last as u32) {
            // A failure wakes no thread: a program that has unmapped its end does not wait.
            let _ = futex::wake(idle, futex::Flags::empty(), 1);
        }
    }
    /// A part of the staging area. The program may change it at any time.
    pub fn staging(&self, offset: usize, len: usize) -> Span {
        assert!(offset <= STAGING_BYTES && len <= STAGING_BYTES - offset);
        // SAFETY: inside the area, whose segment stays mapped as long as `self`, which outlives the spans of a turn.
        unsafe { Span::local(self.area.as_ptr().add(STAGING_AT + offset), len as u32) }
    }
}

/// The daemon has written an impossible record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorruptCopy;

/// The program's end.
#[derive(Debug)]
pub struct CopyRingConsumer {
    area: Area,
    /// The last ticket that was taken.
    taken: u64,
}

impl CopyRingConsumer {
    /// The end of a new ring, from the daemon's segment.
    ///
    /// # Errors
    /// When the segment is too small.
    pub fn new(segment: Segment) -> Result<CopyRingConsumer, SegmentError> {
        let area = Area::new(&Arc::new(segment), 0, COPY_RING_BYTES).ok_or(SegmentError::BadSize)?;
        Ok(CopyRingConsumer { area, taken: 0 })
    }
    /// Takes the next record; `None` if there is none.
    ///
    /// # Errors
    /// [`CorruptCopy`].
    pub fn take(&mut self) -> Result<Option<CopyRecord>, CorruptCopy> {
        // Acquire: pairs with the Release in `protocol::post`.
        if self.area.word32(PRODUCER).load(Acquire) == self.taken as u32 {
            return Ok(None);
        }
        let at = record_at(self.taken + 1);
        let words = [0, 8, 16, 24].map(|word| self.area.word64(at + word).load(Relaxed));
        let record =
            CopyRecord::from_words(words).filter(|record| record.ticket == self.taken + 1).ok_or(CorruptCopy)?;
        self.taken += 1;
        Ok(Some(record))
    }
    /// All copies up to this ticket have ended well.
    pub fn end(&self, ticket: u64) {
        // Release: the bytes come before the count.
        self.area.word64(DONE).store(ticket, Release);
    }
    /// The copy with this ticket has failed; none behind it will end.
    pub fn fail(&self, ticket: u64) {
        self.area.word64(FAILED).store(ticket, Release);
    }
    /// Sleeps until there are records, for `most` at longest, unless `has_more` finds something else to do. May return earlier.
    /// Whoever makes `has_more` true calls [`CopyRingWaker::wake`] afterwards.
    pub fn sleep(&self, most: Duration, has_more: impl FnOnce() -> bool) {
        let idle = self.area.word32(IDLE);
        if protocol::try_idle(self.area.word32(PRODUCER), idle, self.taken as u32) {
            if has_more() {
                return idle.store(0, Relaxed);
            }
            let most = rustix::time::Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
            let _ = futex::wait(idle, futex::Flags::empty(), 1, Some(&most));
            idle.store(0, Relaxed);
        }
    }
    /// What ends a sleep of this end from another thread.
    pub fn waker(&self) -> CopyRingWaker {
        CopyRingWaker { area: self.area.clone() }
    }
    /// The staging area.
    pub fn staging(&self) -> *mut u8 {
        self.area.as_ptr().wrapping_add(STAGING_AT)
    }
}

/// Ends sleeps of the program's end, and knows what the daemon has written.
#[derive(Debug)]
pub struct CopyRingWaker {
    area: Area,
}

impl CopyRingWaker {
    /// Ends the sleep that the program's end is in.
    pub fn wake(&self) {
        let idle = self.area.word32(IDLE);
        // With the fence of `try_idle`: either the sleeper sees what the caller has stored, or this store follows its own.
        fence(SeqCst);
        idle.store(0, Release);
        let _ = futex::wake(idle, futex::Flags::empty(), 1);
    }
    /// Records that the daemon has written, modulo 2^32.
    pub fn written(&self) -> u32 {
        self.area.word32(PRODUCER).load(Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> (CopyRingProducer, CopyRingConsumer) {
        let (segment, producer) = CopyRingProducer::create().expect("a ring");
        let fd = segment.fd().expect("a descriptor").try_clone_to_owned().expect("another");
        (producer, CopyRingConsumer::new(Segment::map(fd).expect("mapped")).expect("large enough"))
    }

    #[test]
    fn records_and_bytes_arrive_in_order() {
        let (mut worker, mut program) = ring();
        for round in 0..3 * u64::from(COPY_RING_ENTRIES) {
            let (offset, device) = ((round as u32 * 64) % 4096, 0x7000_0000_0000 + round);
            worker.staging(offset as usize, 3).write_from(&[round as u8; 3]).expect("local");
            let ticket = worker.write(CopyDirection::ToDevice, offset, device, 3);
            assert_eq!((ticket, program.take()), (round + 1, Ok(None)), "not posted yet");
            worker.post();
            let direction = CopyDirection::ToDevice;
            assert_eq!(program.take(), Ok(Some(CopyRecord { ticket, direction, offset, device, len: 3 })));
            // SAFETY: inside the staging area.
            assert_eq!(unsafe { program.staging().add(offset as usize).read() }, round as u8);
            program.end(ticket);
            assert!(worker.refresh() && !worker.refresh());
            assert_eq!(worker.counts(), CopyCounts { done: ticket, failed: None });
        }
    }

    #[test]
    fn a_full_ring_has_room_when_the_oldest_copy_has_ended() {
        let (mut worker, program) = ring();
        (0..COPY_RING_ENTRIES).for_each(|_| _ = worker.write(CopyDirection::FromDevice, 0, 1, 1));
        assert_eq!(worker.room(), 0);
        program.end(2);
        worker.refresh();
        assert_eq!(worker.room(), 2);
        program.end(1);
        worker.refresh();
        assert_eq!(worker.room(), 2, "it does not go back");
    }

    #[test]
    fn what_cannot_be_is_cut_to_what_was_begun() {
        let (mut worker, program) = ring();
        (0..4).for_each(|_| _ = worker.write(CopyDirection::ToDevice, 0, 1, 1));
        program.end(u64::MAX);
        worker.refresh();
        assert_eq!(worker.counts(), CopyCounts { done: 4, failed: None });
        (0..4).for_each(|_| _ = worker.write(CopyDirection::ToDevice, 0, 1, 1));
        program.fail(u64::MAX);
        program.end(5);
        worker.refresh();
        assert_eq!(worker.counts(), CopyCounts { done: 5, failed: Some(8) });
        program.end(8);
        program.fail(1);
        assert!(!worker.refresh(), "nothing counts behind a failure");
    }

    #[test]
    fn a_sleeping_program_is_woken_by_a_record() {
        let (mut worker, mut program) = ring();
        let thread = std::thread::spawn(move || {
            loop {
                match program.take().expect("a record") {
                    Some(record) => return record.ticket,
                    None => program.sleep(Duration::from_secs(60), || false),
                }
            }
        });
        worker.write(CopyDirection::ToDevice, 0, 1, 1);
        worker.post();
        assert_eq!(thread.join().expect("the thread"), 1);
    }

    #[test]
    fn a_program_that_has_more_to_do_does_not_sleep() {
        let (_worker, program) = ring();
        program.sleep(Duration::MAX, || true);
    }

    #[test]
    fn records_outside_the_staging_area_are_corrupt() {
        let (mut worker, mut program) = ring();
        let outside = [[1, STAGING_BYTES as u64, 0, 1], [1, 0, 0, 1 << 32], [1, 2 << 32, 0, 1], [2, 0, 0, 1]];
        worker.write(CopyDirection::ToDevice, 0, 0, 1);
        worker.post();
        for words in outside {
            worker.area.store_words(record_at(1), words);
            assert_eq!(program.take(), Err(CorruptCopy), "{words:?}");
        }
        assert!(CopyRingConsumer::new(Segment::create(4096).expect("a segment")).is_err());
    }
}
