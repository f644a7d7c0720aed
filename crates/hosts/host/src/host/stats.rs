//! Counters of all devices, and the description of the host for `burst ls` and the hello.

use super::Host;
use crate::watchdog::Watchdog;
use burst_base::Reason;
use burst_control::monitor::DaemonCrashes;
use burst_control::{Counter, DaemonInfo};
use std::time::Duration;

impl Host {
    /// Version, process, uptime, and how many contexts are open.
    pub fn info(&self) -> DaemonInfo {
        DaemonInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uid: rustix::process::getuid().as_raw(),
            uptime_s: Duration::from_nanos(self.clock.now().since(self.started).0).as_secs(),
            workers: self.workers.len() as u32,
            contexts: self.contexts.taken(),
        }
    }

    /// Daemons that fell before this one, as a user may see them: messages and backtraces may contain data of other users'
    /// programs, so that only root and the daemon's user see them.
    pub fn crashes_for(&self, viewer: u32) -> DaemonCrashes {
        let mut crashes = self.crashes.clone();
        // The supervisor may have ended since.
        crashes.guarded &= self.store.as_ref().is_some_and(|store| store.is_kept());
        if !self.authority.sees_all(viewer) {
            crashes.directory = None;
            crashes.reports.iter_mut().for_each(|report| report.details.clear());
        }
        crashes
    }

    /// Every counter of every device, summed over the workers, and those of the daemon.
    pub fn stats(&self) -> Vec<Counter> {
        let stalls = self.watchdog.as_ref().map_or(0, Watchdog::stalls);
        let stalls = Counter { name: Reason::ThreadStalled.name().into(), device: String::new(), value: stalls };
        let mut all = vec![stalls];
        for device in &self.devices {
            let id = device.id;
            let mut sums: Vec<(&'static str, u64)> = Vec::new();
            for worker in 0..self.workers.len() {
                let one = self.on_worker(worker, move |w, _| w.counters(id)).snapshot();
                if sums.is_empty() {
                    sums = one;
                } else {
                    debug_assert_eq!(sums.len(), one.len(), "all workers have the same counters");
                    sums.iter_mut().zip(one).for_each(|(sum, of_worker)| sum.1 += of_worker.1);
                }
                for of_node in self.on_worker(worker, move |w, _| w.urma_counters(id)) {
                    sums.iter_mut().zip(of_node.snapshot()).for_each(|(sum, of_node)| sum.1 += of_node.1);
                }
            }
            let name = format!("burst{id}");
            all.extend(sums.into_iter().map(|(counter, value)| Counter {
                name: counter.into(),
                device: name.clone(),
                value,
            }));
        }
        all
    }
}
