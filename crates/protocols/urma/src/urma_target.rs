//! The half of a node that receives peers' requests: duplicates and order, places of payload, execution, answers.
//!
//! A packet of a request comes to [`UrmaTarget::on_request`] after its channel has taken its PSN, so never twice. The message is
//! executed when it is complete and its turn has come; a peer's request that is refused is answered and changes nothing else.
//!
//! | file | what it holds |
//! |---|---|
//! | `message` | the record of a peer's message; the place of its payload |
//! | `messages` | messages of several packets, and those that wait for their turn |
//! | `runs` | further packets of the message of which a packet was received last |
//! | `reorder_buffer` | payloads that wait |
//! | `contexts`, `order_tracker` | sequence contexts: order of the requests of a peer's Jetty |
//! | `checks` | checks of segment, Jetty, JFR and tokens; the place of the payload |
//! | `execution` | effects on memory and receives |
//! | `answers` | acknowledgements and refusals |
//! | `echo` | the echo at Jetty 5 |
//! | `check` | what must hold between two calls |

pub(crate) mod answers;
pub(crate) mod check;
pub(crate) mod checks;
pub(crate) mod contexts;
pub(crate) mod echo;
pub(crate) mod execution;
pub(crate) mod message;
pub(crate) mod messages;
pub(crate) mod order_tracker;
pub(crate) mod reorder_buffer;
pub(crate) mod runs;

use crate::api::{CrStatus, UrmaConfig, UrmaEffects, UrmaEnv};
use crate::channels::channel::TpChannel;
use crate::node_shared::NodeShared;
use crate::pool::{PoolRef, UrmaPool};
use crate::refusal::UrmaRefusal;
use crate::urma_target::contexts::Contexts;
use crate::urma_target::echo::Echo;
use crate::urma_target::message::{Inbound, InboundPhase, RequestPacket};
use crate::urma_target::messages::{RequestTaken, is_fused};
use crate::urma_target::reorder_buffer::ReorderBuffer;
use crate::urma_target::runs::LastPart;
use burst_base::Reason;
use burst_ubwire::{ServiceMode, TaOpcode};
use std::collections::HashMap;

/// What a node knows of its peers' requests.
pub(crate) struct UrmaTarget {
    pub(crate) inbound: UrmaPool<Inbound>,
    /// Incomplete messages by channel and TPMSN.
    pub(crate) inbound_keys: HashMap<(u32, u32), PoolRef, foldhash::fast::RandomState>,
    pub(crate) contexts: Contexts,
    pub(crate) buffer: ReorderBuffer,
    /// What peers have sent to the echo.
    pub(crate) echo: Echo,
    pub(crate) last_part: LastPart,
}

impl UrmaTarget {
    /// `payload_max`: payload of a packet at most; a peer may send longer ones than this node.
    pub(crate) fn new(config: &UrmaConfig, payload_max: u16) -> Self {
        UrmaTarget {
            inbound: UrmaPool::new(config.inbound_max),
            inbound_keys: HashMap::default(),
            contexts: Contexts::new(config.contexts_max),
            buffer: ReorderBuffer::new(payload_max, config.reorder_packets),
            echo: Echo::default(),
            last_part: LastPart::default(),
        }
    }
    /// A packet of a request. False: there is no room for it, and it counts as not received.
    pub(crate) fn on_request(
        &mut self,
        node: &mut NodeShared,
        env: &mut UrmaEnv<'_>,
        packet: &RequestPacket<'_>,
    ) -> bool {
        let origin = &packet.origin;
        let base = &origin.request.base;
        match base.opcode {
            TaOpcode::DisconnectContext => {
                self.contexts.on_disconnect(&mut node.channels, origin);
                return true;
            }
            TaOpcode::Management => {
                env.fx.count(Reason::UbManagement);
                return true;
            }
            _ => {}
        }
        if base.mode == ServiceMode::Uno {
            env.fx.count(Reason::UbRefused);
            return true;
        }
        let is_fused = is_fused(origin) && packet.rtph.last;
        if is_fused && !node.channels.get(origin.channel).is_some_and(|channel| channel.rx.can_withhold()) {
            return false;
        }
        match self.take_request(node, env, packet) {
            RequestTaken::No => return false,
            RequestTaken::Done => {}
            RequestTaken::Foreign => env.fx.count(Reason::UbRefused),
            RequestTaken::Stored(at) => {
                // A ROL request whose last packet has arrived and that is not executed: the packet is not acknowledged yet.
                if let (true, Some(message), Some(channel)) =
                    (is_fused, self.inbound.get(at), node.channels.get_mut(origin.channel))
                {
                    channel.rx.withhold(origin.last_psn);
                    if matches!(message.phase, InboundPhase::Waiting) {
                        self.defer(node, at);
                    }
                }
            }
        }
        true
    }
    /// A receive queue is moved to ERROR: messages that are being placed into its receives are refused.
    pub(crate) fn end_messages(&mut self, node: &mut NodeShared, jfr: PoolRef, fx: &mut dyn UrmaEffects) {
        let count = node.objects.jfrs.get(jfr).map_or(0, |jfr| jfr.placing as usize);
        let walked = &mut node.channels.sweeps.steps;
        let placed = |(at, message): (PoolRef, &Inbound)| {
            *walked += 1;
            message.placement_into(jfr).map(|place| (at, place))
        };
        // Not one record more than needed is looked at, and none if no message is being placed.
        let ended: Vec<_> = self.inbound.iter().filter_map(placed).take(count).collect();
        debug_assert!(ended.len() == count, "messages that are being placed are counted wrong");
        for (at, placement) in ended {
            placement.end_receive(&mut node.objects, CrStatus::FlushErr, fx);
            self.set_refused(node, at, UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbUnknownTarget));
        }
    }
    /// Ends what the peer of a channel that has ended had under way here.
    pub(crate) fn channel_ended(&mut self, node: &mut NodeShared, at: PoolRef, channel: &TpChannel) {
        debug_assert!(node.channels.get(at).is_none());
        let messages: Vec<PoolRef> = self.inbound.listed(channel.messages).collect();
        for message in messages {
            if let Some(tpmsn) = self.inbound.get(message).map(|message| message.tpmsn) {
                self.inbound_keys.remove(&(at.index(), tpmsn));
            }
            self.drop_inbound(node, message);
        }
        let contexts = self.contexts.of_channel(channel);
        for context in contexts {
            self.contexts.remove(&mut node.channels, context);
        }
        node.discard_responses(channel);
    }
    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.inbound.heap_bytes()
            + self.inbound_keys.capacity() * size_of::<((u32, u32), PoolRef)>()
            + self.contexts.heap_bytes()
            + self.buffer.heap_bytes()
            + self.echo.heap_bytes()
    }
}
