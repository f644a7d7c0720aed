//! Several users of one path, at a bottleneck of 300 Mbit/s in virtual time with the whole engine: what one of them does to the
//! others.

use crate::urma_network::{Bottleneck, Transport};
use burst_ledger::{AccountId, Capacities, Ledger, Policy};

const SLOW: Bottleneck =
    Bottleneck { cc: "cubic", mbit: 300, buffer: 50_000, marks: 0, delay_us: 25, window: 1 << 20, train: 2_048 };
const LONG: Bottleneck = Bottleneck { buffer: 150_000, delay_us: 1_000, ..SLOW };
const MARKED: Bottleneck = Bottleneck { cc: "dctcp", buffer: 256 << 10, marks: 30 << 10, ..SLOW };
const RATES: Bottleneck = Bottleneck { cc: "dcqcn", ..MARKED };

/// Bytes of each sender in 0.6 s, where the receivers of some are gone for 0.3 s: by then a budget is at its least.
fn bytes_beside(place: &Bottleneck, senders: &[(u32, Transport)], gone: &[usize]) -> Vec<u64> {
    let mut lab = place.build(senders);
    lab.run(300_000);
    gone.iter().for_each(|sender| lab.end_receiver(*sender));
    lab.run(300_000);
    lab.look();
    lab.run(600_000);
    let seen = lab.look();
    println!("{} {} us, {} gone: {seen:?}", place.cc, place.delay_us, gone.len());
    assert_eq!(lab.failed(), 0);
    seen.bytes
}

#[test]
fn a_uc_receiver_that_is_gone_slows_down_no_other_queue_pair() {
    for place in [SLOW, LONG, MARKED, RATES] {
        let senders = [(1, Transport::Rc), (1, Transport::Uc)];
        let [live, beside] = [&[][..], &[1]].map(|gone| bytes_beside(&place, &senders, gone));
        assert!(beside[0] as f64 >= 0.8 * live[0] as f64, "{}: {live:?}, without the receiver {beside:?}", place.cc);
        assert!(beside[0] as f64 >= 0.8 * live.iter().sum::<u64>() as f64, "{}: {live:?}, {beside:?}", place.cc);
        // 8 KiB in each 20 ms, in messages of 64 KiB.
        assert!(beside[1] <= 600_000 / 20_000 * (8 << 10) + (128 << 10), "{}: {beside:?}", place.cc);
    }
}

/// After one time-out, which may be a loss of the path, what dead queue pairs send says nothing of the path of others, and takes
/// the room of a packet each.
#[test]
fn rc_receivers_that_are_gone_narrow_the_path_once() {
    for place in [SLOW, LONG, MARKED, RATES] {
        let bytes = |senders: &[(u32, Transport)]| {
            let mut lab = place.build(senders);
            lab.run(300_000);
            let before = lab.path(1).expect("a path").window;
            senders.iter().enumerate().skip(1).for_each(|(sender, _)| lab.end_receiver(sender));
            lab.run(100_000);
            lab.look();
            lab.run(400_000);
            let window = lab.path(1).expect("a path").window;
            assert!(window as f64 >= 0.65 * before as f64, "{}: {before} bytes, then {window}", place.cc);
            lab.look().bytes[0]
        };
        let alone = bytes(&[(1, Transport::Rc)]);
        // A sender has two messages in flight. In four milliseconds they fill the link only if the window does not pace them, and
        // a reduced one does.
        let least = if place.delay_us == LONG.delay_us { 0.6 } else { 0.9 };
        for count in [1, 8] {
            let beside = bytes(&vec![(1, Transport::Rc); 1 + count]);
            println!("{} {} us, {count} gone: {beside} bytes, alone {alone}", place.cc, place.delay_us);
            assert!(beside as f64 >= least * alone as f64, "{}, {count} gone: {beside} bytes, alone {alone}", place.cc);
        }
    }
}

#[test]
fn a_uc_sender_whose_peer_is_silent_sends_little_and_narrows_the_path_once() {
    let mut lab = LONG.build(&[(1, Transport::Uc)]);
    lab.run(300_000);
    let before = lab.path(1).expect("a path").window;
    lab.black_hole = Some((1, 0));
    lab.run(200_000);
    let (window, swallowed) = (lab.path(1).expect("a path").window, lab.swallowed);
    // Nothing on the path is acknowledged. One time-out leaves ten packets; what follows is the same silence.
    assert!(window < before && window >= 10 * 1024, "{before} bytes, then {window}");
    lab.run(1_000_000);
    // Each train has two packets at most, and each 20 ms have 8 KiB.
    let trains = lab.swallowed - swallowed;
    assert!((200..=450).contains(&trains), "{trains} trains in a second");
    assert_eq!(lab.path(1).expect("a path").window, window);
    lab.black_hole = None;
    lab.run(100_000);
    lab.look();
    lab.run(300_000);
    let seen = lab.look();
    assert!(seen.used >= 0.9 && lab.failed() == 0, "{seen:?}");
}

/// All data is lost for a while, or all receipts and acknowledgements: the link is used again, also where RC shares the path.
#[test]
fn uc_comes_back_after_a_black_hole_alone_and_beside_rc() {
    for senders in [&[(1, Transport::Uc)][..], &[(1, Transport::Rc), (1, Transport::Uc)]] {
        for (lost, ms) in [((1, 0), 30), ((1, 0), 300), ((0, 1), 30), ((0, 1), 300)] {
            let mut lab = LONG.build(senders);
            lab.run(300_000);
            lab.black_hole = Some(lost);
            lab.run(ms * 1_000);
            assert!(lab.swallowed > 0, "{lost:?} for {ms} ms");
            lab.black_hole = None;
            lab.run(200_000);
            lab.look();
            lab.run(300_000);
            let seen = lab.look();
            println!("{senders:?}, {lost:?} for {ms} ms: {seen:?}");
            assert!(seen.used >= 0.9 && lab.failed() == 0, "{senders:?}, {lost:?} for {ms} ms: {seen:?}");
            assert!(seen.bytes.iter().all(|bytes| *bytes > 0), "{senders:?}, {lost:?} for {ms} ms: {seen:?}");
        }
    }
}

/// RC's own time-outs narrow the path of a host that is gone, as without UC.
#[test]
fn a_host_that_is_gone_is_a_time_out_of_the_path() {
    let mut lab = LONG.build(&[(1, Transport::Rc), (1, Transport::Uc)]);
    lab.run(300_000);
    lab.black_hole = Some((1, 0));
    lab.run(300_000);
    let window = lab.path(1).expect("a path").window;
    assert!(window <= 3 * 1024, "{window} bytes");
    assert_eq!(lab.failed(), 0);
}

/// Multiples of their shares that programs of these users with so many queue pairs each get of the path to one peer.
fn of_shares(place: &Bottleneck, programs: &[(u32, usize)]) -> Vec<f64> {
    let mut lab = place.build(&[(1, Transport::Rc)]);
    let ledger = Ledger::new(Capacities::new(|_| 1), Policy::default());
    lab.end_sender(0);
    let mut of = Vec::new();
    for (user, queue_pairs) in programs {
        let program = lab.add_program(1, &ledger.account(AccountId::User(1000 + user), false));
        (0..*queue_pairs).for_each(|_| lab.add_queue_pair(1, program));
        of.extend(std::iter::repeat_n(program as usize - 1, *queue_pairs));
    }
    lab.run(400_000);
    lab.look();
    lab.run(3_000_000);
    let seen = lab.look();
    let mut bytes = vec![0; programs.len()];
    of.iter().zip(&seen.bytes[1..]).for_each(|(program, sent)| bytes[*program] += sent);
    let users = programs.iter().map(|program| program.0).collect::<std::collections::BTreeSet<u32>>().len();
    let all: u64 = bytes.iter().sum();
    let share = |user: u32| 1.0 / (users * programs.iter().filter(|program| program.0 == user).count()) as f64;
    let of_share = programs.iter().zip(&bytes).map(|(program, sent)| *sent as f64 / all as f64 / share(program.0));
    let of_share: Vec<f64> = of_share.collect();
    println!("{} {} us: {of_share:.2?}, used {:.2}, dropped {:.4}", place.cc, place.delay_us, seen.used, seen.dropped);
    assert!(lab.failed() == 0 && seen.used >= 0.9, "{seen:?}");
    of_share
}

#[test]
fn shares_of_a_path_are_those_of_users_and_their_programs() {
    for place in [SLOW, LONG, MARKED, RATES] {
        let eight: Vec<(u32, usize)> = [(0, 1)].into_iter().chain([(1, 1); 8]).collect();
        for programs in [&eight[..], &[(0, 1), (0, 8)], &[(0, 1); 9]] {
            let of_share = of_shares(&place, programs);
            assert!(of_share.iter().all(|figure| (0.8..=1.2).contains(figure)), "{programs:?}: {of_share:?}");
        }
    }
}
