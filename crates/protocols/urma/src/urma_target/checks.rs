//! Checks of a peer's request: its segment, the Jetty or JFR that it names, and their tokens. Then the place of its payload.
//!
//! Nothing is changed before all checks have passed, but the turn of a group's members and the receive that a message takes last.

use crate::api::{JettyState, JfrState, TargetKind, TransMode, URMA_MESSAGE_MAX, UrmaEnv, access};
use crate::objects::Objects;
use crate::objects::records::Jetty;
use crate::objects::segment_table::{PeerAccess, SegmentTable};
use crate::pool::PoolRef;
use crate::refusal::UrmaRefusal;
use crate::urma_target::message::{MessageOrigin, Placement};
use burst_base::Reason;
use burst_ubwire::{Maetah, Mtetah, NotifyTarget, ServiceMode, TaOpcode};

const UNKNOWN: UrmaRefusal = UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbUnknownTarget);

/// Where the payload of a SEND or WRITE goes. Takes a receive if one is used.
pub(crate) fn place_of(
    objects: &mut Objects,
    env: &mut UrmaEnv<'_>,
    origin: &MessageOrigin,
) -> Result<Placement, UrmaRefusal> {
    let opcode = origin.request.base.opcode;
    let mut placement = Placement::NONE;
    if opcode.has_memory() {
        let (memory, _) = check_memory(&objects.segments, origin, access::WRITE)?;
        placement.segment = objects.segments.hold(memory.token_id);
        (placement.addr, placement.limit) = (memory.addr, memory.len);
    }
    if opcode == TaOpcode::WriteNotify {
        check_notify(&objects.segments, origin)?;
    }
    if matches!(opcode, TaOpcode::Write | TaOpcode::WriteNotify) {
        return Ok(placement);
    }
    let (local, jfr) = check_target(objects, origin)?;
    (placement.local, placement.jfr) = (local, Some(jfr));
    let timer = objects.jfrs.get(jfr).map_or(0, |queue| queue.config.rnr_timer);
    let receive = objects.take_receive(jfr, env.fx).ok_or(UrmaRefusal::rnr(timer, Reason::UbNotReady))?;
    placement.receive = Some(receive);
    if !opcode.has_memory() {
        let range = receive.wr.range;
        (placement.segment, placement.addr, placement.limit) = (receive.segment, range.addr, range.len);
    }
    Ok(placement)
}

/// The segment of a request, checked, and its region.
pub(crate) fn check_memory(
    segments: &SegmentTable,
    origin: &MessageOrigin,
    right: u8,
) -> Result<(Maetah, u32), UrmaRefusal> {
    let missing = UrmaRefusal::error(UrmaRefusal::UNSUPPORTED, Reason::UbRefused);
    let memory = origin.request.memory.ok_or(missing)?;
    if memory.len > URMA_MESSAGE_MAX {
        return Err(UrmaRefusal::error(UrmaRefusal::LENGTH, Reason::UbLength));
    }
    let Maetah { addr, token_id, len } = memory;
    let region = segments.check(PeerAccess { token_id, token: origin.request.token, addr, len, right });
    Ok((memory, region.map_err(|reason| UrmaRefusal::error(UrmaRefusal::ACCESS, reason))?))
}

/// Where the data of a WRITE with notification go, checked: region, address and data.
fn check_notify(segments: &SegmentTable, origin: &MessageOrigin) -> Result<(u32, u64, [u8; 8]), UrmaRefusal> {
    let missing = UrmaRefusal::error(UrmaRefusal::UNSUPPORTED, Reason::UbRefused);
    let NotifyTarget { addr, token_id, token } = origin.request.notify.ok_or(missing)?;
    let region = segments.check(PeerAccess { token_id, token, addr, len: 8, right: access::WRITE });
    let region = region.map_err(|reason| UrmaRefusal::error(UrmaRefusal::ACCESS, reason))?;
    Ok((region, addr, origin.request.immediate.to_le_bytes()))
}

/// Writes the data of a WRITE with notification, behind all others.
pub(crate) fn notify(
    segments: &SegmentTable,
    env: &mut UrmaEnv<'_>,
    origin: &MessageOrigin,
) -> Result<(), UrmaRefusal> {
    if origin.request.base.opcode != TaOpcode::WriteNotify {
        return Ok(());
    }
    let (region, addr, data) = check_notify(segments, origin)?;
    env.mem.write(region, addr, &data).map_err(|_| UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbAccess))
}

/// The receive queue of the Jetty or JFR that a request names: what that is, its number, and the queue.
fn check_target(objects: &mut Objects, origin: &MessageOrigin) -> Result<((TargetKind, u32), PoolRef), UrmaRefusal> {
    let mut target = origin.request.target.ok_or(UNKNOWN)?;
    let mut group_token = None;
    if target.kind == Mtetah::GROUP {
        let (member, token) = objects.choose_member(target.id, target.hint).ok_or(UNKNOWN)?;
        group_token = Some(token);
        target = Mtetah { kind: Mtetah::JETTY, id: member, ..target };
    }
    let (kind, jfr, token, owner) = match target.kind {
        Mtetah::JFR => (TargetKind::Jfr, target.id, None, None),
        Mtetah::JETTY => {
            let jetty = objects.jetty(target.id).ok_or(UNKNOWN)?;
            let jfr = check_jetty(jetty, origin)?;
            (TargetKind::Jetty, jfr, jetty.config.token, Some(jetty.config.owner))
        }
        _ => return Err(UrmaRefusal::error(UrmaRefusal::UNSUPPORTED, Reason::UbUnknownTarget)),
    };
    let at = objects.jfr_ref(jfr).ok_or(UNKNOWN)?;
    let queue = objects.jfrs.get(at).filter(|queue| queue.state == JfrState::Ready).ok_or(UNKNOWN)?;
    let own = if kind == TargetKind::Jfr { queue.config.token } else { token };
    let needed = group_token.unwrap_or(own);
    // A WRITE with immediate carries the token of its segment, which was checked: it opens receives of the same program only.
    let is_owner = |memory: Maetah| owner.is_some() && objects.segments.owner(memory.token_id) == owner;
    let is_shown = needed.is_none() || origin.request.token == needed || origin.request.memory.is_some_and(is_owner);
    if is_shown { Ok(((kind, target.id), at)) } else { Err(UrmaRefusal::error(UrmaRefusal::ACCESS, Reason::UbToken)) }
}

/// The receive queue of a Jetty, if it takes messages of the sender of a request.
fn check_jetty(jetty: &Jetty, origin: &MessageOrigin) -> Result<u32, UrmaRefusal> {
    if !matches!(jetty.state, JettyState::Ready | JettyState::Suspended) {
        return Err(UNKNOWN);
    }
    let is_unreliable = origin.request.base.mode == ServiceMode::Uno;
    let is_peer = match jetty.config.mode {
        TransMode::Rc => jetty.bound.is_some_and(|b| (b.cna, b.id) == (origin.peer, origin.request.base.rc_id)),
        TransMode::Rm => !is_unreliable,
        TransMode::Um => is_unreliable,
    };
    if !is_peer {
        return Err(UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbRefused));
    }
    jetty.config.jfr.ok_or(UNKNOWN)
}
