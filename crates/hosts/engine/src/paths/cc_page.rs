//! What `burst cc` shows of paths: a page of those that are used, by number.

use crate::paths::Paths;
use burst_control::monitor::CcPeer;

impl Paths {
    /// Used paths from number `from` on, at most `most`, and the number of the next one. `worker`: whose they are;
    /// `uses_selective`: whether it uses selective repeat towards peers that know it.
    pub(crate) fn cc_page(
        &self,
        (worker, uses_selective): (u32, bool),
        from: u32,
        most: usize,
    ) -> (Vec<CcPeer>, Option<u32>) {
        let mut peers = Vec::new();
        for (number, path) in self.iter().enumerate().skip(from as usize).filter(|(_, path)| path.users > 0) {
            if peers.len() == most {
                return (peers, Some(number as u32));
            }
            peers.push(path.cc_peer(worker, uses_selective));
        }
        (peers, None)
    }
}
