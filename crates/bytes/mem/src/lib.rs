//! Registered memory: memory regions, keys, access checks and translation; and the sharing of an
//! application's memory with the daemon. A [`window`] opens a part of a region by a key of its own.
//!
//! Daemon side: [`key`] makes keys, [`region`] maps an application's memory, [`holes`] handles pages of it that are missing,
//! [`table`] translates a key, an address and a length into a [`Span`].
//!
//! Application side: [`swap`] replaces private pages by a sealed memfd in place, so
//! that the daemon can map the same pages; [`signals`] keeps handlers away from locks that a fork takes.
#[cfg(not(loom))]
pub mod holes;
#[cfg(not(loom))]
pub mod key;
#[cfg(not(loom))]
pub mod page;
#[cfg(not(loom))]
pub mod region;
pub mod seq;
#[cfg(not(loom))]
pub mod signals;
#[cfg(not(loom))]
pub mod swap;
#[cfg(not(loom))]
pub mod table;
#[cfg(not(loom))]
pub mod userfaultfd;
#[cfg(not(loom))]
pub mod window;

pub use burst_span::{AccessThreads, Backing, DeviceNumber, ProcessMemory, Span};
#[cfg(not(loom))]
pub use key::{KeyCipher, KeySpace};
#[cfg(not(loom))]
pub use region::{MapPiece, Mapping, Region};
#[cfg(not(loom))]
pub use table::{KeyFinding, MrTable, Peer};
#[cfg(not(loom))]
pub use window::{BindRequest, Window};
