//! How a scenario of the papers' format ends: choices read by a pattern from what was said in its last phase,
//! votes counted, or the last word; and how that is shown. A function of what was said alone, so a replay
//! gives the same.

use super::pattern::compile;
use crate::results::{History, results};
use crate::{AgentId, PhaseId, Purpose, Scenario};
use fancy_regex::Regex;
use greenroom_yaml::diagnostic::{Diagnostic, suggest};
use greenroom_yaml::{Path, Tree};
use serde_json::{Map, Value};

/// Kinds of outcomes, as they are written.
pub(super) const TYPES: [&str; 3] = ["parse_choice", "vote_tally", "summary"];
const DISPLAYS: [&str; 3] = ["table", "matrix", "text"];

/// The end of a scenario of the papers' format.
#[derive(Clone, Debug, Default)]
pub struct Ending {
    kind: Option<EndingKind>,
    /// Applied to each message of the last phase; its first group, else all that it matches, is the choice.
    pattern: Option<Regex>,
    /// What can be chosen; empty: anything.
    pub(super) choices: Vec<String>,
    display: Option<Display>,
    payoff: Option<Cells>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndingKind {
    ParseChoice,
    VoteTally,
    Summary,
}

/// How an outcome is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Display {
    /// A line each.
    Table,
    /// The matrix of payoffs, what it came to in brackets.
    Matrix,
    /// One line.
    Text,
}

/// Payoffs as texts: row the first chooser's choice, column the second's.
#[derive(Clone, Debug, Default)]
struct Cells {
    labels: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// Reads `outcome` and `payoff`.
pub(super) fn read(tree: &Tree, found: &mut Vec<Diagnostic>) -> Ending {
    let mut ending = Ending::default();
    let mut wrong = |path: &Path, code, message: String, help: String| {
        found.push(Diagnostic::error(code, path.to_string(), tree.value(path), message).help(help));
    };
    let at = Path::default().key("outcome");
    let outcome = tree.json_at(&at);
    let word = |value: &Value, known: &[&str]| {
        value.as_str().and_then(|word| known.iter().position(|one| *one == word))
    };
    if !outcome.is_null() {
        match word(&outcome["type"], &TYPES) {
            Some(0) => ending.kind = Some(EndingKind::ParseChoice),
            Some(1) => ending.kind = Some(EndingKind::VoteTally),
            Some(_) => ending.kind = Some(EndingKind::Summary),
            None => {
                let given = outcome["type"].as_str().unwrap_or_default();
                let help = suggest(given, TYPES).unwrap_or_default();
                wrong(
                    &at.key("type"),
                    "unknown-value",
                    format!("`{given}` is not a valid outcome type"),
                    help,
                );
            }
        }
        match (&outcome["display"], word(&outcome["display"], &DISPLAYS)) {
            (Value::Null, _) => {}
            (_, Some(at)) => ending.display = Some([Display::Table, Display::Matrix, Display::Text][at]),
            (given, None) => {
                let given = given.as_str().map_or_else(|| given.to_string(), str::to_string);
                let help = suggest(&given, DISPLAYS).unwrap_or_default();
                wrong(
                    &at.key("display"),
                    "unknown-value",
                    format!("`{given}` is not a valid outcome display"),
                    help,
                );
            }
        }
        match &outcome["pattern"] {
            Value::Null => {}
            Value::String(pattern) => match compile(pattern) {
                Ok(pattern) => ending.pattern = Some(pattern),
                Err(why) => {
                    let help =
                        "write a regular expression in Python syntax, e.g. `'(?i)i (confess|stay silent)'`";
                    wrong(
                        &at.key("pattern"),
                        "pattern",
                        format!("this pattern can't be used: {why}"),
                        help.into(),
                    );
                }
            },
            _ => wrong(
                &at.key("pattern"),
                "type",
                "expected a string: a regular expression".into(),
                "put it in quotes".into(),
            ),
        }
        match texts(&outcome["choices"]) {
            Some(choices) => ending.choices = choices,
            None => wrong(
                &at.key("choices"),
                "type",
                "expected a list of strings".into(),
                "e.g. `[confess, silent]`".into(),
            ),
        }
        let is_blind = ending.pattern.is_none() && ending.choices.is_empty() && outcome["pattern"].is_null();
        if ending.kind == Some(EndingKind::ParseChoice) && is_blind {
            let message =
                "`parse_choice` needs a `pattern` or `choices`: what to search for in the last phase";
            wrong(&at, "missing", message.into(), "e.g. `choices: [confess, silent]`".into());
        }
        let fields = ["type", "pattern", "choices", "display"];
        for key in tree.keys_at(&at).into_iter().filter(|key| !fields.contains(&key.as_str())) {
            let path = at.key(key.clone());
            let error = Diagnostic::error(
                "unknown-key",
                path.to_string(),
                tree.key(&path),
                format!("an outcome has no field `{key}`"),
            );
            found.push(error.help(suggest(&key, fields).unwrap_or_default()));
        }
    }
    ending.payoff = cells(tree, found);
    ending
}

/// A list of texts, numbers as they are printed; null is an empty one.
fn texts(value: &Value) -> Option<Vec<String>> {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    };
    match value {
        Value::Null => Some(Vec::new()),
        Value::Array(items) => items.iter().map(text).collect(),
        _ => None,
    }
}

fn cells(tree: &Tree, found: &mut Vec<Diagnostic>) -> Option<Cells> {
    let at = Path::default().key("payoff");
    let payoff = tree.json_at(&at);
    if payoff.is_null() {
        return None;
    }
    let labels = texts(&payoff["labels"]).filter(|labels| !labels.is_empty());
    let rows =
        payoff["matrix"].as_array().and_then(|rows| rows.iter().map(texts).collect::<Option<Vec<_>>>());
    let (path, message) = match (labels, rows) {
        (None, _) => (
            at.key("labels"),
            "a payoff needs `labels`: the choices, in the order of rows and columns".to_string(),
        ),
        (_, None) => (
            at.key("matrix"),
            "a payoff needs a `matrix`: a list of rows, each a list of strings".to_string(),
        ),
        (Some(labels), Some(rows)) => {
            let n = labels.len();
            match rows.iter().position(|row| row.len() != n) {
                None if rows.len() == n => return Some(Cells { labels, rows }),
                None => {
                    (at.key("matrix"), format!("expected {n} rows, one for each label; found {}", rows.len()))
                }
                Some(row) => (
                    at.key("matrix").index(row),
                    format!("expected {n} cells, one for each label; found {}", rows[row].len()),
                ),
            }
        }
    };
    let error = Diagnostic::error("bad-value", path.to_string(), tree.value(&path), message);
    found.push(
        error.help(
            "e.g. `labels: [silent, talk]`, `matrix: [[\"1 / 1\", \"3 / 0\"], [\"0 / 3\", \"2 / 2\"]]`",
        ),
    );
    None
}

impl Ending {
    /// Results by name, or why there is none.
    pub fn outcomes(
        &self,
        scenario: &Scenario,
        said: &History,
    ) -> Vec<(&'static str, Result<Value, String>)> {
        let Some(last) = scenario.phases.len().checked_sub(1).map(PhaseId) else { return Vec::new() };
        let (phase, tally) = (scenario.phase(last), results(scenario, last, said));
        let is_talk = |purpose| matches!(purpose, Purpose::Speech | Purpose::Choice);
        let spoken = || said.lines(last).iter().filter(|line| is_talk(line.purpose) && !line.text.is_empty());
        if self.kind == Some(EndingKind::Summary) {
            let text = spoken().next_back().map_or(Value::Null, |line| line.text.to_string().into());
            return vec![("summary", Ok(text))];
        }
        let mut chosen: Vec<(AgentId, Value)> =
            phase.speakers().into_iter().map(|agent| (agent, Value::Null)).collect();
        for line in spoken() {
            match self.choice(&line.text) {
                Ok(None) => {}
                Ok(Some(choice)) => {
                    if let Some((_, last)) = chosen.iter_mut().find(|(agent, _)| *agent == line.speaker) {
                        *last = choice.into();
                    }
                }
                Err(why) => return vec![("choices", Err(why))],
            }
        }
        let key = |agent: AgentId| scenario.agent(agent).key.clone();
        let by_agent: Map<String, Value> =
            chosen.iter().map(|(agent, choice)| (key(*agent), choice.clone())).collect();
        let mut out = Vec::new();
        match self.kind {
            Some(EndingKind::ParseChoice) => out.push(("choices", Ok(Value::Object(by_agent)))),
            Some(EndingKind::VoteTally) => {
                let votes: Map<String, Value> = match phase.decision {
                    Some(_) => {
                        tally.votes.iter().map(|(option, n)| (option.clone(), Value::from(*n))).collect()
                    }
                    None => {
                        let mut votes: Map<String, Value> =
                            self.choices.iter().map(|choice| (choice.clone(), 0.into())).collect();
                        for choice in chosen.iter().filter_map(|(_, choice)| choice.as_str()) {
                            let n = votes.get(choice).and_then(Value::as_u64).unwrap_or(0);
                            votes.insert(choice.to_string(), (n + 1).into());
                        }
                        votes
                    }
                };
                let decided = if phase.decision.is_some() { tally.decision } else { most(&votes) };
                out.extend([("votes", Ok(Value::Object(votes))), ("decided", Ok(decided))]);
            }
            _ => {}
        }
        if let Some(cells) = &self.payoff {
            let worth = match chosen.as_slice() {
                [(one, row), (other, column), ..] => cells.at(row, column).map(|(row, column)| {
                    let cell = &cells.rows[row][column];
                    match cell.split_once('/') {
                        Some((left, right)) => Value::Object(
                            [(key(*one), number(left)), (key(*other), number(right))].into_iter().collect(),
                        ),
                        None => number(cell),
                    }
                }),
                _ => None,
            };
            out.push(("payoff", Ok(worth.unwrap_or_default())));
        }
        out
    }

    /// The choice that a message is, if it is one: the last that the pattern finds in it, else the only one
    /// that it names.
    fn choice(&self, text: &str) -> Result<Option<String>, String> {
        let known = |found: &str| {
            let found = found.trim();
            let same = |choice: &&String| choice.to_lowercase() == found.to_lowercase();
            match self.choices.iter().find(same) {
                Some(choice) => Some(choice.clone()),
                None => (self.choices.is_empty() && !found.is_empty()).then(|| found.to_string()),
            }
        };
        let Some(pattern) = &self.pattern else {
            let lower = text.to_lowercase();
            let mut named = self.choices.iter().filter(|choice| lower.contains(&choice.to_lowercase()));
            let first = named.next().cloned();
            return Ok(first.filter(|_| named.next().is_none()));
        };
        let mut last = None;
        for found in pattern.captures_iter(text) {
            let found = found.map_err(|error| format!("the pattern: {error}"))?;
            let group = found.iter().skip(1).flatten().next().or_else(|| found.get(0));
            last = group.and_then(|group| known(group.as_str())).or(last);
        }
        Ok(last)
    }

    /// The outcome in lines, as its `display` says; `None`: there is nothing to show.
    pub fn display_lines(&self, scenario: &Scenario, outcomes: &[(&str, &Value)]) -> Option<String> {
        let of = |name: &str| outcomes.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let plain = |value: &Value| match value {
            Value::String(text) => text.clone(),
            Value::Null => "-".to_string(),
            other => other.to_string(),
        };
        if let Some(summary) = of("summary") {
            return Some(plain(summary));
        }
        let rows = of("choices").or(of("votes"))?.as_object()?;
        let display =
            self.display.unwrap_or(if self.payoff.is_some() { Display::Matrix } else { Display::Table });
        let name = |key: &String| {
            scenario.agent_by_key(key).map_or(key.clone(), |agent| scenario.agent(agent).name.clone())
        };
        let rows: Vec<(String, String)> = match of("choices") {
            // In speaking order, whatever the order of a record's keys.
            Some(_) => scenario
                .agents
                .iter()
                .filter_map(|agent| Some((name(&agent.key), plain(rows.get(&agent.key)?))))
                .collect(),
            None => rows.iter().map(|(option, n)| (option.clone(), plain(n))).collect(),
        };
        let worth = |separator: &str| {
            of("payoff")
                .and_then(Value::as_object)
                .map(|worth| {
                    let each = scenario.agents.iter().filter_map(|agent| worth.get(&agent.key));
                    each.map(&plain).collect::<Vec<_>>().join(separator)
                })
                .or_else(|| of("payoff").map(&plain))
        };
        match (display, &self.payoff) {
            (Display::Text, _) => {
                let each: Vec<String> = rows.iter().map(|(name, value)| format!("{name}: {value}")).collect();
                let worth = worth(" / ").map_or(String::new(), |worth| format!(" ({worth})"));
                Some(format!("{}{worth}", each.join(", ")))
            }
            (Display::Matrix, Some(cells)) => Some(cells.grid(of("choices").and_then(|_| {
                let chosen = scenario.phases.last()?.speakers();
                let of = |at: usize| of("choices")?.get(&scenario.agent(*chosen.get(at)?).key);
                cells.at(of(0)?, of(1)?)
            }))),
            _ => {
                let extra = worth(" / ").map(|worth| ("payoff".to_string(), worth));
                let rows: Vec<(String, String)> = rows.into_iter().chain(extra).collect();
                let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
                let line = |(name, value): &(String, String)| format!("{name:<width$}  {value}");
                Some(rows.iter().map(line).collect::<Vec<_>>().join("\n"))
            }
        }
    }
}

impl Cells {
    /// Row and column of two choices, whose labels may be written in another case.
    fn at(&self, row: &Value, column: &Value) -> Option<(usize, usize)> {
        let of = |choice: &Value| {
            let choice = choice.as_str()?.to_lowercase();
            self.labels.iter().position(|label| label.to_lowercase() == choice)
        };
        Some((of(row)?, of(column)?))
    }

    fn grid(&self, hit: Option<(usize, usize)>) -> String {
        let head = std::iter::once(String::new()).chain(self.labels.iter().cloned()).collect();
        let row = |(at, row): (usize, &Vec<String>)| {
            let cell = |(column, cell): (usize, &String)| match hit {
                Some(hit) if hit == (at, column) => format!("[{cell}]"),
                _ => cell.clone(),
            };
            std::iter::once(self.labels[at].clone()).chain(row.iter().enumerate().map(cell)).collect()
        };
        let lines: Vec<Vec<String>> =
            std::iter::once(head).chain(self.rows.iter().enumerate().map(row)).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..=self.labels.len()).map(width).collect();
        let padded = |line: &Vec<String>| {
            let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
        };
        lines.iter().map(padded).collect::<Vec<_>>().join("\n")
    }
}

/// A part of a cell: a number where it is one, else its text.
fn number(part: &str) -> Value {
    let part = part.trim();
    let whole = part.parse::<i64>().ok().map(Value::from);
    let broken = || part.parse::<f64>().ok().filter(|n| n.is_finite()).map(Value::from);
    whole.or_else(broken).unwrap_or_else(|| part.into())
}

/// The option with most votes; null where several have.
fn most(votes: &Map<String, Value>) -> Value {
    let best = votes.values().filter_map(Value::as_u64).max().filter(|n| *n > 0);
    let mut leaders = votes.iter().filter(|(_, n)| n.as_u64() == best);
    match (leaders.next(), leaders.next()) {
        (Some((option, _)), None) => option.clone().into(),
        _ => Value::Null,
    }
}
