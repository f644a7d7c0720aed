//! The levels of the log, shown and changed while the host runs (`burst log`).

use super::Host;
use crate::refusal::refuse;
use crate::reply::ReplyParts;
use burst_control::{Refusal, Response};

/// Longest text of a change.
const LEVELS_MAX: usize = 1024;

impl Host {
    /// The levels of the log, after a change if there is one.
    ///
    /// # Errors
    /// EPERM for a change by another user than root and the daemon's, EINVAL for a wrong word, with the nearest valid one;
    /// then nothing has changed. EOPNOTSUPP: the log is not this host's.
    pub fn log_levels(&mut self, uid: u32, levels: Option<&str>) -> Result<ReplyParts, Refusal> {
        let Some(log) = self.log.clone() else {
            return refuse(
                libc::EOPNOTSUPP,
                "the log of this host is that of its program: BURST_LOG_LEVEL sets its level",
            );
        };
        if let Some(levels) = levels {
            if !self.authority.sees_all(uid) {
                return refuse(
                    libc::EPERM,
                    "only root and the user who runs the daemon may change the levels of the log",
                );
            }
            if levels.len() > LEVELS_MAX {
                return refuse(libc::EINVAL, format!("the levels have more than {LEVELS_MAX} characters"));
            }
            log.set(levels).or_else(|why| refuse(libc::EINVAL, why))?;
            tracing::info!(uid, levels, "levels of the log");
        }
        Ok(Response::Log(log.state()).into())
    }
}
