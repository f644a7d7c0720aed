//! `rdma_set_option`.

use crate::boundary::{self, EINVAL, Errno, Outcome, lock};
use crate::id::Id;
use crate::sys::*;
use burst_control::cm::{CmCommand, CmIdOption};
use std::ffi::{c_int, c_void};

/// Largest local ACK timeout code.
const TIMEOUT_CODE_MAX: u8 = 31;

/// Reads an option's value; its length must be the size of the type.
unsafe fn value<T: Copy>(at: *const c_void, len: usize) -> Outcome<T> {
    if at.is_null() || len != size_of::<T>() {
        return Err(EINVAL);
    }
    // SAFETY: the caller gives `len` readable bytes, and the types read here are plain numbers.
    Ok(unsafe { at.cast::<T>().read_unaligned() })
}

/// The command's form of an option; `None` for RDMA_OPTION_IB_PATH, which is no matter of the daemon.
unsafe fn option_of(level: c_int, name: c_int, at: *const c_void, len: usize) -> Outcome<Option<CmIdOption>> {
    const ID: c_int = RDMA_OPTION_ID as c_int;
    const IB: c_int = RDMA_OPTION_IB as c_int;
    // SAFETY: the caller's promise.
    unsafe {
        Ok(Some(match (level, name as u32) {
            (ID, RDMA_OPTION_ID_TOS) => CmIdOption::Tos(value(at, len)?),
            (ID, RDMA_OPTION_ID_REUSEADDR) => CmIdOption::ReuseAddr(value::<c_int>(at, len)? != 0),
            (ID, RDMA_OPTION_ID_AFONLY) => CmIdOption::AfOnly(value::<c_int>(at, len)? != 0),
            (ID, RDMA_OPTION_ID_ACK_TIMEOUT) => match value::<u8>(at, len)? {
                code @ 0..=TIMEOUT_CODE_MAX => CmIdOption::AckTimeout(code),
                _ => return Err(EINVAL),
            },
            // RDMA_OPTION_IB_PATH: IP routing determines paths; the program calls no rdma_resolve_route.
            (IB, RDMA_OPTION_IB_PATH) => return Ok(None),
            _ => return Err(Errno(libc::ENOSYS)),
        }))
    }
}

/// `rdma_set_option`.
///
/// # Safety
/// `id` must be alive, `at` have `len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    at: *mut c_void,
    len: usize,
) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        let (id, option) = unsafe { (Id::from_rdma(id)?, option_of(level, name, at, len)?) };
        match option {
            Some(option) => {
                id.ask(vec![CmCommand::SetOption { id: id.number, option }])?;
                if let CmIdOption::AckTimeout(code) = option {
                    lock(&id.known).ack_timeout = Some(code);
                }
                Ok(())
            }
            None => {
                id.steps.set_route();
                Ok(())
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(level: u32, name: u32, bytes: &[u8]) -> Outcome<Option<CmIdOption>> {
        // SAFETY: readable bytes.
        unsafe { option_of(level as c_int, name as c_int, bytes.as_ptr().cast(), bytes.len()) }
    }

    #[test]
    fn options_have_their_sizes() {
        assert_eq!(parse(0, RDMA_OPTION_ID_TOS, &[9]), Ok(Some(CmIdOption::Tos(9))));
        assert_eq!(parse(0, RDMA_OPTION_ID_TOS, &[9, 0]), Err(EINVAL));
        assert_eq!(parse(0, RDMA_OPTION_ID_AFONLY, &1i32.to_ne_bytes()), Ok(Some(CmIdOption::AfOnly(true))));
        assert_eq!(parse(0, RDMA_OPTION_ID_REUSEADDR, &[1]), Err(EINVAL));
        assert_eq!(parse(0, RDMA_OPTION_ID_ACK_TIMEOUT, &[31]), Ok(Some(CmIdOption::AckTimeout(31))));
        assert_eq!(parse(0, RDMA_OPTION_ID_ACK_TIMEOUT, &[32]), Err(EINVAL));
        assert_eq!(parse(1, RDMA_OPTION_IB_PATH, &[0; 72]), Ok(None));
        assert_eq!(parse(0, 99, &[0]), Err(Errno(libc::ENOSYS)));
    }
}
