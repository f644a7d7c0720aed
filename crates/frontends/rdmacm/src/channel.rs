//! Event channels: a pipe of the daemon's whose read end the application holds, polls and may make non-blocking.
//!
//! Programs destroy channels while another thread of theirs reads them, and end (rping does). With the kernel that thread
//! would go on waiting; so it does here: a channel that is being read stays open, and the memory of destroyed ones is kept
//! for a while, so that a thread that comes late finds out.

use crate::door::{self, EINVAL, EIO, Outcome, errno, lock};
use crate::event::Record;
use crate::session::{DaemonSession, session};
use crate::sys::rdma_event_channel;
use burst_control::cm::CmEvent;
use burst_control::{Request, Response};
use burst_ffi::{block, say};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Destroyed channels whose memory is kept.
const KEPT_MAX: usize = 64;
/// Marks a destroyed channel in its count of readers.
const ENDED: u32 = 1 << 31;

static KEPT: Mutex<VecDeque<Box<Channel>>> = Mutex::new(VecDeque::new());

/// An event channel.
#[repr(C)]
pub struct Channel {
    base: rdma_event_channel,
    /// Whose.
    pub session: &'static DaemonSession,
    /// Its number at the daemon.
    pub number: u32,
    /// Threads that read it now, and [`ENDED`].
    readers: AtomicU32,
}

impl Channel {
    /// A new channel, blocking.
    ///
    /// # Errors
    /// ENODEV without a daemon, or its refusal.
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
        let base = rdma_event_channel { fd: pipe.into_raw_fd() };
        Ok(Box::into_raw(Box::new(Channel { base, session, number, readers: AtomicU32::new(0) })).cast())
    }

    /// Ends a channel.
    ///
    /// # Safety
    /// `channel` must come from [`Channel::create`], once, and have no ids.
    pub unsafe fn destroy(channel: *mut rdma_event_channel) {
        // SAFETY: the caller's promise.
        let channel = unsafe { Box::from_raw(channel.cast::<Channel>()) };
        // Pairs with `enter`: either the reader sees the mark, or we see the reader.
        if channel.readers.fetch_or(ENDED, Ordering::SeqCst) != 0 {
            // It is still being read, and so are its descriptor and memory in use for ever.
            Box::leak(channel);
            return;
        }
        // SAFETY: ours, and nobody reads it.
        unsafe { libc::close(channel.base.fd) };
        // In a child, or when the daemon is gone, there is nothing to say.
        let _ = channel.session.call(&Request::CmCloseChannel { channel: channel.number });
        let mut kept = lock(&KEPT);
        if kept.len() == KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(channel);
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

    /// The pointer that applications hold.
    pub fn as_rdma(&self) -> *mut rdma_event_channel {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Counts a reader; the descriptor to read, or `None` if the channel is destroyed.
    ///
    /// # Errors
    /// EIO if the channel is the parent process's.
    pub fn enter(&self) -> Outcome<Option<c_int>> {
        if !self.session.is_alive() {
            return Err(EIO);
        }
        if self.readers.fetch_add(1, Ordering::SeqCst) & ENDED != 0 {
            return Ok(None);
        }
        Ok(Some(self.base.fd))
    }

    /// Uncounts a reader. A thread that is cancelled while it reads stays counted.
    pub fn leave(&self) {
        self.readers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Reads a record; the caller forbids cancellation, or has nothing on its frame. As read(2) returns.
    ///
    /// # Safety
    /// `fd` must come from [`Channel::enter`].
    pub unsafe fn read(fd: c_int, record: &mut Record) -> isize {
        // SAFETY: that many writable bytes. Records are written whole, and all are of this length.
        unsafe { block::read(fd, record.as_mut_ptr().cast(), record.len()) }
    }

    /// What became of a read.
    ///
    /// # Errors
    /// EAGAIN, EINTR, or EIO when the daemon is gone.
    pub fn outcome(got: isize) -> Outcome<()> {
        match got {
            n if n == CmEvent::BYTES as isize => Ok(()),
            n if n < 0 => Err(errno()),
            _ => {
                say::daemon_gone();
                Err(EIO)
            }
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
