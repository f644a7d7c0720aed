//! Event channels. A channel is a pipe that the daemon writes; the application has the read end, polls it and may make it
//! non-blocking.
//!
//! Some programs destroy a channel while another of their threads reads it, and then exit (rping). As in Linux, that thread goes
//! on waiting: a channel that is being read stays open. The memory of the last destroyed channels is kept, so that a thread that
//! reads one later gets an error.
//!
//! When the daemon has ended, the descriptor hangs up until the program has got what is due; then it rests ([`EndedPipe`]).

use crate::boundary::{self, EINVAL, EIO, Outcome, errno, lock};
use crate::event::Record;
use crate::session::{DaemonSession, session};
use crate::sys::rdma_event_channel;
use burst_client::raw::ended_pipe::EndedPipe;
use burst_control::cm::CmEvent;
use burst_control::{Request, Response};
use burst_ffi::{block, report};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of destroyed channels whose memory is kept.
const KEPT_MAX: usize = 64;
/// Bit of `readers` that marks a destroyed channel.
const ENDED: u32 = 1 << 31;

static KEPT: Mutex<VecDeque<Box<Channel>>> = Mutex::new(VecDeque::new());

/// An event channel.
#[repr(C)]
pub struct Channel {
    base: rdma_event_channel,
    /// The session of the channel.
    pub session: &'static DaemonSession,
    /// The daemon's number of the channel.
    pub number: u32,
    /// Number of threads that read the channel now, and the bit [`ENDED`].
    readers: AtomicU32,
    /// The descriptor after the end of the daemon.
    pub ended: EndedPipe<{ CmEvent::BYTES }>,
}

/// What a thread that wants to read a channel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// It reads this descriptor, and is counted.
    Read(c_int),
    /// The channel was destroyed.
    Destroyed,
    /// The daemon has ended, and the descriptor rests.
    Ended,
}

impl Channel {
    /// Creates a channel in blocking mode.
    ///
    /// # Errors
    /// ENODEV without a daemon, or the daemon's refusal.
    pub fn create() -> Outcome<*mut rdma_event_channel> {
        let session = session()?;
        let number = session.channel_number();
        let answer = session.call(&Request::CmChannel { channel: number })?;
        let Response::Done = answer.response else { return Err(EIO) };
        // This process does not keep the write end, so that reads end when the daemon ends.
        let pipe = answer.fds.into_iter().next().ok_or(EIO)?;
        // The application may change the blocking mode; a new channel blocks.
        // SAFETY: flags of a descriptor that we own.
        if unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, 0) } < 0 {
            return Err(errno());
        }
        let base = rdma_event_channel { fd: pipe.into_raw_fd() };
        let (readers, ended) = (AtomicU32::new(0), EndedPipe::default());
        Ok(Box::into_raw(Box::new(Channel { base, session, number, readers, ended })).cast())
    }

    /// Destroys a channel.
    ///
    /// # Safety
    /// `channel` must come from [`Channel::create`], once, and have no ids.
    pub unsafe fn destroy(channel: *mut rdma_event_channel) {
        // SAFETY: the caller's promise.
        let channel = unsafe { Box::from_raw(channel.cast::<Channel>()) };
        // Pairs with `enter`: either the reader sees ENDED, or this thread sees the reader.
        if channel.readers.fetch_or(ENDED, Ordering::SeqCst) != 0 {
            // A thread reads the channel: its descriptor and memory are never freed.
            Box::leak(channel);
            return;
        }
        // SAFETY: ours, and no other thread reads it.
        unsafe { libc::close(channel.base.fd) };
        // In a child process, or if the daemon has ended, no message is sent.
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

    /// Counts a reader, if there is something to read.
    ///
    /// # Errors
    /// EIO if the parent process made the channel.
    pub fn enter(&self) -> Outcome<Entered> {
        if !self.session.is_alive() {
            return Err(EIO);
        }
        if self.readers.fetch_add(1, Ordering::SeqCst) & ENDED != 0 {
            return Ok(Entered::Destroyed);
        }
        // Pairs with `rest`: either it sees this reader, or this reader sees that the descriptor rests.
        if self.ended.is_resting() {
            self.leave();
            return Ok(Entered::Ended);
        }
        Ok(Entered::Read(self.base.fd))
    }

    /// Lets the descriptor rest, unless other threads read it.
    pub fn rest(&self) {
        self.ended.rest(self.base.fd, || self.readers.load(Ordering::SeqCst) != 0);
    }

    /// Uncounts a reader. A thread that is cancelled while it reads is never uncounted.
    pub fn leave(&self) {
        self.readers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Reads a record, and returns what read(2) returns. The caller must disable cancellation, or own nothing in its frame.
    ///
    /// # Safety
    /// `fd` must come from [`Channel::enter`].
    pub unsafe fn read(fd: c_int, record: &mut Record) -> isize {
        // SAFETY: that many writable bytes. Records are written whole, and all are of this length.
        unsafe { block::read(fd, record.as_mut_ptr().cast(), record.len()) }
    }

    /// Interprets the result of a read.
    ///
    /// # Errors
    /// EAGAIN, EINTR, or EIO if the daemon has ended.
    pub fn outcome(got: isize) -> Outcome<()> {
        match got {
            n if n == CmEvent::BYTES as isize => Ok(()),
            n if n < 0 => Err(errno()),
            _ => {
                report::daemon_ended();
                Err(EIO)
            }
        }
    }
}

/// `rdma_create_event_channel`: ENODEV without a device.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    boundary::pointer(Channel::create)
}

/// `rdma_destroy_event_channel`: the program must have destroyed or migrated all ids of the channel.
///
/// # Safety
/// `channel` must be NULL or alive; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    boundary::nothing(|| {
        if !channel.is_null() {
            // SAFETY: the caller gives a live channel without ids.
            unsafe { Channel::destroy(channel) };
        }
        Ok(())
    });
}
