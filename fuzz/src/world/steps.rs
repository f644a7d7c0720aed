//! Actions for targets that look at one part of the daemon: URMA, floods of answers, and want of descriptors.

use super::{ADDRESSES, DescriptorLimit, HEARD_MAX, UrmaNumbers, World};
use crate::Tape;
use burst_control::urma_calls::UrmaCall;
use burst_frame::Flow;
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;

impl World {
    /// One action of URMA.
    pub fn urma_step(&mut self, tape: &mut Tape<'_>) {
        let action = tape.byte();
        let at = usize::from(action >> 7);
        match action & 0x7f {
            0..=55 => (0..=tape.byte() % 16).for_each(|_| self.programs[at].post_urma(tape)),
            56..=79 => self.urma_call(at, tape),
            80..=95 => self.forge_urma(at, tape),
            96..=111 => self.work(),
            112..=117 => {
                self.time.fetch_add(u64::from(tape.half()) << (tape.byte() % 24), Relaxed);
                self.upkeep.run(&mut self.host, self.programs.as_mut_slice(), tape.byte() & 1 == 1);
            }
            118..=121 => {
                let theirs = (self.programs[1 - at].urma.token_id, self.programs[1 - at].urma.jetty);
                self.programs[at].import(&mut self.host, theirs, ADDRESSES[1 - at]);
            }
            122..=125 => {
                self.restart(at);
                self.programs[at].open(&mut self.host, at as u32);
                self.programs[at].open_urma(&mut self.host, ADDRESSES[at]);
            }
            _ => self.programs[at].ring(tape.limit()),
        }
    }

    /// A call of any bytes that are one, mostly for objects of the program.
    fn urma_call(&mut self, at: usize, tape: &mut Tape<'_>) {
        let UrmaNumbers { jfr, jetty, token_id, segment, target, .. } = self.programs[at].urma;
        let state = tape.byte() % 5;
        let usual = match tape.byte() % 12 {
            0 => UrmaCall::ModifyJetty { jetty, state },
            1 => UrmaCall::ModifyJfr { jfr, state },
            2 => UrmaCall::FlushJetty { jetty, most: tape.limit() },
            3 => UrmaCall::QueryJetty { jetty },
            4 => UrmaCall::BindJetty { jetty, target },
            5 => UrmaCall::UnbindJetty { jetty },
            6 => UrmaCall::UnregisterSegment { token_id },
            7 => UrmaCall::UnimportSegment { segment },
            8 => UrmaCall::UnimportJetty { jetty: target },
            9 => UrmaCall::LimitJfr { jfr, limit: tape.half() },
            10 => UrmaCall::DeleteJetty { jetty },
            _ => match postcard::take_from_bytes::<UrmaCall>(tape.0) {
                Ok((call, rest)) => {
                    tape.0 = rest;
                    call
                }
                Err(_) => return,
            },
        };
        self.programs[at].make(&mut self.host, usual);
    }

    /// A packet that a node has received, again or with changed bytes, or one of the input's bytes, in the name of any host.
    fn forge_urma(&self, at: usize, tape: &mut Tape<'_>) {
        let shape = tape.byte();
        let heard = self.bus.heard[at].lock().expect("one thread");
        let usual = Flow { src: ADDRESSES[1 - at].into(), dst: ADDRESSES[at].into(), ..Flow::default() };
        let (mut flow, mut bytes) = match heard.get(usize::from(shape) % HEARD_MAX) {
            Some((flow, bytes)) if shape < 224 => (*flow, bytes.clone()),
            _ => (usual, tape.take(usize::from(tape.0.first().copied().unwrap_or(0))).to_vec()),
        };
        drop(heard);
        for _ in 0..tape.byte() % 4 {
            let (place, bits) = (usize::from(tape.byte()), tape.byte());
            if let Some(byte) = bytes.get_mut(place) {
                *byte ^= bits;
            }
        }
        if tape.byte() >= 224 {
            flow.src = IpAddr::from([10, 0, 0, 66]);
        }
        let count = if shape & 15 == 15 { 200 } else { 1 };
        let packets = std::iter::repeat_n((flow, vec![bytes]), count);
        self.bus.forged[at].lock().expect("one thread").extend(packets);
    }

    /// Requests to the other program, and a flood of acknowledgements of every kind to the one that posted them.
    pub fn flood_step(&mut self, tape: &mut Tape<'_>) {
        let action = tape.byte();
        let at = usize::from(action >> 7);
        match action & 0x7f {
            0..=31 => {
                let key = self.programs[1 - at].rkey;
                self.programs[at].post(tape, key);
            }
            32..=95 => self.forge_answers(at, tape),
            96..=119 => self.work(),
            120..=123 => {
                self.time.fetch_add(u64::from(tape.half()) << (tape.byte() % 20), Relaxed);
                self.upkeep.run(&mut self.host, self.programs.as_mut_slice(), tape.byte() & 1 == 1);
            }
            _ => {
                self.restart(at);
                self.programs[at].open(&mut self.host, at as u32);
                let numbers = [0, 1].map(|at: usize| self.programs[at].qps.first().map_or(0, |qp| qp.qpn));
                self.programs[at].join(&mut self.host, numbers[1 - at], ADDRESSES[1 - at]);
            }
        }
    }

    /// ACKs, NAKs, RNR NAKs, selective acknowledgements with bitmaps, probes and CNPs, hundreds at once, in the name of the peer.
    fn forge_answers(&self, at: usize, tape: &mut Tape<'_>) {
        let Some(qpn) = self.programs[at].qps.first().map(|qp| qp.qpn) else { return };
        let (kind, first, step, count) =
            (tape.byte(), tape.limit(), u32::from(tape.byte()), u32::from(tape.byte()) * 2);
        let flow = Flow { src: ADDRESSES[1 - at].into(), dst: ADDRESSES[at].into(), ..Flow::default() };
        let (syndrome, words) = (tape.byte(), usize::from(tape.byte() % 16));
        let rest = tape.take(12 + 8 * words).to_vec();
        let packets = (0..=count).map(|n| {
            let psn = first.wrapping_add(n.wrapping_mul(step)) & 0x00ff_ffff;
            let (opcode, body): (u8, Vec<u8>) = match kind % 5 {
                // ACKNOWLEDGE with an AETH: ACK, RNR NAK or NAK by the syndrome.
                0 | 1 => (0x11, [&[syndrome][..], &n.to_be_bytes()[1..]].concat()),
                // A CNP: 16 reserved bytes.
                2 => (0x81, vec![0; 16]),
                // Burst's own family (0xC0 to 0xFF), SACKs and probes among them.
                3 => (0xc0 | syndrome & 0x3f, rest.clone()),
                _ => (syndrome & 0x1f, rest.clone()),
            };
            let mut packet = vec![opcode, 0x40, 0xff, 0xff];
            packet.extend(qpn.to_be_bytes());
            packet.extend(psn.to_be_bytes());
            packet.extend(body);
            packet
        });
        let packets = packets.map(|packet| (flow, vec![packet]));
        self.forged[at].lock().expect("one thread").extend(packets);
    }

    /// An action while there are few descriptors, as the input says from time to time.
    pub fn starving_step(&mut self, tape: &mut Tape<'_>) {
        if tape.byte() % 8 == 0 {
            self.limit = None;
            self.limit = Some(DescriptorLimit::at(u64::from(tape.byte() % 32)));
        }
        self.step(tape);
    }

    /// Descriptors are as many as before.
    pub fn end_limit(&mut self) {
        self.limit = None;
    }
}
