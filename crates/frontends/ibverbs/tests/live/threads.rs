//! Many threads post to queue pairs of one CQ and others poll it, by the classic and by the extended interfaces: each completion
//! comes exactly once. `make threads` runs these tests with ten million completions, and under ThreadSanitizer.

use crate::extended::{cq_ex, pair_ex};
use crate::pair::*;
use burst_ibverbs::poll;
use burst_ibverbs::sys::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Instant;

/// Number of posting threads, and of threads that poll the shared CQ.
const POSTERS: usize = 8;
const POLLERS: usize = 4;
/// Send queue entries of the queue pairs that `pair` makes.
const SEND_WR: i32 = 16;
/// Completions per test, unless BURST_COMPLETIONS overrides it.
const COMPLETIONS: usize = 16_000;

/// State of one test: the memory, and the completions counted.
struct Storm {
    /// Requests of each poster.
    each: usize,
    seen: Vec<AtomicU8>,
    counted: AtomicUsize,
    local: (u64, u32),
    remote: (u64, u32),
}

/// Verbs objects may be used from any thread.
struct Shared<T>(*mut T);
// SAFETY: see the type.
unsafe impl<T> Sync for Shared<T> {}

impl Storm {
    fn new(source: *mut ibv_mr, target: *mut ibv_mr) -> Storm {
        let requested = std::env::var("BURST_COMPLETIONS").map_or(COMPLETIONS, |n| n.parse().expect("a number"));
        let each = requested / POSTERS;
        let seen = (0..each * POSTERS).map(|_| AtomicU8::new(0)).collect();
        // SAFETY: live regions.
        let (local, remote) =
            unsafe { (((*source).addr as u64, (*source).lkey), ((*target).addr as u64, (*target).rkey)) };
        Storm { each, seen, counted: AtomicUsize::new(0), local, remote }
    }

    /// Calls `post` for each number of a poster until it succeeds; a full queue is waited for.
    fn post(&self, poster: usize, post: impl Fn(u64, ibv_sge, u64) -> i32) {
        let at = poster as u64 * 64;
        let piece = ibv_sge { addr: self.local.0 + at, length: 64, lkey: self.local.1 };
        for number in poster * self.each..(poster + 1) * self.each {
            loop {
                match post(number as u64, piece, self.remote.0 + at) {
                    0 => break,
                    libc::ENOMEM => std::thread::yield_now(),
                    error => panic!("post: {error}"),
                }
            }
        }
    }

    /// Counts a completion under its number.
    fn saw(&self, number: u64, status: ibv_wc_status) {
        assert_eq!(status, IBV_WC_SUCCESS);
        self.seen[number as usize].fetch_add(1, Ordering::Relaxed);
        self.counted.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls `poll` until all completions are counted.
    fn poll(&self, poll: impl Fn()) {
        let (mut begin, mut before) = (Instant::now(), 0);
        loop {
            let so_far = self.counted.load(Ordering::Relaxed);
            if so_far >= self.seen.len() {
                return;
            }
            if so_far != before {
                (begin, before) = (Instant::now(), so_far);
            }
            assert!(begin.elapsed() < 3 * DEADLINE, "{so_far} of {} completions, and no more", self.seen.len());
            poll();
        }
    }

    fn check(&self) {
        let wrong = self.seen.iter().position(|n| n.load(Ordering::Relaxed) != 1);
        assert_eq!(wrong, None, "a completion was lost or came twice");
        assert_eq!(self.counted.load(Ordering::Relaxed), self.seen.len());
    }
}

/// Bytes that differ from poster to poster.
fn pattern() -> Vec<u8> {
    (0..4096).map(|i| (i / 64 * 3 + i) as u8).collect()
}

#[test]
fn eight_posters_and_four_pollers_share_a_cq() {
    let Some(open) = Open::new() else { return };
    // As many as all send queues may hold: posters that see a free slot too early would overrun it.
    let cq = Shared(open.cq(POSTERS as i32 * SEND_WR));
    let (mut source, mut target) = (pattern(), vec![0u8; 4096]);
    let storm = Storm::new(open.mr(&mut source), open.mr(&mut target));
    let pairs: Vec<_> = (0..POSTERS).map(|_| Shared(open.pair(cq.0).0)).collect();
    std::thread::scope(|s| {
        let (storm, cq) = (&storm, &cq);
        for (poster, qp) in pairs.iter().enumerate() {
            s.spawn(move || {
                storm.post(poster, |wr_id, piece, remote_addr| {
                    let mut list = [piece];
                    let mut request = ibv_send_wr { wr_id, ..wr(IBV_WR_RDMA_WRITE, &mut list) };
                    request.wr.rdma.remote_addr = remote_addr;
                    request.wr.rdma.rkey = storm.remote.1;
                    send(qp.0, &mut request).0
                });
            });
        }
        for _ in 0..POLLERS {
            s.spawn(move || {
                storm.poll(|| {
                    let mut wc = [ibv_wc::default(); 16];
                    // SAFETY: a live CQ and room for 16.
                    let n = unsafe { poll::poll_cq(cq.0, 16, wc.as_mut_ptr()) };
                    assert!(n >= 0, "poll_cq: {n}");
                    wc[..n as usize].iter().for_each(|one| storm.saw(one.wr_id, one.status));
                });
            });
        }
    });
    storm.check();
    assert!(poll_once(cq.0).is_none(), "one completion too many");
    assert_eq!(target[..POSTERS * 64], source[..POSTERS * 64]);
}

/// Posts one WRITE by the extended interface.
fn write_extended(qp: *mut ibv_qp_ex, number: u64, piece: &ibv_sge, (remote_addr, rkey): (u64, u32)) -> i32 {
    // SAFETY: a live queue pair that was created with the extended interface; `start` takes its lock, so the fields are ours.
    unsafe {
        ((*qp).wr_start.unwrap())(qp);
        (*qp).wr_id = number;
        (*qp).wr_flags = IBV_SEND_SIGNALED;
        ((*qp).wr_rdma_write.unwrap())(qp, rkey, remote_addr);
        ((*qp).wr_set_sge.unwrap())(qp, piece.lkey, piece.addr, piece.length);
        ((*qp).wr_complete.unwrap())(qp)
    }
}

/// Takes up to 16 completions by the extended interface.
fn poll_extended(cq: *mut ibv_cq_ex, storm: &Storm) {
    let mut attr = ibv_poll_cq_attr::default();
    // SAFETY: a live CQ; from `start` to `end` its fields are ours.
    unsafe {
        if ((*cq).start_poll.unwrap())(cq, &mut attr) != 0 {
            return;
        }
        let mut polled = 0;
        loop {
            assert_eq!(((*cq).read_opcode.unwrap())(cq), IBV_WC_RDMA_WRITE);
            storm.saw((*cq).wr_id, (*cq).status);
            polled += 1;
            if polled == 16 || ((*cq).next_poll.unwrap())(cq) != 0 {
                break;
            }
        }
        ((*cq).end_poll.unwrap())(cq);
    }
}

/// Two threads post to each queue pair, whose lock the extended interface holds between calls.
#[test]
fn the_extended_interfaces_are_shared_by_threads_too() {
    let Some(open) = Open::new() else { return };
    let cq = Shared(cq_ex(&open, 0));
    let (mut source, mut target) = (pattern(), vec![0u8; 4096]);
    let storm = Storm::new(open.mr(&mut source), open.mr(&mut target));
    let pairs: Vec<_> = (0..POSTERS / 2).map(|_| Shared(pair_ex(&open, cq.0.cast()).0)).collect();
    std::thread::scope(|s| {
        let (storm, cq) = (&storm, &cq);
        for poster in 0..POSTERS {
            let qp = &pairs[poster / 2];
            s.spawn(move || {
                storm.post(poster, |number, piece, at| write_extended(qp.0, number, &piece, (at, storm.remote.1)))
            });
        }
        for _ in 0..POLLERS {
            s.spawn(move || storm.poll(|| poll_extended(cq.0, storm)));
        }
    });
    storm.check();
    assert!(poll_once(cq.0.cast()).is_none(), "one completion too many");
    assert_eq!(target[..POSTERS * 64], source[..POSTERS * 64]);
}

/// Not a test: `make threads` runs it to check that the sanitizer reports a data race.
#[test]
#[ignore = "a data race, for the sanitizer to find"]
fn a_race_for_the_sanitizer() {
    let mut word = 0u64;
    let place = Shared(&raw mut word);
    let both = Barrier::new(2);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                let place = &place;
                both.wait();
                // SAFETY: none. Two threads write to one word; the sanitizer must say so.
                (0..100_000).for_each(|i| unsafe { place.0.write_volatile(i) });
            });
        }
    });
    assert!(word < 100_000);
}

/// Not a test: `make threads` runs it to check that the sanitizer reports a read of freed memory.
#[test]
#[ignore = "a read of freed memory, for the sanitizer to find"]
fn a_read_of_freed_memory_for_the_sanitizer() {
    let place = std::hint::black_box(Box::into_raw(Box::new(7u64)));
    // SAFETY: none for the read: the sanitizer must say so.
    let word = unsafe {
        drop(Box::from_raw(place));
        place.read_volatile()
    };
    assert_ne!(std::hint::black_box(word), 1);
}
