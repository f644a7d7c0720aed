//! What `burst cc` shows of paths: a page of those that are used, by number.

use crate::paths::Paths;
use crate::paths::path::Path;
use burst_base::verbs::QpType;
use burst_control::monitor::{CcPeer, CcVariable};

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

impl Path {
    fn cc_peer(&self, worker: u32, uses_selective: bool) -> CcPeer {
        let mut variables = Vec::new();
        let mut add = |name: &'static str, value: f64| {
            variables.push(CcVariable { name: name.into(), millionths: (value * 1e6) as i64 });
        };
        let rate_bps = self.observe(&mut add);
        add("cc_changes", f64::from(self.conditions.changes()));
        add("selective_repeat", f64::from(u8::from(uses_selective && self.hello.window(QpType::Rc) > 0)));
        CcPeer {
            worker,
            device: self.device.index() as u32,
            peer: self.peer,
            queue_pairs: self.users - self.channels.users,
            channels: self.channels.users,
            inflight_bytes: self.inflight(),
            window_bytes: self.window(),
            rate_bps,
            kind: self.peer_kind().name().into(),
            cc: self.params.to_string(),
            is_peers_choice: self.why.is_peers(),
            why: self.why.sentence().into(),
            variables,
        }
    }
}
