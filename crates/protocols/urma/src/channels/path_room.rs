//! Channels and the paths to their peers ([`crate::paths`]): what may leave, what was sent and acknowledged, who waits.

use crate::api::UrmaEnv;
use crate::channels::Channels;
use crate::channels::channel::TpChannel;
use crate::channels::tx_window::TxLimits;
use crate::paths::{NO_PATH, PathChange, PathRoom, UrmaPaths};
use crate::pool::PoolRef;

/// The list of channels that wait may have so many vacant entries.
const VACANT_MAX: usize = 16;

impl Channels {
    /// What a channel may have in flight now. Without room for a path one packet may be in flight.
    pub(crate) fn limits(&mut self, at: PoolRef, env: &mut UrmaEnv<'_>) -> Option<TxLimits> {
        let channel = self.table.get_mut(at)?;
        if self.config.caqm {
            return Some(channel.limits(&self.config, PathRoom::UNBOUNDED));
        }
        if channel.path == NO_PATH {
            channel.path = env.paths.join(env.now, channel.peer).unwrap_or(NO_PATH);
        }
        let room = match channel.path {
            NO_PATH => PathRoom { requests: 1, answers: 1 },
            path => env.paths.room(env.now, path, channel.tx.bytes()),
        };
        Some(channel.limits(&self.config, room))
    }
    /// Tells the path of a channel what has changed.
    pub(crate) fn tell_path(&mut self, at: PoolRef, env: &mut UrmaEnv<'_>, change: PathChange) {
        let Some(channel) = self.table.get_mut(at).filter(|channel| channel.path != NO_PATH) else { return };
        let (before, after) = (channel.reported, channel.tx.bytes());
        channel.reported = after;
        let is_recovering = channel.tx.is_recovering();
        env.paths.changed(env.now, channel.path, &PathChange { before, after, is_recovering, ..change });
    }
    /// So many packets of data, and bytes of them, have left on a channel.
    #[inline]
    pub(crate) fn tell_sent(&mut self, at: PoolRef, env: &mut UrmaEnv<'_>, sent: (u32, usize)) {
        self.tell_path(at, env, PathChange { sent: (sent.0, sent.1 as u32), ..PathChange::default() });
    }
    /// The channel whose turn it is sends nothing. If that is because of its path, it waits for it.
    pub(crate) fn wait_for_path(&mut self, env: &mut UrmaEnv<'_>) {
        let Some(&at) = self.active.front() else { return };
        let is_held_back = |channel: &TpChannel| channel.path != NO_PATH && channel.is_held_back();
        if self.config.caqm || !self.table.get(at).is_some_and(is_held_back) {
            return;
        }
        let Some(limits) = self.limits(at, env) else { return };
        let Some(channel) = self.table.get_mut(at) else { return };
        let without_path = TxLimits { path: PathRoom::UNBOUNDED, ..limits };
        if channel.may_send(&limits) || !channel.may_send(&without_path) {
            return;
        }
        env.paths.wait(env.now, channel.path, (channel.tx.bytes(), limits.mtu));
        if !std::mem::replace(&mut channel.is_blocked, true) {
            if self.blocked.len() >= self.table.len() + VACANT_MAX {
                self.blocked.retain(|at| self.table.get(*at).is_some());
            }
            self.blocked.push(at);
        }
    }
    /// There may be room on a path: the channels that wait for it get turns.
    pub(crate) fn resume_path(&mut self, path: u32) {
        let mut blocked = std::mem::take(&mut self.blocked);
        blocked.retain(|at| {
            let Some(channel) = self.table.get_mut(*at) else { return false };
            if channel.path != path {
                return true;
            }
            channel.is_blocked = false;
            self.activate(*at);
            false
        });
        self.blocked = blocked;
    }
    /// Takes channels that have ended off their paths.
    pub(crate) fn leave_paths(&mut self, now: burst_base::Nanos, paths: &mut dyn UrmaPaths) {
        for (path, flight) in self.left.drain(..) {
            paths.leave(now, path, flight);
        }
    }
    /// Takes all channels off their paths: the node is about to be dropped, or gets other paths.
    pub(crate) fn leave_all_paths(&mut self, now: burst_base::Nanos, paths: &mut dyn UrmaPaths) {
        self.leave_paths(now, paths);
        let all: Vec<PoolRef> = self.table.iter().map(|(at, _)| at).collect();
        for channel in all {
            let Some(channel) = self.table.get_mut(channel).filter(|channel| channel.path != NO_PATH) else { continue };
            paths.leave(now, channel.path, channel.reported);
            (channel.path, channel.reported) = (NO_PATH, Default::default());
        }
    }
}
