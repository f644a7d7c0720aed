//! `liburma.so.0`: the C interface of URMA (liburma 0.9), with a host inside the program.
//!
//! A first step, not the drop-in library of the issue: each process has a node and a UDP socket of its own (port 4792), so
//! one process can use an address. There is no daemon behind it. `docs/urma.md` says which functions work.
//!
//! | module | what it holds |
//! |---|---|
//! | `abi` | the structures of the interface, with asserted sizes and offsets |
//! | `data` | work requests and completions |
//! | `device` | library, devices, contexts, events |
//! | `host` | node, socket and thread of an address |
//! | `macros` | the frame of an exported function |
//! | `objects` | queues, Jetties, segments, imports |
//! | `refused` | functions that are not offered |
//!
//! SAFETY: exported functions trust their caller as the C library does: pointers are valid for the structures of the
//! interface, and objects live until they are deleted. What the network sends is checked by `burst-urma`.

mod abi;
mod data;
mod device;
mod host;
mod macros;
mod objects;
mod refused;
#[cfg(test)]
mod tests;
