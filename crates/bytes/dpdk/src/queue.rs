//! A queue pair: bursts of received frames, and frames to send.
//!
//! Receiving works in bursts of [`BURST`] packets: few enough that their first lines, fetched ahead by the shim, are
//! still in the first cache when the protocol looks at them. A frame to send is copied whole ([`QueuePair::frame`]), or
//! made of a head, lent memory and a tail ([`QueuePair::lend`]) where the driver takes packets at once: then, when
//! [`QueuePair::flush`] returns, nobody looks at the lent memory any more, which is what a port promises. A driver that
//! did keep it is waited for, and gets copies from then on.

use crate::device::Device;
use crate::ffi::{self, Packet, Pools};
use burst_span::Span;
use core::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Packets of one burst.
pub const BURST: usize = 32;
/// Pieces of memory lent by one frame.
pub const LENT_MAX: usize = 8;
/// How long a full send queue is waited for before packets are dropped: a peer that naps, or waits for its processor,
/// runs within it. Who does not take anything for so long is not waited for again until it does.
const FULL_WAIT: Duration = Duration::from_millis(20);
/// How long memory that a driver should have returned is waited for.
const RETURN_WAIT: Duration = Duration::from_secs(1);

/// How late a timer of a worker may be.
const TIMER_SLACK_NS: libc::c_ulong = 1_000;

/// This thread is known to DPDK while this lives: its buffers come from a cache of its own.
struct Lcore(bool);

impl Drop for Lcore {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: it was registered by this thread.
            unsafe { ffi::bd_thread_unregister() };
        }
    }
}

thread_local! {
    static LCORE: Lcore = {
        // SAFETY: DPDK runs, because there is a device.
        let error = unsafe { ffi::bd_thread_register() };
        if error != 0 {
            tracing::warn!("DPDK does not take a worker's thread (error {}): buffers come slower", -error);
        }
        Lcore(error == 0)
    };
}

/// A frame under construction: what the caller fills in.
pub struct FrameBuf<'a> {
    /// From the Ethernet header on: the whole frame, or what comes before lent memory.
    pub head: &'a mut [u8],
    /// What comes after lent memory; empty for a frame in one piece.
    pub tail: &'a mut [u8],
}

/// What became of the frames of a flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Frames dropped because the link is down.
    pub down: usize,
    /// Frames dropped because the queue stayed full.
    pub full: usize,
}

/// See the module.
pub struct QueuePair {
    device: Arc<Device>,
    queue: u16,
    pools: Pools,
    frame_max: usize,
    lends: bool,
    registered: bool,
    /// Frames to send.
    staged: Vec<*mut c_void>,
    /// Whether some of them lend memory.
    lent: bool,
    /// The queue was full for too long, and nothing has been taken since.
    stuck: bool,
    /// Received packets of one burst.
    packets: Box<[Packet; BURST]>,
    /// For packets in several segments.
    flat: Vec<u8>,
    /// What receive interrupts make readable, once tried.
    events: Option<Option<OwnedFd>>,
    armed: bool,
}

// SAFETY: the pointers are to DPDK's memory, of which the queue pair is the only user; DPDK's functions may be called by
// any thread, one at a time per queue.
unsafe impl Send for QueuePair {}

impl QueuePair {
    pub(crate) fn new(device: Arc<Device>, queue: u16, pools: Pools, frame_max: usize, lends: bool) -> QueuePair {
        QueuePair {
            device,
            queue,
            pools,
            frame_max,
            lends,
            registered: false,
            staged: Vec::with_capacity(BURST),
            lent: false,
            stuck: false,
            packets: Box::new([Packet::NONE; BURST]),
            flat: vec![0; frame_max + 8],
            events: None,
            armed: false,
        }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }
    /// Whether [`QueuePair::lend`] may be used.
    pub fn lends(&self) -> bool {
        self.lends
    }
    /// Longest frame.
    pub fn frame_max(&self) -> usize {
        self.frame_max
    }

    /// Makes this thread known to DPDK.
    #[inline]
    fn register(&mut self) {
        if !self.registered {
            LCORE.with(|_| ());
            // Naps between looks at the device are short: they shall not be rounded to the kernel's usual 50 us.
            // SAFETY: a setting of this thread alone; if it is refused, naps are longer.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NS) };
            self.registered = true;
        }
    }

    /// Gives up to `budget` received frames to `each`; returns how many.
    pub fn receive(&mut self, budget: usize, mut each: impl FnMut(&[u8])) -> usize {
        self.register();
        self.disarm();
        let QueuePair { device, queue, packets, flat, .. } = self;
        let Some(_inside) = device.enter(*queue) else { return 0 };
        let mut taken = 0;
        while taken < budget {
            let asked = (budget - taken).min(BURST) as u16;
            // SAFETY: we are the queue's owner and inside the gate; `packets` has BURST places.
            let got = unsafe { ffi::bd_rx(device.port(), *queue, packets.as_mut_ptr(), asked) };
            let burst = Burst(&packets[..usize::from(got)]);
            for packet in burst.0 {
                each(bytes_of(packet, flat));
            }
            taken += usize::from(got);
            if got < asked {
                break;
            }
        }
        taken
    }

    /// Whether [`QueuePair::flush`] must come before another frame.
    pub fn is_full(&self) -> bool {
        self.staged.len() == BURST
    }

    /// A frame of `len` bytes to fill in, whatever they hold now. `None` without a free buffer, when full, or too long.
    pub fn frame(&mut self, len: usize) -> Option<FrameBuf<'_>> {
        if self.is_full() || len > self.frame_max {
            return None;
        }
        self.register();
        let mut mbuf = core::ptr::null_mut();
        // SAFETY: one place for one mbuf of our pool.
        if unsafe { ffi::bd_alloc(self.pools.tx, &mut mbuf, 1) } != 0 {
            return None;
        }
        self.staged.push(mbuf);
        // SAFETY: the mbuf is fresh and has room for `frame_max` bytes, which are ours until it is sent.
        let head = unsafe { core::slice::from_raw_parts_mut(ffi::bd_fill(mbuf, len as u16), len) };
        Some(FrameBuf { head, tail: &mut [] })
    }

    /// A frame of `head` bytes to fill in, the bytes of `spans`, and `tail` bytes to fill in. `None` as for
    /// [`QueuePair::frame`], and if a span is empty or another process's.
    pub fn lend(&mut self, head: usize, spans: &[Span], tail: usize) -> Option<FrameBuf<'_>> {
        let usable = spans.iter().all(|s| s.is_local() && s.len() > 0 && s.len() <= usize::from(u16::MAX));
        if !self.lends || !usable || self.is_full() || spans.len() > LENT_MAX || head.max(tail) > PART_ROOM {
            return None;
        }
        self.register();
        let mut mbufs = [core::ptr::null_mut(); LENT_MAX + 2];
        let count = spans.len() + 2;
        // SAFETY: `count` places for as many mbufs of our pool.
        if unsafe { ffi::bd_alloc(self.pools.part, mbufs.as_mut_ptr(), count as u16) } != 0 {
            return None;
        }
        let [first, rest @ ..] = &mut mbufs[..count] else { return None };
        // SAFETY: the mbufs are fresh, heads and tails fit their room. The spans are mapped in this process as long as
        // the batch is being sent, and `flush` does not return before nobody looks at them any more.
        let (head, tail) = unsafe {
            let head = core::slice::from_raw_parts_mut(ffi::bd_fill(*first, head as u16), head);
            let mut last = *first;
            for (mbuf, span) in rest.iter().zip(spans) {
                ffi::bd_lend(*mbuf, span.as_ptr().cast(), span.len() as u16, self.pools.share);
                ffi::bd_chain(*first, last, *mbuf);
                last = *mbuf;
            }
            let end = rest[spans.len()];
            let tail = core::slice::from_raw_parts_mut(ffi::bd_fill(end, tail as u16), tail);
            ffi::bd_chain(*first, last, end);
            (head, tail)
        };
        self.staged.push(*first);
        self.lent = true;
        Some(FrameBuf { head, tail })
    }

    /// Forgets the frame made last: it cannot be filled in.
    pub fn unframe(&mut self) {
        if let Some(mut mbuf) = self.staged.pop() {
            // SAFETY: it is ours, and used no more.
            unsafe { ffi::bd_free(&mut mbuf, 1) };
        }
    }

    /// Sends the frames made since the last flush, in order, waiting a little for a full queue.
    pub fn flush(&mut self) -> Sent {
        if self.staged.is_empty() {
            return Sent::default();
        }
        let mut sent = Sent::default();
        let left = match self.device.enter(self.queue) {
            Some(_inside) => send(&self.device, self.queue, &mut self.staged, &mut self.stuck),
            None => self.staged.len(),
        };
        if left > 0 {
            let at = self.staged.len() - left;
            let is_up = self.device.link().up;
            *(if is_up { &mut sent.full } else { &mut sent.down }) = left;
            // SAFETY: these were not taken, so they are ours.
            unsafe { ffi::bd_free(self.staged[at..].as_mut_ptr(), left as u16) };
        }
        self.staged.clear();
        if self.lent {
            self.lent = false;
            // SAFETY: the share lives as long as the device.
            if unsafe { ffi::bd_borrowers(self.pools.share) } != 0 {
                self.await_return();
            }
        }
        sent
    }

    /// The driver has kept memory that it should have copied.
    #[cold]
    fn await_return(&mut self) {
        self.lends = false;
        tracing::warn!("DPDK device {} keeps packets: memory is copied for it from now on", self.device.port());
        let since = Instant::now();
        // SAFETY: as in `flush`; the queue is ours.
        while unsafe { ffi::bd_borrowers(self.pools.share) } != 0 && since.elapsed() < RETURN_WAIT {
            // SAFETY: as above.
            unsafe { ffi::bd_tx_reclaim(self.device.port(), self.queue) };
            std::thread::yield_now();
        }
    }

    /// The descriptor that is readable when an armed queue has something; `None` if the driver has no interrupts.
    pub fn event_fd(&self) -> Option<RawFd> {
        self.events.as_ref()?.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Asks for an interrupt at the next packet. True if something waits already.
    pub fn arm(&mut self) -> bool {
        let (port, queue) = (self.device.port(), self.queue);
        let Some(_inside) = self.device.enter(queue) else { return false };
        let events = self.events.get_or_insert_with(|| {
            // SAFETY: the queue is ours and runs.
            let fd: c_int = unsafe { ffi::bd_rx_event_open(port, queue) };
            // SAFETY: a descriptor that the shim made for us.
            (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
        });
        // SAFETY: the queue is ours and runs.
        if events.is_some() && unsafe { ffi::bd_rx_event_arm(port, queue) } != 0 {
            *events = None;
        }
        if events.is_none() {
            return false;
        }
        self.armed = true;
        // SAFETY: as above. Drivers that cannot count have level events: nothing is missed.
        unsafe { ffi::bd_rx_waiting(port, queue) > 0 }
    }

    /// Takes the event, and asks for no more.
    #[inline]
    fn disarm(&mut self) {
        if !self.armed {
            return;
        }
        self.armed = false;
        if let Some(events) = self.event_fd() {
            // SAFETY: the queue and the descriptor are ours.
            unsafe { ffi::bd_rx_event_drain(self.device.port(), self.queue, events) };
        }
    }
}

/// Gives frames to the driver as the queue's owner, inside the gate; returns how many it did not take.
fn send(device: &Device, queue: u16, frames: &mut [*mut c_void], stuck: &mut bool) -> usize {
    let mut at = 0;
    let mut since = None;
    loop {
        let rest = &mut frames[at..];
        // SAFETY: we are the queue's owner and inside the gate; what is taken belongs to the driver from now on.
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

/// Room of a head or tail: `PART_ROOM` of the shim.
const PART_ROOM: usize = 128;

/// Received packets, freed when this is dropped.
struct Burst<'a>(&'a [Packet]);

impl Drop for Burst<'_> {
    fn drop(&mut self) {
        // SAFETY: `bd_rx` gave them to us, and nobody uses them any more.
        unsafe { ffi::bd_rx_done(self.0.as_ptr(), self.0.len() as u16) };
    }
}

/// The bytes of a packet; those in several segments are copied to `flat`, and are none if they do not fit.
#[inline]
fn bytes_of<'a>(packet: &'a Packet, flat: &'a mut [u8]) -> &'a [u8] {
    if packet.segments == 1 {
        // SAFETY: `data` has `len` bytes until the packet is freed, after the caller is done with them.
        return unsafe { core::slice::from_raw_parts(packet.data, packet.len as usize) };
    }
    // SAFETY: the call writes up to the length of `flat`.
    let len = unsafe { ffi::bd_flatten(packet.mbuf, flat.as_mut_ptr(), flat.len() as u32) };
    &flat[..len as usize]
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !self.staged.is_empty() {
            // SAFETY: they are ours, and used no more.
            unsafe { ffi::bd_free(self.staged.as_mut_ptr(), self.staged.len() as u16) };
        }
    }
}
