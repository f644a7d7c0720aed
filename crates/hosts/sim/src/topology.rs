//! From a scenario's tables to the modelled network.

use crate::port::WIRE_OVERHEAD;
use crate::results::NetworkTotals;
use crate::run::PacketRun;
use crate::scenario::file::{TopologyKind, TopologyTable};
use crate::scenario::value::{Rate, Share, Size};
use crate::scenario::{DEPTH_MAX, FaultKind, Pattern, Scenario};
use burst_fabric::topology::{FatTree, Speeds};
use burst_fabric::{CLASSES, ClassSettings, HostId, LinkFaults, Network, Switches, Topology, Totals};
use toml::Spanned;

/// Rate of a host's link when the scenario has none: 100 Gbit/s.
const RATE_DEFAULT: u64 = 100_000_000_000;
/// Propagation when the scenario has none: 1 µs.
const DELAY_DEFAULT: u64 = 1_000_000;
/// Bytes of a packet beside its payload: BTH, and what it takes on the wire.
const PACKET_OVERHEAD: u64 = 12 + WIRE_OVERHEAD as u64;
/// Bytes of an acknowledgement on the wire.
const ANSWER: u64 = PACKET_OVERHEAD + 4;

/// Rate of the hosts' links in bit/s.
pub fn host_rate(scenario: &Scenario) -> u64 {
    scenario.topology.rate.map_or(RATE_DEFAULT, |rate| rate.0)
}

/// The longest round trip of an idle network in picoseconds, without the time that packets take on the links.
pub fn round_trip_max(table: &TopologyTable, hosts: u32) -> u64 {
    let links = match table.kind {
        TopologyKind::Pair => 1,
        TopologyKind::Star => 2,
        TopologyKind::Dumbbell => 3,
        TopologyKind::LeafSpine => 4,
        TopologyKind::Ring => 2 + u64::from(table.switches.as_ref().map_or(hosts, |all| *all.get_ref())) / 2,
        TopologyKind::FatTree => 6,
    };
    2 * links * table.delay.map_or(DELAY_DEFAULT, |delay| delay.0)
}

/// Requests that a queue pair must hold.
pub fn queue_depth(scenario: &Scenario) -> u32 {
    let depth = |pattern: &Pattern| match pattern {
        Pattern::Stream { depth, .. } => *depth,
        // A host that receives nothing holds up the others only when each has sent it as many steps as there are hosts.
        Pattern::Ring { .. } => (scenario.hosts + 1).min(DEPTH_MAX),
        _ => 4,
    };
    scenario.traffic.iter().map(|traffic| depth(&traffic.pattern)).max().unwrap_or(4).max(4)
}

/// The network of a scenario.
///
/// # Errors
/// A sentence that names what cannot be reached.
pub fn build(scenario: &Scenario) -> Result<Topology, String> {
    let t = &scenario.topology;
    let host = host_rate(scenario);
    let fabric = t.fabric_rate.map_or(host, |Rate(rate)| rate);
    let speeds = Speeds { host, fabric, delay: t.delay.map_or(DELAY_DEFAULT, |delay| delay.0) };
    let hosts = scenario.hosts;
    let mut topology = match t.kind {
        TopologyKind::Pair => Topology::pair(speeds),
        TopologyKind::Star => Topology::star(hosts, speeds),
        TopologyKind::Dumbbell => Topology::dumbbell(hosts, speeds),
        TopologyKind::LeafSpine => Topology::leaf_spine(
            hosts,
            t.leaves.unwrap_or(1),
            t.spines.as_ref().map_or(1, |spines| *spines.get_ref()),
            speeds,
        ),
        TopologyKind::Ring => Topology::ring(hosts, t.switches.as_ref().map_or(3, |all| *all.get_ref()), speeds),
        TopologyKind::FatTree => {
            let shape = FatTree::of_srnic(hosts).ok_or("a fat tree has 16, 64, 256, 1024 or 4096 hosts")?;
            Topology::fat_tree(hosts, shape, speeds)
        }
    };
    let share = |share: Option<Share>| share.unwrap_or_default().0;
    let links = &scenario.links;
    topology.faults = LinkFaults {
        loss: share(links.loss),
        reorder: share(links.reorder),
        duplicate: share(links.duplicate),
        corrupt: share(links.corrupt),
        ..LinkFaults::default()
    };
    let (s, default) = (&scenario.switches, Switches::default());
    let train = u64::from(scenario.node.train_bytes) + u64::from(scenario.node.mtu.bytes());
    // Twice what a link holds, and the train that is being sent.
    let held = u128::from(speeds.host.max(speeds.fabric) / 8) * u128::from(speeds.delay) / 1_000_000_000_000;
    let headroom = 2 * (u64::try_from(held).unwrap_or(u64::MAX / 4) + train);
    topology.settings = Switches {
        buffer: s.buffer.map_or(default.buffer, |size| size.0),
        alpha: s.alpha.as_ref().map_or(default.alpha, |alpha| *alpha.get_ref()),
        headroom: s.headroom.map_or(headroom, |size| size.0),
        watchdog: s.pfc_watchdog.map_or(default.watchdog, |time| time.0),
        adapter: scenario.node.send_bytes,
        classes: classes(scenario),
    };
    topology.check()?;
    Ok(topology)
}

/// The settings of all classes: those of `[switches]`, and what `[[class]]` says otherwise. A class with an `ecn_min` of its own
/// and no `ecn_max` has a step.
fn classes(scenario: &Scenario) -> [ClassSettings; CLASSES] {
    let (s, default) = (&scenario.switches, ClassSettings::default());
    let size = |max: &Option<Spanned<Size>>| max.as_ref().map(|size| size.get_ref().0);
    let ecn_min = s.ecn_min.map(|size| size.0);
    let of_all = ClassSettings {
        weight: 0,
        pfc: s.pfc.unwrap_or(default.pfc),
        ecn_min: ecn_min.unwrap_or(default.ecn_min),
        ecn_max: size(&s.ecn_max).or(ecn_min).unwrap_or(default.ecn_max),
        ecn_share: s.ecn_share.map_or(default.ecn_share, |share| share.0),
    };
    let mut classes = [of_all; CLASSES];
    for table in &scenario.classes {
        let class = &mut classes[usize::from(*table.class.get_ref())];
        class.weight = table.weight.as_ref().map_or(0, |weight| weight.get_ref().0);
        class.pfc = table.pfc.unwrap_or(class.pfc);
        if let Some(Size(min)) = table.ecn_min {
            (class.ecn_min, class.ecn_max) = (min, min);
        }
        class.ecn_max = size(&table.ecn_max).unwrap_or(class.ecn_max);
        class.ecn_share = table.ecn_share.map_or(class.ecn_share, |share| share.0);
    }
    classes
}

/// Checks that the link or switch of a fault exists.
///
/// # Errors
/// The key of the fault's table, and what is wrong with it.
pub fn check_fault(kind: &FaultKind, topology: &Topology) -> Result<(), (&'static str, String)> {
    match kind {
        FaultKind::Link(name) if !topology.links.iter().any(|link| topology.is_name_of(name, link)) => {
            Err(("link", format!("there is no link \"{name}\"; a host's is \"host0\", a switch's \"leaf0-spine1\"")))
        }
        FaultKind::Drops { switch, .. } if !topology.switches.contains(switch) => {
            let all = topology.switches.join(", ");
            Err(("switch", format!("there is no switch \"{switch}\"; there are: {all}")))
        }
        _ => Ok(()),
    }
}

/// What the network has counted.
pub fn totals(network: &Network<PacketRun>, receive_overflows: u64, corrupted: u64) -> NetworkTotals {
    let Totals { buffer_drops, losses, marks, pauses, pause_storms, watchdog_drops, .. } = *network.totals();
    let queue_bytes_max = network.queue_max();
    NetworkTotals {
        buffer_drops,
        losses,
        corrupted,
        receive_overflows,
        marks,
        pauses,
        pause_storms,
        watchdog_drops,
        queue_bytes_max,
        queue_bytes_mean: 0,
    }
}

/// Picoseconds from the post of a message to its completion in an idle network with ideal hosts: propagation, each packet once
/// on the slowest link, and the acknowledgement.
pub fn ideal_time(scenario: &Scenario, network: &Network<PacketRun>, from: u32, to: u32, bytes: u64) -> u64 {
    let mtu = u64::from(scenario.node.mtu.bytes());
    let packets = bytes.div_ceil(mtu).max(1);
    let packet = bytes.min(mtu) + PACKET_OVERHEAD;
    network.ideal_time(HostId(from), HostId(to), bytes + packets * PACKET_OVERHEAD, packet, ANSWER)
}
