//! What the ports of one device share: the queue pairs, the addresses that workers have learnt, and the guests.
//!
//! A device belongs to the ports of the transport that has opened it, one for each worker. Ports of other transports
//! ([`crate::guest`]) are its *guests*: they send by the queue pair of the worker that runs them ([`EthLine`]), and get received
//! packets by an inbox, because a device spreads packets over its queues by rules that know no transport. A guest runs on the
//! thread of its worker, so no thread waits for the lock of a line.

use crate::inbox::GuestInbox;
use crate::queue::EthQueue;
use burst_frame::Flow;
use burst_port::PortError;
use burst_port::lan::{Lan, SharedNeighbours};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The queue pair of a worker, and its functions of a host on the LAN.
pub struct EthLine {
    pub queue: EthQueue,
    pub lan: Lan,
}

impl EthLine {
    /// Stages a frame of the LAN. Without a free buffer the frame is lost, as it may be on any link, and is repeated later.
    pub fn emit(queue: &mut EthQueue, frame: &[u8]) {
        if queue.is_full() {
            queue.flush();
        }
        if let Some(buffer) = queue.frame(frame.len()) {
            buffer.copy_from_slice(frame);
        }
    }
}

/// What the ports of one device share.
#[derive(Default)]
pub struct DeviceShare {
    /// UDP port of the transport that has opened the device.
    udp_port: u16,
    pub neighbours: Arc<SharedNeighbours>,
    /// The queue pairs, by worker. A guest keeps its own one open.
    lines: Mutex<Vec<Weak<Mutex<EthLine>>>>,
    guests: Mutex<Vec<Arc<GuestInbox>>>,
    /// Changes with each change of `guests`.
    generation: AtomicU32,
}

/// Locks what no panic leaves half changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The shares of the open devices, by name.
static SHARES: Mutex<Vec<(String, Weak<DeviceShare>)>> = Mutex::new(Vec::new());

impl DeviceShare {
    /// The share of a device that worker 0 has just opened for packets to `udp_port`: no port has learnt anything.
    pub fn begin(device: &str, udp_port: u16) -> Arc<DeviceShare> {
        let share = Arc::new(DeviceShare { udp_port, ..DeviceShare::default() });
        let mut all = lock(&SHARES);
        all.retain(|(name, share)| share.strong_count() > 0 && name != device);
        all.push((device.to_owned(), Arc::downgrade(&share)));
        share
    }

    /// The share of an open device.
    ///
    /// # Errors
    /// The device is closed.
    pub fn find(device: &str) -> Result<Arc<DeviceShare>, PortError> {
        let found = lock(&SHARES).iter().find(|(name, _)| name == device).and_then(|(_, share)| share.upgrade());
        found.ok_or_else(|| PortError::Device(format!("DPDK device {device} is closed")))
    }

    /// Adds the queue pair of the next worker.
    pub fn add_line(&self, line: EthLine) -> Arc<Mutex<EthLine>> {
        let line = Arc::new(Mutex::new(line));
        lock(&self.lines).push(Arc::downgrade(&line));
        line
    }

    /// The queue pair of a worker.
    pub fn line(&self, worker: usize) -> Option<Arc<Mutex<EthLine>>> {
        lock(&self.lines).get(worker)?.upgrade()
    }

    /// Adds a guest.
    ///
    /// # Errors
    /// [`PortError::InUse`]: another port gets the packets to its address and UDP port.
    pub fn add_guest(&self, inbox: Arc<GuestInbox>) -> Result<(), PortError> {
        let (addr, port) = (inbox.address, inbox.udp_port);
        let mut guests = lock(&self.guests);
        if port == self.udp_port || guests.iter().any(|guest| (guest.address, guest.udp_port) == (addr, port)) {
            return Err(PortError::InUse { addr, port });
        }
        guests.push(inbox);
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Removes a guest.
    pub fn remove_guest(&self, inbox: &Arc<GuestInbox>) {
        lock(&self.guests).retain(|guest| !Arc::ptr_eq(guest, inbox));
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The guest that gets the packets of a flow to a UDP port.
    pub fn guest_of(&self, flow: &Flow, udp_port: u16) -> Option<Arc<GuestInbox>> {
        lock(&self.guests).iter().find(|guest| guest.takes(flow.dst, udp_port)).cloned()
    }
}

/// A worker's copy of the list of guests: without guests a packet costs nothing, and with them no lock.
#[derive(Default)]
pub struct KnownGuests {
    list: Vec<Arc<GuestInbox>>,
    generation: u32,
}

impl KnownGuests {
    /// Follows the changes of the list.
    #[inline]
    pub fn follow(&mut self, share: &DeviceShare) {
        // Pairs with the changes of the list. A guest that has just come misses the packets of this burst.
        let generation = share.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.generation = generation;
            self.list.clone_from(&lock(&share.guests));
        }
    }

    /// The guests.
    pub fn all(&self) -> &[Arc<GuestInbox>] {
        &self.list
    }
}

impl GuestInbox {
    /// Whether the guest gets the packets to an address and a UDP port.
    pub fn takes(&self, dst: IpAddr, udp_port: u16) -> bool {
        self.address == dst && self.udp_port == udp_port
    }
}
