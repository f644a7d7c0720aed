//! The `udp` port.

use crate::error::PortError;
use crate::spec::UdpSpec;
use crate::{Port, PortCaps, RxSink};
use burst_base::{Nanos, Reason};
use burst_frame::TxBatch;
use std::os::fd::RawFd;

/// UDP sockets on an interface's addresses.
pub struct UdpPort {
    caps: PortCaps,
}

impl UdpPort {
    /// Opens the sockets of worker `worker` of `workers`; `name` is what the user wrote.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn open(spec: &UdpSpec, name: &str, worker: usize, workers: usize) -> Result<UdpPort, PortError> {
        let _ = (spec, name, worker, workers);
        unimplemented!()
    }
}

impl Port for UdpPort {
    fn caps(&self) -> &PortCaps {
        &self.caps
    }
    fn rx_burst(&mut self, _now: Nanos, _budget: usize, _sink: &mut dyn RxSink) -> usize {
        unimplemented!()
    }
    fn tx_burst(&mut self, _now: Nanos, _batch: &TxBatch, _dropped: &mut dyn FnMut(Reason)) {
        unimplemented!()
    }
    fn wait_fds(&self) -> Vec<RawFd> {
        unimplemented!()
    }
}
