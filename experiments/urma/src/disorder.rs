//! Loss and jitter.

use crate::artefact;
use crate::closed_form::{StudyVerb, TwoNodes};
use crate::interface::StudyStack;
use crate::measure::closed_loop;
use crate::program::StudyOp;
use crate::report::{StudyRow, StudyScale, StudyTable};
use crate::world::StudyConfig;

/// Operations at a time where packets behind a lost one tell of it.
const MANY: u64 = 256;
/// The link's delay there, so that many are in flight: the processor posts one in 115 or 180 ns.
const FAR_NS: u64 = 10_000;
/// The least time of a probe of URMA, in nanoseconds.
const PROBE_NS: f64 = 50_000.0;
const ALONE: &str = "A lost packet with nothing behind it is noticed by a time-out only: a probe after four round trips, 20 us at least \
                     for RC and 50 us for URMA, and 100 us for an access. The artefact charges a lost one on the bus one round trip, \
                     as if the target knew of it, and on RoCE 32 round trips in a row. Here answers get lost, too.";
const BEHIND: &str = "With others behind it a loss shows at once, and selective repeat repeats what is lost. Go-back-N repeats what \
                      followed, a round trip of it.";
const HELD: &str =
    "64 accesses may be under way from the oldest one on: a lost one holds up what follows until its time-out.";

/// The families of loss recovery, and the artefact's column.
const KINDS: [(StudyStack, bool, &str, usize); 5] = [
    (StudyStack::LoadStore, true, "", 0),
    (StudyStack::Urma, true, ", selective", 1),
    (StudyStack::Urma, false, ", go-back-N", 1),
    (StudyStack::Dma, true, ", selective", 3),
    (StudyStack::Dma, false, ", go-back-N", 3),
];

/// The rates of loss of a scale.
fn rates(scale: &StudyScale) -> impl Iterator<Item = (f64, f64, [f64; 4])> {
    let is_quick = scale.is_quick;
    artefact::LOSS.into_iter().filter(move |(loss, _, _)| !is_quick || [0.0, 1e-2].contains(loss))
}

/// Loss of single operations.
///
/// # Errors
/// A sentence when a simulation fails.
pub fn loss(scale: &StudyScale) -> Result<StudyTable, String> {
    let title = "READ of 64 bytes by share of packets lost, one at a time, mean";
    let mut table = StudyTable::new("loss", title, "ns", scale);
    let (mut worst, mut failed, mut waited): (f64, u64, f64) = (0.0, 0, 0.0);
    for (loss, lost, row) in rates(scale) {
        for (stack, is_selective, kind, column) in KINDS {
            let nodes = TwoNodes::new(stack, StudyVerb::Read, 64);
            let closed = nodes.mean_with_loss(lost / 5_000.0);
            worst = worst.max((closed - row[column]).abs() / row[column]);
            let config = StudyConfig { loss, is_selective, seed: scale.seed, ..StudyConfig::new(stack) };
            let measured =
                closed_loop(config, scale.of(20_000, 2_000), 1, |_, _| StudyOp::new(StudyVerb::Read, 64, 1))?;
            failed += measured.failed;
            let mean = measured.ns.mean();
            if stack == StudyStack::Urma && is_selective && loss == 1e-2 {
                // A request or an answer is lost.
                waited = (mean - nodes.latency() as f64) / (2.0 * loss * PROBE_NS);
            }
            let table_row = StudyRow::new(format!("{} %{kind}", loss * 100.0), stack.name());
            // The artefact has one kind of each: selective repeat on the bus, go-back-N on RoCE.
            let is_theirs = is_selective == stack.is_bus();
            let table_row = if is_theirs { table_row.artefact(row[column]).closed_form(closed) } else { table_row };
            table.row(table_row.ours(mean, if loss == 0.0 { "" } else { ALONE }));
        }
    }
    table.promise("the closed form's means differ from the artefact's by a share of at most", worst, [0.0, 2e-4]);
    table.promise("operations that failed", failed as f64, [0.0, 0.0]);
    table.promise("URMA, selective, 1 %: what it takes longer, over two probes in a hundred", waited, [0.5, 2.0]);
    table.note("Each packet is lost by itself, in both directions; the artefact loses requests.");
    Ok(table)
}

/// Loss with many operations in flight.
///
/// # Errors
/// As [`loss`].
pub fn loss_rate(scale: &StudyScale) -> Result<StudyTable, String> {
    let title =
        format!("WRITE of 64 bytes by share of packets lost, {MANY} at a time, link 10 us: time over operations");
    let mut table = StudyTable::new("loss-rate", title, "ns", scale);
    let (mut failed, mut times) = (0, Vec::new());
    for (loss, _, _) in rates(scale) {
        for (stack, is_selective, kind, _) in KINDS {
            let (link_ns, depth, seed) = (FAR_NS, 512, scale.seed);
            let config = StudyConfig { loss, is_selective, link_ns, depth, seed, ..StudyConfig::new(stack) };
            let op = StudyOp::new(StudyVerb::Write, 64, 1);
            let measured = closed_loop(config, scale.of(50_000, 2_500), MANY, |_, _| op)?;
            failed += measured.failed;
            let ns = 1e3 / measured.mops;
            times.push((loss, stack, is_selective, ns));
            let why = if stack == StudyStack::LoadStore { HELD } else { BEHIND };
            let row = StudyRow::new(format!("{} %{kind}", loss * 100.0), stack.name());
            table.row(row.ours(ns, if loss == 0.0 { "" } else { why }));
        }
    }
    let time = |loss: f64, stack: StudyStack, is_selective: bool| {
        let found = times.iter().find(|time| (time.0, time.1, time.2) == (loss, stack, is_selective));
        found.map_or(f64::NAN, |time| time.3)
    };
    table.promise("operations that failed", failed as f64, [0.0, 0.0]);
    for stack in [StudyStack::Urma, StudyStack::Dma] {
        let kept = time(0.0, stack, true) / time(1e-2, stack, true);
        table.promise(format!("{}, 1 %, selective repeat: of its rate without loss", stack.name()), kept, [0.5, 1.01]);
        let better = time(1e-2, stack, false) / time(1e-2, stack, true);
        table.promise(format!("{}, 1 %: go-back-N over selective repeat", stack.name()), better, [1.2, 20.0]);
    }
    table.note("The artefact has no such experiment: it takes one operation at a time.");
    Ok(table)
}

/// Jitter.
///
/// # Errors
/// As [`loss`].
pub fn jitter(scale: &StudyScale) -> Result<StudyTable, String> {
    let title = "READ of 64 bytes with an exponential part of 0.2 in each wait for link and PCI Express";
    let mut table = StudyTable::new("jitter", title, "ns", scale);
    let mut worst: f64 = 0.0;
    for (at, (stack, figures)) in StudyStack::ALL.into_iter().zip(artefact::JITTER).enumerate() {
        let config = StudyConfig { jitter: 0.2, seed: scale.seed, ..StudyConfig::new(stack) };
        let calm = closed_loop(StudyConfig { jitter: 0.0, ..config.clone() }, 10, 1, |_, _| {
            StudyOp::new(StudyVerb::Read, 64, 1)
        })?;
        let measured = closed_loop(config, scale.of(20_000, 3_000), 1, |_, _| StudyOp::new(StudyVerb::Read, 64, 1))?;
        let offset = calm.ns.at(0.5) - TwoNodes::new(stack, StudyVerb::Read, 64).latency() as f64;
        let why = "Headers, as in study `latency`; other random numbers.";
        for (column, (name, share)) in [("median", 0.5), ("p99.9", 0.999)].into_iter().enumerate() {
            let figure = figures[column];
            let ours = measured.ns.at(share);
            worst = worst.max(((ours - offset) / figure as f64 - 1.0).abs());
            let row = StudyRow::new(name, stack.name()).artefact(figure as f64);
            let row = artefact::JITTER_PAPER[at].map_or(row.clone(), |paper| row.paper(paper[column] as f64));
            table.row(row.ours(ours, why));
        }
    }
    table.promise(
        "without the headers' time, ours differ from the artefact's by a share of at most",
        worst,
        [0.0, 0.06],
    );
    Ok(table)
}
