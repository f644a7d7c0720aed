//! The daemon's status page: which workers sleep. One sealed memfd, mapped read-only by every application.
//!
//! A worker that finds nothing to do announces its sleep, looks at every doorbell once more, and only then waits
//! on its descriptors. An application rings first and looks at the worker's word afterwards. Whichever way the two
//! interleave, the worker sees the bell or the application sees the sleeper ([`crate::protocol`]).
use crate::area::Area;
use crate::arena::{Segment, SegmentError};
use crate::layout::{ABI_VERSION, CONTEXT_MAGIC, StatusPage, WORKER_MAX, WorkerStatus};
use crate::protocol;
use core::mem::{offset_of, size_of};
use core::sync::atomic::Ordering::{Acquire, Release};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

const WORKERS: usize = offset_of!(StatusPage, workers);
const BYTES: usize = size_of::<StatusPage>();

/// Offset of the word of a worker.
#[inline]
const fn sleeping_at(worker: usize) -> usize {
    WORKERS + worker * size_of::<WorkerStatus>()
}

/// The daemon's end of the status page.
#[derive(Debug)]
pub struct StatusOwner {
    area: Area,
}

impl StatusOwner {
    /// Makes the page. No other process can map it writable.
    pub fn create() -> Result<StatusOwner, SegmentError> {
        let segment = Arc::new(Segment::create_read_only_for_others(BYTES.next_multiple_of(4096))?);
        let area = Area::new(&segment, 0, BYTES).ok_or(SegmentError::BadSize)?;
        area.word32(offset_of!(StatusPage, version)).store(ABI_VERSION, Release);
        area.word32(offset_of!(StatusPage, magic)).store(CONTEXT_MAGIC, Release);
        Ok(StatusOwner { area })
    }
    /// The descriptor to give to applications.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.area.segment().fd()
    }
    /// The sleep flag of a worker. None when `worker` is [`WORKER_MAX`] or more.
    pub fn sleep_flag(&self, worker: usize) -> Option<SleepFlag> {
        const { assert!(sleeping_at(WORKER_MAX - 1) + size_of::<WorkerStatus>() <= BYTES) };
        (worker < WORKER_MAX).then(|| SleepFlag { area: self.area.clone(), offset: sleeping_at(worker) })
    }
}

/// The word of one worker that says whether the worker sleeps.
#[derive(Debug)]
pub struct SleepFlag {
    area: Area,
    offset: usize,
}

impl SleepFlag {
    /// Announces sleep. The worker must look at every doorbell once more before it waits; if one rings, call
    /// [`SleepFlag::awake`].
    pub fn set_sleeping(&self) {
        protocol::go_to_sleep(self.area.word32(self.offset));
    }
    /// Announces that this worker looks at its doorbells again.
    pub fn awake(&self) {
        self.area.word32(self.offset).store(0, Release);
    }
}

/// The application's view, read-only.
#[derive(Clone, Debug)]
pub struct WorkerView {
    area: Area,
}

impl WorkerView {
    /// Maps the page that the daemon sent. Refused when it is not sealed, too small, or of another version.
    pub fn map(fd: OwnedFd) -> Result<WorkerView, SegmentError> {
        let segment = Arc::new(Segment::map_read_only(fd)?);
        let area = Area::new(&segment, 0, BYTES).ok_or(SegmentError::BadSize)?;
        let magic = area.word32(offset_of!(StatusPage, magic)).load(Acquire);
        let version = area.word32(offset_of!(StatusPage, version)).load(Acquire);
        if magic != CONTEXT_MAGIC || version != ABI_VERSION {
            return Err(SegmentError::BadVersion);
        }
        Ok(WorkerView { area })
    }
    /// Whether the descriptor of the worker must be written after a ring.
    #[inline]
    pub fn needs_wake(&self, worker: usize) -> bool {
        worker < WORKER_MAX && protocol::needs_wake(self.area.word32(sleeping_at(worker)))
    }
}
