//! What must hold of an initiator between two calls.

use crate::check::must;
use crate::initiator::Initiator;
use crate::node_shared::NodeShared;
use crate::objects::records::Jetty;
use crate::pool::PoolRef;

impl Initiator {
    /// Each request is in the list of its Jetty, and of its channel if it is under way; both count them.
    pub(crate) fn check(&self, node: &NodeShared) -> Result<(), &'static str> {
        let (mut listed, mut indexed) = (0, 0);
        for (at, jetty) in node.objects.jetties.iter() {
            self.check_jetty(at, jetty)?;
            listed += usize::from(jetty.count);
            indexed += if jetty.is_indexed { usize::from(jetty.count) } else { 0 };
        }
        must(indexed == self.index.len(), "a request is indexed that is none of an indexed Jetty")?;
        must(listed == self.requests.len(), "a request is in no Jetty's list")?;
        for (at, channel) in node.channels.table.iter() {
            let (mut count, mut load) = (0, 0);
            for request in self.requests.listed(channel.requests) {
                let request = self.requests.get(request).ok_or("a channel lists a request that is not there")?;
                must(request.channel == at && request.is_under_way(), "a channel lists a request that is not its")?;
                (count, load) = (count + 1, load + request.load());
            }
            must((count, load) == (channel.unanswered, channel.load), "the requests of a channel are counted wrong")?;
        }
        Ok(())
    }
    /// The list of a Jetty: order, links, counts.
    fn check_jetty(&self, jetty_at: PoolRef, jetty: &Jetty) -> Result<(), &'static str> {
        let (mut at, mut prev, mut oldest_silent) = (jetty.head, PoolRef::NONE, PoolRef::NONE);
        let (mut count, mut silents, mut issued, mut reads) = (0, 0, 0, 0);
        while let Some(request) = self.requests.get(at) {
            must(request.jetty == jetty_at && request.prev == prev, "the list of a Jetty's requests is broken")?;
            count += 1;
            silents += u16::from(!request.complete);
            issued += u16::from(request.is_under_way());
            reads += u16::from(request.is_under_way() && request.is_read());
            if !request.complete && oldest_silent.is_none() {
                oldest_silent = at;
            }
            (prev, at) = (at, request.next);
        }
        must(prev == jetty.tail && at.is_none(), "the list of a Jetty's requests has another end")?;
        must((count, silents) == (jetty.count, jetty.silents), "the requests of a Jetty are counted wrong")?;
        must((issued, reads) == (jetty.issued, jetty.reads), "the issued requests of a Jetty are counted wrong")?;
        self.check_places(jetty_at, jetty)?;
        must(oldest_silent == jetty.oldest_silent, "another request is the oldest one without completion")
    }
    /// The places in the list of a Jetty from which is searched, and the index.
    fn check_places(&self, jetty_at: PoolRef, jetty: &Jetty) -> Result<(), &'static str> {
        let (mut at, mut oldest_in_order, mut is_before) = (jetty.head, PoolRef::NONE, true);
        while let Some(request) = self.requests.get(at) {
            if request.completion_order && oldest_in_order.is_none() {
                oldest_in_order = at;
            }
            is_before &= at != jetty.stream_from;
            let is_numbered = request.order_number.is_some() && request.is_under_way();
            must(!(is_before && is_numbered), "a numbered request is before the oldest one that is looked for")?;
            let is_found = !jetty.is_indexed || self.index.get(jetty_at, request.tassn) == Some(at);
            must(is_found, "a request is not found by its number")?;
            at = request.next;
        }
        must(oldest_in_order == jetty.oldest_in_order, "another request is the oldest one with ordered completion")
    }
}
