//! What must hold of the channels between two calls.

use crate::channels::{CHANNEL_TURN_PACKETS, Channels, MANAGEMENT_MAX};
use crate::check::must;

impl Channels {
    /// Each channel is found by its peer and lane; whoever has packets in flight has a timer.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        must(self.ended.is_empty(), "a channel has ended, and what used it has not")?;
        must(self.management.len() <= MANAGEMENT_MAX, "more management messages wait than may")?;
        must(self.channel_turn <= CHANNEL_TURN_PACKETS, "a turn is longer than it may be")?;
        must(self.by_peer.len() == self.table.len(), "two channels of one peer and lane")?;
        for (key, at) in &self.by_peer {
            let channel = self.table.get(*at).ok_or("a peer has a channel that is not there")?;
            must((channel.peer, channel.lane) == *key, "a channel is listed for another peer or lane")?;
        }
        for at in &self.active {
            must(
                self.table.get(*at).is_none_or(|channel| channel.is_active),
                "a channel has a turn and does not know it",
            )?;
        }
        for (at, channel) in self.table.iter() {
            must(self.by_peer.get(&(channel.peer, channel.lane)) == Some(&at), "a channel is not found by its peer")?;
            channel.check()?;
        }
        Ok(())
    }
}
