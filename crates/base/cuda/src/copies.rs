//! Copies between host memory and the memory of devices, by a thread that is none of the program's.
//!
//! The thread has a stream of its own in each context, which does not wait for the legacy default stream and is not waited for
//! (`CU_STREAM_NON_BLOCKING`). A context is current for the thread only while one of its copies is submitted or asked for.
//! Copies of one stream end in the order in which they were submitted, in both directions.
//!
//! [`CudaCopies::close`] comes before the host memory is unmapped: CUDA may write there until then, and has it pinned.

use crate::driver::{CudaDriver, DeviceContext};
use core::ffi::{c_int, c_uint, c_void};
use core::ptr::{NonNull, null_mut};
use std::time::Duration;

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;
/// `CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED`.
const NOT_REGISTERED: c_int = 713;
/// `CU_STREAM_NON_BLOCKING`, `CU_MEMHOSTREGISTER_PORTABLE`.
const NON_BLOCKING: c_uint = 1;
const PORTABLE: c_uint = 1;
/// Most contexts of which a thread copies.
const CONTEXTS_MAX: usize = 64;
/// Time between two questions for the last copies.
const PAUSE: Duration = Duration::from_micros(50);

/// A function of CUDA has failed, with this `CUresult`; -1: there are too many contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaError(pub c_int);

fn check(rc: c_int) -> Result<(), CudaError> {
    if rc == 0 { Ok(()) } else { Err(CudaError(rc)) }
}

/// How far the copies of a context are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// All that were submitted have ended.
    Ended,
    /// Some have not ended.
    UnderWay,
}

macro_rules! functions {
    ($($name:ident = $symbol:literal: $kind:ty;)+) => {
        /// The functions, with their types in cuda.h.
        struct Functions { $($name: $kind),+ }

        impl Functions {
            fn of(driver: &CudaDriver) -> Option<Functions> {
                // SAFETY: cuda.h declares each function with this type.
                Some(Functions { $($name: unsafe { typed::<$kind>(driver.symbol($symbol)?) }),+ })
            }
        }
    };
}

/// A function by its address.
///
/// # Safety
/// `F` is a function pointer, and the type of the function.
unsafe fn typed<F: Copy>(address: NonNull<c_void>) -> F {
    const { assert!(size_of::<F>() == size_of::<NonNull<c_void>>()) };
    // SAFETY: as the caller promises; the sizes are equal.
    unsafe { core::mem::transmute_copy(&address) }
}

functions! {
    ctx_push = c"cuCtxPushCurrent_v2": unsafe extern "C" fn(*mut c_void) -> c_int;
    ctx_pop = c"cuCtxPopCurrent_v2": unsafe extern "C" fn(*mut *mut c_void) -> c_int;
    stream_create = c"cuStreamCreate": unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int;
    stream_destroy = c"cuStreamDestroy_v2": unsafe extern "C" fn(*mut c_void) -> c_int;
    stream_query = c"cuStreamQuery": unsafe extern "C" fn(*mut c_void) -> c_int;
    to_device = c"cuMemcpyHtoDAsync_v2": unsafe extern "C" fn(u64, *const c_void, usize, *mut c_void) -> c_int;
    from_device = c"cuMemcpyDtoHAsync_v2": unsafe extern "C" fn(*mut c_void, u64, usize, *mut c_void) -> c_int;
    host_register = c"cuMemHostRegister_v2": unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int;
    host_unregister = c"cuMemHostUnregister": unsafe extern "C" fn(*mut c_void) -> c_int;
}

/// Whether CUDA has the host memory pinned.
#[derive(Clone, Copy, Debug)]
enum PinState {
    /// It is pinned with the first stream.
    New,
    /// CUDA would not: its copies are slower.
    Pageable,
    /// In this context.
    Pinned(DeviceContext),
}

/// Copies of one thread.
pub struct CudaCopies {
    functions: Functions,
    /// Context and stream.
    streams: Vec<(DeviceContext, *mut c_void)>,
    /// Host memory: address, length, state.
    staging: (*mut u8, usize, PinState),
    /// What [`CudaCopies::close`] has found.
    closed: Result<(), CudaError>,
}

impl Drop for CudaCopies {
    fn drop(&mut self) {
        // Who unmaps the host memory has asked before.
        let _ = self.close();
    }
}

// SAFETY: streams and contexts may be used by any thread; the staging memory's address is only passed on.
unsafe impl Send for CudaCopies {}

impl std::fmt::Debug for CudaCopies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaCopies").field("contexts", &self.streams.len()).finish_non_exhaustive()
    }
}

impl CudaCopies {
    /// For a thread whose copies have one end in `len` bytes at `staging`. `None` if the library lacks a function.
    pub fn new(driver: CudaDriver, staging: *mut u8, len: usize) -> Option<CudaCopies> {
        let functions = Functions::of(&driver)?;
        let staging = (staging, len, PinState::New);
        // The library stays: a thread that closed it would take the loader's lock, which whoever waits for the thread may have.
        core::mem::forget(driver);
        Some(CudaCopies { functions, streams: Vec::new(), staging, closed: Ok(()) })
    }

    /// Whether a library has the functions for copies.
    pub fn has_functions(driver: &CudaDriver) -> bool {
        Functions::of(driver).is_some()
    }

    /// Calls `f` while the context is current.
    fn within<T>(
        &self,
        context: DeviceContext,
        f: impl FnOnce(&Functions) -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        // SAFETY: a context of CUDA's; one that was destroyed gives an error.
        check(unsafe { (self.functions.ctx_push)(context.0 as *mut c_void) })?;
        let result = f(&self.functions);
        let mut popped = null_mut();
        // SAFETY: the result is writable.
        let rc = unsafe { (self.functions.ctx_pop)(&raw mut popped) };
        result.and_then(|value| check(rc).map(|()| value))
    }

    /// The stream of a context.
    fn stream(&mut self, context: DeviceContext) -> Result<*mut c_void, CudaError> {
        if let Some((_, stream)) = self.streams.iter().find(|(of, _)| *of == context) {
            return Ok(*stream);
        }
        if self.streams.len() == CONTEXTS_MAX {
            return Err(CudaError(-1));
        }
        let mut made = null_mut();
        // SAFETY: the result is writable.
        let stream = self.within(context, |f| check(unsafe { (f.stream_create)(&raw mut made, NON_BLOCKING) }));
        if !made.is_null() {
            // Also if the context could not be left.
            self.streams.push((context, made));
        }
        stream?;
        if let (at, len, PinState::New) = self.staging {
            // SAFETY: mapped memory that stays until `close`.
            let pinned = self.within(context, |f| check(unsafe { (f.host_register)(at.cast(), len, PORTABLE) }));
            self.staging.2 = pinned.map_or(PinState::Pageable, |()| PinState::Pinned(context));
        }
        Ok(made)
    }

    /// Begins a copy to a device.
    ///
    /// # Errors
    /// CUDA's: the memory is gone, or the context.
    ///
    /// # Safety
    /// `len` bytes at `from` stay readable until [`CudaCopies::state`] says that the copies have ended.
    pub unsafe fn to_device(
        &mut self,
        context: DeviceContext,
        from: *const u8,
        device: u64,
        len: usize,
    ) -> Result<(), CudaError> {
        let stream = self.stream(context)?;
        // SAFETY: the caller's promise; CUDA checks the address of the device.
        self.within(context, |f| check(unsafe { (f.to_device)(device, from.cast(), len, stream) }))
    }

    /// Begins a copy from a device.
    ///
    /// # Errors
    /// As [`CudaCopies::to_device`].
    ///
    /// # Safety
    /// `len` bytes at `to` stay writable until [`CudaCopies::state`] says that the copies have ended.
    pub unsafe fn from_device(
        &mut self,
        context: DeviceContext,
        device: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<(), CudaError> {
        let stream = self.stream(context)?;
        // SAFETY: the caller's promise; CUDA checks the address of the device.
        self.within(context, |f| check(unsafe { (f.from_device)(to.cast(), device, len, stream) }))
    }

    /// Whether the copies of a context have ended.
    ///
    /// # Errors
    /// CUDA's: one of the copies has failed.
    pub fn state(&mut self, context: DeviceContext) -> Result<CopyState, CudaError> {
        let stream = self.stream(context)?;
        self.query(context, stream)
    }

    /// Waits until no copy is under way, however long CUDA takes, then gives back the streams and what pins the host memory.
    /// Another call has the same answer.
    ///
    /// # Errors
    /// CUDA does not say that its copies have ended, or keeps the memory pinned: it must stay mapped for as long as the process.
    pub fn close(&mut self) -> Result<(), CudaError> {
        for (context, stream) in core::mem::take(&mut self.streams) {
            let ended = self.await_stream(context, stream);
            // SAFETY: a stream of this context, used no more. One that is not destroyed costs CUDA's memory only.
            let _ = self.within(context, |f| check(unsafe { (f.stream_destroy)(stream) }));
            self.closed = self.closed.and(ended);
        }
        if let (at, _, PinState::Pinned(context)) = self.staging {
            // SAFETY: registered memory that no copy uses, or that stays.
            let unpinned = self.within(context, |f| match unsafe { (f.host_unregister)(at.cast()) } {
                0 | NOT_REGISTERED => Ok(()),
                error => Err(CudaError(error)),
            });
            self.closed = self.closed.and(unpinned);
            self.staging.2 = PinState::Pageable;
        }
        self.closed
    }

    fn await_stream(&self, context: DeviceContext, stream: *mut c_void) -> Result<(), CudaError> {
        while self.query(context, stream)? == CopyState::UnderWay {
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn query(&self, context: DeviceContext, stream: *mut c_void) -> Result<CopyState, CudaError> {
        // SAFETY: a stream of this context.
        self.within(context, |f| match unsafe { (f.stream_query)(stream) } {
            0 => Ok(CopyState::Ended),
            NOT_READY => Ok(CopyState::UnderWay),
            error => Err(CudaError(error)),
        })
    }
}
