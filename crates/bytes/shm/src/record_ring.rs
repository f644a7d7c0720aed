//! A ring of short records from an application to the daemon, in order; a record costs no system call while the daemon is
//! awake.
//!
//! The ring lies in a segment of its own and has [`RECORD_RING_ENTRIES`] slots, each of a length and up to
//! [`RECORD_BYTES_MAX`] bytes. Its words and rules are those of a send queue: the daemon declares the ring idle before it
//! sleeps, and the push that finds it idle reports that the daemon must be woken by other means
//! ([`crate::protocol::post`]).
use crate::area::Area;
use crate::arena::{Segment, SegmentError};
use crate::layout::QUEUE_HEADER_BYTES;
use crate::protocol;
use crate::sq::{CONSUMER, IDLE, PRODUCER};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::Arc;

/// Slots. Few, so that the daemon's workers and the program's other threads get the first records of a burst early.
pub const RECORD_RING_ENTRIES: u32 = 128;
/// Longest record in bytes.
pub const RECORD_BYTES_MAX: usize = SLOT_BYTES - LENGTH_BYTES;
/// Bytes of a slot: five cache lines.
const SLOT_BYTES: usize = 320;
const LENGTH_BYTES: usize = 8;
/// Bytes of a ring, header included.
pub const BYTES: usize = (QUEUE_HEADER_BYTES + RECORD_RING_ENTRIES as usize * SLOT_BYTES).next_multiple_of(4096);
// An index is masked to its slot, and the words of a slot are aligned.
const _: () = assert!(RECORD_RING_ENTRIES.is_power_of_two() && SLOT_BYTES.is_multiple_of(8) && LENGTH_BYTES == 8);

/// Offset of the slot of a record.
fn slot(index: u32) -> usize {
    QUEUE_HEADER_BYTES + (index & (RECORD_RING_ENTRIES - 1)) as usize * SLOT_BYTES
}

/// Makes a ring: the segment, to be sent to the application ([`Segment::fd`]), and the daemon's end.
///
/// # Errors
/// When the system has no memory or no descriptor left.
pub fn create() -> Result<(Arc<Segment>, RecordRingConsumer), SegmentError> {
    let segment = Arc::new(Segment::create(BYTES)?);
    let area = Area::new(&segment, 0, BYTES).ok_or(SegmentError::BadSize)?;
    Ok((segment, RecordRingConsumer { area, taken: 0 }))
}

/// The application's end. The library uses it under a lock.
#[derive(Debug)]
pub struct RecordRingProducer {
    area: Area,
    written: u32,
}

impl RecordRingProducer {
    /// The end of a new ring, from the daemon's segment.
    ///
    /// # Errors
    /// When the segment is too small.
    pub fn new(segment: Segment) -> Result<RecordRingProducer, SegmentError> {
        let area = Area::new(&Arc::new(segment), 0, BYTES).ok_or(SegmentError::BadSize)?;
        Ok(RecordRingProducer { area, written: 0 })
    }
    /// Whether `count` more records find a free slot.
    pub fn has_room(&self, count: u32) -> bool {
        // Acquire: pairs with the consumer's Release; the daemon's copy of a slot comes before the slot's reuse.
        let used = self.written.wrapping_sub(self.area.word32(CONSUMER).load(Acquire));
        used.saturating_add(count) <= RECORD_RING_ENTRIES
    }
    /// Writes a record into the next slot, which must be free. The daemon does not see it before [`RecordRingProducer::post`].
    ///
    /// # Panics
    /// If the record is longer than [`RECORD_BYTES_MAX`].
    pub fn write(&mut self, record: &[u8]) {
        assert!(record.len() <= RECORD_BYTES_MAX);
        debug_assert!(self.has_room(1), "the caller has asked for room");
        let at = slot(self.written);
        self.area.store_words(at, [record.len() as u64]);
        // SAFETY: the record is readable, and the slot belongs to this end alone until it is posted.
        unsafe { self.area.write_bytes(at + LENGTH_BYTES, record.as_ptr(), record.len()) };
        self.written = self.written.wrapping_add(1);
    }
    /// Makes all records written so far visible. True: the daemon may be asleep and must be woken.
    #[must_use = "a sleeping daemon does not look"]
    pub fn post(&mut self) -> bool {
        protocol::post(self.area.word32(PRODUCER), self.area.word32(IDLE), self.written)
    }
}

/// The application has written an impossible value: a count above the number of slots, or a length above
/// [`RECORD_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorruptRing;

/// The daemon's end.
#[derive(Debug)]
pub struct RecordRingConsumer {
    area: Area,
    taken: u32,
}

impl RecordRingConsumer {
    /// Number of records that are posted and not taken.
    ///
    /// # Errors
    /// [`CorruptRing`].
    pub fn pending(&self) -> Result<u32, CorruptRing> {
        // Acquire: pairs with the Release in `protocol::post`.
        let posted = self.area.word32(PRODUCER).load(Acquire).wrapping_sub(self.taken);
        if posted <= RECORD_RING_ENTRIES { Ok(posted) } else { Err(CorruptRing) }
    }
    /// Copies the next record and frees its slot; [`RecordRingConsumer::pending`] must have counted it.
    ///
    /// # Errors
    /// [`CorruptRing`].
    pub fn take<'a>(&mut self, buffer: &'a mut [u8; RECORD_BYTES_MAX]) -> Result<&'a [u8], CorruptRing> {
        let at = slot(self.taken);
        let len = self.area.word64(at).load(Relaxed);
        let record = buffer.get_mut(..usize::try_from(len).map_err(|_| CorruptRing)?).ok_or(CorruptRing)?;
        self.area.read_bytes(at + LENGTH_BYTES, record);
        self.taken = self.taken.wrapping_add(1);
        // Release: the copy above comes before the application's reuse of the slot.
        self.area.word32(CONSUMER).store(self.taken, Release);
        Ok(record)
    }
    /// Asks to be woken by the next record. False: there are records already; take them and ask again.
    pub fn try_idle(&mut self) -> bool {
        protocol::try_idle(self.area.word32(PRODUCER), self.area.word32(IDLE), self.taken)
    }
    /// Ends the request of [`RecordRingConsumer::try_idle`]: records do not wake the daemon.
    pub fn stay_awake(&mut self) {
        self.area.word32(IDLE).store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> (RecordRingProducer, RecordRingConsumer) {
        let (segment, consumer) = create().expect("a ring");
        let fd = segment.fd().expect("a descriptor").try_clone_to_owned().expect("another");
        (RecordRingProducer::new(Segment::map(fd).expect("mapped")).expect("large enough"), consumer)
    }

    #[test]
    fn the_segment_is_as_large_as_header_and_slots_need() {
        let needed = QUEUE_HEADER_BYTES + RECORD_RING_ENTRIES as usize * (RECORD_BYTES_MAX + LENGTH_BYTES);
        let (segment, _) = create().expect("a ring");
        assert!((needed..needed + 4096).contains(&segment.len()), "{} bytes for {needed}", segment.len());
    }

    #[test]
    fn records_arrive_whole_and_in_order() {
        let (mut producer, mut consumer) = ring();
        let mut buffer = [0; RECORD_BYTES_MAX];
        for round in 0..3 * RECORD_RING_ENTRIES as usize {
            let records = [vec![round as u8; round % (RECORD_BYTES_MAX + 1)], vec![!round as u8; 13]];
            records.iter().for_each(|r| producer.write(r));
            assert_eq!(consumer.pending(), Ok(0), "not posted yet");
            assert!(!producer.post(), "the daemon is awake");
            assert_eq!(consumer.pending(), Ok(2));
            for record in &records {
                assert_eq!(consumer.take(&mut buffer), Ok(&record[..]));
            }
        }
    }

    #[test]
    fn a_full_ring_has_room_again_after_a_take() {
        let (mut producer, mut consumer) = ring();
        for _ in 0..RECORD_RING_ENTRIES {
            assert!(producer.has_room(1));
            producer.write(b"x");
        }
        assert!(!producer.has_room(1) && !producer.post());
        consumer.take(&mut [0; RECORD_BYTES_MAX]).expect("the first");
        assert!(producer.has_room(1) && !producer.has_room(2));
    }

    #[test]
    fn an_idle_daemon_is_woken_once() {
        let (mut producer, mut consumer) = ring();
        assert!(consumer.try_idle());
        producer.write(b"one");
        assert!(producer.post());
        producer.write(b"two");
        assert!(!producer.post());
        assert!(!consumer.try_idle(), "two records are there");
        consumer.take(&mut [0; RECORD_BYTES_MAX]).expect("one");
        consumer.take(&mut [0; RECORD_BYTES_MAX]).expect("two");
        assert!(consumer.try_idle());
        consumer.stay_awake();
        producer.write(b"three");
        assert!(!producer.post());
    }

    #[test]
    fn impossible_lengths_and_counts_are_corrupt() {
        let (producer, mut consumer) = ring();
        producer.area.word64(slot(0)).store(RECORD_BYTES_MAX as u64 + 1, Relaxed);
        assert_eq!(consumer.take(&mut [0; RECORD_BYTES_MAX]), Err(CorruptRing));
        producer.area.word64(slot(0)).store(u64::MAX, Relaxed);
        assert_eq!(consumer.take(&mut [0; RECORD_BYTES_MAX]), Err(CorruptRing));
        for lie in [RECORD_RING_ENTRIES + 1, u32::MAX] {
            producer.area.word32(PRODUCER).store(lie, Relaxed);
            assert_eq!(consumer.pending(), Err(CorruptRing));
        }
        assert!(RecordRingProducer::new(Segment::create(4096).expect("a segment")).is_err());
    }
}
