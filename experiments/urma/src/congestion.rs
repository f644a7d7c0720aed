//! Congestion at one port: C-AQM, whose hints the switch writes into real packets, and DCQCN of Burst's RC.

use crate::closed_form::StudyVerb;
use crate::interface::StudyStack;
use crate::measure::warm_world;
use crate::packets::change_congestion;
use crate::program::{EndedOp, StudyOp, StudyProgram};
use crate::report::{StudyRow, StudyScale, StudyTable};
use crate::world::{StudyConfig, StudyWorld};
use burst_base::rng::Rng;
use burst_cc::Params;
use burst_fabric::{ClassSettings, QueueView};
use burst_sim::run::PacketRun;
use burst_urma::caqm::CaqmPort;
use std::collections::BTreeMap;

/// Hosts that send to host 0.
const SENDERS: u32 = 4;
const RATE_GBPS: u64 = 100;
const MESSAGE: u32 = 65_536;
/// Messages of a sender at a time.
const DEPTH: u64 = 16;
const WINDOW: u32 = 1 << 20;
const PERIOD_PS: u64 = CaqmPort::PERIOD.0 * 1_000;

/// Senders that always have messages under way; counts bytes.
struct Flood {
    under_way: Vec<u64>,
    until: u64,
    counted_from: u64,
    bytes: Vec<u64>,
    failed: u64,
}

impl StudyProgram for Flood {
    fn next(&mut self, host: u32, now: u64) -> Option<StudyOp> {
        let under_way = self.under_way.get_mut(host.checked_sub(1)? as usize)?;
        if *under_way >= DEPTH || now >= self.until {
            return None;
        }
        *under_way += 1;
        Some(StudyOp::new(StudyVerb::Write, MESSAGE, 0))
    }
    fn ended(&mut self, host: u32, ended: &EndedOp) {
        let at = host as usize - 1;
        self.under_way[at] -= 1;
        self.failed += u64::from(ended.is_failure);
        if (self.counted_from..self.until).contains(&ended.at) {
            self.bytes[at] += u64::from(MESSAGE);
        }
    }
}

/// The switch's ports of C-AQM, by the network's number.
fn hints(seed: u64) -> impl FnMut(QueueView, &mut PacketRun) + Send {
    let mut ports: BTreeMap<u32, (CaqmPort, u64)> = BTreeMap::new();
    let mut rng = Rng::new(seed);
    move |view: QueueView, run: &mut PacketRun| {
        let new = || (CaqmPort::new(4_096, view.rate / 8), view.now / PERIOD_PS);
        let (port, period) = ports.entry(view.port).or_insert_with(new);
        // Periods in which no packet came have the queue of now, or a shorter one.
        let now = view.now / PERIOD_PS;
        for _ in *period..now.min(*period + 64) {
            port.on_period(view.queued);
        }
        *period = now;
        change_congestion(run, |field| port.on_packet(field, view.bytes as u32, &mut rng));
    }
}

struct Shared {
    utilisation: f64,
    queue: f64,
    drops: f64,
    jain: f64,
    failed: u64,
}

fn share(stack: StudyStack, is_controlled: bool, scale: &StudyScale) -> Result<Shared, String> {
    let dcqcn = Params::parse("dcqcn", u64::from(WINDOW))?;
    let config = StudyConfig {
        hosts: SENDERS + 1,
        pairs: (1..=SENDERS).map(|host| (host, 0)).collect(),
        link_ns: 2_000,
        rate_gbps: RATE_GBPS,
        has_stages: false,
        cc: is_controlled.then_some(dcqcn),
        window: WINDOW,
        // The thresholds of the simulator's other experiments at this rate.
        marks: ClassSettings { ecn_min: 100 << 10, ecn_max: 400 << 10, ecn_share: 0.2, ..ClassSettings::default() },
        buffer: 9 << 20,
        seed: scale.seed,
        ..StudyConfig::new(stack)
    };
    let mut world: StudyWorld = warm_world(config, StudyOp::new(StudyVerb::Read, 8, 0))?;
    if stack.is_bus() && is_controlled {
        world.network.set_hook(Box::new(hints(scale.seed)));
    }
    let time = scale.of(100_000_000_000, 4_000_000_000u64);
    let (begun, zeros) = (world.now, vec![0; SENDERS as usize]);
    let mut flood = Flood {
        under_way: zeros.clone(),
        until: begun + time,
        counted_from: begun + time / 2,
        bytes: zeros,
        failed: 0,
    };
    world.run(&mut flood, time / 2)?;
    let queue_before = world.network.queue_max();
    let mut queue = 0u64;
    // The longest queue of the second half, by looks at it.
    while world.now < flood.until {
        world.run(&mut flood, 5_000_000)?;
        queue = queue.max(world.network.queue_now());
    }
    debug_assert!(queue <= queue_before.max(world.network.queue_max()));
    let sum: f64 = flood.bytes.iter().map(|bytes| *bytes as f64).sum();
    let squares: f64 = flood.bytes.iter().map(|bytes| (*bytes as f64).powi(2)).sum();
    let most = RATE_GBPS as f64 / 8.0 * (time / 2) as f64 / 1e3;
    Ok(Shared {
        utilisation: 100.0 * sum / most,
        queue: queue as f64 / 1_000.0,
        drops: world.network.totals().buffer_drops as f64,
        jain: sum * sum / (f64::from(SENDERS) * squares.max(1.0)),
        failed: flood.failed,
    })
}

/// Four senders, one receiver.
///
/// # Errors
/// A sentence when a simulation fails.
pub fn one_port(scale: &StudyScale) -> Result<StudyTable, String> {
    let title = "four hosts WRITE 64 KiB to one at 100 Gbit/s, 2 us apart: the second half of the time";
    let mut table = StudyTable::new("congestion", title, "see the case", scale);
    let kinds = [
        ("C-AQM", StudyStack::Urma, true, Some((96.0, 96.0))),
        ("no control", StudyStack::Urma, false, None),
        ("DCQCN", StudyStack::Dma, true, Some((62.5, 63.0))),
        ("no control", StudyStack::Dma, false, None),
    ];
    let toy = "The artefact's figures are of a window capped at 64 packets, without queue, loss or competitors; its DCQCN is cut and grows \
               by a rule of its own. Here both controls are whole, with a switch and four flows that begin with full windows.";
    let slow = "As above. DCQCN's rates are cut to less than a tenth of the port by the queue of the beginning, and climb back by steps; C-AQM \
                asks before it grows.";
    let mut found = Vec::new();
    for (name, stack, is_controlled, figures) in kinds {
        let got = share(stack, is_controlled, scale)?;
        let row = StudyRow::new(format!("{name}: payload of the port's rate, %"), stack.name());
        let row = figures.map_or(row.clone(), |(paper, artefact)| row.paper(paper).artefact(artefact));
        let why = match name {
            "C-AQM" => toy,
            "DCQCN" => slow,
            _ => "",
        };
        table.row(row.ours(got.utilisation, why));
        table.row(StudyRow::new(format!("{name}: longest queue, kB"), stack.name()).ours(got.queue, ""));
        table.row(StudyRow::new(format!("{name}: packets dropped"), stack.name()).ours(got.drops, ""));
        table.row(StudyRow::new(format!("{name}: Jain's index"), stack.name()).ours(got.jain, ""));
        found.push(got);
    }
    let failed: u64 = found.iter().map(|got| got.failed).sum();
    table.promise("WRITEs that failed", failed as f64, [0.0, 0.0]);
    table.promise("C-AQM: payload of the port's rate, %", found[0].utilisation, [85.0, 100.0]);
    table.promise(
        "C-AQM: longest queue over that without control",
        found[0].queue / found[1].queue.max(1.0),
        [0.0, 0.3],
    );
    table.promise("C-AQM: packets dropped", found[0].drops, [0.0, 0.0]);
    table.note("Headers and gaps take 2 % of the port. The paper's 96 and 62.5 % must not be taken as a comparison of the two controls.");
    Ok(table)
}
