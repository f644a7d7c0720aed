//! What a hostile program does by URMA.

use crate::{Attacker, Outcome, PAGE, ROUND, memory, own_addresses};
use burst_control::client::ClientReply;
use burst_control::urma_calls::{UrmaAnswer, UrmaCall, UrmaJettyAttr, UrmaPost};
use burst_control::{Client, ControlError, CqInitAttr, MrPiece, MrPieceKind, Request, Response};
use burst_shm::arena::Segment;
use burst_shm::doorbell::Doorbells;
use burst_shm::record_ring::RecordRingProducer;
use burst_shm::{Area, ContextPage};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Jetties of one program, and requests of each.
const JETTIES: u32 = 2000;
const REQUESTS: u32 = 500;
/// Guesses of one connection.
const GUESSES: u32 = 1 << 16;
/// Exponent of the longest silence before a request fails.
const LATEST: u8 = 31;

/// Where a program writes what it posts.
struct Posts {
    context: Arc<Segment>,
    ring: RecordRingProducer,
    doorbell: u32,
}

impl Posts {
    /// Of the context's first segment, and the answer to opening a node.
    fn new(segments: &[OwnedFd], opened: ClientReply) -> Option<Self> {
        let Response::UrmaOpened { doorbell, .. } = opened.response else { return None };
        let context = Arc::new(Segment::map(segments.first()?.try_clone().ok()?).ok()?);
        let ring = opened.fds.into_iter().next()?;
        Some(Self { context, ring: RecordRingProducer::new(Segment::map(ring).ok()?).ok()?, doorbell })
    }

    /// Posts a WRITE of a word without completion. Waits while the ring is full, a second at most; then it returns false.
    fn write(&mut self, jetty: u32, segment: u32, addr: u64) -> bool {
        let post = UrmaPost {
            kind: UrmaPost::SEND,
            opcode: 3,
            flags: UrmaPost::INLINE,
            hint: 0,
            inline_len: 8,
            order: 0,
            queue: jetty,
            target: 0,
            segment,
            token_id: 0,
            len: 8,
            notify_segment: 0,
            addr: 0,
            user_ctx: 0,
            remote_addr: addr,
            operand: 0,
            swap: 0,
            immediate: 0,
            notify_addr: 0,
        };
        for _ in 0..1000 {
            if self.ring.has_room(1) {
                self.ring.write(&[&post.to_bytes()[..], &[7; 8]].concat());
                if self.ring.post() {
                    let page = Area::new(&self.context, 0, size_of::<ContextPage>()).and_then(Doorbells::new);
                    page.iter().for_each(|bells| bells.ring(0, self.doorbell));
                }
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }
}

/// A connection with a node of URMA and a completion queue.
fn open(attacker: &mut Attacker) -> Result<(Client, u32, Option<Posts>), ControlError> {
    let mut client = attacker.connect()?;
    let mut segments = attacker.ask(&mut client, &Request::OpenContext { device: 0 }, &[])?.segments;
    let eid = own_addresses(attacker, &mut client)?.into_iter().find(|own| own.to_ipv4_mapped().is_some());
    let eid = eid.map_or([0; 16], |own| own.octets());
    let init = CqInitAttr { entries: 16, channel: None, cookie: 0, vector: 0 };
    let made = attacker.ask(&mut client, &Request::CreateCq(init), &[])?;
    let Response::Cq { cq, .. } = made.response else { return Err(ControlError::Malformed("no queue".into())) };
    segments.extend(made.segments);
    let opened = attacker.ask(&mut client, &Request::UrmaOpen { eid }, &[])?;
    let posts = Posts::new(&segments, opened);
    Ok((client, cq, posts))
}

/// A call of URMA. The number of the new object, if it was made.
fn call(attacker: &mut Attacker, client: &mut Client, asked: UrmaCall) -> Result<Option<u32>, ControlError> {
    match attacker.ask(client, &Request::UrmaCall(asked), &[])?.response {
        Response::UrmaDone(UrmaAnswer::Number(number)) => Ok(Some(number)),
        _ => Ok(None),
    }
}

pub(crate) fn objects(attacker: &mut Attacker) -> Outcome {
    let (mut client, cq, _) = open(attacker)?;
    let Some(jfc) = call(attacker, &mut client, UrmaCall::CreateJfc { cq })? else { return Ok(()) };
    let attr = UrmaJettyAttr { mode: 1, jfc, depth: 1 << 15, ..UrmaJettyAttr::default() };
    let mut kinds = vec![UrmaCall::CreateJetty(attr), UrmaCall::CreateJfc { cq }];
    for _ in 0..ROUND {
        kinds.retain(|asked| call(attacker, &mut client, asked.clone()).is_ok());
        if kinds.is_empty() {
            break;
        }
    }
    Ok(())
}

pub(crate) fn peers(attacker: &mut Attacker) -> Outcome {
    let (mut client, ..) = open(attacker)?;
    for host in 0..ROUND {
        let eid = Ipv4Addr::from(0x0b00_0000 | host).to_ipv6_mapped().octets();
        let import = UrmaCall::ImportJetty { eid, id: 1024, kind: 1, token: None };
        call(attacker, &mut client, import)?;
    }
    Ok(())
}

/// Imports from all networks' addresses that end like the victim's, and writes to each, for which the node opens a channel.
pub(crate) fn same_bits(attacker: &mut Attacker) -> Outcome {
    let (mut client, cq, posts) = open(attacker)?;
    let Some(mut posts) = posts else { return Ok(()) };
    let Some(jfc) = call(attacker, &mut client, UrmaCall::CreateJfc { cq })? else { return Ok(()) };
    let Some(jetty) = jetty(attacker, &mut client, jfc, 256)? else { return Ok(()) };
    let victim = u32::from(attacker.victim.expect("the kind urma-same-bits needs an address"));
    let mut made = 0;
    for network in 11..200 {
        let eid = Ipv4Addr::from(victim & 0x00ff_ffff | network << 24).to_ipv6_mapped().octets();
        let import = UrmaCall::ImportJetty { eid, id: 1024, kind: 1, token: None };
        let segment = UrmaCall::ImportSegment { eid, token_id: 0x10000, addr: 0, len: PAGE, token: Some(1) };
        made += u32::from(call(attacker, &mut client, import)?.is_some());
        if let Some(segment) = call(attacker, &mut client, segment)? {
            made += u32::from(posts.write(jetty, segment, 0));
        }
    }
    println!("idle {made} imports and requests");
    std::thread::sleep(Duration::from_millis(50));
    Ok(())
}

/// A Jetty with the longest error time-out.
fn jetty(attacker: &mut Attacker, client: &mut Client, jfc: u32, depth: u16) -> Result<Option<u32>, ControlError> {
    let attr = UrmaJettyAttr { mode: 1, jfc, depth, err_timeout: LATEST, rnr_retry: 7, ..UrmaJettyAttr::default() };
    call(attacker, client, UrmaCall::CreateJetty(attr))
}

pub(crate) fn silent(attacker: &mut Attacker) -> Outcome {
    let (mut client, cq, posts) = open(attacker)?;
    let Some(mut posts) = posts else { return Ok(()) };
    let Some(jfc) = call(attacker, &mut client, UrmaCall::CreateJfc { cq })? else { return Ok(()) };
    let eid = Ipv4Addr::new(11, 0, 0, 1).to_ipv6_mapped().octets();
    let import = UrmaCall::ImportSegment { eid, token_id: 0x10000, addr: 0, len: PAGE, token: None };
    let Some(segment) = call(attacker, &mut client, import)? else { return Ok(()) };
    let mut made = Vec::new();
    while made.len() < JETTIES as usize {
        match jetty(attacker, &mut client, jfc, REQUESTS as u16) {
            Ok(Some(number)) => made.push(number),
            _ => break,
        }
    }
    let posted = (0..REQUESTS).flat_map(|_| &made).take_while(|jetty| posts.write(**jetty, segment, 0)).count();
    println!("idle {} Jetties, {posted} requests", made.len());
    // They fail one after the other meanwhile.
    std::thread::sleep(Duration::from_secs(5));
    Ok(())
}

/// A victim: registers a segment without token that peers may write, prints "segment", its token id and address, and ends with
/// the word "written" if one has.
pub(crate) fn open_segment(attacker: &mut Attacker) -> Outcome {
    let (mut client, ..) = open(attacker)?;
    let pd = attacker.handle(&mut client, &Request::AllocPd)?;
    let file = memory(PAGE);
    let pieces = vec![MrPiece { addr: 0, len: PAGE, kind: MrPieceKind::Fd { fd: 0, offset: 0 } }];
    let region = Request::RegMr { pd, addr: 0, len: PAGE, iova: 0, access: 7, pieces, replaces: None };
    let Response::Mr { mr, .. } = attacker.ask(&mut client, &region, &[file.as_fd()])?.response else {
        return Err(ControlError::Malformed("no region".into()));
    };
    let segment = UrmaCall::RegisterSegment { mr, addr: 0, len: PAGE, token: None, access: 2 | 4 | 8 };
    let Some(token_id) = call(attacker, &mut client, segment)? else { return Ok(()) };
    println!("segment {token_id} 0");
    let mut bytes = [0; PAGE as usize];
    loop {
        let read = rustix::io::pread(&file, &mut bytes, 0).expect("own memory");
        if bytes[..read].iter().any(|byte| *byte != 0) {
            println!("written");
            std::process::exit(1);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn guesses(attacker: &mut Attacker) -> Outcome {
    let (mut client, cq, posts) = open(attacker)?;
    let Some(mut posts) = posts else { return Ok(()) };
    let Some(jfc) = call(attacker, &mut client, UrmaCall::CreateJfc { cq })? else { return Ok(()) };
    let eid = attacker.victim.expect("the kind urma-guesses needs an address").to_ipv6_mapped().octets();
    // An own region, so that there is memory to name.
    let pd = attacker.handle(&mut client, &Request::AllocPd)?;
    let pieces = vec![MrPiece { addr: 0, len: PAGE, kind: MrPieceKind::Fd { fd: 0, offset: 0 } }];
    let region = Request::RegMr { pd, addr: 0, len: PAGE, iova: 0, access: 1, pieces, replaces: None };
    attacker.ask(&mut client, &region, &[memory(PAGE).as_fd()])?;
    for guess in 0..GUESSES {
        // A failed request moves its Jetty to ERROR.
        let Some(jetty) = jetty(attacker, &mut client, jfc, 4)? else { return Ok(()) };
        let import = UrmaCall::ImportSegment { eid, token_id: 0x10000 + guess, addr: 0, len: PAGE, token: Some(guess) };
        let Some(segment) = call(attacker, &mut client, import)? else { return Ok(()) };
        if !posts.write(jetty, segment, 0) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_micros(200));
        call(attacker, &mut client, UrmaCall::DeleteJetty { jetty })?;
        call(attacker, &mut client, UrmaCall::UnimportSegment { segment })?;
    }
    Ok(())
}
