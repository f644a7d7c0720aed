//! Times of the steps of connection setup: one set per worker, and one of the control thread. Each set has one writer.
//!
//! A histogram is a row of counters without a lock or a locked instruction: its one writer adds, and any thread may read. The
//! state machine reads no clock and gets the time of the worker's pass, so two steps in one pass are 0 ns apart.

use burst_base::Nanos;
use burst_cm::CmStep;
use burst_control::monitor::{CmStepHistogram, STEP_BUCKETS as BUCKETS};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! phases {
    ($($v:ident $name:literal;)+) => {
        /// A measured part of a connection setup.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        #[allow(missing_docs)] // the names say it
        pub enum CmPhase { $($v),+ }
        /// Names, in order.
        pub const PHASES: &[&str] = &[$($name),+];
    };
}

phases! {
    Address "resolve address";
    Route "resolve route";
    CreateQp "create queue pair";
    Reply "REQ sent to REP received";
    Ready "REP received to RTU sent";
    Accept "REQ received to REP sent";
    Rtu "REP sent to RTU received";
    Establish "REQ to established";
    Disconnect "DREQ sent to DREP received";
    Sidr "SIDR_REQ sent to SIDR_REP received";
    Serve "SIDR_REQ received to SIDR_REP sent";
}

impl CmPhase {
    /// The phase that ends with a step of the protocol, if any.
    pub(crate) fn ended_by(step: CmStep) -> Option<CmPhase> {
        match step {
            CmStep::RepReceived => Some(CmPhase::Reply),
            CmStep::RtuSent => Some(CmPhase::Ready),
            CmStep::RepSent => Some(CmPhase::Accept),
            CmStep::RtuReceived => Some(CmPhase::Rtu),
            CmStep::Established => Some(CmPhase::Establish),
            CmStep::DrepReceived => Some(CmPhase::Disconnect),
            CmStep::SidrRepReceived => Some(CmPhase::Sidr),
            CmStep::SidrRepSent => Some(CmPhase::Serve),
            _ => None,
        }
    }
}

#[derive(Debug)]
struct Histogram {
    count: AtomicU64,
    total: AtomicU64,
    max: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// One set of histograms, one for each phase.
#[derive(Debug)]
pub struct CmTimes {
    phases: Vec<Histogram>,
}

impl Default for CmTimes {
    fn default() -> Self {
        let zero = || Histogram {
            count: AtomicU64::new(0),
            total: AtomicU64::new(0),
            max: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        };
        CmTimes { phases: PHASES.iter().map(|_| zero()).collect() }
    }
}

/// Adds without a locked instruction, because there is one writer.
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

impl CmTimes {
    /// Adds a time to the histogram of a phase. Only the writer may call this.
    pub fn note(&self, phase: CmPhase, time: Nanos) {
        let h = &self.phases[phase as usize];
        add(&h.count, 1);
        add(&h.total, time.0);
        h.max.store(h.max.load(Relaxed).max(time.0), Relaxed);
        add(&h.buckets[CmStepHistogram::bucket(time.0)], 1);
    }

    /// Adds these times to a table with one row per phase; an empty table gets its rows first.
    pub fn add_to(&self, table: &mut Vec<CmStepHistogram>) {
        if table.is_empty() {
            let row = |name: &&str| CmStepHistogram {
                name: (*name).into(),
                buckets: vec![0; BUCKETS],
                ..CmStepHistogram::default()
            };
            table.extend(PHASES.iter().map(row));
        }
        for (row, h) in table.iter_mut().zip(&self.phases) {
            row.count += h.count.load(Relaxed);
            row.total_ns += h.total.load(Relaxed);
            row.max_ns = row.max_ns.max(h.max.load(Relaxed));
            row.buckets.iter_mut().zip(&h.buckets).for_each(|(sum, b)| *sum += b.load(Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_counted_in_its_bucket() {
        let times = CmTimes::default();
        for ns in [0, 1, 2, 3, 1024, u64::MAX] {
            times.note(CmPhase::Rtu, Nanos(ns));
        }
        let mut table = Vec::new();
        times.add_to(&mut table);
        let row = &table[CmPhase::Rtu as usize];
        assert_eq!((row.name.as_str(), row.count, row.max_ns), ("REP sent to RTU received", 6, u64::MAX));
        assert_eq!((&row.buckets[..4], row.buckets[BUCKETS - 1]), (&[1, 1, 1, 1][..], 1));
        assert_eq!(row.buckets[CmStepHistogram::bucket(1024)], 1);
        assert!(table.iter().enumerate().all(|(i, r)| r.count == 0 || i == CmPhase::Rtu as usize));
    }
}
