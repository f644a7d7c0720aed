//! Imports of programs, and the places of nodes on the bus that they hold.

use super::{PeerPlace, UrmaEndpoint, cna_of};
use burst_base::Nanos;
use burst_ubwire::Cna;
use std::net::IpAddr;

/// How long a node that has not answered keeps its place after a program has asked for another address in it.
const CONTEST_MIN: Nanos = Nanos::from_ms(1000);
/// A contest that is older begins anew.
const CONTEST_MAX: Nanos = Nanos::from_ms(60_000);
/// With so many channels, those that no import needs end before a peer has answered.
const CHANNELS_MANY: usize = 3072;
/// How often that is looked at.
const CHANNELS_PAUSE: Nanos = Nanos::from_ms(100);

/// An import of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum UrmaImport {
    /// Of a segment: context and number.
    Segment(u32, u32),
    /// Of a Jetty: context and number.
    Jetty(u32, u32),
}

/// What becomes of an import from an address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ImportVerdict {
    /// It may be made.
    Admitted,
    /// It may be made. The imports from another address, which has not answered, have ended.
    Displaced(Vec<UrmaImport>),
    /// The address clashes with another one's.
    Refused,
}

impl UrmaEndpoint {
    /// Decides on an import of a program. The bus does not distinguish two addresses whose last 24 bits agree, and a program may
    /// name an address at which there is no node. So an address holds its place only if its node answers: the first program
    /// that asks for another one makes this node open a channel, and is refused; if there is still no answer [`CONTEST_MIN`]
    /// later, the other address takes the place, and its node is asked at once.
    pub(crate) fn admit_import(&mut self, address: IpAddr, now: Nanos) -> ImportVerdict {
        self.end_silent_channels(now);
        let (cna, node) = (cna_of(address), &mut self.node);
        let is_left = |place: &PeerPlace| place.address != address && place.imports == 0;
        if self.peers.places.get(&cna).is_some_and(is_left) && !node.has_open_channel(cna) {
            // No program imports from the other address any more, and its node has not answered.
            node.end_channel(cna);
        }
        if self.learn(address) {
            return ImportVerdict::Admitted;
        }
        let node = &mut self.node;
        let Some(place) = self.peers.places.get_mut(&cna) else { return ImportVerdict::Refused };
        debug_assert!(place.address != address, "an address does not clash with itself");
        if node.has_open_channel(cna) {
            place.contested_at = None;
            return ImportVerdict::Refused;
        }
        let contested_for = place.contested_at.map(|since| now.since(since)).filter(|time| *time < CONTEST_MAX);
        let verdict = match contested_for {
            Some(time) if time < CONTEST_MIN => return ImportVerdict::Refused,
            Some(_) => {
                node.end_channel(cna);
                let former = std::mem::replace(place, PeerPlace { imports: 1, ..PeerPlace::new(address) });
                self.peers.last = None;
                ImportVerdict::Displaced(former.programs.into_iter().collect())
            }
            None => {
                place.contested_at = Some(now);
                ImportVerdict::Refused
            }
        };
        node.open_channel(cna, now);
        verdict
    }
    /// An import of a program was made ([`UrmaEndpoint::admit_import`]).
    pub(crate) fn hold_import(&mut self, cna: Cna, import: UrmaImport) {
        if let Some(place) = self.peers.places.get_mut(&cna) {
            let is_new = place.programs.insert(import);
            assert!(is_new && place.imports as usize >= place.programs.len(), "an import that was not admitted");
        }
    }
    /// An import of a program has ended.
    pub(crate) fn end_import(&mut self, cna: Cna, import: UrmaImport) {
        if self.peers.places.get_mut(&cna).is_some_and(|place| place.programs.remove(&import)) {
            self.forget(cna);
        }
    }
    /// Makes room in a table that is nearly full of channels: those end that no import needs and no peer has answered. Otherwise
    /// a program could fill the table by one request to each of many addresses at which there is no node.
    fn end_silent_channels(&mut self, now: Nanos) {
        if self.node.channel_count() < CHANNELS_MANY || now < self.look_at {
            return;
        }
        self.look_at = now + CHANNELS_PAUSE;
        let UrmaEndpoint { node, peers, .. } = self;
        let unused = peers.places.iter().filter(|(_, place)| place.imports == 0).map(|(cna, _)| *cna);
        unused
            .filter(|cna| !node.has_open_channel(*cna))
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|cna| node.end_channel(cna));
    }
}
