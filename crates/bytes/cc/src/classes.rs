//! The choice of a congestion control for each kind of peer, and what two Burst daemons agree on.
//!
//! Both ends of a path should react to congestion in the same way: a rate that follows marks and a window that follows losses do
//! not share a link fairly. Two daemons tell each other their choices (BURST, section 4.5, does the same by the vendor id of the
//! connection manager), and [`CcTable::settle`] gives both the same answer: a choice that somebody has made prevails over the
//! default, one made on the running daemon over that of the configuration, and of two equal ones that of the lower boot id. A
//! choice made on the running daemon always holds there.
//!
//! Where no person has made a choice ([`CcChoice::is_automatic`]), each path has the algorithm of its [`PathNature`].

use crate::conditions::PathNature;
use crate::params::{Algorithm, Params};
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

/// How a person writes that each path is to have what suits it.
pub const AUTOMATIC: &str = "auto";

/// An algorithm with its parameters, and who has chosen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CcChoice {
    /// Algorithm, parameters, largest window.
    pub params: Params,
    /// Who has chosen it.
    pub rank: ChoiceRank,
    /// What a path has met chooses the algorithm; `params` is the default then, and the rank that of the default.
    pub is_automatic: bool,
}

/// Automatic.
impl Default for CcChoice {
    fn default() -> CcChoice {
        CcChoice { params: Params::default(), rank: ChoiceRank::Default, is_automatic: true }
    }
}

impl CcChoice {
    /// The same algorithm for each path.
    pub const fn new(params: Params, rank: ChoiceRank) -> CcChoice {
        CcChoice { params, rank, is_automatic: false }
    }

    /// Reads [`AUTOMATIC`], which is no person's choice, or a specification ([`Params::parse`]).
    ///
    /// # Errors
    /// As [`Params::parse`].
    pub fn parse(text: &str, window_max_bytes: u64, rank: ChoiceRank) -> Result<CcChoice, String> {
        if text.trim() == AUTOMATIC {
            let params = Params::default().with_window(window_max_bytes);
            return Ok(CcChoice { params, ..CcChoice::default() });
        }
        if text.split_once(':').is_some_and(|(name, _)| name.trim() == AUTOMATIC) {
            return Err(format!(
                "{AUTOMATIC} takes no parameters, because it chooses an algorithm for each peer: name the algorithm whose \
                 parameters are to differ"
            ));
        }
        let params = Params::parse(text, window_max_bytes)
            .map_err(|why| if why.starts_with("unknown") { format!("{why}, {AUTOMATIC}") } else { why })?;
        Ok(CcChoice::new(params, rank))
    }

    /// The choice for a path of this nature, and why.
    fn for_nature(&self, nature: PathNature) -> SettledChoice {
        use {Algorithm as A, ChoiceReason as Why};
        let (algorithm, why) = match nature {
            PathNature::Unknown => (None, Why::NothingKnown),
            PathNature::Losses => (None, Why::Losses),
            PathNature::Adapter => (Some(A::Dcqcn), Why::Adapter),
            PathNature::Notifications => (Some(A::Dcqcn), Why::Notifications),
            PathNature::Marks => (Some(A::Dctcp), Why::Marks),
        };
        let window = self.params.window_max_bytes;
        let params = algorithm.map_or(self.params, |algorithm| Params::new(algorithm, window));
        SettledChoice { params, why }
    }
}

/// As [`CcChoice::parse`] reads it.
impl fmt::Display for CcChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_automatic { f.write_str(AUTOMATIC) } else { self.params.fmt(f) }
    }
}

/// Why a path has its algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceReason {
    /// The caller of a library has set it.
    Given,
    /// The configuration of this daemon.
    Configured,
    /// `burst cc` on this daemon.
    Commanded,
    /// The configuration of the peer's daemon.
    PeerConfigured,
    /// `burst cc` on the peer's daemon.
    PeerCommanded,
    /// An address of this daemon's own.
    Loopback,
    /// The default, as nothing is known.
    NothingKnown,
    /// The default, as the peer is a Burst daemon.
    Burst,
    /// The peer is an adapter.
    Adapter,
    /// The peer's acknowledgements count marks.
    Marks,
    /// Notifications came.
    Notifications,
    /// Packets were lost without marks.
    Losses,
}

impl ChoiceReason {
    /// Whether the peer's daemon has chosen.
    pub const fn is_peers(self) -> bool {
        matches!(self, ChoiceReason::PeerConfigured | ChoiceReason::PeerCommanded)
    }

    /// One sentence for people.
    pub const fn sentence(self) -> &'static str {
        match self {
            ChoiceReason::Given => "set by the program that runs the engine",
            ChoiceReason::Configured => "set in this daemon's configuration",
            ChoiceReason::Commanded => "set by burst cc on this daemon",
            ChoiceReason::PeerConfigured => "the peer's choice, from its configuration",
            ChoiceReason::PeerCommanded => "the peer's choice, set there by burst cc",
            ChoiceReason::Loopback => "the default, for an address of this host",
            ChoiceReason::NothingKnown => "the default, until packets are marked on the way",
            ChoiceReason::Burst => "the default between Burst daemons, until packets are marked on the way",
            ChoiceReason::Adapter => "the connection manager shows that the peer is not Burst, and adapters use dcqcn",
            ChoiceReason::Marks => "switches on the way mark packets, and the peer counts the marks",
            ChoiceReason::Notifications => "switches on the way mark packets, and the peer sends notifications",
            ChoiceReason::Losses => "the default, because packets were lost on the way that no switch had marked",
        }
    }
}

/// What a path is to use, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettledChoice {
    /// Algorithm, parameters, largest window.
    pub params: Params,
    /// Which condition of the path chose them, for `burst cc`.
    pub why: ChoiceReason,
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

/// One algorithm for all kinds, which is no person's choice: no peer is asked, and none hears of it.
impl From<Params> for CcTable {
    fn from(params: Params) -> CcTable {
        CcTable { choices: [CcChoice::new(params, ChoiceRank::Default); PeerKind::ALL.len()] }
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
    /// What is used towards a peer of this kind on a path of this nature.
    pub fn settle(&self, kind: PeerKind, peer: Option<&PeerChoice>, nature: PathNature) -> SettledChoice {
        let own = self.of(kind);
        if let Some(PeerChoice { choice, is_lower }) = peer.filter(|_| kind == PeerKind::Burst) {
            let is_tie = choice.rank == own.rank && own.rank == ChoiceRank::Configured;
            if choice.rank > own.rank || (is_tie && *is_lower) {
                let why = match choice.rank {
                    ChoiceRank::Commanded => ChoiceReason::PeerCommanded,
                    _ => ChoiceReason::PeerConfigured,
                };
                return SettledChoice { params: choice.params.with_window(own.params.window_max_bytes), why };
            }
        }
        let own_reason = match own.rank {
            ChoiceRank::Default => ChoiceReason::Given,
            ChoiceRank::Configured => ChoiceReason::Configured,
            ChoiceRank::Commanded => ChoiceReason::Commanded,
        };
        let fixed = |why| SettledChoice { params: own.params, why };
        match (own.is_automatic, kind, nature) {
            (false, ..) => fixed(own_reason),
            (true, PeerKind::Loopback, _) => fixed(ChoiceReason::Loopback),
            // Its hello says more than the connection manager, whose vendor id a program may set.
            (true, PeerKind::Burst, PathNature::Unknown | PathNature::Adapter) => fixed(ChoiceReason::Burst),
            (true, ..) => own.for_nature(nature),
        }
    }
}

/// One specification if all kinds have the same, otherwise each kind with its own: `standard aimd, burst dctcp, loopback aimd`.
impl fmt::Display for CcTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, ..] = &self.choices;
        let is_first = |choice: &CcChoice| choice.params == first.params && choice.is_automatic == first.is_automatic;
        if self.choices.iter().all(is_first) {
            return first.fmt(f);
        }
        for (at, kind) in PeerKind::ALL.into_iter().enumerate() {
            write!(f, "{}{} {}", if at > 0 { ", " } else { "" }, kind.name(), self.of(kind))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(algorithm: Algorithm, rank: ChoiceRank) -> CcChoice {
        CcChoice::new(Params::new(algorithm, 1 << 20), rank)
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
    fn the_automatic_choice_takes_no_parameters() {
        for text in ["auto:beta=1", " auto : beta=1", "auto:"] {
            let sentence = CcChoice::parse(text, 0, ChoiceRank::Configured).expect_err("refused");
            assert!(sentence.starts_with("auto takes no parameters"), "{sentence}");
        }
        assert!(CcChoice::parse("auto", 0, ChoiceRank::Configured).is_ok_and(|choice| choice.to_string() == "auto"));
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
                table(*own).settle(PeerKind::Burst, Some(&peer), PathNature::Unknown).params.algorithm()
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
        let settled = |kind, peer: Option<&PeerChoice>| {
            let SettledChoice { params, why } = own.settle(kind, peer, PathNature::Marks);
            (params, why)
        };
        let (peers, given) = (ChoiceReason::PeerConfigured, ChoiceReason::Given);
        assert_eq!(settled(PeerKind::Burst, Some(&peer)), (Params::new(Algorithm::Dctcp, 5), peers));
        assert_eq!(settled(PeerKind::Standard, Some(&peer)), (Params::new(Algorithm::Aimd, 5), given));
        assert_eq!(settled(PeerKind::Burst, None), (Params::new(Algorithm::Aimd, 5), given));
    }

    const NATURES: [PathNature; 5] =
        [PathNature::Unknown, PathNature::Adapter, PathNature::Marks, PathNature::Notifications, PathNature::Losses];

    #[test]
    fn where_no_person_has_chosen_the_path_does() {
        let table = CcTable::default().with_window(7);
        let settled = |kind| {
            NATURES.map(|nature| {
                let choice = table.settle(kind, None, nature);
                assert_eq!(choice.params.window_max_bytes, 7);
                (choice.params.algorithm(), choice.why)
            })
        };
        use {Algorithm as A, ChoiceReason as Why};
        let met = [(A::Dctcp, Why::Marks), (A::Dcqcn, Why::Notifications), (A::Cubic, Why::Losses)];
        assert_eq!(settled(PeerKind::Standard)[..2], [(A::Cubic, Why::NothingKnown), (A::Dcqcn, Why::Adapter)]);
        assert_eq!(settled(PeerKind::Burst)[..2], [(A::Cubic, Why::Burst); 2], "its hello says more");
        assert_eq!((&settled(PeerKind::Standard)[2..], &settled(PeerKind::Burst)[2..]), (&met[..], &met[..]));
        assert_eq!(settled(PeerKind::Loopback), [(A::Cubic, Why::Loopback); 5]);
    }

    #[test]
    fn a_choice_of_a_person_is_obeyed_whatever_packets_meet() {
        for (rank, why) in [
            (ChoiceRank::Configured, ChoiceReason::Configured),
            (ChoiceRank::Commanded, ChoiceReason::Commanded),
            (ChoiceRank::Default, ChoiceReason::Given),
        ] {
            let own = table(choice(Algorithm::Aimd, rank));
            for (kind, nature) in PeerKind::ALL.into_iter().flat_map(|kind| NATURES.map(|nature| (kind, nature))) {
                let settled = own.settle(kind, None, nature);
                assert_eq!((settled.params.algorithm(), settled.why), (Algorithm::Aimd, why));
                assert!(!settled.why.is_peers() && !why.sentence().is_empty());
            }
        }
        // And so is that of the peer's.
        let peer = PeerChoice { choice: choice(Algorithm::Swift, ChoiceRank::Commanded), is_lower: false };
        let settled = CcTable::default().settle(PeerKind::Burst, Some(&peer), PathNature::Marks);
        assert_eq!((settled.params.algorithm(), settled.why), (Algorithm::Swift, ChoiceReason::PeerCommanded));
    }

    #[test]
    fn the_automatic_choice_is_written_auto_and_is_no_persons() {
        let parse = |text| CcChoice::parse(text, 9, ChoiceRank::Commanded);
        let automatic = parse(" auto ").expect("valid");
        assert_eq!((automatic.is_automatic, automatic.rank), (true, ChoiceRank::Default));
        assert_eq!((automatic.params.window_max_bytes, automatic.to_string().as_str()), (9, "auto"));
        assert_eq!(parse("swift:beta=0.5").map(|choice| choice.to_string()), Ok("swift:beta=0.5".into()));
        assert!(parse("auot").is_err_and(|why| why.ends_with("timely, auto")));
        assert!(parse("auto:beta=0.5").is_err(), "it has no parameters");
        let mut table = CcTable::default();
        assert_eq!((table.to_string().as_str(), table.asks_for_kinds()), ("auto", false));
        table.set(Some(PeerKind::Loopback), choice(Algorithm::Cubic, ChoiceRank::Configured));
        assert_eq!(table.to_string(), "standard auto, burst auto, loopback cubic");
    }

    #[test]
    fn ranks_have_numbers() {
        for code in 0..=3 {
            assert_eq!(ChoiceRank::from_code(code).map(ChoiceRank::code), (code < 3).then_some(code));
        }
    }
}
