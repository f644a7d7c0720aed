//! What the parts of a node share: the objects of the host's programs.

use crate::objects::Objects;

/// What initiator, target and channels of a node use.
pub(crate) struct NodeShared {
    pub(crate) objects: Objects,
}
