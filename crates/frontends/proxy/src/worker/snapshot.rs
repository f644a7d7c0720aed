//! What a worker shows of itself: streams, links, counters and decisions.

use crate::counters::ProxyCounters;
use serde::Serialize;

/// One stream.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StreamView {
    /// The program's address.
    pub client: String,
    /// The server's.
    pub server: String,
    /// The peer's name; empty: by TCP.
    pub peer: String,
    /// What it waits for or how it travels.
    pub state: String,
    /// Bytes that may be on their way to the peer's program, and from it.
    pub window: u32,
    /// The same.
    pub window_in: u32,
    /// Bytes read from the program here.
    pub sent: u64,
    /// Bytes delivered to it.
    pub delivered: u64,
}

/// One link.
#[derive(Clone, Debug, Serialize)]
pub struct LinkView {
    /// The peer's name.
    pub peer: String,
    /// The link's number.
    pub link: u32,
    /// `rdma`, `control channel` or `down`.
    pub carrier: &'static str,
    /// What travels there is encrypted: by AES-GCM, or by the control channel's TLS.
    pub encrypted: bool,
    /// Streams on it.
    pub streams: usize,
    /// Times that a transport was made.
    pub attempts: u64,
    /// Bytes of memory for streams.
    pub memory: u64,
    /// The shortest round trip of its carrier, in microseconds; absent before the first one.
    pub round_trip_us: Option<u64>,
}

/// A worker's snapshot.
#[derive(Clone, Debug, Default)]
pub struct WorkerSnapshot {
    /// Streams.
    pub streams: Vec<StreamView>,
    /// Links.
    pub links: Vec<LinkView>,
    /// Counters.
    pub counters: ProxyCounters,
    /// Why connections were not carried by a peer: client, server, reason; oldest first.
    pub decisions: Vec<(String, String, String)>,
}
