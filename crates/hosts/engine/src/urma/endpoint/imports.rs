//! Imports of programs in other processes, by the nodes from which they are.
//!
//! A program may name any address. An import opens no channel and takes nothing from others: nodes are distinguished by their
//! whole addresses, so that an invented one stands beside a true one that ends alike. The first request to a node opens a
//! channel. The table of channels is one for all programs, and the number of nodes from which a user imports is bounded, so what
//! can fill the table are channels that were opened and left.

use super::UrmaEndpoint;
use burst_urma::NodeEid;

/// With so many channels, those that no import needs end before a peer has answered.
const CHANNELS_MANY: usize = 3072;
/// How many channels are looked at for each import.
const CHANNELS_AT_ONCE: usize = 64;

impl UrmaEndpoint {
    /// A program imports from a node.
    pub(crate) fn hold_import(&mut self, peer: NodeEid) {
        self.end_silent_channels();
        *self.imports.entry(peer).or_insert(0) += 1;
    }
    /// An import of a program has ended.
    pub(crate) fn end_import(&mut self, peer: NodeEid) {
        let Some(count) = self.imports.get_mut(&peer) else {
            debug_assert!(false, "an import from {peer:?} ends that was not held");
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.imports.remove(&peer);
        }
    }
    /// Makes room in a table that is nearly full of channels: those end that no import needs and no peer has answered. Otherwise
    /// a program could fill the table by one request to each of many addresses at which there is no node. Each import looks at
    /// [`CHANNELS_AT_ONCE`] of them, which is more than it opens.
    fn end_silent_channels(&mut self) -> usize {
        if self.node.channel_count() < CHANNELS_MANY {
            return 0;
        }
        let UrmaEndpoint { node, imports, looked, .. } = self;
        let some: Vec<NodeEid> =
            node.channels_from(*looked).take(CHANNELS_AT_ONCE).map(|channel| channel.peer).collect();
        // Behind the last one the first comes again.
        *looked = some.last().and_then(|last| last.next()).unwrap_or(NodeEid::UNSPECIFIED);
        let silent = some.iter().filter(|peer| !imports.contains_key(peer) && !node.has_open_channel(**peer));
        silent.copied().collect::<Vec<_>>().into_iter().for_each(|peer| node.end_channel(peer));
        some.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::urma::node_at;
    use burst_base::Nanos;
    use burst_port::mem::{Hub, MemConfig};
    use burst_urma::UrmaConfig;
    use std::net::IpAddr;

    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn endpoint() -> UrmaEndpoint {
        let port = Hub::new(MemConfig::default()).port("urma", &[OWN]);
        let config = |mtu| UrmaConfig { mtu, ..UrmaConfig::new(node_at(OWN), 1) };
        UrmaEndpoint::new(Box::new(port), OWN, 64, config).expect("its address")
    }

    fn peer(number: u32) -> NodeEid {
        node_at(IpAddr::from((10 << 24 | 1 << 20 | number).to_be_bytes()))
    }

    /// Channels to nodes that do not answer, each of which a program has imported from and left.
    fn with_silent(count: u32) -> UrmaEndpoint {
        let mut endpoint = endpoint();
        for number in 0..count {
            endpoint.imports.insert(peer(number), 1);
            endpoint.node.open_channel(peer(number), Nanos(0));
            endpoint.end_import(peer(number));
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
                let other = peer(1 << 18 | number);
                endpoint.hold_import(other);
                endpoint.node.open_channel(other, Nanos(0));
            }
            assert!(endpoint.node.channel_count() < CHANNELS_MANY + more as usize, "{}", endpoint.node.channel_count());
            assert_eq!(endpoint.imports.len(), more as usize);
            let kept = (0..more).filter(|number| endpoint.node.has_channel(peer(1 << 18 | number))).count();
            assert_eq!(kept, more as usize, "those with imports stay");
        }
    }

    #[test]
    fn an_import_is_held_until_the_last_one_from_its_node_has_ended() {
        let mut endpoint = endpoint();
        // They end alike.
        let nodes = [[10, 1, 2, 3], [11, 1, 2, 3]].map(|address| node_at(IpAddr::from(address)));
        assert_eq!(nodes[0].cna(), nodes[1].cna());
        for node in nodes.into_iter().cycle().take(6) {
            endpoint.hold_import(node);
        }
        (0..3).for_each(|_| endpoint.end_import(nodes[1]));
        assert_eq!(endpoint.imports.get(&nodes[0]), Some(&3));
        assert_eq!(endpoint.imports.len(), 1, "nothing is left of the other one");
    }
}
