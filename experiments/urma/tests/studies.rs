//! The studies of the Unified Bus, with few operations: each runs, keeps its promises, and gives the same table again.

use burst_urma_studies::registry::{STUDIES, find};
use burst_urma_studies::report::{StudyRow, StudyScale, StudyTable};
use std::collections::BTreeSet;
use std::process::Command;

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

/// Exit code, standard output and standard error of the program.
fn urma_studies(words: &[&str]) -> (Option<i32>, String, String) {
    let done = Command::new(env!("CARGO_BIN_EXE_urma-studies")).args(words).output().expect("the program starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (done.status.code(), text(done.stdout), text(done.stderr))
}

#[test]
fn the_program_prints_the_same_json_twice() {
    let [first, again] = [0, 1].map(|_| urma_studies(&["setup", "absent", "--quick", "--json", "-"]));
    assert_eq!(first, again);
    let (code, json, errors) = first;
    assert_eq!(code, Some(0), "{errors}");
    let tables: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((tables[0]["name"].as_str(), tables[1]["name"].as_str()), (Some("setup"), Some("absent")));
}

#[test]
fn a_study_that_does_not_exist_is_refused_with_the_list() {
    let (code, _, errors) = urma_studies(&["latencies"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("\"latencies\"") && errors.contains("loss-rate"), "{errors}");
}
