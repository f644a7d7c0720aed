//! How much an account uses of each object of which it has a share: the most of any one, for each row of the table.
//!
//! An account may use thousands of objects (the queue pairs of each XRC target, the members of each group), so no list of them is
//! kept, and none is searched. For each row objects are counted by how much of them is used; a charge and its end change that in
//! one step.

use crate::resource::{Resource, Scope};
use std::collections::BTreeMap;

/// What an account uses at most of any one object of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceUse {
    /// The resource.
    pub resource: Resource,
    /// The kind of object.
    pub scope: Scope,
    /// How much is in use of the object of which the account uses most.
    pub used: u64,
    /// How much the account might use, when it was last charged, of the object of which that was.
    pub limit: u64,
}

/// Objects by how much the account uses of them, for each row.
#[derive(Debug, Default)]
pub(crate) struct BusiestObjects {
    objects: BTreeMap<((Resource, Scope), u64), u32>,
    limits: BTreeMap<(Resource, Scope), u64>,
}

impl BusiestObjects {
    /// The account uses `after` of an object of which it used `before`.
    pub fn note(&mut self, row: (Resource, Scope), before: u64, after: u64) {
        if before > 0
            && let Some(count) = self.objects.get_mut(&(row, before))
        {
            *count -= 1;
            if *count == 0 {
                self.objects.remove(&(row, before));
            }
        }
        if after > 0 {
            *self.objects.entry((row, after)).or_default() += 1;
        }
    }

    /// The account might use so much of the object of which it was charged last.
    pub fn note_limit(&mut self, row: (Resource, Scope), limit: u64) {
        self.limits.insert(row, limit);
    }

    /// Every row of single objects, in table order.
    pub fn uses(&self) -> Vec<PlaceUse> {
        let of = |row: (Resource, Scope)| {
            let most = self.objects.range((row, 0)..=(row, u64::MAX)).next_back();
            let (used, limit) = (most.map_or(0, |((_, used), _)| *used), self.limits.get(&row).copied().unwrap_or(0));
            PlaceUse { resource: row.0, scope: row.1, used, limit }
        };
        Resource::places().map(of).collect()
    }
}
