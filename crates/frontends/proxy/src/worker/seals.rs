//! Encryption of a link: whether both ends have agreed on it, and of which control channels keys are made.
//!
//! A hello names the channel whose secret makes the key. That channel may have ended when the hello is read, so the last secrets
//! are kept. A queue pair whose hello names none of them is given up, and the next attempt makes another hello.

use burst_relay::{ChannelSecret, LinkOpener, LinkSealer, SEALED_PLACE_BYTES, SealOffer, SealedDirection};
use std::collections::VecDeque;

/// Secrets that are kept.
const SECRETS_MAX: usize = 4;

const _: () = assert!(super::sockets::TURN_BYTES <= SEALED_PLACE_BYTES, "a turn reads what one PLACED announces");

/// What a link knows of its encryption.
#[derive(Debug)]
pub(super) struct LinkSeals {
    is_on: bool,
    /// Of the peer's control channels, the present one first.
    secrets: VecDeque<ChannelSecret>,
    /// Where bytes are encrypted: no peer can write there.
    pub(super) scratch: Vec<u8>,
}

impl LinkSeals {
    /// Of a link that is encrypted or not, with the secret of the present channel.
    pub(super) fn new(is_on: bool, secret: &ChannelSecret) -> Self {
        Self { is_on, secrets: VecDeque::from([secret.clone()]), scratch: Vec::new() }
    }

    /// Whether queue pairs carry encrypted bytes.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// The peer has another control channel.
    pub(super) fn learn(&mut self, secret: &ChannelSecret) {
        self.secrets.truncate(SECRETS_MAX - 1);
        self.secrets.push_front(secret.clone());
    }

    /// A new key for what the peer sends, and how this side's hello names it.
    ///
    /// # Errors
    /// A sentence: there are no random bytes.
    pub(super) fn opener(&self, of: SealedDirection) -> Result<(SealOffer, LinkOpener), String> {
        let secret = self.secrets.front().ok_or("there is no control channel")?;
        let offer = SealOffer { secret: secret.id(), random: crate::random()? };
        Ok((offer, LinkOpener::new(secret, &offer, of)))
    }

    /// The key that a peer's hello names; `None`: it is of a channel that this side does not know.
    pub(super) fn sealer(&self, offer: &SealOffer, of: SealedDirection) -> Option<LinkSealer> {
        let secret = self.secrets.iter().find(|secret| secret.id() == offer.secret)?;
        Some(LinkSealer::new(secret, offer, of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_relay::EXPORT_BYTES;

    #[test]
    fn keys_of_the_last_channels_are_known_and_each_hello_has_another() {
        let secret = |n: u8| ChannelSecret::new(&[n; EXPORT_BYTES]);
        let of = SealedDirection { link: 0, attempt: 1, of_dialer: true };
        let (mut late, early) = (LinkSeals::new(true, &secret(0)), LinkSeals::new(true, &secret(0)));
        let ((offer, mut opener), (other, _)) = (early.opener(of).unwrap(), early.opener(of).unwrap());
        assert_ne!(offer.random, other.random);
        (1..SECRETS_MAX as u8).for_each(|n| late.learn(&secret(n)));
        let mut message = Vec::new();
        late.sealer(&offer, of).expect("it is one of the last").seal_message(b"batch", &mut message);
        opener.open_message(&mut message).unwrap();
        assert_eq!(message, b"batch");
        late.learn(&secret(9));
        assert!(late.sealer(&offer, of).is_none(), "too old");
    }
}
