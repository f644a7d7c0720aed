//! Safe Rust client of the Burst daemon: devices, memory regions, queue pairs, completions, connections.
//!
//! The same daemon serves unmodified verbs programs through `libibverbs.so.1`; this crate is for programs written in Rust, and
//! both drop-in libraries are built on its lower half ([`raw`]). Control calls ask the daemon over a Unix socket. Posting and
//! polling touch shared memory only: no system call unless a worker of the daemon sleeps.
//!
//! Objects keep alive what they use, so they can be dropped in any order. All calls are safe: memory that peers write to is owned
//! by its [`MemoryRegion`] and copied in and out, never borrowed. After fork a child's objects give [`ClientError::Forked`].
//!
//! # Example
//! Two queue pairs of one process, a WRITE from one to the other's memory:
//!
//! ```no_run
//! use burst_client::{Device, QpOptions, Result, WorkRequest, access};
//! use std::time::Duration;
//!
//! fn main() -> Result<()> {
//!     let context = Device::by_name("burst0")?.open()?;
//!     let pd = context.alloc_pd()?;
//!     let cq = context.create_cq(16)?;
//!     // The source of the WRITE, and the memory that the peer may write.
//!     let source = pd.alloc_mr(4096, access::LOCAL_WRITE)?;
//!     let target = pd.alloc_mr(4096, access::LOCAL_WRITE | access::REMOTE_WRITE)?;
//!     let (a, b) = (pd.create_qp(&cq, &cq, &QpOptions::default())?, pd.create_qp(&cq, &cq, &QpOptions::default())?);
//!     // Each end must know the other's endpoint; between hosts it travels by any means, or use `cm`.
//!     a.connect(&b.endpoint()?)?;
//!     b.connect(&a.endpoint()?)?;
//!     source.write(0, b"hello")?;
//!     a.post_send(1, WorkRequest::Write(&[source.slice(0..5)?], target.remote(0..5)?))?;
//!     let completion = cq.wait(Duration::from_secs(5))?.ok()?;
//!     assert_eq!(completion.wr_id, 1);
//!     let mut seen = [0; 5];
//!     target.read(0, &mut seen)?;
//!     assert_eq!(&seen, b"hello");
//!     Ok(())
//! }
//! ```
//! `examples/write.rs` and `examples/echo.rs` are whole programs: `burst run -- target/debug/examples/write`.
//!
//! Not here yet: datagrams (UD), XRC, shared receive queues, memory windows, inline data, registration of memory that the program
//! has allocated itself. Verbs offer all of them.
//!
//! | module | content |
//! |---|---|
//! | [`device`] | the daemon and its devices |
//! | [`context`] | an open device |
//! | [`memory`] | protection domains and memory regions |
//! | [`cq`] | completion queues |
//! | [`qp`] | queue pairs, posting |
//! | [`cm`] | connections by the connection manager |
//! | [`error`] | the error of every call |
//! | [`explain`] | from a record of a failure to its cause and cure |
//! | [`raw`] | the mechanism below, for the drop-in libraries |

pub mod cm;
pub mod context;
pub mod cq;
pub mod device;
pub mod error;
pub mod explain;
pub mod memory;
pub mod qp;
pub mod raw;

pub use cm::{ConnectRequest, ConnectionId, ConnectionListener, ConnectionManager};
pub use context::ClientContext;
pub use cq::{Completion, CompletionQueue};
pub use device::{Daemon, Device};
pub use error::{ClientError, Result};
pub use memory::{LocalSlice, MemoryRegion, ProtectionDomain, RemoteSlice, access};
pub use qp::{QpEndpoint, QpOptions, QueuePair, WorkRequest};
