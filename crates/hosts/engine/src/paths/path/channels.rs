//! Channels of URMA on a path, beside its queue pairs: one window, one rate, one controller for both.
//!
//! A channel says itself what its acknowledgements measure, so it needs no probe. Its marks come by the echo of its
//! acknowledgements; controllers of rates, which follow congestion notifications, get one for marks at most every
//! [`CNP_QP_INTERVAL`], as a queue pair's receiver would send them.

use super::{NO_QP, Path, TURNS_PER_PROBE};
use crate::paths::NOT_WAITING;
use crate::paths::ecn::CNP_QP_INTERVAL;
use crate::transmit::sched::URMA_ENTRY;
use burst_base::Nanos;
use burst_cc::{AckSample, Algorithm, RATE_UNPACED};
use burst_transport::{AckReport, Signal};
use burst_urma::{FlightBytes, PathChange, PathRoom};

/// The channels of a path.
#[derive(Debug)]
pub(crate) struct PathChannels {
    /// How many there are.
    pub users: u32,
    /// Their entry in the line.
    pub place: u32,
    /// Their ticket in the line of those that wait, [`NOT_WAITING`] for none.
    pub ticket: u32,
    /// Bytes for which they wait: one packet.
    pub wanted: u64,
    /// When marks count as a notification again.
    notified_from: Nanos,
}

/// Paths on which something has happened that concerns who waits for them.
#[derive(Debug, Default)]
pub(crate) struct ChannelWakes {
    /// There may be room for the first one in the line.
    pub freed: Vec<u32>,
    /// It is the channels' turn.
    pub opened: Vec<u32>,
}

impl Default for PathChannels {
    fn default() -> PathChannels {
        PathChannels { users: 0, place: 0, ticket: NOT_WAITING, wanted: 0, notified_from: Nanos(0) }
    }
}

impl Path {
    /// What may leave for a channel that has `own` in flight, as far as the window is concerned. While queue pairs wait, the room
    /// belongs to the first of the line ([`Path::turn_room`]).
    #[inline]
    pub(crate) fn channel_room(&self, own: FlightBytes) -> PathRoom {
        let bytes = |room: u64| u32::try_from(room).unwrap_or(u32::MAX - 1);
        let is_behind = self.is_others_turn(URMA_ENTRY, self.channels.ticket != NOT_WAITING);
        let requests = own.requests().into();
        PathRoom {
            requests: bytes(if is_behind { self.qp_min_bytes.saturating_sub(requests) } else { self.room(requests) }),
            answers: bytes(self.response_room(own.answers.into())),
        }
    }

    /// What a channel has in flight has changed.
    pub(crate) fn channel_changed(&mut self, now: Nanos, change: &PathChange) {
        let used = self.inflight;
        let (before, after) = (change.before, change.after);
        debug_assert!(u64::from(before.all) <= used, "more bytes of a channel than in flight");
        self.inflight = (used + u64::from(after.all)).saturating_sub(before.all.into());
        self.responses = (self.responses + u64::from(after.answers)).saturating_sub(before.answers.into());
        if self.inflight == 0 && used > 0 {
            self.idle_since = now;
        }
        if change.is_loss {
            self.on_signal(now, Signal::Loss);
        }
        if change.is_timeout {
            self.on_signal(now, Signal::Timeout);
        }
        if change.packets > 0 {
            (self.acked_at, self.acked_by) = (now, URMA_ENTRY);
            self.channel_acknowledged(now, used, change);
        }
    }

    /// Packets of a channel were acknowledged when `used` bytes were in flight. Where nothing but the count of bytes matters, one
    /// acknowledgement in a few turns is looked at, for its round trip.
    fn channel_acknowledged(&mut self, now: Nanos, used: u64, change: &PathChange) {
        let PathChange { acked_bytes, packets, ce_packets, rtt, is_recovering, .. } = *change;
        if self.is_quiet && ce_packets == 0 && self.unprobed > 0 && self.controller.ignores(used) {
            return;
        }
        self.unprobed = TURNS_PER_PROBE;
        self.report.add_counts(rtt, packets, ce_packets);
        let follows_notifications = matches!(self.params.algorithm(), Algorithm::Dcqcn | Algorithm::DcqcnNvidia);
        if ce_packets > 0 && follows_notifications && self.channels.notified_from <= now {
            self.channels.notified_from = now + CNP_QP_INTERVAL;
            self.on_signal(now, Signal::Cnp);
        }
        let sample = AckSample {
            acked_bytes: acked_bytes.into(),
            inflight_bytes: self.inflight,
            rtt,
            packets,
            ce_packets,
            is_recovering,
            ..AckSample::default()
        };
        match &mut self.tuned {
            None => self.controller.on_ack(now, &sample),
            Some(tuned) => {
                let report = AckReport { rtt, packets, ce_packets, ..AckReport::default() };
                tuned.reported.get_or_insert_default().add(&report);
                tuned.on_ack(now, NO_QP, &sample, &mut self.controller);
            }
        }
        self.settle_quiet();
    }

    /// Whether a packet of the channels that wait fits into what the window leaves: one that is in flight in any case has left,
    /// unless nothing is.
    pub(crate) fn has_channel_room(&self) -> bool {
        self.inflight == 0 || self.room(u64::MAX) >= self.channels.wanted
    }

    /// It is the turn of the channels, whose place is the first one of the line, if they wait.
    pub(crate) fn open_to_channels(&mut self, path: u32, wakes: &mut ChannelWakes) {
        if std::mem::replace(&mut self.channels.ticket, NOT_WAITING) != NOT_WAITING {
            self.waiting.pop();
            self.turn_of = URMA_ENTRY;
            wakes.opened.push(path);
        }
    }

    /// So many bytes of channels have left, as they are on the link.
    #[inline]
    pub(crate) fn channel_left(&mut self, now: Nanos, wire_bytes: u64) {
        let rate = self.controller.limits().rate_bps;
        if let Some(tuned) = &mut self.tuned
            && rate != RATE_UNPACED
        {
            tuned.pacer.charge(now, wire_bytes, (rate, tuned.lag));
        }
    }
}
