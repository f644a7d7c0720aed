//! Captures of what a port sends and receives (`burst capture`).

use super::Host;
use crate::authority::Caller;
use crate::refusal::refuse;
use crate::reply::ReplyParts;
use burst_control::capture::CAPTURE_MESSAGE_MAX;
use burst_control::{Refusal, Response};
use burst_engine::tap::{PortTap, TAPS_MAX};
use burst_ledger::Resource;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use std::sync::Arc;

/// Bytes that may wait for the one who captures, as far as the system's limit allows.
const BUFFER: usize = 4 << 20;

impl Host {
    /// Captures the packets of a device: the descriptors of the answer are a socket for each worker.
    ///
    /// # Errors
    /// EPERM for another user than root and the daemon's, ENODEV for an unknown device, EBUSY if as many capture already as may,
    /// ENOMEM or EMFILE if there is no descriptor for another, and the system's.
    pub fn capture(&mut self, caller: &Caller, device: u32, snap: u16) -> Result<ReplyParts, Refusal> {
        let uid = caller.process.uid;
        if !self.authority.sees_all(uid) {
            return refuse(
                libc::EPERM,
                "only root and the user who runs the daemon may capture packets: they are all users'",
            );
        }
        let Some(id) = self.devices.get(device as usize).map(|found| found.id) else {
            return refuse(libc::ENODEV, format!("there is no device burst{device}"));
        };
        let workers = self.workers.len();
        // What readers that have gone have cost is free.
        self.on_all(move |w| w.end_captures(id));
        if self.devices[device as usize].captures.used() >= TAPS_MAX as u64 {
            return refuse(libc::EBUSY, format!("{TAPS_MAX} capture the packets of burst{device} already"));
        }
        // Each worker puts messages together in a buffer of its own.
        let buffers = (workers * CAPTURE_MESSAGE_MAX) as u64;
        let costs = [(Resource::Capture, 1), (Resource::Descriptor, workers as u64), (Resource::QueueBytes, buffers)];
        let charge = caller.charge(&costs)?;
        let place = caller.place(&self.devices[device as usize].captures)?;
        let charge = Arc::new(charge.with_place(place));
        let mut sockets = Vec::new();
        for worker in 0..workers {
            let flags = SocketFlags::CLOEXEC;
            let (ours, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).or_else(|errno| {
                    refuse(errno.raw_os_error(), format!("the system gives no socket for a capture: {errno}"))
                })?;
            // A smaller buffer loses packets earlier, and they are counted.
            let _ = sockopt::set_socket_send_buffer_size(&ours, BUFFER);
            let tap = PortTap::new(ours, snap, Some(charge.clone()));
            if !self.on_worker(worker, move |w, _| w.capture(id, tap)) {
                return refuse(libc::EBUSY, format!("{TAPS_MAX} capture the packets of burst{device} already"));
            }
            sockets.push(theirs);
        }
        tracing::info!(device, snap, uid, "packets of a port are captured");
        Ok(ReplyParts::with_fds(Response::Done, sockets))
    }
}
