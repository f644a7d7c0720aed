//! Ids: the objects behind `rdma_cm_id`, and the sending of their commands to the daemon.
//!
//! An id is made here and created in the daemon together with its first command. Commands of asynchronous ids do not wait for the
//! daemon: failures come as events. A synchronous id (made without a channel) has a channel of its own; each of its
//! commands waits for the answer, and then for the event that ends it ([`Id::complete`]).
//!
//! Events handed out are counted; destroying an id waits until as many were acknowledged.

use crate::addr;
use crate::channel::Channel;
use crate::device::RdmaDevice;
use crate::door::{self, EINVAL, EIO, ENODEV, Errno, Outcome, lock};
use crate::event;
use crate::session::DaemonSession;
use crate::sys::*;
use burst_base::verbs::QpType;
use burst_control::cm::{CmCommand, CmEvent, CmEventKind, CmId, CmReply, CmRoute, ConnAttr, Ece, PortSpace};
use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Events of an id: handed out, and acknowledged.
#[derive(Debug, Default)]
pub struct Counted {
    handed_out: AtomicU32,
    acknowledged: Mutex<Acknowledged>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Acknowledged {
    count: u32,
    /// Threads that wait: telling nobody would cost a system call for each event.
    waiting: u32,
}

impl Counted {
    /// One more is handed out. Only while the id is in the session's table.
    pub fn hand_out(&self) {
        self.handed_out.fetch_add(1, Ordering::Release);
    }

    /// How many were handed out.
    fn handed_out(&self) -> u32 {
        self.handed_out.load(Ordering::Acquire)
    }

    /// One more is acknowledged.
    pub fn acknowledge(&self) {
        let mut acknowledged = lock(&self.acknowledged);
        acknowledged.count = acknowledged.count.wrapping_add(1);
        // Told under the lock: the one who waits may free this as soon as it has it.
        if acknowledged.waiting != 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until all are acknowledged.
    fn wait(&self) {
        let mut acknowledged = lock(&self.acknowledged);
        acknowledged.waiting += 1;
        // Acquire pairs with the Release in `hand_out`.
        while acknowledged.count != self.handed_out() {
            acknowledged = self.changed.wait(acknowledged).unwrap_or_else(PoisonError::into_inner);
        }
        acknowledged.waiting -= 1;
    }
}

/// Which events may come, so that ending an id waits for the daemon only if a record of it may lie in the channel.
#[derive(Debug, Default)]
pub struct Due {
    /// Number of commands whose event was not read yet.
    answers: AtomicI32,
    /// Whether the peer or the network may cause events: it listens, or has a connection.
    live: AtomicBool,
    /// Whether it has, had or was asked for a connection.
    met: AtomicBool,
    /// When the connection ended, on CLOCK_MONOTONIC, 0 while it has not; TIMEWAIT_EXIT follows, but not at once.
    ended_ns: AtomicU64,
}

/// CLOCK_MONOTONIC.
fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a writable place; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Less than any connection stays in time-wait.
const TIMEWAIT_MIN_NS: u64 = 50_000_000;

impl Due {
    /// To be called before a command is sent.
    fn note_sent(&self, op: &CmCommand) {
        match op {
            CmCommand::ResolveAddr { .. } | CmCommand::ResolveRoute { .. } | CmCommand::Join { .. } => {
                self.answers.fetch_add(1, Ordering::Relaxed);
            }
            CmCommand::Listen { .. } => self.live.store(true, Ordering::Relaxed),
            CmCommand::Connect { .. } | CmCommand::Accept { .. } => self.meet(),
            _ => (),
        }
    }

    /// An event was read.
    pub fn read(&self, event: &CmEvent, datagram: bool) {
        use CmEventKind as K;
        match event.kind {
            K::AddrResolved
            | K::AddrError
            | K::RouteResolved
            | K::RouteError
            | K::MulticastJoin
            | K::MulticastError => {
                self.answers.fetch_sub(1, Ordering::Relaxed);
            }
            K::Disconnected => {
                self.live.store(false, Ordering::Relaxed);
                // It may have waited long to be read.
                self.ended_ns.store(event.cookie.max(1), Ordering::Relaxed);
            }
            K::TimewaitExit | K::Rejected | K::Unreachable | K::ConnectError => {
                self.live.store(false, Ordering::Relaxed);
                self.ended_ns.store(0, Ordering::Relaxed);
            }
            // A datagram service is known from now on, and there is nothing that could end.
            K::Established if datagram => self.live.store(false, Ordering::Relaxed),
            K::ConnectRequest => self.meet(),
            _ => (),
        }
    }

    fn meet(&self) {
        self.live.store(true, Ordering::Relaxed);
        self.met.store(true, Ordering::Relaxed);
    }

    /// For calls that are about a peer and that no event follows.
    ///
    /// # Errors
    /// EINVAL if there never was one.
    pub fn check_met(&self) -> Outcome<()> {
        if self.met.load(Ordering::Relaxed) { Ok(()) } else { Err(EINVAL) }
    }

    /// Whether the network, or the end of time-wait, will be heard of: a synchronous call would wait for ever for anything else.
    pub fn is_awaited(&self) -> bool {
        self.live.load(Ordering::Relaxed) || self.ended_ns.load(Ordering::Relaxed) != 0
    }

    fn may_come(&self) -> bool {
        if self.live.load(Ordering::Relaxed) || self.answers.load(Ordering::Relaxed) != 0 {
            return true;
        }
        let ended_ns = self.ended_ns.load(Ordering::Relaxed);
        ended_ns != 0 && now_ns().saturating_sub(ended_ns) > TIMEWAIT_MIN_NS
    }
}

/// What an id knows.
#[derive(Default)]
pub struct Known {
    /// Addresses and path.
    pub route: CmRoute,
    /// The connection, as the last event told.
    pub conn: ConnAttr,
    /// The device, once there is one.
    pub device: Option<&'static RdmaDevice>,
    /// Protection domain and queue pair wanted for requests (`rdma_create_ep` of a passive id).
    pub endpoint: Option<(*mut ibv_pd, ibv_qp_init_attr)>,
    /// Groups joined.
    pub groups: Vec<crate::multicast::JoinedGroup>,
    /// Local ACK timeout code, if the program has set one.
    pub ack_timeout: Option<u8>,
    /// Own enhancements, to be told at connection.
    pub ece: Ece,
}

/// An id.
#[repr(C)]
pub struct Id {
    base: rdma_cm_id,
    path: ibv_sa_path_rec,
    /// Whose.
    pub session: &'static DaemonSession,
    /// Its number at the daemon.
    pub number: CmId,
    /// Port space.
    pub space: PortSpace,
    sync: AtomicBool,
    told: AtomicBool,
    /// Channel and service, until the daemon is told of the id.
    creation: Mutex<Option<(u32, QpType)>>,
    /// Its events.
    pub counted: Counted,
    /// Those that may still come.
    pub due: Due,
    /// What it knows.
    pub known: Mutex<Known>,
}

/// Service of an id's queue pair, by its public field.
fn service_of(qp_type: ibv_qp_type) -> Outcome<QpType> {
    QpType::from_number(qp_type).ok_or(door::EOPNOTSUPP)
}

fn space_of(ps: rdma_port_space) -> Outcome<PortSpace> {
    match ps {
        RDMA_PS_TCP => Ok(PortSpace::Tcp),
        RDMA_PS_UDP => Ok(PortSpace::Udp),
        RDMA_PS_IB => Ok(PortSpace::Ib),
        _ => Err(Errno(libc::EPROTONOSUPPORT)),
    }
}

/// What a new id is.
pub struct Kind {
    /// Port space.
    pub ps: rdma_port_space,
    /// Service.
    pub qp_type: ibv_qp_type,
}

impl Id {
    /// A new id; without a channel it is synchronous and gets one of its own.
    ///
    /// # Errors
    /// ENODEV without a daemon, EPROTONOSUPPORT and EOPNOTSUPP for other spaces and services.
    ///
    /// # Safety
    /// `channel` must be NULL or alive.
    pub unsafe fn create(channel: *mut rdma_event_channel, context: *mut c_void, kind: Kind) -> Outcome<NonNull<Id>> {
        let (ps, qp_type) = (space_of(kind.ps)?, service_of(kind.qp_type)?);
        let sync = channel.is_null();
        let channel = if sync { Channel::create()? } else { channel };
        // SAFETY: alive, or just made.
        let Channel { session, number: channel_number, .. } = *unsafe { Channel::from_rdma(channel) }?;
        if !session.is_alive() {
            return Err(EIO);
        }
        let number = session.id_number();
        Ok(Id::allocate(session, channel, context, &kind, (number, ps, sync), Some((channel_number, qp_type))))
    }

    /// The id of an incoming request, which the daemon has made, read from this channel.
    pub fn requested(listener: &Id, channel: &Channel, number: CmId) -> NonNull<Id> {
        let b = listener.public();
        let kind = Kind { ps: b.ps, qp_type: b.qp_type };
        let place = (number, listener.space, false);
        Id::allocate(listener.session, channel.as_rdma(), b.context, &kind, place, None)
    }

    fn allocate(
        session: &'static DaemonSession,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        kind: &Kind,
        (number, space, sync): (CmId, PortSpace, bool),
        creation: Option<(u32, QpType)>,
    ) -> NonNull<Id> {
        let base = rdma_cm_id { channel, context, ps: kind.ps, qp_type: kind.qp_type, ..Default::default() };
        let id = NonNull::from(Box::leak(Box::new(Id {
            base,
            path: ibv_sa_path_rec::default(),
            session,
            number,
            space,
            sync: AtomicBool::new(sync),
            told: AtomicBool::new(creation.is_none()),
            creation: Mutex::new(creation),
            counted: Counted::default(),
            due: Due::default(),
            known: Mutex::default(),
        })));
        session.put(number, id);
        id
    }

    /// The id behind an application's pointer.
    ///
    /// # Errors
    /// EINVAL for NULL.
    ///
    /// # Safety
    /// `id` must be NULL or alive.
    pub unsafe fn from_rdma<'a>(id: *mut rdma_cm_id) -> Outcome<&'a Id> {
        // SAFETY: `base` is the first field.
        unsafe { id.cast::<Id>().as_ref() }.ok_or(EINVAL)
    }

    /// The pointer that applications hold; its fields are read and written through it.
    pub fn as_rdma(&self) -> *mut rdma_cm_id {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// The public fields, which the application may change between calls.
    pub fn public(&self) -> rdma_cm_id {
        // SAFETY: a live struct of plain words; applications do not change it while they are in a call.
        unsafe { self.as_rdma().read() }
    }

    /// Whether calls on it wait for their events.
    pub fn is_sync(&self) -> bool {
        self.sync.load(Ordering::Relaxed)
    }

    /// Whether it is for datagrams.
    pub fn is_datagram(&self) -> bool {
        self.public().qp_type == IBV_QPT_UD
    }

    /// Sends operations, after the id's creation if the daemon does not know it yet.
    fn after_creation<R>(&self, ops: &[CmCommand], send: impl FnOnce(&[CmCommand]) -> Outcome<R>) -> Outcome<R> {
        ops.iter().for_each(|op| self.due.note_sent(op));
        // Acquire pairs with the Release below.
        if self.told.load(Ordering::Acquire) {
            return send(ops);
        }
        // Held while sending, so that no other thread's command overtakes the creation.
        let mut creation = lock(&self.creation);
        let create = |(channel, qp_type)| CmCommand::Create { id: self.number, channel, ps: self.space, qp_type };
        let all: Vec<CmCommand> = creation.take().map(create).into_iter().chain(ops.iter().cloned()).collect();
        let sent = send(&all);
        self.told.store(true, Ordering::Release);
        sent
    }

    /// Carries out operations and gives the last one's answer.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn ask(&self, ops: Vec<CmCommand>) -> Outcome<CmReply> {
        self.after_creation(&ops, |ops| self.session.ask(ops.to_vec()))
    }

    /// Sends a command: without waiting, unless the id is synchronous. Failures of an asynchronous id become events.
    ///
    /// # Errors
    /// EIO when the daemon is gone; the daemon's refusal if the id is synchronous.
    pub fn send_command(&self, op: CmCommand) -> Outcome<()> {
        if self.is_sync() {
            return self.ask(vec![op]).map(drop);
        }
        self.after_creation(&[op], |ops| self.session.send(ops))
    }

    /// Takes over what an answer or event tells of the addresses and the device.
    ///
    /// # Errors
    /// What opening the device may give.
    pub fn follow_route(&self, route: &CmRoute) -> Outcome<()> {
        let device = route.device.map(|index| self.session.device(index)).transpose()?;
        let mut known = lock(&self.known);
        known.route = *route;
        let id = self.as_rdma();
        // SAFETY: a live struct whose fields the application reads only after the call or event that fills them.
        unsafe {
            addr::write_route(&raw mut (*id).route.addr, route);
            if let Some(device) = device {
                known.device = Some(device);
                (*id).verbs = device.context;
                (*id).port_num = 1;
                if (*id).pd.is_null() {
                    (*id).pd = device.pd;
                }
            }
        }
        Ok(())
    }

    /// Makes the path record, once the route is resolved.
    pub fn publish_path(&self) {
        let route = lock(&self.known).route;
        let id = self.as_rdma();
        // SAFETY: as in `follow_route`; `path` lies in the same allocation, behind the public struct.
        unsafe {
            let path = &raw mut (*id.cast::<Id>()).path;
            *path = crate::attr::path_of(&route);
            (*id).route.path_rec = path;
            (*id).route.num_paths = 1;
        }
    }

    /// The device.
    ///
    /// # Errors
    /// ENODEV before one is known.
    pub fn device(&self) -> Outcome<&'static RdmaDevice> {
        lock(&self.known).device.ok_or(ENODEV)
    }

    /// For synchronous ids: waits for the next event, which stays at the id until the next call.
    ///
    /// # Errors
    /// What the event says: ECONNREFUSED for a rejection, else its status.
    pub fn complete(&self) -> Outcome<()> {
        if !self.is_sync() {
            return Ok(());
        }
        self.forget_event();
        // SAFETY: the id is alive, its channel is its own.
        unsafe {
            let event = event::next((*self.as_rdma()).channel)?;
            (*self.as_rdma()).event = event;
            match (*event).status {
                0 => Ok(()),
                _ if (*event).event == RDMA_CM_EVENT_REJECTED => Err(Errno(libc::ECONNREFUSED)),
                status => Err(Errno(status.abs())),
            }
        }
    }

    /// Acknowledges the event kept at the id.
    pub fn forget_event(&self) {
        // SAFETY: the field is NULL or an event that was not acknowledged yet.
        unsafe {
            let event = std::mem::replace(&mut (*self.as_rdma()).event, null_mut());
            if !event.is_null() {
                event::acknowledge(event);
            }
        }
    }

    /// Moves the id to another channel; NULL makes it synchronous.
    ///
    /// # Errors
    /// EINVAL if it is to become what it is, the daemon's refusal.
    pub fn migrate(&self, channel: *mut rdma_event_channel) -> Outcome<()> {
        let own = channel.is_null();
        if own && self.is_sync() {
            return Err(EINVAL);
        }
        let target = if own { Channel::create()? } else { channel };
        // SAFETY: alive, or just made.
        let number = unsafe { Channel::from_rdma(target) }?.number;
        if let Err(e) = self.move_events(number) {
            if own {
                // SAFETY: just made, and nothing uses it.
                unsafe { Channel::destroy(target) };
            }
            return Err(e);
        }
        let was_sync = self.sync.swap(own, Ordering::Relaxed);
        // SAFETY: a live struct; who migrates an id keeps other threads away from it.
        let old = unsafe { std::mem::replace(&mut (*self.as_rdma()).channel, target) };
        if was_sync {
            self.forget_event();
        }
        self.counted.wait();
        if was_sync {
            // SAFETY: it was the id's own, and the id has left it.
            unsafe { Channel::destroy(old) };
        }
        Ok(())
    }

    fn move_events(&self, to: u32) -> Outcome<()> {
        if let Some((channel, _)) = lock(&self.creation).as_mut() {
            *channel = to;
            return Ok(());
        }
        self.ask(vec![CmCommand::Migrate { id: self.number, channel: to }]).map(drop)
    }

    /// Ends an id.
    ///
    /// # Errors
    /// EINVAL for NULL.
    ///
    /// # Safety
    /// `id` must be NULL or alive; it is gone afterwards.
    pub unsafe fn destroy(id: *mut rdma_cm_id) -> Outcome<()> {
        // SAFETY: the caller's promise.
        let ours = unsafe { Id::from_rdma(id) }?;
        if ours.session.is_alive() {
            ours.session.remove(ours.number);
            if ours.told.load(Ordering::Acquire) {
                let destroy = CmCommand::Destroy { id: ours.number, read: ours.counted.handed_out() };
                // A daemon that is gone has no ids, and one that refuses has none of this number. After its answer, no
                // record of the id is in the channel, so nobody is woken for nothing.
                let _ = if ours.due.may_come() {
                    ours.session.ask(vec![destroy]).map(drop)
                } else {
                    ours.session.send(&[destroy])
                };
            }
            ours.forget_event();
            ours.counted.wait();
        }
        let channel = ours.is_sync().then_some(ours.public().channel);
        // SAFETY: made by `Box::leak`, and the caller gives it up; then nothing uses its own channel any more.
        unsafe {
            drop(Box::from_raw(id.cast::<Id>()));
            if let Some(channel) = channel {
                Channel::destroy(channel);
            }
        }
        Ok(())
    }

    /// The daemon's answer about addresses, taken over.
    ///
    /// # Errors
    /// EIO if it is another answer.
    pub fn follow_reply(&self, reply: &CmReply) -> Outcome<()> {
        match reply {
            CmReply::Route(route) => self.follow_route(route),
            _ => Err(EIO),
        }
    }
}

/// New id.
///
/// # Safety
/// `channel` must be NULL or alive, `id` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    door::status(|| {
        if id.is_null() {
            return Err(EINVAL);
        }
        let datagram = ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB;
        let kind = Kind { ps, qp_type: if datagram { IBV_QPT_UD } else { IBV_QPT_RC } };
        // SAFETY: the caller's promise.
        unsafe { *id = Id::create(channel, context, kind)?.as_ref().as_rdma() };
        Ok(())
    })
}

/// Ends an id, after its events were acknowledged.
///
/// # Safety
/// `id` must be alive and have no queue pair; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's promise.
    door::status(|| unsafe { Id::destroy(id) })
}

/// Moves an id, with the events not yet read, to another channel; NULL makes it synchronous. Waits until events read
/// before are acknowledged.
///
/// # Safety
/// `id` must be alive, `channel` NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    door::status(|| {
        // SAFETY: the caller's promise.
        unsafe { Id::from_rdma(id) }?.migrate(channel)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_ends_an_id_waits_for_the_last_acknowledgement() {
        for _ in 0..200 {
            let counted = Counted::default();
            counted.hand_out();
            counted.hand_out();
            counted.acknowledge();
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| counted.wait());
                std::thread::yield_now();
                assert!(!waiter.is_finished());
                counted.acknowledge();
            });
            // Nothing is owed any more.
            counted.wait();
        }
    }
}
