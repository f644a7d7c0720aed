//! Requests for memory of a program that forks.
//!
//! From shortly before a fork until its child has its copy, the daemon's mappings of the program's registered memory are not
//! accessed (`burst_mem::swap`); what cannot be reached in the process instead is late. Pages that an adapter has pinned are
//! copied inside the fork, and the peer notices nothing, so it must notice nothing here either. An RNR NAK would be noticed:
//! many programs ask for no repetition after one (`rnr_retry` 0, which a reply of `rdma_accept` has if the program does not
//! set it), because they never run out of receives. So a request is
//! dropped, as if the network had lost it, and is asked for by a NAK of a sequence gap as soon as the memory is back.
//!
//! A hold that lasts longer than [`silence_max`] would use up the peer's time-outs. From then on an RNR NAK is the answer,
//! unless the queue pair's `min_rnr_timer` is 0, the longest: then the peer gives up after RNR NAKs
//! (`burst_base::verbs::min_rnr_timer`).

use burst_base::Nanos;
use burst_base::verbs::QpAttr;
use burst_wire::aeth::ack_timeout;

/// How long requests are dropped at least. The shortest ACK timeout that programs use much is 67 ms (code 14).
const SILENCE_MIN: Nanos = Nanos::from_ms(50);
/// And at most, however long the peer waits.
const SILENCE_MOST: Nanos = Nanos::from_ms(1_000);

/// How long requests are dropped without an answer, from the first: half of the time after which the peer gives up. Its ACK
/// timeout and retry count are not known here; programs set those of both ends alike, so they are the queue pair's own.
pub(crate) fn silence_max(attr: &QpAttr) -> Nanos {
    // 0: none is set, or there is none.
    let timeout = if attr.timeout == 0 { Nanos(0) } else { ack_timeout(attr.timeout) };
    Nanos(timeout.0.saturating_mul(u64::from(attr.retry_cnt)) / 2).clamp(SILENCE_MIN, SILENCE_MOST)
}

/// Whether the program's memory is held, and what that has cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForkHold {
    /// It is not held.
    None,
    /// It is held, and no request was dropped for that.
    Held,
    /// It is held. Requests have been dropped since the time of the responder's `nak_at`.
    Dropped,
}
