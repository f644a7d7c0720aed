//! The table of steps.

use burst_control::monitor::{CmStats, CmStepHistogram};
use serde_json::{Value, json};
use std::fmt::Write;

/// Difference of two results. Other counts are present values; the longest time of an interval is known to a quarter only.
pub fn since(now: &CmStats, before: Option<&CmStats>) -> CmStats {
    let Some(before) = before else { return now.clone() };
    let steps = now.steps.iter().zip(&before.steps).map(|(now, before)| {
        let buckets: Vec<u64> = now.buckets.iter().zip(&before.buckets).map(|(n, b)| n.saturating_sub(*b)).collect();
        let longest = buckets.iter().rposition(|b| *b > 0).map_or(0, CmStepHistogram::bucket_end);
        CmStepHistogram {
            name: now.name.clone(),
            count: now.count.saturating_sub(before.count),
            total_ns: now.total_ns.saturating_sub(before.total_ns),
            max_ns: longest.min(now.max_ns),
            buckets,
        }
    });
    CmStats { steps: steps.collect(), numbers: now.numbers.clone() }
}

/// A time with three digits.
pub fn time(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {unit}")
}

/// Adds the steps of another host.
pub fn add(all: &mut CmStats, other: &CmStats) {
    for (sum, step) in all.steps.iter_mut().zip(&other.steps) {
        sum.count += step.count;
        sum.total_ns += step.total_ns;
        sum.max_ns = sum.max_ns.max(step.max_ns);
        sum.buckets.iter_mut().zip(&step.buckets).for_each(|(sum, count)| *sum += count);
    }
    for ((_, sum), (_, number)) in all.numbers.iter_mut().zip(&other.numbers) {
        *sum += number;
    }
}

/// The table, and the other counts below it.
pub fn as_text(stats: &CmStats) -> String {
    let mut text = format!("{:<32} {:>10} {:>10} {:>10} {:>10}\n", "step", "count", "p50", "p99", "max");
    for step in &stats.steps {
        let at = |percent| if step.count == 0 { "-".to_owned() } else { time(step.percentile_ns(percent)) };
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "{:<32} {:>10} {:>10} {:>10} {:>10}", step.name, step.count, at(50.0), at(99.0), at(100.0));
    }
    let numbers: Vec<String> = stats.numbers.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let _ = writeln!(text, "now: {}", numbers.join(", "));
    text
}

/// The steps as JSON, in nanoseconds.
pub fn as_json(steps: &[CmStepHistogram]) -> Value {
    let rows = steps.iter().map(|step| {
        json!({
            "step": step.name,
            "count": step.count,
            "total_ns": step.total_ns,
            "p50_ns": step.percentile_ns(50.0),
            "p99_ns": step.percentile_ns(99.0),
            "max_ns": step.max_ns,
        })
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_control::monitor::STEP_BUCKETS;

    #[test]
    fn times_have_three_digits() {
        let texts = [0, 999, 1_000, 12_345, 999_400, 1_500_000, 99_960_000, 2_000_000_000].map(time);
        assert_eq!(texts, ["0 ns", "999 ns", "1.00 us", "12.3 us", "999 us", "1.50 ms", "100 ms", "2.00 s"]);
    }

    #[test]
    fn an_interval_excludes_earlier_counts() {
        let step = |times: &[u64]| {
            let mut step =
                CmStepHistogram { name: "x".into(), buckets: vec![0; STEP_BUCKETS], ..CmStepHistogram::default() };
            for ns in times {
                step.count += 1;
                step.total_ns += ns;
                step.max_ns = step.max_ns.max(*ns);
                step.buckets[CmStepHistogram::bucket(*ns)] += 1;
            }
            CmStats { steps: vec![step], numbers: vec![("ids".into(), times.len() as u64)] }
        };
        let (early, late) = (step(&[1_000_000]), step(&[1_000_000, 1_000, 1_000]));
        let shown = since(&late, Some(&early));
        let row = &shown.steps[0];
        assert_eq!((row.count, row.total_ns, shown.numbers[0].1), (2, 2_000, 3));
        assert!((1_000..=1_250).contains(&row.max_ns) && row.percentile_ns(99.0) == row.max_ns);
        assert_eq!(since(&late, None), late);
        let text = as_text(&shown);
        assert!(text.lines().next().is_some_and(|l| l.contains("p50") && l.contains("p99")), "{text}");
        assert!(text.contains("now: ids 3"), "{text}");
    }
}
