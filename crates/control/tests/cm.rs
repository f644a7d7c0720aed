//! Records of event channels: the longest fits, and what is written is read.

use burst_base::verbs::Mtu;
use burst_control::cm::{CM_DATA_MAX, CmAddr, CmConn, CmData, CmEvent, CmEventKind, CmRoute};

fn longest() -> CmEvent {
    let addr = CmAddr { ip: [0xff; 16].into(), port: u16::MAX, scope: u32::MAX };
    let route = CmRoute {
        src: Some(addr),
        dst: Some(addr),
        device: Some(u32::MAX),
        sgid: [0xff; 16],
        dgid: [0xff; 16],
        sgid_index: 255,
        mtu: Mtu::B4096,
        traffic_class: 255,
        hop_limit: 255,
        ack_timeout: 255,
    };
    let max = u32::MAX;
    let conn = CmConn {
        remote_qpn: max,
        sq_psn: max,
        rq_psn: max,
        responder_resources: 255,
        initiator_depth: 255,
        retry_count: 255,
        rnr_retry_count: 255,
        peer_rnr_retry_count: 255,
        timeout: 255,
        flow_control: true,
        srq: true,
        qkey: max,
        ece: (max, max),
    };
    CmEvent {
        kind: CmEventKind::TimewaitExit,
        id: max,
        listener: max,
        status: i32::MIN,
        cookie: u64::MAX,
        route,
        conn,
        data: CmData::new(&[0xff; CM_DATA_MAX]).expect("fits"),
    }
}

#[test]
fn the_longest_event_fits_and_comes_back() {
    let event = longest();
    assert_eq!(CmEvent::from_bytes(&event.to_bytes()), Some(event));
    assert_eq!(event.to_bytes()[CmEvent::BYTES - 1], 0, "it does not fill the record");
    let short = CmEvent::new(CmEventKind::Established, 7);
    assert_eq!(CmEvent::from_bytes(&short.to_bytes()), Some(short));
}

#[test]
fn every_kind_comes_back_under_its_number() {
    for (number, kind) in CmEventKind::ALL.iter().enumerate() {
        assert_eq!(*kind as usize, number);
        let src = Some(CmAddr { ip: [192, 0, 2, number as u8].into(), port: 7, scope: 0 });
        let event = CmEvent { route: CmRoute { src, ..CmRoute::default() }, ..CmEvent::new(*kind, 1 << number) };
        assert_eq!(CmEvent::from_bytes(&event.to_bytes()), Some(event));
    }
}

#[test]
fn junk_is_no_event_and_private_data_has_a_limit() {
    assert_eq!(CmEvent::from_bytes(&[0xff; CmEvent::BYTES]), None);
    // A byte that says what follows (the kind, an option, a family, a truth, a length) is checked; others are values.
    let good = longest().to_bytes();
    let refused = (0..CmEvent::BYTES).filter(|at| {
        let mut bad = good;
        bad[*at] = 0xfe;
        CmEvent::from_bytes(&bad).is_none()
    });
    assert_eq!(refused.count(), 10);
    assert!(CmData::new(&[0; CM_DATA_MAX + 1]).is_none());
    let too_long = postcard::to_stdvec(&vec![0u8; CM_DATA_MAX + 1]).expect("encodes");
    assert!(postcard::from_bytes::<CmData>(&too_long).is_err());
}
