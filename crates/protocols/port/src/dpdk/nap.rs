//! When to look again, on devices that cannot wake a sleeper (memif, ring).
//!
//! A worker that has nothing to do sleeps, and one that shares its processor with somebody who computes sleeps early: such a
//! device must be looked at all the same. Naps double from [`NAP_MIN`] to [`NAP_MAX`], and to [`NAP_LONG`] once
//! nothing has come for [`LONG_AFTER`]: a packet is late by as much, and an idle worker costs what looking (and the
//! spin after each look) costs.

use burst_base::Nanos;

/// First nap after a packet.
const NAP_MIN: Nanos = Nanos::from_us(10);
/// Longest nap in a conversation.
const NAP_MAX: Nanos = Nanos::from_us(40);
/// Longest nap when nobody talks.
const NAP_LONG: Nanos = Nanos::from_ms(10);
/// Silence after which nobody talks.
const LONG_AFTER: Nanos = Nanos::from_ms(50);

/// See the module.
#[derive(Debug)]
pub struct Nap {
    looked: Nanos,
    heard: Nanos,
    nap: Nanos,
}

impl Default for Nap {
    fn default() -> Nap {
        Nap { looked: Nanos(0), heard: Nanos(0), nap: NAP_MIN }
    }
}

impl Nap {
    /// The device was looked at.
    #[inline]
    pub fn looked(&mut self, now: Nanos, found: bool) {
        self.looked = now;
        if found {
            (self.heard, self.nap) = (now, NAP_MIN);
        }
    }
    /// When the device was last looked at.
    pub fn now(&self) -> Nanos {
        self.looked
    }
    /// The worker is about to sleep until [`Nap::next`].
    pub fn sleeps(&mut self) {
        let most = if self.looked.since(self.heard) > LONG_AFTER { NAP_LONG } else { NAP_MAX };
        self.nap = Nanos(self.nap.0 * 2).min(most);
    }
    /// When to look again.
    pub fn next(&self) -> Nanos {
        self.looked + self.nap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_grow_to_their_bounds_and_shrink_with_a_packet() {
        let mut nap = Nap::default();
        let mut now = Nanos::from_ms(5);
        nap.looked(now, true);
        let mut longest = Nanos(0);
        while now < Nanos::from_ms(1000) {
            nap.sleeps();
            let next = nap.next();
            assert!(next > now);
            longest = longest.max(next - now);
            let bound = if now < Nanos::from_ms(55) { NAP_MAX } else { NAP_LONG };
            assert!(next - now <= bound);
            now = next;
            nap.looked(now, false);
        }
        assert_eq!(longest, NAP_LONG);
        nap.looked(now, true);
        nap.sleeps();
        assert_eq!(nap.next() - now, Nanos(2 * NAP_MIN.0));
    }
}
