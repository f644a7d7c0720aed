//! Which parts of a program's memory messages use; and, for programs without memory, what has been written of each message.

use burst_span::PatternWrite;
use std::collections::BTreeMap;

/// Parts are multiples of a cache line.
const LINE: u64 = 64;

/// The parts in use of a memory.
#[derive(Debug, Default)]
pub struct Parts {
    /// By offset: length.
    used: BTreeMap<u64, u64>,
}

impl Parts {
    /// Takes `len` bytes at the lowest free offset below `end`. What an earlier message has left is used again at once, so that
    /// packets which come too late are seen.
    pub fn take(&mut self, len: u64, end: u64) -> Option<u64> {
        let len = len.max(1).next_multiple_of(LINE);
        let mut at = 0;
        for (offset, used) in &self.used {
            if offset - at >= len {
                break;
            }
            at = offset + used;
        }
        (at + len <= end).then(|| {
            self.used.insert(at, len);
            at
        })
    }

    /// Gives a part back.
    pub fn free(&mut self, at: u64) {
        self.used.remove(&at);
    }
}

/// A message in pattern memory.
#[derive(Debug)]
struct PatternMessage {
    bytes: u64,
    /// The host at which it arrives.
    to: u32,
    /// The connection, if programs may poll the last byte of its messages: it comes after all other bytes, and after those of
    /// messages that were posted before.
    ordered: Option<u32>,
    /// Whether it has ended with an error: writes to it show nothing.
    has_failed: bool,
    /// What has been written: end by begin of each piece, as offsets.
    written: BTreeMap<u64, u64>,
}

/// Messages of programs without memory: each has addresses of its own, the same at both ends, whose bytes follow from them
/// ([`burst_span::Span::pattern`]).
#[derive(Debug, Default)]
pub struct PatternMemory {
    /// By address.
    messages: BTreeMap<u64, PatternMessage>,
    next: u64,
}

impl PatternMemory {
    /// Takes addresses for a message of `bytes` bytes to host `to`. They are not used again, so that what comes too late is
    /// seen. Of connection `ordered`, if one is given, the last byte of each message is to be written in the order of these
    /// calls, and after the other bytes of the message.
    pub fn take(&mut self, bytes: u64, to: u32, ordered: Option<u32>) -> u64 {
        let at = self.next;
        // A gap, so that a byte too much has no place.
        self.next = (at + bytes + 1).next_multiple_of(LINE);
        self.messages.insert(at, PatternMessage { bytes, to, ordered, has_failed: false, written: BTreeMap::new() });
        at
    }

    /// Host `host` has written.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it.
    pub fn on_write(&mut self, host: u32, write: &PatternWrite) -> Result<(), String> {
        let PatternWrite { addr, len, wrong } = *write;
        let Some((begin, message)) = self.messages.range_mut(..=addr).next_back() else {
            return Err(format!("host {host} wrote {len} bytes to address {addr}, where no message is on its way"));
        };
        if message.has_failed {
            return Ok(());
        }
        let offset = addr - begin;
        let end = offset + u64::from(len);
        if end > message.bytes {
            return Err(format!("host {host} wrote {len} bytes to address {addr}, where no message is on its way"));
        }
        if host != message.to {
            return Err(format!("host {host} wrote {len} bytes of a message to host {}", message.to));
        }
        if let Some(wrong) = wrong {
            let at = offset + u64::from(wrong);
            return Err(format!(
                "byte {at} of a message of {} bytes to host {host} is not what was sent",
                message.bytes
            ));
        }
        let (begin, bytes) = (*begin, message.bytes);
        if let Some(connection) = message.ordered.filter(|_| end == bytes) {
            if message.written.get(&0).copied().unwrap_or(0) < offset {
                return Err(format!(
                    "the last byte of a message of {bytes} bytes to host {host} came before the others"
                ));
            }
            self.check_turn(begin, connection, host)?;
        }
        let Some(message) = self.messages.get_mut(&begin) else { return Ok(()) };
        // Joined with what touches it.
        let (mut from, mut to) = (offset, end);
        while let Some((piece, piece_end)) = message.written.range(..=to).next_back().map(|(a, b)| (*a, *b))
            && piece_end >= from
        {
            message.written.remove(&piece);
            (from, to) = (from.min(piece), to.max(piece_end));
        }
        message.written.insert(from, to);
        Ok(())
    }

    /// The last byte of the message at `begin` is written: all of those in front of it on its connection must have been.
    fn check_turn(&self, begin: u64, connection: u32, host: u32) -> Result<(), String> {
        let mut earlier = self.messages.range(..begin).filter(|(_, other)| other.ordered == Some(connection));
        match earlier.find(|(_, other)| !other.has_failed && other.written.get(&0) != Some(&other.bytes)) {
            None => Ok(()),
            Some((_, other)) => Err(format!(
                "the last byte of a message to host {host} came before all of the message of {} bytes in front of it",
                other.bytes
            )),
        }
    }

    /// The message at `at` has ended, with an error if `has_failed`.
    ///
    /// # Errors
    /// A sentence that says which byte is missing.
    pub fn end(&mut self, at: u64, has_failed: bool) -> Result<(), String> {
        let Some(message) = self.messages.get_mut(&at) else { return Ok(()) };
        if has_failed {
            message.has_failed = true;
            return Ok(());
        }
        let whole = message.written.get(&0).copied().unwrap_or(0);
        let PatternMessage { bytes, to, .. } = *message;
        self.messages.remove(&at);
        match whole == bytes {
            true => Ok(()),
            false => Err(format!("byte {whole} of a message of {bytes} bytes to host {to} has not arrived")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(addr: u64, len: u32) -> PatternWrite {
        PatternWrite { addr, len, wrong: None }
    }

    #[test]
    fn a_message_is_whole_when_every_byte_was_written() {
        let mut memory = PatternMemory::default();
        let [first, second] = [100, 50].map(|bytes| memory.take(bytes, 7, None));
        assert!(second > first + 100);
        for (at, len) in [(90, 10), (20, 30), (0, 10), (5, 20), (50, 40)] {
            memory.on_write(7, &write(first + at, len)).expect("a part");
        }
        assert_eq!(memory.end(first, false), Ok(()));
        memory.on_write(7, &write(second + 10, 40)).expect("a part");
        assert_eq!(memory.end(second, false).unwrap_err(), "byte 0 of a message of 50 bytes to host 7 has not arrived");
    }

    #[test]
    fn a_write_belongs_to_a_message_on_its_way() {
        let mut memory = PatternMemory::default();
        let at = memory.take(100, 7, None);
        assert!(memory.on_write(8, &write(at, 1)).unwrap_err().contains("host 8 wrote 1 bytes of a message to host 7"));
        assert!(memory.on_write(7, &write(at + 90, 11)).unwrap_err().contains("no message is on its way"));
        let wrong = PatternWrite { wrong: Some(3), ..write(at + 10, 5) };
        assert!(memory.on_write(7, &wrong).unwrap_err().starts_with("byte 13 of a message of 100 bytes"));
        memory.on_write(7, &write(at, 100)).expect("the message");
        memory.end(at, false).expect("it is whole");
        assert!(memory.on_write(7, &write(at, 1)).is_err(), "too late");
        let failed = memory.take(100, 7, None);
        memory.end(failed, true).expect("it has failed");
        assert_eq!(memory.on_write(7, &write(failed, 1)), Ok(()), "of a message that has failed nothing is known");
    }

    #[test]
    fn the_last_byte_of_a_write_comes_last_and_in_turn() {
        let mut memory = PatternMemory::default();
        let [first, second, other] = [(100, 3), (200, 3), (50, 4)].map(|(bytes, of)| memory.take(bytes, 7, Some(of)));
        memory.on_write(7, &write(other, 50)).expect("another connection");
        memory.on_write(7, &write(second, 136)).expect("all but the last bytes");
        let early = memory.on_write(7, &write(second + 136, 64)).unwrap_err();
        assert!(early.contains("before all of the message of 100 bytes in front of it"), "{early}");
        memory.on_write(7, &write(first, 30)).expect("a part");
        let early = memory.on_write(7, &write(first + 60, 40)).unwrap_err();
        assert!(early.contains("came before the others"), "{early}");
        memory.on_write(7, &write(first + 30, 70)).expect("the rest");
        memory.on_write(7, &write(second + 136, 64)).expect("its turn");
    }

    #[test]
    fn the_lowest_gap_is_taken() {
        let mut parts = Parts::default();
        assert_eq!([10, 65, 64].map(|len| parts.take(len, 512)), [Some(0), Some(64), Some(192)]);
        assert_eq!(parts.take(300, 512), None);
        parts.free(64);
        assert_eq!([64, 65, 1].map(|len| parts.take(len, 512)), [Some(64), Some(256), Some(128)]);
    }
}
