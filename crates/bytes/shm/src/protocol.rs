//! The rules by which two processes share words. Each is written once and used by the real rings and by the loom models.
//!
//! Three of them are the same Dekker pattern: each side writes its own word, passes a sequentially consistent
//! fence and reads the other's word, so at least one side sees the other:
//!
//! | rule | one side writes, then reads | other side writes, then reads |
//! |---|---|---|
//! | idle queue | [`post`]: producer, then idle | [`try_idle`]: idle, then producer |
//! | armed CQ | [`event_due`]: entry (before), then armed | [`arm`]: armed, then entries (a later poll) |
//! | sleeping worker | [`needs_wake`]: doorbell (before), then sleeping | [`go_to_sleep`]: sleeping, then doorbells |
//!
//! Workers wake each other by the third rule, too. As they may write the word, exactly one of several ringers claims the
//! wake-up ([`claim_wake`], [`rise`]).
//!
//! The fourth is the doorbell tree ([`ring_bit`], and swaps from the top down in `doorbell`); the fifth the
//! reservation of CQ entries by many producers ([`reserve`]); the sixth the shared take of an SRQ ([`take`]).
use crate::sync::{AtomicU32, AtomicU64, Ordering::*, fence};

/// `armed` value: not armed.
pub const ARMED_NO: u32 = 0;
/// `armed` value: the next solicited (or failed) completion makes an event.
pub const ARMED_SOLICITED: u32 = 1;
/// `armed` value: the next completion of any kind makes an event.
pub const ARMED_ANY: u32 = 2;

/// Application: publishes entries up to `index`. True: the queue is idle and the daemon must be rung.
#[inline]
pub fn post(producer: &AtomicU32, idle: &AtomicU32, index: u32) -> bool {
    // Release: pairs with the Acquire load of `producer` in `fetch` and `try_idle`; the entries come first.
    producer.store(index, Release);
    // Pairs with the fence in `try_idle`.
    fence(SeqCst);
    idle.load(Relaxed) != 0 && idle.swap(0, AcqRel) != 0
}

/// Daemon: declares the queue idle after all entries up to `taken` were taken. True: the next [`post`] will ring.
/// False: something arrived meanwhile; the queue is not idle (a needless ring may follow).
pub fn try_idle(producer: &AtomicU32, idle: &AtomicU32, taken: u32) -> bool {
    // A swap, not a store, here and below: each writer of `idle` reads the value that it overwrites, so that the writes of
    // both sides have one order that each side can rely on.
    idle.swap(1, AcqRel);
    // Pairs with the fence in `post`.
    fence(SeqCst);
    if producer.load(Acquire) == taken {
        return true;
    }
    idle.swap(0, AcqRel);
    false
}

/// Application: asks for an event at the next completion. Never weakens an earlier request. The caller must poll
/// once more afterwards, as verbs demand; that poll, or the producer, notices a completion made meanwhile.
#[inline]
pub fn arm(armed: &AtomicU32, level: u32) {
    armed.fetch_max(level, AcqRel);
    // Pairs with the fence in `event_due`.
    fence(SeqCst);
}

/// Daemon: after publishing an entry: whether an event must be sent now. Disarms if so.
pub fn event_due(armed: &AtomicU32, solicited: bool) -> bool {
    // Pairs with the fence in `arm`: if the load misses the request, the application's next poll sees the entry.
    fence(SeqCst);
    disarm(armed, solicited)
}

/// The second half of [`event_due`], behind its fence.
#[inline]
pub fn disarm(armed: &AtomicU32, solicited: bool) -> bool {
    let level = armed.load(Relaxed);
    if level == ARMED_NO || (level == ARMED_SOLICITED && !solicited) {
        return false;
    }
    armed.swap(ARMED_NO, AcqRel) != ARMED_NO
}

/// Daemon: announces that this worker is about to sleep. The caller must look at every doorbell once more.
pub fn go_to_sleep(sleeping: &AtomicU32) {
    // A swap: see `try_idle`. Others of the daemon may write the word ([`claim_wake`]).
    sleeping.swap(1, AcqRel);
    // Pairs with the fence in `needs_wake`.
    fence(SeqCst);
}

/// Application: after ringing: whether the worker may be asleep and must be woken by its descriptor.
#[inline]
pub fn needs_wake(sleeping: &AtomicU32) -> bool {
    // Pairs with the fence in `go_to_sleep`.
    fence(SeqCst);
    sleeping.load(Relaxed) != 0
}

/// Daemon: after work was passed to another worker: whether that worker may be asleep and this caller must wake it.
#[inline]
pub fn claim_wake(sleeping: &AtomicU32) -> bool {
    needs_wake(sleeping) && sleeping.swap(0, AcqRel) != 0
}

/// Daemon: announces that this worker is awake and looks at all its work next. True: another worker has claimed the wake-up,
/// whose write to the descriptor has come or will come.
pub fn rise(sleeping: &AtomicU32) -> bool {
    sleeping.swap(0, AcqRel) == 0
}

/// Application: sets one queue's bit, from the leaf up. A death between two steps leaves bits below a clear bit:
/// the next ring that sets the same upper bit makes them visible, and no other process depends on them.
///
/// While the daemon has not come to the bits of earlier rings, a ring changes the leaf only: the words above are shared by all
/// threads of the program, and a change of one takes its cache line from the others.
#[inline]
pub fn ring_bit(leaf: &AtomicU64, mid: &AtomicU64, top: &AtomicU64, leaf_bit: u32, mid_bit: u32, top_bit: u32) {
    // Release at each level: a daemon that takes a bit with Acquire sees the level below, and the posted entries. Acquire at the
    // leaf: if the daemon took the leaf before this bit came, the loads below see that it took the upper bits, too.
    leaf.fetch_or(1 << leaf_bit, AcqRel);
    if mid.load(Acquire) & 1 << mid_bit != 0 && top.load(Acquire) & 1 << top_bit != 0 {
        return;
    }
    mid.fetch_or(1 << mid_bit, Release);
    top.fetch_or(1 << top_bit, Release);
}

/// Daemon: takes all bits of a word. To be called from the top down.
#[inline]
pub fn take_bits(word: &AtomicU64) -> u64 {
    // Acquire pairs with the Releases of `ring_bit`, Release with its Acquire.
    word.swap(0, AcqRel)
}

/// A CQ's reservation word: generation of the ring in the high half, next index in the low half.
pub const fn head_word(generation: u32, index: u32) -> u64 {
    (generation as u64) << 32 | index as u64
}

/// Daemon worker: reserves the next entry of a CQ if it `has_room` at the head's value. `Err(seen)`: full when the head was
/// `seen`. A reserved entry cannot be returned, hence compare-and-swap rather than fetch-add.
#[inline]
pub fn reserve(head: &AtomicU64, mut has_room: impl FnMut(u64) -> bool) -> Result<u64, u64> {
    let mut seen = head.load(Acquire);
    loop {
        if !has_room(seen) {
            // While this worker was interrupted, other workers may have added entries and the application may have consumed
            // them: the queue is full only if the head has not moved.
            match head.load(Acquire) {
                now if now == seen => return Err(seen),
                now => seen = now,
            }
            continue;
        }
        let next = head_word((seen >> 32) as u32, (seen as u32).wrapping_add(1));
        // Lock-free: a failure means that another worker reserved (or the ring was switched).
        match head.compare_exchange_weak(seen, next, AcqRel, Acquire) {
            Ok(_) => return Ok(seen),
            Err(now) => seen = now,
        }
    }
}

/// Daemon worker: takes the entry `index` of an SRQ if no other worker has, then publishes the progress to the application.
/// The entry must have been copied before; on false the copy must be discarded.
pub fn take(taken: &AtomicU32, consumer: &AtomicU32, index: u32) -> bool {
    if taken.compare_exchange(index, index.wrapping_add(1), AcqRel, Relaxed).is_err() {
        return false;
    }
    publish_taken(taken, consumer, index.wrapping_add(1));
    true
}

/// Daemon worker: publishes that `value` entries of an SRQ are taken, or more if others have taken more.
pub fn publish_taken(taken: &AtomicU32, consumer: &AtomicU32, mut value: u32) {
    // The application must not be left with an older value than `taken`: a worker that overwrites a newer value reads it by
    // the swap (Acquire), therefore sees the newer `taken`, and writes again.
    loop {
        consumer.swap(value, AcqRel);
        let now = taken.load(Acquire);
        if now == value {
            return;
        }
        value = now;
    }
}
