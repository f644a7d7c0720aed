//! What a peer's acknowledgements have said of a path lately, for people (`burst cc`). The controller gets each report itself.

use burst_base::Nanos;
use burst_transport::AckReport;

/// Packets of which the marked share is shown: the counts are halved when there are more.
const PACKETS_SHOWN: u32 = 1 << 14;

/// The reports of one peer. Peers of the standard family make none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerReport {
    is_known: bool,
    pressure: u8,
    packets: u32,
    ce_packets: u32,
    /// The last round trip; 0 before the first.
    rtt: Nanos,
    remote_delay: Nanos,
}

impl PeerReport {
    /// Adds what an acknowledgement says.
    pub(crate) fn add(&mut self, report: &AckReport) {
        (self.is_known, self.pressure, self.remote_delay) = (true, report.pressure, report.remote_delay);
        if let Some(rtt) = report.rtt {
            self.rtt = rtt.max(Nanos(1));
        }
        self.packets = self.packets.saturating_add(report.packets);
        self.ce_packets = self.ce_packets.saturating_add(report.ce_packets);
        if self.packets > PACKETS_SHOWN {
            (self.packets, self.ce_packets) = (self.packets / 2, self.ce_packets / 2);
        }
    }

    /// Adds what an acknowledgement says that knows neither pressure nor delay: a channel's of URMA.
    pub(crate) fn add_counts(&mut self, rtt: Option<Nanos>, packets: u32, ce_packets: u32) {
        let PeerReport { pressure, remote_delay, .. } = *self;
        self.add(&AckReport { rtt, packets, ce_packets, pressure, remote_delay });
    }

    /// The last round trip; 0 before the first.
    pub(crate) fn rtt(&self) -> Nanos {
        self.rtt
    }

    /// Passes each number that is known to `visit`, by its name.
    pub(crate) fn observe(&self, visit: &mut dyn FnMut(&'static str, f64)) {
        if !self.is_known {
            return;
        }
        if self.rtt > Nanos(0) {
            visit("path_rtt_ns", self.rtt.0 as f64);
        }
        visit("remote_delay_ns", self.remote_delay.0 as f64);
        if self.packets > 0 {
            visit("ce_share", f64::from(self.ce_packets) / f64::from(self.packets));
        }
        visit("pressure", f64::from(self.pressure));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(report: &PeerReport) -> Vec<(&'static str, f64)> {
        let mut all = Vec::new();
        report.observe(&mut |name, value| all.push((name, value)));
        all
    }

    #[test]
    fn only_what_the_peer_has_said_is_shown() {
        let mut peer = PeerReport::default();
        assert_eq!(shown(&peer), []);
        peer.add(&AckReport { remote_delay: Nanos(640), pressure: 2, ..AckReport::default() });
        assert_eq!(shown(&peer), [("remote_delay_ns", 640.0), ("pressure", 2.0)]);
        peer.add(&AckReport { packets: 4, ce_packets: 1, rtt: Some(Nanos(9_000)), ..AckReport::default() });
        peer.add(&AckReport::default());
        let all = [("path_rtt_ns", 9_000.0), ("remote_delay_ns", 0.0), ("ce_share", 0.25), ("pressure", 0.0)];
        assert_eq!(shown(&peer), all);
    }

    #[test]
    fn the_share_is_that_of_the_last_packets() {
        let mut peer = PeerReport::default();
        let add = |peer: &mut PeerReport, ce_packets| {
            (0..1_000).for_each(|_| peer.add(&AckReport { packets: 64, ce_packets, ..AckReport::default() }));
            shown(peer).iter().find(|(name, _)| *name == "ce_share").map(|(_, share)| *share)
        };
        assert!(add(&mut peer, 64).is_some_and(|share| share == 1.0));
        assert!(add(&mut peer, 0).is_some_and(|share| share < 0.1));
        peer.add(&AckReport { packets: u32::MAX, ce_packets: u32::MAX, ..AckReport::default() });
        assert!(shown(&peer).iter().all(|(_, value)| value.is_finite()));
    }
}
