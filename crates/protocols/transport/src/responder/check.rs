//! What must hold of a responder between two calls.

use crate::check::must;
use crate::responder::Responder;

impl Responder {
    /// The record of early packets: it never has the expected one, and exists only while packets are missing.
    pub(crate) fn check_arrivals(&self) -> Result<(), &'static str> {
        let Some(early) = &self.sel.early else { return Ok(()) };
        let expected = self.expected;
        must(!early.is_empty(), "a record without early packets is kept")?;
        must(!early.has_any(expected, 1), "the expected packet has arrived and was not executed")
    }
}
