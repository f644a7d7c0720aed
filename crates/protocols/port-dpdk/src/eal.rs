//! Starts DPDK once per process: memory, processors, log.
//!
//! Memory: huge pages if enough are free (`--in-memory`, which needs no mounted hugetlbfs), else small pages (`--no-huge`), with
//! which every virtual device works. Processors: DPDK gets one lcore, a sleeping thread of this crate that may run on all
//! processors of the process; the workers register themselves and are not pinned. No device is probed at the start: the list of
//! allowed devices names an address that cannot exist, and [`crate::EthDev`] probes its own. Log: every line goes to `tracing`;
//! the last error is kept for the sentence of a refusal.

use crate::ffi;
use burst_port::spec::{DevArgs, Pages};
use core::ffi::{c_char, c_int};
use std::ffi::CString;
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// Bytes of huge pages that must be free for them to be used.
const HUGE_BYTES_MIN: u64 = 64 << 20;
/// MiB of small pages reserved; this is address space, and unused pages cost nothing.
const SMALL_MIB: u32 = 512;
/// A PCI address that no device has, so that only named devices are probed.
const NO_DEVICE: &str = "ffff:ff:1f.7";
/// Log levels `RTE_LOG_ERR`, `RTE_LOG_WARNING`, `RTE_LOG_INFO`.
const LEVEL_ERROR: u32 = 4;
const LEVEL_WARNING: u32 = 5;
const LEVEL_INFO: u32 = 7;
/// Interval of the maintenance of devices.
const MAINTAIN_EVERY: Duration = Duration::from_millis(200);

/// The last line that DPDK logged as an error.
static LAST_ERROR: Mutex<String> = Mutex::new(String::new());
static STARTED: OnceLock<Result<(), String>> = OnceLock::new();

fn last_error_slot() -> MutexGuard<'static, String> {
    LAST_ERROR.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Returns the last error line in parentheses, or nothing, and discards it.
pub fn last_error() -> String {
    let error = std::mem::take(&mut *last_error_slot());
    if error.is_empty() { error } else { format!(" ({error})") }
}

/// Receives a line of DPDK's log.
unsafe extern "C" fn log_line(level: u32, text: *const c_char, length: usize) {
    // SAFETY: the shim passes a buffer of `length` bytes that lives during the call.
    let bytes = unsafe { core::slice::from_raw_parts(text.cast::<u8>(), length) };
    let text = String::from_utf8_lossy(bytes);
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
        tracing::debug!(level, "DPDK: {line}");
        if level <= LEVEL_ERROR {
            *last_error_slot() = line.trim_end_matches('.').to_owned();
        }
    }
}

/// Starts DPDK if it is not running. The choice of memory depends on the first device.
///
/// # Errors
/// One sentence; after a failure every later call returns the same one.
pub fn start(pages: Pages, device: &DevArgs, maintain: fn()) -> Result<(), String> {
    let huge = huge_pages(pages, device)?;
    STARTED.get_or_init(|| start_thread(huge, maintain)).clone()
}

/// Whether to use huge pages.
fn huge_pages(pages: Pages, device: &DevArgs) -> Result<bool, String> {
    let free = free_huge_bytes();
    let enough = free >= HUGE_BYTES_MIN;
    let need = format!(
        "{} MiB of free huge pages are needed, this host has {}; reserve some: echo 64 > /proc/sys/vm/nr_hugepages",
        HUGE_BYTES_MIN >> 20,
        free >> 20
    );
    match pages {
        Pages::Small => Ok(false),
        Pages::Huge if !enough => Err(format!("huge=on: {need}")),
        Pages::Auto if !enough && !device.is_virtual() => Err(format!("device {}: {need}", device.name())),
        Pages::Auto if !enough => {
            tracing::info!("DPDK runs on small pages, because {} MiB of huge pages are free", free >> 20);
            Ok(false)
        }
        Pages::Auto | Pages::Huge => {
            tracing::info!("DPDK runs on huge pages, {} MiB are free", free >> 20);
            Ok(true)
        }
    }
}

/// Bytes of free huge pages of all sizes.
fn free_huge_bytes() -> u64 {
    let Ok(sizes) = std::fs::read_dir("/sys/kernel/mm/hugepages") else { return 0 };
    let free = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let count: u64 = std::fs::read_to_string(entry.path().join("free_hugepages")).ok()?.trim().parse().ok()?;
        Some(count * kib * 1024)
    };
    sizes.flatten().filter_map(free).sum()
}

/// DPDK's main thread: starts DPDK, reports the result, then maintains the devices.
fn start_thread(huge: bool, maintain: fn()) -> Result<(), String> {
    let (sender, answer) = sync_channel(1);
    let run = move || {
        let result = initialise(&words(huge));
        let alive = result.is_ok();
        // The starting thread waits for this one message.
        let _ = sender.send(result);
        if !alive {
            return;
        }
        loop {
            std::thread::sleep(MAINTAIN_EVERY);
            maintain();
        }
    };
    let thread = std::thread::Builder::new().name("burst-dpdk".into()).spawn(run);
    thread.map_err(|e| format!("cannot start DPDK's thread: {e}"))?;
    answer.recv().unwrap_or_else(|_| Err("DPDK's thread has died".into()))
}

/// DPDK's command line.
fn words(huge: bool) -> Vec<String> {
    let memory = if huge { vec!["--in-memory".into(), "--single-file-segments".into()] } else { small_pages() };
    let fixed = ["burstd", "--no-telemetry", "--allow", NO_DEVICE, "--lcores"].map(str::to_owned);
    let prefix = ["--file-prefix".to_owned(), format!("burst{}", std::process::id())];
    [fixed.to_vec(), vec![format!("0@({})", processors())], prefix.to_vec(), memory].concat()
}

fn small_pages() -> Vec<String> {
    ["--no-huge", "--no-shconf", "--iova-mode", "va", "-m"]
        .map(str::to_owned)
        .into_iter()
        .chain([SMALL_MIB.to_string()])
        .collect()
}

/// The processors that this process may use, as a list for DPDK.
fn processors() -> String {
    // SAFETY: `set` is plain data of the size given, which the call fills.
    let set = unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        set
    };
    // SAFETY: the numbers are below the size of the set.
    let has = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    let list: Vec<String> = (0..libc::CPU_SETSIZE as usize).filter(has).map(|cpu| cpu.to_string()).collect();
    if list.is_empty() { "0".into() } else { list.join(",") }
}

fn initialise(words: &[String]) -> Result<(), String> {
    let level = if tracing::enabled!(tracing::Level::DEBUG) { LEVEL_INFO } else { LEVEL_WARNING };
    // SAFETY: `log_line` may be called from any thread, at any time.
    if unsafe { ffi::bd_log_to(log_line, level) } != 0 {
        return Err("cannot take DPDK's log".into());
    }
    tracing::debug!("DPDK's options: {}", words[1..].join(" "));
    let strings: Vec<CString> = words.iter().filter_map(|w| CString::new(w.as_str()).ok()).collect();
    let mut argv: Vec<*mut c_char> = strings.iter().map(|s| s.as_ptr().cast_mut()).collect();
    argv.push(core::ptr::null_mut());
    // SAFETY: `argv` has `argc` strings and a null; DPDK may permute them, and copies what it keeps.
    let error = unsafe { ffi::bd_eal_init(strings.len() as c_int, argv.as_mut_ptr()) };
    // DPDK keeps pointers to these strings, as to the arguments of `main`.
    std::mem::forget(strings);
    if error == 0 {
        return Ok(());
    }
    let error = std::io::Error::from_raw_os_error(-error);
    Err(format!("DPDK does not start: {error}{}; --log-level debug shows what it says", last_error()))
}
