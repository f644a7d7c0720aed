//! Bytes that an executor places later: what says that they are there waits, in order; and what an executor that fails, stops or
//! lies does to its queue pair.
use crate::common::shuffled::Shuffled;
use crate::common::{End, Setup, describe, ip_of};
use burst_base::verbs::{EventType, QpState, WcStatus, WrOpcode, send_flags};
use burst_base::{Nanos, Reason};
use burst_shm::layout::{SendWqe, Sge};
use burst_transport::{COPIES_PER_CALL, CopyProgress, Env, Ticket};

const NOW: Nanos = Nanos(1_000);
const LATER: Nanos = Nanos(10_000_000);
const LENGTH: u32 = 3000;
const TO: u64 = 8192;

/// A requester, and a responder whose bytes are placed by an executor.
struct Peers {
    requester: End,
    responder: End,
}

impl Peers {
    fn new(selective: bool, most: usize) -> Peers {
        let setup = Setup { selective: if selective { burst_transport::WINDOW_PSNS } else { 0 }, ..Setup::default() };
        let (mut requester, mut responder) = (End::new(0, &setup), End::new(1, &setup));
        responder.use_copies(Shuffled::new(7, most, Nanos(10), 0));
        requester.bring_up(1, &setup, QpState::Rts);
        responder.bring_up(0, &setup, QpState::Rts);
        requester.write_memory(0, &bytes());
        Peers { requester, responder }
    }

    fn post(&mut self, opcode: WrOpcode, remote_addr: u64, length: u32) {
        let (flags, rkey) = (send_flags::SIGNALED as u16, self.responder.lkey);
        let sges = if length > 0 { vec![self.requester.sge(0, length)] } else { Vec::<Sge>::new() };
        self.requester.post(&SendWqe { opcode: opcode as u8, flags, remote_addr, rkey, ..SendWqe::default() }, &sges);
    }

    /// What the requester sends arrives. The responder's answers, as text, which the requester gets.
    fn exchange(&mut self) -> Vec<String> {
        let packets = self.requester.drain(NOW);
        packets.iter().for_each(|packet| self.responder.receive_from(NOW, ip_of(0), packet));
        self.answers()
    }

    fn answers(&mut self) -> Vec<String> {
        let answers = self.responder.drain(NOW);
        answers.iter().for_each(|answer| self.requester.receive_from(NOW, ip_of(1), answer));
        answers.iter().map(|answer| describe(answer)).collect()
    }

    /// All copies end.
    fn finish_copies(&mut self) {
        let mut now = LATER;
        while self.copies().open_copies() > 0 {
            self.responder.run_copies(now);
            now = now + Nanos(1_000);
        }
        self.responder.note_copies(now);
    }

    fn copies(&mut self) -> &mut Shuffled {
        self.responder.fx.copies.as_mut().expect("an executor")
    }
}

fn bytes() -> Vec<u8> {
    (0..LENGTH).map(|i| (i * 7 + i / 256) as u8 | 1).collect()
}

fn is_there(end: &End) -> bool {
    end.memory(TO, LENGTH as usize) == bytes()
}

#[test]
fn completion_and_acknowledgement_wait_for_the_bytes() {
    for selective in [false, true] {
        let mut peers = Peers::new(selective, 1000);
        peers.responder.post_receive(5, &[peers.responder.sge(TO, LENGTH)]);
        peers.post(WrOpcode::Send, 0, LENGTH);
        assert_eq!(peers.exchange(), [""; 0]);
        assert!(peers.responder.qp.is_trailing() && !peers.responder.qp.wants_tx() && !is_there(&peers.responder));
        assert!(peers.responder.receive_statuses().is_empty() && peers.requester.statuses().is_empty());
        peers.finish_copies();
        assert!(is_there(&peers.responder) && !peers.responder.qp.is_trailing());
        assert_eq!(peers.responder.receive_statuses(), [WcStatus::Success], "before the acknowledgement is made");
        assert_eq!(peers.answers().len(), 1);
        assert_eq!(peers.requester.statuses(), [WcStatus::Success]);
        assert_eq!(peers.responder.qp.expected_psn(), peers.requester.qp.query().sq_psn);
    }
}

#[test]
fn an_acknowledgement_covers_what_is_there_and_nothing_behind_it() {
    for selective in [false, true] {
        let mut peers = Peers::new(selective, 1000);
        (0..3).for_each(|k| peers.post(WrOpcode::RdmaWrite, TO + k * 4096, 500));
        assert_eq!(peers.exchange(), [""; 0]);
        let last = peers.requester.qp.query().sq_psn.prev();
        // The executor says that the first two copies have ended.
        let Peers { responder, .. } = &mut peers;
        let progress = CopyProgress { done: Ticket(2), failed: None };
        let mut env =
            Env { now: NOW, waited: Nanos(0), mem: &responder.mem, tx: &mut responder.tx, fx: &mut responder.fx };
        responder.qp.on_copies(progress, &mut env);
        let answers = peers.answers();
        assert_eq!(answers.len(), 1, "{answers:?}");
        assert!(
            answers[0].contains(&format!(" {} ", last.prev().get()))
                || answers[0].ends_with(&last.prev().get().to_string()),
            "{answers:?}"
        );
        assert_eq!(peers.requester.statuses(), [WcStatus::Success; 2]);
        peers.finish_copies();
        peers.answers();
        assert_eq!(peers.requester.statuses(), [WcStatus::Success; 3]);
    }
}

#[test]
fn more_copies_than_positions_are_kept_acknowledge_nothing_too_early() {
    for selective in [false, true] {
        let mut peers = Peers::new(selective, 1000);
        // Three packets each, and a copy for each packet.
        (0..30).for_each(|k| peers.post(WrOpcode::RdmaWrite, TO + k * 4096, LENGTH));
        assert_eq!(peers.exchange(), [""; 0]);
        assert_eq!(peers.copies().open_copies(), 90);
        // The last of 64 positions stands for all behind it: it waits for the last copy.
        for (done, messages) in [(2, 0), (3, 1), (63, 21), (64, 21), (89, 21), (90, 30)] {
            let Peers { responder, .. } = &mut peers;
            let progress = CopyProgress { done: Ticket(done), failed: None };
            let mut env =
                Env { now: NOW, waited: Nanos(0), mem: &responder.mem, tx: &mut responder.tx, fx: &mut responder.fx };
            responder.qp.on_copies(progress, &mut env);
            peers.answers();
            assert_eq!(peers.requester.statuses().len(), messages, "{done} copies have ended");
        }
    }
}

#[test]
fn a_read_is_answered_when_the_writes_before_it_are_there() {
    for selective in [false, true] {
        let mut peers = Peers::new(selective, 1000);
        peers.post(WrOpcode::RdmaWrite, TO, LENGTH);
        let (flags, rkey) = (send_flags::SIGNALED as u16, peers.responder.lkey);
        let into = peers.requester.sge(16384, LENGTH);
        let read = SendWqe { opcode: WrOpcode::RdmaRead as u8, flags, remote_addr: TO, rkey, ..SendWqe::default() };
        peers.requester.post(&read, &[into]);
        assert_eq!(peers.exchange(), [""; 0]);
        assert!(!peers.responder.qp.wants_tx());
        peers.finish_copies();
        assert!(peers.answers().iter().filter(|answer| answer.contains("Read")).count() == 3);
        assert_eq!(peers.requester.statuses(), [WcStatus::Success; 2]);
        assert!(peers.requester.memory(16384, LENGTH as usize) == bytes());
    }
}

#[test]
fn a_read_that_is_repeated_before_its_answer_is_answered_no_sooner() {
    for selective in [false, true] {
        let mut peers = Peers::new(selective, 1000);
        peers.post(WrOpcode::RdmaWrite, TO, LENGTH);
        let (flags, rkey) = (send_flags::SIGNALED as u16, peers.responder.lkey);
        let into = peers.requester.sge(16384, LENGTH);
        let read = SendWqe { opcode: WrOpcode::RdmaRead as u8, flags, remote_addr: TO, rkey, ..SendWqe::default() };
        peers.requester.post(&read, &[into]);
        let packets = peers.requester.drain(NOW);
        let request = packets.last().expect("the READ");
        packets.iter().for_each(|packet| peers.responder.receive_from(NOW, ip_of(0), packet));
        for _ in 0..3 {
            assert_eq!(peers.answers(), [""; 0]);
            peers.responder.receive_from(NOW, ip_of(0), request);
        }
        peers.finish_copies();
        peers.answers();
        assert_eq!(peers.requester.statuses(), [WcStatus::Success; 2]);
        assert!(peers.requester.memory(16384, LENGTH as usize) == bytes());
    }
}

#[test]
fn an_atomic_waits_for_the_bytes_by_an_rnr_nak() {
    let mut peers = Peers::new(false, 1000);
    peers.post(WrOpcode::RdmaWrite, TO, 8);
    let (flags, rkey) = (send_flags::SIGNALED as u16, peers.responder.lkey);
    let sge = peers.requester.sge(16384, 8);
    let opcode = WrOpcode::AtomicFetchAndAdd as u8;
    let add = SendWqe { opcode, flags, remote_addr: TO, rkey, compare_add: 1, ..SendWqe::default() };
    peers.requester.post(&add, &[sge]);
    assert_eq!(peers.exchange(), [""; 0], "the NAK would acknowledge the WRITE");
    assert_eq!(peers.responder.fx.count_of(Reason::CopyPending), 1);
    peers.finish_copies();
    assert!(peers.answers().iter().any(|answer| answer.contains("Rnr")));
    let again = peers.requester.qp.next_deadline();
    peers.requester.fire(again);
    let packets = peers.requester.drain(again);
    packets.iter().for_each(|packet| peers.responder.receive_from(again, ip_of(0), packet));
    peers.answers();
    assert_eq!(peers.requester.statuses(), [WcStatus::Success; 2]);
    assert_eq!(peers.requester.memory(16384, 8), bytes()[..8], "the value before the addition");
}

#[test]
fn a_result_of_a_read_completes_when_its_bytes_are_there() {
    let setup = Setup::default();
    let (mut reader, mut target) = (End::new(0, &setup), End::new(1, &setup));
    reader.use_copies(Shuffled::new(3, 1000, Nanos(10), 0));
    reader.bring_up(1, &setup, QpState::Rts);
    target.bring_up(0, &setup, QpState::Rts);
    target.write_memory(TO, &bytes());
    let flags = send_flags::SIGNALED as u16;
    let rkey = target.lkey;
    let post = |reader: &mut End, opcode: WrOpcode, into: u64| {
        // A WRITE may be executed before the READ in front of it is answered.
        let (remote_addr, sge) = (TO + 2 * into, reader.sge(into, LENGTH));
        reader.post(&SendWqe { opcode: opcode as u8, flags, remote_addr, rkey, ..SendWqe::default() }, &[sge]);
    };
    post(&mut reader, WrOpcode::RdmaRead, 0);
    post(&mut reader, WrOpcode::RdmaWrite, 32768);
    for _ in 0..3 {
        reader.drain(NOW).iter().for_each(|packet| target.receive_from(NOW, ip_of(0), packet));
        target.drain(NOW).iter().for_each(|packet| reader.receive_from(NOW, ip_of(1), packet));
    }
    assert!(reader.statuses().is_empty() && reader.qp.is_trailing(), "the WRITE, which is acknowledged, waits as well");
    let mut now = LATER;
    while reader.qp.is_trailing() {
        reader.run_copies(now);
        now = now + Nanos(1_000);
    }
    assert_eq!(reader.statuses(), [WcStatus::Success; 2]);
    assert!(reader.memory(0, LENGTH as usize) == bytes());
}

#[test]
fn a_failed_copy_ends_its_queue_pair_and_what_waits_for_it_in_error() {
    for dies in [false, true] {
        let mut peers = Peers::new(false, 1000);
        for k in 0..3 {
            peers.responder.post_receive(k, &[peers.responder.sge(TO + k * 4096, 1000)]);
            peers.post(WrOpcode::Send, 0, 1000);
        }
        peers.copies().fails_at = Some(2);
        assert_eq!(peers.exchange(), [""; 0]);
        if dies {
            peers.copies().die();
            peers.responder.note_copies(NOW);
        } else {
            peers.finish_copies();
        }
        let fine = usize::from(!dies);
        let mut expected = vec![WcStatus::Success; fine];
        expected.push(WcStatus::LocProtErr);
        expected.resize(3, WcStatus::WrFlushErr);
        assert_eq!(peers.responder.receive_statuses(), expected, "dies: {dies}");
        assert_eq!(peers.responder.fx.count_of(Reason::CopyFailed), 1);
        assert_eq!(
            (peers.responder.qp.state(), &peers.responder.fx.events[..]),
            (QpState::Err, &[EventType::QpFatal][..])
        );
        // The requester learns that the first is there, and that the second failed.
        let answers = peers.answers();
        assert!(answers.last().is_some_and(|answer| answer.contains("RemoteOperation")), "{answers:?}");
        let expected: Vec<_> = std::iter::repeat_n(WcStatus::Success, fine).chain([WcStatus::RemOpErr]).collect();
        assert_eq!(peers.requester.statuses()[..=fine], expected[..]);
        // Nothing comes later.
        peers.responder.note_copies(LATER);
        assert_eq!(peers.responder.receive_statuses().len(), 3);
        assert!(!peers.responder.qp.is_trailing());
    }
}

#[test]
fn a_full_executor_drops_packets_and_waits_for_nothing() {
    let mut peers = Peers::new(false, COPIES_PER_CALL + 1);
    (0..40).for_each(|k| peers.post(WrOpcode::RdmaWrite, TO + k * 1024, 1024));
    peers.exchange();
    // After two copies there is no room for those of another call.
    assert_eq!(peers.copies().open_copies(), 2);
    assert!(peers.responder.fx.count_of(Reason::CopyQueueFull) > 10);
    let mut now = LATER;
    for _ in 0..2_000 {
        peers.finish_copies();
        peers.answers();
        now = now.max(peers.requester.qp.next_deadline().min(now + Nanos::from_ms(100)));
        if peers.requester.qp.next_deadline() <= now {
            peers.requester.fire(now);
        }
        let packets = peers.requester.drain(now);
        packets.iter().for_each(|packet| peers.responder.receive_from(now, ip_of(0), packet));
    }
    assert_eq!(peers.requester.statuses(), [WcStatus::Success; 40]);
}

#[test]
fn a_stopped_executor_keeps_its_own_queue_pair_only_and_ends_with_it() {
    let mut peers = Peers::new(false, 1000);
    let mut bystander = Peers::new(false, 1000);
    peers.responder.post_receive(1, &[peers.responder.sge(TO, LENGTH)]);
    peers.post(WrOpcode::Send, 0, LENGTH);
    peers.copies().is_stopped = true;
    for _ in 0..3 {
        assert_eq!(peers.exchange(), [""; 0]);
        peers.responder.run_copies(LATER);
    }
    bystander.post(WrOpcode::RdmaWrite, TO, LENGTH);
    bystander.exchange();
    bystander.finish_copies();
    bystander.answers();
    assert_eq!(bystander.requester.statuses(), [WcStatus::Success]);
    // RESET forgets what waits; what the executor says later changes nothing.
    peers.responder.move_to(QpState::Reset);
    peers.responder.fx.copies.as_mut().expect("an executor").is_stopped = false;
    peers.finish_copies();
    assert!(peers.responder.receive_statuses().is_empty() && !peers.responder.qp.is_trailing());
}

#[test]
fn an_executor_that_lies_about_its_progress_releases_only_what_was_begun() {
    let mut peers = Peers::new(false, 1000);
    peers.responder.post_receive(1, &[peers.responder.sge(TO, LENGTH)]);
    peers.post(WrOpcode::Send, 0, LENGTH);
    peers.exchange();
    let tell = |end: &mut End, done: u64, failed: Option<u64>| {
        let progress = CopyProgress { done: Ticket(done), failed: failed.map(Ticket) };
        let mut env = Env { now: NOW, waited: Nanos(0), mem: &end.mem, tx: &mut end.tx, fx: &mut end.fx };
        end.qp.on_copies(progress, &mut env);
    };
    tell(&mut peers.responder, 1, None);
    tell(&mut peers.responder, 0, Some(u64::MAX));
    assert!(peers.responder.qp.is_trailing(), "nothing goes back, and tickets of others do not count");
    tell(&mut peers.responder, u64::MAX, None);
    assert_eq!(peers.responder.receive_statuses(), [WcStatus::Success]);
    tell(&mut peers.responder, 0, Some(0));
    assert_eq!((peers.responder.qp.state(), peers.responder.qp.is_trailing()), (QpState::Rts, false));
    // What begins now is open, whatever was said before.
    peers.responder.post_receive(2, &[peers.responder.sge(TO, LENGTH)]);
    peers.post(WrOpcode::Send, 0, LENGTH);
    peers.answers();
    peers.exchange();
    assert!(peers.responder.qp.is_trailing());
    assert_eq!(peers.responder.receive_statuses(), [WcStatus::Success]);
}

#[test]
fn without_an_executor_bytes_are_placed_at_once() {
    for selective in [false, true] {
        let mut peers = Peers::new(selective, 1000);
        peers.responder.fx.copies = None;
        peers.post(WrOpcode::RdmaWrite, TO, LENGTH);
        assert_eq!(peers.exchange().len(), 1);
        assert!(is_there(&peers.responder) && !peers.responder.qp.is_trailing());
        assert_eq!(peers.requester.statuses(), [WcStatus::Success]);
    }
}
