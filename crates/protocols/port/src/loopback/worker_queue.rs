//! Worker queues: packets from one worker to queue pairs of another worker of the same daemon by the same port.
//!
//! Packets are copied into *blocks* of [`BLOCK_BYTES`]. A block belongs to one worker at a time: the sender fills it and passes
//! it on through a ring of one producer and one consumer; the receiver delivers its packets, as trains, and returns the block
//! through a second such ring. The rings are all that two workers share.
//!
//! A worker has [`BLOCKS`] blocks for all its queues. It fills the block that was returned last, which is still in a cache; the
//! memory of the others is not touched before they are needed. A queue may have as many blocks in flight as are left (Choudhury
//! and Hahne, Dynamic queue length thresholds, 1998), so that a worker that gets no processor does not block the queues to the
//! others. A packet for which there is no block is dropped as `ReceiveOverflow`, as a socket drops it.
//!
//! A block is passed on at the end of the burst that began it, however little it holds. But while [`UNREAD_MAX`] blocks wait
//! unread, the reader has enough work, so the next block stays open for the following bursts until it is full or the reader has
//! caught up. Many small bursts therefore need few blocks.

use super::train::{self, LoopbackTrain};
use super::wakeup::{WorkerSleep, WorkerWakeup};
use crate::sys::give_back::give_back;
use crate::{PortError, RxSink};
use burst_base::{Qpn, Reason};
use burst_frame::{TxBatch, TxFrame};
use rtrb::{Consumer, Producer, PushError, RingBuffer};
use std::os::fd::RawFd;
use std::sync::Arc;

/// Bytes of a block: two turns of a queue pair, or the longest packet.
pub const BLOCK_BYTES: usize = 128 << 10;
/// Blocks of a worker: together as many bytes as the store.
pub const BLOCKS: usize = super::STORE_BYTES / BLOCK_BYTES;
/// Most trains in a block.
const BLOCK_TRAINS: usize = 512;
/// Unread blocks of a queue from which on the next block stays open.
const UNREAD_MAX: usize = 4;

const _: () = assert!(BLOCK_BYTES > u16::MAX as usize + burst_frame::HEAD_MAX + 8 && UNREAD_MAX < BLOCKS / 4);

/// Packets in order of sending.
struct FrameBlock {
    /// Memory of the packets. Its length is the most that was ever in use, so that fresh pages are not zeroed before they are
    /// needed.
    bytes: Vec<u8>,
    /// Bytes in use.
    used: usize,
    trains: Vec<LoopbackTrain>,
    /// Index of the first train that is not wholly delivered.
    next: usize,
}

impl FrameBlock {
    fn new() -> FrameBlock {
        let (bytes, trains) = (Vec::with_capacity(BLOCK_BYTES), Vec::with_capacity(BLOCK_TRAINS));
        FrameBlock { bytes, used: 0, trains, next: 0 }
    }

    /// Whether `frame` would continue the last train.
    fn joins(&self, frame: &TxFrame) -> bool {
        self.trains.last().is_some_and(|last| last.is_continued_by(frame, self.used))
    }

    /// Whether there is room for `frame`.
    fn fits(&self, frame: &TxFrame) -> bool {
        self.used + frame.udp_payload_len() <= BLOCK_BYTES && (self.trains.len() < BLOCK_TRAINS || self.joins(frame))
    }

    /// Appends a packet for which there is room.
    fn push(&mut self, batch: &TxBatch, frame: &TxFrame) -> Result<(), Reason> {
        let (at, end) = (self.used, self.used + frame.udp_payload_len());
        assert!(end <= BLOCK_BYTES);
        if self.bytes.len() < end {
            // This does not allocate: the capacity is BLOCK_BYTES.
            self.bytes.resize(end, 0);
        }
        train::copy(batch, frame, &mut self.bytes[at..end])?;
        let joins = self.joins(frame);
        self.used = end;
        match self.trains.last_mut() {
            Some(last) if joins => last.grow(),
            _ => self.trains.push(LoopbackTrain::new(frame, at)),
        }
        debug_assert!(self.trains.len() <= BLOCK_TRAINS && self.used <= self.bytes.len());
        Ok(())
    }

    /// Whether all packets were delivered; true for an empty block.
    fn is_read(&self) -> bool {
        debug_assert!(self.next <= self.trains.len());
        self.next == self.trains.len()
    }

    fn deliver(&mut self, budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut left = budget;
        while left > 0
            && let Some(train) = self.trains.get_mut(self.next)
        {
            left -= train.deliver(&self.bytes, left, sink);
            if train.packets() == 0 {
                self.next += 1;
            }
        }
        debug_assert!(left <= budget);
        budget - left
    }

    fn clear(&mut self) {
        debug_assert!(self.is_read(), "a block is cleared with packets");
        (self.used, self.next) = (0, 0);
        self.trains.clear();
    }
}

/// The sender's end of a queue to one worker.
struct QueueSender {
    filled: Producer<FrameBlock>,
    returned: Consumer<FrameBlock>,
    /// The block that is being filled.
    open: Option<FrameBlock>,
    /// Blocks in flight: taken for this queue and not returned yet, the open one included.
    in_flight: usize,
    /// Wakes the reader.
    wakeup: Arc<WorkerWakeup>,
}

impl QueueSender {
    /// Takes back the blocks that the reader has returned.
    fn collect(&mut self, free: &mut Vec<FrameBlock>) {
        while let Ok(block) = self.returned.pop() {
            free.push(block);
            debug_assert!(self.in_flight > 0);
            self.in_flight -= 1;
        }
    }

    /// Number of blocks that the reader has not taken yet.
    fn unread(&self) -> usize {
        debug_assert!(self.filled.slots() <= BLOCKS);
        BLOCKS - self.filled.slots()
    }

    /// Passes the open block on to the reader, unless it is empty.
    fn pass_on(&mut self) {
        let Some(block) = self.open.take_if(|block| !block.is_read()) else { return };
        match self.filled.push(block) {
            Ok(()) => self.wakeup.wake(),
            // Not reached: the ring has as many slots as the worker has blocks.
            Err(PushError::Full(block)) => self.open = Some(block),
        }
    }
}

/// The reader's end of a queue from one worker.
struct QueueReader {
    filled: Consumer<FrameBlock>,
    returned: Producer<FrameBlock>,
    /// The block whose packets are being delivered.
    current: Option<FrameBlock>,
}

impl QueueReader {
    /// Whether there are packets.
    fn is_waiting(&self) -> bool {
        self.current.is_some() || !self.filled.is_empty()
    }

    fn deliver(&mut self, budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut left = budget;
        while left > 0
            && let Some(mut block) = self.current.take().or_else(|| self.filled.pop().ok())
        {
            left -= block.deliver(left, sink);
            if block.is_read() {
                block.clear();
                // The ring has as many slots as the sender has blocks.
                let back = self.returned.push(block);
                debug_assert!(back.is_ok());
            } else {
                self.current = Some(block);
            }
        }
        budget - left
    }
}

/// All queues of one worker's port to and from the other workers' ports of the same device.
pub struct WorkerQueues {
    /// Number of this worker.
    worker: usize,
    /// Senders by the number of the reading worker; `None` for this worker itself.
    senders: Vec<Option<QueueSender>>,
    readers: Vec<QueueReader>,
    /// Free blocks; the last one was returned last.
    free: Vec<FrameBlock>,
    /// Queues that have an open block: one bit for each reading worker.
    open: u32,
    /// Index of the queue that is read first in the next pass.
    turn: usize,
    sleep: WorkerSleep,
}

/// The route of a packet that is looped back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoopbackRoute {
    /// To the sending worker itself, by the store.
    Own,
    /// To another worker, by the queue to it.
    Worker(usize),
}

impl WorkerQueues {
    /// Makes the queues between the ports of `workers` workers; one element for each worker, in order of their numbers.
    ///
    /// # Errors
    /// When the system gives no eventfd.
    pub fn between(workers: usize) -> Result<Vec<WorkerQueues>, PortError> {
        assert!(workers <= Qpn::WORKER_MASK as usize + 1, "a queue pair number names its worker");
        let mut all = Vec::with_capacity(workers);
        for worker in 0..workers {
            let sleep = WorkerSleep::new(Arc::new(WorkerWakeup::new()?));
            let free = (0..BLOCKS).map(|_| FrameBlock::new()).collect();
            let (senders, readers) = (Vec::new(), Vec::new());
            all.push(WorkerQueues { worker, senders, readers, free, open: 0, turn: 0, sleep });
        }
        for (from, to) in (0..workers).flat_map(|from| (0..workers).map(move |to| (from, to))) {
            let sender = (from != to).then(|| {
                let (filled, read) = RingBuffer::new(BLOCKS);
                let (give_back, returned) = RingBuffer::new(BLOCKS);
                all[to].readers.push(QueueReader { filled: read, returned: give_back, current: None });
                QueueSender { filled, returned, open: None, in_flight: 0, wakeup: all[to].sleep.wakeup().clone() }
            });
            all[from].senders.push(sender);
        }
        Ok(all)
    }

    /// The route to a queue pair. The worker of a management datagram follows from its contents, not from its queue pair number,
    /// so it is delivered by the sending worker; so is a multicast datagram.
    pub(super) fn route(&self, qpn: Qpn) -> LoopbackRoute {
        let worker = qpn.worker() as usize;
        let is_here = qpn == Qpn::GSI || qpn == Qpn::MULTICAST || worker == self.worker || worker >= self.senders.len();
        if is_here { LoopbackRoute::Own } else { LoopbackRoute::Worker(worker) }
    }

    /// Copies a packet into the queue to `worker`.
    ///
    /// # Errors
    /// [`Reason::ReceiveOverflow`] without a block, [`Reason::SendFailed`] when the memory of the payload is gone.
    pub(super) fn push(&mut self, worker: usize, batch: &TxBatch, frame: &TxFrame) -> Result<(), Reason> {
        let Some(queue) = self.senders.get_mut(worker).and_then(Option::as_mut) else { return Err(Reason::SendFailed) };
        if queue.open.as_ref().is_some_and(|block| !block.fits(frame)) {
            queue.pass_on();
        }
        if queue.open.is_none() {
            queue.collect(&mut self.free);
            if queue.in_flight >= self.free.len() {
                self.collect_all();
            }
            self.take_block(worker);
        }
        let block = self.senders[worker].as_mut().and_then(|queue| queue.open.as_mut());
        let block = block.filter(|block| block.fits(frame)).ok_or(Reason::ReceiveOverflow)?;
        self.open |= 1 << worker;
        block.push(batch, frame)
    }

    /// Gives the queue to `worker` a block to fill, if the queue may have another one.
    fn take_block(&mut self, worker: usize) {
        let WorkerQueues { senders, free, .. } = self;
        if let Some(queue) = &mut senders[worker]
            && queue.in_flight < free.len()
        {
            debug_assert!(queue.open.is_none());
            queue.open = free.pop();
            queue.in_flight += 1;
        }
        debug_assert!(self.free.len() <= BLOCKS);
    }

    /// Takes back the blocks that the readers of all queues have returned.
    pub(super) fn collect_all(&mut self) {
        for queue in self.senders.iter_mut().flatten() {
            queue.collect(&mut self.free);
        }
        debug_assert!(self.free.len() <= BLOCKS);
    }

    /// Gives the memory of the free blocks back to the system.
    pub(super) fn shrink(&mut self) {
        self.collect_all();
        for block in &mut self.free {
            debug_assert!(block.used == 0, "a free block with packets");
            give_back(&mut block.bytes);
        }
    }

    /// Pages of the free blocks that are resident.
    #[cfg(test)]
    pub(super) fn resident_pages(&self) -> usize {
        self.free.iter().map(|block| crate::sys::give_back::resident_pages(&block.bytes)).sum()
    }

    /// Number of free blocks.
    #[cfg(test)]
    pub(super) fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Passes the open blocks on, except those of queues whose readers have enough unread blocks.
    #[inline]
    pub(super) fn flush(&mut self) {
        if self.open != 0 {
            self.pass_on(UNREAD_MAX);
        }
    }

    /// Passes on the open block of every queue that has fewer than `unread_max` unread blocks.
    fn pass_on(&mut self, unread_max: usize) {
        let mut bits = self.open;
        while bits != 0 {
            let worker = bits.trailing_zeros();
            bits &= bits - 1;
            let Some(queue) = &mut self.senders[worker as usize] else { continue };
            if queue.unread() < unread_max {
                queue.pass_on();
                self.open &= !(1 << worker);
            }
        }
    }

    /// Number of queues that have packets for this worker.
    pub(super) fn waiting(&self) -> usize {
        self.readers.iter().filter(|queue| queue.is_waiting()).count()
    }

    /// Delivers up to `budget` packets, shared equally among the `waiting` queues that have some; returns how many.
    pub(super) fn deliver(&mut self, mut waiting: usize, budget: usize, sink: &mut dyn RxSink) -> usize {
        let (mut left, queues) = (budget, self.readers.len());
        for i in 0..queues {
            if waiting == 0 || left == 0 {
                break;
            }
            let queue = &mut self.readers[(self.turn + i) % queues];
            if queue.is_waiting() {
                left -= queue.deliver(left.div_ceil(waiting), sink);
                waiting -= 1;
            }
        }
        self.turn = (self.turn + 1) % queues.max(1);
        debug_assert!(left <= budget, "a queue has delivered more than its share");
        budget - left
    }

    /// The worker is awake: open blocks are passed on as their readers catch up.
    #[inline]
    pub(super) fn leave_sleep(&mut self) {
        self.sleep.leave();
        self.flush();
    }

    /// The worker is about to sleep: passes all open blocks on and announces the sleep. True if packets have arrived meanwhile.
    pub(super) fn before_sleep(&mut self) -> bool {
        self.pass_on(usize::MAX);
        self.sleep.enter();
        self.waiting() > 0
    }

    /// Whether a block is open or packets wait to be delivered.
    pub(super) fn has_work(&self) -> bool {
        self.open != 0 || self.waiting() > 0
    }

    /// The descriptor that is readable when another worker has woken this one.
    pub(super) fn fd(&self) -> RawFd {
        self.sleep.fd()
    }
}

impl core::fmt::Debug for WorkerQueues {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let free = self.free.len();
        f.debug_struct("WorkerQueues").field("worker", &self.worker).field("free", &free).finish_non_exhaustive()
    }
}
