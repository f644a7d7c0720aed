//! A hostile program: asks the daemon for things without end, by raw control messages, until it is killed (`make hunt`).
//!
//! usage: attack KIND SOCKET [FILE [ADDRESS]]
//!
//! It prints "attack KIND" when it begins, and "refused ..." for the first refusal of each kind. Each kind repeats one way
//! to harm the daemon or its other users; [`KINDS`] says which.
#![forbid(unsafe_code)]

mod urma;

use burst_base::Qkey;
use burst_base::verbs::{MwType, QpAttr, QpCap, QpState, QpType, attr_mask};
use burst_control::client::ClientReply;
use burst_control::cm::{CmAddr, CmCommand, CmIdOption, CmReply, PortSpace};
use burst_control::{
    Client, ControlError, CqInitAttr, ImportObject, MrPiece, MrPieceKind, QpCookies, QpInitAttr, Request, Response,
};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use std::collections::HashSet;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

const PAGE: u64 = 4096;
/// Requests of one connection before it ends and another begins, where no refusal comes first.
const ROUND: u32 = 100_000;

type Outcome = Result<(), ControlError>;
type Attack = fn(&mut Attacker) -> Outcome;

/// Name, and what one round does.
const KINDS: &[(&str, Attack)] = &[
    // Regions of a sparse file of 1 TiB: address space, which the file's few pages do not show.
    ("sparse", sparse),
    // Regions of eight pieces fill the table of mappings; queues are resized meanwhile.
    ("regions", regions),
    // Sockets that linger, sent as memory and as files.
    ("lingering", lingering),
    // Shares of an XRC target without end.
    ("xrc-holders", xrc_holders),
    // An XRC domain by a descriptor that only names another user's file.
    ("o-path", o_path),
    // A privileged Q_Key, for forged management datagrams.
    ("qkey", qkey),
    // Protection domains and windows without end.
    ("objects", objects),
    // The same protection domain imported without end.
    ("imports", imports),
    // Connections that end at once.
    ("connects", connects),
    // Connections that send rubbish.
    ("rubbish", rubbish),
    // Idle connections, as many as the daemon takes.
    ("idle", idle),
    // Events of the connection manager that the program does not read.
    ("unread", unread),
    // Rings of commands, one for each connection.
    ("rings", rings),
    // Rings of commands until there are no descriptors, and then sockets that linger.
    ("starving", starving),
    // All ports of the connection manager.
    ("ports", ports),
    // Memory that is held and released, as for a fork, with as many regions as one may have.
    ("holds", holds),
    // Listeners with the longest backlogs that accept nothing.
    ("listeners", listeners),
    // Every address of the bystander's port, with the option to share it.
    ("hijack", hijack),
    // Resizes of a large queue, and migrations of a listener beside many unread events: once they stopped all workers.
    ("stops", stops),
    // Large files of which the daemon has the last reference.
    ("large-files", large_files),
    // All places of a multicast group, and all groups of the port.
    ("groups", groups),
    // Completion queues and Jetties of URMA without end.
    ("urma-objects", urma::objects),
    // Imports by URMA from ever more hosts that do not exist.
    ("urma-peers", urma::peers),
    // Imports from an invented host that has the last 24 bits of a true one's address.
    ("urma-same-bits", urma::same_bits),
    // As many Jetties as there may be, each with requests to a host that never answers, which fail as late as can be.
    ("urma-silent", urma::silent),
    // No attack: a segment without token, which others try to write.
    ("urma-open-segment", urma::open_segment),
    // Writes to segments of a true host with numbers and tokens that are guessed.
    ("urma-guesses", urma::guesses),
];

/// The port on which the bystander of `tests/hunt/attacks.py` listens.
const BYSTANDERS_PORT: u16 = 7301;
/// Ports of `listeners`.
const LISTENERS_FROM: u16 = 7400;
const LISTENERS: u16 = 64;
/// Bytes of a large file. The system needs a good part of a second to free their pages.
const LARGE: u64 = 512 << 20;

/// Bytes of a sparse file, more than any machine has memory.
const SPARSE: u64 = 1 << 40;

struct Attacker {
    socket: PathBuf,
    file: Option<PathBuf>,
    /// The host that an attack of URMA is on.
    victim: Option<Ipv4Addr>,
    /// Refusals that were printed.
    refusals: HashSet<String>,
}

impl Attacker {
    fn connect(&mut self) -> Result<Client, ControlError> {
        let connected = Client::connect(&self.socket, "attack");
        self.note(connected.as_ref().err());
        connected
    }

    /// A connection with a context.
    fn context(&mut self) -> Result<Client, ControlError> {
        let mut client = self.connect()?;
        self.ask(&mut client, &Request::OpenContext { device: 0 }, &[])?;
        Ok(client)
    }

    fn ask(
        &mut self,
        client: &mut Client,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<ClientReply, ControlError> {
        let reply = client.call(request, fds);
        self.note(reply.as_ref().err());
        reply
    }

    fn handle(&mut self, client: &mut Client, request: &Request) -> Result<u32, ControlError> {
        match self.ask(client, request, &[])?.response {
            Response::Handle(handle) => Ok(handle),
            Response::Cq { cq, .. } => Ok(cq),
            other => Err(ControlError::Malformed(format!("{request:?}: {other:?}"))),
        }
    }

    /// Prints a refusal that is the first of its kind. Numbers in a sentence make no new kind.
    fn note(&mut self, error: Option<&ControlError>) {
        let Some(error) = error else { return };
        let sentence = error.to_string();
        let kind = sentence.chars().filter(|c| !c.is_ascii_digit()).collect();
        if self.refusals.insert(kind) {
            println!("refused {sentence}");
        }
    }
}

fn memory(bytes: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("attack", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).expect("a memfd");
    rustix::fs::ftruncate(&fd, bytes).expect("its length");
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).expect("sealed");
    fd
}

fn region(pd: u32, pieces: u64) -> Request {
    // Every other page of the file, so that no two pieces are one mapping.
    let piece = |n| MrPiece { addr: n * PAGE, len: PAGE, kind: MrPieceKind::Fd { fd: 0, offset: 2 * n * PAGE } };
    let pieces: Vec<MrPiece> = (0..pieces).map(piece).collect();
    let len = pieces.iter().map(|piece| piece.len).sum();
    Request::RegMr { pd, addr: 0, len, iova: 0, access: 1, pieces, replaces: None }
}

fn regions(attacker: &mut Attacker) -> Outcome {
    let mut client = attacker.context()?;
    let pd = attacker.handle(&mut client, &Request::AllocPd)?;
    let cq = attacker
        .handle(&mut client, &Request::CreateCq(CqInitAttr { entries: 16, channel: None, cookie: 0, vector: 0 }))?;
    let memory = memory(16 * PAGE);
    for _ in 0..ROUND {
        if attacker.ask(&mut client, &region(pd, 8), &[memory.as_fd()]).is_err() {
            break;
        }
    }
    for entries in [32, 64, 128] {
        attacker.ask(&mut client, &Request::ResizeCq { cq, entries }, &[])?;
        attacker.ask(&mut client, &Request::RetireCq { cq }, &[])?;
    }
    Ok(())
}

fn sparse(attacker: &mut Attacker) -> Outcome {
    let mut client = attacker.context()?;
    let pd = attacker.handle(&mut client, &Request::AllocPd)?;
    let file = memory(SPARSE);
    let pieces = vec![MrPiece { addr: 0, len: SPARSE, kind: MrPieceKind::Fd { fd: 0, offset: 0 } }];
    let request = Request::RegMr { pd, addr: 0, len: SPARSE, iova: 0, access: 1, pieces, replaces: None };
    for _ in 0..ROUND {
        if attacker.ask(&mut client, &request, &[file.as_fd()]).is_err() {
            break;
        }
    }
    // What was taken is held for a while, so that others find what is left.
    std::thread::sleep(Duration::from_millis(200));
    Ok(())
}

/// A socket whose close waits a minute for its peer, which is the second value.
fn lingering_socket() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    let (peer, _) = listener.accept()?;
    rustix::net::sockopt::set_socket_linger(&ours, Some(Duration::from_secs(60)))?;
    ours.set_nonblocking(true)?;
    while (&ours).write(&[0; 1 << 16]).is_ok() {}
    ours.set_nonblocking(false)?;
    Ok((ours, peer))
}

fn lingering(attacker: &mut Attacker) -> Outcome {
    let mut client = attacker.context()?;
    let pd = attacker.handle(&mut client, &Request::AllocPd)?;
    let Ok((socket, _peer)) = lingering_socket() else { return Ok(()) };
    let requests = [
        Request::AllocDm { len: PAGE },
        region(pd, 1),
        Request::OpenXrcd { with_file: true, flags: libc::O_CREAT },
        Request::DaemonInfo,
    ];
    for request in requests {
        // Refused; the daemon's copy of the descriptor is closed by a thread that may block.
        let _ = attacker.ask(&mut client, &request, &[socket.as_fd()]);
    }
    // Closing our own copy must not block either.
    rustix::net::sockopt::set_socket_linger(&socket, None).map_err(|e| ControlError::Malformed(e.to_string()))
}

fn open_domain(attacker: &mut Attacker, client: &mut Client) -> Result<u32, ControlError> {
    attacker.handle(client, &Request::OpenXrcd { with_file: false, flags: libc::O_CREAT })
}

fn xrc_holders(attacker: &mut Attacker) -> Outcome {
    let mut client = attacker.context()?;
    let xrcd = open_domain(attacker, &mut client)?;
    let target = attacker.ask(&mut client, &Request::CreateTarget { xrcd, event_cookie: 0 }, &[])?;
    let Response::Target { qpn, .. } = target.response else { return Ok(()) };
    for event_cookie in 0..u64::from(ROUND) {
        attacker.ask(&mut client, &Request::OpenQp { xrcd, qpn, event_cookie }, &[])?;
    }
    Ok(())
}

fn o_path(attacker: &mut Attacker) -> Outcome {
    let file = attacker.file.clone().expect("the kind o-path needs a file");
    let named = rustix::fs::open(&file, OFlags::PATH, Mode::empty()).expect("the file has a name");
    let mut client = attacker.context()?;
    for _ in 0..1000 {
        let opened = attacker.ask(&mut client, &Request::OpenXrcd { with_file: true, flags: 0 }, &[named.as_fd()]);
        assert!(opened.is_err(), "another user's domain was opened");
    }
    Ok(())
}

fn qkey(attacker: &mut Attacker) -> Outcome {
    let mut client = attacker.context()?;
    let pd = attacker.handle(&mut client, &Request::AllocPd)?;
    let cq = attacker
        .handle(&mut client, &Request::CreateCq(CqInitAttr { entries: 16, channel: None, cookie: 0, vector: 0 }))?;
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let init = QpInitAttr { pd, qp_type: QpType::Ud, send_cq: cq, recv_cq: cq, srq: None, cap };
    let made = attacker.ask(
        &mut client,
        &Request::CreateQp { init, names: vec![QpCookies { cookie: 0, event_cookie: 0 }] },
        &[],
    )?;
    let Response::Qps(made) = made.response else { return Ok(()) };
    let attr = QpAttr { qp_state: QpState::Init, port_num: 1, qkey: Qkey(0x8001_0000), ..Default::default() };
    let mask = attr_mask::STATE | attr_mask::PORT | attr_mask::PKEY_INDEX | attr_mask::QKEY;
    for _ in 0..1000 {
        let set = attacker.ask(&mut client, &Request::ModifyQp { qp: made[0].qp, attr, mask }, &[]);
        assert!(set.is_err(), "a privileged Q_Key was set");
    }
    Ok(())
}

fn objects(attacker: &mut Attacker) -> Outcome {
    let mut client = attacker.context()?;
    let pd = attacker.handle(&mut client, &Request::AllocPd)?;
    let mut kinds = vec![Request::AllocPd, Request::AllocMw { pd, mw_type: MwType::Two }];
    for _ in 0..ROUND {
        kinds.retain(|request| attacker.ask(&mut client, request, &[]).is_ok());
        if kinds.is_empty() {
            break;
        }
    }
    Ok(())
}

fn imports(attacker: &mut Attacker) -> Outcome {
    let (mut exporter, mut importer) = (attacker.context()?, attacker.context()?);
    let pd = attacker.handle(&mut exporter, &Request::AllocPd)?;
    let Response::Token(token) = attacker.ask(&mut exporter, &Request::Token, &[])?.response else { return Ok(()) };
    for _ in 0..ROUND {
        attacker.ask(&mut importer, &Request::Import { token, object: ImportObject::Pd(pd) }, &[])?;
    }
    Ok(())
}

fn connects(attacker: &mut Attacker) -> Outcome {
    attacker.connect().map(drop)
}

fn rubbish(attacker: &mut Attacker) -> Outcome {
    use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with};
    let rubbish = || -> rustix::io::Result<()> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(&attacker.socket)?)?;
        send(&socket, &[0xA5; 100], SendFlags::NOSIGNAL)?;
        Ok(())
    };
    // A full backlog of the socket and a closed connection are what this asks for.
    let _ = rubbish();
    Ok(())
}

fn idle(attacker: &mut Attacker) -> Outcome {
    let mut idle = Vec::new();
    while idle.len() < ROUND as usize {
        match attacker.connect() {
            Ok(client) => idle.push(client),
            Err(_) => break,
        }
    }
    println!("idle {}", idle.len());
    std::thread::sleep(Duration::from_secs(20));
    Ok(())
}

fn unread(attacker: &mut Attacker) -> Outcome {
    let mut client = attacker.connect()?;
    let channel = 1;
    attacker.ask(&mut client, &Request::CmChannel { channel }, &[])?;
    let dst = CmAddr { ip: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1, scope: 0 };
    for id in 1..ROUND {
        let commands = vec![
            CmCommand::Create { id, channel, ps: PortSpace::Tcp, qp_type: QpType::Rc },
            CmCommand::ResolveAddr { id, src: None, dst, timeout_ms: 1 },
        ];
        attacker.ask(&mut client, &Request::Cm { commands }, &[])?;
    }
    Ok(())
}

fn rings(attacker: &mut Attacker) -> Outcome {
    let mut with_rings = Vec::new();
    for _ in 0..ROUND {
        let mut client = attacker.connect()?;
        attacker.ask(&mut client, &Request::CmCommandRing, &[])?;
        with_rings.push(client);
    }
    Ok(())
}

fn starving(attacker: &mut Attacker) -> Outcome {
    let mut with_rings = Vec::new();
    for _ in 0..ROUND {
        let Ok(mut client) = attacker.connect() else { break };
        if attacker.ask(&mut client, &Request::CmCommandRing, &[]).is_err() {
            break;
        }
        with_rings.push(client);
    }
    println!("idle {}", with_rings.len());
    lingering(attacker)
}

/// A connection with an event channel.
fn with_channel(attacker: &mut Attacker) -> Result<Client, ControlError> {
    let mut client = attacker.connect()?;
    attacker.ask(&mut client, &Request::CmChannel { channel: 1 }, &[])?;
    Ok(client)
}

/// Creates an id that shares its address, and binds it. Whether that was done.
fn bind(attacker: &mut Attacker, client: &mut Client, id: u32, addr: CmAddr) -> Result<bool, ControlError> {
    let commands = vec![
        CmCommand::Create { id, channel: 1, ps: PortSpace::Tcp, qp_type: QpType::Rc },
        CmCommand::SetOption { id, option: CmIdOption::ReuseAddr(true) },
        CmCommand::Bind { id, addr },
    ];
    match attacker.ask(client, &Request::Cm { commands }, &[])?.response {
        Response::Cm(replies) => Ok(!matches!(replies.last(), Some(CmReply::Failed { .. }) | None)),
        other => Err(ControlError::Malformed(format!("commands: {other:?}"))),
    }
}

fn ports(attacker: &mut Attacker) -> Outcome {
    let mut client = with_channel(attacker)?;
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    for port in 1024..=u16::MAX {
        bind(attacker, &mut client, port.into(), CmAddr { ip: any, port, scope: 0 })?;
    }
    // Ports that the daemon chooses.
    for id in 0..ROUND {
        bind(attacker, &mut client, 1 << 17 | id, CmAddr { ip: any, port: 0, scope: 0 })?;
    }
    Ok(())
}

/// Holds and releases all its memory again and again.
fn holds(attacker: &mut Attacker) -> Outcome {
    let mut client = attacker.context()?;
    let pd = attacker.handle(&mut client, &Request::AllocPd)?;
    let region = Request::RegMr { pd, addr: 0, len: 0, iova: 0, access: 1, pieces: Vec::new(), replaces: None };
    let mut regions = 0;
    while attacker.ask(&mut client, &region, &[]).is_ok() {
        regions += 1;
    }
    println!("{regions} regions");
    for round in 0..ROUND {
        attacker.ask(&mut client, &Request::HoldMemory { hold: round % 2 == 0, in_place: round % 4 < 2 }, &[])?;
    }
    Ok(())
}

/// Listens, and looks at no request until it is killed.
fn listeners(attacker: &mut Attacker) -> Outcome {
    let mut client = with_channel(attacker)?;
    for (id, port) in (1..).zip(LISTENERS_FROM..LISTENERS_FROM + LISTENERS) {
        let addr = CmAddr { ip: IpAddr::V4(Ipv4Addr::UNSPECIFIED), port, scope: 0 };
        bind(attacker, &mut client, id, addr)?;
        let commands = vec![CmCommand::Listen { id, backlog: u32::MAX }];
        attacker.ask(&mut client, &Request::Cm { commands }, &[])?;
    }
    std::thread::sleep(Duration::from_secs(3600));
    Ok(())
}

/// Resizes a completion queue, and moves a listener from channel to channel.
fn stops(attacker: &mut Attacker) -> Outcome {
    const UNREAD: u32 = 20_000;
    const ENTRIES: u32 = 1 << 20;
    let mut client = attacker.context()?;
    for channel in [1, 2] {
        attacker.ask(&mut client, &Request::CmChannel { channel }, &[])?;
    }
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    bind(attacker, &mut client, 1, CmAddr { ip: any, port: 0, scope: 0 })?;
    attacker.ask(&mut client, &Request::Cm { commands: vec![CmCommand::Listen { id: 1, backlog: 1 }] }, &[])?;
    let dst = CmAddr { ip: IpAddr::V4(Ipv4Addr::LOCALHOST), port: 1, scope: 0 };
    for id in 2..UNREAD {
        let create = CmCommand::Create { id, channel: 1 + id % 2, ps: PortSpace::Tcp, qp_type: QpType::Rc };
        let resolve = CmCommand::ResolveAddr { id, src: None, dst, timeout_ms: 1 };
        attacker.ask(&mut client, &Request::Cm { commands: vec![create, resolve] }, &[])?;
    }
    let attr = CqInitAttr { entries: ENTRIES, channel: None, cookie: 0, vector: 0 };
    let cq = attacker.handle(&mut client, &Request::CreateCq(attr))?;
    for round in 0..ROUND {
        let commands = vec![CmCommand::Migrate { id: 1, channel: 1 + round % 2 }];
        attacker.ask(&mut client, &Request::Cm { commands }, &[])?;
        attacker.ask(&mut client, &Request::ResizeCq { cq, entries: ENTRIES >> (round % 2) }, &[])?;
        attacker.ask(&mut client, &Request::RetireCq { cq }, &[])?;
    }
    Ok(())
}

/// The addresses of the first device, IPv4 addresses mapped into IPv6.
fn own_addresses(attacker: &mut Attacker, client: &mut Client) -> Result<Vec<Ipv6Addr>, ControlError> {
    match attacker.ask(client, &Request::ListDevices, &[])?.response {
        Response::Devices(devices) => Ok(devices[0].gids.iter().map(|gid| Ipv6Addr::from(gid.gid)).collect()),
        other => Err(ControlError::Malformed(format!("devices: {other:?}"))),
    }
}

fn hijack(attacker: &mut Attacker) -> Outcome {
    let mut client = with_channel(attacker)?;
    let addresses = own_addresses(attacker, &mut client)?;
    let addresses = addresses.iter().filter_map(Ipv6Addr::to_ipv4_mapped).map(IpAddr::V4);
    for (id, ip) in (1..).zip(addresses.chain([IpAddr::V4(Ipv4Addr::UNSPECIFIED)])) {
        let taken = bind(attacker, &mut client, id, CmAddr { ip, port: BYSTANDERS_PORT, scope: 0 })?;
        // Between two of the bystander's programs the port is free, and another one may not listen on it.
        if taken {
            attacker.ask(&mut client, &Request::Cm { commands: vec![CmCommand::Destroy { id, read: 0 }] }, &[])?;
        }
    }
    Ok(())
}

fn large_files(attacker: &mut Attacker) -> Outcome {
    let mut client = attacker.context()?;
    let pd = attacker.handle(&mut client, &Request::AllocPd)?;
    let file = memory(LARGE);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, LARGE).map_err(|e| ControlError::Io(e.into()))?;
    let piece = MrPiece { addr: 0, len: PAGE, kind: MrPieceKind::Fd { fd: 0, offset: 0 } };
    let request = Request::RegMr { pd, addr: 0, len: PAGE, iova: 0, access: 1, pieces: vec![piece], replaces: None };
    let made = attacker.ask(&mut client, &request, &[file.as_fd()])?;
    drop(file);
    if let Response::Mr { mr, .. } = made.response {
        attacker.ask(&mut client, &Request::DeregMr { mr }, &[])?;
    }
    // The same in a request that is refused: the daemon has the descriptor alone.
    let file = memory(LARGE);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, LARGE).map_err(|e| ControlError::Io(e.into()))?;
    let _ = attacker.ask(&mut client, &Request::AllocDm { len: u64::MAX }, &[file.as_fd()]);
    Ok(())
}

fn groups(attacker: &mut Attacker) -> Outcome {
    let mut client = attacker.context()?;
    let pd = attacker.handle(&mut client, &Request::AllocPd)?;
    let cq = attacker
        .handle(&mut client, &Request::CreateCq(CqInitAttr { entries: 16, channel: None, cookie: 0, vector: 0 }))?;
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let init = QpInitAttr { pd, qp_type: QpType::Ud, send_cq: cq, recv_cq: cq, srq: None, cap };
    let gid = |last: u16| Ipv4Addr::from(0xef01_0000 | u32::from(last)).to_ipv6_mapped().octets();
    for number in 0..2048 {
        let names = vec![QpCookies { cookie: 0, event_cookie: 0 }];
        let made = attacker.ask(&mut client, &Request::CreateQp { init, names }, &[])?;
        let Response::Qps(made) = made.response else { return Ok(()) };
        for group in [0, number] {
            let _ = attacker.ask(&mut client, &Request::AttachMcast { qp: made[0].qp, gid: gid(group) }, &[]);
        }
    }
    Ok(())
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let known = || KINDS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" ");
    let (Some(kind), Some(socket)) = (words.first(), words.get(1)) else {
        panic!("usage: attack KIND SOCKET [FILE [ADDRESS]], with KIND one of: {}", known());
    };
    let Some((_, attack)) = KINDS.iter().find(|(name, _)| name == kind) else { panic!("KIND is one of: {}", known()) };
    let mut attacker = Attacker {
        socket: Path::new(socket).to_owned(),
        file: words.get(2).map(PathBuf::from),
        victim: words.get(3).map(|text| text.parse().expect("ADDRESS is one of IPv4")),
        refusals: HashSet::new(),
    };
    println!("attack {kind}");
    let mut rounds = 0u64;
    loop {
        // Every refusal was printed; the next round begins with a new connection.
        let _ = attack(&mut attacker);
        rounds += 1;
        if rounds.is_power_of_two() {
            println!("rounds {rounds}");
        }
    }
}
