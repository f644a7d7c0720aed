//! The table of a study: the paper's figures, its repository's, the closed form's and ours, why they differ, and promises.

use serde::Serialize;
use std::fmt::Write;

/// How exact and how large a study is.
#[derive(Clone, Copy, Debug)]
pub struct StudyScale {
    /// Few operations, for tests.
    pub is_quick: bool,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl StudyScale {
    /// `full`, or `quick`.
    pub fn of<T>(&self, full: T, quick: T) -> T {
        if self.is_quick { quick } else { full }
    }
}

/// A row.
#[derive(Clone, Debug, Serialize)]
pub struct StudyRow {
    /// What was done.
    pub case: String,
    /// By which stack.
    pub stack: &'static str,
    /// The paper's text.
    pub paper: Option<f64>,
    /// The committed files of its repository.
    pub artefact: Option<f64>,
    /// The closed form.
    pub closed_form: Option<f64>,
    /// Simulated with the real code.
    pub ours: Option<f64>,
    /// Why ours differs.
    pub why: String,
}

impl StudyRow {
    /// A row without figures.
    pub fn new(case: impl Into<String>, stack: &'static str) -> StudyRow {
        let (case, why) = (case.into(), String::new());
        StudyRow { case, stack, paper: None, artefact: None, closed_form: None, ours: None, why }
    }
    /// With the paper's figure.
    pub fn paper(self, value: f64) -> StudyRow {
        StudyRow { paper: Some(value), ..self }
    }
    /// With the repository's figure.
    pub fn artefact(self, value: f64) -> StudyRow {
        StudyRow { artefact: Some(value), ..self }
    }
    /// With the closed form's figure.
    pub fn closed_form(self, value: f64) -> StudyRow {
        StudyRow { closed_form: Some(value), ..self }
    }
    /// With ours, and why it differs.
    pub fn ours(self, value: f64, why: impl Into<String>) -> StudyRow {
        StudyRow { ours: Some(value), why: why.into(), ..self }
    }
}

/// Something that a study states and checks.
#[derive(Clone, Debug, Serialize)]
pub struct StudyPromise {
    /// What.
    pub what: String,
    /// The figure.
    pub value: f64,
    /// The least and the greatest that keep it.
    pub bounds: [f64; 2],
    /// Whether it is kept.
    pub met: bool,
}

/// A study's results.
#[derive(Clone, Debug, Serialize)]
pub struct StudyTable {
    /// The study's name.
    pub name: &'static str,
    /// What it is about.
    pub title: String,
    /// The unit of all figures.
    pub unit: &'static str,
    /// Seed.
    pub seed: u64,
    /// Rows.
    pub rows: Vec<StudyRow>,
    /// What a reader must know.
    pub notes: Vec<String>,
    /// Promises.
    pub promises: Vec<StudyPromise>,
}

impl StudyTable {
    /// An empty table.
    pub fn new(name: &'static str, title: impl Into<String>, unit: &'static str, scale: &StudyScale) -> StudyTable {
        let (rows, notes, promises) = (Vec::new(), Vec::new(), Vec::new());
        StudyTable { name, title: title.into(), unit, seed: scale.seed, rows, notes, promises }
    }
    /// Adds a row.
    pub fn row(&mut self, row: StudyRow) {
        self.rows.push(row);
    }
    /// Adds a note.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }
    /// Adds a promise: the figure lies within the bounds.
    pub fn promise(&mut self, what: impl Into<String>, value: f64, [least, most]: [f64; 2]) {
        let met = (least..=most).contains(&value);
        self.promises.push(StudyPromise { what: what.into(), value, bounds: [least, most], met });
    }
    /// Promises that each row with both figures has the closed form equal to the repository's.
    pub fn promise_exact(&mut self) {
        let both = self.rows.iter().filter_map(|row| Some((row.closed_form?, row.artefact?)));
        let (mut count, mut wrong) = (0, 0);
        for (closed, artefact) in both {
            count += 1;
            wrong += u32::from(closed != artefact);
        }
        self.promise(
            format!("closed form differs from the artefact in rows, of {count}"),
            f64::from(wrong),
            [0.0, 0.0],
        );
    }
    /// The row of a case and stack.
    pub fn find(&self, case: &str, stack: &str) -> Option<&StudyRow> {
        self.rows.iter().find(|row| row.case == case && row.stack == stack)
    }
    /// Whether all promises are kept.
    pub fn is_met(&self) -> bool {
        self.promises.iter().all(|promise| promise.met)
    }
    /// The table as text.
    pub fn text(&self) -> String {
        let mut text = format!("{}: {} ({})\n", self.name, self.title, self.unit);
        let mut whys: Vec<&str> = Vec::new();
        let wide = self.rows.iter().map(|row| row.case.chars().count()).max().unwrap_or(0).max(4);
        let _ = writeln!(
            text,
            "{:<wide$}  {:<15}{:>12}{:>12}{:>12}{:>12}  why",
            "case", "stack", "paper", "artefact", "closed form", "ours"
        );
        for row in &self.rows {
            let StudyRow { case, stack, paper, artefact, closed_form, ours, why } = row;
            let mut mark = String::new();
            if !why.is_empty() {
                let known = whys.iter().position(|known| known == why);
                let at = known.unwrap_or_else(|| {
                    whys.push(why);
                    whys.len() - 1
                });
                mark = (at + 1).to_string();
            }
            let [paper, artefact, closed, ours] = [paper, artefact, closed_form, ours].map(|value| shown(*value));
            let line = format!("{case:<wide$}  {stack:<15}{paper:>12}{artefact:>12}{closed:>12}{ours:>12}  {mark}");
            let _ = writeln!(text, "{}", line.trim_end());
        }
        for (at, why) in whys.iter().enumerate() {
            let _ = writeln!(text, "{}. {why}", at + 1);
        }
        for note in &self.notes {
            let _ = writeln!(text, "* {note}");
        }
        for StudyPromise { what, value, bounds: [least, most], met } in &self.promises {
            let word = if *met { "met   " } else { "MISSED" };
            let [value, least, most] = [*value, *least, *most].map(|value| shown(Some(value)));
            let _ = writeln!(text, "{word} {what}: {value} ({least} to {most})");
        }
        text
    }
}

/// A figure, with four digits behind a small one's point.
fn shown(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".into() };
    let text = match value.abs() {
        _ if !value.is_finite() => return if value > 0.0 { "any".into() } else { format!("{value}") },
        size if size >= 1_000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 10.0 => format!("{value:.2}"),
        size if size > 0.0 && size < 0.01 => return format!("{value:.3e}"),
        _ => format!("{value:.4}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').into(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_says_what_differs_and_which_promise_is_broken() {
        let mut table = StudyTable::new("x", "an example", "ns", &StudyScale { is_quick: true, seed: 1 });
        table.row(StudyRow::new("READ", "A").paper(500.0).artefact(500.0).closed_form(500.0).ours(513.25, "heads"));
        table.row(StudyRow::new("WRITE", "A").artefact(750.0).closed_form(751.0).ours(0.000_52, "heads"));
        assert!(table.is_met());
        table.promise_exact();
        assert!(!table.is_met());
        let text = table.text();
        assert!(text.contains("513.2") && text.contains("5.200e-4") && text.matches("heads").count() == 1, "{text}");
        assert!(text.contains("MISSED closed form differs from the artefact in rows, of 2: 1 (0 to 0)"), "{text}");
        assert_eq!(table.find("WRITE", "A").and_then(|row| row.artefact), Some(750.0));
    }
}
