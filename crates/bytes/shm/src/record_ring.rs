//! Lanes: short records from an application to the daemon, in order, by no system call while the daemon is awake.
//!
//! A ring in a segment of its own, of [`RECORD_RING_ENTRIES`] places of [`RECORD_BYTES_MAX`] and a length each. The words and
//! rules are those of a send queue: the daemon declares the lane idle before it sleeps, and the push that finds it so says
//! that the daemon must be told by other means ([`crate::protocol::post`]).
use crate::area::Area;
use crate::arena::{Segment, SegmentError};
use crate::layout::QUEUE_HEADER_BYTES;
use crate::protocol;
use crate::sq::{CONSUMER, IDLE, PRODUCER};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::Arc;

/// Records at once: few, so that the daemon's workers and the programs' other threads have something to do early.
pub const RECORD_RING_ENTRIES: u32 = 128;
/// Longest record.
pub const RECORD_BYTES_MAX: usize = PLACE_BYTES - LENGTH_BYTES;
/// Five cache lines.
const PLACE_BYTES: usize = 320;
const LENGTH_BYTES: usize = 8;
const BYTES: usize = (QUEUE_HEADER_BYTES + RECORD_RING_ENTRIES as usize * PLACE_BYTES).next_multiple_of(4096);

fn place(index: u32) -> usize {
    QUEUE_HEADER_BYTES + (index & (RECORD_RING_ENTRIES - 1)) as usize * PLACE_BYTES
}

/// A lane's segment, to be sent to the application ([`Segment::fd`]), and the daemon's end.
///
/// # Errors
/// When the system has no memory or descriptor for it.
pub fn create() -> Result<(Arc<Segment>, RecordRingConsumer), SegmentError> {
    let segment = Arc::new(Segment::create(BYTES)?);
    let area = Area::new(&segment, 0, BYTES).ok_or(SegmentError::BadSize)?;
    Ok((segment, RecordRingConsumer { area, taken: 0 }))
}

/// The application's end. Used under a lock.
#[derive(Debug)]
pub struct RecordRingProducer {
    area: Area,
    written: u32,
}

impl RecordRingProducer {
    /// The end of a lane nothing was pushed to yet, from the daemon's segment.
    ///
    /// # Errors
    /// A segment that is too small.
    pub fn new(segment: Segment) -> Result<RecordRingProducer, SegmentError> {
        let area = Area::new(&Arc::new(segment), 0, BYTES).ok_or(SegmentError::BadSize)?;
        Ok(RecordRingProducer { area, written: 0 })
    }
    /// Whether there is a place for `count` more records.
    pub fn has_room(&self, count: u32) -> bool {
        // Acquire: pairs with the consumer's Release; the daemon's copy of a place comes before its reuse.
        let used = self.written.wrapping_sub(self.area.word32(CONSUMER).load(Acquire));
        used.saturating_add(count) <= RECORD_RING_ENTRIES
    }
    /// Writes a record into the next place, of which there must be one. Not visible before [`RecordRingProducer::post`].
    ///
    /// # Panics
    /// If the record is longer than [`RECORD_BYTES_MAX`].
    pub fn write(&mut self, record: &[u8]) {
        assert!(record.len() <= RECORD_BYTES_MAX);
        let at = place(self.written);
        self.area.store_words(at, [record.len() as u64]);
        // SAFETY: the record is readable, and the place is ours alone until it is posted.
        unsafe { self.area.write_bytes(at + LENGTH_BYTES, record.as_ptr(), record.len()) };
        self.written = self.written.wrapping_add(1);
    }
    /// Makes everything written visible. True: the daemon may be asleep and must be told.
    #[must_use = "a sleeping daemon does not look"]
    pub fn post(&mut self) -> bool {
        protocol::post(self.area.word32(PRODUCER), self.area.word32(IDLE), self.written)
    }
}

/// The application has written what cannot be: more records than there are places, or too long a one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorruptRing;

/// The daemon's end.
#[derive(Debug)]
pub struct RecordRingConsumer {
    area: Area,
    taken: u32,
}

impl RecordRingConsumer {
    /// Records posted and not taken.
    ///
    /// # Errors
    /// [`CorruptRing`].
    pub fn pending(&self) -> Result<u32, CorruptRing> {
        // Acquire: pairs with the Release in `protocol::post`.
        let posted = self.area.word32(PRODUCER).load(Acquire).wrapping_sub(self.taken);
        if posted <= RECORD_RING_ENTRIES { Ok(posted) } else { Err(CorruptRing) }
    }
    /// Copies the next record, of which one must be [`RecordRingConsumer::pending`], and frees its place.
    ///
    /// # Errors
    /// [`CorruptRing`].
    pub fn take<'a>(&mut self, buffer: &'a mut [u8; RECORD_BYTES_MAX]) -> Result<&'a [u8], CorruptRing> {
        let at = place(self.taken);
        let len = self.area.word64(at).load(Relaxed);
        let record = buffer.get_mut(..usize::try_from(len).map_err(|_| CorruptRing)?).ok_or(CorruptRing)?;
        self.area.read_bytes(at + LENGTH_BYTES, record);
        self.taken = self.taken.wrapping_add(1);
        // Release: the copy above comes before the application's reuse of the place.
        self.area.word32(CONSUMER).store(self.taken, Release);
        Ok(record)
    }
    /// Asks to be told of the next record. False: some are there already; take them and ask again.
    pub fn try_idle(&mut self) -> bool {
        protocol::try_idle(self.area.word32(PRODUCER), self.area.word32(IDLE), self.taken)
    }
    /// Asks to be told of nothing any more.
    pub fn stay_awake(&mut self) {
        self.area.word32(IDLE).store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane() -> (RecordRingProducer, RecordRingConsumer) {
        let (segment, consumer) = create().expect("a lane");
        let fd = segment.fd().expect("a descriptor").try_clone_to_owned().expect("another");
        (RecordRingProducer::new(Segment::map(fd).expect("mapped")).expect("large enough"), consumer)
    }

    #[test]
    fn records_come_as_they_were_written_and_in_order() {
        let (mut producer, mut consumer) = lane();
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
    fn a_full_lane_has_room_again_when_something_is_taken() {
        let (mut producer, mut consumer) = lane();
        for _ in 0..RECORD_RING_ENTRIES {
            assert!(producer.has_room(1));
            producer.write(b"x");
        }
        assert!(!producer.has_room(1) && !producer.post());
        consumer.take(&mut [0; RECORD_BYTES_MAX]).expect("the first");
        assert!(producer.has_room(1) && !producer.has_room(2));
    }

    #[test]
    fn an_idle_daemon_is_told_once() {
        let (mut producer, mut consumer) = lane();
        assert!(consumer.try_idle());
        producer.write(b"one");
        assert!(producer.post());
        producer.write(b"two");
        assert!(!producer.post());
        assert!(!consumer.try_idle(), "two are there");
        consumer.take(&mut [0; RECORD_BYTES_MAX]).expect("one");
        consumer.take(&mut [0; RECORD_BYTES_MAX]).expect("two");
        assert!(consumer.try_idle());
        consumer.stay_awake();
        producer.write(b"three");
        assert!(!producer.post());
    }

    #[test]
    fn what_cannot_be_is_said_to_be_corrupt() {
        let (producer, mut consumer) = lane();
        producer.area.word64(place(0)).store(RECORD_BYTES_MAX as u64 + 1, Relaxed);
        assert_eq!(consumer.take(&mut [0; RECORD_BYTES_MAX]), Err(CorruptRing));
        producer.area.word64(place(0)).store(u64::MAX, Relaxed);
        assert_eq!(consumer.take(&mut [0; RECORD_BYTES_MAX]), Err(CorruptRing));
        for lie in [RECORD_RING_ENTRIES + 1, u32::MAX] {
            producer.area.word32(PRODUCER).store(lie, Relaxed);
            assert_eq!(consumer.pending(), Err(CorruptRing));
        }
        assert!(RecordRingProducer::new(Segment::create(4096).expect("a segment")).is_err());
    }
}
