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
//! | `following` | further packets of the message of the last one |
//! | `heads` | heads of the packets that were sent and received last |
//! | `initiator` | answers to own requests, completions |
//! | `issue` | order at the initiator |
//! | `node` | the node and its control calls |
//! | `node_shared` | what the parts of a node share |
//! | `objects` | completion and receive queues, Jetties, groups, segments |
//! | `pool` | records behind references with a generation |
//! | `post` | work requests |
//! | `records` | requests and responses under way |
//! | `refusal` | why a target refuses a request |
//! | `sweep` | the end of a channel; work on many requests in parts |
//! | `urma_target` | peers' requests: order, places of payload, execution, answers |
//! | `timers` | deadlines in order of time |
//! | `transmit` | packets to send |
#![forbid(unsafe_code)]

mod api;
mod bypass;
pub mod caqm;
mod channels;
mod following;
mod heads;
mod initiator;
mod issue;
mod node;
mod node_shared;
mod objects;
mod pool;
mod post;
mod records;
mod refusal;
mod sweep;
mod timers;
mod transmit;
mod urma_target;

pub use api::{
    ACCESS_MAX, ACCESS_WINDOW, AccessKind, AccessOutcome, AccessTag, CompletionRecord, CrStatus, GROUP_MEMBERS_MAX,
    GroupPolicy, JETTY_ID_FIRST, JettyConfig, JettyState, JfrConfig, JfrState, JfrWr, JfsWr, LANES_MAX, LocalRange,
    LossRecovery, MemoryGone, RNR_RETRY_FOREVER, RemoteJetty, RemoteSegment, SegmentConfig, TargetKind, TransMode,
    URMA_INLINE_MAX, URMA_MESSAGE_MAX, UrmaConfig, UrmaEffects, UrmaEnv, UrmaError, UrmaEvent, UrmaMemory,
    UrmaTransmit, WrData, access,
};
pub use following::UrmaRun;
pub use node::view::{ChannelView, ObjectCounts};
pub use node::{NodeState, UrmaNode};
pub use urma_target::echo::{ECHO_JETTY, ECHO_MAX};
pub use urma_target::order_tracker::{CONTEXT_WINDOW, OrderTracker, OrderVerdict};
