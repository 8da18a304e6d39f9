//! Figures of many runs as tables: the results of each cell, then the choices, separately and jointly.

use super::pooled;
use super::scale::{FigureStyle, number, shortened};
use super::tables::{TableRow, counted, row, table};
use crate::diagnostic::printable;
use crate::statistics::{
    AgentOption, AgentQuestion, Agreement, CellSummary, Comparison, Estimate, Figure, InCell, IntervalMethod,
    Rounds, Subject, Summary,
};
use crate::transcript::Odds;
use console::Style;
use indexmap::IndexMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Columns of what is explained below tables.
const LEGEND: usize = 98;

/// Figures with their intervals, then where the files are; `fancy` for a terminal.
pub fn statistics(summary: &Summary, files: &[PathBuf], fancy: bool) -> String {
    let shown = summary.shown();
    let mut page = Overview { summary: shown, names: shown.names(MAX_NAME), fancy, text: String::new() };
    page.cells();
    page.results();
    page.differences();
    page.section("Assertions over many runs", pooled::assertions(summary), 1);
    page.section("Agreement of judges", agreement(&summary.agreement), 1);
    page.choices();
    page.joint(Rounds::Last, "last round");
    page.joint(Rounds::All, "all rounds");
    if let Some((title, rows)) = pooled::cases(summary) {
        page.section(&title, rows, 1);
    }
    page.text.clone() + &page.legend() + &places(files)
}

/// How far judges agree.
fn agreement(panels: &[Agreement]) -> Vec<TableRow> {
    let figure = |value: Option<f64>| value.map_or_else(|| "-".to_string(), |value| format!("{value:.3}"));
    let of = |panel: &Agreement| {
        let scale = if panel.is_interval { "interval" } else { "nominal" };
        row([
            ("", panel.judges.join(", ")),
            ("runs", panel.runs.to_string()),
            ("scale", scale.to_string()),
            ("Krippendorff's alpha", figure(panel.alpha)),
            ("Cohen's kappa", if panel.judges.len() == 2 { figure(panel.kappa) } else { String::new() }),
        ])
    };
    panels.iter().map(of).collect()
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

/// Most columns of a condition's name.
const MAX_NAME: usize = 28;
/// Most questions of which it is said that they were not asked in all runs.
const MAX_LEFT_OUT: usize = 6;

/// By two cells, the figures that both have and their differences.
type Compared<'a> = IndexMap<(usize, usize), Vec<(&'a Figure, &'a InCell, &'a Comparison)>>;

struct Overview<'a> {
    /// The figures of the cells, or of the conditions where cases are pooled.
    summary: &'a Summary,
    /// Their names, shortened.
    names: Vec<String>,
    fancy: bool,
    text: String,
}

impl Overview<'_> {
    fn has_cells(&self) -> bool {
        self.summary.cells.len() > 1
    }

    /// A table with a title; a text equal to the one above is not repeated in columns before `numbers_from`.
    fn section(&mut self, title: &str, rows: Vec<TableRow>, numbers_from: usize) {
        let Some(first) = rows.first() else { return };
        let head: Vec<&str> = first.iter().map(|(head, _)| head.as_str()).collect();
        let mut shown: Vec<Vec<String>> = Vec::new();
        for (at, row) in rows.iter().enumerate() {
            let mut is_new = at == 0;
            let text = |(column, (_, text)): (usize, &(String, String))| {
                is_new |= at > 0 && rows[at - 1].get(column).is_none_or(|(_, above)| above != text);
                if is_new || column >= numbers_from { text.clone() } else { String::new() }
            };
            shown.push(row.iter().enumerate().map(text).collect());
        }
        let title = if self.fancy { Style::new().bold().apply_to(title).to_string() } else { title.into() };
        self.text += &format!("{title}\n{}\n\n", table(&head, shown, numbers_from));
    }

    /// Shows the runs that were played, by condition.
    fn cells(&mut self) {
        let cells = &self.summary.cells;
        if !self.has_cells() {
            let words = cells.iter().map(|cell| {
                let unfinished = cell.runs - cell.complete;
                let unfinished = match unfinished {
                    0 => String::new(),
                    n => format!(", {n} of them incomplete: they are counted up to where they stopped"),
                };
                let cases = cell.cases.map_or(String::new(), |n| counted(n, "case") + ", ");
                format!("{cases}{}{unfinished}\n\n", counted(cell.runs, "run"))
            });
            self.text += &words.collect::<String>();
            return;
        }
        let names = self.summary.names(50);
        let of_cell = |(at, cell): (usize, &CellSummary)| -> TableRow {
            let mut texts = row([("condition", names[at].clone())]);
            texts.extend(cell.cases.map(|n| ("cases".to_string(), n.to_string())));
            texts.extend(row([
                ("runs", cell.runs.to_string()),
                ("finished", cell.complete.to_string()),
                ("choices", cell.choices.to_string()),
                ("invalid", cell.invalid.to_string()),
            ]));
            texts
        };
        let rows = cells.iter().enumerate().map(of_cell).collect();
        self.section("Conditions", rows, 1);
    }

    /// The cell of a row, where there are several.
    fn cell(&self, cell: &InCell) -> TableRow {
        if self.has_cells() { row([("condition", self.name(cell.cell))]) } else { TableRow::new() }
    }

    /// The name of a cell.
    fn name(&self, cell: usize) -> String {
        self.names.get(cell).cloned().unwrap_or_default()
    }

    /// The cases and runs that a figure is over.
    fn over(&self, cell: &InCell) -> TableRow {
        let runs = row([("runs", self.summary.runs_in_words(cell))]);
        let cases = self.summary.pools_cases().then(|| row([("cases", cell.estimate.n.to_string())]));
        cases.into_iter().chain([runs]).flatten().collect()
    }

    /// The figures that two conditions are compared by, by these two.
    fn compared(&self) -> Compared<'_> {
        let mut pairs = Compared::new();
        for figure in self.summary.compared_figures() {
            for cell in &figure.cells {
                if let Some(comparison) = &cell.difference {
                    pairs.entry((cell.cell, comparison.to)).or_default().push((figure, cell, comparison));
                }
            }
        }
        pairs.sort_keys();
        pairs
    }

    /// Shows how conditions differ: intervals, p-values, and the cases or runs that would show it.
    fn differences(&mut self) {
        let units = if self.summary.pools_cases() { "more cases" } else { "more runs" };
        let mut sections = Vec::new();
        for ((here, to), found) in self.compared() {
            let is_paired = found.iter().any(|(_, _, comparison)| comparison.unpaired.is_some());
            let rows = found.into_iter().map(|(figure, cell, comparison)| {
                let (scale, estimate) = (FigureStyle::of(cell), &comparison.estimate);
                let (group, name) = named(&figure.subject);
                let mut texts = row([
                    ("", group.to_string()),
                    ("", shortened(&name)),
                    (
                        "pairs",
                        if comparison.pairs == 0 { "-".to_string() } else { comparison.pairs.to_string() },
                    ),
                    ("difference", scale.signed(estimate)),
                    ("interval", scale.interval(estimate)),
                ]);
                let unpaired = comparison.unpaired.as_ref().map_or(String::new(), |of| scale.interval(of));
                texts.extend(row([("unpaired", unpaired)]).into_iter().filter(|_| is_paired));
                let holm = row([("p (Holm)", probability(comparison.p_holm))]).into_iter();
                texts.extend(row([("p", probability(comparison.p))]));
                texts.extend(holm.filter(|_| self.summary.comparisons > 1));
                let more = comparison.needed.map(|needed| needed.saturating_sub(estimate.n));
                texts.extend(row([(units, more.map_or("-".to_string(), |more| more.to_string()))]));
                texts
            });
            sections.push((format!("{} compared with {}", self.name(here), self.name(to)), rows.collect()));
        }
        for (title, rows) in sections {
            self.section(&title, rows, 2);
        }
    }

    fn results(&mut self) {
        let mut rows = Vec::new();
        for figure in &self.summary.figures {
            let is_shown = figure.subject.is_result() && !matches!(figure.subject, Subject::Assertion { .. });
            if !is_shown {
                continue;
            }
            let (group, name) = named(&figure.subject);
            for cell in &figure.cells {
                let (scale, estimate) = (FigureStyle::of(cell), &cell.estimate);
                let mut texts = row([("", group.to_string()), ("", shortened(&name))]);
                texts.extend(self.cell(cell));
                texts.extend(self.over(cell));
                texts.extend(row([("mean", scale.value(estimate)), ("interval", scale.interval(estimate))]));
                rows.push(texts);
            }
        }
        let numbers_from = if self.has_cells() { 3 } else { 2 };
        self.section("Results", rows, numbers_from);
    }

    /// Shows what was drawn, how likely it was to be drawn, and how likely the model was to say any of the
    /// options.
    fn choices(&mut self) {
        let (mut rows, mut is_low) = (Vec::new(), false);
        for figure in &self.summary.figures {
            let (question, asked) = match &figure.subject {
                Subject::Choice(asked) => (&asked.question, Some(asked)),
                Subject::InvalidChoice(question) => (question, None),
                _ => continue,
            };
            let AgentQuestion { phase, agent, purpose, rank } = question;
            let agent = agent.as_ref().map_or(String::new(), |agent| format!("/{agent}"));
            if *purpose == "floor" {
                continue;
            }
            let rank = rank.filter(|rank| *rank > 1).map_or(String::new(), |rank| format!(", place {rank}"));
            let purpose = if *purpose == "choice" { "" } else { purpose };
            let who = format!("{phase}{agent} {purpose}{rank}");
            for cell in &figure.cells {
                let share =
                    asked.and_then(|asked| self.summary.estimate(&Subject::Share(asked.clone()), cell.cell));
                let mass =
                    asked.and_then(|_| self.summary.estimate(&Subject::Mass(question.clone()), cell.cell));
                is_low |= mass.and_then(|mass| mass.value).is_some_and(|mass| mass < Odds::LOW_MASS);
                let option = asked.map_or("(invalid)", |asked| asked.option.as_str());
                let mut texts = row([("", shortened(who.trim())), ("", shortened(option))]);
                texts.extend(self.cell(cell));
                texts.extend(counts(cell));
                texts.extend(row([
                    ("model's share", share.map_or(String::new(), |share| FigureStyle::Percent.value(share))),
                    ("interval", share.map_or(String::new(), |share| FigureStyle::Percent.interval(share))),
                    ("mass", mass.map_or(String::new(), masses)),
                ]));
                rows.push(texts);
            }
        }
        let numbers_from = if self.has_cells() { 3 } else { 2 };
        self.section(
            "Choices: how often each was made, how likely it was, and how likely any option was (mass)",
            rows,
            numbers_from,
        );
        if is_low {
            self.text += "Where the mass is low, the model would almost always have said something else, and \
                          the shares say little.\n\n";
        }
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
                let mut texts = row([("", shortened(&who)), ("", shortened(&choices.join(" + ")))]);
                texts.extend(self.cell(cell));
                texts.extend(counts(cell));
                rows.push(texts);
            }
        }
        let numbers_from = if self.has_cells() { 3 } else { 2 };
        self.section(&format!("Choices made together, {which}"), rows, numbers_from);
    }

    /// Explains the intervals, and how many of them will miss.
    fn legend(&self) -> String {
        let estimates: Vec<&Estimate> = self.intervals().collect();
        let has =
            |methods: &[IntervalMethod]| estimates.iter().any(|estimate| methods.contains(&estimate.method));
        let level = number(100.0 * self.summary.confidence);
        let sources = [
            (&[IntervalMethod::Wilson, IntervalMethod::WilsonByRun][..], "Wilson's where a run is one trial"),
            (&[IntervalMethod::Tango], "Tango's for differences between such rates"),
            (&[IntervalMethod::Bootstrap], "BCa bootstrap over whole runs for everything else"),
        ];
        let pools = self.summary.pools_cases();
        let sources: Vec<&str> =
            sources.iter().filter(|_| !pools).filter(|(of, _)| has(of)).map(|(_, words)| *words).collect();
        let mut lines = Vec::new();
        if !sources.is_empty() {
            lines.push(format!("{level} % confidence intervals: {}.", sources.join(", ")));
        }
        if pools && estimates.iter().any(|estimate| estimate.low.is_some()) {
            lines.push(format!(
                "{level} % confidence intervals are clustered by case: runs of one case are not treated as \
                 independent."
            ));
        }
        if self.has_cells() {
            lines.extend(self.about_differences());
        }
        lines.extend(self.left_out());
        let n = estimates.iter().filter(|estimate| estimate.low.is_some()).count();
        let missing = (1.0 - self.summary.confidence) * n as f64;
        if missing >= 1.0 {
            lines.push(format!(
                "Of these {n} intervals, about {missing:.0} are expected to miss the true value. Decide \
                 which figures count before you look."
            ));
        }
        lines
            .iter()
            .map(|line| textwrap::fill(line, super::width().unwrap_or(LEGEND).min(LEGEND)) + "\n")
            .collect()
    }

    /// Explains the differences.
    fn about_differences(&self) -> Vec<String> {
        let found: Vec<&Comparison> =
            self.compared().into_values().flatten().map(|(_, _, comparison)| comparison).collect();
        let has = |is_wanted: &dyn Fn(&Comparison) -> bool| found.iter().any(|of| is_wanted(of));
        let (pairs, each, all, more) = match self.summary.pools_cases() {
            true => ("equal cases", "a case", "cases", "More cases: those"),
            false => ("runs with equal seeds", "a seed", "runs", "More runs: those of each condition"),
        };
        let mut lines = Vec::new();
        if has(&|of| of.pairs > 0) {
            lines.push(format!(
                "Differences are between {pairs}; for rates, in percentage points. Unpaired: the interval if \
                 conditions had nothing in common."
            ));
        }
        let has_unpaired = has(&|of| of.pairs == 0 && of.estimate.value.is_some());
        if has_unpaired {
            lines.push(format!(
                "Without pairs, differences are between different {all}; for rates, in percentage points."
            ));
        }
        let n = self.summary.comparisons;
        if n > 0 {
            let corrected =
                if n > 1 { format!(" Holm: corrected for {n} comparisons.") } else { String::new() };
            let divided = if has_unpaired {
                format!(" (without pairs: if all {all} were divided at random)")
            } else {
                String::new()
            };
            lines.push(format!(
                "p: how often the difference would be as great if the results of {each} were exchanged at \
                 random{divided}.{corrected}"
            ));
        }
        if has(&|of| of.needed.is_some()) {
            let corrected = if n > 1 { ", corrected" } else { "" };
            let both = if has_unpaired { " (without pairs: of both together)" } else { "" };
            lines.push(format!(
                "{more}{both} that a difference as great as this needs for 80 % power (p below \
                 0.05{corrected}, in 80 of 100 experiments)."
            ));
        }
        lines
    }

    /// What figures leave out: runs without a value, turns that were skipped, rounds without payoffs.
    fn left_out(&self) -> Vec<String> {
        let (mut lines, mut choices) = (Vec::new(), IndexMap::new());
        let mut has_results = false;
        for figure in self.summary.figures.iter().filter(|figure| is_shown(figure) && figure.lacks_runs()) {
            match &figure.subject {
                Subject::Choice(asked) => {
                    let over = figure.cells.iter().map(|cell| (cell.missing, self.summary.runs(cell).0));
                    let sums = over.fold((0, 0), |sum, (missing, all)| {
                        (sum.0 + all.saturating_sub(missing), sum.1 + all)
                    });
                    choices.entry(asked.question.to_string()).or_insert(sums);
                }
                Subject::Share(_) | Subject::Joint { .. } | Subject::InvalidChoice(_) => {}
                _ => has_results = true,
            }
        }
        if has_results {
            lines.push(
                "Where it says `3 of 5` runs, the others have no value: the figure is over the three.".into(),
            );
        }
        if !choices.is_empty() {
            let more = choices.len().saturating_sub(MAX_LEFT_OUT);
            let words = choices.iter().take(MAX_LEFT_OUT);
            let mut words: Vec<String> =
                words.map(|(question, (asked, all))| format!("{question} in {asked} of {all}")).collect();
            words.extend((more > 0).then(|| format!("{more} more (see summary.json)")));
            lines.push(printable(&format!("Asked in only some runs: {}.", words.join(", "))).to_string());
        }
        let rounds: usize = self.summary.cells.iter().map(|cell| cell.rounds_without_payoff).sum();
        if rounds > 0 {
            let (rounds, verb) = (counted(rounds, "round"), if rounds == 1 { "has" } else { "have" });
            lines.push(format!(
                "{rounds} {verb} no payoff, because a choice is missing or invalid: the sums leave them out."
            ));
        }
        lines
    }

    /// Everything that is shown with an interval.
    fn intervals(&self) -> impl Iterator<Item = &Estimate> {
        let shown = self.summary.figures.iter().filter(|figure| is_shown(figure));
        let own = shown.flat_map(|figure| figure.cells.iter().map(|cell| &cell.estimate));
        let compared = self.compared().into_values().flatten();
        own.chain(compared.map(|(_, _, comparison)| &comparison.estimate))
    }
}

/// A figure's kind and its name.
fn named(subject: &Subject) -> (&'static str, String) {
    match subject {
        Subject::Outcome { outcome, value: None } => ("outcome", outcome.clone()),
        Subject::Outcome { outcome, value: Some(value) } => ("outcome", format!("{outcome} = {value}")),
        Subject::Payoff { agent: Some(agent), unit } => ("payoff", format!("{agent}, {unit}")),
        Subject::Payoff { agent: None, unit } => ("payoff", unit.clone()),
        Subject::Decision { phase, option } => {
            ("decision", format!("{phase}: {}", option.as_deref().unwrap_or("nothing")))
        }
        Subject::Assertions => ("check", "all assertions hold".into()),
        Subject::Assertion { that } => ("assertion", that.clone()),
        Subject::Invalid => ("check", "invalid choices".into()),
        Subject::Number(question) => ("number", question.to_string()),
        Subject::Choice(asked) => ("choice", asked.to_string()),
        other => ("", other.to_string()),
    }
}

/// A p-value.
fn probability(p: Option<f64>) -> String {
    match p {
        None => "-".to_string(),
        Some(p) if p < 0.001 => "<0.001".to_string(),
        Some(p) => format!("{p:.3}"),
    }
}

/// True of a figure that is shown with an interval.
fn is_shown(figure: &Figure) -> bool {
    match &figure.subject {
        Subject::Round { .. } | Subject::Mass(_) => false,
        Subject::Choice(AgentOption { question, .. })
        | Subject::Share(AgentOption { question, .. })
        | Subject::InvalidChoice(question) => question.purpose != "floor",
        _ => true,
    }
}

/// A mean of masses.
fn masses(estimate: &Estimate) -> String {
    estimate.value.map_or("-".to_string(), Odds::in_percent)
}

/// Count and rate of what is counted.
fn counts(cell: &InCell) -> TableRow {
    let count = cell.count.map_or(String::new(), |count| format!("{count} of {}", cell.observations));
    let (value, interval) =
        (FigureStyle::Percent.value(&cell.estimate), FigureStyle::Percent.interval(&cell.estimate));
    row([("count", count), ("rate", value), ("interval", interval)])
}
