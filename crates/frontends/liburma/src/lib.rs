//! `liburma.so.0`: the C interface of URMA (liburma 0.9), with a host inside the program.
//!
//! A first step, not the drop-in library of the issue: each process has a node and a port of its own (UDP port 4792), so one
//! process can use an address. There is no daemon behind it. `docs/urma.md` says which functions work.
//!
//! | module | what it holds |
//! |---|---|
//! | `abi` | the structures of the interface, with asserted sizes and offsets |
//! | `accesses` | explicit loads, stores and atomics |
//! | `aperture` | memory that shows a remote segment |
//! | `checks` | refusals of UMDK's library |
//! | `data` | work requests and completions |
//! | `device` | library, devices, contexts, events |
//! | `host` | node and port of an address, and who runs them |
//! | `inspection` | the socket for `burst ls` and `stats` |
//! | `keeper` | the thread that runs them while the program does not |
//! | `link` | packets between node and port |
//! | `macros` | the frame of an exported function |
//! | `log` | the log function, names of levels |
//! | `notify` | imports and binds that end with a notification |
//! | `objects` | event channels, segments, imports, states |
//! | `provider` | functions that are not offered, and those for plug-ins of UMDK's own library: all refuse |
//! | `queues` | completion, send and receive queues, Jetties, groups |
//! | `reports` | events, and which channel, context and object they belong to |
//!
//! SAFETY: exported functions trust their caller as the C library does: pointers are valid for the structures of the
//! interface, and objects live until they are deleted. What the network sends is checked by `burst-urma`.

mod abi;
mod accesses;
mod aperture;
mod checks;
mod data;
mod device;
mod host;
mod inspection;
mod keeper;
mod link;
mod log;
mod macros;
mod notify;
mod objects;
mod provider;
mod queues;
mod reports;
#[cfg(test)]
mod tests;
