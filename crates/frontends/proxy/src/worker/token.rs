//! What an event of a worker's epoll instance belongs to, in the 64 bits that epoll keeps with a descriptor.

use super::table::TableKey;

/// The owner of a watched descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollToken {
    /// The eventfd by which the control thread wakes the worker.
    Wake,
    /// The event channel of librdmacm.
    CmEvents,
    /// The completion channel.
    Completions,
    /// A listener of a place: IPv4 0, IPv6 1.
    Listener {
        /// Index of the place.
        place: usize,
        /// Which of its listeners.
        which: usize,
    },
    /// The queue of held SYNs of a place.
    Syns {
        /// Index of the place.
        place: usize,
    },
    /// The socket of a stream.
    Conn(TableKey),
    /// A socket of a connection relayed by TCP: the program's 0, the one to the server 1.
    Pair(TableKey, usize),
}

impl PollToken {
    /// Kind in the highest byte; of a pair the side in the next bit.
    pub(super) fn to_bits(self) -> u64 {
        let (kind, rest) = match self {
            Self::Wake => (0, 0),
            Self::CmEvents => (1, 0),
            Self::Completions => (2, 0),
            Self::Listener { place, which } => (3, (which as u64) << 32 | place as u64),
            Self::Syns { place } => (4, place as u64),
            Self::Conn(key) => (5, key.to_bits()),
            Self::Pair(key, side) => (6, (side as u64) << 55 | key.to_bits()),
        };
        kind << 56 | rest
    }

    /// The token of which [`PollToken::to_bits`] made `bits`.
    pub(super) fn from_bits(bits: u64) -> Self {
        let low = (bits & 0xffff_ffff) as usize;
        match bits >> 56 {
            0 => Self::Wake,
            1 => Self::CmEvents,
            2 => Self::Completions,
            3 => Self::Listener { place: low, which: (bits >> 32 & 0x00ff_ffff) as usize },
            4 => Self::Syns { place: low },
            5 => Self::Conn(TableKey::from_bits(bits)),
            6 => Self::Pair(TableKey::from_bits(bits), (bits >> 55 & 1) as usize),
            other => unreachable!("no descriptor is watched with a token of kind {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_as_they_were_written() {
        let key = TableKey::from_bits(0x007f_1234_5678_9abc);
        let tokens = [
            PollToken::Wake,
            PollToken::CmEvents,
            PollToken::Completions,
            PollToken::Listener { place: 1000, which: 1 },
            PollToken::Syns { place: 1000 },
            PollToken::Conn(key),
            PollToken::Pair(key, 0),
            PollToken::Pair(key, 1),
        ];
        for token in tokens {
            assert_eq!(PollToken::from_bits(token.to_bits()), token);
        }
    }
}
