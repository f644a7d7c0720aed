//! Acknowledgements of a channel's packets: when one is due, and its packet.

use crate::api::{UrmaEnv, UrmaTransmit};
use crate::channels::Channels;
use crate::channels::channel::FusedAck;
use crate::channels::rx_window::{DeliveredPackets, PsnVerdict};
use crate::pool::PoolRef;
use burst_base::Reason;
use burst_ubwire::{Atah, Dialect, NextLayer, Rtph, ServiceMode, TaHeader, TaOpcode, TpOpcode, UbHead, UbStatus};

impl Channels {
    /// Go-back-N: a NAK asks for what is missing, once.
    pub(crate) fn refuse_early(&mut self, at: PoolRef) {
        let Some(channel) = self.table.get_mut(at) else { return };
        let expected = channel.rx.expected();
        if channel.nak_sent != Some(expected) {
            (channel.nak_sent, channel.nak_due) = (Some(expected), true);
            self.activate(at);
        }
    }
    pub(crate) fn packets_delivered(
        &mut self,
        env: &mut UrmaEnv<'_>,
        at: PoolRef,
        packets: &DeliveredPackets,
        verdict: PsnVerdict,
    ) {
        let Some(channel) = self.table.get_mut(at) else { return };
        channel.packets_delivered(env.now, packets);
        if verdict == PsnVerdict::Early {
            env.fx.count(Reason::UbGap);
        }
        let is_awaiting = channel.inbound > 0 && channel.timer_at > channel.sign_of_life_at(&self.config);
        let is_unarmed = is_awaiting || channel.timer_at > channel.ack_at;
        if channel.ack_due || !channel.fused.is_empty() {
            self.activate(at);
        }
        if is_unarmed {
            self.arm_channel(at, env.now);
        }
    }
    pub(crate) fn write_ack(&mut self, at: PoolRef, fused: Option<FusedAck>, out: &mut [u8]) -> Option<UrmaTransmit> {
        let channel = self.table.get_mut(at)?;
        // A fused acknowledgement has no room for the NAK, which then follows.
        let is_nak = fused.is_none() && std::mem::take(&mut channel.nak_due);
        channel.acknowledged();
        let cetph = channel.echo.take();
        let congestion = cetph.is_some();
        let sack = if is_nak { None } else { channel.rx.sack() };
        let base = channel.rx.base();
        let (opcode, psn) = match &sack {
            Some((base, _)) => (TpOpcode::Sack { congestion }, *base),
            None if is_nak => (TpOpcode::Ack { congestion }, base),
            None => (TpOpcode::Ack { congestion }, base.prev()),
        };
        let status = match (fused, is_nak) {
            (Some(_), _) => UbStatus { status: UbStatus::FUSED, info: 0 },
            (None, true) => UbStatus { status: UbStatus::ERROR, info: 0 },
            (None, false) => UbStatus::SUCCESS,
        };
        let rtph = Rtph {
            last: false,
            opcode,
            version: 0,
            padding: 0,
            src_tpn: channel.local_tpn,
            dst_tpn: channel.peer_tpn,
            ack_req: false,
            flag: false,
            psn,
            status,
            tpmsn: 0,
        };
        let (dest, lane, path) = (channel.peer, channel.lane, channel.path);
        let ta = fused.map(|fused| {
            TaHeader::Response(Atah {
                status,
                mode: ServiceMode::Rol,
                ..Atah::new(TaOpcode::TaAck, fused.tassn, fused.rc_id)
            })
        });
        let nth = self.network_header(dest, NextLayer::Reliable);
        let head = UbHead { nth, rtph: Some(rtph), cetph, saetph: sack.map(|s| s.1), ta };
        Some(UrmaTransmit { path, ..UrmaTransmit::whole((dest, lane), head.emit(&Dialect::BURST, out)) })
    }
    /// Acknowledgements that are due on a channel leave with the next turn.
    pub(crate) fn ask_ack(&mut self, at: PoolRef) {
        if let Some(channel) = self.table.get_mut(at) {
            channel.ack_due = true;
            self.activate(at);
        }
    }
}
