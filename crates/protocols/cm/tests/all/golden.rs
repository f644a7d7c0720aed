//! Captures of another stack's connection manager: parsed, written again, and their fields compared.

use burst_cm::message::{CmMessage, Mad};
use burst_cm::service::{PS_TCP, PS_UDP, PrivateDataHeader, parse_service_id};
use burst_wire::{Layers, MAD_LEN, Packet};
use pcap_file::pcap::PcapReader;
use std::path::PathBuf;

const CAPTURES: [(&str, &str); 9] = [
    ("cm-peer-killed", "Dreq Drep"),
    ("cm-rep-lost", "Req Rep Rep Rtu Dreq Drep"),
    ("cm-reject-consumer", "Req Rej"),
    ("cm-reject-no-listener", "Req Rej"),
    ("cm-rping", "Req Rep Rtu Dreq Drep"),
    ("cm-rping-ipv6", "Req Rep Rtu Dreq Drep"),
    ("cm-sidr-no-listener", "SidrReq SidrRep"),
    ("cm-sidr-udaddy", "SidrReq SidrRep"),
    ("cm-ucmatose", "Req Rep Rtu Dreq Drep"),
];

fn mads(name: &str) -> Vec<[u8; MAD_LEN]> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../bytes/wire/tests/vectors/{name}.pcap"));
    let mut reader = PcapReader::new(std::fs::File::open(path).expect("capture")).expect("pcap");
    let mut out = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let frame = packet.expect("frame").data.into_owned();
        let layers = Layers::parse(&frame).expect("layers");
        let packet = Packet::parse(layers.transport).expect("packet");
        if packet.bth.dest_qpn == burst_base::Qpn::GSI {
            out.push(packet.payload.try_into().expect("256 bytes"));
        }
    }
    out
}

#[test]
fn every_message_is_written_again_byte_for_byte() {
    for (name, expected) in CAPTURES {
        let mut names = Vec::new();
        for bytes in mads(name) {
            let mad = Mad::parse(&bytes).expect("parses");
            let mut again = [0xaa; MAD_LEN];
            mad.emit(&mut again);
            assert_eq!(again, bytes, "{name} {:?}", mad.message);
            names.push(mad.message.name());
        }
        assert_eq!(names.join(" "), expected, "{name}");
    }
}

/// Sequence number of the first request that went to a queue pair.
fn first_request_to(name: &str, qpn: u32) -> u32 {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../bytes/wire/tests/vectors/{name}.pcap"));
    let mut reader = PcapReader::new(std::fs::File::open(path).expect("capture")).expect("pcap");
    while let Some(packet) = reader.next_packet() {
        let frame = packet.expect("frame").data.into_owned();
        let packet = Packet::parse(Layers::parse(&frame).expect("layers").transport).expect("packet");
        if packet.bth.dest_qpn.get() == qpn && packet.bth.ack_req {
            return packet.bth.psn.get();
        }
    }
    panic!("{name}: no request to {qpn:#x}");
}

#[test]
fn each_end_announces_the_sequence_number_that_the_other_begins_with() {
    for name in ["cm-rping", "cm-rping-ipv6", "cm-ucmatose"] {
        let all = mads(name);
        let message = |n: usize| Mad::parse(&all[n]).expect("parses").message;
        let (CmMessage::Req(req), CmMessage::Rep(rep)) = (message(0), message(1)) else { panic!("not a handshake") };
        assert_eq!(first_request_to(name, req.qpn), req.psn, "{name}: what the passive end sends");
        assert_eq!(first_request_to(name, rep.qpn), rep.psn, "{name}: what the active end sends");
    }
}

#[test]
fn fields_are_where_they_should_be() {
    let all = mads("cm-rping");
    let message = |n: usize| Mad::parse(&all[n]).expect("parses").message;
    let (CmMessage::Req(req), CmMessage::Rep(rep), CmMessage::Rtu(rtu)) = (message(0), message(1), message(2)) else {
        panic!("not a handshake");
    };
    assert_eq!((req.qpn, req.responder_resources, req.initiator_depth), (0x53, 1, 1));
    assert_eq!((req.remote_response_timeout, req.local_response_timeout, req.cm_retries), (20, 20, 15));
    assert_eq!((req.transport, req.retry_count, req.rnr_retry_count, req.srq), (0, 7, 7, false));
    assert_eq!((req.pkey, req.mtu, req.psn, req.ack_timeout), (0xffff, 3, 0x00ad_5851, 19));
    assert_eq!((req.local_lid, req.flow_label, req.packet_rate, req.hop_limit), (0xffff, 0x219f2, 0, 64));
    assert_eq!(parse_service_id(req.service_id), Some((PS_TCP, 7174)));
    let header = PrivateDataHeader::parse(Mad::parse(&all[0]).expect("parses").data).expect("header");
    assert_eq!((header.src.to_string(), header.dst.to_string()), ("10.77.0.3".into(), "10.77.0.2".into()));
    assert_eq!((rep.remote_id, rep.qpn, rep.ack_delay, rep.rnr_retry_count), (req.local_id, 0x51, 15, 7));
    assert_eq!((rep.ca_guid, rep.vendor_id, rep.responder_resources), (0x5054_00ff_fe77_0002, 0, 1));
    assert_eq!((rtu.local_id, rtu.remote_id), (req.local_id, rep.local_id));
}

#[test]
fn refusals_and_datagram_services() {
    let last = |name: &str| {
        let bytes = mads(name).pop().expect("answer");
        let mad = Mad::parse(&bytes).expect("parses");
        (mad.message, mad.data.to_vec())
    };
    let (CmMessage::Rej(rej), data) = last("cm-reject-consumer") else { panic!("not a REJ") };
    assert_eq!((rej.reason, rej.message, &data[..8]), (28, 0, &b"go-away\0"[..]));
    let (CmMessage::Rej(rej), _) = last("cm-reject-no-listener") else { panic!("not a REJ") };
    assert_eq!((rej.reason, rej.local_id), (8, 0));
    let (CmMessage::SidrRep(rep), _) = last("cm-sidr-udaddy") else { panic!("not a SIDR_REP") };
    assert_eq!((rep.status, rep.qpn, rep.qkey), (0, 0x54, 0x0123_4567));
    assert_eq!(parse_service_id(rep.service_id), Some((PS_UDP, 7174)));
    let (CmMessage::SidrRep(rep), _) = last("cm-sidr-no-listener") else { panic!("not a SIDR_REP") };
    assert_eq!(rep.status, 1);
}
