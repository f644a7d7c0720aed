//! Congestion control of the peers, shown and changed while the daemon runs (`burst cc`).

use super::Host;
use crate::refusal::refuse;
use crate::reply::ReplyParts;
use burst_cc::{CcChoice, ChoiceRank, PeerKind};
use burst_control::monitor::{CC_PAGE, CmCursor};
use burst_control::{Refusal, Response};

/// Longest text of an algorithm with its parameters.
const TEXT_MAX: usize = 1024;

impl Host {
    /// A page of the peers of all workers, as a user may see them: a path is shared by the queue pairs of all users, so that only
    /// root and the daemon's user see more than the number.
    pub fn congestion(&self, viewer: u32, from: CmCursor) -> Response {
        let CmCursor { mut worker, mut slot } = from;
        let mut peers = Vec::new();
        while (worker as usize) < self.workers().len() && peers.len() < CC_PAGE {
            let most = CC_PAGE - peers.len();
            let (page, next) = self.on_worker(worker as usize, move |w, _| w.cc_peers(slot, most));
            peers.extend(page);
            (worker, slot) = next.map_or((worker + 1, 0), |slot| (worker, slot));
        }
        let next = ((worker as usize) < self.workers().len()).then_some(CmCursor { worker, slot });
        let mut hidden = 0;
        if !self.authority.sees_all(viewer) {
            hidden = peers.len() as u32;
            peers.clear();
        }
        Response::Cc { cc: self.cc.to_string(), peers, hidden, next }
    }

    /// Changes algorithm and parameters for one kind of peers, or for all.
    ///
    /// # Errors
    /// EPERM for another user than root and the daemon's, EINVAL for an unknown kind, algorithm or parameter, or a value out of
    /// range, with the nearest valid name or the range; then nothing has changed.
    pub fn set_cc(&mut self, uid: u32, kind: Option<&str>, text: &str) -> Result<ReplyParts, Refusal> {
        if !self.authority.sees_all(uid) {
            return refuse(libc::EPERM, "only root and the user who runs the daemon may change the congestion control");
        }
        if text.len() > TEXT_MAX || kind.is_some_and(|kind| kind.len() > TEXT_MAX) {
            return refuse(libc::EINVAL, format!("the congestion control has more than {TEXT_MAX} characters"));
        }
        let kind = kind.map(PeerKind::parse).transpose().or_else(|why| refuse(libc::EINVAL, why))?;
        let window = self.cc.of(PeerKind::Standard).params.window_max_bytes;
        let choice = CcChoice::parse(text, window, ChoiceRank::Commanded).or_else(|why| refuse(libc::EINVAL, why))?;
        self.cc.set(kind, choice);
        let cc = self.cc;
        tracing::info!(%cc, "congestion control");
        for worker in 0..self.workers.len() {
            self.on_worker(worker, move |w, now| w.set_cc(now, cc));
        }
        Ok(Response::Done.into())
    }
}
