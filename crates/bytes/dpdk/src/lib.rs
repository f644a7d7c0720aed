//! Ethernet devices of DPDK: the only crate that knows DPDK.
//!
//! Its interface is plain: an `EthDev` has one queue pair per worker, and an `EthQueue` delivers received frames as byte slices
//! and takes frames to send. The crate `port` interprets the frames (Ethernet, IP, RoCEv2).
//!
//! The feature `linked` links libdpdk (Debian: libdpdk-dev). Without it the crate contains only [`devargs`], so that the rest of
//! Burst builds and parses port specifications on every machine.
//!
//! | module | what |
//! |---|---|
//! | [`devargs`] | arguments that name a device, added defaults, properties of drivers |
//! | `eal` | starts DPDK once per process: memory, processors, log |
//! | `device` | a device: probing, configuration, link, reconnection |
//! | `queue` | a queue pair: receiving, making and sending frames |
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
pub use device::{DeviceOptions, EthDev, LinkState, RX_DESCRIPTORS};
#[cfg(feature = "linked")]
pub use queue::{EthQueue, FlushResult};
