//! The last connections that were not carried by a peer, and why: `burst proxy why`.

use crate::log::log_connection;
use burst_base::Reason;
use burst_relay::Outcome;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Decisions that are kept.
const DECISIONS_MAX: usize = 256;

/// Client, server and reason of each, oldest first.
#[derive(Debug, Default)]
pub(super) struct Decisions(VecDeque<(SocketAddr, SocketAddr, Reason)>);

impl Decisions {
    /// Keeps one; the oldest is dropped.
    pub(super) fn note(&mut self, client: SocketAddr, server: SocketAddr, reason: Reason) {
        if self.0.len() == DECISIONS_MAX {
            self.0.pop_front();
        }
        log_connection(format_args!("{client} to {server}: by no peer ({})", reason.name()));
        self.0.push_back((client, server, reason));
    }

    /// As text, oldest first.
    pub(super) fn show(&self) -> Vec<(String, String, String)> {
        let shown = self.0.iter();
        shown.map(|(client, server, why)| (client.to_string(), server.to_string(), why.name().to_owned())).collect()
    }
}

/// The reason of an outcome.
pub(super) fn reason(outcome: Outcome) -> Reason {
    match outcome {
        Outcome::Clean | Outcome::Reset => Reason::ProxyReset,
        Outcome::Refused => Reason::ProxyRefused,
        Outcome::Unreachable => Reason::ProxyUnreachable,
        Outcome::NotServed => Reason::ProxyNotServed,
        Outcome::NoMemory => Reason::ProxyNoMemory,
        Outcome::Cancelled => Reason::ProxyPeerSilent,
        Outcome::Draining => Reason::ProxyDraining,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_kept() {
        let mut decisions = Decisions::default();
        let client = |port: usize| SocketAddr::new([10, 0, 0, 1].into(), port as u16);
        for port in 0..DECISIONS_MAX + 3 {
            decisions.note(client(port), client(0), Reason::ProxyNoPeer);
        }
        let shown = decisions.show();
        assert_eq!((shown.len(), &*shown[0].0), (DECISIONS_MAX, "10.0.0.1:3"));
        assert_eq!(shown[0].2, "proxy_no_peer");
    }
}
