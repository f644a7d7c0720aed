//! The hosts from which each account imports by URMA.
//!
//! A node has one table of channels for all programs, one channel or a few for each host. An account is charged for each host
//! from which its programs import, once for each of this host's nodes, however many imports there are. So no account's programs
//! make so many channels that others' find no room, and a user's view of the channels can be limited to the user's own peers.

use crate::authority::Caller;
use burst_control::Refusal;
use burst_ledger::{Account, AccountId, Charge, Resource};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

/// A hold on a peer. The account is charged until the last one of its programs is dropped.
pub(crate) type PeerHold = Arc<Charge>;

/// Entries before those without holds are removed.
const ENTRIES_MIN: usize = 64;

/// The peers of all accounts, by the addresses of the node and the peer.
#[derive(Debug, Default)]
pub(crate) struct UrmaPeers {
    peers: HashMap<(AccountId, IpAddr, IpAddr), Weak<Charge>>,
    /// So many entries, and those without holds are removed.
    clean_at: usize,
}

impl UrmaPeers {
    /// Holds a peer for a caller's program.
    ///
    /// # Errors
    /// ENOMEM: the account imports from as many hosts as one account may, or all together do.
    pub fn hold(&mut self, caller: &Caller, own: IpAddr, peer: IpAddr) -> Result<PeerHold, Refusal> {
        let key = (caller.account.id().clone(), own, peer);
        if let Some(known) = self.peers.get(&key).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let hold = Arc::new(caller.charge(&[(Resource::UrmaPeer, 1)])?);
        if self.peers.len() >= self.clean_at.max(ENTRIES_MIN) {
            self.peers.retain(|_, hold| hold.strong_count() > 0);
            self.clean_at = 2 * self.peers.len();
        }
        self.peers.insert(key, Arc::downgrade(&hold));
        Ok(hold)
    }

    /// Whether programs of an account import from a peer.
    pub fn has(&self, account: &Account, own: IpAddr, peer: IpAddr) -> bool {
        self.peers.get(&(account.id().clone(), own, peer)).is_some_and(|hold| hold.strong_count() > 0)
    }
}
