//! Middle packets of a SEND or WRITE of the selective repeat family, many at a time ([`crate::qp::trains`]): those whose turn it
//! is, and those behind a gap.
//!
//! After a loss all packets up to its repair are early, a round trip of them. Those of a train that continue each other are
//! placed with one check of key and order, and noted together. Whatever a single packet would be dropped or treated apart for
//! (a packet that has arrived before, bytes that a later packet has written, a full record, no right, no receive) ends the run
//! before its first packet; that one is handled singly, where each refusal has its reason.

use crate::api::Env;
use crate::copies::{copies_of, place_train};
use crate::middle_packets::{MiddlePlace, count_selective_middles};
use crate::psn_bits::WINDOW_PSNS;
use crate::qp_shared::QpShared;
use crate::responder::Responder;
use crate::responder::completions::recv_keys;
use crate::responder::selective::arrivals::{ArrivalKind, ArrivalNote, Arrivals, RemoteRange};
use crate::responder::selective::requests::{has_room, remote_range};
use burst_base::verbs::access;
use burst_base::{Reason, Rkey};
use burst_frame::{Flow, MiddleRun};
use burst_wire::{Bth, ICRC_LEN, OpKind, Packet};

impl Responder {
    pub(crate) fn on_selective_request_middles(
        &mut self,
        qp: &QpShared,
        flow: &Flow,
        (train, kind): (&MiddleRun<'_>, OpKind),
        env: &mut Env<'_>,
    ) -> usize {
        let sel = &self.sel;
        let Some(message) = self.message.filter(|message| message.kind == kind) else { return 0 };
        if !sel.active || sel.early.is_some() || !self.accepts_selective || !self.receives_middles(qp) {
            return 0;
        }
        let room = match kind {
            OpKind::Send if self.recv.is_usable() => self.recv.room,
            OpKind::Write if qp.access_flags & access::REMOTE_WRITE != 0 => crate::api::MESSAGE_BYTES_MAX - 1,
            _ => return 0,
        };
        let most = (room.saturating_sub(message.received) / u64::from(qp.mtu)) as usize;
        let (psn, rsn) = (self.expected, self.recv.rsn());
        let index = (message.received / u64::from(qp.mtu)) as u32;
        let place =
            MiddlePlace { psn, rsn, index, addr: message.addr.wrapping_add(message.received), rkey: message.rkey };
        let (count, head) = count_selective_middles(qp, train, kind, &place, most);
        if count == 0 {
            return 0;
        }
        let Some(span) = self.middles_span(qp, count, env) else { return 0 };
        if !place_train(train, &span, (head, qp.mtu as usize), copies_of(qp, env)) {
            return 0;
        }
        let count = span.len() / qp.mtu as usize;
        self.expected = psn.add(count as u32);
        self.nak_given = false;
        if let Some(message) = &mut self.message {
            message.received += span.len() as u64;
        }
        self.note_arrivals(flow, (psn.add(count as u32 - 1), 0), count as u16, env.arrived_at());
        count
    }
}

impl Responder {
    /// Places the middle packets of a SEND or WRITE at the beginning of `train` that are behind a gap. Returns how many.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_early_middles(
        &mut self,
        qp: &QpShared,
        flow: &Flow,
        (train, kind): (&MiddleRun<'_>, OpKind),
        env: &mut Env<'_>,
    ) -> usize {
        let Ok(bth) = Bth::parse(train.bytes) else { return 0 };
        let distance = bth.psn.diff(self.expected);
        if !self.takes_early_trains(qp, distance) {
            return 0;
        }
        let Some(Ok(first)) = train.bytes.get(..train.stride - ICRC_LEN).map(Packet::parse) else { return 0 };
        let Some(seth) = first.seth().filter(|seth| self.may_be_early(qp, seth, distance as u32)) else { return 0 };
        let (addr, rkey) = first.weth().map_or((0, Rkey(0)), |weth| (weth.addr, weth.rkey));
        let place = MiddlePlace { psn: bth.psn, rsn: seth.rsn, index: seth.index, addr, rkey };
        let most = (WINDOW_PSNS - distance as u32) as usize;
        let (count, head) = count_selective_middles(qp, train, kind, &place, most);
        if count == 0 {
            return 0;
        }
        let held = self.sel.early.take();
        let peer = qp.flow.dst;
        let Some(mut early) = held.or_else(|| env.fx.records()?.take_arrivals(peer)) else { return 0 };
        let placed = match early.has_any(place.psn, count as u32) {
            true => 0,
            false if kind == OpKind::Send => self.place_early_sends(qp, train, (&place, (count, head)), env),
            false => place_early_writes(qp, train, (&place, (count, head)), &mut early, env),
        };
        let noted = if kind == OpKind::Send { ArrivalKind::Send } else { ArrivalKind::Write };
        for k in 0..placed as u32 {
            early.note(place.psn.add(k), 1, ArrivalNote::new(noted, (false, false), place.index + k));
            env.fx.count(Reason::SrEarly);
        }
        if placed > 0 {
            self.note_arrivals(flow, (place.psn.add(placed as u32 - 1), 0), placed as u16, env.arrived_at());
            self.owe_ack();
        }
        debug_assert!(early.is_consistent(self.expected), "the record disagrees with its set");
        self.keep_or_give(early, env);
        placed
    }

    /// Whether packets of a train at this distance from ePSN may be placed together.
    fn takes_early_trains(&self, qp: &QpShared, distance: i32) -> bool {
        let is_early = (1..WINDOW_PSNS as i32).contains(&distance);
        is_early && self.sel.active && self.accepts_selective && self.receives_middles(qp)
    }

    /// Puts the payload of the first packets, at most `count`, into the receive of their message. Returns how many.
    fn place_early_sends(
        &mut self,
        qp: &QpShared,
        train: &MiddleRun<'_>,
        (place, (count, head)): (&MiddlePlace, (usize, usize)),
        env: &mut Env<'_>,
    ) -> usize {
        if self.take_receive(qp, place.rsn, env).is_err() {
            return 0;
        }
        let Some(receives) = self.recv.early.as_deref() else { return 0 };
        let offset = u64::from(place.index) * u64::from(qp.mtu);
        let lengths = (qp.mtu, count as u32);
        let Some(span) = self.recv.run_early((place.rsn, receives), recv_keys(qp, env), offset, lengths) else {
            return 0;
        };
        if place_train(train, &span, (head, qp.mtu as usize), copies_of(qp, env)) {
            span.len() / qp.mtu as usize
        } else {
            0
        }
    }
}

/// Writes the payload of the first `count` packets, whose heads have `head` bytes. Returns how many were placed: all or none.
fn place_early_writes(
    qp: &QpShared,
    train: &MiddleRun<'_>,
    (place, (count, head)): (&MiddlePlace, (usize, usize)),
    early: &mut Arrivals,
    env: &mut Env<'_>,
) -> usize {
    let range = RemoteRange { addr: place.addr, len: count as u32 * qp.mtu, rkey: place.rkey };
    if !has_room(early, (true, false, false), env) || qp.access_flags & access::REMOTE_WRITE == 0 {
        return 0;
    }
    let is_whole = early.next_uncovered(place.psn, range) == Some(range);
    if !is_whole || early.aliases(place.psn, range).next().is_some() {
        return 0;
    }
    let Ok(span) = remote_range(qp, range, env) else { return 0 };
    if !place_train(train, &span, (head, qp.mtu as usize), copies_of(qp, env)) {
        return 0;
    }
    early.add_runs(place.psn, count as u32, range);
    count
}
