//! The targets to which Jetties of a program are bound, found from both sides.

use crate::urma::tenant::ByNumber;
use std::collections::BTreeSet;

/// Bindings of Jetties to targets. A Jetty has one at most.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    targets: ByNumber<u32>,
    /// Target and Jetty.
    jetties: BTreeSet<(u32, u32)>,
}

impl Bindings {
    /// A Jetty is bound to a target.
    pub(crate) fn insert(&mut self, jetty: u32, target: u32) {
        self.remove(jetty);
        self.targets.insert(jetty, target);
        self.jetties.insert((target, jetty));
        debug_assert!(self.targets.len() == self.jetties.len(), "a Jetty is bound to two targets");
    }
    /// A Jetty is not bound any more.
    pub(crate) fn remove(&mut self, jetty: u32) {
        if let Some(target) = self.targets.remove(&jetty) {
            self.jetties.remove(&(target, jetty));
        }
        debug_assert!(self.targets.len() == self.jetties.len(), "a binding has ended on one side only");
    }
    /// The Jetties that are bound to a target.
    pub(crate) fn jetties_of(&self, target: u32) -> impl Iterator<Item = u32> + '_ {
        self.jetties.range((target, 0)..=(target, u32::MAX)).map(|(_, jetty)| *jetty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jetties_are_found_by_their_target_until_they_are_bound_elsewhere() {
        let mut bindings = Bindings::default();
        [(1, 7), (2, 8), (3, 7)].into_iter().for_each(|(jetty, target)| bindings.insert(jetty, target));
        assert_eq!(bindings.jetties_of(7).collect::<Vec<_>>(), [1, 3]);
        bindings.insert(1, 8);
        bindings.remove(2);
        bindings.remove(2);
        assert_eq!(bindings.jetties_of(7).collect::<Vec<_>>(), [3]);
        assert_eq!(bindings.jetties_of(8).collect::<Vec<_>>(), [1]);
        assert_eq!(bindings.jetties_of(9).count(), 0);
    }
}
