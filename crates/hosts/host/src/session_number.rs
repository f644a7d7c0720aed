//! Numbers of sessions.

/// The number of a session, which no other session of the host has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionNumber(pub u64);

impl SessionNumber {
    /// Less than any.
    pub(crate) const MIN: SessionNumber = SessionNumber(0);
}
