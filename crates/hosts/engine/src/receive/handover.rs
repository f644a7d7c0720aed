//! Hand-over of packets that arrived at the wrong worker.
//!
//! The kernel steers packets by UDP ports, or by a filter on the queue pair number, and GRO may still put packets of several
//! queue pairs into one train. A worker that gets a packet for another worker's queue pair copies it into a preallocated frame of
//! the owner's inbox. An inbox without free frames drops the packet, as a full NIC queue would.
//!
//! Management datagrams wait in a queue of their own. A message that withdraws a connect request is neither answered nor
//! repeated, so a lost one leaves a connection behind; and a process that dies withdraws all its requests at once. The queue
//! therefore has as many places as the agent's queue of received datagrams, and it needs memory only while datagrams wait.

use burst_base::{DeviceId, Reason};
use burst_frame::{Flow, RxFrame};
use burst_ledger::OpenPool;
use burst_wire::MAD_LEN;
use crossbeam_queue::{ArrayQueue, SegQueue};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Frames per inbox.
const FRAMES: usize = 512;
/// Longest frame: the largest payload with the longest head and padding.
const BYTES_MAX: usize = 4096 + burst_frame::HEAD_MAX + 3;
/// Management datagrams that may wait; about 350 bytes each.
const MADS: usize = OpenPool::HandedMad.places();
const _: () = assert!(MADS == burst_gsi::RECEIVED_MAX);
/// Longest packet with a management datagram: base and datagram headers (IBA 9.2, 9.3.2), the MAD, and padding.
const MAD_BYTES_MAX: usize = 12 + 8 + MAD_LEN + 3;

/// A packet between two workers.
struct HandedFrame<const LEN: usize> {
    device: DeviceId,
    flow: Flow,
    len: usize,
    bytes: [u8; LEN],
}

impl<const LEN: usize> HandedFrame<LEN> {
    fn empty() -> HandedFrame<LEN> {
        HandedFrame { device: DeviceId(0), flow: Flow::default(), len: 0, bytes: [0; LEN] }
    }

    fn set(&mut self, device: DeviceId, frame: &RxFrame<'_>) {
        (self.device, self.flow, self.len) = (device, frame.flow, frame.bytes.len());
        self.bytes[..self.len].copy_from_slice(frame.bytes);
    }

    fn frame(&self) -> RxFrame<'_> {
        RxFrame { flow: self.flow, bytes: &self.bytes[..self.len] }
    }
}

/// Packets that other workers hand over to one worker, and the eventfd by which the daemon's threads wake that worker.
///
/// Both sides of a sleep are sequentially consistent, the queues' operations included: the owner announces its sleep and then
/// looks at the queues, others put something in and then look whether the owner sleeps. One of the two sees the other.
pub struct Inbox {
    wake: OwnedFd,
    asleep: AtomicBool,
    filled: ArrayQueue<Box<HandedFrame<BYTES_MAX>>>,
    empty: ArrayQueue<Box<HandedFrame<BYTES_MAX>>>,
    mads: SegQueue<HandedFrame<MAD_BYTES_MAX>>,
}

impl Inbox {
    /// An inbox for one of `workers` workers; a single worker needs no frames.
    ///
    /// # Errors
    /// When the system gives no eventfd.
    pub fn new(workers: usize) -> std::io::Result<Inbox> {
        let frames = if workers > 1 { FRAMES } else { 1 };
        let inbox = Inbox {
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            asleep: AtomicBool::new(false),
            filled: ArrayQueue::new(frames),
            empty: ArrayQueue::new(frames),
            mads: SegQueue::new(),
        };
        while workers > 1 && !inbox.empty.is_full() {
            // Succeeds: the loop ends when the queue is full.
            let _ = inbox.empty.push(Box::new(HandedFrame::empty()));
        }
        Ok(inbox)
    }

    /// The eventfd.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Wakes the owner. A full eventfd counter is as good as a write.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Announces that the owner sleeps, or that it does not any more. Before it waits it looks at all its work once more.
    pub fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
    }

    /// Wakes the owner if it sleeps; true if so. To be called after giving it work.
    pub fn wake_sleeper(&self) -> bool {
        let sleeps = self.asleep.load(Ordering::SeqCst);
        if sleeps {
            self.wake();
        }
        sleeps
    }

    /// Copies a packet into the inbox. The caller wakes the owner at the end of its burst.
    ///
    /// # Errors
    /// [`Reason::HandoverFull`] without a free frame, [`Reason::InvalidLength`] for a packet longer than any MTU.
    pub fn hand_over(&self, device: DeviceId, frame: &RxFrame<'_>) -> Result<(), Reason> {
        if frame.bytes.len() > BYTES_MAX {
            return Err(Reason::InvalidLength);
        }
        let mut handed = self.empty.pop().ok_or(Reason::HandoverFull)?;
        handed.set(device, frame);
        // Succeeds: there are as many places as frames.
        self.filled.push(handed).map_err(|_| Reason::HandoverFull)
    }

    /// Copies a management datagram into the inbox. The caller wakes the owner at the end of its burst.
    ///
    /// # Errors
    /// [`Reason::MadQueueFull`] when as many wait as the owner's agent keeps, [`Reason::InvalidLength`] for a packet that is
    /// longer than one with a management datagram.
    pub fn hand_over_mad(&self, device: DeviceId, frame: &RxFrame<'_>) -> Result<(), Reason> {
        if frame.bytes.len() > MAD_BYTES_MAX {
            return Err(Reason::InvalidLength);
        }
        // Several workers may pass this test at the same time: then there is one datagram more for each of them.
        if self.mads.len() >= MADS {
            return Err(Reason::MadQueueFull);
        }
        let mut handed = HandedFrame::empty();
        handed.set(device, frame);
        self.mads.push(handed);
        Ok(())
    }

    /// Gives up to `budget` packets and as many management datagrams to `take`; returns their number.
    pub fn drain(&self, budget: usize, mut take: impl FnMut(DeviceId, &RxFrame<'_>)) -> usize {
        let mut count = 0;
        for handed in core::iter::from_fn(|| self.filled.pop()).take(budget) {
            debug_assert!(handed.len <= BYTES_MAX);
            take(handed.device, &handed.frame());
            // Succeeds: there are as many places as frames.
            let _ = self.empty.push(handed);
            count += 1;
        }
        for handed in core::iter::from_fn(|| self.mads.pop()).take(budget) {
            take(handed.device, &handed.frame());
            count += 1;
        }
        count
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.filled.is_empty() && self.mads.is_empty()
    }
}

impl core::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Inbox")
            .field("filled", &self.filled.len())
            .field("mads", &self.mads.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceId = DeviceId(3);

    fn frame(bytes: &[u8]) -> RxFrame<'_> {
        RxFrame { flow: Flow::default(), bytes }
    }

    #[test]
    fn packets_arrive_in_order_and_a_full_inbox_refuses() {
        let inbox = Inbox::new(2).expect("inbox");
        for i in 0..FRAMES {
            inbox.hand_over(DEVICE, &frame(&[i as u8; 20])).expect("room");
        }
        assert_eq!(inbox.hand_over(DEVICE, &frame(&[0; 20])), Err(Reason::HandoverFull));
        assert_eq!(inbox.hand_over(DEVICE, &frame(&[0; 5000])), Err(Reason::InvalidLength));
        let mut next = 0;
        assert_eq!(
            inbox.drain(10, |device, f| {
                assert_eq!((device, f.bytes[0]), (DEVICE, next));
                next += 1;
            }),
            10
        );
        inbox.hand_over(DEVICE, &frame(&[0; 20])).expect("room again");
        assert!(!inbox.is_empty());
    }

    #[test]
    fn only_a_sleeper_is_woken() {
        let inbox = Inbox::new(2).expect("inbox");
        let is_woken = || rustix::io::read(inbox.wake_fd(), &mut [0; 8]).is_ok();
        assert!(!inbox.wake_sleeper() && !is_woken());
        inbox.set_asleep(true);
        assert!(inbox.wake_sleeper() && is_woken());
        inbox.set_asleep(false);
        assert!(!inbox.wake_sleeper() && !is_woken());
    }

    /// A process that dies withdraws thousands of requests within one pass of a worker, and the receiver's workers take turns on
    /// the same processor. The messages are not repeated.
    #[test]
    fn as_many_mads_wait_as_the_agent_keeps() {
        let most = OpenPool::HandedMad.places();
        let inbox = Inbox::new(2).expect("inbox");
        let mad = |number: usize| {
            let mut bytes = [0; MAD_BYTES_MAX];
            bytes[..8].copy_from_slice(&number.to_ne_bytes());
            bytes
        };
        for number in 0..most {
            inbox.hand_over_mad(DEVICE, &frame(&mad(number))).expect("room");
        }
        assert_eq!(inbox.hand_over_mad(DEVICE, &frame(&mad(most))), Err(Reason::MadQueueFull));
        assert_eq!(inbox.hand_over_mad(DEVICE, &frame(&[0; MAD_BYTES_MAX + 1])), Err(Reason::InvalidLength));
        for _ in 0..FRAMES {
            inbox.hand_over(DEVICE, &frame(&[0xff; 20])).expect("datagrams take no place of packets");
        }
        let mut next = 0;
        while !inbox.is_empty() {
            inbox.drain(FRAMES, |_, f| match f.bytes.len() {
                20 => assert_eq!(next, 0, "packets come first"),
                _ => {
                    assert_eq!(f.bytes, mad(next));
                    next += 1;
                }
            });
        }
        assert_eq!(next, most);
    }
}
