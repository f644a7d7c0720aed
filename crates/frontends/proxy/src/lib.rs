//! `burst proxy`: TCP connections of unmodified programs over RDMA.
//!
//! A proxy runs on each host. On the client's side BPF programs, or rules of nf_tables, mark chosen connections and
//! steer their SYNs to the proxy (`intercept`); the proxy carries the bytes over a queue pair to the proxy of the server's host
//! (`worker`), which connects to the server from the client's own address. A TLS channel joins the two proxies
//! (`control`) and carries the streams when there is no queue pair. The protocol of the streams is the crate
//! `burst-relay`. RDMA is used by the ordinary librdmacm and libibverbs (`rdma`), so Burst, soft-RoCE and adapters
//! serve alike.
#![deny(unsafe_code)]

mod admin_client;
pub mod cli;
mod config;
mod control;
mod counters;
mod engine;
mod exporter;
mod hold;
mod intercept;
mod keys;
mod log;
mod message;
mod netlink;
mod nft;
mod peer_loss;
mod pool;
mod rdma;
mod serve;
mod socket_owner;
mod stream_failure;
mod sys;
mod tls;
mod unreachable;
#[cfg(not(any(test, fuzzing)))]
mod worker;
#[cfg(any(test, fuzzing))]
pub mod worker;

use log::log;

/// Random bytes of the kernel.
///
/// # Errors
/// One sentence.
fn random<const N: usize>() -> Result<[u8; N], String> {
    use std::io::Read;
    let mut bytes = [0; N];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|e| format!("/dev/urandom: {e}"))?;
    Ok(bytes)
}
