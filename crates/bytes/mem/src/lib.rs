//! Registered memory (storey 1): memory regions, keys, access checks, translation; and sharing an application's
//! memory with the daemon. [`window`] opens parts of regions by keys of their own.
//!
//! Daemon side: [`key`] makes keys, [`region`] maps an application's memory, [`table`] translates a key, an address
//! and a length into a [`Span`]. Application side: [`swap`] replaces private pages by a sealed memfd in place, so
//! that the daemon can map the same pages.
#[cfg(not(loom))]
pub mod key;
#[cfg(not(loom))]
pub mod region;
pub mod seq;
#[cfg(not(loom))]
pub mod swap;
#[cfg(not(loom))]
pub mod table;
#[cfg(not(loom))]
pub mod window;

pub use burst_span::{Backing, ProcessMemory, Span};
#[cfg(not(loom))]
pub use key::{KeyCipher, KeySpace};
#[cfg(not(loom))]
pub use region::{MapPiece, Mapping, Region};
#[cfg(not(loom))]
pub use table::{MrTable, Peer};
#[cfg(not(loom))]
pub use window::{BindRequest, Window};
