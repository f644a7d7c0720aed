//! Statistics: names of the traffic counters; of connection management the times of its steps, counts, and connections.
//!
//! [`CmStats`] has histograms of the steps. [`CmConnection`]s are listed in pages, because a daemon may have more connections
//! than fit one message.

use crate::cm::CmAddr;
use crate::names;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Names of the traffic counters, in the order of `burst_engine::counters::Traffic`. Other counters are named by reasons.
pub const TRAFFIC: [&str; 13] = [
    "rx_packets",
    "rx_bytes",
    "tx_packets",
    "tx_bytes",
    "completions",
    "events",
    "loopback_packets",
    "marked_packets",
    "cnps_sent",
    "handed_over",
    "handover_wakes",
    "send_calls",
    "receive_calls",
];

/// A counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Name of a reason or of a traffic counter.
    #[serde(deserialize_with = "names::file_name")]
    pub name: String,
    /// Name of the device; empty for counters of the daemon.
    #[serde(deserialize_with = "names::file_name_or_empty")]
    pub device: String,
    /// Value of the counter.
    pub value: u64,
}

macro_rules! states {
    ($($(#[$doc:meta])* $v:ident $name:literal;)+) => {
        /// State of a connection, datagram service request or listener.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum CmConnectionState { $($(#[$doc])* $v),+ }

        impl CmConnectionState {
            /// All states, in the order in which a connection takes them.
            pub const ALL: &[CmConnectionState] = &[$(CmConnectionState::$v),+];
            /// Name of the state in tables.
            pub const fn name(self) -> &'static str {
                match self { $(CmConnectionState::$v => $name),+ }
            }
        }
    };
}

states! {
    /// A listener.
    Listening "listening";
    /// REQ sent, REP awaited.
    ReqSent "req-sent";
    /// REQ or SIDR_REQ received, waits for a place in the backlog of the listener.
    Queued "queued";
    /// REQ received; the program has not accepted it yet.
    ReqReceived "req-received";
    /// REP sent, RTU awaited.
    RepSent "rep-sent";
    /// REP received; the program has not moved its queue pair to RTS yet.
    RepReceived "rep-received";
    /// Connected.
    Established "established";
    /// DREQ sent, DREP awaited.
    DreqSent "dreq-sent";
    /// TIMEWAIT; repeated DREQs are still answered.
    TimeWait "time-wait";
    /// SIDR_REQ sent, SIDR_REP awaited.
    SidrSent "sidr-sent";
    /// SIDR_REQ received; the program has not answered it yet.
    SidrReceived "sidr-received";
    /// SIDR_REP sent; kept to answer repeated requests.
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

/// Maximum number of connections in one reply.
pub const CM_PAGE: usize = 256;

/// A connection, datagram service request or listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmConnection {
    /// State.
    pub state: CmConnectionState,
    /// Device number; `None` for a listener on all devices.
    pub device: Option<u32>,
    /// Address and port of this end; unspecified for a listener on all addresses.
    pub local: Option<CmAddr>,
    /// Address and port of the peer; port 0 if it is unknown.
    pub peer: Option<CmAddr>,
    /// Port space: `tcp`, `udp` or `ib`.
    pub space: String,
    /// Name of the program at this end; empty if it has ended.
    pub program: String,
    /// Process id of the program; 0 if it has ended.
    pub pid: u32,
    /// Its user id, none when it has gone.
    pub uid: Option<u32>,
    /// The program's number of the id; 0 if the program has ended.
    pub id: u32,
    /// Communication id of this end; 0 for a listener.
    pub comm_id: u32,
    /// Communication id of the peer; 0 until it is known.
    pub peer_comm_id: u32,
    /// Queue pair number of this end; 0 until it is known.
    pub qpn: u32,
    /// Queue pair number of the peer; 0 until it is known.
    pub peer_qpn: u32,
    /// Time since the last step.
    pub since_ns: u64,
}

/// Impairments of a port that end by themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Impairment {
    /// Options of `impair`, as they were given.
    pub options: String,
    /// Time until they end.
    pub left_ns: u64,
}

/// The levels of a host's log, and what its budget has left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogState {
    /// The targets, each with its level.
    pub targets: Vec<LogTargetLevel>,
    /// Lines left out since the start, because one message came too often.
    pub left_out: u64,
}

/// The level of a part of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogTargetLevel {
    /// Its name: `host`.
    pub name: String,
    /// Its least severe lines: error, warn, info, debug or trace.
    pub level: String,
    /// What its lines are about.
    pub about: String,
}

/// Maximum number of peer addresses in one reply.
pub const CC_PAGE: usize = 64;

/// Congestion control towards one peer address, of one worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CcPeer {
    /// Worker.
    pub worker: u32,
    /// Device number.
    pub device: u32,
    /// Address of the peer.
    pub peer: IpAddr,
    /// Connected queue pairs that share the controller.
    pub queue_pairs: u32,
    /// Channels of URMA that share it, too.
    pub channels: u32,
    /// Bytes in flight.
    pub inflight_bytes: u64,
    /// Most bytes in flight.
    pub window_bytes: u64,
    /// Rate in bits per second; 0: sends are not paced.
    pub rate_bps: u64,
    /// What the peer is: standard, burst or loopback.
    pub kind: String,
    /// Algorithm and parameters, as the key `cc` of the configuration.
    pub cc: String,
    /// Whether the peer's daemon has chosen them.
    pub is_peers_choice: bool,
    /// Why they are used, in one sentence.
    pub why: String,
    /// Variables of the controller; and of the path, as the peer's acknowledgements report them.
    pub variables: Vec<CcVariable>,
}

/// A variable of a controller or a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CcVariable {
    /// Published name, with its unit.
    pub name: String,
    /// Value in millionths of the unit.
    pub millionths: i64,
}

/// To [`crate::Request::CmStats`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmStats {
    /// Time of each step of connection setup.
    pub steps: Vec<CmStepHistogram>,
    /// Other counts by name: present numbers of ids, listeners and connections, and numbers since the start.
    pub numbers: Vec<(String, u64)>,
}

/// Number of buckets of a histogram: four per power of two, up to 18 minutes; the last bucket also counts longer times.
pub const STEP_BUCKETS: usize = 4 * 39;

/// A histogram of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmStepHistogram {
    /// Name of the step.
    pub name: String,
    /// Number of times that the step was taken.
    pub count: u64,
    /// Sum of all times.
    pub total_ns: u64,
    /// Longest time.
    pub max_ns: u64,
    /// Counts by [`CmStepHistogram::bucket`].
    pub buckets: Vec<u64>,
}

impl CmStepHistogram {
    /// The bucket of a time. Times of 0 to 7 ns have a bucket each; for longer ones the highest three bits determine it.
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

    /// A time that `percent` of all times do not exceed: at most a quarter too long, and never longer than the longest time.
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

/// What the programs of one user use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserUse {
    /// The user or the control group, in words.
    pub owner: String,
    /// Whether the daemon's capacity is the only limit.
    pub privileged: bool,
    /// How many requests were refused because of a share.
    pub refused: u64,
    /// Time that the control thread has spent on the user's programs.
    pub control: UserTime,
    /// Work of the workers for the user's queue pairs.
    pub work: UserWork,
    /// Use and limit of each resource, in the order of `burst_ledger::Resource::ALL`.
    pub resources: Vec<UserResource>,
    /// The most that is used of any one object, and its limit, in the order of `burst_ledger::Resource::places`.
    pub places: Vec<UserResource>,
}

/// Time that a thread has spent on a user's programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserTime {
    /// Nanoseconds since the user's first program connected.
    pub total_ns: u64,
    /// The part of the last ten seconds, in millionths.
    pub recent_share: u32,
}

/// What workers have sent for a user's queue pairs since the user's first program connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserWork {
    /// Turns of queue pairs.
    pub turns: u64,
    /// Work requests that were begun or continued in these turns.
    pub requests: u64,
    /// Payload bytes that were sent in these turns, READ responses included.
    pub bytes: u64,
}

/// What a user uses of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserResource {
    /// How much is in use.
    pub used: u64,
    /// How much the user may use while other users use what they use now.
    pub limit: u64,
}

/// The fall of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrashReport {
    /// When it fell: seconds since 1970, UTC.
    pub unix_s: u64,
    /// How long it had run, in milliseconds.
    pub ran_ms: u64,
    /// Its version.
    pub version: String,
    /// How its process ended: a signal or an exit code; and the place of a panic in the source.
    pub cause: String,
    /// Message and backtrace of a panic; empty for viewers who may not see other users' data.
    pub details: String,
}

/// To [`crate::Request::Crashes`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonCrashes {
    /// Whether a supervisor runs the daemon.
    pub guarded: bool,
    /// Daemons that have fallen since the supervisor started.
    pub crashes: u64,
    /// Directory of the reports; `None` if they are in memory only, or the viewer may not see details.
    pub directory: Option<String>,
    /// The last falls, also of former supervisors with the same directory, the newest first.
    pub reports: Vec<CrashReport>,
}

/// To [`crate::Request::Users`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserPage {
    /// Users whose use the viewer may see.
    pub users: Vec<UserUse>,
    /// How many other users there are.
    pub hidden: u32,
    /// Number of the first account of the next page; `None`: there are no more.
    pub next: Option<u32>,
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
