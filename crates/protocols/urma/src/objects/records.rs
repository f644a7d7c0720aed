//! Completion queues (JFC), receive queues (JFR) and the Jetty record.

use crate::api::{CompletionRecord, GroupPolicy, JettyConfig, JettyState, JfrConfig, JfrState, JfrWr, RemoteJetty};
use crate::node_eid::NodeEid;
use crate::pool::PoolRef;
use std::collections::VecDeque;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Jfc {
    pub(crate) depth: u32,
    pub(crate) records: VecDeque<CompletionRecord>,
    pub(crate) is_broken: bool,
    /// Jetties and JFRs that use it.
    pub(crate) users: u32,
}

/// A receive, and the registration of its segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedReceive {
    pub(crate) wr: JfrWr,
    pub(crate) segment: PoolRef,
}

/// A receive queue.
#[derive(Debug)]
pub(crate) struct Jfr {
    pub(crate) config: JfrConfig,
    pub(crate) state: JfrState,
    pub(crate) receives: VecDeque<PostedReceive>,
    /// Jetties that share it.
    pub(crate) users: u32,
    /// Messages that are being placed into its receives.
    pub(crate) placing: u32,
    pub(crate) limit_reported: bool,
}

/// Whether the target keeps the order of a Jetty's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamState {
    None,
    /// The first request, which asks for a context, is not answered.
    Asking,
    Granted {
        context: u16,
    },
    /// The target has no context: the initiator keeps the order.
    Denied,
}

/// The ordered requests of a Jetty to one peer, in service modes ROT and ROL. A Jetty has one such stream at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrderStream {
    pub(crate) state: StreamState,
    pub(crate) peer: NodeEid,
    pub(crate) channel: PoolRef,
    pub(crate) next_number: u16,
}

/// Why a Jetty is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drain {
    No,
    Waiting,
    Reported,
}

/// A Jetty or JFS.
#[derive(Debug)]
pub(crate) struct Jetty {
    pub(crate) config: JettyConfig,
    pub(crate) state: JettyState,
    pub(crate) bound: Option<RemoteJetty>,
    pub(crate) next_tassn: u16,
    /// Requests in posting order, and the first one that is not issued.
    pub(crate) head: PoolRef,
    pub(crate) tail: PoolRef,
    pub(crate) cursor: PoolRef,
    pub(crate) count: u16,
    /// How many of them ask for no completion, and the oldest of those.
    pub(crate) silents: u16,
    pub(crate) oldest_silent: PoolRef,
    /// The oldest one with ordered completion.
    pub(crate) oldest_in_order: PoolRef,
    /// No numbered request that is under way is before this one.
    pub(crate) stream_from: PoolRef,
    /// Issued and not answered: all, those with order, READs and atomics, those with order outside of the stream.
    pub(crate) issued: u16,
    pub(crate) ordered: u16,
    pub(crate) reads: u16,
    pub(crate) outside: u16,
    pub(crate) stream: OrderStream,
    pub(crate) drain: Drain,
    /// Its program has ended ([`crate::UrmaNode::abandon_jetty`]).
    pub(crate) is_abandoned: bool,
    /// Its program waits for the end of a request.
    pub(crate) is_awaited: bool,
    /// Its requests are in the index of numbers.
    pub(crate) is_indexed: bool,
}

impl Jetty {
    pub(crate) const fn new(config: JettyConfig) -> Self {
        Jetty {
            config,
            state: JettyState::Ready,
            bound: None,
            next_tassn: 0,
            head: PoolRef::NONE,
            tail: PoolRef::NONE,
            cursor: PoolRef::NONE,
            count: 0,
            silents: 0,
            oldest_silent: PoolRef::NONE,
            oldest_in_order: PoolRef::NONE,
            stream_from: PoolRef::NONE,
            issued: 0,
            ordered: 0,
            reads: 0,
            outside: 0,
            stream: OrderStream {
                state: StreamState::None,
                peer: NodeEid::UNSPECIFIED,
                channel: PoolRef::NONE,
                next_number: 0,
            },
            drain: Drain::No,
            is_abandoned: false,
            is_awaited: false,
            is_indexed: false,
        }
    }
}

/// TASSNs from the oldest outstanding request of a Jetty on that may be in use. Twice as many are told apart.
pub(crate) const TASSN_WINDOW: u16 = 1 << 15;

/// A group of Jetties.
#[derive(Debug)]
pub(crate) struct JettyGroup {
    pub(crate) policy: GroupPolicy,
    pub(crate) token: Option<u32>,
    pub(crate) members: Vec<PoolRef>,
    /// Messages that were given to members.
    pub(crate) given: u32,
}

/// Bytes of a Jetty's record.
pub(crate) const JETTY_BYTES: usize = size_of::<Jetty>();
const _: () = assert!(JETTY_BYTES <= 256);
