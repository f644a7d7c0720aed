//! What lies between a program and its adapter, and between an adapter and memory: the parameters of OpenURMA's table 7.
//!
//! The Unified Bus joins processor, memory and adapter by one bus; a RoCE adapter is reached through PCI Express. A
//! [`HostInterface`] has a number for each step, in nanoseconds. The closed form ([`crate::closed_form`]) adds them up;
//! the simulated hosts ([`crate::host`]) wait for them around the real protocol code.

/// A cycle of the adapters of the paper, in picoseconds: 322 MHz.
pub const CYCLE_PS: u64 = 3_106;
/// Bytes that an adapter moves in a cycle.
pub const FLIT_BYTES: u64 = 32;
/// Entries of a RoCE adapter's cache of queue pairs.
pub const QP_CACHE: u64 = 512;
/// Entries of a bus adapter's cache of Jetties and channels.
pub const JETTY_CACHE: u64 = 2_048;

/// How programs reach remote memory: the paper's four columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StudyStack {
    /// Loads and stores of the bus, without work requests.
    LoadStore,
    /// Work requests of URMA on the bus.
    Urma,
    /// RC queue pairs behind PCI Express; a work request of up to 64 bytes is written to the adapter with its doorbell.
    BlueFlame,
    /// RC queue pairs behind PCI Express; the adapter fetches work requests.
    Dma,
}

impl StudyStack {
    /// All of them, in the order of the paper's columns.
    pub const ALL: [StudyStack; 4] = [StudyStack::LoadStore, StudyStack::Urma, StudyStack::BlueFlame, StudyStack::Dma];

    /// The column's name.
    pub const fn name(self) -> &'static str {
        match self {
            StudyStack::LoadStore => "UB load/store",
            StudyStack::Urma => "UB URMA",
            StudyStack::BlueFlame => "RoCE BlueFlame",
            StudyStack::Dma => "RoCE DMA",
        }
    }
    /// Whether it uses the bus.
    pub const fn is_bus(self) -> bool {
        matches!(self, StudyStack::LoadStore | StudyStack::Urma)
    }
    /// Its interface.
    pub const fn interface(self) -> HostInterface {
        match self {
            StudyStack::LoadStore => LOAD_STORE,
            StudyStack::Urma => URMA,
            StudyStack::BlueFlame | StudyStack::Dma => ROCE,
        }
    }
    /// Nanoseconds in which the adapter gets a work request with so many bytes of payload.
    pub const fn submit(self, payload: u64) -> u64 {
        let interface = self.interface();
        match self {
            StudyStack::BlueFlame if payload <= BLUEFLAME_BYTES => interface.doorbell,
            _ => interface.doorbell + interface.fetch,
        }
    }
}

/// Payload of a work request that is written to the adapter with its doorbell.
const BLUEFLAME_BYTES: u64 = 64;

/// An interface, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostInterface {
    /// The walk through the caches of a load that misses.
    pub walk: u64,
    /// The library's part of a post, on the processor.
    pub post: u64,
    /// Building the work request, on the processor.
    pub build: u64,
    /// Telling the adapter: the bus, or a write to a register behind PCI Express.
    pub doorbell: u64,
    /// The adapter's fetch of the work request.
    pub fetch: u64,
    /// The order engine's check of a request with strong order.
    pub order_strong: u64,
    /// The order check of every request.
    pub order_always: u64,
    /// Cycles of the adapter's stages, in each direction.
    pub nic_cycles: u64,
    /// The target's adapter reads from memory.
    pub memory_read: u64,
    /// The target's adapter writes to memory.
    pub memory_write: u64,
    /// Memory itself.
    pub dram: u64,
    /// The target takes a receive for a message.
    pub receive: u64,
    /// The initiator's adapter writes what was read to memory.
    pub response_write: u64,
    /// The completion gets to memory.
    pub completion: u64,
    /// The program finds the completion, on the processor.
    pub poll: u64,
    /// The library's part of a poll, on the processor.
    pub poll_library: u64,
    /// Fetching a context that the adapter's cache does not have.
    pub context: u64,
}

/// On the bus, by loads and stores.
pub const LOAD_STORE: HostInterface =
    HostInterface { walk: 70, post: 0, build: 0, nic_cycles: 8, poll: 0, poll_library: 0, ..URMA };

/// On the bus, by work requests.
pub const URMA: HostInterface = HostInterface {
    walk: 0,
    post: 50,
    build: 30,
    doorbell: 30,
    fetch: 0,
    order_strong: 20,
    order_always: 0,
    nic_cycles: 25,
    memory_read: 30,
    memory_write: 30,
    dram: 30,
    receive: 54,
    response_write: 0,
    completion: 30,
    poll: 5,
    poll_library: 30,
    context: 100,
};

/// Behind PCI Express.
pub const ROCE: HostInterface = HostInterface {
    walk: 0,
    post: 50,
    build: 30,
    doorbell: 150,
    fetch: 500,
    order_strong: 0,
    order_always: 50,
    nic_cycles: 9,
    memory_read: 500,
    memory_write: 250,
    dram: 30,
    receive: 54,
    response_write: 250,
    completion: 250,
    poll: 70,
    poll_library: 30,
    context: 500,
};
