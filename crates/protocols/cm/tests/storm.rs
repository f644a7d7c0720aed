//! Many connections over bad links: each ends established at both ends or failed with a reason at both; none hangs, and
//! nothing is left behind.

mod house;

use burst_base::{Nanos, Reason};
use burst_cm::{EventKind as K, Ready, State};
use house::{House, Weather};

const BAD: Weather = Weather { loss: 50, duplicate: 20, delay: Nanos::from_ms(30) };

/// Both ends of every connection agree; returns how many are established.
fn settled(house: &mut House) -> usize {
    let mut established = [0, 0];
    for (side, host) in house.hosts.iter_mut().enumerate() {
        for story in &host.world.stories {
            let state = host.cm.state(story.conn);
            match state {
                Some(State::Established) => {
                    // A program that establishes by itself was told of the reply.
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
        let mut house = House::new(seed, BAD);
        house.hosts[0].world.ready = if seed % 2 == 0 { Ready::Done } else { Ready::ByProgram };
        let (a, b) = (house.hosts[0].ip, house.hosts[1].ip);
        let count = 200;
        for n in 0..count {
            let (from, to) = if n % 2 == 0 { (0, b) } else { (1, a) };
            house.hosts[from].connect(house.now, to, b"hello");
        }
        house.run(Nanos::from_ms(300_000));
        let established = settled(&mut house);
        assert!(established > count * 99 / 100, "seed {seed}: {established}");
        for side in 0..2 {
            for owner in 0..house.hosts[side].world.stories.len() as u32 {
                if house.rng.chance(1, 2) {
                    house.hosts[side].disconnect(house.now, owner);
                }
            }
        }
        house.run(Nanos::from_ms(300_000));
        let left = settled(&mut house);
        assert!(left < established);
        for side in 0..2 {
            let host = &mut house.hosts[side];
            host.cm.destroy_all(house.now, |_| true, &mut host.world);
        }
        house.run(Nanos::from_ms(300_000));
        assert!(house.hosts.iter().all(|h| h.cm.is_empty()), "seed {seed}: something is left");
        assert!(house.hosts.iter().all(|h| h.backlog.waiting() == 0));
    }
}

#[test]
fn ten_thousand_at_once_with_loss() {
    let mut house = House::new(4242, Weather { loss: 50, ..BAD });
    let to = house.hosts[1].ip;
    for _ in 0..10_000 {
        house.hosts[0].connect(house.now, to, &[]);
    }
    house.run(Nanos::from_ms(300_000));
    assert!(settled(&mut house) > 9_990);
    for owner in 0..10_000 {
        house.hosts[0].disconnect(house.now, owner);
    }
    house.run(Nanos::from_ms(300_000));
    assert_eq!(settled(&mut house), 0);
    assert!(house.hosts.iter().all(|h| h.cm.is_empty()));
}

#[test]
fn a_partition_ends_in_unreachable() {
    let mut house = House::new(1, Weather { loss: 1000, ..Weather::default() });
    let to = house.hosts[1].ip;
    let owner = house.hosts[0].connect(house.now, to, &[]);
    let begun = house.now;
    house.run(Nanos::from_ms(300_000));
    let story = &house.hosts[0].world.stories[owner as usize];
    assert_eq!(story.events, [(K::Unreachable, 0)]);
    assert_eq!(house.hosts[0].count(Reason::CmRetry), 15);
    let took = house.now.since(begun);
    assert!(took > Nanos::from_ms(15_000) && took < Nanos::from_ms(40_000), "{took:?}");
    assert!(house.hosts[0].cm.is_empty());
}

#[test]
fn a_partition_after_the_handshake_ends_both_sides() {
    let mut house = House::new(1, Weather::default());
    let to = house.hosts[1].ip;
    house.hosts[0].connect(house.now, to, &[]);
    house.run(Nanos::from_ms(1000));
    house.weather.loss = 1000;
    house.hosts[0].disconnect(house.now, 0);
    house.hosts[1].disconnect(house.now, 0);
    house.run(Nanos::from_ms(300_000));
    for host in &house.hosts {
        let kinds: Vec<K> = host.world.stories[0].events.iter().map(|(k, _)| *k).collect();
        assert_eq!(kinds, [K::Established, K::Disconnected, K::TimewaitExit]);
        assert!(host.cm.is_empty());
    }
}
