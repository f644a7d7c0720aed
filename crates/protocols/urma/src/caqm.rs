//! C-AQM: congestion control by hints. The sender asks for an increase of its window with each packet, a switch grants it,
//! clears the request or marks the packet, the receiver echoes the outcome, and the sender follows.
//!
//! The algorithm is the public one (constants alpha = beta = gamma = lambda = 1/2, theta = 10, p = 1/10, queue target 10 MTU,
//! period 500 ns, first window 10 MTU). [`CaqmWindow`] is the sender, [`CaqmEcho`] the receiver, [`CaqmPort`] a switch's
//! output port. Where no switch answers, requests stay granted: the window grows to its limit, and only losses (time-outs)
//! reduce it.

use burst_base::Nanos;
use burst_base::rng::Rng;
use burst_ubwire::{Cetph, CongestionField};

/// MTUs of the first window.
const FIRST_MTUS: u32 = 10;
/// Round trips without a sign of congestion after which slow start returns.
const THETA: u64 = 10;

/// The sender's window.
#[derive(Clone, Debug)]
pub struct CaqmWindow {
    cwnd: u32,
    mtu: u32,
    max: u32,
    /// Bytes of increase that are not asked for yet, times 2^16.
    owed: u64,
    avoiding: bool,
    last_sign: Nanos,
}

impl CaqmWindow {
    /// The first window; `max` limits it.
    pub fn new(mtu: u32, max: u32) -> Self {
        let max = max.max(mtu);
        CaqmWindow { cwnd: (FIRST_MTUS * mtu).min(max), mtu, max, owed: 0, avoiding: false, last_sign: Nanos(0) }
    }
    /// Bytes that may be in flight.
    pub const fn bytes(&self) -> u32 {
        self.cwnd
    }
    /// Whether the window grows by requests of congestion avoidance, not of slow start.
    pub const fn is_avoiding(&self) -> bool {
        self.avoiding
    }
    /// The congestion field of a packet of `len` bytes.
    pub fn stamp(&mut self, len: u32) -> CongestionField {
        let unit = CongestionField::HINT_BYTES;
        let units = if self.avoiding {
            // alpha * MTU in each window of bytes.
            self.owed += ((u64::from(self.mtu) * u64::from(len)) << 15) / u64::from(self.cwnd.max(1));
            let units = (self.owed >> 16) / u64::from(unit);
            let units = units.min(255);
            self.owed -= (units * u64::from(unit)) << 16;
            units as u32
        } else {
            (len.min(self.mtu) / unit).min(255)
        };
        CongestionField { enable: true, increase: true, hint: units as u8, ..CongestionField::default() }
    }
    /// An echo arrived.
    pub fn on_echo(&mut self, now: Nanos, rtt: Nanos, echo: &Cetph) {
        if echo.marked > 0 || !echo.increase {
            self.avoiding = true;
            self.last_sign = now;
        } else if self.avoiding && now.since(self.last_sign).0 > THETA * rtt.0.max(1) {
            self.avoiding = false;
        }
        if echo.increase {
            self.cwnd = self.cwnd.saturating_add(u32::from(echo.granted)).min(self.max);
        }
        if echo.marked > 0 {
            self.cwnd = if self.cwnd > self.mtu {
                self.cwnd.saturating_sub(u32::from(echo.marked) * self.mtu / 2).max(self.mtu / 2)
            } else {
                (self.cwnd / 2).max(self.mtu / 2)
            };
        }
    }
    /// No acknowledgement came in time.
    pub fn on_timeout(&mut self, now: Nanos) {
        self.cwnd = (self.cwnd / 2).max(self.mtu);
        self.avoiding = true;
        self.last_sign = now;
    }
}

/// What the receiver has seen since its last echo.
#[derive(Clone, Copy, Debug, Default)]
pub struct CaqmEcho {
    bytes: u32,
    marked: u8,
    increase: bool,
    granted: u16,
    seen: bool,
}

impl CaqmEcho {
    /// A packet of `len` bytes arrived.
    pub fn on_packet(&mut self, field: CongestionField, len: u32) {
        self.bytes = self.bytes.wrapping_add(len);
        if !field.is_caqm() {
            return;
        }
        self.seen = true;
        if field.congested {
            self.marked = self.marked.saturating_add(1);
        } else if field.increase {
            self.increase = true;
            self.granted = self.granted.saturating_add(u16::from(field.hint) * CongestionField::HINT_BYTES as u16);
        }
    }
    /// A packet arrived that a switch has marked in its IP header (ECN).
    pub fn on_mark(&mut self) {
        (self.seen, self.marked) = (true, self.marked.saturating_add(1));
    }
    /// Whether the next acknowledgement has an echo.
    pub const fn is_due(&self) -> bool {
        self.seen
    }
    /// The echo for the next acknowledgement, if a packet took part in C-AQM since the last one.
    pub fn take(&mut self) -> Option<Cetph> {
        if !self.seen {
            return None;
        }
        let echo = Cetph { ack_bytes: self.bytes, increase: self.increase, marked: self.marked, granted: self.granted };
        *self = CaqmEcho { bytes: self.bytes, ..CaqmEcho::default() };
        Some(echo)
    }
}

/// A switch's output port.
#[derive(Clone, Debug)]
pub struct CaqmPort {
    mtu: i64,
    bytes_per_period: i64,
    credit: i64,
    granted: i64,
    deficit: i64,
    sent: i64,
}

impl CaqmPort {
    /// Length of a period.
    pub const PERIOD: Nanos = Nanos(500);
    /// Queue that is aimed at, in MTUs.
    const QUEUE_MTUS: i64 = 10;

    /// A port of a rate in bytes per second.
    pub fn new(mtu: u32, bytes_per_second: u64) -> Self {
        let bytes_per_period = (bytes_per_second * Self::PERIOD.0 / 1_000_000_000) as i64;
        CaqmPort { mtu: i64::from(mtu), bytes_per_period, credit: 0, granted: 0, deficit: 0, sent: 0 }
    }
    /// A period of [`CaqmPort::PERIOD`] has ended with this many bytes queued.
    pub fn on_period(&mut self, queued: u64) {
        let room = self.bytes_per_period - self.sent + Self::QUEUE_MTUS * self.mtu - queued as i64 - self.granted;
        (self.credit, self.granted, self.sent) = (room / 2, 0, 0);
    }
    /// A packet of `len` bytes passes: its new congestion field.
    pub fn on_packet(&mut self, field: CongestionField, len: u32, rng: &mut Rng) -> CongestionField {
        self.sent += i64::from(len);
        if !field.is_caqm() {
            return field;
        }
        let marked = CongestionField { congested: true, increase: false, ..field };
        if field.congested {
            self.credit += self.mtu / 2;
            return field;
        }
        let hint = i64::from(field.hint) * i64::from(CongestionField::HINT_BYTES);
        if self.credit < 0 {
            self.credit += self.mtu / 2;
            return marked;
        }
        if !field.increase {
            return field;
        }
        if self.credit >= hint {
            self.credit -= hint;
            self.granted += hint;
            return field;
        }
        if rng.chance(1, 10) {
            self.deficit += self.mtu / 2;
            return marked;
        }
        if self.deficit >= hint {
            self.deficit -= hint;
            return field;
        }
        CongestionField { increase: false, ..field }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u32 = 4096;

    fn echo(marked: u8, increase: bool, granted: u16) -> Cetph {
        Cetph { ack_bytes: 0, increase, marked, granted }
    }

    #[test]
    fn slow_start_asks_for_each_packet_and_avoidance_for_half_an_mtu_in_each_window() {
        let mut window = CaqmWindow::new(MTU, 1 << 20);
        assert_eq!((window.bytes(), window.stamp(MTU).hint), (10 * MTU, 128));
        window.on_echo(Nanos(0), Nanos(1000), &echo(0, false, 0));
        assert!(window.is_avoiding());
        let asked: u32 = (0..100).map(|_| u32::from(window.stamp(MTU).hint) * 32).sum();
        assert!(asked.abs_diff(10 * MTU / 2) <= 32, "ten windows ask for ten half MTUs: {asked}");
    }

    #[test]
    fn a_grant_increases_and_marks_reduce_not_below_half_an_mtu() {
        let mut window = CaqmWindow::new(MTU, 1 << 20);
        window.on_echo(Nanos(0), Nanos(1000), &echo(0, true, 4096));
        assert_eq!((window.bytes(), window.is_avoiding()), (11 * MTU, false));
        window.on_echo(Nanos(0), Nanos(1000), &echo(4, false, 0));
        assert_eq!(window.bytes(), 9 * MTU);
        for _ in 0..10 {
            window.on_echo(Nanos(0), Nanos(1000), &echo(200, false, 0));
        }
        assert_eq!(window.bytes(), MTU / 2);
        for _ in 0..1000 {
            window.on_echo(Nanos(0), Nanos(1000), &echo(0, true, u16::MAX));
        }
        assert_eq!(window.bytes(), 1 << 20);
    }

    #[test]
    fn slow_start_returns_after_ten_round_trips_without_a_sign() {
        let mut window = CaqmWindow::new(MTU, 1 << 20);
        window.on_echo(Nanos(0), Nanos(1000), &echo(1, false, 0));
        window.on_echo(Nanos(10_000), Nanos(1000), &echo(0, true, 0));
        assert!(window.is_avoiding());
        window.on_echo(Nanos(10_001), Nanos(1000), &echo(0, true, 0));
        assert!(!window.is_avoiding());
    }

    #[test]
    fn a_full_port_marks_and_an_empty_one_grants() {
        let (mut rng, field) = (Rng::new(1), CaqmWindow::new(MTU, 1 << 20).stamp(MTU));
        let mut port = CaqmPort::new(MTU, 12_500_000_000);
        port.on_period(0);
        assert_eq!(port.on_packet(field, MTU, &mut rng), field);
        port.on_period(100 * u64::from(MTU));
        let marked = port.on_packet(field, MTU, &mut rng);
        assert!(marked.congested && !marked.increase);
        let other = CongestionField { enable: false, ..field };
        assert_eq!(port.on_packet(other, MTU, &mut rng), other);
    }

    #[test]
    fn the_echo_counts_marks_and_grants_once() {
        let mut seen = CaqmEcho::default();
        assert_eq!(seen.take(), None);
        let field = CongestionField { enable: true, increase: true, hint: 2, ..CongestionField::default() };
        seen.on_packet(field, 100);
        seen.on_packet(CongestionField { congested: true, ..field }, 100);
        assert_eq!(seen.take(), Some(Cetph { ack_bytes: 200, increase: true, marked: 1, granted: 64 }));
        assert_eq!(seen.take(), None);
    }
}
