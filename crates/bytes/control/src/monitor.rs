//! What can be seen of connection management: times of its steps, numbers, and the connections as they are.
//!
//! [`CmStats`] answers how long the steps take; [`CmConnection`]s say which queue pairs are connected, page by page, because a
//! daemon may have more of them than one message holds.

use crate::cm::CmAddr;
use serde::{Deserialize, Serialize};

macro_rules! states {
    ($($(#[$doc:meta])* $v:ident $name:literal;)+) => {
        /// Where a connection is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum CmConnectionState { $($(#[$doc])* $v),+ }

        impl CmConnectionState {
            /// All of them, in the order of a connection's life.
            pub const ALL: &[CmConnectionState] = &[$(CmConnectionState::$v),+];
            /// As tables have it.
            pub const fn name(self) -> &'static str {
                match self { $(CmConnectionState::$v => $name),+ }
            }
        }
    };
}

states! {
    /// Somebody waits for requests.
    Listening "listening";
    /// REQ sent, the peer's answer awaited.
    ReqSent "req-sent";
    /// REQ or SIDR_REQ received, waits for a place in the backlog of the listener.
    Queued "queued";
    /// REQ received, our program's answer awaited.
    ReqReceived "req-received";
    /// REP sent, RTU awaited.
    RepSent "rep-sent";
    /// REP received, our program's queue pair awaited.
    RepReceived "rep-received";
    /// Connected.
    Established "established";
    /// DREQ sent, DREP awaited.
    DreqSent "dreq-sent";
    /// Over; late messages are still answered.
    TimeWait "time-wait";
    /// Datagram service asked for.
    SidrSent "sidr-sent";
    /// Datagram service asked of our program.
    SidrReceived "sidr-received";
    /// Answered; kept for repeated requests.
    SidrAnswered "sidr-answered";
}

/// Where a page of the list of connections begins. The default is the beginning of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CmCursor {
    /// Worker.
    pub worker: u32,
    /// Slot of the worker's table of connections.
    pub slot: u32,
}

/// Most connections in one answer.
pub const CM_PAGE: usize = 256;

/// A connection, datagram service request or listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmConnection {
    /// Where it is.
    pub state: CmConnectionState,
    /// Device number; none for a listener on all devices.
    pub device: Option<u32>,
    /// Our address and port, unspecified for a listener on all addresses.
    pub local: Option<CmAddr>,
    /// The peer's address and port; port 0 if it is unknown.
    pub peer: Option<CmAddr>,
    /// Port space: `tcp`, `udp` or `ib`.
    pub space: String,
    /// Our program, empty when it has gone.
    pub program: String,
    /// Its process id, 0 when it has gone.
    pub pid: u32,
    /// Its user id, none when it has gone.
    pub uid: Option<u32>,
    /// The program's number of the id, 0 when it has gone.
    pub id: u32,
    /// Communication id of this end; 0 for a listener.
    pub comm_id: u32,
    /// Communication id of the peer; 0 until it is known.
    pub peer_comm_id: u32,
    /// Queue pair number of this end; 0 until it is known.
    pub qpn: u32,
    /// Queue pair number of the peer; 0 until it is known.
    pub peer_qpn: u32,
    /// Time since its last step.
    pub since_ns: u64,
}

/// To [`crate::Request::CmStats`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmStats {
    /// Time of each step of connection setup.
    pub steps: Vec<CmStepHistogram>,
    /// Numbers as they are now or since the start: ids, connections, listeners, requests refused, messages by kind.
    pub numbers: Vec<(String, u64)>,
}

/// Buckets of a step's histogram: four to each power of two, up to 18 minutes; the last also for everything longer.
pub const STEP_BUCKETS: usize = 4 * 39;

/// A histogram of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmStepHistogram {
    /// Name of the step.
    pub name: String,
    /// How often it was taken.
    pub count: u64,
    /// Sum of all times.
    pub total_ns: u64,
    /// Longest.
    pub max_ns: u64,
    /// Counts by [`CmStepHistogram::bucket`].
    pub buckets: Vec<u64>,
}

impl CmStepHistogram {
    /// The bucket of a time: 0 to 7 ns have one each; from there on the highest three bits say it.
    pub const fn bucket(ns: u64) -> usize {
        if ns < 8 {
            return ns as usize;
        }
        let octave = 63 - ns.leading_zeros() as usize;
        let bucket = 4 * (octave - 1) + (ns >> (octave - 2) & 3) as usize;
        if bucket < STEP_BUCKETS { bucket } else { STEP_BUCKETS - 1 }
    }

    /// The longest time of a bucket.
    pub const fn bucket_end(bucket: usize) -> u64 {
        if bucket < 8 {
            return bucket as u64;
        }
        let octave = bucket / 4 + 1;
        ((5 + bucket as u64 % 4) << (octave - 2)) - 1
    }

    /// A time that `percent` of all did not exceed, at most a quarter too long, and never longer than the longest.
    pub fn percentile_ns(&self, percent: f64) -> u64 {
        let wanted = (self.count as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return CmStepHistogram::bucket_end(bucket).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_no_holes_and_are_a_quarter_wide_at_most() {
        let mut begin = 0;
        for bucket in 0..STEP_BUCKETS {
            let end = CmStepHistogram::bucket_end(bucket);
            assert_eq!((CmStepHistogram::bucket(begin), CmStepHistogram::bucket(end)), (bucket, bucket));
            assert!(end - begin <= begin / 4, "{begin} to {end}");
            begin = end + 1;
        }
        assert_eq!(CmStepHistogram::bucket(u64::MAX), STEP_BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_at_the_upper_end_of_their_bucket() {
        let mut step = CmStepHistogram { buckets: vec![0; STEP_BUCKETS], ..CmStepHistogram::default() };
        assert_eq!(step.percentile_ns(50.0), 0);
        for ns in 1..=100_000 {
            step.count += 1;
            step.max_ns = ns;
            step.buckets[CmStepHistogram::bucket(ns)] += 1;
        }
        assert!((50_000..=62_500).contains(&step.percentile_ns(50.0)));
        assert!((99_000..=100_000).contains(&step.percentile_ns(99.0)));
        assert_eq!(step.percentile_ns(100.0), 100_000);
    }
}
