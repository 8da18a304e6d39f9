//! Figures of a sample with their intervals, by cell, and how cells differ from the first one. Where cells
//! are cases, they are not compared, but pooled.

use super::agreement::{Agreement, agreements};
use super::bootstrap::{self, Contribution, MeanKind};
use super::clustered;
use super::groups::{Cluster, Groups};
use super::interval::{CONFIDENCE, Estimate};
use super::measures::{Measure, Measures};
use super::observations::observe;
use super::subject::Subject;
use super::thresholds::{Threshold, thresholds};
use super::{Run, Sample};
use crate::files;
use crate::scenario::text_of;
use crate::transcript::Footer;
use anyhow::Context as _;
use indexmap::IndexMap;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Figures of a sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Confidence level of the intervals.
    pub confidence: f64,
    /// The cells.
    pub cells: Vec<CellSummary>,
    /// The figures.
    pub figures: Vec<Figure>,
    /// The assertions that need only a share of runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assertions: Vec<Threshold>,
    /// How far judges who choose between the same options agree, over all runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agreement: Vec<Agreement>,
    /// The same with all cases of a condition pooled, if the sample has cases: its cells are the combinations
    /// of the values that cases do not give.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooled: Option<Box<Summary>>,
}

/// A combination of swept values, and how often it was played.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellSummary {
    /// The swept variables' values.
    pub values: IndexMap<String, Value>,
    /// The condition that it belongs to, by its number among the pooled cells; its own number where nothing
    /// is pooled.
    #[serde(skip)]
    pub condition: usize,
    /// Cases, where they are pooled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cases: Option<usize>,
    /// Runs.
    pub runs: usize,
    /// Those of them that came to their end.
    pub complete: usize,
    /// Choices that were made.
    pub choices: usize,
    /// Those of them that could not be read as an option.
    pub invalid: usize,
    /// Rounds without a payoff, because a choice is missing or invalid: the sums of payoffs leave them out.
    #[serde(skip_serializing_if = "is_zero")]
    pub rounds_without_payoff: usize,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// One figure, in every cell that has it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Its name, from which its resamples come.
    pub name: String,
    /// Its subject.
    #[serde(flatten)]
    pub subject: Subject,
    /// By cell.
    pub cells: Vec<InCell>,
}

/// A figure in one cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InCell {
    /// The cell.
    pub cell: usize,
    /// Runs of the cell that have no value of it: the result was null, the turn was skipped. The figure is
    /// over the others.
    pub missing: usize,
    /// Observations in all runs: choices, rounds, results.
    pub observations: usize,
    /// Number of them that were what the figure counts; null: it is not a count.
    pub count: Option<usize>,
    /// The mean over the observations.
    pub estimate: Estimate,
    /// The mean minus the first cell's, over the seeds, or the cases, that both have; null in the first cell,
    /// and between cases.
    pub difference: Option<Estimate>,
}

impl CellSummary {
    /// Its values as text, e.g. `price = 3, goods = figs`.
    pub fn label(&self) -> String {
        let values = self.values.iter().map(|(name, value)| format!("{name} = {}", text_of(value)));
        values.collect::<Vec<_>>().join(", ")
    }
}

impl Figure {
    /// True if runs of a cell have no value of it.
    pub fn lacks_runs(&self) -> bool {
        self.cells.iter().any(|cell| cell.missing > 0)
    }
}

impl Summary {
    /// The figures to show first: those of all cases pooled if there are cases, else these.
    pub fn shown(&self) -> &Self {
        self.pooled.as_deref().unwrap_or(self)
    }

    /// True if its cells pool cases.
    pub fn pools_cases(&self) -> bool {
        self.cells.iter().any(|cell| cell.cases.is_some())
    }

    /// Runs of a figure's cell, and those of them that have a value.
    pub fn runs(&self, figure: &InCell) -> (usize, usize) {
        let all = self.cells.get(figure.cell).map_or(0, |cell| cell.runs);
        (all, all.saturating_sub(figure.missing))
    }

    /// The runs that a figure is over, as text, e.g. `12`, or `9 of 12` if the others have no value.
    pub fn runs_in_words(&self, figure: &InCell) -> String {
        match self.runs(figure) {
            (all, with) if all == with => with.to_string(),
            (all, with) => format!("{with} of {all}"),
        }
    }

    /// A figure's estimate in a cell.
    pub fn estimate(&self, subject: &Subject, cell: usize) -> Option<&Estimate> {
        let figure = self.figures.iter().find(|figure| figure.subject == *subject)?;
        figure.cells.iter().find(|other| other.cell == cell).map(|other| &other.estimate)
    }

    /// True if all assertions held that need only a share of runs.
    pub fn holds(&self) -> bool {
        self.assertions.iter().all(Threshold::holds)
    }

    /// Writes `summary.json` into a folder, which is made if it is not there, and returns its path.
    ///
    /// # Errors
    /// The folder or the file can't be written.
    pub fn write(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let path = folder.join("summary.json");
        let can_not = || format!("can't write {}", path.display());
        std::fs::create_dir_all(folder).with_context(can_not)?;
        let text = serde_json::to_string_pretty(self)? + "\n";
        files::write(&path, text)?;
        Ok(path)
    }
}

/// Estimates everything that there is to estimate.
pub fn summarize(sample: &Sample) -> Summary {
    let measures = Measures::new(sample);
    let conditions = Groups::of_conditions(sample);
    let by_cell = Grouped { sample, measures: &measures, groups: Groups::of_cells(sample) };
    let mut summary = by_cell.summary(conditions.is_none());
    for (at, cell) in summary.cells.iter_mut().enumerate() {
        let condition = conditions.as_ref().and_then(|conditions| conditions.of_cell(at));
        cell.condition = condition.unwrap_or(at);
    }
    summary.pooled = conditions.map(|groups| {
        let pooled = Grouped { sample, measures: &measures, groups };
        Box::new(pooled.summary(true))
    });
    let shown = summary.pooled.as_deref().unwrap_or(&summary);
    let checked = thresholds(sample, &Groups::shown_groups(sample), |subject, cell| {
        shown.estimate(subject, cell).cloned()
    });
    summary.assertions = checked;
    summary.agreement = agreements(&observe(sample));
    summary
}

fn rounds_without_payoff(footer: &Footer) -> usize {
    let rounds = footer.payoffs.iter().flat_map(|payoffs| &payoffs.rounds);
    rounds.filter(|round| round.values.is_none()).count()
}

/// A sample's measures by groups.
struct Grouped<'a> {
    sample: &'a Sample,
    measures: &'a Measures<'a>,
    groups: Groups,
}

impl Grouped<'_> {
    /// The figures by group, and how groups differ from the first one if they are `compared`.
    fn summary(&self, compared: bool) -> Summary {
        let pools = self.groups.pool_cases();
        let has_cases = pools || !compared;
        let wanted = |subject: &Subject| has_cases || !matches!(subject, Subject::Number(_));
        let all = self.measures.by_subject.iter().filter(|(subject, _)| wanted(subject));
        let figures = all.map(|(subject, measure)| {
            let name = subject.to_string();
            let cells = self.in_cells(&name, subject, measure, compared);
            Figure { name, subject: subject.clone(), cells }
        });
        let figures = figures.collect();
        Summary {
            confidence: CONFIDENCE,
            cells: self.cells(),
            figures,
            assertions: Vec::new(),
            agreement: Vec::new(),
            pooled: None,
        }
    }

    fn cells(&self) -> Vec<CellSummary> {
        let mut runs: Vec<Vec<&Run>> = vec![Vec::new(); self.groups.values.len()];
        let mut cases: Vec<BTreeSet<Cluster>> = vec![BTreeSet::new(); runs.len()];
        for run in &self.sample.runs {
            let Some((group, cluster)) = self.groups.of(run) else { continue };
            let Some(own) = runs.get_mut(group) else { continue };
            own.push(run);
            cases[group].insert(cluster);
        }
        let cell = |((cell, runs), cases): ((&super::Cell, Vec<&Run>), BTreeSet<Cluster>)| {
            let footers = || runs.iter().filter_map(|run| run.transcript.footer.as_ref());
            CellSummary {
                values: cell.values.iter().cloned().collect(),
                condition: 0,
                cases: self.groups.pool_cases().then_some(cases.len()),
                runs: runs.len(),
                complete: footers().count(),
                // A transcript is a file from outside: no figure in it may overflow a sum.
                choices: footers().fold(0, |sum, footer| sum.saturating_add(footer.record.choices)),
                invalid: footers().fold(0, |sum, footer| sum.saturating_add(footer.record.invalid)),
                rounds_without_payoff: footers().map(|footer| rounds_without_payoff(&footer.record)).sum(),
            }
        };
        self.groups.values.iter().zip(runs).zip(cases).map(cell).collect()
    }

    fn in_cells(&self, name: &str, subject: &Subject, measure: &Measure, compared: bool) -> Vec<InCell> {
        let mut by_cell: BTreeMap<usize, BTreeMap<Cluster, Contribution>> = BTreeMap::new();
        let mut n_runs: BTreeMap<usize, [usize; 2]> = BTreeMap::new();
        for (at, run) in self.measures.runs.iter().enumerate() {
            let Some((cell, cluster)) = self.groups.of(run) else { continue };
            let part = measure.parts.get(&at);
            let [all, own] = n_runs.entry(cell).or_default();
            (*all, *own) = (*all + 1, *own + usize::from(part.is_some()));
            if let Some(part) = part {
                let cluster = by_cell.entry(cell).or_default().entry(cluster).or_default();
                *cluster = cluster.plus(*part);
            } else if subject.is_of_every_run() && run.transcript.footer.is_some() {
                // A cell in which no run has a result is marked.
                by_cell.entry(cell).or_default();
            }
        }
        let first = by_cell.get(&0).filter(|_| compared);
        let in_cell = |(cell, parts): (&usize, &BTreeMap<Cluster, Contribution>)| {
            let own: Vec<Contribution> = parts.values().copied().collect();
            let sum: f64 = own.iter().map(|run| run.sum).sum();
            let first = first.filter(|_| *cell > 0);
            let pair = |(key, here): (&Cluster, &Contribution), first: &BTreeMap<Cluster, Contribution>| {
                Some([*here, *first.get(key)?])
            };
            let difference = first.map(|first| {
                let pairs: Vec<[Contribution; 2]> =
                    parts.iter().filter_map(|part| pair(part, first)).collect();
                self.difference(name, &pairs, measure.kind)
            });
            let [all, with] = n_runs.get(cell).copied().unwrap_or_default();
            InCell {
                cell: *cell,
                missing: all - with,
                observations: own.iter().map(|run| run.n).sum::<f64>() as usize,
                count: (measure.kind == MeanKind::Rate).then_some(sum.round() as usize),
                estimate: self.mean(name, &own, measure.kind),
                difference,
            }
        };
        by_cell.iter().map(in_cell).collect()
    }

    fn mean(&self, name: &str, parts: &[Contribution], kind: MeanKind) -> Estimate {
        if self.groups.pool_cases() {
            clustered::mean(parts, kind)
        } else {
            bootstrap::mean(name, parts, kind)
        }
    }

    fn difference(&self, name: &str, pairs: &[[Contribution; 2]], kind: MeanKind) -> Estimate {
        if self.groups.pool_cases() {
            clustered::difference(pairs, kind)
        } else {
            bootstrap::difference(name, pairs, kind)
        }
    }
}
