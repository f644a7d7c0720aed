//! Order: a share of requests with strong order, by service mode; acknowledgements of ROL.

use crate::artefact;
use crate::closed_form::{StudyVerb, TwoNodes};
use crate::interface::StudyStack;
use crate::measure::{Measured, closed_loop};
use crate::program::StudyOp;
use crate::report::{StudyRow, StudyScale, StudyTable};
use crate::world::StudyConfig;
use burst_base::rng::Rng;
use burst_ubwire::{OrderTag, ServiceMode};

const SERVICES: [(ServiceMode, &str); 3] =
    [(ServiceMode::Roi, "ROI"), (ServiceMode::Rot, "ROT"), (ServiceMode::Rol, "ROL")];
/// Operations at a time where order can hold something up.
const MANY: u64 = 16;

fn mixed(
    stack: StudyStack,
    service: ServiceMode,
    verb: StudyVerb,
    percent: u64,
    depth: u64,
    scale: &StudyScale,
) -> Result<Measured, String> {
    let config = StudyConfig { service, seed: scale.seed, ..StudyConfig::new(stack) };
    let mut rng = Rng::new(scale.seed);
    let make = |_: u32, _: u64| {
        let order = if rng.chance(percent, 100) { OrderTag::Strong } else { OrderTag::None };
        StudyOp { order, ..StudyOp::new(verb, 64, 1) }
    };
    closed_loop(config, scale.of(5_000, 400), depth, make)
}

/// A share of strong order.
///
/// # Errors
/// A sentence when a simulation fails.
pub fn share(scale: &StudyScale) -> Result<StudyTable, String> {
    let title = "operations of 64 bytes, a share of them with strong order (SO), the others without (NO)";
    let mut table = StudyTable::new("mixed-order", title, "ns for each operation", scale);
    for (percent, row) in artefact::MIXED_ORDER {
        for (stack, figure) in StudyStack::ALL.into_iter().zip(row) {
            let base = TwoNodes::new(stack, StudyVerb::Read, 64);
            let strong = TwoNodes { is_strong: true, ..base }.latency() as f64;
            let share = percent as f64 / 100.0;
            let closed = base.latency() as f64 * (1.0 - share) + strong * share;
            let row = StudyRow::new(format!("READ, {percent} % SO, one at a time"), stack.name());
            let row = row.artefact(figure as f64).closed_form(closed);
            // The paper's text has the ends.
            let row = if stack.is_bus() && [0, 100].contains(&percent) { row.paper(figure as f64) } else { row };
            if stack == StudyStack::LoadStore {
                table.row(StudyRow { why: "Accesses have no order tags: a program waits for them.".into(), ..row });
                continue;
            }
            let measured = mixed(stack, ServiceMode::Roi, StudyVerb::Read, percent, 1, scale)?;
            let why =
                "Headers, as in study `latency`; with one at a time order costs its check only. The share is drawn.";
            table.row(row.ours(measured.ns.mean(), why));
        }
    }
    table.promise_exact();
    let mut each = Vec::new();
    for verb in [StudyVerb::Write, StudyVerb::Read] {
        for (service, name) in SERVICES {
            for percent in [0, 50, 100] {
                let measured = mixed(StudyStack::Urma, service, verb, percent, MANY, scale)?;
                let ns = 1e3 / measured.mops;
                let case = format!("{} {name}, {percent} % SO, {MANY} at a time", verb.name());
                each.push(ns);
                let why = match service {
                    ServiceMode::Roi => {
                        "The initiator holds an SO request until all ordered ones before it are answered: a round trip each."
                    }
                    _ => {
                        "The target executes in order, so requests leave at once. A READ counts as executed when its data have \
                         arrived, so the next one waits a round trip. ROL keeps the order of all."
                    }
                };
                // ROL keeps the order of all, whatever their tags.
                let why = if percent == 0 && service != ServiceMode::Rol { "" } else { why };
                table.row(StudyRow::new(case, StudyStack::Urma.name()).ours(ns, why));
            }
        }
        let measured = mixed(StudyStack::Dma, ServiceMode::Roi, verb, 0, MANY, scale)?;
        let case = format!("{} RC, always in order, {MANY} at a time", verb.name());
        table.row(StudyRow::new(case, StudyStack::Dma.name()).ours(1e3 / measured.mops, ""));
    }
    // WRITE: ROI 0, 50, 100; ROT 0, 50, 100; ROL 0, 50, 100.
    table.promise("WRITE, 100 % SO: ROI over ROT", each[2] / each[5], [3.0, 12.0]);
    table.promise("WRITE, ROT: 100 % SO over none", each[5] / each[3], [0.95, 1.5]);
    table.note("The artefact's simulator adds 20 ns for SO and holds nothing up: its order elements are not linked.");
    Ok(table)
}

/// ROL: the transport's acknowledgement is the transaction's.
///
/// # Errors
/// As [`share`].
pub fn fused(scale: &StudyScale) -> Result<StudyTable, String> {
    let title = "WRITE and READ with ROI and with ROL, whose acknowledgement of a packet is the transaction's, URMA";
    let mut table = StudyTable::new("rol", title, "ns; packets", scale);
    let mut packets = Vec::new();
    for verb in [StudyVerb::Write, StudyVerb::Read] {
        for (bytes, figures) in artefact::ROL_URMA {
            for (at, (service, name)) in [SERVICES[0], SERVICES[2]].into_iter().enumerate() {
                let config = StudyConfig { service, seed: scale.seed, ..StudyConfig::new(StudyStack::Urma) };
                let count = scale.of(200, 20);
                let before = closed_loop(config.clone(), count, 1, |_, _| StudyOp::new(verb, bytes as u32, 1))?;
                let twice = closed_loop(config, 2 * count, 1, |_, _| StudyOp::new(verb, bytes as u32, 1))?;
                let sent = |measured: &Measured| measured.world.network.totals().sent;
                let each = (sent(&twice) - sent(&before)) as f64 / count as f64;
                packets.push(each);
                let row = StudyRow::new(format!("{} {bytes} {name}", verb.name()), StudyStack::Urma.name());
                let row = if verb == StudyVerb::Read { row.artefact(figures[at] as f64) } else { row };
                let why = match verb {
                    StudyVerb::Write => "The artefact has READs only, and takes 4 ns from each (its text says 25).",
                    _ => "A READ's answer is its data with either mode; ROL saves nothing there.",
                };
                table.row(row.ours(before.ns.at(0.5), why));
                let row = StudyRow::new(format!("{} {bytes} {name}, packets", verb.name()), StudyStack::Urma.name());
                table.row(row.ours(each, ""));
            }
        }
    }
    // The request, its answer, which carries the acknowledgement of the request's packet, and a sixteenth of that of 16 answers.
    table.promise("WRITE: packets of an operation with ROI", packets[2], [2.0, 2.1]);
    table.promise("WRITE: packets of an operation with ROL", packets[3], [2.0, 2.0]);
    Ok(table)
}
