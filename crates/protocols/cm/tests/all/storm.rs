//! Many connections over bad links: each ends established at both ends or failed with a reason at both; none hangs, and
//! nothing is left behind.

use crate::harness::{Harness, Weather};
use burst_base::{Nanos, Reason};
use burst_cm::{CmState, ConnEventKind as K, QpSetup};

const BAD: Weather = Weather { loss: 50, duplicate: 20, delay: Nanos::from_ms(30) };

/// Checks that both ends of every connection agree. Returns the number of established connections.
fn settled(harness: &mut Harness) -> usize {
    let mut established = [0, 0];
    for (side, host) in harness.hosts.iter_mut().enumerate() {
        for story in &host.world.stories {
            let state = host.cm.state(story.conn);
            match state {
                Some(CmState::Established) => {
                    // A program that calls establish itself got the event Response.
                    assert!(story.saw(K::Established) || story.saw(K::Response), "{story:?}");
                    established[side] += 1;
                }
                None => {
                    let over = story.saw(K::Rejected) || story.saw(K::Unreachable) || story.saw(K::ConnectError);
                    assert!(over || story.saw(K::TimewaitExit), "over without a word: {story:?}");
                }
                other => panic!("stuck in {other:?}: {story:?}"),
            }
        }
    }
    assert_eq!(established[0], established[1], "one end believes what the other does not");
    established[0]
}

#[test]
fn storms_over_bad_links_settle() {
    for seed in 0..40 {
        let mut harness = Harness::new(seed, BAD);
        harness.hosts[0].world.ready = if seed % 2 == 0 { QpSetup::Done } else { QpSetup::ByProgram };
        let (a, b) = (harness.hosts[0].ip, harness.hosts[1].ip);
        let count = 200;
        for n in 0..count {
            let (from, to) = if n % 2 == 0 { (0, b) } else { (1, a) };
            harness.hosts[from].connect(harness.now, to, b"hello");
        }
        harness.run(Nanos::from_ms(300_000));
        let established = settled(&mut harness);
        assert!(established > count * 99 / 100, "seed {seed}: {established}");
        for side in 0..2 {
            for owner in 0..harness.hosts[side].world.stories.len() as u32 {
                if harness.rng.chance(1, 2) {
                    harness.hosts[side].disconnect(harness.now, owner);
                }
            }
        }
        harness.run(Nanos::from_ms(300_000));
        let left = settled(&mut harness);
        assert!(left < established);
        for side in 0..2 {
            let host = &mut harness.hosts[side];
            host.cm.destroy_all(harness.now, |_| true, &mut host.world);
        }
        harness.run(Nanos::from_ms(300_000));
        assert!(harness.hosts.iter().all(|h| h.cm.is_empty()), "seed {seed}: something is left");
        assert!(harness.hosts.iter().all(|h| h.backlog.waiting() == 0));
    }
}

#[test]
fn ten_thousand_at_once_with_loss() {
    let mut harness = Harness::new(4242, Weather { loss: 50, ..BAD });
    let to = harness.hosts[1].ip;
    for _ in 0..10_000 {
        harness.hosts[0].connect(harness.now, to, &[]);
    }
    harness.run(Nanos::from_ms(300_000));
    assert!(settled(&mut harness) > 9_990);
    for owner in 0..10_000 {
        harness.hosts[0].disconnect(harness.now, owner);
    }
    harness.run(Nanos::from_ms(300_000));
    assert_eq!(settled(&mut harness), 0);
    assert!(harness.hosts.iter().all(|h| h.cm.is_empty()));
}

#[test]
fn a_partition_ends_in_unreachable() {
    let mut harness = Harness::new(1, Weather { loss: 1000, ..Weather::default() });
    let to = harness.hosts[1].ip;
    let owner = harness.hosts[0].connect(harness.now, to, &[]);
    let begun = harness.now;
    harness.run(Nanos::from_ms(300_000));
    let story = &harness.hosts[0].world.stories[owner as usize];
    assert_eq!(story.events, [(K::Unreachable, 0)]);
    assert_eq!(harness.hosts[0].count(Reason::CmRetry), 15);
    let took = harness.now.since(begun);
    assert!(took > Nanos::from_ms(15_000) && took < Nanos::from_ms(40_000), "{took:?}");
    assert!(harness.hosts[0].cm.is_empty());
}

#[test]
fn a_partition_after_the_handshake_ends_both_sides() {
    let mut harness = Harness::new(1, Weather::default());
    let to = harness.hosts[1].ip;
    harness.hosts[0].connect(harness.now, to, &[]);
    harness.run(Nanos::from_ms(1000));
    harness.weather.loss = 1000;
    harness.hosts[0].disconnect(harness.now, 0);
    harness.hosts[1].disconnect(harness.now, 0);
    harness.run(Nanos::from_ms(300_000));
    for host in &harness.hosts {
        let kinds: Vec<K> = host.world.stories[0].events.iter().map(|(k, _)| *k).collect();
        assert_eq!(kinds, [K::Established, K::Disconnected, K::TimewaitExit]);
        assert!(host.cm.is_empty());
    }
}
