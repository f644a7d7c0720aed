//! Windows that grow: a stream whose path is long needs more bytes under way than the first window holds.
//!
//! Large windows cost time where they are not needed, because rings that are long leave the processor's cache. So a window
//! grows only if that helps ([`super::rounds`]): from the moment when the window is full to the credit for what is in it
//! took about the shortest round trip of the link, several times one after the other. Twice that time and more means that
//! bytes waited for a processor, a link or the reader rather than for the path, and more of them would only wait longer;
//! less than half of it, that credits were waiting here. Then the sender asks (WANT). The receiver doubles the window if
//! its program has taken a whole window without blocking, and if there is memory (GROW); the sender's ring follows. What
//! has been placed stays where it is.

use super::RelayWorker;
use super::conn::Phase;
use super::link::PeerLink;
use super::sockets::SOCKET_BUFFER;
use super::table::TableKey;
use crate::counters::ProxyCounter;
use crate::message::{GROWS, features};
use crate::pool::{RegionPart, WindowPool, WindowSlot};
use burst_relay::{Frame, PeerFault, PeerWindow};
use std::time::Instant;

/// Windows are multiples of it.
const PAGE: u32 = 4096;

/// Whether a program that has taken so many bytes without making this side wait reads as fast as they come: a whole
/// window beside what the socket holds anyway. The kernel doubles the size of a buffer.
fn is_fast(taken: u64, window: u32) -> bool {
    taken >= 2 * SOCKET_BUFFER as u64 + u64::from(window)
}

impl RelayWorker {
    /// Whether windows to this peer can grow: both ends know how, and may.
    fn grows(&self, peer: usize) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.introduction.features & features(&self.env.config) & GROWS != 0)
    }

    /// A link has a new transport: learns its round trip.
    pub(super) fn probe(&mut self, at: usize) {
        let Some(peer) = self.links[at].as_ref().map(|link| link.peer) else { return };
        let grows = self.grows(peer);
        if let Some(link) = &mut self.links[at] {
            link.round_trips.begin();
            if grows {
                link.outbox.push(0, &Frame::Probe { is_answer: false });
            }
        }
    }

    /// Answers a probe, or sends the next one.
    pub(super) fn on_probe(&mut self, at: usize, is_answer: bool) {
        let Some(link) = &mut self.links[at] else { return };
        if is_answer {
            link.round_trips.probes = link.round_trips.probes.saturating_sub(1);
            if link.round_trips.probes == 0 {
                return;
            }
        }
        link.outbox.push(0, &Frame::Probe { is_answer: !is_answer });
        self.mark_dirty(at);
    }

    /// The peer has given credit.
    pub(super) fn after_credit(&mut self, place: TableKey) {
        let (Some(conn), now) = (self.conns.get_mut(place), Instant::now()) else { return };
        let Some(link) = &mut self.links[conn.link] else { return };
        let credited = conn.stream.credited();
        if let Some(part) = conn.slot.as_mut().and_then(|slot| slot.ring.retire(credited)) {
            link.pool.give_part(part);
        }
        if !conn.rounds.credited(credited, link.round_trips.shortest(link.here), now) {
            return;
        }
        let peer = link.peer;
        if self.grows(peer) {
            self.want(place, now);
        }
    }

    /// Asks for a larger window.
    fn want(&mut self, place: TableKey, now: Instant) {
        let Some(conn) = self.conns.get_mut(place) else { return };
        let Some(link) = &mut self.links[conn.link] else { return };
        let growing = conn.slot.is_none_or(|slot| slot.ring.is_growing());
        let (most, flight) = (self.env.config.window_max, conn.stream.flight_max());
        if !growing && flight < most && !conn.stream.has_read_end() && conn.rounds.may_ask(now) {
            link.outbox.push(conn.stream.id(), &Frame::Want { len: most.min(flight.saturating_mul(2)) });
            let at = conn.link;
            self.env.count(ProxyCounter::WindowsWanted);
            self.mark_dirty(at);
        }
    }

    /// The peer would use a larger window.
    pub(super) fn on_want(&mut self, place: TableKey, len: u32) {
        let Some(conn) = self.conns.get(place) else { return };
        let (link, window) = (conn.link, conn.stream.window());
        let wanted = len.min(window.saturating_mul(2)).min(self.env.config.window_max) / PAGE * PAGE;
        let (delivered, _) = conn.stream.undelivered();
        let is_fast = conn.writable && is_fast(delivered - conn.blocked_at, window);
        let growing = conn.slot.is_none_or(|slot| slot.window.is_growing());
        let able = conn.phase == Phase::Open && conn.stream.can_grow_window() && !growing;
        if wanted <= window || !is_fast || !able {
            return self.env.count(ProxyCounter::WindowsKept);
        }
        let Some(part) = self.take_larger(link, wanted) else {
            return self.env.count(ProxyCounter::WindowsWithoutMemory);
        };
        let (Some(conn), Some(state)) = (self.conns.get_mut(place), &mut self.links[link]) else { return };
        let from = conn.stream.grow_window(state.pool.named(part), &mut state.outbox);
        if let Some(slot) = &mut conn.slot {
            slot.window.grow(part, from);
        }
        self.env.count(ProxyCounter::WindowsGrown);
        self.retire_window(place);
        self.mark_dirty(link);
    }

    /// The peer's window is larger: the ring follows, if there is memory.
    pub(super) fn on_grow(&mut self, place: TableKey, window: PeerWindow, from: u64) -> Result<(), PeerFault> {
        let Some(conn) = self.conns.get_mut(place) else { return Ok(()) };
        conn.stream.on_grow(window, from)?;
        conn.rounds.grown();
        let len = window.len.min(self.env.config.window_max) / PAGE * PAGE;
        let link = conn.link;
        if conn.stream.ring() >= len || conn.slot.is_none_or(|slot| slot.ring.is_growing()) {
            return Ok(());
        }
        let Some(part) = self.take_larger(link, len) else {
            self.env.count(ProxyCounter::RingsWithoutMemory);
            return Ok(());
        };
        let (Some(conn), Some(state)) = (self.conns.get_mut(place), &mut self.links[link]) else { return Ok(()) };
        let from = conn.stream.grow_ring(len);
        if let Some(slot) = &mut conn.slot {
            slot.ring.grow(part, from);
            if let Some(before) = slot.ring.retire(conn.stream.credited()) {
                state.pool.give_part(before);
            }
        }
        Ok(())
    }

    /// Gives the window before back, once its bytes are delivered.
    pub(super) fn retire_window(&mut self, place: TableKey) {
        let Some(conn) = self.conns.get_mut(place) else { return };
        let (delivered, _) = conn.stream.undelivered();
        if let Some(part) = conn.slot.as_mut().and_then(|slot| slot.window.retire(delivered))
            && let Some(link) = &mut self.links[conn.link]
        {
            link.pool.give_part(part);
        }
    }

    /// Bytes of all regions of this worker.
    pub(super) fn mapped(&self) -> u64 {
        self.links.iter().flatten().map(|link| link.pool.mapped()).sum()
    }

    /// Memory for a stream of a link, if the worker's share allows it.
    pub(super) fn take_slot(&mut self, link: usize) -> Option<WindowSlot> {
        let share = self.env.memory_share();
        let first = WindowPool::region_bytes(self.env.config.window);
        let left = share.saturating_sub(self.env.pair_bytes + first);
        if self.links[link].as_ref()?.pool.full() && self.mapped() > left {
            self.links.iter_mut().flatten().for_each(|link| link.pool.shrink());
        }
        let may_grow = self.mapped() <= left && self.env.pair_bytes + first <= share;
        let device = self.rdma.as_ref().and_then(|rdma| rdma.known_device());
        self.links[link].as_mut()?.pool.take(device.as_ref(), may_grow).ok()
    }

    /// Memory for a larger ring or window. At least half of the worker's share is left to first ones.
    fn take_larger(&mut self, link: usize, len: u32) -> Option<RegionPart> {
        let share = self.env.memory_share();
        let grown: u64 = self.links.iter().flatten().map(|link| link.pool.grown()).sum();
        let more = u64::from(len);
        let may_map = self.mapped() + self.env.pair_bytes + more <= share && grown + more <= share / 2;
        let device = self.rdma.as_ref().and_then(|rdma| rdma.known_device());
        let link: &mut PeerLink = self.links[link].as_mut()?;
        link.pool.take_larger(device.as_ref(), len, may_map).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_fast_after_more_than_its_socket_holds() {
        let buffered = 2 * SOCKET_BUFFER as u64;
        assert!(!is_fast(0, 4096) && !is_fast(buffered, 4096) && !is_fast(buffered + 4095, 4096));
        assert!(is_fast(buffered + 4096, 4096));
    }
}
