//! The parts of a worker that its agent needs: the ports' batches, and the queue pairs' states.

use crate::entry::CmQpRef;
use burst_base::{DeviceId, Nanos, Qpn, Reason};
use burst_cm::{CmIds, ConnAttr, PathRecord};
use burst_port::PortCaps;
use burst_span::Span;

/// The worker, as the agent sees it during one call. The engine implements it over its tables and ports; tests may do with less.
pub trait WorkerAccess {
    /// Appends a packet to the batch of the path's port, and sends the batches first if that one is full. `payload` must stay
    /// valid until the batch has been sent. False if the packet could not be appended.
    fn send(&mut self, now: Nanos, path: &PathRecord, head: &[u8], payload: Span) -> bool;
    /// Address, MTU and link state of the device's port.
    fn caps(&self, device: DeviceId) -> &PortCaps;
    /// Counts a reason at the device.
    fn count(&mut self, device: DeviceId, reason: Reason);
    /// Moves a queue pair from RESET or INIT to RTS. False if it is not this worker's, belongs to another context, is in another
    /// state, or refuses the attributes.
    fn connect_qp(&mut self, now: Nanos, qp: &CmQpRef, path: &PathRecord, conn: &ConnAttr) -> bool;
    /// Moves a queue pair to ERR, if it is this worker's and belongs to the context.
    fn fail_qp(&mut self, now: Nanos, qp: &CmQpRef);
    /// Notes the communication ids of an established connection, for a successor of this process. Only called if the agent was
    /// asked to ([`crate::GsiAgent::note_established`]).
    fn note_connection(&mut self, _qpn: Qpn, _ids: CmIds) {}
    /// Nanoseconds that the creation of a queue pair took, 0 if unknown.
    fn creation_ns(&self, qpn: Qpn) -> u32;
    /// Whether a queue pair of this worker belongs to the context that `qp` names.
    fn owns_qp(&self, qp: &CmQpRef) -> bool;
}
