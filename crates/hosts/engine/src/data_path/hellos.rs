//! Hellos that are due: answers to questions of peers, and questions to peers whose time has come.

use crate::core::Core;
use crate::data_path::DataPath;
use crate::paths::hello::{HelloQuestion, push_hello};
use crate::paths::hello_times::HELLOS_PER_PASS;
use crate::paths::peer_hello::PeerHello;
use crate::port_slot::PortSlot;
use burst_base::{DeviceId, Nanos};
use burst_frame::Flow;
use burst_wire::hello::Hello;
use std::net::IpAddr;

impl DataPath<'_> {
    /// Answers questions, and asks the peers whose time has come: [`HELLOS_PER_PASS`] of them, and the others in the next passes.
    /// Returns whether there was any.
    #[cold]
    pub fn run_hellos(&mut self, now: Nanos) -> bool {
        let mut any = !self.core.hellos.questions.is_empty();
        while let Some(HelloQuestion { device, back, tid }) = self.core.hellos.questions.pop() {
            let answer = Hello { is_answer: true, ..self.own_hello(device, tid) };
            self.send_hello(now, device, &back, &answer);
        }
        let mut unanswered = std::mem::take(&mut self.core.hellos.unanswered);
        for _ in 0..HELLOS_PER_PASS {
            let Core { hellos, paths, .. } = &mut *self.core;
            let Some(at) = hellos.times.next(now, paths) else { break };
            any |= self.run_hello(now, at as usize, &mut unanswered);
            let Core { hellos, paths, .. } = &mut *self.core;
            hellos.times.note(at, &mut paths[at as usize]);
        }
        self.core.set_families(&mut unanswered);
        unanswered.clear();
        let Core { hellos, paths, .. } = &mut *self.core;
        hellos.unanswered = unanswered;
        hellos.times.settle(paths);
        self.flush_all(now);
        any
    }

    /// Follows what has changed about a path, and asks its peer if it is time; notes it if the peer was asked for the last time,
    /// and has not answered. Returns whether there was anything to do.
    fn run_hello(&mut self, now: Nanos, at: usize, unanswered: &mut Vec<u32>) -> bool {
        let is_changed = self.follow_choice(now, at);
        if self.core.paths[at].hello.due() > now {
            return is_changed;
        }
        let tid = self.core.hellos.next_tid(&self.core.options);
        let path = &mut self.core.paths[at];
        if path.users == 0 {
            // The next queue pair asks again.
            path.hello = PeerHello::default();
            return true;
        }
        let device = path.device;
        match path.hello.on_due(now, tid) {
            Some(flow) => self.send_hello(now, device, &flow, &self.own_hello(device, tid)),
            None => {
                unanswered.push(at as u32);
                self.follow_choice(now, at);
            }
        }
        true
    }

    /// Notes what `peer` has answered: as [`crate::Worker::know_peer`].
    pub fn know_peer(&mut self, now: Nanos, device: DeviceId, peer: IpAddr, hello: &Hello) {
        let Some(at) = self.core.paths.find(device, peer) else { return };
        let own_boot_id = self.core.options.boot_id();
        let path = &mut self.core.paths[at as usize];
        if path.hello.is_burst() || path.is_own_address {
            return;
        }
        path.hello.know(now, hello, own_boot_id);
        self.core.hellos.times.note(at, path);
        self.core.set_families(&mut [at]);
        self.follow_choice(now, at as usize);
    }

    /// What this worker says of itself to a peer of a device.
    pub fn own_hello(&self, device: DeviceId, tid: u64) -> Hello {
        self.core.options.hello(self.ports[device.index()].port.caps().active_mtu(), tid)
    }

    /// Gives a path another controller, if its peer's hello or what its packets meet has changed and asks for one. True if it
    /// did.
    pub(super) fn follow_choice(&mut self, now: Nanos, at: usize) -> bool {
        let path = &mut self.core.paths[at];
        let is_new = path.hello.take_change() | path.conditions.take_change();
        is_new && self.settle_cc(now, at)
    }

    fn send_hello(&mut self, now: Nanos, device: DeviceId, flow: &Flow, hello: &Hello) {
        if !self.ports[device.index()].batch.has_room() {
            self.flush_all(now);
        }
        let PortSlot { batch, counters, .. } = &mut self.ports[device.index()];
        push_hello(batch, counters, flow, hello);
    }
}
