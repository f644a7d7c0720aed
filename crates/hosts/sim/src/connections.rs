//! Connections between simulated hosts, and which of them are free.
//!
//! A message takes a free connection of its pair of hosts, or a new one. A host that has many free connections gives the queue
//! pairs of the oldest one to the next new connection.

use std::collections::{BTreeMap, VecDeque};

/// Free connections that a host keeps for later messages to the same peer.
const FREE_KEPT: usize = 64;

/// An end: a host, and the number of a queue pair in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The host.
    pub host: u32,
    /// The queue pair's number in the host.
    pub qp: u32,
}

/// A connection: the end that sends, and the other one.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// The ends.
    pub ends: [Place; 2],
    /// Class of its packets.
    pub class: u8,
    /// How often the hosts of the ends had started when it was made.
    made: [u32; 2],
    /// Requests on their way.
    requests: u32,
    is_alive: bool,
}

/// What connections have in common that serve the same messages: source, destination, class.
type Kind = (u32, u32, u8);

/// All connections of a simulation.
#[derive(Debug)]
pub struct Connections {
    all: Vec<Connection>,
    /// Numbers of dead connections, which are used again.
    dead: Vec<u32>,
    /// Free connections, oldest first.
    free: BTreeMap<Kind, VecDeque<u32>>,
    /// Free connections by source, oldest first; an entry that is no longer free is skipped.
    by_source: Vec<VecDeque<(u32, Kind)>>,
    /// Queue pairs by host that are in no connection.
    queue_pairs: Vec<Vec<u32>>,
    /// Connections of lanes.
    lanes: BTreeMap<(u16, u32), u32>,
    /// How often each host has restarted.
    restarts: Vec<u32>,
}

impl Connections {
    /// No connections among so many hosts.
    pub fn new(hosts: u32) -> Connections {
        Connections {
            all: Vec::new(),
            dead: Vec::new(),
            free: BTreeMap::new(),
            by_source: vec![VecDeque::new(); hosts as usize],
            queue_pairs: vec![Vec::new(); hosts as usize],
            lanes: BTreeMap::new(),
            restarts: vec![0; hosts as usize],
        }
    }

    /// A connection.
    pub fn get(&self, number: u32) -> &Connection {
        &self.all[number as usize]
    }

    /// Takes a free connection from `from` to `to` in a class.
    pub fn take(&mut self, from: u32, to: u32, class: u8) -> Option<u32> {
        let free = self.free.get_mut(&(from, to, class))?;
        let number = free.pop_back();
        if free.is_empty() {
            self.free.remove(&(from, to, class));
        }
        number
    }

    /// The connection of a lane of a part of the traffic.
    pub fn lane(&self, traffic: u16, lane: u32) -> Option<u32> {
        self.lanes.get(&(traffic, lane)).copied()
    }

    /// Notes the connection of a lane.
    pub fn set_lane(&mut self, traffic: u16, lane: u32, number: u32) {
        self.lanes.insert((traffic, lane), number);
    }

    /// A queue pair of `host` that is in no connection, if there is one.
    pub fn take_queue_pair(&mut self, host: u32) -> Option<u32> {
        self.queue_pairs[host as usize].pop()
    }

    /// A new connection between two queue pairs.
    pub fn add(&mut self, ends: [Place; 2], class: u8) -> u32 {
        let made = ends.map(|end| self.restarts[end.host as usize]);
        let connection = Connection { ends, class, made, requests: 0, is_alive: true };
        match self.dead.pop() {
            Some(number) => {
                self.all[number as usize] = connection;
                number
            }
            None => {
                self.all.push(connection);
                self.all.len() as u32 - 1
            }
        }
    }

    /// A request of a connection is on its way.
    pub fn begin_request(&mut self, number: u32) {
        self.all[number as usize].requests += 1;
    }

    /// A request of a connection has ended.
    pub fn end_request(&mut self, number: u32) {
        self.all[number as usize].requests -= 1;
    }

    /// Whether a connection still exists and has no request on its way.
    pub fn is_idle(&self, number: u32) -> bool {
        let connection = &self.all[number as usize];
        connection.is_alive && connection.requests == 0
    }

    /// Whether a host of a connection has restarted since it was made.
    pub fn is_stale(&self, number: u32) -> bool {
        self.ends_alive(number).count() < 2
    }

    /// The ends of a connection whose hosts have not restarted since it was made.
    pub fn ends_alive(&self, number: u32) -> impl Iterator<Item = Place> + use<> {
        let Connection { ends, made, .. } = self.all[number as usize];
        let alive = ends.map(|end| self.restarts[end.host as usize]);
        (0..2).filter(move |at| made[*at] == alive[*at]).map(move |at| ends[at])
    }

    /// A host has restarted: its queue pairs no longer exist, and no new message takes a connection that had an end there.
    /// Returns those connections.
    pub fn on_restart(&mut self, host: u32) -> Vec<u32> {
        self.restarts[host as usize] += 1;
        self.queue_pairs[host as usize].clear();
        self.free.retain(|(from, to, _), _| *from != host && *to != host);
        let all = &self.all;
        let has_end = |number: &u32| all[*number as usize].ends.iter().any(|end| end.host == host);
        self.lanes.retain(|_, number| !has_end(number));
        (0..all.len() as u32).filter(|number| all[*number as usize].is_alive && has_end(number)).collect()
    }

    /// The message of a connection has ended.
    pub fn release(&mut self, number: u32) {
        let Connection { ends, class, .. } = self.all[number as usize];
        let [from, to] = ends.map(|end| end.host);
        self.free.entry((from, to, class)).or_default().push_back(number);
        let line = &mut self.by_source[from as usize];
        line.push_back((number, (from, to, class)));
        if line.len() > FREE_KEPT
            && let Some((oldest, kind)) = line.pop_front()
        {
            self.end(oldest, kind);
        }
    }

    /// Ends a connection of `kind` if it is free.
    fn end(&mut self, number: u32, kind: Kind) {
        let Some(free) = self.free.get_mut(&kind) else { return };
        let Some(at) = free.iter().position(|known| *known == number) else { return };
        free.remove(at);
        if free.is_empty() {
            self.free.remove(&kind);
        }
        self.forget(number);
    }

    /// A connection has failed, or has ended: those of its queue pairs that still exist may be used again.
    pub fn forget(&mut self, number: u32) {
        if std::mem::take(&mut self.all[number as usize].is_alive) {
            for end in self.ends_alive(number) {
                self.queue_pairs[end.host as usize].push(end.qp);
            }
            self.dead.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(from: u32, to: u32, qp: u32) -> [Place; 2] {
        [Place { host: from, qp }, Place { host: to, qp }]
    }

    #[test]
    fn a_free_connection_is_used_again() {
        let mut all = Connections::new(3);
        assert_eq!(all.take(0, 1, 0), None);
        let number = all.add(ends(0, 1, 0), 0);
        all.release(number);
        assert_eq!((all.take(1, 0, 0), all.take(0, 1, 3)), (None, None), "the other way, another class");
        assert_eq!((all.take(0, 1, 0), all.take(0, 1, 0)), (Some(number), None));
    }

    #[test]
    fn a_host_that_restarts_has_no_queue_pairs() {
        let mut all = Connections::new(3);
        let numbers = [ends(0, 1, 5), ends(1, 2, 6), ends(2, 0, 7)].map(|ends| all.add(ends, 0));
        all.release(numbers[0]);
        all.set_lane(4, 2, numbers[1]);
        all.begin_request(numbers[1]);
        assert_eq!(all.on_restart(1), numbers[..2]);
        assert_eq!((all.take(0, 1, 0), all.lane(4, 2)), (None, None), "no new message takes them");
        assert_eq!(numbers.map(|number| all.is_stale(number)), [true, true, false]);
        assert_eq!(numbers.map(|number| all.is_idle(number)), [true, false, true]);
        all.end_request(numbers[1]);
        numbers[..2].iter().for_each(|number| all.forget(*number));
        assert_eq!([0, 1, 2].map(|host| all.take_queue_pair(host)), [Some(5), None, Some(6)]);
        let again = all.add(ends(0, 1, 8), 0);
        assert!(numbers.contains(&again) && !all.is_stale(again));
    }

    #[test]
    fn the_oldest_free_connection_ends_when_there_are_many() {
        let mut all = Connections::new(2);
        let numbers: Vec<u32> = (0..=FREE_KEPT as u32).map(|qp| all.add(ends(0, 1, qp), 0)).collect();
        numbers.iter().for_each(|number| all.release(*number));
        assert_eq!((all.take_queue_pair(0), all.take_queue_pair(0), all.take_queue_pair(1)), (Some(0), None, Some(0)));
        assert_eq!(all.add(ends(0, 1, 9), 0), numbers[0], "the number of the dead connection");
        let mut free = 0;
        while all.take(0, 1, 0).is_some() {
            free += 1;
        }
        assert_eq!(free, FREE_KEPT);
    }
}
