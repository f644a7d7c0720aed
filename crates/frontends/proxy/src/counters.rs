//! The counters of `burst proxy stats` and `metrics`: one table.
//!
//! Each row gives the variant, the stable name and a sentence. The enum, the array of a worker ([`ProxyCounters`]), the names in
//! the output and docs/proxy-counters.md are made from it. A counter is shown from its first event on.

macro_rules! counters {
    ($($variant:ident, $name:literal, $what:literal;)+) => {
        /// One counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum ProxyCounter { $(#[doc = $what] $variant),+ }

        impl ProxyCounter {
            /// All counters, in table order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Its name in the output.
            pub const fn name(self) -> &'static str { match self { $(Self::$variant => $name),+ } }

            /// What it counts, for docs/proxy-counters.md.
            #[cfg(test)]
            const fn explanation(self) -> &'static str { match self { $(Self::$variant => $what),+ } }
        }
    };
}

counters! {
    // --- interception, counted by BPF programs or rules of nf_tables
    ConnectsTaken, "connects_taken", "Connects (SYNs with nf_tables) that were marked, and so steered to the proxy.";
    ConnectsWithoutPolicy, "connects_without_policy", "Connects to a destination that no rule [[take]] names.";
    ConnectsWithoutPeer, "connects_without_peer", "Connects to a destination that no connected peer serves.";
    ConnectsWithoutListener, "connects_without_listener", "Connects for which the proxy had no listener (BPF only).";
    ConnectsMarked, "connects_marked", "Connects whose socket had a mark already, of the program or another proxy.";
    // --- connections of programs
    SynsHeld, "syns_held", "SYNs held in a queue until the server's answer is known.";
    SynsRefused, "syns_refused", "Held SYNs answered with a reset: the server has refused, or SYNs that had passed led to no socket.";
    SynsUnreachable, "syns_unreachable", "Held SYNs whose program was notified by ICMP that the server cannot be reached (with CAP_NET_RAW).";
    SynsDropped, "syns_dropped", "Held SYNs dropped: the server has not answered, or the program's TCP should try again.";
    SynsLost, "syns_lost", "Reads of a queue that failed because the kernel had dropped messages; programs repeat those SYNs.";
    SocketsWithoutStream, "sockets_without_stream", "Accepted connections reset because their stream had ended meanwhile.";
    ConnectionsTaken, "connections_taken", "Connections accepted by the workers' listeners.";
    ConnectionsNotNamed, "connections_not_named", "Accepted connections closed because no rule [[take]] names their destination.";
    ConnectionsByTcp, "connections_by_tcp", "Taken connections relayed by a second TCP connection instead of a peer.";
    ConnectionsRefused, "connections_refused", "Taken connections that no peer could carry, and that were refused because nothing may go in clear.";
    ConnectionsOverShare, "connections_over_share", "Connections refused because their user has all that it may have (SYNs dropped: the program's TCP tries again).";
    ConnectsRefused, "connects_refused", "Connects that could not be taken, and were dropped because nothing may go in clear (nf_tables only).";
    AcceptsPaused, "accepts_paused", "Times that a worker stopped accepting for want of descriptors.";
    // --- streams
    StreamsOpened, "streams_opened", "Streams of this side that the peer has accepted.";
    StreamsAccepted, "streams_accepted", "Streams of a peer for which a connection to the server was begun.";
    ConnectsPostponed, "connects_postponed", "Streams of a peer whose client uses its port again while the former connection is being closed here.";
    StreamsEnded, "streams_ended", "Streams that ended in order in both directions.";
    StreamsReset, "streams_reset", "Streams that this side has reset.";
    StreamsRefused, "streams_refused", "Streams of a peer whose server refused the connection.";
    StreamsUnreachable, "streams_unreachable", "Streams of a peer whose server could not be reached.";
    FailuresNoted, "failures_noted", "Streams and connections that ended in error; `burst proxy why` has the last 256 of each worker.";
    BytesRead, "bytes_read", "Bytes read from programs and servers, of connections by TCP as well.";
    BytesDelivered, "bytes_delivered", "Bytes delivered to programs and servers, of connections by TCP as well.";
    // --- windows
    WindowsWanted, "windows_wanted", "Requests to the peer for a larger window.";
    WindowsGrown, "windows_grown", "Windows that grew at the peer's request.";
    WindowsKept, "windows_kept", "Requests of the peer refused: its window is large enough, or the program reads too slowly.";
    WindowsWithoutMemory, "windows_without_memory", "Requests of the peer refused for want of memory.";
    RingsWithoutMemory, "rings_without_memory", "Rings that did not grow with the peer's window for want of memory.";
    RegionsFreed, "regions_freed", "Regions of windows given back because no stream has used them for some time.";
    BytesFreed, "bytes_freed", "Bytes of these regions.";
    // --- workers
    Sleeps, "sleeps", "Times that a worker slept until an event.";
    Yields, "yields", "Times that a worker without work let other threads run and looked again.";
    // --- links
    LinksOnRdma, "links_on_rdma", "Times that a link began to use a queue pair.";
    LinksEncrypted, "links_encrypted", "Times that a link began to use a queue pair with encryption.";
    LinksOnControlChannel, "links_on_control_channel", "Times that a link began to use the control channel.";
    MessagesSent, "messages_sent", "Batches sent.";
    FramesSent, "frames_sent", "Frames in these batches.";
    WritesSent, "writes_sent", "RDMA WRITEs that preceded these batches.";
    QueuePairsBroken, "queue_pairs_broken", "Queue pairs that failed or could not be connected.";
    RdmaAttemptsFailed, "rdma_attempts_failed", "Attempts to connect a queue pair that failed or took too long.";
    RdmaMissing, "rdma_missing", "Attempts to listen for queue pairs without an RDMA device.";
    RdmaRestarts, "rdma_restarts", "Times that the RDMA device failed or disappeared.";
    RequestsRefused, "requests_refused", "Connection requests of queue pairs that belong to no link.";
    PeerFaults, "peer_faults", "Violations of the stream protocol by a peer.";
}

/// Values of counters.
pub type Counts = Vec<(ProxyCounter, u64)>;

/// The counters of one worker.
#[derive(Clone, Debug)]
pub struct ProxyCounters {
    /// By [`ProxyCounter`]; `None`: no event yet.
    values: [Option<u64>; ProxyCounter::ALL.len()],
}

impl Default for ProxyCounters {
    fn default() -> Self {
        Self { values: [None; ProxyCounter::ALL.len()] }
    }
}

impl ProxyCounters {
    /// Adds to a counter.
    pub fn add(&mut self, counter: ProxyCounter, by: u64) {
        *self.values[counter as usize].get_or_insert(0) += by;
    }

    /// Adds one.
    pub fn count(&mut self, counter: ProxyCounter) {
        self.add(counter, 1);
    }

    /// The value of a counter that has had an event.
    pub fn get(&self, counter: ProxyCounter) -> Option<u64> {
        self.values[counter as usize]
    }

    /// The counters that have had an event.
    pub fn iter(&self) -> impl Iterator<Item = (ProxyCounter, u64)> {
        ProxyCounter::ALL.iter().filter_map(|counter| Some((*counter, self.get(*counter)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_counter_is_shown_from_its_first_event_on() {
        let mut counters = ProxyCounters::default();
        assert_eq!(counters.iter().count(), 0);
        counters.add(ProxyCounter::BytesRead, 0);
        counters.count(ProxyCounter::PeerFaults);
        counters.add(ProxyCounter::PeerFaults, 2);
        let shown: Vec<_> = counters.iter().collect();
        assert_eq!(shown, [(ProxyCounter::BytesRead, 0), (ProxyCounter::PeerFaults, 3)]);
        assert_eq!(counters.get(ProxyCounter::StreamsReset), None);
    }

    #[test]
    fn names_are_unique_labels_and_sentences_end() {
        let names: HashSet<_> = ProxyCounter::ALL.iter().map(|counter| counter.name()).collect();
        assert_eq!(names.len(), ProxyCounter::ALL.len());
        for (at, counter) in ProxyCounter::ALL.iter().enumerate() {
            assert_eq!(*counter as usize, at);
            assert!(counter.name().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{counter:?}");
            assert!(counter.explanation().ends_with('.') && !counter.explanation().contains('|'), "{counter:?}");
        }
    }

    #[test]
    fn docs_show_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/proxy-counters.md");
        let head = "# Counters of burst proxy\n\nShown by `burst proxy stats` and `burst proxy metrics` from their first event on. Made from\n\
                    `crates/frontends/proxy/src/counters.rs` by `BLESS=1 cargo test -p burst-proxy`; do not edit.\n\n\
                    | name | what it counts |\n|---|---|\n";
        let page = ProxyCounter::ALL.iter().fold(head.to_owned(), |page, counter| {
            page + &format!("| `{}` | {} |\n", counter.name(), counter.explanation())
        });
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(written == page, "docs/proxy-counters.md is stale: run BLESS=1 cargo test -p burst-proxy");
    }
}
