//! Tidy tables: one observation a row, the same key columns first. One definition serves every file format.
//!
//! | table | a row is | columns after the key |
//! |---|---|---|
//! | `runs` | a run | `complete`, `turns`, `skipped`, `choices`, `invalid`, `failed_assertions`, `decision.PHASE`, `payoff.AGENT` (sum over the rounds), `outcome.NAME`, `hash` (of the transcript) |
//! | `turns` | a turn that was played | `path`, `phase`, `pass`, `round`, `agent`, `purpose`, `spoken`, `n_tokens`, `stop` |
//! | `choices` | a choice that was made | `path`, `phase`, `pass`, `round`, `agent`, `purpose`, `attempt`, `rank`, `option`, `invalid`, `logprob`, `share`, `mass` |
//! | `options` | an option of such a choice | `path`, `phase`, `pass`, `round`, `agent`, `purpose`, `attempt`, `rank`, `position` (as listed), `option`, `text`, `logprob`, `share`, `chosen` |
//! | `payoffs` | what a round was worth to an agent | `phase`, `round`, `agent`, `choice`, `payoff`, `unit` |
//! | `state` | a value of the state, or an agent's entry of a mapping by agent: those before the first turn, and each that was set; there is none without a state | `path`, `phase`, `pass`, `round`, `variable`, `agent`, `value`, `number` (if it is one) |
//!
//! `pass` is the number of the pass of the innermost block. The key is `condition` (the name of its values, `price=3`; the case is not part of it), one
//! column for each swept variable, `seed` and `run` (its folder). Options have a table
//! of their own, since a list within a cell would have to be parsed before it could be used. `logprob` is the
//! model's own, at temperature 1. `share` is the probability with which the option was drawn, at the
//! temperature of its turn; `mass` that of any of the options, at temperature 1, among all that the model
//! might have said. Both are null where a strategy or a human chose.

use super::groups::{Grouping, Groups};
use super::observations::{Observed, observe};
use super::states::{StateValue, state_values};
use super::table::{ColumnKind, Table, Values};
use super::{Cell, Run, Sample};
use crate::scenario::PhaseId;
use crate::scenario::results::PayoffRound;
use crate::scenario::text_of;
use crate::transcript::{Footer, Odds, OptionRecord};
use serde_json::Value;

/// All tables of a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Tables(pub Vec<Table>);

/// Columns that swept variables could be taken for; a variable of such a name is `variable.NAME` in every
/// table.
const COLUMNS: [&str; 34] = [
    "condition",
    "seed",
    "run",
    "complete",
    "turns",
    "skipped",
    "choices",
    "invalid",
    "failed_assertions",
    "hash",
    "path",
    "phase",
    "pass",
    "round",
    "agent",
    "purpose",
    "spoken",
    "n_tokens",
    "stop",
    "attempt",
    "rank",
    "option",
    "logprob",
    "share",
    "mass",
    "position",
    "text",
    "chosen",
    "choice",
    "payoff",
    "unit",
    "variable",
    "value",
    "number",
];

/// Makes the tables of a sample.
pub fn tables(sample: &Sample) -> Tables {
    tables_by(sample, &Grouping::default())
}

/// The same, with the names of conditions as figures have them that are grouped by other values of the runs.
pub fn tables_by(sample: &Sample, grouping: &Grouping) -> Tables {
    let (observed, key) =
        (observe(sample), Key { sample, groups: Groups::shown_groups(sample, &grouping.by) });
    let mut tables = vec![
        runs(&key),
        turns(&key, &observed),
        choices(&key, &observed),
        options(&key, &observed),
        payoffs(&key),
    ];
    tables.extend(sample.runs.iter().any(|run| !run.scenario.state.is_empty()).then(|| states(&key)));
    Tables(tables)
}

impl Tables {
    /// The table with a name.
    pub fn get(&self, name: &str) -> Option<&Table> {
        self.0.iter().find(|table| table.name == name)
    }
}

/// The key of every table's rows.
struct Key<'a> {
    sample: &'a Sample,
    groups: Groups,
}

/// A table that has the key of each row's run.
fn keyed(name: &'static str, Key { sample, groups }: &Key<'_>, runs: &[&Run]) -> Table {
    let mut table = Table::new(name);
    let names: Vec<String> = groups.values.iter().map(Cell::name).collect();
    let condition = |run: &&Run| names.get(groups.of(run)?.0).map(String::as_str);
    table.add("condition", Values::texts(runs.iter().map(condition)));
    for swept in sample.swept() {
        // Typed over all cells, so that the column has one type in every table.
        let kind = ColumnKind::of(sample.cells.iter().filter_map(|cell| cell.value(swept)));
        let is_taken = COLUMNS.contains(&swept)
            || ["decision.", "payoff.", "outcome."].iter().any(|prefix| swept.starts_with(prefix));
        let name = if is_taken { format!("variable.{swept}") } else { swept.to_string() };
        let value = |run: &&'_ Run| sample.cells.get(run.cell).and_then(|cell| cell.value(swept));
        table.add(name, kind.column(runs.iter().map(value)));
    }
    table.add("seed", Values::Natural(runs.iter().map(|run| Some(run.seed)).collect()));
    table.add("run", Values::texts(runs.iter().map(|run| Some(run.folder.as_str()))));
    table
}

fn runs(key: &Key<'_>) -> Table {
    let sample = key.sample;
    let runs = sample.ordered();
    let mut table = keyed("runs", key, &runs);
    let footers: Vec<Option<&Footer>> =
        runs.iter().map(|run| run.transcript.footer.as_ref().map(|footer| &footer.record)).collect();
    let count = |get: fn(&Footer) -> usize| Values::counts(footers.iter().map(|footer| footer.map(get)));
    table.add("complete", Values::Bool(footers.iter().map(|footer| Some(footer.is_some())).collect()));
    table.add("turns", count(|footer| footer.turns));
    table.add("skipped", count(|footer| footer.skipped));
    table.add("choices", count(|footer| footer.choices));
    table.add("invalid", count(|footer| footer.invalid));
    let failed = |footer: &Footer| footer.assertions.iter().filter(|assertion| !assertion.holds).count();
    table.add("failed_assertions", count(failed));
    let known = || footers.iter().flatten();
    for phase in distinct(known().flat_map(|footer| footer.decisions.keys())) {
        let values = footers.iter().map(|footer| footer.and_then(|footer| footer.decisions.get(phase)));
        table.add(format!("decision.{phase}"), typed(values));
    }
    let totals = known().flat_map(|footer| &footer.payoffs).flat_map(|payoffs| payoffs.totals.keys());
    for agent in in_cast_order(&runs, totals) {
        let total = |footer: &Footer| footer.payoffs.as_ref()?.totals.get(agent).copied().flatten();
        let values = footers.iter().map(|footer| footer.and_then(total)).collect();
        table.add(format!("payoff.{agent}"), Values::Float(values));
    }
    for name in distinct(known().flat_map(|footer| footer.outcomes.iter().map(|outcome| &outcome.name))) {
        table.add(format!("outcome.{name}"), typed(footers.iter().map(|footer| outcome(*footer, name))));
    }
    let hash = |run: &&Run| run.transcript.footer.as_ref().map(|footer| footer.hash.clone());
    table.add("hash", Values::texts(runs.iter().map(hash)));
    table
}

/// A result of a run; `None` where the run has none.
fn outcome<'a>(footer: Option<&'a Footer>, name: &str) -> Option<&'a Value> {
    let outcome = footer?.outcomes.iter().find(|outcome| outcome.name == name)?;
    Some(&outcome.value)
}

/// A table of turns, or of parts of them: the key, and their place in the plan.
fn placed(name: &'static str, key: &Key<'_>, rows: &[&Observed<'_>]) -> Table {
    let runs: Vec<&Run> = rows.iter().map(|row| row.run).collect();
    let mut table = keyed(name, key, &runs);
    let round = |row: &&Observed<'_>| row.place.as_ref().map(|place| place.round);
    let purpose = |row: &&Observed<'_>| row.place.as_ref().map(|place| place.word());
    table.add("path", Values::texts(rows.iter().map(|row| Some(row.record.path.as_str()))));
    table.add("phase", Values::texts(rows.iter().map(|row| row.phase())));
    let pass = |row: &&Observed<'_>| pass(row.run, row.place.as_ref()?.phase);
    table.add("pass", Values::counts(rows.iter().map(pass)));
    table.add("round", Values::counts(rows.iter().map(round)));
    table.add("agent", Values::texts(rows.iter().map(|row| Some(row.record.agent.as_str()))));
    table.add("purpose", Values::texts(rows.iter().map(purpose)));
    table
}

fn turns(key: &Key<'_>, observed: &[Observed<'_>]) -> Table {
    let rows: Vec<&Observed<'_>> = observed.iter().collect();
    let mut table = placed("turns", key, &rows);
    table.add("spoken", Values::texts(rows.iter().map(|row| Some(row.record.spoken.as_str()))));
    table.add("n_tokens", Values::counts(rows.iter().map(|row| Some(row.record.tokens.len()))));
    table.add("stop", Values::texts(rows.iter().map(|row| Some(row.record.stop.word()))));
    if rows.iter().any(|row| !row.run.transcript.header.record.models.is_empty()) {
        let model = |row: &Observed<'_>| {
            let header = &row.run.transcript.header.record;
            let agent = header.agents.get(&row.record.agent);
            let is_model = agent.is_none_or(|agent| agent.strategy.is_none());
            is_model.then(|| header.model_of(row.record).name.clone())
        };
        table.add("played_by", Values::texts(rows.iter().map(|row| model(row))));
    }
    table
}

/// Adds which vote a ballot belongs to, and for which place of a ranking it is.
fn add_ballots(table: &mut Table, rows: &[&Observed<'_>]) {
    let ballot = |row: &&Observed<'_>| row.place.as_ref().and_then(|place| place.ballot());
    table.add("attempt", Values::counts(rows.iter().map(|row| ballot(row).map(|(attempt, _)| attempt))));
    table.add("rank", Values::counts(rows.iter().map(|row| ballot(row).map(|(_, rank)| rank))));
}

fn choices(key: &Key<'_>, observed: &[Observed<'_>]) -> Table {
    let made = observed.iter().filter_map(|row| Some((row, row.choice()?)));
    let (rows, made): (Vec<&Observed<'_>>, Vec<_>) = made.unzip();
    let mut table = placed("choices", key, &rows);
    add_ballots(&mut table, &rows);
    let chosen =
        made.iter().map(|choice| choice.options.iter().position(|option| option.value == choice.chosen));
    let chosen: Vec<Option<usize>> = chosen.collect();
    let odds: Vec<Option<Odds>> = rows.iter().map(|row| row.odds()).collect();
    let shares = odds.iter().zip(&chosen).map(|(odds, at)| odds.as_ref()?.shares.get((*at)?).copied());
    let masses = odds.iter().map(|odds| odds.as_ref().map(|odds| odds.mass));
    let logprobs = made.iter().zip(&chosen).map(|(choice, at)| choice.options[(*at)?].logprob.map(f64::from));
    let option = |value: &Value| (!value.is_null()).then(|| text_of(value));
    table.add("option", Values::texts(made.iter().map(|choice| option(&choice.chosen))));
    table.add("invalid", Values::Bool(made.iter().map(|choice| Some(choice.chosen.is_null())).collect()));
    table.add("logprob", Values::Float(logprobs.collect()));
    table.add("share", Values::Float(shares.collect()));
    table.add("mass", Values::Float(masses.collect()));
    table
}

fn options(key: &Key<'_>, observed: &[Observed<'_>]) -> Table {
    let (mut rows, mut options, mut shares, mut chosen) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for row in observed {
        let Some(choice) = row.choice() else { continue };
        let odds = row.odds();
        for (at, option) in choice.options.iter().enumerate() {
            rows.push(row);
            options.push((at + 1, option));
            shares.push(odds.as_ref().and_then(|odds| odds.shares.get(at).copied()));
            chosen.push(Some(option.value == choice.chosen));
        }
    }
    let mut table = placed("options", key, &rows);
    add_ballots(&mut table, &rows);
    let logprob = |(_, option): &(usize, &OptionRecord)| option.logprob.map(f64::from);
    table.add("position", Values::counts(options.iter().map(|(position, _)| Some(*position))));
    table.add("option", Values::texts(options.iter().map(|(_, option)| Some(text_of(&option.value)))));
    table.add("text", Values::texts(options.iter().map(|(_, option)| Some(option.text.as_str()))));
    table.add("logprob", Values::Float(options.iter().map(logprob).collect()));
    table.add("share", Values::Float(shares));
    table.add("chosen", Values::Bool(chosen));
    table
}

/// The number of the innermost pass in which a phase is played.
fn pass(run: &Run, phase: PhaseId) -> Option<usize> {
    let pass = run.scenario.phase(phase).pass?;
    Some(run.scenario.pass(pass).number)
}

fn states(key: &Key<'_>) -> Table {
    let rows = state_values(key.sample);
    let runs: Vec<&Run> = rows.iter().map(|row| row.run).collect();
    let mut table = keyed("state", key, &runs);
    let phase = |row: &StateValue<'_>| Some(row.run.scenario.phase(row.phase?).name.clone());
    table.add("path", Values::texts(rows.iter().map(|row| row.path)));
    table.add("phase", Values::texts(rows.iter().map(phase)));
    table.add("pass", Values::counts(rows.iter().map(|row| pass(row.run, row.phase?))));
    table.add("round", Values::counts(rows.iter().map(|row| row.round)));
    table.add("variable", Values::texts(rows.iter().map(|row| Some(row.variable))));
    table.add("agent", Values::texts(rows.iter().map(|row| row.agent)));
    let text = |row: &StateValue<'_>| (!row.value.is_null()).then(|| text_of(&row.value));
    table.add("value", Values::texts(rows.iter().map(text)));
    table.add("number", Values::Float(rows.iter().map(|row| row.value.as_f64()).collect()));
    table
}

fn payoffs(key: &Key<'_>) -> Table {
    let mut rows: Vec<(&Run, &PayoffRound, &String, &str)> = Vec::new();
    for run in key.sample.ordered() {
        let footer = run.transcript.footer.as_ref().map(|footer| &footer.record);
        let Some(payoffs) = footer.and_then(|footer| footer.payoffs.as_ref()) else { continue };
        for round in &payoffs.rounds {
            let players = in_cast_order(&[run], round.choices.keys());
            rows.extend(players.into_iter().map(|agent| (run, round, agent, payoffs.unit.as_str())));
        }
    }
    let runs: Vec<&Run> = rows.iter().map(|(run, ..)| *run).collect();
    let mut table = keyed("payoffs", key, &runs);
    let phase = |run: &Run, round: &PayoffRound| {
        let only =
            || run.scenario.payoff.as_ref().map(|payoff| run.scenario.phase(payoff.phases[0]).name.clone());
        round.phase.clone().or_else(only)
    };
    let choice =
        |round: &PayoffRound, agent: &str| round.choices.get(agent).filter(|v| !v.is_null()).map(text_of);
    let worth = |round: &PayoffRound, agent: &str| round.values.as_ref()?.get(agent).copied();
    table.add("phase", Values::texts(rows.iter().map(|(run, round, ..)| phase(run, round))));
    table.add("round", Values::counts(rows.iter().map(|(_, round, ..)| Some(round.round))));
    table.add("agent", Values::texts(rows.iter().map(|(_, _, agent, _)| Some(agent.as_str()))));
    table.add("choice", Values::texts(rows.iter().map(|(_, round, agent, _)| choice(round, agent))));
    table.add("payoff", Values::Float(rows.iter().map(|(_, round, agent, _)| worth(round, agent)).collect()));
    table.add("unit", Values::texts(rows.iter().map(|(.., unit)| Some(*unit))));
    table
}

/// A column of the narrowest type that holds these values.
fn typed<'a>(values: impl Iterator<Item = Option<&'a Value>> + Clone) -> Values {
    ColumnKind::of(values.clone().flatten()).column(values)
}

/// Each name once, in the order of first appearance.
pub(super) fn distinct<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

/// Agents' keys, each once, as the scenario lists the agents.
pub(super) fn in_cast_order<'a>(runs: &[&Run], keys: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut keys = distinct(keys);
    let place = |key: &&String| runs.first().and_then(|run| run.scenario.agent_by_key(key));
    keys.sort_by_key(|key| (place(key).is_none(), place(key)));
    keys
}
