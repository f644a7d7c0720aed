//! The exercise in hand: its hosts, what is hidden, and what was measured. A file keeps it between two calls of `burst lab`.

use crate::host::LabHost;
use crate::packet::LabPacket;
use crate::pairs::Pairs;
use serde::{Deserialize, Serialize};

/// Runs that are kept; the first and the last are always among them.
pub const RUNS_MAX: usize = 64;

/// Names and values: what the traffic program gets.
pub type Settings = Pairs<String>;

/// The exercise in hand.
#[derive(Debug, Serialize, Deserialize)]
pub struct LabTask {
    /// Name of the exercise.
    pub exercise: String,
    /// Its hosts; the second, `b`, serves.
    pub hosts: Vec<LabHost>,
    /// Processes besides the daemons that end with the task.
    pub helpers: Vec<i32>,
    /// What the traffic program gets if the learner changes nothing. Part of it was drawn at random, and is what is asked for.
    pub settings: Settings,
    /// Wrappers of the port of `b`, for example `impair:loss=5%/`.
    pub wire: String,
    /// What was run, in order; the first run is the one of the set-up.
    pub runs: Vec<RunRecord>,
}

impl LabTask {
    /// The run of the set-up.
    pub fn first(&self) -> Option<&RunRecord> {
        self.runs.first()
    }

    /// The last run.
    pub fn last(&self) -> Option<&RunRecord> {
        self.runs.last()
    }

    /// Adds a run. Packets are kept of the first and the last run.
    pub fn add(&mut self, run: RunRecord) {
        if self.runs.len() >= RUNS_MAX {
            self.runs.remove(1);
        }
        for old in self.runs.iter_mut().skip(1) {
            old.packets.clear();
        }
        self.runs.push(run);
    }

    /// The last run in which a setting had this value, by choice of the learner.
    pub fn run_with(&self, name: &str, value: &str) -> Option<&RunRecord> {
        self.runs.iter().rfind(|run| run.changed.get(name).is_some_and(|own| own == value))
    }

    /// A setting as a number; 0 if it is none.
    pub fn number(&self, name: &str) -> u64 {
        self.settings.get(name).and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

/// What a run has measured.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct RunRecord {
    /// Settings that the learner chose.
    pub changed: Settings,
    /// What the clients report, in the order of their hosts.
    pub clients: Vec<ClientFacts>,
    /// Messages that the server received.
    pub received: u64,
    /// Those of them whose bytes were wrong.
    pub wrong: u64,
    /// Whether the server's memory has the bytes that were written; `None` if nothing was to be written.
    pub memory: Option<bool>,
    /// The counter before and after.
    pub counter: Option<(u64, u64)>,
    /// The last event of a connection, and its status.
    pub event: Option<(String, i32)>,
    /// By how much each counter of each host grew.
    pub counters: Pairs<Pairs<u64>>,
    /// If a request failed: what `burst why` says on each host where something did: the cause, and the cure.
    pub why: Pairs<(String, String)>,
    /// Packets of all hosts, by time.
    pub packets: Vec<LabPacket>,
    /// Packets that came too fast to be noted.
    pub missed: u64,
}

impl RunRecord {
    /// Whether each client has done all, and what arrived was right; for a connection whether there is one.
    pub fn is_good(&self) -> bool {
        if let Some((event, _)) = &self.event {
            return event == "RDMA_CM_EVENT_ESTABLISHED";
        }
        let done = self.clients.iter().all(|client| client.status == 0) && !self.clients.is_empty();
        done && self.wrong == 0 && self.memory != Some(false)
    }

    /// The cause that `burst why` named on a host.
    pub fn cause(&self, host: &str) -> &str {
        self.why.get(host).map_or("nothing has failed here", |(cause, _)| cause)
    }

    /// By how much a counter of a host grew.
    pub fn counter_of(&self, host: &str, name: &str) -> u64 {
        self.counters.get(host).and_then(|all| all.get(name)).copied().unwrap_or(0)
    }

    /// Number of packets that `fits`.
    pub fn count(&self, fits: impl Fn(&LabPacket) -> bool) -> u64 {
        self.packets.iter().filter(|packet| fits(packet)).count() as u64
    }
}

/// What a client reports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientFacts {
    /// Status of the first completion that failed; 0: none did.
    pub status: u32,
    /// Its `vendor_err`.
    pub vendor_err: u32,
    /// Requests that succeeded.
    pub done: u64,
    /// Its messages that the server received.
    pub received: u64,
}
