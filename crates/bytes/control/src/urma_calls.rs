//! What a program of URMA says to the host: calls for objects, and the records by which it posts.
//!
//! A program opens an address in its context ([`crate::Request::UrmaOpen`]); the reply brings a ring of records
//! ([`burst_shm::record_ring`]) for [`UrmaPost`]s. Completions come by completion queues ([`crate::Request::CreateCq`]),
//! memory is that of memory regions. All numbers are the node's, those of URMA's interface; the host checks on each use that
//! they are the context's own.

use serde::{Deserialize, Serialize};

/// Most records of one answer to [`UrmaCall::FlushJetty`].
pub const URMA_FLUSHED_MAX: usize = 256;
/// Instead of the number of an object: none.
pub const URMA_NONE: u32 = u32::MAX;

/// Attributes of a Jetty or JFS, by the numbers of the interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UrmaJettyAttr {
    /// Mode: 1 RM, 2 RC, 4 UM.
    pub mode: u8,
    /// Service mode: 0 ROI, 1 ROT, 2 ROL, 3 UNO.
    pub service: u8,
    /// Completion queue of sends.
    pub jfc: u32,
    /// Receive queue; `None` makes a JFS.
    pub jfr: Option<u32>,
    /// Work requests outstanding.
    pub depth: u16,
    /// Token that importers must show.
    pub token: Option<u32>,
    /// A failed channel suspends it.
    pub error_suspend: bool,
    /// Completions out of order.
    pub outorder_comp: bool,
    /// Repetitions after RNR; 7 for no limit.
    pub rnr_retry: u8,
    /// Least silence before a request fails: `4.096 us * 2^n`.
    pub err_timeout: u8,
    /// Group of which it becomes a member.
    pub group: Option<u32>,
}

/// A call for an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UrmaCall {
    /// Makes a JFC of a completion queue of the context. A queue has one JFC at most.
    CreateJfc {
        /// Handle of the completion queue.
        cq: u32,
    },
    /// Deletes a JFC.
    DeleteJfc {
        /// The JFC.
        jfc: u32,
    },
    /// Sends the event of a JFC that was armed, as if a completion had just come.
    Remind {
        /// The JFC.
        jfc: u32,
    },
    /// Makes a receive queue.
    CreateJfr {
        /// Completion queue of receives.
        jfc: u32,
        /// Receives posted at most.
        depth: u16,
        /// Token that importers must show.
        token: Option<u32>,
        /// Delay that an RNR answer asks for: `10 us * 2^n`.
        rnr_timer: u8,
        /// Messages of mode UM that name it may use its receives; otherwise reliable ones may.
        is_unreliable: bool,
    },
    /// Deletes a receive queue.
    DeleteJfr {
        /// The JFR.
        jfr: u32,
    },
    /// State and limit of a receive queue.
    QueryJfr {
        /// The JFR.
        jfr: u32,
    },
    /// Sets the number of receives below which there is an event.
    LimitJfr {
        /// The JFR.
        jfr: u32,
        /// The number; 0 for none.
        limit: u16,
    },
    /// Moves a receive queue.
    ModifyJfr {
        /// The JFR.
        jfr: u32,
        /// 0 RESET, 1 READY, 2 ERROR.
        state: u8,
    },
    /// Makes a Jetty or JFS.
    CreateJetty(UrmaJettyAttr),
    /// Deletes a Jetty: what it has not executed is dropped.
    DeleteJetty {
        /// The Jetty.
        jetty: u32,
    },
    /// State of a Jetty.
    QueryJetty {
        /// The Jetty.
        jetty: u32,
    },
    /// Moves a Jetty.
    ModifyJetty {
        /// The Jetty.
        jetty: u32,
        /// 0 RESET, 1 READY, 2 SUSPENDED, 3 ERROR.
        state: u8,
    },
    /// Hands back requests of a stopped Jetty.
    FlushJetty {
        /// The Jetty.
        jetty: u32,
        /// Records at most, up to [`URMA_FLUSHED_MAX`].
        most: u32,
    },
    /// Binds a Jetty to an imported one.
    BindJetty {
        /// The Jetty.
        jetty: u32,
        /// The imported one.
        target: u32,
    },
    /// Ends the binding.
    UnbindJetty {
        /// The Jetty.
        jetty: u32,
    },
    /// Makes a group of Jetties.
    CreateGroup {
        /// 0 one after the other, 1 by the sender's hint.
        policy: u8,
        /// Token that importers must show.
        token: Option<u32>,
    },
    /// Deletes a group.
    DeleteGroup {
        /// The group.
        group: u32,
    },
    /// Makes a segment of a memory region of the context.
    RegisterSegment {
        /// Handle of the region.
        mr: u32,
        /// First byte, at or behind the region's.
        addr: u64,
        /// Length.
        len: u64,
        /// Token that requests must carry.
        token: Option<u32>,
        /// Rights by bit: 1 local only, 2 read, 4 write, 8 atomic.
        access: u8,
    },
    /// Ends a segment. The region can be deregistered then.
    UnregisterSegment {
        /// Its token id.
        token_id: u32,
    },
    /// Imports a peer's segment.
    ImportSegment {
        /// EID of the owner.
        eid: [u8; 16],
        /// Names the segment on the wire.
        token_id: u32,
        /// First byte.
        addr: u64,
        /// Length.
        len: u64,
        /// The token.
        token: Option<u32>,
    },
    /// Forgets an imported segment.
    UnimportSegment {
        /// The segment.
        segment: u32,
    },
    /// Imports a peer's Jetty, JFR or group.
    ImportJetty {
        /// EID of the owner.
        eid: [u8; 16],
        /// Its number there.
        id: u32,
        /// 0 JFR, 1 Jetty, 2 group.
        kind: u8,
        /// The token.
        token: Option<u32>,
    },
    /// Forgets an imported Jetty.
    UnimportJetty {
        /// The Jetty.
        jetty: u32,
    },
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UrmaAnswer {
    /// Done.
    Done,
    /// Number of the new object.
    Number(u32),
    /// State of a queue.
    State {
        /// The state.
        state: u8,
        /// Limit of a receive queue.
        limit: u16,
        /// Requests, or receives, that have ended since it was made.
        finished: u32,
    },
    /// Requests that are handed back, as completions ([`burst_shm::Cqe`]), word by word.
    Flushed {
        /// The records.
        records: Vec<[u64; 8]>,
        /// Requests that have ended since the Jetty was made.
        finished: u32,
    },
    /// The node has refused the call; the number of its reason.
    Refused(u8),
}

/// A work request or a receive in the ring of records. Which fields count depends on the kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UrmaPost {
    /// 0 work request, 1 receive.
    pub kind: u8,
    /// Transaction opcode.
    pub opcode: u8,
    /// [`UrmaPost::COMPLETION_ORDER`] and others.
    pub flags: u8,
    /// Hint for a group.
    pub hint: u8,
    /// Bytes of inline data.
    pub inline_len: u8,
    /// Place order: 0 none, 1 relaxed, 2 strong.
    pub order: u8,
    /// The Jetty, or the receive queue.
    pub queue: u32,
    /// Imported Jetty.
    pub target: u32,
    /// Imported segment.
    pub segment: u32,
    /// Own segment.
    pub token_id: u32,
    /// Bytes.
    pub len: u32,
    /// Imported segment of a notification.
    pub notify_segment: u32,
    /// Own memory.
    pub addr: u64,
    /// Returned in the completion.
    pub user_ctx: u64,
    /// Address in the imported segment.
    pub remote_addr: u64,
    /// Operand of an atomic.
    pub operand: u64,
    /// Swap value.
    pub swap: u64,
    /// Immediate data.
    pub immediate: u64,
    /// Address of a notification.
    pub notify_addr: u64,
}

impl UrmaPost {
    /// Kind: a work request.
    pub const SEND: u8 = 0;
    /// Kind: a receive.
    pub const RECEIVE: u8 = 1;
    /// Flag: completion in posting order.
    pub const COMPLETION_ORDER: u8 = 1;
    /// Flag: waits until all earlier READs and atomics are answered.
    pub const FENCE: u8 = 2;
    /// Flag: a success has a completion.
    pub const COMPLETE: u8 = 4;
    /// Flag: the payload is inline, behind the record.
    pub const INLINE: u8 = 8;
    /// Bytes of a record, without inline data.
    pub const BYTES: usize = 88;

    /// The record for the ring, without inline data.
    pub fn to_bytes(&self) -> [u8; UrmaPost::BYTES] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let first =
            u64::from_le_bytes([self.kind, self.opcode, self.flags, self.hint, self.inline_len, self.order, 0, 0]);
        let words = [
            first,
            pair(self.queue, self.target),
            pair(self.segment, self.token_id),
            pair(self.len, self.notify_segment),
            self.addr,
            self.user_ctx,
            self.remote_addr,
            self.operand,
            self.swap,
            self.immediate,
            self.notify_addr,
        ];
        let mut bytes = [0; UrmaPost::BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// A record of the ring, and its inline data. `None` for one that is too short for what it says.
    pub fn parse(record: &[u8]) -> Option<(UrmaPost, &[u8])> {
        let (head, rest) = record.split_at_checked(UrmaPost::BYTES)?;
        let word = |i: usize| head.get(8 * i..8 * i + 8).and_then(|w| w.try_into().ok()).map_or(0, u64::from_le_bytes);
        let [kind, opcode, flags, hint, inline_len, order, ..] = word(0).to_le_bytes();
        let (low, high) = (|i| word(i) as u32, |i| (word(i) >> 32) as u32);
        let post = UrmaPost {
            kind,
            opcode,
            flags,
            hint,
            inline_len,
            order,
            queue: low(1),
            target: high(1),
            segment: low(2),
            token_id: high(2),
            len: low(3),
            notify_segment: high(3),
            addr: word(4),
            user_ctx: word(5),
            remote_addr: word(6),
            operand: word(7),
            swap: word(8),
            immediate: word(9),
            notify_addr: word(10),
        };
        let is_inline = flags & UrmaPost::INLINE != 0;
        let inline = rest.get(..if is_inline { usize::from(inline_len) } else { 0 })?;
        Some((post, inline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_out_as_it_went_in() {
        let post = UrmaPost {
            kind: 1,
            opcode: 2,
            flags: UrmaPost::INLINE | UrmaPost::FENCE,
            hint: 4,
            inline_len: 5,
            order: 2,
            queue: 6,
            target: URMA_NONE,
            segment: 7,
            token_id: 8,
            len: 9,
            notify_segment: 10,
            addr: 1 << 40 | 11,
            user_ctx: u64::MAX,
            remote_addr: 12,
            operand: 13,
            swap: 14,
            immediate: 15,
            notify_addr: 16,
        };
        let mut record = post.to_bytes().to_vec();
        assert_eq!(UrmaPost::parse(&record), None, "inline data are missing");
        record.extend(b"12345");
        assert_eq!(UrmaPost::parse(&record), Some((post, &b"12345"[..])));
        assert_eq!(UrmaPost::parse(&record[..87]), None);
    }
}
