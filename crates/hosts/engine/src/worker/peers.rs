//! Calls about peers: what each path does now, another algorithm for all of them, what daemons say of themselves.

use crate::worker::Worker;
use burst_base::{DeviceId, Nanos};
use burst_cc::CcTable;
use burst_control::monitor::CcPeer;
use burst_wire::hello::Hello;
use std::net::IpAddr;

impl Worker {
    /// Paths from number `from` on, at most `most`, and the number of the next one.
    pub fn cc_peers(&self, from: u32, most: usize) -> (Vec<CcPeer>, Option<u32>) {
        self.core.paths.cc_page((self.core.options.id, self.core.options.selective), from, most)
    }

    /// From now on each path, and those of later queue pairs, have the controller that this table and the peers' choices give
    /// them. All begin in their first state.
    pub fn set_cc(&mut self, now: Nanos, cc: CcTable) {
        // Peers that follow a choice must hear that there is none any more.
        let asked = self.core.options.asks_peers();
        self.core.options.cc = cc;
        // Each entry belongs to a gate that ends here.
        self.core.timers.pacing.clear();
        for at in 0..self.core.paths.len() {
            self.data_path().reset_cc(now, at);
        }
        if asked || self.core.options.asks_peers() {
            self.core.hellos.greet_again(now, &mut self.core.paths);
        }
    }

    /// The number in hellos that stands for this start of the daemon.
    pub fn boot_id(&self) -> u64 {
        self.core.options.boot_id()
    }

    /// What this worker answers to a peer that asks through `device`.
    pub fn hello(&self, device: DeviceId) -> Hello {
        self.core.options.hello(self.ports[device.index()].port.caps().active_mtu(), 0)
    }

    /// Tells the worker what `peer` has answered, so that it need not ask: queue pairs of the path use it from now on. Nothing
    /// changes if the peer is known, or if no queue pair has joined the path. For a simulation, whose connections begin between
    /// hosts that know each other; a daemon believes the peer itself only.
    pub fn know_peer(&mut self, now: Nanos, device: DeviceId, peer: IpAddr, hello: &Hello) {
        self.data_path().know_peer(now, device, peer, hello);
    }
}
