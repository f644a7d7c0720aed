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
    assert!(postcard::to_stdvec(&event).expect("encodes").len() <= CmEvent::BYTES);
    assert_eq!(CmEvent::from_bytes(&event.to_bytes()), Some(event));
    let short = CmEvent::new(CmEventKind::Established, 7);
    assert_eq!(CmEvent::from_bytes(&short.to_bytes()), Some(short));
}

#[test]
fn junk_is_no_event_and_private_data_has_a_limit() {
    assert_eq!(CmEvent::from_bytes(&[0xff; CmEvent::BYTES]), None);
    assert!(CmData::new(&[0; CM_DATA_MAX + 1]).is_none());
    let too_long = postcard::to_stdvec(&vec![0u8; CM_DATA_MAX + 1]).expect("encodes");
    assert!(postcard::from_bytes::<CmData>(&too_long).is_err());
}
