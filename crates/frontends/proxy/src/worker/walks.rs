//! What a tick, the end of a peer, and room in an outbox cost a pass of a worker: the same number of connections and links,
//! however many there are.

use super::conn::Phase;
use super::fuzzed_worker::FuzzedWorker;
use super::links::{REGIONS_AT_ONCE, SWEEP_PAUSE};
use super::sockets::TcpEnd;
use super::token::StreamKey;
use super::{CONNS_AT_ONCE, RelayWorker};
use crate::counters::ProxyCounter;
use crate::message::{Command, Introduction, PeerUp};
use crate::peer_loss::PeerLoss;
use burst_relay::{ChannelSecret, EXPORT_BYTES, Frame, Outcome};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

const MEMORY: u64 = 256 << 20;

/// A worker with so many streams whose peer has not answered, and whose programs' SYNs are gone.
fn with_opening(count: u16) -> FuzzedWorker {
    let mut fuzzed = FuzzedWorker::with_memory(false, MEMORY).expect("descriptors");
    let RelayWorker { streams, env, .. } = &mut fuzzed.worker;
    let server = ([127, 0, 0, 2], 9).into();
    for port in 0..count {
        let taken = TcpEnd {
            place: 0,
            socket: None,
            ends: (([127, 0, 0, 1], 1024 + port).into(), server),
            charges: Box::default(),
        };
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
        fuzzed.worker.on_command(Command::PeerGone { peer: 0, why: PeerLoss::Ended });
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
fn memory_of_streams_that_have_ended_is_given_back_within_a_bounded_time_and_number_of_regions_a_tick() {
    let mut fuzzed = with_opening(1000);
    let began = Instant::now();
    let held = |fuzzed: &FuzzedWorker| fuzzed.worker.streams.links.views().map(|link| link.memory).sum::<u64>();
    let mapped = held(&fuzzed);
    assert!(mapped >= 1000 * 2 * (16 << 10), "{mapped} bytes");
    let mut frames = Vec::new();
    (1..=1000).for_each(|number| Frame::End { outcome: Outcome::Reset }.write(2 * number, &mut frames));
    let now = |fuzzed: &mut FuzzedWorker, after| fuzzed.worker.env.timer.set = Some(began + after);
    now(&mut fuzzed, Duration::ZERO);
    fuzzed.batch(&frames, 1, 0);
    assert_eq!((open(&fuzzed), held(&fuzzed)), (0, mapped), "nothing is freed at once: others may come");
    let (mut after, mut freed) = (Duration::ZERO, 0);
    while held(&fuzzed) > 0 {
        after += Duration::from_millis(250);
        now(&mut fuzzed, after);
        let RelayWorker { streams, env, .. } = &mut fuzzed.worker;
        streams.links.free_idle_memory(env, began + after);
        let all = env.counters.get(ProxyCounter::RegionsFreed).unwrap_or(0);
        assert!(all - freed <= REGIONS_AT_ONCE as u64, "{} in one tick", all - freed);
        freed = all;
        assert!(after > SWEEP_PAUSE || freed == 0, "they may be used again for a while");
        assert!(after < Duration::from_secs(30), "{} bytes after {after:?}", held(&fuzzed));
    }
    assert_eq!((freed, fuzzed.worker.env.counters.get(ProxyCounter::BytesFreed)), (125, Some(mapped)));
    // Nothing is left to do, and a stream finds memory again.
    let RelayWorker { streams, env, .. } = &mut fuzzed.worker;
    assert_eq!(streams.links.free_idle_memory(env, began + Duration::from_secs(3600)), 0);
    assert!(streams.links.take_slot(env, 0).is_some());
}

#[test]
fn streams_that_have_ended_are_not_reset_with_their_link() {
    let mut fuzzed = with_opening(3);
    let RelayWorker { streams, env, .. } = &mut fuzzed.worker;
    let link = streams.links.get_mut(0).expect("the peer's link");
    let keys = [2, 4, 6].map(|id| link.find(id).expect("a stream"));
    for (key, phase) in keys.into_iter().zip([Phase::Open, Phase::Ended, Phase::Opening]) {
        link.conns.get_mut(key).expect("its connection").phase = phase;
    }
    assert_eq!(env.counters.get(ProxyCounter::StreamsReset), None);
    fuzzed.worker.on_command(Command::PeerGone { peer: 0, why: PeerLoss::Ended });
    assert_eq!(fuzzed.worker.env.counters.get(ProxyCounter::StreamsReset), Some(1));
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

#[test]
fn room_in_an_outbox_wakes_a_bounded_number_of_the_streams_that_wait_for_it() {
    for count in [600u16, 2400] {
        let mut fuzzed = with_opening(count);
        let RelayWorker { streams, env, .. } = &mut fuzzed.worker;
        let link = streams.links.get_mut(0).expect("the peer's link");
        for id in (1..=u32::from(count)).map(|number| 2 * number) {
            let key = link.find(id).expect("a stream");
            link.conns.get_mut(key).expect("its connection").waits = true;
            link.waiting.push_back(key);
        }
        streams.links.flush(env, 0);
        let mut left = usize::from(count);
        while left > 0 {
            assert!(streams.has_ready(), "{left} of {count} wait for the next pass");
            assert_eq!(streams.wake(), left.min(CONNS_AT_ONCE), "of {count}");
            left -= left.min(CONNS_AT_ONCE);
            let waiting = &streams.links.get(0).expect("the peer's link").waiting;
            assert_eq!(waiting.len(), left);
        }
        assert_eq!((streams.wake(), streams.links.unblocked.len()), (0, 0));
    }
}

/// Another peer, with one link.
fn peer_up(fuzzed: &mut FuzzedWorker, peer: usize) {
    let introduction = Introduction {
        version: 1,
        features: 15,
        name: format!("peer{peer}"),
        session: 1,
        workers: 1,
        address: ([127, 0, 0, 1], 7401).into(),
        serves: vec![(Ipv4Addr::from(10 << 24 | peer as u32).into(), 32)],
        draining: false,
    };
    let secret = ChannelSecret::new(&[7; EXPORT_BYTES]);
    let mut token = [1; 16];
    token[..8].copy_from_slice(&peer.to_le_bytes());
    let up = PeerUp { peer, introduction, dials: false, token, encrypts: false, secret };
    fuzzed.worker.on_command(Command::PeerUp(up));
}

#[test]
fn a_tick_looks_at_a_bounded_number_of_links_and_each_has_its_turn() {
    for peers in [200, 800] {
        let mut fuzzed = FuzzedWorker::with_memory(false, MEMORY).expect("descriptors");
        (1..=peers).for_each(|peer| peer_up(&mut fuzzed, peer));
        let links = &mut fuzzed.worker.streams.links;
        let at = (1..=peers).map(|peer| links.find(peer, 0).expect("its link")).collect::<BTreeSet<_>>();
        assert_eq!((at.len(), links.find(1, 1)), (peers, None), "each has its own");
        let (mut looked, mut ticks) = (0, 0);
        while looked <= peers {
            let RelayWorker { streams, env, .. } = &mut fuzzed.worker;
            let now = Instant::now();
            env.timer.take_due();
            let of_tick = streams.links.mend(env, now);
            assert!(of_tick <= 64, "{of_tick} of {peers}");
            looked += of_tick;
            ticks += 1;
            assert_eq!(env.timer.left() == Some(Duration::ZERO), looked <= peers, "the rest comes at once");
        }
        assert_eq!((looked, ticks), (peers + 1, (peers + 1).div_ceil(64)), "the first peer has a link, too");
        // The ends of peers make room for others.
        for peer in 1..=peers {
            fuzzed.worker.on_command(Command::PeerGone { peer, why: PeerLoss::Ended });
            peer_up(&mut fuzzed, peers + peer);
        }
        let links = &fuzzed.worker.streams.links;
        let again = (1..=peers).map(|peer| links.find(peers + peer, 0).expect("its link")).collect::<BTreeSet<_>>();
        assert_eq!((again, links.iter().count()), (at, peers + 1));
    }
}

#[test]
fn a_key_of_a_link_that_has_ended_leads_to_no_connection_of_the_next() {
    let mut fuzzed = with_opening(1);
    let key = fuzzed.worker.streams.links.get(0).and_then(|link| link.find(2)).expect("a stream");
    fuzzed.worker.on_command(Command::PeerGone { peer: 0, why: PeerLoss::Ended });
    peer_up(&mut fuzzed, 1);
    assert_eq!(fuzzed.worker.streams.links.find(1, 0), Some(0), "its place");
    assert!(fuzzed.worker.streams.links.conn(StreamKey { link: 0, key }).is_none());
}
