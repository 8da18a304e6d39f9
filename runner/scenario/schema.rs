//! The scenario file as written: every field optional, nothing resolved.
//!
//! `read` makes a [`Written`] of a file; what the fields mean is decided in `check`. Its documentation is the author's:
//! `greenroom schema` and the reference of all fields are made from it. Every field accepts null, which is how a value that could
//! not be read is set aside.

use super::hints::{Reasoning, with_hints};
use super::{InteractionKind, Keep, Lifecycle};
use indexmap::IndexMap;
use schemars::{JsonSchema, Schema, schema_for};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Number, Value};
use std::sync::LazyLock;

with_hints! {
/// Who takes part, and what happens, phase by phase.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Scenario", title = "Greenroom scenario", deny_unknown_fields, extend("required" = ["phases"]))]
pub struct Written {
    /// Short name, used for folders and memories: letters, digits, `-` and `_`. Default: the file's name.
    #[schemars(regex(pattern = "^[A-Za-z0-9_-]{1,100}$"))]
    pub id: Option<String>,
    /// Title shown to people. Default: the id.
    pub title: Option<String>,
    /// What it is about.
    pub description: Option<String>,
    /// Values for templates and expressions: texts, numbers, lists, mappings. `--set name=value` overrides one,
    /// `--set name.part=value` a part of one.
    #[schemars(extend("propertyNames" = { "pattern": NAME }))]
    pub variables: Option<IndexMap<String, Value>>,
    /// A table of cases, for each of which the scenario is played once: a `.csv` file whose first line names variables (or parts of them,
    /// such as `stakes.reward`), or a `.jsonl` file with an object in each line; its path relative to this file. Values have the types that
    /// the variables have here. A column `case` names the cases; without it they have numbers, from 1.
    #[schemars(extend("pattern" = "\\.(csv|jsonl)$"))]
    pub cases: Option<String>,
    /// What changes as the scenario is played, by name, with its first value: a number, a text, true or false, a list, a mapping
    /// (such as one by agent). `set` changes it; texts and expressions use it like a variable. It keeps its type, unless it
    /// begins as null.
    #[schemars(extend("propertyNames" = { "pattern": NAME }))]
    pub state: Option<IndexMap<String, Value>>,
    /// Intermediate values, by name: expressions that texts and other expressions can use by their names. One may use those
    /// above it. It is worked out wherever it is used, from what is known there.
    #[serde(rename = "let")]
    #[schemars(with = "Option<IndexMap<String, WrittenExpression>>", extend("propertyNames" = { "pattern": NAME }))]
    pub lets: Option<IndexMap<String, Option<WrittenExpression>>>,
    /// Files whose `agents`, `variables` and `models` are taken over, paths relative to this file. What stands here wins.
    pub include: Option<Vec<Option<String>>>,
    /// Models by name, for `model`: a GGUF file (its path relative to this file, or absolute), a name that `greenroom pull` lists,
    /// `hf:ORG/REPO/FILE.gguf`, or the bundled `understudy`. `--model NAME=…` puts another in its place.
    #[schemars(extend("propertyNames" = { "pattern": NAME }))]
    pub models: Option<IndexMap<String, Option<String>>>,
    /// The model that memories are looked up by: a name under `models`. Any model of a known family serves, an embedding model best. Default:
    /// each agent's own.
    pub embeddings: Option<String>,
    /// Tools that agents may call before they reply, by name. A call and its result stay in the agent's own memory: nobody hears them. A
    /// transcript holds both, and a replay calls nothing.
    #[schemars(extend("propertyNames" = { "pattern": NAME }))]
    pub tools: Option<IndexMap<String, Option<WrittenTool>>>,
    /// The language of what the stage itself says: cues, votes, rules of debates. Default: `en`.
    pub language: Option<WrittenLanguage>,
    /// Who takes part, by key: letters, digits and `_`.
    #[schemars(extend("propertyNames" = { "pattern": NAME }))]
    pub agents: Option<IndexMap<String, Option<WrittenAgent>>>,
    /// What happens, in order: phases, and blocks of them that are repeated.
    #[schemars(extend("minItems" = 1))]
    pub phases: Option<Vec<Option<WrittenPart>>>,
    /// What the choices of one phase are worth to the players.
    pub payoff: Option<WrittenPayoff>,
    /// Results to compute at the end, by name. One may use those above it, as `outcome.NAME`.
    #[schemars(with = "Option<IndexMap<String, WrittenExpression>>", extend("propertyNames" = { "pattern": NAME }))]
    pub outcome: Option<IndexMap<String, Option<WrittenExpression>>>,
    /// What must hold at the end. If something does not, it is named and the exit code is 1.
    #[schemars(with = "Option<Vec<WrittenAssertion>>")]
    pub assertions: Option<Vec<Option<WrittenAssertion>>>,
    /// Hints for displays; not read.
    #[schemars(with = "Value")]
    pub ui: Option<Value>,
}
}

/// The texts that the stage itself says: a language by its name, or a table of texts in place of those of a language. In a text
/// `{name}` stands for a value; which there are stands beside each.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Language", untagged)]
pub enum WrittenLanguage {
    /// A language that is built in.
    Text(String),
    /// Texts by their names; `base` names the language of the others.
    Texts(IndexMap<String, Option<String>>),
}

with_hints! {
/// Somebody who takes part. All fields may be left out: `ann:` alone is an agent called "ann".
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Agent", deny_unknown_fields)]
pub struct WrittenAgent {
    /// Name that others see. Default: the key.
    pub display_name: Option<String>,
    /// What the agent is, in any words. Three words have an effect: an `observer` hears and does not speak, a
    /// `moderator` gives the floor in `moderated` phases, a `coordinator` decides where `decision_mode` is
    /// `coordinator_decides`.
    pub role: Option<String>,
    /// The system text. It is read once and never changes, so it may use variables, `me` and `role`, but nothing that
    /// happens in a run. Default: "You are NAME, ROLE."
    pub system_prompt: Option<WrittenTemplate>,
    /// How long its memory lasts.
    pub lifecycle: Option<Lifecycle>,
    /// Colour on a terminal and in pictures: a name such as `teal`, or `#rrggbb`.
    #[schemars(extend("oneOf" = colors()))]
    pub color: Option<String>,
    /// Who answers instead of the model: a control for experiments, or a human at the terminal.
    pub strategy: Option<WrittenStrategy>,
    /// The tools that it may call, names under `tools`: whenever it is to speak, but not where it chooses, votes or replies in a form.
    pub tools: Option<Vec<Option<String>>>,
    /// Calls that it may make in one turn; then it must reply. Default: 4.
    #[schemars(range(min = 1, max = 16))]
    pub max_calls: Option<u64>,
    /// How its memory goes on when the model's context is full.
    pub memory: Option<WrittenMemory>,
    /// Another way to write `memory`: `fail` is `{ keep: all }`, `summarize` is `{ keep: summary }`.
    pub on_overflow: Option<Overflow>,
}
}

/// A tool: one of the program's own by its name, or another one.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Tool", untagged)]
pub enum WrittenTool {
    /// `calculator`, `dice` (rolled by the seed of the turn) or `notes` (remembered for ever, whatever else of a full memory is lost).
    Text(String),
    /// Another one, or one in other words.
    Long(Box<LongTool>),
}

/// A tool: exactly one of `built_in`, `lookup`, `command` and `mcp`. Programs and servers run with the rights of who plays the scenario,
/// and only where `--allow-tools` lets them.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct LongTool {
    /// `calculator`, `dice` or `notes`, with an `about` of its own.
    pub built_in: Option<String>,
    /// A `.csv` or `.jsonl` file, its path relative to this file: a call finds rows by what stands under `key`.
    #[schemars(extend("pattern" = "\\.(csv|jsonl)$"))]
    pub lookup: Option<String>,
    /// The column that a `lookup` looks in.
    pub key: Option<String>,
    /// A program and its arguments, started in this file's folder: it reads the call's arguments as JSON and writes the result. An exit
    /// code other than 0 is a call that failed; the last line of its standard error says why.
    #[schemars(extend("minItems" = 1))]
    pub command: Option<Vec<Option<String>>>,
    /// A server of the Model Context Protocol: a program and its arguments. Its tools are called `NAME_TOOL`.
    #[schemars(extend("minItems" = 1))]
    pub mcp: Option<Vec<Option<String>>>,
    /// Those of a server's tools that may be called. Default: all.
    pub only: Option<Vec<Option<String>>>,
    /// What it does, in a sentence: agents read that. A `command` needs it.
    pub about: Option<String>,
    /// JSON Schema of a `command`'s arguments, an object: a model's calls are in it.
    #[schemars(with = "Value")]
    pub arguments: Option<Value>,
    /// Seconds that a call of a program may take. Default: 10.
    #[schemars(range(min = 1, max = 600))]
    pub timeout: Option<u64>,
}

/// A memory that is full goes on in a new epoch, which begins with the system text and what is kept. A piece is a message that the agent
/// has heard or said, or a paragraph of what the stage has told it; each that is kept is quoted with the turn or phase that it comes from. What
/// is kept takes half of the context at most. Needs `keep`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Memory", deny_unknown_fields, extend("required" = ["keep"]))]
pub struct WrittenMemory {
    /// What is kept.
    pub keep: Option<Keep>,
    /// The most recent pieces, at most. Default: with `window` as many as fit, with `retrieve` 4.
    pub recent: Option<u64>,
    /// With `retrieve`, so many pieces more, at most: those nearest to what the agent has just heard, by the model's own embeddings or those of
    /// `embeddings`. Default: 8.
    #[schemars(extend("minimum" = 1))]
    pub nearest: Option<u64>,
}

/// What happens when an agent's context is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "OnOverflow")]
pub enum Overflow {
    /// The run ends.
    Fail,
    /// The agent writes down what it needs, and goes on with that.
    Summarize,
}

/// A phase, or a block of phases.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(untagged)]
pub enum WrittenPart {
    /// A phase.
    Phase(Box<WrittenPhase>),
    /// A block.
    Block(WrittenBlock),
}

/// Phases that are played one after the other, and again from the first. A block may stand in a block, no deeper. In its texts
/// and conditions `pass` is the number of the pass and `passes` how many there can be; the name of a phase means its latest pass.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Block", deny_unknown_fields, extend("required" = ["repeat", "phases"]))]
pub struct WrittenBlock {
    /// How often the phases are played, at most.
    pub repeat: Option<WrittenCount>,
    /// The block ends after the pass in which this holds.
    pub until: Option<WrittenExpression>,
    /// The block is only played if this holds when it would begin.
    pub when: Option<WrittenExpression>,
    /// The phases.
    #[schemars(extend("minItems" = 1))]
    pub phases: Option<Vec<Option<WrittenPart>>>,
}

with_hints! {
/// A scene: who is present, who speaks when, who hears it, and what comes of it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Phase", deny_unknown_fields, extend(
    "required" = ["name", "agents"],
    "not" = { "anyOf": [{ "required": ["choice", "parse_choice"] }, { "required": ["order", "turns"] }] }
))]
pub struct WrittenPhase {
    /// Short name, used in templates, expressions and paths: letters, digits and `_`.
    #[schemars(extend("pattern" = NAME))]
    pub name: Option<String>,
    /// Title shown to people. Default: the name.
    pub label: Option<String>,
    /// Who is present, in speaking order: a list of keys; or an expression that gives one, such as the name of a list in the
    /// state. It is worked out as the phase opens, and those who are in it speak in the order of `agents`. Who is not present
    /// neither speaks nor hears.
    #[schemars(extend("minItems" = 1))]
    pub agents: Option<WrittenCast>,
    /// Picks those who speak by what they have read. Who is not picked neither speaks nor hears.
    pub route: Option<WrittenRoute>,
    /// Who speaks when.
    pub order: Option<WhoSpeaks>,
    /// Rules of a debate, read by everybody when the phase opens.
    pub debate_format: Option<DebateFormat>,
    /// How the phase decides over the options of its `choice`: by a secret vote of all who speak, once the rounds are
    /// over. How it went is told to all who are present.
    pub decision_mode: Option<DecisionMode>,
    /// What everybody reads when the phase opens. Each reads it for itself: `me` is the reader. By the name
    /// `initial_prompt_template` it is read by those alone who have no private text, in place of an `initial_prompt` beside it.
    pub prompt: Option<WrittenTemplate>,
    /// Read in place of `initial_prompt` by those who have no private text.
    pub initial_prompt_template: Option<WrittenTemplate>,
    /// Private openings, by agent: what only that agent reads, right after `prompt`.
    #[schemars(with = "Option<IndexMap<String, WrittenTemplate>>")]
    pub private_prompts: Option<IndexMap<String, Option<WrittenTemplate>>>,
    /// What the stage says before or after each round that is played, such as scores.
    #[schemars(extend("minItems" = 1))]
    pub announce: Option<Vec<Option<WrittenAnnouncement>>>,
    /// What changes in the state after each round that is played: expressions by name, worked out from top to bottom. They may
    /// use what the phase has come to by then, and `round`. Announcements after the round know of it.
    #[schemars(with = "Option<IndexMap<String, WrittenExpression>>")]
    pub set_each_round: Option<IndexMap<String, Option<WrittenExpression>>>,
    /// What changes in the state after the phase, its vote included, if it is played.
    #[schemars(with = "Option<IndexMap<String, WrittenExpression>>")]
    pub set: Option<IndexMap<String, Option<WrittenExpression>>>,
    /// Rounds to play. Default: 1, or as many as `max_turns` needs. With 0 nobody talks: all vote, or only read what opens the
    /// phase.
    pub rounds: Option<WrittenCount>,
    /// Most turns of the phase; votes and the moderator's choices aside.
    #[schemars(extend("minimum" = 1))]
    pub max_turns: Option<u64>,
    /// The order of turns, written out: each round plays this list. It takes the place of `order`.
    #[schemars(extend("minItems" = 1))]
    pub turns: Option<Vec<Option<WrittenTurn>>>,
    /// Who hears whom. Default: everybody present hears everything.
    #[schemars(extend("minItems" = 1))]
    pub interactions: Option<Vec<Option<WrittenInteraction>>>,
    /// The phase is only played if this holds when it would begin.
    pub when: Option<WrittenExpression>,
    /// The phase ends after the round in which this holds; `rounds` is the bound. It may use the phase's own results, and
    /// `round`.
    pub until: Option<WrittenExpression>,
    /// What every turn of the phase is one of; with a `decision_mode`, what the phase decides over. The model can say
    /// nothing else, and the log-probability of each option is recorded.
    pub choice: Option<WrittenChoice>,
    /// As `choice`, but the agent answers in its own words, which are searched for the options. A reply that names none, two
    /// of them, or one in a sentence with a negation, is `invalid`.
    pub parse_choice: Option<WrittenChoice>,
    /// The form of every turn's reply: JSON that a schema allows. The model can say nothing else; `replies` has the values.
    pub reply: Option<WrittenReply>,
    /// As `reply`, for a form that is not JSON.
    pub grammar: Option<WrittenGrammar>,
    /// Who gives the floor in a `moderated` phase. Default: the agent whose role is `moderator`.
    pub moderator: Option<Key>,
    /// Who decides under `coordinator_decides`. Default: the agent whose role is `coordinator`.
    pub coordinator: Option<Key>,
    /// Who votes: a list of keys, or an expression that gives one, worked out before each vote. Default: all who speak.
    #[schemars(extend("minItems" = 1))]
    pub voters: Option<WrittenCast>,
    /// Whether choices are secret: nobody hears what others choose in this phase, and how its vote went is not told. Texts can
    /// tell it later. Default: `false`.
    pub secret: Option<bool>,
    /// Who hears what is said in this phase. Default: as `interactions` say.
    pub hears: Option<WhoHears>,
    /// Votes that a `consensus` may take. Default: 3.
    #[schemars(extend("minimum" = 1, "maximum" = 100))]
    pub attempts: Option<u64>,
}
}

/// Picks speakers as the phase opens: those who have read what is nearest to a query. What an agent has read and said, in any phase before,
/// is compared piece by piece; a piece is a message, or a paragraph of what the stage has told it. The run records who was picked, so a
/// replay needs no model. Needs `query`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Route", deny_unknown_fields, extend("required" = ["query"]))]
pub struct WrittenRoute {
    /// The query, such as `{{ question }}`.
    pub query: Option<WrittenTemplate>,
    /// Those who may be picked: permanent agents of the phase. Default: all who speak in it. The others of the phase are present all the same.
    pub among: Option<Keys>,
    /// How many are picked, at most. Default: 1.
    #[schemars(extend("minimum" = 1))]
    pub take: Option<u64>,
    /// The least score of one who is picked, from -1 to 1. Models differ in how near they find any two texts: a run shows its scores. Default:
    /// any will do.
    #[schemars(extend("minimum" = -1, "maximum" = 1))]
    pub least: Option<f64>,
    /// The number of an agent's nearest pieces that its score is the mean of. Default: 1.
    #[schemars(extend("minimum" = 1))]
    pub best: Option<u64>,
    /// Those among them who speak where nobody is near enough. Default: nobody.
    pub otherwise: Option<Keys>,
}

with_hints! {
/// One turn of an order that is written out.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Turn", deny_unknown_fields, extend(
    "required" = ["agent"],
    "not" = { "required": ["choice", "parse_choice"] }
))]
pub struct WrittenTurn {
    /// Who speaks.
    pub agent: Option<Key>,
    /// What the speaker is asked. It may use what was said in the phase before it, and `round`.
    pub ask: Option<WrittenTemplate>,
    /// The turn is only played if this holds. It may use what was said in the phase before it, and `round`.
    pub when: Option<WrittenExpression>,
    /// As the phase's `choice`, for this turn. It counts as one of the phase: in `choices`, `history`, `votes` and payoffs.
    pub choice: Option<WrittenChoice>,
    /// As the phase's `parse_choice`, for this turn.
    pub parse_choice: Option<WrittenChoice>,
    /// As the phase's `reply`, for this turn.
    pub reply: Option<WrittenReply>,
    /// As the phase's `grammar`, for this turn.
    pub grammar: Option<WrittenGrammar>,
    /// Who hears it: a whisper. Default: as `interactions` say.
    pub to: Option<Keys>,
    /// `none`: nobody hears it. Default: as the phase's `hears`.
    pub hears: Option<WhoHears>,
    /// What changes in the state after the turn, if it is played.
    #[schemars(with = "Option<IndexMap<String, WrittenExpression>>")]
    pub set: Option<IndexMap<String, Option<WrittenExpression>>>,
}
}

/// A line of the stage about a round. It may use `round`, `rounds` (the most there can be), and what the phase has come to by
/// then: its choices and votes, `payoffs`. Where the text is empty, nothing is read.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Announcement", deny_unknown_fields, extend(
    "oneOf" = [{ "required": ["before"] }, { "required": ["after"] }]
))]
pub struct WrittenAnnouncement {
    /// Read before each round.
    pub before: Option<WrittenTemplate>,
    /// Read after each round.
    pub after: Option<WrittenTemplate>,
    /// Who reads it. Default: everybody present.
    pub to: Option<Keys>,
}

/// Who hears whom in a phase. An agent speaks in public or in whispers within one phase, not both; `to` in a written-out
/// turn makes that one turn a whisper.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Interaction", deny_unknown_fields, extend("required" = ["from", "kind"]))]
pub struct WrittenInteraction {
    /// Who speaks; with `observe`, who listens.
    pub from: Option<Key>,
    /// Whom it concerns. It may be left out where `kind` is `public`.
    pub to: Option<Keys>,
    /// What happens between them.
    pub kind: Option<InteractionKind>,
}

/// What the choices of a phase are worth. It is looked up, round by round, and never read from words. A round in which a
/// choice is missing or invalid is not valued; where a player chooses several times in a round, the last one counts.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Payoff", deny_unknown_fields, extend(
    "required" = ["phase"],
    "oneOf" = [{ "required": ["matrix"] }, { "required": ["each"] }]
))]
pub struct WrittenPayoff {
    /// The phase whose choices count, or a list of phases; each of their rounds counts once, in every pass of a block.
    pub phase: Option<PhaseNames>,
    /// The players. Default: all who choose in the phase, in order. All turns of one player have the same options.
    #[schemars(with = "Option<Vec<Key>>")]
    pub players: Option<Vec<Option<Key>>>,
    /// What is counted, e.g. `years`. Default: `points`.
    pub unit: Option<String>,
    /// For each option of the first player a table for each option of the second, and so on, down to a list with a number
    /// or expression over variables for each player. Either this or `each`.
    #[schemars(with = "Option<IndexMap<String, Value>>")]
    pub matrix: Option<Matrix>,
    /// The same expression for every player, in which `mine` is its choice, `others` the list of the others' and `all` the
    /// list of all.
    pub each: Option<WrittenExpression>,
}

/// Name of a phase, or a list of names.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(untagged)]
pub enum PhaseNames {
    /// One.
    One(String),
    /// Several.
    Many(#[schemars(with = "Vec<String>", extend("minItems" = 1))] Vec<Option<String>>),
}

/// A level of a payoff matrix.
#[derive(Clone, Debug, Deserialize)]
pub enum Matrix {
    /// By the options of the player whose level it is.
    Texts(IndexMap<String, Option<Matrix>>),
    /// What each player gets.
    List(Vec<Option<WrittenExpression>>),
    /// Neither: a mistake that `check` explains.
    That(Scalar),
}

/// Key of an agent, as it stands under `agents`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Key(pub String);

/// Key of an agent, or a list of keys.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(untagged)]
pub enum Keys {
    /// One.
    One(String),
    /// Several.
    Many(#[schemars(with = "Vec<String>", extend("minItems" = 1))] Vec<Option<String>>),
}

/// Keys of agents, or an expression that gives a list of them.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Cast", untagged)]
pub enum WrittenCast {
    /// Keys.
    List(#[schemars(with = "Vec<Key>", extend("minItems" = 1))] Vec<Option<Key>>),
    /// An expression.
    Text(String),
}

/// A text in which `{{ … }}` stands for a value.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Template")]
pub struct WrittenTemplate(pub String);

/// An expression over variables and results, e.g. `vote.decision == 'yes' and payoffs.ann > 3`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Expression", untagged)]
pub enum WrittenExpression {
    /// A text.
    Text(String),
    /// A number.
    Number(#[schemars(with = "f64")] Number),
    /// True or false.
    Truth(bool),
}

/// A whole number, or an expression over variables that gives one.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[schemars(rename = "Count", untagged)]
pub enum WrittenCount {
    /// A number.
    Number(u64),
    /// An expression.
    Text(String),
}

/// A text, a number or a truth value.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(untagged)]
pub enum Scalar {
    /// A text.
    Text(String),
    /// A number.
    Number(#[schemars(with = "f64")] Number),
    /// True or false.
    Truth(bool),
}

/// Who speaks when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhoSpeaks {
    /// Each round everybody speaks once, in order, and hears those before. The default.
    RoundRobin,
    /// The same, counted in `max_turns`.
    TurnByTurn,
    /// Each round all speak at once, unheard by each other until the next round.
    Broadcast,
    /// Each round the pairs of `interactions` speak to each other, first `from`, then `to`, and only they hear it. A pair is
    /// listed once.
    Whisper,
    /// As `round_robin`; after each turn those who are not next are asked whether to cut in, at most once a round each, and the
    /// first in order who wants to speaks.
    Interrupt,
    /// Each round the moderator says who speaks.
    Moderated,
}

/// Who hears what is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhoHears {
    /// As `interactions` say. The default.
    All,
    /// Nobody. The speaker remembers it.
    None,
}

/// Rules of a debate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DebateFormat {
    /// An open discussion.
    Free,
    /// First a position, then reasons, then an answer to the strongest point against it.
    Structured,
    /// The first argues for it, the second against it, and so on.
    ProCon,
    /// The last of the cast attacks every claim, the others defend theirs.
    DevilsAdvocate,
    /// The first of the cast only asks questions, the others answer.
    Socratic,
    /// Everybody adds one new thought a round, and says whom it builds on.
    Roundtable,
    /// Government and opposition take turns on a motion: the first speaks for the one, the second for the other, and so on.
    Parliamentary,
}

/// A way to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DecisionMode {
    /// There is no vote. The default.
    None,
    /// The option with most votes; if several have most, nothing is decided (`tied`).
    MajorityVote,
    /// All rank all options; the options with fewest first places go until one has more than half. If those that are left
    /// are level, nothing is decided (`tied`).
    RankedChoice,
    /// One agent chooses for all.
    CoordinatorDecides,
    /// All must agree. As long as they don't, another round and another vote follow, `attempts` votes in all; once
    /// `max_turns` are used up, votes alone.
    Consensus,
}

/// Options, 2 or more, in one of four forms. A list: `[share, take]`. A mapping from results to the texts that are said:
/// `{share: "I share", take: "I take more"}`. An expression that gives keys of agents, such as the name of a list in the state:
/// these agents, by their names. Or any of them under `options`, with settings beside it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Choice", untagged)]
pub enum WrittenChoice {
    /// Results that are said as they stand.
    List(#[schemars(with = "Vec<Scalar>", extend("minItems" = 2, "maxItems" = 100))] Vec<Option<Scalar>>),
    /// An expression that gives agents.
    Text(String),
    /// Options with settings.
    Long(LongChoice),
    /// Results and the texts that are said for them.
    Texts(
        #[schemars(with = "IndexMap<String, Scalar>", extend("minProperties" = 2, "maxProperties" = 100))]
        Texts,
    ),
}

/// A choice with settings.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct LongChoice {
    /// The options: a list, a mapping from results to the texts that are said, or an expression that gives keys of agents.
    #[schemars(with = "Options")]
    pub options: Option<Options>,
    /// Whether the options are named in an order drawn from the turn's seed, against a liking for the first one. Default:
    /// `false`.
    #[serde(default)]
    pub shuffle: Option<bool>,
    /// What the options are weighed by. Default: `none`.
    #[serde(default)]
    pub normalize: Option<Normalize>,
    /// The question. Default: the options alone are named.
    #[serde(default)]
    pub ask: Option<WrittenTemplate>,
    /// Which of the options are open, worked out at each turn: an expression that gives a list of results; `me` is who chooses.
    /// A turn in which none is open is not played. Default: all.
    #[serde(default)]
    pub open: Option<WrittenExpression>,
}

/// Weights of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Normalize {
    /// By how likely each text is as a whole. The default.
    None,
    /// By how likely each is for its length: its log-probability by byte, times the mean length of the options.
    Length,
}

/// Options of a choice.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(untagged)]
pub enum Options {
    /// An expression that gives agents.
    Text(String),
    /// Results that are said as they stand.
    List(#[schemars(with = "Vec<Scalar>", extend("minItems" = 2, "maxItems" = 100))] Vec<Option<Scalar>>),
    /// Results and the texts that are said for them.
    Texts(
        #[schemars(with = "IndexMap<String, Scalar>", extend("minProperties" = 2, "maxProperties" = 100))]
        Texts,
    ),
}

/// A form of replies: JSON. A reply that the limit of tokens cuts is `invalid`, and its value null.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Reply", deny_unknown_fields, extend("required" = ["schema"]))]
pub struct WrittenReply {
    /// A [JSON Schema](https://json-schema.org), e.g. `{ type: object, properties: { price: { type: integer } } }`, or the name of a
    /// `.json` file that holds one, its path relative to this file. Keys are said in the order of its `properties`.
    #[schemars(extend("type" = ["object", "string"], "pattern" = "\\.json$"))]
    pub schema: Option<Value>,
    /// Whether the agent is shown the schema where it is asked. Default: `true`.
    pub show: Option<bool>,
}

/// A form of replies: either `lark` or `regex`. A reply that the limit of tokens cuts is `invalid`, and its value null.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Grammar", deny_unknown_fields, extend(
    "oneOf" = [{ "required": ["lark"] }, { "required": ["regex"] }]
))]
pub struct WrittenGrammar {
    /// A grammar in [llguidance's dialect of Lark](https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md); it begins at
    /// `start`.
    pub lark: Option<String>,
    /// A regular expression for the whole reply.
    pub regex: Option<String>,
}

/// Results and the texts that are said for them, in the order of the file.
#[derive(Clone, Debug)]
pub struct Texts(pub Vec<(Scalar, Option<Scalar>)>);

/// A rule, or a person, that answers instead of the model. It knows what the agent has heard, no more. Where no choice is
/// asked for, `always` and `list` say their texts, `tit_for_tat`, `grim` and `random` say nothing.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Strategy")]
pub enum WrittenStrategy {
    /// The first option, then what another player chose last.
    TitForTat,
    /// The first option until anybody chooses another, then the last option for ever.
    Grim,
    /// Asks at the terminal.
    Human,
    /// This option, or these words.
    Always(#[schemars(with = "Scalar")] Option<Scalar>),
    /// The first option with this probability, from 0 to 1; else one of the others.
    Random(#[schemars(with = "f64", range(min = 0, max = 1))] Option<f64>),
    /// One after the other, and again from the start.
    List(#[schemars(with = "Vec<Scalar>", extend("minItems" = 1))] Option<Vec<Option<Scalar>>>),
}

/// An expression, or one with a reason.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Assertion", untagged)]
pub enum WrittenAssertion {
    /// The expression alone.
    That(WrittenExpression),
    /// With a reason.
    Long(LongAssertion),
}

/// What must hold, and what it means if it does not.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct LongAssertion {
    /// The expression. Beside a `judge`, `verdict` is what the judge chose or replied; null: invalid.
    #[schemars(with = "WrittenExpression")]
    pub that: Option<WrittenExpression>,
    /// What it means if it does not hold; printed then.
    #[serde(default)]
    pub why: Option<String>,
    /// Who is asked, once all phases are over, for a verdict that decides the assertion.
    #[serde(default)]
    pub judge: Option<Box<WrittenJudge>>,
}

with_hints! {
/// A question about what happened, and the form of the answer. It is a turn after the last phase; nobody hears it. A member of the
/// cast answers from memory; without `agent`, a judge from outside first reads all that was said, whispers and results of votes
/// included.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Judge", deny_unknown_fields, extend(
    "required" = ["ask"],
    "oneOf" = [{ "required": ["choice"] }, { "required": ["reply"] }]
))]
pub struct WrittenJudge {
    /// Short name, by which outcomes and later assertions can use `NAME.verdict`, as the result of a phase: letters, digits and `_`.
    /// Default: `judge`, or the first of `judge_2`, `judge_3`, … that nothing else is called.
    #[schemars(extend("pattern" = NAME))]
    pub name: Option<String>,
    /// The member of the cast who is asked. Default: a judge from outside.
    pub agent: Option<Key>,
    /// The question. It may use results, the state and variables.
    pub ask: Option<WrittenTemplate>,
    /// What the verdict is one of. The model can say nothing else, and the log-probability of each option is recorded.
    pub choice: Option<WrittenChoice>,
    /// The form of the verdict: JSON that a schema allows.
    pub reply: Option<WrittenReply>,
}
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TextsVisitor)
    }
}

struct TextsVisitor;

impl<'de> Visitor<'de> for TextsVisitor {
    type Value = Texts;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a mapping from results to texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Texts, A::Error> {
        let mut texts = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            texts.push(entry);
        }
        Ok(Texts(texts))
    }
}

impl DecisionMode {
    /// The word, as it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::MajorityVote => "majority_vote",
            Self::RankedChoice => "ranked_choice",
            Self::CoordinatorDecides => "coordinator_decides",
            Self::Consensus => "consensus",
        }
    }
}

impl From<Scalar> for Value {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Text(text) => text.into(),
            Scalar::Number(number) => number.into(),
            Scalar::Truth(truth) => truth.into(),
        }
    }
}

impl WrittenExpression {
    /// The expression's text; a number or truth value stands for itself.
    pub fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Number(number) => number.to_string(),
            Self::Truth(truth) => truth.to_string(),
        }
    }
}

/// What a template can name.
const NAME: &str = "^[A-Za-z_][A-Za-z0-9_]*$";

/// Colours that are known by name, in any case.
pub(super) const COLORS: &[&str] = &[
    "black", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "gray", "grey", "orange",
    "purple", "violet", "pink", "brown", "gold", "teal", "lime", "navy", "indigo",
];

fn colors() -> serde_json::Value {
    let any_case =
        |name: &&str| name.chars().map(|c| format!("[{c}{}]", c.to_ascii_uppercase())).collect::<String>();
    let names: Vec<String> = COLORS.iter().map(any_case).collect();
    let pattern = format!("^(#([0-9a-fA-F]{{3}}){{1,2}}|{})$", names.join("|"));
    serde_json::json!([{ "type": "null" }, { "type": "string", "pattern": pattern }])
}

/// The JSON Schema of scenario files.
pub fn json_schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
        let mut schema = schema_for!(Written);
        super::names::add_to(&mut schema);
        super::language::add_to(&mut schema);
        // In the order of their names, whatever the features that other crates ask of serde_json.
        let mut value = schema.to_value();
        value.sort_all_objects();
        value.try_into().unwrap_or_default()
    });
    &SCHEMA
}
