//! Why a proxy gives a peer up, whose streams are then reset at both ends: one table, for the log and for `burst proxy why`.

macro_rules! losses {
    ($($variant:ident, $what:literal, $cure:literal;)+) => {
        /// One reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum PeerLoss { $(#[doc = $what] $variant),+ }

        impl PeerLoss {
            /// All of them.
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// What has happened; the peer is "it".
            pub const fn words(self) -> &'static str { match self { $(Self::$variant => $what),+ } }

            /// What to do.
            pub const fn cure(self) -> &'static str { match self { $(Self::$variant => $cure),+ } }
        }
    };
}

losses! {
    Ended, "its process has ended", "Start the other proxy, and see its log for why it ended; new connections go by TCP until then.";
    Away, "it has not come back in time", "Look for the network between the proxies or for a host that stopped; resume_s of the configuration is the time for which streams wait.";
    Unnamed, "the configuration names it no more", "Put the peer back into the configuration (or its directory file) and use burst proxy reload, if its connections should go over RDMA.";
    BrokeProtocol, "it broke the protocol", "See the log of both proxies for what was wrong, and run the same version at both ends.";
    BegunAgain, "it has begun again", "Nothing, if the other proxy was started again; burst proxy drain before a restart lets open connections end first.";
}

impl PeerLoss {
    /// The reason with these words.
    pub fn of_words(words: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|loss| loss.words() == words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_one_reason_and_cures_are_sentences() {
        for loss in PeerLoss::ALL {
            assert_eq!(PeerLoss::of_words(loss.words()), Some(*loss));
            assert!(loss.cure().ends_with('.') && !loss.words().ends_with('.'), "{loss:?}");
        }
        assert_eq!(PeerLoss::of_words("something else"), None);
    }
}
