//! Several users of one path, at a bottleneck of 300 Mbit/s in virtual time with the whole engine: what one of them does to the
//! others.

use crate::urma_network::{Bottleneck, Transport};

const SLOW: Bottleneck = Bottleneck { cc: "cubic", mbit: 300, buffer: 50_000, marks: 0, delay_us: 25, window: 1 << 20 };
const LONG: Bottleneck = Bottleneck { buffer: 150_000, delay_us: 1_000, ..SLOW };
const MARKED: Bottleneck = Bottleneck { cc: "dctcp", buffer: 256 << 10, marks: 30 << 10, ..SLOW };
const RATES: Bottleneck = Bottleneck { cc: "dcqcn", ..MARKED };

/// Bytes of each sender in 0.6 s, where the receivers of some are gone for 0.1 s.
fn bytes_beside(place: &Bottleneck, senders: &[(u32, Transport)], gone: &[usize]) -> Vec<u64> {
    let mut lab = place.build(senders);
    lab.run(300_000);
    gone.iter().for_each(|sender| lab.end_receiver(*sender));
    lab.run(100_000);
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
        // 8 KiB in each 20 ms.
        assert!(beside[1] <= 700_000 / 20_000 * (8 << 10), "{}: {beside:?}", place.cc);
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
