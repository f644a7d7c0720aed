//! Completion channels. A channel is a pipe; the program has its read end and may poll it. For each completion event the daemon
//! writes the 8-byte cookie of the completion queue.

use crate::boundary::{self, EIO, Errno, Outcome};
use crate::context::VerbsContext;
use crate::cq::VerbsCq;
use crate::sys::*;
use crate::unread::UnreadEvents;
use burst_client::raw::ended_pipe::EventEnd;
use burst_control::{Request, Response};
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// A completion channel.
#[repr(C)]
pub struct VerbsChannel {
    base: ibv_comp_channel,
    /// The daemon's handle.
    pub handle: u32,
    pipe: OwnedFd,
    users: AtomicU32,
    /// Events that are neither read nor in the pipe.
    pub unread: UnreadEvents<8>,
    /// Readers of the pipe, and what becomes of it when the daemon has ended.
    pub end: EventEnd<8>,
}

impl VerbsChannel {
    /// Read end of the pipe.
    pub fn pipe(&self) -> RawFd {
        self.pipe.as_raw_fd()
    }

    /// The channel's context.
    pub fn context(&self) -> *mut ibv_context {
        self.base.context
    }

    /// The channel behind an application's pointer; NULL is none.
    ///
    /// # Safety
    /// `channel` must be NULL or a live channel.
    pub unsafe fn from_ibv<'a>(channel: *mut ibv_comp_channel) -> Option<&'a VerbsChannel> {
        // SAFETY: `base` is the first field.
        unsafe { channel.cast::<VerbsChannel>().as_ref() }
    }

    /// Whether the events of a CQ come through this channel.
    pub fn is_of(&self, cq: &VerbsCq) -> bool {
        std::ptr::eq(cq.channel().cast(), self)
    }

    fn refcnt(&self) -> *mut c_int {
        (&raw const self.base.refcnt).cast_mut()
    }

    /// Removes the unread events of a destroyed CQ.
    pub fn forget(&self, cookie: u64) {
        self.unread.purge(self.pipe(), |record| u64::from_ne_bytes(*record) == cookie);
    }

    /// Counts a CQ that uses this channel. `refcnt` is a public field: programs may read it.
    pub fn attach(&self) {
        let now = self.users.fetch_add(1, Ordering::AcqRel) + 1;
        // SAFETY: an aligned word of a live struct; applications only read it.
        unsafe { self.refcnt().write_volatile(now as c_int) };
    }

    /// Uncounts a CQ.
    pub fn detach(&self) {
        let now = self.users.fetch_sub(1, Ordering::AcqRel) - 1;
        // SAFETY: as in `attach`.
        unsafe { self.refcnt().write_volatile(now as c_int) };
    }
}

/// `ibv_create_comp_channel`: creates a channel. Its `fd` is readable while events are unread.
///
/// # Safety
/// `context` must be open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    boundary::pointer(|| {
        // SAFETY: the caller gives an open context.
        let ours = unsafe { VerbsContext::from_ibv(context) }?;
        let mut answer = ours.call(&Request::CreateChannel, &[])?;
        let Response::Channel { channel: handle } = answer.response else { return Err(EIO) };
        let pipe = answer.fds.pop().ok_or(EIO)?;
        // The application may change the blocking mode; a new channel blocks.
        set_blocking(pipe.as_raw_fd())?;
        let base = ibv_comp_channel { context, fd: pipe.as_raw_fd(), refcnt: 0 };
        Ok(Box::into_raw(Box::new(VerbsChannel {
            base,
            handle,
            pipe,
            users: AtomicU32::new(0),
            unread: UnreadEvents::default(),
            end: EventEnd::default(),
        }))
        .cast())
    })
}

/// Sets the read end of a pipe to blocking mode.
pub fn set_blocking(fd: RawFd) -> Outcome<()> {
    // SAFETY: descriptor flags of a descriptor that we own.
    let rc = unsafe { libc::fcntl(fd, libc::F_SETFL, 0) };
    if rc < 0 { Err(boundary::errno()) } else { Ok(()) }
}

/// `ibv_destroy_comp_channel`: EBUSY while a CQ uses the channel.
///
/// # Safety
/// `channel` must be alive; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives a live channel.
        let ours = unsafe { VerbsChannel::from_ibv(channel) }.ok_or(boundary::EINVAL)?;
        if ours.users.load(Ordering::Acquire) != 0 {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: the channel's context is open.
        let context = unsafe { VerbsContext::even_dead(ours.base.context) }?;
        context.end_object(&Request::DestroyChannel { channel: ours.handle })?;
        // SAFETY: made by `Box::into_raw`, and the caller gives it up.
        drop(unsafe { Box::from_raw(channel.cast::<VerbsChannel>()) });
        Ok(())
    })
}
