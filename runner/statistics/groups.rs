//! Runs in groups: by cell, or by condition, where the cells of all cases are pooled, and within these by
//! other values of a run. Runs of one cluster are not independent.

use super::observations::{Observed, observe};
use super::{Cell, Run, Sample};
use crate::diagnostic::unknown;
use crate::scenario::{Purpose, Scenario, text_of};
use serde::Serialize;
use serde_json::Value;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};

/// Name of a cell's case among its values.
pub const CASE: &str = "case";

/// Most values of a variable that runs are grouped by.
const MAX_VALUES: usize = 24;

/// What figures are over, besides the conditions.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Grouping {
    /// Values of runs that divide each condition: variables (`a`), parts of them (`a.b`), columns of the
    /// cases, or choices (`PHASE/AGENT`), of which the last counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub by: Vec<String>,
    /// True if choices and payoffs are pooled over the agents who were asked the same.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub over_agents: bool,
}

impl Grouping {
    /// True if it changes nothing.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that the scenarios of an experiment have what runs are grouped by.
    ///
    /// # Errors
    /// As text: they do not, or it has too many values.
    pub fn check<'a>(&self, scenarios: impl Iterator<Item = &'a Scenario> + Clone) -> Result<(), String> {
        for name in &self.by {
            let values: Vec<&Value> =
                scenarios.clone().filter_map(|scenario| variable(scenario, name)).collect();
            let Some(first) = scenarios.clone().next().filter(|_| values.is_empty()) else {
                let different: BTreeSet<String> = values.iter().map(|value| value.to_string()).collect();
                let n = different.len();
                if n > MAX_VALUES {
                    return Err(format!(
                        "`{name}` has {n} different values; expected at most {MAX_VALUES}, so that each \
                         group has several runs"
                    ));
                }
                continue;
            };
            let choices = choices(first);
            if choices.iter().any(|choice| choice == name) {
                continue;
            }
            let known = first.variables.keys().chain(&choices).map(String::as_str);
            let message = format!("`{name}` is not a variable or a choice of the scenario");
            return Err(unknown(&message, name, known));
        }
        Ok(())
    }
}

/// A variable, or a part of one, by its path.
fn variable<'a>(scenario: &'a Scenario, path: &str) -> Option<&'a Value> {
    if let Some(value) = scenario.variables.get(path) {
        return Some(value);
    }
    let (name, parts) = path.split_once('.')?;
    parts.split('.').try_fold(scenario.variables.get(name)?, |value, part| value.get(part))
}

/// All choices of a scenario, as `PHASE/AGENT`.
fn choices(scenario: &Scenario) -> Vec<String> {
    let mut found = Vec::new();
    for (_, turn) in scenario.plan().order() {
        if turn.constraint.is_some() && turn.purpose != Purpose::Floor {
            let agent = &scenario.agent(turn.timeline.agent).key;
            let name = format!("{}/{agent}", scenario.phase(turn.phase).name);
            if !found.contains(&name) {
                found.push(name);
            }
        }
    }
    found
}

/// What varies independently of the rest of its group: a run, or all runs of a case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cluster {
    /// A run, by its seed. Equal seeds of two groups are paired.
    Seed(u64),
    /// All runs of a case, by its name. Equal cases of two groups are paired.
    Case(String),
}

/// A condition, by its place among them, and the values that runs are grouped by.
type GroupKey = (usize, Vec<Value>);

/// The groups of a sample.
pub(super) struct Groups {
    /// The values that a group's runs have in common.
    pub(super) values: Vec<Cell>,
    /// By group, the one that it is compared with; its own for one that others are compared with.
    references: Vec<usize>,
    /// By a run's cell and seed, its group. `None`: each cell is its own group.
    by_run: Option<HashMap<(usize, u64), usize>>,
    /// By cell, its case. `None`: nothing is pooled.
    cases: Option<Vec<String>>,
}

impl Groups {
    /// A group for each cell.
    pub(super) fn of_cells(sample: &Sample) -> Self {
        let references = vec![0; sample.cells.len()];
        Self { values: sample.cells.clone(), references, by_run: None, cases: None }
    }

    /// A group for each combination of the values that are not given by cases, and of those that runs are
    /// grouped `by`. `None`: the sample has no cases, and its runs are not grouped by anything.
    pub(super) fn of_conditions(sample: &Sample, by: &[String]) -> Option<Self> {
        let has_cases = |run: &Run| {
            let cell = sample.cells.get(run.cell).and_then(case_of);
            cell.is_some() && run.scenario.case().is_some()
        };
        let pools = sample.runs.iter().any(has_cases);
        if !pools && by.is_empty() {
            return None;
        }
        let condition =
            |cell: &Cell| Cell { values: cell.values.iter().skip(usize::from(pools)).cloned().collect() };
        let conditions: Vec<Cell> = sample.cells.iter().map(condition).collect();
        let mut order: Vec<&Cell> = Vec::new();
        for cell in &conditions {
            if !order.contains(&cell) {
                order.push(cell);
            }
        }
        let place = |cell: &Cell| order.iter().position(|other| *other == cell).unwrap_or_default();
        let chosen = if by.is_empty() { Vec::new() } else { observe(sample) };
        let last = last_choices(&chosen, by);
        let mut keys: Vec<GroupKey> = Vec::new();
        let mut of_run: Vec<((usize, u64), GroupKey)> = Vec::new();
        for run in sample.ordered() {
            let Some(cell) = conditions.get(run.cell) else { continue };
            let value = |name: &String| {
                let chosen = || last.get(&(run.cell, run.seed, name.as_str())).copied();
                variable(&run.scenario, name).or_else(chosen).cloned().unwrap_or(Value::Null)
            };
            let key = (place(cell), by.iter().map(value).collect::<Vec<_>>());
            if !keys.contains(&key) {
                keys.push(key.clone());
            }
            of_run.push(((run.cell, run.seed), key));
        }
        if by.is_empty() {
            // A condition without runs has its place, too.
            keys = (0..order.len()).map(|at| (at, Vec::new())).collect();
        }
        keys.sort_by(|(at, one), (other_at, other)| in_order(one, other).then(at.cmp(other_at)));
        let values = keys.iter().map(|(at, values)| {
            let by = by.iter().cloned().zip(values.iter().cloned());
            Cell { values: order[*at].values.iter().cloned().chain(by).collect() }
        });
        let is_swept = order.len() > 1;
        let reference = |(_, values): &GroupKey| {
            let first = keys.iter().position(|(_, other)| other == values);
            first.filter(|_| is_swept).unwrap_or_default()
        };
        let at = |key: &GroupKey| keys.iter().position(|other| other == key).unwrap_or_default();
        Some(Self {
            values: values.collect(),
            references: keys.iter().map(reference).collect(),
            by_run: Some(of_run.iter().map(|(run, key)| (*run, at(key))).collect()),
            cases: pools.then(|| sample.cells.iter().map(|cell| case_of(cell).unwrap_or_default()).collect()),
        })
    }

    /// The conditions if the sample has cases or is grouped by something, else the cells.
    pub(super) fn shown_groups(sample: &Sample, by: &[String]) -> Self {
        Self::of_conditions(sample, by).unwrap_or_else(|| Self::of_cells(sample))
    }

    /// True if cells of several cases are one group.
    pub(super) fn pool_cases(&self) -> bool {
        self.cases.is_some()
    }

    /// The group that a group is compared with; `None`: others are compared with it.
    pub(super) fn reference(&self, group: usize) -> Option<usize> {
        self.references.get(group).copied().filter(|reference| *reference != group)
    }

    /// A run's group and cluster; `None`: its cell is not one of the sample's.
    pub(super) fn of(&self, run: &Run) -> Option<(usize, Cluster)> {
        let group = match &self.by_run {
            None => run.cell,
            Some(by_run) => *by_run.get(&(run.cell, run.seed))?,
        };
        let case = self.cases.as_ref().and_then(|cases| cases.get(run.cell));
        Some((group, case.map_or(Cluster::Seed(run.seed), |case| Cluster::Case(case.clone()))))
    }
}

/// The last choice of each run that runs are grouped by, by cell, seed and name.
fn last_choices<'a>(
    observed: &[Observed<'a>],
    by: &'a [String],
) -> HashMap<(usize, u64, &'a str), &'a Value> {
    let mut last = HashMap::new();
    for turn in observed {
        let (Some(phase), Some(made)) = (turn.phase(), turn.choice()) else { continue };
        let is_floor = turn.place.as_ref().is_some_and(|place| place.word() == "floor");
        let name = format!("{phase}/{}", turn.record.agent);
        if let Some(name) = by.iter().find(|other| **other == name && !is_floor) {
            last.insert((turn.run.cell, turn.run.seed, name.as_str()), &made.chosen);
        }
    }
    last
}

/// The order of groups: numbers ascending, texts by letters, those without a value last.
fn in_order(one: &[Value], other: &[Value]) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Bool(_) => 0,
        Value::Number(_) => 1,
        Value::Null => 3,
        _ => 2,
    };
    let compare = |(one, other): (&Value, &Value)| {
        let numbers = one.as_f64().zip(other.as_f64()).map(|(one, other)| one.total_cmp(&other));
        let texts = || text_of(one).cmp(&text_of(other));
        rank(one).cmp(&rank(other)).then_with(|| numbers.unwrap_or_else(texts))
    };
    one.iter().zip(other).map(compare).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// The case of a cell; `None`: it is played without one.
pub(super) fn case_of(cell: &Cell) -> Option<String> {
    cell.values.first().filter(|(name, _)| name == CASE).map(|(_, value)| text_of(value))
}
