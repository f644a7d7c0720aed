//! What tools see of an endpoint of URMA: its node and a page of its channels.

use super::UrmaEndpoint;
use burst_base::gid::gid_of;
use burst_control::monitor::CcPeer;
use burst_control::urma::{URMA_PAGE, UrmaChannelInfo, UrmaCursor, UrmaNodeInfo, UrmaPage};
use burst_urma::NodeEid;

impl UrmaEndpoint {
    /// The congestion control of an endpoint without a worker: what is in force, and the used paths from number `from` on, at
    /// most `most`, with the number of the next one. `None` for an endpoint of a worker, whose paths are the worker's.
    pub fn cc_page(&self, from: u32, most: usize) -> Option<(String, Vec<CcPeer>, Option<u32>)> {
        let own = self.own.as_ref()?;
        let (peers, next) = own.paths().cc_page((0, false), from, most);
        Some((own.cc.to_string(), peers, next))
    }

    /// The node, which programs see as `device`, and a page of its channels. If the cursor names another node, the page begins
    /// with the first channel; the next page is that of the next node, if all channels are on this one.
    pub fn page(&self, device: &str, from: UrmaCursor) -> UrmaPage {
        let eid = gid_of(self.address());
        let first = if eid == from.eid { NodeEid::new(from.peer) } else { NodeEid::UNSPECIFIED };
        let counts = self.node.object_counts();
        let mut channels: Vec<UrmaChannelInfo> = Vec::new();
        let mut next = UrmaCursor::behind(eid);
        for channel in self.node.channels_from(first) {
            if channels.len() == URMA_PAGE {
                // The next page begins with all lanes of this peer.
                let peer = channel.peer.octets();
                channels.retain(|shown| shown.peer != peer);
                next = Some(UrmaCursor { eid, peer });
                break;
            }
            channels.push(UrmaChannelInfo {
                peer: channel.peer.octets(),
                tpns: [channel.local_tpn, channel.peer_tpn],
                is_open: channel.is_open,
                packets: channel.packets as u32,
                bytes: channel.bytes,
                unanswered: channel.unanswered,
                srtt_ns: channel.srtt.0,
            });
        }
        let node = UrmaNodeInfo {
            device: device.to_owned(),
            eid,
            cna: self.node.cna().get(),
            mtu: u32::from(self.node.mtu()),
            jetties: counts.jetties as u32,
            jfrs: counts.jfrs as u32,
            jfcs: counts.jfcs as u32,
            segments: counts.segments as u32,
            requests: counts.requests as u32,
            channels,
        };
        UrmaPage { node: Some(node), next }
    }
}
