//! Receiving: one `recvmmsg` at a time, trains split, each packet's ICRC checked while it is in the cache
//! ([`crate::rx_train`]). A socket does not show the identifications that the ICRC covers.

use super::socks::UdpSocket;
use crate::ether::IpId;
use crate::rx_train::{PacketVerifier, RxMessages, RxTrain, report_lost};
use crate::{Encapsulation, RxSink};
use burst_base::Reason;
use burst_frame::Flow;
use std::os::fd::AsRawFd;

/// The receiving half of the port.
pub struct UdpRx {
    inbox: RxMessages,
    gate: PacketVerifier,
    /// Socket from which the messages came.
    sock: usize,
}

impl UdpRx {
    /// `icrc`: check it. `strict_id`: see [`crate::ether::icrc`].
    pub fn new(encapsulation: &Encapsulation, strict_id: bool) -> UdpRx {
        UdpRx { inbox: RxMessages::new(), gate: PacketVerifier::new(encapsulation, usize::MAX, strict_id), sock: 0 }
    }

    /// Identifications that had to be recovered.
    pub fn recovered(&self) -> u64 {
        self.gate.recovered()
    }

    /// Hands out what is left of the last messages; returns how many packets.
    pub fn leftover(&mut self, socks: &mut [UdpSocket], budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut taken = 0;
        // The socket may have been closed by a refresh: its messages go with it.
        while taken < budget
            && let Some(sock) = socks.get_mut(self.sock)
            && let Some(packets) = self.split(sock, budget - taken, sink)
        {
            taken += packets;
        }
        taken
    }

    /// Forgets what is left of the last messages.
    pub fn forget(&mut self) {
        self.inbox.forget();
    }

    /// Receives from socket `index` until it is empty or the budget is used; returns how many packets.
    pub fn burst(&mut self, socks: &mut [UdpSocket], index: usize, budget: usize, sink: &mut dyn RxSink) -> usize {
        let fd = socks[index].fd.as_raw_fd();
        self.sock = index;
        let (mut taken, mut more) = (0, true);
        while more && taken < budget {
            match self.inbox.fill(fd, budget - taken) {
                Ok(waiting) => more = waiting,
                Err(error) => {
                    if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) {
                        super::tx::empty_error_queue(fd, &mut |reason| sink.dropped(reason));
                    }
                    return taken;
                }
            }
            taken += self.leftover(socks, budget - taken, sink);
        }
        taken
    }

    /// Hands out packets of the current message, up to `budget`; `None` without a message.
    fn split(&mut self, sock: &mut UdpSocket, budget: usize, sink: &mut dyn RxSink) -> Option<usize> {
        let (message, offset) = self.inbox.current()?;
        let (src, src_port, scope) = message.from.parts();
        let facts = &message.facts;
        let flow = Flow { src, dst: sock.ip, src_port, tos: facts.tos, hop_limit: facts.hops, flow_label: 0, scope };
        if offset == 0 {
            if let Some(lost) = facts.lost {
                report_lost(&mut sock.lost_seen, lost, sink);
            }
            if message.bytes.is_empty() || message.truncated {
                sink.dropped(Reason::Truncated);
                self.inbox.next();
                return Some(1);
            }
            self.gate.begin(&flow, IpId::Unknown);
        }
        let segment = facts.segment.map_or(message.bytes.len(), usize::from).max(1);
        let train = RxTrain { flow, bytes: &message.bytes[offset..], segment };
        let (taken, bytes) = self.gate.pass(&train, budget, sink);
        let all = bytes == train.bytes.len();
        self.inbox.handed_out(bytes, all);
        Some(taken)
    }
}
