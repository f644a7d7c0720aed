//! Two machines, a link that loses, repeats and reorders, and programs at both ends; seeded, in virtual time.
#![allow(dead_code)] // each test file uses its own part

use burst_base::rng::Rng;
use burst_base::verbs::Mtu;
use burst_base::{DeviceId, Nanos, Reason};
use burst_cm::service::{PS_TCP, PrivateDataHeader, service_id};
use burst_cm::{
    AdmissionRefusal, Backlog, BacklogPlace, Cm, CmEffects, CmMessage, CmStep, ConnAttr, ConnEvent, ConnEventKind,
    ConnParam, ConnRequest, ConnectParams, EndParams, Listener, PathRecord, QpSetup, RequestCharge, Secret, StepTime,
    Transport,
};
use burst_frame::Flow;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

pub type Mad = [u8; 256];
/// Port of all listeners.
pub const PORT: u16 = 7174;

/// Record of the events of one id of a program.
#[derive(Clone, Debug, Default)]
pub struct Story {
    pub conn: u32,
    pub events: Vec<(ConnEventKind, u16)>,
    pub negotiated: Option<ConnAttr>,
    pub passive: bool,
    pub data: Vec<u8>,
    pub peer_port: u16,
}

impl Story {
    pub fn saw(&self, kind: ConnEventKind) -> bool {
        self.events.iter().any(|(k, _)| *k == kind)
    }
    pub fn last(&self) -> Option<ConnEventKind> {
        self.events.last().map(|(k, _)| *k)
    }
}

/// The effects of one machine, kept for the host to act on.
pub struct World {
    pub sent: Vec<(PathRecord, Mad)>,
    pub stories: Vec<Story>,
    pub requests: Vec<u32>,
    pub responses: Vec<u32>,
    pub reasons: HashMap<Reason, u64>,
    /// Backlog places of withdrawn requests, until the programs have seen the withdrawal.
    pub places: Vec<BacklogPlace>,
    pub steps: Vec<(u32, CmStep, StepTime)>,
    pub mtu: Mtu,
    /// Whether queue pairs are made ready at once, by the program, or not at all.
    pub ready: QpSetup,
    /// New ids are refused, for this reason.
    pub refuses: Option<AdmissionRefusal>,
    /// How many requests may be queued, if the listeners' user has a share.
    pub queued_max: Option<usize>,
    /// Held once more by each queued request.
    pub charges: Arc<()>,
    /// Events that the program may not have read.
    pub unread: u32,
}

impl CmEffects<u32> for World {
    fn send(&mut self, path: &PathRecord, _: &CmMessage, mad: &Mad) {
        self.sent.push((*path, *mad));
    }
    fn event(&mut self, owner: &u32, _: &PathRecord, event: &ConnEvent<'_>) {
        let story = &mut self.stories[*owner as usize];
        story.events.push((event.kind, event.status));
        story.negotiated = Some(event.conn);
        story.data = event.data.to_vec();
        if event.kind == ConnEventKind::Response {
            self.responses.push(*owner);
        }
    }
    fn incoming(&mut self, _: &u32, request: &ConnRequest<'_>) -> Result<u32, AdmissionRefusal> {
        if let Some(refusal) = self.refuses {
            return Err(refusal);
        }
        let owner = self.stories.len() as u32;
        self.stories.push(Story {
            conn: request.id,
            passive: true,
            negotiated: Some(request.conn),
            data: request.data.to_vec(),
            peer_port: request.src.map_or(0, |(_, port)| port),
            ..Story::default()
        });
        self.requests.push(owner);
        Ok(owner)
    }
    fn charge_queued(&mut self, _: &u32) -> Result<Option<RequestCharge>, AdmissionRefusal> {
        match self.queued_max {
            Some(most) if Arc::strong_count(&self.charges) > most => Err(AdmissionRefusal::OverShare),
            _ => Ok(Some(Box::new(self.charges.clone()))),
        }
    }
    fn keep_place(&mut self, _: &u32, place: BacklogPlace) {
        self.places.push(place);
    }
    fn ready(&mut self, _: &u32, _: &PathRecord, _: &ConnAttr) -> QpSetup {
        self.ready
    }
    fn mtu(&self, _: DeviceId) -> Mtu {
        self.mtu
    }
    fn unread(&self, _: &u32) -> u32 {
        self.unread
    }
    fn count(&mut self, _: DeviceId, reason: Reason) {
        *self.reasons.entry(reason).or_default() += 1;
    }
    fn step(&mut self, _: Option<&u32>, _: &PathRecord, id: u32, step: CmStep, took: StepTime) {
        self.steps.push((id, step, took));
    }
}

/// One end.
pub struct Host {
    pub ip: IpAddr,
    pub guid: u64,
    pub cm: Cm<u32>,
    pub world: World,
    pub backlog: Arc<Backlog>,
    next_qpn: u32,
    /// Whether it listens for and requests XRC connections.
    pub xrc: bool,
}

impl Host {
    pub fn new(number: u8) -> Host {
        let world = World {
            sent: Vec::new(),
            stories: Vec::new(),
            requests: Vec::new(),
            responses: Vec::new(),
            reasons: HashMap::new(),
            places: Vec::new(),
            steps: Vec::new(),
            mtu: Mtu::B4096,
            ready: QpSetup::Done,
            refuses: None,
            queued_max: None,
            charges: Arc::default(),
            unread: u32::MAX,
        };
        let secret = Secret::new([u64::from(number) * 77, 99]);
        let mut host = Host {
            ip: IpAddr::from([10, 0, 0, number]),
            guid: u64::from(number),
            cm: Cm::new(0, secret),
            world,
            backlog: Arc::new(Backlog::new(1 << 20)),
            next_qpn: 100,
            xrc: false,
        };
        host.listen(1 << 20);
        host
    }

    fn transport(&self) -> Transport {
        if self.xrc { Transport::Xrc } else { Transport::Rc }
    }

    pub fn listen(&mut self, backlog: u32) {
        self.cm.unlisten(|_| true);
        self.backlog = Arc::new(Backlog::new(backlog));
        let service_id = service_id(PS_TCP, PORT);
        let (backlog, owner) = (self.backlog.clone(), u32::MAX);
        let listener =
            Listener { owner, service_id, addr: None, device: None, sidr: false, transport: self.transport(), backlog };
        self.cm.listen(listener).expect("free");
    }

    pub fn qpn(&mut self) -> u32 {
        self.next_qpn += 1;
        self.next_qpn
    }

    pub fn path_to(&self, peer: IpAddr) -> PathRecord {
        PathRecord { device: DeviceId(0), flow: Flow { src: self.ip, dst: peer, ..Flow::default() } }
    }

    /// Requests a connection to `peer`. Returns the index of the id's record.
    pub fn connect(&mut self, now: Nanos, peer: IpAddr, data: &[u8]) -> u32 {
        let owner = self.world.stories.len() as u32;
        let header = PrivateDataHeader { src: self.ip, port: 1000 + owner as u16 % 60_000, dst: peer };
        let data = [&header.to_bytes()[..], data].concat();
        let qpn = self.qpn();
        let params = ConnectParams {
            path: self.path_to(peer),
            service_id: service_id(PS_TCP, PORT),
            transport: self.transport(),
            end: EndParams {
                param: ConnParam {
                    qpn,
                    responder_resources: 8,
                    initiator_depth: 4,
                    retry_count: 7,
                    ..ConnParam::default()
                },
                ca_guid: self.guid,
                data: &data,
            },
            mtu: self.world.mtu,
            ack_timeout: 14,
        };
        self.world.stories.push(Story::default());
        let conn = self.cm.connect(now, owner, &params, &mut self.world).expect("room");
        self.world.stories[owner as usize].conn = conn;
        owner
    }

    pub fn accept(&mut self, now: Nanos, owner: u32) {
        let (qpn, conn) = (self.qpn(), self.world.stories[owner as usize].conn);
        let param = ConnParam { qpn, responder_resources: 2, initiator_depth: 16, ..ConnParam::default() };
        let end = EndParams { param, ca_guid: self.guid, data: &[] };
        // The peer may have given up meanwhile.
        let _ = self.cm.accept(now, conn, &end, &mut self.world);
    }

    pub fn disconnect(&mut self, now: Nanos, owner: u32) {
        let conn = self.world.stories[owner as usize].conn;
        let _ = self.cm.disconnect(now, conn, &mut self.world);
    }

    pub fn count(&self, reason: Reason) -> u64 {
        self.world.reasons.get(&reason).copied().unwrap_or(0)
    }
}

/// Rates of impairments of the link, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    pub loss: u64,
    pub duplicate: u64,
    /// Maximum extra delay.
    pub delay: Nanos,
}

/// A message under way: reversed order, so that the heap gives the earliest first.
type Flying = std::cmp::Reverse<(u64, u64, usize)>;

/// Both ends and the link between them.
pub struct Harness {
    pub hosts: [Host; 2],
    pub now: Nanos,
    pub rng: Rng,
    pub weather: Weather,
    flying: BinaryHeap<Flying>,
    cargo: BTreeMap<u64, (PathRecord, Mad)>,
    count: u64,
}

impl Harness {
    pub fn new(seed: u64, weather: Weather) -> Harness {
        Harness {
            hosts: [Host::new(1), Host::new(2)],
            now: Nanos::from_ms(1),
            rng: Rng::new(seed),
            weather,
            flying: BinaryHeap::new(),
            cargo: BTreeMap::new(),
            count: 0,
        }
    }

    /// Puts what the hosts have sent on the link.
    pub fn depart(&mut self) {
        for host in 0..2 {
            for (path, mad) in std::mem::take(&mut self.hosts[host].world.sent) {
                let copies = 1 + u64::from(self.rng.chance(self.weather.duplicate, 1000));
                for _ in 0..copies {
                    if self.rng.chance(self.weather.loss, 1000) {
                        continue;
                    }
                    let at = self.now + Nanos::from_us(10) + Nanos(self.rng.below(self.weather.delay.0 + 1));
                    self.count += 1;
                    let to = if self.hosts[0].ip == path.flow.dst { 0 } else { 1 };
                    self.flying.push(std::cmp::Reverse((at.0, self.count, to)));
                    self.cargo.insert(self.count, (path, mad));
                }
            }
        }
    }

    /// Moves time to the next message or timer and handles it. False if there is none.
    pub fn step(&mut self) -> bool {
        self.depart();
        let arrival = self.flying.peek().map_or(Nanos::NEVER, |f| Nanos(f.0.0));
        let timer = self.hosts.iter().map(|h| h.cm.next_deadline()).min().unwrap_or(Nanos::NEVER);
        let next = arrival.min(timer);
        if next == Nanos::NEVER {
            return false;
        }
        self.now = self.now.max(next);
        if arrival <= timer {
            if let Some(std::cmp::Reverse((_, number, to))) = self.flying.pop()
                && let Some((path, mad)) = self.cargo.remove(&number)
            {
                let back = Flow { src: path.flow.dst, dst: path.flow.src, ..path.flow };
                let Host { cm, world, .. } = &mut self.hosts[to];
                cm.on_mad(self.now, &PathRecord { device: DeviceId(0), flow: back }, &mad, world);
            }
        } else {
            for Host { cm, world, .. } in &mut self.hosts {
                cm.on_timer(self.now, 1000, world);
            }
        }
        true
    }

    /// The programs: they accept all requests and call establish after each Response.
    pub fn programs(&mut self) {
        for host in &mut self.hosts {
            for owner in std::mem::take(&mut host.world.requests) {
                host.accept(self.now, owner);
            }
            for owner in std::mem::take(&mut host.world.responses) {
                let conn = host.world.stories[owner as usize].conn;
                let _ = host.cm.establish(self.now, conn, &mut host.world);
            }
        }
    }

    /// Runs until there is no message or timer any more, for at most `limit` of virtual time.
    pub fn run(&mut self, limit: Nanos) {
        let end = self.now + limit;
        self.programs();
        while self.now < end && self.step() {
            self.programs();
        }
    }
}
