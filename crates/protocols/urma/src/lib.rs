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
//! | `channel` | transport channels and how they open |
//! | `echo` | the echo at Jetty 5 |
//! | `following` | further packets of the message of the last one |
//! | `heads` | heads of the packets that were sent and received last |
//! | `initiator` | answers to own requests, completions |
//! | `issue` | order at the initiator |
//! | `lanes` | several channels to one peer: choice, opening, failure |
//! | `messages` | peers' messages of several packets, and those that wait for their turn |
//! | `node` | the node and its control calls |
//! | `node_shared` | what the parts of a node share |
//! | `objects` | completion and receive queues, Jetties, groups, segments |
//! | `pool` | records behind references with a generation |
//! | `post` | work requests |
//! | `receive` | received packets, acknowledgements, management |
//! | `records` | requests, messages, responses under way; the reorder buffer |
//! | `restart` | peers that may have restarted, or have ended |
//! | `rx_window`, `tx_window` | the two halves of a channel |
//! | `sequence` | order at the target |
//! | `sweep` | the end of a channel; work on many requests in parts |
//! | `target` | execution of peers' requests |
//! | `timers` | deadlines |
//! | `transmit` | packets to send |
//! | `view` | what tools see of objects and channels |
#![forbid(unsafe_code)]

mod api;
mod bypass;
pub mod caqm;
mod channel;
mod echo;
mod following;
mod heads;
mod initiator;
mod issue;
mod lanes;
mod messages;
mod node;
mod node_shared;
mod objects;
mod pool;
mod post;
mod receive;
mod records;
mod restart;
mod rx_window;
mod sequence;
mod sweep;
mod target;
mod timers;
mod transmit;
mod tx_window;
mod view;

pub use api::{
    CompletionRecord, CrStatus, GROUP_MEMBERS_MAX, GroupPolicy, JETTY_ID_FIRST, JettyConfig, JettyState, JfrConfig,
    JfrState, JfrWr, JfsWr, LANES_MAX, LocalRange, LossRecovery, MemoryGone, RNR_RETRY_FOREVER, RemoteJetty,
    RemoteSegment, SegmentConfig, TargetKind, TransMode, URMA_INLINE_MAX, URMA_MESSAGE_MAX, UrmaConfig, UrmaEffects,
    UrmaEnv, UrmaError, UrmaEvent, UrmaMemory, WrData, access,
};
pub use bypass::{ACCESS_MAX, ACCESS_WINDOW, AccessKind, AccessOutcome, AccessTag};
pub use echo::{ECHO_JETTY, ECHO_MAX};
pub use following::UrmaRun;
pub use node::{NodeState, UrmaNode};
pub use sequence::{CONTEXT_WINDOW, OrderTracker, OrderVerdict};
pub use transmit::UrmaTransmit;
pub use view::{ChannelView, ObjectCounts};
