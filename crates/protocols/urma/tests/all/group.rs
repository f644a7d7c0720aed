//! Groups of Jetties: balance of the three policies, and members that fail.

use crate::common::*;
use burst_base::Nanos;
use burst_ubwire::TaOpcode;
use burst_urma::{CrStatus, GroupPolicy, JettyConfig, JettyState, JfsWr, NodeEid, RemoteJetty, TargetKind, UrmaError};

const SECOND: Nanos = Nanos(1_000_000_000);
const MEMBERS: usize = 4;

/// Host 1 has a group of four Jetties with receive queues of their own; host 0 has a Jetty.
struct Farm {
    world: World,
    jfc: [u32; 2],
    sender: u32,
    group: u32,
    members: Vec<u32>,
    jfrs: Vec<u32>,
    target: u32,
}

fn farm(policy: GroupPolicy, token: Option<u32>) -> Farm {
    let mut world = World::new(2, 1 << 16, 4, |_| ());
    let jfc = [world.jfc(0), world.jfc(1)];
    let sender = world.jetty(0, JettyConfig::new(jfc[0], None));
    let group = world.hosts[1].node.create_group(policy, token).expect("room");
    let jfrs: Vec<u32> = (0..MEMBERS).map(|_| world.jfr(1, jfc[1])).collect();
    let member = |world: &mut World, jfr: u32| {
        world.jetty(1, JettyConfig { group: Some(group), ..JettyConfig::new(jfc[1], Some(jfr)) })
    };
    let members = jfrs.iter().map(|jfr| member(&mut world, *jfr)).collect();
    let remote = RemoteJetty { eid: NodeEid::numbered(2), id: group, kind: TargetKind::Group, token };
    let target = world.hosts[0].node.import_jetty(remote).expect("room");
    Farm { world, jfc, sender, group, members, jfrs, target }
}

impl Farm {
    /// Sends messages with these hints; how many each member got.
    fn send(&mut self, hints: impl Iterator<Item = u8>, len: u32) -> Vec<usize> {
        let mut sent = 0;
        for hint in hints {
            let data = self.world.data(0, 0, len);
            let wr = JfsWr { target: Some(self.target), hint, ..JfsWr::new(TaOpcode::Send, data, 0) };
            self.world.post(0, self.sender, wr).expect("accepted");
            self.world.run_for(Nanos(100_000));
            sent += 1;
        }
        self.world.run_for(SECOND);
        let done = self.world.poll(0, self.jfc[0]);
        assert!(done.len() == sent && done.iter().all(|cr| cr.status == CrStatus::Success), "{done:?}");
        let crs = self.world.poll(1, self.jfc[1]);
        self.members.iter().map(|id| crs.iter().filter(|cr| cr.local_id == *id).count()).collect()
    }
    fn receives(&mut self, counts: [u32; MEMBERS]) {
        for (jfr, count) in self.jfrs.clone().into_iter().zip(counts) {
            for i in 0..count {
                self.world.recv(1, jfr, 0x8000, 0x4000, u64::from(i));
            }
        }
    }
}

#[test]
fn each_policy_balances_in_its_way() {
    let mut f = farm(GroupPolicy::RoundRobin, None);
    f.receives([20; MEMBERS]);
    assert_eq!(f.send((0..40).map(|_| 0), 64), [10; MEMBERS]);
    assert_eq!(f.send((0..8).map(|_| 0), 9_000), [2; MEMBERS], "a message of several packets stays with its member");

    let mut f = farm(GroupPolicy::HashHint, None);
    f.receives([50; MEMBERS]);
    assert_eq!(f.send((0..40).map(|i| i % 3), 64), [14, 13, 13, 0]);
    assert_eq!(f.send([7, 7, 7].into_iter(), 64), [0, 0, 0, 3], "one hint, one member");

    let mut f = farm(GroupPolicy::Depth, None);
    f.receives([1, 13, 5, 5]);
    assert_eq!(f.send((0..8).map(|_| 0), 64), [0, 8, 0, 0]);
    assert_eq!(f.send((0..12).map(|_| 0), 64), [0, 4, 4, 4], "now all have one receive left");
}

#[test]
fn members_that_fail_are_passed_over_and_without_any_the_message_is_refused() {
    let mut f = farm(GroupPolicy::RoundRobin, None);
    f.receives([20; MEMBERS]);
    let fail = |f: &mut Farm, id: u32| {
        f.world.with(1, |node, env| node.modify_jetty(id, JettyState::Error, env.fx)).expect("was ready");
        // The record that the Jetty is drained.
        f.world.poll(1, f.jfc[1]);
    };
    let second = f.members[1];
    fail(&mut f, second);
    assert_eq!(f.send((0..12).map(|_| 0), 64), [4, 0, 4, 4]);
    for i in [0, 2, 3] {
        let id = f.members[i];
        fail(&mut f, id);
    }
    let data = f.world.data(0, 0, 64);
    let wr = JfsWr { target: Some(f.target), ..JfsWr::new(TaOpcode::Send, data, 0) };
    f.world.post(0, f.sender, wr).expect("accepted");
    f.world.run_for(SECOND);
    assert_eq!(f.world.poll(0, f.jfc[0])[0].status, CrStatus::RemOperation);
    assert_eq!(f.world.hosts[1].node.delete_group(f.group), Err(UrmaError::Busy));
    for id in f.members.clone() {
        f.world.hosts[1].node.delete_jetty(id).expect("nothing outstanding");
    }
    f.world.hosts[1].node.delete_group(f.group).expect("empty");
}

#[test]
fn the_group_s_token_is_asked_for() {
    let mut f = farm(GroupPolicy::RoundRobin, Some(5));
    f.receives([2; MEMBERS]);
    assert_eq!(f.send([0].into_iter(), 64), [1, 0, 0, 0]);
    let wrong = RemoteJetty { eid: NodeEid::numbered(2), id: f.group, kind: TargetKind::Group, token: Some(6) };
    f.target = f.world.hosts[0].node.import_jetty(wrong).expect("room");
    let data = f.world.data(0, 0, 64);
    let wr = JfsWr { target: Some(f.target), ..JfsWr::new(TaOpcode::Send, data, 0) };
    f.world.post(0, f.sender, wr).expect("accepted");
    f.world.run_for(SECOND);
    assert_eq!(f.world.poll(0, f.jfc[0])[0].status, CrStatus::RemAccessAbort);
}
