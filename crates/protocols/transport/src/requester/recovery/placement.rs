//! Where the bytes of READ responses go, and which of them do.
//!
//! Programs read into one buffer again and again, so READs in flight write to the same bytes of memory, and the later must win. A
//! response that comes late, in front of noted ones, is written only where none of those was: the bytes in between belong to the
//! later READ, whose completion follows.

use crate::api::Env;
use crate::qp_shared::QpShared;
use crate::requester::recovery::{InflightWqe, Recovery};
use crate::sge_cursor::{Placing, SgeCursor};
use burst_base::Reason;

/// The memory that responses are written to, the payload bytes per packet, and who writes.
pub(crate) struct ResponseMemory<'a> {
    placing: Placing<'a>,
    mtu: u32,
}

impl<'a> ResponseMemory<'a> {
    pub(crate) fn of(qp: &QpShared, env: &'a mut Env<'_>) -> ResponseMemory<'a> {
        ResponseMemory { placing: Placing::of(qp, env), mtu: qp.mtu }
    }
}

impl Recovery {
    /// Writes response bytes at `offset` of the scatter list of a request in flight.
    pub(crate) fn place_at(
        &self,
        memory: &mut ResponseMemory<'_>,
        request: &InflightWqe,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), Reason> {
        let sges = self.sges_of(request);
        debug_assert!(offset as usize + bytes.len() <= request.length as usize, "bytes behind the end of a response");
        SgeCursor::at(sges, u64::from(offset)).scatter(sges, bytes, &mut memory.placing)
    }

    /// Writes response bytes at `offset` of the scatter list of a READ in flight, but not over bytes of later READs that have
    /// arrived.
    #[inline]
    pub(crate) fn place_response(
        &self,
        memory: &mut ResponseMemory<'_>,
        request: &InflightWqe,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), Reason> {
        if !self.has_ahead() {
            return self.place_at(memory, request, offset, bytes);
        }
        self.place_under_later(memory, request, offset, bytes)
    }

    #[cold]
    #[inline(never)]
    fn place_under_later(
        &self,
        memory: &mut ResponseMemory<'_>,
        request: &InflightWqe,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), Reason> {
        if !self.noted_reads_behind(request).any(|other| self.shares_memory(request, other)) {
            return self.place_at(memory, request, offset, bytes);
        }
        let end = offset + bytes.len() as u32;
        let mut begin = 0;
        for sge in self.sges_of(request) {
            let behind = begin + sge.length;
            let mut at = begin.max(offset);
            while at < behind.min(end) {
                let addr = sge.addr.wrapping_add(u64::from(at - begin));
                let (is_later, len) = self.later_bytes(memory.mtu, request, (sge.lkey, addr), behind.min(end) - at);
                debug_assert!(len > 0);
                if !is_later {
                    let part = &bytes[(at - offset) as usize..(at - offset + len) as usize];
                    self.place_at(memory, request, at, part)?;
                }
                at += len;
            }
            begin = behind;
        }
        Ok(())
    }

    /// Whether a response of a READ behind `request` was written to an address, and for how many bytes from there on, at most
    /// `len`, the answer is the same.
    fn later_bytes(&self, mtu: u32, request: &InflightWqe, (lkey, addr): (u32, u64), len: u32) -> (bool, u32) {
        let (mut same, mut is_later) = (len, false);
        for other in self.noted_reads_behind(request) {
            let mut begin = 0;
            for sge in self.sges_of(other).iter().filter(|sge| sge.length > 0) {
                let is_same_key = sge.lkey == lkey;
                let into = addr.wrapping_sub(sge.addr);
                let before = sge.addr.wrapping_sub(addr);
                if is_same_key && into < u64::from(sge.length) {
                    let packet = (begin + into as u32) / mtu;
                    let packet_end = ((packet + 1) * mtu - begin).min(sge.length);
                    let is_noted = self.is_noted(other.first_psn.add(packet));
                    let left = packet_end - into as u32;
                    if is_noted && !is_later {
                        (is_later, same) = (true, len.min(left));
                    } else if is_noted {
                        same = same.max(len.min(left));
                    } else if !is_later {
                        same = same.min(left);
                    }
                } else if is_same_key && !is_later && before < u64::from(same) {
                    same = before as u32;
                }
                begin += sge.length;
            }
        }
        (is_later, same)
    }

    /// Whether two READs write to the same bytes.
    pub(crate) fn shares_memory(&self, a: &InflightWqe, b: &InflightWqe) -> bool {
        let (a, b) = (self.sges_of(a), self.sges_of(b));
        a.iter().any(|a| b.iter().any(|b| a.lkey == b.lkey && a.shares_addresses(b)))
    }
}
