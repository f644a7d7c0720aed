//! What must hold of a worker between two passes: for simulators and tests, which call [`Worker::check`] after each pass.
//!
//! Nothing here is used by the data path, and nothing is stored for it.

use crate::objects::{NO_PATH, QpSlot};
use crate::paths::NOT_WAITING;
use crate::paths::path::{NO_QP, Path};
use crate::transmit::sched::{NO_TICKET, URMA_ENTRY};
use crate::worker::Worker;
use burst_base::{DeviceId, Qpn};
use burst_cc::RATE_UNPACED;
use burst_transport::QpPositions;
use burst_urma::UrmaNode;
use std::net::IpAddr;

/// What a path has in flight, and what it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathLoad {
    /// Device and address of the peer.
    pub peer: (DeviceId, IpAddr),
    /// Bytes in flight, READ responses included.
    pub inflight: u64,
    /// The window in bytes.
    pub window: u64,
    /// Bytes that each of them may have in flight whatever the window is.
    pub least: u64,
    /// Queue pairs and channels.
    pub users: u32,
}

impl PathLoad {
    fn of(path: &Path) -> PathLoad {
        PathLoad {
            peer: (path.device, path.peer),
            inflight: path.inflight(),
            window: path.window(),
            least: path.qp_min_bytes(),
            users: path.users,
        }
    }
}

impl Worker {
    /// Passes the positions of all queue pairs to `visit`.
    pub fn visit_progress(&self, visit: &mut dyn FnMut(Qpn, QpPositions)) {
        let slots = self.core.qps.iter().flatten();
        slots.for_each(|slot| visit(slot.qpn, slot.qp.positions()));
    }

    /// Passes the load of all paths with users to `visit`.
    pub fn visit_paths(&self, visit: &mut dyn FnMut(PathLoad)) {
        let used = self.core.paths.iter().filter(|path| path.users > 0);
        used.for_each(|path| visit(PathLoad::of(path)));
    }

    /// Records of loss recovery that queue pairs have borrowed.
    pub fn records_in_use(&self) -> usize {
        self.core.records.in_use()
    }

    /// Checks what must hold between two passes.
    ///
    /// # Errors
    /// A sentence that says what does not.
    pub fn check(&self) -> Result<(), String> {
        let mut held = 0;
        for slot in self.core.qps.iter().flatten() {
            held += slot.qp.records_held();
            self.check_slot(slot).map_err(|what| format!("queue pair {:#x}: {what}", slot.qpn.get()))?;
        }
        if held != self.records_in_use() {
            return Err(format!(
                "queue pairs have {held} records, and {} are taken from the pool",
                self.records_in_use()
            ));
        }
        if !self.core.records.is_within_limits() {
            return Err("the pool has more records than it may have".into());
        }
        for (at, path) in self.core.paths.iter().enumerate() {
            self.check_path(at as u32, path).map_err(|what| format!("path to {}: {what}", path.peer))?;
        }
        Ok(())
    }

    fn check_slot(&self, slot: &QpSlot) -> Result<(), &'static str> {
        let qp = &slot.qp;
        qp.check()?;
        if slot.path != NO_PATH && slot.inflight_seen != slot.qp.inflight_bytes() {
            return Err("its path has not counted what it has in flight");
        }
        if slot.armed > slot.qp.next_deadline() {
            return Err("its timer is not in the wheel");
        }
        let is_queued =
            [slot.ticket != NO_TICKET, slot.waiting != NOT_WAITING, slot.answering != NOT_WAITING].contains(&true);
        // An acknowledgement may wait for a while for what the program sends.
        if qp.wants_tx() && !qp.ack_may_wait() && !is_queued {
            return Err("it has something to send and no turn");
        }
        let has_turn = slot.ticket != NO_TICKET || slot.answering != NOT_WAITING;
        if qp.wants_tx() && !qp.ack_may_wait() && qp.sends_without_room() && !has_turn {
            return Err("what needs no room in the window waits for it");
        }
        Ok(())
    }

    /// Whoever waits in the line of a path has something that wakes it.
    fn check_line(&self, at: u32, path: &Path) -> Result<(), String> {
        let slots = || self.core.qps.iter().flatten().filter(|slot| slot.path == at);
        let waiting = slots().filter(|slot| slot.waiting != NOT_WAITING).count();
        let waiting = waiting + usize::from(path.channels.ticket != NOT_WAITING);
        if waiting != path.waiting.len() as usize {
            return Err(format!("{} wait in its line, and it counts {}", waiting, path.waiting.len()));
        }
        let wakes = &self.core.channel_wakes;
        let is_woken = wakes.freed.contains(&at) || wakes.opened.contains(&at);
        if path.turn_of == URMA_ENTRY && self.urma.is_some() {
            return if is_woken { Ok(()) } else { Err("its channels have a turn that never ends".into()) };
        }
        if path.turn_of != NO_QP {
            let has_turn = slots().any(|slot| slot.index == path.turn_of && slot.ticket != NO_TICKET);
            return if has_turn { Ok(()) } else { Err("the first of its line has a turn that never comes".into()) };
        }
        // After a turn of the channels the line is looked at again.
        if !path.is_gate_unarmed() || is_woken {
            return Ok(());
        }
        if slots().any(|slot| slot.answering != NOT_WAITING) {
            return Err("answers wait for its rate, and nothing opens its gate".into());
        }
        let may_go = |slot: &&QpSlot| slot.waiting != NOT_WAITING && slot.has_room_on(path);
        if waiting > 0 && waiting == slots().map(|slot| &**slot).filter(may_go).count() {
            return Err("all who wait in its line have room, and none has a turn".into());
        }
        Ok(())
    }

    fn check_path(&self, at: u32, path: &Path) -> Result<(), String> {
        let slots = || self.core.qps.iter().flatten().filter(|slot| slot.path == at);
        let nodes = || self.urma.iter().flat_map(|urma| &urma.slots).map(|slot| &slot.endpoint.node);
        let channels = || nodes().flat_map(UrmaNode::channels).filter(|channel| channel.path == at);
        if channels().count() != path.channels.users as usize {
            return Err(format!("it counts {} channels, and there are {}", path.channels.users, channels().count()));
        }
        let users = slots().count() + channels().count();
        let inflight: u64 = slots().map(|slot| slot.inflight_seen).sum();
        let inflight = inflight + channels().map(|channel| u64::from(channel.reported.all)).sum::<u64>();
        let responses: u64 = slots().map(|slot| slot.responses_seen).sum();
        let responses = responses + channels().map(|channel| u64::from(channel.reported.answers)).sum::<u64>();
        if (users, inflight, responses) != (path.users as usize, path.inflight(), path.responses()) {
            return Err(format!(
                "it counts {} users, {} bytes in flight and {} of responses; there are {users}, {inflight} and {responses}",
                path.users,
                path.inflight(),
                path.responses()
            ));
        }
        self.check_line(at, path)?;
        let port = &self.ports[path.device.index()].port;
        let (line_bps, mtu) = (u64::from(port.caps().speed_mbps) * 1_000_000, port.caps().active_mtu().bytes());
        let limits = path.limits();
        let is_paced = limits.rate_bps != RATE_UNPACED;
        if is_paced && line_bps > 0 && limits.rate_bps > line_bps {
            return Err(format!("its rate of {} bit/s is above that of the line, {line_bps}", limits.rate_bps));
        }
        // Both controllers of rates with a smallest rate have it as a parameter.
        let least = ["rpg_min_rate", "min_rate"].into_iter().find_map(|name| path.params.get(name)).unwrap_or(1);
        let least = if line_bps > 0 { least.min(line_bps) } else { least };
        if is_paced && limits.rate_bps < least {
            return Err(format!("its rate of {} bit/s is below the smallest, {least}", limits.rate_bps));
        }
        if !is_paced && path.window() < u64::from(mtu) {
            return Err(format!("its window of {} bytes is less than a packet, and it is not paced", path.window()));
        }
        if is_paced && limits.burst_bytes == 0 {
            return Err("it has a rate and may send no burst".into());
        }
        Ok(())
    }
}
