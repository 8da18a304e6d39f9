//! Differences between two recordings: settings, what was read and said, and the results.

use crate::scenario::text_of;
use crate::transcript::{ChoiceRecord, Footer, Header, Transcript, TurnRecord};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// One thing that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Kind of difference.
    pub what: What,
    /// The turn's path, or the name of the setting or result.
    pub at: String,
    /// Line in the first recording.
    pub line: Option<usize>,
    /// As the first one has it.
    pub was: String,
    /// As the second one has it.
    pub now: String,
}

/// Kinds of difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// A field of the header.
    Setting,
    /// A turn that only the first has.
    Gone,
    /// A turn that only the second has.
    New,
    /// The text that an agent reads.
    Prompt,
    /// The text that it says.
    Reply,
    /// Tokens, the options' values, log-probabilities, or the reason why a reply ended, where the same is
    /// said.
    Detail,
    /// The chosen option.
    Choice,
    /// The decision of a phase.
    Decision,
    /// The payoff of an agent.
    Payoff,
    /// A result.
    Outcome,
    /// The result of an assertion.
    Assertion,
}

impl What {
    /// As text.
    pub fn words(self) -> &'static str {
        match self {
            Self::Setting => "a setting differs",
            Self::Gone => "the turn is no longer played",
            Self::New => "the turn is new",
            Self::Prompt => "what the agent reads differs",
            Self::Reply => "what is said differs",
            Self::Detail => {
                "the same is said, but tokens, options, log-probabilities or the stop reason differ"
            }
            Self::Choice => "a different option is chosen",
            Self::Decision => "the decision differs",
            Self::Payoff => "the payoff differs",
            Self::Outcome => "the outcome differs",
            Self::Assertion => "the result of an assertion differs",
        }
    }

    /// Returns whether it is a difference in what was read, said, or concluded.
    pub fn is_said(self) -> bool {
        self != Self::Setting
    }

    /// Tells whether it is a difference in what a run came to.
    pub fn is_result(self) -> bool {
        matches!(self, Self::Choice | Self::Decision | Self::Payoff | Self::Outcome | Self::Assertion)
    }
}

/// All that differs: settings first, then turns in the order of the first recording, results last.
pub fn differences(was: &Transcript, now: &Transcript) -> Vec<Difference> {
    let mut found = settings(&was.header.record, &now.header.record);
    let later: HashMap<&str, &TurnRecord> =
        now.turns.iter().map(|turn| (turn.record.path.as_str(), &turn.record)).collect();
    let mut known = HashSet::new();
    for turn in &was.turns {
        let path = turn.record.path.as_str();
        known.insert(path);
        match later.get(path) {
            Some(now) => turns(&turn.record, now, turn.line, &mut found),
            None => found.push(difference(What::Gone, path, Some(turn.line), &turn.record.spoken, "")),
        }
    }
    for turn in now.turns.iter().filter(|turn| !known.contains(turn.record.path.as_str())) {
        found.push(difference(What::New, &turn.record.path, None, "", &turn.record.spoken));
    }
    if let (Some(was), Some(now)) = (&was.footer, &now.footer) {
        results(&was.record, &now.record, was.line, &mut found);
    }
    found
}

fn difference(what: What, at: &str, line: Option<usize>, was: &str, now: &str) -> Difference {
    Difference { what, at: at.to_string(), line, was: was.to_string(), now: now.to_string() }
}

fn settings(was: &Header, now: &Header) -> Vec<Difference> {
    let (was, now) = (fields(was), fields(now));
    let names: BTreeSet<&String> = was.keys().chain(now.keys()).collect();
    let differs = names.into_iter().filter(|name| was.get(*name) != now.get(*name));
    let of = |all: &BTreeMap<String, String>, name| all.get(name).cloned().unwrap_or_default();
    differs.map(|name| difference(What::Setting, name, Some(1), &of(&was, name), &of(&now, name))).collect()
}

/// The fields of a header and those of what is in them, as text.
fn fields(header: &Header) -> BTreeMap<String, String> {
    let Ok(Value::Object(fields)) = serde_json::to_value(header) else { return BTreeMap::new() };
    let mut all = BTreeMap::new();
    fields.iter().for_each(|(name, value)| add(name.clone(), value, &mut all));
    all
}

/// Adds a value, or the fields in it, by their paths.
fn add(path: String, value: &Value, all: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(inner) => {
            inner.iter().for_each(|(key, value)| add(format!("{path}.{key}"), value, all));
        }
        Value::Null => {}
        value => drop(all.insert(path, text_of(value))),
    }
}

fn turns(was: &TurnRecord, now: &TurnRecord, line: usize, found: &mut Vec<Difference>) {
    let mut differs =
        |what, was: &str, now: &str, path: &str| found.push(difference(what, path, Some(line), was, now));
    if was.delta != now.delta {
        differs(What::Prompt, &was.delta, &now.delta, &was.path);
    }
    if (&was.raw, &was.spoken) != (&now.raw, &now.spoken) {
        differs(What::Reply, &was.spoken, &now.spoken, &was.path);
    }
    let chosen =
        |turn: &TurnRecord| turn.constraint.as_ref().map(|choice: &ChoiceRecord| choice.chosen.clone());
    let of = |value: Option<Value>| value.map_or(String::new(), |value| text_of(&value));
    if chosen(was) != chosen(now) {
        differs(What::Choice, &of(chosen(was)), &of(chosen(now)), &was.path);
    }
    let same = was.raw == now.raw && was.delta == now.delta && chosen(was) == chosen(now);
    // Another seed is a setting, and reported as such.
    if same && (TurnRecord { seed: now.seed, ..was.clone() }) != *now {
        let short = |turn: &TurnRecord| {
            let options = turn.constraint.iter().flat_map(|choice| &choice.options);
            let (names, logprobs): (Vec<_>, Vec<_>) =
                options.map(|option| (text_of(&option.value), option.logprob)).unzip();
            let logprobs: Vec<_> = logprobs.into_iter().flatten().collect();
            let n = turn.tokens.len();
            format!("{n} tokens, {}, options {names:?}, log-probabilities {logprobs:?}", turn.stop.word())
        };
        differs(What::Detail, &short(was), &short(now), &was.path);
    }
}

fn results(was: &Footer, now: &Footer, line: usize, found: &mut Vec<Difference>) {
    let mut compare = |what, was: BTreeMap<String, String>, now: BTreeMap<String, String>| {
        let names: BTreeSet<&String> = was.keys().chain(now.keys()).collect();
        for name in names.into_iter().filter(|name| was.get(*name) != now.get(*name)) {
            let of = |all: &BTreeMap<String, String>| all.get(name).cloned().unwrap_or_default();
            found.push(difference(what, name, Some(line), &of(&was), &of(&now)));
        }
    };
    let decisions = |footer: &Footer| {
        footer.decisions.iter().map(|(name, value)| (name.clone(), text_of(value))).collect()
    };
    compare(What::Decision, decisions(was), decisions(now));
    let payoffs = |footer: &Footer| {
        let totals = footer.payoffs.iter().flat_map(|payoffs| &payoffs.totals);
        totals.map(|(agent, total)| (agent.clone(), total.map_or("null".into(), |x| x.to_string()))).collect()
    };
    compare(What::Payoff, payoffs(was), payoffs(now));
    let outcomes = |footer: &Footer| {
        footer.outcomes.iter().map(|outcome| (outcome.name.clone(), text_of(&outcome.value))).collect()
    };
    compare(What::Outcome, outcomes(was), outcomes(now));
    let assertions = |footer: &Footer| {
        let word = |holds| if holds { "holds" } else { "fails" };
        footer.assertions.iter().map(|that| (that.name(), word(that.holds).to_string())).collect()
    };
    compare(What::Assertion, assertions(was), assertions(now));
}
