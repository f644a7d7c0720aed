//! Loads, stores and atomics through a daemon: work requests of a Jetty of the library's own, one at a time.
//!
//! A node in this process sends them without a channel; a daemon shares its node among programs, whose order and number of
//! accesses it would have to keep apart. A request of the reliable channel is executed once as well.

use crate::daemon::DaemonNode;
use burst_client::raw::idle::{SendProgress, found, pause};
use burst_ubwire::TaOpcode;
use burst_urma::{
    ACCESS_MAX, AccessKind, AccessOutcome, CrStatus, JettyConfig, JfsWr, LocalRange, SegmentConfig, UrmaError, WrData,
    access,
};

/// The Jetty of the accesses, and the memory into which they read.
pub struct AccessLane {
    jfc: u32,
    jetty: u32,
    token_id: u32,
    buffer: Box<[u64; ACCESS_MAX / 8]>,
}

impl AccessLane {
    fn new(daemon: &mut DaemonNode) -> Result<AccessLane, UrmaError> {
        let buffer = Box::new([0; ACCESS_MAX / 8]);
        let config = SegmentConfig {
            addr: buffer.as_ptr() as u64,
            len: ACCESS_MAX as u64,
            token: None,
            access: access::LOCAL_ONLY,
        };
        let token_id = daemon.register(config)?;
        let jfc = daemon.create_jfc(4, None).inspect_err(|_| {
            // Nothing uses it.
            let _ = daemon.unregister(token_id);
        })?;
        let config = JettyConfig { depth: 1, ..JettyConfig::new(jfc, None) };
        let jetty = daemon.create_jetty(config);
        let jetty = jetty.inspect_err(|_| {
            // Nothing uses them.
            let _ = (daemon.delete_jfc(jfc), daemon.unregister(token_id));
        })?;
        Ok(AccessLane { jfc, jetty, token_id, buffer })
    }

    fn request(&self, segment: u32, va: u64, kind: &AccessKind) -> Option<JfsWr> {
        let local = |len| WrData::Local(LocalRange { token_id: self.token_id, addr: self.buffer.as_ptr() as u64, len });
        let wr = match kind {
            AccessKind::Load { len } => JfsWr::new(TaOpcode::Read, local(u32::from(*len)), 0),
            AccessKind::Store { len, bytes } => {
                JfsWr::new(TaOpcode::Write, WrData::inline(bytes.get(..usize::from(*len))?)?, 0)
            }
            AccessKind::Atomic { opcode, operand, swap } => {
                JfsWr { operand: *operand, swap: *swap, ..JfsWr::new(*opcode, local(8), 0) }
            }
        };
        Some(JfsWr { segment: Some(segment), remote_addr: va, ..wr })
    }

    /// Makes an access and waits for its outcome.
    fn access(
        &mut self,
        daemon: &mut DaemonNode,
        segment: u32,
        va: u64,
        kind: &AccessKind,
    ) -> Result<AccessOutcome, UrmaError> {
        let wr = self.request(segment, va, kind).ok_or(UrmaError::Value)?;
        daemon.post_send(self.jetty, &wr)?;
        daemon.send_posted();
        let status = loop {
            if let Some(cr) = daemon.poll_jfc(self.jfc) {
                break cr.status;
            }
            if pause(true, SendProgress::default) && daemon.has_ended() {
                break CrStatus::AckTimeout;
            }
        };
        found();
        let mut bytes = [0; ACCESS_MAX];
        if !matches!(kind, AccessKind::Store { .. }) {
            for (i, to) in bytes.chunks_exact_mut(8).enumerate() {
                // SAFETY: a word of the buffer, which the daemon has written before it told of the completion.
                let word = unsafe { self.buffer.as_ptr().add(i).read_volatile() };
                to.copy_from_slice(&word.to_ne_bytes());
            }
        }
        Ok(AccessOutcome { status, bytes })
    }
}

impl DaemonNode {
    /// Makes an access and waits for its outcome.
    pub fn access(&mut self, segment: u32, va: u64, kind: &AccessKind) -> Result<AccessOutcome, UrmaError> {
        let mut lane = match self.lane.take() {
            Some(lane) => lane,
            None => AccessLane::new(self)?,
        };
        let outcome = lane.access(self, segment, va, kind);
        self.lane = Some(lane);
        outcome
    }
}
