//! `ABI_VERSION` changes with the contract between library and daemon: formats in shared memory, control messages, records.

mod shape;

use burst_base::conn::PeerClass;
use burst_base::verbs::{Mtu, QpType};
use burst_control::cm::{CmAddr, CmCommand, CmData, CmEvent, CmEventKind, CmRoute, ConnAttr, DAEMON_IDS, Ece};
use burst_control::frame::{BELL_MAGIC, HEADER_BYTES, MAGIC};
use burst_control::urma_calls::UrmaPost;
use burst_control::{AsyncObject, AsyncRecord, CommandSender, FDS_MAX, MESSAGE_MAX, Reply, Request};
use burst_shm::record_ring::{RECORD_BYTES_MAX, RECORD_RING_ENTRIES};
use burst_shm::{ABI_VERSION, protocol};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use shape::shape_of;
use std::fmt::Write;

/// The version whose contract [`RECORDED_HASH`] describes.
const RECORDED_VERSION: u32 = 17;
/// Hash of the contract of that version.
const RECORDED_HASH: u64 = 0x7831_0cb3_2c28_aa13;

#[test]
fn abi_version_changes_with_the_contract() {
    let hash = fnv1a(contract().as_bytes());
    assert!(
        (ABI_VERSION, hash) == (RECORDED_VERSION, RECORDED_HASH),
        "The contract between library and daemon has changed: version {ABI_VERSION} with hash {hash:#018x}, recorded are \
         version {RECORDED_VERSION} and hash {RECORDED_HASH:#018x}. If the last release has the recorded version and any byte \
         of shared memory, of a control message or of a record changes its meaning, add one to ABI_VERSION \
         (crates/bytes/shm/src/layout.rs). If only names changed, leave it. Then record version and hash in this file."
    );
}

#[test]
fn the_hash_sees_names_order_and_types_but_no_comments() {
    let text = "pub a: u32, // first\n    /* two */ pub b: u64,";
    assert_eq!(code_of(text), code_of("pub a:u32,pub b :u64,"));
    assert_ne!(code_of(text), code_of("pub b: u64, pub a: u32,"));
    assert_ne!(fnv1a(b"u32"), fnv1a(b"u64"));
    let (shape, samples) = shape_of::<CmCommand>();
    assert!(shape.contains("SetOption") && shape.contains("AckTimeout"), "{shape}");
    assert!(samples.iter().any(|command| matches!(command, CmCommand::Connect { qp: Some(_), .. })));
}

/// The contract between library and daemon as text.
fn contract() -> String {
    let mut text =
        code_of(include_str!("../../shm/src/layout.rs")).replace(&format!("ABI_VERSION:u32={ABI_VERSION}"), "");
    let numbers = [
        u64::from(protocol::ARMED_NO),
        u64::from(protocol::ARMED_SOLICITED),
        u64::from(protocol::ARMED_ANY),
        protocol::head_word(3, 5),
        u64::from(RECORD_RING_ENTRIES),
        RECORD_BYTES_MAX as u64,
        u64::from(MAGIC),
        u64::from(BELL_MAGIC),
        HEADER_BYTES as u64,
        MESSAGE_MAX as u64,
        FDS_MAX as u64,
    ];
    write!(text, "{numbers:?}").expect("a string takes all");
    text += &shape_of::<Request>().0;
    text += &shape_of::<Reply>().0;
    let (_, commands) = shape_of::<CmCommand>();
    for command in &commands {
        write!(text, "{:?}", record_of(command)).expect("a string takes all");
    }
    write!(text, "{:?}", urma_post().to_bytes()).expect("a string takes all");
    let record = AsyncRecord { event: 1, object: AsyncObject::Srq, cookie: 2 }.to_bytes();
    write!(text, "{record:?} {:?} {:?}", CmEventKind::ALL, event().to_bytes()).expect("a string takes all");
    text
}

/// A post whose fields all differ.
fn urma_post() -> UrmaPost {
    UrmaPost {
        kind: 1,
        opcode: 2,
        flags: 3,
        hint: 4,
        inline_len: 5,
        order: 6,
        queue: 7,
        target: 8,
        segment: 9,
        token_id: 10,
        len: 11,
        notify_segment: 12,
        addr: 13,
        user_ctx: 14,
        remote_addr: 15,
        operand: 16,
        swap: 17,
        immediate: 18,
        notify_addr: 19,
    }
}

/// An event whose fields all differ.
fn event() -> CmEvent {
    let addr = |n: u8| CmAddr { ip: [192, 0, 2, n].into(), port: 300 + u16::from(n), scope: 400 + u32::from(n) };
    let route = CmRoute {
        src: Some(addr(1)),
        dst: Some(addr(2)),
        device: Some(3),
        sgid: [4; 16],
        dgid: [5; 16],
        sgid_index: 6,
        mtu: Mtu::B2048,
        traffic_class: 7,
        hop_limit: 8,
        ack_timeout: 9,
    };
    let conn = ConnAttr {
        remote_qpn: 10,
        sq_psn: 11,
        rq_psn: 12,
        responder_resources: 13,
        initiator_depth: 14,
        retry_count: 15,
        rnr_retry_count: 16,
        peer_rnr_retry_count: 17,
        ack_timeout: 18,
        flow_control: true,
        srq: false,
        qkey: 19,
        mtu: Mtu::B4096,
        ece: Ece { vendor_id: 20, options: 21 },
        peer: PeerClass::Burst,
    };
    let data = CmData::new(b"data").expect("it fits");
    CmEvent { listener: 22, status: 23, cookie: 24, route, conn, data, ..CmEvent::new(CmEventKind::Rejected, 25) }
}

/// The record of a command in the ring.
fn record_of(command: &CmCommand) -> Vec<u8> {
    let (program, _daemon) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket pair");
    let (segment, mut consumer) = burst_shm::record_ring::create().expect("a ring");
    let fd = segment.fd().expect("a descriptor").try_clone_to_owned().expect("another descriptor");
    let sender = CommandSender::new(program, fd).expect("a ring");
    assert!(sender.send(std::slice::from_ref(command)).expect("sent"));
    assert_eq!(consumer.pending().expect("a ring"), 1);
    consumer.take(&mut [0; RECORD_BYTES_MAX]).expect("a record").to_vec()
}

/// Source text without comments and white space.
fn code_of(source: &str) -> String {
    let (mut code, mut rest) = (String::new(), source);
    while let Some(next) = rest.chars().next() {
        if rest.starts_with("//") {
            rest = rest.split_once('\n').map_or("", |(_, after)| after);
        } else if rest.starts_with("/*") {
            rest = rest.split_once("*/").map_or("", |(_, after)| after);
        } else {
            code.extend((!next.is_whitespace()).then_some(next));
            rest = &rest[next.len_utf8()..];
        }
    }
    code
}

/// FNV-1a, 64 bits.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The numbers of ids that programs choose and those that the daemon chooses halve the range.
#[test]
fn ids_of_the_daemon_have_the_highest_bit() {
    assert_eq!(DAEMON_IDS, 0x8000_0000);
}

/// The types of queue pairs have the numbers of `enum ibv_qp_type` in records.
#[test]
fn queue_pair_types_have_their_numbers() {
    assert_eq!(
        [QpType::Rc as u8, QpType::Uc as u8, QpType::Ud as u8, QpType::XrcSend as u8, QpType::XrcRecv as u8],
        [2, 3, 4, 9, 10]
    );
}
