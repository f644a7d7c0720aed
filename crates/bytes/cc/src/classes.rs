//! The choice of a congestion control for each kind of peer, and what two Burst daemons agree on.
//!
//! Both ends of a path should react to congestion in the same way: a rate that follows marks and a window that follows losses do
//! not share a link fairly. Two daemons tell each other their choices (BURST, section 4.5, does the same by the vendor id of the
//! connection manager), and [`CcTable::settle`] gives both the same answer: a choice that somebody has made prevails over the
//! default, one made on the running daemon over that of the configuration, and of two equal ones that of the lower boot id. A
//! choice made on the running daemon always holds there.

use crate::params::Params;
use burst_grammar::nearest;
use std::fmt;

/// What a peer is, as far as congestion control is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// An adapter or another implementation of RoCEv2, or a peer of which nothing is known yet.
    Standard,
    /// Another Burst daemon.
    Burst,
    /// An address of this daemon's own device.
    Loopback,
}

impl PeerKind {
    /// All, in the order of their names in the documentation.
    pub const ALL: [PeerKind; 3] = [PeerKind::Standard, PeerKind::Burst, PeerKind::Loopback];

    /// The kind with this name.
    ///
    /// # Errors
    /// A sentence with the nearest valid name.
    pub fn parse(name: &str) -> Result<PeerKind, String> {
        PeerKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let near = nearest(name, PeerKind::ALL.map(PeerKind::name)).unwrap_or_default();
            format!("unknown kind of peer '{name}'; did you mean '{near}'? There are: standard, burst, loopback")
        })
    }

    /// The name for people.
    pub const fn name(self) -> &'static str {
        match self {
            PeerKind::Standard => "standard",
            PeerKind::Burst => "burst",
            PeerKind::Loopback => "loopback",
        }
    }
}

/// Who has made a choice. A later value prevails over an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChoiceRank {
    /// No one: it is the default.
    #[default]
    Default,
    /// The configuration.
    Configured,
    /// A command to the running daemon.
    Commanded,
}

impl ChoiceRank {
    /// The number that stands for it in a hello.
    pub const fn code(self) -> u8 {
        self as u8
    }
    /// The rank with this number.
    pub const fn from_code(code: u8) -> Option<ChoiceRank> {
        match code {
            0 => Some(ChoiceRank::Default),
            1 => Some(ChoiceRank::Configured),
            2 => Some(ChoiceRank::Commanded),
            _ => None,
        }
    }
}

/// An algorithm with its parameters, and who has chosen it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CcChoice {
    /// Algorithm, parameters, largest window.
    pub params: Params,
    /// Who has chosen it.
    pub rank: ChoiceRank,
}

/// A peer's choice, as its hello says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerChoice {
    /// The choice. Its window is not used: each daemon keeps to its own.
    pub choice: CcChoice,
    /// Whether the peer's boot id is lower than this daemon's.
    pub is_lower: bool,
}

/// The choice for each kind of peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CcTable {
    choices: [CcChoice; PeerKind::ALL.len()],
}

/// One choice for all kinds, as a default.
impl From<Params> for CcTable {
    fn from(params: Params) -> CcTable {
        CcTable { choices: [CcChoice { params, rank: ChoiceRank::Default }; PeerKind::ALL.len()] }
    }
}

impl CcTable {
    /// The choice for a kind of peer.
    pub fn of(&self, kind: PeerKind) -> &CcChoice {
        &self.choices[kind as usize]
    }
    /// Sets the choice for one kind of peer, or for all.
    pub fn set(&mut self, kind: Option<PeerKind>, choice: CcChoice) {
        match kind {
            Some(kind) => self.choices[kind as usize] = choice,
            None => self.choices = [choice; PeerKind::ALL.len()],
        }
    }
    /// The same with another largest window everywhere.
    #[must_use]
    pub fn with_window(mut self, window_max_bytes: u64) -> CcTable {
        for choice in &mut self.choices {
            choice.params = choice.params.with_window(window_max_bytes);
        }
        self
    }
    /// Whether it matters which kind a peer is: somebody has chosen something for Burst daemons, or something else than for
    /// others.
    pub fn asks_for_kinds(&self) -> bool {
        let burst = self.of(PeerKind::Burst);
        burst.rank > ChoiceRank::Default || burst.params != self.of(PeerKind::Standard).params
    }
    /// What is used towards a peer of this kind, and whether it is the peer's choice.
    pub fn settle(&self, kind: PeerKind, peer: Option<&PeerChoice>) -> (Params, bool) {
        let own = self.of(kind);
        let Some(PeerChoice { choice, is_lower }) = peer.filter(|_| kind == PeerKind::Burst) else {
            return (own.params, false);
        };
        let is_tie = choice.rank == own.rank && own.rank == ChoiceRank::Configured;
        if choice.rank > own.rank || (is_tie && *is_lower) {
            (choice.params.with_window(own.params.window_max_bytes), true)
        } else {
            (own.params, false)
        }
    }
}

/// One specification if all kinds have the same, otherwise each kind with its own: `standard aimd, burst dctcp, loopback aimd`.
impl fmt::Display for CcTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, ..] = &self.choices;
        if self.choices.iter().all(|choice| choice.params == first.params) {
            return write!(f, "{}", first.params);
        }
        for (at, kind) in PeerKind::ALL.into_iter().enumerate() {
            write!(f, "{}{} {}", if at > 0 { ", " } else { "" }, kind.name(), self.of(kind).params)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Algorithm;

    fn choice(algorithm: Algorithm, rank: ChoiceRank) -> CcChoice {
        CcChoice { params: Params::new(algorithm, 1 << 20), rank }
    }
    fn table(of: CcChoice) -> CcTable {
        let mut table = CcTable::default();
        table.set(None, of);
        table
    }

    #[test]
    fn one_kind_or_all_are_set() {
        let mut table = CcTable::from(Params::new(Algorithm::Swift, 5));
        assert!(!table.asks_for_kinds());
        table.set(Some(PeerKind::Loopback), choice(Algorithm::None, ChoiceRank::Configured));
        assert_eq!(table.to_string(), "standard swift, burst swift, loopback none");
        assert!(!table.asks_for_kinds(), "own addresses are known without a hello");
        assert_eq!(
            PeerKind::ALL.map(|kind| table.of(kind).params.algorithm()),
            [Algorithm::Swift, Algorithm::Swift, Algorithm::None]
        );
        table.set(Some(PeerKind::Standard), choice(Algorithm::Dcqcn, ChoiceRank::Configured));
        assert!(table.asks_for_kinds(), "Burst daemons have another one");
        table.set(None, choice(Algorithm::Dctcp, ChoiceRank::Commanded));
        assert!(table.asks_for_kinds());
        let table = table.with_window(7);
        assert!(PeerKind::ALL.into_iter().all(|kind| table.of(kind).params == Params::new(Algorithm::Dctcp, 7)));
        assert_eq!(PeerKind::ALL.map(PeerKind::name), ["standard", "burst", "loopback"]);
        assert!(PeerKind::ALL.into_iter().all(|kind| PeerKind::parse(kind.name()) == Ok(kind)));
        let sentence = PeerKind::parse("brust").expect_err("no kind");
        assert!(sentence.contains("did you mean 'burst'?"), "{sentence}");
    }

    #[test]
    fn both_daemons_settle_on_the_same_unless_both_were_commanded() {
        use ChoiceRank::{Commanded, Configured, Default};
        let ranks = [Default, Configured, Commanded];
        for (a_rank, b_rank) in ranks.into_iter().flat_map(|a| ranks.map(|b| (a, b))) {
            // A default is the same everywhere.
            let algorithm = |rank, other| if rank == Default { Algorithm::Aimd } else { other };
            let a = choice(algorithm(a_rank, Algorithm::Dctcp), a_rank);
            let b = choice(algorithm(b_rank, Algorithm::Swift), b_rank);
            let settled = [(&a, b, false), (&b, a, true)].map(|(own, choice, is_lower)| {
                let peer = PeerChoice { choice, is_lower };
                table(*own).settle(PeerKind::Burst, Some(&peer)).0.algorithm()
            });
            let want = match a_rank.cmp(&b_rank) {
                std::cmp::Ordering::Less => [b.params.algorithm(); 2],
                std::cmp::Ordering::Equal if a_rank == Commanded => [Algorithm::Dctcp, Algorithm::Swift],
                _ => [a.params.algorithm(); 2],
            };
            assert_eq!(settled, want, "{a_rank:?} {b_rank:?}");
        }
    }

    #[test]
    fn a_peers_window_is_not_used_and_its_choice_counts_for_burst_daemons_only() {
        let own = CcTable::from(Params::new(Algorithm::Aimd, 5));
        let peer = PeerChoice { choice: choice(Algorithm::Dctcp, ChoiceRank::Configured), is_lower: false };
        assert_eq!(own.settle(PeerKind::Burst, Some(&peer)), (Params::new(Algorithm::Dctcp, 5), true));
        assert_eq!(own.settle(PeerKind::Standard, Some(&peer)), (Params::new(Algorithm::Aimd, 5), false));
        assert_eq!(own.settle(PeerKind::Burst, None), (Params::new(Algorithm::Aimd, 5), false));
    }

    #[test]
    fn ranks_have_numbers() {
        for code in 0..=3 {
            assert_eq!(ChoiceRank::from_code(code).map(ChoiceRank::code), (code < 3).then_some(code));
        }
    }
}
