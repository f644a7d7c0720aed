//! A worker's connection manager: the machine, the MADs that came and those that leave, the events to write.

use super::channel::{CmChannel, News, RECORDS_PER_WRITE};
use super::effects::CmFx;
use super::entry::CmEntry;
use super::late::LateNews;
use super::probes::Setups;
use super::stats::CmTimes;
use crate::worker::{BATCH_FRAMES, Worker};
use burst_base::{DeviceId, Nanos, Psn, Reason};
use burst_cm::{Cm, PathRecord, Secret};
use burst_frame::Flow;
use burst_span::Span;
use burst_wire::MAD_LEN;
use std::collections::VecDeque;
use std::sync::Arc;

/// MADs that wait, of all ports; what comes beyond is dropped and counted.
const ARRIVED_MAX: usize = 4096;
/// MADs served in one pass.
const MADS_PER_PASS: usize = 512;
/// MADs served in a pass in which data came: in a flood of requests, established queue pairs still get most of the worker's
/// time.
const MADS_BESIDE_DATA: usize = 16;
/// Overdue connections served in one pass.
const TIMERS_PER_PASS: usize = 256;
/// Timers wait so long for packets that have come and are not read yet: the answers may be among them.
const UNREAD_MAX: Nanos = Nanos::from_ms(250);
/// Full channels are tried again after this time.
const RETRY_AFTER: Nanos = Nanos::from_ms(1);
/// A MAD on its way from the port to the machine.
pub(crate) struct Arrived {
    device: DeviceId,
    flow: Flow,
    bytes: [u8; MAD_LEN],
}

/// Buffers of MADs that leave. There are more than all batches can hold, so a buffer is used again only after the
/// batch that points to it has left.
pub(super) struct MadRing {
    buffers: Box<[[u8; MAD_LEN]]>,
    next: usize,
    pub psn: Psn,
}

impl MadRing {
    fn new(ports: usize) -> MadRing {
        let buffers = vec![[0; MAD_LEN]; (BATCH_FRAMES * ports.max(1)).next_power_of_two() * 2].into_boxed_slice();
        MadRing { buffers, next: 0, psn: Psn::new(0) }
    }

    pub fn put(&mut self, mad: &[u8; MAD_LEN]) -> Span {
        self.next = (self.next + 1) % self.buffers.len();
        let buffer = &mut self.buffers[self.next];
        *buffer = *mad;
        // SAFETY: the buffer lives as long as the worker, is never moved (it is boxed), and is written again only after
        // twice as many MADs as all batches can hold, so after the batch with this span has been sent.
        unsafe { Span::local(buffer.as_mut_ptr(), MAD_LEN as u32) }
    }
}

/// See the module.
pub struct CmHost {
    pub(super) machine: Cm<Arc<CmEntry>>,
    pub(super) rest: Rest,
    arrived: VecDeque<Arrived>,
    /// When timers were served last, or nothing was unread.
    timed: Nanos,
    pub(crate) secret: Secret,
}

/// The host without the machine, so that effects can use it while the machine runs.
pub(super) struct Rest {
    pub worker_id: u32,
    pub mads: MadRing,
    /// Events of this pass.
    pub events: Vec<News>,
    /// Channels whose programs do not read.
    owed: Vec<Arc<CmChannel>>,
    retry_at: Nanos,
    /// Ends of time-wait that are not told yet.
    pub late: LateNews,
    pub times: Arc<CmTimes>,
    pub setups: Setups,
    /// GUIDs of the devices.
    pub guids: Vec<u64>,
}

impl CmHost {
    /// The host of worker `worker`.
    pub(crate) fn new(worker: u32, secret: Secret, ports: usize) -> CmHost {
        let rest = Rest {
            worker_id: worker,
            mads: MadRing::new(ports),
            events: Vec::with_capacity(256),
            owed: Vec::new(),
            retry_at: Nanos::NEVER,
            late: LateNews::new(),
            times: Arc::default(),
            setups: Setups::new(),
            guids: vec![0; ports],
        };
        CmHost { machine: Cm::new(worker, secret), rest, arrived: VecDeque::new(), timed: Nanos(0), secret }
    }

    /// Keeps a MAD until its turn, after the receive burst.
    pub(crate) fn arrive(&mut self, device: DeviceId, flow: &Flow, bytes: &[u8; MAD_LEN]) -> Result<(), Reason> {
        if self.arrived.len() == ARRIVED_MAX {
            return Err(Reason::MadQueueFull);
        }
        self.arrived.push_back(Arrived { device, flow: *flow, bytes: *bytes });
        Ok(())
    }

    /// Gives back room that is not in use.
    pub(crate) fn shrink(&mut self) {
        self.machine.shrink();
        self.arrived.shrink_to_fit();
    }

    /// When the worker must look at its connections.
    pub(crate) fn next_deadline(&self) -> Nanos {
        if !self.arrived.is_empty() {
            return Nanos(0);
        }
        self.machine.next_deadline().min(self.rest.retry_at).min(self.rest.late.due)
    }
}

impl Worker {
    /// Gives the machine what came and what is due.
    pub(crate) fn run_cm(&mut self, now: Nanos) -> bool {
        let Some(host) = &self.core.cm else { return false };
        if host.next_deadline() > now {
            return false;
        }
        let budget = if std::mem::take(&mut self.core.data_came) { MADS_BESIDE_DATA } else { MADS_PER_PASS };
        let unread = self.core.unread;
        self.with_cm(now, |host, worker| {
            let CmHost { machine, rest, arrived, timed, .. } = host;
            for Arrived { device, flow, bytes } in arrived.drain(..arrived.len().min(budget)) {
                // The way of an answer.
                let back = Flow { src: flow.dst, dst: flow.src, tos: flow.tos & !3, ..flow };
                machine.on_mad(now, &PathRecord { device, flow: back }, &bytes, &mut CmFx { now, worker, rest });
            }
            if (!unread && arrived.is_empty()) || now.since(*timed) > UNREAD_MAX {
                *timed = now;
                machine.on_timer(now, TIMERS_PER_PASS, &mut CmFx { now, worker, rest });
            }
        });
        self.flush_all(now);
        true
    }

    /// Takes the host out of the worker, so that both can be used; writes the events afterwards.
    pub(super) fn with_cm<T>(&mut self, now: Nanos, f: impl FnOnce(&mut CmHost, &mut Worker) -> T) -> Option<T> {
        let mut host = self.core.cm.take()?;
        let result = f(&mut host, self);
        host.rest.setups.tell();
        let lost = host.rest.publish(now);
        for _ in 0..lost {
            self.ports[0].counters.count(Reason::CmEventLost);
        }
        self.core.cm = Some(host);
        Some(result)
    }

    /// Times of the steps, for the control thread.
    pub fn cm_times(&self) -> Option<Arc<CmTimes>> {
        self.core.cm.as_ref().map(|host| host.rest.times.clone())
    }

    /// Connections in any state.
    pub fn cm_connections(&self) -> u32 {
        self.core.cm.as_ref().map_or(0, |host| host.machine.len())
    }

    /// GUIDs of the devices, by port; they go into requests and replies.
    pub fn set_guids(&mut self, guids: Vec<u64>) {
        if let Some(host) = &mut self.core.cm {
            host.rest.guids = guids;
        }
    }
}

impl Rest {
    /// Writes the events; returns how many were lost.
    fn publish(&mut self, now: Nanos) -> usize {
        if self.late.due <= now {
            let Rest { late, events, .. } = self;
            late.tell(now, |news| events.push(news));
        }
        let mut lost = 0;
        let mut at = 0;
        while at < self.events.len() {
            let channel = self.events[at].channel.clone();
            let same =
                self.events[at..].iter().take(RECORDS_PER_WRITE).take_while(|n| Arc::ptr_eq(&n.channel, &channel));
            let count = same.count();
            if channel.write_news(&self.events[at..at + count]).is_err() {
                lost += count;
            }
            if channel.has_backlog() {
                self.owe(now, channel);
            }
            at += count;
        }
        self.events.clear();
        if self.retry_at <= now {
            self.retry(now);
        }
        lost
    }

    /// Remembers a channel that is full.
    pub fn owe(&mut self, now: Nanos, channel: Arc<CmChannel>) {
        if !self.owed.iter().any(|c| Arc::ptr_eq(c, &channel)) {
            self.owed.push(channel);
            self.retry_at = now + RETRY_AFTER;
        }
    }

    fn retry(&mut self, now: Nanos) {
        self.owed.retain(|channel| {
            channel.retry();
            channel.has_backlog()
        });
        self.retry_at = if self.owed.is_empty() { Nanos::NEVER } else { now + RETRY_AFTER };
    }
}
