//! What must hold inside the engines of simulated hosts, checked after each pass (the hunt).
//!
//! [`Worker::check`] says what must hold at one moment. This file adds what must hold between two: positions of a connected queue
//! pair never go back, and a pass puts no more in flight on a path than its window allows. The specification of the simulator,
//! "Properties", lists them.

use burst_base::Qpn;
use burst_engine::{PathLoad, Worker};
use burst_transport::QpPositions;
use std::collections::BTreeMap;

/// What is known of the engine of one host.
#[derive(Debug, Default)]
struct WatchedEngine {
    queue_pairs: BTreeMap<u32, QpPositions>,
    /// The paths before the pass.
    paths: Vec<PathLoad>,
}

/// What is known of the engines of all hosts.
#[derive(Debug)]
pub struct EngineOracle {
    hosts: Vec<WatchedEngine>,
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
        EngineOracle { hosts: (0..hosts).map(|_| WatchedEngine::default()).collect() }
    }

    /// A queue pair of a host is connected anew.
    pub fn forget(&mut self, host: u32, qpn: Qpn) {
        self.hosts[host as usize].queue_pairs.remove(&qpn.get());
    }

    /// A host has restarted.
    pub fn forget_host(&mut self, host: u32) {
        self.hosts[host as usize] = WatchedEngine::default();
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
            if let Some(before) = queue_pairs.insert(qpn.get(), progress)
                && let Err(what) = check_progress(&before, &progress)
            {
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

#[cfg(test)]
mod tests {
    use super::*;
    use burst_base::{DeviceId, Psn};

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
