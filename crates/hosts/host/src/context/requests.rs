//! Requests of a program on its context: each is carried out by a function of [`Context`].

use super::memory::MrRequest;
use super::state::Context;
use crate::foreign::ForeignFds;
use crate::host::Host;
use crate::refusal::refuse;
use crate::reply::ReplyParts;
use burst_control::{Refusal, Request};

/// What the session carries out before it comes here.
const NOT_OURS: &str = "not a request to a context";

impl Context {
    /// Carries out a request on this context's objects.
    pub fn handle(&mut self, host: &mut Host, request: Request, fds: ForeignFds) -> Result<ReplyParts, Refusal> {
        match request {
            Request::AllocPd
            | Request::DeallocPd { .. }
            | Request::RegMr { .. }
            | Request::AllocNullMr { .. }
            | Request::HoldMemory { .. }
            | Request::OpenCopier
            | Request::AllocDm { .. }
            | Request::FreeDm { .. }
            | Request::Import { .. }
            | Request::DeregMr { .. }
            | Request::AllocMw { .. }
            | Request::DeallocMw { .. } => self.handle_memory(host, request, fds),
            Request::CreateChannel
            | Request::DestroyChannel { .. }
            | Request::CreateCq(_)
            | Request::ResizeCq { .. }
            | Request::RetireCq { .. }
            | Request::DestroyCq { .. } => self.handle_completions(host, request),
            Request::OpenXrcd { .. }
            | Request::CloseXrcd { .. }
            | Request::CreateTarget { .. }
            | Request::OpenQp { .. }
            | Request::CreateSrq(_)
            | Request::ModifySrq { .. }
            | Request::ResizeSrq { .. }
            | Request::QuerySrq { .. }
            | Request::DestroySrq { .. } => self.handle_shared(host, request, fds),
            Request::CreateQp { .. }
            | Request::ModifyQp { .. }
            | Request::QueryQp { .. }
            | Request::DestroyQp { .. }
            | Request::AttachMcast { .. }
            | Request::DetachMcast { .. }
            | Request::CreateAh { .. }
            | Request::DestroyAh { .. }
            | Request::ResolveMac { .. } => self.handle_queue_pairs(host, request),
            Request::UrmaOpen { eid } => self.urma_open(host, eid),
            Request::UrmaCall(call) => self.urma_call(host, call),
            _ => refuse(libc::EPROTO, NOT_OURS),
        }
    }

    /// Protection domains and memory.
    fn handle_memory(&mut self, host: &mut Host, request: Request, fds: ForeignFds) -> Result<ReplyParts, Refusal> {
        match request {
            Request::AllocPd => self.alloc_pd(host),
            Request::DeallocPd { pd } => self.dealloc_pd(host, pd),
            Request::RegMr { pd, addr, len, iova, access, pieces, replaces } => {
                self.register(host, MrRequest { pd, addr, len, iova, access, pieces, fds }, replaces)
            }
            Request::AllocNullMr { pd } => self.alloc_null_mr(host, pd),
            Request::HoldMemory { hold, in_place } => self.hold_memory(host, hold, in_place),
            Request::OpenCopier => self.open_copier(host),
            Request::AllocDm { len } => self.alloc_dm(host, len, fds),
            Request::FreeDm { dm } => self.free_dm(host, dm),
            Request::Import { token, object } => self.import(host, token, object),
            Request::DeregMr { mr } => self.dereg_mr(host, mr),
            Request::AllocMw { pd, mw_type } => self.alloc_mw(host, pd, mw_type),
            Request::DeallocMw { mw } => self.dealloc_mw(host, mw),
            _ => refuse(libc::EPROTO, NOT_OURS),
        }
    }

    /// Completion channels and completion queues.
    fn handle_completions(&mut self, host: &mut Host, request: Request) -> Result<ReplyParts, Refusal> {
        match request {
            Request::CreateChannel => self.create_channel(host),
            Request::DestroyChannel { channel } => self.destroy_channel(channel),
            Request::CreateCq(init) => self.create_cq(host, &init),
            Request::ResizeCq { cq, entries } => self.resize_cq(cq, entries),
            Request::RetireCq { cq } => self.retire_cq(host, cq),
            Request::DestroyCq { cq } => self.destroy_cq(host, cq),
            _ => refuse(libc::EPROTO, NOT_OURS),
        }
    }

    /// What queue pairs share: XRC domains and targets, and shared receive queues.
    fn handle_shared(&mut self, host: &mut Host, request: Request, fds: ForeignFds) -> Result<ReplyParts, Refusal> {
        match request {
            Request::OpenXrcd { with_file, flags } => self.open_xrcd(host, with_file, flags, fds),
            Request::CloseXrcd { xrcd } => self.close_xrcd(host, xrcd),
            Request::CreateTarget { xrcd, event_cookie } => self.create_target(host, xrcd, event_cookie),
            Request::OpenQp { xrcd, qpn, event_cookie } => self.open_qp(host, xrcd, qpn, event_cookie),
            Request::CreateSrq(init) => self.create_srq(host, init),
            Request::ModifySrq { srq, limit } => self.modify_srq(srq, limit),
            Request::ResizeSrq { srq, max_wr } => self.resize_srq(host, srq, max_wr),
            Request::QuerySrq { srq } => self.query_srq(srq),
            Request::DestroySrq { srq } => self.destroy_srq(host, srq),
            _ => refuse(libc::EPROTO, NOT_OURS),
        }
    }

    /// Queue pairs, their groups, and addresses.
    fn handle_queue_pairs(&mut self, host: &mut Host, request: Request) -> Result<ReplyParts, Refusal> {
        match request {
            Request::CreateQp { init, names } => self.create_qps(host, init, &names),
            Request::ModifyQp { qp, attr, mask } => self.modify_qp(host, qp, attr, mask),
            Request::QueryQp { qp } => self.query_qp(host, qp),
            Request::DestroyQp { qp } => self.destroy_qp(host, qp),
            Request::AttachMcast { qp, gid } => self.attach_mcast(host, qp, gid),
            Request::DetachMcast { qp, gid } => self.detach_mcast(host, qp, gid),
            Request::CreateAh { pd, attr } => self.create_ah(host, pd, attr),
            Request::DestroyAh { ah } => self.destroy_ah(host, ah),
            Request::ResolveMac { attr } => self.resolve_mac(host, attr),
            _ => refuse(libc::EPROTO, NOT_OURS),
        }
    }

    /// Registers a region, in place of another one if one is given.
    fn register(
        &mut self,
        host: &mut Host,
        registration: MrRequest,
        replaces: Option<u32>,
    ) -> Result<ReplyParts, Refusal> {
        match replaces {
            None => self.reg_mr(host, registration),
            Some(mr) => self.rereg_mr(host, mr, registration),
        }
    }
}
