//! The connection to a host in this process: the library with the host is loaded when the first session opens.
//!
//! The library lies beside the one that loads it. Both drop-in libraries get the same instance, because the dynamic linker
//! loads a file once. It is never unloaded.

use burst_control::in_process::{
    CALLS_SYMBOL, InProcessCalls, InProcessLink, InProcessPacket, InProcessReply, LIBRARY,
};
use burst_control::{ControlError, FDS_MAX};
use burst_shm::ABI_VERSION;
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Bytes of a sentence of the host.
const SENTENCE_MAX: usize = 1024;

/// The host of this process.
#[derive(Clone, Copy, Debug)]
pub struct LoadedHost {
    /// Its functions.
    pub calls: InProcessCalls,
}

impl LoadedHost {
    /// Loads the library, once.
    ///
    /// # Errors
    /// [`ControlError::Connect`] if it cannot be loaded, [`ControlError::Version`] if it is of another version.
    pub fn get() -> Result<LoadedHost, ControlError> {
        static LOADED: OnceLock<Result<LoadedHost, String>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| load(own_directory().as_deref()));
        let host = loaded.as_ref().map_err(|why| no_host(why.clone()))?;
        if host.calls.version != ABI_VERSION {
            let (ours, theirs) = (ABI_VERSION, host.calls.version);
            return Err(ControlError::Version { ours, theirs, sentence: format!("{LIBRARY} is of another build") });
        }
        Ok(*host)
    }
}

fn no_host(why: String) -> ControlError {
    let source = std::io::Error::new(std::io::ErrorKind::NotFound, why);
    ControlError::Connect { path: "a host in this process".into(), source }
}

/// The directory of the object that holds this code.
fn own_directory() -> Option<PathBuf> {
    // SAFETY: `info` is plain data that the call fills; the address is of this function.
    let path = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(own_directory as *const () as *const _, &mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(info.dli_fname)
    };
    Path::new(std::ffi::OsStr::from_bytes(path.to_bytes())).parent().map(Path::to_owned)
}

fn load(directory: Option<&Path>) -> Result<LoadedHost, String> {
    let beside = directory.map(|d| d.join(LIBRARY)).filter(|path| path.exists());
    let file = beside.unwrap_or_else(|| LIBRARY.into());
    let name = CString::new(file.as_os_str().as_bytes()).map_err(|e| e.to_string())?;
    // SAFETY: a C string. The library's constructors are those of the Rust runtime.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE) };
    if handle.is_null() {
        // SAFETY: after a failure of `dlopen` there is a string, valid until the next call of this thread.
        let why = unsafe { libc::dlerror().as_ref().map(|text| CStr::from_ptr(text).to_string_lossy().into_owned()) };
        return Err(why.unwrap_or_else(|| format!("{LIBRARY} cannot be loaded")));
    }
    // SAFETY: an open handle and a C string.
    let symbol = unsafe { libc::dlsym(handle, CALLS_SYMBOL.as_ptr()) };
    if symbol.is_null() {
        return Err(format!("{} has no host", file.display()));
    }
    // SAFETY: the symbol of Burst's own library has this type in all versions; its table begins with the version.
    unsafe {
        let calls: extern "C" fn() -> *const InProcessCalls = std::mem::transmute(symbol);
        let table = calls();
        if (*table).version != ABI_VERSION {
            return Err(format!("{} is of another version", file.display()));
        }
        Ok(LoadedHost { calls: *table })
    }
}

/// Opens a session with the host of this process.
///
/// # Errors
/// [`ControlError::Connect`], with the host's sentence.
pub fn open_session() -> Result<Arc<dyn InProcessLink>, ControlError> {
    let LoadedHost { calls } = LoadedHost::get()?;
    let mut why = [0u8; SENTENCE_MAX];
    // SAFETY: writable bytes.
    let session = unsafe { (calls.open)(why.as_mut_ptr(), why.len()) };
    if session == 0 {
        let sentence = why.split(|byte| *byte == 0).next().unwrap_or_default();
        return Err(no_host(String::from_utf8_lossy(sentence).into_owned()));
    }
    Ok(Arc::new(HostSession { calls, session }))
}

/// A session with the host of this process.
#[derive(Debug)]
struct HostSession {
    calls: InProcessCalls,
    session: u64,
}

impl InProcessLink for HostSession {
    fn call(
        &self,
        packet: &[u8],
        fds: &[BorrowedFd<'_>],
        reply: &mut [u8],
    ) -> Result<(usize, Vec<OwnedFd>), ControlError> {
        debug_assert!(fds.len() <= FDS_MAX);
        let numbers: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let sent = InProcessPacket {
            bytes: packet.as_ptr(),
            len: packet.len(),
            fds: numbers.as_ptr(),
            fd_count: numbers.len(),
        };
        let bytes = if reply.is_empty() { std::ptr::null_mut() } else { reply.as_mut_ptr() };
        let mut answer = InProcessReply { bytes, len: reply.len(), fds: [-1; FDS_MAX], fd_count: 0 };
        // SAFETY: both structs are valid, their pointers have room for the lengths beside them.
        let errno = unsafe { (self.calls.call)(self.session, &sent, &mut answer) };
        let received = answer.fds.iter().take(answer.fd_count);
        // SAFETY: the host gives these descriptors to this caller.
        let received = received.map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }).collect();
        if errno != 0 { Err(ControlError::Closed) } else { Ok((answer.len, received)) }
    }

    fn is_open(&self) -> bool {
        (self.calls.is_open)(self.session) != 0
    }
}

impl Drop for HostSession {
    fn drop(&mut self) {
        (self.calls.close)(self.session);
    }
}
