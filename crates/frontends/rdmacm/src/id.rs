//! Ids: the objects of `rdma_cm_id`, and the sending of their commands to the daemon.
//!
//! The daemon creates an id when it receives the id's first command. Commands of asynchronous ids do not wait for the daemon:
//! failures come as events. A synchronous id (created without a channel) has its own channel; each of its commands waits for the
//! reply, and then for the event that completes it ([`Id::complete`]).
//!
//! Events that the program gets are counted; destroying an id waits until the program has acknowledged them all.

use crate::addr;
use crate::boundary::{self, EINVAL, EIO, ENODEV, Errno, Outcome, lock};
use crate::channel::Channel;
use crate::device::RdmaDevice;
use crate::event;
use crate::session::DaemonSession;
use crate::steps::CmSteps;
use crate::sys::*;
use burst_base::verbs::QpType;
use burst_control::cm::{CmCommand, CmEvent, CmEventKind, CmId, CmReply, CmRoute, ConnAttr, Ece, PortSpace};
use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Counts of an id's events: given to the program, and acknowledged by it.
#[derive(Debug, Default)]
pub struct Counted {
    handed_out: AtomicU32,
    acknowledged: Mutex<Acknowledged>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Acknowledged {
    count: u32,
    /// Number of waiting threads: a notification without a waiting thread would cost a system call per event.
    waiting: u32,
}

impl Counted {
    /// Counts an event that the program gets. The id must be in the session's table.
    pub fn hand_out(&self) {
        self.handed_out.fetch_add(1, Ordering::Release);
    }

    /// Number of events that the program was given.
    fn handed_out(&self) -> u32 {
        self.handed_out.load(Ordering::Acquire)
    }

    /// Counts an acknowledgement.
    pub fn acknowledge(&self) {
        let mut acknowledged = lock(&self.acknowledged);
        acknowledged.count = acknowledged.count.wrapping_add(1);
        // Notify with the lock held: the waiting thread may free `self` as soon as it gets the lock.
        if acknowledged.waiting != 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until all events are acknowledged.
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

/// Whether events may still come: the destruction of an id waits for the daemon only if the channel may have a record of the id.
#[derive(Debug, Default)]
pub struct Due {
    /// Number of commands whose event was not read yet.
    answers: AtomicI32,
    /// Whether the peer or the network may cause events: the id listens or has a connection.
    live: AtomicBool,
    /// Whether the id has or had a connection or a connection request.
    met: AtomicBool,
    /// Time of the end of the connection on CLOCK_MONOTONIC; 0 while it has not ended. TIMEWAIT_EXIT follows later.
    ended_ns: AtomicU64,
}

/// Present time on CLOCK_MONOTONIC in nanoseconds.
fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a writable place; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Less than the shortest TIMEWAIT of a connection.
const TIMEWAIT_MIN_NS: u64 = 50_000_000;

impl Due {
    /// Notes a command. Must be called before the command is sent.
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

    /// Notes an event that was read.
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
                // `cookie` is the time of the event: the program may read it much later.
                self.ended_ns.store(event.cookie.max(1), Ordering::Relaxed);
            }
            K::TimewaitExit | K::Rejected | K::Unreachable | K::ConnectError => {
                self.live.store(false, Ordering::Relaxed);
                self.ended_ns.store(0, Ordering::Relaxed);
            }
            // The queue pair of a datagram service is known now; there is no connection that could end.
            K::Established if datagram => self.live.store(false, Ordering::Relaxed),
            K::ConnectRequest => self.meet(),
            _ => (),
        }
    }

    fn meet(&self) {
        self.live.store(true, Ordering::Relaxed);
        self.met.store(true, Ordering::Relaxed);
    }

    /// Check of calls that need a peer and that no event follows.
    ///
    /// # Errors
    /// EINVAL if the id never had a peer.
    pub fn check_met(&self) -> Outcome<()> {
        if self.met.load(Ordering::Relaxed) { Ok(()) } else { Err(EINVAL) }
    }

    /// Whether an event of the connection or TIMEWAIT_EXIT will come. If not, a synchronous call must not wait for one.
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

/// The mutable state of an id.
#[derive(Default)]
pub struct Known {
    /// Addresses and path.
    pub route: CmRoute,
    /// The connection, as of the last event.
    pub conn: ConnAttr,
    /// The device, once it is known.
    pub device: Option<&'static RdmaDevice>,
    /// Protection domain and attributes for the queue pairs of requests (`rdma_create_ep` of a passive id).
    pub endpoint: Option<(*mut ibv_pd, ibv_qp_init_attr)>,
    /// Multicast groups that the id has joined.
    pub groups: Vec<crate::multicast::JoinedGroup>,
    /// Local ACK timeout code, if the program has set one.
    pub ack_timeout: Option<u8>,
    /// ECE options for the REQ or REP of this id.
    pub ece: Ece,
}

/// An id.
#[repr(C)]
pub struct Id {
    base: rdma_cm_id,
    path: ibv_sa_path_rec,
    /// The session of the id.
    pub session: &'static DaemonSession,
    /// The daemon's number of the id.
    pub number: CmId,
    /// Port space.
    pub space: PortSpace,
    sync: AtomicBool,
    /// Whether the daemon has got the command that creates the id.
    creation_sent: AtomicBool,
    /// Whether the program got RDMA_CM_EVENT_DEVICE_REMOVAL, because the daemon has ended.
    pub removal_reported: AtomicBool,
    /// Channel and service, until the command that creates the id is sent.
    creation: Mutex<Option<(u32, QpType)>>,
    /// Counts of the id's events.
    pub counted: Counted,
    /// Events that may still come.
    pub due: Due,
    /// How far it is.
    pub steps: CmSteps,
    /// Mutable state.
    pub known: Mutex<Known>,
    /// Held while an event moves the id's queue pair, and while the queue pair is taken from the id.
    pub qp_use: Mutex<()>,
}

/// Service of the id's queue pair, from the public field.
fn service_of(qp_type: ibv_qp_type) -> Outcome<QpType> {
    QpType::from_number(qp_type).ok_or(boundary::EOPNOTSUPP)
}

fn space_of(ps: rdma_port_space) -> Outcome<PortSpace> {
    match ps {
        RDMA_PS_TCP => Ok(PortSpace::Tcp),
        RDMA_PS_UDP => Ok(PortSpace::Udp),
        RDMA_PS_IB => Ok(PortSpace::Ib),
        RDMA_PS_IPOIB => Err(Errno(libc::EPROTONOSUPPORT)),
        _ => Err(EINVAL),
    }
}

/// Kind of a new id.
pub struct Kind {
    /// Port space.
    pub ps: rdma_port_space,
    /// Service.
    pub qp_type: ibv_qp_type,
}

impl Id {
    /// Creates an id. Without a channel it is synchronous and gets its own channel.
    ///
    /// # Errors
    /// ENODEV without a daemon, EPROTONOSUPPORT and EOPNOTSUPP for port spaces and services that are not supported, EINVAL for
    /// unknown spaces.
    ///
    /// # Safety
    /// `channel` must be NULL or alive.
    pub unsafe fn create(channel: *mut rdma_event_channel, context: *mut c_void, kind: Kind) -> Outcome<NonNull<Id>> {
        let (ps, qp_type) = (space_of(kind.ps)?, service_of(kind.qp_type)?);
        let sync = channel.is_null();
        let channel = if sync { Channel::create()? } else { channel };
        // SAFETY: alive, or just made.
        let on = unsafe { Channel::from_rdma(channel) }?;
        let session = on.session;
        if !session.is_alive() {
            return Err(EIO);
        }
        let number = session.id_number();
        let id = Id::allocate(session, channel, context, &kind, (number, ps, sync), Some((on.number, qp_type)));
        // If the daemon has ended, the id gets an event.
        on.ended.announce();
        Ok(id)
    }

    /// The id of a connection request, which the daemon has created, from an event of this channel.
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
            creation_sent: AtomicBool::new(creation.is_none()),
            removal_reported: AtomicBool::new(false),
            creation: Mutex::new(creation),
            counted: Counted::default(),
            due: Due::default(),
            steps: CmSteps::default(),
            known: Mutex::default(),
            qp_use: Mutex::default(),
        })));
        session.put(number, id);
        id
    }

    /// Whether the id's events go to the channel.
    pub fn is_on(&self, channel: &Channel) -> bool {
        std::ptr::eq(self.base.channel, channel.as_rdma())
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

    /// The pointer that applications hold. The public fields are read and written through it.
    pub fn as_rdma(&self) -> *mut rdma_cm_id {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// The public fields, which the application may change between calls.
    pub fn public(&self) -> rdma_cm_id {
        // SAFETY: a live struct of plain words; applications do not change it while they are in a call.
        unsafe { self.as_rdma().read() }
    }

    /// Whether calls wait for their events.
    pub fn is_sync(&self) -> bool {
        self.sync.load(Ordering::Relaxed)
    }

    /// Whether the id is for datagrams.
    pub fn is_datagram(&self) -> bool {
        self.public().qp_type == IBV_QPT_UD
    }

    /// Sends commands. If the daemon has not created the id yet, the command that creates it comes first.
    fn after_creation<R>(&self, ops: &[CmCommand], send: impl FnOnce(&[CmCommand]) -> Outcome<R>) -> Outcome<R> {
        ops.iter().for_each(|op| self.due.note_sent(op));
        // Acquire pairs with the Release below.
        if self.creation_sent.load(Ordering::Acquire) {
            return send(ops);
        }
        // Held while sending, so that no other thread sends a command before the creation.
        let mut creation = lock(&self.creation);
        let create = |(channel, qp_type)| CmCommand::Create { id: self.number, channel, ps: self.space, qp_type };
        let all: Vec<CmCommand> = creation.take().map(create).into_iter().chain(ops.iter().cloned()).collect();
        let sent = send(&all);
        self.creation_sent.store(true, Ordering::Release);
        sent
    }

    /// Executes commands and returns the last one's reply.
    ///
    /// # Errors
    /// The daemon's refusal.
    pub fn ask(&self, ops: Vec<CmCommand>) -> Outcome<CmReply> {
        self.after_creation(&ops, |ops| self.session.ask(ops.to_vec()))
    }

    /// Sends a command. Waits for its reply only if the id is synchronous. Failures of asynchronous ids become events.
    ///
    /// # Errors
    /// EINVAL if the command cannot succeed in the id's state. EIO if the daemon has ended; the daemon's refusal if the id is
    /// synchronous.
    pub fn send_command(&self, op: CmCommand) -> Outcome<()> {
        let before = self.steps.begin(&op)?;
        let sent = if self.is_sync() {
            self.ask(vec![op]).map(drop)
        } else {
            self.after_creation(&[op], |ops| self.session.send(ops))
        };
        sent.inspect_err(|_| self.steps.take_back(before))
    }

    /// Takes over addresses and device from a reply or event.
    ///
    /// # Errors
    /// The errno of opening the device.
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

    /// Makes the public path record when the route is resolved.
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
    /// ENODEV before the device is known.
    pub fn device(&self) -> Outcome<&'static RdmaDevice> {
        lock(&self.known).device.ok_or(ENODEV)
    }

    /// For synchronous ids: waits for the next event, and stores it in `id->event` until the next call.
    ///
    /// # Errors
    /// The failure that the event reports: ECONNREFUSED for a rejection, else its status.
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

    /// Acknowledges the event in `id->event`.
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
    /// EINVAL if a synchronous id is to become synchronous; the daemon's refusal.
    pub fn migrate(&self, channel: *mut rdma_event_channel) -> Outcome<()> {
        let own = channel.is_null();
        if own && self.is_sync() {
            return Err(EINVAL);
        }
        let target = if own { Channel::create()? } else { channel };
        // SAFETY: alive, or just made.
        let to = unsafe { Channel::from_rdma(target) }?;
        if let Err(e) = self.move_events(to.number) {
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
        // As in `create`.
        to.ended.announce();
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

    /// Destroys an id.
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
            if ours.creation_sent.load(Ordering::Acquire) {
                let destroy = CmCommand::Destroy { id: ours.number, read: ours.counted.handed_out() };
                // A failure means that the daemon has ended, or has no id of this number. After the reply the channel has no
                // record of the id, so that no thread wakes without an event.
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

    /// Takes over the route in the daemon's reply.
    ///
    /// # Errors
    /// EIO for any other reply.
    pub fn follow_reply(&self, reply: &CmReply) -> Outcome<()> {
        match reply {
            CmReply::Route(route) => self.follow_route(route),
            _ => Err(EIO),
        }
    }
}

/// `rdma_create_id`.
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
    boundary::status(|| {
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

/// `rdma_destroy_id`: waits until the id's events are acknowledged.
///
/// # Safety
/// `id` must be alive and have no queue pair; it is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's promise.
    boundary::status(|| unsafe { Id::destroy(id) })
}

/// `rdma_migrate_id`: moves an id and its unread events to another channel; NULL makes it synchronous. Waits until the events
/// read before are acknowledged.
///
/// # Safety
/// `id` must be alive, `channel` NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    boundary::status(|| {
        // SAFETY: the caller's promise.
        unsafe { Id::from_rdma(id) }?.migrate(channel)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destruction_waits_for_the_last_acknowledgement() {
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
            // All events are acknowledged: this call does not wait.
            counted.wait();
        }
    }
}
