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
//! | `echo` | the echo at Jetty 5 |
//! | `following` | further packets of the message of the last one |
//! | `heads` | heads of the packets that were sent and received last |
//! | `initiator` | answers to own requests, completions |
//! | `issue` | order at the initiator |
//! | `messages` | peers' messages of several packets, and those that wait for their turn |
//! | `node` | the node and its control calls |
//! | `node_shared` | what the parts of a node share |
//! | `objects` | completion and receive queues, Jetties, groups, segments |
//! | `pool` | records behind references with a generation |
//! | `post` | work requests |
//! | `receive` | received packets, acknowledgements, management |
//! | `records` | requests, messages, responses under way; the reorder buffer |
//! | `sequence` | order at the target |
//! | `sweep` | the end of a channel; work on many requests in parts |
//! | `target` | execution of peers' requests |
//! | `timers` | deadlines in order of time |
//! | `transmit` | packets to send |
//! | `view` | what tools see of objects and channels |
#![forbid(unsafe_code)]

mod api;
mod bypass;
pub mod caqm;
mod channels;
mod echo;
mod following;
mod heads;
mod initiator;
mod issue;
mod messages;
mod node;
mod node_shared;
mod objects;
mod pool;
mod post;
mod receive;
mod records;
mod sequence;
mod sweep;
mod target;
mod timers;
mod transmit;
mod view;

pub use api::{
    ACCESS_MAX, ACCESS_WINDOW, AccessKind, AccessOutcome, AccessTag, CompletionRecord, CrStatus, GROUP_MEMBERS_MAX,
    GroupPolicy, JETTY_ID_FIRST, JettyConfig, JettyState, JfrConfig, JfrState, JfrWr, JfsWr, LANES_MAX, LocalRange,
    LossRecovery, MemoryGone, RNR_RETRY_FOREVER, RemoteJetty, RemoteSegment, SegmentConfig, TargetKind, TransMode,
    URMA_INLINE_MAX, URMA_MESSAGE_MAX, UrmaConfig, UrmaEffects, UrmaEnv, UrmaError, UrmaEvent, UrmaMemory,
    UrmaTransmit, WrData, access,
};
pub use echo::{ECHO_JETTY, ECHO_MAX};
pub use following::UrmaRun;
pub use node::{NodeState, UrmaNode};
pub use sequence::{CONTEXT_WINDOW, OrderTracker, OrderVerdict};
pub use view::{ChannelView, ObjectCounts};
