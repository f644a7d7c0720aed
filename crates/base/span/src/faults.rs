//! Local memory that the program may take away at any time: an engine inside the program reaches registered memory by its
//! address, and the program may unmap or protect it.
//!
//! Once [`catch_faults`] was called, each copy runs behind a frame that [`guarded`] puts on the stack: a mark, the address to
//! continue at, and the registers that a function must preserve. The handler of SIGSEGV and SIGBUS looks for such a frame above
//! the stack pointer of the fault. If there is one, the thread continues behind the copy, which has failed then; the caller tries
//! again by `/proc/self/mem` ([`read`], [`write`]), which reaches protected pages as if they were pinned, and fails for
//! pages that are gone. A fault without a frame is the program's: it goes to the handler before this one, with its flags and
//! mask, or ends the process as it would have.
//!
//! A copy costs a call and some twenty stores to the stack, no system call: 5 to 7 ns (`cargo bench -p burst-span --bench
//! faults`, 2026-11-29: 8 bytes take 9.2 ns instead of 4.4, 4,096 bytes 52 instead of 47, 64 KiB 1 % longer). Frames are marked
//! by two words, one of which contains the frame's address, and the mark is erased when the copy ends. So what a former frame
//! has left on a stack is no frame. The handler reads the stack by a system call, because the end of the stack may be near.
//!
//! A thread that blocks SIGSEGV or SIGBUS does not come to the handler: the kernel ends the process. The engine's own thread
//! blocks neither; a thread of the program that polls may.
//!
//! x86-64 and aarch64 only; elsewhere nothing is caught. A handler that the program installs after this one has to pass on
//! what is not its own, as handlers of other libraries' faults do.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod frames;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "faults/no_frames.rs"]
mod frames;

use crate::Unreachable;
use crate::remote::ProcessMemory;
use core::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether copies are guarded.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// Whether copies are guarded.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    // Relaxed: set before the first span of memory that may go is made.
    IS_ON.load(Ordering::Relaxed)
}

/// Makes accesses to local spans fail, or take another way, where they would end the process by SIGSEGV or SIGBUS. Takes over
/// both signals, once. False where this is not possible.
pub fn catch_faults() -> bool {
    static CAUGHT: OnceLock<bool> = OnceLock::new();
    *CAUGHT.get_or_init(|| {
        let caught = frames::CAN_GUARD && SIGNALS.iter().all(take_over);
        IS_ON.store(caught, Ordering::Relaxed);
        caught
    })
}

/// Runs `f`. False: an access of `f` has met memory that is gone or protected, and `f` was left there.
///
/// # Safety
/// `f` may be left at each access to memory: it copies or computes, holds no lock and nothing that has to be dropped, and
/// allocates nothing. It does not panic.
pub(crate) unsafe fn guarded<F: FnOnce()>(f: F) -> bool {
    const { assert!(!std::mem::needs_drop::<F>(), "it may be left anywhere") };
    /// Calls the closure in `data`.
    unsafe extern "C" fn run<F: FnOnce()>(data: *mut c_void) {
        // SAFETY: `data` is the option below, which outlives the call.
        if let Some(f) = unsafe { (*data.cast::<Option<F>>()).take() } {
            f();
        }
    }
    let mut f = Some(f);
    // SAFETY: the function calls `run` with the option.
    unsafe { frames::call(run::<F>, (&raw mut f).cast()) }
}

/// Copies from this process's memory, as the kernel reaches it.
#[cold]
pub(crate) fn read(addr: u64, dst: &mut [u8]) -> Result<(), Unreachable> {
    // Opened for each access: a child after fork has other memory.
    let memory = ProcessMemory::own().map_err(|_| Unreachable::Gone)?;
    memory.span(addr, dst.len() as u32).read_to(dst)
}

/// Copies to this process's memory, as the kernel reaches it.
#[cold]
pub(crate) fn write(addr: u64, src: &[u8]) -> Result<(), Unreachable> {
    let memory = ProcessMemory::own().map_err(|_| Unreachable::Gone)?;
    memory.span(addr, src.len() as u32).write_from(src)
}

/// A signal that is taken over, and its action before.
struct TakenSignal {
    number: libc::c_int,
    before: OnceLock<libc::sigaction>,
}

static SIGNALS: [TakenSignal; 2] = [
    TakenSignal { number: libc::SIGSEGV, before: OnceLock::new() },
    TakenSignal { number: libc::SIGBUS, before: OnceLock::new() },
];

/// Installs the handler, with the flags and the mask that the program's has.
fn take_over(signal: &TakenSignal) -> bool {
    // SAFETY: plain structs, and a handler with the signature that SA_SIGINFO asks for.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal.number, std::ptr::null(), &mut before) != 0 {
            return false;
        }
        let is_handled = !matches!(before.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        let mut action = before;
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | if is_handled { before.sa_flags } else { libc::SA_ONSTACK };
        // The handler resets it itself, if the fault is not one of a copy.
        action.sa_flags &= !libc::SA_RESETHAND;
        // Before the handler can be called.
        let _ = signal.before.set(before);
        libc::sigaction(signal.number, &action, std::ptr::null_mut()) == 0
    }
}

extern "C" fn on_fault(number: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives valid arguments; errno belongs to this thread.
    let left = unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        // Codes above 0 are the kernel's: a fault, not a `kill`.
        let left = (*info).si_code > 0 && frames::leave(context);
        *errno = saved;
        left
    };
    if !left {
        // SAFETY: the kernel's arguments.
        unsafe { pass_on(number, info, context) };
    }
}

/// Does what would have been done without the handler.
unsafe fn pass_on(number: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(before) = SIGNALS.iter().find(|s| s.number == number).and_then(|s| s.before.get()) else { return };
    match before.sa_sigaction {
        // The access is repeated and ends the process. A signal that another process has sent is sent again.
        // SAFETY: an action that the kernel gave; numbers.
        libc::SIG_DFL | libc::SIG_IGN => unsafe {
            let is_sent = (*info).si_code <= 0;
            if is_sent && before.sa_sigaction == libc::SIG_IGN {
                return;
            }
            libc::sigaction(number, before, std::ptr::null_mut());
            if is_sent {
                libc::raise(number);
            }
        },
        // SAFETY: an action that the kernel gave: its handler has the arguments that its flags say.
        handler => unsafe {
            if before.sa_flags & libc::SA_RESETHAND != 0 {
                libc::signal(number, libc::SIG_DFL);
            }
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut c_void) =
                    std::mem::transmute(handler);
                handler(number, info, context);
            } else {
                let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
                handler(number);
            }
        },
    }
}
