//! A device: probed, set up with one queue pair per worker, started, and looked after.
//!
//! Control functions run one at a time (`control`). A device may be stopped and started while workers poll it (a
//! memif client looks for its server that way): the [`Gate`] keeps workers out meanwhile, at the price of one ordered
//! store per burst. Everything ends with the last queue pair: stop, removal, pools.

use crate::devargs::{DevArgs, Pages};
use crate::eal;
use crate::ffi::{self, Facts, Pools, Setup};
use crate::queue::QueuePair;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Descriptors of a receive queue: one window of the largest packets, and no more memory than a cache holds.
const RX_DESCRIPTORS: u16 = 256;
/// Descriptors of a send queue.
const TX_DESCRIPTORS: u16 = 512;
/// Receive buffers beyond the descriptors: a burst in work, and what threads keep at hand.
const RX_SPARE: u32 = 256;
/// Ethernet header, VLAN tag, frame check sequence.
const LINK_OVERHEAD: u32 = 14 + 4 + 4;
/// Receive buffers are whole cache lines.
const LINE: u32 = 64;
/// Looks ([`eal::start`]'s pace) at a client without a link before it is started anew.
const PATIENCE: u32 = 10;

/// What a device shall be.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Name and arguments.
    pub args: DevArgs,
    /// Queue pairs: one per worker.
    pub queues: u16,
    /// MTU of the link; `None`: the driver's.
    pub mtu: Option<u16>,
    /// Memory.
    pub pages: Pages,
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Whether packets can pass.
    pub up: bool,
    /// Mbit/s, 0 if unknown.
    pub speed_mbps: u32,
}

/// Keeps workers out of a device that is not running.
struct Gate {
    open: AtomicBool,
    inside: Vec<Padded>,
}

/// A cache line of its own for each worker's word.
#[repr(align(64))]
struct Padded(AtomicBool);

/// See the module.
pub struct Device {
    args: DevArgs,
    port: u16,
    facts: Facts,
    mtu: u16,
    pools: Vec<Pools>,
    gate: Gate,
    /// Held while a control function runs; how many looks the link has been down.
    control: Mutex<Control>,
    /// [`UP`] and the speed.
    link: AtomicU32,
}

#[derive(Default)]
struct Control {
    started: bool,
    looks_down: u32,
}

// SAFETY: the pools are pointers to DPDK's memory, which any thread may use under the rules of `ffi`: the queue pairs,
// one owner each, take their pools; the device only frees them, after the last queue pair.
unsafe impl Send for Device {}
// SAFETY: as above; all else is atomic or locked.
unsafe impl Sync for Device {}

/// In `Device::link`: the link is up.
const UP: u32 = 1 << 31;

/// Devices that are open.
static DEVICES: Mutex<Vec<Weak<Device>>> = Mutex::new(Vec::new());

/// Devices are plugged in and out one at a time.
static PLUG: Mutex<()> = Mutex::new(());

fn plug() -> MutexGuard<'static, ()> {
    PLUG.lock().unwrap_or_else(PoisonError::into_inner)
}

fn devices() -> MutexGuard<'static, Vec<Weak<Device>>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks after all devices; DPDK's own thread calls it.
fn tend() {
    let all: Vec<Arc<Device>> = devices().iter().filter_map(Weak::upgrade).collect();
    all.iter().for_each(|device| device.tend());
}

impl Gate {
    fn new(queues: u16) -> Gate {
        let inside = (0..queues).map(|_| Padded(AtomicBool::new(false))).collect();
        Gate { open: AtomicBool::new(false), inside }
    }
    /// Closes it, and returns when nobody is inside.
    fn close(&self) {
        // Pairs with `enter`: either the worker sees it closed, or we see the worker.
        self.open.store(false, Ordering::SeqCst);
        for worker in &self.inside {
            while worker.0.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
    }
}

/// A worker is inside the gate as long as this lives.
pub struct Inside<'a>(&'a AtomicBool);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Device {
    /// Opens a device, starting DPDK if it is not running.
    ///
    /// # Errors
    /// A sentence.
    pub fn open(options: &DeviceOptions) -> Result<Arc<Device>, String> {
        if Device::find(options.args.name()).is_some() {
            return Err(format!("DPDK device {} has a port already", options.args.name()));
        }
        options.args.check()?;
        eal::start(options.pages, &options.args, tend)?;
        let args = options.args.completed();
        args.clear_the_way();
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
                // SAFETY: nobody uses the port; what cannot be removed stays unused.
                unsafe { ffi::bd_remove(port) };
                Err(sentence)
            }
        }
    }

    /// The open device of this name.
    pub fn find(name: &str) -> Option<Arc<Device>> {
        devices().iter().filter_map(Weak::upgrade).find(|d| d.args.name() == name)
    }

    /// The queue pair of worker `index`, which is its only user.
    pub fn queue_pair(self: &Arc<Device>, index: u16) -> QueuePair {
        let pools = self.pools[usize::from(index)];
        let lends = self.args.may_lend() && self.facts.is_multi_segment != 0;
        QueuePair::new(self.clone(), index, pools, usize::from(self.mtu) + 14, lends)
    }

    /// MAC address.
    pub fn mac(&self) -> [u8; 6] {
        self.facts.mac
    }
    /// MTU of the link: bytes of an IP packet.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }
    /// Index of the kernel's interface behind the device, 0 if there is none.
    pub fn if_index(&self) -> u32 {
        self.facts.if_index
    }
    /// The link when it was last looked at.
    pub fn link(&self) -> Link {
        let word = self.link.load(Ordering::Relaxed);
        Link { up: word & UP != 0, speed_mbps: word & !UP }
    }
    /// Looks at the link.
    pub fn refresh(&self) -> Link {
        let mut control = self.control();
        self.look(&mut control);
        self.link()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Enters the gate as worker `queue`; `None` while the device is not running.
    #[inline]
    pub(crate) fn enter(&self, queue: u16) -> Option<Inside<'_>> {
        let inside = Inside(&self.gate.inside[usize::from(queue)].0);
        // Pairs with `Gate::close`. A dropped `inside` says that we are out again.
        inside.0.store(true, Ordering::SeqCst);
        self.gate.open.load(Ordering::SeqCst).then_some(inside)
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts it for the first time. A client may start without its server.
    fn start(&self) -> Result<(), String> {
        let mut control = self.control();
        let error = self.start_locked(&mut control);
        if error == 0 {
            self.look(&mut control);
            return Ok(());
        }
        if self.args.is_client() {
            tracing::info!("DPDK device {} waits for its server{}", self.args.name(), eal::complaint());
            return Ok(());
        }
        Err(refused("start", &self.args, error))
    }

    fn start_locked(&self, control: &mut Control) -> i32 {
        // SAFETY: control functions run one at a time, and nobody is inside the gate.
        let error = unsafe { ffi::bd_start(self.port) };
        control.started = error == 0;
        control.looks_down = 0;
        self.gate.open.store(control.started, Ordering::SeqCst);
        error
    }

    fn stop_locked(&self, control: &mut Control) {
        self.gate.close();
        if control.started {
            // SAFETY: as in `start_locked`. A device that does not stop is removed or started all the same.
            unsafe { ffi::bd_stop(self.port) };
            control.started = false;
        }
    }

    /// Reads the link's state.
    fn look(&self, control: &mut Control) {
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

    /// One look: link, and a client's way back to its server.
    fn tend(&self) {
        let mut control = self.control();
        self.look(&mut control);
        if self.link().up || !self.args.is_client() {
            control.looks_down = 0;
            return;
        }
        control.looks_down += 1;
        if !control.started || control.looks_down >= PATIENCE {
            self.stop_locked(&mut control);
            // It tries again at the next look; the complaint is the same each time.
            self.start_locked(&mut control);
            eal::complaint();
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        self.gate.close();
        if control.started {
            // SAFETY: the last user is gone.
            unsafe { ffi::bd_stop(self.port) };
            control.started = false;
        }
        let _one = plug();
        // SAFETY: as above; the pools are freed after the queues that used them.
        unsafe {
            ffi::bd_remove(self.port);
            self.pools.iter_mut().for_each(|pools| ffi::bd_free_pools(pools));
        }
    }
}

fn refused(what: &str, args: &DevArgs, error: i32) -> String {
    let error = std::io::Error::from_raw_os_error(-error);
    format!("DPDK cannot {what} device '{args}': {error}{}", eal::complaint())
}

/// Plugs the device in.
fn probe(args: &DevArgs) -> Result<u16, String> {
    let text = CString::new(args.to_string()).map_err(|_| "a device's arguments hold a zero byte".to_owned())?;
    let name = CString::new(args.name()).map_err(|_| "a device's name holds a zero byte".to_owned())?;
    let mut port = 0;
    let _one = plug();
    eal::complaint();
    // SAFETY: the strings live during the call, which writes `port`.
    let error = unsafe { ffi::bd_probe(text.as_ptr(), name.as_ptr(), &mut port) };
    if error == 0 { Ok(port) } else { Err(refused("take", args, error)) }
}

/// MTU, queues, pools.
fn set_up(args: &DevArgs, port: u16, options: &DeviceOptions) -> Result<Device, String> {
    let mut facts = Facts::default();
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
    let setup = Setup {
        queues: options.queues,
        rx_descriptors: RX_DESCRIPTORS,
        tx_descriptors: TX_DESCRIPTORS,
        mtu: tell,
        room,
        rx_buffers: u32::from(RX_DESCRIPTORS) + RX_SPARE,
        tx_buffers: u32::from(TX_DESCRIPTORS) + RX_SPARE,
    };
    let mut pools = vec![Pools::NONE; usize::from(options.queues)];
    // SAFETY: `pools` has a place for each queue.
    let error = unsafe { ffi::bd_configure(port, &setup, pools.as_mut_ptr()) };
    if error != 0 {
        // SAFETY: the queues that were set up are closed with the device by the caller, which nobody has started.
        unsafe { pools.iter_mut().for_each(|pools| ffi::bd_free_pools(pools)) };
        return Err(refused("set up", args, error));
    }
    Ok(Device {
        args: args.clone(),
        port,
        facts,
        mtu,
        pools,
        gate: Gate::new(options.queues),
        control: Mutex::default(),
        link: AtomicU32::new(0),
    })
}

/// The link's MTU: asked for, or the driver's, or the device's, as far as frames of that length fit.
fn mtu_of(args: &DevArgs, facts: &Facts, wish: Option<u16>) -> Result<u16, String> {
    let own = if args.driver().mtu != 0 { args.driver().mtu } else { facts.mtu };
    let most = args.frame_max().map_or(u32::MAX, |frame| frame.saturating_sub(LINK_OVERHEAD - 4));
    let mtu = u32::from(wish.unwrap_or(own));
    if wish.is_some() && mtu > most {
        return Err(format!("mtu={mtu} does not fit the device's buffers: '{args}' carries up to {most}"));
    }
    Ok(mtu.min(most) as u16)
}
