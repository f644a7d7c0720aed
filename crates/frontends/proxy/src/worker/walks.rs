//! What a tick and the end of a peer cost a pass of a worker: the same number of connections, however many there are.

use super::fuzzed_worker::FuzzedWorker;
use super::sockets::TcpEnd;
use super::{CONNS_AT_ONCE, RelayWorker};
use crate::message::Command;
use std::time::{Duration, Instant};

const MEMORY: u64 = 256 << 20;

/// A worker with so many streams whose peer has not answered, and whose programs' SYNs are gone.
fn with_opening(count: u16) -> FuzzedWorker {
    let mut fuzzed = FuzzedWorker::with_memory(false, MEMORY).expect("descriptors");
    let RelayWorker { streams, env, .. } = &mut fuzzed.worker;
    let server = ([127, 0, 0, 2], 9).into();
    for port in 0..count {
        let taken = TcpEnd { place: 0, socket: None, ends: (([127, 0, 0, 1], 1024 + port).into(), server) };
        let link = streams.links.choose(server).expect("the peer's link");
        assert!(streams.open(env, link, taken).is_ok(), "memory for {port}");
    }
    fuzzed
}

fn open(fuzzed: &FuzzedWorker) -> usize {
    fuzzed.worker.streams.views().count()
}

#[test]
fn a_tick_gives_up_a_bounded_number_of_streams_whose_peer_is_silent() {
    for count in [600, 2400] {
        let mut fuzzed = with_opening(count);
        let mut left = usize::from(count);
        while left > 0 {
            let RelayWorker { streams, env, .. } = &mut fuzzed.worker;
            let (now, mut steps) = (Instant::now() + Duration::from_secs(3600), CONNS_AT_ONCE);
            assert!(streams.take_unanswered(env, now, &mut steps).is_none(), "no program's end is there");
            left -= left.min(CONNS_AT_ONCE);
            assert_eq!(open(&fuzzed), left, "of {count}");
        }
    }
}

#[test]
fn a_pass_resets_a_bounded_number_of_streams_of_a_peer_that_has_gone() {
    for count in [600, 2400] {
        let mut fuzzed = with_opening(count);
        fuzzed.worker.on_command(Command::PeerGone { peer: 0, why: "the test ends".into() });
        assert_eq!(open(&fuzzed), 0, "none is carried any more");
        let mut left = usize::from(count);
        while left > 0 {
            assert!(!fuzzed.worker.leaving.is_empty(), "{left} of {count} are left");
            assert_eq!(fuzzed.worker.end_leaving(), left.min(CONNS_AT_ONCE), "of {count}");
            left -= left.min(CONNS_AT_ONCE);
        }
        assert_eq!((fuzzed.worker.end_leaving(), fuzzed.worker.leaving.len()), (0, 0));
    }
}

#[test]
fn a_link_is_once_in_the_list_of_those_that_may_send() {
    let mut fuzzed = with_opening(8);
    let RelayWorker { streams, env, .. } = &mut fuzzed.worker;
    (0..8).for_each(|_| streams.links.mark_dirty(0));
    assert_eq!(streams.links.dirty(), 1);
    streams.links.flush_all(env);
    assert_eq!(streams.links.dirty(), 0);
    streams.links.mark_dirty(0);
    assert_eq!(streams.links.dirty(), 1, "again");
}
