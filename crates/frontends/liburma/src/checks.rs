//! Refusals that UMDK's library gives before it asks a device, so that unmodified programs meet the errors they know.
//!
//! One difference: UMDK's library offers order type OI in mode RM only, OT and OL in mode RC only. Here all three go with both
//! modes, as the transport does; `docs/urma.md` says so.

use crate::abi::{GroupCfg, JettyCfg, JfcCfg, JfrCfg, JfsCfg, RJetty, SegCfg};
use crate::device::{DEPTH_MAX, JFC_DEPTH_MAX, LOCAL_SGE_MAX, REMOTE_SGE_MAX};
use crate::log::because;
use burst_ubwire::ServiceMode;
use burst_urma::{TransMode, URMA_INLINE_MAX, UrmaError, access};

/// Modes.
pub const RM: u32 = 1;
pub const RC: u32 = 2;
pub const UM: u32 = 4;
/// Order types: the mode's default, target, initiator, lower layer, none.
const DEF: u32 = 0;
const OT: u32 = 1;
const OI: u32 = 2;
const OL: u32 = 3;
const NO: u32 = 4;
/// Types of transport channels for RM and RC, and for UM.
const RTP: u32 = 0;
const UTP: u32 = 2;
/// Causes of refusals.
const NO_MODE: &str = "the mode and the order type do not go together";
const NO_JFC: &str = "it has no JFC";
const DEPTH: &str = "the depth is 0, or larger than the device's";
const LOCAL_SGE: &str = "max_sge is larger than the device's";
/// A registration names a token id.
const TOKEN_ID_VALID: u32 = 1 << 13;

/// The order type, which DEF leaves to the mode.
const fn order_of(mode: u32, order: u32) -> u32 {
    match (mode, order & 0xff) {
        (RM, DEF) => OI,
        (RC, DEF) => OL,
        (UM, DEF) => NO,
        (_, order) => order,
    }
}

/// Order type of a sender.
pub const fn send_order(cfg: &JfsCfg) -> u32 {
    order_of(cfg.trans_mode, cfg.flag >> 3)
}

/// Order type of a remote Jetty's flag.
pub const fn remote_order(mode: u32, flag: u32) -> u32 {
    order_of(mode, flag >> 3)
}

const fn receive_order(cfg: &JfrCfg) -> u32 {
    order_of(cfg.trans_mode, cfg.flag >> 5)
}

/// What a mode and an order type mean on the wire.
const fn service_of(mode: u32, order: u32) -> Option<(TransMode, ServiceMode)> {
    let mode = match (mode, order) {
        (UM, NO) => return Some((TransMode::Um, ServiceMode::Uno)),
        (RM, _) => TransMode::Rm,
        (RC, _) => TransMode::Rc,
        _ => return None,
    };
    match order {
        OT => Some((mode, ServiceMode::Rot)),
        OI => Some((mode, ServiceMode::Roi)),
        OL => Some((mode, ServiceMode::Rol)),
        _ => None,
    }
}

/// Refuses values that are not good, and notes why.
fn check(is_good: bool, cause: &'static str) -> Result<(), UrmaError> {
    if is_good { Ok(()) } else { Err(because(UrmaError::Value, cause)) }
}

/// The token policy in the low three bits of a flag. Tokens travel as they are: a program that asks for more must not believe
/// that it gets it.
pub fn check_policy(flag: u32) -> Result<(), UrmaError> {
    let cause = match flag & 7 {
        0 | 1 => return Ok(()),
        2 => "token policy SIGNED is not offered: tokens are sent as plain text (PLAIN_TEXT)",
        3 => "token policy ALL_ENCRYPTED is not offered: tokens and data are sent as plain text (PLAIN_TEXT)",
        _ => "the token policy is unknown; NONE and PLAIN_TEXT are offered",
    };
    Err(because(UrmaError::Unsupported, cause))
}

pub fn check_jfc(cfg: &JfcCfg) -> Result<(), UrmaError> {
    check((1..=JFC_DEPTH_MAX).contains(&cfg.depth), "the depth is 0, or larger than the device's max_jfc_depth")
}

/// Mode and service of a JFS or Jetty.
pub fn check_send(cfg: &JfsCfg) -> Result<(TransMode, ServiceMode), UrmaError> {
    let service =
        service_of(cfg.trans_mode, send_order(cfg)).ok_or_else(|| because(UrmaError::Unsupported, NO_MODE))?;
    check(!cfg.jfc.is_null(), NO_JFC)?;
    check((1..=DEPTH_MAX).contains(&cfg.depth), DEPTH)?;
    check(cfg.max_inline as usize <= URMA_INLINE_MAX, "max_inline_data is larger than the device's")?;
    check(cfg.err_timeout <= 31, "err_timeout is larger than 31")?;
    check(u32::from(cfg.max_sge) <= LOCAL_SGE_MAX, LOCAL_SGE)?;
    check(u32::from(cfg.max_rsge) <= REMOTE_SGE_MAX, "max_rsge is larger than the device's")?;
    Ok(service)
}

pub fn check_receive(cfg: &JfrCfg) -> Result<(), UrmaError> {
    check_policy(cfg.flag)?;
    check(matches!(cfg.trans_mode, RM | RC | UM), NO_MODE)?;
    check(!cfg.jfc.is_null(), NO_JFC)?;
    check((1..=DEPTH_MAX).contains(&cfg.depth), DEPTH)?;
    check(u32::from(cfg.max_sge) <= LOCAL_SGE_MAX, LOCAL_SGE)
}

/// A Jetty shares its JFR's mode and order; a member of a group its token, too.
pub fn check_jetty(cfg: &JettyCfg, jfr: &JfrCfg, group: Option<&GroupCfg>) -> Result<(), UrmaError> {
    check(cfg.jfs.trans_mode == jfr.trans_mode, "its mode is not that of its JFR")?;
    check(send_order(&cfg.jfs) == receive_order(jfr), "its order type is not that of its JFR")?;
    let Some(group) = group else { return Ok(()) };
    check(jfr.trans_mode == RM, "members of a group have mode RM")?;
    check(group.token == jfr.token && group.flag & 7 == jfr.flag & 7, "its token is not that of its group")
}

/// A Jetty to be imported. Imports of JFRs are checked for their mode only.
pub fn check_remote(remote: &RJetty) -> Result<(), UrmaError> {
    if remote.kind == 0 {
        return check(matches!(remote.trans_mode, RM | RC | UM), NO_MODE);
    }
    check(service_of(remote.trans_mode, remote_order(remote.trans_mode, remote.flag)).is_some(), NO_MODE)?;
    let is_fit = remote.tp_type != if remote.trans_mode == UM { RTP } else { UTP };
    check(is_fit, "the type of transport channel does not go with the mode")
}

pub fn check_segment(cfg: &SegCfg) -> Result<(), UrmaError> {
    let rights = (cfg.flag >> 5 & 0x3f) as u8;
    let has = |bits: u8| rights & bits == bits;
    let is_remote = rights & (access::READ | access::WRITE | access::ATOMIC) != 0;
    check_policy(cfg.flag)?;
    check(cfg.va != 0 && cfg.len != 0, "the address or the length is 0")?;
    let is_named = (cfg.flag & TOKEN_ID_VALID != 0) != cfg.token_id.is_null();
    check(is_named, "token_id_valid says otherwise than the token id")?;
    check(!has(access::LOCAL_ONLY) || !is_remote, "LOCAL_ONLY excludes other rights")?;
    check(!has(access::WRITE) || has(access::READ), "WRITE needs READ")?;
    check(!has(access::ATOMIC) || has(access::READ | access::WRITE), "ATOMIC needs READ and WRITE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_and_the_order_type_must_fit() {
        for (mode, order, service) in [
            (RM, DEF, Some(ServiceMode::Roi)),
            (RM, OT, Some(ServiceMode::Rot)),
            (RM, OL, Some(ServiceMode::Rol)),
            (RM, NO, None),
            (RC, DEF, Some(ServiceMode::Rol)),
            (RC, OI, Some(ServiceMode::Roi)),
            (RC, NO, None),
            (RC, 5, None),
            (UM, DEF, Some(ServiceMode::Uno)),
            (UM, NO, Some(ServiceMode::Uno)),
            (UM, OT, None),
            (UM, OI, None),
            (UM, OL, None),
            (3, DEF, None),
        ] {
            assert_eq!(service_of(mode, order_of(mode, order)).map(|found| found.1), service, "{mode} {order}");
        }
    }
}
