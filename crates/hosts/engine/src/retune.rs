//! The congestion control of a running worker: what each path does now, and another algorithm for all of them.
//!
//! A change gives each path a controller in its first state. Bytes in flight, next hop and users of the path stay. All queue
//! pairs that waited for a window or a rate of the old controller get a turn, in which the new controller lets them send or
//! wait again: none waits for an event that only the old controller would have caused.

use crate::congestion::sent_tos;
use crate::objects::waits_for;
use crate::path::PathLink;
use crate::paths::NOT_WAITING;
use crate::worker::Worker;
use burst_base::Nanos;
use burst_cc::{Algorithm, Params};
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
            let rate_bps = path.observe(&mut |name, value| {
                variables.push(CcVariable { name: name.into(), millionths: (value * 1e6) as i64 });
            });
            peers.push(CcPeer {
                worker: self.core.options.id,
                device: path.device.index() as u32,
                peer: path.peer,
                queue_pairs: path.users,
                inflight_bytes: path.inflight(),
                window_bytes: path.window(),
                rate_bps,
                variables,
            });
        }
        (peers, None)
    }

    /// From now on all paths, and those of later queue pairs, have the controller of `cc`.
    pub fn set_cc(&mut self, now: Nanos, cc: Params) {
        self.core.options.cc = cc;
        // Each entry belongs to a gate that ends here.
        self.core.pacing.clear();
        for path in self.core.paths.iter_mut() {
            let caps = self.ports[path.device.index()].port.caps();
            let line_rate_bps = u64::from(caps.speed_mbps) * 1_000_000;
            path.retune(now, &PathLink { cc, line_rate_bps, mtu: caps.active_mtu().bytes() });
        }
        self.make_markable(cc.algorithm());
        for path in 0..self.core.paths.len() {
            for place in self.core.paths[path].waiting.take_all() {
                if waits_for(&self.core.qps, path as u32, place)
                    && let Some(slot) = self.core.qps[place.qp as usize].as_mut()
                {
                    slot.waiting = NOT_WAITING;
                    self.core.make_ready(place.qp);
                }
            }
        }
    }

    /// Lets switches mark the packets of connected queue pairs, if the algorithm reacts to marks.
    fn make_markable(&mut self, algorithm: Algorithm) {
        for slot in self.core.qps.iter_mut().flatten().filter(|slot| slot.path != crate::objects::NO_PATH) {
            let tos = slot.endpoint.qp().flow().tos;
            slot.endpoint.qp_mut().set_tos(sent_tos(tos, Some(algorithm)));
        }
    }
}
