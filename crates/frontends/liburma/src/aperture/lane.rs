//! The Jetty of an aperture: moves pages between a buffer of its own and the remote segment, one list of requests at a time.

use super::uffd::PAGE;
use crate::abi::{EPERM, Status};
use crate::accesses::errno_of;
use crate::host::UrmaHost;
use crate::node::Inner;
use crate::objects::status_of;
use burst_ubwire::TaOpcode;
use burst_urma::{JettyConfig, JfsWr, LocalRange, SegmentConfig, UrmaError, WrData, access};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// Pages that one request fetches at most.
pub const PAGES_MAX: usize = 16;
/// Requests under way.
const DEPTH: u16 = 64;
/// Longest wait for the node. A thread that has it while it waits for a page of the aperture would wait for ever.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// Bytes to be written: offset in the buffer, remote address, length.
pub struct ChangedBytes {
    pub from: usize,
    pub to: u64,
    pub len: u32,
}

pub struct PageLane {
    host: Arc<UrmaHost>,
    /// Imported segment.
    segment: u32,
    jfc: u32,
    jetty: u32,
    token_id: u32,
    buffer: Box<[u8]>,
    /// The node could not be had while requests were under way: they still use the buffer.
    is_stuck: bool,
}

impl PageLane {
    pub fn new(host: Arc<UrmaHost>, inner: &mut Inner, segment: u32) -> Result<PageLane, UrmaError> {
        let buffer = vec![0; PAGES_MAX * PAGE].into_boxed_slice();
        let config = SegmentConfig {
            addr: buffer.as_ptr() as u64,
            len: buffer.len() as u64,
            token: None,
            access: access::LOCAL_ONLY,
        };
        let token_id = inner.register_segment(config)?;
        let jfc = inner.create_jfc(u32::from(DEPTH), None).inspect_err(|_| {
            let _ = inner.unregister_segment(token_id);
        })?;
        let jetty = inner.create_jetty(JettyConfig { depth: DEPTH, ..JettyConfig::new(jfc, None) });
        let jetty = jetty.inspect_err(|_| {
            let _ = (inner.delete_jfc(jfc), inner.unregister_segment(token_id));
        })?;
        Ok(PageLane { host, segment, jfc, jetty, token_id, buffer, is_stuck: false })
    }
    pub fn buffer(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
    fn lock(&self) -> Result<MutexGuard<'_, Inner>, Status> {
        let until = Instant::now() + LOCK_WAIT;
        if !self.host.is_ours() {
            return Err(EPERM);
        }
        loop {
            if let Some(inner) = self.host.try_lock() {
                return Ok(inner);
            }
            if Instant::now() >= until {
                return Err(libc::EDEADLK);
            }
            std::thread::yield_now();
        }
    }
    /// Fetches bytes from a remote address to the beginning of the buffer.
    pub fn fetch(&mut self, from: u64, len: u32) -> Result<(), Status> {
        self.carry_out(TaOpcode::Read, &[ChangedBytes { from: 0, to: from, len }])
    }
    /// Writes pieces of the buffer to their places; returns when they are there.
    pub fn put(&mut self, pieces: &[ChangedBytes]) -> Result<(), Status> {
        pieces.chunks(usize::from(DEPTH)).try_for_each(|pieces| self.carry_out(TaOpcode::Write, pieces))
    }
    fn carry_out(&mut self, opcode: TaOpcode, pieces: &[ChangedBytes]) -> Result<(), Status> {
        if self.is_stuck {
            return Err(libc::EIO);
        }
        let mut result = Ok(());
        let mut posted = 0;
        {
            let mut inner = self.lock()?;
            for ChangedBytes { from, to, len } in pieces {
                let addr = self.buffer[*from..].as_ptr() as u64;
                let data = WrData::Local(LocalRange { token_id: self.token_id, addr, len: *len });
                let wr = JfsWr { segment: Some(self.segment), remote_addr: *to, ..JfsWr::new(opcode, data, 0) };
                match inner.post_send(self.host.now(), self.jetty, &wr) {
                    Ok(()) => posted += 1,
                    Err(error) => {
                        result = Err(status_of(error));
                        break;
                    }
                }
            }
            self.host.flush(&mut inner);
        }
        // Each request has an outcome, after the node's time-outs at the latest, and uses the buffer until then.
        while posted > 0 {
            let Ok(mut inner) = self.lock() else {
                self.is_stuck = true;
                return Err(libc::EDEADLK);
            };
            if !inner.has_completions(self.jfc) {
                self.host.turn(&mut inner);
            }
            while let Some(record) = inner.poll_jfc(self.jfc) {
                posted -= 1;
                result = result.and(match errno_of(record.status) {
                    0 => Ok(()),
                    errno => Err(errno),
                });
            }
            drop(inner);
            std::thread::yield_now();
        }
        result
    }
}

impl Drop for PageLane {
    fn drop(&mut self) {
        if self.is_stuck {
            // Lost, with its objects: the node may still write to it.
            std::mem::forget(std::mem::take(&mut self.buffer));
            return;
        }
        let mut inner = self.host.lock();
        // Nothing is under way, so nothing is refused.
        let jetty = inner.delete_jetty(self.host.now(), self.jetty);
        let ended = (jetty, inner.delete_jfc(self.jfc), inner.unregister_segment(self.token_id));
        debug_assert_eq!(ended, (Ok(()), Ok(()), Ok(())));
    }
}
