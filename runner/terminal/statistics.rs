//! Figures of many runs as tables: what came of each cell, then what was chosen, alone and together.

use super::tables::{counted, table};
use crate::diagnostic::printable;
use crate::scenario::text_of;
use crate::statistics::{CellSummary, Estimate, Figure, InCell, Method, Question, Rounds, Subject, Summary};
use crate::transcript::Odds;
use console::{Style, truncate_str};
use indexmap::IndexMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Most columns of a name or a text.
const MAX_NAME: usize = 26;
/// Columns of what is explained below tables.
const LEGEND: usize = 98;

/// Figures with their intervals, then where the files are; `fancy` for a terminal.
pub fn statistics(summary: &Summary, files: &[PathBuf], fancy: bool) -> String {
    let mut page = Overview { summary, fancy, text: String::new() };
    page.cells();
    page.results();
    page.choices();
    page.joint(Rounds::Last, "last round");
    page.joint(Rounds::All, "all rounds");
    page.text.clone() + &page.legend() + &places(files)
}

/// Files by folder, those that differ by their endings alone in one line.
fn places(files: &[PathBuf]) -> String {
    let text = |part: Option<&OsStr>| part.map_or(String::new(), |part| part.to_string_lossy().into_owned());
    let mut folders: IndexMap<&Path, IndexMap<String, Vec<String>>> = IndexMap::new();
    for file in files {
        let folder = folders.entry(file.parent().unwrap_or(Path::new(""))).or_default();
        folder.entry(text(file.file_stem())).or_default().push(text(file.extension()));
    }
    let mut out = String::new();
    for (folder, stems) in folders {
        out += &printable(&format!("\nFiles in {}:\n", folder.display()));
        let mut kinds: IndexMap<String, Vec<String>> = IndexMap::new();
        for (stem, endings) in stems {
            kinds.entry(endings.join(", ")).or_default().push(stem);
        }
        let lines = kinds.iter().map(|(endings, stems)| {
            super::wrapped(&format!("  {} ({endings})", stems.join(", ")), "    ") + "\n"
        });
        out += &printable(&lines.collect::<String>());
    }
    out
}

/// A row: under which head each text stands.
type Row = Vec<(&'static str, String)>;

struct Overview<'a> {
    summary: &'a Summary,
    fancy: bool,
    text: String,
}

impl Overview<'_> {
    fn has_cells(&self) -> bool {
        self.summary.cells.len() > 1
    }

    /// A table with a title; a text that stands above is not repeated in columns before `numbers_from`.
    fn section(&mut self, title: &str, rows: Vec<Row>, numbers_from: usize) {
        let Some(first) = rows.first() else { return };
        let head: Vec<&str> = first.iter().map(|(head, _)| *head).collect();
        let mut shown: Vec<Vec<String>> = Vec::new();
        for (at, row) in rows.iter().enumerate() {
            let mut is_new = at == 0;
            let text = |(column, (_, text)): (usize, &(&str, String))| {
                is_new |= at > 0 && rows[at - 1].get(column).is_none_or(|(_, above)| above != text);
                if is_new || column >= numbers_from { text.clone() } else { String::new() }
            };
            shown.push(row.iter().enumerate().map(text).collect());
        }
        let title = if self.fancy { Style::new().bold().apply_to(title).to_string() } else { title.into() };
        self.text += &format!("{title}\n{}\n\n", table(&head, shown, numbers_from));
    }

    /// Shows the runs that were played, by cell.
    fn cells(&mut self) {
        let cells = &self.summary.cells;
        if !self.has_cells() {
            let words = cells.iter().map(|cell| {
                let unfinished = cell.runs - cell.complete;
                let unfinished = match unfinished {
                    0 => String::new(),
                    n => format!(", {n} of them incomplete: they are counted up to where they stopped"),
                };
                format!("{}{unfinished}\n\n", counted(cell.runs, "run"))
            });
            self.text += &words.collect::<String>();
            return;
        }
        let row = |(at, cell): (usize, &CellSummary)| -> Row {
            let values = cell.values.iter().map(|(name, value)| format!("{name} = {}", text_of(value)));
            let values = printable(&values.collect::<Vec<_>>().join(", "));
            let values = truncate_str(&values, 50, "…").into_owned();
            vec![
                ("cell", at.to_string()),
                ("values", values),
                ("runs", cell.runs.to_string()),
                ("finished", cell.complete.to_string()),
                ("choices", cell.choices.to_string()),
                ("invalid", cell.invalid.to_string()),
            ]
        };
        let rows = cells.iter().enumerate().map(row).collect();
        self.section("Cells", rows, 2);
    }

    /// The cell of a row, where there are several.
    fn cell(&self, cell: &InCell) -> Option<(&'static str, String)> {
        self.has_cells().then(|| ("cell", cell.cell.to_string()))
    }

    /// The difference to the first cell, where there are several.
    fn difference(&self, cell: &InCell, scale: Scale) -> Row {
        if !self.has_cells() {
            return Row::new();
        }
        let shown = |show: fn(Scale, &Estimate) -> String| {
            cell.difference.as_ref().map_or(String::new(), |difference| show(scale, difference))
        };
        vec![("to cell 0", shown(Scale::signed)), ("interval", shown(Scale::interval))]
    }

    fn results(&mut self) {
        let mut rows = Vec::new();
        for figure in &self.summary.figures {
            let (group, name) = match &figure.subject {
                Subject::Outcome { outcome, value: None } => ("outcome", outcome.clone()),
                Subject::Outcome { outcome, value: Some(value) } => {
                    ("outcome", format!("{outcome} = {value}"))
                }
                Subject::Payoff { agent, unit } => ("payoff", format!("{agent}, {unit}")),
                Subject::Decision { phase, option } => {
                    ("decision", format!("{phase}: {}", option.as_deref().unwrap_or("nothing")))
                }
                Subject::Assertions => ("check", "all assertions hold".into()),
                Subject::Invalid => ("check", "invalid choices".into()),
                _ => continue,
            };
            for cell in &figure.cells {
                let (scale, estimate) = (Scale::of(cell), &cell.estimate);
                let mut row = vec![("", group.to_string()), ("", shortened(&name))];
                row.extend(self.cell(cell));
                row.extend([("runs", estimate.n.to_string()), ("mean", scale.value(estimate))]);
                row.push(("interval", scale.interval(estimate)));
                row.extend(self.difference(cell, scale));
                rows.push(row);
            }
        }
        let numbers_from = if self.has_cells() { 3 } else { 2 };
        self.section("Results", rows, numbers_from);
    }

    /// Shows what was drawn; beside it, how likely it was to be drawn, and how likely any of the options was to be said.
    fn choices(&mut self) {
        let (mut rows, mut is_low) = (Vec::new(), false);
        for figure in &self.summary.figures {
            let Subject::Choice(asked) = &figure.subject else { continue };
            let Question { phase, agent, purpose, rank } = &asked.question;
            if *purpose == "floor" {
                continue;
            }
            let rank = rank.filter(|rank| *rank > 1).map_or(String::new(), |rank| format!(", place {rank}"));
            let purpose = if *purpose == "choice" { "" } else { purpose };
            let who = format!("{phase}/{agent} {purpose}{rank}");
            for cell in &figure.cells {
                let share = self.estimate(&Subject::Share(asked.clone()), cell.cell);
                let mass = self.estimate(&Subject::Mass(asked.question.clone()), cell.cell);
                is_low |= mass.and_then(|mass| mass.value).is_some_and(|mass| mass < Odds::LOW_MASS);
                let mut row = vec![("", shortened(who.trim())), ("", shortened(&asked.option))];
                row.extend(self.cell(cell));
                row.extend(counts(cell));
                row.push(("model's share", share.map_or(String::new(), |share| Scale::Percent.value(share))));
                row.push(("interval", share.map_or(String::new(), |share| Scale::Percent.interval(share))));
                row.push(("mass", mass.map_or(String::new(), masses)));
                rows.push(row);
            }
        }
        let numbers_from = if self.has_cells() { 3 } else { 2 };
        self.section(
            "Choices: how often each was made, how likely it was, and how likely any option was (mass)",
            rows,
            numbers_from,
        );
        if is_low {
            self.text += "Where the mass is low, the model would rather have said something else, and the shares say \
                little.\n\n";
        }
    }

    /// A figure's estimate in a cell.
    fn estimate(&self, subject: &Subject, cell: usize) -> Option<&Estimate> {
        let figure = self.summary.figures.iter().find(|figure| figure.subject == *subject)?;
        figure.cells.iter().find(|other| other.cell == cell).map(|other| &other.estimate)
    }

    fn joint(&mut self, wanted: Rounds, which: &str) {
        let mut rows = Vec::new();
        for figure in &self.summary.figures {
            let Subject::Joint { phase, agents, rounds, choices } = &figure.subject else { continue };
            if *rounds != wanted {
                continue;
            }
            let choices = choices.iter().map(|choice| choice.as_deref().unwrap_or("invalid"));
            let choices: Vec<&str> = choices.collect();
            for cell in &figure.cells {
                let who = format!("{phase}: {}", agents.join(" + "));
                let mut row = vec![("", shortened(&who)), ("", shortened(&choices.join(" + ")))];
                row.extend(self.cell(cell));
                row.extend(counts(cell));
                row.extend(self.difference(cell, Scale::Percent));
                rows.push(row);
            }
        }
        let numbers_from = if self.has_cells() { 3 } else { 2 };
        self.section(&format!("Choices made together, {which}"), rows, numbers_from);
    }

    /// Explains the intervals, and how many of them will miss.
    fn legend(&self) -> String {
        let estimates: Vec<&Estimate> = self.intervals().collect();
        let has = |methods: &[Method]| estimates.iter().any(|estimate| methods.contains(&estimate.method));
        let level = number(100.0 * self.summary.confidence);
        let sources = [
            (&[Method::Wilson, Method::WilsonByRun][..], "Wilson's where a run is one trial"),
            (&[Method::Tango], "Tango's for differences between such rates"),
            (&[Method::Bootstrap], "BCa bootstrap over whole runs for everything else"),
        ];
        let sources: Vec<&str> = sources.iter().filter(|(of, _)| has(of)).map(|(_, words)| *words).collect();
        let mut lines = Vec::new();
        if !sources.is_empty() {
            lines.push(format!("{level} % confidence intervals: {}.", sources.join(", ")));
        }
        if self.has_cells() {
            let text =
                "Differences to cell 0 are between runs with equal seeds; for rates, in percentage points.";
            lines.push(text.to_string());
        }
        let n = estimates.iter().filter(|estimate| estimate.low.is_some()).count();
        let missing = (1.0 - self.summary.confidence) * n as f64;
        if missing >= 1.0 {
            lines.push(format!(
                "Of these {n} intervals, about {missing:.0} are expected to miss the true value. Decide which \
                    figures count before you look."
            ));
        }
        lines
            .iter()
            .map(|line| textwrap::fill(line, super::width().unwrap_or(LEGEND).min(LEGEND)) + "\n")
            .collect()
    }

    /// Everything that is shown with an interval.
    fn intervals(&self) -> impl Iterator<Item = &Estimate> {
        let is_shown = |figure: &&Figure| match &figure.subject {
            Subject::Round { .. } | Subject::Mass(_) => false,
            Subject::Choice(asked) | Subject::Share(asked) => asked.question.purpose != "floor",
            _ => true,
        };
        let shown = self.summary.figures.iter().filter(is_shown).flat_map(|figure| {
            // Choices stand beside their shares; how they differ between cells is not shown.
            let differs = !matches!(figure.subject, Subject::Choice(_) | Subject::Share(_));
            figure.cells.iter().map(move |cell| (cell, differs))
        });
        shown
            .flat_map(|(cell, differs)| [Some(&cell.estimate), cell.difference.as_ref().filter(|_| differs)])
            .flatten()
    }
}

/// A mean of masses.
fn masses(estimate: &Estimate) -> String {
    estimate.value.map_or("-".to_string(), Odds::in_percent)
}

/// Count and rate of what is counted.
fn counts(cell: &InCell) -> Row {
    let count = cell.count.map_or(String::new(), |count| format!("{count} of {}", cell.observations));
    let (value, interval) = (Scale::Percent.value(&cell.estimate), Scale::Percent.interval(&cell.estimate));
    vec![("count", count), ("rate", value), ("interval", interval)]
}

/// The form in which a figure is written.
#[derive(Clone, Copy)]
enum Scale {
    Plain,
    Percent,
}

impl Scale {
    fn of(cell: &InCell) -> Self {
        if cell.count.is_some() { Self::Percent } else { Self::Plain }
    }

    fn text(self, value: f64) -> String {
        match self {
            Self::Plain => number(value),
            Self::Percent => format!("{:.0}", 100.0 * value),
        }
    }

    fn value(self, estimate: &Estimate) -> String {
        let Some(value) = estimate.value else { return "-".to_string() };
        match self {
            Self::Plain => self.text(value),
            Self::Percent => self.text(value) + " %",
        }
    }

    fn signed(self, estimate: &Estimate) -> String {
        let Some(value) = estimate.value else { return "-".to_string() };
        let text = self.text(value);
        if text.trim_start_matches(['-', '0', '.']).is_empty() {
            "0".to_string()
        } else if value > 0.0 {
            format!("+{text}")
        } else {
            text
        }
    }

    fn interval(self, estimate: &Estimate) -> String {
        match (estimate.low, estimate.high, estimate.method) {
            (Some(low), Some(high), _) => format!("[{}, {}]", self.text(low), self.text(high)),
            (_, _, Method::Alike) => "all alike".to_string(),
            (_, _, Method::TooFewRuns) => "too few runs".to_string(),
            _ => String::new(),
        }
    }
}

/// Three digits, or all before the point, unless they are many.
fn number(value: f64) -> String {
    if value.abs() >= 1e9 {
        return format!("{value:.2e}");
    }
    let digits = libm::log10(value.abs().max(1e-9)).floor() as i32;
    let after = (2 - digits).clamp(0, 6) as usize;
    let text = format!("{value:.after$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

fn shortened(text: &str) -> String {
    truncate_str(&printable(text), MAX_NAME, "…").into_owned()
}
