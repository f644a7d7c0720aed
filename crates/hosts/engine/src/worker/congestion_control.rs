//! The congestion control of a running worker: what each path does now, and another algorithm for all of them.

use crate::worker::Worker;
use burst_base::Nanos;
use burst_base::verbs::QpType;
use burst_cc::CcTable;
use burst_control::monitor::{CcPeer, CcVariable};

impl Worker {
    /// Paths from number `from` on, at most `most`, and the number of the next one.
    pub fn cc_peers(&self, from: u32, most: usize) -> (Vec<CcPeer>, Option<u32>) {
        let mut peers = Vec::new();
        for (number, path) in self.core.paths.iter().enumerate().skip(from as usize) {
            if path.users == 0 {
                continue;
            }
            if peers.len() == most {
                return (peers, Some(number as u32));
            }
            let mut variables = Vec::new();
            let mut add = |name: &'static str, value: f64| {
                variables.push(CcVariable { name: name.into(), millionths: (value * 1e6) as i64 });
            };
            let rate_bps = path.observe(&mut add);
            add(
                "selective_repeat",
                f64::from(u8::from(self.core.options.selective && path.hello.window(QpType::Rc) > 0)),
            );
            peers.push(CcPeer {
                worker: self.core.options.id,
                device: path.device.index() as u32,
                peer: path.peer,
                queue_pairs: path.users,
                inflight_bytes: path.inflight(),
                window_bytes: path.window(),
                rate_bps,
                kind: path.peer_kind().name().into(),
                cc: path.params.to_string(),
                is_peers_choice: path.is_peers_choice,
                variables,
            });
        }
        (peers, None)
    }

    /// From now on each path, and those of later queue pairs, have the controller that this table and the peers' choices give
    /// them. All begin in their first state.
    pub fn set_cc(&mut self, now: Nanos, cc: CcTable) {
        self.core.options.cc = cc;
        // Each entry belongs to a gate that ends here.
        self.core.timers.pacing.clear();
        for at in 0..self.core.paths.len() {
            self.data_path().reset_cc(now, at);
        }
        self.core.greet_again(now);
    }
}
