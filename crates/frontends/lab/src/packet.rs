//! A packet as the ladder shows it.

use burst_control::capture::CapturedPacket;
use burst_wire::{NakCode, Packet, Syndrome};
use serde::{Deserialize, Serialize};

/// Attribute ids of the connection manager's messages (IBA 12.6), and what they are called.
const CM_MESSAGES: [(u16, &str); 6] =
    [(0x10, "REQ"), (0x12, "REJ"), (0x13, "REP"), (0x14, "RTU"), (0x15, "DREQ"), (0x16, "DREP")];
/// Class of the connection manager's datagrams, and its place in a datagram (IBA 13.4.2).
const CM_CLASS: (usize, u8) = (1, 7);
/// Place of the attribute id in a management datagram.
const MAD_ATTRIBUTE: usize = 16;

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PacketKind {
    /// A part of a message, a request or the answer to a READ or an atomic operation.
    Data,
    /// All up to this one has arrived.
    Ack,
    /// The receiver has no receive for it.
    NotReady,
    /// A packet is missing, or the request is refused.
    Refused,
    /// A notification of congestion.
    Congestion,
    /// The connection manager's.
    Connection,
    /// Anything else.
    Other,
}

/// A packet that a host has sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabPacket {
    /// Nanoseconds since 1970.
    pub at_ns: u64,
    /// Letter of the host that sent it.
    pub from: String,
    /// Letter of the host that it was for.
    pub to: String,
    /// Queue pair that it was for.
    pub qpn: u32,
    /// Its number (PSN).
    pub psn: u32,
    /// Bytes of the message in it.
    pub bytes: usize,
    /// What it is.
    pub name: String,
    /// What it is for.
    pub kind: PacketKind,
    /// Marked on the way (ECN): a queue was long.
    pub marked: bool,
    /// Whether the other host has received it.
    pub arrived: bool,
}

impl LabPacket {
    /// Reads a captured packet between these hosts. `None` for other traffic.
    pub fn read(captured: &CapturedPacket<'_>, from: &str, to: &str) -> Option<LabPacket> {
        let mut bytes = captured.bytes.to_vec();
        bytes.resize(usize::from(captured.udp_len).saturating_sub(burst_wire::ICRC_LEN).max(bytes.len()), 0);
        let parsed = Packet::parse(&bytes).ok()?;
        let (name, kind) = name_of(&parsed)?;
        Some(LabPacket {
            at_ns: captured.at_ns,
            from: from.to_owned(),
            to: to.to_owned(),
            qpn: parsed.bth.dest_qpn.get(),
            psn: parsed.bth.psn.get(),
            bytes: if kind == PacketKind::Data { parsed.payload.len() } else { 0 },
            name,
            kind,
            marked: captured.tos & 3 == 3,
            arrived: false,
        })
    }

    /// Whether both are the same packet, seen at its two ends.
    pub fn is_same(&self, other: &LabPacket) -> bool {
        let key = |one: &LabPacket| (one.qpn, one.psn, one.kind as u8, one.bytes);
        key(self) == key(other) && self.from == other.from && self.to == other.to && self.name == other.name
    }
}

/// What a packet is called, and what it is for.
fn name_of(packet: &Packet<'_>) -> Option<(String, PacketKind)> {
    let opcode = packet.bth.opcode.to_string();
    if let (Some(aeth), true) = (packet.aeth(), opcode.ends_with("Acknowledge") && !opcode.contains("ATOMIC")) {
        return Some(answer(aeth.syndrome));
    }
    if opcode.contains("CNP") {
        return Some(("CNP".to_owned(), PacketKind::Congestion));
    }
    if packet.bth.dest_qpn.get() == 1 {
        let (place, class) = CM_CLASS;
        if packet.payload.get(place) != Some(&class) {
            return None;
        }
        let attribute = packet.payload.get(MAD_ATTRIBUTE..MAD_ATTRIBUTE + 2)?;
        let id = u16::from_be_bytes([attribute[0], attribute[1]]);
        let (_, name) = CM_MESSAGES.iter().find(|(known, _)| *known == id)?;
        return Some(((*name).to_owned(), PacketKind::Connection));
    }
    let short = opcode.strip_prefix("RC ").or_else(|| opcode.strip_prefix("UC ")).unwrap_or(&opcode);
    Some((short.replace("RDMA ", ""), PacketKind::Data))
}

fn answer(syndrome: Syndrome) -> (String, PacketKind) {
    match syndrome {
        Syndrome::Ack { .. } => ("ACK".to_owned(), PacketKind::Ack),
        Syndrome::Rnr { .. } => ("NAK: receiver not ready (RNR)".to_owned(), PacketKind::NotReady),
        Syndrome::Nak(code) => {
            let what = match code {
                NakCode::PsnSequence => "a packet is missing",
                NakCode::RemoteAccess => "refused: remote access",
                NakCode::InvalidRequest => "refused: invalid request",
                _ => "the program cannot answer",
            };
            (format!("NAK: {what}"), PacketKind::Refused)
        }
        Syndrome::Reserved(_) => ("answer of an unknown kind".to_owned(), PacketKind::Other),
    }
}
