//! Packets of an open channel that its peer did not send.

use super::{RAM_BASE, World};
use burst_base::Nanos;
use burst_ubwire::{
    Atah, Btah, Cna, CongestionField, Dialect, Maetah, NextLayer, Nth, Rtph, ServiceMode, TaHeader, TaOpcode,
    TaRequest, TpOpcode, UB_HEAD_MAX, UbHead, UbPacket,
};
use burst_urma::{JettyConfig, JfsWr};
use std::cell::RefCell;
use std::rc::Rc;

/// A WRITE of the first bytes of a host's memory.
pub fn write(world: &World, host: usize, segment: u32, at: u64, len: u32) -> JfsWr {
    JfsWr {
        segment: Some(segment),
        remote_addr: RAM_BASE + at,
        ..JfsWr::new(TaOpcode::Write, world.data(host, 0, len), 1)
    }
}

/// A SEND of eight bytes.
pub fn send(world: &World, host: usize, target: u32, user_ctx: u64) -> JfsWr {
    JfsWr { target: Some(target), ..JfsWr::new(TaOpcode::Send, world.data(host, 0, 8), user_ctx) }
}

/// Opens the channel from host 1 to host 0 and returns the header of its last packet; afterwards host 1 is cut off.
pub fn open_and_cut(world: &mut World) -> Rtph {
    let seen = Rc::new(RefCell::new(None));
    let copy = seen.clone();
    world.filter = Some(Box::new(move |from, to, bytes| {
        let packet = UbPacket::parse(bytes, &Dialect::BURST).expect("a packet");
        if let (1, 0, Some(rtph)) = (from, to, packet.head.rtph)
            && rtph.opcode == TpOpcode::Data
        {
            *copy.borrow_mut() = Some(rtph);
        }
        false
    }));
    let jfc = world.jfc(1);
    let jetty = world.jetty(1, JettyConfig::new(jfc, None));
    let segment = world.import_all(1, 0);
    let wr = write(world, 1, segment, 0, 8);
    world.post(1, jetty, wr).expect("accepted");
    world.run_for(Nanos(1_000_000));
    world.filter = Some(Box::new(|from, to, _| from == 1 || to == 1));
    let rtph: Rtph = seen.borrow().expect("sent");
    rtph
}

/// Header of a packet from host 1 to host 0.
pub fn nth() -> Nth {
    Nth {
        source: Cna::new(2),
        dest: Cna::new(1),
        congestion: CongestionField::default(),
        balance: 0,
        service_level: 0,
        next: NextLayer::Reliable,
    }
}

/// A packet of host 1, `ahead` PSNs behind the known one.
pub fn packet(known: &Rtph, ahead: u32, (tpmsn, last): (u32, bool), ta: TaHeader, payload: &[u8]) -> Vec<u8> {
    let rtph = Rtph { last, psn: known.psn.add(ahead), tpmsn, opcode: TpOpcode::Data, ..*known };
    let head = UbHead { nth: nth(), rtph: Some(rtph), cetph: None, saetph: None, ta: Some(ta) };
    let mut bytes = vec![0; UB_HEAD_MAX];
    let len = head.emit(&Dialect::BURST, &mut bytes);
    bytes.truncate(len);
    bytes.extend(payload);
    bytes
}

/// Header of a WRITE to host 0.
pub fn write_request(mode: ServiceMode, memory: Maetah, offset: u32) -> TaRequest {
    let base = Btah { mode, offset, ..Btah::new(TaOpcode::Write, 5, 1024) };
    TaRequest { memory: Some(memory), ..TaRequest::new(base) }
}

/// A response to nothing.
pub fn nothing() -> TaHeader {
    TaHeader::Response(Atah::new(TaOpcode::TaAck, 0, 0))
}

/// Host 0 gets a packet and sends what it may send; the answers are lost. How many there were.
pub fn deliver(world: &mut World, bytes: &[u8]) -> usize {
    world.with(0, |node, env| node.on_packet(env, crate::common::sender(bytes), bytes));
    let mut out = vec![0; 16384];
    std::iter::from_fn(|| world.with(0, |node, env| node.poll_tx(env, &mut out))).count()
}
