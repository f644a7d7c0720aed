//! Pages that never come: a program maps a file of its own FUSE file system, whose server does not answer.
//!
//! Mounting needs privileges; without them the test says so and passes.

use burst_span::{AccessThreads, LATE_MAX, ProcessMemory, THREADS_MAX, Unreachable, WAIT_MAX};
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const FILE_BYTES: u64 = 64 * PAGE as u64;

/// A FUSE file system with one file, `f`, whose pages are never read.
struct Silent {
    mounted: PathBuf,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

/// Operations of linux/fuse.h.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;

/// `struct fuse_attr`: 88 bytes.
fn attributes(node: u64) -> Vec<u8> {
    let mode: u32 = if node == 1 { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o666 };
    let mut bytes = [node, FILE_BYTES, 0, 0, 0, 0].map(u64::to_ne_bytes).concat();
    bytes.extend([0, 0, 0, mode, 1, 0, 0, 0, 0, 0].map(u32::to_ne_bytes).concat());
    bytes.resize(88, 0);
    bytes
}

/// The answer to a request; `None`: there is none.
fn answer(operation: u32, node: u64) -> Option<Result<Vec<u8>, i32>> {
    let padded = |mut bytes: Vec<u8>, len| {
        bytes.resize(len, 0);
        bytes
    };
    Some(Ok(match operation {
        INIT => {
            let head = [7u32, 31, 65_536, 0, 0, 65_536].map(u32::to_ne_bytes).concat();
            padded(head, 64)
        }
        // Valid for 100 s.
        GETATTR => [[100u64, 0].map(u64::to_ne_bytes).concat(), attributes(node)].concat(),
        LOOKUP => [[2u64, 0, 100, 100, 0].map(u64::to_ne_bytes).concat(), attributes(2)].concat(),
        OPEN => vec![0; 16],
        READ | FORGET | INTERRUPT => return None,
        _ => return Some(Err(libc::ENOSYS)),
    }))
}

fn serve(mut device: File, stop: &AtomicBool) {
    let mut buffer = vec![0; 1 << 17];
    while !stop.load(SeqCst) {
        let mut fds = [libc::pollfd { fd: device.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        // SAFETY: one entry.
        if unsafe { libc::poll(fds.as_mut_ptr(), 1, 20) } <= 0 {
            continue;
        }
        let Ok(len) = device.read(&mut buffer) else { continue };
        assert!(len >= 40);
        let word = |at: usize| u32::from_ne_bytes(buffer[at..at + 4].try_into().expect("four"));
        let long = |at: usize| u64::from_ne_bytes(buffer[at..at + 8].try_into().expect("eight"));
        let (error, body) = match answer(word(4), long(16)) {
            None => continue,
            Some(Ok(body)) => (0, body),
            Some(Err(errno)) => (-errno, Vec::new()),
        };
        let mut reply = (16 + body.len() as u32).to_ne_bytes().to_vec();
        reply.extend(error.to_ne_bytes());
        reply.extend(long(8).to_ne_bytes());
        reply.extend(body);
        let _ = device.write(&reply);
    }
    // Closing the device ends all requests with an error.
}

impl Silent {
    /// `None`, with a line that says so, where this process may not mount.
    fn mount(name: &str) -> Option<Silent> {
        let silent = Silent::try_mount(name);
        if silent.is_none() {
            eprintln!("SKIPPED: a FUSE file system cannot be mounted here");
        }
        silent
    }

    fn try_mount(name: &str) -> Option<Silent> {
        let mounted = std::env::temp_dir().join(format!("burst-silent-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&mounted).ok()?;
        let device = File::options().read(true).write(true).open("/dev/fuse").ok()?;
        let text = |s: &str| CString::new(s).expect("no NUL");
        let options = text(&format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd()));
        let path = text(mounted.to_str().expect("UTF-8"));
        // SAFETY: strings that end with NUL.
        let done = unsafe {
            libc::mount(c"burst".as_ptr(), path.as_ptr(), c"fuse".as_ptr(), libc::MS_NODEV, options.as_ptr().cast())
        };
        if done != 0 {
            let _ = std::fs::remove_dir(&mounted);
            return None;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let of_thread = stop.clone();
        let server = std::thread::spawn(move || serve(device, &of_thread));
        Some(Silent { mounted, stop, server: Some(server) })
    }

    fn file(&self) -> File {
        File::options().read(true).write(true).open(self.mounted.join("f")).expect("the file")
    }

    /// Ends the file system: what waits for a page fails.
    fn end(&mut self) {
        self.stop.store(true, SeqCst);
        if let Some(server) = self.server.take() {
            server.join().expect("the server");
        }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.end();
        let path = CString::new(self.mounted.to_str().expect("UTF-8")).expect("no NUL");
        // SAFETY: a string that ends with NUL.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        let _ = std::fs::remove_dir(Path::new(&self.mounted));
    }
}

/// A process that has mapped a file, and a page of its own behind it.
struct Victim {
    pid: libc::pid_t,
    /// Address of the file's first page.
    file_at: u64,
    /// Address of the private page.
    own_at: u64,
}

impl Victim {
    fn start(file: &File) -> Victim {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        // SAFETY: the child makes system calls only.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: new mappings at addresses that the kernel chooses, and a write of two words of this stack.
            unsafe {
                let (len, prot) = (FILE_BYTES as usize, libc::PROT_READ | libc::PROT_WRITE);
                let mapped = libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                let own = libc::mmap(std::ptr::null_mut(), PAGE, prot, flags, -1, 0);
                let words = [mapped as u64, own as u64];
                libc::write(ends[1], words.as_ptr().cast(), 16);
                // The FUSE device too: the file system must end with this test's descriptor.
                libc::close_range(0, u32::MAX, 0);
                loop {
                    libc::pause();
                }
            }
        }
        assert!(pid > 0);
        let mut words = [0; 16];
        // SAFETY: nothing else has the pipe's ends.
        unsafe {
            drop(File::from_raw_fd(ends[1]));
            File::from_raw_fd(ends[0]).read_exact(&mut words).expect("two addresses");
        }
        let word = |at: usize| u64::from_ne_bytes(words[at..at + 8].try_into().expect("eight"));
        Victim { pid, file_at: word(0), own_at: word(8) }
    }

    fn memory(&self, threads: &AccessThreads) -> ProcessMemory {
        // SAFETY: no arguments.
        let uid = unsafe { libc::getuid() };
        ProcessMemory::open(self.pid as u32, uid).expect("a child").by_threads(threads).expect("a descriptor")
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // SAFETY: a child of this process; no other code waits for it.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// Longer than a wait for a page, shorter than an access that blocks, which is one for ever. Generous: the machine may be busy.
const SHORT: Duration = Duration::from_secs(3);

fn is_short<R>(f: impl FnOnce() -> R) -> R {
    let begun = Instant::now();
    let result = f();
    assert!(begun.elapsed() < SHORT, "{:?}", begun.elapsed());
    result
}

fn until(what: &str, mut f: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !f() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Repeats an access that was late, as a machine with other work makes it.
fn soon(mut access: impl FnMut() -> Result<(), Unreachable>) -> Result<(), Unreachable> {
    let mut result = is_short(&mut access);
    until("the access is late", || {
        if result == Err(Unreachable::Late) {
            result = is_short(&mut access);
        }
        result != Err(Unreachable::Late)
    });
    result
}

#[test]
fn a_page_that_never_comes_blocks_no_caller_and_no_other_process() {
    let Some(mut silent) = Silent::mount("one") else { return };
    const { assert!(WAIT_MAX.as_millis() < SHORT.as_millis()) };
    let file = silent.file();
    let (hostile, honest) = (Victim::start(&file), Victim::start(&file));
    let threads = AccessThreads::default();
    let (memory, other) = (hostile.memory(&threads), honest.memory(&threads));
    let mut out = [7; 16];
    soon(|| memory.span(hostile.own_at, 16).read_to(&mut out)).expect("a page that is there");
    assert_eq!(out, [0; 16]);
    // The read blocks its thread; later accesses to the same process are not begun.
    let page = memory.span(hostile.file_at, 16);
    assert_eq!(is_short(|| page.read_to(&mut out)), Err(Unreachable::Late));
    assert_eq!(is_short(|| memory.span(hostile.own_at, 16).write_from(&[1; 16])), Err(Unreachable::Late));
    assert!(!memory.has_failed());
    // Another process of the same account is reached.
    for round in 0..100u8 {
        soon(|| other.span(honest.own_at, 16).write_from(&[round; 16])).expect("written");
        soon(|| other.span(honest.own_at, 16).read_to(&mut out)).expect("read");
        assert_eq!(out, [round; 16]);
    }
    until("the page is late for ever", || memory.has_failed());
    assert_eq!(is_short(|| page.read_to(&mut out)), Err(Unreachable::Gone));
    // When the access has ended at last, the memory can be used again.
    silent.end();
    until("the access ends with its file system", || !memory.has_failed());
    soon(|| memory.span(hostile.own_at, 16).read_to(&mut out)).expect("a page that is there");
    assert_eq!(soon(|| page.read_to(&mut out)), Err(Unreachable::Gone), "an error of the file system");
    assert!(LATE_MAX >= WAIT_MAX);
}

#[test]
fn an_account_with_all_threads_blocked_fails_at_once() {
    let Some(silent) = Silent::mount("all") else { return };
    let file = silent.file();
    let threads = AccessThreads::default();
    let victims: Vec<Victim> = (0..THREADS_MAX + 1).map(|_| Victim::start(&file)).collect();
    let memories: Vec<ProcessMemory> = victims.iter().map(|victim| victim.memory(&threads)).collect();
    for (victim, memory) in victims.iter().zip(&memories) {
        assert_eq!(is_short(|| memory.span(victim.file_at, 8).read_to(&mut [0; 8])), Err(Unreachable::Late));
    }
    let last = memories.last().expect("one");
    let at = victims.last().expect("one").own_at;
    assert_eq!(is_short(|| last.span(at, 8).read_to(&mut [0; 8])), Err(Unreachable::Late), "no thread is left");
    let others = AccessThreads::default();
    let victim = Victim::start(&file);
    let memory = victim.memory(&others);
    assert_eq!(soon(|| memory.span(victim.own_at, 8).write_from(&[1; 8])), Ok(()));
}
