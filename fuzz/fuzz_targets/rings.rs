//! The daemon's ends of all shared-memory structures, beside a program that writes anything anywhere at any time: nothing panics,
//! counts stay within the limits of the queue, and nothing is written outside of the queue's memory.
#![no_main]

use burst_fuzz::Tape;
use burst_shm::arena::Segment;
use burst_shm::cq::{CqProducer, CqSpec};
use burst_shm::doorbell::DoorbellDrain;
use burst_shm::record_ring::{self, RECORD_BYTES_MAX, RECORD_RING_ENTRIES, RecordRingConsumer};
use burst_shm::rq::{RqConsumer, RqSpec, SrqConsumer};
use burst_shm::sq::{SqConsumer, SqSpec};
use burst_shm::{Area, ContextPage, Cqe, DOORBELL_QUEUES, Fetch, RecvWqe, SGE_MAX, SendWqe, Sge};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const ACTIONS_MAX: usize = 256;
/// Bytes before and behind the queue that nothing may change.
const GUARD: usize = 128;
const GUARD_WORD: u64 = 0x6775_6172_6467_7561;

/// The memory of a queue between two guards.
struct Memory {
    segment: Arc<Segment>,
    start: usize,
    len: usize,
}

impl Memory {
    /// Memory for a queue of `len` bytes, with guards.
    fn new(len: usize) -> Memory {
        let segment = Arc::new(Segment::anonymous(len + 2 * GUARD + 64).expect("memory"));
        let memory = Memory { segment, start: GUARD, len };
        memory.guards().for_each(|at| memory.word(at).store(GUARD_WORD, Relaxed));
        memory
    }
    /// The whole of a segment, without guards.
    fn whole(segment: Arc<Segment>) -> Memory {
        let len = segment.len();
        Memory { segment, start: 0, len }
    }
    fn area(&self) -> Area {
        Area::new(&self.segment, self.start, self.len).expect("inside")
    }
    fn guards(&self) -> impl Iterator<Item = usize> {
        let end = (self.start + self.len).next_multiple_of(8);
        (0..self.start).chain(end..end + self.start).step_by(8)
    }
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.segment.len());
        // SAFETY: inside the segment and aligned, just asserted; all accesses to shared memory are atomic.
        unsafe { AtomicU64::from_ptr(self.segment.base().as_ptr().add(at).cast()) }
    }
    /// The program writes half a word somewhere, often into the header.
    fn scribble(&self, tape: &mut Tape<'_>) {
        let place = match tape.byte() {
            near @ 0..=127 => usize::from(near & 63) * 4,
            _ => usize::from(tape.half()) * 4 + usize::from(tape.byte()) * 65_536,
        };
        let at = place % self.len.next_multiple_of(8);
        let (word, value) = (self.word(self.start + at / 8 * 8), u64::from(tape.limit()));
        let shift = if at % 8 >= 4 { 32 } else { 0 };
        word.store(word.load(Relaxed) & !(0xffff_ffff << shift) | value << shift, Relaxed);
    }
    /// The program writes a whole entry's worth of bytes.
    fn scribble_bytes(&self, tape: &mut Tape<'_>) {
        let at = usize::from(tape.half()) * 8 % self.len;
        let bytes = tape.take(64);
        for (i, word) in bytes.chunks_exact(8).enumerate().filter(|(i, _)| at + i * 8 + 8 <= self.len) {
            self.word(self.start + at / 8 * 8 + i * 8).store(u64::from_ne_bytes(word.try_into().expect("8")), Relaxed);
        }
    }
    fn check(&self) {
        assert!(self.guards().all(|at| self.word(at).load(Relaxed) == GUARD_WORD), "written outside of the queue");
    }
}

/// Runs the input's actions; `step` gets those that are the daemon's.
fn run(tape: &mut Tape<'_>, memory: &Memory, mut step: impl FnMut(u8, &mut Tape<'_>)) {
    for _ in 0..ACTIONS_MAX {
        if tape.is_empty() {
            break;
        }
        match tape.byte() {
            action @ 0..=127 => step(action, tape),
            128..=223 => memory.scribble(tape),
            _ => memory.scribble_bytes(tape),
        }
    }
}

fn send_queue(tape: &mut Tape<'_>) {
    let (wr, sges, inline) = (u32::from(tape.byte()), u32::from(tape.byte()), u32::from(tape.half()));
    let Some(spec) = SqSpec::new(wr, sges, inline) else { return };
    let memory = Memory::new(spec.bytes());
    let mut queue = SqConsumer::new(memory.area(), spec).expect("large enough");
    run(tape, &memory, |action, tape| {
        let (mut wqe, mut sges) = (SendWqe::default(), [Sge::default(); SGE_MAX as usize]);
        let before = queue.taken();
        match action % 8 {
            0..=3 => match queue.fetch(&mut wqe, &mut sges) {
                Fetch::Taken(index) => {
                    assert_eq!((index, queue.taken()), (before, before.wrapping_add(1)));
                    assert!(u32::from(wqe.num_sge) <= spec.max_sge());
                    if wqe.flags & burst_base::verbs::send_flags::INLINE as u16 != 0 {
                        assert!(wqe.length <= spec.max_inline() && wqe.num_sge == 0);
                        queue.inline_span(index, wqe.length);
                    }
                }
                Fetch::Malformed(index) => assert_eq!((index, queue.taken()), (before, before.wrapping_add(1))),
                Fetch::Empty | Fetch::Corrupt => assert_eq!(queue.taken(), before),
            },
            4 => drop(queue.inline_span(tape.word(), tape.limit())),
            5 => drop(queue.try_idle()),
            _ => queue.discard_all(),
        }
        assert!(queue.pending() <= spec.entries());
    });
    memory.check();
}

fn check_receive(fetch: Fetch, wqe: &RecvWqe, spec: &RqSpec) {
    if let Fetch::Taken(_) = fetch {
        assert!(wqe.num_sge <= spec.max_sge());
    }
}

fn receive_queue(tape: &mut Tape<'_>) {
    let Some(spec) = RqSpec::new(u32::from(tape.byte()), u32::from(tape.byte())) else { return };
    let memory = Memory::new(spec.bytes());
    let mut queue = RqConsumer::new(memory.area(), spec).expect("large enough");
    run(tape, &memory, |action, _| {
        let (mut wqe, mut sges) = (RecvWqe::default(), [Sge::default(); SGE_MAX as usize]);
        match action % 8 {
            0..=3 => check_receive(queue.fetch(&mut wqe, &mut sges), &wqe, &spec),
            4 | 5 => drop(queue.try_idle()),
            6 => queue.want_no_doorbell(),
            _ => queue.discard_all(),
        }
        assert!(queue.pending() <= spec.entries());
    });
    memory.check();
}

fn shared_receive_queue(tape: &mut Tape<'_>) {
    let sges = u32::from(tape.byte());
    let Some(spec) = RqSpec::new(u32::from(tape.byte()), sges) else { return };
    let memory = Memory::new(spec.bytes());
    let mut queue = SrqConsumer::new(memory.area(), spec).expect("large enough");
    let mut moved: Vec<Memory> = Vec::new();
    run(tape, &memory, |action, tape| {
        let (mut wqe, mut sge_list) = (RecvWqe::default(), [Sge::default(); SGE_MAX as usize]);
        match action % 8 {
            0..=5 => check_receive(queue.fetch(&mut wqe, &mut sge_list), &wqe, queue.spec()),
            6 => queue.publish_taken(),
            _ => {
                let Some(larger) = RqSpec::new(u32::from(tape.byte()), sges) else { return };
                let place = Memory::new(larger.bytes());
                if let Some(next) = queue.move_to(place.area(), larger) {
                    (queue, _) = (next, moved.push(place));
                }
            }
        }
        assert!(queue.pending() <= queue.spec().entries());
        // The program writes into the ring that it has now, too.
        moved.iter().for_each(|ring| ring.scribble(tape));
    });
    moved.iter().chain([&memory]).for_each(Memory::check);
}

fn completion_queue(tape: &mut Tape<'_>) {
    let Some(spec) = CqSpec::new(u32::from(tape.byte())) else { return };
    let memory = Memory::new(spec.bytes());
    let queue = CqProducer::new(memory.area(), spec).expect("large enough");
    let mut rings: Vec<Memory> = Vec::new();
    run(tape, &memory, |action, tape| {
        match action % 8 {
            0..=4 => drop(queue.push(&Cqe { wr_id: u64::MAX, ..Cqe::default() }, action & 8 != 0)),
            5 => drop(queue.event_due(action & 8 != 0)),
            6 => {
                let Some(other) = CqSpec::new(u32::from(tape.byte())) else { return };
                let place = Memory::new(other.bytes());
                if queue.switch_to(place.area(), other).is_ok() {
                    rings.push(place);
                }
            }
            _ => queue.retire_old(),
        }
        rings.iter().for_each(|ring| ring.scribble(tape));
    });
    rings.iter().chain([&memory]).for_each(Memory::check);
}

fn doorbells(tape: &mut Tape<'_>) {
    let memory = Memory::new(size_of::<ContextPage>());
    let worker = usize::from(tape.byte());
    let Some(mut drain) = DoorbellDrain::new(memory.area(), worker) else { return };
    run(tape, &memory, |action, tape| {
        let budget = usize::from(tape.byte());
        let mut last = None;
        let rung = drain.drain(budget, |queue| {
            assert!(queue < DOORBELL_QUEUES && last != Some(queue));
            last = Some(queue);
        });
        assert!(rung <= budget);
        if action & 1 == 1 {
            assert!(drain.is_ringing() || drain.drain(1, |_| ()) == 0, "a bit without a ring");
        }
    });
    memory.check();
}

fn records(tape: &mut Tape<'_>) {
    let (segment, mut ring) = record_ring::create().expect("a ring");
    let memory = Memory::whole(segment);
    run(tape, &memory, |action, _| match action % 8 {
        0..=4 => take_records(&mut ring),
        5 | 6 => drop(ring.try_idle()),
        _ => ring.stay_awake(),
    });
}

fn take_records(ring: &mut RecordRingConsumer) {
    let mut buffer = [0; RECORD_BYTES_MAX];
    let pending = ring.pending().unwrap_or(0);
    assert!(pending <= RECORD_RING_ENTRIES);
    for _ in 0..pending {
        match ring.take(&mut buffer) {
            Ok(record) => assert!(record.len() <= RECORD_BYTES_MAX),
            Err(_) => return,
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut tape = Tape(data);
    match tape.byte() % 6 {
        0 => send_queue(&mut tape),
        1 => receive_queue(&mut tape),
        2 => shared_receive_queue(&mut tape),
        3 => completion_queue(&mut tape),
        4 => doorbells(&mut tape),
        _ => records(&mut tape),
    }
});
