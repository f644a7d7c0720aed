//! From a record of a failure to one sentence with its cause, and one with its cure.
//!
//! The reason alone says what a queue pair saw: no answer came. [`explain`] says why, from what the host knew besides: whether
//! the peer ever answered, whether its daemon answers now, what the next hop is like, what packets met here, which key was
//! wrong in which way. Where the facts allow two causes, the sentence says how to tell them apart. The facts themselves are
//! [`facts`].

use burst_base::Reason;
use burst_base::reason::Class;
use burst_base::verbs::{Mtu, QpState, QpType, WcStatus, WrOpcode, access};
use burst_control::failures::{
    FailureKind, FailureRecord, HelloRecord, LastPacketRecord, MemoryFinding, MemoryRecord, NextHop, PeerPathRecord,
    QpRecord,
};
use std::fmt::Write;
use std::time::Duration;

mod jetty;
mod silence;

/// A cause and its cure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// What has happened, and why.
    pub cause: String,
    /// What to do.
    pub cure: String,
}

impl Explanation {
    fn new(cause: impl Into<String>, cure: impl Into<String>) -> Explanation {
        Explanation { cause: cause.into(), cure: cure.into() }
    }
    /// The sentences of the table of reasons.
    fn of(reason: Reason) -> Explanation {
        Explanation::new(reason.explanation(), reason.cure())
    }
}

/// Explains a record.
pub fn explain(record: &FailureRecord) -> Explanation {
    if let Some(jetty) = &record.jetty {
        return jetty::explain(jetty);
    }
    match (record.kind, &record.qp) {
        (FailureKind::Call | FailureKind::Connection, _) => of_sentence(record),
        (FailureKind::Present, Some(qp)) => present(qp),
        (_, Some(qp)) => record.reason().map_or_else(|| present(qp), |reason| of_qp(reason, qp)),
        (_, None) => record.reason().map_or_else(|| of_sentence(record), Explanation::of),
    }
}

/// Reasons of a REJ: no listener, and the peer's program.
const REJECTED_UNHEARD: i32 = 8;
/// See [`REJECTED_UNHEARD`].
const REJECTED_PROGRAM: i32 = 28;

/// What the host says itself, of calls and connections.
fn of_sentence(record: &FailureRecord) -> Explanation {
    let cure = match (record.kind, record.errno) {
        (FailureKind::Connection, REJECTED_UNHEARD) => {
            "Start the server before the client, and use the same address, port and port space (RDMA_PS_TCP, RDMA_PS_UDP) at both ends."
        }
        (FailureKind::Connection, REJECTED_PROGRAM) => {
            "Look in the server's log: its program called rdma_reject, or ended before it accepted; the event's private data may say why."
        }
        (FailureKind::Connection, error) if error == -libc::ETIMEDOUT => {
            "Check that burstd (or an adapter) serves the address at the peer, that UDP port 4791 is open both ways, and that the server \
             accepts its requests: a full backlog is silent, too (burst stats there: cm_backlog_full)."
        }
        (FailureKind::Connection, _) => "Look at the peer: burst why there shows its side.",
        _ => "Change what the sentence names and call again.",
    };
    Explanation::new(format!("{}.", sentence_case(record.sentence.trim_end_matches('.'))), cure)
}

fn of_qp(reason: Reason, qp: &QpRecord) -> Explanation {
    match reason {
        Reason::RetryExhausted => silence::explain(qp),
        Reason::RnrRetryExhausted => receiver_not_ready(qp),
        Reason::RemoteAccessReported => access_refused(qp),
        Reason::RemoteInvalidReported => Explanation::new(
            format!(
                "{} refused {} as invalid: its queue pair does not allow this operation, the message is longer than the receive, or \
                 the two ends disagree on MTU or on outstanding READs.",
                peer(qp),
                operation(qp)
            ),
            "Run burst why on the peer: it names the check. Usual: qp_access_flags of the peer's queue pair lack the right, its \
             receives are too short, or max_rd_atomic here exceeds max_dest_rd_atomic there.",
        ),
        Reason::RemoteOperationReported => Explanation::new(
            format!(
                "{} could not carry {} out: its program has ended while the queue pair was connected, or its queue pair failed.",
                peer(qp),
                operation(qp)
            ),
            "Look for the end of the program at the peer (its log, a core file), start it again, and connect a new queue pair.",
        ),
        Reason::RemoteAccess | Reason::InvalidRequest => {
            qp.memory.map_or_else(|| invalid_request(reason), |memory| bad_key(qp, &memory))
        }
        Reason::ReceiveTooShort => Explanation::new(
            format!("A message from {} is longer than the receive that was posted for it.", peer(qp)),
            "Post receives as long as the longest message, or send shorter ones; both ends have failed and must connect anew.",
        ),
        Reason::CqOverrun => Explanation::new(
            "A completion queue was full when a request ended, so its completion was lost and the queue pair failed.",
            "Create the completion queue with at least as many entries as requests are posted to all its queue pairs, or poll it more \
             often.",
        ),
        Reason::LocalProtection | Reason::ReceiveProtection => Explanation::new(
            format!(
                "{} names local memory that its lkey does not give: the key is wrong, of another protection domain, without the right, \
                 or the range is outside the region.",
                if reason == Reason::LocalProtection { sentence_case(&operation(qp)) } else { "A receive".into() }
            ),
            "Use the lkey of a region of the queue pair's protection domain that covers the whole range; to receive or to READ into it \
             the region needs IBV_ACCESS_LOCAL_WRITE.",
        ),
        Reason::LocalLength => Explanation::new(
            format!(
                "{} is longer than this queue pair may send: UD messages fit one packet of {} bytes.",
                sentence_case(&operation(qp)),
                qp.mtu
            ),
            "Send shorter messages, or use an RC queue pair.",
        ),
        other => Explanation::of(other),
    }
}

fn invalid_request(reason: Reason) -> Explanation {
    Explanation::of(reason)
}

fn receiver_not_ready(qp: &QpRecord) -> Explanation {
    let tries = match qp.retries[2] {
        0 => "once, and rnr_retry is 0".to_owned(),
        tries => format!("{} times", u32::from(tries) + 1),
    };
    Explanation::new(
        format!("{} had no receive posted for {}: it said so {tries}.", peer(qp), operation(qp)),
        "Post receives at the peer before this end sends, and keep more posted than messages are under way; rnr_retry = 7 waits \
         without end.",
    )
}

/// The peer refuses a key: it alone knows why.
fn access_refused(qp: &QpRecord) -> Explanation {
    let what = qp.memory.map_or_else(|| operation(qp), |memory| format!("{} to {}", operation(qp), range(&memory)));
    Explanation::new(
        format!(
            "{} refused {what}: the rkey is not valid there (any more), is of another protection domain, lacks the right, or the range \
             is outside the region.",
            peer(qp)
        ),
        "Run burst why on the peer: it names which of them. Compare rkey and address with what the peer's program sent, and check that \
         it has not deregistered the region.",
    )
}

/// A peer's request names memory here that its key does not give.
fn bad_key(qp: &QpRecord, memory: &MemoryRecord) -> Explanation {
    let (who, what) = (peer(qp), range(memory));
    let right = right_name(memory.right);
    match memory.finding {
        Some(MemoryFinding::Unknown) => Explanation::new(
            format!(
                "{who} used {what}, and no region of this host has this key: it is wrong, or its region was deregistered."
            ),
            "Send the peer the rkey that ibv_reg_mr returned, in this run of the program, and keep the region registered while it is used.",
        ),
        Some(MemoryFinding::OtherDomain) => Explanation::new(
            format!(
                "{who} used {what}, whose region belongs to another protection domain than queue pair {}.",
                hex(qp.qpn)
            ),
            "Register the memory in the protection domain with which the queue pair was created.",
        ),
        Some(MemoryFinding::MissingRight(rights)) => Explanation::new(
            format!("{who} used {what}, whose region was registered without {}.", right_name(rights)),
            format!("Register the region with {} (writing needs IBV_ACCESS_LOCAL_WRITE, too).", right_name(rights)),
        ),
        Some(MemoryFinding::OutOfRange { iova, len }) => Explanation::new(
            format!(
                "{who} used {what}, but the region of this key has the addresses {iova:#x} to {:#x} ({len} bytes).",
                iova.saturating_add(len)
            ),
            "Correct address or length at the peer, or register the whole buffer.",
        ),
        Some(MemoryFinding::QueuePairRight) => Explanation::new(
            format!("{who} asked for {right}, which queue pair {} does not grant.", hex(qp.qpn)),
            format!("Add {right} to qp_access_flags when the queue pair is moved to INIT (IBV_QP_ACCESS_FLAGS)."),
        ),
        Some(MemoryFinding::Window) => Explanation::new(
            format!(
                "{who} used {what}, a memory window that is closed, belongs to another queue pair, or does not allow this."
            ),
            "Bind the window to the region with the right, and send the peer the rkey that the bind has made.",
        ),
        Some(MemoryFinding::Nothing) | None => Explanation::new(
            format!(
                "{who} used {what}, and the memory was not there at that moment: it was deregistered or unmapped meanwhile."
            ),
            "Keep the region registered and mapped until the peer has stopped using it.",
        ),
    }
}

/// A queue pair that has not failed.
fn present(qp: &QpRecord) -> Explanation {
    let (qpn, state) = (hex(qp.qpn), state_name(qp.state));
    let dropped = |reason: &Reason| reason.class() == Class::Drop;
    let failed =
        |reason: &Reason| matches!(reason.class(), Class::Completion | Class::Nak) && *reason != Reason::Flushed;
    let is_failed = matches!(qp.state, QpState::Err | QpState::Sqe);
    if let Some((reason, _)) = counted(qp).find(|(reason, _)| is_failed && failed(reason)) {
        return Explanation::new(
            format!("Queue pair {qpn} is in {state}: {}", lower_first(reason.explanation())),
            reason.cure(),
        );
    }
    // A queue pair that has failed drops what comes: that is no cause.
    let is_cause = |reason: &Reason| dropped(reason) && !(is_failed && *reason == Reason::WrongState);
    let drops = counted(qp).filter(|(reason, _)| is_cause(reason)).max_by_key(|(_, count)| *count);
    if let Some((reason, count)) = drops {
        return Explanation::new(
            format!(
                "Queue pair {qpn} is in {state}, and {count} of its packets were dropped: {}",
                lower_first(reason.explanation())
            ),
            reason.cure(),
        );
    }
    match qp.state {
        QpState::Reset | QpState::Init => Explanation::new(
            format!("Queue pair {qpn} is in {state}: it drops what the peer sends, and sends nothing."),
            "Move it to RTR to receive, then to RTS to send (ibv_modify_qp).",
        ),
        QpState::Rtr => Explanation::new(
            format!("Queue pair {qpn} is in RTR: it receives, and sends no requests yet."),
            "Move it to RTS (ibv_modify_qp) before requests are to leave.",
        ),
        QpState::Err => Explanation::new(
            format!(
                "Queue pair {qpn} is in ERR, without a failure of its own: its program, or the end of its connection, moved it there."
            ),
            "Look at the other end (burst why there), then destroy the queue pair or move it through RESET.",
        ),
        _ => match qp.sent_psns[1] == qp.sent_psns[2] || !qp.qp_type.is_reliable() {
            true => Explanation::new(
                format!("Queue pair {qpn} is in {state} and nothing is wrong: all that was sent is answered."),
                "Nothing.",
            ),
            false => silence::waiting(qp),
        },
    }
}

/// The reasons that a queue pair's packets met, with counts.
fn counted(qp: &QpRecord) -> impl Iterator<Item = (Reason, u32)> {
    qp.counts.iter().filter_map(|(number, count)| Some((*Reason::ALL.get(usize::from(*number))?, *count)))
}

/// How often packets of the queue pair met a reason.
fn count_of(qp: &QpRecord, reason: Reason) -> u32 {
    counted(qp).find(|(r, _)| *r == reason).map_or(0, |(_, count)| count)
}

fn peer(qp: &QpRecord) -> String {
    if qp.peer.is_unspecified() { "The peer".into() } else { format!("Queue pair {} at {}", hex(qp.peer_qpn), qp.peer) }
}

fn hex(number: u32) -> String {
    format!("{number:#x}")
}

fn range(memory: &MemoryRecord) -> String {
    format!("rkey {:#x}, address {:#x}, {} bytes", memory.rkey, memory.addr, memory.len)
}

fn operation(qp: &QpRecord) -> String {
    match qp.request {
        Some(request) if request.length == 0 => format!("a {}", opcode_name(request.opcode)),
        Some(request) => format!("a {} of {} bytes", opcode_name(request.opcode), request.length),
        None => "a request".into(),
    }
}

const fn opcode_name(opcode: WrOpcode) -> &'static str {
    match opcode {
        WrOpcode::RdmaWrite => "RDMA WRITE",
        WrOpcode::RdmaWriteWithImm => "RDMA WRITE with immediate data",
        WrOpcode::Send => "SEND",
        WrOpcode::SendWithImm => "SEND with immediate data",
        WrOpcode::RdmaRead => "RDMA READ",
        WrOpcode::AtomicCmpAndSwp => "compare-and-swap",
        WrOpcode::AtomicFetchAndAdd => "fetch-and-add",
        _ => "request",
    }
}

fn right_name(rights: u32) -> String {
    let names = [
        (access::LOCAL_WRITE, "IBV_ACCESS_LOCAL_WRITE"),
        (access::REMOTE_WRITE, "IBV_ACCESS_REMOTE_WRITE"),
        (access::REMOTE_READ, "IBV_ACCESS_REMOTE_READ"),
        (access::REMOTE_ATOMIC, "IBV_ACCESS_REMOTE_ATOMIC"),
    ];
    let named: Vec<&str> = names.iter().filter(|(bit, _)| rights & bit != 0).map(|(_, name)| *name).collect();
    if named.is_empty() { format!("right {rights:#x}") } else { named.join(" and ") }
}

const fn state_name(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::Rtr => "RTR",
        QpState::Rts => "RTS",
        QpState::Sqd => "SQD",
        QpState::Sqe => "SQE",
        QpState::Err => "ERR",
    }
}

const fn type_name(qp_type: QpType) -> &'static str {
    match qp_type {
        QpType::Rc => "RC",
        QpType::Uc => "UC",
        QpType::Ud => "UD",
        QpType::XrcSend => "XRC initiator",
        QpType::XrcRecv => "XRC target",
    }
}

fn lower_first(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

fn sentence_case(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// A time for readers: 1.2 s, 350 ms, 20 us.
pub fn time_text(ns: u64) -> String {
    let time = Duration::from_nanos(ns);
    match ns {
        0..1_000_000 => format!("{} us", time.as_micros()),
        1_000_000..1_000_000_000 => format!("{} ms", time.as_millis()),
        _ if time.as_secs() < 120 => format!("{:.1} s", time.as_secs_f64()),
        _ if time.as_secs() < 7200 => format!("{} min", time.as_secs() / 60),
        _ => format!("{} h", time.as_secs() / 3600),
    }
}

/// The facts of a record, a line each, with the name of the fact.
pub fn facts(record: &FailureRecord) -> Vec<(&'static str, String)> {
    let mut all = vec![("what", what_line(record))];
    if record.program.pid > 0 {
        let program = &record.program;
        all.push(("program", format!("{} (pid {}, user {})", program.name, program.pid, program.uid)));
    }
    if let Some(reason) = record.reason() {
        all.push(("reason", format!("{} (vendor_err {})", reason.name(), reason.index() + 1)));
    }
    if record.comm_id != 0 {
        all.push(("connection", format!("communication id {} ({})", hex(record.comm_id), record.comm_id)));
    }
    if let Some(qp) = &record.qp {
        qp_facts(qp, &mut all);
    }
    if let Some(jetty) = &record.jetty {
        jetty::facts(jetty, &mut all);
    }
    all
}

fn what_line(record: &FailureRecord) -> String {
    let mut line = format!("{}, {} ago", record.kind.words(), time_text(record.ago_ns));
    let status =
        WcStatus::from_number(record.status.into()).filter(|s| !matches!(s, WcStatus::Success | WcStatus::GeneralErr));
    // Writing to a string cannot fail.
    let _ = status.map(|status| write!(line, ", completion status {}", status as u8));
    let _ = (record.errno != 0).then(|| write!(line, ", errno {}", record.errno));
    let _ = (record.repeats > 0).then(|| write!(line, ", and {} times before", record.repeats));
    line
}

fn qp_facts(qp: &QpRecord, all: &mut Vec<(&'static str, String)>) {
    all.push(("queue pair", format!("{} ({}), {}, burst{}", hex(qp.qpn), qp.qpn, type_name(qp.qp_type), qp.device)));
    if !qp.peer.is_unspecified() {
        all.push(("path", format!("{} to {}, queue pair {} ({})", qp.local, qp.peer, hex(qp.peer_qpn), qp.peer_qpn)));
    }
    if let Some(request) = &qp.request {
        let parts = format!("{} of {} packets answered", request.answered_packets, request.packets);
        all.push(("request", format!("{}, {parts}", operation(qp))));
    }
    if let Some(memory) = &qp.memory {
        all.push(("memory", range(memory)));
    }
    let [first, una, sent] = qp.sent_psns;
    all.push((
        "sent",
        format!("PSN {first} to {sent} (excluded), answered before {una}; {} bytes answered", qp.answered_bytes),
    ));
    let [first, expected] = qp.received_psns;
    all.push(("received", format!("PSN {first} to {expected} (excluded)")));
    all.push(("MTU", format!("{} bytes, the interface allows {}", qp.mtu, qp.port_mtu)));
    let [left, retries, rnr] = qp.retries;
    let timeout = if qp.timeout == 0 { "endless".into() } else { time_text(qp.timeout_ns) };
    let code = qp.timeout;
    all.push(("repeats", format!("{left} of retry_cnt {retries} left, rnr_retry {rnr}, timeout {code} ({timeout})")));
    if qp.rtt_ns > 0 {
        all.push(("round trip", time_text(qp.rtt_ns)));
    }
    let [sent, received] = qp.last_packets.each_ref().map(last_words);
    all.push(("last packets", format!("sent: {sent}; received: {received}")));
    let met: Vec<String> = counted(qp).map(|(reason, count)| format!("{} {count}", reason.name())).collect();
    if !met.is_empty() {
        all.push(("met", met.join(", ")));
    }
    if let Some(path) = &qp.path {
        path_facts(path, all);
    }
    if let Some(hop) = qp.next_hop {
        all.push(("next hop", hop_words(hop).into()));
    }
}

/// The last packet in one direction.
fn last_words(packet: &Option<LastPacketRecord>) -> String {
    packet.as_ref().map_or_else(
        || "none".into(),
        |packet| format!("{}, PSN {}, {} before", packet.opcode, packet.psn, time_text(packet.ago_ns)),
    )
}

fn path_facts(path: &PeerPathRecord, all: &mut Vec<(&'static str, String)>) {
    let acked = path.acked_ago_ns.map_or("never".into(), |ago| format!("{} before", time_text(ago)));
    all.push(("last answer", acked));
    all.push(("hello", hello_words(&path.hello)));
    let counts = [
        ("not sent", path.unsent),
        ("too long", path.too_long),
        ("damaged", path.corrupt),
        ("lost in receive buffers", path.overflowed),
        ("answered that UDP port 4791 is closed", path.closed),
    ];
    let text: Vec<String> = counts.iter().filter(|c| c.1 > 0).map(|(name, count)| format!("{count} {name}")).collect();
    if !text.is_empty() {
        all.push(("interface", format!("packets since the path exists: {}", text.join(", "))));
    }
}

const fn hop_words(hop: NextHop) -> &'static str {
    match hop {
        NextHop::Resolved => "known",
        NextHop::Asked => "asked, no answer yet",
        NextHop::Silent => "does not answer",
        NextHop::NoRoute => "there is no route",
    }
}

fn hello_words(hello: &HelloRecord) -> String {
    let answered = hello.answered_ago_ns.map(|ago| format!("the peer's daemon answered {} ago", time_text(ago)));
    let mut words = match (answered, hello.asked) {
        (Some(answered), _) => answered,
        (None, true) => "the peer's daemon was asked and has not answered".into(),
        (None, false) => "the peer's daemon was not asked".into(),
    };
    let _ = hello.restarted_ago_ns.map(|ago| write!(words, "; it was started anew {} ago", time_text(ago)));
    words
}

/// Payload bytes of the packet that has no answer.
fn packet_bytes(qp: &QpRecord) -> u32 {
    qp.request.map_or(0, |request| request.length.min(qp.mtu))
}

/// The largest MTU that fits any Ethernet without jumbo frames.
const fn plain_mtu() -> u32 {
    Mtu::B1024.bytes()
}

/// What is explained, as text: facts, cause, cure.
pub fn text(record: &FailureRecord) -> String {
    let mut text = String::new();
    for (name, value) in facts(record) {
        let _ = writeln!(text, "  {name:<12} {value}");
    }
    let Explanation { cause, cure } = explain(record);
    let _ = writeln!(text, "cause: {cause}\ncure:  {cure}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_control::failures::{FailedProgram, RequestRecord};
    use std::net::IpAddr;

    fn qp() -> QpRecord {
        let path = PeerPathRecord {
            is_own_address: false,
            acked_ago_ns: None,
            hello: HelloRecord { asked: true, ..HelloRecord::default() },
            unsent: 0,
            too_long: 0,
            corrupt: 0,
            overflowed: 0,
            closed: 0,
        };
        QpRecord {
            device: 0,
            qpn: 0x11f,
            qp_type: QpType::Rc,
            state: QpState::Rts,
            local: IpAddr::from([10, 0, 0, 1]),
            peer: IpAddr::from([10, 0, 0, 2]),
            peer_qpn: 0x22f,
            mtu: 4096,
            port_mtu: 4096,
            sent_psns: [5, 5, 6],
            received_psns: [9, 9],
            psn: 5,
            request: Some(RequestRecord { opcode: WrOpcode::Send, length: 64, packets: 1, answered_packets: 0 }),
            memory: None,
            retries: [0, 7, 7],
            timeout: 14,
            timeout_ns: 67_108_864,
            answered_bytes: 0,
            rtt_ns: 0,
            last_packets: [Some(LastPacketRecord { ago_ns: 4_000_000, opcode: "RC SEND Only".into(), psn: 7 }), None],
            is_selective: false,
            counts: Vec::new(),
            path: Some(path),
            next_hop: Some(NextHop::Resolved),
        }
    }

    fn record(reason: Reason, qp: QpRecord) -> FailureRecord {
        FailureRecord {
            ago_ns: 1_500_000_000,
            kind: FailureKind::Request,
            program: FailedProgram { name: "p".into(), pid: 7, uid: 0 },
            reason: Some(reason.index() as u16),
            status: WcStatus::RetryExcErr as u8,
            errno: 0,
            sentence: String::new(),
            repeats: 0,
            comm_id: 0,
            qp: Some(Box::new(qp)),
            jetty: None,
        }
    }

    fn cause_of(qp: QpRecord) -> String {
        explain(&record(Reason::RetryExhausted, qp)).cause
    }

    fn with_hello(hello: HelloRecord) -> QpRecord {
        let qp = qp();
        QpRecord { path: qp.path.map(|path| PeerPathRecord { hello, ..path }), ..qp }
    }

    #[test]
    fn silence_has_the_nearest_obstacle_as_its_cause() {
        let answers =
            HelloRecord { asked: true, answered_ago_ns: Some(1), answered_since: true, ..HelloRecord::default() };
        let long = Some(RequestRecord { opcode: WrOpcode::RdmaWrite, length: 9000, packets: 3, answered_packets: 0 });
        let used = [5, 8, 9];
        let wrong_source = vec![(Reason::WrongSource.index() as u16, 3)];
        let odd = vec![(Reason::SequenceNakReceived.index() as u16, 7)];
        let unsent = qp().path.map(|path| PeerPathRecord { unsent: 4, ..path });
        let closed = qp().path.map(|path| PeerPathRecord { closed: 4, ..path });
        for (qp, words) in [
            (QpRecord { next_hop: Some(NextHop::NoRoute), ..qp() }, "no route from 10.0.0.1 to 10.0.0.2"),
            (QpRecord { next_hop: Some(NextHop::Silent), ..qp() }, "No host answers for 10.0.0.2"),
            (QpRecord { counts: wrong_source, ..qp() }, "3 packets for queue pair 0x11f came from another address"),
            (QpRecord { path: unsent, ..qp() }, "kernel of this host refused to send 4 packets"),
            (QpRecord { path: closed, ..qp() }, "nothing listens on UDP port 4791"),
            (qp(), "Nothing has ever come from 10.0.0.2"),
            (with_hello(answers), "queue pair 0x22f there has never answered"),
            (QpRecord { counts: odd, ..with_hello(answers) }, "its rq_psn is not the sq_psn of queue pair 0x11f"),
            (QpRecord { request: long, ..with_hello(answers) }, "packets of 4096 bytes had no answer"),
            (with_hello(HelloRecord { restarted_ago_ns: Some(1), ..answers }), "was started anew"),
            (QpRecord { sent_psns: used, ..qp() }, "has answered and is silent now"),
            (QpRecord { sent_psns: used, ..with_hello(answers) }, "has answered and does not any more"),
            (QpRecord { sent_psns: used, retries: [0; 3], ..with_hello(answers) }, "retry_cnt is 0"),
            (QpRecord { sent_psns: used, request: long, answered_bytes: 192, ..with_hello(answers) }, "smaller MTU"),
        ] {
            let cause = cause_of(qp);
            assert!(cause.contains(words), "{words}: {cause}");
        }
    }

    #[test]
    fn every_reason_and_kind_has_one_sentence_and_a_cure() {
        for reason in Reason::ALL {
            let Explanation { cause, cure } = explain(&record(*reason, qp()));
            assert!(cause.ends_with('.') && !cure.is_empty(), "{}: {cause} {cure}", reason.name());
        }
        for state in QpState::ALL {
            let now = FailureRecord {
                kind: FailureKind::Present,
                reason: None,
                ..record(Reason::Flushed, QpRecord { state: *state, ..qp() })
            };
            assert!(explain(&now).cause.ends_with('.'));
        }
        let refused = FailureRecord {
            kind: FailureKind::Call,
            reason: None,
            errno: 22,
            sentence: "no".into(),
            qp: None,
            ..record(Reason::Flushed, qp())
        };
        assert_eq!(explain(&refused).cause, "No.");
        assert!(text(&refused).contains("a call was refused, 1.5 s ago") && text(&refused).contains("errno 22"));
    }

    #[test]
    fn times_are_short() {
        for (ns, text) in
            [(20_000, "20 us"), (350_000_000, "350 ms"), (1_200_000_000, "1.2 s"), (600_000_000_000, "10 min")]
        {
            assert_eq!(time_text(ns), text);
        }
    }
}
