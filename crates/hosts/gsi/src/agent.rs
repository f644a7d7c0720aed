//! The agent of one worker: the state machine, MADs that were received and MADs that leave, events to write.

use crate::access::WorkerAccess;
use crate::backlogged::BackloggedChannels;
use crate::channel::{CmChannel, PendingEvent, RECORDS_PER_WRITE};
use crate::effects::{AgentEffects, GSI_QKEY};
use crate::entry::CmEntry;
use crate::failures::record_of;
use crate::mad_queue::{MadClass, MadQueue};
use crate::probes::Setups;
use crate::stats::CmTimes;
use crate::timewait::TimewaitExits;
use burst_base::{DeviceId, Nanos, Psn, Qpn, Reason};
use burst_cm::{Cm, CmIds, ConnEventKind, PathRecord, Secret, Source};
use burst_control::cm::CmRoute;
use burst_control::failures::{FailureRecord, RECORDS};
use burst_frame::Flow;
use burst_ledger::{AccountId, AccountRing, OpenPool};
use burst_span::Span;
use burst_wire::{MAD_LEN, Opcode, Packet};
use std::net::IpAddr;
use std::sync::Arc;

/// Received MADs that may wait, of all ports together. Further ones are dropped and counted.
pub const RECEIVED_MAX: usize = OpenPool::ReceivedMad.places();
/// MADs served in one pass.
const MADS_PER_PASS: usize = 512;
/// MADs served in a pass in which data packets came: in a flood of requests, established queue pairs still get most of the
/// worker's time.
const MADS_BESIDE_DATA: usize = 16;
/// Overdue connections served in one pass.
const TIMERS_PER_PASS: usize = 256;
/// Longest time that timers wait for packets that the port holds unread: answers may be among those packets.
const UNREAD_MAX: Nanos = Nanos::from_ms(250);
/// Domain of the number that seeds the random choice of [`TimewaitExits`]; `cm` uses 0 to 2.
const TIMEWAIT_DOMAIN: u8 = 3;

/// Connections of one worker, for statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnCounts {
    /// Connections in any state, queued requests excepted.
    pub connections: u32,
    /// Requests that are queued because their listener's backlog is full.
    pub queued: u32,
}

/// A received MAD that the machine has not seen yet.
struct ReceivedMad {
    device: DeviceId,
    flow: Flow,
    bytes: [u8; MAD_LEN],
}

/// Buffers of MADs that leave.
///
/// A buffer must not change while a batch points to it. The ring has twice as many buffers as all ports' batches have places,
/// so a buffer is written again only after its batch has been sent. It has memory from the first MAD on.
pub(crate) struct MadRing {
    buffers: Box<[[u8; MAD_LEN]]>,
    /// Places of all batches.
    places: usize,
    next: usize,
    pub psn: Psn,
}

impl MadRing {
    fn new(places: usize) -> MadRing {
        MadRing { buffers: Box::default(), places, next: 0, psn: Psn::new(0) }
    }

    #[cold]
    fn allocate(&mut self) {
        self.buffers = vec![[0; MAD_LEN]; self.places.max(1).next_power_of_two() * 2].into_boxed_slice();
        assert!(self.buffers.len() >= 2 * self.places, "a buffer could change before its batch is sent");
    }

    /// Copies a MAD into the next buffer.
    pub fn put(&mut self, mad: &[u8; MAD_LEN]) -> Span {
        if self.buffers.is_empty() {
            self.allocate();
        }
        self.next = (self.next + 1) % self.buffers.len();
        let buffer = &mut self.buffers[self.next];
        *buffer = *mad;
        // SAFETY: the buffer is boxed, lives as long as the worker and never moves. It is written again only after twice as
        // many MADs as all batches hold, hence after the batch with this span has been sent.
        unsafe { Span::local(buffer.as_mut_ptr(), MAD_LEN as u32) }
    }
}

/// Other work of the worker in this pass: the agent yields to data.
#[derive(Clone, Copy, Debug)]
pub struct PassLoad {
    /// Packets of queue pairs came.
    pub data_came: bool,
    /// A port still holds packets that were not taken.
    pub unread: bool,
}

/// The General Services Interface agent of one worker.
pub struct GsiAgent {
    pub(crate) machine: Cm<Arc<CmEntry>>,
    pub(crate) io: AgentIo,
    received: MadQueue<ReceivedMad>,
    /// When timers were last served, or nothing was unread.
    timers_served_at: Nanos,
    secret: Secret,
}

/// The agent without its machine, so that effects can use it while the machine runs.
pub(crate) struct AgentIo {
    pub worker_id: u32,
    pub mads: MadRing,
    /// Events of this pass.
    pub events: Vec<PendingEvent>,
    /// Channels with records for which the program has not made room.
    backlogged: BackloggedChannels,
    pub timewait_exits: TimewaitExits,
    pub times: Arc<CmTimes>,
    pub setups: Setups,
    /// GUIDs of the devices.
    pub guids: Vec<u64>,
    /// Connections established in this pass, if they are noted for a successor of this process.
    pub established: Option<Vec<u32>>,
    /// Records of connections that failed.
    pub failures: AccountRing<FailureRecord>,
}

impl GsiAgent {
    /// The agent of worker `worker` with `devices` ports, whose batches have `batch_frames` places each.
    ///
    /// All randomness comes from `secret`: communication ids, first PSNs, hash keys and the order of time-wait events.
    pub fn new(worker: u32, secret: Secret, devices: usize, batch_frames: usize) -> GsiAgent {
        let io = AgentIo {
            worker_id: worker,
            mads: MadRing::new(batch_frames * devices.max(1)),
            events: Vec::new(),
            backlogged: BackloggedChannels::default(),
            timewait_exits: TimewaitExits::new(secret.number((TIMEWAIT_DOMAIN, worker))),
            times: Arc::default(),
            setups: Setups::new(),
            guids: vec![0; devices],
            established: None,
            failures: AccountRing::new(RECORDS),
        };
        let machine = Cm::new(worker, secret);
        GsiAgent { machine, io, received: MadQueue::new(OpenPool::ReceivedMad), timers_served_at: Nanos(0), secret }
    }

    /// The MAD in a packet to QP1.
    ///
    /// # Errors
    /// The reason for which the packet is dropped: wrong length, not a datagram with QP1's Q_Key, or not from QP1.
    pub fn parse<'a>(packet: &Packet<'a>) -> Result<&'a [u8; MAD_LEN], Reason> {
        let sized = packet.payload.first_chunk::<MAD_LEN>().filter(|_| packet.payload.len() == MAD_LEN);
        let mad = sized.ok_or(Reason::MadMalformed)?;
        let deth = packet.deth().filter(|_| packet.info.opcode == Opcode::UdSendOnly);
        let deth = deth.filter(|deth| deth.qkey == GSI_QKEY).ok_or(Reason::BadQkey)?;
        // Its sender's host gives QP1 to no program. A host that does not guard the Q_Key still marks what its programs send.
        if deth.src_qpn == Qpn::GSI { Ok(mad) } else { Err(Reason::MadSource) }
    }

    /// The worker that a MAD from `src` belongs to, of `workers`: the one with the connection, or the one that shall have it.
    /// `None` if each of them may have it.
    pub fn owner_of(&self, src: IpAddr, mad: &[u8; MAD_LEN], workers: u32) -> Option<u32> {
        Cm::<()>::worker_of(&self.secret, src, mad, workers)
    }

    /// Keeps a MAD for the next [`GsiAgent::run`].
    ///
    /// # Errors
    /// [`Reason::MadQueueFull`] when too many wait: this MAD was dropped, or one of a source that has more waiting.
    pub fn receive(&mut self, device: DeviceId, flow: &Flow, mad: &[u8; MAD_LEN]) -> Result<(), Reason> {
        debug_assert!(device.index() < self.io.guids.len(), "a MAD of an unknown device");
        let class = match self.machine.is_proven(flow.src, mad) {
            true => MadClass::Connection,
            false => MadClass::New,
        };
        let received = ReceivedMad { device, flow: *flow, bytes: *mad };
        match self.received.push(class, Source::of(flow.src), received) {
            true => Ok(()),
            false => Err(Reason::MadQueueFull),
        }
    }

    /// Gives received MADs and due timers to the machine, and writes the events. To be called when [`GsiAgent::next_deadline`]
    /// has come.
    pub fn run(&mut self, now: Nanos, load: PassLoad, worker: &mut dyn WorkerAccess) {
        let budget = if load.data_came { MADS_BESIDE_DATA } else { MADS_PER_PASS };
        let GsiAgent { machine, io, received, timers_served_at, .. } = self;
        for _ in 0..received.len().min(budget) {
            let Some(ReceivedMad { device, flow, bytes }) = received.pop() else { break };
            // An answer goes back to the sender, without the congestion bits of its request.
            let back = Flow { src: flow.dst, dst: flow.src, tos: flow.tos & !3, ..flow };
            machine.on_mad(now, &PathRecord { device, flow: back }, &bytes, &mut AgentEffects { now, worker, io });
        }
        // At once, not with the timers: the program has accepted requests and can take more.
        machine.show_queued(now, budget, &mut AgentEffects { now, worker, io });
        if (!load.unread && received.is_empty()) || now.since(*timers_served_at) > UNREAD_MAX {
            *timers_served_at = now;
            machine.on_timer(now, TIMERS_PER_PASS, &mut AgentEffects { now, worker, io });
        }
        self.finish(now, worker);
    }

    /// The end of every call: reports setups to the tracer and writes the events.
    pub(crate) fn finish(&mut self, now: Nanos, worker: &mut dyn WorkerAccess) {
        self.io.setups.report();
        if let Some(established) = &mut self.io.established {
            for (qpn, ids) in established.drain(..).filter_map(|id| self.machine.ids_of(id)) {
                worker.note_connection(qpn, ids);
            }
        }
        for _ in 0..self.io.publish(now) {
            worker.count(DeviceId(0), Reason::CmEventLost);
        }
        debug_assert!(self.io.events.is_empty(), "events outlive their pass");
    }

    /// From now on [`WorkerAccess::note_connection`] is called for each established connection.
    pub fn note_established(&mut self) {
        self.io.established = Some(Vec::new());
    }

    /// Tells the peer of a connection of this process's predecessor that it has ended, by a DREQ. The DREP finds no connection,
    /// and is dropped; a lost DREQ is not repeated.
    pub fn announce_end(
        &mut self,
        now: Nanos,
        path: &PathRecord,
        ids: CmIds,
        peer: Qpn,
        worker: &mut dyn WorkerAccess,
    ) {
        Cm::<Arc<CmEntry>>::announce_end(path, ids, peer, &mut AgentEffects { now, worker, io: &mut self.io });
    }

    /// Returns memory that is not in use.
    pub fn shrink(&mut self) {
        self.machine.shrink();
        self.received.shrink();
    }

    /// When [`GsiAgent::run`] has something to do; 0 if it has now.
    #[inline]
    pub fn next_deadline(&self) -> Nanos {
        if !self.received.is_empty() {
            return Nanos(0);
        }
        self.machine.next_deadline().min(self.io.backlogged.due()).min(self.io.timewait_exits.due)
    }

    /// Times of the steps of connection setup, for the control thread.
    pub fn times(&self) -> Arc<CmTimes> {
        self.io.times.clone()
    }

    /// Records of connections that failed, the oldest first.
    pub fn failures(&self) -> impl Iterator<Item = &FailureRecord> {
        self.io.failures.iter()
    }

    /// Number of connections and of queued requests.
    pub fn conn_counts(&self) -> ConnCounts {
        let queued = self.machine.queued();
        ConnCounts { connections: self.machine.len() - queued, queued }
    }

    /// Sets the GUIDs of the devices, in device order; requests and replies carry them.
    pub fn set_guids(&mut self, guids: Vec<u64>) {
        assert_eq!(guids.len(), self.io.guids.len(), "one GUID per device");
        self.io.guids = guids;
    }
}

impl AgentIo {
    /// Keeps a record of a connection that has failed.
    pub fn note_failure(&mut self, now: Nanos, owner: &CmEntry, what: (ConnEventKind, i32), route: &CmRoute) {
        if let Some(record) = record_of(now, owner, what, route) {
            self.failures.push(&AccountId::User(owner.session.program.uid), record);
        }
    }

    /// Writes the events of this pass; returns how many were lost.
    fn publish(&mut self, now: Nanos) -> usize {
        if self.timewait_exits.due <= now {
            let AgentIo { timewait_exits, events, .. } = self;
            timewait_exits.report(now, |event| events.push(event));
        }
        let mut lost = 0;
        let mut at = 0;
        while at < self.events.len() {
            let channel = self.events[at].channel.clone();
            let same =
                self.events[at..].iter().take(RECORDS_PER_WRITE).take_while(|e| Arc::ptr_eq(&e.channel, &channel));
            let count = same.count();
            debug_assert!((1..=RECORDS_PER_WRITE).contains(&count));
            if channel.write_events(&self.events[at..at + count]).is_err() {
                lost += count;
            }
            if channel.has_backlog() {
                self.retry_later(now, channel);
            }
            at += count;
        }
        debug_assert_eq!(at, self.events.len(), "each event is written once");
        self.events.clear();
        self.backlogged.retry(now);
        lost
    }

    /// Notes a full channel.
    pub fn retry_later(&mut self, now: Nanos, channel: Arc<CmChannel>) {
        self.backlogged.add(now, channel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_base::Qkey;
    use burst_wire::{Bth, Deth, HeadBuf};

    /// A datagram to QP1, without its ICRC.
    fn datagram(qkey: Qkey, src_qpn: Qpn, len: usize) -> Vec<u8> {
        let bth = Bth::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0));
        let head = HeadBuf::new(&bth).deth(Deth { qkey, src_qpn });
        [head.as_slice(), &vec![0; len]].concat()
    }

    #[test]
    fn only_datagrams_of_qp1_with_its_key_and_the_right_length_are_management_datagrams() {
        let parse = |bytes: &[u8]| GsiAgent::parse(&Packet::parse(bytes).expect("a packet")).map(|_| ());
        assert_eq!(parse(&datagram(GSI_QKEY, Qpn::GSI, MAD_LEN)), Ok(()));
        assert_eq!(parse(&datagram(GSI_QKEY, Qpn::new(0x1234), MAD_LEN)), Err(Reason::MadSource));
        assert_eq!(parse(&datagram(Qkey(1), Qpn::GSI, MAD_LEN)), Err(Reason::BadQkey));
        assert_eq!(parse(&datagram(GSI_QKEY, Qpn::GSI, MAD_LEN - 4)), Err(Reason::MadMalformed));
    }
}
