//! What a packet asks of an adapter and of memory, read from its headers.

use burst_frame::TRAILER_LEN;
use burst_sim::run::{PacketRun, RunPacket};
use burst_ubwire::{CongestionField, Dialect, Nth, TaHeader, TaOpcode, UbPacket};
use burst_wire::{OpKind, Opcode};

/// What the receiver of a packet does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketRole {
    /// Asks for data.
    Read,
    /// Brings data.
    Write,
    /// Brings a message, which needs a receive.
    Send,
    /// Changes a word.
    Atomic,
    /// Brings what was read.
    ReadData,
    /// Another answer to a request.
    Answer,
    /// Acknowledgements of packets, management.
    Other,
}

impl PacketRole {
    /// Whether it is a request.
    pub const fn is_request(self) -> bool {
        matches!(self, PacketRole::Read | PacketRole::Write | PacketRole::Send | PacketRole::Atomic)
    }
}

/// A packet, as an adapter sees it.
#[derive(Clone, Copy, Debug)]
pub struct PacketView {
    /// What it asks for.
    pub role: PacketRole,
    /// The receiver's context: number of a queue pair or channel. `None` of an access without a channel.
    pub context: Option<u32>,
    /// Bytes of headers and payload behind UDP.
    pub len: u64,
}

/// Looks at the one packet of a run.
pub fn view(run: &PacketRun, is_bus: bool, scratch: &mut Vec<u8>) -> Option<PacketView> {
    let (packet, _) = run.packet_at(0)?;
    let len = packet.len();
    let (role, context) = if is_bus { of_bus(&packet, scratch)? } else { of_roce(packet.head)? };
    Some(PacketView { role, context, len: len as u64 })
}

fn of_roce(head: &[u8]) -> Option<(PacketRole, Option<u32>)> {
    let role = match Opcode::lookup(*head.first()?)?.opcode.kind() {
        OpKind::Send => PacketRole::Send,
        OpKind::Write => PacketRole::Write,
        OpKind::ReadRequest => PacketRole::Read,
        OpKind::ReadResponse => PacketRole::ReadData,
        OpKind::CmpSwap | OpKind::FetchAdd => PacketRole::Atomic,
        OpKind::Ack | OpKind::AtomicAck => PacketRole::Answer,
        _ => PacketRole::Other,
    };
    Some((role, Some(u32::from_be_bytes(*head.get(4..)?.first_chunk()?) & 0xff_ffff)))
}

fn of_bus(packet: &RunPacket<'_>, scratch: &mut Vec<u8>) -> Option<(PacketRole, Option<u32>)> {
    scratch.clear();
    scratch.resize(packet.len() + TRAILER_LEN, 0);
    packet.write_to(scratch);
    let parsed = UbPacket::parse(&scratch[..packet.len()], &Dialect::BURST).ok()?;
    let role = match parsed.head.ta.as_ref() {
        Some(TaHeader::Request(request)) => match request.base.opcode {
            TaOpcode::Read => PacketRole::Read,
            TaOpcode::Write | TaOpcode::WriteImm | TaOpcode::WriteNotify => PacketRole::Write,
            TaOpcode::Send | TaOpcode::SendImm => PacketRole::Send,
            opcode if opcode.is_atomic() => PacketRole::Atomic,
            _ => PacketRole::Other,
        },
        Some(TaHeader::Response(response)) if response.opcode == TaOpcode::ReadResponse => PacketRole::ReadData,
        Some(TaHeader::Response(_)) => PacketRole::Answer,
        None => PacketRole::Other,
    };
    Some((role, parsed.head.rtph.map(|rtph| rtph.dst_tpn)))
}

/// Changes the congestion field of the packets of a run of the bus.
pub fn change_congestion(run: &mut PacketRun, mut change: impl FnMut(CongestionField) -> CongestionField) {
    run.change_heads(|head| {
        let at = Nth::CONGESTION_AT;
        if let Some(field) = head.get_mut(at..at + 2) {
            let old = CongestionField::parse(u16::from_be_bytes([field[0], field[1]]));
            field.copy_from_slice(&change(old).bits().to_be_bytes());
        }
    });
}
