//! Controllers of paths: which one a path has, and its replacement by another.
//!
//! A change gives each path a controller in its first state. Bytes in flight, next hop and users of the path stay. All queue
//! pairs that waited for a window or a rate of the old controller get a turn, in which the new controller lets them send or
//! wait again: none waits for an event that only the old controller would have caused.

use crate::data_path::DataPath;
use crate::objects::{answers_by, waits_for};
use crate::paths::NOT_WAITING;
use crate::paths::ecn::sent_tos;
use crate::paths::path::PathLink;
use crate::transmit::sched::URMA_ENTRY;
use burst_base::Nanos;
use burst_cc::{Algorithm, SettledChoice};

impl DataPath<'_> {
    /// Gives a path the controller that table and peer choose, in its first state.
    pub fn reset_cc(&mut self, now: Nanos, at: usize) {
        self.retune(now, at, self.choice_for(at));
    }

    /// The parameters for a path, and why.
    fn choice_for(&self, at: usize) -> SettledChoice {
        let path = &self.core.paths[at];
        self.core.options.cc.settle(path.peer_kind(), path.hello.choice(), path.conditions.nature())
    }

    /// What is known of a path or its peer has changed: gives the path another controller, if that asks for one. True if it did.
    #[cold]
    pub fn settle_cc(&mut self, now: Nanos, at: usize) -> bool {
        let choice = self.choice_for(at);
        let path = &mut self.core.paths[at];
        if choice.params == path.params {
            path.why = choice.why;
            return false;
        }
        self.retune(now, at, choice);
        true
    }

    /// Gives a path a controller in its first state, and a turn to the queue pairs that waited for the old one.
    fn retune(&mut self, now: Nanos, at: usize, SettledChoice { params, why }: SettledChoice) {
        let path = &mut self.core.paths[at];
        let reported_each = path.wants_each_report();
        path.retune(now, &PathLink::new(params, self.ports[path.device.index()].port.caps()));
        path.why = why;
        // All queue pairs of the worker are looked at: not for a change that concerns none of them.
        let reports_each = path.wants_each_report();
        if reports_each != reported_each {
            let others = self.core.qps.iter_mut().flatten().filter(|slot| slot.path == at as u32);
            others.for_each(|slot| slot.qp.report_each(reports_each));
        }
        if params.algorithm().uses_delay() {
            self.ports[self.core.paths[at].device.index()].port.time_arrivals();
        }
        if params.algorithm().uses_ecn() {
            self.make_markable(at as u32, params.algorithm());
        }
        debug_assert!(self.core.paths[at].params == params, "a controller with other parameters");
        let waiter = (at as u32, self.core.paths[at].channels.ticket);
        for place in self.core.paths[at].waiting.take_all() {
            if answers_by(&self.core.qps, at as u32, place)
                && let Some(slot) = self.core.qps[place.qp as usize].as_mut()
            {
                slot.answering = NOT_WAITING;
                self.core.make_ready(place.qp);
                continue;
            }
            let is_waiting = waits_for(&self.core.qps, waiter, place);
            if is_waiting && place.qp == URMA_ENTRY {
                self.core.paths[at].channels.ticket = NOT_WAITING;
                self.core.channel_wakes.opened.push(at as u32);
            } else if is_waiting && let Some(slot) = self.core.qps[place.qp as usize].as_mut() {
                slot.waiting = NOT_WAITING;
                self.core.make_ready(place.qp);
            }
        }
    }

    /// Lets switches mark the packets of the queue pairs of a path, if the algorithm reacts to marks.
    fn make_markable(&mut self, path: u32, algorithm: Algorithm) {
        for slot in self.core.qps.iter_mut().flatten().filter(|slot| slot.path == path) {
            let tos = slot.qp.flow().tos;
            slot.qp.set_tos(sent_tos(tos, Some(algorithm)));
        }
    }
}
