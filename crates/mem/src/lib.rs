//! Registered memory (storey 1): memory regions, keys, access checks, translation; and sharing an application's
//! memory with the daemon.
//!
//! Daemon side: [`key`] makes keys, [`region`] maps an application's memory, [`table`] translates a key, an address
//! and a length into a [`Span`]. Application side: [`swap`] replaces private pages by a sealed memfd in place, so
//! that the daemon can map the same pages.
pub mod key;
pub mod region;
pub mod swap;
pub mod table;

pub use burst_span::Span;
pub use key::{KeyCipher, KeySpace};
pub use region::{MapPiece, Mapping, Region};
pub use table::MrTable;
