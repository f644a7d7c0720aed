//! What must hold of a target between two calls.

use crate::check::must;
use crate::node_shared::NodeShared;
use crate::urma_target::UrmaTarget;
use crate::urma_target::message::InboundPhase;

impl UrmaTarget {
    /// Each incomplete message is in the list of its channel, which counts messages, waiting ones and payloads that are kept.
    pub(crate) fn check(&self, node: &NodeShared) -> Result<(), &'static str> {
        let (mut listed, mut kept) = (0, 0);
        for (at, channel) in node.channels.table.iter() {
            let (mut count, mut waiting, mut held) = (0, 0, 0);
            for message in self.inbound.listed(channel.messages) {
                let message = self.inbound.get(message).ok_or("a channel lists a message that is not there")?;
                must(message.origin.channel == at, "a channel lists a message of another one")?;
                count += 1;
                waiting += u32::from(matches!(message.phase, InboundPhase::Waiting));
                held += self.buffer.list_len(message.held);
            }
            let counts = (channel.inbound, channel.waiting, channel.held);
            must((count, waiting, held) == counts, "the messages of a channel are counted wrong")?;
            must(self.contexts.of_channel(channel).len() == channel.contexts as usize, "contexts are counted wrong")?;
            (listed, kept) = (listed + count as usize, kept + held as usize);
        }
        must(listed == self.inbound.len(), "a message is in no channel's list")?;
        for (at, jfr) in node.objects.jfrs.iter() {
            let placing = self.inbound.iter().filter(|(_, message)| message.phase.receives_of() == Some(at)).count();
            must(
                placing == jfr.placing as usize,
                "the messages that are placed into a queue's receives are counted wrong",
            )?;
        }
        must(kept == self.buffer.len(), "a payload in the reorder buffer is no message's")?;
        must(!self.contexts.has_moved(), "a message has its turn and was not executed")?;
        for ((_, tpmsn), at) in &self.inbound_keys {
            let message = self.inbound.get(*at).ok_or("a message is found that is not there")?;
            must(message.tpmsn == *tpmsn, "a message is found by another number")?;
        }
        Ok(())
    }
}
