//! Which workers have the queue pairs of a port, and on which processors they run: options of all kinds of ports.

use super::OptionRow;

/// Highest number of a processor that is accepted.
pub const CPU_MAX: u16 = 1023;

/// Workers and processors of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortPlacement {
    /// The workers that have the port's queue pairs, in rising order, not empty; `None`: all.
    pub workers: Option<Vec<u16>>,
    /// The processors on which these workers run, in rising order, not empty; `None`: those of the interface's NUMA node.
    pub cpus: Option<Vec<u16>>,
}

/// A kind's options that have a placement.
pub(super) trait Placed {
    fn placement(&mut self) -> &mut PortPlacement;
}

/// The row `workers` of a kind.
pub(super) const fn workers_row<S: Placed>() -> OptionRow<S> {
    OptionRow {
        key: "workers",
        value: "N-M",
        help: "workers that have its queue pairs, of those that `workers` of the daemon starts: 0-3, 2, 0+4-5; default: all",
        set: |spec, text| {
            numbers(text, burst_base::Qpn::WORKER_MASK as u16).map(|all| spec.placement().workers = Some(all))
        },
    }
}

/// The row `cpus` of a kind.
pub(super) const fn cpus_row<S: Placed>() -> OptionRow<S> {
    OptionRow {
        key: "cpus",
        value: "N-M",
        help: "processors on which these workers run (4-7, 0+2), one each if there are as many; default: all of the interface's NUMA node",
        set: |spec, text| numbers(text, CPU_MAX).map(|all| spec.placement().cpus = Some(all)),
    }
}

/// Numbers and ranges joined by `+`, each at most `max`; commas separate options.
fn numbers(text: &str, max: u16) -> Result<Vec<u16>, String> {
    let wrong = || format!("is not a list of numbers and ranges up to {max}, joined by +");
    let number = |word: &str| word.trim().parse::<u16>().ok().filter(|number| *number <= max).ok_or_else(wrong);
    let mut all = Vec::new();
    for part in text.split('+') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(format!("has a range that falls: {part}"));
        }
        all.extend(first..=last);
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use crate::PortSpec;

    fn placement(text: &str) -> (Option<Vec<u16>>, Option<Vec<u16>>) {
        let spec = PortSpec::parse(text).unwrap();
        let of = spec.kind.placement();
        (of.workers.clone(), of.cpus.clone())
    }

    #[test]
    fn every_kind_has_workers_and_processors() {
        assert_eq!(placement("udp:dev=lo"), (None, None));
        assert_eq!(placement("udp:dev=lo,workers=0-2,cpus=4+0-1+1"), (Some(vec![0, 1, 2]), Some(vec![0, 1, 4])));
        assert_eq!(placement("impair:loss=1%/packet:workers=3"), (Some(vec![3]), None));
        assert_eq!(placement("dpdk:dev=net_ring0,addr=10.0.0.1/24,cpus=7,workers=1"), (Some(vec![1]), Some(vec![7])));
    }

    #[test]
    fn wrong_lists_are_refused() {
        for (list, why) in [
            ("workers=", "numbers and ranges up to 15"),
            ("workers=16", "numbers and ranges up to 15"),
            ("workers=2-1", "falls: 2-1"),
            ("workers=0+", "numbers"),
            ("workers=-1", "numbers"),
            ("cpus=0-1024", "up to 1023"),
            ("cpus=a", "write cpus=N-M"),
        ] {
            let said = PortSpec::parse(&format!("udp:{list}")).unwrap_err().to_string();
            assert!(said.contains(why), "{list}: {said}");
        }
    }
}
