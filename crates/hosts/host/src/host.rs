//! The state of one host: devices, workers, and the numbers that all contexts share.
//!
//! A `Host` belongs to the control thread. To change a worker's tables, the control thread sends the worker a closure
//! ([`Host::on_worker`], [`Host::on_all`]); when such a call returns, the change is in force. [`Host::post`] does not wait.
//!
//! | part | contents |
//! |---|---|
//! | `host.rs` | opening, workers, devices |
//! | `host/capture.rs` | captures of packets |
//! | `host/cm.rs` | events and jobs of connection management, its statistics |
//! | `host/failures.rs` | records of failures |
//! | `host/kept_packets.rs` | packets of queue pairs, up to their failures |
//! | `host/hops.rs` | next hops: the questions that need a worker or a device |
//! | `host/multicast.rs` | membership in multicast groups |
//! | `host/stats.rs` | counters and the description of the host |
//! | `host/urma.rs` | nodes of URMA |
//! | `host/urma_ports.rs` | their UDP port, while no program uses it |

mod activity;
mod capture;
mod cm;
mod congestion;
mod failures;
mod hops;
mod impair;
mod kept_packets;
mod log;
mod multicast;
pub(crate) mod room;
mod stats;
mod urma;
mod urma_ports;

use crate::accounts::{AccountBy, capacities};
use crate::authority::Authority;
use crate::authority::Caller;
use crate::clock::Clock;
use crate::cm::CmService;
use crate::descriptors;
use crate::device::{DeviceObject, HostDevice};
use crate::exports::Exports;
use crate::foreign::Disposal;
use crate::groups::MulticastGroups;
use crate::id_allocator::ChargedNumbers;
use crate::lent::Lending;
use crate::limits::{CONTEXTS_MAX, LIMITS};
use crate::log_levels::LogLevels;
use crate::log_limit::{LogCause, LogLimiter};
use crate::options::{HostOptions, WorkerMode};
use crate::placement::{DeviceWorkers, HostPlacement, allowed_cpus, node_of};
use crate::program_memory::ProgramMemory;
use crate::random::RandomSource;
use crate::refusal::no_room;
use crate::trim::Trimmer;
use crate::watchdog::Watchdog;
use crate::xrc::XrcTable;
use burst_base::{DeviceId, Nanos, Qpn};
use burst_cm::Secret;
use burst_control::Refusal;
use burst_control::failures::{FailureRecord, RECORDS};
use burst_control::monitor::DaemonCrashes;
use burst_engine::gsi::CmPlaces;
use burst_engine::handover::Inbox;
use burst_engine::pulse::Pulse;
use burst_engine::qpn::{QPS_MAX, QpnSpace};
use burst_engine::{RunnerOptions, Worker, WorkerHandle, WorkerOptions};
use burst_ledger::{Account, AccountRing, Charge, Ledger, Resource, Scope, SharePool, SubordinateIds};
use burst_mem::{KeySpace, MrTable};
use burst_port::{AddressSharing, DescriptorStore, Encapsulation, Port, PortSpec, can_lend, open_shared};
use burst_shm::status::StatusOwner;
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// The ports of each worker, in the order of the devices.
pub type WorkerPorts = Vec<Box<dyn Port>>;

/// The control plane of one host.
pub struct Host {
    /// Devices, by number.
    pub devices: Vec<HostDevice>,
    workers: Vec<WorkerHandle>,
    /// The shared page in which workers note that they sleep.
    pub status: StatusOwner,
    /// Queue pair numbers, by worker: see [`Host::take_qpn`].
    qpns: Vec<QpnSpace>,
    /// Places for queue pair numbers, by worker.
    qpn_places: Vec<SharePool>,
    /// Places for connections and queued requests, by worker.
    pub(crate) cm_places: Arc<[CmPlaces]>,
    /// Memory keys: see [`Host::take_key`].
    keys: KeySpace,
    /// Numbers of contexts.
    pub contexts: ChargedNumbers,
    /// The users of contexts, by number.
    pub(crate) context_users: HashMap<u32, u32>,
    /// Numbers of protection domains.
    pub pds: ChargedNumbers,
    /// Objects that contexts export to others.
    pub exports: Exports,
    /// Numbers of completion queues.
    pub cqs: ChargedNumbers,
    /// Numbers of address handles.
    pub ahs: ChargedNumbers,
    /// Multicast groups.
    pub groups: MulticastGroups,
    /// XRC domains and target queue pairs.
    pub xrc: XrcTable,
    /// Connection management.
    pub cm: CmService,
    /// Rules about which users see which objects, and which programs have a privilege.
    pub authority: Authority,
    /// The levels of the log of the process, if it is the host's.
    pub log: Option<Arc<dyn LogLevels>>,
    /// Bounds the log lines that programs cause.
    pub(crate) log_limiter: LogLimiter,
    /// Records of calls that were refused.
    failures: AccountRing<FailureRecord>,
    /// When to return memory to the system.
    pub trimmer: Trimmer,
    /// How many descriptors the process may open.
    pub descriptors: u64,
    /// Closes descriptors that programs have sent.
    pub disposal: Disposal,
    /// What each user uses.
    pub ledger: Ledger,
    /// The pulse of the control thread.
    pub pulse: Arc<Pulse>,
    /// Watches the control thread and the workers, if it was started.
    pub(crate) watchdog: Option<Watchdog>,
    /// What an account belongs to.
    pub(crate) account_by: AccountBy,
    /// The depth of a control group that has an account.
    pub(crate) account_depth: usize,
    /// Users' further ids.
    pub(crate) subordinate_ids: Mutex<SubordinateIds>,
    /// Daemons that fell before this one.
    pub crashes: DaemonCrashes,
    /// The descriptors that a supervisor keeps for a successor.
    pub(crate) store: Option<Arc<dyn DescriptorStore>>,
    /// What each account may cost when the daemon reaches its programs' memory.
    pub(crate) program_memory: ProgramMemory,
    /// Worker numbers lent to programs.
    pub(crate) lending: Lending,
    /// Whether programs may open copiers ([`HostOptions::gpu`]).
    pub(crate) has_copiers: bool,
    /// Whether this host has a lent number.
    pub(crate) is_lent: bool,
    room: room::TableRoom,
    urma: urma::UrmaNodes,
    clock: Clock,
    random: RandomSource,
    cm_secret: Secret,
    /// Congestion control of all peers.
    cc: burst_cc::CcTable,
    placement: HostPlacement,
    started: Nanos,
}

/// The sentence for the end of a worker's thread: the host cannot go on.
pub const WORKER_GONE: &str = "a worker thread has died";

impl Host {
    /// Opens every port for every worker and starts the workers. With a `store`, the host takes over what a predecessor of
    /// this process stored there, and stores its own sockets and tombstone files for a successor.
    ///
    /// # Errors
    /// A sentence: a port specification is wrong, a port cannot be opened, a worker cannot start.
    pub fn open(options: &HostOptions, clock: Clock, store: Option<Arc<dyn DescriptorStore>>) -> Result<Host, String> {
        let specs = options.ports.iter().map(|p| PortSpec::parse(p)).collect::<Result<Vec<_>, _>>();
        let specs = specs.map_err(|e| e.to_string())?;
        let mut ports: Vec<WorkerPorts> = (0..options.workers).map(|_| Vec::new()).collect();
        for spec in &specs {
            let sharing = if options.lend && can_lend(spec) { AddressSharing::Lends } else { AddressSharing::Alone };
            let opened = open_shared(spec, &Encapsulation::ROCE, options.workers, store.as_ref(), sharing);
            let opened = opened.map_err(|e| e.to_string())?;
            ports.iter_mut().zip(opened).for_each(|(of_worker, port)| of_worker.push(port));
        }
        let node = |device: usize| node_of(Path::new("/sys"), &ports.first()?[device].caps().ifname);
        let placement = HostPlacement::of(&specs, options.workers, &allowed_cpus(), node)?;
        let mut host = Host::start(options, clock, ports, store.as_deref(), placement)?;
        host.store = store;
        host.lending = Lending::new(options, specs.clone());
        host.urma.specs = specs;
        host.urma.ports.is_on = options.hold_urma;
        host.hold_urma_ports();
        Ok(host)
    }

    /// Starts a host on ports that are open already: one list per worker, all lists in the order of the devices.
    /// `options.ports` is not used.
    ///
    /// # Errors
    /// A sentence: there is no worker, the lists differ in length, a worker cannot start.
    pub fn with_ports(options: &HostOptions, clock: Clock, ports: Vec<WorkerPorts>) -> Result<Host, String> {
        let placement = HostPlacement::everywhere(ports.first().map_or(0, Vec::len), ports.len());
        Host::start(options, clock, ports, None, placement)
    }

    /// As [`Host::with_ports`], for a number that was lent to this process with its ports ([`HostOptions::lent`]). `store` has
    /// the tombstone file that the lender reads.
    ///
    /// # Errors
    /// As [`Host::with_ports`].
    pub fn with_lent_ports(
        options: &HostOptions,
        clock: Clock,
        ports: WorkerPorts,
        store: &dyn DescriptorStore,
    ) -> Result<Host, String> {
        let placement = HostPlacement::everywhere(ports.len(), 1);
        Host::start(options, clock, vec![ports], Some(store), placement)
    }

    fn start(
        options: &HostOptions,
        clock: Clock,
        ports: Vec<WorkerPorts>,
        store: Option<&dyn DescriptorStore>,
        placement: HostPlacement,
    ) -> Result<Host, String> {
        burst_mem::page::check_size()?;
        let Some(devices) = ports.first().map(Vec::len).filter(|n| ports.iter().all(|of| of.len() == *n)) else {
            return Err("every worker needs a port of every device".into());
        };
        let inboxes = (0..ports.len()).map(|_| Inbox::new(ports.len()).map(Arc::new)).collect::<Result<Vec<_>, _>>();
        let inboxes = inboxes.map_err(|e| format!("cannot make the workers' inboxes: {e}"))?;
        let mut host = Host::empty(options, clock, devices as u32, placement)?;
        host.devices = ports[0]
            .iter()
            .enumerate()
            .map(|(index, port)| {
                let device = HostDevice::new(DeviceId::from_index(index), port.caps().clone());
                device.with_groups(port.groups_max(), options.policy)
            })
            .collect();
        assert_eq!(host.placement.devices.len(), host.devices.len(), "a placement for each device");
        for (id, ports) in ports.into_iter().enumerate() {
            debug_assert!(host.placement.cpus.len() > id, "a placement for each worker");
            let mut worker = host.make_worker(options, id, ports, &inboxes);
            let without = host.placement.devices.iter().enumerate().filter(|(_, of)| !of.numbers().contains(&id));
            without.for_each(|(device, _)| worker.leave_port(DeviceId::from_index(device)));
            host.start_worker(options, worker, store)?;
        }
        Ok(host)
    }

    /// A host without devices and workers, with room for the objects of `devices` devices.
    fn empty(options: &HostOptions, clock: Clock, devices: u32, placement: HostPlacement) -> Result<Host, String> {
        let mut random = RandomSource::new(options.seed);
        let keys = KeySpace::new(random.fork().into_fn());
        let descriptors = match options.worker_mode {
            WorkerMode::Threads => crate::descriptors::raise_limit(),
            WorkerMode::InPlace => crate::descriptors::limit(),
        };
        Ok(Host {
            devices: Vec::new(),
            failures: AccountRing::new(RECORDS),
            workers: Vec::new(),
            status: StatusOwner::create().map_err(|e| format!("cannot make the status page: {e}"))?,
            qpns: Vec::new(),
            qpn_places: Vec::new(),
            cm_places: Arc::default(),
            keys,
            contexts: ChargedNumbers::new(Resource::Context, CONTEXTS_MAX),
            context_users: HashMap::new(),
            pds: ChargedNumbers::new(Resource::Pd, LIMITS.max_pd.saturating_mul(devices)),
            exports: Exports::default(),
            cqs: ChargedNumbers::new(Resource::Cq, LIMITS.max_cq.saturating_mul(devices)),
            ahs: ChargedNumbers::new(Resource::Ah, LIMITS.max_ah.saturating_mul(devices)),
            groups: MulticastGroups::default(),
            xrc: XrcTable::default(),
            cm: CmService::new(clock.clone()),
            authority: Authority::of_this_process(),
            log: None,
            log_limiter: LogLimiter::default(),
            trimmer: Trimmer::default(),
            descriptors,
            disposal: match options.worker_mode {
                WorkerMode::Threads => Disposal::start()?,
                WorkerMode::InPlace => Disposal::in_place(),
            },
            ledger: Ledger::new(capacities(devices, options.workers, descriptors), options.policy),
            pulse: Arc::new(Pulse::new("control".into())),
            watchdog: None,
            account_by: options.account_by,
            account_depth: options.account_depth,
            subordinate_ids: Mutex::new(SubordinateIds::new(options.subordinate_ids.clone())),
            crashes: DaemonCrashes::default(),
            store: None,
            program_memory: ProgramMemory::new(),
            lending: Lending::default(),
            has_copiers: options.gpu,
            is_lent: options.lent.is_some(),
            room: room::TableRoom::default(),
            urma: urma::UrmaNodes::new(options),
            started: clock.now(),
            clock,
            cm_secret: Secret::new([random.number()?, random.number()?]),
            random,
            cc: options.cc.with_window(u64::from(options.window_in_force())),
            placement,
        })
    }

    fn make_worker(&mut self, options: &HostOptions, id: usize, ports: WorkerPorts, inboxes: &[Arc<Inbox>]) -> Worker {
        let worker_options = WorkerOptions {
            id: options.lent.map_or(0, |lent| lent.number) + id as u32,
            first: options.lent.map_or(0, |lent| lent.number),
            boot_id: options.lent.map(|lent| lent.boot_id),
            cc: self.cc,
            cm_secret: self.cm_secret,
            selective: options.selective,
            rto: options.rto,
            packet_ring: options.packet_ring,
            ..WorkerOptions::default()
        };
        Worker::new(worker_options, MrTable::new(self.keys.cipher()), ports, inboxes.to_vec())
    }

    /// Gives the next worker its queue pair numbers, the tombstones of its predecessor, and a thread.
    fn start_worker(
        &mut self,
        options: &HostOptions,
        mut worker: Worker,
        store: Option<&dyn DescriptorStore>,
    ) -> Result<(), String> {
        let id = self.workers.len();
        let mut qpns = QpnSpace::new(worker.id(), self.random.fork().into_fn());
        if let Some(store) = store {
            crate::predecessor::adopt_tombstones(store, self.now(), &mut worker, &mut qpns)?;
        }
        let flag = self.status.sleep_flag(id).ok_or_else(|| format!("there can be no worker {id}"))?;
        let handle = match options.worker_mode {
            WorkerMode::Threads => {
                let cpus = self.placement.cpus[id].clone();
                WorkerHandle::start(worker, RunnerOptions { spin: options.spin, cpus }, flag)
            }
            WorkerMode::InPlace => {
                let clock = self.clock.clone();
                WorkerHandle::in_place(worker, flag, Box::new(move || clock.now()))
            }
        };
        self.workers.push(handle.map_err(|e| format!("cannot start a worker: {e}"))?);
        self.qpns.push(qpns);
        self.qpn_places.push(SharePool::new(Resource::Qp, Scope::Worker, QPS_MAX.into(), options.policy));
        // No program has a session yet, so no place is taken.
        self.cm_places = self.workers.iter().map(|_| CmPlaces::new(options.policy)).collect();
        assert_eq!(self.workers.len(), self.qpns.len());
        assert_eq!(self.workers.len(), self.qpn_places.len());
        Ok(())
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Starts the watchdog over the calling thread, which is the control thread, and the workers. Stalls are logged and counted.
    ///
    /// # Errors
    /// A sentence when the system starts no thread.
    pub fn start_watchdog(&mut self) -> Result<(), String> {
        self.pulse.begin();
        let workers = self.workers.iter().map(|worker| worker.pulse().clone());
        let pulses = std::iter::once(self.pulse.clone()).chain(workers).collect();
        self.watchdog = Some(Watchdog::start(pulses, |stall| tracing::warn!("{stall}"))?);
        Ok(())
    }

    /// Congestion control of all peers.
    pub(crate) fn cc(&self) -> &burst_cc::CcTable {
        &self.cc
    }

    /// A random number for a secret.
    ///
    /// # Errors
    /// A sentence when the system has no random numbers.
    pub fn random_number(&mut self) -> Result<u64, String> {
        self.random.number()
    }

    /// The handles of the workers, by number.
    pub fn workers(&self) -> &[WorkerHandle] {
        &self.workers
    }

    /// The workers that have the queue pairs of a device.
    pub fn workers_of(&mut self, device: DeviceId) -> &mut DeviceWorkers {
        &mut self.placement.devices[device.index()]
    }

    /// Runs `f` on one worker and waits for the result.
    pub fn on_worker<T: Send + 'static>(
        &self,
        worker: usize,
        f: impl FnOnce(&mut Worker, Nanos) -> T + Send + 'static,
    ) -> T {
        self.workers[worker].call(f).expect(WORKER_GONE)
    }

    /// Runs `f` on one worker without waiting for it. The closures of one worker run in the order of these calls.
    pub fn post(&self, worker: usize, f: impl FnOnce(&mut Worker, Nanos) + Send + 'static) {
        self.workers[worker].post(f).expect(WORKER_GONE);
    }

    /// Runs a copy of `f` on every worker, in no particular order, and waits for all.
    pub fn on_all(&self, f: impl Fn(&mut Worker) + Send + Clone + 'static) {
        // All have it before the first is waited for: sixteen that sleep take as long to wake as one.
        let begin = |worker: &WorkerHandle| {
            let f = f.clone();
            worker.begin_call(move |w, _| f(w)).expect(WORKER_GONE)
        };
        let answers: Vec<_> = self.workers.iter().map(begin).collect();
        answers.into_iter().for_each(|answer| answer.wait().expect(WORKER_GONE));
    }

    /// Whether a log line may be written that the program of a user has caused. A line that may not is counted, and reported
    /// later.
    pub fn may_log(&mut self, cause: LogCause, uid: u32) -> bool {
        self.log_limiter.admits(self.clock.now(), cause, uid)
    }

    /// Counts a new object of a device, and charges it to the caller.
    ///
    /// # Errors
    /// ENOMEM when the device has as many objects of this kind as its limit allows, or the caller's user a share's worth, or when
    /// the workers get no memory for it.
    pub(crate) fn count_object(
        &mut self,
        caller: &Caller,
        device: DeviceId,
        object: DeviceObject,
    ) -> Result<Charge, Refusal> {
        self.make_room_for(object)?;
        self.devices[device.index()].objects.add(device, object)?;
        self.charge_object(caller, device, object).inspect_err(|_| self.uncount_object(device, object))
    }

    /// Charges an object of a device to the caller: a new one, or a further handle of one that is counted.
    ///
    /// # Errors
    /// ENOMEM: the caller's user has a share's worth.
    pub(crate) fn charge_object(
        &self,
        caller: &Caller,
        device: DeviceId,
        object: DeviceObject,
    ) -> Result<Charge, Refusal> {
        let key = u64::from(matches!(object, DeviceObject::Mr | DeviceObject::Mw));
        let charge = caller.charge(&[(object.resource(), 1), (Resource::Key, key)])?;
        match &self.devices[device.index()].places[object as usize] {
            Some(pool) => Ok(charge.with_place(caller.place(pool)?)),
            None => Ok(charge),
        }
    }

    /// Takes a number for a queue pair of a worker that is charged. The charge is that of the number, too, from then on.
    ///
    /// # Errors
    /// ENOMEM: the worker has no more, or the caller's user a share's worth of them.
    pub(crate) fn take_qpn(&mut self, caller: &Caller, worker: usize, charge: &mut Charge) -> Result<Qpn, Refusal> {
        charge.hold_place(caller.place(&self.qpn_places[worker])?);
        self.qpns[worker].take().map_or_else(|| no_room("queue pair"), Ok)
    }

    /// Frees the number of a queue pair.
    pub(crate) fn put_qpn(&mut self, worker: usize, qpn: Qpn) {
        self.qpns[worker].put(qpn);
    }

    /// Takes a key for a region or a window that is charged; `None` when all are in use.
    pub(crate) fn take_key(&mut self, charge: &Charge) -> Option<u32> {
        assert!(charge.covers(Resource::Key), "a key without a charge");
        self.keys.alloc()
    }

    /// Frees a key.
    pub(crate) fn put_key(&mut self, key: u32) {
        self.keys.release(key);
    }

    /// The places for connections of a worker.
    pub(crate) fn connection_places(&self, worker: u32) -> &SharePool {
        &self.cm_places[worker as usize].connections
    }

    /// Uncounts an object that has ended, or was not made after all.
    pub fn uncount_object(&mut self, device: DeviceId, object: DeviceObject) {
        self.note_ended(1);
        self.devices[device.index()].objects.remove(object);
    }

    /// Whether the next message in the socket of an account's client must not be received: the daemon has no room for the
    /// descriptors that it carries.
    pub fn refuses_next(&self, account: &Account, socket: impl AsFd) -> bool {
        let used = self.ledger.used(Resource::Descriptor) + self.disposal.uncharged();
        let is_scarce = !account.is_privileged() && descriptors::is_scarce(used, self.descriptors);
        self.disposal.refuses_next(account.id(), socket, is_scarce)
    }

    /// Notes that `count` objects have ended, so that memory is trimmed after many of them.
    pub fn note_ended(&mut self, count: usize) {
        self.trimmer.note_ended(self.clock.now(), count);
    }

    /// Returns the memory of ended objects to the heap.
    pub fn shrink(&mut self) {
        self.on_all(Worker::shrink);
        self.forget_room();
        [&mut self.contexts, &mut self.pds, &mut self.cqs, &mut self.ahs].into_iter().for_each(ChargedNumbers::shrink);
        self.keys.shrink();
        self.context_users.shrink_to_fit();
        self.exports.shrink();
        self.groups.groups.shrink_to_fit();
        self.xrc.shrink();
        self.cm.shrink();
        self.disposal.shrink();
        self.program_memory.shrink();
        burst_mem::holes::shrink();
    }

    /// Reads the addresses and the link state of every port again.
    pub fn refresh(&mut self) {
        for index in 0..self.devices.len() {
            let device = DeviceId::from_index(index);
            // Worker 0 first: steering numbers the sockets of a new address in bind order.
            self.devices[index].caps = self.on_worker(0, move |w, _| w.refresh_port(device));
            for worker in 1..self.workers.len() {
                self.on_worker(worker, move |w, _| drop(w.refresh_port(device)));
            }
            if self.contexts.taken() == self.urma.contexts() {
                // No context exists that could get an event; a later context starts with the present state.
                self.devices[index].take_changes();
            }
        }
        self.hold_urma_ports();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.close_all_urma();
        }
        self.disposal.end();
    }
}
