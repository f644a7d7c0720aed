//! Receiving: one `recvmmsg` at a time, trains split into packets, each packet's ICRC checked while it is in the cache.
//!
//! Few buffers are used for long trains, so that what the kernel has just copied is still in the L2 cache when the ICRC
//! is computed and the engine copies it on; many for short packets, of which only the first lines are touched. The number
//! follows the length of the messages seen last. Packets that do not fit the caller's budget stay where they are until
//! the next call.

use super::socks::Sock;
use crate::RxSink;
use crate::ether::seal::{Checker, ICRC, Seal};
use crate::sys::recv::RecvRing;
use burst_base::Reason;
use burst_frame::{Flow, RxFrame};
use std::os::fd::AsRawFd;

/// Buffers.
const MESSAGES: usize = 32;
/// Bytes that one `recvmmsg` should bring: a part of an L2 cache.
const HOT_BYTES: usize = 64 << 10;
/// Shortest packet: BTH and ICRC.
const PACKET_MIN: usize = 12 + ICRC;
/// Lost packets reported per message.
const LOST_REPORTED_MAX: u32 = 4096;

/// The receiving half of the port.
pub struct Rx {
    ring: RecvRing,
    checker: Checker,
    icrc: bool,
    /// Messages to ask for.
    want: usize,
    /// Messages of the last `recvmmsg`, the one being split, and the byte at which it goes on.
    have: usize,
    at: usize,
    offset: usize,
    /// Socket from which they came.
    sock: usize,
    /// Bytes of the messages split so far.
    bytes: usize,
    /// Of the flow last received.
    seal: Option<Seal>,
}

impl Rx {
    /// `icrc`: check it. `strict_id`: see [`crate::ether::seal`].
    pub fn new(icrc: bool, strict_id: bool) -> Rx {
        Rx {
            ring: RecvRing::new(MESSAGES),
            checker: Checker::new(strict_id),
            icrc,
            want: MESSAGES,
            have: 0,
            at: 0,
            offset: 0,
            sock: 0,
            bytes: 0,
            seal: None,
        }
    }

    /// Identifications that had to be recovered.
    pub fn recovered(&self) -> u64 {
        self.checker.recovered
    }

    /// Hands out what is left of the last messages; returns how many packets.
    pub fn leftover(&mut self, socks: &mut [Sock], budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut taken = 0;
        while self.at < self.have && taken < budget {
            // The socket may have been closed by a refresh: its messages go with it.
            let Some(sock) = socks.get_mut(self.sock) else { break };
            taken += self.split(sock, budget - taken, sink);
        }
        taken
    }

    /// Forgets what is left of the last messages.
    pub fn forget(&mut self) {
        (self.have, self.at, self.offset) = (0, 0, 0);
    }

    /// Receives from socket `index` until it is empty or the budget is used; returns how many packets.
    pub fn burst(&mut self, socks: &mut [Sock], index: usize, budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut taken = 0;
        while taken < budget {
            debug_assert!(self.at == self.have);
            let asked = self.want.min(budget - taken).max(1);
            let fd = socks[index].fd.as_raw_fd();
            match self.ring.recv(fd, asked) {
                Ok(have) => (self.have, self.at, self.offset, self.bytes, self.sock) = (have, 0, 0, 0, index),
                Err(error) => {
                    if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) {
                        super::tx::empty_error_queue(fd, &mut |reason| sink.dropped(reason));
                    }
                    return taken;
                }
            }
            taken += self.leftover(socks, budget - taken, sink);
            self.adapt();
            if self.have < asked {
                return taken;
            }
        }
        taken
    }

    /// Asks for as many messages as should fit the cache.
    fn adapt(&mut self) {
        let average = (self.bytes / self.have.max(1)).max(1);
        self.want = (HOT_BYTES / average).clamp(1, MESSAGES);
    }

    /// Hands out packets of the current message, up to `budget`; goes on to the next message at its end.
    fn split(&mut self, sock: &mut Sock, budget: usize, sink: &mut dyn RxSink) -> usize {
        let message = self.ring.message(self.at);
        if self.offset == 0 {
            self.bytes += message.bytes.len();
            self.checker.begin_train();
            if let Some(lost) = message.facts.lost {
                report_lost(sock, lost, sink);
            }
        }
        let (src, src_port, scope) = message.from.parts();
        let flow = Flow {
            src,
            dst: sock.ip,
            src_port,
            tos: message.facts.tos,
            hop_limit: message.facts.hops,
            flow_label: 0,
            scope,
        };
        let segment = message.facts.segment.map_or(message.bytes.len(), usize::from).max(1);
        self.seal = Seal::reuse(self.seal, src, sock.ip, src_port, sock.udp_port);
        let mut taken = 0;
        let mut rest = &message.bytes[self.offset..];
        let whole = (rest.len() / segment).min(budget) * segment;
        if whole > segment && segment >= PACKET_MIN && !message.truncated {
            let (train, after) = rest.split_at(whole);
            if !self.icrc || self.seal.as_mut().is_some_and(|seal| self.checker.check_train(seal, train, segment)) {
                sink.train(&flow, train, segment);
                (taken, rest) = (whole / segment, after);
                self.offset += whole;
            }
        }
        while taken < budget && !rest.is_empty() {
            let (packet, after) = rest.split_at(segment.min(rest.len()));
            rest = after;
            self.offset += packet.len();
            taken += 1;
            if packet.len() < PACKET_MIN || message.truncated {
                sink.dropped(Reason::Truncated);
                continue;
            }
            let good = !self.icrc || self.seal.as_mut().is_some_and(|seal| self.checker.check(seal, packet));
            if good {
                sink.frame(&RxFrame { flow, bytes: &packet[..packet.len() - ICRC] });
            } else {
                sink.dropped(Reason::BadIcrc);
            }
        }
        if message.bytes.is_empty() {
            sink.dropped(Reason::Truncated);
            taken = 1;
        }
        if rest.is_empty() {
            self.at += 1;
            self.offset = 0;
        }
        taken
    }
}

/// Reports packets that the kernel dropped since the last report.
fn report_lost(sock: &mut Sock, lost: u32, sink: &mut dyn RxSink) {
    let new = lost.wrapping_sub(sock.lost_seen).min(LOST_REPORTED_MAX);
    sock.lost_seen = lost;
    (0..new).for_each(|_| sink.dropped(Reason::ReceiveOverflow));
}
