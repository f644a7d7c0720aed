//! Records of failures, for `burst why`: those of all workers, and of calls that the control thread refused.

use super::Host;
use crate::authority::Caller;
use burst_base::{DeviceId, Nanos, Qpn};
use burst_control::failures::{
    FAILURES_PAGE, FailedProgram, FailureKind, FailurePage, FailureQuery, FailureRecord, NextHop,
};
use burst_control::{Refusal, Response};
use std::net::IpAddr;

impl Host {
    /// Keeps a refused call of a program: the program itself learns only the errno. The same refusal again is counted.
    pub(crate) fn note_refusal(&mut self, caller: &Caller, program: &str, refusal: &Refusal) {
        let now = self.now().0;
        let account = caller.account.id();
        let of_program = |record: &FailureRecord| record.program.pid == caller.process.pid;
        if let Some(last) = self.failures.last_of(account).filter(|last| of_program(last))
            && last.sentence == refusal.sentence
        {
            (last.ago_ns, last.repeats) = (now, last.repeats.saturating_add(1));
            return;
        }
        let record = FailureRecord {
            ago_ns: now,
            kind: FailureKind::Call,
            program: FailedProgram { name: program.into(), pid: caller.process.pid, uid: caller.process.uid },
            reason: None,
            status: 0,
            errno: refusal.errno,
            sentence: refusal.sentence.clone(),
            repeats: 0,
            comm_id: 0,
            qp: None,
            jetty: None,
        };
        self.failures.push(account, record);
    }

    /// A page of the records that a user may see.
    pub fn failures(&mut self, viewer: u32, query: FailureQuery) -> Response {
        let FailureQuery { about, skip } = query;
        let mut records = self.own_failures();
        for worker in 0..self.workers().len() {
            records.extend(self.on_worker(worker, |w, now| w.failures(now)));
        }
        records.extend(about.and_then(|number| self.present(number)));
        records.retain(|record| about.is_none_or(|number| is_about(record, number)));
        records.sort_by_key(|record| record.ago_ns);
        let says_something = |r: &FailureRecord| r.qp.is_some() || r.jetty.is_some() || !r.sentence.is_empty();
        debug_assert!(records.iter().all(says_something), "a record that says nothing");
        let found = records.len();
        records.retain(|record| self.authority.may_see(viewer, Some(record.program.uid)));
        let hidden = (found - records.len()) as u32;
        let has_more = records.len() > skip as usize + FAILURES_PAGE;
        let mut records: Vec<_> = records.into_iter().skip(skip as usize).take(FAILURES_PAGE).collect();
        debug_assert!(records.len() <= FAILURES_PAGE && hidden as usize <= found);
        records.iter_mut().for_each(|record| self.add_next_hop(record));
        Response::Failures(FailurePage { records, hidden, has_more })
    }

    fn own_failures(&self) -> Vec<FailureRecord> {
        let now = self.now();
        let aged =
            |record: &FailureRecord| FailureRecord { ago_ns: now.since(Nanos(record.ago_ns)).0, ..record.clone() };
        self.failures.iter().map(aged).collect()
    }

    /// A queue pair as it is now.
    fn present(&self, number: u32) -> Option<FailureRecord> {
        let qpn = Qpn::new(number);
        (0..self.workers().len()).find_map(|worker| self.on_worker(worker, move |w, now| w.present(now, qpn)))
    }

    /// Adds what is known of the next hop to the peer.
    fn add_next_hop(&mut self, record: &mut FailureRecord) {
        if let Some(qp) = record.qp.as_deref_mut().filter(|qp| qp.path.is_some_and(|path| !path.is_own_address)) {
            qp.next_hop = self.next_hop_of(qp.device, qp.local, qp.peer);
        }
        let of_jetty = record.jetty.as_deref_mut();
        if let Some(jetty) = of_jetty.filter(|jetty| jetty.path.is_some_and(|path| !path.is_own_address))
            && let Some(peer) = jetty.peer
        {
            jetty.next_hop = self.next_hop_of(jetty.device, jetty.local, peer);
        }
    }

    fn next_hop_of(&mut self, device: u32, local: IpAddr, peer: IpAddr) -> Option<NextHop> {
        let known = self.devices.get(DeviceId::from_index(device as usize).index())?;
        let ifindex = known.caps.addrs.iter().find(|addr| addr.ip == local).map_or(0, |addr| addr.ifindex);
        self.cm.hops.look(local, peer, ifindex)
    }
}

/// Whether a record is about a process, queue pair, Jetty or connection.
fn is_about(record: &FailureRecord, number: u32) -> bool {
    record.program.pid == number
        || record.comm_id == number && number != 0
        || record.qp.as_ref().is_some_and(|qp| qp.qpn == number)
        || record.jetty.as_ref().is_some_and(|jetty| jetty.jetty == number)
}
