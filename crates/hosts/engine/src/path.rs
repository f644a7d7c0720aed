//! The path to one peer address, shared by all queue pairs that talk to it: its congestion controller and its next hop.
//!
//! The window of the path's controller (crate `cc`) bounds the bytes in flight to the peer. A queue pair may always have
//! [`QP_MIN_BYTES`] in flight, so that one stuck peer queue pair cannot stop the others. Below a controller other than `aimd` and `none`
//! the window of `aimd` remains: the receive buffers of a software peer drop packets before a switch marks them. Such a controller also
//! bounds what a queue pair may always have in flight to one packet, because its windows may be small.
//!
//! While the peer's next hop is being resolved, packets wait in a small store of the port or of the kernel, which drops what
//! does not fit. RC repeats dropped packets. For unacknowledged services, a path lets only [`UNRESOLVED_BYTES`] leave before it
//! asks the port whether the next hop is resolved ([`Path::may_send`]).

use burst_base::{DeviceId, Nanos};
use burst_cc::{AckSample, Aimd, Algorithm, Controller, LossKind, Params};
use burst_port::UNRESOLVED_BYTES;
use burst_transport::Signal;
use std::net::IpAddr;

/// Bytes that a queue pair may have in flight whatever the window is.
pub const QP_MIN_BYTES: u64 = 16 << 10;

/// Bytes that a work request takes in that store besides its payload: stores count the memory that keeps a packet.
const WQE_BYTES: u64 = 512;
/// Time without unacknowledged messages after which a next hop counts as unknown again. Ports and kernels keep it longer.
pub const IDLE: Nanos = Nanos::from_ms(20_000);
/// Longest wait for a next hop. A kernel asks three times at intervals of a second.
pub const RESOLVING_MAX: Nanos = Nanos::from_ms(4_000);

/// State of the next hop, for unacknowledged messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HopKnowledge {
    /// The next hop is resolved, or its resolution was given up.
    Found,
    /// The next hop is unknown. The value is the number of bytes sent meanwhile.
    Unknown(u64),
    /// The next hop is being resolved since this time.
    Resolving(Nanos),
}

/// What a controller must know of the link.
#[derive(Clone, Copy, Debug)]
pub struct PathLink {
    /// The controller.
    pub cc: Params,
    /// Bits per second, 0 if unknown.
    pub line_rate_bps: u64,
    /// Largest payload of a packet in bytes.
    pub mtu: u32,
}

/// The path to one address on one device.
#[derive(Debug)]
pub struct Path {
    /// The peer's address.
    pub peer: IpAddr,
    /// Device.
    pub device: DeviceId,
    /// Queue pairs that use it.
    pub users: u32,
    controller: Controller,
    /// The window against full receive buffers; `None` if the controller is `aimd` or `none`.
    guard: Option<Aimd>,
    /// Bytes that a queue pair may have in flight whatever the window is.
    qp_min_bytes: u64,
    inflight: u64,
    /// When a marked packet is next answered by a congestion notification.
    pub(crate) cnp_from: Nanos,
    hop: HopKnowledge,
    /// When an unacknowledged message was last about to be sent.
    used_at: Nanos,
    /// Queue pairs that wait for room in the window, in order.
    pub waiting: std::collections::VecDeque<u32>,
}

impl Path {
    /// A path with the largest window.
    pub fn new(now: Nanos, peer: IpAddr, device: DeviceId, link: &PathLink) -> Path {
        let PathLink { cc, line_rate_bps, mtu } = *link;
        let plain = matches!(cc.algorithm(), Algorithm::Aimd | Algorithm::None);
        Path {
            peer,
            device,
            users: 0,
            controller: Controller::new(&cc, now, line_rate_bps, if plain { 0 } else { mtu }),
            guard: (!plain).then(|| Aimd::new(cc.window_max_bytes)),
            qp_min_bytes: if plain { QP_MIN_BYTES } else { u64::from(mtu) },
            inflight: 0,
            cnp_from: Nanos(0),
            hop: HopKnowledge::Unknown(0),
            used_at: Nanos(0),
            waiting: std::collections::VecDeque::new(),
        }
    }
    /// Bytes that a queue pair with `own` bytes in flight may add now.
    pub fn room(&self, own: u64) -> u64 {
        let shared = self.window().saturating_sub(self.inflight);
        shared.max(self.qp_min_bytes.saturating_sub(own))
    }
    /// A queue pair's bytes in flight have changed from `before` to `after`.
    pub fn moved(&mut self, now: Nanos, before: u64, after: u64) {
        if after >= before {
            self.inflight += after - before;
            return;
        }
        let acked_bytes = before - after;
        debug_assert!(acked_bytes <= self.inflight, "more bytes acknowledged than in flight");
        self.inflight = self.inflight.saturating_sub(acked_bytes);
        let sample = AckSample { acked_bytes, inflight_bytes: self.inflight, ..AckSample::default() };
        self.controller.on_ack(now, &sample);
        if let Some(guard) = &mut self.guard {
            guard.on_ack(&sample);
        }
    }
    /// Passes a signal of a queue pair to the controller.
    pub fn on_signal(&mut self, now: Nanos, signal: Signal) {
        if let (Some(guard), Signal::Loss | Signal::Timeout) = (&mut self.guard, signal) {
            guard.on_loss(now);
        }
        match signal {
            Signal::Loss => self.controller.on_loss(now, LossKind::Fast),
            Signal::Timeout => self.controller.on_loss(now, LossKind::Timeout),
            Signal::Cnp => self.controller.on_cnp(now),
        }
    }
    /// Bytes of unacknowledged messages that may be sent now; 0 while the next hop is being resolved, which `is_resolving` asks
    /// the port.
    pub fn may_send(&mut self, now: Nanos, is_resolving: impl FnOnce() -> bool) -> u64 {
        if now.since(self.used_at) >= IDLE {
            self.hop = HopKnowledge::Unknown(0);
        }
        self.used_at = now;
        let since = match self.hop {
            HopKnowledge::Found => return u64::MAX,
            HopKnowledge::Unknown(sent) if sent < UNRESOLVED_BYTES => return UNRESOLVED_BYTES - sent,
            HopKnowledge::Unknown(_) => now,
            HopKnowledge::Resolving(since) => since,
        };
        if now.since(since) < RESOLVING_MAX && is_resolving() {
            self.hop = HopKnowledge::Resolving(since);
            return 0;
        }
        self.hop = HopKnowledge::Found;
        u64::MAX
    }
    /// Unacknowledged messages were sent: `bytes` of payload in `wqes` work requests.
    pub fn sent(&mut self, bytes: u64, wqes: u32) {
        if let HopKnowledge::Unknown(sent) = &mut self.hop {
            *sent += bytes + u64::from(wqes) * WQE_BYTES;
        }
    }
    /// Bytes in flight.
    pub fn inflight(&self) -> u64 {
        self.inflight
    }
    /// The window in bytes.
    pub fn window(&self) -> u64 {
        let window = self.controller.limits().window_bytes;
        self.guard.map_or(window, |guard| window.min(guard.limits().window_bytes))
    }
    /// Whether a waiting queue pair with `own` bytes in flight may send `next` more bytes. A queue pair with nothing in flight
    /// may send whenever the window is open. Others are woken only if their whole next packet fits; otherwise they would be
    /// woken again and again without sending.
    pub fn has_room(&self, own: u64, next: u64) -> bool {
        let room = self.room(own);
        room >= next.max(1) || (own == 0 && room > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn path() -> Path {
        path_with(Algorithm::Aimd)
    }

    fn path_with(algorithm: Algorithm) -> Path {
        let link = PathLink { cc: Params::new(algorithm, 512 << 10), line_rate_bps: 10_000_000_000, mtu: 4096 };
        Path::new(Nanos(0), IpAddr::V4(Ipv4Addr::LOCALHOST), DeviceId(0), &link)
    }

    #[test]
    fn below_other_controllers_the_window_against_full_buffers_remains() {
        for algorithm in Algorithm::ALL {
            let mut p = path_with(algorithm);
            for ms in 1..10 {
                p.on_signal(Nanos::from_ms(10 * ms), Signal::Loss);
            }
            let least = if algorithm == Algorithm::None { 512 << 10 } else { burst_cc::WINDOW_MIN };
            assert!(p.window() <= least, "{algorithm}: {}", p.window());
            let min = if matches!(algorithm, Algorithm::Aimd | Algorithm::None) { QP_MIN_BYTES } else { 4096 };
            p.moved(Nanos::from_ms(200), 0, 512 << 10);
            assert_eq!((p.room(0), p.room(min)), (min, 0), "{algorithm}");
        }
    }

    #[test]
    fn room_shrinks_with_flight_but_each_keeps_its_minimum() {
        let mut p = path();
        assert_eq!(p.room(0), 512 << 10);
        p.moved(Nanos(0), 0, 512 << 10);
        assert_eq!(p.room(0), QP_MIN_BYTES);
        assert_eq!(p.room(QP_MIN_BYTES), 0);
    }

    #[test]
    fn a_waiting_queue_pair_is_woken_by_room_for_its_next_packet() {
        let mut p = path();
        p.moved(Nanos(0), 0, 512 << 10);
        assert!(!p.has_room(QP_MIN_BYTES, 1) && !p.has_room(QP_MIN_BYTES, 0) && p.has_room(0, 64 << 10));
        p.moved(Nanos(0), 512 << 10, 480 << 10);
        assert!(p.has_room(QP_MIN_BYTES, 32 << 10) && !p.has_room(QP_MIN_BYTES, 64 << 10));
    }

    #[test]
    fn messages_without_acknowledgement_wait_for_the_next_hop() {
        let mut p = path();
        let begin = Nanos::from_ms(50_000);
        let unasked = || panic!("asked too early");
        assert_eq!(p.may_send(begin, unasked), UNRESOLVED_BYTES);
        p.sent(UNRESOLVED_BYTES - 2 * WQE_BYTES, 1);
        assert_eq!(p.may_send(begin, unasked), WQE_BYTES);
        p.sent(0, 1);
        let soon = begin + Nanos::from_ms(1);
        assert_eq!((p.may_send(begin, || true), p.may_send(soon, || true)), (0, 0));
        assert_eq!((p.may_send(soon, || false), p.may_send(soon, unasked)), (u64::MAX, u64::MAX));
        // After a pause the next hop counts as unknown again.
        let late = soon + IDLE;
        assert_eq!(p.may_send(late, unasked), UNRESOLVED_BYTES);
        p.sent(UNRESOLVED_BYTES, 0);
        // The wait is bounded: the port drops packets to an unresolved next hop, with a reason.
        assert_eq!(p.may_send(late, || true), 0);
        assert_eq!(p.may_send(late + RESOLVING_MAX, unasked), u64::MAX);
    }

    #[test]
    fn loss_halves_once_per_pause_and_acks_grow() {
        let mut p = path();
        let t = Nanos::from_ms(10);
        p.on_signal(t, Signal::Loss);
        p.on_signal(t, Signal::Loss);
        assert_eq!(p.window(), 256 << 10);
        for _ in 0..20 {
            p.on_signal(t + Nanos::from_ms(100), Signal::Loss);
            p.on_signal(t + Nanos::from_ms(200), Signal::Timeout);
        }
        assert!(p.window() >= burst_cc::WINDOW_MIN);
        let small = p.window();
        for _ in 0..10_000 {
            p.moved(Nanos(0), 0, 4096);
            p.moved(Nanos(0), 4096, 0);
        }
        assert!(p.window() > small);
        assert_eq!(p.inflight(), 0);
    }
}
