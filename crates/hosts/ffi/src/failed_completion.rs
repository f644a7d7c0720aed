//! `BURST_EXPLAIN=1`: a failed completion is explained on stderr when the program polls it ([`crate::report`] does so for calls).
//!
//! A poll that found completions looks at one flag, and at their statuses only if it is set. The host is then asked for the
//! record of the queue pair ([`burst_client::explain`]). Of each queue pair one failure is explained: those that follow are
//! flushed requests. A queue pair whose peer does not answer waits up to `HELLO_WAIT` for what the peer's daemon says.

use crate::report;
use burst_base::Reason;
use burst_base::verbs::WcStatus;
use burst_client::explain;
use burst_client::raw::RawContext;
use burst_control::failures::{FailureKind, FailureQuery, FailureRecord};
use burst_control::{Request, Response};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an explanation waits for the peer's daemon.
const HELLO_WAIT: Duration = Duration::from_millis(400);
/// Time between two questions meanwhile.
const HELLO_PAUSE: Duration = Duration::from_millis(20);
/// Most queue pairs whose failure is explained.
const EXPLAINED_MAX: usize = 64;

/// Whether the environment asks for explanations, as it was when a device was opened.
static ASKED: AtomicBool = AtomicBool::new(false);
/// Queue pairs whose failure has been explained.
static EXPLAINED: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Reads the environment: called when a device is opened.
pub fn read_environment() {
    ASKED.store(report::explains(), Ordering::Relaxed);
}

/// Whether explanations are asked for.
#[inline(always)]
pub fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// A completion of a queue pair has this status: explains it if it is a failure.
#[cold]
pub fn completed(context: &RawContext, qpn: u32, status: u32) {
    let flushed = WcStatus::WrFlushErr as u32;
    if status == WcStatus::Success as u32 || status == flushed || !is_first(qpn) {
        return;
    }
    if let Some(record) = ask_until_known(context, qpn) {
        report::line(&format!("queue pair {qpn:#x} has failed\n{}", explain::text(&record).trim_end()));
    }
}

fn is_first(qpn: u32) -> bool {
    let mut explained = EXPLAINED.lock().unwrap_or_else(PoisonError::into_inner);
    let is_new = explained.len() < EXPLAINED_MAX && !explained.contains(&qpn);
    if is_new {
        explained.push(qpn);
    }
    is_new
}

/// The record of a queue pair's failure, once the peer's daemon has answered, or will not.
fn ask_until_known(context: &RawContext, qpn: u32) -> Option<FailureRecord> {
    let end = Instant::now() + HELLO_WAIT;
    loop {
        let record = ask(context, qpn)?;
        let hello = record.qp.as_ref().and_then(|qp| qp.path).map(|path| path.hello);
        let waits = record.reason() == Some(Reason::RetryExhausted)
            && hello.is_some_and(|hello| hello.is_waiting && !hello.answered_since);
        if !waits || Instant::now() >= end {
            return Some(record);
        }
        std::thread::sleep(HELLO_PAUSE);
    }
}

fn ask(context: &RawContext, qpn: u32) -> Option<FailureRecord> {
    let answer = context.call(&Request::Failures(FailureQuery { about: Some(qpn), skip: 0 }), &[]).ok()?;
    let Response::Failures(page) = answer.response else { return None };
    page.records.into_iter().find(|record| record.kind != FailureKind::Present)
}
