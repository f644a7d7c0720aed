//! URMA, the transport of the Unified Bus, as state machines: transactions of Jetties over transport channels that all
//! Jetties of two hosts share.
//!
//! Calls drive an [`UrmaNode`]: posts, packets ([`UrmaNode::on_packet`]), turns to send ([`UrmaNode::poll_tx`]) and timers.
//! Each call gets the time, the memory and a receiver of reports ([`UrmaEnv`]). There is no I/O, clock, thread or global.
//! Tables grow to what is in use and are bounded; nothing panics on any packet. `docs/urma.md` has formats, rules, and what
//! is not there.
//!
//! | module | what it holds |
//! |---|---|
//! | `api` | the types of calls; limits |
//! | `bypass` | loads, stores and atomics without a channel |
//! | `caqm` | congestion control by hints: sender, receiver, switch port |
//! | `channels` | transport channels: opening, lanes, windows, acknowledgements, deadlines |
//! | `check` | what must hold between two calls, for simulators and tests |
//! | `initiator` | own requests: posting, order, packets, responses, completions |
//! | `node` | the node and its control calls |
//! | `node_eid` | what distinguishes peers: their addresses |
//! | `node_shared` | what the parts of a node share |
//! | `objects` | completion and receive queues, Jetties, groups, segments |
//! | `paths` | congestion control of the network paths, which the caller has |
//! | `pool` | records behind references with a generation |
//! | `refusal` | why a target refuses a request |
//! | `response_record` | responses that wait or are not acknowledged |
//! | `urma_target` | peers' requests: order, places of payload, execution, answers |
//! | `timers` | deadlines in order of time |
#![forbid(unsafe_code)]

mod api;
mod bypass;
pub mod caqm;
mod channels;
mod check;
mod initiator;
mod node;
mod node_eid;
mod node_shared;
mod objects;
mod paths;
mod pool;
mod refusal;
mod response_record;
mod timers;
mod urma_target;

pub use api::{
    ACCESS_MAX, ACCESS_WINDOW, AccessKind, AccessOutcome, AccessTag, CompletionRecord, CrStatus, GROUP_MEMBERS_MAX,
    GroupPolicy, JETTY_ID_FIRST, JettyConfig, JettyState, JfrConfig, JfrState, JfrWr, JfsWr, LANES_MAX, LocalRange,
    LossRecovery, MemoryGone, RNR_RETRY_FOREVER, RemoteJetty, RemoteSegment, SegmentConfig, TargetKind, TransMode,
    URMA_INLINE_MAX, URMA_MESSAGE_MAX, UrmaConfig, UrmaEffects, UrmaEnv, UrmaError, UrmaEvent, UrmaMemory,
    UrmaTransmit, WrData, access,
};
pub use initiator::runs::UrmaRun;
pub use node::view::{ChannelView, ObjectCounts};
pub use node::{NodeState, UrmaNode};
pub use node_eid::NodeEid;
pub use objects::OBJECTS_MAX;
pub use objects::segment_table::SEGMENTS_MAX;
pub use paths::{FlightBytes, NO_PATH, NoPaths, PathChange, PathRoom, UrmaPaths};
pub use urma_target::echo::{ECHO_JETTY, ECHO_MAX};
pub use urma_target::order_tracker::{CONTEXT_WINDOW, OrderTracker, OrderVerdict};
