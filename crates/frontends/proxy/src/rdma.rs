//! Safe types over the layer of `csrc/verbs.c`: event channel, listener, queue pairs, registered memory.
//!
//! A worker owns one [`Rdma`] and everything made from it; no object crosses threads after its creation. When the
//! device fails (Burst's daemon has ended, an adapter was removed), the worker drops all and begins again. Objects
//! end in the order queue pairs, regions, device.
#![allow(unsafe_code)]

use burst_relay::{BATCH_BYTES, SEAL_BYTES};
use rustix::net::SocketAddrAny;
use std::ffi::c_void;
use std::io::{Error, Result};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::rc::Rc;

/// Bytes of memory for a message: a batch, which may be encrypted.
const MESSAGE_SLOT: usize = (BATCH_BYTES + SEAL_BYTES).next_multiple_of(1024);
/// Work requests that may wait in a send queue.
pub const SENDS: u32 = 1024;
/// Completions taken at once.
pub const RECEIVES_POLLED: usize = 16;
/// Bytes of private data in a connection request.
pub const PRIVATE_BYTES: usize = 28;

#[repr(C)]
struct ShimEvent {
    kind: i32,
    status: i32,
    id: *mut c_void,
    listener: *mut c_void,
    private_len: u32,
    private_data: [u8; 56],
}

#[repr(C)]
struct ShimQp {
    id: *mut c_void,
    send_cq: *mut c_void,
    recv_cq: *mut c_void,
    recv_events: u32,
    send_events: u32,
}

/// One RDMA WRITE of a batch: the C structure.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// Address of the bytes here.
    pub local: u64,
    /// Address at the peer.
    pub remote: u64,
    /// Bytes.
    pub len: u32,
    /// Key here.
    pub lkey: u32,
    /// Key at the peer.
    pub rkey: u32,
}

/// A completion: the C structure.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// What the work request carried.
    pub id: u64,
    /// Bytes received.
    pub len: u32,
    /// `ibv_wc_status`; 0 is success.
    pub status: i32,
}

// SAFETY: the signatures are those of csrc/verbs.c.
unsafe extern "C" {
    fn bp_channel(fd: *mut i32) -> *mut c_void;
    fn bp_channel_destroy(channel: *mut c_void);
    fn bp_next_event(channel: *mut c_void, out: *mut ShimEvent) -> i32;
    fn bp_listen(channel: *mut c_void, address: *mut libc::sockaddr, port: *mut u16) -> *mut c_void;
    fn bp_dial(channel: *mut c_void, to: *mut libc::sockaddr, timeout_ms: i32) -> *mut c_void;
    fn bp_resolve_route(id: *mut c_void, timeout_ms: i32) -> i32;
    fn bp_reject(id: *mut c_void);
    fn bp_destroy_id(id: *mut c_void);
    fn bp_verbs(id: *mut c_void) -> *mut c_void;
    fn bp_pd(verbs: *mut c_void) -> *mut c_void;
    fn bp_pd_destroy(pd: *mut c_void);
    fn bp_completions(verbs: *mut c_void, fd: *mut i32) -> *mut c_void;
    fn bp_completions_destroy(channel: *mut c_void);
    fn bp_register(pd: *mut c_void, at: *mut c_void, len: usize, lkey: *mut u32, rkey: *mut u32) -> *mut c_void;
    fn bp_deregister(mr: *mut c_void);
    fn bp_qp(
        id: *mut c_void,
        pd: *mut c_void,
        completions: *mut c_void,
        context: *mut c_void,
        sends: u32,
        receives: u32,
    ) -> *mut ShimQp;
    fn bp_qp_destroy(qp: *mut ShimQp);
    fn bp_qp_unmake(qp: *mut ShimQp);
    fn bp_join(qp: *mut ShimQp, data: *const c_void, len: u8, accept: i32) -> i32;
    fn bp_post_recv(qp: *mut ShimQp, id: u64, address: u64, len: u32, lkey: u32) -> i32;
    fn bp_post_batch(qp: *mut ShimQp, writes: *const Write, count: u32, id: u64, at: u64, len: u32, lkey: u32) -> i32;
    fn bp_poll(qp: *mut ShimQp, receives: i32, out: *mut Done, most: i32) -> i32;
    fn bp_arm(qp: *mut ShimQp, receives: i32) -> i32;
    fn bp_completion_event(completions: *mut c_void, cq: *mut *mut c_void, context: *mut *mut c_void) -> i32;
    fn bp_taken(qp: *mut ShimQp, cq: *mut c_void);
}

fn check(result: i32) -> Result<i32> {
    if result < 0 { Err(Error::from_raw_os_error(-result)) } else { Ok(result) }
}

fn pointer(raw: *mut c_void) -> Result<NonNull<c_void>> {
    NonNull::new(raw).ok_or_else(Error::last_os_error)
}

/// What has happened to a connection identifier (`enum rdma_cm_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// `RDMA_CM_EVENT_ADDR_RESOLVED`
    AddressResolved,
    /// `RDMA_CM_EVENT_ROUTE_RESOLVED`
    RouteResolved,
    /// `RDMA_CM_EVENT_CONNECT_REQUEST`
    Request,
    /// `RDMA_CM_EVENT_ESTABLISHED`
    Established,
    /// Resolution, connection or device failed, or the peer disconnected; with the number of the event.
    Failed(i32),
    /// Nothing to do.
    Other,
}

/// An identifier of a connection, by address; compared, never followed outside this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CmId(NonNull<c_void>);

/// One event.
#[derive(Clone, Copy, Debug)]
pub struct RdmaEvent {
    /// What.
    pub kind: EventKind,
    /// To what.
    pub id: CmId,
    /// Of a request: what the peer sent.
    pub private: [u8; PRIVATE_BYTES],
}

/// An event channel with a listener, and the device once it is known.
#[derive(Debug)]
pub struct Rdma {
    channel: NonNull<c_void>,
    fd: RawFd,
    listener: Option<CmId>,
    /// Port of the listener.
    pub port: u16,
    device: Option<Rc<ProxyDevice>>,
}

impl Rdma {
    /// Listens at the address, port chosen by the system.
    ///
    /// # Errors
    /// Of `rdma_create_event_channel`, `rdma_bind_addr` or `rdma_listen`: no device there.
    pub fn listen(address: SocketAddr) -> Result<Self> {
        let mut fd = -1;
        // SAFETY: `fd` is valid for the call.
        let channel = pointer(unsafe { bp_channel(&raw mut fd) })?;
        let mut rdma = Self { channel, fd, listener: None, port: 0, device: None };
        let mut address = SocketAddrAny::from(address);
        // SAFETY: the channel lives, the address is a whole sockaddr_storage.
        let id = pointer(unsafe { bp_listen(channel.as_ptr(), address.as_mut_ptr().cast(), &raw mut rdma.port) })?;
        rdma.listener = Some(CmId(id));
        Ok(rdma)
    }

    /// Readable while there are events.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel keeps it open.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// The next event, if one waits.
    ///
    /// # Errors
    /// The channel has failed.
    pub fn next_event(&mut self) -> Result<Option<RdmaEvent>> {
        // SAFETY: all fields may be zero.
        let mut raw: ShimEvent = unsafe { std::mem::zeroed() };
        // SAFETY: the channel lives; `raw` is valid for the call.
        if check(unsafe { bp_next_event(self.channel.as_ptr(), &raw mut raw) })? == 0 {
            return Ok(None);
        }
        let kind = match raw.kind {
            0 => EventKind::AddressResolved,
            2 => EventKind::RouteResolved,
            4 => EventKind::Request,
            9 => EventKind::Established,
            1 | 3 | 5..=8 | 10 | 11 => EventKind::Failed(raw.kind),
            _ => EventKind::Other,
        };
        let mut private = [0; PRIVATE_BYTES];
        private.copy_from_slice(&raw.private_data[..PRIVATE_BYTES]);
        let id = NonNull::new(raw.id).map(CmId).ok_or_else(|| Error::other("an event without an id"))?;
        Ok(Some(RdmaEvent { kind, id, private }))
    }

    /// Begins to connect; `AddressResolved` or `Failed` follows.
    ///
    /// # Errors
    /// Of `rdma_create_id` or `rdma_resolve_addr`.
    pub fn dial(&mut self, to: SocketAddr) -> Result<CmId> {
        let mut to = SocketAddrAny::from(to);
        // SAFETY: as in `listen`.
        pointer(unsafe { bp_dial(self.channel.as_ptr(), to.as_mut_ptr().cast(), 2000) }).map(CmId)
    }

    /// The next step of connecting; `RouteResolved` or `Failed` follows.
    ///
    /// # Errors
    /// Of `rdma_resolve_route`.
    pub fn resolve_route(&mut self, id: CmId) -> Result<()> {
        // SAFETY: the id is one of this channel that was not destroyed: the caller forgets it before.
        check(unsafe { bp_resolve_route(id.0.as_ptr(), 2000) }).map(|_| ())
    }

    /// Refuses a request and ends its id.
    pub fn reject(&mut self, id: CmId) {
        // SAFETY: as in `resolve_route`.
        unsafe { bp_reject(id.0.as_ptr()) };
    }

    /// Ends an id that has no queue pair.
    pub fn destroy(&mut self, id: CmId) {
        // SAFETY: as in `resolve_route`.
        unsafe { bp_destroy_id(id.0.as_ptr()) };
    }

    /// The device of an id; the same for all ids until the worker begins again.
    ///
    /// # Errors
    /// Of `ibv_alloc_pd` or `ibv_create_comp_channel`; or the id belongs to another device than those before.
    pub fn device(&mut self, id: CmId) -> Result<Rc<ProxyDevice>> {
        // SAFETY: as in `resolve_route`.
        let verbs = pointer(unsafe { bp_verbs(id.0.as_ptr()) })?;
        if let Some(device) = &self.device {
            if device.verbs == verbs {
                return Ok(device.clone());
            }
            return Err(Error::other("the connection arrives at another RDMA device than the one in use"));
        }
        let mut fd = -1;
        // SAFETY: the context belongs to the id's device, which librdmacm keeps open.
        let pd = pointer(unsafe { bp_pd(verbs.as_ptr()) })?;
        // SAFETY: the same; `fd` is valid for the call.
        let completions = match pointer(unsafe { bp_completions(verbs.as_ptr(), &raw mut fd) }) {
            Ok(completions) => completions,
            Err(e) => {
                // SAFETY: nothing was made from this domain.
                unsafe { bp_pd_destroy(pd.as_ptr()) };
                return Err(e);
            }
        };
        let device = Rc::new(ProxyDevice { verbs, pd, completions, fd });
        self.device = Some(device.clone());
        Ok(device)
    }

    /// The device, if one is in use.
    pub fn known_device(&self) -> Option<Rc<ProxyDevice>> {
        self.device.clone()
    }

    /// Whether requests of this kind of fault mean that the device is gone.
    pub fn device_is_gone(kind: EventKind) -> bool {
        kind == EventKind::Failed(11)
    }
}

impl Drop for Rdma {
    fn drop(&mut self) {
        if let Some(id) = self.listener.take() {
            self.destroy(id);
        }
        // SAFETY: the caller has ended all ids of this channel.
        unsafe { bp_channel_destroy(self.channel.as_ptr()) };
    }
}

/// A protection domain and a completion channel of one device.
#[derive(Debug)]
pub struct ProxyDevice {
    verbs: NonNull<c_void>,
    pd: NonNull<c_void>,
    completions: NonNull<c_void>,
    fd: RawFd,
}

impl ProxyDevice {
    /// Readable while there are completion events.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel keeps it open.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// Takes one completion event; returns the context of its queue pair and the queue.
    ///
    /// # Errors
    /// The channel has failed.
    pub fn completion_event(&self) -> Result<Option<(usize, usize)>> {
        let (mut cq, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel lives; both pointers are valid for the call.
        let found = check(unsafe { bp_completion_event(self.completions.as_ptr(), &raw mut cq, &raw mut context) })?;
        Ok((found == 1).then_some((context as usize, cq as usize)))
    }
}

impl Drop for ProxyDevice {
    fn drop(&mut self) {
        // SAFETY: queue pairs and regions hold an Rc of this, so none is left.
        unsafe {
            bp_completions_destroy(self.completions.as_ptr());
            bp_pd_destroy(self.pd.as_ptr());
        }
    }
}

/// Anonymous memory, and its registration with a device.
#[derive(Debug)]
pub struct RegisteredMemory {
    base: NonNull<u8>,
    len: usize,
    registered: Option<Registered>,
}

#[derive(Debug)]
struct Registered {
    mr: NonNull<c_void>,
    lkey: u32,
    rkey: u32,
    device: Rc<ProxyDevice>,
}

impl RegisteredMemory {
    /// Maps `len` bytes; pages come when they are touched. Shared, not private, memory: Burst registers 16 MiB of it in 0.2 ms,
    /// and of private memory, whose pages it has to move, in 35 ms. To an adapter both are alike.
    ///
    /// # Errors
    /// Of `mmap`.
    pub fn map(len: usize) -> Result<Self> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let base = NonNull::new(at.cast()).ok_or_else(|| Error::other("mapped at 0"))?;
        Ok(Self { base, len, registered: None })
    }

    /// Registers the memory with the device, unless it is.
    ///
    /// # Errors
    /// Of `ibv_reg_mr`.
    pub fn register(&mut self, device: &Rc<ProxyDevice>) -> Result<()> {
        if self.registered.as_ref().is_some_and(|r| Rc::ptr_eq(&r.device, device)) {
            return Ok(());
        }
        self.deregister();
        let (mut lkey, mut rkey) = (0, 0);
        let (pd, base) = (device.pd.as_ptr(), self.base.as_ptr().cast());
        // SAFETY: the memory is mapped until this object ends, which ends the registration before.
        let mr = pointer(unsafe { bp_register(pd, base, self.len, &raw mut lkey, &raw mut rkey) })?;
        self.registered = Some(Registered { mr, lkey, rkey, device: device.clone() });
        Ok(())
    }

    /// Ends the registration.
    pub fn deregister(&mut self) {
        if let Some(old) = self.registered.take() {
            // SAFETY: it was registered once and is deregistered once.
            unsafe { bp_deregister(old.mr.as_ptr()) };
        }
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "memory is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Local and remote key; `None` without a registration.
    pub fn keys(&self) -> Option<(u32, u32)> {
        self.registered.as_ref().map(|r| (r.lkey, r.rkey))
    }

    /// Address of a byte.
    pub fn address(&self, at: usize) -> u64 {
        assert!(at <= self.len);
        self.base.as_ptr() as u64 + at as u64
    }

    /// Bytes of the memory. The peer may write into windows at any time; of what it wrote the protocol reads only
    /// what it has announced.
    pub fn bytes(&mut self, at: usize, len: usize) -> &mut [u8] {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "outside of the memory");
        // SAFETY: inside of the mapping (asserted); the exclusive borrow of `self` excludes other references of this
        // process. A device may write, as a kernel may into a mapped file: bytes have no invalid values, and none is
        // read twice for a decision.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(at), len) }
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        self.deregister();
        // SAFETY: mapped by `map` with this length, and nothing refers to it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A queue pair with its completion queues, and its receives.
#[derive(Debug)]
pub struct LinkQp {
    raw: NonNull<ShimQp>,
    // Before the device ends, the memory is deregistered.
    receives: RegisteredMemory,
    sends: RegisteredMemory,
    slots: u64,
    free: u32,
    /// The id ends with the queue pair.
    owns_id: bool,
    /// The queue of receives was asked for an event that has not come.
    armed: bool,
    _device: Rc<ProxyDevice>,
}

impl LinkQp {
    /// Makes a queue pair of an id and posts `slots` receives. It owns the id from then on. `context` comes back with
    /// completion events.
    ///
    /// # Errors
    /// Of the verbs; the id is left as it was.
    pub fn new(id: CmId, device: &Rc<ProxyDevice>, context: usize, slots: u64) -> Result<Self> {
        let mut receives = RegisteredMemory::map(slots as usize * MESSAGE_SLOT)?;
        receives.register(device)?;
        let mut sends = RegisteredMemory::map(slots as usize * MESSAGE_SLOT)?;
        sends.register(device)?;
        let (pd, completions) = (device.pd.as_ptr(), device.completions.as_ptr());
        // SAFETY: id, domain and channel live; `context` is a number for us.
        let raw = unsafe { bp_qp(id.0.as_ptr(), pd, completions, context as *mut c_void, SENDS, slots as u32) };
        let raw = NonNull::new(raw).ok_or_else(Error::last_os_error)?;
        let mut qp =
            Self { raw, receives, sends, slots, free: SENDS, owns_id: false, armed: true, _device: device.clone() };
        for slot in 0..slots {
            if let Err(e) = qp.post_receive(slot) {
                // The caller keeps the id.
                drop(qp);
                return Err(e);
            }
        }
        qp.owns_id = true;
        Ok(qp)
    }

    /// Its identifier.
    pub fn id(&self) -> CmId {
        // SAFETY: the structure lives as long as this object.
        CmId(NonNull::new(unsafe { (*self.raw.as_ptr()).id }).expect("a queue pair has an id"))
    }

    /// Connects (or accepts) with private data.
    ///
    /// # Errors
    /// Of `rdma_connect` or `rdma_accept`.
    pub fn join(&mut self, private: &[u8; PRIVATE_BYTES], accept: bool) -> Result<()> {
        // SAFETY: the queue pair lives, the bytes are valid for the call.
        check(unsafe { bp_join(self.raw.as_ptr(), private.as_ptr().cast(), PRIVATE_BYTES as u8, i32::from(accept)) })
            .map(|_| ())
    }

    fn post_receive(&mut self, slot: u64) -> Result<()> {
        let at = self.receives.address(slot as usize * MESSAGE_SLOT);
        let (lkey, _) = self.receives.keys().expect("registered when made");
        // SAFETY: the queue pair lives; the memory is registered and outlives it.
        check(unsafe { bp_post_recv(self.raw.as_ptr(), slot, at, MESSAGE_SLOT as u32, lkey) }).map(|_| ())
    }

    /// Whether a batch with the most writes fits into the send queue; takes completions of sends if needed. If not,
    /// the queue is armed.
    ///
    /// # Errors
    /// A send has failed.
    pub fn room(&mut self) -> Result<bool> {
        const NEED: u32 = 2 * burst_relay::PLACES as u32 + 1;
        if self.free >= NEED {
            return Ok(true);
        }
        self.reap()?;
        if self.free < NEED {
            // SAFETY: the queue pair lives.
            check(unsafe { bp_arm(self.raw.as_ptr(), 0) })?;
            self.reap()?;
        }
        Ok(self.free >= NEED)
    }

    fn reap(&mut self) -> Result<()> {
        let mut done = [Done::default(); 16];
        loop {
            // SAFETY: the queue pair lives; there are 16 places.
            let count = check(unsafe { bp_poll(self.raw.as_ptr(), 0, done.as_mut_ptr(), 16) })?;
            for one in &done[..count as usize] {
                failed(one.status)?;
                self.free += (one.id >> 32) as u32;
            }
            if count == 0 {
                return Ok(());
            }
        }
    }

    /// Posts the writes and then the message.
    ///
    /// # Errors
    /// Of `ibv_post_send`.
    pub fn send(&mut self, seq: u64, message: &[u8], writes: &[Write]) -> Result<()> {
        let slot = seq % self.slots;
        let at = slot as usize * MESSAGE_SLOT;
        self.sends.bytes(at, message.len()).copy_from_slice(message);
        let (lkey, _) = self.sends.keys().expect("registered when made");
        let requests = writes.len() as u32 + 1;
        let (address, len) = (self.sends.address(at), message.len() as u32);
        let id = u64::from(requests) << 32 | slot;
        // SAFETY: the queue pair lives; `writes` has that many entries, and their memory is checked by the device.
        check(unsafe {
            bp_post_batch(self.raw.as_ptr(), writes.as_ptr(), writes.len() as u32, id, address, len, lkey)
        })?;
        self.free -= requests;
        Ok(())
    }

    /// Takes completions of receives into `to`; returns how many.
    ///
    /// # Errors
    /// The completion queue has failed.
    pub fn poll_receives(&mut self, to: &mut [Done; RECEIVES_POLLED]) -> Result<usize> {
        // SAFETY: the queue pair lives; there are that many places.
        let count = check(unsafe { bp_poll(self.raw.as_ptr(), 1, to.as_mut_ptr(), RECEIVES_POLLED as i32) })?;
        Ok(count as usize)
    }

    /// Appends the message of a completion to `to` and posts its receive again.
    ///
    /// # Errors
    /// The queue pair has failed.
    pub fn receive(&mut self, done: Done, to: &mut Vec<u8>) -> Result<()> {
        failed(done.status)?;
        let at = done.id as usize * MESSAGE_SLOT;
        to.extend_from_slice(self.receives.bytes(at, (done.len as usize).min(MESSAGE_SLOT)));
        self.post_receive(done.id)
    }

    /// Asks for an event at the next completion of a receive. Poll once more afterwards.
    ///
    /// # Errors
    /// Of `ibv_req_notify_cq`.
    pub fn arm(&mut self) -> Result<()> {
        // SAFETY: the queue pair lives.
        check(unsafe { bp_arm(self.raw.as_ptr(), 1) })?;
        self.armed = true;
        Ok(())
    }

    /// Whether an event comes at the next completion of a receive.
    pub fn is_armed(&self) -> bool {
        self.armed
    }

    /// Notes that an event of one of its queues was taken.
    pub fn event_taken(&mut self, cq: usize) {
        // Perhaps of the other queue: then it is armed once more, which does no harm.
        self.armed = false;
        // SAFETY: the queue pair lives.
        unsafe { bp_taken(self.raw.as_ptr(), cq as *mut c_void) };
    }
}

fn failed(status: i32) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(Error::other(format!("a work request failed with status {status}"))) }
}

impl Drop for LinkQp {
    fn drop(&mut self) {
        // SAFETY: made by `bp_qp`, ended once; its memory ends afterwards, when the fields drop.
        unsafe { if self.owns_id { bp_qp_destroy(self.raw.as_ptr()) } else { bp_qp_unmake(self.raw.as_ptr()) } };
    }
}
