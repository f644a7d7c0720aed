//! Records of requests and receives of Jetties that have failed, for `burst why`: made of the completion, the channel to the peer
//! and the path, and kept beside those of queue pairs.

use crate::failures::path_record;
use crate::ring::{OwnedSince, RingOwner, RingQuery};
use crate::urma::endpoint::UrmaEndpoint;
use crate::urma::endpoint::address_at;
use crate::urma::endpoints::UrmaShared;
use burst_base::Nanos;
use burst_control::failures::{FailedProgram, FailureKind, FailureRecord, JettyChannelRecord, JettyRecord};
use burst_ledger::AccountId;
use burst_urma::{CompletionRecord, CrStatus};

/// A failed request or receive of a program.
pub(crate) struct JettyFailure {
    /// The program's context.
    pub context: u32,
    /// How it has ended.
    pub completion: CompletionRecord,
    /// When its Jetty was made. `None`: it is a receive queue's.
    pub since: Option<Nanos>,
}

/// Whether a completion reports a failure of its own, not the end of a Jetty that has failed before.
pub(crate) const fn is_failure(status: CrStatus) -> bool {
    !matches!(
        status,
        CrStatus::Success | CrStatus::FlushErr | CrStatus::SuspendDone | CrStatus::FlushErrDone | CrStatus::Unhandled
    )
}

/// Keeps the record of a failure.
#[cold]
#[inline(never)]
pub(crate) fn note(failure: &JettyFailure, endpoint: &UrmaEndpoint, shared: &mut UrmaShared<'_>) {
    if failure.completion.status == CrStatus::AckTimeout {
        ask_peer(&failure.completion, endpoint, shared);
    }
    let context = shared.contexts.get(failure.context as usize).and_then(Option::as_ref);
    let unknown = AccountId::User(u32::MAX);
    let account = context.map_or(&unknown, |context| context.account.id());
    let record = FailureRecord {
        ago_ns: shared.now.0,
        kind: FailureKind::Request,
        program: context.map_or_else(FailedProgram::default, |context| context.program.clone()),
        reason: None,
        status: 0,
        errno: 0,
        sentence: String::new(),
        repeats: 0,
        comm_id: 0,
        qp: None,
        jetty: Some(Box::new(jetty_record(&failure.completion, endpoint, shared))),
    };
    if let (Some(excerpts), Some(since)) = (shared.excerpts.as_deref_mut(), failure.since) {
        let owner = RingOwner::Jetty(failure.completion.local_id, endpoint.address());
        let of = RingQuery { device: endpoint.device(), owner, since: OwnedSince::Time(since) };
        excerpts.note(shared.now, of, record.program.uid, account);
        *shared.retry_at = (*shared.retry_at).min(shared.now + Nanos(1));
    }
    shared.failures.push(account, record);
}

/// Asks a peer that does not answer for a hello: whether its daemon answers is half of the cause.
fn ask_peer(cr: &CompletionRecord, endpoint: &UrmaEndpoint, shared: &mut UrmaShared<'_>) {
    let peer = cr.remote.map(|(peer, _)| address_at(peer));
    let at = peer.and_then(|peer| shared.tables.paths.find(endpoint.device(), peer));
    if let Some(at) = at
        && let Some(path) = shared.tables.paths.get_mut(at as usize)
        && let Some((hellos, _)) = &mut shared.tables.hellos
    {
        path.hello.ask_after_failure(shared.now);
        hellos.times.note(at, path);
    }
}

fn jetty_record(cr: &CompletionRecord, endpoint: &UrmaEndpoint, shared: &UrmaShared<'_>) -> JettyRecord {
    let channel =
        cr.remote.and_then(|(peer, _)| endpoint.node.channels_from(peer).find(|channel| channel.peer == peer));
    let peer = cr.remote.map(|(peer, _)| address_at(peer));
    let path = peer.and_then(|peer| shared.tables.paths.find(endpoint.device(), peer));
    let path = path.and_then(|at| shared.tables.paths.get(at as usize));
    JettyRecord {
        device: endpoint.device().index() as u32,
        jetty: cr.local_id,
        local: endpoint.address(),
        peer,
        peer_jetty: cr.remote.map_or(0, |(_, jetty)| jetty),
        operation: format!("{:?}", cr.opcode),
        is_receive: cr.is_receive,
        length: cr.len,
        status: cr.status as u8,
        channel: channel.as_ref().map(|channel| JettyChannelRecord {
            is_open: channel.is_open,
            packets: channel.packets as u32,
            unanswered: channel.unanswered,
            rtt_ns: channel.srtt.0,
        }),
        path: path.map(|path| path_record(shared.now, path, endpoint.counters())),
        next_hop: None,
    }
}
