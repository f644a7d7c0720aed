//! The `dpdk` port: packets on any Ethernet device of DPDK, without the kernel.
//!
//! This crate links libdpdk, so the programs that shall run without it are built without it. A program that has it calls
//! `enable` at its start; then [`burst_port::open`] opens `dpdk:dev=…`.
//!
//! - `port`: the port, and what its passes do;
//! - `rx`: delivers a received frame to the engine or to the LAN;
//! - `tx`: makes a frame of the device from a packet of the engine, by one copy;
//! - `share`: what the ports of one device share;
//! - `guest`, `inbox`: the ports of other transports on the device, and how they get their packets;
//! - `flow_cache`: headers, next hop and seal of the flows that were sent last;
//! - `poll_backoff`: when to poll next, on devices without receive interrupts;
//! - `device`: a device: probing, configuration, link, reconnection;
//! - `queue`: a queue pair: receiving, making and sending frames, as byte slices;
//! - `eal`: starts DPDK once per process: memory, processors, log;
//! - `ffi`: the shim's functions (`csrc/shim.h`).
//!
//! Each worker has a queue pair of its own. The device spreads received packets over the queues as it can (RSS by addresses and
//! ports; memif: the queue of the sender); the engine hands a packet that reaches the wrong worker over. No kernel answers for
//! the addresses: ARP, neighbour discovery and echo are done by [`burst_port::lan`]. Packets to an incomplete next hop wait until
//! it is resolved.
//!
//! A pass takes the packets that are there and continues ("run to completion"): bursts of 32, buffers that fit the L2 cache,
//! first cache lines prefetched, payload copied and its ICRC computed in one loop. The pressure on the receive queue is the
//! number of packets that one burst finds in it; what the device has lost is not asked for.
//!
//! Queue pair and LAN lie behind a lock (`share::EthLine`), because a guest of the same worker sends by them too. The guest
//! runs on the thread of the worker, so the lock is free but for the moment in which a guest is opened: two atomic operations a
//! burst.
//!
//! Without the feature `linked` the crate is empty, so that the rest of Burst builds on machines without libdpdk.
#![cfg(feature = "linked")]

mod device;
mod eal;
mod ffi;
mod flow_cache;
mod guest;
mod inbox;
mod poll_backoff;
mod port;
mod queue;
mod rx;
mod share;
mod tx;

pub use port::DpdkPort;

use burst_port::{DpdkOpener, Port, PortError};

/// From now on [`burst_port::open`] and its like open ports of the kind `dpdk`. Called again it does nothing.
pub fn enable() {
    burst_port::enable_dpdk(DpdkOpener {
        open: |spec, encapsulation, name, (worker, workers)| {
            let port = DpdkPort::open(spec, encapsulation, name, worker, workers)?;
            Ok(Box::new(port) as Box<dyn Port>)
        },
        open_guest: |spec, encapsulation, name, address, worker| -> Result<Box<dyn Port>, PortError> {
            Ok(Box::new(guest::GuestPort::open(spec, encapsulation, name, address, worker)?))
        },
    });
}
