//! Many operations at a time: concurrency, arrivals at random, YCSB-A; loads that hit the processor's caches.

use crate::artefact;
use crate::closed_form::{StudyVerb, TwoNodes};
use crate::interface::{CYCLE_PS, FLIT_BYTES, StudyStack};
use crate::measure::{Latencies, Measured, RUN_MAX, closed_loop, warm_world};
use crate::program::{OpenProgram, StudyOp};
use crate::report::{StudyRow, StudyScale, StudyTable};
use crate::world::{NS, StudyConfig};
use burst_base::rng::Rng;

const ONE_SERVER: &str = "The artefact takes one operation at a time, however many are asked for: it is a queue with one server. Here \
                          all are under way; the program's processor (115 ns for a post and a poll on the bus, 180 on RoCE) is the \
                          limit; for accesses, which cost it nothing, the adapter's three cycles for each answer and the 64 \
                          that may be under way to a peer.";

fn config(stack: StudyStack, scale: &StudyScale) -> StudyConfig {
    StudyConfig { seed: scale.seed, depth: 512, ..StudyConfig::new(stack) }
}

/// Nanoseconds of the processor for each operation.
fn processor_ns(stack: StudyStack) -> u64 {
    let interface = stack.interface();
    interface.post + interface.build + interface.poll + interface.poll_library
}

/// Nanoseconds of a cycle for each flit of the adapter's busier direction: what host 1 sends for an operation.
fn adapter_ns(measured: &Measured) -> f64 {
    let trace = &measured.world.trace;
    let requests = trace.iter().filter(|packet| packet.role.is_request()).count().max(1);
    let flits = |host: u32| -> u64 {
        trace.iter().filter(|packet| packet.host == host).map(|packet| packet.nic.div_ceil(FLIT_BYTES)).sum()
    };
    (flits(0).max(flits(1)) * CYCLE_PS) as f64 / NS as f64 / requests as f64
}

/// READs at a time.
///
/// # Errors
/// A sentence when a simulation fails.
pub fn concurrency(scale: &StudyScale) -> Result<StudyTable, String> {
    let title = "READ of 64 bytes, so many at a time from one program";
    let mut table = StudyTable::new("concurrency", title, "million operations a second", scale);
    let (mut least, mut most) = (f64::MAX, 0.0f64);
    for (depth, row) in artefact::CONCURRENCY {
        for (stack, figure) in StudyStack::ALL.into_iter().zip(row) {
            let one = TwoNodes::new(stack, StudyVerb::Read, 64).latency() as f64;
            let op = StudyOp::new(StudyVerb::Read, 64, 1);
            let measured = closed_loop(config(stack, scale), scale.of(20_000, 1_000), depth, |_, _| op)?;
            let single = closed_loop(config(stack, scale), 10, 1, |_, _| op)?;
            let busy = processor_ns(stack) as f64;
            let bound = (depth as f64 * 1e3 / single.ns.mean()).min(1e3 / busy.max(adapter_ns(&single)));
            (least, most) = (least.min(measured.mops / bound), most.max(measured.mops / bound));
            let row = StudyRow::new(format!("{depth}"), stack.name()).artefact(figure).closed_form(1e3 / one);
            table.row(row.ours(measured.mops, if depth == 1 { "" } else { ONE_SERVER }));
        }
    }
    table.promise("least rate over min(concurrency / latency, 1 / processor, adapter's cycles)", least, [0.9, 1.01]);
    table.promise("greatest rate over it", most, [0.9, 1.01]);
    table.note("The paper's text claims 2.5 and 0.74 million and a linear rise to 16; its committed file is flat, as the closed form.");
    Ok(table)
}

/// Arrivals of a Poisson process.
///
/// # Errors
/// As [`concurrency`].
pub fn open_loop(scale: &StudyScale) -> Result<StudyTable, String> {
    let title = "READs of 64 bytes that begin at random (Poisson), from one program";
    let mut table = StudyTable::new("open-loop", title, "ns", scale);
    let mut tail: f64 = 0.0;
    for mops in [0.5, 1.0, 2.0, 4.0] {
        for (column, stack) in StudyStack::ALL.into_iter().enumerate() {
            let op = StudyOp::new(StudyVerb::Read, 64, 1);
            let mut world = warm_world(config(stack, scale), op)?;
            let count = scale.of(20_000, 1_000);
            let mut program = OpenProgram::new(count, mops, world.now, scale.seed, move |_, _| op);
            if !world.run(&mut program, RUN_MAX)? {
                return Err("operations do not end".into());
            }
            let ns = Latencies::of(program.ended);
            if mops <= 2.0 {
                tail = tail.max(ns.at(0.99) / ns.at(0.5));
            }
            let known = artefact::OPEN_LOOP.iter().find(|known| known.0 == mops && column < 2);
            for (at, (name, share)) in [("median", 0.5), ("p99", 0.99)].into_iter().enumerate() {
                let mut row = StudyRow::new(format!("{mops} M/s, {name}"), stack.name());
                if let Some(known) = known {
                    row = row.artefact(known.1[column][at] as f64);
                }
                table.row(row.ours(ns.at(share), ONE_SERVER));
            }
        }
    }
    table.promise("p99 over the median up to 2 M/s, at most (paper: below 2 for loads)", tail, [1.0, 2.0]);
    table.note("The artefact saturates at 2.0, 1.32, 0.58 and 0.45 M/s, one over its latencies.");
    Ok(table)
}

/// Half READs, half WRITEs.
///
/// # Errors
/// As [`concurrency`].
pub fn ycsb(scale: &StudyScale) -> Result<StudyTable, String> {
    let title = "YCSB-A: half READs, half WRITEs of 64 bytes, so many at a time";
    let mut table = StudyTable::new("ycsb", title, "million operations a second", scale);
    let mut rates = Vec::new();
    for (depth, row) in artefact::YCSB {
        for (stack, figure) in StudyStack::ALL.into_iter().zip(row) {
            // No more accesses may be under way.
            let depth_here = if stack == StudyStack::LoadStore { depth.min(64) } else { depth };
            let mut rng = Rng::new(scale.seed);
            let make = |_: u32, _: u64| {
                let verb = if rng.chance(1, 2) { StudyVerb::Read } else { StudyVerb::Write };
                StudyOp { offset: rng.below(10_000) * 64, ..StudyOp::new(verb, 64, 1) }
            };
            let measured = closed_loop(config(stack, scale), scale.of(20_000, 1_000), depth_here, make)?;
            rates.push(measured.mops);
            let row = StudyRow::new(format!("{depth}"), stack.name()).artefact(figure);
            let row = if depth == 256 && stack == StudyStack::LoadStore { row.paper(4.6) } else { row };
            let row = if depth == 256 && stack == StudyStack::Dma { row.paper(0.50) } else { row };
            let why = match stack {
                StudyStack::LoadStore => {
                    "The artefact's lines stay in the processor's caches, so that most loads and stores go nowhere; Burst's \
                     accesses all go to the peer, 64 at a time at most."
                }
                _ => ONE_SERVER,
            };
            table.row(row.ours(measured.mops, why));
        }
    }
    let [one, many] = [rates[1] / rates[3], rates[5] / rates[7]];
    table.promise("one at a time: URMA over RoCE DMA (artefact 2.63)", one, [2.3, 2.9]);
    table.promise(
        "256 at a time: URMA over RoCE DMA; processors, not round trips, differ (artefact 2.63)",
        many,
        [1.4, 1.7],
    );
    table.note("Keys are uniform: without caches of data a Zipf distribution changes nothing here.");
    Ok(table)
}

/// Loads of which a share hits the processor's caches.
///
/// # Errors
/// As [`concurrency`].
pub fn locality(scale: &StudyScale) -> Result<StudyTable, String> {
    let title = "loads of 64 bytes, of which a share was used before, one at a time";
    let mut table = StudyTable::new("locality", title, "ns", scale);
    for (percent, figure) in artefact::LOCALITY {
        let mut rng = Rng::new(scale.seed);
        let make = |_: u32, _: u64| {
            let cached = rng.chance(percent, 100).then_some(1);
            StudyOp { cached, ..StudyOp::new(StudyVerb::Read, 64, 1) }
        };
        let measured = closed_loop(config(StudyStack::LoadStore, scale), scale.of(5_000, 1_000), 1, make)?;
        let closed = (percent + (100 - percent) * 500) as f64 / 100.0;
        let row =
            StudyRow::new(format!("{percent} %"), StudyStack::LoadStore.name()).artefact(figure).closed_form(closed);
        let why = "Here the share hits exactly (1 ns). The artefact's caches are cold and lines leave them: its share of misses is \
                   0.915, 0.67 and 0.37 with 25, 50 and 80 %. Caches of data are no part of Burst: apertures keep pages.";
        table.row(row.ours(measured.ns.mean(), if percent == 0 { "" } else { why }));
    }
    let ratio = table.rows[0].ours.unwrap_or(0.0) / table.rows[3].ours.unwrap_or(1.0);
    table.promise("without locality over 80 % (five, if hits are free; artefact 2.7)", ratio, [4.2, 5.6]);
    Ok(table)
}
