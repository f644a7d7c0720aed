//! Orphans: the objects of URMA's programs that have ended.
//!
//! A program may leave a hundred thousand objects and a million requests. They are deleted in parts, so that neither the
//! worker's other programs nor the control thread wait: each call of [`Orphans::delete_some`] takes about [`STEPS`] objects
//! and requests. A Jetty whose requests are under way is abandoned, and the node says when it is drained; so nothing is looked at
//! again and again while it waits for a peer.

use crate::urma::tenant::TenantJetty;
use burst_control::urma_calls::URMA_FLUSHED_MAX;
use burst_ledger::Charge;
use burst_urma::{JettyState, JfrState, UrmaEnv, UrmaError, UrmaNode};
use std::collections::{HashMap, VecDeque, hash_map, hash_set};
use std::vec;

/// Objects and requests that are deleted at once.
const STEPS: usize = 256;

/// Objects of one kind. Those of a program's table are taken out one by one: a list of them would be made in one step, however
/// many they are.
pub(crate) struct OrphanNumbers<I> {
    rest: I,
    /// Those that were in use when they were to be deleted.
    again: VecDeque<u32>,
}

impl<I: ExactSizeIterator<Item = u32>> OrphanNumbers<I> {
    pub fn new(rest: I) -> OrphanNumbers<I> {
        OrphanNumbers { rest, again: VecDeque::new() }
    }
    fn is_empty(&self) -> bool {
        self.rest.len() == 0 && self.again.is_empty()
    }
    fn pop(&mut self) -> Option<u32> {
        self.rest.next().or_else(|| self.again.pop_front())
    }
    /// Deletes as many as there are steps left. Whether one is in use.
    fn delete(&mut self, steps: &mut usize, mut delete: impl FnMut(u32) -> Result<(), UrmaError>) -> bool {
        let mut busy = Vec::new();
        while *steps > 0
            && let Some(number) = self.pop()
        {
            *steps -= 1;
            if delete(number) == Err(UrmaError::Busy) {
                busy.push(number);
            }
        }
        let is_busy = !busy.is_empty();
        self.again.extend(busy);
        is_busy
    }
}

/// Objects of a program that has ended.
pub(crate) struct OrphanedObjects {
    pub jetties: OrphanNumbers<hash_map::IntoKeys<u32, TenantJetty>>,
    pub jfrs: OrphanNumbers<hash_map::IntoKeys<u32, u32>>,
    pub groups: OrphanNumbers<hash_set::IntoIter<u32>>,
    pub jfcs: OrphanNumbers<vec::IntoIter<u32>>,
    /// What they cost, until all are deleted.
    pub _charges: [Option<Charge>; 2],
    /// Jetties that are abandoned and not drained.
    pub abandoned: usize,
}

/// How far the objects of a program are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeletionState {
    /// More can be deleted at once.
    More,
    /// Something else must happen first.
    Later,
    /// Jetties must be drained first.
    Draining,
    /// All are deleted.
    Done,
}

/// The orphans of all programs of a node.
#[derive(Default)]
pub(crate) struct Orphans {
    programs: HashMap<u32, OrphanedObjects>,
    /// Programs, in turn, of which something may be deleted.
    ready: VecDeque<u32>,
    /// The programs of the abandoned Jetties.
    owners: HashMap<u32, u32>,
    next: u32,
    /// Whether more can be deleted at once.
    pub is_due: bool,
}

impl OrphanedObjects {
    /// Deletes objects while `steps` is not 0, each before those that it uses.
    fn delete_some(
        &mut self,
        (node, env): (&mut UrmaNode, &mut UrmaEnv<'_>),
        steps: &mut usize,
        mut abandon: impl FnMut(u32),
    ) -> DeletionState {
        let spend = |steps: &mut usize, count: usize| *steps = steps.saturating_sub(count);
        while *steps > 0
            && let Some(jetty) = self.jetties.pop()
        {
            spend(steps, 1);
            if node.delete_jetty(jetty) == Err(UrmaError::Busy) {
                spend(steps, node.abandon_jetty(jetty, env.fx));
                self.abandoned += 1;
                abandon(jetty);
            }
        }
        if !self.jetties.is_empty() {
            return DeletionState::More;
        }
        if self.abandoned > 0 {
            return DeletionState::Draining;
        }
        let mut busy = self.jfrs.delete(steps, |jfr| {
            // Refused if it is in that state already.
            let _ = node.modify_jfr(jfr, JfrState::Error, env.fx);
            node.delete_jfr(jfr)
        });
        busy |= self.groups.delete(steps, |group| node.delete_group(group));
        if self.jfrs.is_empty() {
            busy |= self.jfcs.delete(steps, |jfc| node.delete_jfc(jfc));
        }
        match (self.jfrs.is_empty() && self.groups.is_empty() && self.jfcs.is_empty(), busy) {
            (true, _) => DeletionState::Done,
            (false, true) => DeletionState::Later,
            (false, false) => DeletionState::More,
        }
    }
}

impl Orphans {
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }
    /// Adds those of a program.
    pub fn add(&mut self, objects: OrphanedObjects) {
        while self.programs.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        self.programs.insert(self.next, objects);
        self.ready.push_back(self.next);
        self.next = self.next.wrapping_add(1);
    }
    /// Deletes a part of what nothing uses any more. [`Orphans::is_due`] says afterwards whether there is more.
    pub fn delete_some(&mut self, node: &mut UrmaNode, env: &mut UrmaEnv<'_>) {
        let mut steps = STEPS;
        self.is_due = false;
        while steps > 0
            && let Some(jetty) = node.pop_drained()
        {
            self.delete_drained(jetty, node, (env, &mut steps));
        }
        let mut later = Vec::new();
        while steps > 0
            && let Some(program) = self.ready.pop_front()
        {
            steps -= 1;
            let Some(objects) = self.programs.get_mut(&program) else { continue };
            let owners = &mut self.owners;
            let abandon = |jetty| _ = owners.insert(jetty, program);
            match objects.delete_some((node, env), &mut steps, abandon) {
                DeletionState::More => self.ready.push_back(program),
                DeletionState::Later => later.push(program),
                DeletionState::Draining => {}
                DeletionState::Done => _ = self.programs.remove(&program),
            }
        }
        debug_assert!(self.ready.len() <= self.programs.len(), "a program is in the list twice");
        self.is_due = steps == 0;
        self.ready.extend(later);
    }
    /// Deletes a Jetty that is drained, or some of its requests if it has many.
    fn delete_drained(&mut self, jetty: u32, node: &mut UrmaNode, (env, steps): (&mut UrmaEnv<'_>, &mut usize)) {
        *steps -= 1;
        while *steps > 0 && node.flush_jetty(jetty).is_some() {
            *steps -= 1;
        }
        if node.delete_jetty(jetty) == Err(UrmaError::Busy) {
            node.abandon_jetty(jetty, env.fx);
            return;
        }
        let Some(program) = self.owners.remove(&jetty) else { return };
        if let Some(objects) = self.programs.get_mut(&program) {
            debug_assert!(objects.abandoned > 0, "a Jetty that was not abandoned is drained");
            objects.abandoned -= 1;
            if objects.abandoned == 0 && objects.jetties.is_empty() {
                self.ready.push_back(program);
            }
        }
    }
}

/// Deletes a Jetty as an adapter does: it is stopped, and what was not executed is dropped. [`UrmaError::Busy`]: requests of it
/// are under way, or [`URMA_FLUSHED_MAX`] of them were dropped and more are left, with which the next call goes on.
pub(crate) fn delete_jetty(node: &mut UrmaNode, jetty: u32, env: &mut UrmaEnv<'_>) -> Result<(), UrmaError> {
    match node.delete_jetty(jetty) {
        Err(UrmaError::Busy) => {
            if node.modify_jetty(jetty, JettyState::Error, env.fx).is_ok()
                || node.jetty_state(jetty) == Some(JettyState::Error)
            {
                let _dropped = (0..URMA_FLUSHED_MAX).take_while(|_| node.flush_jetty(jetty).is_some()).count();
            }
            node.delete_jetty(jetty)
        }
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn objects_are_looked_at_when_they_are_deleted_and_not_before() {
        let steps = |count: u32| {
            let looked = Cell::new(0);
            let numbers: Vec<u32> = (0..count).collect();
            let mut orphans = OrphanNumbers::new(numbers.into_iter().inspect(|_| looked.set(looked.get() + 1)));
            let (made, mut steps) = (looked.get(), 100);
            // Every tenth is in use, and comes again.
            let is_busy = orphans.delete(&mut steps, |n| if n % 10 == 0 { Err(UrmaError::Busy) } else { Ok(()) });
            assert!(is_busy && steps == 0 && !orphans.is_empty());
            let first = looked.get();
            let (mut steps, mut deleted) = (usize::MAX, 0);
            let delete = |_| {
                deleted += 1;
                Ok(())
            };
            assert!(!orphans.delete(&mut steps, delete) && orphans.is_empty());
            assert_eq!(deleted, count - 90);
            (made, first)
        };
        assert_eq!((steps(1000), steps(4000)), ((0, 100), (0, 100)));
    }
}
