//! The frames on the stack: from the frame's address on, the two words of the mark, the address to continue at, one word of
//! padding, then the registers that a function must preserve. How they are written and left is the processor's matter.

use core::ffi::c_void;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
use aarch64 as processor;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
use x86_64 as processor;

pub(super) const CAN_GUARD: bool = true;

/// The words of a frame's mark; the second is combined with the frame's address.
const MARK: u64 = 0x6275_7273_745f_6672;
const MARK_OF_ADDRESS: u64 = 0xa6d1_3f58_0c97_e24b;

/// Calls `f(data)` behind a frame. False: it was left at a fault.
///
/// # Safety
/// `f(data)` may be called, and left at each access to memory.
pub(super) unsafe fn call(f: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> bool {
    // SAFETY: the processor's assembly defines the symbol, with this signature by the C ABI.
    unsafe extern "C" {
        /// Calls `f(data)` behind a frame. 1: it has returned; 0: it was left at a fault.
        fn burst_span_guarded_call(f: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> u32;
    }
    // SAFETY: the caller's promise.
    unsafe { burst_span_guarded_call(f, data) != 0 }
}

/// Lets the thread continue behind the frame above the fault. False: there is none.
///
/// # Safety
/// `context` is what the kernel gave the handler.
pub(super) unsafe fn leave(context: *mut c_void) -> bool {
    // SAFETY: the kernel gives the handler a `ucontext_t`.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    let Some((frame, landing)) = find(processor::stack(registers).next_multiple_of(8)) else { return false };
    processor::resume(registers, frame, landing);
    true
}

/// Address and landing of the first frame above `stack`.
fn find(stack: u64) -> Option<(u64, u64)> {
    /// Bytes of stack between the frame and a fault: copies and checksums are shallow.
    const DEPTH_MAX: u64 = 32 << 10;
    /// Words read at a time.
    const WORDS: usize = 64;
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
fn read_words(at: u64, words: &mut [u64]) -> usize {
    let bytes = size_of_val(words);
    let to = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: bytes };
    let from = libc::iovec { iov_base: at as *mut c_void, iov_len: bytes };
    // SAFETY: the kernel checks the addresses; `words` is writable.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
    usize::try_from(read).unwrap_or(0) / 8
}
