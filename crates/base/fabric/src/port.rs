//! An end of a link: what waits to be sent, by class, and which classes are paused.

use crate::Train;
use crate::schedule::{PacketFate, PacketSchedule};
use crate::topology::{CLASSES, ClassSettings};
use std::collections::VecDeque;

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
    /// Bytes that the class may still send in this round of deficit round robin.
    deficit: u64,
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
    /// The class with a weight that has sent last.
    turn: u8,
    /// Classes that the other end has paused, one bit each, and since when.
    pub paused: u8,
    pub paused_since: [u64; CLASSES],
    /// Classes whose pause is a storm: their trains are dropped.
    pub storms: u8,
    /// Until when nothing is sent.
    pub stalled_until: u64,
    /// When trains that came meanwhile come again: the end of the stall, or of one that has become longer since.
    pub held_until: u64,
    /// Bytes that are being sent: class, ingress and bytes of the train.
    pub sending: Option<Sending>,
    /// Bytes that came in by this port and are in the switch, by class, and those of them in the headroom.
    pub held: [u64; CLASSES],
    pub headroom_used: [u64; CLASSES],
    /// Classes that the other end was asked to pause.
    pub pausing: u8,
    /// For adapters: what happens to single packets.
    pub schedules: Vec<PacketSchedule>,
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
            turn: 0,
            paused: 0,
            paused_since: [0; CLASSES],
            storms: 0,
            stalled_until: 0,
            held_until: 0,
            sending: None,
            held: [0; CLASSES],
            headroom_used: [0; CLASSES],
            pausing: 0,
            schedules: Vec::new(),
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
                self.queues.insert(at, ClassQueue { class, trains: VecDeque::new(), bytes: 0, deficit: 0 });
                at
            }
        };
        self.queues[at].bytes += bytes;
        self.queues[at].trains.push_back(queued);
        self.queued += bytes;
        self.queued_max = self.queued_max.max(self.queued);
    }

    /// Takes the next train that may be sent. Its bytes stay queued until [`LinkEnd::sent`].
    pub fn pop(&mut self, classes: &[ClassSettings; CLASSES]) -> Option<QueuedTrain<T>> {
        let (paused, mut has_weights) = (self.paused, false);
        for queue in self.queues.iter_mut().filter(|queue| paused >> queue.class & 1 == 0) {
            if classes[usize::from(queue.class)].weight > 0 {
                has_weights = true;
            } else if let Some(queued) = queue.trains.pop_front() {
                return Some(queued);
            }
        }
        if has_weights { self.pop_weighted(classes) } else { None }
    }

    /// Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995): in each round a class that waits may send its weight more, and
    /// what it does not use remains while it waits. The highest class comes first in a round.
    fn pop_weighted(&mut self, classes: &[ClassSettings; CLASSES]) -> Option<QueuedTrain<T>> {
        let paused = self.paused;
        // For a class that takes part: its weight, and the bytes that its deficit lacks for the first train.
        let waits = |queue: &ClassQueue<T>| {
            let weight = classes[usize::from(queue.class)].weight;
            let first = queue.trains.front()?.train.bytes();
            (weight > 0 && paused >> queue.class & 1 == 0).then(|| (weight, first.saturating_sub(queue.deficit)))
        };
        let rounds = self.queues.iter().filter_map(waits).map(|(weight, lacks)| lacks.div_ceil(weight)).min()?;
        let count = self.queues.len();
        let last = self.queues.iter().position(|queue| queue.class == self.turn).unwrap_or(count - 1);
        let goes_on = waits(&self.queues[last]).is_some_and(|(_, lacks)| lacks == 0);
        let mut next = last;
        if !goes_on {
            // Rounds in which no class could send are skipped: one round is left, in which one can.
            for queue in &mut self.queues {
                if let Some((weight, _)) = waits(queue) {
                    queue.deficit += weight * rounds.saturating_sub(1);
                }
            }
            let visit = |at: usize, queues: &mut Vec<ClassQueue<T>>| {
                let (weight, lacks) = waits(&queues[at])?;
                queues[at].deficit += weight;
                (lacks <= weight).then_some(at)
            };
            next = (1..=count).find_map(|step| visit((last + step) % count, &mut self.queues))?;
        }
        let queue = &mut self.queues[next];
        let queued = queue.trains.pop_front()?;
        self.turn = queue.class;
        queue.deficit = if queue.trains.is_empty() { 0 } else { queue.deficit - queued.train.bytes() };
        Some(queued)
    }

    /// Takes all trains of a class.
    pub fn take_class(&mut self, class: u8) -> VecDeque<QueuedTrain<T>> {
        let Some(queue) = self.queues.iter_mut().find(|queue| queue.class == class) else { return VecDeque::new() };
        let trains = std::mem::take(&mut queue.trains);
        let bytes: u64 = trains.iter().map(|queued| queued.train.bytes()).sum();
        (queue.bytes, queue.deficit) = (queue.bytes - bytes, 0);
        self.queued -= bytes;
        trains
    }

    /// Bytes of switches' ingress ports that wait here or are being sent.
    pub fn ingress_bytes(&self) -> u64 {
        let waiting = self.queues.iter().flat_map(|queue| &queue.trains).filter(|queued| queued.ingress.is_some());
        let sending = self.sending.filter(|sending| sending.ingress.is_some()).map_or(0, |sending| sending.bytes);
        waiting.map(|queued| queued.train.bytes()).sum::<u64>() + sending
    }

    /// What the schedules have for the next packet.
    pub fn next_fate(&mut self) -> PacketFate {
        let fate = self.schedules.iter_mut().fold(PacketFate::default(), |fate, schedule| fate.and(schedule.next()));
        self.schedules.retain(|schedule| !schedule.is_over());
        fate
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
