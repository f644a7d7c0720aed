//! What `burst cc` shows of one path.

use super::Path;
use burst_base::verbs::QpType;
use burst_control::monitor::{CcPeer, CcVariable};

impl Path {
    /// Controller, window and peer, with what the controller shows of itself.
    pub(in crate::paths) fn cc_peer(&self, worker: u32, uses_selective: bool) -> CcPeer {
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
