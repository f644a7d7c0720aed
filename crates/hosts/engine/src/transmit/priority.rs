//! Priorities of the queue pairs of one account: four classes, by the traffic class of their packets.
//!
//! Class 0 is strict: its queue pairs have turns before all others. Classes 1 to 3 share what it leaves by [`WEIGHTS`], by
//! deficit round robin over the cost of turns in bytes. A class that is alone has all turns and is not charged, and
//! a class that is idle saves one round at most.
//! After [`STRICT_MAX`] of the strict class one turn goes to the others: their acknowledgements leave with turns, and a peer that
//! gets none for seconds gives the connection up.
//!
//! A program chooses its traffic class, so a class can only order turns of its own account. Accounts share a worker before,
//! whatever their classes (`sched`). If classes came first, whoever marks all packets EF would stop everybody else.
//!
//! The class of a connected queue pair follows from the DSCP of its address vector ([`class_of`]); programs that set none have
//! class 2. Datagrams have the traffic class of their address handles, and their queue pair class 2.

use crate::transmit::sched::ROUND_COST;
use std::collections::VecDeque;

/// Number of classes. Class 0 is strict.
pub const CLASSES: usize = 4;

/// Class of packets without a traffic class.
const DEFAULT_CLASS: u8 = 2;

/// What classes 1 to 3 may use in one of their rounds, in units of a full turn.
pub const WEIGHTS: [u64; CLASSES] = [0, 4, 2, 1];

/// What the strict class may use while others wait, before one of them has a turn.
pub const STRICT_MAX: u64 = 16 * ROUND_COST;

/// Classes by DSCP, first and last of each range (names of RFC 4594 and RFC 8622). Others have [`DEFAULT_CLASS`].
const CLASSES_BY_DSCP: [(u8, u8, u8); 6] = [
    // CS7, CS6: network control. CNPs of other implementations and MPI's control messages use CS6.
    (48, 56, 0),
    // VOICE-ADMIT, EF.
    (44, 46, 0),
    // CS5.
    (40, 40, 1),
    // CS4, AF41, AF42, AF43.
    (32, 38, 1),
    // CS1, AF11, AF12, AF13.
    (8, 14, 3),
    // LE: lower effort.
    (1, 1, 3),
];

const CLASS_OF_DSCP: [u8; 64] = {
    let mut classes = [DEFAULT_CLASS; 64];
    let mut row = 0;
    while row < CLASSES_BY_DSCP.len() {
        let (first, last, class) = CLASSES_BY_DSCP[row];
        let mut dscp = first;
        while dscp <= last {
            classes[dscp as usize] = class;
            dscp += 1;
        }
        row += 1;
    }
    classes
};

/// The class of packets with this traffic class (`tos`): its upper six bits are the DSCP.
#[inline]
pub fn class_of(tos: u8) -> usize {
    usize::from(CLASS_OF_DSCP[usize::from(tos >> 2)])
}

/// The contexts of an account that have ready queue pairs, by class.
#[derive(Debug)]
pub(crate) struct ClassQueues {
    /// Contexts in order of their turns.
    queues: [VecDeque<u32>; CLASSES],
    /// Bit c: class c is not empty.
    ready: u8,
    /// The weighted class whose round it is.
    current: usize,
    /// What each weighted class may still use in its round; not above 0: the next class comes.
    credit: [i64; CLASSES],
    /// What the strict class has used while others waited.
    strict: u64,
}

const STRICT: u8 = 1;

impl Default for ClassQueues {
    fn default() -> ClassQueues {
        ClassQueues { queues: Default::default(), ready: 0, current: 1, credit: [0; CLASSES], strict: 0 }
    }
}

impl ClassQueues {
    /// Whether no context is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ready == 0
    }
    /// Appends a context.
    #[inline]
    pub fn push(&mut self, class: usize, context: u32) {
        self.queues[class].push_back(context);
        self.ready |= 1 << class;
    }
    /// Takes the first context of a class.
    #[inline]
    pub fn pop(&mut self, class: usize) -> Option<u32> {
        let context = self.queues[class].pop_front();
        if self.queues[class].is_empty() {
            self.ready &= !(1 << class);
        }
        context
    }
    /// Takes a context out of a class.
    pub fn remove(&mut self, class: usize, context: u32) {
        self.queues[class].retain(|queued| *queued != context);
        if self.queues[class].is_empty() {
            self.ready &= !(1 << class);
        }
    }
    /// Returns memory that is not in use.
    pub fn shrink_to_fit(&mut self) {
        self.queues.iter_mut().for_each(VecDeque::shrink_to_fit);
    }
    /// The contexts of the class that has the next turn, probably: credit is not looked at.
    #[inline]
    pub fn next_contexts(&self) -> (usize, &VecDeque<u32>) {
        let is_current = self.ready & STRICT == 0 && self.ready >> self.current & 1 == 1;
        let class = if is_current { self.current } else { self.ready.trailing_zeros() as usize % CLASSES };
        (class, &self.queues[class])
    }
    /// The class that has the next turn. Some context is queued.
    #[inline]
    pub fn next_class(&mut self) -> usize {
        debug_assert!(self.ready != 0);
        if self.ready.is_power_of_two() {
            self.strict = 0;
            return self.ready.trailing_zeros() as usize;
        }
        self.choose()
    }
    #[inline(never)]
    fn choose(&mut self) -> usize {
        if self.ready & STRICT != 0 && self.strict < STRICT_MAX {
            return 0;
        }
        let weighted = self.ready & !STRICT;
        // A round is more than a turn takes, so a class with a debt has credit in its second round.
        for _ in 0..2 * CLASSES {
            if weighted >> self.current & 1 == 1 && self.credit[self.current] > 0 {
                return self.current;
            }
            self.credit[self.current] = self.credit[self.current].min(0);
            self.current = self.current % (CLASSES - 1) + 1;
            let round = (WEIGHTS[self.current] * ROUND_COST) as i64;
            self.credit[self.current] = (self.credit[self.current] + round).min(round);
        }
        weighted.trailing_zeros() as usize
    }
    /// Charges a turn to its class, unless no other class waits.
    #[inline]
    pub fn charge(&mut self, class: usize, cost: u64) {
        if self.ready & !(1 << class) != 0 {
            self.charge_among(class, cost);
        }
    }
    #[inline(never)]
    fn charge_among(&mut self, class: usize, cost: u64) {
        if class == 0 {
            self.strict += cost;
        } else {
            self.credit[class] -= cost as i64;
            self.strict = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Costs of `count` turns, by class, where the classes of `ready` always have a context. `cost` is that of a turn of a class.
    fn shares(ready: &[usize], count: usize, cost: impl Fn(usize) -> u64) -> [u64; CLASSES] {
        let (mut queues, mut used) = (ClassQueues::default(), [0; CLASSES]);
        ready.iter().for_each(|class| queues.push(*class, *class as u32));
        for _ in 0..count {
            let class = queues.next_class();
            assert_eq!(queues.pop(class), Some(class as u32));
            queues.push(class, class as u32);
            queues.charge(class, cost(class));
            used[class] += cost(class);
        }
        used
    }

    fn percent(used: [u64; CLASSES]) -> [u64; CLASSES] {
        let all: u64 = used.iter().sum();
        used.map(|one| (one * 100 + all / 2) / all)
    }

    #[test]
    fn weighted_classes_share_bytes_by_their_weights_whatever_their_turns_cost() {
        assert_eq!(percent(shares(&[1, 2, 3], 7_000, |_| ROUND_COST)), [0, 57, 29, 14]);
        assert_eq!(
            percent(shares(&[1, 2, 3], 70_000, |class| [0, 1 << 10, 48 << 10, 5 << 10][class])),
            [0, 57, 29, 14]
        );
        assert_eq!(percent(shares(&[2, 3], 3_000, |class| ROUND_COST >> class)), [0, 0, 67, 33]);
        assert_eq!(percent(shares(&[1, 3], 5_000, |_| ROUND_COST / 3)), [0, 80, 0, 20]);
    }

    #[test]
    fn the_strict_class_comes_first_and_starves_no_other() {
        let used = shares(&[0, 1, 2, 3], 17 * 7 * 10, |_| ROUND_COST);
        assert_eq!(used.map(|one| one / ROUND_COST), [1120, 40, 20, 10]);
        // It takes what it wants, as long as that is less than all.
        let mut queues = ClassQueues::default();
        queues.push(2, 7);
        for _ in 0..100 {
            queues.push(0, 9);
            assert_eq!(queues.next_class(), 0);
            assert_eq!(queues.pop(0), Some(9));
            queues.charge(0, ROUND_COST / 4);
            assert_eq!(queues.next_class(), 2);
            queues.charge(2, ROUND_COST);
        }
    }

    #[test]
    fn a_class_that_was_alone_or_idle_owes_and_saves_little() {
        let mut queues = ClassQueues::default();
        queues.push(1, 5);
        for _ in 0..1000 {
            assert_eq!(queues.next_class(), 1);
            queues.charge(1, ROUND_COST);
        }
        queues.push(3, 6);
        let mut turns = [0u32; CLASSES];
        for _ in 0..50 {
            let class = queues.next_class();
            turns[class] += 1;
            queues.charge(class, ROUND_COST);
        }
        assert!(turns[1].abs_diff(40) <= 4 && turns[1] + turns[3] == 50, "{turns:?}");
        queues.remove(3, 6);
        assert!(queues.next_class() == 1 && !queues.is_empty());
        queues.remove(1, 5);
        assert!(queues.is_empty() && queues.pop(1).is_none());
    }

    #[test]
    fn classes_follow_the_dscp() {
        let class = |dscp: u8| class_of(dscp << 2 | 0b10);
        assert_eq!([0, 18, 26, 63].map(class), [2; 4], "default, AF21, AF31, unassigned");
        assert_eq!([46, 44, 48, 56].map(class), [0; 4], "EF, VOICE-ADMIT, CS6, CS7");
        assert_eq!([32, 34, 36, 38, 40].map(class), [1; 5], "CS4, AF4x, CS5");
        assert_eq!([1, 8, 10, 12, 14].map(class), [3; 5], "LE, CS1, AF1x");
    }
}
