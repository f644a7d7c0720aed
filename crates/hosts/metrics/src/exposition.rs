//! Metrics as text: OpenMetrics 1.0 by the crate prometheus-client, and the older text format of Prometheus, which differs in
//! the names of counters' heads and in the last line.

use crate::families::{FAMILIES, FamilyKind};
use crate::samples::MetricSamples;
use burst_control::activity::HostReport;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use std::fmt;

/// A format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format of Prometheus 0.0.4.
    Prometheus,
}

impl TextFormat {
    /// The media type.
    pub const fn media_type(self) -> &'static str {
        match self {
            TextFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            TextFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
    /// The format for a scraper that accepts these media types.
    pub fn accepted_by(accept: &str) -> TextFormat {
        if accept.contains("application/openmetrics-text") { TextFormat::OpenMetrics } else { TextFormat::Prometheus }
    }
}

/// An engine and its report.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineReport {
    /// The label `engine`: `daemon`, or name and process id of a program.
    pub engine: String,
    /// What it reports.
    pub report: HostReport,
}

/// Writes reports as text.
///
/// # Errors
/// The encoder's: there is no memory.
pub fn write(reports: &[EngineReport], format: TextFormat) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(MetricSamples::of(reports)));
    let mut page = String::new();
    text::encode(&mut page, &registry)?;
    Ok(match format {
        TextFormat::OpenMetrics => page,
        TextFormat::Prometheus => to_prometheus(&page),
    })
}

/// Names counters in heads as in samples, and leaves the last line out.
fn to_prometheus(page: &str) -> String {
    let line = |line: &str| -> Option<String> {
        let mut words = line.splitn(4, ' ');
        let head = (words.next()?, words.next()?, words.next(), words.next());
        match head {
            ("#", "EOF", ..) => None,
            ("#", what @ ("HELP" | "TYPE"), Some(name), Some(rest)) if is_counter(name) => {
                Some(format!("# {what} {name}_total {rest}\n"))
            }
            _ => Some(format!("{line}\n")),
        }
    };
    page.lines().filter_map(line).collect()
}

fn is_counter(name: &str) -> bool {
    FAMILIES.iter().any(|family| family.name == name && family.kind == FamilyKind::Counter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::tests::report;

    fn page(format: TextFormat) -> String {
        write(&[EngineReport { engine: "daemon".into(), report: report() }], format).expect("text")
    }

    #[test]
    fn the_formats_differ_in_heads_and_in_the_end() {
        let open = page(TextFormat::OpenMetrics);
        assert!(open.contains("# TYPE burst_rx_packets counter\n") && open.ends_with("# EOF\n"), "{open}");
        assert!(open.contains("burst_rx_packets_total{engine=\"daemon\",device=\"burst0\"} 7\n"), "{open}");
        let old = page(TextFormat::Prometheus);
        assert!(old.contains("# TYPE burst_rx_packets_total counter\n") && !old.contains("EOF"), "{old}");
        assert!(old.contains("# TYPE burst_cm_step_seconds histogram\n"), "{old}");
        let samples = |page: &str| page.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples(&open), samples(&old));
    }

    #[test]
    fn names_of_programs_are_escaped() {
        let open = page(TextFormat::OpenMetrics);
        assert!(open.contains(r#"program="a \"b\\\n""#), "{open}");
        assert!(open.lines().all(|line| line.starts_with('#') || line.contains(' ')));
    }

    #[test]
    fn scrapers_get_the_format_that_they_accept() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain";
        assert_eq!(TextFormat::accepted_by(prometheus), TextFormat::OpenMetrics);
        assert_eq!(TextFormat::accepted_by("*/*"), TextFormat::Prometheus);
        assert_eq!(TextFormat::accepted_by(""), TextFormat::Prometheus);
    }
}
