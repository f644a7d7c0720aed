//! What a requester keeps of the selective repeat family while nothing is missing; the records of recovery are in a pool
//! ([`crate::records`]).
//!
//! A requester begins when the peer's hello has said that it may (`Qp::use_selective`) and nothing is in flight. Several queue
//! pairs of one peer may use different families. `docs/protocol.md` has formats and rules.

pub(crate) mod acks;
pub(crate) mod heads;
pub(crate) mod losses;
pub(crate) mod sending;
pub(crate) mod timers;
pub(crate) mod trains;

use crate::ack_report::EchoedCounts;
use crate::api::{Env, PSN_DISTANCE_MAX};
use crate::requester::selective::losses::Losses;
use crate::rtt::RttEstimate;
use burst_base::{Nanos, Psn, RtoMode};
use core::num::NonZeroU16;

/// A packet whose acknowledgement measures the round trip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasuredPacket {
    /// The PSN behind it.
    pub(crate) behind: Psn,
    /// Packets that were sent at the same time, from it on. Not 0, so that an option needs no room of its own.
    count: NonZeroU16,
    /// Its transmission number, which acknowledgements name: repetitions measure, too.
    pub(crate) transmission: u8,
    pub(crate) sent_at: Nanos,
}

const _: () = assert!(size_of::<Option<MeasuredPacket>>() == 16);

impl MeasuredPacket {
    /// The packet in front of `behind`, and those in front of `next`, sent now.
    pub(crate) fn new(behind: Psn, sent_at: Nanos, next: Psn) -> MeasuredPacket {
        let mut measured = MeasuredPacket { behind, count: NonZeroU16::MIN, transmission: 0, sent_at };
        measured.extend(next);
        measured
    }
    /// The PSN behind the last packet that was sent at the same time.
    pub(crate) fn end(&self) -> Psn {
        self.behind.add(u32::from(self.count.get()) - 1)
    }
    /// Packets up to `next` were sent at the same time.
    pub(crate) fn extend(&mut self, next: Psn) {
        let count = u16::try_from(next.diff(self.behind) + 1).unwrap_or(u16::MAX);
        self.count = NonZeroU16::new(count).unwrap_or(NonZeroU16::MIN);
    }
}

/// A probe, which provokes an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SelectiveProbe {
    None,
    /// It is to be sent.
    Due,
    /// It was sent, after everything that asks for missing responses, and none has come since.
    Sent,
}

/// State of a requester.
// In the order of use: see `qp::prefetch`.
#[repr(C)]
pub(crate) struct SelectiveRequester {
    pub(crate) measured: Option<MeasuredPacket>,
    pub(crate) rtt: RttEstimate,
    /// The first PSN that is not acknowledged cumulatively. The request of an acknowledged PSN may still lack its response.
    pub(crate) acked: Psn,
    /// PSNs that the peer keeps track of, from the first missing one on; 0: the family is not to be used.
    pub(crate) window: u32,
    pub(crate) losses: Option<Box<Losses>>,
    pub(crate) echoed: EchoedCounts,
    /// The peer has answered in the family since `active` was set.
    pub(crate) answered: bool,
    /// Probes and time-outs since the last progress.
    pub(crate) probes: u8,
    pub(crate) backoff: u8,
    /// Something was sent since the last probe or time-out was due. Another one would say nothing of the path before.
    pub(crate) sent_since: bool,
    /// Bytes in flight that need no room in the window: the peer has them, or they are lost and not sent again yet.
    pub(crate) covered_bytes: u64,
    /// When to probe, or when all is lost.
    pub(crate) deadline: Nanos,
    /// Requests are of the family.
    pub(crate) active: bool,
    /// The next request is to be of the other family.
    pub(crate) switch_due: bool,
    /// Whether the last packet is to be sent again, to provoke an acknowledgement.
    pub(crate) probe: SelectiveProbe,
    /// The request of *una* is to be sent again: its response is missing.
    pub(crate) answer_due: bool,
    /// With so many PSNs in flight no packet is sent without a further check: [`PSN_DISTANCE_MAX`], or, in this family, the
    /// peer's window.
    pub(crate) distance_max: i32,
}

impl SelectiveRequester {
    /// A packet was answered: `elapsed` after it was sent, of which the peer took `delay` to answer.
    pub(crate) fn measure(&mut self, elapsed: Nanos, delay: Nanos, env: &mut Env<'_>) {
        self.rtt.measured(elapsed, delay);
        env.fx.round_trip(Nanos(elapsed.0.saturating_sub(delay.0)));
    }

    pub(crate) fn new(rto: RtoMode) -> Self {
        SelectiveRequester {
            active: false,
            switch_due: false,
            answered: false,
            window: 0,
            losses: None,
            acked: Psn::new(0),
            covered_bytes: 0,
            rtt: RttEstimate::new(rto),
            measured: None,
            echoed: EchoedCounts::default(),
            deadline: Nanos::NEVER,
            probes: 0,
            backoff: 0,
            sent_since: true,
            probe: SelectiveProbe::None,
            answer_due: false,
            distance_max: PSN_DISTANCE_MAX,
        }
    }
    /// Whether something is to be sent again.
    #[inline(always)]
    pub(crate) fn wants_repair(&self) -> bool {
        self.probe == SelectiveProbe::Due || self.answer_due || (self.losses.is_some() && self.has_lost())
    }
    /// Missing responses were asked for again, or have come: a probe that was sent before says nothing of them.
    pub(crate) fn note_asked(&mut self) {
        if self.probe == SelectiveProbe::Sent {
            self.probe = SelectiveProbe::None;
        }
    }
    #[cold]
    #[inline(never)]
    fn has_lost(&self) -> bool {
        self.losses.as_ref().is_some_and(|losses| losses.has_lost())
    }
}
