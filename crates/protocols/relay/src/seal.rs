//! Encryption of what a link carries over a queue pair: AES-256-GCM (RFC 5116) with keys of the proxies' TLS channel.
//!
//! **Keys.** Both ends of a TLS channel export the same bytes ([`ChannelSecret`]; RFC 5705, RFC 8446 7.5). Each queue pair has
//! two keys, one for each direction. The receiver of a direction names in its hello a channel's secret and 32 random bytes
//! ([`SealOffer`]); the key is HKDF-SHA256 (RFC 5869) of secret, random bytes, link, attempt and direction. So no key serves two
//! queue pairs: a batch that is sent again by another queue pair is encrypted anew, and what an earlier one has carried is of no
//! use there.
//!
//! **Records.** A queue pair delivers in order, so messages have numbers that are not sent. Message `n` is one record with the
//! nonce 64 `n`; the bytes that its `k`-th PLACED announces, `k` from 1, are another one with the nonce 64 `n` + `k`. Numbers
//! only go up, and a nonce is used once for each key. The tags of these bytes precede the frames inside the message; stream,
//! offset and length are authenticated with the bytes. A record that is altered, repeated, missing, out of order or cut does not
//! open ([`PeerFault::Unauthentic`]), and the link ends.
//!
//! **Bound.** After [`MESSAGES_PER_KEY`] messages the key is replaced by HKDF of itself, at both ends at the same message. A key
//! encrypts less than 2^36 blocks then, which keeps the advantage over a random function below 2^-57 (draft-irtf-cfrg-aead-limits
//! 5.1; RFC 8446 5.5 has the same bound). A key opens nothing more after the first forgery.

use crate::batch::{BATCH_BYTES, BatchPlace, PLACES};
use crate::frame::{PeerFault, SealOffer};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk};
use std::fmt;

/// Label under which a TLS channel exports bytes for [`ChannelSecret::new`]; there is no context.
pub const EXPORT_LABEL: &[u8] = b"EXPORTER-burst-proxy-link";
/// Bytes to export.
pub const EXPORT_BYTES: usize = 40;
/// Most bytes that one PLACED announces on an encrypted link.
pub const SEALED_PLACE_BYTES: usize = 256 << 10;
/// Messages after which a key is replaced.
pub const MESSAGES_PER_KEY: u64 = 1 << 16;
/// Bytes by which a sealed message is longer than its batch, at most: the count of tags, tags, and its own tag.
pub const SEAL_BYTES: usize = 1 + (PLACES + 1) * TAG_BYTES;

const TAG_BYTES: usize = 16;
/// Nonces of one message: its own, and those of its places.
const NONCES_PER_MESSAGE: u64 = 64;
/// Blocks that one key may encrypt.
const BLOCKS_PER_KEY: u64 = 1 << 36;

const _: () = assert!((PLACES as u64) < NONCES_PER_MESSAGE && PLACES <= u8::MAX as usize);
const _: () = assert!(
    MESSAGES_PER_KEY * ((PLACES * (SEALED_PLACE_BYTES / 16 + 2) + (BATCH_BYTES + SEAL_BYTES) / 16 + 2) as u64)
        < BLOCKS_PER_KEY
);

/// What only the two ends of a TLS channel know.
#[derive(Clone)]
pub struct ChannelSecret {
    id: [u8; 8],
    key: [u8; EXPORT_BYTES - 8],
}

impl ChannelSecret {
    /// Of the bytes that the channel exports. The first eight become its public name.
    pub fn new(exported: &[u8; EXPORT_BYTES]) -> Self {
        let (id, key) = exported.split_at(8);
        Self { id: id.try_into().expect("eight bytes"), key: key.try_into().expect("all others") }
    }

    /// Its name in hellos. It is independent of the key.
    pub fn id(&self) -> [u8; 8] {
        self.id
    }
}

impl fmt::Debug for ChannelSecret {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("ChannelSecret").field("id", &self.id).finish_non_exhaustive()
    }
}

/// One direction of one queue pair of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedDirection {
    /// Number of the link.
    pub link: u32,
    /// The attempt.
    pub attempt: u64,
    /// Of what the dialing side sends.
    pub of_dialer: bool,
}

/// The present key of a direction, and the number of the next message.
struct SealKey {
    chain: Prk,
    key: LessSafeKey,
    number: u64,
}

impl SealKey {
    fn new(secret: &ChannelSecret, offer: &SealOffer, of: SealedDirection) -> Self {
        let (link, attempt) = (of.link.to_le_bytes(), of.attempt.to_le_bytes());
        let info: [&[u8]; 5] = [b"burst link", &offer.random, &link, &attempt, &[u8::from(of.of_dialer)]];
        let chain = derived(&Prk::new_less_safe(HKDF_SHA256, &secret.key), &info);
        Self { key: key_of(&chain), chain, number: 0 }
    }

    /// The number of the next message, after which the key may be another one.
    fn advance(&mut self) {
        self.number += 1;
        if self.number.is_multiple_of(MESSAGES_PER_KEY) {
            self.chain = derived(&self.chain, &[b"next"]);
            self.key = key_of(&self.chain);
        }
    }

    /// The nonce of a record of the next message: 0 is the message itself.
    fn nonce(&self, record: usize) -> Nonce {
        Nonce::assume_unique_for_key(nonce_bytes(self.number, record))
    }
}

fn derived(from: &Prk, info: &[&[u8]]) -> Prk {
    from.expand(info, HKDF_SHA256).expect("one block of output is always possible").into()
}

fn key_of(chain: &Prk) -> LessSafeKey {
    let key: UnboundKey = chain.expand(&[b"key"], &AES_256_GCM).expect("one block of output is always possible").into();
    LessSafeKey::new(key)
}

/// The nonce of a record of a message.
fn nonce_bytes(number: u64, record: usize) -> [u8; NONCE_LEN] {
    assert!((record as u64) < NONCES_PER_MESSAGE && number < u64::MAX / NONCES_PER_MESSAGE);
    let mut bytes = [0; NONCE_LEN];
    bytes[4..].copy_from_slice(&(number * NONCES_PER_MESSAGE + record as u64).to_be_bytes());
    bytes
}

/// What is authenticated with the bytes of a place.
fn place_aad(place: BatchPlace) -> Aad<[u8; 16]> {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&place.stream.to_le_bytes());
    bytes[4..12].copy_from_slice(&place.offset.to_le_bytes());
    bytes[12..].copy_from_slice(&place.len.to_le_bytes());
    Aad::from(bytes)
}

/// Encrypts what this side sends by one queue pair.
pub struct LinkSealer {
    key: SealKey,
    /// Tags of the places of the next message.
    tags: Vec<[u8; TAG_BYTES]>,
}

impl LinkSealer {
    /// With the peer's offer. `secret` is the one that it names.
    pub fn new(secret: &ChannelSecret, offer: &SealOffer, of: SealedDirection) -> Self {
        assert!(secret.id == offer.secret, "the peer names its secret");
        Self { key: SealKey::new(secret, offer, of), tags: Vec::with_capacity(PLACES) }
    }

    /// Encrypts the bytes of the next place of the message that comes next. `bytes` must be memory that no peer can write.
    pub fn seal_place(&mut self, place: BatchPlace, bytes: &mut [u8]) {
        assert!(bytes.len() == place.len as usize && bytes.len() <= SEALED_PLACE_BYTES && self.tags.len() < PLACES);
        let nonce = self.key.nonce(self.tags.len() + 1);
        let tag = self.key.key.seal_in_place_separate_tag(nonce, place_aad(place), bytes);
        self.tags.push(tag.expect("far shorter than GCM's limit").as_ref().try_into().expect("a tag has 16 bytes"));
    }

    /// The next place of the message that comes next has no bytes: its stream is gone, and the peer ignores it.
    pub fn skip_place(&mut self) {
        assert!(self.tags.len() < PLACES);
        self.tags.push([0; TAG_BYTES]);
    }

    /// Replaces `to` by the sealed message of a batch, all places of which are sealed or skipped.
    pub fn seal_message(&mut self, batch: &[u8], to: &mut Vec<u8>) {
        assert!(batch.len() <= BATCH_BYTES);
        to.clear();
        to.push(self.tags.len() as u8);
        self.tags.iter().for_each(|tag| to.extend(tag));
        to.extend(batch);
        let nonce = self.key.nonce(0);
        self.key.key.seal_in_place_append_tag(nonce, Aad::empty(), to).expect("far shorter than GCM's limit");
        self.tags.clear();
        self.key.advance();
    }
}

impl fmt::Debug for LinkSealer {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("LinkSealer").field("number", &self.key.number).finish_non_exhaustive()
    }
}

/// Decrypts what comes by one queue pair.
pub struct LinkOpener {
    key: SealKey,
    /// Tags of the places of the last message.
    tags: Vec<[u8; TAG_BYTES]>,
    /// How many of them belong to frames that were read.
    taken: usize,
    /// Something did not open: nothing does any more.
    is_broken: bool,
}

impl LinkOpener {
    /// With this side's own offer.
    pub fn new(secret: &ChannelSecret, offer: &SealOffer, of: SealedDirection) -> Self {
        assert!(secret.id == offer.secret, "an offer names its secret");
        Self { key: SealKey::new(secret, offer, of), tags: Vec::with_capacity(PLACES), taken: 0, is_broken: false }
    }

    /// Opens the next message in place and leaves its batch. `message` must be memory that no peer can write.
    ///
    /// # Errors
    /// [`PeerFault::Unauthentic`]; `message` has no meaning then.
    pub fn open_message(&mut self, message: &mut Vec<u8>) -> Result<(), PeerFault> {
        if self.is_broken || message.len() > BATCH_BYTES + SEAL_BYTES {
            return Err(self.refuse());
        }
        let opened = self.key.key.open_in_place(self.key.nonce(0), Aad::empty(), message).map(|plain| plain.len());
        let Ok(len) = opened else { return Err(self.refuse()) };
        message.truncate(len);
        let count = usize::from(*message.first().ok_or(PeerFault::Short)?);
        let tags = message.get(1..1 + count * TAG_BYTES).filter(|_| count <= PLACES).ok_or(PeerFault::Short)?;
        self.tags.clear();
        self.tags.extend(tags.chunks_exact(TAG_BYTES).map(|tag| <[u8; TAG_BYTES]>::try_from(tag).expect("16 bytes")));
        self.taken = 0;
        message.drain(..1 + count * TAG_BYTES);
        Ok(())
    }

    fn refuse(&mut self) -> PeerFault {
        self.is_broken = true;
        PeerFault::Unauthentic
    }

    /// The next PLACED of the message was read: [`LinkOpener::open_place`] is for its bytes.
    ///
    /// # Errors
    /// [`PeerFault::Unauthentic`]: the message has no tag for it.
    pub fn take_place(&mut self) -> Result<(), PeerFault> {
        if self.taken == self.tags.len() {
            return Err(self.refuse());
        }
        self.taken += 1;
        Ok(())
    }

    /// Opens the bytes of the last PLACED in place. `bytes` must be memory that no peer can write.
    ///
    /// # Errors
    /// [`PeerFault::Unauthentic`]; `bytes` have no meaning then.
    pub fn open_place(&mut self, place: BatchPlace, bytes: &mut [u8]) -> Result<(), PeerFault> {
        let tag = self.taken.checked_sub(1).and_then(|at| self.tags.get(at)).copied();
        let fits = bytes.len() == place.len as usize && bytes.len() <= SEALED_PLACE_BYTES;
        let Some(tag) = tag.filter(|_| fits && !self.is_broken) else { return Err(self.refuse()) };
        let (nonce, tag) = (self.key.nonce(self.taken), Tag::from(tag));
        let opened = self.key.key.open_in_place_separate_tag(nonce, place_aad(place), tag, bytes, 0..).is_ok();
        if opened { Ok(()) } else { Err(self.refuse()) }
    }

    /// The message is done; the next one may be opened.
    pub fn finish_message(&mut self) {
        self.tags.clear();
        self.taken = 0;
        self.key.advance();
    }
}

impl fmt::Debug for LinkOpener {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("LinkOpener").field("number", &self.key.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const OF: SealedDirection = SealedDirection { link: 1, attempt: 3, of_dialer: true };

    fn secret(n: u8) -> ChannelSecret {
        ChannelSecret::new(&[n; EXPORT_BYTES])
    }

    fn offer(n: u8, random: u8) -> SealOffer {
        SealOffer { secret: secret(n).id(), random: [random; 32] }
    }

    fn pair() -> (LinkSealer, LinkOpener) {
        (LinkSealer::new(&secret(1), &offer(1, 2), OF), LinkOpener::new(&secret(1), &offer(1, 2), OF))
    }

    fn place(bytes: &[u8]) -> BatchPlace {
        BatchPlace { stream: 5, offset: 77, len: bytes.len() as u32 }
    }

    fn sealed(sealer: &mut LinkSealer, batch: &[u8]) -> Vec<u8> {
        let mut to = Vec::new();
        sealer.seal_message(batch, &mut to);
        to
    }

    #[test]
    fn what_is_sealed_opens_and_nothing_of_it_is_readable() {
        let (mut sealer, mut opener) = pair();
        for n in 0..200u8 {
            let text = [b"clear text ", &[n; 5000][..]].concat();
            let mut bytes = text.clone();
            sealer.seal_place(place(&bytes), &mut bytes);
            sealer.skip_place();
            let mut message = sealed(&mut sealer, &text[..300]);
            assert!(message.len() <= 300 + SEAL_BYTES);
            assert!(!message.windows(10).chain(bytes.windows(10)).any(|part| part == b"clear text"));
            opener.open_message(&mut message).unwrap();
            assert_eq!(message, text[..300]);
            opener.take_place().unwrap();
            opener.open_place(place(&text), &mut bytes).unwrap();
            assert_eq!(bytes, text);
            opener.take_place().unwrap();
            assert_eq!(opener.take_place(), Err(PeerFault::Unauthentic), "two places had tags");
            opener.is_broken = false;
            opener.finish_message();
        }
    }

    #[test]
    fn a_key_serves_one_direction_of_one_attempt_of_one_link_with_one_offer() {
        let others = [
            (secret(1), offer(1, 2), SealedDirection { link: 2, ..OF }),
            (secret(1), offer(1, 2), SealedDirection { attempt: 4, ..OF }),
            (secret(1), offer(1, 2), SealedDirection { of_dialer: false, ..OF }),
            (secret(1), offer(1, 3), OF),
            (secret(2), offer(2, 2), OF),
        ];
        for (secret, offer, of) in others {
            let mut message = sealed(&mut pair().0, b"batch");
            assert_eq!(LinkOpener::new(&secret, &offer, of).open_message(&mut message), Err(PeerFault::Unauthentic));
            // The same batch, sent again by another queue pair, is other bytes.
            assert_ne!(sealed(&mut pair().0, b"batch"), sealed(&mut LinkSealer::new(&secret, &offer, of), b"batch"));
        }
    }

    #[test]
    fn nonces_of_a_key_differ() {
        let numbers = [0, 1, 2, 63, 64, MESSAGES_PER_KEY - 1, MESSAGES_PER_KEY, u64::MAX / NONCES_PER_MESSAGE - 1];
        let nonces = numbers.iter().flat_map(|n| (0..=PLACES).map(|record| nonce_bytes(*n, record)));
        assert_eq!(nonces.collect::<HashSet<_>>().len(), numbers.len() * (PLACES + 1));
    }

    #[test]
    fn a_key_is_replaced_after_its_bound_at_both_ends() {
        let (mut sealer, mut opener) = pair();
        let mut to = Vec::new();
        for n in 0..2 * MESSAGES_PER_KEY + 2 {
            let other = (n % (MESSAGES_PER_KEY / 4) == 1).then(|| key_of(&sealer.key.chain));
            sealer.seal_message(b"m", &mut to);
            if let Some(key) = other {
                // The key of the present part of the chain, and only that.
                let mut copy = to.clone();
                let nonce = || Nonce::assume_unique_for_key(nonce_bytes(n, 0));
                assert!(key.open_in_place(nonce(), Aad::empty(), &mut copy).is_ok());
                let first = key_of(&SealKey::new(&secret(1), &offer(1, 2), OF).chain);
                let by_first = first.open_in_place(nonce(), Aad::empty(), &mut to.clone()).is_ok();
                assert_eq!(by_first, n < MESSAGES_PER_KEY, "message {n}");
            }
            opener.open_message(&mut to).unwrap();
            opener.finish_message();
        }
    }

    #[test]
    fn nothing_opens_after_a_forgery() {
        let (mut sealer, mut opener) = pair();
        let (mut good, mut bad) = (sealed(&mut sealer, b"batch"), vec![0; 40]);
        assert_eq!(opener.open_message(&mut bad), Err(PeerFault::Unauthentic));
        assert_eq!(opener.open_message(&mut good), Err(PeerFault::Unauthentic));
    }

    #[test]
    fn bytes_open_at_their_stream_offset_and_length_only() {
        let text = vec![9; 4000];
        let wrong: [fn(&mut BatchPlace); 3] = [|p| p.stream += 1, |p| p.offset += 1, |p| p.len -= 1];
        for change in wrong {
            let (mut sealer, mut opener) = pair();
            let mut bytes = text.clone();
            sealer.seal_place(place(&text), &mut bytes);
            opener.open_message(&mut sealed(&mut sealer, b"batch")).unwrap();
            let mut at = place(&text);
            change(&mut at);
            assert!(opener.open_place(at, &mut bytes[..at.len as usize]).is_err(), "before its PLACED");
            opener.is_broken = false;
            opener.take_place().unwrap();
            assert_eq!(opener.open_place(at, &mut bytes[..at.len as usize]), Err(PeerFault::Unauthentic));
        }
    }

    /// What somebody between the proxies does to the messages.
    #[derive(Clone, Debug)]
    enum Tampering {
        Flip(usize, usize),
        Repeat(usize),
        Swap(usize),
        Drop(usize),
        Cut(usize, usize),
        Extend(usize),
        FlipPlace(usize, usize),
    }

    fn change() -> impl Strategy<Value = Tampering> {
        let (at, bit) = (0usize..8, 0usize..1 << 16);
        prop_oneof![
            (at.clone(), bit.clone()).prop_map(|(at, bit)| Tampering::Flip(at, bit)),
            at.clone().prop_map(Tampering::Repeat),
            at.clone().prop_map(Tampering::Swap),
            at.clone().prop_map(Tampering::Drop),
            (at.clone(), bit.clone()).prop_map(|(at, bit)| Tampering::Cut(at, bit)),
            at.clone().prop_map(Tampering::Extend),
            (at, bit).prop_map(|(at, bit)| Tampering::FlipPlace(at, bit)),
        ]
    }

    type Wire = Vec<(Vec<u8>, Vec<u8>)>;

    fn apply(change: &Tampering, wire: &mut Wire) {
        let len = wire.len();
        match *change {
            Tampering::Flip(at, bit) => flip(&mut wire[at % len].0, bit),
            Tampering::FlipPlace(at, bit) => flip(&mut wire[at % len].1, bit),
            Tampering::Repeat(at) => wire.insert(at % len, wire[at % len].clone()),
            Tampering::Swap(at) => wire.swap(at % (len - 1), at % (len - 1) + 1),
            Tampering::Drop(at) => drop(wire.remove(at % (len - 1))),
            Tampering::Cut(at, by) => {
                let message = &mut wire[at % len].0;
                message.truncate(by % message.len());
            }
            Tampering::Extend(at) => wire[at % len].0.push(0),
        }
    }

    fn flip(bytes: &mut [u8], bit: usize) {
        let at = bit / 8 % bytes.len();
        bytes[at] ^= 1 << (bit % 8);
    }

    proptest! {
        #[test]
        fn a_change_is_found_and_what_came_before_it_is_unchanged(
            batches in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 2..8),
            change in change(),
        ) {
            let (mut sealer, mut opener) = pair();
            let mut wire: Wire = Vec::new();
            for batch in &batches {
                let mut bytes = batch.clone();
                sealer.seal_place(place(&bytes), &mut bytes);
                wire.push((sealed(&mut sealer, batch), bytes));
            }
            apply(&change, &mut wire);
            let mut faulty = false;
            for ((message, bytes), batch) in wire.iter_mut().zip(batches.iter().cycle()) {
                let opened = opener.open_message(message).and_then(|()| opener.take_place());
                if opened.and_then(|()| opener.open_place(place(batch), bytes)).is_err() {
                    faulty = true;
                    break;
                }
                prop_assert_eq!(&*message, batch);
                prop_assert_eq!(&*bytes, batch);
                opener.finish_message();
            }
            prop_assert!(faulty, "{:?}", change);
        }
    }
}
