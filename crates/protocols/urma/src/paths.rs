//! Congestion control of channels. The network path to a peer belongs to the caller, who may share it with other transports; a
//! node without such a caller ([`NoPaths`]) has the windows of its channels alone.
//!
//! A channel joins the path to its peer when it first has something to send. Before packets of data leave it asks what the path
//! takes ([`UrmaPaths::room`]), and it reports each change of what it has in flight. Acknowledgements and the messages by which
//! channels open are never bounded.

use crate::node_eid::NodeEid;
use burst_base::Nanos;

/// Instead of a path: none.
pub const NO_PATH: u32 = u32::MAX;

/// Payload in flight: packets that are neither acknowledged nor lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlightBytes {
    /// All of it.
    pub all: u32,
    /// That of responses, which may exceed the window of requests.
    pub answers: u32,
}

impl FlightBytes {
    #[inline]
    pub(crate) fn add(&mut self, len: u16, is_answer: bool) {
        self.all += u32::from(len);
        self.answers += if is_answer { u32::from(len) } else { 0 };
    }
    #[inline]
    pub(crate) fn take(&mut self, len: u16, is_answer: bool) {
        debug_assert!(self.all >= u32::from(len), "more bytes leave than are in flight");
        self.all -= u32::from(len);
        self.answers -= if is_answer { u32::from(len) } else { 0 };
    }
    /// That of requests.
    pub const fn requests(&self) -> u32 {
        self.all - self.answers
    }
}

/// Bytes of payload that a path takes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRoom {
    /// Of requests.
    pub requests: u32,
    /// Of responses.
    pub answers: u32,
}

impl PathRoom {
    /// Any number.
    pub const UNBOUNDED: PathRoom = PathRoom { requests: u32::MAX, answers: u32::MAX };
    /// None: the path's rate allows nothing now.
    pub const NONE: PathRoom = PathRoom { requests: 0, answers: 0 };

    /// Whether a packet of a response, or of a request, may leave. One packet of each may be in flight where there is any room.
    #[inline]
    pub(crate) fn admits(&self, is_answer: bool, mtu: u32, own: FlightBytes) -> bool {
        let (room, own) = if is_answer { (self.answers, own.answers) } else { (self.requests, own.requests()) };
        room >= mtu || room > 0 && own == 0
    }
    /// A packet of `len` bytes leaves.
    #[inline]
    pub(crate) fn take(&mut self, is_answer: bool, len: u16) {
        let len = u32::from(len);
        if self.requests != u32::MAX {
            self.requests = self.requests.saturating_sub(len);
        }
        if is_answer && self.answers != u32::MAX {
            self.answers = self.answers.saturating_sub(len);
        }
    }
}

/// What a channel reports to its path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathChange {
    /// In flight at the last report.
    pub before: FlightBytes,
    /// In flight now.
    pub after: FlightBytes,
    /// Packets of data that have left, and their bytes without those of the checksum, Ethernet, IP and UDP.
    pub sent: (u32, u32),
    /// Bytes of payload that were acknowledged.
    pub acked_bytes: u32,
    /// Packets that were acknowledged.
    pub packets: u32,
    /// How many of these a switch had marked (CE).
    pub ce_packets: u32,
    /// A round trip.
    pub rtt: Option<Nanos>,
    /// Packets were lost, for the first time since the last such report: others that were sent after them have arrived.
    pub is_loss: bool,
    /// Nothing has arrived for a whole time-out.
    pub is_timeout: bool,
    /// Losses are being repaired.
    pub is_recovering: bool,
}

/// The paths to peers.
pub trait UrmaPaths {
    /// A channel will send to a peer: the number of its path. `None`: there is no room for another one now.
    fn join(&mut self, now: Nanos, peer: NodeEid) -> Option<u32>;
    /// A channel has ended that had this in flight.
    fn leave(&mut self, now: Nanos, path: u32, flight: FlightBytes);
    /// What may leave for a channel that has `own` in flight.
    fn room(&mut self, now: Nanos, path: u32, own: FlightBytes) -> PathRoom;
    /// What a channel has in flight has changed.
    fn changed(&mut self, now: Nanos, path: u32, change: &PathChange);
    /// A channel with the first number of bytes in flight has found no room for a packet of the second.
    /// [`crate::UrmaNode::resume_path`] is called when there may be some.
    fn wait(&mut self, now: Nanos, path: u32, own: (FlightBytes, u32));
}

/// No congestion control but that of the node.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPaths;

impl UrmaPaths for NoPaths {
    fn join(&mut self, _now: Nanos, _peer: NodeEid) -> Option<u32> {
        Some(0)
    }
    fn leave(&mut self, _now: Nanos, _path: u32, _flight: FlightBytes) {}
    fn room(&mut self, _now: Nanos, _path: u32, _own: FlightBytes) -> PathRoom {
        PathRoom::UNBOUNDED
    }
    fn changed(&mut self, _now: Nanos, _path: u32, _change: &PathChange) {}
    fn wait(&mut self, _now: Nanos, _path: u32, _own: (FlightBytes, u32)) {}
}
