//! The ways to write a send: each gives the daemon the same entry, and none exceeds the limits of its queue.
#![cfg(not(loom))]
use burst_base::verbs::send_flags;
use burst_shm::sq::{ShortWqe, SqConsumer, SqProducer};
use burst_shm::{Fetch, SGE_MAX, SendWqe, Sge, WriteError, paired};

const INLINE: u16 = send_flags::INLINE as u16;

/// A head all of whose fields differ. Count of SGEs and length are the queue's to fill in.
fn head() -> SendWqe {
    SendWqe {
        wr_id: 0x0102_0304_0506_0708,
        opcode: 4,
        num_sge: 77,
        flags: send_flags::SIGNALED as u16,
        imm: 0x1112_1314,
        remote_addr: 0x2122_2324_2526_2728,
        rkey: 0x3132_3334,
        length: 99,
        ..SendWqe::default()
    }
}

fn sge(n: u32) -> Sge {
    Sge { addr: 1000 + u64::from(n), length: 10 + n, lkey: 20 + n }
}

/// The next entry, its SGEs and its inline bytes.
fn fetched(daemon: &mut SqConsumer) -> (SendWqe, Vec<Sge>, Vec<u8>) {
    let (mut wqe, mut sges) = (SendWqe::default(), [Sge::default(); SGE_MAX as usize]);
    let Fetch::Taken(index) = daemon.fetch(&mut wqe, &mut sges) else { panic!("no good entry") };
    let mut data = vec![0; if wqe.flags & INLINE != 0 { wqe.length as usize } else { 0 }];
    daemon.inline_span(index, data.len() as u32).read_to(&mut data).expect("mapped");
    (wqe, sges[..usize::from(wqe.num_sge)].to_vec(), data)
}

fn post(app: &mut SqProducer) {
    let _ = app.post();
}

#[test]
fn sges_may_be_written_with_the_head_or_one_by_one() {
    let (mut app, mut daemon) = paired::sq(8, 3, 0);
    let all = [sge(0), sge(1), sge(2)];
    assert_eq!((app.spec().max_sge(), daemon.spec().max_sge()), (3, 3));
    for count in 0..=3 {
        app.write(&head(), &all[..count]).expect("room");
        app.write_short(&ShortWqe::of(&head()), &all[..count]).expect("room");
        let mut staged = app.begin(&ShortWqe::of(&head())).expect("room");
        let mut whole = app.begin_whole(&head()).expect("room");
        for one in &all[..count] {
            assert_eq!((app.stage_sge(&mut staged, one), app.stage_sge(&mut whole, one)), (Ok(()), Ok(())));
        }
        assert_eq!((staged.num_sge() as usize, staged.opcode(), staged.is_inline()), (count, 4, false));
        post(&mut app);
        for way in ["write", "write_short", "begin", "begin_whole"] {
            let (wqe, sges, _) = fetched(&mut daemon);
            assert_eq!(wqe, SendWqe { num_sge: count as u8, length: 0, ..head() }, "{way}");
            assert_eq!(sges, all[..count], "{way}");
        }
        app.free(daemon.taken());
    }
}

/// A consumer that has fewer places than the queue allows writes none of them, and the next entry is unharmed.
#[test]
fn an_entry_with_more_sges_than_places_is_malformed() {
    let (mut app, mut daemon) = paired::sq(8, 3, 0);
    let all = [sge(0), sge(1), sge(2)];
    for count in [3, 2] {
        app.write(&head(), &all[..count]).expect("room");
        post(&mut app);
    }
    let (mut wqe, mut places) = (SendWqe::default(), [Sge::default(); 2]);
    assert_eq!(daemon.fetch(&mut wqe, &mut places), Fetch::Malformed(0));
    assert_eq!(places, [Sge::default(); 2]);
    assert_eq!((daemon.fetch(&mut wqe, &mut places), places), (Fetch::Taken(1), [sge(0), sge(1)]));
}

#[test]
fn no_way_takes_more_sges_than_the_queue_has() {
    let (mut app, _daemon) = paired::sq(4, 2, 0);
    let three = [sge(0), sge(1), sge(2)];
    assert_eq!(app.write(&head(), &three), Err(WriteError::TooManySges));
    assert_eq!(app.write_short(&ShortWqe::of(&head()), &three), Err(WriteError::TooManySges));
    let mut staged = app.begin(&ShortWqe::of(&head())).expect("room");
    let results = three.map(|one| app.stage_sge(&mut staged, &one));
    assert_eq!(results, [Ok(()), Ok(()), Err(WriteError::TooManySges)]);
    assert_eq!((staged.num_sge(), app.written()), (2, 1));
    (1..4).for_each(|_| app.write_short(&ShortWqe::of(&head()), &[]).expect("room"));
    assert_eq!(app.write_short(&ShortWqe::of(&head()), &[]), Err(WriteError::Full));
    assert!(app.begin(&ShortWqe::of(&head())).is_none() && app.begin_whole(&head()).is_none());
}

#[test]
fn inline_bytes_may_come_in_parts_up_to_the_limit() {
    let (mut app, mut daemon) = paired::sq(4, 1, 64);
    let most = app.spec().max_inline() as usize;
    let bytes: Vec<u8> = (0..most as u8).collect();
    app.write_inline_bytes(&head(), &bytes).expect("room");
    let mut staged = app.begin(&ShortWqe::of(&head())).expect("room");
    let (first, rest) = bytes.split_at(5);
    for part in [first, rest] {
        // SAFETY: a slice is readable.
        assert_eq!(unsafe { app.stage_inline(&mut staged, part.as_ptr(), part.len()) }, Ok(()));
    }
    // SAFETY: as above.
    let beyond = unsafe { app.stage_inline(&mut staged, bytes.as_ptr(), 1) };
    assert_eq!((beyond, staged.is_inline()), (Err(WriteError::InlineTooLong), true));
    post(&mut app);
    for way in ["write_inline_bytes", "stage_inline"] {
        let (wqe, _, data) = fetched(&mut daemon);
        let flags = head().flags | INLINE;
        assert_eq!(wqe, SendWqe { num_sge: 0, length: most as u32, flags, ..head() }, "{way}");
        assert_eq!(data, bytes, "{way}");
    }
}

#[test]
fn datagrams_and_xrc_requests_name_their_destination() {
    let (mut app, mut daemon) = paired::sq(4, 1, 0);
    let datagram = app.begin_whole(&head()).expect("room");
    app.stage_datagram(&datagram, 41, 42, 43);
    let xrc = app.begin_whole(&head()).expect("room");
    app.stage_srqn(&xrc, 44);
    post(&mut app);
    let (wqe, ..) = fetched(&mut daemon);
    assert_eq!((wqe.ah, wqe.remote_qpn, wqe.remote_qkey, wqe.wr_id), (41, 42, 43, head().wr_id));
    assert_eq!(fetched(&mut daemon).0.remote_qpn, 44);
}

#[test]
fn requests_that_were_not_posted_can_be_dropped() {
    let (mut app, mut daemon) = paired::sq(4, 1, 0);
    for wr_id in 0..3 {
        app.write(&SendWqe { wr_id, ..head() }, &[]).expect("room");
    }
    app.rewind(1);
    app.rewind(3);
    assert_eq!((app.written(), app.room()), (1, 3), "nothing that was dropped comes back");
    post(&mut app);
    assert_eq!((daemon.pending(), fetched(&mut daemon).0.wr_id), (1, 0));
}
