//! Queue pairs: creation, attributes, destruction.
//!
//! The daemon has the state machine and its rules; the public field `state` follows the daemon's replies.

use crate::attr;
use crate::boundary::{self, EINVAL, EIO, EOPNOTSUPP, Outcome};
use crate::context::{EventSource, VerbsContext};
use crate::cq::VerbsCq;
use crate::meter::{EventCount, EventMeter};
use crate::pd_mr::pd_of;
use crate::qp_ex::{self, WrBatch, offered};
use crate::srq::VerbsSrq;
use crate::sys::*;
use crate::xrc::VerbsXrcd;
use burst_base::verbs::{QpAttr, QpCap, QpState, QpType, attr_mask, send_flags};
use burst_client::ClientError;
use burst_client::raw::cookies::NO_COOKIE;
use burst_client::raw::flush::{FlushCursor, FlushedQp};
use burst_client::raw::lock::{SpinLock, lock};
use burst_client::raw::prealloc::PreallocQp;
use burst_client::raw::queue::{QueueDoorbell, RawQp, SendQueue, create_qp};
use burst_control::{ControlError, QpCookies, QpInitAttr, Request, Response};
use burst_shm::rq::RqProducer;
use burst_shm::sq::SqProducer;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

/// Attribute mask bits that are known.
const KNOWN_ATTRS: u32 = (1 << 26) - 1;

/// A queue pair. It begins with the struct of the extended interface, so that `ibv_qp` and `ibv_qp_ex` can be cast into each
/// other; space follows for fields that newer headers append.
#[repr(C)]
pub struct VerbsQp {
    base: ibv_qp_ex,
    newer_operations: [usize; 8],
    cookie: u32,
    event_cookie: u64,
    /// Service type.
    pub qp_type: QpType,
    /// Send flags of every request: SIGNALED if `sq_sig_all` is set.
    pub always: u32,
    /// Set of opcodes whose requests are written in the short form ([`crate::post::short`]).
    pub short: u32,
    /// Whether the queue pair was created with the extended posting interface.
    extended: bool,
    cap: QpCap,
    /// Producer's end of the send queue.
    pub sq: SendQueue<WrBatch>,
    /// Producer's end of the receive queue; `None` with an SRQ.
    pub rq: Option<SpinLock<RqProducer>>,
    /// Asynchronous events.
    pub events: EventCount,
    /// A move to INIT that was not sent to the daemon yet: the attributes and their mask.
    deferred_init: SpinLock<Option<Box<(QpAttr, u32)>>>,
    /// How far the queues are flushed after the end of the daemon.
    pub flushed: SpinLock<FlushCursor>,
}

impl VerbsQp {
    /// The QP behind an application's pointer.
    ///
    /// # Safety
    /// `qp` must be NULL or alive.
    #[inline]
    pub unsafe fn from_ibv<'a>(qp: *mut ibv_qp) -> Outcome<&'a VerbsQp> {
        // SAFETY: `base` comes first, and `ibv_qp` is its prefix.
        unsafe { qp.cast::<VerbsQp>().as_ref() }.ok_or(EINVAL)
    }
    /// The pointer that applications hold.
    pub fn as_ibv(&self) -> *mut ibv_qp {
        std::ptr::from_ref(self).cast_mut().cast()
    }
    /// The context.
    ///
    /// # Safety
    /// The QP must be alive and its context open.
    #[inline]
    pub unsafe fn context<'a>(&self) -> Outcome<&'a VerbsContext> {
        // SAFETY: the caller's promise.
        unsafe { VerbsContext::from_ibv(self.base.qp_base.context) }
    }
    /// Cookie of its completions, and number.
    pub fn named(&self) -> FlushedQp {
        FlushedQp { cookie: self.cookie, qpn: self.base.qp_base.qp_num }
    }
    /// Cookie of its events.
    pub fn event_cookie(&self) -> u64 {
        self.event_cookie
    }
    /// The CQs of its sends and of its receives.
    ///
    /// # Safety
    /// The QP must be alive, and no XRC target.
    pub unsafe fn send_and_recv_cq<'a>(&self) -> Outcome<(&'a VerbsCq, &'a VerbsCq)> {
        // SAFETY: CQs outlive their queue pairs (EBUSY).
        unsafe { Ok((VerbsCq::from_ibv(self.base.qp_base.send_cq)?, VerbsCq::from_ibv(self.base.qp_base.recv_cq)?)) }
    }
    /// Whether receives come from a shared receive queue.
    pub fn uses_srq(&self) -> bool {
        !self.base.qp_base.srq.is_null()
    }
    /// Writes a state into the public struct.
    pub fn set_state(&self, state: u32) {
        // SAFETY: an aligned word of a live struct; concurrent readers are the application's own race.
        unsafe { (*self.as_ibv()).state = state };
    }
    fn handle(&self) -> u32 {
        self.base.qp_base.handle
    }
    /// State number in the public struct.
    #[inline]
    pub fn state(&self) -> u32 {
        self.base.qp_base.state
    }
    /// The count of acknowledged events.
    ///
    /// # Safety
    /// `qp` must be alive.
    pub unsafe fn meter(qp: *mut ibv_qp) -> EventMeter {
        // SAFETY: field addresses of a live struct.
        unsafe { EventMeter::new(&raw mut (*qp).mutex, &raw mut (*qp).cond, &raw mut (*qp).events_completed) }
    }
    /// Its CQs: one or two.
    unsafe fn cqs<'a>(&self) -> impl Iterator<Item = &'a VerbsCq> + use<'a> {
        let (send, recv) = (self.base.qp_base.send_cq, self.base.qp_base.recv_cq);
        let second = (recv != send).then_some(recv);
        // SAFETY: CQs outlive their queue pairs (EBUSY).
        [Some(send), second].into_iter().flatten().filter_map(|cq| unsafe { VerbsCq::from_ibv(cq) }.ok())
    }
    /// Moves the queue pair to INIT in this library, but not at the daemon before the next request for this queue pair: in both
    /// RESET and INIT it sends and receives nothing.
    pub fn defer_init(&self, attr: QpAttr, mask: u32) {
        *self.deferred_init.lock() = Some(Box::new((attr, mask)));
    }
    /// Sends a deferred move to INIT. Called before any other request for this queue pair.
    fn send_deferred_init(&self, context: &VerbsContext) -> Outcome<()> {
        let deferred = self.deferred_init.lock().take();
        deferred.map_or(Ok(()), |deferred| {
            Ok(context.send_without_reply(&Request::ModifyQpWithoutReply {
                qp: self.handle(),
                attr: deferred.0,
                mask: deferred.1,
            })?)
        })
    }
    /// Changes attributes without waiting for the daemon.
    pub fn modify_without_reply(&self, context: &VerbsContext, attr: QpAttr, mask: u32) -> Outcome<()> {
        self.send_deferred_init(context)?;
        Ok(context.send_without_reply(&Request::ModifyQpWithoutReply { qp: self.handle(), attr, mask })?)
    }
    /// Whether the queue pair cannot write to any memory of the program, whatever its peer sends: no request was ever posted, and
    /// no memory is registered. Then its destruction need not wait for the daemon.
    fn is_harmless(&self, context: &VerbsContext) -> bool {
        let received = self.rq.as_ref().is_none_or(|rq| rq.lock().written() != 0);
        !context.has_memory() && !received && self.qp_type != QpType::Ud && !self.sq.was_used()
    }
}

/// Fields of both creation structs.
struct QpArguments {
    qp_context: *mut c_void,
    send_cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    srq: *mut ibv_srq,
    cap: ibv_qp_cap,
    qp_type: ibv_qp_type,
    sq_sig_all: c_int,
    /// `send_ops_flags` of the extended posting interface; 0 without it.
    send_ops: u64,
}

fn service_of(qp_type: ibv_qp_type) -> Outcome<QpType> {
    // Raw packet and driver queue pairs are not supported.
    QpType::from_number(qp_type).ok_or(if (2..=10).contains(&qp_type) { EOPNOTSUPP } else { EINVAL })
}

/// Enters a queue pair into the table of objects that events refer to.
fn enter_source(context: &VerbsContext, event_cookie: u64, qp: *mut VerbsQp) {
    if let Some(qp) = NonNull::new(qp.cast()) {
        lock(&context.sources).put(event_cookie, EventSource::Qp(qp));
    }
}

/// The public struct of a new queue pair with this handle and number, in RESET.
fn public_part(
    context: &VerbsContext,
    pd: *mut ibv_pd,
    wanted: &QpArguments,
    (handle, qp_num): (u32, u32),
) -> ibv_qp_ex {
    let qp_base = ibv_qp {
        context: context.as_ibv(),
        qp_context: wanted.qp_context,
        pd,
        send_cq: wanted.send_cq,
        recv_cq: wanted.recv_cq,
        srq: wanted.srq,
        handle,
        qp_num,
        state: IBV_QPS_RESET,
        qp_type: wanted.qp_type,
        ..Default::default()
    };
    let mut base = ibv_qp_ex { qp_base, ..Default::default() };
    if wanted.send_ops != 0 {
        qp_ex::fill(&mut base);
    }
    base
}

unsafe fn create(pd: *mut ibv_pd, wanted: &mut QpArguments) -> Outcome<*mut ibv_qp> {
    let qp_type = service_of(wanted.qp_type)?;
    if qp_type == QpType::XrcRecv {
        // An XRC target is created in an XRC domain, not in a protection domain.
        return Err(EINVAL);
    }
    if qp_type == QpType::XrcSend {
        if !wanted.srq.is_null() {
            return Err(EINVAL);
        }
        // An XRC initiator has no receive queue.
        (wanted.recv_cq, wanted.cap.max_recv_wr, wanted.cap.max_recv_sge) = (wanted.send_cq, 0, 0);
    }
    // SAFETY: the caller gives live objects of one open context.
    let ((context, pd_handle), send_cq, recv_cq) =
        unsafe { (pd_of(pd)?, VerbsCq::from_ibv(wanted.send_cq)?, VerbsCq::from_ibv(wanted.recv_cq)?) };
    // SAFETY: as above; NULL is none.
    let srq = unsafe { VerbsSrq::from_ibv(wanted.srq) }.ok();
    if wanted.send_ops & !offered(qp_type) != 0 {
        return Err(EOPNOTSUPP);
    }
    let init = QpInitAttr {
        pd: pd_handle,
        qp_type,
        send_cq: send_cq.handle,
        recv_cq: recv_cq.handle,
        srq: srq.map(VerbsSrq::handle),
        cap: attr::cap_from_ibv(&wanted.cap),
    };
    let RawQp { made: PreallocQp { grant: granted, name }, sq, rq } = create_qp(context, &init)?;
    let QpCookies { cookie, event_cookie } = name;
    wanted.cap = attr::cap_to_ibv(&granted.cap);
    let base = public_part(context, pd, wanted, (granted.qp, granted.qpn));
    let qp = Box::into_raw(Box::new(VerbsQp {
        base,
        newer_operations: [0; 8],
        cookie,
        event_cookie,
        qp_type,
        always: if wanted.sq_sig_all != 0 { send_flags::SIGNALED } else { 0 },
        short: crate::post::short(qp_type),
        cap: granted.cap,
        sq: SendQueue::new(sq, QueueDoorbell { worker: granted.worker as usize, number: granted.doorbell }),
        extended: wanted.send_ops != 0,
        rq: rq.map(SpinLock::new),
        events: EventCount::default(),
        deferred_init: SpinLock::new(None),
        flushed: SpinLock::default(),
    }));
    // SAFETY: a fresh queue pair.
    unsafe { VerbsQp::meter(qp.cast()).init() };
    // SAFETY: the queue pair was just made; `ibv_destroy_qp` takes it out and passes through its completion queues' locks before
    // it frees it.
    unsafe { context.send_slots.put(cookie, NonNull::from(&(*qp).sq.slots)) };
    enter_source(context, event_cookie, qp);
    Ok(qp.cast())
}

/// `ibv_create_qp`: creates a queue pair in RESET and writes the granted capacities to `init`.
///
/// # Safety
/// `pd` must be alive and `init` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    boundary::pointer(|| {
        // SAFETY: the caller gives a valid struct.
        let init = unsafe { init.as_mut() }.ok_or(EINVAL)?;
        let mut wanted = QpArguments {
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all,
            send_ops: 0,
        };
        // SAFETY: the caller gives live objects.
        let qp = unsafe { create(pd, &mut wanted) }?;
        init.cap = wanted.cap;
        Ok(qp)
    })
}

/// `ibv_create_qp_ex`: reads only fields that `comp_mask` names, because the structs of older callers are shorter.
///
/// # Safety
/// `context` must be open and `init` valid up to the fields that its mask names.
pub unsafe extern "C" fn create_qp_ex(context: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    boundary::pointer(|| {
        if init.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller gives an open context; the fields up to `pd` exist in every layout of the struct, and
        // `create_flags` is read only if named.
        unsafe {
            VerbsContext::from_ibv(context)?;
            let mask = (*init).comp_mask;
            const KNOWN: u32 = IBV_QP_INIT_ATTR_PD
                | IBV_QP_INIT_ATTR_XRCD
                | IBV_QP_INIT_ATTR_CREATE_FLAGS
                | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            if mask & !KNOWN != 0 {
                return Err(EOPNOTSUPP);
            }
            if mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && (*init).create_flags != 0 {
                return Err(EOPNOTSUPP);
            }
            if service_of((*init).qp_type)? == QpType::XrcRecv {
                return create_target(context, init);
            }
            if mask & IBV_QP_INIT_ATTR_PD == 0 || mask & IBV_QP_INIT_ATTR_XRCD != 0 {
                return Err(EINVAL);
            }
            let mut wanted = QpArguments {
                qp_context: (*init).qp_context,
                send_cq: (*init).send_cq,
                recv_cq: (*init).recv_cq,
                srq: (*init).srq,
                cap: (*init).cap,
                qp_type: (*init).qp_type,
                sq_sig_all: (*init).sq_sig_all,
                send_ops: if mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0 { (*init).send_ops_flags } else { 0 },
            };
            let qp = create((*init).pd, &mut wanted)?;
            (*init).cap = wanted.cap;
            Ok(qp)
        }
    })
}

/// Makes the object of an XRC target that `request` creates or opens. Programs post nothing to it.
pub fn new_target(
    context: &VerbsContext,
    qp_context: *mut c_void,
    request: impl FnOnce(u64) -> Request,
) -> Outcome<*mut ibv_qp> {
    let event_cookie = context.event_cookie();
    let ring = SqProducer::detached().ok_or(boundary::ENOMEM)?;
    let Response::Target { qp: handle, qpn } = context.ask(&request(event_cookie))? else { return Err(EIO) };
    let Response::QpAttr(now) = context.ask(&Request::QueryQp { qp: handle })? else { return Err(EIO) };
    let qp_base = ibv_qp {
        context: context.as_ibv(),
        qp_context,
        handle,
        qp_num: qpn,
        state: now.qp_state as ibv_qp_state,
        qp_type: IBV_QPT_XRC_RECV,
        ..Default::default()
    };
    let qp = Box::into_raw(Box::new(VerbsQp {
        base: ibv_qp_ex { qp_base, ..Default::default() },
        newer_operations: [0; 8],
        cookie: NO_COOKIE,
        event_cookie,
        qp_type: QpType::XrcRecv,
        always: 0,
        short: 0,
        cap: QpCap::default(),
        sq: SendQueue::new(ring, QueueDoorbell::default()),
        extended: false,
        rq: None,
        events: EventCount::default(),
        deferred_init: SpinLock::new(None),
        flushed: SpinLock::default(),
    }));
    // SAFETY: a fresh queue pair.
    unsafe { VerbsQp::meter(qp.cast()).init() };
    enter_source(context, event_cookie, qp);
    Ok(qp.cast())
}

/// # Safety
/// `context` must be open and `init` valid up to the fields that its mask names.
unsafe fn create_target(context: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> Outcome<*mut ibv_qp> {
    // SAFETY: the caller's promise.
    let (context, xrcd, qp_context) = unsafe {
        let mask = (*init).comp_mask;
        if mask & IBV_QP_INIT_ATTR_XRCD == 0 {
            return Err(EINVAL);
        }
        if mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0 && (*init).send_ops_flags != 0 {
            return Err(EOPNOTSUPP);
        }
        (VerbsContext::from_ibv(context)?, VerbsXrcd::from_ibv((*init).xrcd)?.handle, (*init).qp_context)
    };
    new_target(context, qp_context, |event_cookie| Request::CreateTarget { xrcd, event_cookie })
}

/// `ibv_modify_qp`.
///
/// # Safety
/// `qp` must be alive and `attr` valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives a live queue pair and a valid struct.
        let (ours, given) = unsafe { (VerbsQp::from_ibv(qp)?, attr.as_ref().ok_or(EINVAL)?) };
        // SAFETY: as above.
        let context = unsafe { ours.context() }?;
        let mask = mask as u32;
        if mask & !KNOWN_ATTRS != 0 {
            return Err(EINVAL);
        }
        let attr = attr::qp_from_ibv(given, mask)?;
        ours.send_deferred_init(context)?;
        let request = Request::ModifyQp { qp: ours.handle(), attr, mask };
        let answer = match context.ask(&request) {
            // The queue pair is in ERR already: the library flushes it.
            Err(error)
                if mask & attr_mask::STATE != 0 && attr.qp_state == QpState::Err && has_ended(context, &error) =>
            {
                ours.set_state(IBV_QPS_ERR);
                return Ok(());
            }
            answer => answer?,
        };
        let Response::QpAttr(now) = answer else { return Err(EIO) };
        if mask & attr_mask::STATE != 0 {
            ours.set_state(now.qp_state as u32);
            if now.qp_state == QpState::Reset {
                forget_posted(ours);
            }
        }
        Ok(())
    })
}

/// Whether a call has failed because the daemon has ended.
fn has_ended(context: &VerbsContext, error: &ClientError) -> bool {
    matches!(error, ClientError::Control(ControlError::Closed | ControlError::Io(_))) && context.daemon_has_hung_up()
}

/// After a move to RESET: requests posted before do not complete, and completions that were not polled are removed.
fn forget_posted(qp: &VerbsQp) {
    // SAFETY: the queue pair's CQs are alive.
    for cq in unsafe { qp.cqs() } {
        cq.purge(qp.cookie);
    }
    qp.sq.free_all();
    if let Some(rq) = &qp.rq {
        qp.sq.slots.set_received(rq.lock().written());
    }
}

/// `ibv_query_qp`: gets all attributes, whatever the mask names. As in rdma-core, the public field `state` changes only if the
/// mask names it: programs compare it with the state that they set last.
///
/// # Safety
/// `qp` must be alive, `attr` and `init` writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives a live queue pair of an open context.
        let ours = unsafe { VerbsQp::from_ibv(qp) }?;
        // SAFETY: as above.
        let context = unsafe { ours.context() }?;
        ours.send_deferred_init(context)?;
        let mut now = match context.ask(&Request::QueryQp { qp: ours.handle() }) {
            Ok(Response::QpAttr(now)) => now,
            Ok(_) => return Err(EIO),
            Err(error) if has_ended(context, &error) => {
                QpAttr { qp_state: QpState::Err, cur_qp_state: QpState::Err, ..QpAttr::default() }
            }
            Err(error) => return Err(error.into()),
        };
        now.cap = ours.cap;
        // SAFETY: the queue pair is alive; the caller gives NULL or writable places.
        unsafe {
            if mask as u32 & attr_mask::STATE != 0 {
                ours.set_state(now.qp_state as u32);
            }
            if let Some(attr) = attr.as_mut() {
                *attr = attr::qp_to_ibv(&now);
            }
            if let Some(init) = init.as_mut() {
                let base = &ours.base.qp_base;
                *init = ibv_qp_init_attr {
                    qp_context: base.qp_context,
                    send_cq: base.send_cq,
                    recv_cq: base.recv_cq,
                    srq: base.srq,
                    cap: attr::cap_to_ibv(&ours.cap),
                    qp_type: base.qp_type,
                    sq_sig_all: (ours.always != 0).into(),
                };
            }
        }
        Ok(())
    })
}

/// `ibv_destroy_qp`: waits until its events are acknowledged, and removes its completions from the CQs.
///
/// # Safety
/// `qp` must be alive; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    boundary::value(|| {
        // SAFETY: the caller gives a live queue pair of an open context.
        let ours = unsafe { VerbsQp::from_ibv(qp) }?;
        // SAFETY: as above.
        let context = unsafe { VerbsContext::even_dead(ours.base.qp_base.context) }?;
        if context.is_alive() && ours.is_harmless(context) {
            // A failure means that the daemon has ended, and the queue pair with it.
            let _ = context.send_without_reply(&Request::DropQps { qps: vec![ours.handle()] });
        } else {
            context.end_object(&Request::DestroyQp { qp: ours.handle() })?;
            if context.is_alive() {
                context.forget_async_events(ours.event_cookie);
            }
        }
        if context.is_alive() {
            lock(&context.sources).remove(ours.event_cookie);
            if ours.cookie != NO_COOKIE {
                context.send_slots.remove(ours.cookie);
            }
            // Each purge takes the CQ's lock: afterwards no poller uses the queue pair.
            // SAFETY: the queue pair's CQs are alive.
            for cq in unsafe { ours.cqs() } {
                cq.purge(ours.cookie);
            }
            // SAFETY: the queue pair is alive and has left the table.
            unsafe { VerbsQp::meter(qp).wait(&ours.events) };
        }
        // SAFETY: made by `Box::into_raw`, and the caller gives it up.
        drop(unsafe { Box::from_raw(qp.cast::<VerbsQp>()) });
        Ok(())
    })
}

/// `ibv_qp_to_qp_ex`: only for a queue pair that was created with the extended posting interface.
///
/// # Safety
/// `qp` must be alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    boundary::pointer(|| {
        // SAFETY: the caller gives a live queue pair.
        if unsafe { VerbsQp::from_ibv(qp) }?.extended { Ok(qp.cast()) } else { Err(EOPNOTSUPP) }
    })
}

/// `ibv_query_qp_data_in_order`: 0, because the bytes of a message may become visible in any order.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: ibv_wr_opcode, _flags: u32) -> c_int {
    0
}

/// `ibv_set_ece`: EOPNOTSUPP, because the device has no ECE options. `ibv_query_ece` fails as well: programs assume that a device
/// that returns the empty set accepts any set (UCX, `UCX_RC_ECE`).
#[unsafe(no_mangle)]
pub extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    boundary::value(|| Err(EOPNOTSUPP))
}

/// `ibv_query_ece`: EOPNOTSUPP, as [`ibv_set_ece`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    boundary::value(|| Err(EOPNOTSUPP))
}
