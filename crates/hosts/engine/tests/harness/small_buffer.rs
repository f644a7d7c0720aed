//! A receive buffer that is small: it loses what comes while its program does not run.

use burst_base::{Nanos, Reason};
use burst_frame::{RxFrame, TxBatch};
use burst_port::mem::MemPort;
use burst_port::{Port, PortCaps, ReceivePressure, RxSink};
use std::os::fd::RawFd;

/// A port with a receive buffer of `room` frames, which keeps what comes first and loses the rest, as a socket does while its
/// program does not run.
pub struct SmallBuffer {
    inner: MemPort,
    room: usize,
    reported: ReceivePressure,
}

/// Takes the frames that have arrived since the program ran.
struct Arrived<'a> {
    room: usize,
    taken: usize,
    sink: &'a mut dyn RxSink,
}

impl SmallBuffer {
    /// A buffer of `room` frames behind this port.
    pub fn new(inner: MemPort, room: usize) -> SmallBuffer {
        SmallBuffer { inner, room, reported: ReceivePressure::Free }
    }
}

impl RxSink for Arrived<'_> {
    fn frame(&mut self, frame: &RxFrame<'_>) {
        self.taken += 1;
        if self.taken > self.room { self.sink.dropped(Reason::ReceiveOverflow) } else { self.sink.frame(frame) }
    }
    fn dropped(&mut self, reason: Reason) {
        self.sink.dropped(reason);
    }
}

impl Port for SmallBuffer {
    fn caps(&self) -> &PortCaps {
        self.inner.caps()
    }
    fn rx_burst(&mut self, now: Nanos, _budget: usize, sink: &mut dyn RxSink) -> usize {
        let mut arrived = Arrived { room: self.room, taken: 0, sink };
        self.inner.rx_burst(now, usize::MAX, &mut arrived);
        let taken = arrived.taken.min(self.room);
        let level = ReceivePressure::of(taken as u64, self.room as u64);
        if level != self.reported {
            self.reported = level;
            sink.pressure(level);
        }
        taken
    }
    fn tx_burst(&mut self, now: Nanos, batch: &TxBatch, dropped: &mut dyn FnMut(Reason)) {
        self.inner.tx_burst(now, batch, dropped);
    }
    fn wait_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }
    fn next_event(&self) -> Nanos {
        self.inner.next_event()
    }
}
