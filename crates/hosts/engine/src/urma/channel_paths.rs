//! The paths of channels: nodes of URMA use the congestion control of the worker's queue pairs ([`crate::paths`]), or that of an
//! endpoint without a worker.
//!
//! Bursts: a path with a rate opens its gate for one burst, and what leaves in a turn is charged when the turn ends or another
//! path's begins, as for queue pairs. Who finds no room waits in the path's line, all channels by one place
//! ([`URMA_ENTRY`]). When that place's time has come, the nodes' channels of the path get turns ([`ChannelWakes`]).

use crate::paths::ecn::sent_tos;
use crate::paths::hello::Hellos;
use crate::paths::pacing::{FRAME_OVERHEAD, PaceQueue};
use crate::paths::path::{ChannelWakes, Path, PathLink};
use crate::paths::window_line::CHANNELS;
use crate::paths::{NOT_WAITING, Paths};
use crate::transmit::sched::URMA_ENTRY;
use crate::urma::endpoint::address_at;
use burst_base::{DeviceId, Nanos};
use burst_cc::{CcTable, PeerKind};
use burst_frame::{Flow, TRAILER_LEN};
use burst_port::PortCaps;
use burst_urma::{FlightBytes, NO_PATH, NodeEid, PathChange, PathRoom, UrmaPaths};

/// The tables of a worker, or of an endpoint without one.
pub(crate) struct PathTables<'a> {
    pub paths: &'a mut Paths,
    pub pacing: &'a mut PaceQueue,
    pub wakes: &'a mut ChannelWakes,
    pub cc: &'a CcTable,
    /// Questions to peers, and whether there are any. A peer of an endpoint without a worker is not asked.
    pub hellos: Option<(&'a mut Hellos, bool)>,
}

impl PathTables<'_> {
    /// The same tables, for one call.
    pub fn reborrow(&mut self) -> PathTables<'_> {
        let hellos = self.hellos.as_mut().map(|(hellos, asks)| (&mut **hellos, *asks));
        let PathTables { paths, pacing, wakes, cc, .. } = self;
        PathTables { paths, pacing, wakes, cc, hellos }
    }
}

/// Where an endpoint and its peers are, for channels that begin to send.
#[derive(Clone, Copy)]
pub(crate) struct PathEnds<'a> {
    pub device: DeviceId,
    /// Addresses without the peer's.
    pub flow: Flow,
    pub caps: &'a PortCaps,
}

/// What leaves on one path in a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacedTurn {
    path: u32,
    /// Bytes that may still leave; [`u64::MAX`] without a rate.
    burst: u64,
    /// Bytes that have left, as they are on the link.
    wire_bytes: u64,
}

impl Default for PacedTurn {
    fn default() -> PacedTurn {
        PacedTurn { path: NO_PATH, burst: 0, wire_bytes: 0 }
    }
}

impl PacedTurn {
    /// The turn ends: what has left is charged.
    pub fn end(&mut self, now: Nanos, paths: &mut Paths) {
        let turn = std::mem::take(self);
        if turn.wire_bytes > 0
            && let Some(path) = paths.get_mut(turn.path as usize)
        {
            path.channel_left(now, turn.wire_bytes);
        }
    }
}

/// The paths, for a call to a node.
pub(crate) struct ChannelPaths<'a> {
    pub tables: PathTables<'a>,
    pub turn: &'a mut PacedTurn,
    /// Not known in calls in which no channel begins to send.
    pub ends: Option<PathEnds<'a>>,
}

impl ChannelPaths<'_> {
    /// Begins the turn of a path if another one had it, or if its burst has left.
    fn begin_turn(&mut self, now: Nanos, path: u32) {
        let is_other = self.turn.path != path;
        if !is_other && (self.turn.burst == u64::MAX || self.turn.wire_bytes == 0) {
            return;
        }
        self.turn.end(now, self.tables.paths);
        let Some(p) = self.tables.paths.get_mut(path as usize) else { return };
        if is_other {
            p.begin_turn(now);
        }
        *self.turn = PacedTurn { path, burst: p.burst(now).unwrap_or(0), wire_bytes: 0 };
    }
}

impl UrmaPaths for ChannelPaths<'_> {
    fn join(&mut self, now: Nanos, peer: NodeEid) -> Option<u32> {
        let PathEnds { device, flow, caps } = self.ends?;
        let address = address_at(peer);
        let PathTables { paths, pacing, cc, hellos, .. } = &mut self.tables;
        paths.reserve_one().ok()?;
        pacing.reserve(2 * (paths.len() + 1)).ok()?;
        let at = paths.join(device, address, || {
            let is_own_address = caps.addrs.iter().any(|own| own.ip == address);
            let kind = if is_own_address { PeerKind::Loopback } else { PeerKind::Standard };
            let mut path = Path::new(now, address, device, &PathLink::new(cc.of(kind).params, caps));
            path.is_own_address = is_own_address;
            path
        });
        let path = &mut paths[at as usize];
        path.channels.users += 1;
        path.channels.place = path.waiting.join(CHANNELS, CHANNELS);
        if let Some((hellos, asks)) = hellos {
            let flow = Flow { dst: address, src_port: burst_wire::ROCE_PORT, ..flow };
            path.greet(now, &flow, *asks);
            hellos.times.note(at, path);
        }
        Some(at)
    }
    fn leave(&mut self, now: Nanos, path: u32, flight: FlightBytes) {
        let PathTables { paths, wakes, .. } = &mut self.tables;
        let Some(p) = paths.get_mut(path as usize) else { return };
        debug_assert!(p.channels.users > 0, "a channel leaves a path on which it is not");
        p.channel_changed(now, &PathChange { before: flight, ..PathChange::default() });
        p.channels.users -= 1;
        if p.channels.users == 0 && std::mem::replace(&mut p.channels.ticket, NOT_WAITING) != NOT_WAITING {
            p.waiting.vacate(p.channels.place, |_| false);
        }
        p.waiting.leave(p.channels.place);
        if !p.waiting.is_empty() {
            wakes.freed.push(path);
        }
        paths.leave(path);
    }
    #[inline]
    fn room(&mut self, now: Nanos, path: u32, own: FlightBytes) -> PathRoom {
        if self.turn.path != path {
            self.begin_turn(now, path);
        }
        let Some(p) = self.tables.paths.get(path as usize) else { return PathRoom::NONE };
        let room = p.channel_room(own);
        if self.turn.burst == u64::MAX {
            return room;
        }
        // A burst has one packet at least.
        if self.turn.burst < p.qp_min_bytes() {
            self.begin_turn(now, path);
        }
        let burst = u32::try_from(self.turn.burst).unwrap_or(u32::MAX - 1);
        PathRoom { requests: room.requests.min(burst), answers: room.answers.min(burst) }
    }
    #[inline]
    fn changed(&mut self, now: Nanos, path: u32, change: &PathChange) {
        let (packets, bytes) = change.sent;
        if packets > 0 && self.turn.burst != u64::MAX {
            let wire_bytes = u64::from(bytes) + u64::from(packets) * (FRAME_OVERHEAD + TRAILER_LEN) as u64;
            self.turn.wire_bytes += wire_bytes;
            self.turn.burst = self.turn.burst.saturating_sub(bytes.into());
        }
        let PathTables { paths, wakes, .. } = &mut self.tables;
        let Some(p) = paths.get_mut(path as usize) else { return };
        p.channel_changed(now, change);
        if bytes > 0 && !p.waiting.is_empty() {
            p.waiting.charge(p.channels.place, bytes.into());
        }
        // What is lost makes room, too.
        let is_freed = change.packets > 0 || change.after.all < change.before.all;
        if is_freed && !p.waiting.is_empty() && wakes.freed.last() != Some(&path) {
            wakes.freed.push(path);
        }
    }
    #[cold]
    fn wait(&mut self, now: Nanos, path: u32, (own, packet): (FlightBytes, u32)) {
        self.turn.end(now, self.tables.paths);
        let PathTables { paths, pacing, .. } = &mut self.tables;
        let Some(p) = paths.get_mut(path as usize) else { return };
        let is_closed = p.burst(now).is_none();
        // Own acknowledgements give the channel a turn.
        let is_alone = p.inflight() <= own.all.into() && own.all > 0;
        if is_alone && !is_closed {
            return;
        }
        p.channels.wanted = packet.into();
        if p.channels.ticket == NOT_WAITING {
            p.channels.ticket = p.waiting.push(p.channels.place, URMA_ENTRY);
        }
        if let Some(gate) = p.closed_gate(now) {
            pacing.arm(path, gate, gate.opens_at());
        }
    }
}

/// The paths of an endpoint without a worker: all who wait are its own channels.
#[derive(Default)]
pub(crate) struct OwnPaths {
    paths: Paths,
    pub pacing: PaceQueue,
    wakes: ChannelWakes,
    pub cc: CcTable,
}

impl OwnPaths {
    /// The paths.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }
    /// The tables, for a call to the node.
    pub fn tables(&mut self) -> PathTables<'_> {
        let OwnPaths { paths, pacing, wakes, cc } = self;
        PathTables { paths, pacing, wakes, cc, hellos: None }
    }
    /// Another congestion control, for peers to which nothing was sent yet.
    pub fn set_cc(&mut self, cc: CcTable) {
        self.cc = cc;
    }
    /// Opens the gates that are due. The paths whose channels get turns are those of [`OwnPaths::take_opened`].
    pub fn open_gates(&mut self, now: Nanos) {
        while let Some((at, path)) = self.pacing.pop_due(now) {
            let p = &mut self.paths[path as usize];
            if p.gate().is_some_and(|gate| gate.take_entry(at)) {
                p.open_to_channels(path, &mut self.wakes);
            }
        }
    }
    /// The next path whose channels get turns.
    pub fn take_opened(&mut self, now: Nanos) -> Option<u32> {
        while let Some(path) = self.wakes.freed.pop() {
            self.wake_first(now, path);
        }
        self.wakes.opened.pop()
    }
    fn wake_first(&mut self, now: Nanos, path: u32) {
        let p = &mut self.paths[path as usize];
        if p.channels.ticket == NOT_WAITING {
            return;
        }
        if let Some(gate) = p.faster_gate(now) {
            self.pacing.arm(path, gate, gate.opens_at());
        }
        if let Some(gate) = p.closed_gate(now) {
            return self.pacing.arm(path, gate, gate.opens_at());
        }
        if p.has_channel_room() {
            p.open_to_channels(path, &mut self.wakes);
        }
    }
}

/// The traffic class of packets of channels on a path: ECN-capable if its controller reacts to marks.
#[inline]
pub(crate) fn tos_of(paths: &Paths, path: u32) -> u8 {
    paths.get(path as usize).map_or(0, |path| sent_tos(0, Some(path.params.algorithm())))
}
