//! Lanes: short records from an application to the daemon, in order, by no system call while the daemon is awake.
//!
//! A ring in a segment of its own, of [`LANE_ENTRIES`] places of [`LANE_RECORD_BYTES`] and a length each. The words and
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
pub const LANE_ENTRIES: u32 = 128;
/// Longest record.
pub const LANE_RECORD_BYTES: usize = PLACE_BYTES - LENGTH_BYTES;
/// Five cache lines.
const PLACE_BYTES: usize = 320;
const LENGTH_BYTES: usize = 8;
const BYTES: usize = (QUEUE_HEADER_BYTES + LANE_ENTRIES as usize * PLACE_BYTES).next_multiple_of(4096);

fn place(index: u32) -> usize {
    QUEUE_HEADER_BYTES + (index & (LANE_ENTRIES - 1)) as usize * PLACE_BYTES
}

/// A lane's segment, to be sent to the application ([`Segment::fd`]), and the daemon's end.
///
/// # Errors
/// When the system has no memory or descriptor for it.
pub fn create() -> Result<(Arc<Segment>, LaneConsumer), SegmentError> {
    let segment = Arc::new(Segment::create(BYTES)?);
    let area = Area::new(&segment, 0, BYTES).ok_or(SegmentError::BadSize)?;
    Ok((segment, LaneConsumer { area, taken: 0 }))
}

/// The application's end. Used under a lock.
#[derive(Debug)]
pub struct LaneProducer {
    area: Area,
    written: u32,
}

impl LaneProducer {
    /// The end of a lane nothing was pushed to yet, from the daemon's segment.
    ///
    /// # Errors
    /// A segment that is too small.
    pub fn new(segment: Segment) -> Result<LaneProducer, SegmentError> {
        let area = Area::new(&Arc::new(segment), 0, BYTES).ok_or(SegmentError::BadSize)?;
        Ok(LaneProducer { area, written: 0 })
    }
    /// Whether there is a place for `count` more records.
    pub fn has_room(&self, count: u32) -> bool {
        // Acquire: pairs with the consumer's Release; the daemon's copy of a place comes before its reuse.
        let used = self.written.wrapping_sub(self.area.word32(CONSUMER).load(Acquire));
        used.saturating_add(count) <= LANE_ENTRIES
    }
    /// Writes a record into the next place, of which there must be one. Not visible before [`LaneProducer::post`].
    ///
    /// # Panics
    /// If the record is longer than [`LANE_RECORD_BYTES`].
    pub fn write(&mut self, record: &[u8]) {
        assert!(record.len() <= LANE_RECORD_BYTES);
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
pub struct Corrupt;

/// The daemon's end.
#[derive(Debug)]
pub struct LaneConsumer {
    area: Area,
    taken: u32,
}

impl LaneConsumer {
    /// Records posted and not taken.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn pending(&self) -> Result<u32, Corrupt> {
        // Acquire: pairs with the Release in `protocol::post`.
        let posted = self.area.word32(PRODUCER).load(Acquire).wrapping_sub(self.taken);
        if posted <= LANE_ENTRIES { Ok(posted) } else { Err(Corrupt) }
    }
    /// Copies the next record, of which one must be [`LaneConsumer::pending`], and frees its place.
    ///
    /// # Errors
    /// [`Corrupt`].
    pub fn take<'a>(&mut self, buffer: &'a mut [u8; LANE_RECORD_BYTES]) -> Result<&'a [u8], Corrupt> {
        let at = place(self.taken);
        let len = self.area.word64(at).load(Relaxed);
        let record = buffer.get_mut(..usize::try_from(len).map_err(|_| Corrupt)?).ok_or(Corrupt)?;
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

    fn lane() -> (LaneProducer, LaneConsumer) {
        let (segment, consumer) = create().expect("a lane");
        let fd = segment.fd().expect("a descriptor").try_clone_to_owned().expect("another");
        (LaneProducer::new(Segment::map(fd).expect("mapped")).expect("large enough"), consumer)
    }

    #[test]
    fn records_come_as_they_were_written_and_in_order() {
        let (mut producer, mut consumer) = lane();
        let mut buffer = [0; LANE_RECORD_BYTES];
        for round in 0..3 * LANE_ENTRIES as usize {
            let records = [vec![round as u8; round % (LANE_RECORD_BYTES + 1)], vec![!round as u8; 13]];
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
        for _ in 0..LANE_ENTRIES {
            assert!(producer.has_room(1));
            producer.write(b"x");
        }
        assert!(!producer.has_room(1) && !producer.post());
        consumer.take(&mut [0; LANE_RECORD_BYTES]).expect("the first");
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
        consumer.take(&mut [0; LANE_RECORD_BYTES]).expect("one");
        consumer.take(&mut [0; LANE_RECORD_BYTES]).expect("two");
        assert!(consumer.try_idle());
        consumer.stay_awake();
        producer.write(b"three");
        assert!(!producer.post());
    }

    #[test]
    fn what_cannot_be_is_said_to_be_corrupt() {
        let (producer, mut consumer) = lane();
        producer.area.word64(place(0)).store(LANE_RECORD_BYTES as u64 + 1, Relaxed);
        assert_eq!(consumer.take(&mut [0; LANE_RECORD_BYTES]), Err(Corrupt));
        producer.area.word64(place(0)).store(u64::MAX, Relaxed);
        assert_eq!(consumer.take(&mut [0; LANE_RECORD_BYTES]), Err(Corrupt));
        for lie in [LANE_ENTRIES + 1, u32::MAX] {
            producer.area.word32(PRODUCER).store(lie, Relaxed);
            assert_eq!(consumer.pending(), Err(Corrupt));
        }
        assert!(LaneProducer::new(Segment::create(4096).expect("a segment")).is_err());
    }
}
