//! What hosts of the studies make before they begin, and how operations become work requests.

use crate::closed_form::StudyVerb;
use crate::interface::StudyStack;
use crate::program::StudyOp;
use crate::world::{MEMORY_BYTES, StudyWorld};
use burst_base::Nanos;
use burst_base::verbs::WrOpcode;
use burst_fabric::HostId;
use burst_sim::node::{MEMORY, Verb};
use burst_ubwire::{ServiceMode, TaOpcode};
use burst_urma::{
    ACCESS_MAX, AccessKind, CrStatus, JettyConfig, JfrConfig, JfrWr, JfsWr, LocalRange, RemoteJetty, SegmentConfig,
    TargetKind, TransMode, UrmaError, WrData, access,
};

/// Receives that a host has posted.
const RECEIVES: u16 = 4_096;
/// Token of segments that are reached without a channel.
const TOKEN: u32 = 0x5eed;
/// Bytes of a receive.
const RECEIVE_BYTES: u32 = 1 << 20;

fn refused(error: UrmaError) -> String {
    format!("the node refuses: {error:?}")
}

impl StudyWorld {
    /// Makes queues and connects them.
    pub(super) fn connect(&mut self) -> Result<(), String> {
        if self.config.stack.is_bus() {
            for host in 0..self.config.hosts {
                self.make_jetties(host)?;
            }
            for (from, to) in self.config.pairs.clone() {
                self.import(from, to)?;
            }
            return Ok(());
        }
        for (from, to) in self.config.pairs.clone() {
            for queue in 0..self.config.queues {
                self.connect_pair(from, to, queue)?;
            }
        }
        Ok(())
    }

    fn connect_pair(&mut self, from: u32, to: u32, queue: u32) -> Result<(), String> {
        let now = self.nanos();
        let [a, b] = [self.hosts[from as usize].node.create()?, self.hosts[to as usize].node.create()?];
        let [end_a, end_b] = [self.hosts[from as usize].node.end(a), self.hosts[to as usize].node.end(b)];
        debug_assert_eq!(end_a.host, HostId(from));
        self.hosts[to as usize].node.connect(now, b, &end_b, &end_a, 0)?;
        self.hosts[from as usize].node.connect(now, a, &end_a, &end_b, 0)?;
        for _ in 0..self.config.depth {
            self.hosts[to as usize].node.post_receive(b, 0, 0, RECEIVE_BYTES);
        }
        self.hosts[from as usize].pairs.insert((queue, to), a);
        Ok(())
    }

    fn make_jetties(&mut self, host: u32) -> Result<(), String> {
        let (now, queues, service) = (self.nanos(), self.config.queues, self.config.service);
        let mode = if service == ServiceMode::Uno { TransMode::Um } else { TransMode::Rm };
        let has_no_channel = self.config.stack == StudyStack::LoadStore || mode == TransMode::Um;
        let made = self.hosts[host as usize].node.with_urma(now, |node, _| {
            let rights = access::READ | access::WRITE | access::ATOMIC;
            // Requests without channel need a token.
            let token = has_no_channel.then_some(TOKEN);
            let all = SegmentConfig { addr: MEMORY, len: MEMORY_BYTES, token, access: rights };
            let token_id = node.register_segment(all)?;
            let jfc = node.create_jfc(1 << 20)?;
            let jfr = node.create_jfr(JfrConfig { depth: RECEIVES, ..JfrConfig::new(jfc) })?;
            for _ in 0..RECEIVES {
                node.post_recv(jfr, receive(token_id))?;
            }
            let config = JettyConfig { mode, service, depth: 4_096, ..JettyConfig::new(jfc, Some(jfr)) };
            let jetties: Result<Vec<u32>, UrmaError> = (0..queues).map(|_| node.create_jetty(config)).collect();
            Ok((token_id, jfc, jfr, jetties?))
        });
        let (token_id, jfc, jfr, jetties) = made.ok_or("a host without endpoint")?.map_err(refused)?;
        let state = &mut self.hosts[host as usize];
        (state.token_id, state.jfc, state.jfr, state.jetties) = (token_id, jfc, jfr, jetties);
        Ok(())
    }

    fn import(&mut self, from: u32, to: u32) -> Result<(), String> {
        let now = self.nanos();
        let (token_id, id) = (self.hosts[to as usize].token_id, self.hosts[to as usize].jetties[0]);
        let node = &mut self.hosts[to as usize].node;
        let segment = node.with_urma(now, |node, _| node.export_segment(token_id)).flatten().ok_or("no segment")?;
        let jetty = RemoteJetty { eid: segment.eid, id, kind: TargetKind::Jetty, token: None };
        let node = &mut self.hosts[from as usize].node;
        let imported = node.with_urma(now, |node, _| Ok((node.import_segment(segment)?, node.import_jetty(jetty)?)));
        let imported = imported.ok_or("a host without endpoint")?.map_err(refused)?;
        self.hosts[from as usize].imports.insert(to, imported);
        Ok(())
    }

    /// Gives an operation to the protocol.
    pub(super) fn post(&mut self, host: u32, id: u32) -> Result<(), String> {
        let op = self.op(id);
        match self.config.stack {
            StudyStack::LoadStore => self.post_access(host, id, &op),
            StudyStack::Urma => self.post_urma(host, id, &op),
            StudyStack::BlueFlame | StudyStack::Dma => self.post_roce(host, id, &op),
        }
    }

    fn post_roce(&mut self, host: u32, id: u32, op: &StudyOp) -> Result<(), String> {
        let rkey = self.hosts[op.peer as usize].node.key();
        let state = &mut self.hosts[host as usize];
        let qp = *state.pairs.get(&(op.queue, op.peer)).ok_or("hosts that are not connected")?;
        let (places, id) = ([op.offset; 2], u64::from(id));
        let is_posted = match op.verb {
            StudyVerb::Read => state.node.post(qp, Verb::Read, id, places, op.bytes, rkey),
            StudyVerb::Write => state.node.post(qp, Verb::Write, id, places, op.bytes, rkey),
            StudyVerb::Send => state.node.post(qp, Verb::Send, id, places, op.bytes, rkey),
            StudyVerb::FetchAdd => {
                state.node.post_atomic(qp, WrOpcode::AtomicFetchAndAdd, id, places, op.operands, rkey)
            }
            StudyVerb::CompareSwap => {
                state.node.post_atomic(qp, WrOpcode::AtomicCmpAndSwp, id, places, op.operands, rkey)
            }
        };
        is_posted.then_some(()).ok_or_else(|| "a send queue is full".into())
    }

    fn post_urma(&mut self, host: u32, id: u32, op: &StudyOp) -> Result<(), String> {
        let now = self.nanos();
        let state = &mut self.hosts[host as usize];
        let (segment, target) = *state.imports.get(&op.peer).ok_or("hosts that are not connected")?;
        let opcode = match op.verb {
            StudyVerb::Read => TaOpcode::Read,
            StudyVerb::Write => TaOpcode::Write,
            StudyVerb::Send => TaOpcode::Send,
            StudyVerb::FetchAdd => TaOpcode::FetchAdd,
            StudyVerb::CompareSwap => TaOpcode::Cas,
        };
        let data = WrData::Local(LocalRange { token_id: state.token_id, addr: MEMORY, len: op.bytes });
        let [operand, swap] = op.operands;
        let mut wr = JfsWr { operand, swap, order: op.order, ..JfsWr::new(opcode, data, u64::from(id)) };
        match Self::is_message(op.verb) {
            true => wr.target = Some(target),
            false => (wr.segment, wr.remote_addr) = (Some(segment), Self::remote(op)),
        }
        let jetty = *state.jetties.get(op.queue as usize).ok_or("no such Jetty")?;
        let posted = state.node.with_urma(now, |node, env| node.post_send(jetty, &wr, env));
        posted.ok_or("a host without endpoint")?.map_err(refused)
    }

    fn post_access(&mut self, host: u32, id: u32, op: &StudyOp) -> Result<(), String> {
        let now = self.nanos();
        let state = &mut self.hosts[host as usize];
        let (segment, _) = *state.imports.get(&op.peer).ok_or("hosts that are not connected")?;
        let len = u8::try_from(op.bytes).ok().filter(|len| usize::from(*len) <= ACCESS_MAX);
        let len = len.ok_or("an access is of a cache line at most")?;
        let [operand, swap] = op.operands;
        let kind = match op.verb {
            StudyVerb::Read => AccessKind::Load { len },
            StudyVerb::Write => AccessKind::Store { len, bytes: [0; ACCESS_MAX] },
            StudyVerb::FetchAdd => AccessKind::Atomic { opcode: TaOpcode::FetchAdd, operand, swap },
            StudyVerb::CompareSwap => AccessKind::Atomic { opcode: TaOpcode::Cas, operand, swap },
            StudyVerb::Send => return Err("a message needs a work request".into()),
        };
        let begun = state.node.with_urma(now, |node, _| node.begin_access(segment, Self::remote(op), kind));
        match begun.ok_or("a host without endpoint")? {
            Ok(tag) => state.accesses.push_back((tag, id)),
            // So many are under way, or the oldest one was lost.
            Err(UrmaError::Full) => state.blocked.push_back(id),
            Err(error) => return Err(refused(error)),
        }
        Ok(())
    }

    /// Takes completions and outcomes of the bus.
    pub(super) fn collect_bus(&mut self, host: u32, now: Nanos) -> Result<(), String> {
        let state = &mut self.hosts[host as usize];
        let (jfc, jfr, token_id) = (state.jfc, state.jfr, state.token_id);
        let accesses = &mut state.accesses;
        let mut ended = Vec::new();
        state.node.with_urma(now, |node, env| {
            while let Some(record) = node.poll_jfc(jfc) {
                if record.is_receive {
                    // The queue has just given one up.
                    let _ = node.post_recv(jfr, receive(token_id));
                } else {
                    // Where an atomic has put the old value.
                    let mut word = [0; 8];
                    let is_failure = record.status != CrStatus::Success || env.mem.read(0, MEMORY, &mut word).is_err();
                    ended.push((record.user_ctx as u32, is_failure, u64::from_le_bytes(word)));
                }
            }
            accesses.retain(|(tag, id)| {
                let outcome = node.take_access(*tag);
                if let Some(outcome) = outcome {
                    ended.push((*id, outcome.status != CrStatus::Success, outcome.value()));
                }
                outcome.is_none()
            });
        });
        let is_any = !ended.is_empty();
        for (id, is_failure, value) in ended {
            self.complete(host, id, is_failure, value);
        }
        if is_any {
            for id in std::mem::take(&mut self.hosts[host as usize].blocked) {
                self.post(host, id)?;
            }
        }
        Ok(())
    }
}

fn receive(token_id: u32) -> JfrWr {
    JfrWr { range: LocalRange { token_id, addr: MEMORY, len: RECEIVE_BYTES }, user_ctx: 0 }
}
