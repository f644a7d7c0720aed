//! What is known of a peer's daemon, kept for each path and forgotten with it.
//!
//! A worker asks when the first RC queue pair joins a path, without waiting for the answer: queue pairs use the standard family
//! until it comes. It asks again after [`WAITS`]; then the peer counts as standard for [`STANDARD_FOR`]. A peer that has answered
//! is asked again every [`REFRESH`], because its daemon may have been replaced by one that can do less.

use burst_base::Nanos;
use burst_frame::Flow;
use burst_transport::WINDOW_PSNS;
use burst_wire::hello::{FEATURE_SELECTIVE, Hello};

/// Waits for the answers to the first question and its repetitions.
const WAITS: [Nanos; 3] = [Nanos::from_ms(250), Nanos::from_ms(1_000), Nanos::from_ms(4_000)];
/// Time until a peer that has not answered is asked again.
pub const STANDARD_FOR: Nanos = Nanos::from_ms(600_000);
/// Time until a peer that has answered is asked again.
pub const REFRESH: Nanos = Nanos::from_ms(60_000);

/// What is known of the daemon at the other end of a path.
#[derive(Debug)]
pub(crate) struct PeerHello {
    /// PSNs of the peer's window for the selective repeat family; 0: the standard family is used.
    window: u32,
    boot_id: u64,
    /// The flow of questions, once a queue pair has joined.
    flow: Option<Flow>,
    /// Number of the question that is not answered yet, or 0.
    tid: u64,
    /// Questions without an answer.
    tries: u8,
    /// When to ask, or to give up.
    due: Nanos,
}

impl Default for PeerHello {
    fn default() -> Self {
        PeerHello { window: 0, boot_id: 0, flow: None, tid: 0, tries: 0, due: Nanos::NEVER }
    }
}

impl PeerHello {
    /// PSNs of the peer's window; 0: the standard family is used.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }
    /// A queue pair has joined the path: the peer is asked, unless it was.
    pub(crate) fn join(&mut self, now: Nanos, flow: &Flow) {
        if self.flow.is_none() {
            self.flow = Some(Flow { tos: 0, ..*flow });
            self.due = now;
        }
    }
    pub(crate) fn due(&self) -> Nanos {
        self.due
    }
    /// The time has come: asks with this number, and returns the flow; or gives up.
    pub(crate) fn on_due(&mut self, now: Nanos, tid: u64) -> Option<Flow> {
        let Some(wait) = WAITS.get(usize::from(self.tries)) else {
            (self.window, self.tid, self.tries, self.due) = (0, 0, 0, now + STANDARD_FOR);
            return None;
        };
        (self.tid, self.tries, self.due) = (tid, self.tries + 1, now + *wait);
        self.flow
    }
    /// An answer has come. False if nobody asked.
    pub(crate) fn on_answer(&mut self, now: Nanos, hello: &Hello) -> bool {
        if self.tid == 0 || hello.tid != self.tid {
            return false;
        }
        self.window = if hello.features & FEATURE_SELECTIVE != 0 { hello.window.min(WINDOW_PSNS) } else { 0 };
        (self.boot_id, self.tid, self.tries, self.due) = (hello.boot_id, 0, 0, now + REFRESH);
        true
    }
    /// The peer asks. If its daemon was started anew, or has not answered until now, it is asked soon.
    pub(crate) fn on_question(&mut self, now: Nanos, boot_id: u64) {
        if self.flow.is_some() && boot_id != self.boot_id && self.tid == 0 {
            self.due = now;
        }
    }
    /// The peer does not answer packets of the selective repeat family.
    #[cold]
    pub(crate) fn refused(&mut self, now: Nanos) {
        (self.window, self.tid, self.tries, self.due) = (0, 0, 0, now + STANDARD_FOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(tid: u64) -> Hello {
        Hello { is_answer: true, tid, boot_id: 5, features: FEATURE_SELECTIVE, window: 9999, ..Hello::default() }
    }

    #[test]
    fn a_silent_peer_is_asked_three_times_and_then_counts_as_standard() {
        let mut peer = PeerHello::default();
        peer.join(Nanos(7), &Flow::default());
        let mut asked = Vec::new();
        for tid in 1..=4 {
            let now = peer.due();
            asked.push(peer.on_due(now, tid).map(|_| now.0 / 1_000_000));
        }
        assert_eq!(asked, [Some(0), Some(250), Some(1250), None]);
        assert_eq!((peer.window(), peer.due()), (0, Nanos(7) + Nanos::from_ms(5_250) + STANDARD_FOR));
        // By its question it shows that it can answer by now.
        peer.on_question(Nanos(9), 5);
        assert_eq!(peer.due(), Nanos(9));
    }

    #[test]
    fn only_the_answer_to_the_question_counts_and_only_once() {
        let mut peer = PeerHello::default();
        assert!(!peer.on_answer(Nanos(0), &answer(0)), "nobody asked");
        peer.join(Nanos(0), &Flow::default());
        assert!(peer.on_due(Nanos(0), 77).is_some());
        assert!(!peer.on_answer(Nanos(1), &answer(78)));
        assert!(peer.on_answer(Nanos(1), &answer(77)) && !peer.on_answer(Nanos(1), &answer(77)));
        assert_eq!((peer.window(), peer.due()), (WINDOW_PSNS, Nanos(1) + REFRESH));
        // A question with another boot id brings the next question forward, and changes nothing else.
        peer.on_question(Nanos(2), 5);
        assert_eq!(peer.due(), Nanos(1) + REFRESH);
        peer.on_question(Nanos(2), 6);
        assert_eq!((peer.due(), peer.window()), (Nanos(2), WINDOW_PSNS));
        peer.on_due(Nanos(2), 79);
        assert!(peer.on_answer(Nanos(3), &Hello { features: 0, ..answer(79) }));
        assert_eq!(peer.window(), 0);
    }
}
