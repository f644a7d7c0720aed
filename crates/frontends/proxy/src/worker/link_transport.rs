//! The transport of a link at this moment, and the attempt to replace it.
//!
//! The dialing side counts attempts. An attempt is for a queue pair, whose request carries its number, or for the control channel
//! itself. From the peer's hello of the same attempt on a side sends.

use crate::rdma::{CmId, LinkQp};
use burst_relay::{LinkHello, LinkOpener, LinkSealer};
use std::time::Instant;

/// The transport of a link. At first there is none.
#[derive(Debug, Default)]
pub(super) struct LinkTransport {
    /// The last attempt.
    pub(super) attempt: u64,
    /// When it began; `None`: none is under way.
    pub(super) began: Option<Instant>,
    /// Identifier of the attempt, until the queue pair is made.
    pub(super) resolving: Option<CmId>,
    pub(super) qp: Option<LinkQp>,
    /// The queue pair is connected.
    pub(super) qp_ready: bool,
    /// Encrypts what is sent by the queue pair of an encrypted link, from the peer's hello on.
    pub(super) sealer: Option<LinkSealer>,
    /// Decrypts what comes by it, from this side's hello on.
    pub(super) opener: Option<LinkOpener>,
    /// The control channel carries the link, also while an attempt for a queue pair runs.
    pub(super) by_channel: bool,
    /// The attempt by which it does.
    pub(super) channel_attempt: u64,
    /// The peer's hello of the present attempt, and whether it is for the control channel.
    pub(super) hello: Option<(bool, LinkHello)>,
    /// Batches may be sent.
    pub(super) active: bool,
    /// When RDMA may be tried again; `None`: at once.
    pub(super) rdma_at: Option<Instant>,
}

impl LinkTransport {
    /// `rdma`, `control channel` or `down`.
    pub(super) fn carrier(&self) -> &'static str {
        match (self.active, self.by_channel) {
            (false, _) => "down",
            (true, true) => "control channel",
            (true, false) => "rdma",
        }
    }

    /// Whether RDMA may be tried now.
    pub(super) fn may_use_rdma(&self, now: Instant) -> bool {
        self.rdma_at.is_none_or(|at| now >= at)
    }

    /// Whether a queue pair carries the link.
    pub(super) fn is_on_rdma(&self) -> bool {
        self.active && !self.by_channel
    }

    /// Whether the control channel carries the link by this attempt.
    pub(super) fn is_channel_attempt(&self, attempt: u64) -> bool {
        self.by_channel && self.channel_attempt == attempt
    }

    /// The attempt that this side's hello names.
    pub(super) fn hello_attempt(&self) -> u64 {
        if self.by_channel { self.channel_attempt } else { self.attempt }
    }

    /// Ends the transport.
    pub(super) fn stop(&mut self) {
        self.active = false;
        self.by_channel = false;
        self.qp_ready = false;
        self.hello = None;
        self.qp = None;
        self.sealer = None;
        self.opener = None;
    }

    /// Replaces the transport by the control channel, by the attempt with this number.
    pub(super) fn use_channel(&mut self, attempt: u64) {
        self.stop();
        self.attempt = attempt;
        self.channel_attempt = attempt;
        self.by_channel = true;
    }

    /// The queue pair is connected, and takes over from the control channel.
    pub(super) fn on_connected(&mut self) {
        if self.by_channel {
            self.by_channel = false;
            self.active = false;
        }
        self.qp_ready = true;
        self.resolving = None;
    }

    /// Keeps a hello of the peer; false if it is of an earlier attempt.
    pub(super) fn take_hello(&mut self, by_channel: bool, hello: LinkHello) -> bool {
        let present = if by_channel { self.channel_attempt } else { self.attempt };
        let is_present = hello.attempt == present;
        if is_present {
            self.hello = Some((by_channel, hello));
        }
        is_present
    }

    /// The hello with which sending begins, once the transport is ready.
    pub(super) fn take_beginning(&mut self) -> Option<LinkHello> {
        if self.active || !(self.qp_ready || self.by_channel) {
            return None;
        }
        self.hello.take_if(|(by_channel, _)| *by_channel == self.by_channel).map(|(_, hello)| hello)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(attempt: u64) -> LinkHello {
        LinkHello { link: 0, attempt, received: 0, windows: Vec::new(), seal: None }
    }

    #[test]
    fn sending_begins_with_a_ready_transport_and_the_hello_of_its_attempt() {
        let mut transport = LinkTransport { attempt: 2, ..LinkTransport::default() };
        assert!(!transport.take_hello(false, hello(1)), "of an earlier attempt");
        assert!(transport.take_hello(false, hello(2)) && transport.take_beginning().is_none(), "not connected yet");
        transport.on_connected();
        assert_eq!(transport.take_beginning(), Some(hello(2)));
        transport.active = true;
        assert!(transport.is_on_rdma() && transport.carrier() == "rdma");
    }

    #[test]
    fn a_queue_pair_takes_over_from_the_control_channel() {
        let mut transport = LinkTransport::default();
        transport.use_channel(1);
        assert!(transport.take_hello(true, hello(1)) && transport.take_beginning().is_some());
        transport.active = true;
        transport.attempt = 2;
        assert_eq!((transport.hello_attempt(), transport.carrier()), (1, "control channel"), "an attempt runs");
        assert!(transport.take_hello(false, hello(2)), "it comes before the connection");
        transport.on_connected();
        assert_eq!((transport.hello_attempt(), transport.carrier()), (2, "down"));
        assert_eq!(transport.take_beginning(), Some(hello(2)));
    }
}
