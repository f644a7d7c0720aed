//! The neighbour table of one worker: which MAC address an IP address has (ARP, neighbour discovery).
//!
//! An unresolved neighbour is solicited up to [`TRIES`] times, [`RETRY`] apart, and has then failed for [`FAILED_TIME`]. A
//! resolved one that is still in use is solicited again after [`FRESH`], first by unicast and then by broadcast or multicast, and
//! keeps its address meanwhile; one that is not in use is removed. Frames to an unresolved neighbour wait in a queue of fixed
//! size, so that the first packets to a peer are late and not lost.
//!
//! Each worker has a table of its own, without locks. Learnt addresses also go to [`SharedNeighbours`], whose generation the
//! other workers compare in each pass.

use super::SendFrame;
use burst_base::{Nanos, Reason};
use burst_wire::MacAddr;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Solicitations without an answer after which a neighbour has failed.
pub const TRIES: u8 = 3;
/// Time between two solicitations.
pub const RETRY: Nanos = Nanos::from_ms(200);
/// Time for which a failed neighbour is not solicited again.
pub const FAILED_TIME: Nanos = Nanos::from_ms(1000);
/// Time for which a learnt address is used without being confirmed.
pub const FRESH: Nanos = Nanos::from_ms(30_000);
/// Most entries of the table.
pub const NEIGHBOURS_MAX: usize = 4096;
/// Most frames that wait: a batch of the engine.
pub const WAITING_MAX: usize = 256;

/// State of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LanNeighbour {
    /// Its MAC address is known.
    Resolved(MacAddr),
    /// The neighbour was solicited and has not answered yet.
    Incomplete,
    /// The neighbour did not answer.
    Failed,
}

/// An ARP request or neighbour solicitation to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Solicitation {
    /// The IP address to resolve.
    pub ip: IpAddr,
    /// The MAC address to which a unicast solicitation goes; `None`: broadcast or multicast.
    pub mac: Option<MacAddr>,
}

/// An entry of the table. `failed` excludes a `mac`.
struct LanEntry {
    ip: IpAddr,
    mac: Option<MacAddr>,
    /// Solicitations since the last answer.
    tries: u8,
    failed: bool,
    /// Whether packets were sent to it since it was last solicited.
    used: bool,
    /// When the entry is to be solicited, to fail or to be removed.
    due: Nanos,
}

/// A frame that waits for the MAC address of `ip`; the slot is free if `ip` is `None`.
struct QueuedFrame {
    ip: Option<IpAddr>,
    /// The frame, whose destination MAC address is still to be written.
    bytes: Vec<u8>,
}

/// Addresses that the workers of a port have learnt.
#[derive(Debug, Default)]
pub struct SharedNeighbours {
    generation: AtomicU32,
    learnt: Mutex<Vec<LearntAddress>>,
}

/// A learnt address, and the generation that it began.
#[derive(Clone, Copy, Debug)]
struct LearntAddress {
    ip: IpAddr,
    mac: MacAddr,
    generation: u32,
}

/// The neighbour table of one worker.
pub struct NeighbourTable {
    shared: std::sync::Arc<SharedNeighbours>,
    generation: u32,
    entries: Vec<LanEntry>,
    waiting: Vec<QueuedFrame>,
    version: u32,
    /// The earliest `due` of all entries, or an earlier time.
    next: Nanos,
}

impl NeighbourTable {
    /// An empty table; frames of up to `frame_max` bytes can wait.
    pub fn new(shared: std::sync::Arc<SharedNeighbours>, frame_max: usize) -> NeighbourTable {
        let place = || QueuedFrame { ip: None, bytes: Vec::with_capacity(frame_max) };
        NeighbourTable {
            shared,
            generation: 0,
            entries: Vec::with_capacity(64),
            waiting: (0..WAITING_MAX).map(|_| place()).collect(),
            version: 0,
            next: Nanos::NEVER,
        }
    }

    /// A number that changes with every change of an address in the table.
    #[inline]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// When [`NeighbourTable::due`] is to be called.
    #[inline]
    pub fn next_event(&self) -> Nanos {
        self.next
    }

    /// The state of the neighbour `ip`, and the solicitation to send if the table had no entry for it.
    pub fn find(&mut self, now: Nanos, ip: IpAddr) -> (LanNeighbour, Option<Solicitation>) {
        let Some(entry) = self.entries.iter_mut().find(|e| e.ip == ip) else {
            if self.entries.len() == NEIGHBOURS_MAX {
                return (LanNeighbour::Failed, None);
            }
            let due = now + RETRY;
            self.entries.push(LanEntry { ip, mac: None, tries: 1, failed: false, used: true, due });
            debug_assert!(self.entries.len() <= NEIGHBOURS_MAX);
            self.next = self.next.min(due);
            return (LanNeighbour::Incomplete, Some(Solicitation { ip, mac: None }));
        };
        entry.used = true;
        match entry.mac {
            Some(mac) => (LanNeighbour::Resolved(mac), None),
            None if entry.failed => (LanNeighbour::Failed, None),
            None => (LanNeighbour::Incomplete, None),
        }
    }

    /// Notes that packets are sent to `ip`.
    pub fn used(&mut self, ip: IpAddr) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.ip == ip) {
            entry.used = true;
        }
    }

    /// Queues a frame until `ip` is resolved. False if there is no room.
    pub fn enqueue(&mut self, ip: IpAddr, frame: &[u8]) -> bool {
        debug_assert!(frame.len() >= 6, "a frame begins with its destination");
        let Some(slot) = self.waiting.iter_mut().find(|w| w.ip.is_none() && frame.len() <= w.bytes.capacity()) else {
            return false;
        };
        slot.ip = Some(ip);
        slot.bytes.clear();
        slot.bytes.extend_from_slice(frame);
        debug_assert!(self.waiting.len() == WAITING_MAX, "places are neither added nor removed");
        true
    }

    /// Handles an advertisement. It is believed only if a worker has solicited the neighbour.
    pub fn learn(&mut self, now: Nanos, ip: IpAddr, mac: MacAddr, send: SendFrame<'_>) {
        if self.entries.iter().any(|e| e.ip == ip) {
            self.set(now, ip, mac, send);
        }
        // Another worker may have sent the solicitation.
        self.shared.add(ip, mac);
    }

    /// Handles a solicitation for an address of this host: packets to the soliciting neighbour will follow, so it gets an entry.
    pub fn learn_from_request(&mut self, now: Nanos, ip: IpAddr, mac: MacAddr, send: SendFrame<'_>) {
        if !self.entries.iter().any(|e| e.ip == ip) {
            if self.entries.len() == NEIGHBOURS_MAX {
                return;
            }
            self.entries.push(LanEntry { ip, mac: None, tries: 0, failed: false, used: false, due: now + FRESH });
        }
        self.set(now, ip, mac, send);
        debug_assert!(self.entries.iter().filter(|e| e.ip == ip).count() == 1, "a neighbour has one entry");
        self.shared.add(ip, mac);
    }

    /// Takes over the addresses that other workers have learnt, for the entries of this table.
    #[inline]
    pub fn follow(&mut self, now: Nanos, send: SendFrame<'_>) {
        // Pairs with the store in `SharedNeighbours::add`.
        if self.shared.generation.load(Ordering::Acquire) != self.generation {
            self.follow_all(now, send);
        }
    }

    #[cold]
    fn follow_all(&mut self, now: Nanos, send: SendFrame<'_>) {
        let shared = self.shared.clone();
        let learnt = shared.learnt.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = std::mem::replace(&mut self.generation, shared.generation.load(Ordering::Acquire));
        let is_new = |address: &&LearntAddress| address.generation.wrapping_sub(seen) as i32 > 0;
        for address in learnt.iter().filter(is_new) {
            self.set(now, address.ip, address.mac, send);
        }
    }

    /// Sets the MAC address of an entry, and sends the frames that waited for it.
    fn set(&mut self, now: Nanos, ip: IpAddr, mac: MacAddr, send: SendFrame<'_>) {
        let Some(entry) = self.entries.iter_mut().find(|e| e.ip == ip) else { return };
        if entry.mac != Some(mac) {
            entry.mac = Some(mac);
            self.version = self.version.wrapping_add(1);
        }
        (entry.tries, entry.failed, entry.due) = (0, false, now + FRESH);
        debug_assert!(entry.mac == Some(mac) && entry.due > now);
        self.next = self.next.min(entry.due);
        for waiting in self.waiting.iter_mut().filter(|w| w.ip == Some(ip)) {
            waiting.ip = None;
            waiting.bytes[..6].copy_from_slice(&mac.0);
            send(&waiting.bytes);
        }
    }

    /// Returns the next solicitation that is due; removes entries that are not in use, and drops the frames to neighbours that
    /// fail.
    pub fn due(&mut self, now: Nanos, dropped: &mut dyn FnMut(Reason)) -> Option<Solicitation> {
        if now < self.next {
            return None;
        }
        while let Some(at) = self.entries.iter().position(|e| e.due <= now) {
            let entry = &mut self.entries[at];
            let ip = entry.ip;
            debug_assert!(!entry.failed || entry.mac.is_none());
            if entry.failed || (entry.mac.is_some() && entry.tries == 0 && !entry.used) {
                self.version = self.version.wrapping_add(1);
                self.entries.swap_remove(at);
                continue;
            }
            // A resolved neighbour is solicited by unicast first, then by broadcast or multicast.
            let tries_max = if entry.mac.is_some() { 2 * TRIES } else { TRIES };
            if entry.tries < tries_max {
                let mac = entry.mac.filter(|_| entry.tries < TRIES);
                entry.tries += 1;
                entry.used = false;
                entry.due = now + RETRY;
                return Some(Solicitation { ip, mac });
            }
            (entry.mac, entry.failed, entry.due) = (None, true, now + FAILED_TIME);
            self.version = self.version.wrapping_add(1);
            for waiting in self.waiting.iter_mut().filter(|w| w.ip == Some(ip)) {
                waiting.ip = None;
                dropped(Reason::NoNeighbour);
            }
        }
        self.next = self.entries.iter().map(|e| e.due).min().unwrap_or(Nanos::NEVER);
        None
    }
}

impl SharedNeighbours {
    /// Adds or replaces an address, and begins a new generation.
    fn add(&self, ip: IpAddr, mac: MacAddr) {
        let mut learnt = self.learnt.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = self.generation.load(Ordering::Relaxed).wrapping_add(1);
        let address = LearntAddress { ip, mac, generation };
        match learnt.iter_mut().find(|k| k.ip == ip) {
            Some(old) => *old = address,
            None => {
                if learnt.len() == NEIGHBOURS_MAX {
                    learnt.clear();
                }
                learnt.push(address);
            }
        }
        debug_assert!(learnt.len() <= NEIGHBOURS_MAX);
        // Pairs with the load in `follow`; written under the lock only.
        self.generation.store(generation, Ordering::Release);
    }
}
