//! Random programs of registrations, forks, advice, moves and writes of the program and of a peer, beside a model of what memory
//! does that an adapter reads and writes in place. Pages that are discarded while they are registered stay the region's, as
//! `burst_mem::swap::madvise` says.
//!
//! `cargo test` runs 6,000 steps of each program, `BURST_STEPS=100000` as many as it says; `BURST_SEED` chooses others.

use burst_base::verbs::access;
use burst_mem::Region;
use burst_mem::region::MapPiece;
use burst_mem::swap::{self, NewPlace, PieceSource, Registration, register, release};
use std::ffi::c_void;
use std::io::Write as _;

const PAGE: usize = 4096;
const PAGES: usize = 48;
/// Bytes of a page that are written and compared: the first ones.
const WORDS: usize = 8;

/// A generator of random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
    /// A run of pages: the first, and how many.
    fn run(&mut self, most: usize) -> (usize, usize) {
        let pages = 1 + self.below(most);
        (self.below(PAGES + 1 - pages), pages)
    }
}

/// The memory, and what it must hold.
struct Model {
    at: usize,
    words: [[u8; WORDS]; PAGES],
    /// Registrations of each page.
    registered: [usize; PAGES],
    dont_fork: [bool; PAGES],
    regs: Vec<(Registration, Option<Region>, usize, usize)>,
    /// A run of pages that is elsewhere: the first page, their number, and where they are.
    away: Option<(usize, usize, usize)>,
}

fn anon(at: usize, len: usize) -> usize {
    let (rights, fixed) = (libc::PROT_READ | libc::PROT_WRITE, if at == 0 { 0 } else { libc::MAP_FIXED });
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: a new mapping, or one over memory of this test.
    let p = unsafe { libc::mmap(at as *mut _, len, rights, flags, -1, 0) };
    assert_ne!(p, libc::MAP_FAILED);
    p as usize
}

impl Model {
    fn new() -> Model {
        let (words, registered, dont_fork) = ([[0; WORDS]; PAGES], [0; PAGES], [false; PAGES]);
        Model { at: anon(0, PAGES * PAGE), words, registered, dont_fork, regs: Vec::new(), away: None }
    }
    fn page(&self, page: usize) -> *mut u8 {
        let elsewhere = self.away.filter(|(first, pages, _)| (*first..first + pages).contains(&page));
        elsewhere.map_or(self.at + page * PAGE, |(first, _, place)| place + (page - first) * PAGE) as *mut u8
    }
    /// Whether all pages of a run are in one place.
    fn is_together(&self, (page, pages): (usize, usize)) -> bool {
        (0..pages).all(|i| self.page(page + i) as usize == self.page(page) as usize + i * PAGE)
    }
    /// Moves pages: a run elsewhere, with a page more, or the one that is elsewhere back.
    fn travel(&mut self, (page, pages): (usize, usize)) {
        let (page, pages, from, to, old, new) = match self.away.take() {
            Some((page, pages, place)) => (page, pages, place, self.at + page * PAGE, pages + 1, pages),
            None => (page, pages, self.at + page * PAGE, anon(0, (pages + 1) * PAGE), pages, pages + 1),
        };
        let place = NewPlace { len: new * PAGE, flags: libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, at: to };
        let next = |old: usize, len, new: NewPlace| -> *mut c_void {
            // SAFETY: memory of this test.
            unsafe { libc::mremap(old as *mut _, len, new.len, new.flags, new.at) }
        };
        // SAFETY: memory of this test.
        let at = unsafe { swap::mremap(from, old * PAGE, place, next) };
        assert_eq!(at as usize, to, "{}", std::io::Error::last_os_error());
        if new > old {
            self.away = Some((page, pages, to));
            // So that nothing else comes there.
            let (at, none) = (from as *mut _, libc::PROT_NONE);
            // SAFETY: where the pages were.
            let kept = unsafe {
                libc::mmap(at, pages * PAGE, none, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED, -1, 0)
            };
            assert_eq!(kept as usize, from);
        }
    }
    fn register(&mut self, (page, pages): (usize, usize)) {
        if (page..page + pages).any(|page| self.page(page) as usize != self.at + page * PAGE) {
            return;
        }
        let (addr, len) = (self.at + page * PAGE + 1, pages * PAGE - 2);
        let reg = register(addr, len, true).expect("registered");
        let rights = access::LOCAL_WRITE | access::REMOTE_WRITE;
        let piece = |p: &burst_mem::swap::Piece| match p.kind {
            PieceSource::Fd { fd, offset } => MapPiece { fd: reg.fd(fd).expect("fd"), offset, len: p.len as u64 },
            PieceSource::InProcess => unreachable!("asked before"),
        };
        let region = (!reg.is_in_process()).then(|| {
            let pieces: Vec<_> = reg.pieces().iter().map(piece).collect();
            let mapping = Region::map(&pieces, rights).expect("mapped");
            Region::new(1, 1, addr as u64, len as u64, rights, mapping)
        });
        self.registered[page..page + pages].iter_mut().for_each(|n| *n += 1);
        self.regs.push((reg, region, page, pages));
    }
    fn release(&mut self, which: usize) {
        let (reg, region, page, pages) = self.regs.swap_remove(which);
        drop(region);
        release(reg);
        self.registered[page..page + pages].iter_mut().for_each(|n| *n -= 1);
    }
    fn write(&mut self, page: usize, value: u8) {
        let word = 1 + usize::from(value) % (WORDS - 1);
        // SAFETY: memory of this test.
        unsafe { self.page(page).add(word).write_volatile(value) };
        self.words[page][word] = value;
    }
    /// A peer writes through a region, and reads what is there.
    fn peer(&mut self, which: usize, page: usize, value: u8) {
        let Some((_, Some(region), first, pages)) = self.regs.get(which) else { return };
        let page = first + page % pages;
        let word = 1 + usize::from(value) % (WORDS - 1);
        let span = region.span((self.at + page * PAGE + 1) as u64, WORDS as u32 - 1).expect("inside");
        let mut there = [0; WORDS - 1];
        span.read_to(&mut there).expect("there");
        assert_eq!(there, self.words[page][1..], "what the peer reads of page {page}");
        span.sub(word - 1, 1).write_from(&[value]).expect("there");
        self.words[page][word] = value;
    }
    /// `MADV_DONTNEED`; or fresh memory in place, of a run without registered pages.
    fn discard(&mut self, (page, pages): (usize, usize), remap: bool) {
        if !self.is_together((page, pages)) {
            return;
        }
        if remap {
            if self.registered[page..page + pages].iter().any(|n| *n > 0) {
                return;
            }
            anon(self.page(page) as usize, pages * PAGE);
            self.dont_fork[page..page + pages].fill(false);
        } else {
            let next = |at: usize, len, advice| {
                // SAFETY: memory of this test.
                unsafe { libc::madvise(at as *mut _, len, advice) }
            };
            // SAFETY: memory of this test.
            let answer = unsafe { swap::madvise(self.page(page) as usize, pages * PAGE, libc::MADV_DONTNEED, next) };
            assert_eq!(answer, 0);
        }
        self.words[page..page + pages].fill([0; WORDS]);
    }
    /// Advice about forks for a run without registered pages.
    fn advise(&mut self, (page, pages): (usize, usize), dont_fork: bool) {
        if !self.is_together((page, pages)) || self.registered[page..page + pages].iter().any(|n| *n > 0) {
            return;
        }
        let advice = if dont_fork { libc::MADV_DONTFORK } else { libc::MADV_DOFORK };
        // SAFETY: memory of this test.
        assert_eq!(unsafe { libc::madvise(self.page(page).cast(), pages * PAGE, advice) }, 0);
        self.dont_fork[page..page + pages].fill(dont_fork);
    }
    fn is_whole(&self, skip_excluded: bool) -> bool {
        let differs = |page: &usize| {
            // SAFETY: memory of this test, present unless it is excluded from forks.
            let there = || unsafe { self.page(*page).cast::<[u8; WORDS]>().read_volatile() };
            !(skip_excluded && self.dont_fork[*page]) && there() != self.words[*page]
        };
        let wrong = (0..PAGES).find(differs);
        if let Some(page) = wrong {
            let _ = writeln!(std::io::stderr(), "page {page} is not as the model has it");
        }
        wrong.is_none()
    }
    /// Whether a child has all pages that are not excluded from forks. It may have others: a page that is a mapping of its own
    /// when it is registered loses the advice.
    fn has_all_others(&self) -> bool {
        let mut present = [0u8; 1];
        let mut is_absent = |page: &usize| {
            // SAFETY: one byte for the page.
            unsafe { libc::mincore(self.page(*page).cast(), PAGE, present.as_mut_ptr()) == -1 }
        };
        let wrong = (0..PAGES).filter(|page| !self.dont_fork[*page]).find(|page| is_absent(page));
        if let Some(page) = wrong {
            let _ = writeln!(std::io::stderr(), "page {page} is missing");
        }
        wrong.is_none()
    }
    /// Forks. The child compares its memory with the model when the parent has written again, and overwrites it.
    fn fork(&mut self, random: &mut Random) {
        let mut ends = [0; 2];
        // SAFETY: two writable numbers.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        // SAFETY: the child compares and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let mut byte = 0u8;
            // SAFETY: our own descriptor, one writable byte.
            unsafe { libc::read(ends[0], (&raw mut byte).cast(), 1) };
            let fine = self.has_all_others() && self.is_whole(true);
            for page in (0..PAGES).filter(|page| !self.dont_fork[*page]) {
                // SAFETY: memory that the child has.
                unsafe { self.page(page).write_bytes(0xEE, WORDS) };
            }
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!fine)) };
        }
        for _ in 0..4 {
            self.write(random.below(PAGES), random.below(256) as u8);
            self.peer(random.below(8), random.below(PAGES), random.below(256) as u8);
        }
        let mut status = -1;
        // SAFETY: our own descriptors and child.
        unsafe {
            assert_eq!(libc::write(ends[1], [1u8].as_ptr().cast(), 1), 1);
            libc::close(ends[0]);
            libc::close(ends[1]);
            libc::waitpid(pid, &raw mut status, 0);
        }
        assert_eq!(status, 0, "the child's memory");
    }
    fn step(&mut self, random: &mut Random) {
        match random.below(64) {
            0..6 if self.regs.len() < 8 => self.register(random.run(6)),
            6..12 if !self.regs.is_empty() => self.release(random.below(self.regs.len())),
            12..14 => self.discard(random.run(4), random.below(2) == 0),
            14 => self.advise(random.run(8), random.below(3) == 0),
            15 => self.fork(random),
            16 => self.travel(random.run(8)),
            17..36 => self.peer(random.below(8), random.below(PAGES), random.below(256) as u8),
            _ => self.write(random.below(PAGES), random.below(256) as u8),
        }
    }
}

fn run(seed: u64, steps: usize) {
    let (mut random, mut model) = (Random(seed), Model::new());
    for step in 0..steps {
        model.step(&mut random);
        if step % 16 == 0 {
            assert!(model.is_whole(false), "seed {seed}, step {step}");
        }
    }
    while !model.regs.is_empty() {
        model.release(0);
    }
    assert!(model.is_whole(false), "seed {seed}, at the end");
}

/// A number of the environment.
fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

/// Steps of each of the two programs.
fn steps() -> usize {
    number("BURST_STEPS").unwrap_or(6000)
}

/// The seed of a program; `BURST_SEED` gives another one.
fn seed(own: u64) -> u64 {
    own + ((number("BURST_SEED").unwrap_or(0) as u64) << 32)
}

#[test]
fn random_programs_see_their_memory() {
    // With threads: those of the test harness.
    run(seed(0x5EED_0001), steps());
    // Without: in a child.
    // SAFETY: the child runs the program and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let failed = std::panic::catch_unwind(|| run(seed(0x5EED_0002), steps())).is_err();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    let mut status = -1;
    // SAFETY: our child.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(status, 0, "the program with one thread");
}
