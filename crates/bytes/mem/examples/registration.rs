//! Prints what registration costs a program: clock and processor time of `register` and `release` by size and kind of memory, and
//! of many small regions. `cargo run --release -p burst-mem --example registration`

use burst_mem::swap::{register, release};
use std::io::Write as _;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

fn anon(len: usize) -> *mut u8 {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

/// Processor time of this process so far.
fn processor_time() -> Duration {
    // SAFETY: all zeroes is a valid `rusage`, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

fn timed<T>(what: impl FnOnce() -> T) -> (T, Duration, Duration) {
    let (start, before) = (Instant::now(), processor_time());
    let result = what();
    (result, start.elapsed(), processor_time() - before)
}

/// What the pages are before they are registered.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Untouched,
    Touched,
    /// Touched, with advice to use huge pages.
    Huge,
}

fn one(len: usize, kind: Kind) -> std::io::Result<()> {
    let at = anon(len);
    if matches!(kind, Kind::Huge) {
        // SAFETY: memory of this function.
        unsafe { libc::madvise(at.cast(), len, libc::MADV_HUGEPAGE) };
    }
    if !matches!(kind, Kind::Untouched) {
        // SAFETY: as above.
        unsafe { at.write_bytes(1, len) };
    }
    let (reg, registered, registered_cpu) = timed(|| register(at as usize, len, true).expect("registered"));
    let way = if reg.is_in_process() { "in the process" } else { "swapped" };
    let ((), released, released_cpu) = timed(|| release(reg));
    // SAFETY: memory of this function, used no more.
    unsafe { libc::munmap(at.cast(), len) };
    let kib = len >> 10;
    writeln!(
        std::io::stdout(),
        "{kib:>8} KiB {kind:<10?} {way:<15} register {registered:>10.1?} (processor {registered_cpu:>10.1?})  \
         release {released:>10.1?} ({released_cpu:>10.1?})"
    )
}

/// Registers every second pair of pages of one mapping.
fn many(count: usize) -> std::io::Result<()> {
    let at = anon(count * 4 * PAGE);
    // SAFETY: memory of this function.
    unsafe { at.write_bytes(1, count * 4 * PAGE) };
    let of = |i: usize| at as usize + i * 4 * PAGE;
    let (regs, registered, registered_cpu) =
        timed(|| (0..count).map(|i| register(of(i), 2 * PAGE, true).expect("registered")).collect::<Vec<_>>());
    let ((), released, released_cpu) = timed(|| regs.into_iter().for_each(release));
    // SAFETY: memory of this function, used no more.
    unsafe { libc::munmap(at.cast(), count * 4 * PAGE) };
    writeln!(
        std::io::stdout(),
        "{count:>8} regions of 8 KiB: register {registered:>10.1?} (processor {registered_cpu:>10.1?})  \
         release {released:>10.1?} ({released_cpu:>10.1?})"
    )
}

fn main() -> std::io::Result<()> {
    // The first registration makes the pool.
    release(register(anon(PAGE) as usize, PAGE, true).expect("registered"));
    for len in [PAGE, 64 << 10, 1 << 20, 1 << 30] {
        for kind in [Kind::Untouched, Kind::Touched, Kind::Huge] {
            one(len, kind)?;
        }
    }
    for count in [7_500, 30_000] {
        many(count)?;
    }
    Ok(())
}
