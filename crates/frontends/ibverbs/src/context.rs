//! An open device as programs hold it: rdma-core's `verbs_context` around the client's context.
//!
//! [`VerbsContext`] begins with rdma-core's `verbs_context`, whose last field is the `ibv_context` that programs hold a pointer
//! to. All else is [`RawContext`]'s: the control connection, the arena, the doorbells, the tables.

use crate::boundary::{EINVAL, EIO, ENOMEM, Outcome};
use crate::context_name::name_file;
use crate::device::VerbsDevice;
use crate::sys::*;
use crate::unread::UnreadEvents;
use burst_client::raw::RawContext;
use burst_client::raw::cookies::EventSources;
use burst_client::raw::ended_pipe::EventEnd;
use burst_control::{AsyncObject, AsyncRecord};
use burst_ffi::{failed_completion, report};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem::offset_of;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Mutex;

/// `abi_compat` of a context that has extended operations (`__VERBS_ABI_IS_EXTENDED`).
const EXTENDED: usize = usize::MAX;

/// Longest time between the hang-ups of two connections to a daemon that ends.
const HANG_UP_MS: i32 = 1000;

/// An object that asynchronous events refer to. The pointers are valid while their entry is in the table.
#[derive(Clone, Copy, Debug)]
pub enum EventSource {
    /// A completion queue.
    Cq(NonNull<ibv_cq>),
    /// A queue pair.
    Qp(NonNull<ibv_qp>),
    /// A shared receive queue.
    Srq(NonNull<ibv_srq>),
}

// SAFETY: the table only carries the pointers; each use is guarded as it says.
unsafe impl Send for EventSource {}

/// A function behind `ibv_poll_cq`.
pub type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;

/// An open device.
#[repr(C)]
pub struct VerbsContext {
    verbs: verbs_context,
    raw: RawContext,
    /// Objects by event cookie.
    pub sources: Mutex<EventSources<EventSource>>,
    /// Events that the library owes the program after the end of the daemon.
    pub owed: Mutex<OwedEvents>,
    /// Asynchronous events that are neither read nor in the pipe.
    pub unread: UnreadEvents<{ AsyncRecord::BYTES }>,
    /// Readers of the pipe of asynchronous events, and what becomes of it when the daemon has ended.
    pub async_end: EventEnd<{ AsyncRecord::BYTES }>,
    /// The file that names the context; `cmd_fd` is its descriptor number.
    _name: OwnedFd,
}

/// Asynchronous events that the library makes after the end of the daemon.
#[derive(Debug, Default)]
pub struct OwedEvents {
    /// Whether the program got, or is owed, IBV_EVENT_DEVICE_FATAL.
    pub fatal: bool,
    /// Events that the program has not read yet.
    pub records: VecDeque<AsyncRecord>,
}

impl Deref for VerbsContext {
    type Target = RawContext;
    #[inline]
    fn deref(&self) -> &RawContext {
        &self.raw
    }
}

impl VerbsContext {
    /// Connects to the device's daemon and opens a context with the operations of `verbs`. Objects can be imported from the
    /// context whose token is `exporter`.
    pub fn open(device: &VerbsDevice, exporter: Option<u64>, mut verbs: verbs_context) -> Outcome<*mut ibv_context> {
        failed_completion::read_environment();
        let raw = RawContext::open(&device.place, device.info.index, exporter)?;
        // The file of an imported context names the exporting context, so that it can be passed on to a third process.
        let name = name_file(exporter.unwrap_or(raw.token()), device.info.index, device.place.socket())?;
        let public = &mut verbs.context;
        public.device = device.as_ibv();
        public.cmd_fd = name.as_raw_fd();
        public.async_fd = raw.async_fd().as_raw_fd();
        public.num_comp_vectors = raw.workers().max(1) as c_int;
        public.abi_compat = EXTENDED as *mut _;
        // SAFETY: `mutex` has the size of the C library's mutex, for which all zeros is the initial value.
        if unsafe { libc::pthread_mutex_init((&raw mut public.mutex).cast(), std::ptr::null()) } != 0 {
            return Err(ENOMEM);
        }
        device.retain();
        let context = Box::new(VerbsContext {
            verbs,
            raw,
            sources: Mutex::default(),
            owed: Mutex::default(),
            unread: UnreadEvents::default(),
            async_end: EventEnd::default(),
            _name: name,
        });
        Ok(Box::into_raw(context).cast::<u8>().wrapping_add(offset_of!(verbs_context, context)).cast())
    }

    /// Whether the daemon has ended. The first call that finds this out prints a sentence to stderr.
    #[cold]
    pub fn daemon_is_gone(&self) -> bool {
        let gone = self.daemon_has_ended();
        if gone {
            report::daemon_ended();
        }
        gone
    }

    /// As [`VerbsContext::daemon_is_gone`], where a connection to the daemon has hung up.
    #[cold]
    pub fn daemon_has_hung_up(&self) -> bool {
        self.daemon_ends_within(HANG_UP_MS) && self.daemon_is_gone()
    }

    /// Removes the unread asynchronous events of a destroyed object.
    pub fn forget_async_events(&self, cookie: u64) {
        self.unread.purge(self.async_fd().as_raw_fd(), |record| {
            let record = AsyncRecord::from_bytes(record);
            let of_object = |object| matches!(object, AsyncObject::Cq | AsyncObject::Qp | AsyncObject::Srq);
            record.is_some_and(|record| of_object(record.object) && record.cookie == cookie)
        });
    }

    /// Makes `poll_cq` the function of later calls of `ibv_poll_cq`.
    pub fn set_poll_cq(&self, poll_cq: PollCq) {
        // SAFETY: an aligned word of a live struct, which programs only read.
        unsafe { (&raw mut (*self.as_ibv()).ops.poll_cq).write_volatile(Some(poll_cq)) };
    }

    /// Closes a context.
    ///
    /// # Safety
    /// `context` must come from [`VerbsContext::open`], once, and not be used afterwards.
    pub unsafe fn close(context: *mut ibv_context) -> Outcome<()> {
        if context.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the pointer was derived from the box in `open` by this distance.
        let context = unsafe { Box::from_raw(whole(context)) };
        let device = context.verbs.context.device;
        // The daemon counts queue pairs that a closed context has left as a crash; the preallocated ones are destroyed first.
        context.release_prealloc(|_| true);
        // In a child the connection is the parent's: dropping the child's copy of the descriptors does not end it.
        drop(context);
        // SAFETY: `open` retained the device.
        unsafe { VerbsDevice::release(device) };
        Ok(())
    }

    /// The context behind an application's pointer, if this process made it.
    ///
    /// # Safety
    /// `context` must be NULL or an open context of this library.
    #[inline]
    pub unsafe fn from_ibv<'a>(context: *mut ibv_context) -> Outcome<&'a VerbsContext> {
        // SAFETY: the caller's promise.
        let context = unsafe { VerbsContext::even_dead(context) }?;
        if context.is_alive() { Ok(context) } else { Err(EIO) }
    }

    /// As [`VerbsContext::from_ibv`], but also valid in a child process: for calls that only free memory.
    ///
    /// # Safety
    /// As for [`VerbsContext::from_ibv`].
    #[inline]
    pub unsafe fn even_dead<'a>(context: *mut ibv_context) -> Outcome<&'a VerbsContext> {
        if context.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller gives an open context.
        Ok(unsafe { VerbsContext::of(context) })
    }

    /// As [`VerbsContext::even_dead`], for the context pointer of an object of this library, which is never NULL.
    ///
    /// # Safety
    /// As for [`VerbsContext::from_ibv`].
    #[inline]
    pub unsafe fn of<'a>(context: *mut ibv_context) -> &'a VerbsContext {
        // SAFETY: the caller gives an open context, which `open` made inside a `VerbsContext`.
        unsafe { &*whole(context) }
    }

    /// The pointer that applications hold.
    pub fn as_ibv(&self) -> *mut ibv_context {
        (&raw const self.verbs.context).cast_mut()
    }

    /// Number of completion vectors.
    pub fn vectors(&self) -> c_int {
        self.verbs.context.num_comp_vectors
    }
}

/// The `VerbsContext` around an application's `ibv_context`.
#[inline]
fn whole(context: *mut ibv_context) -> *mut VerbsContext {
    const { assert!(offset_of!(VerbsContext, verbs) == 0) };
    context.cast::<u8>().wrapping_sub(offset_of!(verbs_context, context)).cast()
}
