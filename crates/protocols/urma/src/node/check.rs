//! The check of a node between two calls.

use crate::check::must;
use crate::node::UrmaNode;

impl UrmaNode {
    /// Checks what must hold between two calls. It looks at every record.
    ///
    /// # Errors
    /// What does not hold.
    pub fn check(&self) -> Result<(), &'static str> {
        let shared = &self.shared;
        must(shared.messages == self.target.inbound.len(), "the messages of peers are counted wrong")?;
        shared.objects.check()?;
        shared.channels.check()?;
        shared.check_responses()?;
        self.initiator.check(shared)?;
        self.target.check(shared)
    }
}
