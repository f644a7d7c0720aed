//! Records of streams and connections that ended in error, for `burst proxy why`: they stay when the programs have gone.
//!
//! A worker keeps the last [`RECORDS_MAX`]. Each server's address and port is an account of the list
//! ([`burst_ledger::AccountRing`]), so that a client whose connects are refused without end pushes out no record of another
//! service.

use super::conn::{Phase, ProxyConn};
use super::sockets::Ends;
use burst_base::Reason;
use burst_ledger::AccountRing;
use std::io::{Error, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Records that a worker keeps.
const RECORDS_MAX: usize = 256;

/// Why a stream or connection ended.
#[derive(Clone, Debug)]
pub(super) struct StreamFault {
    reason: Reason,
    /// Further words: an error of the kernel, or what happened to the peer. May be empty.
    detail: Arc<str>,
    /// Why no peer carried the connection, if none did.
    by_tcp: Option<Reason>,
}

impl StreamFault {
    /// A fault with words of its own.
    pub(super) fn new(reason: Reason, detail: Arc<str>) -> Self {
        Self { reason, detail, by_tcp: None }
    }

    /// The fault of a connection that no peer carried, and why none did.
    pub(super) fn by_tcp(self, why: Reason) -> Self {
        Self { by_tcp: Some(why), ..self }
    }
}

impl From<Reason> for StreamFault {
    fn from(reason: Reason) -> Self {
        Self::new(reason, "".into())
    }
}

/// An error of a program's socket.
impl From<Error> for StreamFault {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected => {
                Reason::ProxyProgramReset.into()
            }
            _ => Self::new(Reason::ProxySocketFailed, error.to_string().into()),
        }
    }
}

/// The link of a stream that ended.
#[derive(Clone, Debug)]
pub struct RecordedLink {
    /// The peer's name.
    pub peer: Arc<str>,
    /// The link's number.
    pub number: u32,
    /// `rdma`, `control channel` or `down`.
    pub carrier: &'static str,
    /// What it carries is encrypted.
    pub encrypted: bool,
}

/// What the stream had moved.
#[derive(Clone, Debug)]
pub struct RecordedStream {
    /// Its link.
    pub link: RecordedLink,
    /// The client is a program of this host; else the server is.
    pub is_clients_end: bool,
    /// How far it had come: waiting for the peer, connecting to the server, or open.
    pub phase: &'static str,
    /// Time from the connection's begin here to its end.
    pub lasted: Duration,
    /// Bytes read from the program of this host, and how many of them the peer's program has taken.
    pub sent: (u64, u64),
    /// Bytes that have come from the peer, and how many of them the program here has taken.
    pub received: (u64, u64),
    /// Windows out and in.
    pub windows: (u32, u32),
    /// Whether the program here, and the one at the peer, had ended its direction.
    pub ended: (bool, bool),
}

/// A stream or connection that ended in error.
#[derive(Clone, Debug)]
pub struct StreamRecord {
    /// Its number, by which `burst proxy why` finds it: unique in this process.
    pub number: u64,
    /// When it ended.
    pub at: SystemTime,
    /// Client and server.
    pub ends: (SocketAddr, SocketAddr),
    /// Why.
    pub reason: Reason,
    /// Further words; may be empty.
    pub detail: Arc<str>,
    /// Why no peer carried it, if none did.
    pub by_tcp: Option<Reason>,
    /// `None`: no peer carried it.
    pub stream: Option<RecordedStream>,
}

/// The records of a worker.
#[derive(Debug)]
pub(super) struct StreamRecords {
    ring: AccountRing<StreamRecord, SocketAddr>,
    /// Number of the next record: that of the worker, and the number of workers more for each.
    next: u64,
    step: u64,
}

impl StreamRecords {
    /// Those of worker `number` of so many.
    pub(super) fn new(number: u32, workers: u32) -> Self {
        debug_assert!(number < workers, "workers are counted from 0");
        Self { ring: AccountRing::new(RECORDS_MAX), next: u64::from(number) + 1, step: workers.into() }
    }

    /// Keeps a record. `stream`: what it had moved, if a peer carried it.
    pub(super) fn note(&mut self, ends: Ends, fault: StreamFault, stream: Option<RecordedStream>) {
        let StreamFault { reason, detail, by_tcp } = fault;
        let number = self.next;
        self.next += self.step;
        let record = StreamRecord { number, at: SystemTime::now(), ends, reason, detail, by_tcp, stream };
        self.ring.push(&ends.1, record);
    }

    /// Copies of all, oldest first.
    pub(super) fn all(&self) -> Vec<StreamRecord> {
        self.ring.iter().cloned().collect()
    }
}

impl RecordedStream {
    /// A stream as it is. `lasted`: since its begin; `dials`: whether this side dials the link, whose streams then have odd
    /// numbers.
    pub(super) fn of(conn: &ProxyConn, link: RecordedLink, lasted: Duration, dials: bool) -> Self {
        let stream = &conn.stream;
        let (delivered, received) = stream.undelivered();
        Self {
            link,
            is_clients_end: (stream.id() % 2 == 1) == dials,
            phase: match conn.phase {
                Phase::Connecting => "connecting to the server",
                Phase::Opening => "waiting for the peer",
                Phase::Open | Phase::Ended => "open",
            },
            lasted,
            sent: (stream.sent(), stream.credited().min(stream.sent())),
            received: (received, delivered),
            windows: (stream.flight_max(), stream.window()),
            ended: (stream.has_read_end(), stream.has_received_end()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(port: u16) -> SocketAddr {
        ([10, 0, 0, 1], port).into()
    }

    #[test]
    fn a_service_keeps_its_record_while_another_fails_without_end() {
        let mut records = StreamRecords::new(1, 2);
        records.note((end(1000), end(80)), Reason::ProxyPeerReset.into(), None);
        for port in 0..1000 {
            records.note((end(port), end(81)), Reason::ProxyRefused.into(), None);
        }
        let all = records.all();
        assert_eq!(all.len(), RECORDS_MAX);
        assert_eq!((all[0].number, all[0].ends.1, all[0].reason), (2, end(80), Reason::ProxyPeerReset));
        assert_eq!(all.last().map(|record| record.number), Some(2 + 2 * 1000), "numbers of one worker of two");
    }

    #[test]
    fn errors_of_sockets_are_resets_or_have_their_words() {
        let of = |kind: ErrorKind| StreamFault::from(Error::from(kind));
        for kind in [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe] {
            assert_eq!((of(kind).reason, &*of(kind).detail), (Reason::ProxyProgramReset, ""));
        }
        let fault = of(ErrorKind::TimedOut).by_tcp(Reason::ProxyNoPeer);
        assert_eq!((fault.reason, &*fault.detail), (Reason::ProxySocketFailed, "timed out"));
        assert_eq!(fault.by_tcp, Some(Reason::ProxyNoPeer));
    }
}
