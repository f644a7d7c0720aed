//! Many Jetties, peers and contexts: a shared channel, many receivers, caches that spill, many hosts.

use crate::artefact;
use crate::closed_form::{StudyVerb, TwoNodes, all_to_all};
use crate::interface::{JETTY_CACHE, QP_CACHE, StudyStack};
use crate::measure::{Measured, closed_loop, run_loop, warm_world};
use crate::program::StudyOp;
use crate::report::{StudyRow, StudyScale, StudyTable};
use crate::world::StudyConfig;
use burst_base::rng::Rng;

/// Host 0 and `peers` others around a switch, or one at the other end of a link; so many queues to each.
fn star(stack: StudyStack, peers: u32, queues: u32, scale: &StudyScale) -> StudyConfig {
    let pairs = (1..=peers).map(|peer| (0, peer)).collect();
    StudyConfig { hosts: peers + 1, pairs, queues, depth: 16, seed: scale.seed, ..StudyConfig::new(stack) }
}

/// Jetties on one channel.
///
/// # Errors
/// A sentence when a simulation fails.
pub fn sharing(scale: &StudyScale) -> Result<StudyTable, String> {
    let title = "READ of 64 bytes by so many Jetties in turn to one peer: one channel (RoCE: queue pairs)";
    let mut table = StudyTable::new("tp-sharing", title, "ns", scale);
    let stacks = [StudyStack::LoadStore, StudyStack::Urma, StudyStack::Dma];
    let mut spread: f64 = 0.0;
    let mut first = [0.0; 3];
    let mut rates = Vec::new();
    let most = scale.of(1_024, 64);
    for (jetties, row) in artefact::SHARING.into_iter().filter(|(jetties, _)| *jetties <= most) {
        for (column, stack) in stacks.into_iter().enumerate() {
            let closed = TwoNodes { sharing: jetties, ..TwoNodes::new(stack, StudyVerb::Read, 64) }.latency() as f64;
            let config = star(stack, 1, jetties as u32, scale);
            let make = |_: u32, index: u64| StudyOp {
                queue: (index % jetties) as u32,
                ..StudyOp::new(StudyVerb::Read, 64, 1)
            };
            let measured = closed_loop(config.clone(), jetties.max(scale.of(200, 20)), 1, make)?;
            let ours = measured.ns.at(0.5);
            if jetties == 1 {
                first[column] = ours;
            }
            spread = spread.max((ours - first[column]).abs());
            let row =
                StudyRow::new(format!("{jetties}"), stack.name()).artefact(row[column] as f64).closed_form(closed);
            let why = "The artefact adds 5 ns for each further Jetty, as if each looked at all of them; a Jetty is found by its number.";
            // The paper's text has the bus' formula.
            let row = if stack.is_bus() { row.paper(closed) } else { row };
            table.row(row.ours(ours, if stack.is_bus() && jetties > 1 { why } else { "" }));
            if stack == StudyStack::Urma && jetties == 64 {
                let all = closed_loop(config, scale.of(20_000, 2_000), jetties, make)?;
                rates.push((all.mops, measured.mops));
            }
        }
    }
    table.promise_exact();
    table.promise("latency differs from that of one Jetty by at most, ns", spread, [0.0, 2.0]);
    let gain = rates.first().map_or(0.0, |(all, one)| all / one);
    table.promise("64 Jetties with a READ each at the same time, over one after the other: rate", gain, [5.0, 64.0]);
    table.note("The bound of that rate is the program's processor: 115 ns for a post and a poll.");
    Ok(table)
}

/// Messages to many receivers.
///
/// # Errors
/// As [`sharing`].
pub fn fan_out(scale: &StudyScale) -> Result<StudyTable, String> {
    let mut table = StudyTable::new("fan-out", "SEND of 64 bytes to so many receivers in turn", "ns", scale);
    let mut spread: f64 = 0.0;
    let most = scale.of(512, 16);
    for (receivers, row) in artefact::FAN_OUT.into_iter().filter(|(receivers, _)| *receivers <= most) {
        for (figure, stack) in row.into_iter().zip([StudyStack::Urma, StudyStack::Dma]) {
            let nodes = TwoNodes { remotes: receivers, ..TwoNodes::new(stack, StudyVerb::Send, 64) };
            let make = |_: u32, index: u64| StudyOp::new(StudyVerb::Send, 64, 1 + (index % receivers) as u32);
            let config = star(stack, receivers as u32, 1, scale);
            // Of each queue pair the first acknowledgement of a message is late, as one in 65 (study `latency`).
            let mut world = warm_world(config, StudyOp::new(StudyVerb::Send, 64, 1))?;
            let ns = run_loop(&mut world, receivers.max(scale.of(200, 20)), 1, make)?.0.at(0.5);
            let base = TwoNodes::new(stack, StudyVerb::Send, 64).latency() as f64;
            spread = spread.max((ns - base).abs());
            let row = StudyRow::new(format!("{receivers}"), stack.name());
            let row = row.artefact(figure as f64).closed_form(nodes.latency() as f64);
            let why = "The artefact charges RoCE 200 ns for a dispatch that the adapter of a queue pair does not have, and its cache of \
                       contexts at 1024 (here: study `spill`). Ours adds headers, and a switch that stores and forwards.";
            table.row(row.ours(ns, why));
        }
    }
    table.promise_exact();
    table.promise("ours differ from the closed form for one receiver by at most, ns", spread, [0.0, 45.0]);
    Ok(table)
}

fn spilled(stack: StudyStack, n: u32, is_random: bool, scale: &StudyScale) -> Result<Measured, String> {
    let config = StudyConfig { has_caches: true, ..star(stack, n, n, scale) };
    let mut world = warm_world(config, StudyOp::new(StudyVerb::Read, 64, 1))?;
    let mut rng = Rng::new(scale.seed);
    let all = u64::from(n) * u64::from(n);
    let mut make = |_: u32, index: u64| {
        let at = if is_random { rng.below(all) } else { index % all };
        let (queue, peer) = (at as u32 / n, 1 + at as u32 % n);
        StudyOp { queue, ..StudyOp::new(StudyVerb::Read, 64, peer) }
    };
    // Once without measuring, so that the cache holds what this order leaves in it.
    run_loop(&mut world, all, 1, &mut make)?;
    let (ns, mops, failed, ended) = run_loop(&mut world, scale.of(4 * all, all).max(100), 1, make)?;
    Ok(Measured { ns, mops, failed, ended, world })
}

/// Caches of contexts.
///
/// # Errors
/// As [`sharing`].
pub fn spill(scale: &StudyScale) -> Result<StudyTable, String> {
    let title = "READ of 64 bytes by n programs to n hosts: contexts in the adapter's cache (512 queue pairs; 2048 Jetties and channels)";
    let mut table = StudyTable::new("spill", title, "ns, mean", scale);
    let mut means = std::collections::BTreeMap::new();
    for n in scale.of(vec![1, 8, 16, 22, 23, 32, 48], vec![22, 23]) {
        for (column, stack) in [(1, StudyStack::Urma), (3, StudyStack::Dma)] {
            let closed = TwoNodes { active: n, ..TwoNodes::new(stack, StudyVerb::Read, 64) }.latency() as f64;
            for (kind, is_random) in [("in turn", false), ("at random", true)] {
                let measured = spilled(stack, n as u32, is_random, scale)?;
                let row = StudyRow::new(format!("{n}, {kind}"), stack.name()).closed_form(closed);
                let known = artefact::SPILL.iter().find(|known| known.0 == n);
                let row = known.map_or(row.clone(), |known| row.artefact(known.1[column] as f64));
                means.insert((n, stack.name(), is_random), measured.ns.mean());
                let why = "The artefact's rule: above the cache's size each operation misses at both ends. Here the cache forgets the \
                           context used longest ago, and only host 0 has n² queue pairs: in turn each misses as soon as one does not \
                           fit, at random the share that does not fit (1 - 512/n²).";
                table.row(row.ours(measured.ns.mean(), if closed > 3_000.0 { why } else { "" }));
            }
        }
    }
    table.promise_exact();
    let mean = |n: u64, stack: StudyStack, is_random: bool| means[&(n, stack.name(), is_random)];
    let fits = mean(22, StudyStack::Dma, true) - mean(22, StudyStack::Dma, false);
    table.promise("RoCE, 22 (484 queue pairs), at random over in turn: further ns", fits, [-1.0, 1.0]);
    let cyclic = mean(23, StudyStack::Dma, false) - mean(22, StudyStack::Dma, false);
    table.promise("RoCE in turn, 23 for 22 (529 queue pairs): further ns", cyclic, [495.0, 505.0]);
    let bus = mean(23, StudyStack::Urma, true) - mean(22, StudyStack::Urma, true);
    table.promise("URMA, 23 for 22: further ns", bus, [-1.0, 1.0]);
    table.note(format!(
        "By the closed form URMA's {JETTY_CACHE} entries hold 1023 Jetties and as many channels, RoCE's {QP_CACHE} the queue pairs of 22 \
         programs and hosts."
    ));
    Ok(table)
}

/// All hosts talk to all.
///
/// # Errors
/// As [`sharing`].
pub fn cluster(scale: &StudyScale) -> Result<StudyTable, String> {
    let mut table =
        StudyTable::new("cluster", "READ of 64 bytes between N hosts, each to each in turn", "ns, mean", scale);
    let most = scale.of(64, 8);
    let (mut worst, mut growth): (f64, f64) = (0.0, 0.0);
    let mut four = [0.0; 4];
    for (nodes, row) in artefact::MANY_NODES.into_iter().filter(|(nodes, _)| *nodes <= most) {
        for (column, stack) in [(0, StudyStack::LoadStore), (1, StudyStack::Urma), (3, StudyStack::Dma)] {
            let closed = all_to_all(stack, nodes);
            worst = worst.max((closed - row[column]).abs());
            let config = StudyConfig { depth: 16, seed: scale.seed, ..StudyConfig::mesh(stack, nodes as u32) };
            let make = |host: u32, index: u64| {
                let peer = (u64::from(host) + 1 + index % (nodes - 1)) % nodes;
                StudyOp::new(StudyVerb::Read, 64, peer as u32)
            };
            let measured = closed_loop(config, scale.of(200, 20).max(nodes), 1, make)?;
            let ours = measured.ns.mean();
            if nodes == 4 {
                four[column] = ours;
            } else if nodes > 4 {
                growth = growth.max((ours - four[column]) / (nodes - 4) as f64);
            }
            let figure = row[column];
            let row = StudyRow::new(format!("{nodes}"), stack.name()).artefact(figure).closed_form(closed);
            // The paper's text has the ends.
            let row = if [2, 64].contains(&nodes) { row.paper(figure.round()) } else { row };
            let why = "The artefact adds 25 ns for each further host, and RoCE's contexts from 23 on, as n programs on each of n hosts \
                       would need them. Here one program on each host has one READ under way: ports of the switch are idle.";
            table.row(row.ours(ours, if nodes > 2 { why } else { "" }));
        }
    }
    table.promise("the closed form differs from the artefact by at most, ns", worst, [0.0, 0.2]);
    table.promise("further ns for each host from the fourth on (artefact 25)", growth, [-1.0, 5.0]);
    table.note(
        "The artefact's program for many nodes has other constants than that for two: 447 and 773 with two nodes.",
    );
    Ok(table)
}
