//! An Ethernet device of DPDK: probing, configuration with one queue pair per worker, start, link state, reconnection.
//!
//! DeviceControl functions run one at a time (`control`). A device may be stopped and started while workers poll it, which is how
//! a memif client looks for its server. The [`RunGate`] keeps workers out meanwhile; it costs one ordered store per burst. With
//! the last queue pair the device is stopped and removed, and its pools are freed.

use crate::eal;
use crate::ffi::{self, DeviceFacts, DeviceSetup, QueuePools};
use crate::queue::EthQueue;
use burst_port::spec::{DevArgs, Pages};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Descriptors of a receive queue: one window of the largest packets, and no more memory than a cache holds.
pub const RX_DESCRIPTORS: u16 = 256;
/// Descriptors of a send queue.
const TX_DESCRIPTORS: u16 = 512;
/// Receive buffers beyond the descriptors: for a burst in work, and for the caches of threads.
const RX_SPARE: u32 = 256;
/// Bytes of Ethernet header, VLAN tag and frame check sequence.
const LINK_OVERHEAD: u32 = 14 + 4 + 4;
/// Bytes of a cache line; receive buffers are whole cache lines.
const LINE: u32 = 64;
/// Maintenance calls (at [`eal::start`]'s interval) without a link after which a client is restarted.
const RESTART_AFTER: u32 = 10;

/// The wanted properties of a device.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Name and arguments.
    pub args: DevArgs,
    /// Queue pairs, one per worker.
    pub queues: u16,
    /// MTU of the link in bytes; `None`: the driver's.
    pub mtu: Option<u16>,
    /// Pages of DPDK's memory.
    pub pages: Pages,
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Whether packets can pass.
    pub up: bool,
    /// Mbit/s, 0 if unknown.
    pub speed_mbps: u32,
}

/// Keeps workers out of a device that is not running.
struct RunGate {
    open: AtomicBool,
    inside: Vec<PaddedFlag>,
}

/// A worker's flag on a cache line of its own.
#[repr(align(64))]
struct PaddedFlag(AtomicBool);

/// An open device.
pub struct EthDev {
    args: DevArgs,
    port: u16,
    facts: DeviceFacts,
    mtu: u16,
    pools: Vec<QueuePools>,
    gate: RunGate,
    /// Locked while a control function runs.
    control: Mutex<DeviceControl>,
    /// [`UP`] and the speed in Mbit/s.
    link: AtomicU32,
}

#[derive(Default)]
struct DeviceControl {
    started: bool,
    checks_down: u32,
}

// SAFETY: the pools are pointers to DPDK's memory, which any thread may use under the rules of `ffi`: each queue pair has one
// owner and uses its own pools; the device only frees the pools, after the last queue pair has ended.
unsafe impl Send for EthDev {}
// SAFETY: as above; every other field is atomic or locked.
unsafe impl Sync for EthDev {}

/// Bit of `EthDev::link`: the link is up.
const UP: u32 = 1 << 31;

/// The open devices.
static DEVICES: Mutex<Vec<Weak<EthDev>>> = Mutex::new(Vec::new());

/// Held while a device is probed or removed.
static PLUG: Mutex<()> = Mutex::new(());

fn plug() -> MutexGuard<'static, ()> {
    PLUG.lock().unwrap_or_else(PoisonError::into_inner)
}

fn devices() -> MutexGuard<'static, Vec<Weak<EthDev>>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maintains all devices; called by DPDK's main thread.
fn maintain() {
    let all: Vec<Arc<EthDev>> = devices().iter().filter_map(Weak::upgrade).collect();
    all.iter().for_each(|device| device.maintain());
}

impl RunGate {
    fn new(queues: u16) -> RunGate {
        let inside = (0..queues).map(|_| PaddedFlag(AtomicBool::new(false))).collect();
        RunGate { open: AtomicBool::new(false), inside }
    }
    /// Closes the gate, and returns when no worker is inside.
    fn close(&self) {
        // Pairs with `EthDev::enter`: either the worker sees the gate closed, or this thread sees the worker inside.
        self.open.store(false, Ordering::SeqCst);
        for worker in &self.inside {
            while worker.0.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
    }
}

/// A worker is inside the gate while this value lives.
pub struct InsideGate<'a>(&'a AtomicBool);

impl Drop for InsideGate<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl EthDev {
    /// Opens a device; starts DPDK if it is not running.
    ///
    /// # Errors
    /// One sentence.
    pub fn open(options: &DeviceOptions) -> Result<Arc<EthDev>, String> {
        if EthDev::find(options.args.name()).is_some() {
            return Err(format!("DPDK device {} has a port already", options.args.name()));
        }
        options.args.check()?;
        eal::start(options.pages, &options.args, maintain)?;
        let args = options.args.completed();
        args.remove_stale_socket();
        let port = probe(&args)?;
        match set_up(&args, port, options) {
            Ok(device) => {
                let device = Arc::new(device);
                device.start()?;
                let mut all = devices();
                all.retain(|d| d.strong_count() > 0);
                all.push(Arc::downgrade(&device));
                Ok(device)
            }
            Err(sentence) => {
                let _one = plug();
                // SAFETY: the port has no user; a port that cannot be removed stays unused.
                unsafe { ffi::bd_remove(port) };
                Err(sentence)
            }
        }
    }

    /// The open device of this name.
    pub fn find(name: &str) -> Option<Arc<EthDev>> {
        devices().iter().filter_map(Weak::upgrade).find(|d| d.args.name() == name)
    }

    /// The queue pair of worker `index`; the caller becomes its only user.
    pub fn queue_pair(self: &Arc<EthDev>, index: u16) -> EthQueue {
        let pools = self.pools[usize::from(index)];
        EthQueue::new(self.clone(), index, pools, usize::from(self.mtu) + 14)
    }

    /// MAC address.
    pub fn mac(&self) -> [u8; 6] {
        self.facts.mac
    }
    /// MTU of the link: bytes of the longest IP packet.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }
    /// State of the link at the last check.
    pub fn link(&self) -> LinkState {
        let word = self.link.load(Ordering::Relaxed);
        LinkState { up: word & UP != 0, speed_mbps: word & !UP }
    }
    /// Checks the link.
    pub fn refresh(&self) -> LinkState {
        let mut control = self.control();
        self.check_link(&mut control);
        self.link()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Enters the gate as worker `queue`; `None` while the device is not running.
    #[inline]
    pub(crate) fn enter(&self, queue: u16) -> Option<InsideGate<'_>> {
        let inside = InsideGate(&self.gate.inside[usize::from(queue)].0);
        // Pairs with `RunGate::close`. Dropping `inside` clears the flag again.
        inside.0.store(true, Ordering::SeqCst);
        self.gate.open.load(Ordering::SeqCst).then_some(inside)
    }

    fn control(&self) -> MutexGuard<'_, DeviceControl> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the device for the first time. A client may start without its server.
    fn start(&self) -> Result<(), String> {
        let mut control = self.control();
        let error = self.start_locked(&mut control);
        if error == 0 {
            self.check_link(&mut control);
            return Ok(());
        }
        if self.args.is_client() {
            tracing::info!("DPDK device {} waits for its server{}", self.args.name(), eal::last_error());
            return Ok(());
        }
        Err(refused("start", &self.args, error))
    }

    fn start_locked(&self, control: &mut DeviceControl) -> i32 {
        debug_assert!(!control.started && !self.gate.open.load(Ordering::SeqCst), "stopped, and the gate is closed");
        // SAFETY: control functions run one at a time, and no worker is inside the gate.
        let error = unsafe { ffi::bd_start(self.port) };
        control.started = error == 0;
        control.checks_down = 0;
        self.gate.open.store(control.started, Ordering::SeqCst);
        error
    }

    fn stop_locked(&self, control: &mut DeviceControl) {
        self.gate.close();
        if control.started {
            // SAFETY: as in `start_locked`. A device that cannot be stopped is removed or started nevertheless.
            unsafe { ffi::bd_stop(self.port) };
            control.started = false;
        }
        debug_assert!(!self.gate.open.load(Ordering::SeqCst));
    }

    /// Reads the state of the link.
    fn check_link(&self, control: &mut DeviceControl) {
        let mut speed = 0;
        // SAFETY: `speed` is written by the call.
        let up = control.started && unsafe { ffi::bd_link(self.port, &mut speed) } == 1;
        let before = self.link();
        let word = if up { UP | speed.min(UP - 1) } else { 0 };
        self.link.store(word, Ordering::Relaxed);
        if before.up != up {
            tracing::info!("DPDK device {}: link {}", self.args.name(), if up { "up" } else { "down" });
        }
    }

    /// Checks the link, and restarts a client that has lost its server.
    fn maintain(&self) {
        let mut control = self.control();
        self.check_link(&mut control);
        if self.link().up || !self.args.is_client() {
            control.checks_down = 0;
            return;
        }
        control.checks_down += 1;
        if !control.started || control.checks_down >= RESTART_AFTER {
            self.stop_locked(&mut control);
            // The next maintenance call tries again. The driver's last_error is the same each time, so it is discarded.
            self.start_locked(&mut control);
            eal::last_error();
        }
    }
}

impl Drop for EthDev {
    fn drop(&mut self) {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        self.gate.close();
        if control.started {
            // SAFETY: the device has no user any more.
            unsafe { ffi::bd_stop(self.port) };
            control.started = false;
        }
        let _one = plug();
        // SAFETY: as above; the pools are freed after the queues that used them were closed.
        unsafe {
            ffi::bd_remove(self.port);
            self.pools.iter_mut().for_each(|pools| ffi::bd_free_pools(pools));
        }
    }
}

fn refused(what: &str, args: &DevArgs, error: i32) -> String {
    let error = std::io::Error::from_raw_os_error(-error);
    format!("DPDK cannot {what} device '{args}': {error}{}", eal::last_error())
}

/// Probes the device; returns its port number.
fn probe(args: &DevArgs) -> Result<u16, String> {
    let text = CString::new(args.to_string()).map_err(|_| "a device's arguments hold a zero byte".to_owned())?;
    let name = CString::new(args.name()).map_err(|_| "a device's name holds a zero byte".to_owned())?;
    let mut port = 0;
    let _one = plug();
    eal::last_error();
    // SAFETY: the strings live during the call, which writes `port`.
    let error = unsafe { ffi::bd_probe(text.as_ptr(), name.as_ptr(), &mut port) };
    if error == 0 { Ok(port) } else { Err(refused("take", args, error)) }
}

/// Configures MTU, queues and pools.
fn set_up(args: &DevArgs, port: u16, options: &DeviceOptions) -> Result<EthDev, String> {
    let mut facts = DeviceFacts::default();
    // SAFETY: `facts` is written by the call.
    let error = unsafe { ffi::bd_facts(port, &mut facts) };
    if error != 0 {
        return Err(refused("ask", args, error));
    }
    let queues_max = facts.rx_queues_max.min(facts.tx_queues_max);
    if options.queues > queues_max {
        return Err(format!(
            "DPDK device {} has {queues_max} queues, but there are {} workers; start burstd with --workers {queues_max}",
            args.name(),
            options.queues
        ));
    }
    let mtu = mtu_of(args, &facts, options.mtu)?;
    let tell = if args.driver().ignores_mtu { 0 } else { options.mtu.unwrap_or(0) };
    let room = (u32::from(mtu) + LINK_OVERHEAD).max(args.room_min()).next_multiple_of(LINE);
    let setup = DeviceSetup {
        queues: options.queues,
        rx_descriptors: RX_DESCRIPTORS,
        tx_descriptors: TX_DESCRIPTORS,
        mtu: tell,
        room,
        rx_buffers: u32::from(RX_DESCRIPTORS) + RX_SPARE,
        tx_buffers: u32::from(TX_DESCRIPTORS) + RX_SPARE,
    };
    let mut pools = vec![QueuePools::NONE; usize::from(options.queues)];
    // SAFETY: `pools` has an element for each queue.
    let error = unsafe { ffi::bd_configure(port, &setup, pools.as_mut_ptr()) };
    if error != 0 {
        // SAFETY: the device was never started; the caller removes it, which closes the queues.
        unsafe { pools.iter_mut().for_each(|pools| ffi::bd_free_pools(pools)) };
        return Err(refused("set up", args, error));
    }
    Ok(EthDev {
        args: args.clone(),
        port,
        facts,
        mtu,
        pools,
        gate: RunGate::new(options.queues),
        control: Mutex::default(),
        link: AtomicU32::new(0),
    })
}

/// MTU of the link: the requested one, or the driver's, or the device's, limited to frames that the device carries.
fn mtu_of(args: &DevArgs, facts: &DeviceFacts, requested: Option<u16>) -> Result<u16, String> {
    let own = if args.driver().mtu != 0 { args.driver().mtu } else { facts.mtu };
    let most = args.frame_max().map_or(u32::MAX, |frame| frame.saturating_sub(LINK_OVERHEAD - 4));
    let mtu = u32::from(requested.unwrap_or(own));
    if requested.is_some() && mtu > most {
        return Err(format!("mtu={mtu} does not fit the device's buffers: '{args}' carries up to {most}"));
    }
    Ok(mtu.min(most) as u16)
}
