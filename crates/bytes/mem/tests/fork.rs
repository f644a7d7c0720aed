//! A forked child has memory as it was at the fork: what the parent's threads write afterwards, and what they wrote before.

use burst_base::verbs::access;
use burst_mem::region::MapPiece;
use burst_mem::swap::{ChildKind, MemoryHost, PieceSource, Registration, add_host, fork_by, register, release};
use burst_mem::{ProcessMemory, Region};
use burst_span::Unreachable;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};

const PAGE: usize = 4096;

fn anon(len: usize) -> *mut u8 {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0) };
    assert_ne!(p, libc::MAP_FAILED);
    p.cast()
}

fn bytes<'a>(p: *mut u8, len: usize) -> &'a mut [u8] {
    // SAFETY: memory that the test has mapped.
    unsafe { std::slice::from_raw_parts_mut(p, len) }
}

/// The tests fork, and the daemons of one would be held by forks of another.
static ALONE: Mutex<()> = Mutex::new(());

/// Registers a range; `None` where the kernel refuses to swap.
fn swapped(p: *mut u8, len: usize) -> Option<Registration> {
    let reg = register(p as usize, len, true).expect("registered");
    if !reg.is_in_process() {
        return Some(reg);
    }
    let _ = writeln!(std::io::stderr(), "SKIP: the kernel refuses userfaultfd here");
    release(reg);
    None
}

/// A child of this process, and the pipe by which the parent lets it look at its memory.
struct Child {
    pid: i32,
    go: i32,
}

impl Child {
    /// Forks; the child runs `check` when the parent says so, and ends.
    fn fork(check: impl FnOnce() -> bool) -> Child {
        let mut ends = [0; 2];
        // SAFETY: two writable numbers.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        // SAFETY: the child only looks at its memory and ends.
        Child::of(unsafe { libc::fork() }, ends, check)
    }
    /// A child made by the system call, which runs no fork handlers.
    fn clone(check: impl FnOnce() -> bool) -> Child {
        let mut ends = [0; 2];
        // SAFETY: two writable numbers; the child only looks at its memory and ends.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            Child::of(libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32, ends, check)
        }
    }
    fn of(pid: i32, ends: [i32; 2], check: impl FnOnce() -> bool) -> Child {
        if pid == 0 {
            let mut byte = 0u8;
            // SAFETY: our own descriptor, one writable byte; then the child ends.
            unsafe {
                libc::read(ends[0], (&raw mut byte).cast(), 1);
                libc::_exit(if check() { 0 } else { 1 });
            }
        }
        assert!(pid > 0);
        // SAFETY: our own descriptor.
        unsafe { libc::close(ends[0]) };
        Child { pid, go: ends[1] }
    }
    /// Lets the child look. Returns its exit status.
    fn look(self) -> i32 {
        let mut status = -1;
        // A child that is dead does not read: no signal is wanted then.
        // SAFETY: our own descriptor and child.
        unsafe {
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            libc::write(self.go, [1u8].as_ptr().cast(), 1);
            libc::close(self.go);
            assert_eq!(libc::waitpid(self.pid, &raw mut status, 0), self.pid);
        }
        status
    }
}

#[test]
fn what_the_parent_writes_after_the_fork_stays_with_the_parent() {
    let _alone = ALONE.lock();
    let len = 256 * PAGE;
    let memory = anon(len);
    bytes(memory, len).fill(1);
    let Some(reg) = swapped(memory, len) else { return };
    for round in 0..20 {
        bytes(memory, len).fill(round);
        let child = Child::fork(|| bytes(memory, len).iter().all(|b| *b == round));
        bytes(memory, len).fill(0xFF);
        assert_eq!(child.look(), 0, "round {round}");
    }
    release(reg);
}

#[test]
fn values_that_only_share_a_page_with_registered_bytes_are_a_copy() {
    let _alone = ALONE.lock();
    // Of one size, so that the allocator puts them side by side.
    let objects: Vec<Box<[u64; 25]>> = (0..800).map(|i| Box::new([i; 25])).collect();
    let (registered, mut values): (Vec<_>, Vec<_>) = objects.into_iter().partition(|object| object[0] % 2 == 0);
    let mut regs = Vec::new();
    for object in &registered {
        let addr: *mut u8 = object.as_ptr().cast_mut().cast();
        if regs.is_empty() {
            let Some(reg) = swapped(addr, 200) else { return };
            regs.push(reg);
        } else {
            // After many splits of mappings a small range is reached in the process, which changes nothing here.
            regs.push(register(addr as usize, 200, true).expect("registered"));
        }
    }
    let child = Child::fork(|| values.iter().enumerate().all(|(i, v)| v.iter().all(|n| *n == 2 * i as u64 + 1)));
    values.iter_mut().for_each(|v| v.fill(u64::MAX));
    assert_eq!(child.look(), 0);
    regs.into_iter().for_each(release);
}

/// Two counters, one on a registered page. A thread counts them up in turn, so that they never differ by more than one.
#[test]
fn a_child_sees_all_writes_up_to_one_moment_and_none_of_later_ones() {
    let _alone = ALONE.lock();
    let (first, second) = (anon(8 * PAGE), anon(PAGE));
    let Some(reg) = swapped(first, 8 * PAGE) else { return };
    let quit = AtomicBool::new(false);
    // SAFETY: aligned words of this test's memory.
    let counters = [first, second].map(|p| unsafe { AtomicU64::from_ptr(p.cast()) });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !quit.load(Relaxed) {
                for counter in counters {
                    counter.fetch_add(1, SeqCst);
                }
            }
        });
        let torn = (0..200).filter(|_| {
            let child =
                Child::fork(|| matches!(counters[0].load(SeqCst).wrapping_sub(counters[1].load(SeqCst)), 0 | 1));
            child.look() != 0
        });
        let torn = torn.count();
        quit.store(true, Relaxed);
        assert_eq!(torn, 0, "of 200 children");
    });
    assert_eq!(counters[0].load(SeqCst), counters[1].load(SeqCst));
    release(reg);
}

/// The region of a registration, as the daemon has it.
fn map(reg: &Registration) -> Region {
    let PieceSource::Fd { fd, offset } = reg.pieces()[0].kind else { panic!("not mappable") };
    let (first, rights) = (reg.pieces()[0], access::LOCAL_WRITE | access::REMOTE_WRITE);
    let piece = MapPiece { fd: reg.fd(fd).expect("fd"), offset, len: first.len as u64 };
    Region::new(1, 1, first.addr as u64, first.len as u64, rights, Region::map(&[piece], rights).expect("mapped"))
}

/// A daemon that writes into the program's memory, by its mapping, or in the process while the program forks.
#[derive(Debug)]
struct Daemon {
    state: Mutex<DaemonState>,
    holds: AtomicUsize,
}

/// How a [`Daemon`] reaches the memory.
#[derive(Debug, PartialEq, Eq)]
enum Reach {
    Mapping,
    InProcess,
    Nothing,
}

#[derive(Debug)]
struct DaemonState {
    region: Option<Region>,
    forking: Option<Region>,
    reach: Reach,
    written: u64,
    /// Those of `written` that were written during a fork.
    written_in_forks: u64,
    /// Whether the memory could be reached in the process in the last fork.
    was_in_place: bool,
}

impl MemoryHost for Daemon {
    fn begin_fork(&self, in_place: bool) {
        let mut state = self.state.lock().expect("no panic");
        assert_eq!(state.reach, Reach::Mapping, "once, where nothing fails");
        state.reach = if in_place { Reach::InProcess } else { Reach::Nothing };
        state.was_in_place = in_place;
        self.holds.fetch_add(1, Relaxed);
    }
    fn end_fork(&self) {
        let mut state = self.state.lock().expect("no panic");
        assert_ne!(state.reach, Reach::Mapping);
        state.reach = Reach::Mapping;
    }
}

impl Daemon {
    fn of(reg: &Registration) -> Arc<Daemon> {
        let (region, memory) = (map(reg), Arc::new(ProcessMemory::own().expect("own memory")));
        let forking = Some(region.forking(memory, reg.pieces()[0].addr as u64));
        let (region, reach) = (Some(region), Reach::Mapping);
        let state = DaemonState { region, forking, reach, written: 0, written_in_forks: 0, was_in_place: false };
        let daemon = Arc::new(Daemon { state: Mutex::new(state), holds: AtomicUsize::new(0) });
        add_host(&daemon);
        daemon
    }
    fn write(&self, addr: usize) {
        let mut state = self.state.lock().expect("no panic");
        let region = match state.reach {
            Reach::Mapping => &state.region,
            Reach::InProcess => &state.forking,
            Reach::Nothing => &None,
        };
        let Some(region) = region else { return };
        let next = state.written + 1;
        let written = region.span(addr as u64, 8).expect("inside").write_from(&next.to_ne_bytes());
        if state.reach == Reach::InProcess && written == Err(Unreachable::Late) {
            return;
        }
        assert_eq!(written, Ok(()));
        state.written = next;
        state.written_in_forks += u64::from(state.reach == Reach::InProcess);
    }
    /// Forgets the regions.
    fn end(&self) {
        let mut state = self.state.lock().expect("no panic");
        (state.region, state.forking) = (None, None);
    }
}

#[test]
fn writes_of_a_peer_go_to_the_parent_and_none_is_lost() {
    let _alone = ALONE.lock();
    let memory = anon(8 * PAGE);
    let Some(reg) = swapped(memory, 8 * PAGE) else { return };
    let (daemon, quit, at) = (Daemon::of(&reg), AtomicBool::new(false), memory as usize);
    // SAFETY: aligned words of this test's memory, on one page.
    let [peers, own] = [0, 1].map(|i| unsafe { AtomicU64::from_ptr(memory.cast::<u64>().add(i)) });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !quit.load(Relaxed) {
                daemon.write(at)
            }
        });
        scope.spawn(|| {
            while !quit.load(Relaxed) {
                own.fetch_add(1, SeqCst);
            }
        });
        let wrong = (0..100).filter(|_| {
            let before = peers.load(SeqCst);
            let child = Child::fork(|| {
                let seen = peers.load(SeqCst);
                // SAFETY: sleeps.
                unsafe { libc::usleep(1000) };
                seen >= before && peers.load(SeqCst) == seen
            });
            child.look() != 0
        });
        let wrong = wrong.count();
        quit.store(true, Relaxed);
        assert_eq!(wrong, 0, "of 100 children");
    });
    let (written, in_forks) = {
        let state = daemon.state.lock().expect("no panic");
        (state.written, state.written_in_forks)
    };
    assert_eq!((peers.load(SeqCst), daemon.holds.load(Relaxed)), (written, 100));
    assert!(in_forks > 0 && written > in_forks && own.load(SeqCst) > 0);
    daemon.end();
    release(reg);
}

#[test]
fn moved_memory_is_not_reached_in_the_process_during_a_fork() {
    let _alone = ALONE.lock();
    let memory = anon(8 * PAGE);
    bytes(memory, 8 * PAGE).fill(3);
    let Some(reg) = swapped(memory, 4 * PAGE) else { return };
    let daemon = Daemon::of(&reg);
    let in_place = || {
        assert_eq!(Child::fork(|| true).look(), 0);
        daemon.state.lock().expect("no panic").was_in_place
    };
    assert!(in_place());
    let elsewhere = anon(PAGE);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: two mappings of this test.
    let moved = unsafe { libc::mremap(memory.cast(), PAGE, PAGE, flags, elsewhere.cast::<libc::c_void>()) };
    assert_eq!(moved, elsewhere.cast());
    assert!(!in_place());
    daemon.end();
    release(reg);
}

#[test]
fn a_child_without_handlers_has_its_own_memory_from_its_first_call_on() {
    let _alone = ALONE.lock();
    let memory = anon(4 * PAGE);
    bytes(memory, 4 * PAGE).fill(3);
    let Some(reg) = swapped(memory, 4 * PAGE) else { return };
    let child = Child::clone(|| {
        let own = register(memory as usize, PAGE, true).expect("registered");
        bytes(memory, 4 * PAGE).fill(4);
        release(own);
        bytes(memory, 4 * PAGE).iter().all(|b| *b == 4)
    });
    assert_eq!(child.look(), 0);
    assert!(bytes(memory, 4 * PAGE).iter().all(|b| *b == 3));
    release(reg);
}

#[test]
fn a_child_that_has_no_room_for_its_copy_is_killed_and_the_parent_goes_on() {
    let _alone = ALONE.lock();
    let len = 64 << 20;
    // The limit is set in a process of its own.
    let child = Child::fork(|| {
        let memory = anon(len);
        bytes(memory, len).fill(3);
        let Some(reg) = swapped(memory, len) else { return true };
        let size = std::fs::read_to_string("/proc/self/statm").expect("statm");
        let pages: u64 = size.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
        let limit = libc::rlimit { rlim_cur: (pages + 512) * PAGE as u64, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: reads `limit`.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
        let status = Child::fork(|| true).look();
        let whole = bytes(memory, len).iter().all(|b| *b == 3);
        release(reg);
        whole && libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL
    });
    assert_eq!(child.look(), 0);
}

/// What may befall a program between registration and fork, so that it can open no file.
fn occupy_descriptors(most: u64) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: reads `limit`; a constant path. The files stay open until this process ends.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        while libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) >= 0 {}
        assert_eq!(*libc::__errno_location(), libc::EMFILE);
    }
}

fn without_descriptors() {
    // Less than the numbers of the descriptors that are kept open, so that closing one of them leaves no room.
    occupy_descriptors(40);
}

fn with_few_descriptors() {
    occupy_descriptors(600);
}

fn without_proc() {
    // A directory without `proc` in it.
    // SAFETY: constant paths.
    unsafe { assert_eq!((libc::chroot(c"/proc/self/fdinfo".as_ptr()), libc::chdir(c"/".as_ptr())), (0, 0)) };
    assert!(std::fs::metadata("/proc/self").is_err());
}

#[test]
fn a_child_has_its_own_memory_where_no_file_can_be_opened() {
    let _alone = ALONE.lock();
    // SAFETY: no precondition.
    let is_root = unsafe { libc::geteuid() } == 0;
    for befall in [without_descriptors, with_few_descriptors, without_proc].into_iter().take(2 + usize::from(is_root)) {
        let program = Child::fork(|| {
            let memory = anon(4 * PAGE);
            bytes(memory, 4 * PAGE).fill(3);
            let Some(reg) = swapped(memory, 4 * PAGE) else { return true };
            let region = map(&reg);
            befall();
            for round in 0..3 {
                // SAFETY: the child looks at its memory, writes to it and ends.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    let is_snapshot = bytes(memory, 4 * PAGE).iter().all(|b| *b == 3 + round);
                    bytes(memory, 4 * PAGE).fill(99);
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(i32::from(!is_snapshot)) };
                }
                let mut status = -1;
                // SAFETY: the child made above.
                assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
                assert_eq!((status, bytes(memory, 1)[0]), (0, 3 + round));
                // The daemon's writes arrive again.
                let span = region.span(memory as u64, 4 * PAGE as u32).expect("inside");
                span.write_from(&[4 + round; 4 * PAGE]).expect("there");
                assert!(bytes(memory, 4 * PAGE).iter().all(|b| *b == 4 + round));
            }
            drop(region);
            release(reg);
            bytes(memory, 4 * PAGE).iter().all(|b| *b == 6)
        });
        assert_eq!(program.look(), 0);
    }
}

#[test]
fn a_program_that_is_started_copies_nothing() {
    let _alone = ALONE.lock();
    let memory = anon(4 * PAGE);
    let Some(reg) = swapped(memory, 4 * PAGE) else { return };
    let daemon = Daemon::of(&reg);
    // The standard library uses posix_spawn for a program that sets nothing else.
    assert!(std::process::Command::new("true").status().expect("started").success());
    assert_eq!(daemon.holds.load(Relaxed), 0);
    daemon.end();
    release(reg);
}

#[test]
fn children_fork_and_register_for_themselves() {
    let _alone = ALONE.lock();
    let memory = anon(16 * PAGE);
    bytes(memory, 16 * PAGE).fill(1);
    let Some(reg) = swapped(memory, 16 * PAGE) else { return };
    let child = Child::fork(|| {
        let own = register(memory as usize, 8 * PAGE, true).expect("registered");
        bytes(memory, 16 * PAGE).fill(2);
        let grandchild = Child::fork(|| bytes(memory, 16 * PAGE).iter().all(|b| *b == 2));
        bytes(memory, 16 * PAGE).fill(3);
        let status = grandchild.look();
        release(own);
        status == 0 && bytes(memory, 16 * PAGE).iter().all(|b| *b == 3)
    });
    assert_eq!(child.look(), 0);
    assert!(bytes(memory, 16 * PAGE).iter().all(|b| *b == 1));
    release(reg);
}

#[test]
fn threads_fork_register_and_write_at_once() {
    let _alone = ALONE.lock();
    let memory = anon(64 * PAGE);
    bytes(memory, 64 * PAGE).fill(7);
    let Some(reg) = swapped(memory, PAGE) else { return };
    let (at, wrong) = (memory as usize, AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..40 {
                    let child = Child::fork(|| bytes(at as *mut u8, 64 * PAGE).iter().all(|b| *b == 7));
                    wrong.fetch_add(usize::from(child.look() != 0), Relaxed);
                }
            });
        }
        for first in [1, 30] {
            scope.spawn(move || {
                for i in 0..200 {
                    release(register(at + (first + i % 20) * PAGE, 10 * PAGE, true).expect("registered"));
                }
            });
        }
    });
    assert_eq!(wrong.load(Relaxed), 0, "of 120 children");
    assert!(bytes(memory, 64 * PAGE).iter().all(|b| *b == 7));
    release(reg);
}

#[test]
fn memory_that_is_not_to_be_forked_is_not_copied() {
    let _alone = ALONE.lock();
    let len = 256 * PAGE;
    for before in [true, false] {
        let memory = anon(len);
        bytes(memory, len).fill(5);
        // SAFETY: memory of this test.
        let exclude = || assert_eq!(unsafe { libc::madvise(memory.cast(), len, libc::MADV_DONTFORK) }, 0);
        if before {
            exclude();
        }
        let Some(reg) = swapped(memory, len) else { return };
        if !before {
            exclude();
        }
        let region = map(&reg);
        let absent = || {
            let mut present = [0u8; 256];
            // SAFETY: one byte for each page.
            unsafe { libc::mincore(memory.cast(), len, present.as_mut_ptr()) == -1 }
        };
        for round in 0..3u8 {
            assert_eq!(Child::fork(absent).look(), 0);
            bytes(memory, 1)[0] = round;
            let mut seen = [9];
            region.span(memory as u64, 1).expect("inside").read_to(&mut seen).expect("there");
            assert_eq!(seen, [round], "still shared with the daemon");
        }
        drop(region);
        release(reg);
        assert_eq!(Child::fork(absent).look(), 0, "after the registration as well");
    }
}

/// The system call by which libc's functions make a child; it runs no handlers.
fn system_clone(flags: i32) -> i32 {
    // SAFETY: a child with a copy of this stack.
    unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD | flags, 0, 0, 0, 0) as i32 }
}

#[test]
fn a_child_of_a_call_without_handlers_is_isolated_as_one_of_fork() {
    let _alone = ALONE.lock();
    let len = 64 * PAGE;
    let memory = anon(len);
    let Some(reg) = swapped(memory, len) else { return };
    for round in 0..10 {
        bytes(memory, len).fill(round);
        let mut ends = [0; 2];
        // SAFETY: two writable numbers.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        // SAFETY: one child, which returns from the call.
        let pid = unsafe { fork_by(ChildKind::default(), |_| system_clone(0)) };
        let child = Child::of(pid, ends, || {
            let same = bytes(memory, len).iter().all(|b| *b == round);
            bytes(memory, len).fill(0xEE);
            same
        });
        bytes(memory, len).fill(0xFF);
        assert_eq!(child.look(), 0, "round {round}");
        assert!(bytes(memory, len).iter().all(|b| *b == 0xFF), "round {round}");
    }
    release(reg);
}

/// The child has the table of descriptors of its parent: what it closed, the parent would not have any more.
#[test]
fn a_child_that_shares_descriptors_closes_none_of_its_parents() {
    let _alone = ALONE.lock();
    let (len, go) = (16 * PAGE, std::os::unix::net::UnixStream::pair().expect("a pair"));
    let memory = anon(len);
    bytes(memory, len).fill(1);
    let Some(reg) = swapped(memory, len) else { return };
    let open = || std::fs::read_dir("/proc/self/fd").expect("listed").count();
    let before = open();
    let kind = ChildKind { shares_files: true, ..ChildKind::default() };
    // SAFETY: one child, which returns from the call.
    let pid = unsafe { fork_by(kind, |_| system_clone(libc::CLONE_FILES)) };
    if pid == 0 {
        use std::io::Read as _;
        let read = (&go.0).read(&mut [0]).is_ok();
        let same = bytes(memory, len).iter().all(|b| *b == 1);
        bytes(memory, len).fill(0xEE);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!(read && same))) };
    }
    bytes(memory, len).fill(2);
    (&go.1).write_all(&[1]).expect("written");
    let mut status = -1;
    // SAFETY: our child.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((status, open()), (0, before));
    // The pages are the pool's again.
    let region = map(&reg);
    region.span(memory as u64, 1).expect("inside").write_from(&[9]).expect("there");
    assert_eq!((bytes(memory, 2)[0], bytes(memory, 2)[1]), (9, 2));
    drop(region);
    release(reg);
}

/// The child runs on a stack that its parent has made, which is registered.
#[test]
fn a_child_may_run_on_registered_memory() {
    extern "C" fn run(start: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the function and the memory that the parent passes, of which this process has a copy.
        let (first, memory) = unsafe { *start.cast::<(fn(), usize)>() };
        first();
        let here = [5u8; 64];
        i32::from(!bytes(memory as *mut u8, PAGE).iter().all(|b| *b == 3) || here[63] != 5)
    }
    let _alone = ALONE.lock();
    let len = 256 * PAGE;
    let memory = anon(len);
    bytes(memory, len).fill(3);
    let Some(reg) = swapped(memory, len) else { return };
    let stack = memory as usize + len;
    let kind = ChildKind { stack, ..ChildKind::default() };
    let call = |first: fn()| {
        let mut start = (first, memory as usize);
        // SAFETY: the child runs on memory of this test, of which it has a copy.
        unsafe { libc::clone(run, stack as *mut _, libc::SIGCHLD, (&raw mut start).cast()) }
    };
    // SAFETY: the child runs `first`.
    let pid = unsafe { fork_by(kind, call) };
    assert!(pid > 0);
    let mut status = -1;
    // SAFETY: our child.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(status, 0);
    let region = map(&reg);
    for at in [memory as usize, stack - 1] {
        region.span(at as u64, 1).expect("inside").write_from(&[9]).expect("there");
        assert_eq!(bytes(at as *mut u8, 1), [9], "shared again");
    }
    drop(region);
    release(reg);
}

#[test]
fn a_fork_that_fails_leaves_everything_as_it_was() {
    let _alone = ALONE.lock();
    let memory = anon(4 * PAGE);
    let Some(reg) = swapped(memory, 4 * PAGE) else { return };
    let refuse = |_: fn()| {
        // SAFETY: the thread's own errno.
        unsafe { *libc::__errno_location() = libc::EAGAIN };
        -1
    };
    // SAFETY: no child.
    assert_eq!(unsafe { fork_by(ChildKind::default(), refuse) }, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN));
    let region = map(&reg);
    region.span(memory as u64, 1).expect("inside").write_from(&[9]).expect("there");
    assert_eq!(bytes(memory, 1), [9]);
    drop(region);
    release(reg);
}

/// Forks that [`fork_in_handler`] has made.
static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn fork_in_handler(_signal: libc::c_int) {
    // SAFETY: the child ends at once. The process has one thread, so libc takes no locks of its own.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::_exit(0);
        }
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    HANDLED.fetch_add(1, Relaxed);
}

#[test]
fn a_signal_handler_may_fork_while_its_thread_registers() {
    let _alone = ALONE.lock();
    let child = Child::fork(|| {
        let memory = anon(16 * PAGE);
        bytes(memory, 16 * PAGE).fill(3);
        let Some(reg) = swapped(memory, PAGE) else { return true };
        let handler: extern "C" fn(libc::c_int) = fork_in_handler;
        let interval = libc::timeval { tv_sec: 0, tv_usec: 1000 };
        let timer = libc::itimerval { it_interval: interval, it_value: interval };
        // SAFETY: a handler of this file, and a readable struct. `alarm` ends a deadlock. Processor time, not the clock, counts.
        unsafe {
            libc::alarm(100);
            libc::signal(libc::SIGPROF, handler as libc::sighandler_t);
            assert_eq!(libc::syscall(libc::SYS_setitimer, libc::ITIMER_PROF, &raw const timer, 0), 0);
        }
        while HANDLED.load(Relaxed) < 40 {
            release(register(memory as usize + 4 * PAGE, 8 * PAGE, true).expect("registered"));
        }
        // SAFETY: numbers only.
        unsafe { libc::signal(libc::SIGPROF, libc::SIG_IGN) };
        release(reg);
        bytes(memory, 16 * PAGE).iter().all(|b| *b == 3)
    });
    assert_eq!(child.look(), 0);
}
