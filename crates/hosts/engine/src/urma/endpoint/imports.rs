//! Imports of programs, and the places of nodes on the bus that they hold.

use super::{PeerPlace, PeerTable, UrmaEndpoint, cna_of};
use burst_base::Nanos;
use burst_ubwire::Cna;
use std::net::IpAddr;

/// How long a node that has not answered keeps its place after a program has asked for another address in it.
const CONTEST_MIN: Nanos = Nanos::from_ms(1000);
/// A contest that is older begins anew.
const CONTEST_MAX: Nanos = Nanos::from_ms(60_000);
/// With so many channels, those that no import needs end before a peer has answered.
const CHANNELS_MANY: usize = 3072;
/// How many channels are looked at for each import.
const CHANNELS_AT_ONCE: usize = 64;

/// An import of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
    /// The imports from another address, which has not answered, have to end first ([`UrmaEndpoint::take_leaving`]).
    Leaving,
    /// The address clashes with another one's.
    Refused,
}

impl UrmaEndpoint {
    /// Decides on an import of a program. The bus does not distinguish two addresses whose last 24 bits agree, and a program may
    /// name an address at which there is no node. So an address holds its place only if its node answers: the first program
    /// that asks for another one makes this node open a channel, and is refused; if there is still no answer [`CONTEST_MIN`]
    /// later, the imports from it end, and the place is another address's.
    pub(crate) fn admit_import(&mut self, address: IpAddr, now: Nanos) -> ImportVerdict {
        self.end_silent_channels();
        let (cna, node) = (cna_of(address), &mut self.node);
        let is_left = |place: &PeerPlace| place.address != address && place.imports == 0;
        if self.peers.places.get(&cna).is_some_and(is_left) && !node.has_open_channel(cna) {
            // No program imports from the other address any more, and its node has not answered.
            node.end_channel(cna);
        }
        if self.peers.places.get(&cna).is_some_and(|place| place.is_leaving) {
            return ImportVerdict::Leaving;
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
                (place.is_leaving, self.peers.last) = (true, None);
                self.peers.leaving.push(cna);
                return ImportVerdict::Leaving;
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
    /// Imports of programs that have to end, `most` of them at most; none if no others are left. To be called again when they
    /// have ended: a place without imports is free then.
    pub(crate) fn take_leaving(&mut self, most: usize) -> Vec<UrmaImport> {
        let PeerTable { places, leaving, last } = &mut self.peers;
        while let Some(cna) = leaving.last() {
            let place = places.get_mut(cna);
            let taken: Vec<_> = place.map_or(Vec::new(), |place| {
                let taken: Vec<_> = std::iter::from_fn(|| place.programs.pop_first()).take(most).collect();
                place.imports = place.imports.saturating_sub(taken.len() as u32);
                (place.is_leaving, place.contested_at) = (!taken.is_empty(), None);
                taken
            });
            *last = None;
            if !taken.is_empty() {
                return taken;
            }
            self.node.end_channel(*cna);
            leaving.pop();
        }
        Vec::new()
    }
    /// Whether imports have to end.
    pub(crate) fn has_leaving(&self) -> bool {
        !self.peers.leaving.is_empty()
    }
    /// Makes room in a table that is nearly full of channels: those end that no import needs and no peer has answered. Otherwise
    /// a program could fill the table by one request to each of many addresses at which there is no node. Each import looks at
    /// [`CHANNELS_AT_ONCE`] of them, which is more than it opens.
    fn end_silent_channels(&mut self) -> usize {
        if self.node.channel_count() < CHANNELS_MANY {
            return 0;
        }
        let UrmaEndpoint { node, peers, looked, .. } = self;
        let some: Vec<Cna> = node.channels_from(*looked).take(CHANNELS_AT_ONCE).map(|channel| channel.peer).collect();
        // Behind the last one the first comes again.
        *looked = some.last().map_or(Cna::new(0), |last| Cna::new(last.get().wrapping_add(1)));
        let is_unused = |cna: &Cna| peers.places.get(cna).is_none_or(|place| place.imports == 0);
        let silent = some.iter().filter(|cna| is_unused(cna) && !node.has_open_channel(**cna));
        silent.copied().collect::<Vec<_>>().into_iter().for_each(|cna| node.end_channel(cna));
        some.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_port::mem::{Hub, MemConfig};
    use burst_urma::UrmaConfig;

    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn endpoint() -> UrmaEndpoint {
        let port = Hub::new(MemConfig::default()).port("urma", &[OWN]);
        let config = |mtu| UrmaConfig { mtu, ..UrmaConfig::new(cna_of(OWN), 1) };
        UrmaEndpoint::new(Box::new(port), OWN, 64, config).expect("its address")
    }

    fn peer(number: u32) -> IpAddr {
        IpAddr::from((10 << 24 | 1 << 20 | number).to_be_bytes())
    }

    /// Channels to nodes that do not answer, each of which a program has imported from and left.
    fn with_silent(count: u32) -> UrmaEndpoint {
        let mut endpoint = endpoint();
        for number in 0..count {
            assert!(endpoint.learn(peer(number)));
            endpoint.node.open_channel(cna_of(peer(number)), Nanos(0));
            endpoint.forget(cna_of(peer(number)));
        }
        assert_eq!(endpoint.node.channel_count(), count as usize);
        endpoint
    }

    #[test]
    fn an_import_looks_at_a_bounded_number_of_channels() {
        assert_eq!(with_silent(CHANNELS_MANY as u32 - 1).end_silent_channels(), 0, "there is room");
        for more in [100, 400] {
            let mut endpoint = with_silent(CHANNELS_MANY as u32 + more);
            assert_eq!(endpoint.end_silent_channels(), CHANNELS_AT_ONCE, "{more} more");
            // What has ended is cleared away by the node, so that imports find room long before the table is full.
            for number in 0..more {
                let address = peer(1 << 18 | number);
                assert_eq!(endpoint.admit_import(address, Nanos(0)), ImportVerdict::Admitted);
                endpoint.node.open_channel(cna_of(address), Nanos(0));
            }
            assert!(endpoint.node.channel_count() < CHANNELS_MANY + more as usize, "{}", endpoint.node.channel_count());
            let used = endpoint.peers.places.iter().filter(|(_, place)| place.imports > 0);
            assert!(used.count() == more as usize, "those with imports stay");
        }
    }

    #[test]
    fn imports_that_make_room_end_in_steps_and_the_place_is_free_then() {
        const STEP: usize = 100;
        for count in [1000, 4000] {
            let (mut endpoint, former, true_one) = (endpoint(), peer(1), IpAddr::from([11, 16, 0, 1]));
            assert_eq!(cna_of(former), cna_of(true_one));
            for number in 0..count {
                assert_eq!(endpoint.admit_import(former, Nanos(0)), ImportVerdict::Admitted);
                endpoint.hold_import(cna_of(former), UrmaImport::Segment(1, number));
            }
            assert_eq!(endpoint.admit_import(true_one, Nanos(0)), ImportVerdict::Refused);
            assert_eq!(endpoint.admit_import(true_one, CONTEST_MIN), ImportVerdict::Leaving);
            let mut left = count as usize;
            while left > 0 {
                assert!(endpoint.has_leaving());
                for address in [former, true_one] {
                    assert_eq!(endpoint.admit_import(address, CONTEST_MIN), ImportVerdict::Leaving, "{left} are left");
                }
                assert_eq!(endpoint.take_leaving(STEP).len(), STEP.min(left));
                left -= STEP.min(left);
            }
            assert_eq!(endpoint.take_leaving(STEP), []);
            assert!(!endpoint.has_leaving());
            assert_eq!(endpoint.admit_import(true_one, CONTEST_MIN), ImportVerdict::Admitted);
            assert_eq!(endpoint.admit_import(former, CONTEST_MIN), ImportVerdict::Refused);
        }
    }
}
