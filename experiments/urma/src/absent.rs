//! What of the paper's evaluation a software stack cannot measure, and which of its figures are not to be compared with.

use crate::report::{StudyRow, StudyScale, StudyTable};

/// What, of which model, the figure, and why it is not measured.
const ABSENT: [(&str, &str, Option<f64>, &str); 12] = [
    ("area U50, LUT", "OpenURMA", Some(122_710.0), "Area is of hardware; Burst is software."),
    ("area U50, LUT", "OpenRoCE", Some(46_636.0), "Area is of hardware; Burst is software."),
    (
        "TX rate, 256 WRs, WR/us",
        "OpenURMA",
        Some(150.36),
        "Not a rate: 105 flits (35 packets) of 256 requests came out, full queues dropped the rest without a word; counted honestly it is \
         18 to 20.",
    ),
    ("TX rate, 256 WRs, WR/us", "OpenRoCE", Some(53.62), "A rate of RTL at 322 MHz; all packets came out."),
    ("cycles to the first flit", "OpenURMA", Some(24.0), "Stages of RTL; studies take them as a parameter (25)."),
    (
        "two NICs, completions",
        "OpenURMA",
        Some(0.0),
        "The linked test of two adapters ends without a completion on either side.",
    ),
    (
        "polled MMIO, 16 WRITEs, ns",
        "gem5",
        Some(24.0),
        "A full system in gem5: its cores, caches and drivers are no part of Burst.",
    ),
    ("ioctl, 16 WRITEs, ns", "gem5", Some(484.0), "A full system in gem5."),
    ("goodput of a TLM pair, M/s", "gem5", Some(6.66), "Two completions are counted for each request."),
    (
        "CHI, 128 sharers, ns",
        "gem5",
        Some(15_170.0),
        "Directories of coherent fabrics: caches of hardware, another protocol.",
    ),
    (
        "far memory, Zipf, mean ns",
        "Infiniswap",
        Some(835.0),
        "A model of the kernel's paging by constants; apertures of Burst page by userfaultfd, measured in docs/urma.md.",
    ),
    (
        "8 B WRITE, link 100 ns",
        "ConnectX-7",
        Some(1_718.0),
        "Compared by the paper with 1.5 to 1.8 us of an adapter; no adapter is here.",
    ),
];

/// The list.
///
/// # Errors
/// None.
pub fn list(scale: &StudyScale) -> Result<StudyTable, String> {
    let mut table = StudyTable::new("absent", "what is not measured, and why", "see the case", scale);
    for (case, model, figure, why) in ABSENT {
        let row = StudyRow { why: why.into(), ..StudyRow::new(case, model) };
        table.row(figure.map_or(row.clone(), |figure| row.artefact(figure)));
    }
    Ok(table)
}
