//! The control plane of one host: devices, sessions of programs and their objects, connection management.
//!
//! [`host`] owns devices, workers and numbers; [`session`] one client's requests; [`context`] the objects of one client.
//! All of it runs on one thread, the caller's; the data path runs on the workers' threads and never waits for it.

pub mod cm;
pub mod context;
pub mod descriptors;
pub mod device;
mod exports;
mod groups;
pub mod host;
pub mod id_allocator;
pub mod options;
pub mod session;
pub mod trim;
mod xrc;

pub use host::Host;
pub use options::HostOptions;
pub use session::{Session, SessionState};
