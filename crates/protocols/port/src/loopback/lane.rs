//! Lanes: what a worker sends to queue pairs of another worker of the same daemon by the same port.
//!
//! Frames are copied into *blocks* of [`BLOCK_BYTES`]. A block belongs to one worker at a time: the sender fills it and
//! passes it on by a ring of one producer and one consumer, the receiver hands its frames out, as trains, and gives it
//! back by a second such ring. Nothing is shared but the rings.
//!
//! A worker has [`BLOCKS`] of its own for all its lanes. It fills the one that came back last, which is still in a
//! cache; the memory of the others is not touched before they are needed. A lane may have as many blocks away as are left
//! (Choudhury and Hahne, Dynamic queue length thresholds, 1998), so that a worker that gets no processor does not take
//! the way to the others. What finds no block is dropped as `ReceiveOverflow`, as it is by a socket.
//!
//! A block leaves at the end of the burst that began it, however little is in it. When [`UNREAD_MAX`] wait unread, the
//! reader has enough to do: the next one stays open for the bursts to come, until it is full or the reader has caught up. So
//! many small bursts need few blocks.

use super::bell::{Bell, Sleeper};
use super::train::{self, Train};
use crate::{PortError, RxSink};
use burst_base::{Qpn, Reason};
use burst_frame::{TxBatch, TxFrame};
use rtrb::{Consumer, Producer, PushError, RingBuffer};
use std::os::fd::RawFd;
use std::sync::Arc;

/// Bytes of a block: two turns of a queue pair, or the longest frame.
pub const BLOCK_BYTES: usize = 128 << 10;
/// Blocks of a worker: together as much as the store holds.
pub const BLOCKS: usize = super::STORE_BYTES / BLOCK_BYTES;
/// Trains in a block.
const BLOCK_TRAINS: usize = 512;
/// Unread blocks of a lane that keep the next one open.
const UNREAD_MAX: usize = 4;

const _: () = assert!(BLOCK_BYTES > u16::MAX as usize + burst_frame::HEAD_MAX + 8 && UNREAD_MAX < BLOCKS / 4);

/// Frames in order of sending.
struct Block {
    /// As long as it was ever needed, within its capacity.
    bytes: Vec<u8>,
    /// Bytes that are taken.
    used: usize,
    trains: Vec<Train>,
    /// The first train that was not wholly handed out.
    next: usize,
}

impl Block {
    fn new() -> Block {
        let (bytes, trains) = (Vec::with_capacity(BLOCK_BYTES), Vec::with_capacity(BLOCK_TRAINS));
        Block { bytes, used: 0, trains, next: 0 }
    }

    fn joins(&self, frame: &TxFrame) -> bool {
        self.trains.last().is_some_and(|last| last.goes_on(frame, self.used))
    }

    fn fits(&self, frame: &TxFrame) -> bool {
        self.used + frame.udp_payload_len() <= BLOCK_BYTES && (self.trains.len() < BLOCK_TRAINS || self.joins(frame))
    }

    /// Appends a frame, which fits.
    fn put(&mut self, batch: &TxBatch, frame: &TxFrame) -> Result<(), Reason> {
        let (at, end) = (self.used, self.used + frame.udp_payload_len());
        assert!(end <= BLOCK_BYTES);
        if self.bytes.len() < end {
            // Within the capacity.
            self.bytes.resize(end, 0);
        }
        train::copy(batch, frame, &mut self.bytes[at..end])?;
        let joins = self.joins(frame);
        self.used = end;
        match self.trains.last_mut() {
            Some(last) if joins => last.grow(),
            _ => self.trains.push(Train::new(frame, at)),
        }
        Ok(())
    }

    fn is_read(&self) -> bool {
        self.next == self.trains.len()
    }

    fn hand_out(&mut self, budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut left = budget;
        while left > 0
            && let Some(train) = self.trains.get_mut(self.next)
        {
            left -= train.hand_out(&self.bytes, left, sink);
            if train.packets() == 0 {
                self.next += 1;
            }
        }
        budget - left
    }

    fn clear(&mut self) {
        (self.used, self.next) = (0, 0);
        self.trains.clear();
    }
}

/// A lane's end where blocks are filled.
struct Outgoing {
    filled: Producer<Block>,
    returned: Consumer<Block>,
    /// The block that is being filled.
    open: Option<Block>,
    /// Blocks that were taken for this lane and did not come back, the open one included.
    away: usize,
    bell: Arc<Bell>,
}

impl Outgoing {
    /// Takes back what the reader has read.
    fn collect(&mut self, free: &mut Vec<Block>) {
        while let Ok(block) = self.returned.pop() {
            free.push(block);
            self.away -= 1;
        }
    }

    /// Blocks that the reader has not taken yet.
    fn unread(&self) -> usize {
        BLOCKS - self.filled.slots()
    }

    /// Passes the open block on, if there is something in it.
    fn pass_on(&mut self) {
        let Some(block) = self.open.take_if(|block| !block.is_read()) else { return };
        match self.filled.push(block) {
            Ok(()) => self.bell.ring(),
            // There are as many places as blocks.
            Err(PushError::Full(block)) => self.open = Some(block),
        }
    }
}

/// A lane's end where blocks are read.
struct Incoming {
    filled: Consumer<Block>,
    returned: Producer<Block>,
    /// The block that is being read.
    current: Option<Block>,
}

impl Incoming {
    fn is_waiting(&self) -> bool {
        self.current.is_some() || !self.filled.is_empty()
    }

    fn hand_out(&mut self, budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut left = budget;
        while left > 0
            && let Some(mut block) = self.current.take().or_else(|| self.filled.pop().ok())
        {
            left -= block.hand_out(left, sink);
            if block.is_read() {
                block.clear();
                // There are as many places as blocks.
                let back = self.returned.push(block);
                debug_assert!(back.is_ok());
            } else {
                self.current = Some(block);
            }
        }
        budget - left
    }
}

/// All lanes of one worker's port.
pub struct Lanes {
    worker: usize,
    /// By worker; none to itself.
    out: Vec<Option<Outgoing>>,
    incoming: Vec<Incoming>,
    /// Blocks that are here; the last came back last.
    free: Vec<Block>,
    /// Lanes with an open block, one bit for each worker.
    open: u32,
    /// Which lane's turn it is to be read first.
    turn: usize,
    sleeper: Sleeper,
}

/// Where a frame to a queue pair goes that turns round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To the worker itself.
    Own,
    /// By the lane to a worker.
    Lane(usize),
}

impl Lanes {
    /// The lanes between the ports of `workers` workers, in order.
    ///
    /// # Errors
    /// When the system gives no eventfd.
    pub fn between(workers: usize) -> Result<Vec<Lanes>, PortError> {
        assert!(workers <= Qpn::WORKER_MASK as usize + 1, "a queue pair number names its worker");
        let mut all = Vec::with_capacity(workers);
        for worker in 0..workers {
            let sleeper = Sleeper::new(Arc::new(Bell::new()?));
            let free = (0..BLOCKS).map(|_| Block::new()).collect();
            all.push(Lanes { worker, out: Vec::new(), incoming: Vec::new(), free, open: 0, turn: 0, sleeper });
        }
        for (from, to) in (0..workers).flat_map(|from| (0..workers).map(move |to| (from, to))) {
            let outgoing = (from != to).then(|| {
                let (filled, read) = RingBuffer::new(BLOCKS);
                let (give_back, returned) = RingBuffer::new(BLOCKS);
                all[to].incoming.push(Incoming { filled: read, returned: give_back, current: None });
                Outgoing { filled, returned, open: None, away: 0, bell: all[to].sleeper.bell().clone() }
            });
            all[from].out.push(outgoing);
        }
        Ok(all)
    }

    /// The way to a queue pair. Management datagrams stay here: their worker is found by what is in them.
    pub(super) fn way(&self, qpn: Qpn) -> Way {
        let worker = qpn.worker() as usize;
        if qpn == Qpn::GSI || worker == self.worker || worker >= self.out.len() { Way::Own } else { Way::Lane(worker) }
    }

    /// Puts a frame in the lane to `worker`.
    pub(super) fn put(&mut self, worker: usize, batch: &TxBatch, frame: &TxFrame) -> Result<(), Reason> {
        let Some(lane) = self.out.get_mut(worker).and_then(Option::as_mut) else { return Err(Reason::SendFailed) };
        if lane.open.as_ref().is_some_and(|block| !block.fits(frame)) {
            lane.pass_on();
        }
        if lane.open.is_none() {
            lane.collect(&mut self.free);
            if lane.away >= self.free.len() {
                self.collect_all();
            }
            self.take_block(worker);
        }
        let block = self.out[worker].as_mut().and_then(|lane| lane.open.as_mut());
        let block = block.filter(|block| block.fits(frame)).ok_or(Reason::ReceiveOverflow)?;
        self.open |= 1 << worker;
        block.put(batch, frame)
    }

    /// Gives the lane to `worker` a block to fill, if it may have one.
    fn take_block(&mut self, worker: usize) {
        let Lanes { out, free, .. } = self;
        if let Some(lane) = &mut out[worker]
            && lane.away < free.len()
        {
            lane.open = free.pop();
            lane.away += 1;
        }
    }

    /// Takes back what the readers of all lanes have read.
    pub(super) fn collect_all(&mut self) {
        for lane in self.out.iter_mut().flatten() {
            lane.collect(&mut self.free);
        }
    }

    /// Blocks that are here.
    #[cfg(test)]
    pub(super) fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Passes on what was put in, unless it can wait for more.
    #[inline]
    pub(super) fn flush(&mut self) {
        if self.open != 0 {
            self.pass_on(UNREAD_MAX);
        }
    }

    /// Passes the open blocks of those lanes on that have fewer than `unread_max` unread ones.
    fn pass_on(&mut self, unread_max: usize) {
        let mut bits = self.open;
        while bits != 0 {
            let worker = bits.trailing_zeros();
            bits &= bits - 1;
            let Some(lane) = &mut self.out[worker as usize] else { continue };
            if lane.unread() < unread_max {
                lane.pass_on();
                self.open &= !(1 << worker);
            }
        }
    }

    /// Lanes in which something waits for this worker.
    pub(super) fn waiting(&self) -> usize {
        self.incoming.iter().filter(|lane| lane.is_waiting()).count()
    }

    /// Hands out up to `budget` frames, of each of `waiting` lanes as many as of the others; returns how many.
    pub(super) fn hand_out(&mut self, mut waiting: usize, budget: usize, sink: &mut dyn RxSink) -> usize {
        let (mut left, lanes) = (budget, self.incoming.len());
        for i in 0..lanes {
            if waiting == 0 || left == 0 {
                break;
            }
            let lane = &mut self.incoming[(self.turn + i) % lanes];
            if lane.is_waiting() {
                left -= lane.hand_out(left.div_ceil(waiting), sink);
                waiting -= 1;
            }
        }
        self.turn = (self.turn + 1) % lanes.max(1);
        budget - left
    }

    /// The worker is awake: what it has put in lanes and nobody needed goes on as readers catch up.
    #[inline]
    pub(super) fn rise(&mut self) {
        self.sleeper.rise();
        self.flush();
    }

    /// The worker is about to sleep: it leaves nothing behind, and says so. True if something has come meanwhile.
    pub(super) fn before_sleep(&mut self) -> bool {
        self.pass_on(usize::MAX);
        self.sleeper.lie_down();
        self.waiting() > 0
    }

    /// Whether something is open or waits.
    pub(super) fn has_work(&self) -> bool {
        self.open != 0 || self.waiting() > 0
    }

    /// Readable when another worker has rung.
    pub(super) fn fd(&self) -> RawFd {
        self.sleeper.fd()
    }
}

impl core::fmt::Debug for Lanes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Lanes").field("worker", &self.worker).field("free", &self.free.len()).finish_non_exhaustive()
    }
}
