//! Copiers: programs that copy between a staging area and the memory of a device, which a worker cannot reach by itself.
//!
//! A program that registers memory of a GPU opens a copier: for each worker a ring of records ([`burst_shm::copy_ring`]), which a
//! thread of the program works off. Received bytes are put into the staging area, and what says that they have arrived waits for
//! the thread ([`burst_transport::CopyExecutor`]). A worker looks at its rings once in a pass, and never waits.
//!
//! **Bounds.** Of a copier: [`COPY_RING_ENTRIES`] open copies, [`RECEIVE_BYTES`] staged bytes, [`TRAILING_MAX`] queue pairs that
//! wait for it. What finds no room is dropped like a packet without a buffer, and sent again.
//!
//! **Trust.** The worker writes records only for ranges that keys have opened. A program that lies, stops or dies ends or delays
//! its own queue pairs; its bytes are its own in any case. After a copy that has failed nothing is copied any more: all device
//! memory of the program at this worker is lost.

use burst_base::Qpn;
use burst_base::heap::{self, OutOfMemory};
use burst_shm::copy_ring::{COPY_RING_BYTES, COPY_RING_ENTRIES, CopyDirection, CopyRingProducer, STAGING_BYTES};
use burst_span::{Backing, DeviceNumber, Span, Unreachable};
use burst_transport::{COPIES_PER_CALL, CopyExecutor, CopyProgress, PlacedBytes, TRAIL_BYTES_MAX, Ticket};

/// Bytes of the staging area for received bytes; the rest is for bytes to be sent.
pub const RECEIVE_BYTES: usize = STAGING_BYTES / 2;
/// Most queue pairs that wait for a copier at a time.
pub const TRAILING_MAX: usize = 64;
/// Staged bytes that a call may need: a train, or as many early packets as a call places.
const CALL_BYTES: u64 = (64 << 10) + (COPIES_PER_CALL as u64) * 4096;
const _: () = assert!(2 * CALL_BYTES < RECEIVE_BYTES as u64 && COPIES_PER_CALL < COPY_RING_ENTRIES as usize);
/// Memory that a copier costs each worker at most, the staging area and what waits included.
pub const COPIER_BYTES: u64 = COPY_RING_BYTES as u64 + (TRAILING_MAX * TRAIL_BYTES_MAX) as u64;

/// A queue pair that waits for a copier.
#[derive(Clone, Copy, Debug)]
struct Trailing {
    qpn: u32,
    /// The last ticket that it has begun.
    last: u64,
}

/// The copier of a program at a worker.
#[derive(Debug)]
pub struct Copier {
    number: DeviceNumber,
    ring: CopyRingProducer,
    /// Bytes of the staging area for received bytes that were ever used, and that are free again: a ring.
    used: u64,
    freed: u64,
    /// By ticket: `used` behind its bytes.
    ends: Box<[u64]>,
    /// Up to which ticket `freed` counts.
    counted: u64,
    trailing: Vec<Trailing>,
    /// The queue pair that is being called.
    calling: u32,
    /// Whether records were written that the program does not see yet.
    has_unposted: bool,
}

impl Copier {
    /// The copier of the program whose device spans have this number.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(number: DeviceNumber, ring: CopyRingProducer) -> Result<Copier, OutOfMemory> {
        let mut ends = heap::with_room(COPY_RING_ENTRIES as usize)?;
        ends.resize(COPY_RING_ENTRIES as usize, 0);
        let trailing = heap::with_room(TRAILING_MAX)?;
        let (used, freed, counted, calling) = (0, 0, 0, 0);
        let ends = ends.into_boxed_slice();
        Ok(Copier { number, ring, used, freed, ends, counted, trailing, calling, has_unposted: false })
    }

    /// How far the program is.
    fn progress(&self) -> CopyProgress {
        let counts = self.ring.counts();
        CopyProgress { done: Ticket(counts.done), failed: counts.failed.map(Ticket) }
    }

    /// Whether a copy has not ended, and may still end.
    fn is_open(&self) -> bool {
        self.ring.counts().failed.is_none() && self.ring.last() > self.ring.counts().done
    }

    /// Offset of `len` free bytes in one piece, behind those in use.
    fn stage(&mut self, len: u64) -> Option<u64> {
        let whole = RECEIVE_BYTES as u64;
        let at = self.used % whole;
        let begin = if at + len > whole { self.used + (whole - at) } else { self.used };
        if begin + len > self.freed + whole {
            return None;
        }
        self.used = begin + len;
        Some(begin % whole)
    }

    /// Notes that the queue pair of this call waits for a ticket that begins next. False if too many do already.
    fn note_trailing(&mut self, ticket: u64) -> bool {
        let qpn = self.calling;
        if let Some(trailing) = self.trailing.iter_mut().find(|trailing| trailing.qpn == qpn) {
            trailing.last = ticket;
            return true;
        }
        let has_room = self.trailing.len() < TRAILING_MAX;
        if has_room {
            self.trailing.push(Trailing { qpn, last: ticket });
        }
        has_room
    }

    /// Frees the staged bytes of copies that have ended.
    fn free_ended(&mut self) {
        let done = self.ring.counts().done;
        debug_assert!(self.counted <= done && done - self.counted <= u64::from(COPY_RING_ENTRIES));
        if done > self.counted {
            self.freed = self.ends[self.end_at(done)];
            self.counted = done;
        }
    }

    fn end_at(&self, ticket: u64) -> usize {
        (ticket % u64::from(COPY_RING_ENTRIES)) as usize
    }

    /// Shows the program what was written, and notes how far it is. Returns whether that has changed.
    fn look(&mut self) -> bool {
        if std::mem::take(&mut self.has_unposted) {
            self.ring.post();
        }
        let has_changed = self.ring.refresh();
        self.free_ended();
        has_changed
    }

    /// Begins the copy of `pieces` to the device.
    fn begin(&mut self, span: &Span, pieces: &mut dyn Iterator<Item = &[u8]>) -> Result<PlacedBytes, Unreachable> {
        if self.ring.counts().failed.is_some() {
            return Err(Unreachable::Gone);
        }
        if self.ring.room() == 0 || !self.note_trailing(self.ring.last() + 1) {
            return Err(Unreachable::Late);
        }
        let offset = self.stage(span.len() as u64).ok_or(Unreachable::Late)?;
        self.ring.staging(offset as usize, span.len()).write_pieces(pieces)?;
        let ticket = self.ring.write(CopyDirection::ToDevice, offset as u32, span.as_ptr() as u64, span.len() as u32);
        let end = self.end_at(ticket);
        self.ends[end] = self.used;
        self.has_unposted = true;
        Ok(PlacedBytes::Begun(Ticket(ticket)))
    }
}

impl CopyExecutor for Copier {
    fn has_room(&self) -> bool {
        // After a failure bytes are refused, which is no matter of room.
        let has_bytes = self.used + CALL_BYTES + (64 << 10) <= self.freed + RECEIVE_BYTES as u64;
        self.ring.counts().failed.is_some() || (self.ring.room() >= COPIES_PER_CALL && has_bytes)
    }

    fn place(&mut self, span: &Span, pieces: &mut dyn Iterator<Item = &[u8]>) -> Result<PlacedBytes, Unreachable> {
        match span.backing() {
            Backing::Device(number) if number == self.number => self.begin(span, pieces),
            // Another program's: its own copier alone reaches it.
            Backing::Device(_) => Err(Unreachable::Gone),
            _ => span.write_pieces(pieces).map(|()| PlacedBytes::Done),
        }
    }
}

/// The copiers of a worker.
#[derive(Debug, Default)]
pub(crate) struct Copiers {
    /// By number of the context.
    of: Vec<Option<Box<Copier>>>,
    /// Contexts whose copiers have something under way.
    active: Vec<u32>,
}

impl Copiers {
    /// Whether no copier has anything under way.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// Whether the program of a context has a copier.
    pub fn has(&self, context: u32) -> bool {
        self.of.get(context as usize).is_some_and(Option::is_some)
    }

    /// The copier of a context, for a call to this queue pair.
    #[cold]
    pub fn for_call(&mut self, context: u32, qpn: u32) -> Option<&mut dyn CopyExecutor> {
        let copier = self.of.get_mut(context as usize)?.as_mut()?;
        copier.calling = qpn;
        if !self.active.contains(&context) {
            // There is room: `add` has made it.
            self.active.push(context);
        }
        Some(&mut **copier)
    }

    /// Adds a copier.
    ///
    /// # Errors
    /// There is no memory.
    pub fn add(&mut self, context: u32, copier: Copier) -> Result<(), OutOfMemory> {
        let place = context as usize;
        if self.of.len() <= place {
            heap::reserve(&mut self.of, place + 1)?;
            heap::reserve(&mut self.active, place + 1)?;
            self.of.resize_with(place + 1, || None);
        }
        self.of[place] = Some(Box::new(copier));
        Ok(())
    }

    /// Removes the copier of a context, if it has one.
    pub fn remove(&mut self, context: u32) {
        if let Some(copier) = self.of.get_mut(context as usize) {
            *copier = None;
        }
    }

    /// Whether a program has ended copies since the last pass, or has not been shown some.
    pub fn has_changes(&self) -> bool {
        let has_changes = |copier: &Copier| copier.has_unposted || copier.ring.has_changes();
        self.active.iter().filter_map(|context| self.of[*context as usize].as_deref()).any(has_changes)
    }

    /// The context whose copier is number `at` of those that have something under way.
    pub fn active(&self, at: usize) -> Option<u32> {
        self.active.get(at).copied()
    }

    /// Shows the program what was written, and notes how far it is: that, if it has changed.
    pub fn look(&mut self, context: u32) -> Option<CopyProgress> {
        let copier = self.of.get_mut(context as usize)?.as_mut()?;
        copier.look().then(|| copier.progress())
    }

    /// Queue pair number `at` of those that wait for the copier of a context; it is taken off if what it waits for has ended.
    pub fn take_trailing(&mut self, context: u32, at: &mut usize, progress: CopyProgress) -> Option<Qpn> {
        let copier = self.of.get_mut(context as usize)?.as_mut()?;
        let trailing = *copier.trailing.get(*at)?;
        match progress.failed.is_some() || trailing.last <= progress.done.0 {
            true => drop(copier.trailing.swap_remove(*at)),
            false => *at += 1,
        }
        Some(Qpn::new(trailing.qpn))
    }

    /// Takes the copier of `active` number `at` off if nothing of it is under way. Returns whether it was.
    pub fn rest(&mut self, at: usize) -> bool {
        let is_open = self.of[self.active[at] as usize].as_deref().is_some_and(Copier::is_open);
        if !is_open {
            self.active.swap_remove(at);
        }
        !is_open
    }

    /// Shows programs what was written: for half a pass.
    pub fn post(&mut self) {
        for context in &self.active {
            if let Some(copier) = &mut self.of[*context as usize]
                && std::mem::take(&mut copier.has_unposted)
            {
                copier.ring.post();
            }
        }
    }
}
