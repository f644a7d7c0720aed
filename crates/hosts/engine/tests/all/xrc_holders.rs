//! XRC targets that many contexts hold: an end costs the same however many others there are, and the oldest hold pays for turns.
use crate::harness::Host;
use burst_base::verbs::{Mtu, QpCap, QpType};
use burst_base::{DeviceId, Nanos, Qpn};
use burst_control::events::EventQueue;
use burst_engine::objects::NO_DOORBELL;
use burst_engine::{QpHolder, QpSlot};
use burst_port::mem::{MemConfig, pair};
use burst_shm::sq::SqConsumer;
use burst_transport::{Qp, QpConfig, RecvQueue};
use std::net::IpAddr;
use std::sync::Arc;

const TARGET: Qpn = Qpn::new(0x123_450);

fn holder(hold: u64, sink: &Arc<EventQueue>) -> QpHolder {
    QpHolder { context: 0, qpn: 0, async_events: sink.clone(), event_cookie: 5, hold }
}

fn host_with_target(sink: &Arc<EventQueue>) -> Host {
    let (port, _) = pair(MemConfig::default(), IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let mut host = Host::new(Box::new(port), 1 << 12);
    let config = QpConfig {
        qpn: TARGET,
        qp_type: QpType::XrcRecv,
        pd: u32::MAX,
        send_cq: u32::MAX,
        recv_cq: u32::MAX,
        cookie: 0,
        cap: QpCap::default(),
        port_mtu: Mtu::B1024,
        sq: SqConsumer::detached().expect("memory"),
        rq: RecvQueue::Xrc { domain: 0 },
    };
    let slot = QpSlot::new(Qp::new(config), TARGET, DeviceId(0), NO_DOORBELL, holder(0, sink));
    host.worker.add_qp(Box::new(slot));
    host
}

#[test]
fn a_hundred_thousand_holds_end_without_a_search_for_each() {
    let sink = Arc::new(EventQueue::default());
    let mut host = host_with_target(&sink);
    const HOLDS: u64 = 100_000;
    (1..=HOLDS).for_each(|hold| host.worker.hold_qp(TARGET, holder(hold, &sink)));
    // The same context and event word in each: only the number of the hold tells them apart. With a search for each, this test
    // takes minutes.
    (HOLDS / 2..=HOLDS).for_each(|hold| host.worker.release_qp(TARGET, hold));
    (0..HOLDS / 2 - 1).for_each(|hold| host.worker.release_qp(TARGET, hold));
    host.worker.release_qp(TARGET, 7);
    let slot = host.worker.destroy_qp(Nanos(0), TARGET, false).expect("still held");
    assert_eq!(
        (slot.holder.hold, slot.other_holders.iter().count()),
        (HOLDS / 2 - 1, 0),
        "the oldest hold that is left"
    );
}
