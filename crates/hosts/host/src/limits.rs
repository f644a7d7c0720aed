//! The limits of every device, as `ibv_query_device` reports them.

use burst_base::Qpn;
use burst_cm::WORKER_QUEUE_MAX;
use burst_control::Limits;
use burst_control::events::BACKLOG_MAX;
use burst_mem::key::INDEX_MAX;
use burst_shm::{CQE_MAX, INLINE_MAX, SGE_MAX, WR_MAX};
use burst_transport::{MESSAGE_BYTES_MAX, RD_ATOMIC_MAX};

/// Maximum number of workers of one host, numbers that are lent included.
pub const WORKERS_MAX: usize = Qpn::WORKER_MASK as usize + 1;
/// Maximum number of connections to the daemon.
pub const SESSIONS_MAX: usize = 16_384;
/// Maximum number of contexts of all devices.
pub const CONTEXTS_MAX: u32 = 1 << 16;
/// Maximum number of communication ids of all programs.
pub const CM_IDS_MAX: u64 = 1 << 19;
/// Maximum number of connection requests that wait for their listeners, of all workers.
pub const CM_REQUESTS_MAX: u64 = (WORKERS_MAX * WORKER_QUEUE_MAX) as u64;
/// Maximum number of events of connection management that wait in the daemon for all programs that do not read: 512 bytes each.
/// One program has a quarter at most.
pub const UNREAD_EVENTS_MAX: u64 = 4 * BACKLOG_MAX as u64;
/// Maximum number of bound addresses of all users: as many as there are ephemeral ports. So whatever numbers a user has bound, an
/// id that chooses none finds one, as long as its own user's share has room.
pub const PORTS_MAX: u64 = 60_999 - 32_768 + 1;
/// Maximum number of completion queues of URMA of all users.
pub const URMA_JFCS_MAX: u64 = 1 << 17;
/// Work requests of all programs that a node of URMA keeps. Each Jetty's depth is charged, so that no program's request finds the
/// table full.
pub const URMA_REQUESTS_MAX: u64 = 1 << 22;
/// Maximum number of hosts from which programs of all users import by URMA, each counted once for each user: three quarters of
/// the channels of a node. The rest is for hosts that import from this one.
pub const URMA_PEERS_MAX: u64 = 3072;
/// Maximum number of XRC domains of the host.
pub const XRC_DOMAINS_MAX: u32 = 1 << 16;
/// Maximum number of shared receive queues in XRC domains of the host. Number 0 means that there is none.
pub const XRC_SRQS_MAX: u32 = (1 << 16) - 1;
/// Maximum number of handles that refer to one XRC target queue pair, in all contexts. A worker writes each event of the target
/// to all of them, so their number is limited.
pub const XRC_HOLDS_MAX: u32 = 1024;
/// Maximum number of multicast groups of the host.
pub const GROUPS_MAX: u32 = 256;
/// Maximum number of queue pairs attached to one multicast group.
pub const GROUP_QPS_MAX: u32 = 1024;
/// Maximum number of joins of one multicast group by communication ids.
pub const GROUP_JOINS_MAX: u32 = 1024;

/// The limits of one device.
pub const LIMITS: Limits = Limits {
    max_qp: 100_000,
    max_qp_wr: WR_MAX,
    max_sge: SGE_MAX,
    max_inline: INLINE_MAX,
    max_cq: 1 << 17,
    max_cqe: CQE_MAX,
    max_mr: INDEX_MAX as u32,
    max_mw: 1 << 16,
    max_pd: 1 << 16,
    max_ah: 1 << 17,
    max_srq: 1 << 16,
    max_srq_wr: WR_MAX,
    max_rd_atomic: RD_ATOMIC_MAX as u32,
    max_msg_sz: MESSAGE_BYTES_MAX as u32,
    max_mr_size: 1 << 40,
    max_dm_size: 1 << 20,
    max_mcast_grp: GROUPS_MAX,
    max_mcast_qp_attach: GROUP_QPS_MAX,
};

const _: () = assert!(MESSAGE_BYTES_MAX <= u32::MAX as u64);
// Regions and windows share the keys of the daemon: a device cannot have more of either. Keys are charged, too.
const _: () = assert!(LIMITS.max_mr as usize <= INDEX_MAX && LIMITS.max_mw as usize <= INDEX_MAX);
