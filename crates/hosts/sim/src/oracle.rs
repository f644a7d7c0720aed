//! What must hold inside the engines of simulated hosts, checked after each pass (the hunt).
//!
//! [`Worker::check`] says what must hold at one moment. This file adds what must hold between two: positions of a connected queue
//! pair never go back, a pass puts no more in flight on a path than its window allows, and completions come once and in the
//! order of the requests. And what must hold at the end: where nothing but losses can lead to a repetition, there are no more
//! repetitions than losses. The specification of the simulator, "Properties", lists them.

use crate::results::{NetworkTotals, Results};
use crate::scenario::{FaultKind, Scenario};
use burst_base::Qpn;
use burst_engine::{PathLoad, Worker};
use burst_transport::QpPositions;
use std::collections::{BTreeMap, VecDeque};

/// What is known of the engine of one host.
#[derive(Debug, Default)]
struct WatchedEngine {
    queue_pairs: BTreeMap<u32, QpPositions>,
    /// The paths before the pass.
    paths: Vec<PathLoad>,
}

/// Requests and receives of a queue pair that have not completed, oldest first.
#[derive(Debug, Default)]
struct PostedWork {
    requests: VecDeque<u32>,
    receives: VecDeque<u32>,
}

impl PostedWork {
    fn queue(&mut self, is_receive: bool) -> &mut VecDeque<u32> {
        if is_receive { &mut self.receives } else { &mut self.requests }
    }
}

/// What is known of the engines of all hosts.
#[derive(Debug)]
pub struct EngineOracle {
    hosts: Vec<WatchedEngine>,
    /// By host, and the queue pair's number in it.
    posted: BTreeMap<(u32, u32), PostedWork>,
    /// How often a position of a queue pair has moved, or a request has ended.
    progress: u64,
}

/// Checks that no position has gone back.
fn check_progress(before: &QpPositions, now: &QpPositions) -> Result<(), &'static str> {
    if now.una.is_before(before.una) {
        return Err("a PSN that was acknowledged is outstanding again");
    }
    if now.sent.is_before(before.sent) {
        return Err("a PSN that was sent was never sent any more");
    }
    let has_left_family = before.is_selective && !now.is_selective;
    if now.expected.is_before(before.expected) && !has_left_family {
        return Err("a packet that was executed is expected again");
    }
    Ok(())
}

/// Checks what a pass has put in flight. Each queue pair may have `least` bytes in flight whatever the window is, and with
/// nothing in flight it may send one packet, or ask for one piece of a READ (`packet` bytes). A window may have shrunk below
/// what is in flight.
fn check_load(before: &PathLoad, now: &PathLoad, packet: u64) -> Result<(), String> {
    let window = before.window.max(now.window);
    let users = u64::from(before.users.max(now.users));
    // Responses have a window of their own beside that of requests.
    let most = before.inflight.max(2 * window) + users * now.least.max(packet) + packet;
    if now.inflight > most {
        return Err(format!(
            "a pass put {} bytes in flight, where {} were, with windows of {} and {} bytes and {users} queue pairs",
            now.inflight, before.inflight, before.window, now.window
        ));
    }
    Ok(())
}

impl EngineOracle {
    /// Nothing is known of so many hosts.
    pub fn new(hosts: u32) -> EngineOracle {
        let hosts = (0..hosts).map(|_| WatchedEngine::default()).collect();
        EngineOracle { hosts, posted: BTreeMap::new(), progress: 0 }
    }

    /// Goes up with each packet that is acknowledged or executed the first time, and with each completion: if it stands still,
    /// nothing comes nearer to its end.
    pub fn progress(&self) -> u64 {
        self.progress
    }

    /// Queue pair `qp` of a host, with the number `qpn`, is connected anew.
    pub fn forget(&mut self, host: u32, qp: u32, qpn: Qpn) {
        self.hosts[host as usize].queue_pairs.remove(&qpn.get());
        self.posted.remove(&(host, qp));
    }

    /// A host has restarted.
    pub fn forget_host(&mut self, host: u32) {
        self.hosts[host as usize] = WatchedEngine::default();
        self.posted.retain(|(of, _), _| *of != host);
    }

    /// Request or receive `id` was posted to queue pair `qp` of a host.
    pub fn on_post(&mut self, (host, qp): (u32, u32), is_receive: bool, id: u32) {
        self.posted.entry((host, qp)).or_default().queue(is_receive).push_back(id);
    }

    /// Request or receive `id` has completed.
    ///
    /// # Errors
    /// A sentence if another one must complete before it, or if it has completed already.
    pub fn on_completion(&mut self, (host, qp): (u32, u32), is_receive: bool, id: u32) -> Result<(), String> {
        let expected = self.posted.entry((host, qp)).or_default().queue(is_receive).pop_front();
        if expected == Some(id) {
            self.progress += 1;
            return Ok(());
        }
        let what = if is_receive { "receive" } else { "request" };
        Err(match expected {
            Some(expected) => format!("host {host} got the completion of {what} {id} before that of {what} {expected}"),
            None => format!("host {host} got the completion of {what} {id}, and none is outstanding"),
        })
    }

    /// A pass of a host begins.
    pub fn before_pass(&mut self, host: u32, worker: &Worker) {
        let paths = &mut self.hosts[host as usize].paths;
        paths.clear();
        worker.visit_paths(&mut |load| paths.push(load));
    }

    /// A pass of a host has ended. `packet`: most bytes that one packet puts in flight.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn after_pass(&mut self, host: u32, worker: &Worker, packet: u64) -> Result<(), String> {
        worker.check()?;
        let WatchedEngine { queue_pairs, paths } = &mut self.hosts[host as usize];
        let mut wrong = None;
        worker.visit_progress(&mut |qpn, progress| {
            let Some(before) = queue_pairs.insert(qpn.get(), progress) else { return };
            self.progress += u64::from((before.una, before.expected) != (progress.una, progress.expected));
            if let Err(what) = check_progress(&before, &progress) {
                wrong.get_or_insert_with(|| format!("queue pair {:#x}: {what}", qpn.get()));
            }
        });
        worker.visit_paths(&mut |load| {
            let before = paths.iter().find(|before| before.peer == load.peer);
            if let Some(Err(what)) = before.map(|before| check_load(before, &load, packet)) {
                wrong.get_or_insert_with(|| format!("path to {}: {what}", load.peer.1));
            }
        });
        wrong.map_or(Ok(()), Err)
    }

    /// Everything has come to its end, and all timers have had their time.
    ///
    /// # Errors
    /// What a host still holds.
    pub fn at_rest(&self, worker: &Worker) -> Result<(), String> {
        worker.check()?;
        let records = worker.records_in_use();
        if records > 0 {
            return Err(format!("{records} records of loss recovery are not returned at rest"));
        }
        let mut inflight = 0;
        worker.visit_paths(&mut |load| inflight += load.inflight);
        if inflight > 0 {
            return Err(format!("{inflight} bytes are in flight at rest"));
        }
        Ok(())
    }
}

/// What makes a sender of selective repeat send again beside a loss: time-outs, peers without room, reordering.
const OTHER_CAUSES: [&str; 10] = [
    "sr_timeout",
    "ack_timeout",
    "sr_refused",
    "sr_pool_empty",
    "sr_record_full",
    "sr_unplaced",
    "sr_window",
    "rnr_nak_received",
    "send_queue_full",
    "sr_reordered",
];

/// Packets that did not reach an engine.
fn lost_packets(network: &NetworkTotals) -> u64 {
    let NetworkTotals { buffer_drops, losses, corrupted, receive_overflows, watchdog_drops, .. } = *network;
    buffer_drops + losses + corrupted + receive_overflows + watchdog_drops
}

/// Whether packets of a flow arrive in the order in which they were sent, and once.
fn keeps_order(scenario: &Scenario) -> bool {
    let [reorder, duplicate] =
        [scenario.links.reorder, scenario.links.duplicate].map(|share| share.unwrap_or_default().0);
    let is_calm = scenario.faults.iter().all(|fault| match &fault.kind {
        FaultKind::Restart { .. } => false,
        FaultKind::Packets { fate, .. } => fate.late == 0 && fate.again.is_none(),
        _ => true,
    });
    reorder == 0.0 && duplicate == 0.0 && is_calm
}

/// Checks, where the network keeps the order of packets and no timer has run out, that selective repeat has repeated no packet
/// that was not lost (probes do not count as repetitions).
///
/// # Errors
/// A sentence if there are more repetitions than losses.
pub fn check_repetitions(scenario: &Scenario, results: &Results) -> Result<(), String> {
    let count = |name: &str| results.engine.get(name).copied().unwrap_or(0);
    if !keeps_order(scenario) || OTHER_CAUSES.into_iter().any(|name| count(name) > 0) {
        return Ok(());
    }
    let (repeated, lost) = (count("sr_repeated"), lost_packets(&results.network));
    if repeated > lost {
        return Err(format!("{repeated} packets were repeated, and the network has lost {lost}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_base::{DeviceId, Psn};

    #[test]
    fn completions_come_once_and_in_the_order_of_the_requests() {
        let mut oracle = EngineOracle::new(2);
        for id in [4, 7, 5] {
            oracle.on_post((0, 3), false, id);
            oracle.on_post((0, 3), true, id);
        }
        oracle.on_post((0, 2), false, 9);
        assert_eq!(oracle.on_completion((0, 3), false, 4), Ok(()));
        assert_eq!(oracle.on_completion((0, 2), false, 9), Ok(()));
        assert_eq!(oracle.on_completion((0, 3), true, 4), Ok(()), "receives are by themselves");
        assert_eq!(oracle.progress(), 3);
        let wrong = oracle.on_completion((0, 3), false, 5).expect_err("7 is before it");
        assert_eq!(wrong, "host 0 got the completion of request 5 before that of request 7");
        let again = oracle.on_completion((0, 2), false, 9).expect_err("a second time");
        assert_eq!(again, "host 0 got the completion of request 9, and none is outstanding");
        oracle.forget(0, 3, Qpn::new(17));
        assert!(oracle.on_completion((0, 3), true, 7).is_err(), "connected anew");
        oracle.on_post((0, 3), true, 1);
        oracle.forget_host(0);
        assert!(oracle.on_completion((0, 3), true, 1).is_err(), "restarted");
    }

    #[test]
    fn no_more_is_repeated_than_was_lost_where_nothing_else_leads_to_it() {
        let text = |more: &str| {
            let pair = "[topology]\nkind = \"pair\"\n[[traffic]]\nkind = \"stream\"\nsize = 1000\n";
            format!("time = \"1ms\"\n{pair}{more}")
        };
        let check = |more: &str, counts: &[(&'static str, u64)]| {
            let scenario = Scenario::parse(&text(more)).expect("a scenario");
            let world = crate::world::World::new(&scenario).expect("a world");
            let mut results = world.results(false);
            results.engine.extend(counts.iter().copied());
            results.network = NetworkTotals { losses: 3, corrupted: 1, ..NetworkTotals::default() };
            check_repetitions(&scenario, &results)
        };
        let many = ("sr_repeated", 5);
        assert_eq!(check("", &[("sr_repeated", 4)]), Ok(()));
        assert_eq!(check("", &[many]), Err("5 packets were repeated, and the network has lost 4".into()));
        assert!(check("[links]\nloss = 0.5", &[many]).is_err());
        for more in [
            "[links]\nreorder = 0.1",
            "[links]\nduplicate = 0.1",
            "[[fault]]\nkind = \"restart\"\nhost = 0\nat = 0",
            "[[fault]]\nkind = \"packets\"\nhost = 0\nat = 0\nnumbers = [1]\nfate = \"late\"\nby = \"1us\"",
        ] {
            assert_eq!(check(more, &[many]), Ok(()), "{more}");
        }
        for name in OTHER_CAUSES {
            assert_eq!(check("", &[many, (name, 1)]), Ok(()), "{name}");
        }
        let known = burst_engine::Counters::default().snapshot();
        for name in OTHER_CAUSES.into_iter().chain(["sr_repeated"]) {
            assert!(known.iter().any(|(of, _)| *of == name), "there is no counter {name}");
        }
    }

    fn progress(una: u32, sent: u32, expected: u32) -> QpPositions {
        QpPositions { una: Psn::new(una), sent: Psn::new(sent), expected: Psn::new(expected), is_selective: true }
    }

    #[test]
    fn positions_go_forward_only_across_the_end_of_the_psns_too() {
        let before = progress(0xff_fffe, 3, 7);
        assert_eq!(check_progress(&before, &progress(1, 3, 7)), Ok(()));
        for wrong in [progress(0xff_fffd, 3, 7), progress(1, 2, 7), progress(1, 3, 6)] {
            assert!(check_progress(&before, &wrong).is_err(), "{wrong:?}");
        }
        let again = QpPositions { is_selective: false, ..progress(1, 3, 6) };
        assert_eq!(check_progress(&before, &again), Ok(()), "a message that is sent again in the other family");
    }

    #[test]
    fn a_pass_fills_the_window_and_no_more() {
        let peer = (DeviceId(0), [10, 0, 0, 1].into());
        let load = |inflight, window| PathLoad { peer, inflight, window, least: 1_000, users: 3 };
        let ok = |before: PathLoad, now: PathLoad| check_load(&before, &now, 4_096).is_ok();
        assert!(ok(load(0, 100_000), load(200_000 + 4 * 4_096, 100_000)));
        assert!(!ok(load(0, 100_000), load(200_001 + 4 * 4_096, 100_000)));
        assert!(ok(load(900_000, 100_000), load(900_000 + 4 * 4_096, 50_000)), "the window has shrunk");
        assert!(!ok(load(900_000, 100_000), load(900_001 + 4 * 4_096, 50_000)));
    }
}
