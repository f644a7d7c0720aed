//! An executor for tests: its copies are late, in random order, and fail or stop when a test says so. All by seed, in virtual
//! time.

use burst_base::Nanos;
use burst_base::rng::Rng;
use burst_span::{Span, Unreachable};
use burst_transport::{COPIES_PER_CALL, CopyExecutor, CopyProgress, PlacedBytes, Ticket, TicketLine};

/// A copy that was begun.
struct OpenCopy {
    ticket: Ticket,
    span: Span,
    bytes: Vec<u8>,
}

impl OpenCopy {
    fn overlaps(&self, other: &OpenCopy) -> bool {
        let range = |copy: &OpenCopy| (copy.span.as_ptr() as u64, copy.span.as_ptr() as u64 + copy.span.len() as u64);
        let ((a, a_end), (b, b_end)) = (range(self), range(other));
        a < b_end && b < a_end
    }
}

/// See the module.
pub struct Shuffled {
    rng: Rng,
    line: TicketLine,
    open: Vec<OpenCopy>,
    /// When the next copies run; never, if none is open.
    next_at: Nanos,
    /// Longest time from one run to the next.
    late_max: Nanos,
    /// Copies that it does at once, in hundredths.
    at_once: u64,
    /// The copy with this ticket fails.
    pub fails_at: Option<u64>,
    /// Copies do not run any more.
    pub is_stopped: bool,
    /// Copies that ended before an older one.
    pub shuffled: u64,
    /// Most copies that were open at a time.
    pub most_open: usize,
}

impl Shuffled {
    /// An executor for `most` open copies.
    pub fn new(seed: u64, most: usize, late_max: Nanos, at_once: u64) -> Shuffled {
        Shuffled {
            rng: Rng::new(seed),
            line: TicketLine::new(most).expect("memory"),
            open: Vec::new(),
            next_at: Nanos::NEVER,
            late_max,
            at_once,
            fails_at: None,
            is_stopped: false,
            shuffled: 0,
            most_open: 0,
        }
    }

    pub fn next_at(&self) -> Nanos {
        if self.is_stopped { Nanos::NEVER } else { self.next_at }
    }

    pub fn progress(&self) -> CopyProgress {
        self.line.progress()
    }

    pub fn open_copies(&self) -> usize {
        self.open.len()
    }

    /// The engine has noticed that it does not answer any more.
    pub fn die(&mut self) {
        self.is_stopped = true;
        self.open.clear();
        self.line.stop();
    }

    /// Runs some of the copies whose time has come, each of which overlaps no older one.
    pub fn run(&mut self, now: Nanos) {
        if self.next_at() > now {
            return;
        }
        for _ in 0..self.rng.between(1, 8) {
            if self.open.is_empty() {
                break;
            }
            let mut at = self.rng.below(self.open.len() as u64) as usize;
            while let Some(older) = (0..at).find(|&older| self.open[older].overlaps(&self.open[at])) {
                at = older;
            }
            self.run_one(at);
        }
        self.set_time(now);
    }

    fn run_one(&mut self, at: usize) {
        let copy = self.open.remove(at);
        self.shuffled += u64::from(at > 0);
        let is_well = self.fails_at != Some(copy.ticket.0) && copy.span.write_from(&copy.bytes).is_ok();
        self.line.end(copy.ticket, is_well);
    }

    fn set_time(&mut self, now: Nanos) {
        let late = Nanos(self.rng.below(self.late_max.0) + 1);
        self.next_at = if self.open.is_empty() { Nanos::NEVER } else { now + late };
    }

    /// The time at which calls of the queue pair are made.
    pub fn set_now(&mut self, now: Nanos) {
        if !self.open.is_empty() && self.next_at == Nanos::NEVER {
            self.set_time(now);
        }
    }
}

impl CopyExecutor for Shuffled {
    fn has_room(&self) -> bool {
        self.line.room() >= COPIES_PER_CALL
    }

    fn place(&mut self, span: &Span, pieces: &mut dyn Iterator<Item = &[u8]>) -> Result<PlacedBytes, Unreachable> {
        if self.line.progress().failed.is_some() {
            return Err(Unreachable::Gone);
        }
        let bytes: Vec<u8> = pieces.flatten().copied().collect();
        let copy = OpenCopy { ticket: Ticket(0), span: *span, bytes };
        let is_free = !self.open.iter().any(|older| older.overlaps(&copy));
        if is_free && self.rng.below(100) < self.at_once {
            return copy.span.write_from(&copy.bytes).map(|()| PlacedBytes::Done);
        }
        let ticket = self.line.begin().ok_or(Unreachable::Late)?;
        self.open.push(OpenCopy { ticket, ..copy });
        self.most_open = self.most_open.max(self.open.len());
        Ok(PlacedBytes::Begun(ticket))
    }
}
