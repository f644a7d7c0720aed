//! Why no answer came: from the route to the peer's queue pair, the nearest obstacle first.

use super::{Explanation, count_of, hex, operation, packet_bytes, plain_mtu, time_text};
use burst_base::Reason;
use burst_control::failures::{HelloRecord, NextHop, PeerPathRecord, QpRecord};

/// Explains a queue pair whose retries are used up.
pub(super) fn explain(qp: &QpRecord) -> Explanation {
    let nearest = no_way(qp).or_else(|| wrong_address(qp)).or_else(|| local_loss(qp));
    nearest.unwrap_or_else(|| if has_answered(qp) { fell_silent(qp) } else { never_answered(qp) })
}

/// Explains a queue pair that waits for an answer.
pub(super) fn waiting(qp: &QpRecord) -> Explanation {
    let endless = qp.timeout == 0;
    let found = explain(qp);
    match endless {
        true => Explanation {
            cause: format!("Requests wait for an answer without end, because timeout is 0. {}", found.cause),
            ..found
        },
        false => Explanation { cause: format!("Requests wait for an answer. {}", found.cause), ..found },
    }
}

/// Whether the peer's queue pair has ever answered or sent.
fn has_answered(qp: &QpRecord) -> bool {
    let [first, una, _] = qp.sent_psns;
    let [first_expected, expected] = qp.received_psns;
    first != una || first_expected != expected || qp.request.is_some_and(|request| request.answered_packets > 0)
}

fn hello(qp: &QpRecord) -> HelloRecord {
    qp.path.map_or_else(HelloRecord::default, |path| path.hello)
}

fn is_own_address(qp: &QpRecord) -> bool {
    qp.path.is_some_and(|path| path.is_own_address)
}

/// Packets do not get as far as the next host.
fn no_way(qp: &QpRecord) -> Option<Explanation> {
    let (peer, local) = (qp.peer, qp.local);
    match qp.next_hop? {
        NextHop::NoRoute => Some(Explanation::new(
            format!("There is no route from {local} to {peer}."),
            format!("Check the peer's address (its GID), and ip route get {peer} from {local}."),
        )),
        NextHop::Silent | NextHop::Asked => Some(Explanation::new(
            format!("No host answers for {peer}: the next hop does not answer ARP or neighbour discovery."),
            format!(
                "Check that {peer} is the right address, that its host is up and in the same network: ping {peer}."
            ),
        )),
        NextHop::Resolved => None,
    }
}

/// The peer answers from another address than the one that this queue pair was given.
fn wrong_address(qp: &QpRecord) -> Option<Explanation> {
    let strays = count_of(qp, Reason::WrongSource);
    (strays > 0).then(|| {
        Explanation::new(
            format!(
                "{strays} packets for queue pair {} came from another address than {}: the peer's queue pair uses another GID index \
                 than the one whose GID this end was given.",
                hex(qp.qpn),
                qp.peer
            ),
            "Use the GID at the sgid_index of the peer's queue pair as dgid here, and the other way round (burst ls lists them).",
        )
    })
}

/// Packets were lost on this host.
fn local_loss(qp: &QpRecord) -> Option<Explanation> {
    let PeerPathRecord { unsent, too_long, corrupt, closed, hello, .. } = qp.path?;
    if closed > 0 && !hello.answered_since {
        return Some(Explanation::new(
            format!("{} answers that nothing listens on UDP port 4791: no RDMA stack runs there (any more).", qp.peer),
            format!("On {}: start burstd, or check that its daemon serves this address (burst ls).", qp.peer),
        ));
    }
    if too_long > 0 {
        return Some(Explanation::new(
            format!(
                "{too_long} packets were longer than the path to {} allows, and were not sent: {} bytes of payload and the headers do \
                 not fit.",
                qp.peer, qp.mtu
            ),
            "Lower path_mtu of both queue pairs to what fits (MTU of the path less 58 bytes), or raise the MTU on the whole path.",
        ));
    }
    if unsent > 0 && !has_answered(qp) {
        return Some(Explanation::new(
            format!(
                "The kernel of this host refused to send {unsent} packets: a firewall rule for output, or the route, forbids them."
            ),
            format!(
                "Allow UDP port 4791 to {} in the output rules (nft list ruleset, iptables -S OUTPUT), and check ip route get {0}.",
                qp.peer
            ),
        ));
    }
    (corrupt > 0 && !has_answered(qp)).then(|| {
        Explanation::new(
            format!("{corrupt} packets arrived with a wrong CRC and were dropped: something on the path changes or damages them."),
            "Look for a NAT, a load balancer or a faulty link between the hosts.",
        )
    })
}

/// Nothing ever came from the peer's queue pair.
fn never_answered(qp: &QpRecord) -> Explanation {
    let (peer_qp, peer) = (hex(qp.peer_qpn), qp.peer);
    if let Some(found) = other_psns(qp) {
        return found;
    }
    if is_own_address(qp) {
        return Explanation::new(
            format!(
                "Queue pair {peer_qp} of this host ({peer}) has never answered: it does not exist, or was not in RTR when the request came."
            ),
            "Exchange the queue pair numbers of this run, and move both ends to RTR before either sends.",
        );
    }
    if hello(qp).restarted_ago_ns.is_some() {
        return restarted(qp);
    }
    if hello(qp).answered_ago_ns.is_some() {
        if packet_bytes(qp) > plain_mtu() {
            return too_long_or_absent(qp);
        }
        return Explanation::new(
            format!(
                "{peer} is reached and its Burst daemon answers, but queue pair {peer_qp} there has never answered: it does not exist \
                 (any more), is not connected to queue pair {} here, or was not in RTR when the request came.",
                hex(qp.qpn)
            ),
            "Exchange the queue pair numbers of this run, and move both ends to RTR before either sends; burst why QPN on the peer shows \
             its queue pair.",
        );
    }
    Explanation::new(
        format!(
            "Nothing has ever come from {peer}, although its network is reached: no RDMA stack runs there, or UDP port 4791 is blocked \
             in one direction."
        ),
        format!(
            "On {peer}: start burstd (or check the adapter), and allow UDP port 4791 for input and output in the firewalls of both hosts; \
             burst capture on {peer} shows whether packets arrive."
        ),
    )
}

/// The peer's queue pair answers, but not to the packets that were sent: it counts from another number.
fn other_psns(qp: &QpRecord) -> Option<Explanation> {
    let odd = [Reason::SequenceNakReceived, Reason::StaleAck, Reason::UnexpectedResponse, Reason::NakRepeated];
    let answers: u32 = odd.iter().map(|reason| count_of(qp, *reason)).sum();
    (answers > 0).then(|| {
        Explanation::new(
            format!(
                "Queue pair {} at {} answers, but to none of the packets that were sent from PSN {} on: its rq_psn is not the sq_psn of \
                 queue pair {} here.",
                hex(qp.peer_qpn),
                qp.peer,
                qp.sent_psns[0],
                hex(qp.qpn)
            ),
            "Exchange the starting PSNs with the queue pair numbers: rq_psn in RTR at each end is the sq_psn in RTS of the other.",
        )
    })
}

/// Small packets pass, this large one had no answer.
fn too_long_or_absent(qp: &QpRecord) -> Explanation {
    let (peer, bytes) = (qp.peer, packet_bytes(qp));
    Explanation::new(
        format!(
            "{peer} is reached and its Burst daemon answers short packets, but {} in packets of {bytes} bytes had no answer: a link on \
             the path has a smaller MTU than path_mtu, or queue pair {} does not exist there.",
            operation(qp),
            hex(qp.peer_qpn)
        ),
        format!(
            "ping -M do -s {} {peer} tells: without an answer, lower path_mtu at both ends to 1024, or raise the MTU of every link; with \
             one, exchange the queue pair numbers anew.",
            bytes + 50
        ),
    )
}

/// The peer's daemon is another one than before.
fn restarted(qp: &QpRecord) -> Explanation {
    Explanation::new(
        format!("The Burst daemon at {} was started anew, and its queue pairs are gone.", qp.peer),
        "Connect a new queue pair; programs at the peer must open their devices again. Its log, and burst why daemon there, tell why.",
    )
}

/// The peer's queue pair has answered, and does not any more.
fn fell_silent(qp: &QpRecord) -> Explanation {
    let (peer, peer_qp, hello) = (qp.peer, hex(qp.peer_qpn), hello(qp));
    if qp.retries[1] == 0 && (hello.answered_since || is_own_address(qp)) {
        return Explanation::new(
            "One packet or its answer was lost, and retry_cnt is 0: the queue pair gave up at once.",
            "Set retry_cnt to 7 and timeout to 14 or more when the queue pair is moved to RTS.",
        );
    }
    if hello.restarted_ago_ns.is_some() {
        return restarted(qp);
    }
    if !(hello.answered_since || is_own_address(qp)) {
        let when = qp
            .path
            .and_then(|path| path.acked_ago_ns)
            .map_or(String::new(), |ago| format!(" {} before", time_text(ago)));
        return Explanation::new(
            format!(
                "{peer} has answered and is silent now: the last answer came{when}. Its host or daemon is down, or the network or a \
                 firewall has stopped UDP port 4791."
            ),
            format!(
                "Check that the host answers ping {peer}, that its daemon runs (burst ls there), and what has changed in the firewalls."
            ),
        );
    }
    if packet_bytes(qp) > plain_mtu() && is_first_long(qp) {
        return too_long_or_absent(qp);
    }
    Explanation::new(
        format!(
            "Queue pair {peer_qp} at {peer} has answered and does not any more, although its host does: its program has destroyed or reset it."
        ),
        "End connections at both sides in order (rdma_disconnect, or a last message), or look for the program's end at the peer.",
    )
}

/// Whether all answered packets were short: on average less than half of the unanswered one.
fn is_first_long(qp: &QpRecord) -> bool {
    let answered = qp.sent_psns[1].wrapping_sub(qp.sent_psns[0]) & 0xff_ffff;
    answered == 0 || qp.answered_bytes / u64::from(answered) < u64::from(packet_bytes(qp) / 2)
}
