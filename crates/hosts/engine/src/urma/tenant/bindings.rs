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
    /// Takes the first Jetty that is bound to a target; it is not bound any more.
    pub(crate) fn take_jetty_of(&mut self, target: u32) -> Option<u32> {
        let (_, jetty) = *self.jetties.range((target, 0)..=(target, u32::MAX)).next()?;
        self.remove(jetty);
        Some(jetty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jetties_are_found_by_their_target_until_they_are_bound_elsewhere() {
        let mut bindings = Bindings::default();
        [(1, 7), (2, 8), (3, 7), (4, 7)].into_iter().for_each(|(jetty, target)| bindings.insert(jetty, target));
        bindings.insert(1, 8);
        bindings.remove(2);
        bindings.remove(2);
        let mut of = |target| std::iter::from_fn(|| bindings.take_jetty_of(target)).collect::<Vec<_>>();
        assert_eq!([of(7), of(8), of(9)], [vec![3, 4], vec![1], vec![]]);
        assert!(bindings.targets.is_empty() && bindings.jetties.is_empty());
    }
}
