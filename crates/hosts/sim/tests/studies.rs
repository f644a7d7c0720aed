//! The studies of the Unified Bus, with few operations: each runs, and keeps its promises.

use burst_sim::studies::registry::STUDIES;
use burst_sim::studies::report::StudyScale;

const QUICK: StudyScale = StudyScale { is_quick: true, seed: 1 };

#[test]
fn every_study_keeps_its_promises() {
    for (name, _, run) in STUDIES {
        let begun = std::time::Instant::now();
        let table = run(&QUICK).unwrap_or_else(|sentence| panic!("{name}: {sentence}"));
        println!("{}   {} ms\n", table.text(), begun.elapsed().as_millis());
        assert!(table.is_met(), "{name}");
    }
}
