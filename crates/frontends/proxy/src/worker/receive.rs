//! Messages of peers: taken from queue pairs and the control channel, checked, and applied frame by frame.

use super::RelayWorker;
use super::link::PeerLink;
use crate::counters::ProxyCounter;
use crate::message::Report;
use crate::peer_loss::PeerLoss;
use crate::rdma::{CmId, Done, RECEIVES_POLLED};
use burst_relay::{BATCHES, Frame, FrameReader, Header, LinkOpener, MessageKind, PeerFault};

/// Messages of a link taken per pass.
const RECEIVES_MAX: usize = 2 * BATCHES as usize;

impl RelayWorker {
    /// Takes what has come by the queue pairs, without completion events. Returns whether anything has.
    pub(super) fn receive_all(&mut self) -> bool {
        let (mut found, mut asked) = (false, false);
        for at in 0..self.streams.links.end() {
            if self.streams.links.qp_mut(at).is_some() {
                asked = true;
                found |= self.receive(at);
            }
        }
        if let (Some(engine), false) = (self.streams.links.rdma.engine, asked) {
            // Otherwise polling an empty queue is a pass of the engine.
            engine.turn();
        }
        found
    }

    /// Goes on with links whose messages were not all taken.
    pub(super) fn receive_left(&mut self) {
        for _ in 0..self.streams.links.unreceived.len() {
            if let Some(at) = self.streams.links.unreceived.pop_front() {
                self.receive(at);
            }
        }
    }

    /// Takes messages that have come, at most about [`RECEIVES_MAX`] before others have their turn. Returns whether any has.
    ///
    /// A queue that gave less than was asked for is not asked again. It is armed, so that what comes later is an event, and
    /// polling an empty queue can cost a time slice: libibverbs then yields the processor where others want it, and the messages
    /// that were just taken would wait meanwhile.
    pub(super) fn receive(&mut self, at: usize) -> bool {
        let mut message = std::mem::take(&mut self.message);
        let mut done = [Done::default(); RECEIVES_POLLED];
        let mut taken = 0;
        while let Some(qp) = self.streams.links.qp_mut(at) {
            if taken >= RECEIVES_MAX {
                self.streams.links.unreceived.push_back(at);
                break;
            }
            let (id, polled) = (qp.id(), qp.poll_receives(&mut done));
            let Some(count) = self.streams.links.unless_failed(&mut self.env, at, polled) else { break };
            taken += count;
            let all_taken = done[..count].iter().all(|one| self.take_message(at, id, *one, &mut message).is_some());
            if !all_taken || count < RECEIVES_POLLED {
                break;
            }
        }
        self.message = message;
        if taken > 0 {
            self.streams.links.mark_dirty(at);
        }
        taken > 0
    }

    /// Takes the message of a completion. `None`: its queue pair is not the link's any more, because a message before has ended
    /// either, or it fails.
    fn take_message(&mut self, at: usize, id: CmId, done: Done, message: &mut Vec<u8>) -> Option<()> {
        let qp = self.streams.links.qp_mut(at).filter(|qp| qp.id() == id)?;
        message.clear();
        let received = qp.receive(done, message);
        self.streams.links.unless_failed(&mut self.env, at, received)?;
        let opened = self.streams.links.get_mut(at).map_or(Ok(()), |link| link.open_message(message));
        match opened {
            Ok(()) => self.on_message(at, message),
            Err(fault) => self.on_fault(at, fault),
        }
        self.streams
            .links
            .get_mut(at)
            .and_then(|link| link.transport.opener.as_mut())
            .into_iter()
            .for_each(LinkOpener::finish_message);
        Some(())
    }

    /// Takes a batch that has come by the control channel.
    pub(super) fn on_channel_batch(&mut self, peer: usize, number: u32, attempt: u64, bytes: &[u8]) {
        let Some(at) = self.streams.links.find(peer, number) else { return };
        if self.streams.links.get(at).is_some_and(|link| link.transport.is_channel_attempt(attempt)) {
            self.on_message(at, bytes);
            self.streams.links.mark_dirty(at);
        }
    }

    fn on_message(&mut self, at: usize, message: &[u8]) {
        if let Err(fault) = self.try_message(at, message) {
            self.on_fault(at, fault);
        }
    }

    /// A peer has broken the protocol.
    pub(super) fn on_fault(&mut self, at: usize, fault: PeerFault) {
        self.env.count(ProxyCounter::PeerFaults);
        let Some(peer) = self.streams.links.get(at).map(|link| link.peer) else { return };
        self.env.report(Report::PeerFault(peer, fault.to_string()));
        self.peer_gone(peer, PeerLoss::BrokeProtocol);
    }

    fn try_message(&mut self, at: usize, message: &[u8]) -> Result<(), PeerFault> {
        let (header, body) = Header::read(message)?;
        if header.kind != MessageKind::Batch {
            return Err(PeerFault::Kind(2));
        }
        let Some(link) = self.streams.links.get_mut(at) else { return Ok(()) };
        if !link.take_batch(header.seq, header.ack)? {
            return Ok(());
        }
        let mut frames = FrameReader::new(body);
        while let Some(frame) = frames.next_frame()? {
            if let (_, Frame::Placed { .. }) = frame {
                self.streams.links.get_mut(at).map_or(Ok(()), PeerLink::count_place)?;
            }
            if let Some(by_tcp) = self.streams.on_frame(&mut self.env, at, frame)? {
                self.pairs.relay(&mut self.env, by_tcp);
            }
        }
        let Some(link) = self.streams.links.get(at) else { return Ok(()) };
        if link.answer_due()? {
            self.streams.links.mark_dirty(at);
        }
        Ok(())
    }
}
