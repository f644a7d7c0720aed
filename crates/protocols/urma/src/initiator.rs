//! The half of a node that sends requests: posting, order, lanes, packets of messages, responses, completions.
//!
//! A posted request is in the list of its Jetty until its completion is reported, and, while it is issued and not answered, in
//! the list of its channel as well. Loss recovery is the channel's: it repeats packets, which are cut from the request again.
//!
//! | file | what it holds |
//! |---|---|
//! | `send_record` | the record of a request |
//! | `posting` | work requests: checks, what they reach |
//! | `request_list` | the outstanding requests of a Jetty |
//! | `request_index` | requests by number, where a search took long |
//! | `order` | when a request may leave |
//! | `packets` | headers and payload of requests' packets |
//! | `runs` | further packets of the message of which a packet was sent last |
//! | `responses` | responses of targets: data, refusals, receiver not ready |
//! | `completions` | outcomes, and their order |
//! | `sweep` | the requests of channels that have ended or are silent |
//! | `check` | what must hold between two calls |

pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod order;
pub(crate) mod packets;
pub(crate) mod posting;
pub(crate) mod request_index;
pub(crate) mod request_list;
pub(crate) mod responses;
pub(crate) mod runs;
pub(crate) mod send_record;
pub(crate) mod sweep;

use crate::api::{CompletionRecord, CrStatus, JETTY_ID_FIRST, JettyState, UrmaEffects, UrmaEnv, UrmaError, UrmaEvent};
use crate::channels::tx_window::TxOwner;
use crate::initiator::request_index::RequestIndex;
use crate::initiator::runs::LastHead;
use crate::initiator::send_record::{RequestPhase, SendRecord};
use crate::node_shared::NodeShared;
use crate::objects::records::Drain;
use crate::pool::{PoolRef, UrmaPool};
use std::collections::VecDeque;

/// What a node knows of its own requests.
pub(crate) struct Initiator {
    pub(crate) requests: UrmaPool<SendRecord>,
    pub(crate) index: RequestIndex,
    /// Unreliable messages to send.
    pub(crate) unreliable: VecDeque<PoolRef>,
    pub(crate) last_head: LastHead,
}

impl Initiator {
    pub(crate) fn new(requests_max: usize) -> Self {
        Initiator {
            requests: UrmaPool::new(requests_max),
            index: RequestIndex::default(),
            unreliable: VecDeque::new(),
            last_head: LastHead::default(),
        }
    }
    /// Moves a Jetty to another state ([`crate::UrmaNode::modify_jetty`]).
    pub(crate) fn modify_jetty(
        &mut self,
        node: &mut NodeShared,
        at: PoolRef,
        to: JettyState,
        fx: &mut dyn UrmaEffects,
    ) -> Result<(), UrmaError> {
        let record = node.objects.jetties.get_mut(at).ok_or(UrmaError::NoObject)?;
        match (record.state, to) {
            (JettyState::Ready | JettyState::Suspended, JettyState::Error) => {
                self.stop_jetty(node, at, JettyState::Error, fx);
                return Ok(());
            }
            (JettyState::Suspended, JettyState::Ready) if record.drain == Drain::Reported => {}
            (JettyState::Error, JettyState::Reset) if record.drain == Drain::Reported && record.count == 0 => {}
            (JettyState::Reset, JettyState::Ready) => {}
            _ => return Err(UrmaError::State),
        }
        (record.state, record.drain) = (to, Drain::No);
        if to == JettyState::Ready {
            self.issue(node, at);
        }
        Ok(())
    }
    /// A Jetty stops: nothing more is issued; when what is issued has an outcome, the program is told.
    pub(crate) fn stop_jetty(&mut self, node: &mut NodeShared, at: PoolRef, to: JettyState, fx: &mut dyn UrmaEffects) {
        let id = at.index() + JETTY_ID_FIRST;
        debug_assert!(matches!(to, JettyState::Error | JettyState::Suspended), "a Jetty stops and goes on");
        let Some(jetty) = node.objects.jetties.get_mut(at) else { return };
        if jetty.state == to {
            return;
        }
        (jetty.state, jetty.drain) = (to, Drain::Waiting);
        fx.event(UrmaEvent::JettyError(id));
        if to == JettyState::Error {
            self.end_waiting(node, at, fx);
        }
        node.objects.check_drained(at, fx);
    }
    /// A Jetty is moved to ERROR: its requests that wait for the peer to be ready end.
    pub(crate) fn end_waiting(&mut self, node: &mut NodeShared, jetty: PoolRef, fx: &mut dyn UrmaEffects) {
        let Some(mut at) = node.objects.jetties.get(jetty).map(|jetty| jetty.head) else { return };
        while let Some(request) = self.requests.get(at) {
            let next = request.next;
            if request.phase == RequestPhase::Waiting && request.abandoned.is_none() {
                self.give_up(node, at, CrStatus::FlushErr, fx);
            }
            at = next;
        }
    }
    /// A request that waited after RNR, or for which there is no channel.
    pub(crate) fn on_retry(&mut self, node: &mut NodeShared, at: PoolRef, env: &mut UrmaEnv<'_>) {
        let Some(request) = self.requests.get_mut(at) else { return };
        if node.channels.get(request.channel).is_none() {
            return self.answer(node, at, CrStatus::AckTimeout, env);
        }
        if request.phase != RequestPhase::Waiting {
            return;
        }
        request.begin_attempt();
        let (channel, attempt) = (request.channel, request.attempt);
        node.channels.enqueue(channel, TxOwner::Request(at, attempt));
    }
    /// A Jetty whose program has ended stops ([`crate::UrmaNode::abandon_jetty`]). Returns how many requests it has.
    pub(crate) fn abandon_jetty(&mut self, node: &mut NodeShared, at: PoolRef, fx: &mut dyn UrmaEffects) -> usize {
        let Some(record) = node.objects.jetties.get_mut(at) else { return 0 };
        let count = usize::from(record.count);
        if std::mem::replace(&mut record.is_abandoned, true) {
            if record.drain == Drain::Reported {
                node.objects.drained.push_back(at);
            }
            return count;
        }
        (record.state, record.drain) = (JettyState::Error, Drain::Waiting);
        self.end_waiting(node, at, fx);
        node.objects.check_drained(at, fx);
        count
    }
    /// Hands back the oldest request of a stopped Jetty ([`crate::UrmaNode::flush_jetty`]).
    pub(crate) fn flush_jetty(&mut self, node: &mut NodeShared, at: PoolRef) -> Option<CompletionRecord> {
        if node.objects.jetties.get(at)?.drain != Drain::Reported {
            return None;
        }
        loop {
            let head = node.objects.jetties.get(at)?.head;
            let request = self.requests.get(head)?;
            debug_assert!(!request.is_under_way(), "a drained Jetty has a request under way");
            let record = match request.phase {
                RequestPhase::Done(CrStatus::Success) if !request.complete => None,
                // Executed, but its completion waited for one that was not.
                RequestPhase::Done(status) => Some(request.completion(status)),
                _ => Some(CompletionRecord { len: 0, ..request.completion(CrStatus::Unhandled) }),
            };
            self.unlink(node, head);
            if record.is_some() {
                return record;
            }
        }
    }
}
