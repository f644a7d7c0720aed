//! A grid of scenarios: one file, and for some keys several values each.
//!
//! The runs are independent of each other, so that any number of threads gives the same results in the same order.

use crate::results::Results;
use crate::scenario::Scenario;
use crate::world::World;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A key of the file and the values that it takes: `hosts.cc=aimd,dctcp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Tables and key, from the outside: `hosts`, `cc`. A number chooses a table of an array: `traffic.0.load`.
    pub path: Vec<String>,
    /// The values as they are written in the file.
    pub values: Vec<String>,
}

/// A point of the grid.
#[derive(Clone, Debug)]
pub struct Point {
    /// Keys and values.
    pub set: Vec<(String, String)>,
    /// The scenario.
    pub scenario: Scenario,
}

impl Axis {
    /// Reads `KEY=VALUE,VALUE,…`. Parameters of a congestion control have commas, too: values may be separated by `;` instead.
    ///
    /// # Errors
    /// A sentence with what was expected.
    pub fn parse(text: &str) -> Result<Axis, String> {
        let (key, values) =
            text.split_once('=').ok_or_else(|| format!("'{text}' is not written as KEY=VALUE,VALUE"))?;
        let by = if values.contains(';') { ';' } else { ',' };
        let values: Vec<String> = values.split(by).map(|value| value.trim().to_owned()).collect();
        if key.trim().is_empty() || values.iter().any(String::is_empty) {
            return Err(format!("'{text}' is not written as KEY=VALUE,VALUE"));
        }
        Ok(Axis { path: key.trim().split('.').map(str::to_owned).collect(), values })
    }

    fn key(&self) -> String {
        self.path.join(".")
    }
}

/// A value as TOML: a number or a truth value if it looks like one, else a string.
fn toml_value(text: &str) -> toml::Value {
    if let Ok(number) = text.parse::<i64>() {
        return toml::Value::Integer(number);
    }
    if let Ok(number) = text.parse::<f64>() {
        return toml::Value::Float(number);
    }
    match text {
        "true" => toml::Value::Boolean(true),
        "false" => toml::Value::Boolean(false),
        _ => toml::Value::String(text.to_owned()),
    }
}

/// Sets a key in a file's table. The tables on the way are made if they are not there; those of arrays must be.
fn set(root: &mut toml::Table, path: &[String], value: toml::Value) -> Result<(), String> {
    let shown = path.join(".");
    let Some((key, tables)) = path.split_last() else { return Err("an empty key".into()) };
    let mut whole = toml::Value::Table(std::mem::take(root));
    let mut at = &mut whole;
    for part in tables {
        at = match (at, part.parse::<usize>()) {
            (toml::Value::Array(rows), Ok(index)) => {
                let count = rows.len();
                rows.get_mut(index).ok_or_else(|| format!("{shown}: there are {count} tables, from 0"))?
            }
            (toml::Value::Table(table), _) => {
                table.entry(part.clone()).or_insert_with(|| toml::Value::Table(toml::Table::new()))
            }
            _ => return Err(format!("{shown}: '{part}' is not in a table")),
        };
    }
    let toml::Value::Table(table) = at else { return Err(format!("{shown}: '{key}' is not in a table")) };
    table.insert(key.clone(), value);
    if let toml::Value::Table(table) = whole {
        *root = table;
    }
    Ok(())
}

/// All points of the grid, the last axis fastest.
///
/// # Errors
/// A sentence: what is wrong with a key, or with the scenario of a point.
pub fn grid(source: &str, axes: &[Axis]) -> Result<Vec<Point>, String> {
    // The file itself first: its errors have lines.
    Scenario::parse(source).map_err(|e| e.to_string())?;
    let root: toml::Table = source.parse().map_err(|e: toml::de::Error| e.message().to_owned())?;
    let mut points = vec![(Vec::new(), root)];
    for axis in axes {
        let mut next = Vec::new();
        for (names, table) in &points {
            for value in &axis.values {
                let (mut names, mut table): (Vec<(String, String)>, _) = (names.clone(), table.clone());
                set(&mut table, &axis.path, toml_value(value))?;
                names.push((axis.key(), value.clone()));
                next.push((names, table));
            }
        }
        points = next;
    }
    let point = |(set, table): (Vec<(String, String)>, toml::Table)| {
        let text = toml::to_string(&table).map_err(|e| e.to_string())?;
        let scenario = Scenario::parse(&text).map_err(|e| format!("{}: {}", shown(&set), e.what))?;
        Ok(Point { set, scenario })
    };
    points.into_iter().map(point).collect()
}

/// `hosts.cc=aimd seed=2`.
pub fn shown(set: &[(String, String)]) -> String {
    set.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

/// Runs all points on `threads` threads; `done` is called after each. Results are in the order of the points; a point that was
/// not run because of `stop` has none.
pub fn run(
    points: &[Point],
    threads: usize,
    stop: &AtomicBool,
    done: &(dyn Fn() + Sync),
) -> Vec<Option<Result<Results, String>>> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(points.iter().map(|_| None).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, points.len().max(1)) {
            scope.spawn(|| {
                // Relaxed: each number is taken once, and the results are under a lock.
                while !stop.load(Ordering::Relaxed)
                    && let Some((at, point)) = {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        points.get(at).map(|point| (at, point))
                    }
                {
                    let result = run_one(&point.scenario, stop);
                    results.lock().unwrap_or_else(|e| e.into_inner())[at] = Some(result);
                    done();
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(|e| e.into_inner())
}

/// Runs a scenario to its end, or until `stop`.
///
/// # Errors
/// The simulation's.
pub fn run_one(scenario: &Scenario, stop: &AtomicBool) -> Result<Results, String> {
    let mut world = World::new(scenario).map_err(|e| e.to_string())?;
    let mut steps = 0u64;
    while world.step().map_err(|e| e.to_string())? {
        steps += 1;
        // Relaxed: the flag carries nothing else.
        if steps.is_multiple_of(4_096) && stop.load(Ordering::Relaxed) {
            return Ok(world.results(true));
        }
    }
    Ok(world.results(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "time = \"1ms\"\n[topology]\nkind = \"pair\"\n[[traffic]]\nkind = \"stream\"\nsize = 64\n";

    #[test]
    fn a_grid_has_all_combinations() {
        let axes = ["seed=1,2", "hosts.cc=aimd;dctcp", "traffic.0.size=1KiB"].map(|a| Axis::parse(a).expect("an axis"));
        let points = grid(FILE, &axes).expect("a grid");
        let names: Vec<String> = points.iter().map(|point| shown(&point.set)).collect();
        assert_eq!(names[1], "seed=1 hosts.cc=dctcp traffic.0.size=1KiB");
        assert_eq!((names.len(), points[2].scenario.seed), (4, 2));
    }

    #[test]
    fn what_is_wrong_with_a_key_is_said() {
        let refused = |axis: &str| grid(FILE, &[Axis::parse(axis).expect("an axis")]).expect_err("wrong");
        assert_eq!(refused("traffic.3.size=1"), "traffic.3.size: there are 1 tables, from 0");
        assert_eq!(refused("time.x=1"), "time.x: 'x' is not in a table");
        assert!(refused("hosts.mtu=7").starts_with("hosts.mtu=7: mtu: 7; expected 256"));
        assert!(Axis::parse("seed").is_err() && Axis::parse("seed=1,").is_err());
    }
}
