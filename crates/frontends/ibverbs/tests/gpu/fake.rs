//! The fake CUDA driver library, compiled and loaded, as a program has it.

use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

type SetNumber = unsafe extern "C" fn(c_int);
type Count = unsafe extern "C" fn() -> c_int;

/// The functions that the tests call.
pub struct FakeCuda {
    alloc: unsafe extern "C" fn(*mut u64, usize) -> c_int,
    free: unsafe extern "C" fn(u64) -> c_int,
    put: unsafe extern "C" fn(u64, *const c_void, usize) -> c_int,
    get: unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int,
    push: unsafe extern "C" fn(*mut c_void) -> c_int,
    pop: unsafe extern "C" fn(*mut *mut c_void) -> c_int,
    hold: SetNumber,
    fail_next: SetNumber,
    fail_query: SetNumber,
    copies: unsafe extern "C" fn() -> u64,
    pinned: Count,
    streams: Count,
    context: *mut c_void,
}
// SAFETY: the functions may be called by any thread.
unsafe impl Send for FakeCuda {}
// SAFETY: as above.
unsafe impl Sync for FakeCuda {}

/// One test at a time: the delays, failures and counts are the library's.
pub fn lock() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The library, loaded once; `None` without a C compiler.
pub fn cuda() -> Option<&'static FakeCuda> {
    static CUDA: OnceLock<Option<FakeCuda>> = OnceLock::new();
    CUDA.get_or_init(load).as_ref()
}

fn load() -> Option<FakeCuda> {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-device-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let file = dir.join("libcuda.so.1");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../base/cuda/tests/fake_cuda.c");
    let mut compiler = std::process::Command::new("cc");
    compiler
        .args(["-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1", "-o"])
        .arg(&file)
        .arg(source)
        .arg("-lpthread");
    if !compiler.status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: no C compiler");
        return None;
    }
    // SAFETY: before the library reads its environment, and no other thread does: each test takes the lock first.
    unsafe {
        std::env::set_var("BURST_FAKE_CUDA_DELAY_US", "300");
        if std::env::var_os("BURST_FAKE_CUDA_SEED").is_none() {
            std::env::set_var("BURST_FAKE_CUDA_SEED", "1");
        }
        // Also before the daemon starts, which inherits it.
        if std::env::var_os("BURST_GPU").is_none() {
            std::env::set_var("BURST_GPU", "on");
        }
    }
    let path = CString::new(file.as_os_str().as_bytes()).expect("no zero byte");
    // SAFETY: a library without constructors.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    std::fs::remove_dir_all(&dir).expect("removed");
    assert!(!library.is_null(), "the fake library loads");
    let symbol = |name: &CStr| {
        // SAFETY: a loaded library and a terminated name.
        let at = unsafe { libc::dlsym(library, name.as_ptr()) };
        assert!(!at.is_null(), "{name:?}");
        at
    };
    // SAFETY: the functions of fake_cuda.c have these types.
    unsafe {
        type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
        let retain = std::mem::transmute::<*mut c_void, Retain>(symbol(c"cuDevicePrimaryCtxRetain"));
        let mut context = null_mut();
        assert_eq!(retain(&mut context, 0), 0);
        Some(FakeCuda {
            alloc: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut u64, usize) -> c_int>(symbol(
                c"cuMemAlloc_v2",
            )),
            free: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64) -> c_int>(symbol(c"cuMemFree_v2")),
            put: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64, *const c_void, usize) -> c_int>(symbol(
                c"cuMemcpyHtoD_v2",
            )),
            get: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int>(symbol(
                c"cuMemcpyDtoH_v2",
            )),
            push: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> c_int>(symbol(
                c"cuCtxPushCurrent_v2",
            )),
            pop: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut *mut c_void) -> c_int>(symbol(
                c"cuCtxPopCurrent_v2",
            )),
            hold: std::mem::transmute::<*mut c_void, SetNumber>(symbol(c"fake_cuda_hold")),
            fail_next: std::mem::transmute::<*mut c_void, SetNumber>(symbol(c"fake_cuda_fail_next")),
            fail_query: std::mem::transmute::<*mut c_void, SetNumber>(symbol(c"fake_cuda_fail_query")),
            pinned: std::mem::transmute::<*mut c_void, Count>(symbol(c"fake_cuda_pinned")),
            streams: std::mem::transmute::<*mut c_void, Count>(symbol(c"fake_cuda_streams")),
            copies: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> u64>(symbol(c"fake_cuda_copies")),
            context,
        })
    }
}

impl FakeCuda {
    fn within<T>(&self, f: impl FnOnce() -> T) -> T {
        // SAFETY: the library's context and a writable result.
        unsafe {
            assert_eq!((self.push)(self.context), 0);
            let result = f();
            let mut popped = null_mut();
            assert_eq!((self.pop)(&mut popped), 0);
            result
        }
    }
    /// Memory of the device.
    pub fn alloc(&self, len: usize) -> u64 {
        let mut device = 0;
        // SAFETY: a writable result.
        assert_eq!(self.within(|| unsafe { (self.alloc)(&mut device, len) }), 0);
        device
    }
    /// Frees memory, registered or not.
    pub fn free(&self, device: u64) {
        // SAFETY: the library checks the address.
        assert_eq!(unsafe { (self.free)(device) }, 0);
    }
    /// Copies bytes to the device.
    pub fn put(&self, device: u64, bytes: &[u8]) {
        // SAFETY: readable bytes; the library checks the address.
        assert_eq!(self.within(|| unsafe { (self.put)(device, bytes.as_ptr().cast(), bytes.len()) }), 0);
    }
    /// Bytes of the device.
    pub fn get(&self, device: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: writable bytes; the library checks the address.
        assert_eq!(self.within(|| unsafe { (self.get)(bytes.as_mut_ptr().cast(), device, len) }), 0);
        bytes
    }
    /// Stops the asynchronous copies, or lets them go on.
    pub fn hold(&self, hold: bool) {
        // SAFETY: sets a flag.
        unsafe { (self.hold)(c_int::from(hold)) };
    }
    /// The asynchronous copy behind the next `count` fails.
    pub fn fail_next(&self, count: i32) {
        // SAFETY: sets a number.
        unsafe { (self.fail_next)(count) };
    }
    /// The question for the end of copies behind the next `count` fails.
    pub fn fail_query(&self, count: i32) {
        // SAFETY: sets a number.
        unsafe { (self.fail_query)(count) };
    }
    /// Registered host memory and streams that have not been given back.
    pub fn kept(&self) -> (i32, i32) {
        // SAFETY: both only count.
        unsafe { ((self.pinned)(), (self.streams)()) }
    }
    /// Asynchronous copies so far.
    pub fn copies(&self) -> u64 {
        // SAFETY: reads a number.
        unsafe { (self.copies)() }
    }
}
