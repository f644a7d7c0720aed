//! Memory that a device has pinned is never swapped: the device keeps the pages that were mapped when it pinned them, and
//! the processor must go on seeing the same ones.
//!
//! io_uring's fixed buffers pin for real. CUDA is a fake library (`fake_cuda.c`, compiled here) whose device reads the
//! pages that were pinned. Each test runs in a process of its own, because pins are looked for in the whole process:
//! the test starts this program again for its name and with the environment that it needs.
use burst_base::verbs::access;
use burst_mem::region::MapPiece;
use burst_mem::swap::{PieceSource, RegisterError, Registration, register, release};
use burst_mem::{ProcessMemory, Region};
use std::ffi::{CString, c_int, c_uint, c_void};
use std::io::Write as _;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

const PAGE: usize = 4096;
const RIGHTS: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE;
/// Set in the process that runs one test alone.
const ALONE: &str = "BURST_TEST_ALONE";

/// Runs `body` in a process of its own, where `env` is set.
fn alone(test: &str, env: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return body();
    }
    let mut command = std::process::Command::new(std::env::current_exe().expect("own path"));
    command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").envs(env.iter().copied());
    let out = command.output().expect("started");
    let text = String::from_utf8_lossy(&out.stderr);
    let _ = write!(std::io::stderr(), "{text}");
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stdout));
}

fn skip(reason: &str) {
    let _ = writeln!(std::io::stderr(), "SKIP: {reason}");
}

/// Private memory, filled with 1.
fn anon(len: usize) -> *mut u8 {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    bytes(at.cast(), len).fill(1);
    at.cast()
}

fn bytes<'a>(at: *mut u8, len: usize) -> &'a mut [u8] {
    // SAFETY: memory of `anon`, which is never unmapped.
    unsafe { std::slice::from_raw_parts_mut(at, len) }
}

/// The daemon's region over a registration, mapped or reached in the process.
fn daemon(reg: &Registration) -> Region {
    let (first, len) = (reg.pieces()[0].addr as u64, reg.pieces().iter().map(|p| p.len as u64).sum());
    let piece = |p: &burst_mem::swap::Piece| match p.kind {
        PieceSource::Fd { fd, offset } => Some(MapPiece { fd: reg.fd(fd)?, offset, len: p.len as u64 }),
        PieceSource::InProcess => None,
    };
    let mapping = match reg.pieces().iter().map(piece).collect::<Option<Vec<_>>>() {
        Some(pieces) => Region::map(&pieces, RIGHTS).expect("mapped"),
        None => Region::in_process(Arc::new(ProcessMemory::own().expect("own memory")), first),
    };
    Region::new(1, 1, first, len, RIGHTS, mapping)
}

/// Whether the program sees a write of the daemon at `at`, and the daemon one of the program.
fn is_shared(region: &Region, at: *mut u8) -> bool {
    let span = region.span(at as u64, 1).expect("inside");
    let mut seen = [0];
    span.write_from(&[0xa5]).expect("there");
    // SAFETY: memory of `anon`.
    let by_program = unsafe { at.read_volatile() } == 0xa5;
    // SAFETY: as above.
    unsafe { at.write_volatile(0x5a) };
    span.read_to(&mut seen).expect("there");
    by_program && seen == [0x5a]
}

fn can_swap() -> bool {
    let reg = register(anon(PAGE) as usize, PAGE, true).expect("registered");
    let can = !reg.is_in_process();
    release(reg);
    if !can {
        skip("the kernel refuses userfaultfd here");
    }
    can
}

/// Memory with a device that has pinned it and reads or writes the pinned pages.
trait Device {
    fn pin(&mut self, at: *mut u8, len: usize);
    fn unpin(&mut self);
    /// The byte at `at` as the device sees it.
    fn reads(&mut self, at: *mut u8) -> u8;
}

/// Whether the device sees what the program writes now, at both ends and in the middle.
fn sees_the_program(device: &mut dyn Device, at: *mut u8, len: usize) -> bool {
    [0, len / 2, len - 1].into_iter().enumerate().all(|(i, offset)| {
        // SAFETY: inside the memory of `anon`.
        let place = unsafe { at.add(offset) };
        let value = bytes(place, 1)[0].wrapping_add(17 + i as u8);
        // SAFETY: as above.
        unsafe { place.write_volatile(value) };
        device.reads(place) == value
    })
}

/// Every order of pin, register, deregister and unpin: device, program and daemon must see the same pages throughout.
fn every_order(device: &mut dyn Device) {
    let len = 16 * PAGE;
    // Pinned first, deregistered first.
    let at = anon(len);
    device.pin(at, len);
    let reg = register(at as usize, len, true).expect("registered");
    assert!(sees_the_program(device, at, len), "registration swapped pinned pages in");
    let region = daemon(&reg);
    assert!(is_shared(&region, at) && reg.is_in_process());
    drop(region);
    release(reg);
    assert!(sees_the_program(device, at, len), "pinned, registered, deregistered");
    device.unpin();
    // Pinned first, unpinned first.
    device.pin(at, len);
    let reg = register(at as usize, len, true).expect("registered");
    device.unpin();
    let region = daemon(&reg);
    assert!(is_shared(&region, at));
    drop(region);
    release(reg);
    // Not pinned any more: swapped as ever. Then pinned while registered, deregistered first.
    let reg = register(at as usize, len, true).expect("registered");
    assert!(!reg.is_in_process(), "memory that is not pinned is swapped");
    device.pin(at, len);
    let region = daemon(&reg);
    assert!(sees_the_program(device, at, len) && is_shared(&region, at));
    drop(region);
    release(reg);
    assert!(sees_the_program(device, at, len), "deregistration swapped pinned pages out");
    // Registered again while pinned: the shared pages are the pinned ones.
    let reg = register(at as usize, len, true).expect("registered");
    let region = daemon(&reg);
    assert!(sees_the_program(device, at, len) && is_shared(&region, at));
    // Unpinned first: the pages are made private again.
    device.unpin();
    drop(region);
    bytes(at, len).fill(7);
    release(reg);
    assert!(bytes(at, len).iter().all(|b| *b == 7));
    // SAFETY: memory of `anon`.
    unsafe { libc::madvise(at.cast(), len, libc::MADV_DONTNEED) };
    assert!(bytes(at, len).iter().all(|b| *b == 0), "private again");
}

/// The calls of the fake library.
struct Cuda {
    library: *mut c_void,
    register: unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int,
    unregister: unsafe extern "C" fn(*mut c_void) -> c_int,
    device_reads: unsafe extern "C" fn(*mut c_void) -> c_int,
    asked: unsafe extern "C" fn() -> c_int,
    pinned: *mut u8,
}

impl Cuda {
    /// Compiles and loads the fake library; `None` without a C compiler.
    fn load() -> Option<Cuda> {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-cuda-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let file = dir.join("libcuda.so.1");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_cuda.c");
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1", "-o"]).arg(&file).arg(source);
        if !compiler.status().is_ok_and(|status| status.success()) {
            return None;
        }
        let path = CString::new(file.as_os_str().as_bytes()).expect("no zero byte");
        // SAFETY: a library without constructors.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        std::fs::remove_dir_all(&dir).expect("removed");
        assert!(!library.is_null(), "the fake library loads");
        let symbol = |name: &std::ffi::CStr| {
            // SAFETY: a loaded library and a terminated name.
            let at = unsafe { libc::dlsym(library, name.as_ptr()) };
            assert!(!at.is_null(), "{name:?}");
            at
        };
        // SAFETY: the functions of fake_cuda.c have these types.
        unsafe {
            Some(Cuda {
                library,
                register: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int>(
                    symbol(c"cuMemHostRegister_v2"),
                ),
                unregister: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> c_int>(symbol(
                    c"cuMemHostUnregister",
                )),
                device_reads: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> c_int>(symbol(
                    c"fake_cuda_device_reads",
                )),
                asked: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(symbol(c"fake_cuda_asked")),
                pinned: std::ptr::null_mut(),
            })
        }
    }
}

impl Device for Cuda {
    fn pin(&mut self, at: *mut u8, len: usize) {
        // SAFETY: live memory.
        assert_eq!(unsafe { (self.register)(at.cast(), len, 0) }, 0, "cuMemHostRegister");
        self.pinned = at;
    }
    fn unpin(&mut self) {
        // SAFETY: pinned before.
        assert_eq!(unsafe { (self.unregister)(self.pinned.cast()) }, 0, "cuMemHostUnregister");
    }
    fn reads(&mut self, at: *mut u8) -> u8 {
        // SAFETY: an address of the pinned range.
        u8::try_from(unsafe { (self.device_reads)(at.cast()) }).expect("pinned")
    }
}

#[test]
fn memory_pinned_by_cuda_is_never_swapped() {
    alone("memory_pinned_by_cuda_is_never_swapped", &[], || {
        if !can_swap() {
            return;
        }
        let Some(mut cuda) = Cuda::load() else { return skip("no C compiler") };
        every_order(&mut cuda);
    });
}

#[test]
fn a_library_that_was_asked_can_be_unloaded() {
    alone("a_library_that_was_asked_can_be_unloaded", &[], || {
        let Some(cuda) = Cuda::load() else { return skip("no C compiler") };
        // SAFETY: a function of the fake library.
        let before = unsafe { (cuda.asked)() };
        release(register(anon(PAGE) as usize, PAGE, true).expect("registered"));
        // SAFETY: as above; its functions are not called any more after it was closed.
        unsafe {
            assert!((cuda.asked)() > before);
            assert_eq!(libc::dlclose(cuda.library), 0);
            assert!(libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD).is_null(), "loaded");
        }
    });
}

#[test]
fn a_pinned_part_of_a_range_keeps_the_whole_range_where_it_is() {
    alone("a_pinned_part_of_a_range_keeps_the_whole_range_where_it_is", &[], || {
        if !can_swap() {
            return;
        }
        let Some(mut cuda) = Cuda::load() else { return skip("no C compiler") };
        let len = 8 << 20;
        // Pinned at one end, or 2 MiB and more before the other.
        for (first, pages) in [(0, 1), (len - PAGE, 1), ((4 << 20) - PAGE, 2)] {
            let at = anon(len);
            // SAFETY: inside.
            let part = unsafe { at.add(first) };
            cuda.pin(part, pages * PAGE);
            let reg = register(at as usize, len, true).expect("registered");
            assert!(reg.is_in_process(), "pinned at {first:#x}");
            assert!(sees_the_program(&mut cuda, part, pages * PAGE), "pinned at {first:#x}");
            release(reg);
            cuda.unpin();
        }
        // Registered from inside the pinned page on. One of two neighbours has bit 12 set in its address.
        for first in [PAGE, 2 * PAGE] {
            let at = anon(8 * PAGE);
            // SAFETY: inside.
            let part = unsafe { at.add(first) };
            cuda.pin(part, PAGE);
            let reg = register(part as usize + 100, 5 * PAGE, true).expect("registered");
            assert!(reg.is_in_process(), "pinned at {part:?}");
            release(reg);
            cuda.unpin();
        }
        // Few questions: none for what is swapped already, and one per 2 MiB for what is not.
        let at = anon(len) as usize;
        // SAFETY: a function of the fake library.
        let asked = || unsafe { (cuda.asked)() };
        let before = asked();
        let reg = register(at, len, true).expect("registered");
        assert!(!reg.is_in_process() && asked() - before <= 8, "{} questions", asked() - before);
        let before = asked();
        let again = register(at, len, true).expect("registered");
        assert_eq!(asked(), before);
        release(again);
        assert_eq!(asked(), before, "it stays registered");
        release(reg);
    });
}

/// An io_uring with one fixed buffer, and a file that it reads from and writes to.
struct Ring {
    ring: OwnedFd,
    entries: *mut u8,
    rings: *mut u8,
    offsets: Params,
    file: OwnedFd,
    pinned: (u64, u64),
}

/// `struct io_uring_params` (linux/io_uring.h) with the two tables of offsets.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    resv: [u32; 3],
    /// head, tail, ring_mask, ring_entries, flags, dropped, array, resv1; user_addr.
    sq_off: [u32; 10],
    /// head, tail, ring_mask, ring_entries, overflow, cqes, flags, resv1; user_addr.
    cq_off: [u32; 10],
}

const RING_BYTES: usize = 2 * PAGE;
const READ_FIXED: u8 = 4;
const WRITE_FIXED: u8 = 5;

impl Ring {
    fn new() -> Option<Ring> {
        let mut offsets = Params::default();
        // SAFETY: the parameters are writable.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, &raw mut offsets) };
        if fd < 0 {
            return None;
        }
        // SAFETY: a fresh descriptor.
        let ring = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let map = |offset: i64| {
            let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
            // SAFETY: a new mapping.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), RING_BYTES, rights, flags, fd as i32, offset) };
            assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
            at.cast::<u8>()
        };
        // SAFETY: a constant name.
        let file = unsafe { libc::memfd_create(c"file".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: a fresh descriptor.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        Some(Ring { ring, entries: map(0x1000_0000), rings: map(0), offsets, file, pinned: (0, 0) })
    }
    fn word(&self, offset: u32) -> *mut u32 {
        // SAFETY: inside the mapping.
        unsafe { self.rings.add(offset as usize).cast() }
    }
    /// Moves one byte between the file's byte 0 and `at`, and waits.
    fn transfer(&self, opcode: u8, at: *mut u8) {
        let mut entry = [0u8; 64];
        entry[0] = opcode;
        entry[4..8].copy_from_slice(&self.file.as_raw_fd().to_ne_bytes());
        entry[16..24].copy_from_slice(&(at as u64).to_ne_bytes());
        entry[24..28].copy_from_slice(&1u32.to_ne_bytes());
        // SAFETY: one thread submits one entry at a time and waits for it, so no word changes underneath.
        unsafe {
            let tail = self.word(self.offsets.sq_off[1]).read_volatile();
            let slot = tail & self.word(self.offsets.sq_off[2]).read_volatile();
            std::ptr::copy_nonoverlapping(entry.as_ptr(), self.entries.add(64 * slot as usize), 64);
            self.word(self.offsets.sq_off[6] + 4 * slot).write_volatile(slot);
            self.word(self.offsets.sq_off[1]).write_volatile(tail.wrapping_add(1));
            let null = std::ptr::null::<c_void>();
            let done = libc::syscall(libc::SYS_io_uring_enter, self.ring.as_raw_fd(), 1, 1, 1, null, 0);
            assert_eq!(done, 1, "{}", std::io::Error::last_os_error());
            let head = self.word(self.offsets.cq_off[0]).read_volatile();
            let slot = head & self.word(self.offsets.cq_off[2]).read_volatile();
            let result = self.word(self.offsets.cq_off[5] + 16 * slot + 8).read_volatile();
            self.word(self.offsets.cq_off[0]).write_volatile(head.wrapping_add(1));
            assert_eq!(result as i32, 1, "opcode {opcode}");
        }
    }
}

impl Device for Ring {
    fn pin(&mut self, at: *mut u8, len: usize) {
        self.pinned = (at as u64, len as u64);
        // SAFETY: one iovec; IORING_REGISTER_BUFFERS is 0.
        let rc =
            unsafe { libc::syscall(libc::SYS_io_uring_register, self.ring.as_raw_fd(), 0, &raw const self.pinned, 1) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    }
    fn unpin(&mut self) {
        let null = std::ptr::null::<c_void>();
        // SAFETY: IORING_UNREGISTER_BUFFERS is 1.
        let rc = unsafe { libc::syscall(libc::SYS_io_uring_register, self.ring.as_raw_fd(), 1, null, 0) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    }
    fn reads(&mut self, at: *mut u8) -> u8 {
        self.transfer(WRITE_FIXED, at);
        let mut seen = [0u8];
        // SAFETY: one writable byte.
        assert_eq!(unsafe { libc::pread(self.file.as_raw_fd(), seen.as_mut_ptr().cast(), 1, 0) }, 1);
        // And the other direction: the program sees what the device writes.
        let value = seen[0] ^ 0xff;
        // SAFETY: one readable byte.
        assert_eq!(unsafe { libc::pwrite(self.file.as_raw_fd(), (&raw const value).cast(), 1, 0) }, 1);
        self.transfer(READ_FIXED, at);
        // SAFETY: pinned memory of `anon`.
        if unsafe { at.read_volatile() } == value { seen[0] } else { !seen[0] }
    }
}

#[test]
fn fixed_buffers_of_io_uring_are_never_swapped() {
    alone("fixed_buffers_of_io_uring_are_never_swapped", &[], || {
        if !can_swap() {
            return;
        }
        let Some(mut ring) = Ring::new() else { return skip("the kernel refuses io_uring here") };
        every_order(&mut ring);
    });
}

#[test]
fn swap_can_be_switched_off() {
    alone("swap_can_be_switched_off", &[("BURST_SWAP", "off")], || {
        let at = anon(4 * PAGE);
        let reg = register(at as usize, 4 * PAGE, true).expect("registered");
        assert!(reg.is_in_process() && reg.fds() == 0);
        assert!(is_shared(&daemon(&reg), at), "reached by system calls");
        // SAFETY: memory of `anon`.
        unsafe { libc::madvise(at.cast(), 4 * PAGE, libc::MADV_DONTNEED) };
        assert_eq!(bytes(at, 1), [0], "the pages are private");
        release(reg);
        assert_eq!(register(8, PAGE, true).err(), Some(RegisterError::Fault), "checks are made all the same");
    });
}
