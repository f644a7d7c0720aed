//! What must hold of the objects between two calls.

use crate::check::must;
use crate::objects::Objects;

impl Objects {
    /// Completion and receive queues are as often in use as their users say.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        for (at, jfc) in self.jfcs.iter() {
            let jetties = self.jetties.iter().filter(|(_, jetty)| jetty.config.jfc == at.index()).count();
            let jfrs = self.jfrs.iter().filter(|(_, jfr)| jfr.config.jfc == at.index()).count();
            must(jfc.users as usize == jetties + jfrs, "the users of a completion queue are counted wrong")?;
            must(jfc.records.len() <= jfc.depth as usize, "a completion queue has more records than it may")?;
        }
        for (at, jfr) in self.jfrs.iter() {
            let is_its = |jfr: u32| self.jfr_ref(jfr) == Some(at);
            let jetties = self.jetties.iter().filter(|(_, jetty)| jetty.config.jfr.is_some_and(is_its)).count();
            must(jfr.users as usize == jetties, "the users of a receive queue are counted wrong")?;
        }
        for (_, group) in self.groups.iter() {
            let is_there = group.members.iter().all(|member| self.jetties.get(*member).is_some());
            must(is_there, "a group has a member that was deleted")?;
        }
        Ok(())
    }
}
