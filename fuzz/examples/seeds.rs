//! Writes the first inputs of the fuzz targets that have no recorded ones: messages as library and daemon send them, and short
//! programs of each kind. `cargo run --manifest-path fuzz/Cargo.toml --example seeds` after a change of a format.

use burst_base::verbs::{Mtu, QpCap, QpType};
use burst_control::cm::{CmAddr, CmCommand, CmData, ConnParam, PortSpace};
use burst_control::commands::CommandReceiver;
use burst_control::{
    CommandSender, Counter, CqInitAttr, DeviceInfo, GidInfo, ImportObject, Limits, MrPiece, MrPieceKind, QpCookies,
    QpInitAttr, Reply, Request, Response, SrqInitAttr,
};
use burst_port::lan::{Lan, LanHost};
use burst_relay::{Frame, HEADER_BYTES, Header, LinkHello, MessageKind, Outcome, PeerWindow, WindowOf};
use burst_shm::QUEUE_HEADER_BYTES;
use burst_shm::arena::Segment;
use burst_wire::MacAddr;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

fn write(target: &str, name: &str, bytes: &[u8]) {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::create_dir_all(&directory).expect("made");
    fs::write(directory.join(name), bytes).expect("written");
}

fn encoded<T: serde::Serialize>(message: &T) -> Vec<u8> {
    postcard::to_stdvec(message).expect("encodes")
}

/// `first` and then `bytes`.
fn after(first: &[u8], bytes: &[u8]) -> Vec<u8> {
    [first, bytes].concat()
}

fn commands() -> Vec<CmCommand> {
    let addr = CmAddr { ip: IpAddr::from([10, 0, 0, 2]), port: 4000, scope: 0 };
    let own = CmAddr { ip: IpAddr::from([10, 0, 0, 1]), port: 4000, scope: 0 };
    let data = CmData::new(b"private data").expect("short");
    let param = ConnParam { responder_resources: 1, initiator_depth: 1, retry_count: 7, ..ConnParam::default() };
    vec![
        CmCommand::Create { id: 1, channel: 1, ps: PortSpace::Tcp, qp_type: QpType::Rc },
        CmCommand::Bind { id: 1, addr: own },
        CmCommand::Listen { id: 1, backlog: 4 },
        CmCommand::Create { id: 2, channel: 1, ps: PortSpace::Udp, qp_type: QpType::Ud },
        CmCommand::ResolveAddr { id: 2, src: None, dst: addr, timeout_ms: 100 },
        CmCommand::ResolveRoute { id: 2, timeout_ms: 100 },
        CmCommand::Connect { id: 2, qp: None, param, data },
        CmCommand::Accept { id: 2, qp: None, param, data },
        CmCommand::Join { id: 2, addr: CmAddr { ip: IpAddr::from([239, 1, 2, 3]), ..addr }, cookie: 9 },
        CmCommand::Reject { id: 2, reason: 28, data },
        CmCommand::Disconnect { id: 2 },
        CmCommand::Destroy { id: 2, read: 0 },
    ]
}

/// The record of a command, as the library writes it.
fn record(command: &CmCommand) -> Vec<u8> {
    let (fd, mut receiver) = CommandReceiver::create().expect("a ring");
    let segment = Segment::map(fd.try_clone().expect("a descriptor")).expect("mapped");
    let (socket, _peer) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let sender = CommandSender::new(socket.into(), fd).expect("a ring");
    assert!(sender.send(std::slice::from_ref(command)).expect("the reader is awake"));
    assert_eq!(receiver.receive(|_| ()).expect("a command"), 1);
    let at = |offset: usize| {
        assert!(offset < segment.len());
        // SAFETY: inside the mapping, and no other thread writes any more.
        unsafe { segment.base().as_ptr().add(offset).read() }
    };
    let len = usize::from(u16::from_ne_bytes([at(QUEUE_HEADER_BYTES), at(QUEUE_HEADER_BYTES + 1)]));
    (0..len).map(|i| at(QUEUE_HEADER_BYTES + 8 + i)).collect()
}

fn requests() -> Vec<(&'static str, Request)> {
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
    let init = |qp_type| QpInitAttr { pd: 0, qp_type, send_cq: 0, recv_cq: 0, srq: None, cap };
    let names = vec![QpCookies { cookie: 1, event_cookie: 2 }];
    let pieces = vec![MrPiece { addr: 4096, len: 8192, kind: MrPieceKind::Fd { fd: 0, offset: 0 } }];
    let region =
        |pieces| Request::RegMr { pd: 0, addr: 4096, len: 8192, iova: 4096, access: 7, pieces, replaces: None };
    let srq = SrqInitAttr { pd: 0, max_wr: 4, max_sge: 1, limit: 0, cookie: 3, xrc: None };
    vec![
        ("hello", Request::Hello { program: "ib_write_bw".into() }),
        ("devices", Request::ListDevices),
        ("open", Request::OpenContext { device: 0 }),
        ("impair", Request::Impair { device: 0, options: "loss=1%,rate=10Gbit".into(), time_ns: 1_000_000_000 }),
        ("capture", Request::Capture { device: 0, snap: 64 }),
        ("kept-packets", Request::KeptPackets { of: burst_control::failures::PacketOwner::QueuePair(0x11f) }),
        ("cc", Request::Cc { from: Default::default() }),
        ("histograms", Request::Histograms),
        ("log", Request::Log { levels: Some("host=debug".into()) }),
        ("set-cc", Request::SetCc { kind: Some("burst".into()), cc: "dcqcn:rpg_ai_rate=100M".into() }),
        ("pd", Request::AllocPd),
        ("channel", Request::CreateChannel),
        ("cq", Request::CreateCq(CqInitAttr { entries: 16, channel: Some(0), cookie: 1, vector: 0 })),
        ("resize-cq", Request::ResizeCq { cq: 0, entries: 64 }),
        ("region", region(pieces)),
        ("region-in-process", region(vec![MrPiece { addr: 4096, len: 8192, kind: MrPieceKind::InProcess }])),
        ("window", Request::AllocMw { pd: 0, mw_type: burst_base::verbs::MwType::Two }),
        ("dm", Request::AllocDm { len: 4096 }),
        ("srq", Request::CreateSrq(srq)),
        ("resize-srq", Request::ResizeSrq { srq: 0, max_wr: 32 }),
        ("qp-rc", Request::CreateQp { init: init(QpType::Rc), names: names.clone() }),
        ("qp-ud", Request::CreateQp { init: init(QpType::Ud), names }),
        ("xrcd", Request::OpenXrcd { with_file: false, flags: 0o100 }),
        ("target", Request::CreateTarget { xrcd: 0, event_cookie: 5 }),
        ("query", Request::QueryQp { qp: 0 }),
        ("drop", Request::DropQps { qps: vec![0] }),
        ("token", Request::Token),
        ("import", Request::Import { token: 1, object: ImportObject::Pd(0) }),
        ("cm-channel", Request::CmChannel { channel: 1 }),
        ("cm", Request::Cm { commands: commands() }),
        ("destroy", Request::DestroyQp { qp: 0 }),
    ]
}

fn replies() -> [Reply; 2] {
    let limits: Limits = postcard::from_bytes(&[1; 256]).expect("numbers");
    let gid = GidInfo { gid: burst_base::gid::gid_of(IpAddr::from([10, 0, 0, 1])), ifname: "eth0".into(), ifindex: 2 };
    let device = DeviceInfo {
        index: 0,
        name: "burst0".into(),
        guid: 7,
        port: "udp".into(),
        up: true,
        link_mtu: 1500,
        active_mtu: Mtu::B1024,
        speed_mbps: 1000,
        ifname: String::new(),
        mac: [2; 6],
        gids: vec![gid],
        limits,
        impairment: None,
    };
    let counter = Counter { device: "burst0".into(), name: "tx_bytes".into(), value: 9 };
    [Response::Devices(vec![device]), Response::Stats(vec![counter])].map(|r| Reply { new_segments: 0, result: Ok(r) })
}

fn control_and_session() {
    let mut all = vec![1];
    for (name, request) in requests() {
        let body = encoded(&request);
        write("control", name, &after(&[0], &body));
        // A request of the first program with two descriptors.
        all.extend(after(&[0, 2, 0, 0], &body));
    }
    write("session", "requests", &all);
    let post = [[80u8; 1].as_slice(), &[0; 64]].concat();
    write("session", "posts", &[&[1u8][..], &post, &[112], &post, &[112, 80 + 128], &[3; 64], &[240]].concat());
    write("session", "scribbles", &[1, 64, 0, 0, 5, 64, 1, 0, 200, 64, 2, 32, 7, 99, 0, 112, 112, 127, 112]);
    for (at, record) in commands().iter().map(record).enumerate() {
        let framed = after(&(record.len() as u16).to_le_bytes(), &record);
        write("control", &format!("command-{at:02}"), &after(&[5], &framed));
        // Its first byte is its length, with that byte.
        let of_session =
            [&[1, 100, 100][..], &[record.len() as u8 + 1], &record, &[108, 112, 120, 1, 0, 9, 1]].concat();
        write("session", &format!("command-{at:02}"), &of_session);
    }
    write("control", "event", &after(&[4], &[0; 64]));
    for (at, reply) in replies().iter().enumerate() {
        write("control", &format!("reply-{at}"), &after(&[2], &encoded(reply)));
    }
    let framed = |reply: &Reply| {
        let body = encoded(reply);
        after(&(body.len() as u16).to_le_bytes(), &body)
    };
    let [devices, stats] = replies();
    write("hostfiles", "one-device", &[framed(&devices), framed(&stats)].concat());
}

fn rings() {
    // Kind, dimensions, then: scribble the producer, fetch; bytes of an entry, fetch.
    for kind in 0..6u8 {
        let program = [
            kind, 8, 2, 64, 0, 128, 0, 3, 0, 0, 224, 16, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 5, 128, 0, 200, 0, 6, 7, 4, 1, 9,
        ];
        write("rings", &format!("kind-{kind}"), &program);
    }
}

fn frames() {
    let addrs = ["10.0.0.2/24", "fd00::2/64"].map(|p| p.parse().expect("a prefix")).to_vec();
    let peer = LanHost { mac: MacAddr([2, 0, 0, 0, 0, 2]), addrs, gateways: Vec::new() };
    let mut lan = Lan::new(Arc::new(peer), Arc::default(), 2048);
    let mut frames = Vec::new();
    lan.announce(&mut |frame| frames.push(frame.to_vec()));
    for dst in ["10.0.0.1", "fd00::1"] {
        let dst = dst.parse().expect("an address");
        lan.neighbour(burst_base::Nanos(1), dst, &mut |frame| frames.push(frame.to_vec())).expect("on the link");
    }
    let mut echo =
        [&[2u8, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], &[0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 1, 0, 0]].concat();
    echo.extend([10, 0, 0, 2, 10, 0, 0, 1, 8, 0, 0, 0, 0, 7, 0, 1, 1, 2, 3, 4]);
    frames.push(echo);
    let mut echo6 = vec![2u8, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 12, 58, 64];
    for last in [2u16, 1] {
        echo6.extend(
            IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last])
                .to_string()
                .parse::<std::net::Ipv6Addr>()
                .expect("v6")
                .octets(),
        );
    }
    echo6.extend([128, 0, 0, 0, 0, 7, 0, 1, 1, 2, 3, 4]);
    frames.push(echo6);
    for (at, frame) in frames.iter().enumerate() {
        let framed = [&[0u8][..], &(frame.len() as u16).to_le_bytes(), &[0], frame].concat();
        // Solicit first, so that an advertisement is taken; let a frame wait.
        let v6 = if at % 2 == 1 { [4, 194, 5, 60, 194] } else { [4, 2, 5, 60, 2] };
        write("lan", &format!("frame-{at}"), &[&v6[..], &framed, &[7, 200, 6, 2, 7, 3]].concat());
    }
}

fn trains() {
    // Segments, packets, bytes of the last, identification; IPv4 and IPv6; whole and with changed bytes.
    for (name, kind) in [("v4", 1u8), ("v6", 0x41), ("changed", 3), ("vlan", 0x11), ("lost", 0x21)] {
        write("frames", name, &[0, 0, kind, 0, 1, 0, 1, 5, 40, 0, 7, 0, 9, 60, 0, 1, 200]);
    }
    write("frames", "raw", &[&[0, 0, 0, 40, 0][..], &[0x45; 40], &[9]].concat());
}

fn netlink() {
    let attribute = |kind: u16, value: &[u8]| {
        let mut bytes = [&(4 + value.len() as u16).to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let message = |kind: u16, fixed: [u8; 12], attributes: &[Vec<u8>]| {
        let body = [&fixed[..], &attributes.concat()].concat();
        let len = 16 + body.len() as u32;
        [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], &body].concat()
    };
    let neighbour =
        message(28, [2, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0], &[attribute(1, &[10, 0, 0, 9]), attribute(2, &[2; 6])]);
    let metrics = attribute(2, &1500u32.to_ne_bytes());
    let via = [&[10u8, 0][..], &[0xfd; 16]].concat();
    let hops = [
        attribute(4, &3u32.to_ne_bytes()),
        attribute(5, &[10, 0, 0, 254]),
        attribute(8, &metrics),
        attribute(18, &via),
    ];
    let route = message(24, [2, 32, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0], &hops);
    for (name, action, message) in
        [("event", 0, &neighbour), ("neighbour", 2, &neighbour), ("route", 3, &route), ("resolving", 4, &route)]
    {
        let datagram = [&(message.len() as u16).to_le_bytes()[..], message].concat();
        write("netlink", name, &[&[action, 0, 1, 0, 2, 2][..], &datagram, &datagram].concat());
    }
    write("netlink", "lost", &[0, 0, 1, 0, 2, 1, 0, 0]);
}

fn texts() {
    let file = "port = [\"udp:dev=eth0\", \"packet\"]\nworkers = 2\nwindow = \"2MiB\"\nspin = \"1ms\"\n[log]\nlevel = \"warn\"";
    write("config", "whole", format!("{file}\n\n--idle-exit=9s\nBURST_WORKERS=3\n--user-share\n40").as_bytes());
    write("config", "wrong-key", b"wrokers = 1\n[log.level]\nx = 1");
    write("config", "flags", b"\n\n--wrokers=3\n--help");
    write(
        "config",
        "variables",
        b"\n\nBURST_PORT=udp:dev=a udp:dev=b\nBURST_SOCKET_MODE=0666\nBURST_ACCOUNT_BY=cgroup\nBURST_LOG_FORMAT=json",
    );
    let words = [
        (0, "1.5MiB"),
        (0, "300ppm"),
        (0, "0.5ms"),
        (1, "udp:dev=eth0,addr=10.0.0.1,gso=off,rcvbuf=2M,strict_id"),
        (1, "impair:loss=1%,dup=0.02,reorder=300ppm,delay=100us,seed=7/impair:dir=rx/udp"),
        (1, "packet:dev=eth0.5"),
        (
            1,
            "dpdk:dev=net_memif0,role=server,socket=/run/m.sock,addr=10.0.0.1/24,addr=fd00::1/64,gw=10.0.0.254,mtu=4000,huge=on",
        ),
        (1, "fd00::1/64"),
        (1, "0000:03:00.0"),
        (2, "burst0"),
        (3, "run\n--socket\n/tmp/x\n--\nib_write_bw\n-d"),
        (3, "cm\n--sokcet"),
        (3, "host-files\non"),
        (3, "why\nbad_icrc"),
        (3, "ls\n--users\n--json"),
        (3, "doctro"),
        (3, "--help"),
    ];
    for (at, (kind, text)) in words.iter().enumerate() {
        write("words", &format!("text-{at:02}"), &after(&[*kind], text.as_bytes()));
    }
}

/// Messages of a peer of `burst proxy`, each behind its length.
fn relay() {
    let window = PeerWindow { address: 4096, rkey: 1, len: 8192 };
    let frames = [
        Frame::Accept { window },
        Frame::Data { offset: 0, bytes: b"hello" },
        Frame::Placed { offset: 5, len: 4000 },
        Frame::Credit { delivered: 5 },
        Frame::Fin { end: 4005 },
        Frame::End { outcome: Outcome::Reset },
    ];
    let hello =
        LinkHello { link: 0, attempt: 1, received: 0, windows: vec![WindowOf { stream: 1, window }], seal: None }
            .to_bytes();
    let mut input = after(&(hello.len() as u16).to_le_bytes(), &hello);
    for (frame, seq) in frames.iter().zip(1..) {
        let mut bytes = vec![0; HEADER_BYTES];
        Header { kind: MessageKind::Batch, seq, ack: 0 }.write(&mut bytes);
        frame.write(1, &mut bytes);
        write("relay", &format!("frame-{seq}"), &after(&(bytes.len() as u16).to_le_bytes(), &bytes));
        input.extend((bytes.len() as u16).to_le_bytes());
        input.extend(bytes);
    }
    write("relay", "stream", &input);
    input.push(0);
    write("relay", "stream-accepted", &input);
}

fn main() {
    control_and_session();
    rings();
    frames();
    trains();
    netlink();
    texts();
    relay();
}
