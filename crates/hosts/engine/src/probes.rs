//! Static tracepoints of the data path: SystemTap notes (USDT) of provider `burst` in the daemon and in the library with the
//! engine for programs, for `bpftrace` and `perf`. `share/data-path.bt` and `share/losses.bt` use them.
//!
//! | probe | when | arguments |
//! |---|---|---|
//! | `doorbell` | once for a context and pass in which its programs have rung | number of the context; doorbells |
//! | `turn` | after a queue pair's turn | queue pair; work requests begun; bytes |
//! | `completion` | a completion is written | number of the completion queue; address of the entry (`burst_shm::layout::Cqe`) |
//! | `retransmit` | packets are sent again, or will be | queue pair; reason, its length |
//! | `nak` | a NAK is sent or has come | queue pair; reason, its length; 1 if it has come |
//! | `drop` | a packet is dropped | queue pair, or 0; reason, its length |
//! | `cnp` | a congestion notification is sent or has come | queue pair; 1 if it has come |
//! | `rate_change` | a path's rate has changed, not by an ACK | peer (C string); rate before, after (bit/s, 0: any) |
//!
//! Reasons are those of docs/reasons.md, as bytes without an end. The first three probes are a `nop` each, without a semaphore:
//! their arguments are values at hand, and nothing is tested. The others are tested where the rare thing has happened, so that
//! a packet that is handled as usual meets none of them.

use burst_base::Reason;
use burst_base::reason::Class;
use burst_gsi::probes::AddressText;
use burst_shm::layout::Cqe;
use std::net::IpAddr;

/// Doorbells of a context were taken in this pass.
#[inline(always)]
pub(crate) fn doorbell(context: u32, rung: usize) {
    probe::probe!(burst, doorbell, context, rung);
}

/// A queue pair has had a turn.
#[inline(always)]
pub(crate) fn turn(qpn: u32, requests: u32, bytes: u64) {
    probe::probe!(burst, turn, qpn, requests, bytes);
}

/// A completion is written.
#[inline(always)]
pub(crate) fn completion(cq: u32, cqe: &Cqe) {
    probe::probe!(burst, completion, cq, std::ptr::from_ref(cqe));
}

/// A reason was counted, of the packets of a queue pair (0: of none).
#[cold]
#[inline(never)]
pub(crate) fn counted(reason: Reason, qpn: u32) {
    let name = reason.name();
    match reason.class() {
        Class::Drop => {
            probe::probe_lazy!(burst, drop, qpn, name.as_ptr(), name.len());
        }
        Class::Nak => {
            probe::probe_lazy!(burst, nak, qpn, name.as_ptr(), name.len(), 0);
        }
        Class::Refusal | Class::Completion | Class::Note => {}
    }
    if is_nak_received(reason) {
        probe::probe_lazy!(burst, nak, qpn, name.as_ptr(), name.len(), 1);
    }
    if is_retransmission(reason) {
        probe::probe_lazy!(burst, retransmit, qpn, name.as_ptr(), name.len());
    }
}

const fn is_nak_received(reason: Reason) -> bool {
    matches!(reason, Reason::SequenceNakReceived | Reason::RnrNakReceived)
}

const fn is_retransmission(reason: Reason) -> bool {
    use Reason::*;
    is_nak_received(reason)
        || matches!(
            reason,
            ImpliedNak
                | AckTimeout
                | ReadRepaired
                | BackRepeated
                | TailProbe
                | SrRepeated
                | SrProbe
                | SrTimeout
                | UbRepeated
        )
}

/// A congestion notification is sent, or has come.
#[cold]
#[inline(never)]
pub(crate) fn cnp(qpn: u32, has_come: bool) {
    probe::probe_lazy!(burst, cnp, qpn, u32::from(has_come));
}

/// The rate of the path to a peer may have changed.
#[cold]
#[inline(never)]
pub(crate) fn rate_change(peer: IpAddr, before_bps: u64, after_bps: u64) {
    if before_bps == after_bps {
        return;
    }
    let text;
    probe::probe_lazy!(
        burst,
        rate_change,
        {
            text = AddressText::of(peer);
            text.as_ptr()
        },
        before_bps,
        after_bps
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_that_says_that_packets_are_sent_again_is_a_retransmission() {
        // Those of the connection manager and of the proxy are steps of their own; a duplicate's response is no retransmission
        // of this side's requests.
        let others = |reason: Reason| {
            let name = reason.name();
            ["cm_", "proxy_", "ub_replay", "duplicate_request", "page_late", "sr_recovery", "sr_reordered"]
                .iter()
                .any(|start| name.starts_with(start))
        };
        let again = |reason: &&Reason| reason.class() == Class::Note && reason.explanation().contains("sent again");
        for reason in Reason::ALL.iter().filter(again).filter(|reason| !others(**reason)) {
            assert!(is_retransmission(*reason), "{}", reason.name());
        }
    }
}
