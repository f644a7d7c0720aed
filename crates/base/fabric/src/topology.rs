//! Hosts, switches and links, and the routes between them.
//!
//! A host has one link. Routes are the shortest by number of links; where there are several, each switch chooses one by the
//! train's flow and a number of its own.

/// Impairments of a link; each is a share of packets, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkFaults {
    /// Lost.
    pub loss: f64,
    /// Late by up to `late_max`.
    pub reorder: f64,
    /// Delivered twice.
    pub duplicate: f64,
    /// Delivered with a wrong ICRC.
    pub corrupt: f64,
    /// The most picoseconds that a reordered packet, or the copy of a packet, is late; at least 1.
    pub late_max: u64,
}

impl Default for LinkFaults {
    /// None; what is late is late by up to [`REORDER_MAX`].
    fn default() -> LinkFaults {
        LinkFaults { loss: 0.0, reorder: 0.0, duplicate: 0.0, corrupt: 0.0, late_max: REORDER_MAX }
    }
}

/// The most that a reordered packet is late, if nothing else is said: 20 µs.
pub const REORDER_MAX: u64 = 20_000_000;

/// Number of classes.
pub const CLASSES: usize = 8;

/// How ports treat a class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassSettings {
    /// Bytes that the class may send in a round of deficit round robin; 0: strict priority. As in IEEE 802.1Q, clause 8.6.8,
    /// classes of strict priority go first, the highest of them before the others; those with weights share what is left.
    pub weight: u64,
    /// Whether priority flow control is on.
    pub pfc: bool,
    /// Queue of the class in bytes from which trains are marked, and from which all are; none if equal to `u64::MAX`.
    pub ecn_min: u64,
    /// See `ecn_min`.
    pub ecn_max: u64,
    /// Share of trains marked just below `ecn_max`.
    pub ecn_share: f64,
}

impl Default for ClassSettings {
    /// Strict priority, no flow control, no marks.
    fn default() -> ClassSettings {
        ClassSettings { weight: 0, pfc: false, ecn_min: u64::MAX, ecn_max: u64::MAX, ecn_share: 1.0 }
    }
}

impl ClassSettings {
    /// Share of trains of `bytes` bytes to be marked that find `queued` bytes of their class: RED on the length of the queue in
    /// the middle of the train, or a step. `None` if the queue is shorter than `ecn_min` with the train in it.
    pub fn mark_share(&self, queued: u64, bytes: u64) -> Option<f64> {
        let range = self.ecn_max.saturating_sub(self.ecn_min) as f64;
        let over = (queued + bytes / 2).saturating_sub(self.ecn_min) as f64;
        let share = if queued >= self.ecn_max || range == 0.0 { 1.0 } else { self.ecn_share * (over / range) };
        (queued + bytes > self.ecn_min).then_some(share)
    }
}

/// Settings of switches. Adapters use `adapter` and the weights of classes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Switches {
    /// Bytes of a switch's buffer.
    pub buffer: u64,
    /// A port and class may hold this times what is free.
    pub alpha: f64,
    /// Bytes of headroom of each port and class with flow control, beside the buffer. It must hold what arrives until a pause has
    /// effect: twice the link's rate times its delay, and the train that is being sent.
    pub headroom: u64,
    /// Picoseconds after which a pause without a break is a storm: the port drops the trains of that class until the other end
    /// resumes it. 0: never.
    pub watchdog: u64,
    /// Bytes of an adapter's send queue.
    pub adapter: u64,
    /// Classes, by number.
    pub classes: [ClassSettings; CLASSES],
}

impl Default for Switches {
    /// 32 MB, alpha 1, no watchdog, a send queue of 1 MiB.
    fn default() -> Switches {
        Switches {
            buffer: 32_000_000,
            alpha: 1.0,
            headroom: 128 << 10,
            watchdog: 0,
            adapter: 1 << 20,
            classes: [ClassSettings::default(); CLASSES],
        }
    }
}

/// A link between two nodes: hosts come first, then switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The nodes.
    pub ends: [u32; 2],
    /// bit/s.
    pub rate: u64,
    /// Propagation in picoseconds.
    pub delay: u64,
}

/// A network to be built.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    /// Number of hosts.
    pub hosts: u32,
    /// Names of switches, whose nodes follow those of hosts.
    pub switches: Vec<String>,
    /// Links.
    pub links: Vec<Link>,
    /// Impairments of all links.
    pub faults: LinkFaults,
    /// Settings of all switches.
    pub settings: Switches,
}

/// Rates and delays of an arrangement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speeds {
    /// Rate of hosts' links in bit/s.
    pub host: u64,
    /// Rate of links between switches.
    pub fabric: u64,
    /// Propagation of each link in picoseconds.
    pub delay: u64,
}

impl Topology {
    fn with(hosts: u32) -> Topology {
        Topology { hosts, ..Topology::default() }
    }

    /// Adds a switch and returns its node.
    pub fn add_switch(&mut self, name: String) -> u32 {
        self.switches.push(name);
        self.hosts + self.switches.len() as u32 - 1
    }

    /// Adds a link.
    pub fn add_link(&mut self, ends: [u32; 2], rate: u64, delay: u64) {
        self.links.push(Link { ends, rate, delay });
    }

    /// Two hosts and a link.
    pub fn pair(speeds: Speeds) -> Topology {
        let mut topology = Topology::with(2);
        topology.add_link([0, 1], speeds.host, speeds.delay);
        topology
    }

    /// Hosts around one switch.
    pub fn star(hosts: u32, speeds: Speeds) -> Topology {
        let mut topology = Topology::with(hosts);
        let switch = topology.add_switch("switch".into());
        (0..hosts).for_each(|host| topology.add_link([host, switch], speeds.host, speeds.delay));
        topology
    }

    /// Two switches with half of the hosts each, and one link between them.
    pub fn dumbbell(hosts: u32, speeds: Speeds) -> Topology {
        let mut topology = Topology::with(hosts);
        let sides = ["left", "right"].map(|name| topology.add_switch(name.into()));
        for host in 0..hosts {
            topology.add_link([host, sides[usize::from(host >= hosts / 2)]], speeds.host, speeds.delay);
        }
        topology.add_link(sides, speeds.fabric, speeds.delay);
        topology
    }

    /// Switches in a ring, each with the same number of hosts. With four of them or more, packets that go two links around the
    /// ring can wait for each other: the arrangement of deadlocks by flow control.
    pub fn ring(hosts: u32, switches: u32, speeds: Speeds) -> Topology {
        let mut topology = Topology::with(hosts);
        let all: Vec<u32> = (0..switches).map(|at| topology.add_switch(format!("switch{at}"))).collect();
        for host in 0..hosts {
            topology.add_link([host, all[(host / (hosts / switches)) as usize]], speeds.host, speeds.delay);
        }
        for (at, switch) in all.iter().enumerate() {
            topology.add_link([*switch, all[(at + 1) % all.len()]], speeds.fabric, speeds.delay);
        }
        topology
    }

    /// Leaves with the same number of hosts, each with a link to every spine.
    pub fn leaf_spine(hosts: u32, leaves: u32, spines: u32, speeds: Speeds) -> Topology {
        let mut topology = Topology::with(hosts);
        let leaf: Vec<u32> = (0..leaves).map(|leaf| topology.add_switch(format!("leaf{leaf}"))).collect();
        let spine: Vec<u32> = (0..spines).map(|spine| topology.add_switch(format!("spine{spine}"))).collect();
        for host in 0..hosts {
            topology.add_link([host, leaf[(host / (hosts / leaves)) as usize]], speeds.host, speeds.delay);
        }
        for leaf in leaf {
            spine.iter().for_each(|spine| topology.add_link([leaf, *spine], speeds.fabric, speeds.delay));
        }
        topology
    }

    /// Three tiers: in each pod every edge switch is linked to every aggregation switch, and aggregation switch `k` of each pod
    /// to the `k`th group of core switches.
    pub fn fat_tree(hosts: u32, shape: FatTree, speeds: Speeds) -> Topology {
        let mut topology = Topology::with(hosts);
        let FatTree { pods, edges, aggregations, cores } = shape;
        let mut add = |name: &str, count: u32| -> Vec<u32> {
            (0..count).map(|at| topology.add_switch(format!("{name}{at}"))).collect()
        };
        let (edge, aggregation, core) =
            (add("edge", pods * edges), add("agg", pods * aggregations), add("core", cores));
        let per_edge = hosts / (pods * edges);
        for host in 0..hosts {
            topology.add_link([host, edge[(host / per_edge) as usize]], speeds.host, speeds.delay);
        }
        for pod in 0..pods {
            for k in 0..aggregations {
                let above = aggregation[(pod * aggregations + k) as usize];
                for e in 0..edges {
                    topology.add_link([edge[(pod * edges + e) as usize], above], speeds.fabric, speeds.delay);
                }
                let group = cores / aggregations.max(1);
                for core in core.iter().skip((k * group) as usize).take(group as usize) {
                    topology.add_link([above, *core], speeds.fabric, speeds.delay);
                }
            }
        }
        topology
    }

    /// The name of a node.
    pub fn name(&self, node: u32) -> String {
        match node.checked_sub(self.hosts) {
            None => format!("host{node}"),
            Some(at) => self.switches.get(at as usize).cloned().unwrap_or_default(),
        }
    }

    /// Whether `name` is that of a link: of a host's, the host's (`host3`); of others, those of both ends (`leaf0-spine1`).
    pub fn is_name_of(&self, name: &str, link: &Link) -> bool {
        let [a, b] = link.ends.map(|end| self.name(end));
        let is_host = link.ends.iter().any(|end| *end < self.hosts) && (name == a || name == b);
        (is_host && name.starts_with("host")) || name == format!("{a}-{b}") || name == format!("{b}-{a}")
    }

    /// Checks that each host has one link, and that each node can reach every other one.
    ///
    /// # Errors
    /// A sentence that names the node.
    pub fn check(&self) -> Result<(), String> {
        let nodes = self.hosts as usize + self.switches.len();
        let mut degree = vec![0u32; nodes];
        for link in &self.links {
            for end in link.ends {
                *degree
                    .get_mut(end as usize)
                    .ok_or_else(|| format!("a link ends at node {end}, which does not exist"))? += 1;
            }
            if link.ends[0] == link.ends[1] {
                return Err(format!("{} is linked to itself", self.name(link.ends[0])));
            }
            if link.rate == 0 {
                return Err(format!(
                    "the link from {} to {} has no rate",
                    self.name(link.ends[0]),
                    self.name(link.ends[1])
                ));
            }
        }
        if let Some(host) = (0..self.hosts).find(|host| degree[*host as usize] != 1) {
            return Err(format!("host{host} has {} links; a host has one", degree[host as usize]));
        }
        let distance = distances(nodes, &neighbours(nodes, &self.links), 0);
        match distance.iter().position(|distance| *distance == u32::MAX) {
            Some(node) => Err(format!("{} cannot be reached from host0", self.name(node as u32))),
            None => Ok(()),
        }
    }
}

/// The numbers of switches of a fat tree: pods, and edge and aggregation switches in each; core switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatTree {
    /// Pods.
    pub pods: u32,
    /// Edge switches of a pod.
    pub edges: u32,
    /// Aggregation switches of a pod.
    pub aggregations: u32,
    /// Core switches.
    pub cores: u32,
}

impl FatTree {
    /// The trees of SRNIC's evaluation (section 6.3): 1, 4+4, 8+8, 64+64+16 and 128+128+64 switches.
    pub fn of_srnic(hosts: u32) -> Option<FatTree> {
        Some(match hosts {
            16 => FatTree { pods: 1, edges: 1, aggregations: 0, cores: 0 },
            64 => FatTree { pods: 1, edges: 4, aggregations: 4, cores: 0 },
            256 => FatTree { pods: 1, edges: 8, aggregations: 8, cores: 0 },
            1_024 => FatTree { pods: 16, edges: 4, aggregations: 4, cores: 16 },
            4_096 => FatTree { pods: 16, edges: 8, aggregations: 8, cores: 64 },
            _ => return None,
        })
    }
}

/// For each node: its neighbours, in the order of links.
pub(crate) fn neighbours(nodes: usize, links: &[Link]) -> Vec<Vec<u32>> {
    let mut all = vec![Vec::new(); nodes];
    for Link { ends: [a, b], .. } in links {
        all[*a as usize].push(*b);
        all[*b as usize].push(*a);
    }
    all
}

/// Links from each node to `to`, or `u32::MAX`.
pub(crate) fn distances(nodes: usize, neighbours: &[Vec<u32>], to: u32) -> Vec<u32> {
    let mut distance = vec![u32::MAX; nodes];
    let mut line = std::collections::VecDeque::from([to]);
    if let Some(first) = distance.get_mut(to as usize) {
        *first = 0;
    }
    while let Some(node) = line.pop_front() {
        for next in &neighbours[node as usize] {
            if distance[*next as usize] == u32::MAX {
                distance[*next as usize] = distance[node as usize] + 1;
                line.push_back(*next);
            }
        }
    }
    distance
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEEDS: Speeds = Speeds { host: 100_000_000_000, fabric: 400_000_000_000, delay: 1_000_000 };

    #[test]
    fn all_arrangements_are_whole() {
        let all = [
            Topology::pair(SPEEDS),
            Topology::star(9, SPEEDS),
            Topology::dumbbell(6, SPEEDS),
            Topology::leaf_spine(128, 8, 8, SPEEDS),
        ];
        let trees = [16, 64, 256, 1_024, 4_096]
            .map(|hosts| Topology::fat_tree(hosts, FatTree::of_srnic(hosts).expect("a tree"), SPEEDS));
        all.iter().chain(&trees).for_each(|topology| topology.check().expect("whole"));
        assert_eq!(trees[4].switches.len(), 128 + 128 + 64);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let mut lonely = Topology::star(3, SPEEDS);
        lonely.links.pop();
        assert_eq!(lonely.check().unwrap_err(), "host2 has 0 links; a host has one");
        let mut apart = Topology::star(3, SPEEDS);
        apart.add_switch("island".into());
        assert_eq!(apart.check().unwrap_err(), "island cannot be reached from host0");
        let mut looped = Topology::star(3, SPEEDS);
        looped.add_link([3, 3], 1, 1);
        assert_eq!(looped.check().unwrap_err(), "switch is linked to itself");
    }
}
