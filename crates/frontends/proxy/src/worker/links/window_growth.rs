//! The memory of streams, and windows that grow: a stream whose path is long needs more bytes under way than the first window
//! holds.
//!
//! Large windows cost time where they are not needed, because rings that are long leave the processor's cache. So a window
//! grows only if that helps ([`crate::worker::credit_rounds`]): from the moment when the window is full to the credit for what is
//! in it took about the shortest round trip of the link, several times one after the other. Twice that time and more means that
//! bytes waited for a processor, a link or the reader rather than for the path, and more of them would only wait longer;
//! less than half of it, that credits were waiting here. Then the sender asks (WANT). The receiver doubles the window if
//! its program has taken a whole window without blocking, and if there is memory (GROW); the sender's ring follows. What
//! has been placed stays where it is.

use super::Links;
use crate::counters::ProxyCounter;
use crate::message::{GROWS, features};
use crate::pool::{RegionPart, WindowSlot};
use crate::worker::env::WorkerEnv;
use crate::worker::token::StreamKey;
use burst_relay::{Frame, PeerFault, PeerWindow};
use std::time::Instant;

/// Windows are multiples of it.
const PAGE: u32 = 4096;

impl Links {
    /// Whether windows to a link's peer can grow: both ends know how, and may.
    fn grows(&self, env: &WorkerEnv, at: usize) -> bool {
        let peer = self.get(at).and_then(|link| self.peers.get(&link.peer));
        peer.is_some_and(|peer| peer.introduction.features & features(&env.config) & GROWS != 0)
    }

    /// A link has a new transport: learns its round trip.
    pub(super) fn probe(&mut self, env: &WorkerEnv, at: usize) {
        let grows = self.grows(env, at);
        if let Some(link) = self.get_mut(at) {
            link.round_trips.begin();
            if grows {
                link.outbox.push(0, &Frame::Probe { is_answer: false });
            }
        }
    }

    /// Answers a probe, or sends the next one.
    pub(crate) fn on_probe(&mut self, at: usize, is_answer: bool) {
        let Some(link) = self.get_mut(at) else { return };
        if is_answer && !link.round_trips.take_probe() {
            return;
        }
        link.outbox.push(0, &Frame::Probe { is_answer: !is_answer });
        self.mark_dirty(at);
    }

    /// The peer has given credit to a stream.
    ///
    /// # Errors
    /// Of [`burst_relay::Stream::on_credit`].
    pub(crate) fn on_credit(&mut self, env: &mut WorkerEnv, key: StreamKey, delivered: u64) -> Result<(), PeerFault> {
        let now = Instant::now();
        let Some(link) = self.get(key.link) else { return Ok(()) };
        let shortest = link.round_trips.shortest(link.transport.by_channel);
        let Some((conn, _, pool)) = self.conn_mut(key) else { return Ok(()) };
        conn.stream.on_credit(delivered)?;
        let credited = conn.stream.credited();
        if let Some(part) = conn.slot.as_mut().and_then(|slot| slot.ring.retire(credited)) {
            pool.give_part(part);
        }
        if conn.rounds.credited(credited, shortest, now) && self.grows(env, key.link) {
            self.want(env, key, now);
        }
        Ok(())
    }

    /// Asks for a larger window.
    fn want(&mut self, env: &mut WorkerEnv, key: StreamKey, now: Instant) {
        let Some((conn, outbox, _)) = self.conn_mut(key) else { return };
        let growing = conn.slot.is_none_or(|slot| slot.ring.is_growing());
        let (most, flight) = (env.config.window_max, conn.stream.flight_max());
        if !growing && flight < most && !conn.stream.has_read_end() && conn.rounds.may_ask(now) {
            outbox.push(conn.stream.id(), &Frame::Want { len: most.min(flight.saturating_mul(2)) });
            env.count(ProxyCounter::WindowsWanted);
            self.mark_dirty(key.link);
        }
    }

    /// The peer would use a larger window.
    pub(crate) fn on_want(&mut self, env: &mut WorkerEnv, key: StreamKey, len: u32) {
        let Some(conn) = self.conn(key) else { return };
        let window = conn.stream.window();
        let wanted = len.min(window.saturating_mul(2)).min(env.config.window_max) / PAGE * PAGE;
        let growing = conn.slot.is_none_or(|slot| slot.window.is_growing());
        if wanted <= window || growing || !conn.reads_fast() || !conn.stream.can_grow_window() {
            return env.count(ProxyCounter::WindowsKept);
        }
        let Some(part) = self.take_larger(env, key.link, wanted) else {
            return env.count(ProxyCounter::WindowsWithoutMemory);
        };
        let Some((conn, outbox, pool)) = self.conn_mut(key) else { return };
        let from = conn.stream.grow_window(pool.named(part), outbox);
        if let Some(slot) = &mut conn.slot {
            slot.window.grow(part, from);
        }
        env.count(ProxyCounter::WindowsGrown);
        conn.retire_window(pool);
        self.mark_dirty(key.link);
    }

    /// The peer's window is larger from an offset on: the ring follows, if there is memory.
    ///
    /// # Errors
    /// Of [`burst_relay::Stream::on_grow`].
    pub(crate) fn on_grow(
        &mut self,
        env: &mut WorkerEnv,
        key: StreamKey,
        window: PeerWindow,
        from: u64,
    ) -> Result<(), PeerFault> {
        let Some((conn, ..)) = self.conn_mut(key) else { return Ok(()) };
        conn.stream.on_grow(window, from)?;
        conn.rounds.grown();
        let len = window.len.min(env.config.window_max) / PAGE * PAGE;
        if conn.stream.ring() >= len || conn.slot.is_none_or(|slot| slot.ring.is_growing()) {
            return Ok(());
        }
        let Some(part) = self.take_larger(env, key.link, len) else {
            env.count(ProxyCounter::RingsWithoutMemory);
            return Ok(());
        };
        let Some((conn, _, pool)) = self.conn_mut(key) else { return Ok(()) };
        let from = conn.stream.grow_ring(len);
        if let Some(slot) = &mut conn.slot {
            slot.ring.grow(part, from);
            if let Some(before) = slot.ring.retire(conn.stream.credited()) {
                pool.give_part(before);
            }
        }
        Ok(())
    }

    /// Memory for a stream of a link, if the worker's share allows it.
    pub(crate) fn take_slot(&mut self, env: &WorkerEnv, at: usize) -> Option<WindowSlot> {
        let used = env.pair_bytes + self.get(at)?.pool.next_region_bytes();
        let left = env.memory_share().saturating_sub(used);
        if self.get(at)?.pool.full() && self.totals.mapped() > left && self.totals.has_unused() {
            self.links.iter_mut().flatten().for_each(|link| link.pool.shrink());
        }
        let may_map = self.totals.mapped() <= left && used <= env.memory_share();
        let device = self.rdma.known_device();
        self.get_mut(at)?.pool.take(device.as_ref(), may_map).ok()
    }

    /// Memory for a larger ring or window. At least half of the worker's share is left to first ones.
    fn take_larger(&mut self, env: &WorkerEnv, at: usize, len: u32) -> Option<RegionPart> {
        let (share, more) = (env.memory_share(), self.get(at)?.pool.memory_of(len.into()));
        let (mapped, grown) = (self.totals.mapped(), self.totals.grown());
        let may_map = mapped + env.pair_bytes + more <= share && grown + more <= share / 2;
        let device = self.rdma.known_device();
        self.get_mut(at)?.pool.take_larger(device.as_ref(), len, may_map).ok()
    }
}
