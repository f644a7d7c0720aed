//! DPDK's Ethernet devices (storey 1): the only crate that knows DPDK.
//!
//! What comes out is plain: a `Device` has one queue pair per worker, a `QueuePair` hands out received frames as byte
//! slices and takes frames to send. What a frame means (Ethernet, IP, RoCEv2) is for `port`, which makes a port of it.
//!
//! The feature `linked` links libdpdk (Debian: libdpdk-dev); without it only [`devargs`] is here, so that the rest of
//! Burst builds and understands a port's specification anywhere.
//!
//! | module | what |
//! |---|---|
//! | [`devargs`] | the words that name a device, what we add to them, what is known of drivers |
//! | `eal` | DPDK's start, once per process: memory, processors, log |
//! | `device` | a device: probe, set-up, link, reconnection |
//! | `queue` | a queue pair: receive, build, lend, send |
//! | `ffi` | the shim's functions (`csrc/shim.h`) |

pub mod devargs;
#[cfg(feature = "linked")]
mod device;
#[cfg(feature = "linked")]
mod eal;
#[cfg(feature = "linked")]
mod ffi;
#[cfg(feature = "linked")]
mod queue;

pub use devargs::{DevArgs, Pages};
#[cfg(feature = "linked")]
pub use device::{Device, DeviceOptions, Link};
#[cfg(feature = "linked")]
pub use queue::{FrameBuf, QueuePair, Sent};
