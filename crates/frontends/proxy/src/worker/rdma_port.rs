//! A worker's RDMA listener and device, looked for again while there are none.

use super::env::WorkerEnv;
use super::tick_timer::TICK;
use super::token::PollToken;
use crate::counters::ProxyCounter;
use crate::engine::OwnEngine;
use crate::message::Report;
use crate::rdma::{CmId, ProxyDevice, Rdma};
use crate::sys::EventFlags;
use std::io::{Error, Result};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Longest time between attempts to find an RDMA device.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The listener and what belongs to it.
#[derive(Debug, Default)]
pub(super) struct RdmaPort {
    pub(super) listener: Option<Rdma>,
    /// Burst's engine in this process; `None`: the device needs none of this thread's time.
    pub(super) engine: Option<OwnEngine>,
    /// The completion channel is watched.
    completions_watched: bool,
    /// The port that was last reported, 0 for none; `None`: nothing yet.
    reported: Option<u16>,
    /// When a device is looked for again, and the pause before that.
    pub(super) again: Option<Instant>,
    pause: Duration,
}

impl RdmaPort {
    /// Drops everything of a device that is gone, and listens if there is one.
    pub(super) fn open(&mut self, env: &mut WorkerEnv) {
        self.listener = None;
        let port = self.listen(env).unwrap_or(0);
        if port == 0 {
            self.pause = (2 * self.pause).clamp(TICK, PAUSE_MAX);
            self.again = Some(Instant::now() + self.pause);
        }
        if self.reported != Some(port) {
            self.reported = Some(port);
            env.report(Report::Listening { worker: env.number, port });
        }
    }

    /// Listens; returns the port. Failure is logged here.
    fn listen(&mut self, env: &mut WorkerEnv) -> std::result::Result<u16, ()> {
        let at = env.config.rdma();
        let rdma = Rdma::listen(SocketAddr::new(at, 0)).map_err(|e| {
            if env.counters.get(ProxyCounter::RdmaMissing).is_none() {
                crate::log(format_args!("no RDMA device at {at} ({e}): streams travel over the control channel"));
            }
            env.count(ProxyCounter::RdmaMissing);
        })?;
        let watched = env.poll.add(rdma.fd(), EventFlags::IN, PollToken::CmEvents.to_bits());
        watched.map_err(|e| crate::log(format_args!("RDMA events cannot be watched: {e}")))?;
        let port = rdma.port;
        self.listener = Some(rdma);
        self.engine = OwnEngine::find();
        self.pause = Duration::ZERO;
        self.completions_watched = false;
        Ok(port)
    }

    /// Ends an attempt's identifier, if there is one.
    pub(super) fn destroy(&mut self, id: Option<CmId>) {
        if let (Some(id), Some(rdma)) = (id, &mut self.listener) {
            rdma.destroy(id);
        }
    }

    /// Refuses a request.
    pub(super) fn reject(&mut self, id: CmId) {
        if let Some(rdma) = &mut self.listener {
            rdma.reject(id);
        }
    }

    /// The device of an identifier, whose completions are watched from now on.
    ///
    /// # Errors
    /// There is none, or another one is in use.
    pub(super) fn device(&mut self, env: &WorkerEnv, id: CmId) -> Result<Rc<ProxyDevice>> {
        let rdma = self.listener.as_mut().ok_or_else(|| Error::other("no RDMA"))?;
        let device = rdma.device(id)?;
        if !self.completions_watched {
            env.poll.add(device.fd(), EventFlags::IN, PollToken::Completions.to_bits())?;
            self.completions_watched = true;
        }
        Ok(device)
    }

    /// The device in use.
    pub(super) fn known_device(&self) -> Option<Rc<ProxyDevice>> {
        self.listener.as_ref().and_then(Rdma::known_device)
    }
}
