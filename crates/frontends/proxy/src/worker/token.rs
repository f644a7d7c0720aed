//! What an event of a worker's epoll instance belongs to, in the 64 bits that epoll keeps with a descriptor.

use super::table::TableKey;

/// Bits of a link's index.
const LINK_BITS: u32 = 60 - TableKey::BITS;
/// Most links of a worker.
pub(super) const LINKS_MAX: usize = 1 << LINK_BITS;

/// A stream: the index of its link, and its key there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamKey {
    pub(super) link: usize,
    pub(super) key: TableKey,
}

/// The owner of a watched descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollToken {
    /// The eventfd by which the control thread wakes the worker.
    Wake,
    /// The event channel of librdmacm.
    CmEvents,
    /// The completion channel.
    Completions,
    /// Of the place with an index, the listener for IPv4 (0) or IPv6 (1).
    Listener(usize, usize),
    /// The queue of held SYNs of the place with an index.
    Syns(usize),
    /// The socket of a stream.
    Stream(StreamKey),
    /// Of a connection relayed by TCP the program's socket (0), or the one to the server (1).
    Pair(TableKey, usize),
}

impl PollToken {
    /// The kind in the highest four bits.
    pub(super) fn to_bits(self) -> u64 {
        let (kind, high, low) = match self {
            Self::Wake => (0, 0, 0),
            Self::CmEvents => (1, 0, 0),
            Self::Completions => (2, 0, 0),
            Self::Listener(place, which) => (3, which, place as u64),
            Self::Syns(place) => (4, 0, place as u64),
            Self::Stream(StreamKey { link, key }) => (5, link, key.to_bits()),
            Self::Pair(key, side) => (6, side, key.to_bits()),
        };
        debug_assert!(high < LINKS_MAX && low < 1 << TableKey::BITS, "each has its bits");
        kind << 60 | (high as u64) << TableKey::BITS | low
    }

    /// The token of which [`PollToken::to_bits`] made `bits`.
    pub(super) fn from_bits(bits: u64) -> Self {
        let high = (bits >> TableKey::BITS) as usize & (LINKS_MAX - 1);
        let (low, key) = ((bits & ((1 << TableKey::BITS) - 1)) as usize, TableKey::from_bits(bits));
        match bits >> 60 {
            0 => Self::Wake,
            1 => Self::CmEvents,
            2 => Self::Completions,
            3 => Self::Listener(low, high),
            4 => Self::Syns(low),
            5 => Self::Stream(StreamKey { link: high, key }),
            6 => Self::Pair(key, high),
            other => unreachable!("no descriptor is watched with a token of kind {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_as_they_were_written() {
        let key = TableKey::from_bits(0x0abc_1234_5678);
        let tokens = [
            PollToken::Wake,
            PollToken::CmEvents,
            PollToken::Completions,
            PollToken::Listener(1000, 1),
            PollToken::Syns(1000),
            PollToken::Stream(StreamKey { link: LINKS_MAX - 1, key }),
            PollToken::Pair(key, 0),
            PollToken::Pair(key, 1),
        ];
        for token in tokens {
            assert_eq!(PollToken::from_bits(token.to_bits()), token);
        }
    }
}
