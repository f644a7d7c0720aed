//! What a program of URMA leaves behind when it ends.

use burst_urma::{JettyState, JfrState, UrmaEnv, UrmaError, UrmaNode};

/// Objects of a program that has ended: those that are in use for a while yet.
#[derive(Default)]
pub(crate) struct UrmaRemains {
    pub jetties: Vec<u32>,
    pub jfrs: Vec<u32>,
    pub groups: Vec<u32>,
    pub jfcs: Vec<u32>,
}

impl UrmaRemains {
    pub fn is_empty(&self) -> bool {
        [&self.jetties, &self.jfrs, &self.groups, &self.jfcs].into_iter().all(Vec::is_empty)
    }
    /// Deletes what nothing uses any more.
    pub fn shrink(&mut self, node: &mut UrmaNode, env: &mut UrmaEnv<'_>) {
        self.jetties.retain(|jetty| delete_jetty(node, *jetty, env) == Err(UrmaError::Busy));
        if !self.jetties.is_empty() {
            return;
        }
        self.jfrs.retain(|jfr| {
            // Refused if it is in that state already.
            let _ = node.modify_jfr(*jfr, JfrState::Error, env.fx);
            node.delete_jfr(*jfr) == Err(UrmaError::Busy)
        });
        self.groups.retain(|group| node.delete_group(*group) == Err(UrmaError::Busy));
        if self.jfrs.is_empty() {
            self.jfcs.retain(|jfc| node.delete_jfc(*jfc) == Err(UrmaError::Busy));
        }
    }
}

/// Deletes a Jetty as an adapter does: it is stopped, and what was not executed is dropped. [`UrmaError::Busy`]: requests of it
/// are under way.
pub(crate) fn delete_jetty(node: &mut UrmaNode, jetty: u32, env: &mut UrmaEnv<'_>) -> Result<(), UrmaError> {
    match node.delete_jetty(jetty) {
        Err(UrmaError::Busy) => {
            if node.modify_jetty(jetty, JettyState::Error, env.fx).is_ok()
                || node.jetty_state(jetty) == Some(JettyState::Error)
            {
                while node.flush_jetty(jetty).is_some() {}
            }
            node.delete_jetty(jetty)
        }
        done => done,
    }
}
