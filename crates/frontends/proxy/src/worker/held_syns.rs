//! The table of SYNs that the kernel holds until the server's answer is known ([`crate::hold`]).
//!
//! A held SYN opens a stream, or a connection by TCP, that has no socket of the program yet: its owner. When the server has
//! accepted, the SYN passes to the listener, and its entry waits for the accepted socket, which is joined to the owner.
//!
//! A SYN waits no longer than its owner: a stream whose peer does not answer within `open_ms` becomes a connection by TCP, as one
//! whose peer has gone does at once; and the server of that one has accepted, refused, or is as silent as without a proxy. If the
//! proxy ends, the kernel drops what it held, and the program's TCP repeats it. So a program waits for `open_ms` and one
//! repetition at most.
//!
//! Copies of a SYN that is held are dropped. Copies of one that has passed pass as well, up to [`COPIES_MAX`]: if they led to no
//! socket, no further one would, and without an answer the program would wait for minutes.

use super::sockets::Ends;
use super::table::TableKey;
use super::token::StreamKey;
use burst_ledger::PoolCharge;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// How long a connection may take from the server's answer to the listener. It takes longer when the process has no
/// descriptors left, and for ever if the program has closed its socket meanwhile.
const ACCEPTED_MAX: Duration = Duration::from_secs(30);

/// Copies of a SYN that pass after it; the next one is refused. Two: the first copy may be older than the SYN's verdict.
const COPIES_MAX: u8 = 2;
/// SYNs that have led to sockets and are remembered in vain, beside as many as are held or wait for theirs.
const STALE_MAX: usize = 1024;

/// What waits for the program's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SynOwner {
    /// A stream.
    Stream(StreamKey),
    /// A connection by TCP.
    Pair(TableKey),
    /// Nothing yet, or nothing any more: an accepted socket is reset.
    None,
}

/// What becomes of a copy of a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SynCopy {
    /// The first one waits.
    Drop,
    /// The first one has passed.
    Pass,
    /// Neither the first one nor its copies have led to a socket. Their owner is to be ended.
    Refuse(SynOwner),
}

/// A SYN in a queue of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuedSyn {
    /// Index of the place whose queue has it.
    pub(super) place: usize,
    /// The kernel's number.
    pub(super) packet: u32,
    /// Its sequence number.
    pub(super) seq: u32,
}

#[derive(Debug)]
struct HeldSyn {
    syn: QueuedSyn,
    owner: SynOwner,
    /// Since it has passed: when nothing waits for the socket any more.
    until: Option<Instant>,
    /// Copies that have passed after it.
    copies: u8,
    /// Its place in the queue; `None`: it has passed.
    charge: Option<PoolCharge>,
}

/// SYNs that are held, and those that have passed and lead to a socket soon.
#[derive(Debug, Default)]
pub(super) struct HeldSyns {
    held: HashMap<Ends, HeldSyn>,
    /// Those that have passed, oldest first, and some that have led to sockets since: no more than the others and
    /// [`STALE_MAX`].
    passed: VecDeque<(Instant, Ends)>,
}

impl HeldSyns {
    /// What becomes of a copy of a SYN that is here. `may_wait`: passed ones wait because the process accepts nothing for now.
    pub(super) fn repeated(&mut self, ends: Ends, may_wait: bool) -> Option<SynCopy> {
        let held = self.held.get_mut(&ends)?;
        if held.until.is_none() {
            return Some(SynCopy::Drop);
        }
        if held.copies < COPIES_MAX || may_wait {
            held.copies = held.copies.saturating_add(1);
            return Some(SynCopy::Pass);
        }
        self.held.remove(&ends).map(|held| SynCopy::Refuse(held.owner))
    }

    /// Adds a SYN, which has no owner yet.
    pub(super) fn hold(&mut self, ends: Ends, syn: QueuedSyn, charge: Option<PoolCharge>) {
        let before = self.held.insert(ends, HeldSyn { syn, owner: SynOwner::None, until: None, copies: 0, charge });
        debug_assert!(before.is_none(), "a repeated SYN is not held");
    }

    /// Notes what waits for the socket of a held SYN.
    pub(super) fn set_owner(&mut self, ends: Ends, owner: SynOwner) {
        if let Some(held) = self.held.get_mut(&ends) {
            held.owner = owner;
        }
    }

    /// Whether the SYN of an owner waits for a verdict.
    pub(super) fn is_held(&self, ends: Ends, owner: SynOwner) -> bool {
        self.held.get(&ends).is_some_and(|held| held.owner == owner && held.until.is_none())
    }

    /// The server has accepted: the SYN of an owner has to pass, if it is held.
    pub(super) fn pass(&mut self, ends: Ends, owner: SynOwner, now: Instant) -> Option<QueuedSyn> {
        let held = self.held.get_mut(&ends).filter(|held| held.owner == owner && held.until.is_none())?;
        let until = now + ACCEPTED_MAX;
        held.until = Some(until);
        held.charge = None;
        let syn = held.syn;
        self.passed.push_back((until, ends));
        self.forget_joined();
        Some(syn)
    }

    /// Forgets those that have led to sockets, when they are the most. One that leads to none stays in front of them for
    /// [`ACCEPTED_MAX`], in which a program can connect a million times.
    fn forget_joined(&mut self) {
        if self.passed.len() > 2 * self.held.len() + STALE_MAX {
            let waits =
                |(until, ends): &(Instant, Ends)| self.held.get(ends).is_some_and(|held| held.until == Some(*until));
            self.passed.retain(waits);
        }
    }

    /// The owner has ended. Returns its SYN if that is still held; otherwise the socket to which it leads will be reset.
    pub(super) fn end(&mut self, ends: Ends, owner: SynOwner) -> Option<QueuedSyn> {
        let held = self.held.get_mut(&ends).filter(|held| held.owner == owner)?;
        if held.until.is_some() {
            held.owner = SynOwner::None;
            return None;
        }
        self.held.remove(&ends).map(|held| held.syn)
    }

    /// What an accepted socket belongs to, if its SYN had been held.
    pub(super) fn take_passed(&mut self, ends: Ends) -> Option<SynOwner> {
        self.held.get(&ends).filter(|held| held.until.is_some())?;
        self.held.remove(&ends).map(|held| held.owner)
    }

    /// The owner of the next SYN that has passed and led to no socket in time. Each SYN that it looks at takes one of `steps`.
    pub(super) fn take_expired(&mut self, now: Instant, steps: &mut usize) -> Option<SynOwner> {
        while *steps > 0
            && let Some((until, ends)) = self.passed.front().copied()
        {
            let waits = self.held.get(&ends).is_some_and(|held| held.until == Some(until));
            if waits && until > now {
                return None;
            }
            self.passed.pop_front();
            *steps -= 1;
            if waits {
                return self.held.remove(&ends).map(|held| held.owner);
            }
        }
        None
    }

    /// Whether SYNs that have passed are remembered.
    pub(super) fn has_passed(&self) -> bool {
        !self.passed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYN: QueuedSyn = QueuedSyn { place: 1, packet: 7, seq: 9 };

    fn ends() -> Ends {
        ("10.0.0.1:5".parse().unwrap(), "10.0.0.2:80".parse().unwrap())
    }

    fn pair(index: u64) -> SynOwner {
        SynOwner::Pair(TableKey::from_bits(index))
    }

    fn held_for(owner: SynOwner) -> HeldSyns {
        let mut syns = HeldSyns::default();
        syns.hold(ends(), SYN, None);
        syns.set_owner(ends(), owner);
        syns
    }

    #[test]
    fn a_syn_passes_once_and_its_socket_finds_the_owner() {
        let (mut syns, now) = (held_for(pair(1)), Instant::now());
        assert_eq!((syns.repeated(ends(), false), syns.take_passed(ends())), (Some(SynCopy::Drop), None));
        assert_eq!(syns.pass(ends(), pair(2), now), None, "another owner");
        assert_eq!(syns.pass(ends(), pair(1), now), Some(SYN));
        assert_eq!(syns.pass(ends(), pair(1), now), None, "again");
        assert_eq!(syns.repeated(ends(), false), Some(SynCopy::Pass));
        assert_eq!(syns.take_passed(ends()), Some(pair(1)));
        assert_eq!((syns.take_passed(ends()), syns.repeated(ends(), false)), (None, None));
        assert_eq!(
            (syns.take_expired(now + ACCEPTED_MAX, &mut 9), syns.has_passed()),
            (None, false),
            "it has led to a socket"
        );
    }

    #[test]
    fn syns_that_have_led_to_sockets_are_forgotten_behind_one_that_does_not() {
        let (mut syns, now) = (held_for(pair(1)), Instant::now());
        syns.pass(ends(), pair(1), now);
        for n in 0..100_000u32 {
            let ends = (([10, 0, (n >> 8) as u8, n as u8], 7).into(), ([10, 0, 0, 2], 80).into());
            syns.hold(ends, SYN, None);
            syns.set_owner(ends, pair(2));
            assert_eq!(syns.pass(ends, pair(2), now), Some(SYN));
            assert_eq!(syns.take_passed(ends), Some(pair(2)));
            assert!(syns.passed.len() <= 2 * (syns.held.len() + 1) + STALE_MAX, "{} after {n}", syns.passed.len());
        }
        assert_eq!(syns.take_expired(now, &mut usize::MAX.clone()), None);
        assert_eq!(syns.take_passed(ends()), Some(pair(1)), "the first one still waits");
    }

    #[test]
    fn an_owner_that_ends_gives_its_syn_back_or_leaves_a_socket_to_reset() {
        let mut syns = held_for(pair(1));
        assert_eq!(syns.end(ends(), pair(2)), None, "another owner");
        assert!(syns.is_held(ends(), pair(1)));
        assert_eq!(syns.end(ends(), pair(1)), Some(SYN));
        assert_eq!(syns.repeated(ends(), false), None);
        let mut syns = held_for(pair(1));
        syns.pass(ends(), pair(1), Instant::now());
        assert_eq!(syns.end(ends(), pair(1)), None, "it has passed");
        assert_eq!(syns.take_passed(ends()), Some(SynOwner::None));
    }

    #[test]
    fn copies_of_a_passed_syn_pass_until_one_is_refused() {
        let (mut syns, now) = (held_for(pair(1)), Instant::now());
        syns.pass(ends(), pair(1), now);
        for _ in 0..COPIES_MAX {
            assert_eq!(syns.repeated(ends(), false), Some(SynCopy::Pass));
        }
        assert_eq!(syns.repeated(ends(), true), Some(SynCopy::Pass), "the process accepts nothing");
        assert_eq!(syns.repeated(ends(), false), Some(SynCopy::Refuse(pair(1))));
        assert_eq!((syns.repeated(ends(), false), syns.take_passed(ends())), (None, None), "the next one is another");
        assert_eq!((syns.take_expired(now + ACCEPTED_MAX, &mut 9), syns.has_passed()), (None, false));
    }

    #[test]
    fn a_passed_syn_without_a_socket_expires() {
        let (mut syns, now) = (held_for(pair(1)), Instant::now());
        syns.pass(ends(), pair(1), now);
        assert_eq!(syns.take_expired(now, &mut 9), None);
        assert_eq!(syns.take_expired(now + ACCEPTED_MAX, &mut 9), Some(pair(1)));
        assert_eq!((syns.repeated(ends(), false), syns.has_passed()), (None, false));
    }
}
