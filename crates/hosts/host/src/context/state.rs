//! The tables of a context: which objects it has, and what each of them refers to.

mod hold;

use super::handles::HandleTable;
use super::urma::HostUrma;
use crate::authority::{Caller, ClientProcess};
use crate::host::Host;
use crate::id_allocator::IdAllocator;
use crate::refusal::{no_room, refuse, system};
use crate::reply::ReplyParts;
use burst_base::verbs::{EventType, QpType};
use burst_base::{DeviceId, Qpn};
use burst_control::events::{EventPipe, EventSink};
use burst_control::failures::FailedProgram;
use burst_control::{AsyncObject, Refusal, Response};
use burst_engine::WorkerTable;
use burst_engine::objects::{SrqShared, write_async};
use burst_engine::{ContextSlot, EngineCq, QpHolder};
use burst_ledger::{Charge, Resource};
use burst_mem::{ProcessMemory, Region};
use burst_shm::ShmRef;
use burst_shm::arena::Arena;
use burst_shm::doorbell::DoorbellDrain;
use burst_shm::layout::SEGMENT_BYTES;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What a step of a hold changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldPart {
    QueuePairs,
    Regions,
}

/// A hold, or its end, that has not reached all objects.
#[derive(Clone, Copy, Debug)]
pub(super) struct HoldProgress {
    pub(super) hold: bool,
    pub(super) part: HeldPart,
    /// Objects with smaller handles were reached.
    pub(super) from: u32,
}

/// Descriptors of a context beside one for each worker and those of the arena's segments: the event pipe, and the process's
/// memory.
const CONTEXT_DESCRIPTORS: u64 = 2;
/// Segments of which a context is charged for descriptors and mappings when it is opened; for address space, for one.
const SEGMENTS_MAX: u64 = 2;

/// An object and how many other objects refer to it.
pub(super) struct InUse<T> {
    /// How many objects refer to it.
    pub users: u32,
    /// The object.
    pub object: T,
}

impl<T> InUse<T> {
    /// An object that no other object refers to.
    pub fn new(object: T) -> InUse<T> {
        InUse { users: 0, object }
    }

    /// One more object refers to it.
    pub fn add_user(&mut self) {
        self.users += 1;
    }

    /// An object that referred to it has ended.
    pub fn remove_user(&mut self) {
        assert!(self.users > 0, "an object without users");
        self.users -= 1;
    }
}

/// A completion queue.
pub(super) struct HostCq {
    /// Its number in the workers' tables.
    pub number: u32,
    /// The worker of the queue pairs that receive into it; none is chosen before the first of them if its vector is 0.
    pub worker: Option<usize>,
    /// The part that workers share.
    pub shared: Arc<EngineCq>,
    /// Its ring in the arena.
    pub place: ShmRef,
    /// Rings from before a resize, which the program still reads.
    pub old: Vec<ShmRef>,
    /// The charges of its rings: of those before a resize, then of the present one.
    pub rings: Vec<Charge>,
    /// Handle of its completion channel.
    pub channel: Option<u32>,
}

/// A shared receive queue.
pub(super) struct HostSrq {
    /// The part that workers share.
    pub shared: Arc<SrqShared>,
    /// Its ring in the arena.
    pub place: ShmRef,
    /// The charge of the ring.
    pub ring: Charge,
    /// Handle of its protection domain.
    pub pd: u32,
    /// Its XRC domain, if it has one.
    pub domain: Option<SrqInDomain>,
}

/// A shared receive queue in an XRC domain.
pub(super) struct SrqInDomain {
    /// Number of the shared receive queue.
    pub srqn: u32,
    /// Handle of the XRC domain.
    pub xrcd: u32,
    /// Handle of the completion queue.
    pub cq: u32,
    /// What the number costs.
    pub _charge: Charge,
}

/// A queue pair.
pub(super) struct HostQp {
    /// Its number.
    pub qpn: Qpn,
    /// Its type.
    pub qp_type: QpType,
    /// Index of its worker.
    pub worker: usize,
    /// Number of its doorbell.
    pub doorbell: u32,
    /// Its queues in the arena; an XRC target has none.
    pub place: Option<ShmRef>,
    /// Handle of its protection domain.
    pub pd: u32,
    /// Handle of the completion queue of its send queue.
    pub send_cq: u32,
    /// Handle of the completion queue of its receive queue.
    pub recv_cq: u32,
    /// Handle of its shared receive queue.
    pub srq: Option<u32>,
    /// Handle of the XRC domain of an XRC target.
    pub xrcd: Option<u32>,
    /// XRC target: number of this hold.
    pub hold: u64,
    /// Multicast groups that it is attached to.
    pub groups: Vec<IpAddr>,
}

/// How the memory of a program is reached while it forks.
pub(super) enum MemoryFork {
    /// It does not fork.
    None,
    /// Its memory must not be accessed.
    Held,
    /// Its memory is reached in its process.
    InProcess(Arc<ProcessMemory>),
}

/// A memory region.
pub(super) struct HostMr {
    /// Its lkey and rkey, which are the same number.
    pub key: u32,
    /// Handle of its protection domain.
    pub pd: u32,
    /// The charge of its mappings in the daemon; `None`: it has none.
    pub mapping: Option<Charge>,
    /// The region. The workers' tables have another one with the same key while the program forks.
    pub region: Arc<Region>,
    /// Address of its first byte in the program.
    pub addr: u64,
    /// Whether unmapping it frees few pages, whoever has its file.
    pub is_small: bool,
}

impl HostMr {
    /// Whether its protection domain cannot end before it: a null region's can.
    pub fn holds_pd(&self) -> bool {
        self.mapping.is_some()
    }
}

/// A memory window.
pub(super) struct HostMw {
    /// Its key when it was allocated.
    pub key: u32,
    /// Handle of its protection domain.
    pub pd: u32,
}

/// An address handle.
pub(super) struct HostAh {
    /// Its number in the workers' tables.
    pub number: u32,
    /// Handle of its protection domain.
    pub pd: u32,
}

/// The objects of one `ibv_context`.
pub struct Context {
    pub(super) id: u32,
    pub(super) device: DeviceId,
    pub(super) caller: Caller,
    /// What the context itself costs.
    _charge: Charge,
    /// Memory of the process, opened when a region needs it.
    pub(super) memory: Option<Arc<ProcessMemory>>,
    /// Whether the program forks.
    pub(super) fork: MemoryFork,
    /// What of that is not in force yet.
    pub(super) holding: Option<HoldProgress>,
    pub(super) arena: Arena,
    /// The charges of the arena's segments.
    pub(super) segment_charges: Vec<Charge>,
    /// How many segments of the arena have a descriptor for the client.
    segments_shared: usize,
    /// Descriptors of segments that the client does not have yet: the next reply that may refer to them brings them.
    fresh_segments: Vec<OwnedFd>,
    pub(super) async_events: Arc<dyn EventSink>,
    pub(super) pds: HandleTable<InUse<u32>>,
    pub(super) mrs: HandleTable<HostMr>,
    pub(super) mws: HandleTable<HostMw>,
    pub(super) dms: HandleTable<()>,
    /// What its copier costs, if it has one.
    pub(super) copier: Option<Charge>,
    pub(super) channels: HandleTable<InUse<Arc<dyn EventSink>>>,
    pub(super) cqs: HandleTable<InUse<HostCq>>,
    pub(super) srqs: HandleTable<InUse<HostSrq>>,
    pub(super) xrcds: HandleTable<InUse<u32>>,
    pub(super) qps: HandleTable<HostQp>,
    /// How many of `qps` are target queue pairs that it opened.
    pub(super) targets_open: u32,
    pub(super) ahs: HandleTable<HostAh>,
    /// Its use of URMA.
    pub(super) urma: Option<HostUrma>,
    /// Doorbell numbers, by worker.
    pub(super) doorbells: Vec<IdAllocator>,
    /// Doorbells for which each worker has room.
    pub(super) doorbell_room: Vec<u32>,
}

impl Context {
    /// Opens a context on device number `device` for `caller`, whose program has this name.
    ///
    /// # Errors
    /// ENODEV: there is no such device. ENOMEM, EMFILE: resources are exhausted.
    pub fn open(host: &mut Host, device: u32, caller: Caller, program: &str) -> Result<(Context, ReplyParts), Refusal> {
        let Some(dev) = host.devices.get(device as usize) else {
            return refuse(libc::ENODEV, format!("there is no device {device}"));
        };
        let (device, info) = (dev.id, dev.info());
        let descriptors = CONTEXT_DESCRIPTORS + host.workers().len() as u64;
        let charge = caller.charge(&[(Resource::Context, 1), (Resource::Descriptor, descriptors)])?;
        let segments_charge = caller.charge(&[
            (Resource::Descriptor, SEGMENTS_MAX),
            (Resource::Mapping, SEGMENTS_MAX),
            (Resource::AddressSpace, SEGMENT_BYTES),
        ])?;
        let arena = Arena::new()
            .map_err(|e| Refusal { errno: libc::ENOMEM, sentence: format!("cannot make an arena: {e}") })?;
        let segments = segments_from(&arena, 0)?;
        let (pipe, events_fd) = EventPipe::new_editable().map_err(system("make the event pipe"))?;
        let async_events: Arc<dyn EventSink> = Arc::new(pipe);
        let mut fds = vec![status_fd(host)?, events_fd];
        let untrusted = !caller.account.is_privileged();
        let fills = untrusted.then(|| host.program_memory.of(caller.account.id()).allowance);
        let mut slots = Vec::new();
        for (index, worker) in host.workers().iter().enumerate() {
            let (wake, fd) = worker.lend_wake().map_err(system("make a wake descriptor"))?;
            fds.push(fd);
            let Some(doorbells) = DoorbellDrain::new(arena.context(), index) else { return no_room("worker") };
            let async_events = async_events.clone();
            let (account, fills, queues) = (caller.account.clone(), fills.clone(), Vec::new());
            let ClientProcess { pid, uid } = caller.process;
            let program = FailedProgram { name: program.into(), pid, uid };
            slots.push(ContextSlot { account, program, fills, doorbells, queues, async_events, wake: Some(wake) });
        }
        let workers = slots.len();
        host.make_room(WorkerTable::Contexts, "context")?;
        let Some(id) = host.contexts.take(&charge) else { return no_room("context") };
        host.context_users.insert(id, caller.process.uid);
        for (worker, slot) in slots.into_iter().enumerate() {
            host.on_worker(worker, move |w, _| w.add_context(id, slot));
        }
        let context = Context {
            id,
            device,
            caller,
            _charge: charge,
            memory: None,
            fork: MemoryFork::None,
            holding: None,
            arena,
            segment_charges: vec![segments_charge],
            segments_shared: segments.len(),
            fresh_segments: Vec::new(),
            async_events,
            pds: HandleTable::default(),
            mrs: HandleTable::default(),
            mws: HandleTable::default(),
            dms: HandleTable::default(),
            copier: None,
            channels: HandleTable::default(),
            cqs: HandleTable::default(),
            srqs: HandleTable::default(),
            xrcds: HandleTable::default(),
            qps: HandleTable::default(),
            targets_open: 0,
            ahs: HandleTable::default(),
            urma: None,
            doorbells: (0..workers).map(|_| IdAllocator::new(burst_shm::DOORBELL_QUEUES)).collect(),
            doorbell_room: vec![0; workers],
        };
        let response = Response::Context { workers: workers as u32, device: info };
        Ok((context, ReplyParts { response, fds, segments }))
    }

    /// Its number in the workers' tables.
    pub fn number(&self) -> u32 {
        self.id
    }

    /// This context as a holder of a queue pair whose asynchronous events carry `event_cookie`.
    pub(super) fn qp_holder(&self, event_cookie: u64) -> QpHolder {
        QpHolder { context: self.id, qpn: 0, async_events: self.async_events.clone(), event_cookie, hold: 0 }
    }

    /// How many queue pairs it has.
    pub fn queue_pairs(&self) -> usize {
        self.qps.len()
    }

    /// Its device.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Returns the memory of ended objects to the system.
    pub fn shrink(&self) {
        self.arena.trim();
    }

    /// Writes an asynchronous event.
    pub fn write_event(&self, event: EventType, object: AsyncObject, cookie: u64) {
        write_async(&*self.async_events, event, object, cookie);
    }

    /// A response, with the arena segments that the client does not have yet: the response may refer to them.
    pub(super) fn with_segments(&mut self, response: Response) -> ReplyParts {
        ReplyParts { response, fds: Vec::new(), segments: std::mem::take(&mut self.fresh_segments) }
    }

    /// Allocates room in the arena. The descriptors of new segments are made here, not for the reply: a request must fail before
    /// it changes anything.
    pub(super) fn room(&mut self, bytes: usize) -> Result<ShmRef, Refusal> {
        let full = |e| Refusal { errno: libc::ENOMEM, sentence: format!("the arena is full: {e}") };
        let growth = self.arena.growth(bytes).map_err(full)?;
        let charge = if growth > 0 { Some(self.charge_segment(growth)?) } else { None };
        let place = self.arena.alloc(bytes).map_err(full)?;
        let segments = segments_from(&self.arena, self.segments_shared).inspect_err(|_| {
            // With the segment, if one was added.
            if growth == 0 || !self.arena.withdraw(place) {
                self.arena.free(place);
            }
        })?;
        self.segment_charges.extend(charge);
        self.segments_shared += segments.len();
        self.fresh_segments.extend(segments);
        Ok(place)
    }

    /// Takes back room in the arena; false if it was not given out. A segment that was added for it, and that the client does
    /// not have yet, goes with it.
    pub(super) fn free_room(&mut self, place: ShmRef) -> bool {
        if self.fresh_segments.is_empty() || !self.arena.withdraw(place) {
            return self.arena.free(place);
        }
        self.fresh_segments.pop();
        self.segments_shared -= 1;
        self.segment_charges.pop();
        true
    }

    /// Charges a further segment of the arena, which stays until the context ends.
    fn charge_segment(&self, bytes: u64) -> Result<Charge, Refusal> {
        let more = u64::from(self.arena.segments() as u64 >= SEGMENTS_MAX);
        self.caller.charge(&[(Resource::AddressSpace, bytes), (Resource::Mapping, more), (Resource::Descriptor, more)])
    }

    /// Checks that the context may hold one more descriptor of the kinds that cost only a request.
    pub(super) fn check_descriptor_share(&self, host: &Host) -> Result<(), Refusal> {
        let held = self.channels.len() + self.dms.len() + self.xrcds.len();
        crate::descriptors::check_share(held, host.descriptors)
    }

    /// One more object refers to a protection domain.
    pub(super) fn use_pd(&mut self, pd: u32) {
        if let Some(p) = self.pds.get_mut(pd) {
            p.add_user();
        }
    }

    /// An object that referred to a protection domain has ended.
    pub(super) fn release_pd(&mut self, pd: u32) {
        if let Some(p) = self.pds.get_mut(pd) {
            p.remove_user();
        }
    }
}

/// Descriptors of the arena's segments from number `first` on.
fn segments_from(arena: &Arena, first: usize) -> Result<Vec<OwnedFd>, Refusal> {
    let fds = (first..arena.segments()).filter_map(|n| arena.segment_fd(n)).map(|fd| {
        burst_base::fault::check()?;
        fd.try_clone_to_owned()
    });
    fds.collect::<Result<Vec<_>, _>>().map_err(system("share an arena segment"))
}

/// A descriptor of the status page.
fn status_fd(host: &Host) -> Result<OwnedFd, Refusal> {
    burst_base::fault::check().map_err(system("share the status page"))?;
    let fd = host.status.fd().map(|fd| fd.try_clone_to_owned());
    fd.unwrap_or_else(|| Err(std::io::ErrorKind::NotFound.into())).map_err(system("share the status page"))
}
