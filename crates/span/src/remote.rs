//! Another process's memory, by `process_vm_readv` and `process_vm_writev`.
//!
//! The kernel checks every address; a wrong one, or a vanished process, is an error and never a fault here. The
//! calls may move less than asked when a later page is unmapped: they are repeated for the rest, so that the end of
//! the mapped part shows as an error, and any shortfall is [`Gone`].

use crate::Gone;

/// Copies `dst.len()` bytes from `addr` of process `pid`.
pub(crate) fn read(pid: u32, addr: u64, dst: &mut [u8]) -> Result<(), Gone> {
    let mut done = 0;
    while done < dst.len() {
        let rest = &mut dst[done..];
        let here = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let there = libc::iovec { iov_base: at(addr, done)?, iov_len: rest.len() };
        // SAFETY: `here` is a live exclusive slice; `there` is only interpreted by the kernel in the other process.
        let moved = unsafe { libc::process_vm_readv(pid_of(pid)?, &here, 1, &there, 1, 0) };
        done += progress(moved)?;
    }
    Ok(())
}

/// Copies `src` to `addr` of process `pid`.
pub(crate) fn write(pid: u32, addr: u64, src: &[u8]) -> Result<(), Gone> {
    let mut done = 0;
    while done < src.len() {
        let rest = &src[done..];
        let here = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
        let there = libc::iovec { iov_base: at(addr, done)?, iov_len: rest.len() };
        // SAFETY: the kernel only reads `here`, a live slice; `there` is interpreted in the other process.
        let moved = unsafe { libc::process_vm_writev(pid_of(pid)?, &here, 1, &there, 1, 0) };
        done += progress(moved)?;
    }
    Ok(())
}

fn pid_of(pid: u32) -> Result<libc::pid_t, Gone> {
    libc::pid_t::try_from(pid).map_err(|_| Gone)
}

fn at(addr: u64, offset: usize) -> Result<*mut libc::c_void, Gone> {
    addr.checked_add(offset as u64).map(|a| a as *mut libc::c_void).ok_or(Gone)
}

/// Bytes moved by one call; none at all would repeat for ever.
fn progress(moved: isize) -> Result<usize, Gone> {
    usize::try_from(moved).ok().filter(|&n| n > 0).ok_or(Gone)
}
