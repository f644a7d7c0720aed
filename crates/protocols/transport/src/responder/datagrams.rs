//! Datagrams (IBA 9.8.5): one packet each, checked by Q_Key, received behind 40 bytes for the global route header.
//!
//! For IPv6 the 40 bytes are the IPv6 header; for IPv4 they are 20 zero bytes and the IPv4 header (annex A17.4.5.2). A
//! datagram without a receive, or longer than its receive, is dropped; the receive stays loaded.

use crate::api::Env;
use crate::failure::{FailedPart, QpFailure};
use crate::qp_shared::QpShared;
use crate::responder::Responder;
use crate::responder::received_message::ReceivedMessage;
use crate::responder::receiver::Load;
use crate::responder::refusal::receive_reason;
use crate::sge_cursor::Placing;
use burst_base::Reason;
use burst_base::verbs::{QpState, WcStatus, wc_flags};
use burst_frame::RxFrame;
use burst_wire::{Deth, Packet};
use std::net::IpAddr;

/// Bytes before the data of a received datagram.
pub const GRH_BYTES: usize = 40;
/// Bytes of a UDP datagram besides the frame: UDP header and ICRC.
const UDP_AND_ICRC: usize = 8 + 4;
const PROTOCOL_UDP: u8 = 17;
/// The IP version of a datagram in its completion (annex A17.4.5.1). Verbs have no field for it; RNICs use the service
/// level, which has no meaning on Ethernet: bit 3 for a UDP header, and 1 for IPv6 or 2 for IPv4. UCX reads it.
const SL_ROCE_V2_IPV6: u8 = 8 | 1;
const SL_ROCE_V2_IPV4: u8 = 8 | 2;

impl Responder {
    /// Handles a datagram.
    pub(crate) fn on_datagram(&mut self, qp: &mut QpShared, frame: &RxFrame<'_>, pkt: &Packet<'_>, env: &mut Env<'_>) {
        if !matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            return env.fx.count(Reason::WrongState);
        }
        let Some(deth) = pkt.deth().filter(|deth| deth.qkey == qp.attr.qkey) else {
            return env.fx.count(Reason::BadQkey);
        };
        if pkt.payload.len() > qp.mtu as usize {
            return env.fx.count(Reason::InvalidLength);
        }
        if let Err(reason) = self.take_datagram(qp, frame, (pkt, deth), env) {
            env.fx.count(reason);
        }
    }

    fn take_datagram(
        &mut self,
        qp: &mut QpShared,
        frame: &RxFrame<'_>,
        (pkt, deth): (&Packet<'_>, Deth),
        env: &mut Env<'_>,
    ) -> Result<(), Reason> {
        match self.recv.load() {
            Load::Ready => {}
            Load::Empty => return Err(Reason::UdNoReceive),
            Load::Corrupt => return Err(Reason::QueueCorrupt),
        }
        let total = (GRH_BYTES + pkt.payload.len()) as u64;
        if total > self.recv.room && self.recv.check().is_ok() {
            return Err(Reason::UdReceiveTooShort);
        }
        let written = self
            .recv
            .check()
            .and_then(|()| self.recv.scatter(0, &route_header(frame), Placing::of(qp, env)))
            .and_then(|()| self.recv.scatter(GRH_BYTES as u64, pkt.payload, Placing::of(qp, env)));
        match written {
            Ok(()) => {}
            Err(Reason::PageLate) => return Err(Reason::PageLate),
            Err(reason) => {
                let (status, reason) = (WcStatus::LocProtErr, receive_reason(reason));
                env.fx.failed(QpFailure::of(FailedPart::PeerRequest, status, reason, pkt.bth.psn));
                self.complete_receive_error(qp, status, reason, env);
                self.fail(qp);
                return Ok(());
            }
        }
        let imm = pkt.imm();
        let got = ReceivedMessage {
            byte_len: total as u32,
            imm: imm.map_or(0, |imm| imm.to_be32()),
            wc_flags: wc_flags::GRH | if imm.is_some() { wc_flags::WITH_IMM } else { 0 },
            src_qpn: deth.src_qpn,
            solicited: pkt.bth.solicited,
            sl: if frame.flow.dst.is_ipv4() { SL_ROCE_V2_IPV4 } else { SL_ROCE_V2_IPV6 },
            ..ReceivedMessage::default()
        };
        self.complete_receive(qp, got, env);
        Ok(())
    }
}

/// The 40 bytes before the data: the frame's IP header, rebuilt from its flow.
fn route_header(frame: &RxFrame<'_>) -> [u8; GRH_BYTES] {
    let mut grh = [0; GRH_BYTES];
    let flow = &frame.flow;
    let udp_len = (frame.bytes.len() + UDP_AND_ICRC) as u16;
    match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = &mut grh[20..];
            ip[0] = 0x45;
            ip[1] = flow.tos;
            ip[2..4].copy_from_slice(&(udp_len + 20).to_be_bytes());
            ip[6] = 0x40;
            ip[8] = flow.hop_limit;
            ip[9] = PROTOCOL_UDP;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            let sum = checksum(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (src, dst) => {
            let word = 6 << 28 | u32::from(flow.tos) << 20 | flow.flow_label & 0xf_ffff;
            grh[..4].copy_from_slice(&word.to_be_bytes());
            grh[4..6].copy_from_slice(&udp_len.to_be_bytes());
            grh[6] = PROTOCOL_UDP;
            grh[7] = flow.hop_limit;
            grh[8..24].copy_from_slice(&octets(src));
            grh[24..40].copy_from_slice(&octets(dst));
        }
    }
    grh
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The internet checksum (RFC 1071) of a header whose checksum field is zero.
fn checksum(header: &[u8]) -> u16 {
    let mut sum: u32 = header.chunks_exact(2).map(|b| u32::from(b[0]) << 8 | u32::from(b[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
