//! Commands of a program: each is carried out by a function of [`CmClient`], with a reply or without one.

use super::client::{CmClient, NewCmId};
use super::id::AddrPair;
use crate::authority::ClientProcess;
use crate::host::Host;
use crate::log_limit::LogCause;
use crate::refusal::refuse;
use burst_control::Refusal;
use burst_control::cm::{CM_COMMANDS_MAX, CmCommand, CmEvent, CmId, CmReply};
use burst_engine::gsi::CmJob;

impl CmClient {
    /// Carries out commands in order. Each has one reply.
    pub fn carry_out(&mut self, host: &mut Host, commands: &[CmCommand]) -> Vec<CmReply> {
        if commands.len() > CM_COMMANDS_MAX {
            let sentence = format!("more than {CM_COMMANDS_MAX} operations in one request");
            return vec![CmReply::Failed { errno: libc::E2BIG, sentence }];
        }
        let reply =
            |command| self.dispatch(host, command, false).unwrap_or_else(|why| self.refused(host, command, why));
        commands.iter().map(reply).collect()
    }

    /// Carries out a command without a reply: a failure becomes an event.
    pub fn carry_out_without_reply(&mut self, host: &mut Host, command: &CmCommand) {
        let Err(refusal) = self.dispatch(host, command, true) else { return };
        let (status, sentence) = (-refusal.errno, refusal.sentence.clone());
        self.refused(host, command, refusal);
        if let (Some(kind), Some(id)) = (command.failure_event(), self.ids.get(&command.id())) {
            let event = CmEvent { status, route: id.route, ..CmEvent::new(kind, id.entry.id) };
            host.cm.write(&id.entry, &event.with_sentence(&sentence));
        }
    }

    fn dispatch(&mut self, host: &mut Host, command: &CmCommand, without_reply: bool) -> Result<CmReply, Refusal> {
        match *command {
            CmCommand::Create { id, channel, ps, qp_type } => self.create(host, &NewCmId { id, channel, ps, qp_type }),
            CmCommand::Destroy { id, read } => self.destroy(host, id, read, without_reply),
            CmCommand::Migrate { id, channel } => self.migrate(host, id, channel),
            CmCommand::Bind { id, addr } => self.bind(host, id, addr),
            CmCommand::ResolveAddr { id, src, dst, timeout_ms } => {
                self.resolve_addr(host, id, AddrPair { src, dst }, timeout_ms)
            }
            CmCommand::ResolveRoute { id, .. } => self.resolve_route(host, id),
            CmCommand::Listen { id, backlog } => self.listen(host, id, backlog),
            CmCommand::Connect { .. }
            | CmCommand::Accept { .. }
            | CmCommand::Reject { .. }
            | CmCommand::Establish { .. }
            | CmCommand::Notify { .. }
            | CmCommand::Disconnect { .. }
            | CmCommand::QueryConn { .. } => self.dispatch_connection(host, command),
            CmCommand::SetOption { id, option } => self.set_option(host, id, option),
            CmCommand::Join { id, addr, cookie } => self.join(host, id, addr, cookie),
            CmCommand::Leave { id, addr } => self.leave(host, id, addr),
            CmCommand::Query { id } => Ok(CmReply::Route(self.id(id)?.route)),
        }
    }

    /// Commands for one connection.
    fn dispatch_connection(&mut self, host: &mut Host, command: &CmCommand) -> Result<CmReply, Refusal> {
        match *command {
            CmCommand::Connect { id, qp, ref param, ref data } => self.connect(host, id, qp, param, data),
            CmCommand::Accept { id, qp, ref param, ref data } => self.accept(host, id, qp, param, data),
            CmCommand::Reject { id, reason, ref data } => self.reject(host, id, reason, data),
            CmCommand::Establish { id } => self.send_job(host, id, CmJob::Establish),
            CmCommand::Notify { id } => self.send_job(host, id, CmJob::Notify),
            CmCommand::Disconnect { id } => self.disconnect(host, id),
            _ => refuse(libc::EOPNOTSUPP, "the connection's attributes are in its events"),
        }
    }

    /// Counts and logs a refused command; returns the reply that reports it.
    fn refused(&self, host: &mut Host, command: &CmCommand, refusal: Refusal) -> CmReply {
        host.cm.refused += 1;
        self.log_refusal(host, command.id(), &refusal);
        CmReply::Failed { errno: refusal.errno, sentence: refusal.sentence }
    }

    /// Logs why a command was refused: the program learns only the errno.
    pub(super) fn log_refusal(&self, host: &mut Host, id: CmId, refusal: &Refusal) {
        host.note_refusal(&self.caller, &self.session.program.name, refusal);
        let Refusal { errno, sentence } = refusal;
        let ClientProcess { pid, uid } = self.caller.process;
        if host.may_log(LogCause::CmRefused, uid) {
            tracing::info!(pid, uid, id, errno, "connection management refused: {sentence}");
        } else {
            tracing::debug!(pid, uid, id, errno, "connection management refused: {sentence}");
        }
    }
}
