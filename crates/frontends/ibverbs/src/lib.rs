//! The drop-in `libibverbs.so.1`: the verbs API for unmodified programs, over the Burst daemon.
//!
//! `scripts/build-libs.sh` links this crate's static library into the shared one and gives its symbols the versions that programs
//! were linked against (tables in `abi/`). The mechanism is that of the crate [`burst_client`]; this crate adds the C structs and
//! functions. Control calls are requests to the daemon over the context's socket ([`context`]); the data path ([`post`],
//! [`poll`]) only touches shared memory. The module [`ops`] holds the table of operations, and only it knows all others.
//!
//! Objects that applications hold are `repr(C)` structs whose first field is the public struct. Errors are errno values; no
//! panic and no output crosses the C boundary ([`boundary`]), except the one sentence that explains an empty device list
//! ([`device`]). After fork, a child's objects are dead ([`fork`]).
//!
//! No lock is held while another is taken, except the lock of the preallocated queue pairs ([`burst_client::raw::prealloc`]),
//! which is always taken first, and except by [`flush`], which tries locks of queues and waits for none of them. The data path
//! takes one lock per object (queue pair, CQ, SRQ) and never waits for a worker of the daemon.

pub mod ah;
pub mod attr;
pub mod boundary;
pub mod channel;
pub mod context;
pub mod context_name;
pub mod cq;
pub mod cq_ex;
pub mod device;
pub mod dm;
pub mod domain;
pub mod event;
pub mod flush;
pub mod fork;
pub mod import;
pub mod interposed;
pub mod kern;
pub mod mcast;
pub mod meter;
pub mod mw;
pub mod ops;
pub mod pd_mr;
pub mod poll;
pub mod port;
pub mod post;
pub mod private_burst;
pub mod qp;
pub mod qp_ex;
pub mod rates;
pub mod refuse;
pub mod rereg;
pub mod srq;
pub mod strings;
pub mod sys;
pub mod sysfs;
pub mod unread;
pub mod xrc;
