//! Connections and listeners of a worker, as `burst cm --connections` shows them.

use crate::agent::GsiAgent;
use crate::entry::{CmEntry, CmProgram};
use burst_base::Nanos;
use burst_cm::conn_view::ConnView;
use burst_cm::service::{PS_IB, PS_UDP, parse_service_id};
use burst_cm::{CmState, Listener};
use burst_control::cm::CmAddr;
use burst_control::monitor::{CmConnection, CmConnectionState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

const fn state_of(state: CmState) -> CmConnectionState {
    match state {
        CmState::ReqSent => CmConnectionState::ReqSent,
        CmState::RepReceived => CmConnectionState::RepReceived,
        CmState::Queued => CmConnectionState::Queued,
        CmState::ReqReceived => CmConnectionState::ReqReceived,
        CmState::RepSent => CmConnectionState::RepSent,
        CmState::Established => CmConnectionState::Established,
        CmState::DreqSent => CmConnectionState::DreqSent,
        CmState::TimeWait => CmConnectionState::TimeWait,
        CmState::SidrSent => CmConnectionState::SidrSent,
        CmState::SidrReceived => CmConnectionState::SidrReceived,
        CmState::SidrDone => CmConnectionState::SidrAnswered,
    }
}

fn space_of(service_id: u64) -> (&'static str, u16) {
    match parse_service_id(service_id) {
        Some((PS_UDP, port)) => ("udp", port),
        Some((PS_IB, port)) => ("ib", port),
        Some((_, port)) => ("tcp", port),
        None => ("", 0),
    }
}

/// An id's program, and the number of the id. Empty if the connection has no id.
fn program_of(entry: Option<&Arc<CmEntry>>) -> (CmProgram, u32) {
    entry.map(|entry| (entry.session.program.clone(), entry.id)).unwrap_or_default()
}

fn connection(now: Nanos, view: &ConnView<'_, Arc<CmEntry>>) -> CmConnection {
    let (space, port) = space_of(view.service_id);
    let (CmProgram { name, pid, uid }, id) = program_of(view.owner);
    let route = view.owner.and_then(|entry| entry.route.get());
    let flow = &view.path.flow;
    // The active end knows the port of the service; the passive end knows both addresses from the header.
    let bare = |ip: IpAddr| CmAddr { ip, port: 0, scope: 0 };
    let local = route.and_then(|r| r.src).unwrap_or_else(|| CmAddr { port, ..bare(flow.src) });
    let peer = route.and_then(|r| r.dst).unwrap_or_else(|| bare(flow.dst));
    CmConnection {
        state: state_of(view.state),
        device: Some(view.path.device.into()),
        local: Some(local),
        peer: Some(peer),
        space: space.into(),
        program: name,
        pid,
        uid: view.owner.map(|_| uid),
        id,
        comm_id: view.comm_id,
        peer_comm_id: view.peer_comm_id,
        qpn: view.qpn,
        peer_qpn: view.peer_qpn,
        since_ns: now.since(view.stepped).0,
    }
}

fn listener(of: &Listener<Arc<CmEntry>>) -> CmConnection {
    let (space, port) = space_of(of.service_id);
    let (CmProgram { name, pid, uid }, id) = program_of(Some(&of.owner));
    let ip = of.addr.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    CmConnection {
        state: CmConnectionState::Listening,
        device: of.device.map(u32::from),
        local: Some(CmAddr { ip, port, scope: 0 }),
        peer: None,
        space: space.into(),
        program: name,
        pid,
        uid: Some(uid),
        id,
        comm_id: 0,
        peer_comm_id: 0,
        qpn: 0,
        peer_qpn: 0,
        since_ns: 0,
    }
}

impl GsiAgent {
    /// Up to `most` connections, beginning at place `from` of the table, and the place of the next one.
    pub fn page(&mut self, now: Nanos, from: u32, most: usize) -> (Vec<CmConnection>, Option<u32>) {
        let mut page = Vec::with_capacity(most);
        let next = self.machine.view(from, most, |view| page.push(connection(now, view)));
        debug_assert!(page.len() <= most && next.is_none_or(|next| next > from), "the next page begins after this one");
        (page, next)
    }

    /// Up to `most` listeners, which are the same in every worker.
    pub fn listeners(&self, most: usize) -> Vec<CmConnection> {
        self.machine.listeners().take(most).map(listener).collect()
    }
}
