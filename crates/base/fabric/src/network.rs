//! The network that runs: events of ports and switches in virtual time.

use crate::events::NetworkEvents;
use crate::port::{LinkEnd, QueuedTrain, Sending, time_of};
use crate::schedule::{PacketFate, PacketSchedule};
use crate::topology::{CLASSES, LinkFaults, Switches, Topology, distances, neighbours};
use crate::{Cut, HostId, Train};
use burst_base::rng::Rng;

/// What reaches a host: a train, or that its adapter has room again.
#[derive(Debug)]
pub struct Delivery<T> {
    /// The host.
    pub host: HostId,
    /// The train; `None`: the adapter that refused one has room again.
    pub train: Option<Train<T>>,
    /// Whether the ICRC of its packets is wrong.
    pub corrupted: bool,
}

/// Packets counted since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets that hosts have sent.
    pub sent: u64,
    /// Packets that have reached their hosts.
    pub arrived: u64,
    /// Packets that links have made twice.
    pub duplicated: u64,
    /// Packets that switches had no buffer for.
    pub buffer_drops: u64,
    /// Packets lost on links and by faults.
    pub losses: u64,
    /// Packets marked.
    pub marks: u64,
    /// Pauses sent.
    pub pauses: u64,
    /// Pauses that the watchdog has ended.
    pub pause_storms: u64,
    /// Packets that the watchdog has dropped.
    pub watchdog_drops: u64,
}

/// A switch's output port to which a train comes.
#[derive(Clone, Copy, Debug)]
pub struct QueueView {
    /// The port.
    pub port: u32,
    /// The time.
    pub now: u64,
    /// The link's rate in bit/s.
    pub rate: u64,
    /// Bytes that wait in front of the train.
    pub queued: u64,
    /// Bytes of the train.
    pub bytes: u64,
}

/// What a switch does with the packets of trains that enter a queue.
pub type QueueHook<T> = Box<dyn FnMut(QueueView, &mut T) + Send>;

/// Something that happens.
#[derive(Debug)]
enum What<T> {
    /// The port's train has been sent.
    Free(u32),
    /// A train's first packet has come in by a port of a switch, or its last one by a port of a host.
    Come { port: u32, queued: QueuedTrain<T> },
    /// The other end pauses or resumes classes of a port.
    Pause { port: u32, paused: u8 },
    /// A class of a port that was paused at `since` has been paused for the time of the watchdog, unless it was resumed.
    Watchdog { port: u32, class: u8, since: u64 },
}

/// A switch.
#[derive(Debug)]
struct Switch {
    /// Chooses among equal routes.
    salt: u64,
    /// Bytes in the buffer, headroom excepted.
    used: u64,
    /// Share of packets that are dropped.
    drops: f64,
    rng: Rng,
    /// For each destination switch: the ports that lead there.
    routes: Vec<Vec<u32>>,
}

/// A running network.
pub struct Network<T> {
    ports: Vec<LinkEnd<T>>,
    /// Random numbers of the link behind each port.
    rngs: Vec<Rng>,
    switches: Vec<Switch>,
    /// The port of each host's adapter, and the switch at its other end.
    adapters: Vec<(u32, Option<u32>)>,
    hosts: u32,
    faults: LinkFaults,
    settings: Switches,
    events: NetworkEvents<What<T>>,
    totals: Totals,
    topology: Topology,
    hook: Option<QueueHook<T>>,
}

/// What happens to a part of a train on a link.
struct TrainPiece<T> {
    train: Train<T>,
    /// Bytes of the train before it.
    before: u64,
    late: u64,
    is_corrupted: bool,
}

impl<T: Cut> Network<T> {
    /// A network. The topology must have passed [`Topology::check`].
    pub fn new(topology: &Topology, seed: u64) -> Network<T> {
        let mut rng = Rng::new(seed);
        let (mut links, mut switch_seeds) = (rng.fork(), rng.fork());
        let mut ports = Vec::new();
        for link in &topology.links {
            let [a, b] = [ports.len() as u32, ports.len() as u32 + 1];
            ports.push(LinkEnd::new(link.ends[0], b, link.rate, link.delay));
            ports.push(LinkEnd::new(link.ends[1], a, link.rate, link.delay));
        }
        let rngs = ports.iter().map(|_| links.fork()).collect();
        let hosts = topology.hosts;
        let mut adapters = vec![(0, None); hosts as usize];
        for (at, port) in ports.iter().enumerate().filter(|(_, port)| port.node < hosts) {
            adapters[port.node as usize] = (at as u32, ports[port.peer as usize].node.checked_sub(hosts));
        }
        let switches = topology.switches.iter().map(|_| {
            let mut rng = switch_seeds.fork();
            Switch { salt: rng.next_u64(), used: 0, drops: 0.0, rng, routes: Vec::new() }
        });
        let mut network = Network {
            switches: switches.collect(),
            ports,
            rngs,
            adapters,
            hosts,
            faults: topology.faults,
            settings: topology.settings,
            events: NetworkEvents::new(),
            totals: Totals::default(),
            topology: topology.clone(),
            hook: None,
        };
        network.find_routes();
        network
    }

    /// For each pair of switches: the ports of the first that lead to the second on a shortest way.
    fn find_routes(&mut self) {
        let (hosts, count) = (self.hosts, self.switches.len());
        let nodes = hosts as usize + count;
        let all = neighbours(nodes, &self.topology.links);
        for to in 0..count {
            let distance = distances(nodes, &all, hosts + to as u32);
            for from in 0..count {
                let node = hosts + from as u32;
                let leads = |port: &LinkEnd<T>| {
                    let next = self.ports[port.peer as usize].node;
                    port.node == node && distance[next as usize] < distance[node as usize] && next >= hosts
                };
                let ports = self.ports.iter().enumerate().filter(|(_, port)| leads(port)).map(|(at, _)| at as u32);
                let ports = if from == to { Vec::new() } else { ports.collect() };
                self.switches[from].routes.push(ports);
            }
        }
    }

    /// Lets `hook` change the packets of each train that enters a queue of a switch, as switches that write hints do.
    pub fn set_hook(&mut self, hook: QueueHook<T>) {
        self.hook = Some(hook);
    }

    /// Bytes that the adapter of a host has room for.
    pub fn room(&self, host: HostId) -> u64 {
        let port = &self.ports[self.adapters[host.0 as usize].0 as usize];
        self.settings.adapter.saturating_sub(port.queued)
    }

    /// Gives a train to the adapter of its source. A train always fits into an empty adapter.
    ///
    /// # Errors
    /// The train, when there is no room for it; an arrival without a train tells when there is.
    pub fn send(&mut self, now: u64, train: Train<T>) -> Result<(), Train<T>> {
        let at = self.adapters[train.from.0 as usize].0;
        let port = &mut self.ports[at as usize];
        let bytes = train.bytes();
        if port.queued > 0 && port.queued + bytes > self.settings.adapter {
            port.was_full = true;
            return Err(train);
        }
        self.totals.sent += u64::from(train.count);
        port.push(QueuedTrain { train, is_corrupted: false, whole_at: now, ingress: None }, bytes);
        self.start(now, at);
        Ok(())
    }

    /// The time of the next event.
    pub fn next_event(&self) -> Option<u64> {
        self.events.next_at()
    }

    /// Handles all events until `until`, that time included. What reaches hosts is appended to `out`, in order.
    pub fn step(&mut self, until: u64, out: &mut Vec<Delivery<T>>) {
        while let Some((now, what)) = self.events.pop(until) {
            match what {
                What::Free(port) => self.on_free(now, port, out),
                What::Come { port, queued } => self.on_come(now, port, queued, out),
                What::Pause { port, paused } => self.on_pause(now, port, paused),
                What::Watchdog { port, class, since } => self.on_watchdog(now, port, class, since),
            }
        }
    }

    fn schedule(&mut self, at: u64, what: What<T>) {
        self.events.push(at, what);
    }

    /// Begins to send the next train of a port, if it can.
    fn start(&mut self, now: u64, at: u32) {
        let port = &mut self.ports[at as usize];
        if port.sending.is_some() {
            return;
        }
        if port.stalled_until > now {
            // Once: `sending` keeps the port busy until then.
            port.sending = Some(Sending { class: 0, bytes: 0, ingress: None });
            let until = port.stalled_until;
            return self.schedule(until, What::Free(at));
        }
        let Some(queued) = port.pop(&self.settings.classes) else { return };
        let bytes = queued.train.bytes();
        port.packets_sent += u64::from(queued.train.count);
        port.sending = Some(Sending { class: queued.train.class, bytes, ingress: queued.ingress });
        let free_at = now + port.time_of(bytes);
        self.schedule(free_at, What::Free(at));
        self.deliver(now, at, queued);
    }

    /// Lets a train that port `at` begins to send travel to the other end.
    fn deliver(&mut self, now: u64, at: u32, queued: QueuedTrain<T>) {
        let QueuedTrain { train, is_corrupted, whole_at, .. } = queued;
        let LinkEnd { rate, delay, peer, is_up, .. } = self.ports[at as usize];
        if !is_up {
            self.totals.losses += u64::from(train.count);
            return;
        }
        let to_host = self.ports[peer as usize].node < self.hosts;
        // What the last packet waits for: it came in at `whole_at`, and takes its time here.
        let (total, last) = (train.bytes(), u64::from(train.last));
        let late_end = (whole_at + time_of(last, rate)).saturating_sub(now + time_of(total, rate));
        let arrival = |piece: TrainPiece<T>| {
            let (before, bytes, first) = (piece.before, piece.train.bytes(), piece.train.first());
            let end = now + time_of(before + bytes, rate) + late_end + delay + piece.late;
            let head = now + time_of(before + first, rate) + delay + piece.late;
            let is_corrupted = is_corrupted || piece.is_corrupted;
            let queued = QueuedTrain { train: piece.train, is_corrupted, whole_at: end, ingress: None };
            (if to_host { end } else { head }, What::Come { port: peer, queued })
        };
        let LinkFaults { loss, reorder, duplicate, corrupt, .. } = self.faults;
        if loss + reorder + duplicate + corrupt == 0.0 && self.ports[at as usize].schedules.is_empty() {
            let (at, what) = arrival(TrainPiece { train, before: 0, late: 0, is_corrupted: false });
            return self.schedule(at, what);
        }
        for piece in self.pieces(at, train) {
            let (at, what) = arrival(piece);
            self.schedule(at, what);
        }
    }

    /// Cuts a train where the link treats packets differently.
    fn pieces(&mut self, at: u32, train: Train<T>) -> Vec<TrainPiece<T>> {
        let mut pieces: Vec<TrainPiece<T>> = Vec::new();
        let (mut rest, mut before, mut untouched) = (Some(train), 0, 0);
        while let Some(mut train) = rest.take() {
            let fate = self.fate(at);
            if fate.is_none() {
                untouched += 1;
                if untouched == train.count {
                    pieces.push(TrainPiece { train, before, late: 0, is_corrupted: false });
                } else {
                    rest = Some(train);
                }
                continue;
            }
            if untouched > 0 {
                let tail = train.cut(untouched);
                let bytes = train.bytes();
                pieces.push(TrainPiece { train, before, late: 0, is_corrupted: false });
                (train, before, untouched) = (tail, before + bytes, 0);
            }
            rest = (train.count > 1).then(|| train.cut(1));
            let bytes = train.bytes();
            if fate.is_marked && train.ecn_capable && !train.marked {
                train.marked = true;
                self.totals.marks += 1;
            }
            let is_corrupted = fate.is_corrupted;
            if let Some(late) = fate.again.filter(|_| !fate.is_lost) {
                self.totals.duplicated += 1;
                pieces.push(TrainPiece { train: train.clone(), before, late, is_corrupted });
            }
            match fate.is_lost {
                true => self.totals.losses += 1,
                false => pieces.push(TrainPiece { train, before, late: fate.late, is_corrupted }),
            }
            before += bytes;
        }
        pieces
    }

    /// What happens to the next packet that a port sends: by schedule, and at random.
    fn fate(&mut self, at: u32) -> PacketFate {
        let LinkFaults { loss, reorder, duplicate, corrupt, late_max } = self.faults;
        let rng = &mut self.rngs[at as usize];
        let mut happens = |share: f64| share > 0.0 && chance(rng, share);
        let (is_lost, is_late, is_double, is_corrupted) =
            (happens(loss), happens(reorder), happens(duplicate), happens(corrupt));
        let mut fate = PacketFate { is_lost, is_corrupted, ..PacketFate::default() };
        if is_late {
            fate.late = 1 + rng.next_u64() % late_max;
        }
        if is_double && !is_lost {
            fate.again = Some(rng.next_u64() % late_max);
        }
        let port = &mut self.ports[at as usize];
        if port.schedules.is_empty() { fate } else { port.next_fate().and(fate) }
    }

    /// A port has sent its train.
    fn on_free(&mut self, now: u64, at: u32, out: &mut Vec<Delivery<T>>) {
        let port = &mut self.ports[at as usize];
        if let Some(Sending { class, bytes, ingress: Some((from, headroom)) }) = port.sent() {
            self.release(now, from, class, bytes, headroom);
        }
        let port = &mut self.ports[at as usize];
        if port.was_full && port.node < self.hosts && port.queued <= self.settings.adapter / 2 {
            port.was_full = false;
            out.push(Delivery { host: HostId(port.node), train: None, corrupted: false });
        }
        self.start(now, at);
    }

    /// A train comes in by a port.
    fn on_come(&mut self, now: u64, at: u32, queued: QueuedTrain<T>, out: &mut Vec<Delivery<T>>) {
        let port = &mut self.ports[at as usize];
        let Some(switch) = port.node.checked_sub(self.hosts) else {
            if port.stalled_until > now {
                // Not before those that came earlier, if the stall has become longer since.
                if port.held_until <= now {
                    port.held_until = port.stalled_until;
                }
                let until = port.held_until;
                return self.schedule(until, What::Come { port: at, queued });
            }
            self.totals.arrived += u64::from(queued.train.count);
            let host = HostId(port.node);
            return out.push(Delivery { host, train: Some(queued.train), corrupted: queued.is_corrupted });
        };
        let drops = self.switches[switch as usize].drops;
        if drops > 0.0 && chance(&mut self.switches[switch as usize].rng, drops) {
            self.totals.losses += u64::from(queued.train.count);
            return;
        }
        let to = self.route(switch, &queued.train);
        self.forward(now, at, to, queued);
    }

    /// The port of a switch by which a train leaves.
    fn route(&self, switch: u32, train: &Train<T>) -> u32 {
        let (adapter, last) = self.adapters[train.to.0 as usize];
        if last == Some(switch) {
            return self.ports[adapter as usize].peer;
        }
        let Switch { salt, routes, .. } = &self.switches[switch as usize];
        let ways = &routes[last.unwrap_or(0) as usize];
        let mixed = (train.flow ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32;
        ways[((mixed * ways.len() as u64) >> 32) as usize]
    }

    /// Puts a train that came in by `from` into the queue of `to`, if the buffer has room.
    fn forward(&mut self, now: u64, from: u32, to: u32, mut queued: QueuedTrain<T>) {
        let (class, mut bytes) = (queued.train.class, queued.train.bytes());
        if self.ports[to as usize].storms >> class & 1 == 1 {
            self.totals.watchdog_drops += u64::from(queued.train.count);
            return;
        }
        let Some(headroom) = self.admit(now, from, class, bytes) else {
            // What of it fits.
            let fits = self.fitting(from, class, &queued.train);
            if fits == 0 {
                self.totals.buffer_drops += u64::from(queued.train.count);
                return;
            }
            let lost = queued.train.cut(fits);
            self.totals.buffer_drops += u64::from(lost.count);
            bytes = queued.train.bytes();
            return match self.admit(now, from, class, bytes) {
                Some(headroom) => self.enqueue(now, to, queued, bytes, (from, headroom)),
                None => self.totals.buffer_drops += u64::from(queued.train.count),
            };
        };
        self.enqueue(now, to, queued, bytes, (from, headroom));
    }

    /// Marks a train by the length of the queue of its class, and appends it.
    fn enqueue(&mut self, now: u64, to: u32, mut queued: QueuedTrain<T>, bytes: u64, ingress: (u32, u64)) {
        let class = queued.train.class;
        if queued.train.ecn_capable && !queued.train.marked {
            let length = self.ports[to as usize].bytes_of(class);
            let share = self.settings.classes[usize::from(class)].mark_share(length, bytes);
            if share.is_some_and(|share| chance(&mut self.rngs[to as usize], share)) {
                queued.train.marked = true;
                self.totals.marks += u64::from(queued.train.count);
            }
        }
        queued.ingress = Some(ingress);
        if let Some(hook) = &mut self.hook {
            let LinkEnd { rate, queued: waiting, .. } = self.ports[to as usize];
            hook(QueueView { port: to, now, rate, queued: waiting, bytes }, &mut queued.train.body);
        }
        self.ports[to as usize].push(queued, bytes);
        self.start(now, to);
    }

    /// Bytes of the buffer that are free.
    fn free(&self, switch: u32) -> u64 {
        self.settings.buffer.saturating_sub(self.switches[switch as usize].used)
    }

    /// Bytes that a port and class may hold now, those included that it holds.
    fn threshold(&self, switch: u32) -> u64 {
        (self.free(switch) as f64 * self.settings.alpha) as u64
    }

    /// How many packets of a train the buffer has room for, without flow control.
    fn fitting(&self, from: u32, class: u8, train: &Train<T>) -> u32 {
        let port = &self.ports[from as usize];
        let room = match self.settings.classes[usize::from(class)].pfc {
            true => self.settings.headroom.saturating_sub(port.headroom_used[usize::from(class)]),
            false => {
                let switch = port.node - self.hosts;
                self.threshold(switch).saturating_sub(port.held[usize::from(class)]).min(self.free(switch))
            }
        };
        ((room / u64::from(train.stride.max(1))) as u32).min(train.count - 1)
    }

    /// Takes buffer for bytes that came in by a port. Returns how many of them are in the headroom, or `None` without room.
    fn admit(&mut self, now: u64, from: u32, class: u8, bytes: u64) -> Option<u64> {
        let (node, index) = (self.ports[from as usize].node, usize::from(class) % CLASSES);
        let (switch, hosts) = (node - self.hosts, self.hosts);
        debug_assert!(node >= hosts);
        let (threshold, free) = (self.threshold(switch), self.free(switch));
        let port = &mut self.ports[from as usize];
        let shared = port.held[index] - port.headroom_used[index];
        let fits = shared + bytes <= threshold && bytes <= free;
        if !fits && !self.settings.classes[index].pfc {
            return None;
        }
        let headroom = if fits && port.pausing >> class & 1 == 0 { 0 } else { bytes };
        if port.headroom_used[index] + headroom > self.settings.headroom {
            return None;
        }
        port.held[index] += bytes;
        port.headroom_used[index] += headroom;
        self.switches[switch as usize].used += bytes - headroom;
        if headroom > 0 && port.pausing >> class & 1 == 0 {
            self.totals.pauses += 1;
            self.tell_pause(now, from, class, true);
        }
        Some(headroom)
    }

    /// A train that came in by `from` has left the switch.
    fn release(&mut self, now: u64, from: u32, class: u8, bytes: u64, headroom: u64) {
        let index = usize::from(class) % CLASSES;
        let port = &mut self.ports[from as usize];
        port.held[index] -= bytes;
        port.headroom_used[index] -= headroom;
        let switch = port.node - self.hosts;
        self.switches[switch as usize].used -= bytes - headroom;
        let port = &self.ports[from as usize];
        // Resumes with room for a few packets, so that a pause is not sent for each.
        let resume = self.threshold(switch).saturating_sub(16 << 10);
        if port.pausing >> class & 1 == 1 && port.headroom_used[index] == 0 && port.held[index] <= resume {
            self.tell_pause(now, from, class, false);
        }
    }

    /// Tells the other end of a port to pause or resume a class.
    fn tell_pause(&mut self, now: u64, from: u32, class: u8, pause: bool) {
        let port = &mut self.ports[from as usize];
        if pause {
            port.pausing |= 1 << class;
        } else {
            port.pausing &= !(1 << class);
        }
        let (peer, delay, paused) = (port.peer, port.delay, port.pausing);
        self.schedule(now + delay, What::Pause { port: peer, paused });
    }

    /// The other end of a port pauses the classes whose bits are set, and resumes the others.
    fn on_pause(&mut self, now: u64, at: u32, paused: u8) {
        let port = &mut self.ports[at as usize];
        let begins = paused & !port.paused;
        port.paused = paused;
        port.storms &= paused;
        if self.settings.watchdog > 0 && port.node >= self.hosts {
            for class in (0..CLASSES as u8).filter(|class| begins >> class & 1 == 1) {
                self.ports[at as usize].paused_since[usize::from(class)] = now;
                self.schedule(now + self.settings.watchdog, What::Watchdog { port: at, class, since: now });
            }
        }
        self.start(now, at);
    }

    /// Ends a pause that has lasted too long: what it holds up is dropped, so that buffers which wait for it become free.
    fn on_watchdog(&mut self, now: u64, at: u32, class: u8, since: u64) {
        let port = &mut self.ports[at as usize];
        if port.paused >> class & 1 == 0 || port.paused_since[usize::from(class)] != since {
            return;
        }
        port.storms |= 1 << class;
        let dropped = port.take_class(class);
        self.totals.pause_storms += 1;
        for queued in dropped {
            self.totals.watchdog_drops += u64::from(queued.train.count);
            if let Some((from, headroom)) = queued.ingress {
                self.release(now, from, class, queued.train.bytes(), headroom);
            }
        }
    }

    /// Lets the adapter of a host pause a class without end, as a defective one does, or resume it.
    pub fn set_pause_storm(&mut self, now: u64, host: HostId, class: u8, is_paused: bool) {
        let at = self.adapters[host.0 as usize].0;
        self.totals.pauses += u64::from(is_paused);
        self.tell_pause(now, at, class, is_paused);
    }

    /// Lets a link go down or up again: trains that are sent meanwhile are lost. A host's name stands for its link, two names
    /// with `-` between them for the link of two switches. False if there is no such link.
    pub fn set_link(&mut self, name: &str, is_up: bool) -> bool {
        let mut found = false;
        for (at, link) in self.topology.links.iter().enumerate() {
            if self.topology.is_name_of(name, link) {
                found = true;
                self.ports[2 * at..2 * at + 2].iter_mut().for_each(|port| port.is_up = is_up);
            }
        }
        found
    }

    /// Lets a switch drop a share of its trains. False if there is no such switch.
    pub fn set_drops(&mut self, name: &str, share: f64) -> bool {
        let Some(at) = self.topology.switches.iter().position(|switch| switch == name) else { return false };
        self.switches[at].drops = share;
        true
    }

    /// Gives the next packets of a host fates.
    pub fn add_schedule(&mut self, host: HostId, schedule: PacketSchedule) {
        self.ports[self.adapters[host.0 as usize].0 as usize].schedules.push(schedule);
    }

    /// The adapter of a host sends and receives nothing until then, or until the end of an earlier stall that is later.
    pub fn stall_nic(&mut self, now: u64, host: HostId, until: u64) {
        let at = self.adapters[host.0 as usize].0;
        let port = &mut self.ports[at as usize];
        port.stalled_until = port.stalled_until.max(until);
        self.start(now, at);
    }

    /// The adapter of a host loses what waits in it.
    pub fn clear_adapter(&mut self, host: HostId) {
        let port = &mut self.ports[self.adapters[host.0 as usize].0 as usize];
        for class in 0..CLASSES as u8 {
            let lost = port.take_class(class);
            self.totals.losses += lost.iter().map(|queued| u64::from(queued.train.count)).sum::<u64>();
        }
        port.was_full = false;
    }

    /// What was counted.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Changes the rate at which a host sends into its link, in bit/s; what comes to the host keeps the link's rate.
    pub fn set_host_rate(&mut self, host: HostId, rate: u64) {
        assert!(rate > 0, "a link has a rate");
        self.ports[self.adapters[host.0 as usize].0 as usize].rate = rate;
    }

    /// Bytes that wait for the link to a host at the last switch, and the most that ever did.
    pub fn queue_to(&self, host: HostId) -> (u64, u64) {
        let port = &self.ports[self.ports[self.adapters[host.0 as usize].0 as usize].peer as usize];
        (port.queued, port.queued_max)
    }

    /// The most bytes that waited at a port of a switch.
    pub fn queue_max(&self) -> u64 {
        let switches = self.ports.iter().filter(|port| port.node >= self.hosts);
        switches.map(|port| port.queued_max).max().unwrap_or(0)
    }

    /// The most bytes that wait at a port of a switch now.
    pub fn queue_now(&self) -> u64 {
        let switches = self.ports.iter().filter(|port| port.node >= self.hosts);
        switches.map(|port| port.queued).max().unwrap_or(0)
    }

    /// Packets that each switch has sent whose name begins with `prefix`.
    pub fn sent_through(&self, prefix: &str) -> Vec<u64> {
        let names = self.topology.switches.iter().zip(self.hosts..).filter(|(name, _)| name.starts_with(prefix));
        let sent = |node| self.ports.iter().filter(|port| port.node == node).map(|port| port.packets_sent).sum();
        names.map(|(_, node)| sent(node)).collect()
    }

    /// Rate and delay of each link on a way between two hosts.
    pub fn path(&self, from: HostId, to: HostId) -> Vec<(u64, u64)> {
        let mut path = Vec::new();
        let mut at = self.adapters[from.0 as usize].0;
        loop {
            let port = &self.ports[at as usize];
            path.push((port.rate, port.delay));
            let next = self.ports[port.peer as usize].node;
            let Some(switch) = next.checked_sub(self.hosts) else { return path };
            let (adapter, last) = self.adapters[to.0 as usize];
            at = match last {
                Some(last) if last != switch => self.switches[switch as usize].routes[last as usize][0],
                _ => self.ports[adapter as usize].peer,
            };
        }
    }

    /// Time of `bytes`, sent as packets of `packet` bytes, from one host to another through an empty network, and of an answer
    /// of `answer` bytes back: the ideal completion time.
    pub fn ideal_time(&self, from: HostId, to: HostId, bytes: u64, packet: u64, answer: u64) -> u64 {
        let path = self.path(from, to);
        let slowest = path.iter().map(|(rate, _)| *rate).min().unwrap_or(1);
        let first = bytes.min(packet);
        let there: u64 = path.iter().map(|(rate, delay)| delay + time_of(first, *rate)).sum();
        let back: u64 = path.iter().map(|(rate, delay)| delay + time_of(answer, *rate)).sum();
        there + time_of(bytes - first, slowest) + back
    }

    /// Checks that every packet is somewhere: sent and made twice = arrived, dropped, lost, or on its way; and that each switch
    /// counts the bytes that are in it.
    ///
    /// # Errors
    /// The numbers that do not fit.
    pub fn check_conservation(&self) -> Result<(), String> {
        let travelling = self.events.iter().map(|event| match event {
            What::Come { queued, .. } => u64::from(queued.train.count),
            _ => 0,
        });
        let waiting: u64 = self.ports.iter().map(LinkEnd::packets).sum();
        let Totals { sent, duplicated, arrived, buffer_drops, losses, watchdog_drops, .. } = self.totals;
        let on_the_way = travelling.sum::<u64>() + waiting;
        if sent + duplicated != arrived + buffer_drops + losses + watchdog_drops + on_the_way {
            return Err(format!("{:?}, and {on_the_way} packets on their way", self.totals));
        }
        let sum = |values: [u64; CLASSES]| values.into_iter().sum::<u64>();
        for (switch, node) in self.switches.iter().zip(self.hosts..) {
            let ports = || self.ports.iter().filter(|port| port.node == node);
            let held: u64 = ports().map(|port| sum(port.held)).sum();
            let headroom: u64 = ports().map(|port| sum(port.headroom_used)).sum();
            let queued: u64 = ports().map(LinkEnd::ingress_bytes).sum();
            if held != queued || switch.used + headroom != held {
                let (name, used) = (self.topology.name(node), switch.used);
                return Err(format!(
                    "{name} counts {held} bytes, {used} shared and {headroom} of headroom, and has {queued}"
                ));
            }
        }
        Ok(())
    }
}

fn chance(rng: &mut Rng, share: f64) -> bool {
    ((rng.next_u64() >> 11) as f64) < share * (1u64 << 53) as f64
}
