//! Which workers have the queue pairs of each device, and on which processors the workers run.
//!
//! Every worker opens every port, because requests of the connection manager are dealt to all of them; the options `workers`
//! and `cpus` of a port decide where its queue pairs, and so its traffic, go.

use burst_port::PortSpec;
use std::collections::BTreeSet;
use std::path::Path;

/// The workers that have a device's queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceWorkers {
    /// In rising order, not empty.
    workers: Vec<usize>,
    next: usize,
}

impl DeviceWorkers {
    /// Workers in rising order, at least one. `skew` moves the first of the round, so that the rounds of several devices differ.
    pub fn new(workers: Vec<usize>, skew: usize) -> DeviceWorkers {
        assert!(!workers.is_empty(), "a device without workers");
        debug_assert!(workers.is_sorted() && workers.windows(2).all(|pair| pair[0] != pair[1]), "workers: {workers:?}");
        DeviceWorkers { workers, next: skew }
    }

    /// Their numbers.
    pub fn numbers(&self) -> &[usize] {
        &self.workers
    }

    /// The next worker: round robin.
    pub fn pick(&mut self) -> usize {
        self.next = (self.next + 1) % self.workers.len();
        self.workers[self.next]
    }

    /// The worker of the queue pairs that receive into a completion queue of this vector. None for vector 0, which programs name
    /// that do not care: those queues go round robin, when the first queue pair receives into one. Many programs make a queue
    /// for what they send beside each such queue, which would take every second place of the round.
    pub fn of_vector(&self, vector: u32) -> Option<usize> {
        (vector != 0).then(|| self.workers[vector as usize % self.workers.len()])
    }
}

/// What the options of all ports say together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPlacement {
    /// By device.
    pub devices: Vec<DeviceWorkers>,
    /// By worker: the processors on which it runs; none: where the process may.
    pub cpus: Vec<Vec<u16>>,
}

impl HostPlacement {
    /// Every device on all of `workers` workers, which run anywhere.
    pub fn everywhere(devices: usize, workers: usize) -> HostPlacement {
        let of = |skew| DeviceWorkers::new((0..workers).collect(), skew);
        HostPlacement { devices: (0..devices).map(of).collect(), cpus: vec![Vec::new(); workers] }
    }

    /// What the specifications of the ports say, for `workers` workers of a process that may run on `allowed`. `node` tells the
    /// processors of the node at which a port's adapter is, if the machine has several.
    ///
    /// # Errors
    /// A sentence: a worker that does not exist, a processor on which the process may not run.
    pub fn of(
        specs: &[PortSpec],
        workers: usize,
        allowed: &BTreeSet<u16>,
        node: impl Fn(usize) -> Option<Vec<u16>>,
    ) -> Result<HostPlacement, String> {
        let mut placement = HostPlacement::everywhere(specs.len(), workers);
        let mut cpus = vec![BTreeSet::new(); workers];
        for (device, spec) in specs.iter().enumerate() {
            let wanted = spec.kind.placement();
            let own: Vec<usize> = match &wanted.workers {
                Some(own) => own.iter().map(|worker| usize::from(*worker)).collect(),
                None => (0..workers).collect(),
            };
            if let Some(absent) = own.iter().find(|worker| **worker >= workers) {
                let last = workers - 1;
                return Err(format!(
                    "port '{spec}': workers= names worker {absent}, but the daemon has workers 0 to {last} (key workers)"
                ));
            }
            let processors = match &wanted.cpus {
                Some(named) => {
                    if let Some(absent) = named.iter().find(|cpu| !allowed.contains(cpu)) {
                        let all = ranges(allowed);
                        return Err(format!(
                            "port '{spec}': cpus= names {absent}, but this process may run on {all} only"
                        ));
                    }
                    named.clone()
                }
                None => node(device).unwrap_or_default().into_iter().filter(|cpu| allowed.contains(cpu)).collect(),
            };
            let one_each = wanted.cpus.is_some() && processors.len() == own.len();
            for (rank, worker) in own.iter().enumerate() {
                let of_worker = if one_each { &processors[rank..=rank] } else { &processors[..] };
                cpus[*worker].extend(of_worker);
            }
            placement.devices[device] = DeviceWorkers::new(own, device);
        }
        assert_eq!(placement.devices.len(), specs.len(), "each port has workers");
        placement.cpus = cpus.into_iter().map(|set| set.into_iter().collect()).collect();
        Ok(placement)
    }
}

/// The processors on which this thread may run, by the kernel.
pub fn allowed_cpus() -> BTreeSet<u16> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    (0..=burst_port::spec::CPU_MAX).filter(|cpu| set.is_set(usize::from(*cpu))).collect()
}

/// The processors of the node of an interface's adapter, where the machine has several nodes. `root` is `/sys`, except in tests.
pub fn node_of(root: &Path, interface: &str) -> Option<Vec<u16>> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    if interface.is_empty() || interface.contains('/') || list(&read("devices/system/node/online")?).len() < 2 {
        return None;
    }
    let node: u16 = read(&format!("class/net/{interface}/device/numa_node"))?.trim().parse().ok()?;
    Some(list(&read(&format!("devices/system/node/node{node}/cpulist"))?))
}

/// A list of the kernel: `0-3,8`.
fn list(text: &str) -> Vec<u16> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u16>().ok()?..=last.trim().parse::<u16>().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// Numbers as ranges: `0-3, 8`.
fn ranges(numbers: &BTreeSet<u16>) -> String {
    let mut parts: Vec<(u16, u16)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => parts.push((*number, *number)),
        }
    }
    let show = |(first, last): &(u16, u16)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    parts.iter().map(show).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(specs: &[&str], workers: usize) -> Result<HostPlacement, String> {
        let specs: Vec<_> = specs.iter().map(|text| PortSpec::parse(text).unwrap()).collect();
        let allowed = (0..4).chain([8]).collect();
        HostPlacement::of(&specs, workers, &allowed, |device| (device == 1).then(|| vec![2, 3, 9]))
    }

    #[test]
    fn ports_name_their_workers_and_processors() {
        let two = placed(&["udp:workers=0-1,cpus=0-1", "udp:dev=lo,workers=2"], 3).unwrap();
        assert_eq!(two.devices[0].numbers(), [0, 1]);
        assert_eq!(two.devices[1].numbers(), [2]);
        assert_eq!(two.cpus, [vec![0], vec![1], vec![2, 3]], "one each; and those of the node that are allowed");
        let shared = placed(&["udp:workers=0-1,cpus=0-2"], 2).unwrap();
        assert_eq!(shared.cpus, [vec![0, 1, 2], vec![0, 1, 2]], "all, if there are not as many");
        assert_eq!(
            placed(&["udp", "udp:cpus=8"], 1).unwrap().cpus,
            [vec![8]],
            "a worker of two ports has the named ones"
        );
        assert_eq!(placed(&["udp"], 2).unwrap(), HostPlacement::everywhere(1, 2));
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let said = placed(&["udp:workers=1-2"], 2).unwrap_err();
        assert!(said.contains("worker 2") && said.contains("workers 0 to 1"), "{said}");
        let said = placed(&["udp:cpus=3-4"], 1).unwrap_err();
        assert!(said.contains("names 4") && said.contains("0-3, 8 only"), "{said}");
    }

    #[test]
    fn rounds_and_vectors_stay_within_a_device() {
        let mut of = DeviceWorkers::new(vec![1, 3], 1);
        assert_eq!([(); 4].map(|()| of.pick()), [1, 3, 1, 3]);
        assert_eq!(
            [0, 1, 2, 3, u32::MAX].map(|vector| of.of_vector(vector)),
            [None, Some(3), Some(1), Some(3), Some(3)]
        );
    }

    #[test]
    fn the_node_counts_where_there_are_several() {
        let root = std::env::temp_dir().join(format!("burst-nodes-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("devices/system/node/online", "0-1\n");
        write("devices/system/node/node1/cpulist", "4-5,12\n");
        write("class/net/eth0/device/numa_node", "1\n");
        write("class/net/eth1/device/numa_node", "-1\n");
        assert_eq!(node_of(&root, "eth0"), Some(vec![4, 5, 12]));
        assert_eq!([node_of(&root, "eth1"), node_of(&root, "lo"), node_of(&root, "../eth0")], [None, None, None]);
        write("devices/system/node/online", "0\n");
        assert_eq!(node_of(&root, "eth0"), None, "a single node");
        std::fs::remove_dir_all(root).unwrap();
    }
}
