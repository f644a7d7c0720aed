//! The control plane of one host: devices, sessions of programs and their objects, connection management.
//!
//! A [`Host`] opens ports and starts workers; a [`Session`] carries out the requests of one client; [`Upkeep`] does the periodic
//! work. All of it runs on one thread, the caller's. The data path runs on the workers and never waits for it. Nothing here
//! serves a socket for clients: a daemon, a simulator and a library inside a program can drive the same code. The time comes from
//! [`Clock`], random numbers from [`random::RandomSource`]; both can be set for a simulation.
//!
//! | module | contents |
//! |---|---|
//! | [`host`] | devices, workers, and the numbers that contexts share |
//! | [`options`] | settings |
//! | [`session`], `session_number` | one client, and its number |
//! | [`packet`] | its requests as bytes |
//! | [`authority`] | which users see what, and which programs have a privilege |
//! | [`context`] | the objects of one context |
//! | [`cm`] | connection management |
//! | [`upkeep`] | periodic work |
//! | [`watchdog`] | names a thread that stands still |
//! | [`device`], [`limits`] | devices, their limits and object counts |
//! | [`accounts`] | what each user may use |
//! | `owners` | whose account a process has |
//! | [`lent`] | worker numbers lent to programs |
//! | `predecessor` | tombstones of queue pairs that died with this process's predecessor |
//! | [`listener`] | the file of a socket for clients |
//! | [`clock`], [`random`] | time and random numbers |
//! | [`foreign`] | descriptors that programs send |
//! | `disposal` | threads that release what takes long |
//! | [`descriptors`] | limits of file descriptors |
//! | [`placement`] | which workers have the queue pairs of a device, and their processors |
//! | [`trim`] | when to return memory to the system |
//! | [`log_levels`] | shows and changes the levels of the log |
//! | [`log_limit`] | bounds the log lines that programs cause |
//! | [`reply`], [`refusal`] | replies and their errors |
//! | [`id_allocator`] | small numbers |
//! | `program_memory` | what each account may cost when its programs' memory is reached |
//! | `urma_peers` | the hosts from which each account imports by URMA |
//! | `exports`, `groups`, `xrc` | objects that contexts share |

pub mod accounts;
pub mod authority;
pub mod clock;
pub mod cm;
pub mod context;
pub mod descriptors;
pub mod device;
mod disposal;
mod exports;
pub mod foreign;
mod groups;
pub mod host;
pub mod id_allocator;
pub mod lent;
pub mod limits;
pub mod listener;
pub mod log_levels;
pub mod log_limit;
pub mod options;
mod owners;
pub mod packet;
pub mod placement;
mod predecessor;
mod program_memory;
pub mod random;
pub mod refusal;
pub mod reply;
pub mod session;
mod session_number;
pub mod trim;
pub mod upkeep;
mod urma_peers;
pub mod watchdog;
mod xrc;

pub use accounts::AccountBy;
pub use authority::{Authority, Caller, ClientProcess};
pub use burst_ledger::Policy;
pub use clock::Clock;
pub use host::Host;
pub use options::{HostOptions, URMA_LANES_MAX, WorkerMode};
pub use packet::PacketAnswer;
pub use session::{ReplyWithFds, Session};
pub use session_number::SessionNumber;
pub use upkeep::{SessionTable, Upkeep};
