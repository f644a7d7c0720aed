//! Messages of the `packet` port's socket: frames and trains of any bytes, and valid ones of which some bytes are changed.
//! Nothing panics, each packet is delivered or dropped once, what is delivered lies within its message, and an unchanged train
//! is delivered whole.
//!
//! The modules under test are included with another `sys`, whose ring delivers the fuzzer's messages.
#![no_main]
#![allow(dead_code)]

use burst_base::{Nanos, Reason};
use burst_frame::{Flow, RxFrame};
use burst_fuzz::Tape;
use burst_port::{Encapsulation, ReceivePressure, RxSink, ether};
use burst_wire::{MacAddr, ROCE_PORT};
use ether::{HeaderTemplate, ICRC, IcrcSeal, LinkHeader, TRANSPORT_MAX, TRANSPORT_MIN, UdpChecksum};
use libfuzzer_sys::fuzz_target;
use packet::{LocalLink, rx::PacketRx, vnet};
use std::net::IpAddr;

mod sys {
    //! A ring that is filled from the input.
    pub mod socket {
        use std::os::fd::RawFd;

        /// Bytes in the receive buffer of a socket, and its size: never under pressure.
        pub fn receive_use(_fd: RawFd) -> (u32, u32) {
            (0, 1)
        }
    }

    pub mod recv {
        use burst_base::Nanos;
        use std::cell::RefCell;
        use std::io;
        use std::os::fd::RawFd;

        thread_local! {
            /// The messages of the next `recv`.
            pub static INBOX: RefCell<Vec<(Vec<u8>, Facts)>> = const { RefCell::new(Vec::new()) };
        }

        #[derive(Clone, Copy, Default)]
        pub struct Facts {
            pub vlan: Option<u16>,
            pub lost: Option<u32>,
            pub received: Option<Nanos>,
        }

        pub struct Message<'a> {
            pub bytes: &'a [u8],
            pub facts: Facts,
        }

        #[derive(Default)]
        pub struct RecvRing(Vec<(Vec<u8>, Facts)>);

        impl RecvRing {
            pub fn new(_count: usize) -> RecvRing {
                RecvRing::default()
            }
            pub fn recv(&mut self, _fd: RawFd, count: usize) -> io::Result<usize> {
                self.0 = INBOX.with_borrow_mut(|inbox| inbox.drain(..count.min(inbox.len())).collect());
                if self.0.is_empty() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(self.0.len()) }
            }
            pub fn take_calls(&mut self) -> u64 {
                0
            }
            pub fn message(&self, at: usize) -> Message<'_> {
                let (bytes, facts) = &self.0[at];
                Message { bytes, facts: *facts }
            }
        }
    }
}

#[path = "../../crates/protocols/port/src/rx_train.rs"]
mod rx_train;

#[path = "../../crates/protocols/port/src/packet"]
mod packet {
    pub mod rx;
    pub mod vnet;

    use burst_port::Encapsulation;
    use burst_wire::MacAddr;
    use std::net::IpAddr;

    /// The fields of the port's own that receiving needs.
    pub struct LocalLink {
        pub encapsulation: Encapsulation,
        pub ifindex: u32,
        pub mac: MacAddr,
        pub loopback: bool,
        pub addrs: Vec<IpAddr>,
    }

    impl LocalLink {
        pub fn has(&self, ip: &IpAddr) -> bool {
            self.addrs.contains(ip)
        }
        pub fn has_group(&self, ip: &IpAddr) -> bool {
            ip.is_multicast()
        }
    }
}

const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const TRAIN_MAX: usize = 60_000;

/// What was delivered and dropped.
#[derive(Default)]
struct Seen {
    delivered: usize,
    dropped: usize,
    longest: usize,
}

impl RxSink for Seen {
    fn frame(&mut self, frame: &RxFrame<'_>) {
        self.delivered += 1;
        self.longest = self.longest.max(frame.bytes.len());
    }
    fn waited(&mut self, waited: Nanos) {
        assert!(waited <= Nanos::from_ms(1_000));
    }
    fn dropped(&mut self, _reason: Reason) {
        self.dropped += 1;
    }
}

fn addresses(v6: bool) -> [IpAddr; 2] {
    if v6 {
        [2, 1].map(|last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last]))
    } else {
        [2, 1].map(|last| IpAddr::from([10, 0, 0, last]))
    }
}

/// A valid message of a train with the packets' lengths; the last packet may be shorter.
fn train(v6: bool, id: u16, count: usize, segment: usize, last: usize) -> Vec<u8> {
    let [src, dst] = addresses(v6);
    let flow = Flow { src, dst, src_port: 50_000, hop_limit: 64, ..Flow::default() };
    let link = LinkHeader { src: PEER, dst: OWN, vlan: None };
    let template = HeaderTemplate::new(&link, &flow, 50_000, ROCE_PORT).expect("one family");
    let mut body = Vec::new();
    for number in 0..count {
        let len = if number + 1 == count { last } else { segment };
        let at = body.len();
        body.extend((0..len - ICRC).map(|i| (i * 7 + number * 31) as u8));
        let mut seal = IcrcSeal::new(src, dst, 50_000, ROCE_PORT).expect("one family");
        let icrc = seal.begin(id.wrapping_add(number as u16), len, &body[at..]).finish();
        body.extend(icrc);
    }
    let mut message = vec![0; vnet::LEN + template.header_len()];
    message.extend(&body);
    let many = count > 1;
    vnet::write(&mut message, &template, many.then_some(segment), true);
    template.write(&mut message[vnet::LEN..], id, body.len(), UdpChecksum::Zero);
    message
}

fuzz_target!(|data: &[u8]| {
    let mut tape = Tape(data);
    let own = LocalLink {
        encapsulation: Encapsulation::ROCE,
        ifindex: 3,
        mac: OWN,
        loopback: false,
        addrs: vec![addresses(false)[1], addresses(true)[1]],
    };
    let mut rx = PacketRx::new(&Encapsulation::ROCE, tape.byte() & 1 == 1);
    rx.time_arrivals();
    while !tape.is_empty() {
        let (mut longest, mut intact) = (0, 0);
        for _ in 0..1 + tape.byte() % 4 {
            let kind = tape.byte();
            let facts = sys::recv::Facts {
                vlan: (kind & 0x10 != 0).then(|| tape.half()),
                lost: (kind & 0x20 != 0).then(|| u32::from(tape.byte())),
                received: (kind & 0x80 != 0)
                    .then(|| Nanos(u64::from(tape.half()) << 48 | u64::from(tape.half()) << 24)),
            };
            let mut message = if kind & 1 == 0 {
                let len = usize::from(tape.half());
                tape.take(len).to_vec()
            } else {
                let segment = TRANSPORT_MIN + usize::from(tape.half()) % (TRANSPORT_MAX - TRANSPORT_MIN + 1);
                let count = (1 + usize::from(tape.byte() % 64)).min((TRAIN_MAX / segment).max(1));
                let last = TRANSPORT_MIN + usize::from(tape.half()) % (segment - TRANSPORT_MIN + 1);
                let last = if count == 1 { segment } else { last };
                intact += if kind & 0x3e == 0 { count } else { 0 };
                train(kind & 0x40 != 0, tape.half(), count, segment, last)
            };
            if kind & 0xe != 0 && !message.is_empty() {
                for _ in 0..kind >> 1 & 7 {
                    let at = usize::from(tape.half()) % message.len();
                    message[at] ^= tape.byte();
                }
            }
            longest = longest.max(message.len());
            sys::recv::INBOX.with_borrow_mut(|inbox| inbox.push((message, facts)));
        }
        rx.begin_burst(Nanos(u64::from(tape.half()) << 20));
        let (budget, mut seen) = (1 + usize::from(tape.byte()), Seen::default());
        loop {
            let mut taken = rx.deliver_rest(&own, budget, &mut seen);
            if taken < budget {
                taken += rx.burst(0, &own, budget - taken, &mut seen);
            }
            assert!(taken <= budget);
            if taken == 0 {
                break;
            }
        }
        assert!(seen.delivered >= intact, "{} of {intact} packets were delivered", seen.delivered);
        assert!(seen.longest <= longest);
    }
});
