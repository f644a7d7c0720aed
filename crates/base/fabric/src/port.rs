//! An end of a link: what waits to be sent, by class, and which classes are paused.

use crate::Train;
use std::collections::VecDeque;

/// Number of classes.
pub(crate) const CLASSES: usize = 8;

/// A train in a queue.
#[derive(Debug)]
pub(crate) struct QueuedTrain<T> {
    pub train: Train<T>,
    /// Whether the ICRC of its packets is wrong.
    pub is_corrupted: bool,
    /// When its last packet has come in.
    pub whole_at: u64,
    /// The port of the switch by which it came in, and how many of its bytes are in the headroom.
    pub ingress: Option<(u32, u64)>,
}

/// A queue of one class.
#[derive(Debug)]
struct ClassQueue<T> {
    class: u8,
    trains: VecDeque<QueuedTrain<T>>,
    bytes: u64,
}

/// An end of a link. Queues are made when a class is first used, highest class first.
#[derive(Debug)]
pub(crate) struct LinkEnd<T> {
    /// The node to which the port belongs.
    pub node: u32,
    /// The port at the other end.
    pub peer: u32,
    /// bit/s.
    pub rate: u64,
    /// Propagation in picoseconds.
    pub delay: u64,
    /// Whether the link is up.
    pub is_up: bool,
    queues: Vec<ClassQueue<T>>,
    /// Classes that the other end has paused, one bit each.
    pub paused: u8,
    /// Until when nothing is sent.
    pub stalled_until: u64,
    /// Bytes that are being sent: class, ingress and bytes of the train.
    pub sending: Option<Sending>,
    /// Bytes that came in by this port and are in the switch, by class, and those of them in the headroom.
    pub held: [u64; CLASSES],
    pub headroom_used: [u64; CLASSES],
    /// Classes for which the other end was told to pause.
    pub pausing: u8,
    /// For adapters: a train was refused.
    pub was_full: bool,
    /// Packets that were sent.
    pub packets_sent: u64,
    /// Bytes queued, and the most there have been.
    pub queued: u64,
    pub queued_max: u64,
}

/// A train that is being sent, as far as its end must know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    pub class: u8,
    pub bytes: u64,
    pub ingress: Option<(u32, u64)>,
}

impl<T> LinkEnd<T> {
    pub fn new(node: u32, peer: u32, rate: u64, delay: u64) -> LinkEnd<T> {
        LinkEnd {
            node,
            peer,
            rate,
            delay,
            is_up: true,
            queues: Vec::new(),
            paused: 0,
            stalled_until: 0,
            sending: None,
            held: [0; CLASSES],
            headroom_used: [0; CLASSES],
            pausing: 0,
            was_full: false,
            packets_sent: 0,
            queued: 0,
            queued_max: 0,
        }
    }

    /// Picoseconds that so many bytes take on the link.
    pub fn time_of(&self, bytes: u64) -> u64 {
        time_of(bytes, self.rate)
    }

    /// Bytes queued in a class.
    pub fn bytes_of(&self, class: u8) -> u64 {
        self.queues.iter().find(|queue| queue.class == class).map_or(0, |queue| queue.bytes)
    }

    /// Appends a train of `bytes`.
    pub fn push(&mut self, queued: QueuedTrain<T>, bytes: u64) {
        let class = queued.train.class;
        let at = match self.queues.iter().position(|queue| queue.class <= class) {
            Some(at) if self.queues[at].class == class => at,
            at => {
                let at = at.unwrap_or(self.queues.len());
                self.queues.insert(at, ClassQueue { class, trains: VecDeque::new(), bytes: 0 });
                at
            }
        };
        self.queues[at].bytes += bytes;
        self.queues[at].trains.push_back(queued);
        self.queued += bytes;
        self.queued_max = self.queued_max.max(self.queued);
    }

    /// Takes the next train that may be sent. Its bytes stay queued until [`LinkEnd::sent`].
    pub fn pop(&mut self) -> Option<QueuedTrain<T>> {
        let paused = self.paused;
        let mut may = self.queues.iter_mut().filter(|queue| paused >> queue.class & 1 == 0);
        may.find_map(|queue| queue.trains.pop_front())
    }

    /// Packets that wait.
    pub fn packets(&self) -> u64 {
        self.queues.iter().flat_map(|queue| &queue.trains).map(|queued| u64::from(queued.train.count)).sum()
    }

    /// The train that was being sent has left.
    pub fn sent(&mut self) -> Option<Sending> {
        let sending = self.sending.take()?;
        self.queued -= sending.bytes;
        if let Some(queue) = self.queues.iter_mut().find(|queue| queue.class == sending.class) {
            queue.bytes -= sending.bytes;
        }
        Some(sending)
    }
}

/// Picoseconds that so many bytes take at a rate.
pub(crate) fn time_of(bytes: u64, rate: u64) -> u64 {
    const PER_BYTE: u64 = 8_000_000_000_000;
    match bytes.checked_mul(PER_BYTE) {
        Some(product) => product / rate,
        None => (u128::from(bytes) * u128::from(PER_BYTE) / u128::from(rate)) as u64,
    }
}
