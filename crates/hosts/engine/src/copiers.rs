//! Copiers: programs that copy between a staging area and the memory of a device, which a worker cannot reach by itself.
//!
//! A program that registers memory of a GPU opens a copier: for each worker a ring of records ([`burst_shm::copy_ring`]), which a
//! thread of the program works off. Received bytes are put into the staging area, and what says that they have arrived waits for
//! the thread ([`burst_transport::CopyExecutor`]). A worker looks at its rings once in a pass, and never waits.
//!
//! Bytes to be sent are staged in blocks before a turn sends them. A block is used again when it was sent, or was not used for
//! `UNUSED_PASSES` passes.
//!
//! **Bounds.** Of a copier: [`COPY_RING_ENTRIES`] open copies, [`RECEIVE_BYTES`] staged bytes, [`TRAILING_MAX`] queue pairs that
//! wait for it with received bytes. What finds no room is dropped like a packet without a buffer, and sent again.
//!
//! **Trust.** The worker writes records only for ranges that keys have opened. A program that lies, stops or dies ends or delays
//! its own queue pairs; its bytes are its own in any case. After a copy that has failed nothing is copied any more: all device
//! memory of the program at this worker is lost.

use burst_base::Qpn;
use burst_base::heap::{self, OutOfMemory};
use burst_shm::copy_ring::{COPY_RING_BYTES, COPY_RING_ENTRIES, CopyDirection, CopyRingProducer, STAGING_BYTES};
use burst_span::{Backing, DeviceNumber, Span, Unreachable};
use burst_transport::{
    COPIES_PER_CALL, CopyExecutor, CopyProgress, PacketCuts, PlacedBytes, STAGED_BYTES_MAX, StagedFor, TRAIL_BYTES_MAX,
    Ticket,
};

/// Bytes of the staging area for received bytes; the rest is for bytes to be sent.
pub const RECEIVE_BYTES: usize = STAGING_BYTES / 2;
/// Most queue pairs that wait for a copier at a time.
pub const TRAILING_MAX: usize = 64;
/// Staged bytes that a call may need: a train, or as many early packets as a call places.
const CALL_BYTES: u64 = (64 << 10) + (COPIES_PER_CALL as u64) * 4096;
const _: () = assert!(2 * CALL_BYTES < RECEIVE_BYTES as u64 && COPIES_PER_CALL < COPY_RING_ENTRIES as usize);
/// Memory that a copier costs each worker at most, the staging area and what waits included.
pub const COPIER_BYTES: u64 = COPY_RING_BYTES as u64 + (TRAILING_MAX * TRAIL_BYTES_MAX) as u64;

/// Bytes of a block of bytes to be sent, and their number.
const BLOCK_BYTES: usize = STAGED_BYTES_MAX as usize;
const BLOCKS: usize = (STAGING_BYTES - RECEIVE_BYTES) / BLOCK_BYTES;
/// Passes after which a block that was not sent may be used for other bytes.
const UNUSED_PASSES: u64 = 64;

/// A block of bytes to be sent.
#[derive(Clone, Copy, Debug)]
struct StagedBlock {
    qpn: u32,
    tag: StagedFor,
    /// Address on the device, and bytes.
    addr: u64,
    len: u32,
    ticket: u64,
    /// The pass in which it was last begun or sent, and whether it was sent.
    pass: u64,
    is_sent: bool,
}

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
    /// Bytes to be sent, by block of the staging area behind [`RECEIVE_BYTES`].
    blocks: [Option<StagedBlock>; BLOCKS],
    /// Passes in which something was under way.
    pass: u64,
    /// The queue pair that is being called.
    calling: u32,
    /// Whether records were written that the program does not see yet.
    has_unposted: bool,
    /// Whether queue pairs wait for bytes to be sent that found no place in `trailing`.
    wakes_all: bool,
    /// Where the walk over the worker's table goes on that calls them.
    walk: Option<u32>,
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
        let (used, freed, counted, calling, pass) = (0, 0, 0, 0, 0);
        let (ends, blocks) = (ends.into_boxed_slice(), [None; BLOCKS]);
        let (has_unposted, wakes_all) = (false, false);
        Ok(Copier {
            number,
            ring,
            used,
            freed,
            ends,
            counted,
            trailing,
            blocks,
            pass,
            calling,
            has_unposted,
            wakes_all,
            walk: None,
        })
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
    fn take_bytes(&mut self, len: u64) -> Option<u64> {
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
        self.pass += 1;
        let has_changed = self.ring.refresh();
        self.free_ended();
        has_changed || self.wakes_waiting()
    }

    /// Whether queue pairs for which there was no block, or no place in the list, can be called now.
    fn wakes_waiting(&self) -> bool {
        let done = self.ring.counts().done;
        self.trailing.iter().any(|trailing| trailing.last <= done) || (self.wakes_all && done == self.ring.last())
    }

    /// The block of the queue pair of this call that has the byte at `addr`.
    fn block_at(&self, addr: u64, tag: &StagedFor) -> Option<usize> {
        let has = |block: &StagedBlock| {
            block.qpn == self.calling
                && addr.checked_sub(block.addr).is_some_and(|offset| offset < block.len.into())
                && block.tag.is_good_for(tag)
        };
        self.blocks.iter().position(|block| block.as_ref().is_some_and(has))
    }

    /// Staged bytes of the block from `addr` on; `None` while its copy has not ended.
    fn staged_part(&self, at: usize, addr: u64) -> Option<Span> {
        let block = self.blocks[at].filter(|block| block.ticket <= self.ring.counts().done)?;
        let offset = (addr - block.addr) as usize;
        Some(self.ring.staging(RECEIVE_BYTES + at * BLOCK_BYTES + offset, block.len as usize - offset))
    }

    /// A block for other bytes: a free one, else the one that was not used for longest.
    fn free_block(&self) -> Option<usize> {
        let age = |block: &StagedBlock| {
            let passes = self.pass - block.pass;
            let is_free = passes > 0 && (block.is_sent || passes > UNUSED_PASSES);
            (is_free && block.ticket <= self.ring.counts().done).then_some(passes)
        };
        let ages = self.blocks.iter().map(|block| block.as_ref().map_or(Some(u64::MAX), age));
        ages.enumerate().filter_map(|(at, age)| age.map(|age| (age, at))).max().map(|(_, at)| at)
    }

    /// Begins to stage at most a block of bytes of the device. False without room.
    fn begin_block(&mut self, addr: u64, len: u32, tag: StagedFor) -> bool {
        // Received bytes go first: a call that has asked for room must find it.
        if self.ring.room() <= COPIES_PER_CALL {
            return false;
        }
        let Some(at) = self.free_block() else { return false };
        if !self.note_trailing(self.ring.last() + 1) {
            return false;
        }
        debug_assert!(len as usize <= BLOCK_BYTES);
        let offset = (RECEIVE_BYTES + at * BLOCK_BYTES) as u32;
        let ticket = self.ring.write(CopyDirection::FromDevice, offset, addr, len);
        let end = self.end_at(ticket);
        self.ends[end] = self.used;
        self.has_unposted = true;
        let (qpn, pass) = (self.calling, self.pass);
        self.blocks[at] = Some(StagedBlock { qpn, tag, addr, len, ticket, pass, is_sent: false });
        true
    }

    /// Whether a span is of this program's device, whose copies go on.
    fn check(&self, span: &Span) -> Result<(), Unreachable> {
        let is_own = span.backing() == Backing::Device(self.number);
        if is_own && self.ring.counts().failed.is_none() { Ok(()) } else { Err(Unreachable::Gone) }
    }

    /// Begins the copy of `pieces` to the device.
    fn begin(&mut self, span: &Span, pieces: &mut dyn Iterator<Item = &[u8]>) -> Result<PlacedBytes, Unreachable> {
        if self.ring.counts().failed.is_some() {
            return Err(Unreachable::Gone);
        }
        let before = self.used;
        let offset = self.take_bytes(span.len() as u64).ok_or(Unreachable::Late)?;
        // What is noted waits for a ticket, so it must be given then.
        let staged = match self.ring.room() {
            0 => Err(Unreachable::Late),
            _ => self.ring.staging(offset as usize, span.len()).write_pieces(pieces),
        };
        let staged = staged
            .and_then(|()| if self.note_trailing(self.ring.last() + 1) { Ok(()) } else { Err(Unreachable::Late) });
        if let Err(why) = staged {
            self.used = before;
            return Err(why);
        }
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

    fn stage(&mut self, span: &Span, cuts: PacketCuts, tag: StagedFor) -> Result<u32, Unreachable> {
        self.check(span)?;
        let (begin, end) = (span.as_ptr() as u64, span.as_ptr() as u64 + span.len() as u64);
        let (mut addr, mut ready, mut is_ready) = (begin, 0, true);
        while addr < end {
            match self.block_at(addr, &tag) {
                Some(at) => {
                    is_ready &= self.staged_part(at, addr).is_some();
                    addr = self.blocks[at].map_or(end, |block| block.addr + u64::from(block.len));
                    ready = if is_ready { addr.min(end) - begin } else { ready };
                }
                None => {
                    is_ready = false;
                    if !self.begin_block(addr, cuts.whole((addr - begin) as u32, (end - addr) as u32), tag) {
                        break;
                    }
                }
            }
        }
        if !is_ready && !self.note_trailing(self.ring.last()) {
            self.wakes_all = true;
        }
        Ok(ready as u32)
    }

    fn staged(&mut self, span: &Span, tag: StagedFor) -> Option<Span> {
        self.check(span).ok()?;
        let addr = span.as_ptr() as u64;
        let Some(at) = self.block_at(addr, &tag) else {
            self.begin_block(addr, span.len() as u32, tag);
            return None;
        };
        let part = self.staged_part(at, addr).filter(|part| part.len() >= span.len())?;
        if let Some(block) = &mut self.blocks[at] {
            (block.pass, block.is_sent) = (self.pass, block.is_sent || part.len() == span.len());
        }
        Some(part.sub(0, span.len()))
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
        let has_changes = |copier: &Copier| {
            copier.has_unposted || copier.walk.is_some() || copier.wakes_waiting() || copier.ring.has_changes()
        };
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

    fn of_mut(&mut self, context: u32) -> Option<&mut Copier> {
        self.of.get_mut(context as usize)?.as_deref_mut()
    }

    /// Begins to call all queue pairs of a context, if more wait than are noted and no walk is under way.
    pub fn begin_walk(&mut self, context: u32) {
        if let Some(copier) = self.of_mut(context).filter(|copier| copier.walk.is_none())
            && std::mem::take(&mut copier.wakes_all)
        {
            copier.walk = Some(0);
        }
    }

    /// Where the walk of a context goes on, and how far its program is.
    pub fn walk(&mut self, context: u32) -> Option<(u32, CopyProgress)> {
        let copier = self.of_mut(context)?;
        copier.walk.map(|from| (from, copier.progress()))
    }

    /// Where it goes on in the next pass; `None`: it has ended.
    pub fn set_walk(&mut self, context: u32, from: Option<u32>) {
        if let Some(copier) = self.of_mut(context) {
            copier.walk = from;
        }
    }

    /// Takes the copier of `active` number `at` off if nothing of it is under way. Returns whether it was.
    pub fn rest(&mut self, at: usize) -> bool {
        let goes_on = |copier: &Copier| copier.is_open() || copier.walk.is_some() || copier.wakes_waiting();
        let is_open = self.of[self.active[at] as usize].as_deref().is_some_and(goes_on);
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
