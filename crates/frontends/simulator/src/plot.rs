//! The results of a simulation as a drawing: rates over time, and slowdowns by size.

use burst_sim::results::Results;
use plotters::prelude::*;

/// Width and height in pixels.
const SIZE: (u32, u32) = (900, 720);

type Failure = Box<dyn std::error::Error>;

/// Draws an SVG.
pub fn draw(results: &Results) -> Result<String, Failure> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let title = format!("{} (seed {}, {} hosts)", results.scenario, results.seed, results.hosts);
        let root = root.titled(&title, ("sans-serif", 22))?;
        let (upper, lower) = root.split_vertically(340);
        if !results.series_gbps.is_empty() {
            rates(&upper, results).map_err(|e| e.to_string())?;
        }
        slowdowns(&lower, results).map_err(|e| e.to_string())?;
        root.present()?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// The rate of each source over time.
fn rates(area: &Area<'_>, results: &Results) -> Result<(), Failure> {
    let step = results.interval_us / 1e3;
    let points = results.series_gbps.iter().map(Vec::len).max().unwrap_or(0);
    let top = results.series_gbps.iter().flatten().copied().fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..step * points as f64, 0.0..top * 1.05)?;
    chart.configure_mesh().x_desc("time (ms)").y_desc("arriving from each host (Gbit/s)").draw()?;
    for (host, series) in results.series_gbps.iter().enumerate().filter(|(_, s)| s.iter().any(|rate| *rate > 0.0)) {
        let colour = Palette99::pick(host).to_rgba();
        let line = series.iter().enumerate().map(|(at, rate)| (step * (at as f64 + 0.5), *rate));
        chart.draw_series(LineSeries::new(line, colour.stroke_width(1)))?;
    }
    Ok(())
}

/// Mean and 99th percentile of the slowdown by size, for each part of the traffic.
fn slowdowns(area: &Area<'_>, results: &Results) -> Result<(), Failure> {
    let bins = results.traffic.iter().flat_map(|part| &part.bins);
    let top = bins.clone().map(|bin| bin.slowdown.p99).fold(2.0, f64::max);
    let (first, last) = bins.fold((f64::MAX, 1.0f64), |(first, last), bin| {
        (first.min(bin.bytes_max as f64), last.max(bin.bytes_max as f64))
    });
    if first > last {
        return Ok(());
    }
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d((first / 1.5..last * 1.5).log_scale(), (1.0..top * 1.1).log_scale())?;
    chart.configure_mesh().x_desc("message (bytes)").y_desc("slowdown").draw()?;
    for (number, part) in results.traffic.iter().enumerate() {
        let colour = Palette99::pick(number).to_rgba();
        for (name, width, is_mean) in [("mean", 2, true), ("p99", 1, false)] {
            let value = |bin: &burst_sim::results::SizeBin| if is_mean { bin.slowdown.mean } else { bin.slowdown.p99 };
            let line = part.bins.iter().map(|bin| (bin.bytes_max as f64, value(bin)));
            chart
                .draw_series(LineSeries::new(line, colour.stroke_width(width)).point_size(2))?
                .label(format!("{} {name}", part.kind))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(width)));
        }
    }
    chart.configure_series_labels().border_style(BLACK.mix(0.3)).background_style(WHITE.mix(0.8)).draw()?;
    Ok(())
}
