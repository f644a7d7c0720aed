//! Receiving of the `udp` port: one `recvmmsg` at a time, trains split, and each packet's ICRC verified while the packet is in
//! the cache ([`crate::rx_train`]). A socket does not report the IPv4 identification that the ICRC covers.

use super::socks::UdpSocket;
use crate::ether::IpId;
use crate::rx_train::{BufferLevel, PacketVerifier, RxMessages, RxTrain, report_lost};
use crate::{Encapsulation, RxSink};
use burst_base::{Nanos, Reason};
use burst_frame::Flow;
use std::os::fd::AsRawFd;

/// The receiving half of the port.
pub struct UdpRx {
    messages: RxMessages,
    verifier: PacketVerifier,
    level: BufferLevel,
    /// Index of the socket from which the messages came.
    sock: usize,
    /// Number of bursts that found their socket empty.
    empty: u32,
}

/// Of so many bursts that find their socket empty one looks at its error queue: an error there makes the socket readable,
/// `recvmmsg` does not always report it, and a worker that waits for the socket would not sleep. A prime number, so that each of
/// several sockets has its turn.
const EMPTY_BURSTS: u32 = 61;

impl UdpRx {
    /// `strict_id`: see [`crate::ether::icrc`].
    pub fn new(encapsulation: &Encapsulation, strict_id: bool) -> UdpRx {
        UdpRx {
            messages: RxMessages::new(),
            verifier: PacketVerifier::new(encapsulation, usize::MAX, strict_id),
            level: BufferLevel::default(),
            sock: 0,
            empty: 0,
        }
    }

    /// Number of identifications that had to be recovered.
    pub fn recovered(&self) -> u64 {
        self.verifier.recovered()
    }

    /// The sockets note when packets arrive.
    pub fn time_arrivals(&mut self) {
        self.messages.time_arrivals();
    }

    /// A burst from the port begins.
    #[inline]
    pub fn begin_burst(&mut self, now: Nanos) {
        self.messages.begin_burst(now);
    }

    /// Delivers the rest of the last messages; returns how many packets.
    pub fn deliver_rest(&mut self, socks: &mut [UdpSocket], budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut taken = 0;
        // A refresh may have closed the socket: its messages are then discarded.
        while taken < budget
            && let Some(sock) = socks.get_mut(self.sock)
            && let Some(packets) = self.split(sock, budget - taken, sink)
        {
            taken += packets;
        }
        taken
    }

    /// Number of calls that have received packets, since the last question.
    pub fn take_calls(&mut self) -> u64 {
        self.messages.take_calls()
    }

    /// Discards the rest of the last messages.
    pub fn forget(&mut self) {
        self.messages.forget();
    }

    /// Receives from socket `index` until it is empty or the budget is used; returns how many packets.
    pub fn burst(&mut self, socks: &mut [UdpSocket], index: usize, budget: usize, sink: &mut dyn RxSink) -> usize {
        let fd = socks[index].fd.as_raw_fd();
        self.sock = index;
        let (mut taken, mut more, mut first) = (0, true, true);
        while more && taken < budget {
            match self.messages.fill(fd, budget - taken) {
                Ok(waiting) => more = waiting,
                Err(error) => {
                    let is_empty = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR));
                    self.empty = self.empty.wrapping_add(u32::from(is_empty && taken == 0));
                    if !is_empty || taken == 0 && self.empty.is_multiple_of(EMPTY_BURSTS) {
                        super::tx::empty_error_queue(fd, &mut |reason| sink.dropped(reason));
                    }
                    return taken;
                }
            }
            if more && std::mem::take(&mut first) {
                self.level.look(fd);
            }
            taken += self.deliver_rest(socks, budget - taken, sink);
        }
        taken
    }

    /// The burst from all sockets ends.
    #[inline]
    pub fn end_burst(&mut self, sink: &mut dyn RxSink) {
        self.level.tell(sink);
    }

    /// Delivers packets of the present message, up to `budget`; `None` without a message.
    fn split(&mut self, sock: &mut UdpSocket, budget: usize, sink: &mut dyn RxSink) -> Option<usize> {
        let (message, offset) = self.messages.current()?;
        let (src, src_port, scope) = message.from.parts();
        let facts = &message.facts;
        let flow = Flow { src, dst: sock.ip, src_port, tos: facts.tos, hop_limit: facts.hops, flow_label: 0, scope };
        if offset == 0 {
            if let Some(lost) = facts.lost {
                report_lost(&mut sock.lost_seen, lost, sink);
            }
            if message.bytes.is_empty() || message.truncated {
                sink.dropped(Reason::Truncated);
                self.messages.next();
                return Some(1);
            }
            self.verifier.begin(&flow, IpId::Unknown);
        }
        self.messages.tell_wait(sink);
        let segment = facts.segment.map_or(message.bytes.len(), usize::from).max(1);
        let train = RxTrain { flow, bytes: &message.bytes[offset..], segment };
        let (taken, bytes) = self.verifier.pass(&train, budget, sink);
        let all = bytes == train.bytes.len();
        self.messages.delivered(bytes, all);
        Some(taken)
    }
}
