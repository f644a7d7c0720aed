//! Bytes of state (tables 4 and 5), and connection setup.

use crate::artefact;
use crate::closed_form::{
    CHANNEL_STATE, JETTY_STATE, QP_STATE, StudyVerb, bus_state, roce_state, setup_parallel, setup_serial,
};
use crate::interface::StudyStack;
use crate::measure::warm_world;
use crate::program::StudyOp;
use crate::report::{StudyRow, StudyScale, StudyTable};
use crate::world::StudyConfig;
use burst_engine::QpSlot;

/// The workers of the artefact's program for setup.
const WORKERS: u64 = 32;

/// Bytes of a Jetty and of a channel of a host with so many Jetties and peers, as its node counts them.
fn measured(jetties: u32, peers: u32, scale: &StudyScale) -> Result<[f64; 2], String> {
    let pairs = (1..=peers).map(|peer| (0, peer)).collect();
    let config = StudyConfig {
        hosts: peers + 1,
        pairs,
        queues: jetties,
        seed: scale.seed,
        ..StudyConfig::new(StudyStack::Urma)
    };
    let mut world = warm_world(config, StudyOp::new(StudyVerb::Read, 64, 1))?;
    let now = world.nanos();
    let state = world.hosts[0].node.with_urma(now, |node, _| node.state()).ok_or("a host without endpoint")?;
    if (state.jetties, state.channels) != (jetties as usize, peers as usize) {
        return Err(format!("{} Jetties and {} channels", state.jetties, state.channels));
    }
    let each = |bytes: usize, count: u32| bytes as f64 / f64::from(count);
    Ok([each(state.jetty_bytes, jetties), each(state.channel_bytes, peers)])
}

/// Tables 4 and 5.
///
/// # Errors
/// A sentence when a simulation fails.
pub fn sizes(scale: &StudyScale) -> Result<StudyTable, String> {
    let title = "bytes of state: each object (table 4), n programs that talk to m hosts (table 5)";
    let mut table = StudyTable::new("state", title, "bytes", scale);
    let (jetties, peers) = scale.of((1_000, 64), (200, 8));
    let [jetty, channel] = measured(jetties, peers, scale)?;
    let queue_pair = size_of::<QpSlot>() as f64;
    let (bus, roce) = ("UB URMA", "RoCE");
    let whole =
        "A software record: pool, queue links, state of order and completion, of congestion control and loss recovery.";
    table.row(
        StudyRow::new("Jetty", bus).paper(JETTY_STATE[0] as f64).closed_form(JETTY_STATE[0] as f64).ours(jetty, whole),
    );
    table.row(StudyRow::new("Jetty, all fields", bus).paper(JETTY_STATE[1] as f64).closed_form(JETTY_STATE[1] as f64));
    table.row(
        StudyRow::new("channel", bus)
            .paper(CHANNEL_STATE as f64)
            .closed_form(CHANNEL_STATE as f64)
            .ours(channel, whole),
    );
    let assumed = "The paper assumes 512; ours is the fixed record of Burst's engine alone, without rings and path.";
    table.row(
        StudyRow::new("queue pair", roce).paper(QP_STATE as f64).closed_form(QP_STATE as f64).ours(queue_pair, assumed),
    );
    let ours = |n: u64, m: u64| (jetty * n as f64 + channel * m as f64, queue_pair * (n * m) as f64);
    let same = "The same records as above, times their number: N + M of the bus, N times M of RoCE.";
    for (n, m, with_jetty, with_all, of_roce) in artefact::STATE {
        let (ours_bus, ours_roce) = ours(n, m);
        let case = format!("n {n}, m {m}");
        let row = StudyRow::new(case.clone(), bus).paper(with_jetty as f64).artefact(with_jetty as f64);
        table.row(row.closed_form(bus_state(n, m, JETTY_STATE[0]) as f64).ours(ours_bus, same));
        let row = StudyRow::new(case.clone(), "UB, all fields").paper(with_all as f64).artefact(with_all as f64);
        table.row(row.closed_form(bus_state(n, m, JETTY_STATE[1]) as f64));
        let row = StudyRow::new(case, roce).paper(of_roce as f64).artefact(of_roce as f64);
        table.row(row.closed_form(roce_state(n, m) as f64).ours(ours_roce, same));
    }
    table.promise_exact();
    let (bus_1024, roce_1024) = ours(1_024, 1_024);
    table.promise(
        "n = m = 1024: RoCE over URMA (paper 4855, with all fields 3855)",
        roce_1024 / bus_1024,
        [500.0, 4_000.0],
    );
    table.note(format!(
        "Ours: a host with {jetties} Jetties that has used all of them to {peers} hosts, counted by the node; queues, requests under way \
         and records of order are left out on both sides, as the paper leaves out time-outs, congestion control and rings."
    ));
    Ok(table)
}

/// Connection setup.
///
/// # Errors
/// As [`sizes`].
pub fn setup(scale: &StudyScale) -> Result<StudyTable, String> {
    let title = "setting up connections of n programs to n hosts: 5 us for a call, 500 us for a round trip out of band";
    let mut table = StudyTable::new("setup", title, "seconds", scale);
    let mut worst: f64 = 0.0;
    let mut rows = |kind: &str, figures: &[(u64, [f64; 2])], nanoseconds: &dyn Fn(bool, u64) -> u64| {
        for (n, [roce, bus]) in figures {
            for (stack, is_bus, figure) in [("UB URMA", true, *bus), ("RoCE", false, *roce)] {
                let closed = nanoseconds(is_bus, *n) as f64 / 1e9;
                worst = worst.max((closed / figure - 1.0).abs());
                let row = StudyRow::new(format!("{kind}, n {n}"), stack).artefact(figure);
                // The paper's text has the greatest with workers.
                let row = if kind == "32 workers" && *n == 1_024 { row.paper(figure) } else { row };
                table.rows.push(row.closed_form(closed));
            }
        }
    };
    rows("one after the other", &artefact::SETUP_SERIAL, &|is_bus, n| setup_serial(is_bus, n, n));
    rows("32 workers", &artefact::SETUP_PARALLEL, &|is_bus, n| setup_parallel(is_bus, n, n, WORKERS));
    // A channel opens with its first request: how much longer that takes than the next one.
    for link_ns in [100, 1_000] {
        let config = StudyConfig { link_ns, seed: scale.seed, ..StudyConfig::new(StudyStack::Urma) };
        let mut world = crate::world::StudyWorld::new(config)?;
        let make = |_: u32, _: u64| StudyOp::new(StudyVerb::Read, 64, 1);
        let (_, _, _, ended) = crate::measure::run_loop(&mut world, 2, 1, make)?;
        let further = (ended[0].1.latency - ended[1].1.latency) as f64 / 1e12;
        let why = "Burst's channel opens on the bus itself with its first request: a round trip (REQUEST, REPLY), nothing out of band. \
                   The paper's 500 us stand for TCP.";
        table.row(
            StudyRow::new(format!("a channel, link {link_ns} ns"), "UB URMA").closed_form(505e-6).ours(further, why),
        );
    }
    table.promise("the closed form differs from the artefact's figures by a share of at most", worst, [0.0, 6e-4]);
    let further = |case: &str| table.find(case, "UB URMA").and_then(|row| row.ours).unwrap_or(0.0);
    let trips = (further("a channel, link 1000 ns") - further("a channel, link 100 ns")) / 900e-9;
    table.promise("opening a channel takes so many times the link's delay", trips, [1.9, 2.1]);
    table.note("The artefact's figures are rounded to four digits.");
    Ok(table)
}
