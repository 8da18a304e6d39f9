//! Figures of a sample with their intervals, by cell, and how cells differ from the first one. Where cells
//! are cases, they are not compared, but pooled by condition.

use super::agreement::{Agreement, agreements};
use super::bootstrap::{self, Contribution, MeanKind};
use super::clustered;
use super::comparisons::{self, Comparison, Sides};
use super::groups::{Cluster, Grouping, Groups};
use super::interval::{CONFIDENCE, Estimate};
use super::measures::{Measure, Measures};
use super::observations::observe;
use super::subject::Subject;
use super::thresholds::{Threshold, thresholds};
use super::{Run, Sample};
use crate::diagnostic::printable;
use crate::files;
use crate::transcript::Footer;
use anyhow::Context as _;
use console::truncate_str;
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
    /// What the figures are over, besides the conditions.
    #[serde(flatten)]
    pub grouping: Grouping,
    /// The cells.
    pub cells: Vec<CellSummary>,
    /// The figures.
    pub figures: Vec<Figure>,
    /// Differences that were tested: p-values are corrected for this number.
    pub comparisons: usize,
    /// The assertions that need only a share of runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assertions: Vec<Threshold>,
    /// How far judges who choose between the same options agree, over all runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agreement: Vec<Agreement>,
    /// The same with all cases of a condition pooled, if the sample has cases, and by the values that runs are
    /// grouped by: its cells are the combinations of these and of the values that cases do not give.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooled: Option<Box<Summary>>,
}

/// A combination of swept values, and how often it was played.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellSummary {
    /// Its name: the values as text, e.g. `price=3, goods=figs`.
    pub name: String,
    /// The swept variables' values, and those that runs are grouped by.
    pub values: IndexMap<String, Value>,
    /// The condition of its first run, by its number among the pooled cells; its own number where nothing is
    /// pooled.
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
    /// The mean minus that of the first cell, or of the first one with the same values of what runs are
    /// grouped by; null there, and between cases.
    pub difference: Option<Comparison>,
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

    /// Names of its cells, each within `most` characters and no two alike.
    pub fn names(&self, most: usize) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for cell in &self.cells {
            let short = truncate_str(&printable(&cell.name), most, "…").into_owned();
            let numbered = |n: usize| {
                let number = format!(" #{n}");
                truncate_str(&short, most.saturating_sub(number.len()), "…").into_owned() + &number
            };
            let mut name = short.clone();
            let mut n = 1;
            while names.contains(&name) {
                n += 1;
                name = numbered(n);
            }
            names.push(name);
        }
        names
    }

    /// The figures to begin with: the results, or the choices if there are none. Of two values, the second is
    /// what the first lacks, so it is left out.
    pub fn main_figures(&self) -> Vec<&Figure> {
        main_figures(&self.figures).into_iter().map(|at| &self.figures[at]).collect()
    }

    /// Those by which conditions are compared: without assertions, unless there is nothing else.
    pub fn compared_figures(&self) -> Vec<&Figure> {
        compared_figures(&self.figures).into_iter().map(|at| &self.figures[at]).collect()
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
    summarize_by(sample, &Grouping::default())
}

/// The same, grouped by other values of the runs, or pooled over agents.
pub fn summarize_by(sample: &Sample, grouping: &Grouping) -> Summary {
    let measures = Measures::new(sample, grouping.over_agents);
    let conditions = Groups::of_conditions(sample, &grouping.by);
    let by_cell = Grouped { sample, measures: &measures, groups: Groups::of_cells(sample) };
    let mut summary = by_cell.summary(conditions.is_none());
    summary.grouping = grouping.clone();
    for (at, cell) in summary.cells.iter_mut().enumerate() {
        let first = sample.runs.iter().filter(|run| run.cell == at).min_by_key(|run| run.seed);
        let group = first.and_then(|run| conditions.as_ref()?.of(run));
        cell.condition = group.map_or(at, |(group, _)| group);
    }
    summary.pooled = conditions.map(|groups| {
        let pooled = Grouped { sample, measures: &measures, groups };
        Box::new(Summary { grouping: grouping.clone(), ..pooled.summary(true) })
    });
    // Whether an assertion holds does not depend on what figures are grouped by.
    let plain = Grouped { sample, measures: &measures, groups: Groups::shown_groups(sample, &[]) };
    summary.assertions = thresholds(sample, &plain.groups, |subject, group| {
        let measure = measures.by_subject.get(subject)?;
        let found = plain.in_cells(&subject.to_string(), subject, measure, false);
        found.into_iter().find(|cell| cell.cell == group).map(|cell| cell.estimate)
    });
    summary.agreement = agreements(&observe(sample));
    summary
}

/// Indices of the figures by which conditions are compared.
fn compared_figures(figures: &[Figure]) -> Vec<usize> {
    let main = main_figures(figures);
    let is_check =
        |at: &usize| matches!(figures[*at].subject, Subject::Assertions | Subject::Assertion { .. });
    let others: Vec<usize> = main.iter().copied().filter(|at| !is_check(at)).collect();
    if others.is_empty() { main } else { others }
}

/// Indices of the figures to begin with.
fn main_figures(figures: &[Figure]) -> Vec<usize> {
    let all = |is_wanted: &dyn Fn(&Subject) -> bool| {
        let is_wanted = |(_, figure): &(usize, &Figure)| is_wanted(&figure.subject);
        figures.iter().enumerate().filter(is_wanted).map(|(at, _)| at).collect::<Vec<usize>>()
    };
    let is_result = |subject: &Subject| subject.is_result() && *subject != Subject::Invalid;
    let is_choice =
        |subject: &Subject| matches!(subject, Subject::Choice(of) if of.question.purpose != "floor");
    let mut found = all(&is_result);
    if found.is_empty() {
        found = all(&is_choice);
    }
    let whole = |at: usize| figures[at].subject.whole();
    let is_complement = |at: usize| {
        let same: Vec<usize> = found.iter().copied().filter(|other| whole(*other) == whole(at)).collect();
        whole(at).is_some() && same.len() == 2 && same[1] == at
    };
    found.iter().copied().filter(|at| !is_complement(*at)).collect()
}

fn rounds_without_payoff(footer: &Footer) -> usize {
    let rounds = footer.payoffs.iter().flat_map(|payoffs| &payoffs.rounds);
    rounds.filter(|round| round.values.is_none()).count()
}

/// Contributions of a group's runs, by cluster.
type Parts = BTreeMap<Cluster, Contribution>;

/// A sample's measures by groups.
struct Grouped<'a> {
    sample: &'a Sample,
    measures: &'a Measures<'a>,
    groups: Groups,
}

impl Grouped<'_> {
    /// The figures by group, and how groups differ from the first one if they are `compared`.
    fn summary(&self, compared: bool) -> Summary {
        let figures = self.measures.by_subject.iter().map(|(subject, measure)| {
            let name = subject.to_string();
            let cells = self.in_cells(&name, subject, measure, compared);
            Figure { name, subject: subject.clone(), cells }
        });
        let mut figures: Vec<Figure> = figures.collect();
        let comparisons = if compared { self.test(&mut figures) } else { 0 };
        Summary {
            confidence: CONFIDENCE,
            grouping: Grouping::default(),
            cells: self.cells(),
            figures,
            comparisons,
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
                name: cell.name(),
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

    /// What each group's runs contribute to a figure, by cluster; and by group its runs, and those of them that
    /// have a value.
    fn parts(
        &self,
        subject: &Subject,
        measure: &Measure,
    ) -> (BTreeMap<usize, Parts>, BTreeMap<usize, [usize; 2]>) {
        let mut by_cell: BTreeMap<usize, Parts> = BTreeMap::new();
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
        (by_cell, n_runs)
    }

    fn in_cells(&self, name: &str, subject: &Subject, measure: &Measure, compared: bool) -> Vec<InCell> {
        let (by_cell, n_runs) = self.parts(subject, measure);
        let estimate =
            |parts: &Parts| self.mean(name, &parts.values().copied().collect::<Vec<_>>(), measure.kind);
        let estimates: BTreeMap<usize, Estimate> =
            by_cell.iter().map(|(cell, parts)| (*cell, estimate(parts))).collect();
        let in_cell = |(cell, parts): (&usize, &Parts)| {
            let sum: f64 = parts.values().map(|part| part.sum).sum();
            let difference = self.groups.reference(*cell).filter(|_| compared).and_then(|to| {
                let sides = Sides::new(parts, by_cell.get(&to)?);
                let (here, there) = (&estimates[cell], &estimates[&to]);
                let (pairs, estimate, unpaired) = if sides.are_paired() {
                    let paired = self.difference(name, &sides.pairs, measure.kind);
                    (sides.pairs.len(), paired, comparisons::unpaired(here, there))
                } else {
                    (0, comparisons::apart(here, there), None)
                };
                let variance = sides.variance();
                let (p, p_holm, p_bh, needed) = (None, None, None, None);
                Some(Comparison { to, pairs, estimate, unpaired, p, p_holm, p_bh, needed, variance })
            });
            let [all, with] = n_runs.get(cell).copied().unwrap_or_default();
            InCell {
                cell: *cell,
                missing: all - with,
                observations: parts.values().map(|part| part.n).sum::<f64>() as usize,
                count: (measure.kind == MeanKind::Rate).then_some(sum.round() as usize),
                estimate: estimates[cell].clone(),
                difference,
            }
        };
        by_cell.iter().map(in_cell).collect()
    }

    /// Tests the differences of the figures by which conditions are compared, and corrects for their number, which it returns.
    fn test(&self, figures: &mut [Figure]) -> usize {
        let mut tested = Vec::new();
        let wanted = compared_figures(figures);
        for (at, figure) in figures.iter_mut().enumerate() {
            let measure = self.measures.by_subject.get(&figure.subject).filter(|_| wanted.contains(&at));
            let Some(measure) = measure.filter(|_| self.groups.values.len() > 1) else { continue };
            let (parts, _) = self.parts(&figure.subject, measure);
            for cell in &mut figure.cells {
                let Some(comparison) = &mut cell.difference else { continue };
                if let (Some(here), Some(there)) = (parts.get(&cell.cell), parts.get(&comparison.to)) {
                    comparison.p = Sides::new(here, there).p(&figure.name);
                    tested.push(comparison);
                }
            }
        }
        comparisons::correct(&mut tested)
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
