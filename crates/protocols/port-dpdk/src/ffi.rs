//! The shim's functions, as `csrc/shim.h` declares them; both sides check the layouts.
//!
//! Rules for callers: the functions of a device are called by one thread at a time; `bd_rx`, `bd_tx` and the other functions of a
//! queue only by the queue's owner, while the device is started; an mbuf is used only by the thread that got it from `bd_alloc`
//! or `bd_rx`, until it is passed to `bd_tx`, `bd_free` or `bd_rx_done`.

use core::ffi::{c_char, c_int, c_void};

/// A received packet: its first segment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RxPacket {
    pub mbuf: *mut c_void,
    pub data: *const u8,
    /// Bytes of all segments.
    pub len: u32,
    pub segments: u32,
}

impl RxPacket {
    pub const NONE: RxPacket = RxPacket { mbuf: core::ptr::null_mut(), data: core::ptr::null(), len: 0, segments: 0 };
}

const _: () = assert!(size_of::<RxPacket>() == 24);

/// Properties of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceFacts {
    pub driver: [u8; 32],
    pub mac: [u8; 6],
    pub mtu: u16,
    pub mtu_max: u16,
    pub rx_queues_max: u16,
    pub tx_queues_max: u16,
    pub has_rss: u8,
    pub rx_scatter: u8,
}

/// The wanted configuration of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceSetup {
    pub queues: u16,
    pub rx_descriptors: u16,
    pub tx_descriptors: u16,
    /// MTU in bytes; 0 leaves it unchanged.
    pub mtu: u16,
    /// Bytes of a receive buffer without headroom.
    pub room: u32,
    pub rx_buffers: u32,
    pub tx_buffers: u32,
}

/// The memory pools of one queue pair.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct QueuePools {
    pub rx: *mut c_void,
    pub tx: *mut c_void,
}

impl QueuePools {
    pub const NONE: QueuePools = QueuePools { rx: core::ptr::null_mut(), tx: core::ptr::null_mut() };
}

pub type LogLine = unsafe extern "C" fn(level: u32, text: *const c_char, length: usize);

// SAFETY: the signatures are those of csrc/shim.h; callers keep the rules at the top of this file.
unsafe extern "C" {
    pub fn bd_log_to(line: LogLine, level: u32) -> c_int;
    pub fn bd_eal_init(argc: c_int, argv: *mut *mut c_char) -> c_int;
    pub fn bd_thread_register() -> c_int;
    pub fn bd_thread_unregister();

    pub fn bd_probe(devargs: *const c_char, name: *const c_char, port: *mut u16) -> c_int;
    pub fn bd_remove(port: u16) -> c_int;
    pub fn bd_facts(port: u16, facts: *mut DeviceFacts) -> c_int;
    pub fn bd_configure(port: u16, setup: *const DeviceSetup, pools: *mut QueuePools) -> c_int;
    pub fn bd_start(port: u16) -> c_int;
    pub fn bd_stop(port: u16) -> c_int;
    pub fn bd_link(port: u16, speed_mbps: *mut u32) -> c_int;
    pub fn bd_free_pools(pools: *mut QueuePools);
    pub fn bd_rx_event_open(port: u16, queue: u16) -> c_int;
    pub fn bd_rx_event_arm(port: u16, queue: u16) -> c_int;
    pub fn bd_rx_event_drain(port: u16, queue: u16, events: c_int);
    pub fn bd_rx_waiting(port: u16, queue: u16) -> c_int;

    pub fn bd_rx(port: u16, queue: u16, out: *mut RxPacket, n: u16) -> u16;
    pub fn bd_rx_done(packets: *const RxPacket, n: u16);
    pub fn bd_flatten(mbuf: *const c_void, out: *mut u8, max: u32) -> u32;
    pub fn bd_alloc(pool: *mut c_void, mbufs: *mut *mut c_void, n: u16) -> c_int;
    pub fn bd_free(mbufs: *mut *mut c_void, n: u16);
    pub fn bd_fill(mbuf: *mut c_void, len: u16) -> *mut u8;
    pub fn bd_tx(port: u16, queue: u16, mbufs: *mut *mut c_void, n: u16) -> u16;
}
