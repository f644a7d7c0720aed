//! The studies of the Unified Bus, with few operations: each runs, keeps its promises, and gives the same table again.

use burst_sim::studies::registry::{STUDIES, find};
use burst_sim::studies::report::{StudyRow, StudyScale, StudyTable};
use std::collections::BTreeSet;

const QUICK: StudyScale = StudyScale { is_quick: true, seed: 1 };

fn table(name: &str) -> StudyTable {
    let run = find(name).expect("a study");
    run(&QUICK).unwrap_or_else(|sentence| panic!("{name}: {sentence}"))
}

/// Runs a study twice; its rows by case and stack.
fn check(name: &str) -> StudyTable {
    let table = table(name);
    println!("{}", table.text());
    let missed: Vec<_> = table.promises.iter().filter(|promise| !promise.met).collect();
    assert!(missed.is_empty(), "{name}: {missed:#?}");
    assert!(!table.rows.is_empty());
    table
}

fn ours(table: &StudyTable, case: &str, stack: &str) -> f64 {
    let row = table.find(case, stack).unwrap_or_else(|| panic!("{}: no row {case}, {stack}", table.name));
    row.ours.expect("a figure")
}

macro_rules! keeps_its_promises {
    ($($test:ident: $name:literal;)+) => {
        $(#[test]
        fn $test() {
            check($name);
        })+
        const TESTED: &[&str] = &[$($name),+];
    };
}

keeps_its_promises! {
    phases: "phases";
    link: "link";
    payload: "payload";
    concurrency: "concurrency";
    open_loop: "open-loop";
    ycsb: "ycsb";
    locality: "locality";
    mixed_order: "mixed-order";
    rol: "rol";
    loss: "loss";
    loss_rate: "loss-rate";
    jitter: "jitter";
    tp_sharing: "tp-sharing";
    fan_out: "fan-out";
    spill: "spill";
    cluster: "cluster";
    contention: "contention";
    congestion: "congestion";
    state: "state";
    setup: "setup";
    absent: "absent";
}

#[test]
fn latency_has_the_figures_of_table_6_and_repeats() {
    let first = check("latency");
    let row = |case| first.find(case, "RoCE DMA").expect("a row");
    let StudyRow { paper, artefact, closed_form, .. } = row("READ");
    assert_eq!((*paper, *artefact, *closed_form), (Some(2_186.0), Some(2_236.0), Some(2_236.0)));
    // A load, a READ, a READ of RoCE: the order of the paper.
    let stacks = ["UB load/store", "UB URMA", "RoCE BlueFlame", "RoCE DMA"];
    let reads = stacks.map(|stack| ours(&first, "READ", stack));
    assert!(reads.is_sorted(), "{reads:?}");
    assert_eq!(first.text(), table("latency").text());
}

#[test]
fn every_study_has_a_test() {
    let tested: BTreeSet<&str> = TESTED.iter().copied().chain(["latency"]).collect();
    assert_eq!(tested, STUDIES.iter().map(|study| study.0).collect());
}
