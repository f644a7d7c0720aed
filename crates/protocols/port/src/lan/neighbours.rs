//! Who has which MAC address.
//!
//! A neighbour is asked for up to [`TRIES`] times, [`RETRY`] apart, then counts as silent for [`SILENCE`]. A known one
//! that is still in use is asked again after [`FRESH`], itself first and then everybody, and keeps its address
//! meanwhile; one that is not in use is forgotten. Frames wait for an answer in a store of fixed size: the first packets
//! to a peer are late, not lost.
//!
//! Each worker has a table of its own, without locks. Answers go to [`Shared`] as well, whose generation the other
//! workers compare in each pass.

use super::Send;
use burst_base::{Nanos, Reason};
use burst_wire::MacAddr;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Questions without an answer before a neighbour counts as silent.
pub const TRIES: u8 = 3;
/// Time between two questions.
pub const RETRY: Nanos = Nanos::from_ms(200);
/// Time for which nothing is asked of a silent neighbour unless somebody wants to send to it.
pub const SILENCE: Nanos = Nanos::from_ms(1000);
/// Time for which an answer is good.
pub const FRESH: Nanos = Nanos::from_ms(30_000);
/// Neighbours that one worker knows.
pub const NEIGHBOURS_MAX: usize = 4096;
/// Frames that wait, at most: a batch of the engine.
pub const WAITING_MAX: usize = 256;

/// What is known of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// Its address.
    Known(MacAddr),
    /// It is being asked.
    Asked,
    /// It did not answer.
    Silent,
}

/// A question to send: to everybody, or to the neighbour at `mac`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Whose address is wanted.
    pub ip: IpAddr,
    /// Where it was last known.
    pub mac: Option<MacAddr>,
}

struct Entry {
    ip: IpAddr,
    mac: Option<MacAddr>,
    /// Questions since the last answer.
    tries: u8,
    silent: bool,
    /// Somebody has sent to it since it was last asked.
    used: bool,
    /// When something is to be done about it.
    due: Nanos,
}

/// A frame without its destination MAC.
struct Waiting {
    ip: Option<IpAddr>,
    bytes: Vec<u8>,
}

/// What the workers of a port have learnt.
#[derive(Debug, Default)]
pub struct Shared {
    generation: AtomicU32,
    known: Mutex<Vec<Answer>>,
}

/// A neighbour's answer, and the generation that it began.
#[derive(Clone, Copy, Debug)]
struct Answer {
    ip: IpAddr,
    mac: MacAddr,
    heard: u32,
}

/// One worker's table.
pub struct Neighbours {
    shared: std::sync::Arc<Shared>,
    generation: u32,
    entries: Vec<Entry>,
    waiting: Vec<Waiting>,
    version: u32,
    next: Nanos,
}

impl Neighbours {
    /// An empty table; frames of up to `frame_max` bytes can wait.
    pub fn new(shared: std::sync::Arc<Shared>, frame_max: usize) -> Neighbours {
        let place = || Waiting { ip: None, bytes: Vec::with_capacity(frame_max) };
        Neighbours {
            shared,
            generation: 0,
            entries: Vec::with_capacity(64),
            waiting: (0..WAITING_MAX).map(|_| place()).collect(),
            version: 0,
            next: Nanos::NEVER,
        }
    }

    /// Changes with every address that changes.
    #[inline]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// When [`Neighbours::due`] has something to do.
    #[inline]
    pub fn next_event(&self) -> Nanos {
        self.next
    }

    /// What is known of `ip`, and what to ask now.
    pub fn find(&mut self, now: Nanos, ip: IpAddr) -> (Neighbour, Option<Ask>) {
        let Some(entry) = self.entries.iter_mut().find(|e| e.ip == ip) else {
            if self.entries.len() == NEIGHBOURS_MAX {
                return (Neighbour::Silent, None);
            }
            let due = now + RETRY;
            self.entries.push(Entry { ip, mac: None, tries: 1, silent: false, used: true, due });
            self.next = self.next.min(due);
            return (Neighbour::Asked, Some(Ask { ip, mac: None }));
        };
        entry.used = true;
        match entry.mac {
            Some(mac) => (Neighbour::Known(mac), None),
            None if entry.silent => (Neighbour::Silent, None),
            None => (Neighbour::Asked, None),
        }
    }

    /// Somebody sends to it.
    pub fn used(&mut self, ip: IpAddr) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.ip == ip) {
            entry.used = true;
        }
    }

    /// Keeps a frame until `ip` answers. False if there is no room.
    pub fn hold(&mut self, ip: IpAddr, frame: &[u8]) -> bool {
        let Some(place) = self.waiting.iter_mut().find(|w| w.ip.is_none() && frame.len() <= w.bytes.capacity()) else {
            return false;
        };
        place.ip = Some(ip);
        place.bytes.clear();
        place.bytes.extend_from_slice(frame);
        true
    }

    /// A neighbour has said its address: believed if we wanted to know.
    pub fn learn(&mut self, now: Nanos, ip: IpAddr, mac: MacAddr, send: Send<'_>) {
        if self.entries.iter().any(|e| e.ip == ip) {
            self.set(now, ip, mac, send);
        }
        // The question may have been another worker's.
        self.shared.tell(ip, mac);
    }

    /// A neighbour asks for our address: it will want an answer from us.
    pub fn meet(&mut self, now: Nanos, ip: IpAddr, mac: MacAddr, send: Send<'_>) {
        if !self.entries.iter().any(|e| e.ip == ip) {
            if self.entries.len() == NEIGHBOURS_MAX {
                return;
            }
            self.entries.push(Entry { ip, mac: None, tries: 0, silent: false, used: false, due: now + FRESH });
        }
        self.set(now, ip, mac, send);
        self.shared.tell(ip, mac);
    }

    /// Takes over what other workers have learnt about neighbours that this one asks for.
    #[inline]
    pub fn follow(&mut self, now: Nanos, send: Send<'_>) {
        // Pairs with `Shared::tell`.
        if self.shared.generation.load(Ordering::Acquire) != self.generation {
            self.follow_all(now, send);
        }
    }

    #[cold]
    fn follow_all(&mut self, now: Nanos, send: Send<'_>) {
        let shared = self.shared.clone();
        let known = shared.known.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = std::mem::replace(&mut self.generation, shared.generation.load(Ordering::Acquire));
        let is_new = |answer: &&Answer| answer.heard.wrapping_sub(seen) as i32 > 0;
        for answer in known.iter().filter(is_new) {
            self.set(now, answer.ip, answer.mac, send);
        }
    }

    /// The address of an entry is `mac`, from now on; frames that waited for it leave.
    fn set(&mut self, now: Nanos, ip: IpAddr, mac: MacAddr, send: Send<'_>) {
        let Some(entry) = self.entries.iter_mut().find(|e| e.ip == ip) else { return };
        if entry.mac != Some(mac) {
            entry.mac = Some(mac);
            self.version = self.version.wrapping_add(1);
        }
        (entry.tries, entry.silent, entry.due) = (0, false, now + FRESH);
        self.next = self.next.min(entry.due);
        for waiting in self.waiting.iter_mut().filter(|w| w.ip == Some(ip)) {
            waiting.ip = None;
            waiting.bytes[..6].copy_from_slice(&mac.0);
            send(&waiting.bytes);
        }
    }

    /// The next question that is due; frames for neighbours that have become silent are dropped.
    pub fn due(&mut self, now: Nanos, dropped: &mut dyn FnMut(Reason)) -> Option<Ask> {
        if now < self.next {
            return None;
        }
        while let Some(at) = self.entries.iter().position(|e| e.due <= now) {
            let entry = &mut self.entries[at];
            let ip = entry.ip;
            if entry.silent || (entry.mac.is_some() && entry.tries == 0 && !entry.used) {
                self.version = self.version.wrapping_add(1);
                self.entries.swap_remove(at);
                continue;
            }
            // A known neighbour is asked itself, then everybody is.
            let most = if entry.mac.is_some() { 2 * TRIES } else { TRIES };
            if entry.tries < most {
                let mac = entry.mac.filter(|_| entry.tries < TRIES);
                entry.tries += 1;
                entry.used = false;
                entry.due = now + RETRY;
                return Some(Ask { ip, mac });
            }
            (entry.mac, entry.silent, entry.due) = (None, true, now + SILENCE);
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

impl Shared {
    /// Notes an answer.
    fn tell(&self, ip: IpAddr, mac: MacAddr) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = self.generation.load(Ordering::Relaxed).wrapping_add(1);
        let answer = Answer { ip, mac, heard };
        match known.iter_mut().find(|k| k.ip == ip) {
            Some(old) => *old = answer,
            None => {
                if known.len() == NEIGHBOURS_MAX {
                    known.clear();
                }
                known.push(answer);
            }
        }
        // Pairs with `follow`; written under the lock only.
        self.generation.store(heard, Ordering::Release);
    }
}
