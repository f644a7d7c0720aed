//! Hosts that start anew: what is lost with them, and what their peers see.
//!
//! A host that restarts loses its queue pairs, its requests, and the packets that wait in it. Its own messages have failed
//! at once. Peers see it by the protocol: their requests get no answer, and end with an error when their retries are used
//! up. A peer that has no request on its way has nothing by which to see it; its end of the connection is reset out of
//! band, as it was made. While a host is down, messages from it and to it fail at once.

use super::{NEVER, SimError, World};
use crate::flows::{SimMessage, Transfer};
use crate::node::Verb;
use burst_base::verbs::WcStatus;
use burst_fabric::HostId;
use std::collections::VecDeque;

impl World {
    /// A host restarts now, and is up again after `lasts`.
    pub(super) fn restart(&mut self, host: u32, lasts: u64) -> Result<(), SimError> {
        let state = &mut self.hosts[host as usize];
        if let Some(node) = state.node.take() {
            self.tally.keep_counters(&node.counters().snapshot());
        }
        (state.wake_at, state.busy_until, state.backlog) = (NEVER, 0, VecDeque::new());
        (state.up_at, state.boots) = (self.now + lasts, state.boots + 1);
        self.network.clear_adapter(HostId(host));
        if let Some(oracle) = &mut self.oracle {
            oracle.forget_host(host);
        }
        let concerned = self.connections.on_restart(host);
        let lost = |flow: &Transfer| flow.end == 0 && self.poster(flow) == host;
        let lost: Vec<u32> = (0..self.flows.len() as u32).filter(|id| lost(&self.flows[*id as usize])).collect();
        for id in lost {
            self.finish(id, WcStatus::WrFlushErr as u8)?;
        }
        for number in concerned {
            if self.connections.is_idle(number) {
                self.drop_connection(number)?;
            }
        }
        Ok(())
    }

    /// The host that has posted the request of a message.
    fn poster(&self, flow: &Transfer) -> u32 {
        if flow.verb == Verb::Read { flow.message.to } else { flow.message.from }
    }

    /// When both ends of a message are up.
    pub(super) fn up_at(&self, message: &SimMessage) -> u64 {
        self.hosts[message.from as usize].up_at.max(self.hosts[message.to as usize].up_at)
    }

    /// A message cannot begin, because a host is down.
    pub(super) fn refuse(&mut self, traffic: u16, message: SimMessage) {
        let source = &mut self.sources[usize::from(traffic)];
        let (verb, status) = (source.traffic().verb, WcStatus::WrFlushErr as u8);
        let flow = Transfer { message, traffic, verb, connection: 0, memory: [0; 2], end: self.now.max(1), status };
        self.tally.begin();
        self.tally.end(&flow, true);
        let up_at = self.up_at(&message);
        self.sources[usize::from(traffic)].on_loss(up_at);
    }

    /// Ends a connection that has no request on its way; ends of it that still exist are reset.
    pub(super) fn drop_connection(&mut self, number: u32) -> Result<(), SimError> {
        for end in self.connections.ends_alive(number) {
            let state = &mut self.hosts[end.host as usize];
            if let Some(node) = &mut state.node {
                let qpn = node.reset(state.clock.nanos(self.now), end.qp).map_err(SimError::Engine)?;
                if let Some(oracle) = &mut self.oracle {
                    oracle.forget(end.host, end.qp, qpn);
                }
            }
        }
        self.connections.forget(number);
        Ok(())
    }
}
