//! What a pass, a time-out and an end cost: the same number of steps, however many programs and ids the host has.
//!
//! Steps are sessions that were looked at, and ids that went on or ended.
use crate::common::{Program, host_of_port, options};
use burst_base::verbs::QpType;
use burst_base::{Nanos, Reason};
use burst_control::Request;
use burst_control::cm::{CmAddr, CmCommand, CmData, ConnParam, PortSpace};
use burst_frame::TxBatch;
use burst_host::{Host, Session, SessionNumber, SessionTable, Upkeep};
use burst_ledger::Resource;
use burst_netif::hops::NeighbourState;
use burst_port::mem::{MemConfig, MemPort, pair};
use burst_port::{Port, PortCaps, Reach, RxSink};
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::RawFd;

const UID: u32 = 1001;
/// How many ids of all programs go on in one pass.
const WAITS_AT_ONCE: usize = 256;

/// A port that owns its interface, and never resolves a next hop.
struct SilentPort(MemPort, PortCaps);

impl Port for SilentPort {
    fn caps(&self) -> &PortCaps {
        &self.1
    }
    fn rx_burst(&mut self, now: Nanos, budget: usize, sink: &mut dyn RxSink) -> usize {
        self.0.rx_burst(now, budget, sink)
    }
    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        self.0.tx_burst(now, batch, dropped);
    }
    fn wait_fds(&self) -> Vec<RawFd> {
        self.0.wait_fds()
    }
    fn next_hop(&mut self, _now: Nanos, _dst: IpAddr) -> NeighbourState {
        NeighbourState::Incomplete
    }
}

fn silent_host() -> Host {
    let [a, b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
    let port = pair(MemConfig::default(), a, b).0;
    let mut caps = port.caps().clone();
    caps.addrs[0].reach = Some(Reach { prefix: "10.0.0.1/24".parse().expect("a prefix"), gateway: false });
    host_of_port(&options(1, 90), Box::new(SilentPort(port, caps)))
}

/// A program with as many ids.
fn with_ids(host: &mut Host, ids: u32) -> Program {
    let mut program = Program::connect(host, UID).expect("a program");
    program.ask(host, Request::CmChannel { channel: 1 }).expect("a channel");
    let create = |id| CmCommand::Create { id, channel: 1, ps: PortSpace::Tcp, qp_type: QpType::Rc };
    for first in (1..=ids).step_by(500) {
        let commands = (first..=ids).take(500).map(create).collect();
        program.ask(host, Request::Cm { commands }).expect("ids");
    }
    program
}

/// Lets all ids of a program wait for a next hop.
fn wait_all(program: &mut Program, host: &mut Host, ids: u32, timeout_ms: u32) {
    let dst = CmAddr { ip: "10.0.0.77".parse().expect("ip"), port: 1, scope: 0 };
    for id in 1..=ids {
        program.command(host, CmCommand::ResolveAddr { id, src: None, dst, timeout_ms }).expect("waits");
    }
}

/// The programs by their sessions' numbers, which counts the sessions that are looked at.
#[derive(Default)]
struct Counted {
    programs: HashMap<SessionNumber, Program>,
    looks: usize,
}

impl Counted {
    fn add(&mut self, mut program: Program) {
        let number = program.as_mut().number();
        self.programs.insert(number, program);
    }
    /// How many sessions something has looked at.
    fn looks(&mut self, call: impl FnOnce(&mut Counted)) -> usize {
        self.looks = 0;
        call(self);
        self.looks
    }
}

impl SessionTable for Counted {
    fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }
    fn each(&mut self, call: &mut dyn FnMut(&mut Session)) {
        self.looks += self.programs.len();
        self.programs.values_mut().for_each(|program| call(program.as_mut()));
    }
    fn find(&mut self, number: SessionNumber) -> Option<&mut Session> {
        self.looks += 1;
        self.programs.get_mut(&number).map(AsMut::as_mut)
    }
}

#[test]
fn a_pass_looks_at_no_session_in_which_nothing_is_due() {
    for programs in [8, 32] {
        let mut host = silent_host();
        let (mut sessions, mut upkeep) = (Counted::default(), Upkeep::without_events(host.now()));
        for _ in 0..programs {
            let mut program = with_ids(&mut host, 4);
            wait_all(&mut program, &mut host, 4, 600_000);
            sessions.add(program);
        }
        assert!(host.cm.hops.waiting() == 4 * programs && upkeep.due_at(&host, true).is_some());
        assert_eq!(sessions.looks(|sessions| _ = upkeep.run(&mut host, sessions, false)), 0, "of {programs}");
        sessions.programs.into_values().for_each(|program| program.end(&mut host));
        assert_eq!(host.cm.hops.waiting(), 0);
    }
}

#[test]
fn ids_whose_waits_are_over_together_go_on_in_several_passes() {
    for ids in [600, 2400] {
        let mut host = silent_host();
        let (mut sessions, mut upkeep) = (Counted::default(), Upkeep::without_events(host.now()));
        let mut program = with_ids(&mut host, ids);
        wait_all(&mut program, &mut host, ids, 0);
        sessions.add(program);
        let mut left = ids as usize;
        while left > 0 {
            assert!(upkeep.due_at(&host, true).is_some_and(|at| at <= host.now()), "{left} are due at once");
            let looks = sessions.looks(|sessions| _ = upkeep.run(&mut host, sessions, false));
            assert_eq!(looks, left.min(WAITS_AT_ONCE), "of {ids}");
            left -= looks;
            assert_eq!(host.cm.hops.waiting(), left as u64);
        }
        sessions.programs.into_values().for_each(|program| program.end(&mut host));
    }
}

/// A connection whose peer does not answer the DREQ takes a place of the worker's table, and its user's share, until it is
/// forgotten, also after its id has ended.
#[test]
fn an_id_that_has_ended_costs_its_user_as_long_as_its_connection_is_there() {
    let mut host = crate::common::host(90);
    let mut program = with_ids(&mut host, 2);
    let own = CmAddr { ip: "10.0.0.1".parse().expect("ip"), port: 7, scope: 0 };
    program.command(&mut host, CmCommand::ResolveAddr { id: 1, src: None, dst: own, timeout_ms: 1000 }).expect("known");
    let data = CmData::new(&[]).expect("short");
    program
        .command(&mut host, CmCommand::Connect { id: 1, qp: None, param: ConnParam::default(), data })
        .expect("sent");
    assert_eq!(host.ledger.used(Resource::CmId), 2);
    for id in [1, 2] {
        program.command(&mut host, CmCommand::Destroy { id, read: 0 }).expect("ended");
    }
    // A request that no peer has answered is forgotten at once, by the worker.
    program.end(&mut host);
    assert!(crate::common::is_all_given_back(&host));
}

#[test]
fn a_step_of_an_end_releases_a_budget_of_ids_however_many_are_left() {
    const BUDGET: usize = 10;
    for ids in [1000, 4000] {
        let mut host = silent_host();
        let mut program = with_ids(&mut host, ids);
        for left in (0..u64::from(ids)).rev().step_by(BUDGET).map(|left| left + 1) {
            assert_eq!(host.ledger.used(Resource::CmId), left, "of {ids}");
            assert!(!program.end_some(&mut host, BUDGET), "{left} are left");
        }
        assert_eq!(host.ledger.used(Resource::CmId), 0);
        assert!(program.end_some(&mut host, BUDGET));
    }
}

/// A program with regions and queue pairs.
fn with_regions(host: &mut Host, count: u32) -> Program {
    let mut program = Program::start(host, UID).expect("a program");
    let pd = program.pd;
    for _ in 0..count {
        let region = Request::RegMr { pd, addr: 0, len: 0, iova: 0, access: 1, pieces: Vec::new(), replaces: None };
        program.ask(host, region).expect("a region");
    }
    for _ in 0..count / 10 {
        let request = crate::common::queue_pair(program.pd, program.cq, QpType::Rc);
        program.ask(host, request).expect("a queue pair");
    }
    program
}

/// How many steps a hold of a program's memory has after the request, with another program's request between each two.
fn steps_of_hold(count: u32, hold: bool) -> u32 {
    let mut host = crate::common::host(90);
    let (mut program, mut other) =
        (with_regions(&mut host, count), Program::start(&mut host, UID + 1).expect("another"));
    if !hold {
        program.ask(&mut host, Request::HoldMemory { hold: true, in_place: false }).expect("held");
        while !program.as_mut().continue_request(&mut host) {}
    }
    program.ask(&mut host, Request::HoldMemory { hold, in_place: false }).expect("a first step");
    let mut steps = 0;
    while program.as_mut().is_unfinished() {
        steps += 1;
        let is_last = program.as_mut().continue_request(&mut host);
        assert_eq!(is_last, !program.as_mut().is_unfinished());
        other.ask(&mut host, Request::AllocPd).expect("another program is served");
    }
    // One that ends in the midst of a hold leaves nothing.
    program.ask(&mut host, Request::HoldMemory { hold: !hold, in_place: false }).expect("a first step");
    [program, other].into_iter().for_each(|program| program.end(&mut host));
    assert!(crate::common::is_all_given_back(&host));
    steps
}

#[test]
fn a_hold_of_memory_goes_on_in_steps_of_128_objects() {
    for hold in [true, false] {
        // 100 regions and 10 queue pairs in the request itself; 3,000 and 300 in 24 and 3 steps, of which it does two.
        assert_eq!([100, 3_000].map(|count| steps_of_hold(count, hold)), [0, 25]);
    }
}
