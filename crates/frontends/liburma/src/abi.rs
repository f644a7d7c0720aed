//! Structures that cross the C interface, x86-64 and alike. Sizes and offsets are asserted; `tests/layout.sh` compares them
//! with UMDK's headers where those are at hand.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

/// Entity id, in network order; in the C interface a union with 64-bit members.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Eid(pub [u8; 16]);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ObjectId {
    pub eid: Eid,
    pub uasid: u32,
    pub id: u32,
}

#[repr(C)]
pub struct UrmaDevice {
    pub name: [c_char; 64],
    pub path: [c_char; 4096],
    pub kind: c_int,
    pub ops: *mut c_void,
    pub sysfs: *mut c_void,
}

#[repr(C)]
pub struct EidInfo {
    pub eid: Eid,
    pub index: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct PriorityInfo {
    pub sl: u32,
    pub tp_type: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceCap {
    pub feature: u32,
    pub max_jfc: u32,
    pub max_jfs: u32,
    pub max_jfr: u32,
    pub max_jetty: u32,
    pub max_jetty_grp: u32,
    pub max_jetty_in_grp: u32,
    pub max_jfc_depth: u32,
    pub max_jfs_depth: u32,
    pub max_jfr_depth: u32,
    pub max_inline: u32,
    pub max_jfs_sge: u32,
    pub max_jfs_rsge: u32,
    pub max_jfr_sge: u32,
    pub max_msg_size: u64,
    /// Read, write, CAS, swap, fetch and add, subtract, and, or, exclusive or.
    pub max_sizes: [u32; 9],
    pub atomic_feature: u32,
    pub trans_mode: u16,
    pub reserved: u16,
    pub cc_alg: u16,
    pub ceq_cnt: u32,
    pub max_tp_in_tpg: u32,
    pub max_eid_cnt: u32,
    pub page_size_cap: u64,
    pub user_tp: [u32; 3],
    pub order_caps: [u32; 2],
    pub tp_caps: [u32; 3],
    pub tp_feature: u32,
    pub priority: [PriorityInfo; 16],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceAttr {
    pub guid: [u8; 16],
    pub cap: DeviceCap,
    pub port_cnt: u8,
    pub ports: [[u32; 5]; 8],
    pub reserved_min: u32,
    pub reserved_max: u32,
}

/// Room of `pthread_mutex_t` in 64-bit words.
pub const MUTEX: usize = size_of::<libc::pthread_mutex_t>() / 8;
/// Room of a mutex, a condition and a counter of events.
pub const SYNC: usize = MUTEX + size_of::<libc::pthread_cond_t>() / 8 + 1;
/// By how many bytes a mutex is longer than on x86-64.
const LONGER: usize = MUTEX * 8 - 40;

#[repr(C)]
pub struct UrmaContext {
    pub dev: *mut UrmaDevice,
    pub ops: *const c_void,
    pub dev_fd: c_int,
    pub async_fd: c_int,
    pub mutex: [u64; MUTEX],
    pub eid: Eid,
    pub eid_index: u32,
    pub uasid: u32,
    pub refs: u64,
    pub aggr_mode: c_int,
}

#[repr(C)]
pub struct UrmaJfce {
    pub ctx: *mut UrmaContext,
    pub fd: c_int,
    pub refs: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct JfcCfg {
    pub depth: u32,
    pub flag: u32,
    pub ceqn: u32,
    pub jfce: *mut UrmaJfce,
    pub user_ctx: u64,
}

/// Options of a queue beside its configuration (`urma_jfc_opt_t` and alike).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QueueOpt {
    pub mask: u64,
    pub is_active: bool,
    pub base_addr: u64,
    pub id: u32,
    pub doorbell: u64,
    pub doorbell_status: u8,
    pub producer: u16,
    pub producer_type: u16,
    pub consumer: u16,
    pub reserved: [u64; 4],
}

/// Options of a Jetty.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct JettyOpt {
    pub is_active: bool,
    pub jfs: QueueOpt,
    pub reserved: [u64; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct GroupCfg {
    pub name: [c_char; 64],
    pub flag: u32,
    pub token: u32,
    pub id: u32,
    pub policy: u32,
    pub user_ctx: u64,
}

#[repr(C)]
pub struct UrmaJettyGroup {
    pub ctx: *mut UrmaContext,
    pub id: ObjectId,
    pub cfg: GroupCfg,
    pub count: u32,
    pub list: *mut *mut UrmaJetty,
    pub list_mutex: [u64; MUTEX],
    pub handle: u64,
    pub sync: [u64; SYNC],
}

/// Mask, and state or threshold, of `urma_query_jfs` (state second), `urma_query_jfr` and `urma_query_jetty` (state third).
#[repr(C)]
pub struct QueueAttr {
    pub mask: u32,
    pub threshold: u32,
    pub state: u32,
}

#[repr(C)]
pub struct UrmaNotifier {
    pub ctx: *mut UrmaContext,
    pub fd: c_int,
    pub list: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UrmaNotify {
    /// 0 import, 1 bind.
    pub kind: u32,
    pub status: Status,
    pub user_ctx: u64,
    pub object: *mut c_void,
}

/// `in_addr` and `in6_addr` in a union: four-byte alignment.
#[repr(C, align(4))]
#[derive(Clone, Copy)]
pub struct AlignedAddress(pub [u8; 16]);

#[repr(C)]
pub struct NetAddr {
    pub family: u16,
    /// IPv4: the first four bytes.
    pub address: AlignedAddress,
    pub vlan: u64,
    pub mac: [u8; 6],
    pub prefix_len: u32,
}

#[repr(C)]
pub struct UrmaJfc {
    pub ctx: *mut UrmaContext,
    pub id: ObjectId,
    pub cfg: JfcCfg,
    pub handle: u64,
    pub sync: [u64; SYNC],
    pub opt: QueueOpt,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct JfsCfg {
    pub depth: u32,
    pub flag: u32,
    pub trans_mode: u32,
    pub priority: u8,
    pub max_sge: u8,
    pub max_rsge: u8,
    pub max_inline: u32,
    pub rnr_retry: u8,
    pub err_timeout: u8,
    pub jfc: *mut UrmaJfc,
    pub user_ctx: u64,
}

#[repr(C)]
pub struct UrmaJfs {
    pub ctx: *mut UrmaContext,
    pub id: ObjectId,
    pub cfg: JfsCfg,
    pub handle: u64,
    pub sync: [u64; SYNC],
    pub opt: QueueOpt,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct JfrCfg {
    pub id: u32,
    pub depth: u32,
    pub flag: u32,
    pub trans_mode: u32,
    pub max_sge: u8,
    pub min_rnr_timer: u8,
    pub jfc: *mut UrmaJfc,
    pub token: u32,
    pub user_ctx: u64,
}

#[repr(C)]
pub struct UrmaJfr {
    pub ctx: *mut UrmaContext,
    pub id: ObjectId,
    pub cfg: JfrCfg,
    pub handle: u64,
    pub sync: [u64; SYNC],
    pub opt: QueueOpt,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct JettyCfg {
    pub id: u32,
    pub flag: u32,
    pub jfs: JfsCfg,
    pub jfr: *mut UrmaJfr,
    pub jfr_jfc: *mut UrmaJfc,
    pub group: *mut UrmaJettyGroup,
    pub user_ctx: u64,
}

#[repr(C)]
pub struct UrmaJetty {
    pub ctx: *mut UrmaContext,
    pub id: ObjectId,
    pub remote: *mut TargetJetty,
    pub cfg: JettyCfg,
    pub handle: u64,
    pub sync: [u64; SYNC],
    pub opt: JettyOpt,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RJfr {
    pub id: ObjectId,
    pub trans_mode: u32,
    pub flag: u32,
    pub tp_type: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RJetty {
    pub id: ObjectId,
    pub trans_mode: u32,
    pub policy: u32,
    pub kind: u32,
    pub flag: u32,
    pub tp_type: u32,
}

#[repr(C)]
pub struct TargetJetty {
    pub ctx: *mut UrmaContext,
    pub id: ObjectId,
    pub handle: u64,
    pub trans_mode: u32,
    pub tpn: u32,
    pub kind: u32,
    pub flag: u32,
    pub policy: u32,
    pub tp_type: u32,
}

#[repr(C)]
pub struct TokenId {
    pub ctx: *mut UrmaContext,
    pub token_id: u32,
    pub handle: u64,
    pub refs: u64,
    pub flag: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct SegCfg {
    pub va: u64,
    pub len: u64,
    pub token_id: *mut TokenId,
    pub token: u32,
    pub flag: u32,
    pub user_ctx: u64,
    pub iova: u64,
}

#[repr(C, packed)]
#[derive(Clone, Copy)]
pub struct UbVa {
    pub eid: [u8; 16],
    pub uasid: u32,
    pub va: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UrmaSeg {
    pub ubva: UbVa,
    pub len: u64,
    pub attr: u32,
    pub token_id: u32,
}

#[repr(C)]
pub struct TargetSeg {
    pub seg: UrmaSeg,
    pub user_ctx: u64,
    pub mva: u64,
    pub ctx: *mut UrmaContext,
    pub token_id: *mut TokenId,
    pub handle: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UrmaSge {
    pub addr: u64,
    pub len: u32,
    pub tseg: *mut TargetSeg,
    pub user_tseg: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UrmaSg {
    pub sge: *mut UrmaSge,
    pub num: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RwWr {
    pub src: UrmaSg,
    pub dst: UrmaSg,
    pub target_hint: u8,
    pub notify_data: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct SendWr {
    pub src: UrmaSg,
    pub target_hint: u8,
    pub imm_data: u64,
    pub tseg: *mut TargetSeg,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct AtomicWr {
    pub dst: *mut UrmaSge,
    pub src: *mut UrmaSge,
    /// Compare value or operand.
    pub first: u64,
    pub swap: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union WrBody {
    pub rw: RwWr,
    pub send: SendWr,
    pub atomic: AtomicWr,
}

#[repr(C)]
pub struct UrmaJfsWr {
    pub opcode: u32,
    pub flag: u32,
    pub tjetty: *mut TargetJetty,
    pub user_ctx: u64,
    pub body: WrBody,
    pub next: *mut UrmaJfsWr,
}

#[repr(C)]
pub struct UrmaJfrWr {
    pub src: UrmaSg,
    pub user_ctx: u64,
    pub next: *mut UrmaJfrWr,
}

#[repr(C)]
pub struct UrmaCr {
    pub status: u32,
    pub user_ctx: u64,
    pub opcode: u32,
    pub flag: u8,
    pub len: u32,
    pub local_id: u32,
    pub remote: ObjectId,
    pub imm_data: u64,
    pub tpn: u32,
    pub user_data: usize,
}

#[repr(C)]
pub struct UrmaAsyncEvent {
    pub ctx: *const UrmaContext,
    pub element: u64,
    pub kind: u32,
    pub private: *mut c_void,
}

macro_rules! layout {
    ($($ty:ty, $size:expr $(, $field:ident @ $at:expr)*;)+) => {
        $(const _: () = assert!(size_of::<$ty>() == $size); $(const _: () = assert!(offset_of!($ty, $field) == $at);)*)+
    };
}

layout! {
    ObjectId, 24, uasid @ 16, id @ 20;
    UrmaDevice, 4184, path @ 64, kind @ 4160, ops @ 4168, sysfs @ 4176;
    DeviceCap, 304, max_inline @ 40, max_msg_size @ 56, trans_mode @ 104, priority @ 172;
    DeviceAttr, 496, cap @ 16, port_cnt @ 320, ports @ 324, reserved_min @ 484, reserved_max @ 488;
    UrmaContext, 104 + LONGER, ops @ 8, dev_fd @ 16, async_fd @ 20, mutex @ 24, eid @ 64 + LONGER, eid_index @ 80 + LONGER, uasid @ 84 + LONGER,
        refs @ 88 + LONGER, aggr_mode @ 96 + LONGER;
    UrmaJfce, 24, fd @ 8, refs @ 16;
    JfcCfg, 32, jfce @ 16;
    QueueOpt, 80, is_active @ 8, base_addr @ 16, id @ 24, doorbell @ 32, doorbell_status @ 40, producer @ 42, producer_type @ 44, consumer @ 46;
    JettyOpt, 120, jfs @ 8;
    UrmaJfc, 248 + LONGER, id @ 8, cfg @ 32, handle @ 64, opt @ 168 + LONGER;
    JfsCfg, 40, jfc @ 24;
    UrmaJfs, 256 + LONGER, id @ 8, cfg @ 32, handle @ 72, opt @ 176 + LONGER;
    JfrCfg, 48, jfc @ 24, token @ 32;
    UrmaJfr, 264 + LONGER, id @ 8, cfg @ 32, handle @ 80, opt @ 184 + LONGER;
    JettyCfg, 80, jfs @ 8, jfr @ 48, group @ 64;
    UrmaJetty, 344 + LONGER, id @ 8, remote @ 32, cfg @ 40, handle @ 120, opt @ 224 + LONGER;
    GroupCfg, 88, flag @ 64, token @ 68, id @ 72, policy @ 76, user_ctx @ 80;
    UrmaJettyGroup, 280 + 2 * LONGER, id @ 8, cfg @ 32, count @ 120, list @ 128, handle @ 176 + LONGER;
    QueueAttr, 12;
    UrmaNotifier, 24, fd @ 8, list @ 16;
    UrmaNotify, 24, status @ 4, user_ctx @ 8, object @ 16;
    NetAddr, 48, address @ 4, vlan @ 24, mac @ 32, prefix_len @ 40;
    RJfr, 40;
    RJetty, 48;
    TargetJetty, 64, id @ 8, handle @ 32, trans_mode @ 40, tpn @ 44, kind @ 48, flag @ 52, policy @ 56, tp_type @ 60;
    SegCfg, 48;
    UrmaSeg, 48, len @ 32, attr @ 40, token_id @ 44;
    TargetSeg, 88, user_ctx @ 48, mva @ 56, ctx @ 64, token_id @ 72, handle @ 80;
    UrmaSge, 32, len @ 8, tseg @ 16, user_tseg @ 24;
    UrmaSg, 16;
    RwWr, 48, dst @ 16, target_hint @ 32, notify_data @ 40;
    SendWr, 40, target_hint @ 16, imm_data @ 24, tseg @ 32;
    AtomicWr, 32;
    UrmaJfsWr, 80, flag @ 4, tjetty @ 8, user_ctx @ 16, body @ 24, next @ 72;
    UrmaJfrWr, 32, user_ctx @ 16, next @ 24;
    UrmaCr, 80, user_ctx @ 8, opcode @ 16, flag @ 20, len @ 24, local_id @ 28, remote @ 32, imm_data @ 56, tpn @ 64, user_data @ 72;
    UrmaAsyncEvent, 32;
}
const _: () = assert!(size_of::<libc::pthread_mutex_t>().is_multiple_of(8) && size_of::<libc::pthread_cond_t>() == 48);

/// Return values of the interface.
pub type Status = c_int;
pub const SUCCESS: Status = 0;
pub const EINVAL: Status = libc::EINVAL;
pub const ENOMEM: Status = libc::ENOMEM;
pub const EAGAIN: Status = libc::EAGAIN;
pub const EEXIST: Status = libc::EEXIST;
pub const EPERM: Status = libc::EPERM;
pub const FAIL: Status = 0x1000;
