//! Datagrams to a group reach each member on each worker once, and no other queue pair.
use crate::harness::{AppQp, Host, PD, poll, request};
use burst_base::verbs::{AhAttr, QpAttr, QpState, QpType, WcStatus, WrOpcode, attr_mask};
use burst_base::{DeviceId, Nanos, Qkey, Qpn, Reason};
use burst_engine::flow::{flow_of, gid_of};
use burst_engine::handover::Inbox;
use burst_engine::multicast::MulticastGroup;
use burst_engine::{AddressHandle, QpChange};
use burst_port::mem::{Hub, MemConfig};
use burst_shm::{Cqe, SendWqe};
use std::net::IpAddr;
use std::sync::Arc;

const GROUP: [u8; 4] = [239, 1, 2, 3];
const QKEY: Qkey = Qkey(0x1234);

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

/// A datagram queue pair in RTS with one receive.
fn member(host: &mut Host) -> AppQp {
    use attr_mask as m;
    let mut qp = host.create(QpType::Ud);
    let attr = QpAttr { port_num: 1, qkey: QKEY, ..QpAttr::default() };
    for (state, mask) in
        [(QpState::Init, m::PKEY_INDEX | m::PORT | m::QKEY), (QpState::Rtr, 0), (QpState::Rts, m::SQ_PSN)]
    {
        let attr = QpAttr { qp_state: state, ..attr };
        host.worker
            .modify_qp(Nanos(0), qp.qpn, QpChange { attr: &attr, mask: mask | m::STATE, flow: None })
            .expect("modify");
    }
    qp.rq.write(9, &[host.sge(4096, 1024)]).expect("room");
    let _ = qp.rq.post();
    qp
}

fn group(members: &[Qpn], workers: u32) -> MulticastGroup {
    MulticastGroup { device: DeviceId(0), ip: GROUP.into(), members: members.to_vec(), workers }
}

/// Sends one datagram to the group.
fn send(host: &mut Host, qp: &mut AppQp) {
    let attr = AhAttr { dgid: gid_of(GROUP.into()), is_global: true, ..AhAttr::default() };
    let flow = flow_of(&host.caps, &attr, 0).expect("flow");
    host.worker.remove_ah(0);
    host.worker.add_ah(0, AddressHandle { pd: PD, flow });
    let wqe = request(WrOpcode::Send, 1, 0, 0);
    let wqe = SendWqe { remote_qpn: Qpn::MULTICAST.get(), remote_qkey: QKEY.0, ah: 0, ..wqe };
    host.post(qp, wqe, &[host.sge(0, 64)]);
}

fn receives(qp: &mut AppQp) -> Vec<Cqe> {
    std::iter::from_fn(|| poll(qp)).filter(|cqe| cqe.is_recv == 1).collect()
}

#[test]
fn every_member_of_every_worker_gets_one_copy() {
    let hub = Hub::new(MemConfig::default());
    let mut a = Host::new(Box::new(hub.port("a", &[ip(1)])), 8192);
    let inboxes: Vec<_> = (0..2).map(|_| Arc::new(Inbox::new(2).expect("inbox"))).collect();
    let mut b = Host::with_inboxes(Box::new(hub.port("b0", &[ip(2)])), 8192, inboxes.clone(), 0);
    let mut c = Host::with_inboxes(Box::new(hub.port("b1", &[ip(3)])), 8192, inboxes, 1);
    let (mut sender, mut outsider) = (member(&mut a), member(&mut b));
    let (mut here, mut here_too, mut there) = (member(&mut b), member(&mut b), member(&mut c));
    a.worker.join_group(DeviceId(0), GROUP.into()).expect("joined");
    a.worker.set_group(group(&[sender.qpn], 1));
    b.worker.join_group(DeviceId(0), GROUP.into()).expect("joined");
    b.worker.set_group(group(&[here.qpn, here_too.qpn], 0b11));
    c.worker.set_group(group(&[there.qpn], 0b11));
    send(&mut a, &mut sender);
    for now in 0..10 {
        for host in [&mut a, &mut b, &mut c] {
            host.worker.run_once(Nanos(now * 1000));
        }
    }
    for qp in [&mut sender, &mut here, &mut here_too, &mut there] {
        let got = receives(qp);
        assert_eq!(got.len(), 1);
        assert_eq!((got[0].status, got[0].wr_id, got[0].byte_len), (WcStatus::Success as u8, 9, 40 + 64));
    }
    assert_eq!(receives(&mut outsider), []);
}

#[test]
fn datagrams_to_unknown_and_left_groups_are_dropped_with_a_reason() {
    let hub = Hub::new(MemConfig::default());
    let mut a = Host::new(Box::new(hub.port("a", &[ip(1)])), 8192);
    let mut b = Host::new(Box::new(hub.port("b", &[ip(2)])), 8192);
    let (mut sender, mut other) = (member(&mut a), member(&mut b));
    b.worker.join_group(DeviceId(0), GROUP.into()).expect("joined");
    b.worker.set_group(group(&[other.qpn], 1));
    b.worker.set_group(group(&[], 0));
    send(&mut a, &mut sender);
    a.worker.run_once(Nanos(0));
    b.worker.run_once(Nanos(0));
    assert_eq!(b.worker.counters(DeviceId(0)).reason(Reason::MulticastMissing), 1);
    b.worker.leave_group(DeviceId(0), GROUP.into());
    b.worker.set_group(group(&[other.qpn], 1));
    send(&mut a, &mut sender);
    a.worker.run_once(Nanos(1));
    b.worker.run_once(Nanos(1));
    assert_eq!(receives(&mut other), []);
}
