//! The inbox of a guest: received packets, on their way from the queue pair that got them to the port that delivers them.
//!
//! Workers copy packets into it under a lock; the guest exchanges the full buffer for its empty one, and delivers from that
//! without a lock. A packet without room is dropped as `ReceiveOverflow`, as a socket drops it. A guest that sleeps is woken by
//! the rule of the doorbells ([`burst_port::loopback::wakeup`]); when its own worker has received the packet it is awake, and
//! delivers it in the same pass.

use crate::share::lock;
use burst_base::Reason;
use burst_frame::Flow;
use burst_port::ether::icrc::IpId;
use burst_port::loopback::wakeup::WorkerWakeup;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes that wait at most: the windows of several peers.
pub const INBOX_BYTES: usize = 1 << 20;
/// Packets that wait at most.
pub const INBOX_PACKETS: usize = 4096;

/// A packet in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxPacket {
    pub flow: Flow,
    /// Identification, which a checksum may cover; `None`: the packet has not left this process, and has no checksum.
    pub header: Option<IpId>,
    at: u32,
    len: u32,
}

/// Packets one behind the other.
pub struct InboxBuffer {
    bytes: Vec<u8>,
    packets: Vec<InboxPacket>,
    /// Packets for which there was no room.
    lost: usize,
}

impl InboxBuffer {
    /// An empty buffer. Its memory is not touched before it is needed.
    pub fn new() -> InboxBuffer {
        InboxBuffer { bytes: Vec::with_capacity(INBOX_BYTES), packets: Vec::with_capacity(INBOX_PACKETS), lost: 0 }
    }

    /// Packet number `index`, and its bytes from the transport's header to the trailer.
    pub fn packet(&self, index: usize) -> Option<(&InboxPacket, &[u8])> {
        let packet = self.packets.get(index)?;
        let at = packet.at as usize;
        Some((packet, &self.bytes[at..at + packet.len as usize]))
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.packets.clear();
        self.lost = 0;
    }
}

/// The inbox of a guest.
pub struct GuestInbox {
    pub address: IpAddr,
    pub udp_port: u16,
    waiting: Mutex<InboxBuffer>,
    /// Whether packets wait.
    is_filled: AtomicBool,
    wakeup: Arc<WorkerWakeup>,
}

impl GuestInbox {
    /// The inbox for packets to a UDP port of an address.
    pub fn new(address: IpAddr, udp_port: u16, wakeup: Arc<WorkerWakeup>) -> GuestInbox {
        let waiting = Mutex::new(InboxBuffer::new());
        GuestInbox { address, udp_port, waiting, is_filled: AtomicBool::new(false), wakeup }
    }

    /// Whether packets wait.
    #[inline]
    pub fn is_filled(&self) -> bool {
        self.is_filled.load(Ordering::Acquire)
    }

    /// Copies a packet of `len` bytes into the inbox: `write` writes them. Wakes the guest.
    ///
    /// # Errors
    /// The error of `write`. A packet without room is noted, and the guest reports it.
    pub fn put(
        &self,
        flow: &Flow,
        header: Option<IpId>,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        let mut waiting = lock(&self.waiting);
        let at = waiting.bytes.len();
        let end = at + len;
        if end > INBOX_BYTES || waiting.packets.len() == INBOX_PACKETS {
            waiting.lost += 1;
        } else {
            // This does not allocate: the capacity is `INBOX_BYTES`.
            waiting.bytes.resize(end, 0);
            if let Err(reason) = write(&mut waiting.bytes[at..]) {
                waiting.bytes.truncate(at);
                return Err(reason);
            }
            waiting.packets.push(InboxPacket { flow: *flow, header, at: at as u32, len: len as u32 });
        }
        // Pairs with `is_filled`.
        self.is_filled.store(true, Ordering::Release);
        drop(waiting);
        self.wakeup.wake();
        Ok(())
    }

    /// Exchanges what waits for `empty`, a buffer that was delivered; returns the number of packets that were lost meanwhile.
    pub fn take(&self, empty: &mut InboxBuffer) -> usize {
        empty.clear();
        let mut waiting = lock(&self.waiting);
        std::mem::swap(&mut *waiting, empty);
        // Under the lock, so that no packet is between.
        self.is_filled.store(false, Ordering::Release);
        empty.lost
    }
}
