//! Registration of memory.
//!
//! A registration makes the program's pages reachable for the daemon ([`burst_mem::swap`]), sends it the descriptors, and keeps
//! what is needed to undo that. At deregistration the daemon unmaps the pages first; then they become private again.

use super::RawContext;
use crate::error::{ClientError, Result};
use crate::raw::copier::DeviceRegistration;
use burst_base::verbs::access;
use burst_control::{ControlError, MrPiece, MrPieceKind, Request, Response};
use burst_cuda::{CudaDriver, DeviceContext};
use burst_mem::swap::{self, PieceSource, Registration};
use std::os::fd::BorrowedFd;

/// Access bits for which the memory must be writable.
const WRITES: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_ATOMIC;

/// A range to register.
#[derive(Clone, Copy, Debug)]
pub struct MemoryRange {
    /// Address of the first byte.
    pub addr: usize,
    /// Length in bytes.
    pub len: usize,
    /// Address that work requests use for the first byte.
    pub iova: u64,
    /// `burst_base::verbs::access` bits.
    pub access: u32,
    /// Handle of the region whose keys and handle this one takes over (re-registration).
    pub replaces: Option<u32>,
}

/// A registration at the daemon.
#[derive(Debug)]
pub struct RawMr {
    /// The daemon's handle.
    pub handle: u32,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
    /// How the bytes are shared; `None` if the daemon reaches them by `/proc/PID/mem`.
    pub registration: Option<MemorySharing>,
}

/// How the bytes of a region are shared with the daemon.
#[derive(Debug)]
pub enum MemorySharing {
    /// As pages of a file.
    Pages(Box<Registration>),
    /// By copies that this process makes of the memory of a device.
    Device(DeviceRegistration),
}

/// Environment variable: with [`REGISTER_SHARED`] a host in this process maps registered memory a second time.
const REGISTER_ENV: &str = "BURST_REGISTER";
const REGISTER_SHARED: &str = "shared";

/// The pieces of a range, and the registration that holds them.
fn share(context: &RawContext, range: &MemoryRange) -> Result<(Vec<MrPiece>, Option<Registration>)> {
    // On demand: the host reaches the pages that the process has mapped there at the time.
    if range.len == 0 || range.access & access::ON_DEMAND != 0 {
        return Ok((Vec::new(), None));
    }
    let writes = range.access & WRITES != 0;
    if !context.is_in_process() {
        let registration = swap::register(range.addr, range.len, writes)?;
        return Ok((pieces_of(&registration), Some(registration)));
    }
    if std::env::var_os(REGISTER_ENV).is_some_and(|way| way == REGISTER_SHARED) {
        let registration = swap::register(range.addr, range.len, writes)?;
        // One piece of the process means "by its address" there; without pieces the kernel checks each access.
        let pieces = if registration.is_in_process() { Vec::new() } else { pieces_of(&registration) };
        return Ok((pieces, Some(registration)));
    }
    swap::check(range.addr, range.len, writes)?;
    let piece = MrPiece { addr: range.addr as u64, len: range.len as u64, kind: MrPieceKind::InProcess };
    Ok((vec![piece], None))
}

fn pieces_of(registration: &Registration) -> Vec<MrPiece> {
    let kind = |source: PieceSource| match source {
        PieceSource::Fd { fd, offset } => MrPieceKind::Fd { fd: fd as u32, offset },
        PieceSource::InProcess => MrPieceKind::InProcess,
    };
    let piece = |p: &swap::Piece| MrPiece { addr: p.addr as u64, len: p.len as u64, kind: kind(p.kind) };
    registration.pieces().iter().map(piece).collect()
}

/// Shares the pages of a range with the daemon and registers them there.
///
/// # Errors
/// EFAULT for a range that is not mapped, ENOMEM without memory to share it; else the daemon's refusal.
pub fn register(context: &RawContext, pd: u32, range: MemoryRange) -> Result<RawMr> {
    if let Some(driver) = CudaDriver::find()
        && let Some(device) = driver.device_context(range.addr as u64, range.len as u64)
    {
        driver.synchronize_copies(range.addr as u64);
        return register_device(context, pd, range, device);
    }
    let (pieces, registration) = share(context, &range)?;
    let spares_mappings = registration.as_ref().is_some_and(Registration::spares_mappings);
    match send(context, pd, range, (pieces, registration)) {
        // Perhaps the daemon cannot reach the memory in the process: then the process has more mappings.
        Err(_) if spares_mappings => {
            let writes = range.access & WRITES != 0;
            let registration = swap::register_swapped(range.addr, range.len, writes)?;
            send(context, pd, range, (pieces_of(&registration), Some(registration)))
        }
        answer => answer,
    }
}

/// Whether this process can copy for the memory of devices: it has loaded CUDA.
pub fn may_copy_for_devices() -> bool {
    CudaDriver::find().is_some()
}

/// Opens the context's copier for the memory of devices, if it has none yet.
///
/// # Errors
/// The daemon's refusal: EOPNOTSUPP where it allows no copiers.
pub fn open_copier(context: &RawContext) -> Result<()> {
    context.copier().map(drop)
}

/// Whether `len` bytes at `addr` are in the memory of a device.
pub fn is_on_device(addr: u64, len: u64) -> bool {
    CudaDriver::find().is_some_and(|driver| driver.device_context(addr, len).is_some())
}

/// Registers memory of a device, which this process copies for the daemon.
fn register_device(context: &RawContext, pd: u32, range: MemoryRange, device: DeviceContext) -> Result<RawMr> {
    let (addr, len) = (range.addr as u64, range.len as u64);
    // Before the daemon writes records for it.
    let registration = context.copier().map_err(unreachable_without_copier)?.add(addr, len, device);
    let piece = MrPiece { addr, len, kind: MrPieceKind::Device };
    match ask(context, pd, range, vec![piece], &[]) {
        Ok((handle, lkey, rkey)) => {
            Ok(RawMr { handle, lkey, rkey, registration: Some(MemorySharing::Device(registration)) })
        }
        Err(error) => {
            unshare(context, Some(MemorySharing::Device(registration)));
            Err(error)
        }
    }
}

/// Where the daemon allows no copiers, memory of a device is an address that is not mapped, as without CUDA; the daemon's
/// sentence stays.
fn unreachable_without_copier(error: ClientError) -> ClientError {
    match error {
        ClientError::Control(ControlError::Refused { errno: libc::EOPNOTSUPP, sentence }) => {
            ControlError::Refused { errno: libc::EFAULT, sentence }.into()
        }
        other => other,
    }
}

/// Asks the daemon for a region: its handle and keys.
fn ask(
    context: &RawContext,
    pd: u32,
    range: MemoryRange,
    pieces: Vec<MrPiece>,
    fds: &[BorrowedFd<'_>],
) -> Result<(u32, u32, u32)> {
    let MemoryRange { addr, len, iova, access, replaces } = range;
    let request = Request::RegMr { pd, addr: addr as u64, len: len as u64, iova, access, pieces, replaces };
    match context.call(&request, fds)?.response {
        Response::Mr { mr, lkey, rkey } => Ok((mr, lkey, rkey)),
        _ => Err(ClientError::Unexpected("no memory region")),
    }
}

/// Registers shared pages at the daemon; a refusal releases them.
fn send(
    context: &RawContext,
    pd: u32,
    range: MemoryRange,
    (pieces, registration): (Vec<MrPiece>, Option<Registration>),
) -> Result<RawMr> {
    let fds: Vec<BorrowedFd<'_>> =
        registration.as_ref().map(|r| (0..r.fds()).filter_map(|i| r.fd(i)).collect()).unwrap_or_default();
    let answer = ask(context, pd, range, pieces, &fds);
    drop(fds);
    match answer {
        Ok((handle, lkey, rkey)) => Ok(RawMr {
            handle,
            lkey,
            rkey,
            registration: registration.map(|pages| MemorySharing::Pages(Box::new(pages))),
        }),
        Err(error) => {
            registration.into_iter().for_each(swap::release);
            Err(error)
        }
    }
}

/// Makes the pages of a registration private again, after the daemon has unmapped them. In a child after fork the pages and
/// descriptors are copies that end with the process: nothing is done.
pub fn unshare(context: &RawContext, registration: Option<MemorySharing>) {
    match registration {
        Some(MemorySharing::Pages(pages)) if context.is_alive() => swap::release(*pages),
        Some(MemorySharing::Device(device)) if context.is_alive() => {
            // There is one: it was opened for this registration.
            if let Ok(copier) = context.copier() {
                copier.release(&device);
            }
        }
        other => std::mem::forget(other),
    }
}
