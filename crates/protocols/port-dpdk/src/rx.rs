//! Receiving of the `dpdk` port: checks the frames, verifies the ICRC, and delivers to the engine or to the LAN.
//!
//! A packet of the encapsulation to one of the port's addresses with the right ICRC goes to the engine from the device's buffer.
//! The UDP checksum is not verified, because the ICRC covers everything that it covers. A frame that is not of the encapsulation
//! may be for a guest of the device, which gets a copy, or for the LAN. Those of the LAN are put aside until the burst ends,
//! because replies are sent through the same queue.

use crate::share::{DeviceShare, KnownGuests};
use burst_base::{Nanos, Reason};
use burst_frame::{Flow, RxFrame};
use burst_port::ether::icrc::IpId;
use burst_port::ether::{ChecksumState, Datagram, ICRC, IcrcChecker, IcrcSeal, TRANSPORT_MAX, check_length, parse};
use burst_port::lan::{Lan, LanHost, SendFrame, host, is_for};
use burst_port::{Encapsulation, RxSink};

/// Most frames for the LAN in one burst. More are dropped; their senders repeat them.
const ASIDE_MAX: usize = 32;
/// Flows whose seals are kept: each queue pair of a peer is a flow of its own.
const SEALS: usize = 1024;

/// Checks the packets of one encapsulation.
pub struct PacketCheck {
    encapsulation: Encapsulation,
    checker: IcrcChecker,
    seals: Vec<Option<IcrcSeal>>,
}

impl PacketCheck {
    pub fn new(encapsulation: &Encapsulation) -> PacketCheck {
        let checker = IcrcChecker::new(true);
        PacketCheck { encapsulation: *encapsulation, checker, seals: vec![None; SEALS] }
    }

    /// The packet without its trailer. `header`: its identification; `None`: the packet has not left this process.
    ///
    /// # Errors
    /// Its length or its checksum is wrong.
    #[inline]
    pub fn check<'a>(&mut self, flow: &Flow, header: Option<IpId>, payload: &'a [u8]) -> Result<&'a [u8], Reason> {
        check_length(payload, self.encapsulation.packet_min, TRANSPORT_MAX)?;
        if let Some(header) = header
            && self.encapsulation.is_sealed()
            && !self.is_right(flow, header, payload)
        {
            return Err(self.encapsulation.bad_checksum());
        }
        Ok(&payload[..payload.len() - ICRC])
    }

    #[inline]
    fn is_right(&mut self, flow: &Flow, header: IpId, payload: &[u8]) -> bool {
        let seal = &mut self.seals[slot_of(flow)];
        *seal = self.encapsulation.reuse_seal(*seal, flow.src, flow.dst, flow.src_port);
        self.checker.begin_train(header);
        seal.as_mut().is_some_and(|seal| self.checker.check(seal, payload))
    }
}

/// The receiving half of the port.
pub struct DpdkRx {
    udp_port: u16,
    check: PacketCheck,
    guests: KnownGuests,
    /// Frames for the LAN; the first `aside_len` are in use.
    aside: Vec<Vec<u8>>,
    aside_len: usize,
}

impl DpdkRx {
    /// `frame_max`: bytes of the longest frame of the link.
    pub fn new(encapsulation: &Encapsulation, frame_max: usize) -> DpdkRx {
        DpdkRx {
            udp_port: encapsulation.udp_port,
            check: PacketCheck::new(encapsulation),
            guests: KnownGuests::default(),
            aside: (0..ASIDE_MAX).map(|_| Vec::with_capacity(frame_max)).collect(),
            aside_len: 0,
        }
    }

    /// A burst begins: guests of the device may have come or gone.
    #[inline]
    pub fn begin(&mut self, share: &DeviceShare) {
        self.guests.follow(share);
    }

    /// Handles a frame in the device's buffer.
    #[inline]
    pub fn frame(&mut self, host: &LanHost, frame: &[u8], sink: &mut dyn RxSink) {
        let verdict = match parse::parse(frame, ChecksumState::Trusted, self.udp_port) {
            Ok(datagram) => self.datagram(host, &datagram, sink),
            Err(Reason::NotOurs) if self.offer(host, frame) => Ok(()),
            Err(Reason::NotOurs) => self.put_aside(frame),
            Err(reason) => Err(reason),
        };
        if let Err(reason) = verdict {
            sink.dropped(reason);
        }
    }

    #[inline]
    fn datagram(&mut self, host: &LanHost, datagram: &Datagram<'_>, sink: &mut dyn RxSink) -> Result<(), Reason> {
        let Datagram { flow, header, payload, .. } = datagram;
        let ours = host.owns(flow.dst) || host::multicast_mac(flow.dst).is_some();
        if !ours || !is_for(host.mac, datagram.mac_dst) {
            return Err(Reason::NotOurs);
        }
        match self.check.check(flow, Some(*header), payload) {
            Ok(bytes) => sink.frame(&RxFrame { flow: *flow, bytes }),
            Err(reason) => sink.refused(&RxFrame { flow: *flow, bytes: payload }, reason),
        }
        Ok(())
    }

    /// Gives a frame that is not of the encapsulation to the guest that it is for; false if there is none.
    fn offer(&self, host: &LanHost, frame: &[u8]) -> bool {
        self.guests.all().iter().any(|guest| {
            let Ok(datagram) = parse::parse(frame, ChecksumState::Trusted, guest.udp_port) else { return false };
            if !guest.takes(datagram.flow.dst, guest.udp_port) || !is_for(host.mac, datagram.mac_dst) {
                return false;
            }
            let copied = guest.put(&datagram.flow, Some(datagram.header), datagram.payload.len(), |room| {
                room.copy_from_slice(datagram.payload);
                Ok(())
            });
            debug_assert!(copied.is_ok(), "a copy within this process");
            true
        })
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
