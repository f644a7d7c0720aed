//! Explicit loads, stores and atomics (`include/burst_urma.h`): one packet asks, one answers, and the caller waits.

use crate::abi::{EAGAIN, EINVAL, EPERM, SUCCESS, Status, TargetSeg};
use crate::data::opcode_of;
use crate::host::UrmaHost;
use crate::macros::exported;
use crate::node::ProgramNode;
use crate::objects::{host_of, status_of};
use burst_client::raw::idle::{SendProgress, found, pause};
use burst_urma::{ACCESS_MAX, AccessKind, AccessOutcome, CrStatus, UrmaError};

/// The errno of an outcome.
pub const fn errno_of(status: CrStatus) -> Status {
    match status {
        CrStatus::Success => SUCCESS,
        CrStatus::RemAccessAbort => libc::EACCES,
        CrStatus::AckTimeout => libc::ETIMEDOUT,
        _ => libc::EIO,
    }
}

/// Makes an access and waits for its outcome.
///
/// # Safety
/// The segment is an imported one and alive.
unsafe fn access(seg: *mut TargetSeg, va: u64, kind: AccessKind) -> Result<AccessOutcome, Status> {
    // SAFETY: as the caller promises.
    let (host, segment): (&UrmaHost, u32) = unsafe { (host_of((*seg).ctx), (*seg).handle as u32) };
    let begun = {
        let mut inner = host.enter().ok_or(EPERM)?;
        if let ProgramNode::Daemon(daemon) = &mut inner.node {
            let outcome = daemon.access(segment, va, &kind).map_err(status_of)?;
            return if outcome.status == CrStatus::Success { Ok(outcome) } else { Err(errno_of(outcome.status)) };
        }
        let tag = inner.own().node.begin_access(segment, va, kind);
        host.flush(&mut inner);
        tag
    };
    let tag = begun.map_err(|error| if error == UrmaError::Full { EAGAIN } else { status_of(error) })?;
    loop {
        // A thread that has the node looks for packets itself.
        let outcome = host.try_lock().and_then(|mut inner| {
            let node = &mut inner.own().node;
            node.take_access(tag).or_else(|| {
                host.turn(&mut inner);
                inner.own().node.take_access(tag)
            })
        });
        match outcome {
            Some(outcome) if outcome.status == CrStatus::Success => {
                found();
                return Ok(outcome);
            }
            Some(outcome) => return Err(errno_of(outcome.status)),
            None => pause(false, SendProgress::default),
        };
    }
}

/// A length that fits an access.
fn short(len: u32) -> Result<u8, Status> {
    u8::try_from(len).ok().filter(|len| (1..=ACCESS_MAX).contains(&usize::from(*len))).ok_or(EINVAL)
}

fn status<T>(result: Result<T, Status>) -> Status {
    result.map_or_else(|status| status, |_| SUCCESS)
}

exported! {
    /// Reads 1 to 64 bytes of an imported segment.
    fn burst_urma_load(seg: *mut TargetSeg, va: u64, to: *mut u8, len: u32) -> Status {
        if seg.is_null() || to.is_null() {
            return EINVAL;
        }
        let loaded = short(len).and_then(|len| access(seg, va, AccessKind::Load { len }));
        status(loaded.map(|outcome| std::ptr::copy_nonoverlapping(outcome.bytes.as_ptr(), to, len as usize)))
    }
    /// Writes 1 to 64 bytes of an imported segment.
    fn burst_urma_store(seg: *mut TargetSeg, va: u64, from: *const u8, len: u32) -> Status {
        if seg.is_null() || from.is_null() {
            return EINVAL;
        }
        let mut bytes = [0; ACCESS_MAX];
        status(short(len).and_then(|short| {
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len as usize);
            access(seg, va, AccessKind::Store { len: short, bytes })
        }))
    }
    /// Changes eight aligned bytes of an imported segment.
    fn burst_urma_atomic(seg: *mut TargetSeg, va: u64, opcode: u32, operand: u64, swap: u64, old: *mut u64) -> Status {
        let Some(opcode) = opcode_of(opcode).filter(|opcode| opcode.is_atomic() && !seg.is_null()) else { return EINVAL };
        status(access(seg, va, AccessKind::Atomic { opcode, operand, swap }).map(|outcome| {
            if !old.is_null() {
                *old = outcome.value();
            }
        }))
    }
}
