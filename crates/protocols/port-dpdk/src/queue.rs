//! A queue pair of a device: bursts of received frames, and frames to send.
//!
//! Frames are received in bursts of [`BURST`] packets: few enough that their first cache lines, which the shim prefetches, are
//! still in the L1 cache when the protocol reads them. A frame to send is copied whole into a buffer of the device
//! ([`EthQueue::frame`]): a driver keeps it for an unbounded time, and the memory of the payload may change at any.

use crate::device::EthDev;
use crate::ffi::{self, QueuePools, RxPacket};
use core::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Packets of one burst.
pub const BURST: usize = 32;
/// Longest wait for a full send queue before packets are dropped: a peer that naps or waits for its processor runs within this
/// time. A queue that stayed full for so long is not waited for again until the driver has taken a packet.
const FULL_WAIT: Duration = Duration::from_millis(20);

/// Timer slack of a worker in nanoseconds.
const TIMER_SLACK_NS: libc::c_ulong = 1_000;

/// While this value lives, the thread is registered with DPDK, and its buffers come from a cache of its own.
struct Lcore(bool);

impl Drop for Lcore {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: this thread has registered itself.
            unsafe { ffi::bd_thread_unregister() };
        }
    }
}

thread_local! {
    static LCORE: Lcore = {
        // SAFETY: DPDK runs, because a device exists.
        let error = unsafe { ffi::bd_thread_register() };
        if error != 0 {
            tracing::warn!("DPDK does not take a worker's thread (error {}): buffers come slower", -error);
        }
        Lcore(error == 0)
    };
}

/// Result of a flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushResult {
    /// Frames dropped because the link is down.
    pub down: usize,
    /// Frames dropped because the queue stayed full.
    pub full: usize,
}

/// A queue pair of a device.
pub struct EthQueue {
    device: Arc<EthDev>,
    queue: u16,
    pools: QueuePools,
    frame_max: usize,
    registered: bool,
    /// Frames to send.
    staged: Vec<*mut c_void>,
    /// Whether the queue stayed full for too long, and the driver has taken nothing since.
    stuck: bool,
    /// Packets of one received burst.
    packets: Box<[RxPacket; BURST]>,
    /// Buffer for packets in several segments.
    flat: Vec<u8>,
    /// The descriptor that receive interrupts make readable; the outer `None` before the first try.
    events: Option<Option<OwnedFd>>,
    armed: bool,
}

// SAFETY: the pointers are to DPDK's memory, of which the queue pair is the only user; any thread may call DPDK's functions, one
// at a time per queue.
unsafe impl Send for EthQueue {}

impl EthQueue {
    pub(crate) fn new(device: Arc<EthDev>, queue: u16, pools: QueuePools, frame_max: usize) -> EthQueue {
        EthQueue {
            device,
            queue,
            pools,
            frame_max,
            registered: false,
            staged: Vec::with_capacity(BURST),
            stuck: false,
            packets: Box::new([RxPacket::NONE; BURST]),
            flat: vec![0; frame_max + 8],
            events: None,
            armed: false,
        }
    }

    /// The device.
    pub fn device(&self) -> &EthDev {
        &self.device
    }
    /// Bytes of the longest frame.
    pub fn frame_max(&self) -> usize {
        self.frame_max
    }

    /// Registers this thread with DPDK.
    #[inline]
    fn register(&mut self) {
        if !self.registered {
            LCORE.with(|_| ());
            // Pauses between polls are short; without this setting the kernel rounds them to its usual slack of 50 us.
            // SAFETY: a setting of this thread only; if it is refused, pauses are longer.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NS) };
            self.registered = true;
        }
    }

    /// Calls `each` for up to `budget` received frames; returns how many.
    pub fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        self.register();
        self.disarm();
        let EthQueue { device, queue, packets, flat, .. } = self;
        let Some(_inside) = device.enter(*queue) else { return 0 };
        let mut taken = 0;
        while taken < budget {
            let asked = (budget - taken).min(BURST) as u16;
            // SAFETY: this thread is the queue's owner and inside the gate; `packets` has BURST elements.
            let got = unsafe { ffi::bd_rx(device.port(), *queue, packets.as_mut_ptr(), asked) };
            let burst = ReceivedBurst(&packets[..usize::from(got)]);
            for packet in burst.0 {
                each(bytes_of(packet, flat));
            }
            debug_assert!(got <= asked);
            taken += usize::from(got);
            if got < asked {
                break;
            }
        }
        taken
    }

    /// Whether [`EthQueue::flush`] must be called before another frame.
    pub fn is_full(&self) -> bool {
        self.staged.len() == BURST
    }

    /// Makes a frame of `len` bytes with undefined contents. `None` without a free buffer, when the queue is full, or when `len`
    /// is too long.
    pub fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.is_full() || len > self.frame_max {
            return None;
        }
        self.register();
        let mut mbuf = core::ptr::null_mut();
        // SAFETY: one element for one mbuf of this queue's pool.
        if unsafe { ffi::bd_alloc(self.pools.tx, &mut mbuf, 1) } != 0 {
            return None;
        }
        self.staged.push(mbuf);
        debug_assert!(self.staged.len() <= BURST);
        // SAFETY: the mbuf is new and has room for `frame_max` bytes, which belong to this queue until the mbuf is sent.
        Some(unsafe { core::slice::from_raw_parts_mut(ffi::bd_fill(mbuf, len as u16), len) })
    }

    /// Discards the frame made last, because it cannot be filled.
    pub fn discard_frame(&mut self) {
        if let Some(mut mbuf) = self.staged.pop() {
            // SAFETY: the mbuf belongs to this queue and is not used any more.
            unsafe { ffi::bd_free(&mut mbuf, 1) };
        }
    }

    /// Sends the frames made since the last flush, in order; waits a little for a full queue.
    pub fn flush(&mut self) -> FlushResult {
        if self.staged.is_empty() {
            return FlushResult::default();
        }
        let mut sent = FlushResult::default();
        let left = match self.device.enter(self.queue) {
            Some(_inside) => send(&self.device, self.queue, &mut self.staged, &mut self.stuck),
            None => self.staged.len(),
        };
        if left > 0 {
            debug_assert!(left <= self.staged.len());
            let at = self.staged.len() - left;
            let is_up = self.device.link().up;
            *(if is_up { &mut sent.full } else { &mut sent.down }) = left;
            // SAFETY: the driver has not taken these mbufs, so they belong to this queue.
            unsafe { ffi::bd_free(self.staged[at..].as_mut_ptr(), left as u16) };
        }
        self.staged.clear();
        sent
    }

    /// The descriptor that is readable when an armed queue has packets; `None` if the driver has no interrupts.
    pub fn event_fd(&self) -> Option<RawFd> {
        self.events.as_ref()?.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Requests an interrupt at the next packet. True if packets wait already.
    pub fn arm(&mut self) -> bool {
        let (port, queue) = (self.device.port(), self.queue);
        let Some(_inside) = self.device.enter(queue) else { return false };
        let events = self.events.get_or_insert_with(|| {
            // SAFETY: this thread owns the queue, which runs.
            let fd: c_int = unsafe { ffi::bd_rx_event_open(port, queue) };
            // SAFETY: a new descriptor from the shim, without another owner.
            (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
        });
        // SAFETY: this thread owns the queue, which runs.
        if events.is_some() && unsafe { ffi::bd_rx_event_arm(port, queue) } != 0 {
            *events = None;
        }
        if events.is_none() {
            return false;
        }
        self.armed = true;
        // SAFETY: as above. A driver that cannot count packets has level-triggered events, so no packet is missed.
        unsafe { ffi::bd_rx_waiting(port, queue) > 0 }
    }

    /// Consumes the event, and disables the interrupt.
    #[inline]
    fn disarm(&mut self) {
        if !self.armed {
            return;
        }
        self.armed = false;
        if let Some(events) = self.event_fd() {
            // SAFETY: this queue owns the descriptor, and this thread the queue.
            unsafe { ffi::bd_rx_event_drain(self.device.port(), self.queue, events) };
        }
    }
}

/// Passes frames to the driver, as the queue's owner and inside the gate; returns how many the driver did not take.
fn send(device: &EthDev, queue: u16, frames: &mut [*mut c_void], stuck: &mut bool) -> usize {
    let mut at = 0;
    let mut since = None;
    loop {
        let rest = &mut frames[at..];
        // SAFETY: this thread is the queue's owner and inside the gate; the mbufs that are taken belong to the driver from now
        // on.
        let taken = usize::from(unsafe { ffi::bd_tx(device.port(), queue, rest.as_mut_ptr(), rest.len() as u16) });
        at += taken;
        *stuck &= taken == 0;
        let left = frames.len() - at;
        if left == 0 || *stuck || !device.link().up {
            return left;
        }
        if since.get_or_insert_with(Instant::now).elapsed() > FULL_WAIT {
            *stuck = true;
            return left;
        }
        std::thread::yield_now();
    }
}

/// Received packets, freed when this value is dropped.
struct ReceivedBurst<'a>(&'a [RxPacket]);

impl Drop for ReceivedBurst<'_> {
    fn drop(&mut self) {
        // SAFETY: `bd_rx` returned these packets, and they are not used any more.
        unsafe { ffi::bd_rx_done(self.0.as_ptr(), self.0.len() as u16) };
    }
}

/// The bytes of a packet. A packet in several segments is copied to `flat`; if it does not fit, the slice is empty.
#[inline]
fn bytes_of<'a>(packet: &'a RxPacket, flat: &'a mut [u8]) -> &'a [u8] {
    if packet.segments == 1 {
        // SAFETY: `data` has `len` bytes until the packet is freed, which happens after the caller's use.
        return unsafe { core::slice::from_raw_parts(packet.data, packet.len as usize) };
    }
    // SAFETY: the call writes up to the length of `flat`.
    let len = unsafe { ffi::bd_flatten(packet.mbuf, flat.as_mut_ptr(), flat.len() as u32) };
    &flat[..len as usize]
}

impl Drop for EthQueue {
    fn drop(&mut self) {
        if !self.staged.is_empty() {
            // SAFETY: the mbufs belong to this queue and are not used any more.
            unsafe { ffi::bd_free(self.staged.as_mut_ptr(), self.staged.len() as u16) };
        }
    }
}
