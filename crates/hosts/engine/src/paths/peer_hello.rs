//! What is known of a peer's daemon, kept for each path and forgotten with it.
//!
//! A worker asks when the first connected queue pair joins a path, without waiting for the answer: queue pairs use the standard
//! family until it comes. It asks again after [`WAITS`]; then the peer counts as standard for [`STANDARD_FOR`]. A peer that has
//! answered is asked again every [`REFRESH`], because its daemon may have been replaced by one that can do less.
//!
//! A daemon that neither uses selective repeat nor has chosen a congestion control for Burst daemons asks only peers that ask.

use burst_base::Nanos;
use burst_base::verbs::QpType;
use burst_cc::{CcChoice, ChoiceRank, Params, PeerChoice};
use burst_control::failures::HelloRecord;
use burst_frame::Flow;
use burst_transport::{Qp, WINDOW_PSNS};
use burst_wire::hello::{
    FEATURE_READ_ACKS, FEATURE_SELECTIVE, FEATURE_UC_RECEIPTS, FEATURE_XRC_SELECTIVE, Hello, HelloCc,
};

/// Waits for the answers to the first question and its repetitions.
const WAITS: [Nanos; 3] = [Nanos::from_ms(250), Nanos::from_ms(1_000), Nanos::from_ms(4_000)];
/// Time until a peer that has not answered is asked again.
pub const STANDARD_FOR: Nanos = Nanos::from_ms(600_000);
/// Time until a peer is asked again that has answered, but whose queue pair did not answer the selective repeat family in time.
/// It doubles each time, up to [`STANDARD_FOR`]: the path may lose just these packets.
const DOUBTED_FOR: Nanos = Nanos::from_ms(1_000);
/// Time until a peer that has answered is asked again.
pub const REFRESH: Nanos = Nanos::from_ms(60_000);
/// Shortest time from an answer to a question about another congestion control.
const CHOICE_PAUSE: Nanos = Nanos::from_ms(1_000);

/// Shortest time from an answer to a question because a queue pair got none.
const FAILURE_PAUSE: Nanos = Nanos::from_ms(50);

/// What is known of the daemon at the other end of a path.
#[derive(Debug)]
pub(crate) struct PeerHello {
    /// PSNs of the peer's window for the selective repeat family, and its `FEATURE_…` bits; 0 and 0: the standard family is used.
    window: u32,
    features: u32,
    boot_id: u64,
    /// The flow of questions, once a queue pair has joined.
    flow: Option<Flow>,
    /// Number of the question that is not answered yet, or 0.
    tid: u64,
    /// Questions without an answer.
    tries: u8,
    /// How often it did not answer the family although it had said that it would.
    doubts: u8,
    /// When to ask, or to give up.
    due: Nanos,
    /// When the last answer came.
    answered_at: Nanos,
    /// Whether the peer is a Burst daemon: it has answered.
    is_burst: bool,
    /// Its choice of a congestion control.
    choice: Option<PeerChoice>,
    /// Whether the path's controller may have to follow.
    choice_is_new: bool,
    /// Whether a question named another choice than the one known. Only the answer to an own question tells for sure.
    choice_is_old: bool,
    /// When an answer showed that the peer's daemon had started anew since the path exists.
    restarted_at: Nanos,
}

impl Default for PeerHello {
    fn default() -> Self {
        PeerHello {
            window: 0,
            features: 0,
            boot_id: 0,
            flow: None,
            tid: 0,
            tries: 0,
            doubts: 0,
            due: Nanos::NEVER,
            answered_at: Nanos(0),
            is_burst: false,
            choice: None,
            choice_is_new: false,
            choice_is_old: false,
            restarted_at: Nanos(0),
        }
    }
}

impl PeerHello {
    /// PSNs of the peer's window for requests of queue pairs of this type; 0: the standard family is used.
    pub(crate) fn window(&self, qp_type: QpType) -> u32 {
        let feature = if qp_type.is_xrc() { FEATURE_XRC_SELECTIVE } else { FEATURE_SELECTIVE };
        if self.features & feature != 0 { self.window } else { 0 }
    }
    /// Tells a queue pair what the peer can do, as far as this daemon `uses` it.
    pub(crate) fn tell(&self, qp: &mut Qp, uses: bool) {
        qp.use_selective(if uses { self.window(qp.qp_type()) } else { 0 });
        qp.use_read_acks(uses && self.features & FEATURE_READ_ACKS != 0);
        qp.use_receipts(uses && self.features & FEATURE_UC_RECEIPTS != 0);
    }
    /// Whether the peer is a Burst daemon, as far as is known.
    pub(crate) fn is_burst(&self) -> bool {
        self.is_burst
    }
    /// Whether the first question may still be answered. UC waits for that: it cannot take back what it has sent too much.
    pub(crate) fn is_first_awaited(&self, now: Nanos) -> bool {
        let is_asked = self.tries == 1 && self.tid != 0;
        !self.is_burst && self.flow.is_some() && (is_asked || self.tries == 0 && self.due <= now)
    }
    /// What the peer's daemon has said, for a record of a failure at `failed_at`.
    pub(crate) fn record(&self, now: Nanos, failed_at: Nanos) -> HelloRecord {
        let ago = |at: Nanos| (at > Nanos(0)).then(|| now.since(at).0);
        HelloRecord {
            asked: self.tid != 0 || self.tries > 0 || self.due != Nanos::NEVER || self.answered_at > Nanos(0),
            is_waiting: self.tid != 0 || self.due <= now + FAILURE_PAUSE,
            answered_ago_ns: ago(self.answered_at),
            restarted_ago_ns: ago(self.restarted_at),
            answered_since: self.answered_at > failed_at,
        }
    }
    /// A queue pair got no answer: whether the peer's daemon answers tells why. It is asked again, [`FAILURE_PAUSE`] after its
    /// last answer at the earliest, because many queue pairs may fail at once.
    #[cold]
    pub(crate) fn ask_after_failure(&mut self, now: Nanos) {
        if self.flow.is_some() && self.tid == 0 && self.due != Nanos::NEVER {
            self.due = self.due.min(now.max(self.answered_at + FAILURE_PAUSE));
        }
    }
    /// The peer's choice of a congestion control.
    pub(crate) fn choice(&self) -> Option<&PeerChoice> {
        self.choice.as_ref()
    }
    /// Whether something has changed that decides about the path's controller, since this was last asked.
    pub(crate) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.choice_is_new)
    }
    /// Whether the peer may have another choice by now.
    pub(crate) fn is_choice_old(&self) -> bool {
        self.choice_is_old
    }
    /// A queue pair has joined the path: the peer is asked if this daemon `asks`, unless it was.
    pub(crate) fn join(&mut self, now: Nanos, flow: &Flow, asks: bool) {
        if self.flow.is_none() {
            self.flow = Some(Flow { tos: 0, ..*flow });
            self.due = if asks { now } else { Nanos::NEVER };
        }
    }
    /// The peer is asked now: what it said may be old, or this daemon has something new to say.
    pub(crate) fn ask_now(&mut self, now: Nanos) {
        if self.flow.is_some() && self.tid == 0 {
            self.due = now;
        }
    }
    /// A message of the connection manager says that the peer is a Burst daemon. Anybody can forge its sender, so it only makes
    /// the peer worth a question: the answer, which no other host can give, makes it one.
    pub(crate) fn on_vendor_id(&mut self, now: Nanos) {
        if !self.is_burst {
            self.ask_now(now);
        }
    }
    pub(crate) fn due(&self) -> Nanos {
        self.due
    }
    /// The time has come: asks with this number, and returns the flow; or gives up.
    pub(crate) fn on_due(&mut self, now: Nanos, tid: u64) -> Option<Flow> {
        let Some(wait) = WAITS.get(usize::from(self.tries)) else {
            self.refused(now);
            return None;
        };
        (self.tid, self.tries, self.due) = (tid, self.tries + 1, now + *wait);
        self.flow
    }
    /// An answer has come. False if it was not asked for.
    pub(crate) fn on_answer(&mut self, now: Nanos, hello: &Hello, own_boot_id: u64) -> bool {
        if self.tid == 0 || hello.tid != self.tid {
            return false;
        }
        if self.boot_id != 0 && hello.boot_id != self.boot_id {
            self.restarted_at = now;
        }
        (self.window, self.features) = (hello.window.min(WINDOW_PSNS), hello.features);
        (self.boot_id, self.tid, self.tries, self.due) = (hello.boot_id, 0, 0, now + REFRESH);
        self.answered_at = now;
        let is_lower = hello.boot_id < own_boot_id;
        let choice = choice_of(&hello.cc).map(|choice| PeerChoice { choice, is_lower });
        self.choice_is_new |= !self.is_burst || choice != self.choice;
        (self.is_burst, self.choice, self.choice_is_old) = (true, choice, false);
        true
    }
    /// Somebody else has asked: the answer is `hello`, whatever its number.
    pub(crate) fn know(&mut self, now: Nanos, hello: &Hello, own_boot_id: u64) {
        self.tid = hello.tid.max(1);
        self.on_answer(now, &Hello { tid: self.tid, ..*hello }, own_boot_id);
    }
    /// The peer asks. If its daemon was started anew, or has not answered until now, it is asked soon.
    ///
    /// Another congestion control than the one known is asked for, too, but not at once again and again: each change gives the
    /// path a new controller.
    pub(crate) fn on_question(&mut self, now: Nanos, hello: &Hello) {
        if self.flow.is_none() || self.tid != 0 {
            return;
        }
        if hello.boot_id != self.boot_id {
            self.due = now;
        } else if choice_of(&hello.cc) != self.choice.map(|peer| peer.choice) {
            self.choice_is_old = true;
            self.due = self.due.min(now.max(self.answered_at + CHOICE_PAUSE));
        }
    }
    /// The peer has said that it can do the selective repeat family, and a queue pair got no answer to it: the standard family is
    /// used until the peer has said it again. Its daemon may be another by now, or the network may be slower than the timers.
    #[cold]
    pub(crate) fn doubted(&mut self, now: Nanos) {
        if !self.is_burst {
            return;
        }
        let wait = Nanos((DOUBTED_FOR.0 << self.doubts.min(10)).min(STANDARD_FOR.0));
        self.doubts = self.doubts.saturating_add(1);
        self.refused(now);
        self.due = now + wait;
    }
    /// The peer does not answer questions: it counts as standard.
    #[cold]
    pub(crate) fn refused(&mut self, now: Nanos) {
        (self.window, self.features) = (0, 0);
        (self.tid, self.tries, self.due) = (0, 0, now + STANDARD_FOR);
        self.choice_is_new |= self.is_burst;
        (self.is_burst, self.choice) = (false, None);
    }
}

/// The choice in a hello. `None` if there is none that this version understands; each daemon then keeps to its own.
fn choice_of(cc: &HelloCc) -> Option<CcChoice> {
    let rank = ChoiceRank::from_code(cc.rank)?;
    Some(CcChoice::new(Params::parse(cc.text(), 0).ok()?, rank))
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
        peer.join(Nanos(7), &Flow::default(), true);
        let mut asked = Vec::new();
        for tid in 1..=4 {
            let now = peer.due();
            asked.push(peer.on_due(now, tid).map(|_| now.0 / 1_000_000));
        }
        assert_eq!(asked, [Some(0), Some(250), Some(1250), None]);
        assert_eq!((peer.window(QpType::Rc), peer.due()), (0, Nanos(7) + Nanos::from_ms(5_250) + STANDARD_FOR));
        // By its question it shows that it can answer by now.
        peer.on_question(Nanos(9), &answer(0));
        assert_eq!(peer.due(), Nanos(9));
    }

    #[test]
    fn only_the_answer_to_the_question_counts_and_only_once() {
        let mut peer = PeerHello::default();
        assert!(!peer.on_answer(Nanos(0), &answer(0), 9), "not asked for");
        peer.join(Nanos(0), &Flow::default(), true);
        assert!(peer.on_due(Nanos(0), 77).is_some());
        assert!(!peer.on_answer(Nanos(1), &answer(78), 9));
        assert!(peer.on_answer(Nanos(1), &answer(77), 9) && !peer.on_answer(Nanos(1), &answer(77), 9));
        assert_eq!((peer.window(QpType::Rc), peer.due()), (WINDOW_PSNS, Nanos(1) + REFRESH));
        // A question with another boot id brings the next question forward, and changes nothing else.
        peer.on_question(Nanos(2), &answer(0));
        assert_eq!(peer.due(), Nanos(1) + REFRESH);
        peer.on_question(Nanos(2), &Hello { boot_id: 6, ..answer(0) });
        assert_eq!((peer.due(), peer.window(QpType::Rc)), (Nanos(2), WINDOW_PSNS));
        peer.on_due(Nanos(2), 79);
        assert!(peer.on_answer(Nanos(3), &Hello { features: 0, ..answer(79) }, 9));
        assert_eq!(peer.window(QpType::Rc), 0);
    }

    #[test]
    fn each_service_uses_the_family_only_if_the_peer_accepts_it_there() {
        let windows = |features| {
            let mut peer = PeerHello::default();
            peer.join(Nanos(0), &Flow::default(), true);
            peer.on_due(Nanos(0), 77);
            assert!(peer.on_answer(Nanos(1), &Hello { features, window: 500, ..answer(77) }, 9));
            let windows = [QpType::Rc, QpType::XrcSend].map(|qp_type| peer.window(qp_type));
            peer.refused(Nanos(2));
            assert_eq!((peer.window(QpType::Rc), peer.window(QpType::XrcSend)), (0, 0));
            windows
        };
        assert_eq!(windows(FEATURE_SELECTIVE), [500, 0]);
        assert_eq!(windows(FEATURE_XRC_SELECTIVE), [0, 500]);
        assert_eq!(windows(FEATURE_SELECTIVE | FEATURE_XRC_SELECTIVE), [500; 2]);
        assert_eq!(windows(0), [0; 2]);
    }

    #[test]
    fn a_peer_that_had_answered_is_asked_again_soon_and_then_later_and_later() {
        let mut peer = PeerHello::default();
        peer.join(Nanos(0), &Flow::default(), true);
        let mut waits = Vec::new();
        for _ in 0..12 {
            let now = peer.due();
            assert!(peer.on_due(now, 77).is_some() && peer.on_answer(now, &answer(77), 9));
            peer.doubted(now);
            waits.push(peer.due().since(now).0 / 1_000_000_000);
            // Another queue pair of the path gives up as well.
            peer.doubted(now + Nanos(5));
            assert_eq!((peer.window(QpType::Rc), peer.due()), (0, now + Nanos(1_000_000_000 * waits[waits.len() - 1])));
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]);
    }

    #[test]
    fn another_congestion_control_is_asked_for_with_a_pause() {
        let (mut peer, flow) = (PeerHello::default(), Flow::default());
        let swift = |rank| Hello { cc: HelloCc::new(rank, "swift"), ..answer(1) };
        peer.join(Nanos(0), &flow, false);
        assert_eq!(peer.due(), Nanos::NEVER, "this daemon has no reason to ask");
        peer.on_question(Nanos(3), &swift(1));
        assert_eq!(peer.due(), Nanos(3), "the peer has one");
        peer.on_due(Nanos(3), 1);
        assert!(peer.on_answer(Nanos(4), &swift(1), 9) && peer.take_change() && !peer.take_change());
        let choice = *peer.choice().expect("a choice");
        assert_eq!(
            (choice.choice.params.to_string(), choice.choice.rank, choice.is_lower),
            ("swift".into(), ChoiceRank::Configured, true)
        );
        peer.on_question(Nanos(5), &swift(1));
        assert_eq!(peer.due(), Nanos(4) + REFRESH, "nothing new");
        assert!(!peer.is_choice_old());
        peer.on_question(Nanos(5), &swift(2));
        assert_eq!((peer.due(), peer.is_choice_old()), (Nanos(4) + CHOICE_PAUSE, true));
        // A choice that this version does not know is none.
        peer.on_due(peer.due(), 1);
        peer.on_answer(Nanos(6), &Hello { cc: HelloCc::new(1, "tomorrow:x=1"), ..answer(1) }, 9);
        assert!(peer.choice().is_none() && peer.take_change() && peer.is_burst() && !peer.is_choice_old());
        peer.refused(Nanos(7));
        assert!(!peer.is_burst() && peer.take_change());
    }

    #[test]
    fn a_vendor_id_of_the_connection_manager_makes_a_silent_peer_worth_asking_again() {
        let mut peer = PeerHello::default();
        peer.on_vendor_id(Nanos(1));
        assert_eq!(peer.due(), Nanos::NEVER, "no queue pair has joined");
        peer.join(Nanos(3), &Flow::default(), true);
        peer.refused(Nanos(3));
        peer.on_vendor_id(Nanos(4));
        assert_eq!((peer.due(), peer.is_burst(), peer.take_change()), (Nanos(4), false, false), "anybody can forge it");
        // Requests that follow do not ask again: a peer may send any number of them.
        peer.on_due(Nanos(4), 5);
        peer.on_vendor_id(Nanos(5));
        assert!(peer.due() > Nanos(5));
        assert!(peer.on_answer(Nanos(6), &answer(5), 9) && peer.is_burst());
        peer.on_vendor_id(Nanos(7));
        assert_eq!(peer.due(), Nanos(6) + REFRESH, "it is known");
    }
}
