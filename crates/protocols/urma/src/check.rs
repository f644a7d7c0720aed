//! What must hold of a node between two calls: for simulators and tests, which call [`crate::UrmaNode::check`] after each call.
//!
//! Nothing here is used by the data path, and nothing is stored for it.

/// A sentence if `holds` is false.
pub(crate) fn must(holds: bool, otherwise: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(otherwise) }
}
