//! Records of connections that failed, for `burst why`: a program sees a number, and not what it means.

use crate::entry::CmEntry;
use burst_base::Nanos;
use burst_cm::ConnEventKind;
use burst_cm::message::reject;
use burst_control::cm::{CmRoute, PortSpace};
use burst_control::failures::{FailedProgram, FailureKind, FailureRecord};
use std::sync::atomic::Ordering::Relaxed;

/// The record of a connection that an event ends; `None`: the event is no failure.
#[cold]
pub(crate) fn record_of(
    now: Nanos,
    owner: &CmEntry,
    (kind, status): (ConnEventKind, i32),
    route: &CmRoute,
) -> Option<FailureRecord> {
    let peer = route.dst.map_or_else(|| "the peer".to_owned(), |dst| format!("{} port {}", dst.ip, dst.port));
    let space = match owner.ps {
        PortSpace::Tcp => "RDMA_PS_TCP",
        PortSpace::Udp => "RDMA_PS_UDP",
        PortSpace::Ib => "RDMA_PS_IB",
    };
    let sentence = match kind {
        ConnEventKind::Rejected if status == i32::from(reject::INVALID_SERVICE_ID) => {
            format!("No program listens on {peer} in port space {space}: the peer's host answered so")
        }
        ConnEventKind::Rejected if status == i32::from(reject::CONSUMER) => {
            format!("The program at {peer} rejected the connection")
        }
        ConnEventKind::Rejected => {
            let why = u16::try_from(status).map_or("a reason that the specification does not know", reject::explain);
            format!("The peer's host rejected the connection to {peer}: {why} (REJ reason {status})")
        }
        ConnEventKind::Unreachable => format!("No answer to the connection request to {peer} came in time"),
        ConnEventKind::ConnectError => format!("The queue pair of the connection to {peer} could not be moved to RTS"),
        _ => return None,
    };
    let program = &owner.session.program;
    Some(FailureRecord {
        ago_ns: now.0,
        kind: FailureKind::Connection,
        program: FailedProgram { name: program.name.clone(), pid: program.pid, uid: program.uid },
        reason: None,
        status: 0,
        errno: status,
        sentence,
        repeats: 0,
        comm_id: owner.conn.load(Relaxed),
        qp: None,
        jetty: None,
    })
}
