//! An open device, shared by the objects made of it.

use crate::cq::CompletionQueue;
use crate::error::{ClientError, Result};
use crate::memory::ProtectionDomain;
use crate::raw::RawContext;
use crate::raw::place::HostPlace;
use burst_control::{AsyncRecord, DeviceInfo};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// An open device. Clones are the same context; it is closed when the last object made of it is dropped.
#[derive(Clone)]
pub struct ClientContext(Arc<ContextOwner>);

/// Owns the context, and releases the preallocated queue pairs when it ends.
struct ContextOwner {
    raw: RawContext,
    socket: PathBuf,
}

impl Drop for ContextOwner {
    fn drop(&mut self) {
        self.raw.release_prealloc(|_| true);
    }
}

impl fmt::Debug for ClientContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientContext").field("device", &self.raw().device().name).finish_non_exhaustive()
    }
}

impl ClientContext {
    pub(crate) fn open(socket: &Path, device: u32) -> Result<ClientContext> {
        let raw = RawContext::open(&HostPlace::Socket(socket.to_owned()), device, None)?;
        Ok(ClientContext(Arc::new(ContextOwner { raw, socket: socket.to_owned() })))
    }

    pub(crate) fn raw(&self) -> &RawContext {
        &self.0.raw
    }

    /// The daemon's socket.
    pub fn socket(&self) -> &Path {
        &self.0.socket
    }

    /// Whether both are the same context: objects of different contexts do not work together.
    pub fn is_same(&self, other: &ClientContext) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The device at the time when the context was opened.
    pub fn device(&self) -> &DeviceInfo {
        self.raw().device()
    }

    /// The present state of the device: addresses and link state change.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn device_now(&self) -> Result<DeviceInfo> {
        self.raw().device_now()
    }

    /// Whether the daemon has ended. The context and all its objects are then unusable.
    pub fn daemon_has_ended(&self) -> bool {
        self.raw().daemon_has_ended()
    }

    /// A protection domain: memory regions and queue pairs work together only within one.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        ProtectionDomain::new(self)
    }

    /// A completion queue for at least `entries` completions.
    ///
    /// # Errors
    /// EINVAL for 0 or more than the device's limit; else the daemon's refusal.
    pub fn create_cq(&self, entries: u32) -> Result<CompletionQueue> {
        CompletionQueue::new(self, entries)
    }

    /// The next asynchronous event of the device, its port or an object, or `None` after `timeout`.
    ///
    /// # Errors
    /// When the daemon has ended.
    pub fn async_event(&self, timeout: Duration) -> Result<Option<AsyncRecord>> {
        let pipe = self.raw().async_fd();
        let mut record = [0; AsyncRecord::BYTES];
        if !read_record(pipe, &mut record, timeout)? {
            return Ok(None);
        }
        AsyncRecord::from_bytes(&record).map(Some).ok_or(ClientError::Unexpected("an unknown asynchronous event"))
    }
}

impl AsFd for ClientContext {
    /// Readable while asynchronous events are unread.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw().async_fd()
    }
}

/// Waits until a descriptor is readable; false after `timeout`.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> Result<bool> {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one valid entry.
    match unsafe { libc::poll(&mut entry, 1, timeout_ms) } {
        0 => Ok(false),
        n if n > 0 => Ok(true),
        _ => {
            let error = std::io::Error::last_os_error();
            // A signal: the caller sees a wait that was too short.
            if error.kind() == std::io::ErrorKind::Interrupted { Ok(false) } else { Err(error.into()) }
        }
    }
}

/// Reads a record from a pipe of the daemon, which writes records whole; false after `timeout`.
pub(crate) fn read_record(fd: BorrowedFd<'_>, record: &mut [u8], timeout: Duration) -> Result<bool> {
    if !wait_readable(fd, timeout)? {
        return Ok(false);
    }
    // SAFETY: writable bytes of that length.
    let got = unsafe { libc::read(fd.as_raw_fd(), record.as_mut_ptr().cast(), record.len()) };
    match got {
        n if n == record.len() as isize => Ok(true),
        n if n < 0 => {
            let error = std::io::Error::last_os_error();
            let kind = error.kind();
            let nothing = [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::Interrupted].contains(&kind);
            if nothing { Ok(false) } else { Err(error.into()) }
        }
        0 => Err(ClientError::Control(burst_control::ControlError::Closed)),
        _ => Err(ClientError::Unexpected("a part of an event")),
    }
}
