//! Imports of objects of another context of this or another process, by their handles there.
//!
//! The importing context comes from `ibv_import_device` ([`crate::ops`]). An imported protection domain lives until neither
//! context uses it; the keys of an imported region are valid until the exporter deregisters it.

use crate::boundary::{self, EIO};
use crate::context::VerbsContext;
use crate::domain;
use crate::pd_mr::VerbsMr;
use crate::sys::*;
use burst_client::raw::Answer;
use burst_control::{ImportObject, Response};
use std::ptr::null_mut;

/// `ibv_import_pd`: imports a protection domain of the exporting context.
///
/// # Safety
/// `context` must come from `ibv_import_device`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    boundary::pointer(|| {
        // SAFETY: the caller gives an open context.
        let ours = unsafe { VerbsContext::from_ibv(context) }?;
        let (answer, _) = ours.import(ImportObject::Pd(handle))?;
        let Response::Imported { handle, .. } = answer.response else { return Err(EIO) };
        Ok(domain::new_pd(context, handle))
    })
}

/// `ibv_unimport_pd`: ends an import; the exporter's protection domain is unaffected.
///
/// # Safety
/// `pd` must come from `ibv_import_pd`; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: the caller's promise. A domain that is still in use stays: the function has no way to report an error.
    unsafe { domain::ibv_dealloc_pd(pd) };
}

/// `ibv_import_mr`: imports keys and length of a region of the exporting context.
///
/// # Safety
/// `pd` must come from `ibv_import_pd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    boundary::pointer(|| {
        // SAFETY: the caller gives a live PD.
        let (context, _) = unsafe { crate::pd_mr::pd_of(pd) }?;
        let (Answer { response, .. }, len) = context.import(ImportObject::Mr(handle))?;
        let Response::Imported { key, .. } = response else { return Err(EIO) };
        let base = ibv_mr {
            context: context.as_ibv(),
            pd,
            addr: null_mut(),
            length: usize::try_from(len).map_err(|_| EIO)?,
            handle,
            lkey: key,
            rkey: key,
        };
        Ok(Box::into_raw(Box::new(VerbsMr { base, access: 0, iova: 0, registration: None })).cast())
    })
}

/// `ibv_unimport_mr`: ends an import; the exporter's region is unaffected.
///
/// # Safety
/// `mr` must come from `ibv_import_mr`; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: the caller's promise.
    boundary::nothing(|| drop(unsafe { Box::from_raw(mr.cast::<VerbsMr>()) }));
}
