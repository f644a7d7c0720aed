//! Event channels: a pipe of the daemon's whose read end the application holds, polls and may make non-blocking.

use crate::door::{self, EINVAL, EIO, Outcome, errno};
use crate::event::Record;
use crate::session::{Session, session};
use crate::sys::rdma_event_channel;
use burst_control::cm::CmEvent;
use burst_control::{Request, Response};
use std::os::fd::{AsRawFd, OwnedFd};

/// An event channel.
#[repr(C)]
pub struct Channel {
    base: rdma_event_channel,
    /// Whose.
    pub session: &'static Session,
    /// Its number at the daemon.
    pub number: u32,
    pipe: OwnedFd,
}

impl Channel {
    /// A new channel, blocking.
    pub fn create() -> Outcome<*mut rdma_event_channel> {
        let session = session()?;
        let number = session.channel_number();
        let answer = session.call(&Request::CmChannel { channel: number })?;
        let Response::Done = answer.response else { return Err(EIO) };
        // The writing end is not kept: without it, reading ends when the daemon does.
        let pipe = answer.fds.into_iter().next().ok_or(EIO)?;
        // The application owns the mode of its end; a channel starts out blocking.
        // SAFETY: flags of a descriptor that we own.
        if unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, 0) } < 0 {
            return Err(errno());
        }
        let base = rdma_event_channel { fd: pipe.as_raw_fd() };
        Ok(Box::into_raw(Box::new(Channel { base, session, number, pipe })).cast())
    }

    /// Ends a channel.
    ///
    /// # Safety
    /// `channel` must come from [`Channel::create`], once, and have no ids.
    pub unsafe fn destroy(channel: *mut rdma_event_channel) {
        // SAFETY: the caller's promise.
        let channel = unsafe { Box::from_raw(channel.cast::<Channel>()) };
        // In a child, or when the daemon is gone, there is nothing to say.
        let _ = channel.session.call(&Request::CmCloseChannel { channel: channel.number });
    }

    /// The channel behind an application's pointer.
    ///
    /// # Errors
    /// EINVAL for NULL.
    ///
    /// # Safety
    /// `channel` must be NULL or alive.
    pub unsafe fn from_rdma<'a>(channel: *mut rdma_event_channel) -> Outcome<&'a Channel> {
        // SAFETY: `base` is the first field.
        unsafe { channel.cast::<Channel>().as_ref() }.ok_or(EINVAL)
    }

    /// The next record: waits unless the descriptor is non-blocking (EAGAIN).
    ///
    /// # Errors
    /// EAGAIN, EINTR, or EIO when the daemon is gone.
    pub fn read(&self) -> Outcome<Record> {
        if !self.session.is_alive() {
            return Err(EIO);
        }
        let mut record: Record = [0; CmEvent::BYTES];
        // SAFETY: that many writable bytes. Records are written whole, and all are of this length.
        match unsafe { libc::read(self.pipe.as_raw_fd(), record.as_mut_ptr().cast(), record.len()) } {
            n if n == record.len() as isize => Ok(record),
            n if n < 0 => Err(errno()),
            _ => Err(EIO),
        }
    }
}

/// New event channel; ENODEV without a device.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    door::pointer(Channel::create)
}

/// Ends an event channel, whose ids are destroyed or moved away already.
///
/// # Safety
/// `channel` must be NULL or alive; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    door::nothing(|| {
        if !channel.is_null() {
            // SAFETY: the caller gives a live channel without ids.
            unsafe { Channel::destroy(channel) };
        }
        Ok(())
    });
}
