//! The mechanism below the safe API: objects by the daemon's handles, queue ends in shared memory, and the cores of posting and
//! polling. The drop-in libraries use it directly, because a C program decides how long its objects live.
//!
//! Nothing here keeps an object alive for another, and nothing here is visible to a C program. The rules: queue ends and
//! handles are used only while their [`RawContext`] lives, and an object ends after the objects that use it (the daemon
//! refuses the other order with EBUSY).
//!
//! | module | content |
//! |---|---|
//! | [`context`] | control connection, arena, doorbells of one open device |
//! | [`copier`] | threads that copy to and from the memory of a GPU |
//! | [`cookies`] | tables from the cookies in completions and events to objects |
//! | [`prealloc`] | queue pairs that the daemon makes before the program asks |
//! | [`queue`] | mapped queue ends, and the core of posting |
//! | [`completion`] | the core of polling |
//! | [`ended_pipe`] | descriptors of events after the daemon has fallen |
//! | [`flush`] | completions that the library makes after the daemon has fallen |
//! | [`idle`] | what a thread does when a poll finds nothing |
//! | [`memory`] | registration of memory |
//! | [`place`] | where the host is: behind a socket, or in this process |
//! | [`in_process`] | the connection to a host in this process |
//! | [`session`] | the connection manager's connection to the daemon |
//! | [`lock`] | a spin lock for the data path |

pub mod completion;
pub mod context;
pub mod cookies;
pub mod copier;
pub mod ended_pipe;
pub mod flush;
pub mod idle;
pub mod in_process;
pub mod lock;
pub mod memory;
pub mod place;
pub mod prealloc;
pub mod queue;
pub mod session;

pub use context::{Answer, RawContext, program_name};
