//! Memory regions, memory windows and device memory: a registration is checked, mapped, and added to every worker's table.

use super::state::{Context, HostMr, HostMw, MemoryFork};
use crate::device::DeviceObject;
use crate::exports::{ExportedDm, ExportedMr};
use crate::foreign::ForeignFds;
use crate::host::Host;
use crate::limits::LIMITS;
use crate::refusal::{busy, no_room, refuse, system, unknown};
use crate::reply::ReplyParts;
use burst_base::verbs::{MwType, access};
use burst_control::{ImportObject, MrPiece, MrPieceKind, Refusal, Response};
use burst_engine::copiers::{COPIER_BYTES, Copier};
use burst_ledger::{Charge, Resource};
use burst_mem::region::MapRefused;
use burst_mem::{DeviceNumber, MapPiece, Mapping, ProcessMemory, Region, Window};
use burst_shm::copy_ring::{COPY_RING_BYTES, CopyRingProducer};
use burst_transport::TRAIL_BYTES;
use std::sync::Arc;

/// The attributes of a registration (`ibv_reg_mr`), as the client sent them.
pub(super) struct MrRequest {
    /// Handle of the protection domain.
    pub pd: u32,
    /// First byte in the program's address space.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// First address that work requests use.
    pub iova: u64,
    /// Access rights: bits of `burst_base::verbs::access`.
    pub access: u32,
    /// The files that hold the memory, in order; none: the memory is reached through the process.
    pub pieces: Vec<MrPiece>,
    /// The descriptors that the pieces name.
    pub fds: ForeignFds,
}

impl MrRequest {
    /// Whether the daemon maps the memory.
    fn is_mapped(&self) -> bool {
        !self.pieces.is_empty() && self.pieces.iter().all(|p| matches!(p.kind, MrPieceKind::Fd { .. }))
    }

    /// Closes the descriptors whose memory a region has mapped: the mapping holds the files, so that this frees nothing. Returns
    /// whether all are small.
    fn close_mapped(&mut self, region: &Region) -> bool {
        let is_small = self.fds.are_small();
        if self.is_mapped() && matches!(region.mapping, Mapping::Local(_)) {
            for piece in &self.pieces {
                if let MrPieceKind::Fd { fd, .. } = piece.kind {
                    self.fds.close_memory(fd as usize);
                }
            }
        }
        is_small
    }
}

/// Rights that let a peer change the memory.
const REMOTE_WRITES: u32 = access::REMOTE_WRITE | access::REMOTE_ATOMIC;

/// Checks the rights and the range of a registration.
fn check(r: &MrRequest) -> Result<(), Refusal> {
    if r.access & REMOTE_WRITES != 0 && r.access & access::LOCAL_WRITE == 0 {
        return refuse(libc::EINVAL, "remote write and atomic access need IBV_ACCESS_LOCAL_WRITE too");
    }
    // An on-demand region may cover the whole address space: none of it is mapped here.
    let too_long = r.len > LIMITS.max_mr_size && r.access & access::ON_DEMAND == 0;
    if r.addr.checked_add(r.len).is_none() || r.iova.checked_add(r.len).is_none() || too_long {
        return refuse(libc::EINVAL, "the region is longer than an address space or max_mr_size");
    }
    Ok(())
}

/// Replaces regions in the workers' tables by others with the same keys. Other programs wait meanwhile: there are few.
pub(super) fn replace(host: &Host, regions: &[Arc<Region>]) {
    let regions: Arc<[Arc<Region>]> = regions.into();
    host.on_all(move |w| {
        for region in &*regions {
            w.remove_region(region.key);
            w.add_region(region.clone());
        }
    });
}

impl Context {
    /// Registers a memory region.
    pub(super) fn reg_mr(&mut self, host: &mut Host, mut r: MrRequest) -> Result<ReplyParts, Refusal> {
        let number = self.pd_number(r.pd)?;
        check(&r)?;
        let mapping = self.charge_mappings(&r)?;
        let charge = host.count_object(&self.caller, self.device, DeviceObject::Mr)?;
        let Some(key) = host.take_key(&charge) else {
            host.uncount_object(self.device, DeviceObject::Mr);
            return no_room("memory region");
        };
        let region = match self.region(host, &r, key, number) {
            Ok(region) => Arc::new(region),
            Err(refusal) => {
                host.put_key(key);
                host.uncount_object(self.device, DeviceObject::Mr);
                return Err(refusal);
            }
        };
        let shown = self.shown(&region, r.addr);
        host.on_all(move |w| w.add_region(shown.clone()));
        self.use_pd(r.pd);
        let is_small = r.close_mapped(&region);
        let mr =
            self.mrs.insert(HostMr { key, pd: r.pd, mapping: Some(mapping), region, addr: r.addr, is_small }, charge);
        host.exports.of(self.id).mrs.insert(mr, ExportedMr { key, len: r.len });
        Ok(Response::Mr { mr, lkey: key, rkey: key }.into())
    }

    /// Allocates a null memory region: no memory, for local use only.
    pub(super) fn alloc_null_mr(&mut self, host: &mut Host, pd: u32) -> Result<ReplyParts, Refusal> {
        let number = self.pd_number(pd)?;
        let charge = host.count_object(&self.caller, self.device, DeviceObject::Mr)?;
        let Some(key) = host.take_key(&charge) else {
            host.uncount_object(self.device, DeviceObject::Mr);
            return no_room("memory region");
        };
        let region = Arc::new(Region::null(key, number));
        let shown = region.clone();
        host.on_all(move |w| w.add_region(shown.clone()));
        // The domain does not know it, as with adapters, whose provider makes it of a key that the context has already: perftest
        // ends its domain first.
        let mr = self.mrs.insert(HostMr { key, pd, mapping: None, region, addr: 0, is_small: true }, charge);
        Ok(Response::Mr { mr, lkey: key, rkey: key }.into())
    }

    /// Replaces a region (`ibv_rereg_mr`). Its keys stay, and so do the windows that are bound to it.
    pub(super) fn rereg_mr(&mut self, host: &mut Host, mr: u32, mut r: MrRequest) -> Result<ReplyParts, Refusal> {
        let number = self.pd_number(r.pd)?;
        check(&r)?;
        let Some(old) = self.mrs.get(mr) else { return unknown("memory region", mr) };
        let (key, old_pd, held_pd, windows) = (old.key, old.pd, old.holds_pd(), old.region.windows.clone());
        let mapping = self.charge_mappings(&r)?;
        let region = self.region(host, &r, key, number)?.with_windows(windows);
        let region = Arc::new(region);
        replace(host, &[self.shown(&region, r.addr)]);
        self.use_pd(r.pd);
        if held_pd {
            self.release_pd(old_pd);
        }
        if let Some(object) = self.mrs.get_mut(mr) {
            let is_small = r.close_mapped(&region);
            let new = HostMr { key, pd: r.pd, mapping: Some(mapping), region, addr: r.addr, is_small };
            let old = std::mem::replace(object, new);
            self.unmap(host, old);
        }
        host.exports.of(self.id).mrs.insert(mr, ExportedMr { key, len: r.len });
        Ok(Response::Mr { mr, lkey: key, rkey: key }.into())
    }

    /// Ends the mapping of a region that no worker has any more. It may be the last reference to a program's file, whose pages
    /// the system frees then: a small file's here, a large one's in another thread.
    fn unmap(&self, host: &Host, old: HostMr) {
        let is_local = matches!(old.region.mapping, Mapping::Local(_));
        if is_local && !old.is_small && !self.caller.is_own {
            host.disposal.release(&self.caller.account, (old.mapping, old.region));
        }
    }

    /// The region that the workers see for `region`, whose first byte is at `addr` in the program.
    pub(super) fn shown(&self, region: &Arc<Region>, addr: u64) -> Arc<Region> {
        match (&self.fork, &region.mapping) {
            (MemoryFork::None, _) => region.clone(),
            (MemoryFork::InProcess(memory), Mapping::Local(_)) => Arc::new(region.forking(memory.clone(), addr)),
            (MemoryFork::InProcess(_), Mapping::InProcess { memory, addr }) => {
                Arc::new(region.forking(memory.clone(), *addr))
            }
            (MemoryFork::Held, Mapping::Local(_) | Mapping::InProcess { .. }) => Arc::new(region.held()),
            (MemoryFork::InProcess(_) | MemoryFork::Held, _) => region.clone(),
        }
    }

    /// Charges the mappings that a registration needs in the daemon: one for each piece, and one that reserves the addresses.
    /// Memory that is reached in its process needs none.
    fn charge_mappings(&self, r: &MrRequest) -> Result<Charge, Refusal> {
        let mappings = if r.is_mapped() { r.pieces.len() as u64 + 1 } else { 0 };
        self.caller.charge(&[(Resource::Mapping, mappings)])
    }

    fn region(&mut self, host: &mut Host, r: &MrRequest, key: u32, pd_number: u32) -> Result<Region, Refusal> {
        let mapping = self.map(host, r)?;
        let iova = if r.access & access::ZERO_BASED != 0 { 0 } else { r.iova };
        Ok(Region::new(key, pd_number, iova, r.len, r.access, mapping))
    }

    /// Maps the pieces, or opens the memory of the process; a region cannot consist of both.
    fn map(&mut self, host: &mut Host, r: &MrRequest) -> Result<Mapping, Refusal> {
        if self.caller.is_own
            && let [MrPiece { addr, len, kind: MrPieceKind::InProcess }] = r.pieces[..]
            && (addr, len) == (r.addr, r.len)
            && len > 0
        {
            // SAFETY: the promise of the caller of `Session::admit_own`.
            return Ok(unsafe { Region::own(addr, len) });
        }
        if r.pieces.iter().any(|p| p.kind == MrPieceKind::Device) {
            return self.device_memory(r);
        }
        if !r.is_mapped() {
            return self.in_process(host, r);
        }
        // The mapping must be as long as the region, so that every span of the region lies within the mapping.
        if r.pieces.iter().try_fold(0u64, |sum, p| sum.checked_add(p.len)) != Some(r.len) {
            return refuse(libc::EINVAL, "the pieces are not as long as the region");
        }
        let piece = |p: &MrPiece| match p.kind {
            MrPieceKind::Fd { fd, offset } => r.fds.get(fd as usize).map(|fd| MapPiece { fd, offset, len: p.len }),
            MrPieceKind::InProcess | MrPieceKind::Device => None,
        };
        let Some(pieces) = r.pieces.iter().map(piece).collect::<Option<Vec<_>>>() else {
            return refuse(libc::EINVAL, "a piece names a descriptor that was not sent");
        };
        let account = &self.caller.account;
        // Before the memory is mapped: for a moment it could be all that the daemon has.
        let bytes = match Region::mapped_bytes(&pieces) {
            Ok(bytes) => bytes,
            Err(why) => return refuse(libc::EINVAL, why.to_string()),
        };
        let charge = self.caller.charge(&[(Resource::AddressSpace, bytes)])?;
        let mapped = if account.is_privileged() {
            Region::map(&pieces, r.access)
        } else {
            Region::map_untrusted(&pieces, r.access, &host.program_memory.of(account.id()).allowance)
        };
        match mapped {
            Err(MapRefused::Unwatched) => self.in_process(host, r),
            Err(why) => refuse(libc::EINVAL, why.to_string()),
            Ok(mapping) => Ok(mapping.charged(charge)),
        }
    }

    /// The number of this context in spans of its device memory.
    fn device_number(&self) -> Result<DeviceNumber, Refusal> {
        DeviceNumber::new(self.id).map_or_else(|| no_room("copier"), Ok)
    }

    /// Opens the copier: a ring for each worker, whose segments go to the program.
    pub(super) fn open_copier(&mut self, host: &mut Host) -> Result<ReplyParts, Refusal> {
        if !host.has_copiers {
            return refuse(libc::EOPNOTSUPP, "memory of GPUs is not enabled: the key gpu is off (docs/gpu.md)");
        }
        if self.copier.is_some() {
            return refuse(libc::EEXIST, "this context has a copier already");
        }
        let (workers, number) = (host.workers().len(), self.device_number()?);
        let trails = (self.qps.len() * TRAIL_BYTES) as u64;
        let charge = self.caller.charge(&[
            (Resource::Descriptor, workers as u64),
            (Resource::Mapping, workers as u64),
            (Resource::AddressSpace, (workers * COPY_RING_BYTES) as u64),
            (Resource::QueueBytes, workers as u64 * COPIER_BYTES + trails),
        ])?;
        let (mut copiers, mut fds) = (Vec::new(), Vec::new());
        for _ in 0..workers {
            let (segment, ring) = CopyRingProducer::create().map_err(|why| Refusal {
                errno: libc::ENOMEM,
                sentence: format!("cannot make a ring for copies: {why}"),
            })?;
            let Some(fd) = segment.fd() else { return refuse(libc::EIO, "the ring for copies has no descriptor") };
            fds.push(fd.try_clone_to_owned().map_err(system("share the ring for copies"))?);
            let Ok(copier) = Copier::new(number, ring) else { return no_room("copier") };
            copiers.push(copier);
        }
        let context = self.id;
        // From now on it is charged, even if a worker has no memory: others have theirs.
        self.copier = Some(charge);
        for (worker, copier) in copiers.into_iter().enumerate() {
            if host.on_worker(worker, move |w, _| w.add_copier(context, copier)).is_err() {
                return no_room("copier");
            }
        }
        Ok(ReplyParts::with_fds(Response::Done, fds))
    }

    /// A region of device memory: one piece, for a program with a copier.
    fn device_memory(&self, r: &MrRequest) -> Result<Mapping, Refusal> {
        let [piece] = r.pieces[..] else {
            return refuse(libc::EINVAL, "a region of device memory has one piece");
        };
        debug_assert_eq!(piece.kind, MrPieceKind::Device, "the caller has looked");
        if self.copier.is_none() {
            return refuse(libc::EINVAL, "the program has no copier for the memory of its device");
        }
        if piece.len != r.len || piece.addr.checked_add(piece.len).is_none() {
            return refuse(libc::EINVAL, "the piece is not as long as the region");
        }
        Ok(Mapping::Device { copier: self.device_number()?, addr: piece.addr })
    }

    /// Opens the memory of the process. Only threads reach it, unless the account is trusted: a page may never come.
    fn open_memory(&self, host: &mut Host) -> std::io::Result<ProcessMemory> {
        let memory = self.caller.open_memory()?;
        let account = &self.caller.account;
        if account.is_privileged() {
            return Ok(memory);
        }
        memory.by_threads(&host.program_memory.of(account.id()).threads)
    }

    /// Reaches the memory through the process that sent the hello.
    fn in_process(&mut self, host: &mut Host, r: &MrRequest) -> Result<Mapping, Refusal> {
        if r.len == 0 {
            return Ok(Mapping::Nothing);
        }
        let memory = self.process_memory(host).map_err(system("reach its memory"))?;
        Ok(Region::in_process(memory, r.addr))
    }

    /// The memory of the process, opened when it is first needed.
    pub(super) fn process_memory(&mut self, host: &mut Host) -> std::io::Result<Arc<ProcessMemory>> {
        if let Some(memory) = &self.memory {
            return Ok(memory.clone());
        }
        let memory = Arc::new(self.open_memory(host)?);
        self.memory = Some(memory.clone());
        Ok(memory)
    }

    /// Records device memory, so that other contexts can import it.
    pub(super) fn alloc_dm(&mut self, host: &mut Host, len: u64, mut fds: ForeignFds) -> Result<ReplyParts, Refusal> {
        self.check_descriptor_share(host)?;
        let charge = self.caller.charge(&[(Resource::Dm, 1), (Resource::Descriptor, 1)])?;
        let (Some(fd), true) = (fds.take_memory(), len <= LIMITS.max_dm_size) else {
            return refuse(
                libc::EINVAL,
                "device memory is a memfd that is sealed against shrinking, of at most max_dm_size bytes",
            );
        };
        let dm = self.dms.insert((), charge);
        host.exports.of(self.id).dms.insert(dm, ExportedDm { fd: Arc::new(fd), len });
        Ok(Response::Handle(dm).into())
    }

    /// Ends device memory. Importers keep their descriptors.
    pub(super) fn free_dm(&mut self, host: &mut Host, dm: u32) -> Result<ReplyParts, Refusal> {
        if self.dms.remove(dm).is_none() {
            return unknown("device memory", dm);
        }
        host.exports.of(self.id).dms.remove(&dm);
        host.note_ended(1);
        Ok(Response::Done.into())
    }

    /// Imports an object of the context with this token.
    pub(super) fn import(&mut self, host: &mut Host, token: u64, object: ImportObject) -> Result<ReplyParts, Refusal> {
        let missing = || Refusal { errno: libc::EINVAL, sentence: format!("there is no {object:?} to import") };
        let owner = host.cm.context_of(token).ok_or_else(missing)?;
        let lent = host.exports.find(owner).ok_or_else(missing)?;
        match object {
            ImportObject::Pd(pd) => {
                let number = *lent.pds.get(&pd).ok_or_else(missing)?;
                let charge = host.charge_object(&self.caller, self.device, DeviceObject::Pd)?;
                let handle = self.hold_pd(host, number, charge);
                Ok(Response::Imported { handle, key: 0, len: 0 }.into())
            }
            ImportObject::Mr(mr) => {
                let ExportedMr { key, len } = *lent.mrs.get(&mr).ok_or_else(missing)?;
                Ok(Response::Imported { handle: mr, key, len }.into())
            }
            ImportObject::Dm(dm) => {
                let ExportedDm { fd, len } = lent.dms.get(&dm).ok_or_else(missing)?.clone();
                let fd = burst_base::fault::check()
                    .and_then(|()| fd.fd().try_clone_to_owned())
                    .map_err(system("share device memory"))?;
                let response = Response::Imported { handle: dm, key: 0, len };
                Ok(ReplyParts::with_fds(response, vec![fd]))
            }
        }
    }

    /// Deregisters a region. When this returns, no worker uses the memory.
    pub(super) fn dereg_mr(&mut self, host: &mut Host, mr: u32) -> Result<ReplyParts, Refusal> {
        if let segments @ 1.. = self.segments_of(mr) {
            return busy("memory region", segments);
        }
        if let Some(windows @ 1..) = self.mrs.get(mr).map(|mr| mr.region.windows()) {
            // As the kernel's soft-RoCE; IBA 10.6.7.2.6: the windows are closed first.
            return refuse(libc::EINVAL, format!("{windows} memory window(s) are bound to the memory region"));
        }
        self.remove_mr(host, mr)
    }

    /// Removes a region whatever is bound to it. When this returns, no worker uses the memory.
    pub(super) fn remove_mr(&mut self, host: &mut Host, mr: u32) -> Result<ReplyParts, Refusal> {
        let Some(old) = self.mrs.remove(mr) else { return unknown("memory region", mr) };
        let (key, pd, holds_pd) = (old.key, old.pd, old.holds_pd());
        host.on_all(move |w| w.remove_region(key));
        self.unmap(host, old);
        host.exports.of(self.id).mrs.remove(&mr);
        host.put_key(key);
        host.uncount_object(self.device, DeviceObject::Mr);
        if holds_pd {
            self.release_pd(pd);
        }
        Ok(Response::Done.into())
    }

    /// A protection domain ends: the keys of its null regions open nothing any more. The regions stay until they are
    /// deregistered.
    pub(super) fn close_null_regions(&self, host: &Host, pd: u32) {
        debug_assert!(self.pds.get(pd).is_some_and(|pd| pd.users == 0), "a domain that ends while it is used");
        for HostMr { key, .. } in self.mrs.values().filter(|mr| mr.pd == pd && !mr.holds_pd()) {
            let key = *key;
            host.on_all(move |w| w.remove_region(key));
        }
    }

    /// Allocates a memory window: an entry in every worker's table. The workers carry out binds.
    pub(super) fn alloc_mw(&mut self, host: &mut Host, pd: u32, mw_type: MwType) -> Result<ReplyParts, Refusal> {
        let number = self.pd_number(pd)?;
        let charge = host.count_object(&self.caller, self.device, DeviceObject::Mw)?;
        let Some(key) = host.take_key(&charge) else {
            host.uncount_object(self.device, DeviceObject::Mw);
            return no_room("memory window");
        };
        let window = Arc::new(Window::new(key, number, mw_type));
        host.on_all(move |w| w.add_window(window.clone()));
        self.use_pd(pd);
        let mw = self.mws.insert(HostMw { key, pd }, charge);
        Ok(Response::Mw { mw, rkey: key }.into())
    }

    /// Deallocates a memory window, bound or not.
    pub(super) fn dealloc_mw(&mut self, host: &mut Host, mw: u32) -> Result<ReplyParts, Refusal> {
        let Some(HostMw { key, pd }) = self.mws.remove(mw) else { return unknown("memory window", mw) };
        host.on_all(move |w| w.remove_window(key));
        host.put_key(key);
        host.uncount_object(self.device, DeviceObject::Mw);
        self.release_pd(pd);
        Ok(Response::Done.into())
    }
}
