//! Received packets of one length that lie side by side, as a port hands a train over.
//!
//! Most packets of a train are middle packets of one message: their headers differ in the sequence number alone. [`MiddleRun`]
//! counts them and copies their payload, for any transport: the caller gives the length of the header, and for each packet
//! the header's words with a mask of the bits that count.

use burst_span::Span;

/// Packets of one length side by side, integrity verified, each with its trailer.
#[derive(Clone, Copy, Debug)]
pub struct MiddleRun<'a> {
    /// The packets.
    pub bytes: &'a [u8],
    /// Bytes from the beginning of a packet to that of the next.
    pub stride: usize,
}

impl<'a> MiddleRun<'a> {
    fn packets(&self) -> impl Iterator<Item = &'a [u8]> {
        self.bytes.chunks_exact(self.stride)
    }

    /// Counts the packets from the first on whose header begins with the expected words, at most `count_max`. `words` gives
    /// the words of packet `k` in host order; only the bits of `masks` are compared. A packet shorter than the words does not
    /// count.
    #[inline]
    pub fn count<const WORDS: usize>(
        &self,
        masks: &[u32; WORDS],
        words: impl Fn(u32) -> [u32; WORDS],
        count_max: usize,
    ) -> usize {
        let fits = |(k, packet): (usize, &[u8])| {
            let (head, _) = packet.as_chunks::<4>();
            let Some(head) = head.first_chunk::<WORDS>() else { return false };
            let expected = words(k as u32);
            (0..WORDS).all(|i| u32::from_be_bytes(head[i]) & masks[i] == expected[i])
        };
        self.packets().take(count_max).enumerate().take_while(|packet| fits(*packet)).count()
    }

    /// Copies the payload of the first packets, `len` bytes each behind a header of `head_len`, to `span`, whose length is a
    /// multiple of `len`. False if the memory cannot be written. Nothing is lost then: the caller handles the packets again one
    /// by one, and the packet that fails has its reason.
    #[inline]
    pub fn write_to(&self, span: &Span, head_len: usize, len: usize) -> bool {
        debug_assert!(span.len().is_multiple_of(len));
        span.write_pieces(self.payloads(head_len, len).take(span.len() / len)).is_ok()
    }

    /// The payloads of the packets, `len` bytes each behind a header of `head_len`.
    #[inline]
    pub fn payloads(&self, head_len: usize, len: usize) -> impl Iterator<Item = &'a [u8]> {
        debug_assert!(head_len + len <= self.stride);
        self.packets().map(move |packet| &packet[head_len..head_len + len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four packets of two header words, six bytes of payload and two of trailer; the second word rises.
    fn packets() -> Vec<u8> {
        (0..4u8).flat_map(|k| [9, 0xff, 0, 0, 0, 0, 0, 5 + k, k, k, k, k, k, k, 0xee, 0xee]).collect()
    }

    #[test]
    fn packets_count_up_to_the_first_whose_masked_words_differ() {
        let mut bytes = packets();
        let expect = |first: u32| move |k| [0x0900_0000, first + k];
        let masks = [0xff00_ffff, u32::MAX];
        assert_eq!(MiddleRun { bytes: &bytes, stride: 16 }.count(&masks, expect(5), 9), 4);
        assert_eq!(MiddleRun { bytes: &bytes, stride: 16 }.count(&masks, expect(5), 3), 3);
        assert_eq!(MiddleRun { bytes: &bytes, stride: 16 }.count(&masks, expect(6), 9), 0);
        assert_eq!(MiddleRun { bytes: &bytes, stride: 16 }.count(&[u32::MAX; 2], expect(5), 9), 0);
        assert_eq!(MiddleRun { bytes: &bytes[..40], stride: 16 }.count(&masks, expect(5), 9), 2, "half a packet");
        bytes[2 * 16 + 7] = 0;
        assert_eq!(MiddleRun { bytes: &bytes, stride: 16 }.count(&masks, expect(5), 9), 2);
        assert_eq!(MiddleRun { bytes: &bytes, stride: 4 }.count(&masks, expect(5), 9), 0, "shorter than the words");
    }

    #[test]
    fn payload_is_copied_without_headers_and_trailers() {
        let own = burst_span::ProcessMemory::own().expect("own memory");
        let mut memory = [0xaa_u8; 20];
        let span = own.span(memory.as_mut_ptr() as u64, 18);
        assert!(MiddleRun { bytes: &packets(), stride: 16 }.write_to(&span, 8, 6));
        assert_eq!(memory, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0xaa, 0xaa]);
        assert!(!MiddleRun { bytes: &packets(), stride: 16 }.write_to(&own.span(8, 12), 8, 6), "unmapped memory");
    }
}
