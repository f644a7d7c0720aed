//! What both halves of a queue pair use: identity, attributes, the path to the peer, the state.
//!
//! Requester and responder get it with each call. A half that meets an error that ends the queue pair stops itself and moves the
//! state to ERR; the queue pair then stops the other half ([`QpShared::failed`]), before it does anything else.

use crate::api::{ACK_TIMEOUT_MIN, PKEY_DEFAULT, QpConfig};
use crate::peer_port::PeerPort;
use crate::rtt::RttEstimate;
use crate::trail::Trail;
use burst_base::verbs::{Mtu, QpAttr, QpState, QpType};
use burst_base::{Nanos, Psn, Qpn, Reason};
use burst_frame::{Flow, RxFrame};
use burst_mem::Peer;
use burst_wire::aeth::ack_timeout;
use burst_wire::{Packet, Service};

/// Waits of the fast timer that fit into a local ACK timeout at least: two probes and a time-out come before it.
pub(crate) const FAST_WAITS: u64 = 4;

/// Constants of a queue pair, with two exceptions: protection domain and receive completion queue of an XRC target follow the
/// requests, and the port's MTU follows the port ([`crate::Qp::follow_port`]).
// In the order of use: see `qp::prefetch`.
#[repr(C)]
pub(crate) struct QpIdentity {
    pub(crate) qpn: Qpn,
    pub(crate) pd: u32,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) cookie: u32,
    pub(crate) qp_type: QpType,
    pub(crate) port_mtu: Mtu,
}

/// A half of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QpHalf {
    Requester,
    Responder,
}

/// What both halves use.
// In the order of use: see `qp::prefetch`.
#[repr(C)]
pub(crate) struct QpShared {
    /// What waits for copies, if it has executors. Not there during a call of such a queue pair.
    pub(crate) trail: Option<Box<Trail>>,
    /// While copies are open: the first PSN whose bytes may be missing. READs from there on are not answered.
    pub(crate) held_from: Option<Psn>,
    /// Rises with each reset, so that bytes that were staged before are not sent.
    pub(crate) staging_epoch: u32,
    /// Nothing: what most packets use begins behind the first two lines.
    _unused: [u32; 9],
    pub(crate) attr: QpAttr,
    /// `attr.dest_qpn` and `attr.qp_access_flags`, in a line that each packet uses.
    pub(crate) dest_qpn: Qpn,
    pub(crate) access_flags: u32,
    /// Payload bytes per packet.
    pub(crate) mtu: u32,
    pub(crate) state: QpState,
    /// The half that has moved the queue pair to ERR, until the other half has stopped as well.
    pub(crate) failed: Option<QpHalf>,
    /// Its bytes are placed by an executor ([`crate::copies`]).
    pub(crate) trails: bool,
    /// The wait that each sign of progress begins: the local ACK timeout, or the time until a probe
    /// ([`crate::requester::standard::probes`]).
    pub(crate) answer_wait: Nanos,
    pub(crate) id: QpIdentity,
    pub(crate) flow: Flow,
    pub(crate) peer_port: PeerPort,
}

/// `vendor_err` of a completion: the number of the reason plus one, 0 for none.
pub(crate) fn vendor_err(reason: Option<Reason>) -> u32 {
    reason.map_or(0, |reason| reason.index() as u32 + 1)
}

impl QpShared {
    /// That of a queue pair in RESET.
    pub(crate) fn new(config: &QpConfig) -> QpShared {
        let &QpConfig { qpn, qp_type, pd, send_cq, recv_cq, cookie, cap, port_mtu, .. } = config;
        QpShared {
            trail: None,
            held_from: None,
            staging_epoch: 0,
            _unused: [0; 9],
            attr: QpAttr { cap, ..QpAttr::default() },
            dest_qpn: QpAttr::default().dest_qpn,
            access_flags: 0,
            mtu: port_mtu.bytes(),
            state: QpState::Reset,
            failed: None,
            trails: false,
            answer_wait: Nanos::NEVER,
            id: QpIdentity { qpn, qp_type, pd, send_cq, recv_cq, cookie, port_mtu },
            flow: Flow::default(),
            peer_port: PeerPort::default(),
        }
    }

    /// The queue pair goes to RESET: all attributes but the capacities are forgotten.
    pub(crate) fn reset(&mut self) {
        self.attr = QpAttr { cap: self.attr.cap, ..QpAttr::default() };
        (self.dest_qpn, self.access_flags) = (self.attr.dest_qpn, self.attr.qp_access_flags);
        self.flow = Flow::default();
        self.peer_port = PeerPort::default();
        self.mtu = self.id.port_mtu.bytes();
        self.answer_wait = Nanos::NEVER;
        self.state = QpState::Reset;
        self.trail.as_deref_mut().into_iter().for_each(Trail::clear);
        self.held_from = None;
        self.staging_epoch = self.staging_epoch.wrapping_add(1);
        debug_assert!(self.failed.is_none() && self.mtu > 0);
    }

    /// Moves the queue pair to ERR, because of an error of this half. False if it is there already.
    pub(crate) fn fail(&mut self, half: QpHalf) -> bool {
        if self.state == QpState::Err {
            return false;
        }
        debug_assert!(self.failed.is_none(), "a half was called before the other had stopped");
        (self.state, self.failed) = (QpState::Err, Some(half));
        true
    }

    /// Whether a request with this PSN must not be answered, because bytes of requests before it are not there yet.
    #[inline]
    pub(crate) fn is_held(&self, psn: Psn) -> bool {
        self.trails && self.held_from.is_some_and(|limit| !psn.is_before(limit))
    }

    /// Domain and number, by which memory tables check access.
    pub(crate) fn peer(&self) -> Peer {
        Peer { pd: self.id.pd, qpn: self.id.qpn }
    }

    /// The local ACK timeout.
    pub(crate) fn ack_timeout(&self) -> Nanos {
        ack_timeout(self.attr.timeout).max(ACK_TIMEOUT_MIN)
    }

    /// The longest wait of the fast timers: probes and a time-out of selective repeat come before the local ACK timeout. Not less
    /// than an answer takes: on a path whose round trip is longer than a quarter of that timeout everything would be sent twice,
    /// and be taken for lost.
    pub(crate) fn fast_wait_max(&self, rtt: &RttEstimate) -> Nanos {
        Nanos(self.answer_wait.0 / FAST_WAITS).max(rtt.answered_within())
    }

    /// Checks that every packet must pass (IBA 9.6.1).
    #[inline]
    pub(crate) fn check_packet(&self, frame: &RxFrame<'_>, pkt: &Packet<'_>) -> Result<(), Reason> {
        let service = match self.id.qp_type {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
            QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
        };
        if pkt.info.service != service && pkt.info.service != Service::Cnp {
            return Err(Reason::WrongTransport);
        }
        self.check_peer(frame, pkt)
    }

    /// Checks partition, state and source.
    #[inline(always)]
    pub(crate) fn check_peer(&self, frame: &RxFrame<'_>, pkt: &Packet<'_>) -> Result<(), Reason> {
        // The low 15 bits are the partition. Only two limited members may not communicate, and Burst is a full member.
        if pkt.bth.pkey & 0x7fff != PKEY_DEFAULT & 0x7fff {
            return Err(Reason::BadPkey);
        }
        if matches!(self.state, QpState::Reset | QpState::Init | QpState::Err) {
            return Err(Reason::WrongState);
        }
        if self.id.qp_type != QpType::Ud && frame.flow.src != self.flow.dst {
            return Err(Reason::WrongSource);
        }
        Ok(())
    }
}
