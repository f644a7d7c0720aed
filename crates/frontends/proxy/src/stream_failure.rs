//! A stream or connection that ended in error, as `burst proxy why` shows it: facts, one sentence of cause, one of cure.
//!
//! The proxy sends the record's values over its admin socket; the command makes the sentences, with what the proxy knows of its
//! peers at that time.

use crate::peer_loss::PeerLoss;
use crate::worker::{RecordedStream, StreamRecord};
use burst_base::Reason;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

/// What a stream had moved.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct MovedView {
    peer: String,
    link: u32,
    carrier: String,
    encrypted: bool,
    is_clients_end: bool,
    phase: String,
    lasted_ms: u64,
    /// Read here, and taken by the peer's program.
    sent: (u64, u64),
    /// Come from the peer, and taken by the program here.
    received: (u64, u64),
    /// Out and in.
    windows: (u32, u32),
    /// The program here, and the one at the peer.
    ended: (bool, bool),
}

/// One failure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StreamFailure {
    /// By which it is found again.
    pub number: u64,
    /// How long ago.
    pub ago_ms: u64,
    client: SocketAddr,
    server: SocketAddr,
    reason: String,
    detail: String,
    by_tcp: Option<String>,
    moved: Option<MovedView>,
}

/// A peer that carries nothing, with its trouble.
pub type AwayPeer = (String, String);

/// Why, and what to do.
#[derive(Debug)]
struct CauseAndCure {
    cause: String,
    cure: String,
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl StreamFailure {
    /// The view of a record.
    pub fn of(record: &StreamRecord, now: SystemTime) -> Self {
        let moved = |stream: &RecordedStream| MovedView {
            peer: stream.link.peer.to_string(),
            link: stream.link.number,
            carrier: stream.link.carrier.into(),
            encrypted: stream.link.encrypted,
            is_clients_end: stream.is_clients_end,
            phase: stream.phase.into(),
            lasted_ms: millis(stream.lasted),
            sent: stream.sent,
            received: stream.received,
            windows: stream.windows,
            ended: stream.ended,
        };
        Self {
            number: record.number,
            // The clock of the system may have been set back.
            ago_ms: millis(now.duration_since(record.at).unwrap_or_default()),
            client: record.ends.0,
            server: record.ends.1,
            reason: record.reason.name().into(),
            detail: record.detail.to_string(),
            by_tcp: record.by_tcp.map(|reason| reason.name().into()),
            moved: record.stream.as_ref().map(moved),
        }
    }

    /// Whether it is about a server's address, or its address and port.
    pub fn is_about(&self, server: &str) -> bool {
        [self.server.to_string(), self.server.ip().to_string(), format!("[{}]", self.server.ip())]
            .iter()
            .any(|name| name == server)
    }

    fn explain(&self, away: &[AwayPeer]) -> CauseAndCure {
        let Some(reason) = named(&self.reason) else {
            return CauseAndCure { cause: self.reason.clone(), cure: "See docs/reasons.md.".into() };
        };
        let why = self.by_tcp.as_deref().and_then(named);
        let is_clients_end = self.moved.as_ref().is_some_and(|moved| moved.is_clients_end);
        let (here, there) = if is_clients_end { ("client", "server") } else { ("server", "client") };
        let (server, detail, cure) = (self.server, &self.detail, reason.cure().to_owned());
        let (cause, cure) = match reason {
            Reason::ProxyProgramReset => (
                format!(
                    "The {here}, a program of this host, reset the connection: it ended or closed its socket without reading all that had come, or wrote after the other end was closed."
                ),
                format!(
                    "Look in the {here}'s log for why it ended the connection. The proxy passed the reset on, as TCP does."
                ),
            ),
            Reason::ProxyPeerReset => (
                format!(
                    "The {there}, at the other proxy's end, reset the connection: it ended or closed its socket without reading all that had come, or its connection to the proxy of its host failed."
                ),
                format!(
                    "Look in the {there}'s log for why it ended the connection, and ask burst proxy why on its host."
                ),
            ),
            Reason::ProxySocketFailed => {
                (format!("The connection between the {here} and the proxy of this host failed: {detail}."), cure)
            }
            Reason::ProxyRefused => (
                format!("The server refused the connection: nothing listens at {server}."),
                "Start the server, or correct the client's address and port.".into(),
            ),
            Reason::ProxyUnreachable => {
                (format!("The server {server} did not answer the connect from the proxy on its side."), cure)
            }
            Reason::ProxyReset => (
                "The client gave up before the server had answered.".into(),
                "Nothing, if the client was stopped or has a shorter time-out than its server takes.".into(),
            ),
            Reason::ProxyPeerLost => {
                let cure = PeerLoss::of_words(detail).map_or(reason.cure(), PeerLoss::cure);
                let peer = self.moved.as_ref().map_or("the peer", |moved| &moved.peer);
                (
                    format!(
                        "The connection was reset at both ends because this proxy gave the proxy {peer} up: {detail}."
                    ),
                    cure.to_owned(),
                )
            }
            Reason::ProxyEncryptOnly => {
                return not_carried("Nothing may go by TCP in clear (encrypt = \"only\"), and", server, why, away);
            }
            Reason::ProxyTcpFailed => {
                let CauseAndCure { cure, .. } = not_carried("", server, why, away);
                let since = why.map_or("", no_carrier);
                (
                    format!("The connection went by TCP, because {since}, and there it failed: {detail}."),
                    format!("Look for the server {server} as without a proxy. To have it carried: {cure}"),
                )
            }
            _ => (reason.explanation().to_owned(), cure),
        };
        CauseAndCure { cause, cure }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![
            ("what", format!("a connection ended in error {} ago (number {})", time_text(self.ago_ms), self.number)),
            ("client", self.client.to_string()),
            ("server", self.server.to_string()),
            ("reason", self.reason.clone()),
        ];
        if let Some(why) = &self.by_tcp {
            all.push(("by TCP", why.clone()));
        }
        if !self.detail.is_empty() {
            all.push(("error", self.detail.clone()));
        }
        let Some(moved) = &self.moved else { return all };
        let kept = if moved.encrypted { "encrypted" } else { "not encrypted" };
        let end = if moved.is_clients_end { "client's" } else { "server's" };
        let (out, back) = moved.windows;
        let bytes = |n: u32| burst_grammar::show_bytes(n.into());
        all.extend([
            ("this host", format!("the {end} end")),
            ("peer", format!("{}, link {} by {}, {kept}", moved.peer, moved.link, moved.carrier)),
            ("state", format!("{}, {} after its begin here", moved.phase, time_text(moved.lasted_ms))),
            ("to the peer", direction(moved.sent, "taken there", moved.ended.0)),
            ("from the peer", direction(moved.received, "taken here", moved.ended.1)),
            ("windows", format!("{} out, {} back", bytes(out), bytes(back))),
        ]);
        all
    }

    /// Facts, cause and cure as text.
    pub fn text(&self, away: &[AwayPeer]) -> String {
        let mut text = String::new();
        for (name, value) in self.facts() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<14} {value}");
        }
        let CauseAndCure { cause, cure } = self.explain(away);
        let _ = writeln!(text, "cause: {cause}\ncure:  {cure}");
        text
    }

    /// The failure in a line.
    pub fn line(&self, away: &[AwayPeer]) -> String {
        let (ago, cause) = (time_text(self.ago_ms), self.explain(away).cause);
        format!("{:>6} {ago:>8} ago  {} to {}  {cause}\n", self.number, self.client, self.server)
    }

    /// The failure for programs.
    pub fn json(&self, away: &[AwayPeer]) -> Value {
        let CauseAndCure { cause, cure } = self.explain(away);
        let facts: Map<String, Value> =
            self.facts().into_iter().map(|(name, value)| (name.replace(' ', "_"), value.into())).collect();
        let mut all = json!(self);
        all["facts"] = facts.into();
        all["cause"] = cause.into();
        all["cure"] = cure.into();
        all
    }
}

fn named(name: &str) -> Option<Reason> {
    Reason::ALL.iter().copied().find(|reason| reason.name() == name)
}

/// Cause and cure of a connection that no peer carried. `begin`: of the sentence.
fn not_carried(begin: &str, server: SocketAddr, why: Option<Reason>, away: &[AwayPeer]) -> CauseAndCure {
    let mut cause = format!("{begin} {} (server {server})", why.map_or("no peer carried the connection", no_carrier));
    let trouble = match why {
        Some(Reason::ProxyNoPeer | Reason::ProxyNoLink | Reason::ProxyPeerGone | Reason::ProxyPeerSilent) => {
            away.first()
        }
        _ => None,
    };
    let Some((peer, trouble)) = trouble else {
        let cure = why.map_or("See burst proxy ls.", Reason::cure).to_owned();
        return CauseAndCure { cause: cause + ".", cure };
    };
    // Writing to a string cannot fail.
    let _ = write!(cause, "; the proxy {peer} is away: {trouble}.");
    let cure = if trouble.to_lowercase().contains("certificate") {
        format!(
            "Give both proxies certificates of one authority (burst proxy keys), each with the name by which the other one knows it ({peer}), then burst proxy reload."
        )
    } else {
        format!("Start the proxy {peer}, and look for a firewall on the port of its listen key.")
    };
    CauseAndCure { cause, cure }
}

/// Why no peer carried a connection, as a part of a sentence.
const fn no_carrier(why: Reason) -> &'static str {
    match why {
        Reason::ProxyPolicyTcp => "the policy says relay = \"tcp\"",
        Reason::ProxyNoPeer => "no connected peer serves the server's address",
        Reason::ProxyPeerGone => "the peer went away before the server had answered",
        Reason::ProxyNoLink => "no link to the peer works at the moment",
        Reason::ProxyPeerSilent => "the peer did not answer within open_ms",
        Reason::ProxyNotServed => "the peer's proxy could not connect to the server from the client's address",
        Reason::ProxyNoMemory => "the proxy or its peer has no memory for another stream",
        Reason::ProxyDraining => "the proxy or its peer takes no new streams",
        _ => "no peer could carry the connection",
    }
}

/// Bytes of a direction.
fn direction((moved, taken): (u64, u64), what: &str, has_ended: bool) -> String {
    let end = if has_ended { ", ended" } else { "" };
    format!("{moved} bytes, {taken} of them {what}{end}")
}

fn time_text(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..120_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        _ => format!("{} h", ms / 3_600_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(reason: Reason, detail: &str, by_tcp: Option<Reason>) -> StreamFailure {
        StreamFailure {
            number: 7,
            ago_ms: 1500,
            client: ([10, 0, 0, 1], 4000).into(),
            server: ([10, 0, 0, 2], 80).into(),
            reason: reason.name().into(),
            detail: detail.into(),
            by_tcp: by_tcp.map(|reason| reason.name().into()),
            moved: None,
        }
    }

    fn moved(is_clients_end: bool) -> Option<MovedView> {
        Some(MovedView {
            peer: "b".into(),
            link: 0,
            carrier: "rdma".into(),
            encrypted: false,
            is_clients_end,
            phase: "open".into(),
            lasted_ms: 130_000,
            sent: (10, 4),
            received: (3, 3),
            windows: (1 << 19, 1 << 22),
            ended: (true, false),
        })
    }

    #[test]
    fn a_reset_names_the_program_that_did_it() {
        let mut reset = failure(Reason::ProxyProgramReset, "", None);
        for (is_clients_end, here, there) in [(true, "client", "server"), (false, "server", "client")] {
            reset.moved = moved(is_clients_end);
            reset.reason = Reason::ProxyProgramReset.name().into();
            assert!(reset.text(&[]).contains(&format!("The {here}, a program of this host, reset")));
            reset.reason = Reason::ProxyPeerReset.name().into();
            assert!(reset.text(&[]).contains(&format!("The {there}, at the other proxy's end, reset")));
        }
        let text = reset.text(&[]);
        assert!(text.contains("10 bytes, 4 of them taken there, ended") && text.contains("2 min after"), "{text}");
        assert!(text.contains("1.5 s ago (number 7)") && text.contains("512KiB out, 4MiB back"), "{text}");
    }

    #[test]
    fn a_connection_that_no_peer_carries_names_the_trouble_of_the_peer() {
        let only = failure(Reason::ProxyEncryptOnly, "", Some(Reason::ProxyNoPeer));
        let away = [("b".to_owned(), "invalid peer certificate: BadSignature".to_owned())];
        let (text, without) = (only.text(&away), only.text(&[]));
        assert!(text.contains("the proxy b is away: invalid peer certificate") && text.contains("burst proxy keys"));
        assert!(without.contains("no connected peer serves") && without.contains("[[serve]]"), "{without}");
        let stopped = only.text(&[("b".to_owned(), "Connection refused".to_owned())]);
        assert!(stopped.contains("cure:  Start the proxy b"), "{stopped}");
        let tcp = failure(Reason::ProxyTcpFailed, "Connection refused (os error 111)", Some(Reason::ProxyPolicyTcp));
        assert!(
            tcp.text(&[]).contains("because the policy says relay = \"tcp\", and there it failed: Connection refused")
        );
    }

    #[test]
    fn each_loss_of_a_peer_has_its_own_cure() {
        let mut lost = failure(Reason::ProxyPeerLost, PeerLoss::Unnamed.words(), None);
        lost.moved = moved(true);
        let text = lost.text(&[]);
        assert!(
            text.contains("gave the proxy b up: the configuration names it no more.")
                && text.contains("burst proxy reload")
        );
        assert_eq!(lost.json(&[])["cure"], PeerLoss::Unnamed.cure());
        assert_eq!(lost.json(&[])["facts"]["this_host"], "the client's end");
    }

    #[test]
    fn it_is_found_by_address_with_and_without_port() {
        let mut one = failure(Reason::ProxyReset, "", None);
        assert!(one.is_about("10.0.0.2") && one.is_about("10.0.0.2:80") && !one.is_about("10.0.0.2:81"));
        one.server = "[fd00::2]:80".parse().expect("an address");
        assert!(one.is_about("fd00::2") && one.is_about("[fd00::2]") && one.is_about("[fd00::2]:80"));
    }
}
