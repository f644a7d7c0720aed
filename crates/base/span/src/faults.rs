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
//! x86-64 only; elsewhere nothing is caught. A handler that the program installs after this one has to pass on what is not its
//! own, as handlers of other libraries' faults do.

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

/// The frames on the stack.
#[cfg(target_arch = "x86_64")]
mod frames {
    use core::ffi::c_void;

    pub(super) const CAN_GUARD: bool = true;
    /// The words of a frame's mark; the second is combined with the frame's address.
    const MARK: u64 = 0x6275_7273_745f_6672;
    const MARK_OF_ADDRESS: u64 = 0xa6d1_3f58_0c97_e24b;
    /// Bytes of stack between the frame and a fault: copies and checksums are shallow.
    const DEPTH_MAX: u64 = 32 << 10;
    /// Words read at a time.
    const WORDS: usize = 64;

    // The frame, from its address on: the two words of the mark, the address to continue at, padding, then the registers.
    core::arch::global_asm!(
        ".pushsection .text.burst_span_guarded_call,\"ax\",@progbits",
        ".globl burst_span_guarded_call",
        ".hidden burst_span_guarded_call",
        ".type burst_span_guarded_call,@function",
        "burst_span_guarded_call:",
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbp, 0",
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbx, 0",
        "push r12",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r12, 0",
        "push r13",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r13, 0",
        "push r14",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r14, 0",
        "push r15",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r15, 0",
        "sub rsp, 40",
        ".cfi_adjust_cfa_offset 40",
        "lea rax, [rip + 3f]",
        "mov [rsp + 16], rax",
        "movabs rax, {of_address}",
        "xor rax, rsp",
        "mov [rsp + 8], rax",
        "movabs rax, {mark}",
        "mov [rsp], rax",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "mov eax, 1",
        "2:",
        "mov qword ptr [rsp], 0",
        "mov qword ptr [rsp + 8], 0",
        "add rsp, 40",
        ".cfi_remember_state",
        ".cfi_adjust_cfa_offset -40",
        "pop r15",
        ".cfi_adjust_cfa_offset -8",
        "pop r14",
        ".cfi_adjust_cfa_offset -8",
        "pop r13",
        ".cfi_adjust_cfa_offset -8",
        "pop r12",
        ".cfi_adjust_cfa_offset -8",
        "pop rbx",
        ".cfi_adjust_cfa_offset -8",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        // Where a fault continues, with the frame's address as the stack pointer.
        "3:",
        ".cfi_restore_state",
        "xor eax, eax",
        "jmp 2b",
        ".cfi_endproc",
        ".size burst_span_guarded_call, . - burst_span_guarded_call",
        ".popsection",
        mark = const MARK,
        of_address = const MARK_OF_ADDRESS,
    );

    // SAFETY: the assembly above defines the symbol, with this signature by the C ABI.
    unsafe extern "C" {
        /// Calls `f(data)` behind a frame. 1: it has returned; 0: it was left at a fault.
        fn burst_span_guarded_call(f: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> u32;
    }

    /// Calls `f(data)`. False: it was left at a fault.
    pub(super) unsafe fn call(f: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> bool {
        // SAFETY: the caller's promise.
        unsafe { burst_span_guarded_call(f, data) != 0 }
    }

    /// Lets the thread continue behind the frame above the fault. False: there is none.
    pub(super) unsafe fn leave(context: *mut c_void) -> bool {
        // SAFETY: the kernel gives the handler a `ucontext_t`.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let stack = registers[libc::REG_RSP as usize] as u64;
        let Some((frame, landing)) = find(stack.next_multiple_of(8)) else { return false };
        registers[libc::REG_RSP as usize] = frame as i64;
        registers[libc::REG_RIP as usize] = landing as i64;
        // The direction flag: a copy from the end sets it.
        registers[libc::REG_EFL as usize] &= !(1 << 10);
        true
    }

    /// Address and landing of the first frame above `stack`.
    fn find(stack: u64) -> Option<(u64, u64)> {
        let (mut words, mut at) = ([0u64; WORDS], stack);
        while at < stack + DEPTH_MAX {
            let read = read_words(at, &mut words);
            // The three words of a frame; the last words of this piece are the first of the next.
            for (i, three) in words[..read].windows(3).enumerate() {
                let frame = at + 8 * i as u64;
                if three[0] == MARK && three[1] == MARK_OF_ADDRESS ^ frame {
                    return Some((frame, three[2]));
                }
            }
            if read < WORDS {
                return None;
            }
            at += 8 * (WORDS as u64 - 2);
        }
        None
    }

    /// Reads words of this process from `at` on; fewer where its memory ends.
    fn read_words(at: u64, words: &mut [u64; WORDS]) -> usize {
        let bytes = size_of_val(words);
        let to = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: bytes };
        let from = libc::iovec { iov_base: at as *mut c_void, iov_len: bytes };
        // SAFETY: the kernel checks the addresses; `words` is writable.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
        usize::try_from(read).unwrap_or(0) / 8
    }
}

/// Nothing is caught.
#[cfg(not(target_arch = "x86_64"))]
mod frames {
    use core::ffi::c_void;

    pub(super) const CAN_GUARD: bool = false;

    pub(super) unsafe fn call(f: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> bool {
        // SAFETY: the caller's promise.
        unsafe { f(data) };
        true
    }
    pub(super) unsafe fn leave(_context: *mut c_void) -> bool {
        false
    }
}
