//! How far an id is, as the program knows it: a call in a wrong state is EINVAL, as from the kernel.
//!
//! Commands of asynchronous ids do not wait for the daemon, which could refuse them by an event only. So the library keeps the
//! state that the program has seen: the calls that it made and the events that it read. The kernel's state may be further, by
//! events that are not read yet. What such an event may allow is sent, and the daemon decides; what no event could allow is
//! refused here.

use crate::boundary::{EINVAL, Outcome};
use burst_control::cm::{CmCommand, CmEventKind};
use std::sync::atomic::{AtomicU8, Ordering};

/// How far an id is (`enum rdma_cm_state` of the kernel, and the state of its connection).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
enum IdStep {
    /// Created, or bound: the daemon knows which.
    #[default]
    Idle,
    /// `rdma_resolve_addr` was called.
    AddrQuery,
    /// RDMA_CM_EVENT_ADDR_RESOLVED.
    AddrResolved,
    /// `rdma_resolve_route` was called.
    RouteQuery,
    /// RDMA_CM_EVENT_ROUTE_RESOLVED.
    RouteResolved,
    /// It listens.
    Listening,
    /// `rdma_connect` was called.
    RequestSent,
    /// It came with a request.
    Requested,
    /// RDMA_CM_EVENT_CONNECT_RESPONSE.
    ResponseReceived,
    /// `rdma_accept` was called.
    ResponseSent,
    /// The connection, or its request, has come to its end, or is there.
    Over,
}

/// The states in which a call may succeed.
type Allowed = &'static [IdStep];

const RESOLVE_ADDR: Allowed = &[IdStep::Idle, IdStep::AddrQuery];
const RESOLVE_ROUTE: Allowed = &[IdStep::AddrQuery, IdStep::AddrResolved];
const CONNECT: Allowed = &[IdStep::RouteQuery, IdStep::RouteResolved];
const ACCEPT: Allowed = &[IdStep::Requested];
const REJECT: Allowed = &[IdStep::RequestSent, IdStep::Requested, IdStep::ResponseReceived, IdStep::ResponseSent];
const ESTABLISH: Allowed = &[IdStep::RequestSent, IdStep::ResponseReceived];

/// The state of an id.
#[derive(Debug, Default)]
pub struct CmSteps(AtomicU8);

impl CmSteps {
    fn now(&self) -> IdStep {
        const ALL: [IdStep; 11] = [
            IdStep::Idle,
            IdStep::AddrQuery,
            IdStep::AddrResolved,
            IdStep::RouteQuery,
            IdStep::RouteResolved,
            IdStep::Listening,
            IdStep::RequestSent,
            IdStep::Requested,
            IdStep::ResponseReceived,
            IdStep::ResponseSent,
            IdStep::Over,
        ];
        // Relaxed: a program that calls and reads events of an id in two threads orders them itself.
        ALL[usize::from(self.0.load(Ordering::Relaxed)).min(ALL.len() - 1)]
    }

    fn go(&self, to: IdStep) {
        self.0.store(to as u8, Ordering::Relaxed);
    }

    /// Checks a command before it is sent, and notes it. [`CmSteps::take_back`] undoes that if it was not sent.
    ///
    /// # Errors
    /// EINVAL: the id is in a state in which the call cannot succeed.
    pub fn begin(&self, op: &CmCommand) -> Outcome<StepBefore> {
        let before = self.now();
        let (allowed, next) = match op {
            CmCommand::ResolveAddr { .. } => (RESOLVE_ADDR, IdStep::AddrQuery),
            CmCommand::ResolveRoute { .. } => (RESOLVE_ROUTE, IdStep::RouteQuery),
            CmCommand::Connect { .. } => (CONNECT, IdStep::RequestSent),
            CmCommand::Accept { .. } => (ACCEPT, IdStep::ResponseSent),
            CmCommand::Reject { .. } => (REJECT, IdStep::Over),
            CmCommand::Establish { .. } => (ESTABLISH, IdStep::Over),
            _ => return Ok(StepBefore(before)),
        };
        if !allowed.contains(&before) {
            return Err(EINVAL);
        }
        self.go(next);
        Ok(StepBefore(before))
    }

    /// Whether there is a request to accept: to be asked before anything is prepared for the connection.
    ///
    /// # Errors
    /// As [`CmSteps::begin`].
    pub fn check_accept(&self) -> Outcome<()> {
        if ACCEPT.contains(&self.now()) { Ok(()) } else { Err(EINVAL) }
    }

    /// The command was refused, or not sent.
    pub fn take_back(&self, before: StepBefore) {
        self.go(before.0);
    }

    /// The id listens.
    pub fn listen(&self) {
        self.go(IdStep::Listening);
    }

    /// Whether it listens.
    pub fn is_listening(&self) -> bool {
        self.now() == IdStep::Listening
    }

    /// The program has set the route itself (RDMA_OPTION_IB_PATH).
    pub fn set_route(&self) {
        if self.now() == IdStep::AddrResolved {
            self.go(IdStep::RouteResolved);
        }
    }

    /// Notes an event that the program reads.
    pub fn read(&self, kind: CmEventKind) {
        use CmEventKind as K;
        let next = match (kind, self.now()) {
            (K::AddrResolved, IdStep::AddrQuery) => IdStep::AddrResolved,
            (K::AddrError, IdStep::AddrQuery | IdStep::RouteQuery) => IdStep::Idle,
            (K::RouteResolved, IdStep::RouteQuery) => IdStep::RouteResolved,
            // The daemon refused it: the address was not resolved at that time.
            (K::RouteError, IdStep::RouteQuery) => IdStep::AddrResolved,
            (K::ConnectRequest, _) => IdStep::Requested,
            (K::ConnectResponse, IdStep::RequestSent) => IdStep::ResponseReceived,
            // Refused at once, or later: the daemon knows whether it may be repeated.
            (K::ConnectError, IdStep::RequestSent) => IdStep::RouteResolved,
            (K::ConnectError, IdStep::ResponseSent) => IdStep::Requested,
            (K::Established | K::Rejected | K::Unreachable | K::ConnectError | K::Disconnected, _) => IdStep::Over,
            _ => return,
        };
        self.go(next);
    }
}

/// The state before a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepBefore(IdStep);

#[cfg(test)]
mod tests {
    use super::*;
    use burst_base::conn::{ConnParam, Ece};
    use burst_control::cm::{CmAddr, CmData};

    const ID: u32 = 1;

    fn addr() -> CmCommand {
        let dst = CmAddr { ip: "192.0.2.1".parse().expect("an address"), port: 1, scope: 0 };
        CmCommand::ResolveAddr { id: ID, src: None, dst, timeout_ms: 1 }
    }
    fn route() -> CmCommand {
        CmCommand::ResolveRoute { id: ID, timeout_ms: 1 }
    }
    fn param() -> ConnParam {
        ConnParam {
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: false,
            retry_count: 0,
            rnr_retry_count: 0,
            srq: false,
            qpn: 0,
            qkey: 0,
            ece: Ece::NONE,
        }
    }
    fn connect() -> CmCommand {
        CmCommand::Connect { id: ID, qp: None, param: param(), data: CmData::EMPTY }
    }
    fn accept() -> CmCommand {
        CmCommand::Accept { id: ID, qp: None, param: param(), data: CmData::EMPTY }
    }
    fn reject() -> CmCommand {
        CmCommand::Reject { id: ID, reason: 28, data: CmData::EMPTY }
    }
    fn establish() -> CmCommand {
        CmCommand::Establish { id: ID }
    }

    /// Which of the calls an id in this state may make.
    fn may(steps: &CmSteps) -> Vec<&'static str> {
        let calls =
            [("addr", addr()), ("route", route()), ("connect", connect()), ("accept", accept()), ("reject", reject())];
        let calls = calls.into_iter().chain([("establish", establish())]);
        let works = |(name, op): (&'static str, CmCommand)| {
            let before = steps.begin(&op).ok()?;
            steps.take_back(before);
            Some(name)
        };
        calls.filter_map(works).collect()
    }

    #[test]
    fn an_active_id_goes_step_by_step() {
        let steps = CmSteps::default();
        let go = |op: &CmCommand| steps.begin(op).map(drop);
        assert_eq!(may(&steps), ["addr"]);
        assert_eq!(go(&addr()), Ok(()));
        assert_eq!(may(&steps), ["addr", "route"], "its event may not be read yet");
        steps.read(CmEventKind::AddrError);
        assert_eq!(may(&steps), ["addr"]);
        assert_eq!(go(&addr()), Ok(()));
        steps.read(CmEventKind::AddrResolved);
        assert_eq!(may(&steps), ["route"]);
        assert_eq!(go(&route()), Ok(()));
        assert_eq!(may(&steps), ["connect"]);
        steps.read(CmEventKind::RouteResolved);
        assert_eq!(may(&steps), ["connect"]);
        assert_eq!(go(&connect()), Ok(()));
        assert_eq!(may(&steps), ["reject", "establish"]);
        steps.read(CmEventKind::ConnectResponse);
        assert_eq!(may(&steps), ["reject", "establish"]);
        assert_eq!(go(&establish()), Ok(()));
        assert_eq!(may(&steps), [""; 0]);
    }

    #[test]
    fn a_request_is_answered_once() {
        let answers: [fn() -> CmCommand; 2] = [accept, reject];
        for answer in answers {
            let steps = CmSteps::default();
            steps.read(CmEventKind::ConnectRequest);
            assert_eq!(may(&steps), ["accept", "reject"]);
            assert!(steps.check_accept().is_ok() && steps.begin(&answer()).is_ok() && steps.check_accept().is_err());
            steps.read(CmEventKind::Established);
            assert_eq!(may(&steps), [""; 0]);
        }
    }

    #[test]
    fn a_connection_that_was_refused_at_once_may_be_asked_for_again() {
        let steps = CmSteps::default();
        steps.go(IdStep::RouteResolved);
        assert!(steps.begin(&connect()).is_ok());
        steps.read(CmEventKind::ConnectError);
        assert_eq!(may(&steps), ["connect"]);
        assert!(steps.begin(&connect()).is_ok());
        steps.read(CmEventKind::Rejected);
        assert_eq!(may(&steps), [""; 0], "as in the kernel");
    }

    #[test]
    fn the_program_may_set_the_route_and_a_listener_does_nothing_else() {
        let steps = CmSteps::default();
        steps.set_route();
        assert_eq!(may(&steps), ["addr"], "without an address there is no route");
        steps.go(IdStep::AddrResolved);
        steps.set_route();
        assert_eq!(may(&steps), ["connect"]);
        steps.listen();
        assert!(steps.is_listening() && may(&steps).is_empty());
    }
}
