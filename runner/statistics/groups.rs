//! Runs in groups: by cell, or by condition, where the cells of all cases are pooled. Runs of one cluster are
//! not independent.

use super::{Cell, Run, Sample};
use crate::scenario::text_of;
use std::collections::HashMap;

/// Name of a cell's case among its values.
pub const CASE: &str = "case";

/// What varies independently of the rest of its group: a run, or all runs of a case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cluster {
    /// A run, by its seed. Equal seeds of two groups are paired.
    Seed(u64),
    /// All runs of a case, by its name. Equal cases of two groups are paired.
    Case(String),
}

/// The groups of a sample.
pub(super) struct Groups {
    /// The values that a group's runs have in common.
    pub(super) values: Vec<Cell>,
    /// By cell, its group and its case. `None`: each cell is its own group.
    by_cell: Option<Vec<(usize, String)>>,
}

impl Groups {
    /// A group for each cell.
    pub(super) fn of_cells(sample: &Sample) -> Self {
        Self { values: sample.cells.clone(), by_cell: None }
    }

    /// A group for each combination of the values that are not given by cases; `None`: the sample has no
    /// cases.
    pub(super) fn of_conditions(sample: &Sample) -> Option<Self> {
        let has_cases = |run: &Run| {
            let cell = sample.cells.get(run.cell).and_then(case_of);
            cell.is_some() && run.scenario.case().is_some()
        };
        if !sample.runs.iter().any(has_cases) {
            return None;
        }
        let mut values: Vec<Cell> = Vec::new();
        let mut known: HashMap<String, usize> = HashMap::new();
        let group = |cell: &Cell| {
            let case = case_of(cell).unwrap_or_default();
            let rest = cell.values.iter().skip(1).cloned().collect::<Vec<_>>();
            let key = rest.iter().map(|(name, value)| format!("{name}={value}\n")).collect::<String>();
            let at = *known.entry(key).or_insert_with(|| {
                values.push(Cell { values: rest });
                values.len() - 1
            });
            (at, case)
        };
        let by_cell = sample.cells.iter().map(group).collect();
        Some(Self { values, by_cell: Some(by_cell) })
    }

    /// The conditions if the sample has cases, else the cells.
    pub(super) fn shown_groups(sample: &Sample) -> Self {
        Self::of_conditions(sample).unwrap_or_else(|| Self::of_cells(sample))
    }

    /// True if cells of several cases are one group.
    pub(super) fn pool_cases(&self) -> bool {
        self.by_cell.is_some()
    }

    /// A cell's group.
    pub(super) fn of_cell(&self, cell: usize) -> Option<usize> {
        self.by_cell.as_ref().map_or(Some(cell), |by_cell| by_cell.get(cell).map(|(group, _)| *group))
    }

    /// A run's group and cluster; `None`: its cell is not one of the sample's.
    pub(super) fn of(&self, run: &Run) -> Option<(usize, Cluster)> {
        match &self.by_cell {
            None => Some((run.cell, Cluster::Seed(run.seed))),
            Some(by_cell) => by_cell.get(run.cell).map(|(group, case)| (*group, Cluster::Case(case.clone()))),
        }
    }
}

/// The case of a cell; `None`: it is played without one.
pub(super) fn case_of(cell: &Cell) -> Option<String> {
    cell.values.first().filter(|(name, _)| name == CASE).map(|(_, value)| text_of(value))
}
