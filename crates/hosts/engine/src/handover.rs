//! Hand-over of packets that arrived at the wrong worker.
//!
//! The kernel steers packets by UDP ports, or by a filter on the queue pair number, and GRO may still put packets of several
//! queue pairs into one train. A worker that gets a packet for another worker's queue pair copies it into a preallocated frame of
//! the owner's inbox. An inbox without free frames drops the packet, as a full NIC queue would.

use burst_base::{DeviceId, Reason};
use burst_frame::{Flow, RxFrame};
use crossbeam_queue::ArrayQueue;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Frames per inbox.
const FRAMES: usize = 512;
/// Longest frame: the largest payload with the longest head and padding.
const BYTES_MAX: usize = 4096 + burst_frame::HEAD_MAX + 3;

/// A packet between two workers.
struct HandedFrame {
    device: DeviceId,
    flow: Flow,
    len: usize,
    bytes: [u8; BYTES_MAX],
}

/// Packets that other workers hand over to one worker, and the eventfd by which the daemon's threads wake that worker.
pub struct Inbox {
    wake: OwnedFd,
    filled: ArrayQueue<Box<HandedFrame>>,
    empty: ArrayQueue<Box<HandedFrame>>,
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
            filled: ArrayQueue::new(frames),
            empty: ArrayQueue::new(frames),
        };
        while workers > 1 && !inbox.empty.is_full() {
            let frame = HandedFrame { device: DeviceId(0), flow: Flow::default(), len: 0, bytes: [0; BYTES_MAX] };
            // Succeeds: the loop ends when the queue is full.
            let _ = inbox.empty.push(Box::new(frame));
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

    /// Copies a packet into the inbox. The caller wakes the owner at the end of its burst.
    ///
    /// # Errors
    /// [`Reason::HandoverFull`] without a free frame, [`Reason::InvalidLength`] for a packet longer than any MTU.
    pub fn hand_over(&self, device: DeviceId, frame: &RxFrame<'_>) -> Result<(), Reason> {
        if frame.bytes.len() > BYTES_MAX {
            return Err(Reason::InvalidLength);
        }
        let mut handed = self.empty.pop().ok_or(Reason::HandoverFull)?;
        handed.device = device;
        handed.flow = frame.flow;
        handed.len = frame.bytes.len();
        handed.bytes[..frame.bytes.len()].copy_from_slice(frame.bytes);
        // Succeeds: there are as many places as frames.
        self.filled.push(handed).map_err(|_| Reason::HandoverFull)
    }

    /// Whether three quarters of the frames are in use. Management datagrams get no more than that, so that a flood of them that
    /// arrives at another worker leaves room for packets of queue pairs.
    pub fn is_nearly_full(&self) -> bool {
        4 * self.filled.len() >= 3 * self.filled.capacity()
    }

    /// Gives up to `budget` packets to `take`; returns their number.
    pub fn drain(&self, budget: usize, mut take: impl FnMut(DeviceId, &RxFrame<'_>)) -> usize {
        let mut count = 0;
        while count < budget
            && let Some(handed) = self.filled.pop()
        {
            debug_assert!(handed.len <= BYTES_MAX);
            take(handed.device, &RxFrame { flow: handed.flow, bytes: &handed.bytes[..handed.len] });
            // Succeeds: there are as many places as frames.
            let _ = self.empty.push(handed);
            count += 1;
        }
        count
    }

    /// Whether no packet waits.
    pub fn is_empty(&self) -> bool {
        self.filled.is_empty()
    }
}

impl core::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Inbox").field("filled", &self.filled.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_arrive_in_order_and_a_full_inbox_refuses() {
        let inbox = Inbox::new(2).expect("inbox");
        fn frame(bytes: &[u8]) -> RxFrame<'_> {
            RxFrame { flow: Flow::default(), bytes }
        }
        for i in 0..FRAMES {
            assert_eq!(inbox.is_nearly_full(), i >= FRAMES / 4 * 3);
            inbox.hand_over(DeviceId(3), &frame(&[i as u8; 20])).expect("room");
        }
        assert_eq!(inbox.hand_over(DeviceId(3), &frame(&[0; 20])), Err(Reason::HandoverFull));
        assert_eq!(inbox.hand_over(DeviceId(3), &frame(&[0; 5000])), Err(Reason::InvalidLength));
        let mut next = 0;
        assert_eq!(
            inbox.drain(10, |device, f| {
                assert_eq!((device, f.bytes[0]), (DeviceId(3), next));
                next += 1;
            }),
            10
        );
        inbox.hand_over(DeviceId(3), &frame(&[0; 20])).expect("room again");
        assert!(!inbox.is_empty());
    }
}
