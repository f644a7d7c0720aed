//! The budget of the log: how many lines of one message are written in an interval.
//!
//! A program or a peer that repeats what makes a line must not fill the disk. The host bounds the lines of each user's programs
//! (`burst_host::log_limit`); this budget bounds every message, whoever causes it: [`LINES_PER_MESSAGE`] lines of a place in the
//! source in [`INTERVAL`], and all lines at level debug and trace together [`DETAIL_LINES`]. Lines left out are counted, and the
//! counts are logged when the interval has ended. With the some hundred messages of the daemon the table is small. At level info
//! a log grows by the messages that come at all: 512 lines of 200 bytes each in a minute, 150 MB a day for each message that is
//! provoked without end.

use burst_base::Nanos;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The interval in which lines are counted.
const INTERVAL: Nanos = Nanos::from_ms(60_000);
/// Maximum number of lines of one message in an interval. More than what the host's own limit lets one cause write.
const LINES_PER_MESSAGE: u32 = 512;
/// Maximum number of lines at level debug or trace in an interval, of all messages: who looks for a fault sees some hundred
/// requests a second.
const DETAIL_LINES: u32 = 20_000;

const _: () = assert!(LINES_PER_MESSAGE > burst_host::log_limit::LINES_PER_CAUSE, "the host's limit is reached first");

/// Time since the start of the log.
pub fn since(started: Instant) -> Nanos {
    Nanos(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Lines of one message that were left out.
#[derive(Debug, PartialEq, Eq)]
pub struct LinesOfMessage {
    /// The module.
    pub target: &'static str,
    /// File and line of the source.
    pub place: String,
    /// The level.
    pub level: &'static str,
    /// How many.
    pub count: u64,
}

/// A message in the present interval.
#[derive(Debug)]
struct MessageCount {
    metadata: &'static Metadata<'static>,
    admitted: u32,
    left_out: u64,
}

/// Counts of all messages.
#[derive(Debug, Default)]
struct LineBudget {
    /// When the present interval began; `None`: no line since the last one.
    begun: Option<Nanos>,
    counts: HashMap<Identifier, MessageCount>,
    /// Lines at level debug and trace that were admitted.
    detail: u32,
    /// Since the start.
    left_out: u64,
}

impl LineBudget {
    /// Whether a line may be written. A line that may not is counted.
    fn admits(&mut self, now: Nanos, metadata: &'static Metadata<'static>) -> bool {
        let begun = *self.begun.get_or_insert(now);
        if now >= begun + INTERVAL {
            // What was left out stays until it is reported.
            self.counts.retain(|_, count| count.left_out > 0);
            self.counts.values_mut().for_each(|count| count.admitted = 0);
            (self.begun, self.detail) = (Some(now), 0);
        }
        let is_detail = *metadata.level() > Level::INFO;
        let new = MessageCount { metadata, admitted: 0, left_out: 0 };
        let count = self.counts.entry(metadata.callsite()).or_insert(new);
        let admits = match is_detail {
            true => self.detail < DETAIL_LINES,
            false => count.admitted < LINES_PER_MESSAGE,
        };
        if admits {
            count.admitted += 1;
            self.detail += u32::from(is_detail);
        } else {
            count.left_out += 1;
            self.left_out += 1;
        }
        admits
    }

    /// When the lines left out are to be reported; `None`: there are none.
    fn due_at(&self) -> Option<Nanos> {
        let any = self.counts.values().any(|count| count.left_out > 0);
        self.begun.filter(|_| any).map(|begun| begun + INTERVAL)
    }

    /// The lines left out, if the interval has ended. A new interval begins with the next line.
    fn take_left_out(&mut self, now: Nanos) -> Vec<LinesOfMessage> {
        if self.due_at().is_none_or(|due| now < due) {
            return Vec::new();
        }
        (self.begun, self.detail) = (None, 0);
        let counts = self.counts.drain().map(|(_, count)| count).filter(|count| count.left_out > 0);
        let mut all: Vec<LinesOfMessage> = counts.map(lines_of_message).collect();
        all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.place.cmp(&b.place)));
        all
    }
}

fn lines_of_message(MessageCount { metadata, left_out, .. }: MessageCount) -> LinesOfMessage {
    let place = format!("{}:{}", metadata.file().unwrap_or("?"), metadata.line().unwrap_or(0));
    LinesOfMessage { target: metadata.target(), place, level: metadata.level().as_str(), count: left_out }
}

/// The budget as a layer of the log.
#[derive(Clone, Debug)]
pub struct BudgetLayer {
    budget: Arc<Mutex<LineBudget>>,
    started: Instant,
}

impl BudgetLayer {
    /// A budget whose time begins at `started`.
    pub fn new(started: Instant) -> BudgetLayer {
        BudgetLayer { budget: Arc::default(), started }
    }

    fn lock(&self) -> MutexGuard<'_, LineBudget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lines left out since the start.
    pub fn left_out(&self) -> u64 {
        self.lock().left_out
    }

    /// When [`BudgetLayer::take_left_out`] has something.
    pub fn due_at(&self) -> Option<Nanos> {
        self.lock().due_at()
    }

    /// The lines left out in the interval that has ended.
    pub fn take_left_out(&self) -> Vec<LinesOfMessage> {
        self.lock().take_left_out(since(self.started))
    }
}

impl<S: Subscriber> Layer<S> for BudgetLayer {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.lock().admits(since(self.started), event.metadata())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use tracing_subscriber::layer::SubscriberExt;

    /// The metadata of messages, as `tracing` passes them to layers.
    #[derive(Clone, Default)]
    struct Seen(Arc<Mutex<Vec<&'static Metadata<'static>>>>);

    impl<S: Subscriber> Layer<S> for Seen {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            self.0.lock().expect("one thread").push(event.metadata());
        }
    }

    /// Two messages at level info, one at level debug.
    fn messages() -> [&'static Metadata<'static>; 3] {
        let seen = Seen::default();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(seen.clone()), || {
            tracing::info!("one");
            tracing::info!("two");
            tracing::debug!("three");
        });
        let seen = seen.0.lock().expect("one thread");
        [seen[0], seen[1], seen[2]]
    }

    fn admitted(budget: &mut LineBudget, at: Nanos, message: &'static Metadata<'static>, lines: u32) -> u32 {
        (0..lines).map(|_| u32::from(budget.admits(at, message))).sum()
    }

    #[test]
    fn a_message_that_comes_too_often_is_left_out_and_reported_once() {
        let [one, two, _] = messages();
        let mut budget = LineBudget::default();
        let start = Nanos(7);
        assert_eq!(admitted(&mut budget, start, one, 100_000), LINES_PER_MESSAGE);
        assert_eq!(admitted(&mut budget, start, two, 5), 5, "another message");
        assert!(budget.take_left_out(start).is_empty(), "the interval has not ended");
        let end = budget.due_at().expect("lines were left out");
        assert_eq!(end, start + INTERVAL);
        let left_out = budget.take_left_out(end);
        assert_eq!(left_out.len(), 1, "{left_out:?}");
        let count = u64::from(100_000 - LINES_PER_MESSAGE);
        assert!(
            left_out[0].count == count && left_out[0].place.contains("line_budget.rs:") && left_out[0].level == "INFO"
        );
        assert!(budget.take_left_out(end + INTERVAL).is_empty() && budget.left_out == count);
        assert_eq!(admitted(&mut budget, end, one, 1), 1, "a new interval");
    }

    #[test]
    fn without_a_report_a_new_interval_begins_and_the_count_is_kept() {
        let [one, two, _] = messages();
        let mut budget = LineBudget::default();
        admitted(&mut budget, Nanos(0), one, LINES_PER_MESSAGE + 3);
        admitted(&mut budget, Nanos(0), two, 1);
        assert_eq!(admitted(&mut budget, INTERVAL, one, LINES_PER_MESSAGE + 4), LINES_PER_MESSAGE);
        assert_eq!(budget.counts.len(), 1, "messages of the earlier interval are forgotten");
        assert_eq!(budget.take_left_out(INTERVAL + INTERVAL)[0].count, 7);
    }

    #[test]
    fn lines_of_detail_have_one_budget_together() {
        let [one, _, detail] = messages();
        let mut budget = LineBudget::default();
        assert_eq!(admitted(&mut budget, Nanos(0), detail, DETAIL_LINES + 9), DETAIL_LINES);
        assert_eq!(admitted(&mut budget, Nanos(0), one, 1), 1, "they cost others nothing");
    }

    /// A writer that keeps what is written.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("one thread").extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_left_out_do_not_reach_the_writer() {
        let (written, budget) = (Written::default(), BudgetLayer::new(Instant::now()));
        let writer = written.clone();
        let lines = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(budget.clone()).with(lines);
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..LINES_PER_MESSAGE + 11 {
                tracing::info!(number, "the same");
            }
        });
        let written = written.0.lock().expect("one thread").clone();
        let lines = String::from_utf8(written).expect("text").lines().count();
        // On a very slow machine a second interval may begin meanwhile.
        assert_eq!(lines as u64 + budget.left_out(), u64::from(LINES_PER_MESSAGE) + 11);
        assert!(budget.left_out() <= 11 && lines >= LINES_PER_MESSAGE as usize, "{lines}");
    }
}
