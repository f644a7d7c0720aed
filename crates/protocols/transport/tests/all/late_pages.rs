//! A page of memory has not come, or is gone. When it is late at the responder, an RNR NAK asks for the packet again; late at the
//! requester, the response is asked for again after the time-out. Both succeed when the page is there. A request whose page was
//! removed fails, and its completion names that reason. While the responder's program forks there is no RNR NAK: many peers
//! do not repeat anything after one.
use crate::common::{ALL_RIGHTS, End, PD, Setup, describe, ip_of};
use burst_base::verbs::{QpAttr, QpState, WcStatus, WrOpcode, send_flags};
use burst_base::{Nanos, Reason};
use burst_mem::holes::FillAllowance;
use burst_mem::{AccessThreads, MapPiece, ProcessMemory, Region};
use burst_shm::layout::{SendWqe, Sge};
use burst_transport::WINDOW_PSNS;
use burst_wire::{NakCode, Syndrome};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::os::fd::AsFd;
use std::sync::Arc;

const NOW: Nanos = Nanos(1_000);
/// Three packets.
const LENGTH: u32 = 3000;
/// Where the request's bytes go at the responder.
const TO: u64 = 8192;

struct Peers {
    requester: End,
    responder: End,
    now: Nanos,
}

/// Lets every page of an end's memory be late. Returns the memory as it was.
fn make_late(end: &mut End) -> Arc<Region> {
    let memory = ProcessMemory::own().and_then(|own| own.by_threads(&AccessThreads::occupied())).expect("a descriptor");
    let present = end.mem.remove(end.lkey).expect("the memory");
    let mapping = Region::in_process(Arc::new(memory), 0);
    assert!(end.mem.insert(Arc::new(Region::new(end.lkey, PD, 0, 1 << 20, ALL_RIGHTS, mapping))));
    present
}

fn come(end: &mut End, present: Arc<Region>) {
    end.mem.remove(end.lkey).expect("the late memory");
    assert!(end.mem.insert(present));
}

fn rnr(psn: u32) -> [String; 1] {
    [format!("RcAck {psn} {:?}", Syndrome::Rnr { timer: 1 })]
}

impl Peers {
    /// Two ends; the requester has posted a request of [`LENGTH`] bytes.
    fn with_request(opcode: WrOpcode) -> Peers {
        Peers::of(&Setup::default(), opcode)
    }

    fn of(setup: &Setup, opcode: WrOpcode) -> Peers {
        let (mut requester, mut responder) = (End::new(0, setup), End::new(1, setup));
        requester.bring_up(1, setup, QpState::Rts);
        responder.bring_up(0, setup, QpState::Rts);
        requester.write_memory(0, &bytes());
        responder.post_receive(5, &[responder.sge(TO, LENGTH)]);
        let flags = send_flags::SIGNALED as u16;
        let (remote_addr, rkey) = (TO, responder.lkey);
        let wqe = SendWqe { opcode: opcode as u8, flags, remote_addr, rkey, ..SendWqe::default() };
        requester.post(&wqe, &[requester.sge(0, LENGTH)]);
        Peers { requester, responder, now: NOW }
    }

    /// The packets arrive one by one, or as a train. Returns the answers as text; the requester has received them.
    fn arrive(&mut self, packets: &[Vec<u8>], as_train: bool) -> Vec<String> {
        if as_train {
            self.responder.receive_train(self.now, ip_of(0), packets);
        } else {
            packets.iter().for_each(|packet| self.responder.receive_from(self.now, ip_of(0), packet));
        }
        let answers = self.responder.drain(self.now);
        answers.iter().for_each(|answer| self.requester.receive_from(self.now, ip_of(1), answer));
        answers.iter().map(|answer| describe(answer)).collect()
    }

    /// The requester waits for the time that the RNR NAK gives. Returns what it sends then.
    fn after_rnr(&mut self) -> Vec<Vec<u8>> {
        assert!(self.requester.drain(self.now).is_empty(), "it waits");
        self.now = self.requester.qp.next_deadline();
        assert!(self.now > NOW && self.now < Nanos::NEVER);
        self.requester.fire(self.now);
        self.requester.drain(self.now)
    }

    /// The repeated packets arrive, and the request has succeeded exactly once.
    fn succeed(&mut self, packets: &[Vec<u8>], as_train: bool, receives: usize) {
        let answers = self.arrive(packets, as_train);
        assert_eq!(answers, [format!("RcAck 102 {:?}", self.credits(&answers))]);
        assert_eq!(self.requester.statuses(), [WcStatus::Success]);
        assert_eq!(self.responder.receive_statuses(), vec![WcStatus::Success; receives]);
        assert_eq!(self.responder.memory(TO, LENGTH as usize), bytes());
        assert!(self.responder.fx.events.is_empty() && self.requester.fx.events.is_empty());
    }

    /// The syndrome of an acknowledgement, whose credits do not matter here.
    fn credits(&self, answers: &[String]) -> Syndrome {
        let of = |credit| Syndrome::Ack { credit };
        (0..32)
            .map(of)
            .find(|s| answers.first().is_some_and(|a| a.ends_with(&format!("{s:?}"))))
            .unwrap_or(Syndrome::ACK)
    }
}

fn bytes() -> Vec<u8> {
    (0..LENGTH).map(|i| (i * 7 + i / 256) as u8).collect()
}

const REQUESTS: [(WrOpcode, usize); 2] = [(WrOpcode::RdmaWrite, 0), (WrOpcode::Send, 1)];

#[test]
fn a_request_whose_pages_are_late_is_asked_for_again_and_succeeds() {
    for (opcode, receives) in REQUESTS {
        let mut peers = Peers::with_request(opcode);
        let packets = peers.requester.drain(NOW);
        let present = make_late(&mut peers.responder);
        assert_eq!(peers.arrive(&packets, false), rnr(100), "one answer: later packets are dropped");
        assert_eq!(peers.responder.fx.count_of(Reason::PageLate), 1);
        assert_eq!(peers.requester.fx.count_of(Reason::RnrNakReceived), 1);
        come(&mut peers.responder, present);
        let again = peers.after_rnr();
        assert_eq!(again.len(), packets.len());
        peers.succeed(&again, false, receives);
    }
}

#[test]
fn a_page_may_be_late_more_than_once() {
    let mut peers = Peers::with_request(WrOpcode::RdmaWrite);
    let mut packets = peers.requester.drain(NOW);
    let present = make_late(&mut peers.responder);
    // More often than `rnr_retry` counts: 7 means without end.
    for _ in 0..20 {
        assert_eq!(peers.arrive(&packets, false), rnr(100));
        packets = peers.after_rnr();
    }
    come(&mut peers.responder, present);
    peers.succeed(&packets, false, 0);
}

#[test]
fn a_page_that_is_late_in_the_middle_of_a_message_costs_the_rest_only() {
    for as_train in [false, true] {
        for (opcode, receives) in REQUESTS {
            let mut peers = Peers::with_request(opcode);
            let packets = peers.requester.drain(NOW);
            assert!(peers.arrive(&packets[..1], false).is_empty());
            let present = make_late(&mut peers.responder);
            // Of a train only packets of one length, as a port gives them: the last is shorter.
            assert_eq!(peers.arrive(&packets[1..2], as_train), rnr(101));
            come(&mut peers.responder, present);
            let again = peers.after_rnr();
            assert_eq!(again, packets[1..], "the packet before it is acknowledged");
            peers.succeed(&again, false, receives);
        }
    }
}

/// A peer that gives up after the first RNR NAK; the responder's `min_rnr_timer`.
fn without_rnr_retries(min_rnr_timer: u8) -> Setup {
    let attr = QpAttr { rnr_retry: 0, min_rnr_timer, ..Setup::default().attr };
    Setup { attr, ..Setup::default() }
}

/// The responder's program forks.
fn hold(peers: &mut Peers) -> Arc<Region> {
    peers.responder.hold_memory(peers.now, true);
    make_late(&mut peers.responder)
}

#[test]
fn a_peer_without_rnr_retries_survives_a_fork() {
    for (timer, (opcode, receives)) in [0, 1].into_iter().flat_map(|timer| REQUESTS.map(|request| (timer, request))) {
        let mut peers = Peers::of(&without_rnr_retries(timer), opcode);
        let packets = peers.requester.drain(NOW);
        let present = hold(&mut peers);
        assert!(peers.arrive(&packets, false).is_empty(), "no answer while the program forks");
        assert_eq!(peers.responder.fx.count_of(Reason::PageLate), 1);
        come(&mut peers.responder, present);
        peers.responder.hold_memory(peers.now, false);
        let asked = format!("RcAck 100 {:?}", Syndrome::Nak(NakCode::PsnSequence));
        assert_eq!(peers.arrive(&[], false), [asked], "the dropped request is asked for at once");
        let again = peers.requester.drain(peers.now);
        assert_eq!(again, packets);
        peers.succeed(&again, false, receives);
    }
}

#[test]
fn a_fork_that_drops_nothing_asks_for_nothing() {
    let mut peers = Peers::of(&without_rnr_retries(1), WrOpcode::RdmaWrite);
    let packets = peers.requester.drain(NOW);
    let present = hold(&mut peers);
    come(&mut peers.responder, present);
    peers.responder.hold_memory(peers.now, false);
    peers.succeed(&packets, false, 0);
    // After the fork a late page has an RNR NAK again.
    let mut peers = Peers::with_request(WrOpcode::RdmaWrite);
    let packets = peers.requester.drain(NOW);
    let present = hold(&mut peers);
    come(&mut peers.responder, present);
    peers.responder.hold_memory(peers.now, false);
    make_late(&mut peers.responder);
    assert_eq!(peers.arrive(&packets, false), rnr(100));
}

#[test]
fn a_request_that_came_again_is_not_asked_for() {
    let mut peers = Peers::of(&without_rnr_retries(1), WrOpcode::RdmaWrite);
    let packets = peers.requester.drain(NOW);
    let present = hold(&mut peers);
    assert!(peers.arrive(&packets, false).is_empty());
    come(&mut peers.responder, present);
    // The peer's own time-out was faster.
    peers.succeed(&packets, false, 0);
    peers.responder.hold_memory(peers.now, false);
    assert!(peers.arrive(&[], false).is_empty());
}

/// Half of seven time-outs of 67 ms (code 14), as the responder's own are set.
#[test]
fn a_fork_may_take_half_of_the_time_after_which_the_peer_gives_up() {
    let mut setup = without_rnr_retries(1);
    setup.attr.timeout = 14;
    let mut peers = Peers::of(&setup, WrOpcode::RdmaWrite);
    let packets = peers.requester.drain(NOW);
    let present = hold(&mut peers);
    for ms in [0, 60, 230] {
        peers.now = NOW + Nanos::from_ms(ms);
        assert!(peers.arrive(&packets, false).is_empty(), "{ms} ms");
    }
    peers.now = NOW + Nanos::from_ms(240);
    assert_eq!(peers.arrive(&packets, false), rnr(100));
    come(&mut peers.responder, present);
    peers.responder.hold_memory(peers.now, false);
}

#[test]
fn a_long_fork_has_an_rnr_nak_where_the_peer_repeats_after_one() {
    for (timer, expected) in [(1, rnr(100).to_vec()), (0, vec![])] {
        let setup = Setup::default();
        let mut peers =
            Peers::of(&Setup { attr: QpAttr { min_rnr_timer: timer, ..setup.attr }, ..setup }, WrOpcode::RdmaWrite);
        let packets = peers.requester.drain(NOW);
        let present = hold(&mut peers);
        assert!(peers.arrive(&packets, false).is_empty());
        peers.now = NOW + Nanos::from_ms(60);
        assert_eq!(peers.arrive(&packets, false), expected, "min_rnr_timer {timer}");
        come(&mut peers.responder, present);
        peers.responder.hold_memory(peers.now, false);
        assert_eq!(peers.arrive(&[], false).len(), 1, "a NAK of the gap");
    }
}

#[test]
fn a_peer_of_the_selective_family_repeats_what_a_fork_dropped() {
    for (opcode, _) in REQUESTS {
        let setup = Setup { selective: WINDOW_PSNS, ..without_rnr_retries(1) };
        let mut peers = Peers::of(&setup, opcode);
        let packets = peers.requester.drain(NOW);
        let present = hold(&mut peers);
        peers.arrive(&packets, false);
        for _ in 0..4 {
            peers.now = peers.requester.qp.next_deadline();
            peers.requester.fire(peers.now);
            let again = peers.requester.drain(peers.now);
            peers.arrive(&again, false);
        }
        assert_eq!(peers.requester.statuses(), [], "{opcode:?}: it has not given up");
        come(&mut peers.responder, present);
        peers.responder.hold_memory(peers.now, false);
        for _ in 0..8 {
            if !peers.requester.fx.sends.is_empty() {
                break;
            }
            peers.now = peers.requester.qp.next_deadline().min(peers.now + Nanos::from_ms(1000));
            peers.requester.fire(peers.now);
            let again = peers.requester.drain(peers.now);
            peers.arrive(&again, false);
        }
        assert_eq!(peers.requester.statuses(), [WcStatus::Success], "{opcode:?}");
        assert_eq!(peers.responder.memory(TO, LENGTH as usize), bytes());
    }
}

/// A key of an end for one page that was removed: the end has noticed it, and may not allocate another.
fn removed_page(end: &mut End) -> u32 {
    const PAGE: u64 = 4096;
    let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
    ftruncate(&fd, PAGE).expect("size");
    fcntl_add_seals(&fd, SealFlags::SHRINK).expect("seal");
    let piece = MapPiece { fd: fd.as_fd(), offset: 0, len: PAGE };
    let nothing = Arc::new(FillAllowance::new(0, None));
    let mapping = Region::map_untrusted(&[piece], ALL_RIGHTS, &nothing).expect("mapped");
    let key = end.keys.alloc().expect("key");
    assert!(end.mem.insert(Arc::new(Region::new(key, PD, 0, PAGE, ALL_RIGHTS, mapping))));
    let span = end.mem.local(PD, burst_base::Lkey(key), 0, 8, 0).expect("not noticed yet");
    span.write_from(&[1; 8]).expect("the write is lost");
    end.mem.reclaim();
    key
}

/// Two ends, of the selective repeat family if `selective`. The requester has posted one request of `length` bytes of its own
/// memory at `sge` for the responder's memory at [`TO`].
fn ends_with(selective: bool, opcode: WrOpcode, sge: impl FnOnce(&mut End) -> Sge) -> [End; 2] {
    let setup = Setup { selective: if selective { WINDOW_PSNS } else { 0 }, ..Setup::default() };
    let (mut requester, mut responder) = (End::new(0, &setup), End::new(1, &setup));
    requester.bring_up(1, &setup, QpState::Rts);
    responder.bring_up(0, &setup, QpState::Rts);
    responder.write_memory(TO, &bytes());
    let (flags, rkey) = (send_flags::SIGNALED as u16, responder.lkey);
    let wqe = SendWqe { opcode: opcode as u8, flags, remote_addr: TO, rkey, compare_add: 1, ..SendWqe::default() };
    let sge = sge(&mut requester);
    requester.post(&wqe, &[sge]);
    [requester, responder]
}

/// What the requester sends reaches the responder, and the answers come back. Returns the number of answers.
fn exchange([requester, responder]: &mut [End; 2], now: Nanos) -> usize {
    requester.drain(now).iter().for_each(|packet| responder.receive_from(now, ip_of(0), packet));
    let answers = responder.drain(now);
    answers.iter().for_each(|answer| requester.receive_from(now, ip_of(1), answer));
    answers.len()
}

const RESPONSES: [(WrOpcode, u32); 2] = [(WrOpcode::RdmaRead, LENGTH), (WrOpcode::AtomicFetchAndAdd, 8)];

#[test]
fn a_response_whose_own_pages_are_late_is_asked_for_again_after_the_time_out() {
    for (selective, (opcode, length)) in [false, true].into_iter().flat_map(|s| RESPONSES.map(|r| (s, r))) {
        let mut ends = ends_with(selective, opcode, |end| end.sge(0, length));
        let present = make_late(&mut ends[0]);
        exchange(&mut ends, NOW);
        assert!(ends[0].fx.count_of(Reason::PageLate) > 0, "{opcode:?}");
        assert_eq!((ends[0].statuses(), ends[0].qp.state()), (vec![], QpState::Rts), "{opcode:?}");
        come(&mut ends[0], present);
        for _ in 0..8 {
            if ends[0].fx.sends.is_empty() {
                let now = ends[0].qp.next_deadline();
                assert!(now < Nanos::NEVER, "{opcode:?}: it waits for ever");
                ends[0].fire(now);
                exchange(&mut ends, now);
            }
        }
        assert_eq!(ends[0].statuses(), [WcStatus::Success], "{opcode:?} selective {selective}");
        assert_eq!(ends[0].memory(0, length as usize), bytes()[..length as usize]);
        let once = u64::from_ne_bytes(bytes()[..8].try_into().expect("8 bytes")).wrapping_add(1);
        if opcode == WrOpcode::AtomicFetchAndAdd {
            assert_eq!(ends[1].memory(TO, 8), once.to_ne_bytes(), "added once");
        }
    }
}

#[test]
fn a_request_whose_own_page_was_removed_fails_and_its_completion_says_so() {
    let sends = [(WrOpcode::RdmaWrite, 64), (WrOpcode::Send, 64)];
    let all = [RESPONSES, sends].concat();
    for (selective, (opcode, length)) in [false, true].into_iter().flat_map(|s| all.iter().map(move |r| (s, *r))) {
        let mut ends = ends_with(selective, opcode, |end| Sge { addr: 0, length, lkey: removed_page(end) });
        exchange(&mut ends, NOW);
        ends[0].drain(NOW);
        assert_eq!(ends[0].statuses(), [WcStatus::LocProtErr], "{opcode:?}");
        assert_eq!(ends[0].fx.sends[0].vendor_err, Reason::PageRemoved.index() as u32 + 1, "{opcode:?}");
        assert_eq!((ends[0].fx.count_of(Reason::PageRemoved), ends[0].fx.count_of(Reason::LocalProtection)), (1, 0));
    }
}

#[test]
fn a_response_into_memory_that_may_not_be_written_fails_for_want_of_protection() {
    for (opcode, length) in RESPONSES {
        let mut ends = ends_with(false, opcode, |end| Sge { addr: 0, length, lkey: end.register(4096, 0) });
        exchange(&mut ends, NOW);
        ends[0].drain(NOW);
        assert_eq!(ends[0].statuses(), [WcStatus::LocProtErr], "{opcode:?}");
        assert_eq!(ends[0].fx.sends[0].vendor_err, Reason::LocalProtection.index() as u32 + 1, "{opcode:?}");
    }
}
