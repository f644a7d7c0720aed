//! Impairments of a port that are set while the daemon runs (`burst impair`).

use super::Host;
use crate::refusal::refuse;
use crate::reply::ReplyParts;
use burst_base::Nanos;
use burst_control::{Refusal, Response};
use burst_port::spec::ImpairSpec;

/// Longest time of an impairment: one that was forgotten ends.
const TIME_MAX: Nanos = Nanos::from_ms(24 * 3600 * 1000);
/// Longest text of options.
const OPTIONS_MAX: usize = 256;

impl Host {
    /// Impairs the frames of a device's port for a time, in place of an earlier impairment; without options it ends.
    ///
    /// # Errors
    /// EPERM for another user than root and the daemon's, ENODEV for an unknown device, EINVAL for options or a time that are
    /// wrong; then nothing has changed.
    pub fn impair(&mut self, uid: u32, device: u32, options: String, time: Nanos) -> Result<ReplyParts, Refusal> {
        if !self.authority.sees_all(uid) {
            return refuse(libc::EPERM, "only root and the user who runs the daemon may impair a port");
        }
        let Some(found) = self.devices.get_mut(device as usize) else {
            return refuse(libc::ENODEV, format!("there is no device burst{device}"));
        };
        if options.len() > OPTIONS_MAX {
            return refuse(libc::EINVAL, format!("options of impair have more than {OPTIONS_MAX} characters"));
        }
        if time > TIME_MAX {
            return refuse(libc::EINVAL, "an impairment lasts for at most 24h");
        }
        let spec = match options.is_empty() {
            true => None,
            false => Some(ImpairSpec::parse(&options).or_else(|why| refuse(libc::EINVAL, why.to_string()))?),
        };
        let until = self.clock.now() + time;
        tracing::info!(device, options, seconds = time.0 / 1_000_000_000, "impairment of a port");
        found.impairment = spec.is_some().then_some((options, until));
        let id = found.id;
        for worker in 0..self.workers.len() {
            self.on_worker(worker, move |w, now| w.impair(now, id, spec, time));
        }
        Ok(Response::Done.into())
    }
}
