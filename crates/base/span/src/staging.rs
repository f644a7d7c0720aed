//! Reading the payload of many packets out of another process before a port sends them.
//!
//! A program's host memory that cannot be mapped here costs one system call per access, and ports look at one packet at
//! a time. A [`Staging`] buffer reads each run of adjacent remote spans (a turn's packets of one message) by one call
//! and replaces the spans by local ones, so that ports lend them to the kernel like mapped memory.

use crate::{Span, Unreachable};
use core::ptr::NonNull;

/// Bytes of a staging buffer: eight turns of 64 KiB. Spans that find no room stay remote; ports read them one by one.
pub const STAGING_BYTES: usize = 512 << 10;

/// What [`Staging::fetch`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagedReads {
    /// Reads that were made.
    pub reads: usize,
    /// Reads whose pages were not there in time.
    pub late: usize,
}

/// A buffer for the bytes of remote spans. Its memory is allocated when first needed, and then kept.
#[derive(Debug, Default)]
pub struct Staging {
    /// [`STAGING_BYTES`] zeroed bytes, once needed.
    buffer: Option<NonNull<[u8]>>,
    used: usize,
}

// SAFETY: the buffer belongs to this value alone; spans into it are subject to the contract of `fetch`.
unsafe impl Send for Staging {}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer {
            // SAFETY: made by `Box::leak` in `part`, and not freed before.
            drop(unsafe { Box::from_raw(buffer.as_ptr()) });
        }
    }
}

impl Staging {
    /// Reads the bytes of the remote spans among `spans` and replaces these spans by local ones in the buffer, which are
    /// good until [`Staging::clear`] or the end of this value. Spans whose process has ended, or that find no room, stay as
    /// they are.
    pub fn fetch(&mut self, spans: &mut [Span]) -> StagedReads {
        let (mut at, mut fetched) = (0, StagedReads::default());
        while at < spans.len() {
            let (run, count) = self.run(&spans[at..]);
            if count == 0 {
                at += 1;
                continue;
            }
            fetched.reads += 1;
            match self.read(&run) {
                Ok(mut local) => {
                    for span in &mut spans[at..at + count] {
                        let len = span.len();
                        *span = local.sub(0, len);
                        local = local.sub(len, local.len() - len);
                    }
                }
                Err(why) => fetched.late += usize::from(why == Unreachable::Late),
            }
            at += count;
        }
        fetched
    }
    /// A span with a copy of `bytes`, good until [`Staging::clear`] or the end of this value. `None` if they find no room.
    pub fn put(&mut self, bytes: &[u8]) -> Option<Span> {
        if bytes.len() > STAGING_BYTES - self.used {
            return None;
        }
        let place = self.place(self.used, bytes.len());
        // SAFETY: inside the buffer; no span of these bytes exists, because they lie behind `used`.
        unsafe { core::slice::from_raw_parts_mut(place.as_ptr(), bytes.len()) }.copy_from_slice(bytes);
        self.used += bytes.len();
        // SAFETY: inside the buffer, which lives until `clear` and drop allow; only this type writes there.
        Some(unsafe { Span::local(place.as_ptr(), bytes.len() as u32) })
    }
    /// The remote spans at the beginning of `spans` that are adjacent and find room, as one; and how many they are.
    fn run(&self, spans: &[Span]) -> (Span, usize) {
        let room = STAGING_BYTES - self.used;
        let (mut run, mut count) = (Span::nothing(), 0);
        for span in spans {
            let longer = if count == 0 { span.is_remote().then_some(*span) } else { run.joined(span) };
            let Some(longer) = longer.filter(|longer| longer.len() <= room) else { break };
            (run, count) = (longer, count + 1);
        }
        (run, count)
    }
    /// The bytes of `run`, which finds room, as a local span.
    fn read(&mut self, run: &Span) -> Result<Span, Unreachable> {
        let place = self.place(self.used, run.len());
        // SAFETY: inside the buffer and initialised; no span of these bytes exists, because they lie behind `used`.
        run.read_to(unsafe { core::slice::from_raw_parts_mut(place.as_ptr(), run.len()) })?;
        self.used += run.len();
        debug_assert!(self.used <= STAGING_BYTES, "`run` has looked for room");
        // SAFETY: inside the buffer, which lives until `clear` and drop allow; only this type writes there.
        Ok(unsafe { Span::local(place.as_ptr(), run.len() as u32) })
    }
    /// Address of `len` bytes of the buffer from `offset` on.
    fn place(&mut self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset <= STAGING_BYTES && len <= STAGING_BYTES - offset);
        let make = || NonNull::from(Box::leak(vec![0; STAGING_BYTES].into_boxed_slice()));
        // SAFETY: `offset` is inside the buffer or at its end, just asserted.
        unsafe { self.buffer.get_or_insert_with(make).cast::<u8>().add(offset) }
    }
    /// Forgets all bytes; spans from [`Staging::fetch`] must not be used any more.
    pub fn clear(&mut self) {
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProcessMemory;

    #[test]
    fn copies_stay_until_the_buffer_is_cleared_and_end_with_its_room() {
        let mut staging = Staging::default();
        let spans: Vec<Span> = (0..100u8).filter_map(|k| staging.put(&[k; 120])).collect();
        assert_eq!(bytes(&spans), (0..100u8).flat_map(|k| [k; 120]).collect::<Vec<u8>>());
        assert!(staging.put(&[0; STAGING_BYTES]).is_none());
        staging.clear();
        assert!(staging.put(&[0; STAGING_BYTES]).is_some() && staging.put(&[0]).is_none());
    }

    fn bytes(spans: &[Span]) -> Vec<u8> {
        let read = |span: &Span| {
            let mut out = vec![0; span.len()];
            span.read_to(&mut out).map(|()| out).expect("there")
        };
        spans.iter().flat_map(read).collect()
    }

    #[test]
    fn packets_of_a_train_are_read_by_one_call() {
        let memory: Vec<u8> = (0..70_000).map(|i| ((i * 7) >> 3) as u8).collect();
        let own = ProcessMemory::own().expect("own memory");
        let all = own.span(memory.as_ptr() as u64, memory.len() as u32);
        // SAFETY: `memory` outlives the span.
        let local = unsafe { Span::local(memory.as_ptr().cast_mut(), 100) };
        let train = || (0..16).map(|k| all.sub(k * 4096, 4096));
        let mut spans: Vec<Span> =
            [local].into_iter().chain(train()).chain([all.sub(69_000, 9), Span::null(5)]).collect();
        let expect = bytes(&spans);
        let mut staging = Staging::default();
        assert_eq!(staging.fetch(&mut spans).reads, 2, "the train, and the packet behind a gap");
        assert_eq!(spans.iter().filter(|s| s.is_local()).count(), 18);
        assert_eq!((spans[0].as_ptr(), spans[18].is_local()), (local.as_ptr(), false), "these stay as they are");
        assert!(bytes(&spans) == expect);
        assert_eq!(staging.fetch(&mut spans), StagedReads::default(), "no span is remote any more");
        // A second batch while the first is alive lies elsewhere.
        let mut more: Vec<Span> = train().collect();
        assert_eq!(staging.fetch(&mut more).reads, 1);
        assert!(bytes(&spans) == expect && bytes(&more) == memory[..16 * 4096]);
    }

    #[test]
    fn spans_without_room_stay_remote_until_the_next_batch() {
        let memory: Vec<u8> = (0..STAGING_BYTES + 5000).map(|i| (i >> 5) as u8).collect();
        let own = ProcessMemory::own().expect("own memory");
        let all = own.span(memory.as_ptr() as u64, memory.len() as u32);
        let mut spans: Vec<Span> = (0..memory.len() / 1000).map(|k| all.sub(k * 1000, 1000)).collect();
        let mut staging = Staging::default();
        staging.fetch(&mut spans);
        let fit = STAGING_BYTES / 1000;
        assert!(spans[..fit].iter().all(Span::is_local) && spans[fit..].iter().all(Span::is_remote));
        assert!(bytes(&spans) == memory[..spans.len() * 1000]);
        let mut whole = [all];
        staging.clear();
        assert_eq!((staging.fetch(&mut whole).reads, whole[0].is_remote()), (0, true), "longer than the buffer");
        let mut exact = [all.sub(0, STAGING_BYTES)];
        assert_eq!((staging.fetch(&mut exact).reads, exact[0].is_local()), (1, true), "as long as the buffer");
        assert!(bytes(&exact) == memory[..STAGING_BYTES]);
    }

    #[test]
    fn unreadable_spans_stay_remote() {
        let memory = [5_u8; 64];
        let own = ProcessMemory::own().expect("own memory");
        let mut spans = [own.span(4096, 10), own.span(memory.as_ptr() as u64, 64)];
        assert_eq!(Staging::default().fetch(&mut spans[..1]), StagedReads { reads: 1, late: 0 });
        assert!(spans[0].is_remote());
        let mut staging = Staging::default();
        staging.fetch(&mut spans);
        assert!(spans[0].is_remote() && spans[1].is_local());
        assert!(bytes(&spans[1..]) == memory);
    }
}
