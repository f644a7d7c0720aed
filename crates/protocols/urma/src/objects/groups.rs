//! Groups of Jetties: one number, several receivers. Each message goes to one member, chosen when its first packet arrives,
//! and stays with it. Members that are not ready, or whose receive queue is not, are passed over.

use crate::api::{GROUP_MEMBERS_MAX, GroupPolicy, JETTY_ID_FIRST, JettyConfig, JettyState, JfrState, UrmaError};
use crate::objects::records::JettyGroup;
use crate::objects::{Objects, id_of};
use crate::pool::PoolRef;

impl Objects {
    pub(crate) fn create_group(&mut self, policy: GroupPolicy, token: Option<u32>) -> Result<u32, UrmaError> {
        let group = JettyGroup { policy, token, members: Vec::new(), given: 0 };
        self.groups.insert(group).map(id_of).map_err(|_| UrmaError::Full)
    }
    pub(crate) fn delete_group(&mut self, group: u32) -> Result<(), UrmaError> {
        let at = self.group_ref(group).ok_or(UrmaError::NoObject)?;
        if self.groups.get(at).is_some_and(|group| !group.members.is_empty()) {
            return Err(UrmaError::Busy);
        }
        self.groups.remove(at);
        Ok(())
    }
    pub(crate) fn group_ref(&self, id: u32) -> Option<PoolRef> {
        self.groups.ref_of(id.checked_sub(JETTY_ID_FIRST)?)
    }
    /// Whether a Jetty may become a member: it needs a receive queue.
    pub(crate) fn check_group(&self, config: &JettyConfig) -> Result<(), UrmaError> {
        let Some(group) = config.group else { return Ok(()) };
        let group = self.group_ref(group).and_then(|at| self.groups.get(at)).ok_or(UrmaError::NoObject)?;
        if group.members.len() >= GROUP_MEMBERS_MAX {
            return Err(UrmaError::Full);
        }
        if config.jfr.is_none() { Err(UrmaError::Unsupported) } else { Ok(()) }
    }
    pub(crate) fn join_group(&mut self, jetty: PoolRef, group: Option<u32>) {
        if let Some(at) = group.and_then(|group| self.group_ref(group))
            && let Some(group) = self.groups.get_mut(at)
        {
            group.members.push(jetty);
        }
    }
    pub(crate) fn leave_group(&mut self, jetty: PoolRef) {
        let group = self.jetties.get(jetty).and_then(|jetty| jetty.config.group);
        if let Some(at) = group.and_then(|group| self.group_ref(group))
            && let Some(group) = self.groups.get_mut(at)
        {
            group.members.retain(|member| *member != jetty);
        }
    }
    /// The receives posted for a member; `None` if it is not ready.
    fn receives_of(&self, member: PoolRef) -> Option<usize> {
        let jetty = self.jetties.get(member).filter(|jetty| jetty.state == JettyState::Ready)?;
        let jfr = self.jfrs.get(self.jfr_ref(jetty.config.jfr?)?)?;
        (jfr.state == JfrState::Ready).then_some(jfr.receives.len())
    }
    /// The member that gets the next message of a group: its number, and the group's token. `None` if no member is ready.
    pub(crate) fn choose_member(&mut self, group: u32, hint: u8) -> Option<(u32, Option<u32>)> {
        let at = self.group_ref(group)?;
        let group = self.groups.get(at)?;
        let ready = |member: &PoolRef| self.receives_of(*member).map(|receives| (*member, receives));
        let turn = group.given as usize % group.members.len().max(1);
        // In turn from the next one on.
        let mut candidates = group.members.iter().cycle().skip(turn).take(group.members.len()).filter_map(ready);
        let chosen = match group.policy {
            GroupPolicy::RoundRobin => candidates.next(),
            GroupPolicy::Depth => candidates.reduce(|best, other| if other.1 > best.1 { other } else { best }),
            GroupPolicy::HashHint => {
                let count = group.members.iter().filter_map(ready).count();
                group.members.iter().filter_map(ready).nth(usize::from(hint) % count.max(1))
            }
        };
        let (member, _) = chosen?;
        let token = group.token;
        let place = group.members.iter().position(|other| *other == member)?;
        if let Some(group) = self.groups.get_mut(at) {
            group.given = place as u32 + 1;
        }
        Some((id_of(member), token))
    }
}
