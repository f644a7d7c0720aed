//! What a worker shows of itself: streams, links, counters and decisions.

use super::RelayWorker;
use super::conn::Phase;
use crate::counters::ProxyCounters;
use serde::Serialize;

/// One stream.
#[derive(Clone, Debug, Serialize)]
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

impl RelayWorker {
    pub(super) fn snapshot(&self) -> WorkerSnapshot {
        let peer = |number: usize| self.peers.get(&number).map_or(String::new(), |p| p.introduction.name.clone());
        let link_of = |at: usize| self.links[at].as_ref();
        let relayed = self.conns.iter().filter(|conn| conn.phase != Phase::Ended).map(|conn| StreamView {
            client: conn.client.to_string(),
            server: conn.server.to_string(),
            peer: link_of(conn.link).map_or(String::new(), |link| peer(link.peer)),
            state: match conn.phase {
                Phase::Connecting => "connecting to the server".into(),
                Phase::Opening => "waiting for the peer".into(),
                Phase::Open | Phase::Ended => link_of(conn.link).map_or("down", |link| link.carrier()).into(),
            },
            window: conn.stream.flight_max(),
            window_in: conn.stream.window(),
            sent: conn.stream.sent(),
            delivered: conn.stream.undelivered().0,
        });
        let direct = self.pairs.iter().map(|pair| StreamView {
            client: pair.ends.0.to_string(),
            server: pair.ends.1.to_string(),
            peer: String::new(),
            state: format!("tcp: {}", pair.why.name()),
            window: 0,
            window_in: 0,
            sent: 0,
            delivered: 0,
        });
        let links = self.links.iter().flatten().map(|link| LinkView {
            peer: peer(link.peer),
            link: link.number,
            carrier: link.carrier(),
            streams: link.streams.len(),
            attempts: link.attempt,
            memory: link.pool.mapped(),
            round_trip_us: link.round_trips.shortest(link.here).map(|time| time.as_micros() as u64),
        });
        WorkerSnapshot {
            streams: relayed.chain(direct).collect(),
            links: links.collect(),
            counters: self.env.counters.clone(),
            decisions: self.env.decisions.show(),
        }
    }
}
