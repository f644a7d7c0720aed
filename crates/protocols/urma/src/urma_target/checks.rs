//! Checks of a peer's request: its segment, the Jetty or JFR that it names, and their tokens. Then the place of its payload.
//!
//! Nothing is changed before all checks have passed, but the turn of a group's members, the receive that a message takes last,
//! and the count of wrong tokens ([`crate::objects::guesses`]).

use crate::api::{JettyState, JfrState, TargetKind, TransMode, URMA_MESSAGE_MAX, UrmaEnv, access};
use crate::node_eid::NodeEid;
use crate::objects::Objects;
use crate::objects::guesses::{Guess, GuessedObject};
use crate::objects::records::{Jetty, Jfr};
use crate::objects::segment_table::{PeerAccess, SegmentTable};
use crate::pool::PoolRef;
use crate::refusal::UrmaRefusal;
use crate::urma_target::message::{MessageOrigin, Placement};
use burst_base::Reason;
use burst_ubwire::{Maetah, Mtetah, NotifyTarget, ServiceMode, TaOpcode, TaRequest};

const UNKNOWN: UrmaRefusal = UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbUnknownTarget);

/// Makes a check of tokens, unless the request's Jetty or host has shown too many wrong ones lately; counts a wrong one.
pub(crate) fn check_tokens<T>(
    objects: &mut Objects,
    env: &mut UrmaEnv<'_>,
    guess: impl FnOnce() -> Guess,
    check: impl FnOnce(&mut Objects, &mut UrmaEnv<'_>) -> Result<T, UrmaRefusal>,
) -> Result<T, UrmaRefusal> {
    let now = env.now;
    if objects.guesses.is_idle(now) {
        let result = check(objects, env);
        if matches!(result, Err(UrmaRefusal { reason: Reason::UbToken, .. })) {
            objects.guesses.note(&guess(), now);
        }
        return result;
    }
    let guess = guess();
    if objects.guesses.is_shut(&guess, now) {
        return Err(UrmaRefusal::error(UrmaRefusal::ACCESS, Reason::UbGuesses));
    }
    let result = check(objects, env);
    if matches!(result, Err(UrmaRefusal { reason: Reason::UbToken, .. })) {
        objects.guesses.note(&guess, now);
    }
    result
}

/// What a request guesses if its token is wrong.
pub(crate) fn guess_of(peer: NodeEid, request: &TaRequest, has_channel: bool) -> Guess {
    let object = match (request.memory, request.target) {
        (Some(memory), _) => GuessedObject::Segment(memory.token_id),
        (None, Some(target)) => GuessedObject::Target(target.kind, target.id),
        (None, None) => GuessedObject::Target(0, 0),
    };
    Guess { peer, rc_id: request.base.rc_id, object, has_channel }
}

/// Whether a request came by a channel: those of mode UM do not.
const fn has_channel(origin: &MessageOrigin) -> bool {
    !matches!(origin.request.base.mode, ServiceMode::Uno)
}

/// Where the payload of a SEND or WRITE goes. Takes a receive if one is used.
pub(crate) fn place_of(
    objects: &mut Objects,
    env: &mut UrmaEnv<'_>,
    origin: &MessageOrigin,
) -> Result<Placement, UrmaRefusal> {
    let guess = || guess_of(origin.peer, &origin.request, has_channel(origin));
    check_tokens(objects, env, guess, |objects, env| choose_place(objects, env, origin))
}

fn choose_place(
    objects: &mut Objects,
    env: &mut UrmaEnv<'_>,
    origin: &MessageOrigin,
) -> Result<Placement, UrmaRefusal> {
    let opcode = origin.request.base.opcode;
    let mut placement = Placement::NONE;
    if opcode.has_memory() {
        let memory = memory_of(&objects.segments, origin, access::WRITE)?;
        placement.segment = memory.segment;
        (placement.addr, placement.limit) = (memory.range.addr, memory.range.len);
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

/// The memory of a request, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckedMemory {
    pub(crate) range: Maetah,
    pub(crate) region: u32,
    /// The registration ([`SegmentTable::hold`]).
    pub(crate) segment: PoolRef,
}

/// The memory of a READ or atomic, checked.
pub(crate) fn check_memory(
    objects: &mut Objects,
    env: &mut UrmaEnv<'_>,
    origin: &MessageOrigin,
    right: u8,
) -> Result<CheckedMemory, UrmaRefusal> {
    let guess = || guess_of(origin.peer, &origin.request, has_channel(origin));
    check_tokens(objects, env, guess, |objects, _| memory_of(&objects.segments, origin, right))
}

fn memory_of(segments: &SegmentTable, origin: &MessageOrigin, right: u8) -> Result<CheckedMemory, UrmaRefusal> {
    let missing = UrmaRefusal::error(UrmaRefusal::UNSUPPORTED, Reason::UbRefused);
    let range = origin.request.memory.ok_or(missing)?;
    if range.len > URMA_MESSAGE_MAX {
        return Err(UrmaRefusal::error(UrmaRefusal::LENGTH, Reason::UbLength));
    }
    let Maetah { addr, token_id, len } = range;
    let token = origin.request.token;
    let access = PeerAccess { token_id, token, addr, len, right, has_channel: has_channel(origin) };
    let checked = segments.check_held(access).map_err(|reason| UrmaRefusal::error(UrmaRefusal::ACCESS, reason));
    let (region, segment) = checked?;
    Ok(CheckedMemory { range, region, segment })
}

/// Where the data of a WRITE with notification go, checked: region, address and data.
fn check_notify(segments: &SegmentTable, origin: &MessageOrigin) -> Result<(u32, u64, [u8; 8]), UrmaRefusal> {
    let missing = UrmaRefusal::error(UrmaRefusal::UNSUPPORTED, Reason::UbRefused);
    let NotifyTarget { addr, token_id, token } = origin.request.notify.ok_or(missing)?;
    let region = segments.check(PeerAccess {
        token_id,
        token,
        addr,
        len: 8,
        right: access::WRITE,
        has_channel: has_channel(origin),
    });
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
    let own = match kind {
        TargetKind::Jfr => check_jfr(queue, origin)?,
        _ => token,
    };
    let needed = group_token.unwrap_or(own);
    // A WRITE with immediate carries the token of its segment, which was checked: it opens receives of the same program only.
    let is_owner = |memory: Maetah| owner.is_some() && objects.segments.owner(memory.token_id) == owner;
    if is_token_shown(origin, needed) || origin.request.memory.is_some_and(is_owner) {
        Ok(((kind, target.id), at))
    } else {
        Err(UrmaRefusal::error(UrmaRefusal::ACCESS, Reason::UbToken))
    }
}

/// Whether a request shows the token that its target needs, if it needs one.
fn is_token_shown(origin: &MessageOrigin, needed: Option<u32>) -> bool {
    needed.is_none() || origin.request.token == needed
}

/// The token of a receive queue that a request names itself, if it takes messages of the request's mode.
const fn check_jfr(queue: &Jfr, origin: &MessageOrigin) -> Result<Option<u32>, UrmaRefusal> {
    if queue.config.is_unreliable == has_channel(origin) {
        return Err(UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbRefused));
    }
    Ok(queue.config.token)
}

/// The receive queue of a Jetty, if it takes messages of the sender of a request.
fn check_jetty(jetty: &Jetty, origin: &MessageOrigin) -> Result<u32, UrmaRefusal> {
    if !matches!(jetty.state, JettyState::Ready | JettyState::Suspended) {
        return Err(UNKNOWN);
    }
    let is_unreliable = origin.request.base.mode == ServiceMode::Uno;
    let is_peer = match jetty.config.mode {
        TransMode::Rc => {
            let bound = jetty.bound.map(|bound| (bound.eid, bound.id));
            !is_unreliable && bound == Some((origin.peer, origin.request.base.rc_id))
        }
        TransMode::Rm => !is_unreliable,
        TransMode::Um => is_unreliable,
    };
    if !is_peer {
        return Err(UrmaRefusal::error(UrmaRefusal::OPERATION, Reason::UbRefused));
    }
    jetty.config.jfr.ok_or(UNKNOWN)
}
