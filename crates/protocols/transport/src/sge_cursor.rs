//! Reading and writing along a scatter/gather list: payload of packets to send, and received bytes.
//!
//! An [`SgeCursor`] is a position: the entry, the offset in it, and the entry's span once its key has been looked up. It is used
//! within one turn, in which spans stay valid. The next turn looks the keys up again, so a region that was deregistered
//! in between is noticed (IBA 10.6.7.2).

use crate::api::Env;
use crate::copies::{Copies, copies_of, place};
use crate::qp_shared::QpShared;
use burst_base::verbs::access;
use burst_base::{Lkey, Reason};
use burst_frame::TxBatch;
use burst_mem::table::MrTable;
use burst_shm::Sge;
use burst_span::{Span, Unreachable};

/// The arguments of a key look-up: table, protection domain and right.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    pub(crate) mem: &'a MrTable,
    pub(crate) pd: u32,
    /// Right that the region must grant: 0 to read it, `LOCAL_WRITE` to write it.
    pub(crate) access: u32,
}

/// The keys by which bytes are written, and who places them.
pub(crate) struct Placing<'a> {
    pub(crate) keys: Keys<'a>,
    pub(crate) copies: Copies<'a>,
}

impl<'a> Placing<'a> {
    /// For the memory of the queue pair's own program.
    #[inline(always)]
    pub(crate) fn of(qp: &QpShared, env: &'a mut Env<'_>) -> Placing<'a> {
        let keys = Keys { mem: env.mem, pd: qp.id.pd, access: access::LOCAL_WRITE };
        Placing { keys, copies: copies_of(qp, env) }
    }
}

/// The reason why memory of this side's program cannot be written.
#[cold]
pub(crate) fn unreachable_reason(why: Unreachable) -> Reason {
    match why {
        Unreachable::Late => Reason::PageLate,
        Unreachable::Gone => Reason::LocalProtection,
    }
}

/// A position in a scatter/gather list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SgeCursor {
    index: usize,
    offset: u32,
    span: Option<Span>,
}

impl SgeCursor {
    /// The position `bytes` after the beginning.
    pub(crate) fn at(sges: &[Sge], bytes: u64) -> SgeCursor {
        let mut rest = bytes;
        for (index, sge) in sges.iter().enumerate() {
            if rest < u64::from(sge.length) {
                return SgeCursor { index, offset: rest as u32, span: None };
            }
            rest -= u64::from(sge.length);
        }
        SgeCursor { index: sges.len(), offset: 0, span: None }
    }

    /// A position in a span that needs no key: inline data.
    pub(crate) fn in_span(span: Span, bytes: u32) -> SgeCursor {
        SgeCursor { index: 0, offset: bytes, span: Some(span) }
    }

    /// Advances over the next contiguous bytes, at most `len`, and returns them. The list must have bytes left.
    fn piece(&mut self, keys: Keys<'_>, sges: &[Sge], len: u32) -> Result<Span, Reason> {
        let span = match self.span {
            Some(span) => span,
            None => {
                while sges.get(self.index).is_some_and(|sge| sge.length == 0) {
                    self.index += 1;
                }
                let sge = sges.get(self.index).ok_or(Reason::LocalLength)?;
                match keys.mem.local(keys.pd, Lkey(sge.lkey), sge.addr, sge.length, keys.access) {
                    Ok(span) => *self.span.insert(span),
                    Err(reason) => return self.piece_of_part(keys, *sge, len).ok_or(reason),
                }
            }
        };
        let take = len.min(span.len() as u32 - self.offset);
        let piece = span.sub(self.offset as usize, take as usize);
        self.offset += take;
        if self.offset as usize == span.len() {
            *self = SgeCursor { index: self.index + 1, offset: 0, span: None };
        }
        Ok(piece)
    }

    /// The bytes that are written, if the region has them: an entry that reaches beyond its region is an error only for a
    /// message that does, as for adapters and rxe. perftest posts receives of a whole MTU at the end of its buffer.
    #[cold]
    fn piece_of_part(&mut self, keys: Keys<'_>, sge: Sge, len: u32) -> Option<Span> {
        let take = len.min(sge.length - self.offset);
        if keys.access == 0 {
            return None;
        }
        let addr = sge.addr.checked_add(u64::from(self.offset))?;
        let piece = keys.mem.local(keys.pd, Lkey(sge.lkey), addr, take, keys.access).ok()?;
        self.offset += take;
        if self.offset == sge.length {
            *self = SgeCursor { index: self.index + 1, offset: 0, span: None };
        }
        Some(piece)
    }

    /// Advances over the next packets of `each` bytes that are contiguous in memory, at most `count`, and returns them as one
    /// span. `None` without moving if not even one packet is contiguous, or the key does not grant access.
    pub(crate) fn run(&mut self, keys: Keys<'_>, sges: &[Sge], each: u32, count: u32) -> Option<Span> {
        let mut ahead = *self;
        let there = ahead.piece(keys, sges, count * each).ok()?;
        let whole = there.len() as u32 / each * each;
        if whole as usize == there.len() {
            *self = ahead;
            return Some(there);
        }
        if whole == 0 { None } else { self.piece(keys, sges, whole).ok() }
    }

    /// Adds the next `len` bytes to the payload of the next frame of `batch`.
    pub(crate) fn gather(
        &mut self,
        keys: Keys<'_>,
        sges: &[Sge],
        mut len: u32,
        batch: &mut TxBatch,
    ) -> Result<(), Reason> {
        while len > 0 {
            let piece = self.piece(keys, sges, len)?;
            len -= piece.len() as u32;
            batch.add_payload(piece);
        }
        Ok(())
    }

    /// Writes `bytes` at the position and advances.
    pub(crate) fn scatter(&mut self, sges: &[Sge], mut bytes: &[u8], placing: &mut Placing<'_>) -> Result<(), Reason> {
        while !bytes.is_empty() {
            let piece = self.piece(placing.keys, sges, bytes.len() as u32)?;
            let (now, later) = bytes.split_at(piece.len());
            place(&piece, now, &mut placing.copies).map_err(unreachable_reason)?;
            bytes = later;
        }
        Ok(())
    }
}
