//! `liburma.so.0`: the C interface of URMA (liburma 0.9).
//!
//! The node of an address is the daemon's, if a daemon runs that has the address: then many programs share it. Otherwise it is
//! the process's own, with a port (UDP port 4792), and no other process can use the address. `docs/urma.md` says which functions
//! work.
//!
//! | module | what it holds |
//! |---|---|
//! | `abi` | the structures of the interface, with asserted sizes and offsets |
//! | `accesses` | explicit loads, stores and atomics |
//! | `aperture` | memory that shows a remote segment |
//! | `checks` | refusals of UMDK's library |
//! | `daemon` | the program's end of a node in the daemon |
//! | `data` | work requests and completions |
//! | `descriptors` | descriptors that are made readable and waited for |
//! | `device` | library, devices, contexts, events |
//! | `eids` | addresses of the machine |
//! | `host` | node and port of an address, and who runs them |
//! | `interposed` | functions of libc that concern registered memory |
//! | `inspection` | the socket for `burst ls` and `stats` |
//! | `keeper` | the thread that runs them while the program does not |
//! | `lane` | loads, stores and atomics through a daemon |
//! | `link` | packets between node and port |
//! | `macros` | the frame of an exported function |
//! | `log` | the log function, names of levels |
//! | `node` | the calls on a node, in this process or in the daemon |
//! | `notify` | imports and binds that end with a notification |
//! | `objects` | event channels, segments, imports, states |
//! | `provider` | functions that are not offered, and those for plug-ins of UMDK's own library: all refuse |
//! | `queues` | completion, send and receive queues, Jetties, groups |
//! | `registry` | the registry of memory, which libibverbs may use, too |
//! | `reports` | events, and which channel, context and object they belong to |
//! | `topology` | the map of the network: addresses that may have a node |
//! | `ubagg` | the netlink family by which programs ask for the map |
//!
//! SAFETY: exported functions trust their caller as the C library does: pointers are valid for the structures of the
//! interface, and objects live until they are deleted. What the network sends is checked by `burst-urma`.

mod abi;
mod accesses;
mod aperture;
mod checks;
mod daemon;
mod data;
mod descriptors;
mod device;
mod eids;
mod host;
mod inspection;
/// The same functions as libibverbs': a program may have one of the two libraries only, and with both each passes calls on.
#[path = "../../ibverbs/src/interposed.rs"]
mod interposed;
mod keeper;
mod lane;
mod link;
mod log;
mod macros;
mod node;
mod notify;
mod objects;
mod provider;
mod queues;
mod registry;
mod reports;
#[cfg(test)]
mod tests;
mod topology;
mod ubagg;
