//! Why a request or a receive of a Jetty failed: from the status of its completion, and what the host knew of the peer.

use super::{Explanation, hop_words, path_facts, time_text};
use burst_control::failures::{HelloRecord, JettyRecord, NextHop};

/// Explains a record. The numbers are URMA's (`urma_cr_status_t`).
pub(super) fn explain(jetty: &JettyRecord) -> Explanation {
    let (what, peer) = (request(jetty), peer(jetty));
    match jetty.status {
        2 => Explanation::new(
            format!("A message of {peer} is longer than the receive that was posted for it."),
            "Post receives as long as the longest message, or send shorter ones.",
        ),
        3 => Explanation::new(
            format!(
                "{what} cannot be carried out by Jetty {} as it is: its target, order or state does not allow it.",
                jetty.jetty
            ),
            "Import the target first, bind a Jetty of type RC to it, and post only to a Jetty in state READY.",
        ),
        4 => Explanation::new(
            format!("{what} names local memory that no segment of the program has, or that was removed meanwhile."),
            "Register the segment with the access that is needed, and keep it registered until the request has completed.",
        ),
        5 => Explanation::new(
            format!(
                "The receive that {peer} had posted is shorter than the message: {what} of {} bytes.",
                jetty.length
            ),
            "Post longer receives at the peer, or send shorter messages.",
        ),
        6 => Explanation::new(
            format!("{peer} does not allow {what}: its Jetty is bound to another one, or does not exist."),
            "Import the Jetty anew with the number and token that the peer's program has now, and bind both ends to each other.",
        ),
        7 => Explanation::new(
            format!("{peer} could not carry out {what}: its Jetty or its program has ended, or had no memory."),
            "Look at the peer's program, then import its Jetty anew; burst why there shows its side.",
        ),
        8 => Explanation::new(
            format!(
                "{peer} refused {what}: the token is not the segment's, the range is outside of it, or it was registered without the right."
            ),
            "Import the segment with the token value, address and length that the peer's program has now, and register it there with the \
             access flags of the request.",
        ),
        9 => silence(jetty),
        10 => Explanation::new(
            format!("{peer} had no receive posted for {what}, after all repetitions."),
            "Post receives at the peer before this end sends, or raise rnr_retry of the Jetty.",
        ),
        16 => Explanation::new(
            format!("{peer} could not read the memory that {what} names: it was removed while the answer was sent."),
            "Keep segments registered, and their memory mapped, until the peer has stopped using them.",
        ),
        other => Explanation::new(
            format!("{what} ended with status {other} of URMA."),
            "See the statuses of completions in docs/urma-programs.md.",
        ),
    }
}

/// The peer's node has not acknowledged, after all repetitions.
fn silence(jetty: &JettyRecord) -> Explanation {
    let peer = jetty.peer.map_or_else(|| "the peer".to_owned(), |peer| peer.to_string());
    match jetty.next_hop {
        Some(NextHop::NoRoute) => {
            return Explanation::new(
                format!("There is no route from {} to {peer}.", jetty.local),
                format!("Check the peer's EID, and ip route get {peer} from {}.", jetty.local),
            );
        }
        Some(NextHop::Silent | NextHop::Asked) => {
            return Explanation::new(
                format!("No host answers for {peer}: the next hop does not answer ARP or neighbour discovery."),
                format!(
                    "Check that {peer} is the right EID, that its host is up and in the same network: ping {peer}."
                ),
            );
        }
        Some(NextHop::Resolved) | None => {}
    }
    let hello = jetty.path.map_or_else(HelloRecord::default, |path| path.hello);
    if hello.restarted_ago_ns.is_some() {
        return Explanation::new(
            format!("The Burst daemon at {peer} was started anew, and its Jetties are gone."),
            "Start the peer's program again, and import its Jetties and segments anew.",
        );
    }
    if hello.answered_since {
        return Explanation::new(
            format!(
                "{peer} is reached and its Burst daemon answers, but no node of URMA has acknowledged {}.",
                request(jetty)
            ),
            format!(
                "Start the peer's program, which opens its node (burst ls on {peer}), and allow UDP port 4792 in the firewalls of both hosts."
            ),
        );
    }
    let is_open = jetty.channel.is_some_and(|channel| channel.is_open);
    Explanation::new(
        match is_open {
            true => format!("{peer} has acknowledged and is silent now: its host, its program or the network is down."),
            false => format!(
                "Nothing has ever come from {peer}: no program of URMA runs there, or UDP port 4792 is blocked in one direction."
            ),
        },
        format!(
            "Check that {peer} answers ping, that the program of URMA runs there (burst ls), and that the firewalls of both hosts allow UDP port 4792."
        ),
    )
}

fn request(jetty: &JettyRecord) -> String {
    match jetty.is_receive {
        true => "a receive".to_owned(),
        false => format!("a request ({}, {} bytes)", jetty.operation, jetty.length),
    }
}

fn peer(jetty: &JettyRecord) -> String {
    match (jetty.peer, jetty.peer_jetty) {
        (Some(peer), 0) => peer.to_string(),
        (Some(peer), id) => format!("Jetty {id} at {peer}"),
        (None, _) => "the peer".to_owned(),
    }
}

/// The facts, a line each.
pub(super) fn facts(jetty: &JettyRecord, all: &mut Vec<(&'static str, String)>) {
    all.push(("Jetty", format!("{}, burst{}, status {}", jetty.jetty, jetty.device, jetty.status)));
    all.push(("path", format!("{} to {}", jetty.local, peer(jetty))));
    all.push(("request", request(jetty)));
    if let Some(channel) = jetty.channel {
        let state = if channel.is_open { "open" } else { "not answered yet" };
        let mut words =
            format!("{state}, {} packets in flight, {} requests not answered", channel.packets, channel.unanswered);
        if channel.rtt_ns > 0 {
            words.push_str(&format!(", round trip {}", time_text(channel.rtt_ns)));
        }
        all.push(("channel", words));
    }
    if let Some(path) = &jetty.path {
        path_facts(path, all);
    }
    if let Some(hop) = jetty.next_hop {
        all.push(("next hop", hop_words(hop).into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_control::failures::{JettyChannelRecord, PeerPathRecord};

    fn record(status: u8) -> JettyRecord {
        JettyRecord {
            device: 0,
            jetty: 20,
            local: [10, 0, 0, 1].into(),
            peer: Some([10, 0, 0, 2].into()),
            peer_jetty: 30,
            operation: "Write".into(),
            is_receive: false,
            length: 64,
            status,
            channel: Some(JettyChannelRecord { is_open: true, packets: 1, unanswered: 1, rtt_ns: 20_000 }),
            path: None,
            next_hop: Some(NextHop::Resolved),
        }
    }

    fn path(hello: HelloRecord) -> Option<PeerPathRecord> {
        Some(PeerPathRecord {
            is_own_address: false,
            acked_ago_ns: None,
            hello,
            unsent: 0,
            too_long: 0,
            corrupt: 0,
            overflowed: 0,
            closed: 0,
        })
    }

    #[test]
    fn every_status_has_a_sentence_and_a_cure() {
        for status in 0..=32 {
            let Explanation { cause, cure } = explain(&record(status));
            assert!(cause.ends_with('.') && cure.ends_with('.'), "{status}: {cause} {cure}");
        }
        let mut all = Vec::new();
        facts(&record(8), &mut all);
        assert!(all.iter().any(|(name, value)| *name == "channel" && value.contains("round trip 20 us")), "{all:?}");
    }

    #[test]
    fn silence_has_the_nearest_obstacle_as_its_cause() {
        let silent = |change: &dyn Fn(&mut JettyRecord)| {
            let mut record = record(9);
            change(&mut record);
            explain(&record).cause
        };
        assert!(silent(&|r| r.next_hop = Some(NextHop::NoRoute)).contains("no route from 10.0.0.1 to 10.0.0.2"));
        assert!(silent(&|r| r.next_hop = Some(NextHop::Silent)).contains("No host answers for 10.0.0.2"));
        let answers = HelloRecord { asked: true, answered_since: true, ..HelloRecord::default() };
        assert!(silent(&|r| r.path = path(answers)).contains("no node of URMA has acknowledged"));
        let anew = HelloRecord { restarted_ago_ns: Some(1), ..answers };
        assert!(silent(&|r| r.path = path(anew)).contains("was started anew"));
        assert!(silent(&|_| {}).contains("silent now"));
        assert!(silent(&|r| r.channel = None).contains("Nothing has ever come"));
    }
}
