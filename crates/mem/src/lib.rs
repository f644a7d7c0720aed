//! Registered memory (storey 1): memory regions, keys, access checks, translation, and reaching the bytes.
//!
//! Daemon side: [`table::MrTable`] translates a key, an address and a length into [`Span`]s; a span can be copied
//! from, copied to, checksummed and handed to the kernel in an iovec. Application side: [`swap`] replaces private
//! pages by a sealed memfd in place, so that the daemon can map the same pages.
pub mod reach;

pub mod swap;
pub mod table;

pub use burst_span::Span;
pub use table::{MrSpec, MrTable};
