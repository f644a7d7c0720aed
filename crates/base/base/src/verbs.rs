//! Enumerations and attributes of the verbs API that several crates use, with the numeric values of `infiniband/verbs.h`:
//! the library converts by number, the transport by name.

use crate::{Psn, Qkey, Qpn};
use serde::{Deserialize, Serialize};

macro_rules! number_enum {
    ($(#[$doc:meta])* $name:ident : $repr:ty { $($(#[$vdoc:meta])* $v:ident = $n:expr),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[repr($repr)]
        pub enum $name { $($(#[$vdoc])* $v = $n),+ }
        impl $name {
            /// All values, in numeric order.
            pub const ALL: &'static [$name] = &[$($name::$v),+];
            /// The value with this number, if there is one.
            pub const fn from_number(n: u32) -> Option<Self> {
                match n { $(x if x == $n as u32 => Some($name::$v),)+ _ => None }
            }
        }
    };
}

number_enum!(
    /// `enum ibv_wr_opcode`.
    WrOpcode: u8 {
        /// RDMA WRITE.
        RdmaWrite = 0,
        /// RDMA WRITE with immediate data.
        RdmaWriteWithImm = 1,
        /// SEND.
        Send = 2,
        /// SEND with immediate data.
        SendWithImm = 3,
        /// RDMA READ.
        RdmaRead = 4,
        /// Compare and swap, 8 bytes.
        AtomicCmpAndSwp = 5,
        /// Fetch and add, 8 bytes.
        AtomicFetchAndAdd = 6,
        /// Local invalidate.
        LocalInv = 7,
        /// Bind a memory window.
        BindMw = 8,
        /// SEND with invalidate.
        SendWithInv = 9,
    }
);

impl WrOpcode {
    /// The opcode of the request's completion.
    pub const fn completion(self) -> WcOpcode {
        match self {
            WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => WcOpcode::RdmaWrite,
            WrOpcode::RdmaRead => WcOpcode::RdmaRead,
            WrOpcode::AtomicCmpAndSwp => WcOpcode::CompSwap,
            WrOpcode::AtomicFetchAndAdd => WcOpcode::FetchAdd,
            WrOpcode::LocalInv => WcOpcode::LocalInv,
            WrOpcode::BindMw => WcOpcode::BindMw,
            WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::SendWithInv => WcOpcode::Send,
        }
    }
}

number_enum!(
    /// `enum ibv_wc_status`.
    WcStatus: u8 {
        /// The request completed successfully.
        Success = 0,
        /// A local SGE list is longer than the QP or path allows.
        LocLenErr = 1,
        /// The local QP could not carry out the operation.
        LocQpOpErr = 2,
        /// End-to-end context error (not used by RoCE).
        LocEecOpErr = 3,
        /// A local SGE lies outside its memory region, or the region lacks the right.
        LocProtErr = 4,
        /// The QP was in error before this request was executed.
        WrFlushErr = 5,
        /// Memory window bind failed.
        MwBindErr = 6,
        /// The responder answered with an unexpected opcode.
        BadRespErr = 7,
        /// Protection error while writing a received message.
        LocAccessErr = 8,
        /// The responder refused the request as invalid.
        RemInvReqErr = 9,
        /// The responder refused the remote memory access.
        RemAccessErr = 10,
        /// The responder could not complete the operation.
        RemOpErr = 11,
        /// All retries passed without an answer.
        RetryExcErr = 12,
        /// Receiver not ready after all RNR retries.
        RnrRetryExcErr = 13,
        /// RDD violation (not used by RoCE).
        LocRddViolErr = 14,
        /// Invalid RD request (not used by RoCE).
        RemInvRdReqErr = 15,
        /// Aborted by the peer.
        RemAbortErr = 16,
        /// Invalid EE context number.
        InvEecnErr = 17,
        /// Invalid EE context state.
        InvEecStateErr = 18,
        /// Fatal error.
        FatalErr = 19,
        /// Response timeout.
        RespTimeoutErr = 20,
        /// Any other error.
        GeneralErr = 21,
    }
);

number_enum!(
    /// `enum ibv_wc_opcode`.
    WcOpcode: u8 {
        /// A SEND of any kind finished.
        Send = 0,
        /// An RDMA WRITE finished.
        RdmaWrite = 1,
        /// An RDMA READ finished.
        RdmaRead = 2,
        /// A compare and swap finished.
        CompSwap = 3,
        /// A fetch and add finished.
        FetchAdd = 4,
        /// A window bind finished.
        BindMw = 5,
        /// A local invalidate finished.
        LocalInv = 6,
        /// A message was received.
        Recv = 128,
        /// An RDMA WRITE with immediate was received.
        RecvRdmaWithImm = 129,
    }
);

number_enum!(
    /// `enum ibv_qp_type`.
    QpType: u8 {
        /// Reliable connection.
        Rc = 2,
        /// Unreliable connection.
        Uc = 3,
        /// Unreliable datagram.
        Ud = 4,
        /// Extended reliable connection, the sending end (initiator).
        XrcSend = 9,
        /// Extended reliable connection, the receiving end (target).
        XrcRecv = 10,
    }
);

impl QpType {
    /// Whether packets are acknowledged.
    pub const fn is_reliable(self) -> bool {
        matches!(self, QpType::Rc | QpType::XrcSend | QpType::XrcRecv)
    }
    /// Whether the type is an end of an extended reliable connection.
    pub const fn is_xrc(self) -> bool {
        matches!(self, QpType::XrcSend | QpType::XrcRecv)
    }
}

number_enum!(
    /// `enum ibv_mw_type`.
    MwType: u8 {
        /// Bound through any queue pair of its domain; the library chooses its keys.
        One = 1,
        /// Bound to one queue pair; the program chooses the low byte of its keys.
        Two = 2,
    }
);

number_enum!(
    /// `enum ibv_qp_state`.
    QpState: u8 {
        /// Just created.
        Reset = 0,
        /// Receives may be posted.
        Init = 1,
        /// Ready to receive.
        Rtr = 2,
        /// Ready to send.
        Rts = 3,
        /// Send queue drained.
        Sqd = 4,
        /// Send queue error (UC, UD).
        Sqe = 5,
        /// Error: everything is flushed.
        Err = 6,
    }
);

number_enum!(
    /// `enum ibv_mtu`, the path MTU code.
    Mtu: u8 {
        /// 256 bytes.
        B256 = 1,
        /// 512 bytes.
        B512 = 2,
        /// 1024 bytes.
        B1024 = 3,
        /// 2048 bytes.
        B2048 = 4,
        /// 4096 bytes.
        B4096 = 5,
    }
);

impl Mtu {
    /// Payload bytes per packet.
    pub const fn bytes(self) -> u32 {
        128 << (self as u32)
    }
    /// The largest path MTU whose packets fit an interface MTU, with RoCEv2's worst headers (IPv6): none below 256.
    pub const fn for_link(link_mtu: u32) -> Option<Mtu> {
        // IPv6 40 + UDP 8 + BTH 12 + the longest extension (AtomicETH 28, or RETH 16 + immediate 4) + ICRC 4.
        const OVERHEAD: u32 = 40 + 8 + 12 + 28 + 4;
        if link_mtu >= 4096 + OVERHEAD {
            Some(Mtu::B4096)
        } else if link_mtu >= 2048 + OVERHEAD {
            Some(Mtu::B2048)
        } else if link_mtu >= 1024 + OVERHEAD {
            Some(Mtu::B1024)
        } else if link_mtu >= 512 + OVERHEAD {
            Some(Mtu::B512)
        } else if link_mtu >= 256 + OVERHEAD {
            Some(Mtu::B256)
        } else {
            None
        }
    }
}

/// Bits of `enum ibv_access_flags`.
pub mod access {
    /// Local write (needed by receives, reads and atomics results).
    pub const LOCAL_WRITE: u32 = 1;
    /// Remote write.
    pub const REMOTE_WRITE: u32 = 1 << 1;
    /// Remote read.
    pub const REMOTE_READ: u32 = 1 << 2;
    /// Remote atomic.
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    /// Memory windows may be bound.
    pub const MW_BIND: u32 = 1 << 4;
    /// Addresses are offsets from the region's start.
    pub const ZERO_BASED: u32 = 1 << 5;
    /// On-demand paging.
    pub const ON_DEMAND: u32 = 1 << 6;
    /// Huge pages promised.
    pub const HUGETLB: u32 = 1 << 7;
    /// A peer's writes may become visible in any order until they complete (optional).
    pub const RELAXED_ORDERING: u32 = 1 << 20;
    /// Bits a provider may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
    pub const OPTIONAL: u32 = 0x3ff0_0000;
}

/// Bits of `enum ibv_send_flags`.
pub mod send_flags {
    /// Wait for earlier reads and atomics.
    pub const FENCE: u32 = 1;
    /// Produce a completion.
    pub const SIGNALED: u32 = 1 << 1;
    /// Ask for a solicited event at the receiver.
    pub const SOLICITED: u32 = 1 << 2;
    /// Data is in the work request itself.
    pub const INLINE: u32 = 1 << 3;
}

/// Bits of `enum ibv_wc_flags`.
pub mod wc_flags {
    /// A GRH precedes the data (UD).
    pub const GRH: u32 = 1;
    /// `imm_data` is valid.
    pub const WITH_IMM: u32 = 1 << 1;
    /// `invalidated_rkey` is valid.
    pub const WITH_INV: u32 = 1 << 3;
}

/// Bits of `enum ibv_qp_attr_mask`.
pub mod attr_mask {
    /// `qp_state`
    pub const STATE: u32 = 1;
    /// `cur_qp_state`
    pub const CUR_STATE: u32 = 1 << 1;
    /// `en_sqd_async_notify`
    pub const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    /// `qp_access_flags`
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    /// `pkey_index`
    pub const PKEY_INDEX: u32 = 1 << 4;
    /// `port_num`
    pub const PORT: u32 = 1 << 5;
    /// `qkey`
    pub const QKEY: u32 = 1 << 6;
    /// `ah_attr`
    pub const AV: u32 = 1 << 7;
    /// `path_mtu`
    pub const PATH_MTU: u32 = 1 << 8;
    /// `timeout`
    pub const TIMEOUT: u32 = 1 << 9;
    /// `retry_cnt`
    pub const RETRY_CNT: u32 = 1 << 10;
    /// `rnr_retry`
    pub const RNR_RETRY: u32 = 1 << 11;
    /// `rq_psn`
    pub const RQ_PSN: u32 = 1 << 12;
    /// `max_rd_atomic`
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    /// `alt_*`
    pub const ALT_PATH: u32 = 1 << 14;
    /// `min_rnr_timer`
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    /// `sq_psn`
    pub const SQ_PSN: u32 = 1 << 16;
    /// `max_dest_rd_atomic`
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    /// `path_mig_state`
    pub const PATH_MIG_STATE: u32 = 1 << 18;
    /// `cap`
    pub const CAP: u32 = 1 << 19;
    /// `dest_qp_num`
    pub const DEST_QPN: u32 = 1 << 20;
    /// `rate_limit`
    pub const RATE_LIMIT: u32 = 1 << 25;
}

/// An address vector (`struct ibv_ah_attr` with its GRH).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AhAttr {
    /// Destination GID: an IPv6 address, or an IPv4 address mapped into `::ffff:0:0/96`.
    pub dgid: [u8; 16],
    /// Index of the source GID in the port's table.
    pub sgid_index: u8,
    /// IP TOS / traffic class.
    pub traffic_class: u8,
    /// TTL / hop limit; 0 means the default (64).
    pub hop_limit: u8,
    /// IPv6 flow label, also folded into the UDP source port.
    pub flow_label: u32,
    /// Whether the GRH fields were given (`is_global`). RoCE requires it.
    pub is_global: bool,
    /// Port number, from 1.
    pub port_num: u8,
    /// Service level.
    pub sl: u8,
    /// Static rate code.
    pub static_rate: u8,
    /// Destination LID; carried for queries, unused by RoCE.
    pub dlid: u16,
    /// Source path bits; carried for queries, unused by RoCE.
    pub src_path_bits: u8,
}

/// Queue capacities of a QP (`struct ibv_qp_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QpCap {
    /// Outstanding send work requests.
    pub max_send_wr: u32,
    /// Outstanding receive work requests.
    pub max_recv_wr: u32,
    /// SGEs per send.
    pub max_send_sge: u32,
    /// SGEs per receive.
    pub max_recv_sge: u32,
    /// Inline bytes per send.
    pub max_inline_data: u32,
}

/// QP attributes (`struct ibv_qp_attr`) of modify and query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpAttr {
    /// State to move to (modify), or the present state (query).
    pub qp_state: QpState,
    /// State of the QP that the caller assumes (`cur_qp_state`).
    pub cur_qp_state: QpState,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Migration state number (0 migrated, 1 rearm, 2 armed).
    pub path_mig_state: u8,
    /// Queue key.
    pub qkey: Qkey,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// First PSN sent.
    pub sq_psn: Psn,
    /// Peer's QP.
    pub dest_qpn: Qpn,
    /// Rights of the peer ([`access`] bits).
    pub qp_access_flags: u32,
    /// Capacities (query only).
    pub cap: QpCap,
    /// Primary path.
    pub ah: AhAttr,
    /// P_Key table index.
    pub pkey_index: u16,
    /// Whether the SQD drained event is wanted.
    pub en_sqd_async_notify: bool,
    /// Whether the QP is draining (query only).
    pub sq_draining: bool,
    /// Reads and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and ATOMICs kept as responder.
    pub max_dest_rd_atomic: u8,
    /// RNR timer code sent in RNR NAKs (IBA table 45).
    pub min_rnr_timer: u8,
    /// Port number, from 1.
    pub port_num: u8,
    /// Local ACK timeout code t: 4.096 us * 2^t, 0 = infinite.
    pub timeout: u8,
    /// Retries after timeouts and sequence NAKs, 0..=7.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs, 7 = for ever.
    pub rnr_retry: u8,
}

impl Default for QpAttr {
    fn default() -> Self {
        QpAttr {
            qp_state: QpState::Reset,
            cur_qp_state: QpState::Reset,
            path_mtu: Mtu::B1024,
            path_mig_state: 0,
            qkey: Qkey(0),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            dest_qpn: Qpn::new(0),
            qp_access_flags: 0,
            cap: QpCap::default(),
            ah: AhAttr::default(),
            pkey_index: 0,
            en_sqd_async_notify: false,
            sq_draining: false,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            port_num: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
        }
    }
}

number_enum!(
    /// `enum ibv_event_type`, the asynchronous events.
    EventType: u8 {
        /// CQ overrun or similar.
        CqErr = 0,
        /// The QP failed and could not report it by a completion.
        QpFatal = 1,
        /// Invalid request at the QP.
        QpReqErr = 2,
        /// Access violation at the QP.
        QpAccessErr = 3,
        /// First packet seen while in RTR.
        CommEst = 4,
        /// Send queue drained.
        SqDrained = 5,
        /// Path migrated.
        PathMig = 6,
        /// Path migration failed.
        PathMigErr = 7,
        /// The device failed.
        DeviceFatal = 8,
        /// The port came up.
        PortActive = 9,
        /// The port went down.
        PortErr = 10,
        /// LID changed.
        LidChange = 11,
        /// P_Key table changed.
        PkeyChange = 12,
        /// SM changed.
        SmChange = 13,
        /// SRQ failed.
        SrqErr = 14,
        /// SRQ below its limit.
        SrqLimitReached = 15,
        /// No more receives will be taken from the SRQ by this QP.
        QpLastWqeReached = 16,
        /// SM asked for reregistration.
        ClientReregister = 17,
        /// GID table changed.
        GidChange = 18,
    }
);

/// `min_rnr_timer` for a queue pair whose peer makes `peer_rnr_retries` RNR retries: the time between an RNR NAK and the next
/// try. A peer that retries without end (7) tries again after 0.64 ms (code 12, IBA table 45). A peer that gives up
/// after a few retries waits long enough for the program to post a receive: 655.36 ms (code 0), as with the kernel's
/// connection manager.
pub const fn min_rnr_timer(peer_rnr_retries: u8) -> u8 {
    if peer_rnr_retries == RNR_RETRY_FOR_EVER { 12 } else { 0 }
}

/// The RNR retry count that means "without end" (IBA 9.7.5.2.8).
pub const RNR_RETRY_FOR_EVER: u8 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_peer_that_retries_without_end_gets_a_short_timer() {
        assert_eq!((0..=7).map(min_rnr_timer).collect::<Vec<_>>(), [0, 0, 0, 0, 0, 0, 0, 12]);
    }
}
