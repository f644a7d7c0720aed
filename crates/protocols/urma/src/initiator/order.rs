//! When a request may leave: the order rules of the initiator.
//!
//! Requests of a Jetty are considered in posting order. A request without order (NO) passes a strongly ordered one that
//! waits; requests with order do not pass each other; nothing passes a fence that waits.
//!
//! * ROI: an SO request waits until all earlier RO and SO requests are answered.
//! * ROT, ROL: ordered requests to one peer form a stream, numbered for the target, and leave at once. The first one asks for
//!   a sequence context; the next ones wait for the grant. Without a grant the rule of ROI applies. In ROL every request is
//!   ordered. An SO request to another peer than the stream's waits until all ordered requests are answered, and then begins
//!   a new stream. RO requests to other peers leave without a number, and later SO requests wait for their answers.

use crate::channels::tx_window::TxOwner;
use crate::initiator::Initiator;
use crate::initiator::send_record::{RequestPhase, SendRecord};
use crate::node_eid::NodeEid;
use crate::node_shared::NodeShared;
use crate::objects::records::{Jetty, OrderStream, StreamState};
use crate::pool::PoolRef;
use crate::timers::UrmaTimer;
use crate::urma_target::order_tracker::CONTEXT_WINDOW;
use burst_base::Nanos;
use burst_ubwire::{OrderTag, ServiceMode};

/// Requests behind the first waiting one that are looked at.
const LOOKAHEAD: u32 = 64;

/// How a request may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    /// Not yet.
    No,
    /// Without a number.
    Plain,
    /// In the stream, with the next number.
    Numbered,
    /// As the first one of a new stream.
    Begin,
}

impl Initiator {
    /// Issues what may leave now.
    pub(crate) fn issue(&mut self, node: &mut NodeShared, jetty: PoolRef) {
        self.issue_at(node, jetty, Nanos(0));
    }
    /// The same at a known time, at which a new channel begins to open.
    pub(crate) fn issue_at(&mut self, node: &mut NodeShared, jetty: PoolRef, now: Nanos) {
        let Some(record) = node.objects.jetties.get(jetty) else { return };
        if record.state != crate::api::JettyState::Ready || record.config.service == ServiceMode::Uno {
            return;
        }
        let mut at = record.cursor;
        let (mut is_ordered_blocked, mut blocked_reads, mut passed) = (false, 0u16, 0);
        while let (Some(request), Some(record)) = (self.requests.get(at), node.objects.jetties.get(jetty)) {
            let next = request.next;
            if request.phase == RequestPhase::Posted {
                if request.fence && record.reads + blocked_reads > 0 {
                    break;
                }
                let is_granted = matches!(record.stream.state, StreamState::Granted { .. });
                if is_granted && !is_ordered_blocked {
                    self.oldest_of_stream(node, jetty);
                }
                let Some(record) = node.objects.jetties.get(jetty) else { return };
                match self.may_leave(node, record, request, is_ordered_blocked) {
                    Leave::No => {
                        is_ordered_blocked = true;
                        blocked_reads += u16::from(request.is_read());
                    }
                    leave => self.send_out(node, at, leave, now),
                }
            }
            if is_ordered_blocked {
                passed += 1;
                if passed > LOOKAHEAD {
                    break;
                }
            } else if let Some(record) = node.objects.jetties.get_mut(jetty) {
                record.cursor = next;
            }
            at = next;
        }
    }
    fn may_leave(&self, node: &NodeShared, jetty: &Jetty, request: &SendRecord, is_ordered_blocked: bool) -> Leave {
        let order = effective_order(jetty.config.service, request.order);
        if order == OrderTag::None {
            return Leave::Plain;
        }
        if is_ordered_blocked {
            return Leave::No;
        }
        let is_strong = order == OrderTag::Strong;
        let plain_rule = if is_strong && jetty.ordered > 0 { Leave::No } else { Leave::Plain };
        if jetty.config.service == ServiceMode::Roi {
            return plain_rule;
        }
        self.may_leave_in_stream(node, jetty, request, plain_rule)
    }
    /// The rule of ROT and ROL: the stream of the Jetty, if it is to the request's peer. `plain_rule` holds without a stream.
    fn may_leave_in_stream(&self, node: &NodeShared, jetty: &Jetty, request: &SendRecord, plain_rule: Leave) -> Leave {
        let is_strong = effective_order(jetty.config.service, request.order) == OrderTag::Strong;
        let stream = &jetty.stream;
        if stream.state == StreamState::None
            || stream.peer != request.dest
            || node.channels.get(stream.channel).is_none()
        {
            return match (jetty.ordered, is_strong, stream.state) {
                (0, _, _) => Leave::Begin,
                (_, false, StreamState::None) => Leave::Plain,
                (_, false, _) => plain_rule,
                (_, true, _) => Leave::No,
            };
        }
        match stream.state {
            StreamState::Denied => plain_rule,
            StreamState::None | StreamState::Asking => Leave::No,
            StreamState::Granted { .. } => {
                let is_blocked = is_strong && jetty.outside > 0 || !self.has_number(jetty);
                if is_blocked { Leave::No } else { Leave::Numbered }
            }
        }
    }
    /// Whether the next number is within the window of the oldest request of the stream, which was looked for.
    fn has_number(&self, jetty: &Jetty) -> bool {
        let oldest = self.requests.get(jetty.stream_from).filter(|request| request.is_under_way());
        let number = oldest.and_then(|request| request.order_number);
        number.is_none_or(|number| jetty.stream.next_number.wrapping_sub(number) < CONTEXT_WINDOW)
    }
    /// The oldest numbered request of a Jetty that is issued and not answered. Numbers are given in posting order, so the search
    /// goes forward only, as far as requests are issued.
    pub(crate) fn oldest_of_stream(&self, node: &mut NodeShared, jetty: PoolRef) -> Option<PoolRef> {
        let NodeShared { objects, channels, .. } = node;
        let record = objects.jetties.get_mut(jetty)?;
        let mut at = record.stream_from;
        let is_it = |request: &SendRecord| request.order_number.is_some() && request.is_under_way();
        while at != record.cursor
            && let Some(request) = self.requests.get(at).filter(|request| !is_it(request))
        {
            channels.sweeps.steps += 1;
            at = request.next;
        }
        record.stream_from = at;
        self.requests.get(at).is_some_and(is_it).then_some(at)
    }
    fn send_out(&mut self, node: &mut NodeShared, at: PoolRef, leave: Leave, now: Nanos) {
        let Some((jetty, dest)) = self.requests.get(at).map(|r| (r.jetty, r.dest)) else { return };
        debug_assert!(leave != Leave::No, "a request leaves that may not");
        let channel = stream_channel(node, jetty, dest, leave).or_else(|| node.channels.channel_to(dest, now));
        if leave == Leave::Begin {
            node.end_stream(jetty);
        }
        let (Some(record), Some(request)) = (node.objects.jetties.get_mut(jetty), self.requests.get_mut(at)) else {
            return;
        };
        match leave {
            Leave::Begin => {
                record.stream = OrderStream {
                    state: StreamState::Asking,
                    peer: dest,
                    channel: channel.unwrap_or(PoolRef::NONE),
                    next_number: 1,
                };
                (request.alloc, request.order_number) = (true, Some(0));
            }
            Leave::Numbered => {
                request.order_number = Some(record.stream.next_number);
                record.stream.next_number = record.stream.next_number.wrapping_add(1);
            }
            Leave::Plain | Leave::No => {}
        }
        request.channel = channel.unwrap_or(PoolRef::NONE);
        let attempt = request.attempt;
        self.mark_issued(node, jetty, at);
        match channel {
            Some(channel) => node.channels.enqueue(channel, TxOwner::Request(at, attempt)),
            // No channel can be made: the time-out of the retry timer reports it.
            None => node.channels.timers.add(now, UrmaTimer::Retry(at)),
        }
    }
    /// The request counts as issued.
    pub(crate) fn mark_issued(&mut self, node: &mut NodeShared, jetty: PoolRef, at: PoolRef) {
        let (Some(record), Some(request)) = (node.objects.jetties.get_mut(jetty), self.requests.get_mut(at)) else {
            return;
        };
        let mut list = None;
        debug_assert!(request.phase == RequestPhase::Posted, "a request is issued twice");
        request.phase = RequestPhase::Issued;
        record.issued += 1;
        if let Some(channel) = node.channels.get_mut(request.channel) {
            channel.begin(request);
            list = Some(&mut channel.requests);
        }
        record.reads += u16::from(request.is_read());
        if effective_order(record.config.service, request.order) != OrderTag::None {
            record.ordered += 1;
            record.outside += u16::from(request.order_number.is_none());
        }
        if record.cursor == at {
            record.cursor = request.next;
        }
        if let Some(list) = list {
            self.requests.push_back(list, at);
        }
    }
    /// The request is answered: counts are undone, and later ones may leave.
    pub(crate) fn mark_answered(&mut self, node: &mut NodeShared, jetty: PoolRef, at: PoolRef) {
        let (Some(record), Some(request)) = (node.objects.jetties.get_mut(jetty), self.requests.get(at)) else {
            return;
        };
        debug_assert!(record.issued > 0 && request.is_under_way(), "a request is answered twice");
        record.issued -= 1;
        let list = node.channels.end_request(request);
        record.reads -= u16::from(request.is_read());
        if effective_order(record.config.service, request.order) != OrderTag::None {
            debug_assert!(record.ordered > 0, "ordered requests are counted wrong");
            record.ordered -= 1;
            record.outside -= u16::from(request.order_number.is_none());
        }
        if let Some(list) = list {
            self.requests.take_out(list, at);
        }
    }
}

/// In ROL all requests are in order.
fn effective_order(service: ServiceMode, order: OrderTag) -> OrderTag {
    if service == ServiceMode::Rol { OrderTag::Strong } else { order }
}

/// The channel to which the order of a Jetty's requests binds this one: a sequence context belongs to a channel, and all
/// requests of ROL take the same.
fn stream_channel(node: &NodeShared, jetty: PoolRef, dest: NodeEid, leave: Leave) -> Option<PoolRef> {
    let record = node.objects.jetties.get(jetty)?;
    let stream = &record.stream;
    let is_bound = leave == Leave::Numbered || leave == Leave::Plain && record.config.service == ServiceMode::Rol;
    let is_its = is_bound && stream.state != StreamState::None && stream.peer == dest;
    (is_its && node.channels.get(stream.channel).is_some()).then_some(stream.channel)
}
