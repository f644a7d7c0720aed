//! A thread that stands still is counted and can be named.
mod common;

use burst_base::Reason;
use burst_host::Host;
use common::host;
use std::time::Duration;

fn stalls(host: &Host) -> u64 {
    let name = Reason::ThreadStalled.name();
    host.stats().iter().find(|counter| counter.name == name && counter.device.is_empty()).map_or(0, |c| c.value)
}

#[test]
fn a_worker_that_stands_still_is_counted_and_one_that_sleeps_is_not() {
    let mut host = host(50);
    host.start_watchdog().expect("a thread");
    host.pulse.rest();
    std::thread::sleep(Duration::from_millis(1600));
    assert_eq!(stalls(&host), 0, "nothing to do");
    host.post(0, |_, _| std::thread::sleep(Duration::from_millis(2500)));
    // The call waits for the worker.
    stalls(&host);
    assert!(stalls(&host) > 0);
}
