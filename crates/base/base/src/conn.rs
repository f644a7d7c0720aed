//! Parameters of a connection that connection management negotiates, and the room for private data in its messages.
//!
//! The state machine (`cm`), the control messages (`control`) and the front end (`rdmacm`) use one [`ConnAttr`]: a REQ or REP
//! fills it, a worker moves queue pairs by it, and an event carries it to the program.

use crate::verbs::Mtu;
use serde::{Deserialize, Serialize};

/// The vendor id that Burst sends in REQ and REP ("BUR"; the locally administered bit is set, so it is no vendor's OUI).
pub const BURST_VENDOR: u32 = 0x0042_5552;

/// Private data that programs may send in each message, in bytes (IBA 12.6, rdma_connect(3)). REQ and SIDR_REQ have 92 and 216
/// bytes, of which RDMA-CM's header takes [`private_data_room::HEADER`] (annex A11).
pub mod private_data_room {
    /// RDMA-CM's header with both addresses.
    pub const HEADER: usize = 36;
    /// `rdma_connect`.
    pub const REQ: usize = 92 - HEADER;
    /// `rdma_accept`.
    pub const REP: usize = 196;
    /// `rdma_reject`.
    pub const REJ: usize = 148;
    /// `rdma_connect` of a datagram id.
    pub const SIDR_REQ: usize = 216 - HEADER;
    /// `rdma_accept` and `rdma_reject` of a datagram id.
    pub const SIDR_REP: usize = 136;

    /// Room of the request of an id.
    pub const fn request(is_datagram: bool) -> usize {
        if is_datagram { SIDR_REQ } else { REQ }
    }
    /// Room of the answer that accepts a request.
    pub const fn accept(is_datagram: bool) -> usize {
        if is_datagram { SIDR_REP } else { REP }
    }
    /// Room of the answer that rejects a request.
    pub const fn reject(is_datagram: bool) -> usize {
        if is_datagram { SIDR_REP } else { REJ }
    }
}

/// Class of the peer, from its vendor id; it determines the congestion controller where no person has chosen one
/// (`burst_cc::PathConditions`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerClass {
    /// Another Burst: the default, or what the hellos of both ends say.
    Burst,
    /// No vendor id, or an unknown one: both ends use DCQCN, and the answer carries vendor id 0 (BURST, section 4.5).
    #[default]
    Standard,
}

impl PeerClass {
    /// The class of a vendor id.
    pub const fn of(vendor_id: u32) -> PeerClass {
        if vendor_id == BURST_VENDOR { PeerClass::Burst } else { PeerClass::Standard }
    }
    /// The vendor id to answer with: an unknown id makes both ends fall back.
    pub const fn answer(self) -> u32 {
        match self {
            PeerClass::Burst => BURST_VENDOR,
            PeerClass::Standard => 0,
        }
    }
}

/// Enhanced connection establishment (ECE), `struct ibv_ece`: options of one vendor, which REQ, REP and SIDR_REP carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ece {
    /// Vendor id, 24 bits.
    pub vendor_id: u32,
    /// Options, defined by the vendor.
    pub options: u32,
}

impl Ece {
    /// The program has set none.
    pub const NONE: Ece = Ece { vendor_id: 0, options: 0 };
}

/// Parameters that the program of one end gives for a connection: `struct rdma_conn_param` without its private data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnParam {
    /// READs and atomics that this end accepts at a time. 255 from a program means the device's maximum.
    pub responder_resources: u8,
    /// READs and atomics that this end keeps outstanding. 255 from a program means the device's maximum.
    pub initiator_depth: u8,
    /// Whether this end wants end-to-end flow control.
    pub flow_control: bool,
    /// Retries of the transport, 0..=7; the active end's choice holds for both ends.
    pub retry_count: u8,
    /// Retries on RNR NAK that the peer should make, 0..=7.
    pub rnr_retry_count: u8,
    /// Whether the queue pair has a shared receive queue.
    pub srq: bool,
    /// Queue pair number.
    pub qpn: u32,
    /// Q_Key of a datagram service. 0 from a program means the RDMA-CM default, 0x01234567.
    pub qkey: u32,
    /// ECE options that the program has set.
    pub ece: Ece,
}

/// A connection as negotiated so far, seen from this end. In a request that the program has not answered: what the peer offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnAttr {
    /// The peer's queue pair number.
    pub remote_qpn: u32,
    /// First PSN that this end sends.
    pub sq_psn: u32,
    /// First PSN that this end expects.
    pub rq_psn: u32,
    /// `max_dest_rd_atomic` of the queue pair: as negotiated; in a request, the peer's initiator depth.
    pub responder_resources: u8,
    /// `max_rd_atomic` of the queue pair: as negotiated; in a request, the peer's responder resources.
    pub initiator_depth: u8,
    /// `retry_cnt` of the queue pair: retries of the transport.
    pub retry_count: u8,
    /// `rnr_retry` of the queue pair: RNR retries that this end makes, which the peer chooses.
    pub rnr_retry_count: u8,
    /// `rnr_retry` of the peer's queue pair: this end's choice, or until then the peer's choice for this end.
    pub peer_rnr_retry_count: u8,
    /// `timeout` of the queue pair: local ACK timeout code.
    pub ack_timeout: u8,
    /// Whether the peer wants end-to-end flow control.
    pub flow_control: bool,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// Q_Key of the peer (datagrams) or of the multicast group.
    pub qkey: u32,
    /// Path MTU.
    pub mtu: Mtu,
    /// The peer's ECE options; [`Ece::NONE`] if the peer is a Burst whose program set none.
    pub ece: Ece,
    /// Class of the peer.
    pub peer: PeerClass,
}

impl ConnAttr {
    /// Nothing negotiated yet.
    pub const NONE: ConnAttr = ConnAttr {
        remote_qpn: 0,
        sq_psn: 0,
        rq_psn: 0,
        responder_resources: 0,
        initiator_depth: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        peer_rnr_retry_count: 0,
        ack_timeout: 0,
        flow_control: false,
        srq: false,
        qkey: 0,
        mtu: Mtu::B1024,
        ece: Ece::NONE,
        peer: PeerClass::Standard,
    };

    /// Limits both depths to what this end offers: neither end asks for more than the other gives, nor gives more than is asked
    /// for. `rnr_retry_count` is this end's choice for the peer.
    pub fn limit(&mut self, own: &ConnParam) {
        self.responder_resources = self.responder_resources.min(own.responder_resources);
        self.initiator_depth = self.initiator_depth.min(own.initiator_depth);
        self.peer_rnr_retry_count = own.rnr_retry_count;
    }
}

impl Default for ConnAttr {
    fn default() -> ConnAttr {
        ConnAttr::NONE
    }
}
