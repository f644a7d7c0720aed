//! The host: devices, workers, and the numbers that all contexts share.
//!
//! Belongs to the control thread. A change to a worker's tables is a closure run by the worker
//! ([`Host::on_worker`], [`Host::on_all`]); when such a call returns, the change is in force.

use crate::cm::CmService;

use crate::device::{HostDevice, LIMITS};
use crate::groups::MulticastGroups;
use crate::id_allocator::IdAllocator;
use crate::options::HostOptions;
use crate::trim::Trimmer;
use crate::xrc::XrcTable;
use burst_base::{DeviceId, Nanos};
use burst_cm::Secret;
use burst_control::DaemonInfo;
use burst_engine::handover::Inbox;
use burst_engine::qpn::QpnSpace;
use burst_engine::{RunnerOptions, Worker, WorkerHandle, WorkerOptions};
use burst_mem::{KeySpace, MrTable};
use burst_port::{Encapsulation, Port, PortSpec, open_all};
use burst_shm::status::StatusOwner;
use std::sync::{Arc, Barrier};
use std::time::Instant;

/// See the module.
pub struct Host {
    /// In order of their numbers.
    pub devices: Vec<HostDevice>,
    workers: Vec<WorkerHandle>,
    /// The page that tells applications which workers sleep.
    pub status: StatusOwner,
    /// Queue pair numbers, by worker.
    pub qpns: Vec<QpnSpace>,
    /// Memory keys.
    pub keys: KeySpace,
    /// Contexts.
    pub contexts: IdAllocator,
    /// Protection domains.
    pub pds: IdAllocator,
    /// What contexts lend to others.
    pub exports: crate::exports::Exports,
    /// Completion queues.
    pub cqs: IdAllocator,
    /// Address handles.
    pub ahs: IdAllocator,
    /// Multicast groups.
    pub groups: MulticastGroups,
    /// XRC domains and targets.
    pub xrc: XrcTable,
    /// Connection management.
    pub cm: CmService,
    /// Memory that may be given back.
    pub trimmer: Trimmer,
    cm_secret: Secret,
    next_worker: usize,
    /// How many descriptors the daemon may have.
    pub descriptors: u64,
    started: Instant,
}

/// A worker's thread has ended; the daemon cannot go on.
pub const WORKER_GONE: &str = "a worker thread has died";

/// A random number of the system.
pub(crate) fn random_number() -> Result<u64, String> {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => Ok(u64::from_ne_bytes(bytes)),
        _ => Err("the system gives no random numbers".into()),
    }
}

impl Host {
    /// Opens every port for every worker and starts the workers.
    ///
    /// # Errors
    /// A sentence.
    pub fn open(options: &HostOptions) -> Result<Host, String> {
        let specs = options.ports.iter().map(|p| PortSpec::parse(p)).collect::<Result<Vec<_>, _>>();
        let specs = specs.map_err(|e| e.to_string())?;
        let status = StatusOwner::create().map_err(|e| format!("cannot make the status page: {e}"))?;
        let keys = KeySpace::from_system();
        let mut host = Host {
            devices: Vec::new(),
            workers: Vec::new(),
            status,
            qpns: Vec::new(),
            keys,
            contexts: IdAllocator::new(1 << 16),
            pds: IdAllocator::new(LIMITS.max_pd),
            exports: Default::default(),
            cqs: IdAllocator::new(LIMITS.max_cq),
            ahs: IdAllocator::new(LIMITS.max_ah),
            groups: MulticastGroups::default(),
            xrc: XrcTable::default(),
            cm: CmService::default(),
            trimmer: Trimmer::default(),
            cm_secret: Secret::new([random_number()?, random_number()?]),
            next_worker: 0,
            descriptors: crate::descriptors::raise_limit(),
            started: Instant::now(),
        };
        let inboxes =
            (0..options.workers).map(|_| Inbox::new(options.workers).map(Arc::new)).collect::<Result<Vec<_>, _>>();
        let inboxes = inboxes.map_err(|e| format!("cannot make the workers' inboxes: {e}"))?;
        // By worker, then by device.
        let mut ports: Vec<Vec<Box<dyn Port>>> = (0..options.workers).map(|_| Vec::new()).collect();
        for spec in &specs {
            let opened = open_all(spec, &Encapsulation::ROCE, options.workers).map_err(|e| e.to_string())?;
            ports.iter_mut().zip(opened).for_each(|(of_worker, port)| of_worker.push(port));
        }
        host.devices = ports[0].iter().zip(0..).map(|(p, n)| HostDevice::new(DeviceId(n), p.caps().clone())).collect();
        for (id, ports) in ports.into_iter().enumerate() {
            host.start_worker(options, id, ports, &inboxes)?;
        }
        Ok(host)
    }

    fn start_worker(
        &mut self,
        options: &HostOptions,
        id: usize,
        ports: Vec<Box<dyn Port>>,
        inboxes: &[Arc<Inbox>],
    ) -> Result<(), String> {
        let worker_options =
            WorkerOptions { id: id as u32, window_bytes: u64::from(options.window_bytes), cm_secret: self.cm_secret };
        let worker = Worker::new(worker_options, MrTable::new(self.keys.cipher()), ports, inboxes.to_vec());
        let runner = RunnerOptions { spin: options.spin };
        let sleeper = self.status.sleep_flag(id).ok_or_else(|| format!("there can be no worker {id}"))?;
        let handle = WorkerHandle::start(worker, runner, sleeper).map_err(|e| format!("cannot start a worker: {e}"))?;
        self.workers.push(handle);
        self.qpns.push(QpnSpace::new(id as u32, random_number()?));
        Ok(())
    }

    /// Workers.
    pub fn workers(&self) -> &[WorkerHandle] {
        &self.workers
    }

    /// The worker for the next queue pair: round robin.
    pub fn pick_worker(&mut self) -> usize {
        self.next_worker = (self.next_worker + 1) % self.workers.len();
        self.next_worker
    }

    /// Runs `f` on one worker.
    pub fn on_worker<T: Send + 'static>(
        &self,
        worker: usize,
        f: impl FnOnce(&mut Worker, Nanos) -> T + Send + 'static,
    ) -> T {
        self.workers[worker].call(f).expect(WORKER_GONE)
    }

    /// Runs `f` on one worker soon, after what was asked of it before.
    pub fn post(&self, worker: usize, f: impl FnOnce(&mut Worker, Nanos) + Send + 'static) {
        self.workers[worker].post(f).expect(WORKER_GONE);
    }

    /// Runs a copy of `f` on every worker, one after the other.
    pub fn on_all(&self, f: impl Fn(&mut Worker) + Send + Clone + 'static) {
        for worker in &self.workers {
            let f = f.clone();
            worker.call(move |w, _| f(w)).expect(WORKER_GONE);
        }
    }

    /// Gives back the room of what has ended.
    pub fn shrink(&mut self) {
        self.qpns.iter_mut().for_each(QpnSpace::shrink);
        self.on_all(Worker::shrink);
    }

    /// Runs `f` on worker 0 while all others stand still between two passes.
    pub fn while_all_stand<T: Send + 'static>(&self, f: impl FnOnce(&mut Worker) -> T + Send + 'static) -> T {
        let arrived = Arc::new(Barrier::new(self.workers.len()));
        let finished = Arc::new(Barrier::new(self.workers.len()));
        std::thread::scope(|scope| {
            for worker in &self.workers[1..] {
                let (arrived, finished) = (arrived.clone(), finished.clone());
                scope.spawn(move || {
                    worker.call(move |_, _| {
                        arrived.wait();
                        finished.wait();
                    })
                });
            }
            let job = move |w: &mut Worker, _| {
                arrived.wait();
                let result = f(w);
                finished.wait();
                result
            };
            self.workers[0].call(job).expect(WORKER_GONE)
        })
    }

    /// Re-reads addresses and links.
    pub fn refresh(&mut self) {
        for index in 0..self.devices.len() {
            for worker in (1..self.workers.len()).rev() {
                self.on_worker(worker, move |w, _| drop(w.refresh_port(DeviceId::from_index(index))));
            }
            let caps = self.on_worker(0, move |w, _| w.refresh_port(DeviceId::from_index(index)));
            self.devices[index].caps = caps;
            if self.contexts.taken() == 0 {
                // Nobody to tell: who comes later begins with what is.
                self.devices[index].news();
            }
        }
    }

    /// Who is there.
    pub fn info(&self) -> DaemonInfo {
        DaemonInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uid: rustix::process::getuid().as_raw(),
            uptime_s: self.started.elapsed().as_secs(),
            workers: self.workers.len() as u32,
            contexts: self.contexts.taken(),
        }
    }
}
