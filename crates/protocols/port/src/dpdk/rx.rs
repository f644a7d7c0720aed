//! Receiving: checks, ICRC, and where a frame goes.
//!
//! A RoCEv2 frame to one of our addresses with the right ICRC goes to the engine from the device's buffer. The UDP
//! checksum is not verified: the ICRC covers what it covers. What is neither UDP nor RoCEv2 may be for the LAN; it is put aside until the
//! burst is done, because answers are sent through the same queue.

use crate::RxSink;
use crate::ether::{Checker, Checksums, Datagram, ICRC, Seal, TRANSPORT_MAX, check_length, parse};
use crate::lan::{Host, Lan, Send, host, is_for};
use burst_base::{Nanos, Reason};
use burst_frame::{Flow, RxFrame};
use burst_wire::ROCE_PORT;

/// Frames for the LAN in one burst; more are dropped, and will be asked again.
const ASIDE_MAX: usize = 32;
/// Flows whose ICRC's beginning is kept: each queue pair of a peer has its own.
const SEALS: usize = 1024;

/// See the module.
pub struct Rx {
    checker: Checker,
    seals: Vec<Option<Seal>>,
    /// Frames for the LAN; the first `aside_len` count.
    aside: Vec<Vec<u8>>,
    aside_len: usize,
}

impl Rx {
    /// `frame_max`: longest frame of the link.
    pub fn new(frame_max: usize) -> Rx {
        Rx {
            checker: Checker::new(true),
            seals: vec![None; SEALS],
            aside: (0..ASIDE_MAX).map(|_| Vec::with_capacity(frame_max)).collect(),
            aside_len: 0,
        }
    }

    /// Takes a frame out of the device's buffer.
    #[inline]
    pub fn frame(&mut self, host: &Host, frame: &[u8], sink: &mut dyn RxSink) {
        let verdict = match parse::parse(frame, Checksums::Trusted) {
            Ok(datagram) => self.datagram(host, &datagram, sink),
            Err(Reason::NotOurs) => self.put_aside(frame),
            Err(reason) => Err(reason),
        };
        if let Err(reason) = verdict {
            sink.dropped(reason);
        }
    }

    #[inline]
    fn datagram(&mut self, host: &Host, datagram: &Datagram<'_>, sink: &mut dyn RxSink) -> Result<(), Reason> {
        let Datagram { flow, payload, .. } = datagram;
        let ours = host.owns(flow.dst) || host::multicast_mac(flow.dst).is_some();
        if !ours || !is_for(host.mac, datagram.mac_dst) {
            return Err(Reason::NotOurs);
        }
        check_length(payload, TRANSPORT_MAX)?;
        if !self.icrc_is_right(datagram) {
            return Err(Reason::BadIcrc);
        }
        sink.frame(&RxFrame { flow: *flow, bytes: &payload[..payload.len() - ICRC] });
        Ok(())
    }

    #[inline]
    fn icrc_is_right(&mut self, datagram: &Datagram<'_>) -> bool {
        let Datagram { flow, header, payload, .. } = datagram;
        let place = &mut self.seals[place_of(flow)];
        *place = Seal::reuse(*place, flow.src, flow.dst, flow.src_port, ROCE_PORT);
        self.checker.begin_train(*header);
        place.as_mut().is_some_and(|seal| self.checker.check(seal, payload))
    }

    fn put_aside(&mut self, frame: &[u8]) -> Result<(), Reason> {
        let place = self.aside.get_mut(self.aside_len).ok_or(Reason::NotOurs)?;
        if frame.len() > place.capacity() {
            return Err(Reason::NotOurs);
        }
        place.clear();
        place.extend_from_slice(&frame[..parse::ADDRESSES]);
        place.extend_from_slice(parse::from_type(frame));
        self.aside_len += 1;
        Ok(())
    }

    /// Lets the LAN hear what was put aside.
    #[inline]
    pub fn tell(&mut self, lan: &mut Lan, now: Nanos, sink: &mut dyn RxSink, send: Send<'_>) {
        for frame in &self.aside[..std::mem::take(&mut self.aside_len)] {
            if !lan.hear(now, frame, send) {
                sink.dropped(Reason::NotOurs);
            }
        }
    }
}

/// Flows of many queue pairs of one peer differ in the source port.
#[inline]
fn place_of(flow: &Flow) -> usize {
    usize::from(flow.src_port) % SEALS
}
