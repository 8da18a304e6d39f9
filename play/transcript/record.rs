//! The lines of a transcript as types, and their canonical text and hash.

use super::is_summary;
use crate::sampling::resolved;
use crate::thoughts::speech_of;
use greenroom_engine::{Call, Sampling, StopReason};
use greenroom_scenario::results::Payoffs;
use greenroom_scenario::{
    CaseId, Choice, ChoiceMethod, ChoiceOption, Chosen, FIRST_RULES, Form, Given, Hints, Scenario, Share,
    ToolSpec,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// One line, without its hash.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Line {
    /// The first line.
    Header(Box<Header>),
    /// A turn.
    Turn(Box<TurnRecord>),
    /// A change of the state.
    State(StateRecord),
    /// Who was picked to speak in a phase.
    Route(RouteRecord),
    /// The last line.
    Footer(Footer),
}

/// Everything that a run's text depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// Version of the format.
    pub format: u32,
    /// Version of the program.
    pub engine: String,
    /// The scenario file.
    pub scenario: ScenarioRecord,
    /// Hash of the plan.
    pub plan: String,
    /// Hashes of all templates, by field.
    pub templates: BTreeMap<String, String>,
    /// Values of the variables, overrides applied.
    pub variables: BTreeMap<String, serde_json::Value>,
    /// The overrides (`--set`): a replay takes these from here, and all other values from the scenario.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<(String, serde_json::Value)>,
    /// Version of the rules by which texts keep their line breaks, strategies remember and replies are read.
    /// Absent (1): each line break after a tag was removed, and strategies began again at each phase; such
    /// recordings are replayed by these rules. Replies are read by the present ones, and a difference is
    /// reported.
    #[serde(default, alias = "lines", skip_serializing_if = "Option::is_none")]
    pub rules: Option<u32>,
    /// The cast, by key.
    pub agents: BTreeMap<String, AgentRecord>,
    /// The model.
    pub model: ModelRecord,
    /// Format of cached keys and values.
    pub kv: String,
    /// Kernel contract and version.
    pub numerics: String,
    /// Sampling settings.
    pub sampling: Sampling,
    /// Maximum number of tokens in a reply.
    pub max_tokens: usize,
    /// Settings that the scenario gives for all replies.
    #[serde(default, skip_serializing_if = "Hints::is_empty")]
    pub hints: Hints,
    /// Settings that the command line gave, so that the scenario's had no effect; absent where the scenario
    /// gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<Given>,
    /// The models that the scenario names, as far as they were to answer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, NamedRecord>,
    /// The tools that agents could call, by their names in the scenario; of a server those that it had.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tools: BTreeMap<String, Vec<ToolSpec>>,
    /// The run's seed: the root of all turns' seeds or, with `case`, what their root is derived from.
    pub seed: u64,
    /// The case that was played. Its content is part of the root of the turns' seeds, so cases have different
    /// random numbers. Absent where no case was played, and in runs of earlier versions, in which all cases
    /// share random numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub case: Option<CaseId>,
    /// The run whose memories this one carries on.
    pub continues: Option<Continues>,
    /// The run that this one was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked: Option<Forked>,
    /// Hash of the last line of the recording whose replies were carried over to other prompts: no model has
    /// read these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried: Option<String>,
}

impl Header {
    /// True if the recording is by the first rules (see [`Header::rules`]).
    pub fn is_by_first_rules(&self) -> bool {
        self.rules.unwrap_or(1) < 2
    }

    /// The override with which the scenario is read, if the recording is by the first rules.
    pub fn read_with(&self) -> Option<(String, serde_json::Value)> {
        self.is_by_first_rules().then(|| (FIRST_RULES.to_string(), serde_json::Value::Null))
    }
}

/// The scenario file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioRecord {
    /// Its id.
    pub id: String,
    /// Its path below the current folder, else its file name.
    pub path: String,
    /// Hash of its text.
    pub blake3: String,
}

/// One agent of the cast.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentRecord {
    /// Display name.
    pub name: String,
    /// `permanent` or `ephemeral`.
    pub lifecycle: String,
    /// The system text that it lives with.
    pub system: String,
    /// The strategy that answers instead of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// Name of its model, where the scenario gives it one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Names of its tools in the scenario.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Calls that it may make in one turn, if it has tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_calls: Option<usize>,
}

/// The model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRecord {
    /// Its name.
    pub name: String,
    /// Its architecture.
    pub family: String,
    /// Hash of weights, tokenizer and template.
    pub identity: String,
}

/// A model that a scenario names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedRecord {
    /// The model.
    pub model: ModelRecord,
    /// Format of cached keys and values.
    pub kv: String,
    /// Kernel contract and version.
    pub numerics: String,
    /// Sampling settings of turns that have none of their own.
    pub sampling: Sampling,
}

impl Header {
    /// Sampling settings of a turn, the line `line` (from 0) of them.
    pub fn sampling_of(&self, turn: &TurnRecord, line: usize) -> Sampling {
        let named = turn.hints.model.as_ref().and_then(|name| self.models.get(name));
        let own = || Sampling { temperature: self.temperature_at(line), ..self.sampling.clone() };
        resolved(&turn.hints, &named.map_or_else(own, |named| named.sampling.clone()))
    }

    /// The model that a turn's speaker is played by.
    pub fn model_of(&self, turn: &TurnRecord) -> &ModelRecord {
        let named = turn.hints.model.as_ref().and_then(|name| self.models.get(name));
        named.map_or(&self.model, |named| &named.model)
    }
}

/// The run whose memories another one carries on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Continues {
    /// Its transcript's path below the current folder, else its folder's and file's name.
    pub path: String,
    /// Hash of its footer.
    pub hash: String,
}

/// The run that another one was forked from: they have all turns before one in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forked {
    /// Its transcript's path below the current folder, else its folder's and file's name.
    pub path: String,
    /// Hash of its last line.
    pub hash: String,
    /// Path of the first turn that was played again.
    pub at: String,
    /// Other roots of seeds, for the first turns; the earliest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seeds: Vec<SeedBefore>,
    /// Other settings of sampling, for the first turns; the earliest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<SettingsBefore>,
    /// Replies that were given from outside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub said: Vec<SaidRecord>,
    /// Lines that the stage added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub told: Vec<ToldRecord>,
}

/// Another root of seeds, for the turns before one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedBefore {
    /// Path of that turn.
    pub before: String,
    /// Root of the turns' seeds before it.
    pub seed: u64,
}

/// Other settings of sampling, for the turns before one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingsBefore {
    /// Path of that turn.
    pub before: String,
    /// Lines of turns that were recorded with these settings, and with those before them.
    pub lines: usize,
    /// Temperature.
    pub temperature: f32,
    /// Maximum number of tokens in a reply.
    pub max_tokens: usize,
}

/// A reply that was given from outside, instead of the speaker's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SaidRecord {
    /// Path of the turn.
    pub turn: String,
    /// The reply; of a choice, the option's text.
    pub text: String,
}

/// A line that the stage added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToldRecord {
    /// Path of the turn that it stands before.
    pub before: String,
    /// Key of its reader; absent: the whole cast of that turn's phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The line.
    pub text: String,
}

impl Header {
    /// The temperature at which the line of a turn was sampled that has no settings of its own, by its number
    /// among them, from 0.
    pub fn temperature_at(&self, line: usize) -> f32 {
        let mut earlier = self.forked.iter().flat_map(|forked| &forked.settings);
        let earlier = earlier.find(|settings| line < settings.lines);
        earlier.map_or(self.sampling.temperature, |settings| settings.temperature)
    }
}

/// One turn: what was read and what was said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TurnRecord {
    /// `phase/round/agent`.
    pub path: String,
    /// The agent's key.
    pub agent: String,
    /// The text that the agent read since its last turn, before the chat template.
    pub delta: String,
    /// The reply's ids.
    pub tokens: Vec<u32>,
    /// The ids as text.
    pub raw: String,
    /// Where the speech begins and ends in `raw`, in characters, if the reply has reasoning or the marks of it;
    /// absent: as known marks of reasoning say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speech: Option<[usize; 2]>,
    /// The text that others heard.
    pub spoken: String,
    /// The reason why the reply ended.
    #[serde(with = "crate::words::word")]
    pub stop: StopReason,
    /// What a remote engine said after `raw`: it was cut, so nobody heard it and the agent does not remember
    /// it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cut: String,
    /// The choice, if the reply was one.
    pub constraint: Option<ChoiceRecord>,
    /// The form of the reply, and its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<FormRecord>,
    /// The call of a tool that the reply is, on a line of its own, and its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallRecord>,
    /// Names of the pieces of its past that a memory starts over with, on the line of that, in the order of
    /// time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Vec<String>>,
    /// Seed of the turn.
    pub seed: u64,
    /// Settings of this reply, where they are not the run's: the scenario gives them for the agent, the phase
    /// or the turn.
    #[serde(default, skip_serializing_if = "Hints::is_empty")]
    pub hints: Hints,
}

impl TurnRecord {
    /// What is recorded of the bytes of a reply that are its speech.
    pub fn marked(raw: &str, speech: &Range<usize>) -> Option<[usize; 2]> {
        let is_all = *speech == (0..raw.len()) && speech_of(raw) == *speech;
        let characters = |bytes: usize| raw.get(..bytes).map(|text| text.chars().count());
        let found = characters(speech.start).zip(characters(speech.end));
        found.filter(|_| !is_all).map(|(begin, end)| [begin, end])
    }

    /// The bytes of `raw` that are the reply's speech.
    pub fn speech_in_raw(&self) -> Range<usize> {
        let byte = |n: usize| self.raw.char_indices().nth(n).map_or(self.raw.len(), |(at, _)| at);
        self.speech.map_or_else(|| speech_of(&self.raw), |[begin, end]| byte(begin)..byte(end.max(begin)))
    }
}

/// A change of the state: computed from the lines above it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateRecord {
    /// The phase, the round (`phase/round`) or the turn that it follows.
    pub path: String,
    /// What was set, by name.
    pub set: BTreeMap<String, serde_json::Value>,
}

/// Who was picked to speak in a phase, by the nearness of a query to what agents had read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteRecord {
    /// The phase.
    pub path: String,
    /// blake3 (hex) of the query.
    pub query: String,
    /// How well it was met.
    #[serde(rename = "match")]
    pub met: Met,
    /// The score of each agent who had read anything, by key: a cosine, to four decimals.
    pub scores: BTreeMap<String, f64>,
    /// Keys of those who were picked, in speaking order.
    pub chosen: Vec<String>,
}

impl RouteRecord {
    /// As a sentence; `name` gives the display name of a key.
    pub fn told<'a>(&'a self, name: impl Fn(&'a str) -> &'a str) -> String {
        let scored = |key: &'a String| match self.scores.get(key) {
            Some(score) => format!("{} ({score:.2})", name(key)),
            None => name(key).to_string(),
        };
        let chosen: Vec<String> = self.chosen.iter().map(scored).collect();
        let chosen = chosen.join(", ");
        match (self.met, self.chosen.is_empty()) {
            (Met::Exact, _) => format!("picked, has read exactly this text: {chosen}"),
            (Met::Partial, _) => format!("picked: {chosen}"),
            (Met::Miss, true) => "picked: none (all scores are below `least`)".to_string(),
            (Met::Miss, false) => format!("all scores are below `least`; picked instead: {chosen}"),
        }
    }
}

/// How well a query was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Met {
    /// An agent had read exactly this text.
    Exact,
    /// An agent had read something that is near enough.
    Partial,
    /// No agent had.
    Miss,
}

/// A line between turns.
#[derive(Clone, Debug, PartialEq)]
pub enum InterTurnRecord {
    /// A change of the state.
    State(StateRecord),
    /// Who was picked.
    Route(RouteRecord),
}

impl InterTurnRecord {
    /// The path of what it belongs to.
    pub fn path(&self) -> &str {
        match self {
            Self::State(record) => &record.path,
            Self::Route(record) => &record.path,
        }
    }

    /// What it is, as text.
    pub(super) fn what(&self) -> &'static str {
        match self {
            Self::State(_) => "change of the state",
            Self::Route(_) => "route",
        }
    }
}

impl From<InterTurnRecord> for Line {
    fn from(between: InterTurnRecord) -> Self {
        match between {
            InterTurnRecord::State(record) => Self::State(record),
            InterTurnRecord::Route(record) => Self::Route(record),
        }
    }
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallRecord {
    /// The tool; empty: the call was cut before it was whole.
    pub tool: String,
    /// Its arguments, an object; null where it was cut.
    pub arguments: serde_json::Value,
    /// What it gave, or the reason why it failed.
    pub result: String,
    /// True if it failed.
    pub failed: bool,
    /// Characters of it that the agent's memory had room for, where it was cut to these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<usize>,
}

impl CallRecord {
    /// The call itself.
    pub fn call(&self) -> Call {
        Call { tool: self.tool.clone(), arguments: self.arguments.clone() }
    }

    /// What it gave, or the reason why it failed.
    ///
    /// # Errors
    /// The call failed.
    pub fn outcome(&self) -> Result<String, String> {
        if self.failed { Err(self.result.clone()) } else { Ok(self.result.clone()) }
    }

    /// The call in a line: `tool(arguments)`; of one that was cut, `(…)`.
    pub fn quoted(&self) -> String {
        if self.tool.is_empty() {
            return "(…)".to_string();
        }
        format!("{}({})", self.tool, self.arguments)
    }
}

impl TurnRecord {
    /// True of a line before a turn's own, which nobody hears: what a memory starts over with, or a call of a
    /// tool.
    pub fn is_aside(&self) -> bool {
        self.call.is_some() || is_summary(&self.path)
    }
}

/// The form of a reply, and what it was read as.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormRecord {
    /// `schema`, `lark` or `regex`.
    pub kind: String,
    /// Hash of the grammar's text.
    pub blake3: String,
    /// The value that expressions see; null: invalid.
    pub value: serde_json::Value,
    /// The reason why it is invalid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invalid: Option<String>,
    /// Replies before it that broke what only a complete reply can be checked for, so that it was asked for
    /// again; in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<Rejected>,
}

/// A reply that was asked for again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rejected {
    /// The reply.
    pub raw: String,
    /// The reason why it is invalid.
    pub invalid: String,
}

/// A choice: what could be said, how likely each was, and what it was read as.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChoiceRecord {
    /// `decode` or `parse`.
    pub method: String,
    /// The options, in the order in which they were listed.
    pub options: Vec<OptionRecord>,
    /// The result; null: invalid.
    pub chosen: serde_json::Value,
    /// `length`: the draw weighed log-probabilities by length; absent: as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalize: Option<String>,
}

/// One option of a choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptionRecord {
    /// The value that expressions see.
    pub value: serde_json::Value,
    /// The text that is said.
    pub text: String,
    /// Natural log-probability that the model's reply is this one; null: no model was asked for it.
    pub logprob: Option<f32>,
}

/// The results of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Footer {
    /// Turns that were played.
    pub turns: usize,
    /// Turns of the plan that did not take place.
    pub skipped: usize,
    /// Choices that were made.
    pub choices: usize,
    /// Those of them that could not be read as an option.
    pub invalid: usize,
    /// Decisions by phase; null: nothing was decided.
    pub decisions: BTreeMap<String, serde_json::Value>,
    /// Payoffs of the choices.
    pub payoffs: Option<Payoffs>,
    /// Results, in the order of the scenario.
    pub outcomes: Vec<OutcomeRecord>,
    /// The assertions, and whether they held.
    pub assertions: Vec<AssertionRecord>,
}

impl Footer {
    /// The outcome in lines, for a scenario of the papers' format.
    pub fn shown(&self, scenario: &Scenario) -> Option<String> {
        let outcomes = self.outcomes.iter().filter(|outcome| outcome.error.is_none());
        let outcomes: Vec<_> = outcomes.map(|outcome| (outcome.name.as_str(), &outcome.value)).collect();
        scenario.ending.as_ref()?.display_lines(scenario, &outcomes)
    }

    /// Tells whether all that had to hold held. Assertions that need a share of many runs can't fail in one.
    pub fn holds(&self) -> bool {
        self.assertions.iter().all(|assertion| !assertion.fails())
    }
}

/// A result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutcomeRecord {
    /// Its name.
    pub name: String,
    /// Its value; null where the expression failed.
    pub value: serde_json::Value,
    /// The error, if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// An assertion and whether it held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssertionRecord {
    /// The expression.
    pub that: String,
    /// What should be true, in the author's words.
    pub why: Option<String>,
    /// The share of many runs in which it must hold; `None`: it must hold in every run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
    /// True if it held; an expression that fails does not.
    pub holds: bool,
    /// The error of the expression, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The verdict that it rests on, if a judge was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<VerdictRecord>,
}

impl AssertionRecord {
    /// The expression, and the judge whose verdict it is about: the same expression means something else
    /// after each judge.
    pub fn name(&self) -> String {
        let judge = self.verdict.as_ref().and_then(|verdict| verdict.turn.split('/').next());
        judge.map_or_else(|| self.that.clone(), |judge| format!("{} (judge {judge})", self.that))
    }

    /// True if it must hold in every run, and did not.
    pub fn fails(&self) -> bool {
        self.share.is_none() && !self.holds
    }
}

/// The verdict of a judge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerdictRecord {
    /// Path of the judge's turn.
    pub turn: String,
    /// What it chose or replied; null: nothing valid.
    pub value: serde_json::Value,
}

/// Records the form of a reply and its value.
pub fn form_record(
    form: &Form,
    value: Result<serde_json::Value, String>,
    rejected: Vec<Rejected>,
) -> FormRecord {
    let (value, invalid) =
        value.map_or_else(|reason| (serde_json::Value::Null, Some(reason)), |value| (value, None));
    FormRecord { kind: form.kind().to_string(), blake3: form.hash(), value, invalid, rejected }
}

/// Records a choice: options as listed, the log-probabilities that are known by option.
pub fn choice_record(
    choice: &Choice,
    open: &[usize],
    chosen: Option<Chosen>,
    logprobs: &[(usize, f32)],
) -> ChoiceRecord {
    let logprob = |id: &usize| logprobs.iter().find(|(option, _)| option == id).map(|(_, logprob)| *logprob);
    let option = |id: &usize| {
        let ChoiceOption { value, text } = choice.options[*id].clone();
        OptionRecord { value, text, logprob: logprob(id) }
    };
    let method = match choice.method {
        ChoiceMethod::Decode => "decode",
        ChoiceMethod::Parse => "parse",
    };
    let chosen = match chosen {
        Some(Chosen::Option(id)) => choice.options[id].value.clone(),
        _ => serde_json::Value::Null,
    };
    let normalize = choice.by_length.then(|| "length".to_string());
    ChoiceRecord { method: method.to_string(), options: open.iter().map(option).collect(), chosen, normalize }
}

/// The text of a whole transcript: each line chained to the one before.
///
/// # Errors
/// A line can't be written as JSON.
pub fn chain(lines: &[Line]) -> serde_json::Result<String> {
    let (mut hash, mut all) = (String::new(), String::new());
    for line in lines {
        let (next, text) = line.chained(&hash)?;
        (hash, all) = (next, all + &text);
    }
    Ok(all)
}

impl Line {
    /// The hash of this line after a line of hash `previous` (empty for the first), and the line's text.
    pub(super) fn chained(&self, previous: &str) -> serde_json::Result<(String, String)> {
        let body = serde_json::to_string(self)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(previous.as_bytes()).update(b"\n").update(body.as_bytes());
        let hash = hasher.finalize().to_hex().to_string();
        let text = format!("{},\"hash\":\"{hash}\"}}\n", body.strip_suffix('}').unwrap_or(&body));
        Ok((hash, text))
    }

    /// `header`, `turn` or `footer`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Header(_) => "header",
            Self::Turn(_) => "turn",
            Self::State(_) => "state",
            Self::Route(_) => "route",
            Self::Footer(_) => "footer",
        }
    }
}
