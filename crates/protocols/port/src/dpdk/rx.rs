//! Receiving of the `dpdk` port: checks the frames, verifies the ICRC, and delivers to the engine or to the LAN.
//!
//! A packet of the encapsulation to one of the port's addresses with the right ICRC goes to the engine from the device's buffer.
//! The UDP checksum is not verified, because the ICRC covers everything that it covers. A frame that is not of the encapsulation
//! may be for the LAN. It is put aside until the end of the burst, because replies are sent through the same queue.

use crate::ether::{ChecksumState, Datagram, ICRC, IcrcChecker, IcrcSeal, TRANSPORT_MAX, check_length, parse};
use crate::lan::{Lan, LanHost, SendFrame, host, is_for};
use crate::{Encapsulation, RxSink};
use burst_base::{Nanos, Reason};
use burst_frame::{Flow, RxFrame};

/// Most frames for the LAN in one burst. More are dropped; their senders repeat them.
const ASIDE_MAX: usize = 32;
/// Flows whose seals are kept: each queue pair of a peer is a flow of its own.
const SEALS: usize = 1024;

/// The receiving half of the port.
pub struct DpdkRx {
    encapsulation: Encapsulation,
    checker: IcrcChecker,
    seals: Vec<Option<IcrcSeal>>,
    /// Frames for the LAN; the first `aside_len` are in use.
    aside: Vec<Vec<u8>>,
    aside_len: usize,
}

impl DpdkRx {
    /// `frame_max`: bytes of the longest frame of the link.
    pub fn new(encapsulation: &Encapsulation, frame_max: usize) -> DpdkRx {
        DpdkRx {
            encapsulation: *encapsulation,
            checker: IcrcChecker::new(true),
            seals: vec![None; SEALS],
            aside: (0..ASIDE_MAX).map(|_| Vec::with_capacity(frame_max)).collect(),
            aside_len: 0,
        }
    }

    /// Handles a frame in the device's buffer.
    #[inline]
    pub fn frame(&mut self, host: &LanHost, frame: &[u8], sink: &mut dyn RxSink) {
        let verdict = match parse::parse(frame, ChecksumState::Trusted, self.encapsulation.udp_port) {
            Ok(datagram) => self.datagram(host, &datagram, sink),
            Err(Reason::NotOurs) => self.put_aside(frame),
            Err(reason) => Err(reason),
        };
        if let Err(reason) = verdict {
            sink.dropped(reason);
        }
    }

    #[inline]
    fn datagram(&mut self, host: &LanHost, datagram: &Datagram<'_>, sink: &mut dyn RxSink) -> Result<(), Reason> {
        let Datagram { flow, payload, .. } = datagram;
        let ours = host.owns(flow.dst) || host::multicast_mac(flow.dst).is_some();
        if !ours || !is_for(host.mac, datagram.mac_dst) {
            return Err(Reason::NotOurs);
        }
        check_length(payload, self.encapsulation.packet_min, TRANSPORT_MAX)?;
        if self.encapsulation.is_sealed() && !self.icrc_is_right(datagram) {
            return Err(self.encapsulation.bad_checksum());
        }
        sink.frame(&RxFrame { flow: *flow, bytes: &payload[..payload.len() - ICRC] });
        Ok(())
    }

    #[inline]
    fn icrc_is_right(&mut self, datagram: &Datagram<'_>) -> bool {
        let Datagram { flow, header, payload, .. } = datagram;
        let seal = &mut self.seals[slot_of(flow)];
        *seal = self.encapsulation.reuse_seal(*seal, flow.src, flow.dst, flow.src_port);
        self.checker.begin_train(*header);
        seal.as_mut().is_some_and(|seal| self.checker.check(seal, payload))
    }

    fn put_aside(&mut self, frame: &[u8]) -> Result<(), Reason> {
        let copy = self.aside.get_mut(self.aside_len).ok_or(Reason::NotOurs)?;
        if frame.len() > copy.capacity() {
            return Err(Reason::NotOurs);
        }
        copy.clear();
        copy.extend_from_slice(&frame[..parse::ADDRESSES]);
        copy.extend_from_slice(parse::from_type(frame));
        self.aside_len += 1;
        Ok(())
    }

    /// Gives the frames that were put aside to the LAN.
    #[inline]
    pub fn pass_to_lan(&mut self, lan: &mut Lan, now: Nanos, sink: &mut dyn RxSink, send: SendFrame<'_>) {
        for frame in &self.aside[..std::mem::take(&mut self.aside_len)] {
            if !lan.receive(now, frame, send) {
                sink.dropped(Reason::NotOurs);
            }
        }
    }
}

/// Slot of a flow's seal. The flows of many queue pairs of one peer differ in the source port.
#[inline]
fn slot_of(flow: &Flow) -> usize {
    usize::from(flow.src_port) % SEALS
}
