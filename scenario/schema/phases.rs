//! Phases, blocks of phases and their turns, as written.

use super::replies::WrittenAnswer;
use super::values::{
    FOR, Key, Keys, NAME, WrittenCast, WrittenCount, WrittenExpression, WrittenTemplate, WrittenText,
};
use crate::hints::WrittenSampling;
use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::Deserialize;

/// A phase, or a block of phases.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(untagged)]
pub enum WrittenPart {
    /// A phase.
    Phase(Box<WrittenPhase>),
    /// A block.
    Block(WrittenBlock),
}

/// Phases that are played in order, repeatedly: a number of times (`repeat`), or once for each item of a list
/// (`for`). A block may contain blocks, but no deeper nesting. In its texts and conditions, `pass` is the
/// number of the pass and `passes` the maximum number of passes; the name of a phase refers to its latest
/// pass, and `phases['NAME.PASS']` to a certain one, such as `phases['talk.2']` or `phases['talk.market']`. In a
/// block inside another block, `outer.pass` and `outer.passes` are those of the outer block.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Block", deny_unknown_fields, extend(
    "required" = ["phases"],
    "oneOf" = [{ "required": ["repeat"] }, { "required": ["for"] }]
))]
pub struct WrittenBlock {
    /// Maximum number of times the phases are played.
    pub repeat: Option<WrittenCount>,
    /// Plays the phases once for each item of a list: `NAME in LIST`, such as `place in places` or
    /// `one, other in couples`, where the list is an expression over variables. Texts and expressions in the
    /// block use the item by its name. If the casts of the passes are known before the run and share nobody,
    /// the passes are played at the same time.
    #[serde(rename = "for")]
    #[schemars(extend("pattern" = FOR))]
    pub items: Option<String>,
    /// The block ends after the pass in which this is true; `pass` is the number of that pass.
    pub until: Option<WrittenExpression>,
    /// The block is only played if this is true when it would begin; `pass` is 1.
    pub when: Option<WrittenExpression>,
    /// The phases.
    #[schemars(extend("minItems" = 1))]
    pub phases: Option<Vec<Option<WrittenPart>>>,
}

/// A scene: who is present, who speaks when, who hears it, and what results from it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Phase", deny_unknown_fields, extend(
    "required" = ["name", "agents"],
    "not" = { "anyOf": [
        { "required": ["order", "turns"] }, { "required": ["order", "pairs"] }, { "required": ["order", "moderator"] },
        { "required": ["turns", "pairs"] }, { "required": ["turns", "moderator"] },
        { "required": ["pairs", "moderator"] }
    ] }
))]
pub struct WrittenPhase {
    /// Short name, used in templates, expressions and paths: letters, digits and `_`.
    #[schemars(extend("pattern" = NAME))]
    pub name: Option<String>,
    /// Title shown to people. Default: the name.
    pub label: Option<WrittenText>,
    /// Who is present, in speaking order: a list of keys, or an expression that returns one, such as the name
    /// of a list in the state. The expression is evaluated when the phase opens, and the agents in its list
    /// speak in the order of `agents`. Agents who are not present neither speak nor hear.
    #[schemars(extend("minItems" = 1))]
    pub agents: Option<WrittenCast>,
    /// The phase is only played if this is true when it would begin.
    pub when: Option<WrittenExpression>,
    /// Picks the speakers by what they have read. Agents who are not picked neither speak nor hear.
    pub route: Option<WrittenRoute>,
    /// Who speaks when. Instead of `order`, a phase may have `pairs`, a `moderator`, or `turns`.
    pub order: Option<WhoSpeaks>,
    /// In each round the pairs of this list speak to each other, first the first of the two, then the other,
    /// and only they hear it: `[[ann, ben], [ann, cas]]`. Or an expression that returns such a list at the
    /// beginning of each round, in which nobody is in two pairs: `players | shuffle | batch(2)` pairs them at
    /// random. An agent left over, alone in its list, does not speak in that round.
    pub pairs: Option<WrittenPairs>,
    /// In each round this agent says who speaks.
    pub moderator: Option<Key>,
    /// Whether the moderator may name the agent who spoke last again. Default: `true`.
    pub again: Option<bool>,
    /// The order of turns, written out: each round plays this list.
    #[schemars(extend("minItems" = 1))]
    pub turns: Option<Vec<Option<WrittenTurn>>>,
    /// Rounds to play. Default: 1, or as many as `max_turns` needs. With 0, nobody talks: all only vote, or
    /// only read the opening of the phase.
    pub rounds: Option<WrittenCount>,
    /// Maximum number of turns in the phase, not counting votes and the moderator's choices.
    #[schemars(extend("minimum" = 1))]
    pub max_turns: Option<u64>,
    /// The phase ends after the round in which this is true; `rounds` is the maximum. It can use the phase's
    /// own results, and `round`.
    pub until: Option<WrittenExpression>,
    /// Rules of a debate, read by everybody when the phase opens.
    pub debate_format: Option<DebateFormat>,
    /// What everybody reads when the phase opens. It is rendered for each agent: `me` is the reader.
    pub prompt: Option<WrittenTemplate>,
    /// What else is read in the phase, by some of those present or around each round.
    pub say: Option<WrittenSays>,
    /// What each speaker is asked before its reply. It can use what was said earlier in the phase, and `round`.
    /// If a turn has an `ask` of its own, it is asked both, its own first, where it gives the phase's `answer`;
    /// else only its own.
    pub ask: Option<WrittenTemplate>,
    /// The form of every turn's reply: a choice, or a text of a form.
    pub answer: Option<WrittenAnswer>,
    /// A secret vote after the rounds.
    pub vote: Option<WrittenVote>,
    /// Who hears what is said in the phase: `all` (everybody present, the default), `nobody` (only the speaker
    /// remembers it), agents (all whisper to them), or a mapping from those who whisper to those who hear them:
    /// `{ ben: ann, ann: [ben, cas] }`.
    pub to: Option<WrittenAudience>,
    /// Who hears the whispers of others, by agent: `{ cas: ben }` lets Cas hear whatever Ben says.
    #[schemars(with = "Option<IndexMap<String, Keys>>")]
    pub overhears: Option<IndexMap<String, Option<Keys>>>,
    /// Changes to the state after the phase and its vote, if the phase is played; or, with `after: round`,
    /// after each round played. A list holds changes of both kinds.
    pub set: Option<WrittenSets>,
    /// Whether strategies start over: from each time this phase is played, in each pass of a block, the
    /// strategies of the agents who are present go only by what is said and chosen in it and after it.
    /// Default: `false`.
    pub fresh: Option<bool>,
    /// The model that answers: a name under `models`. A turn's takes precedence, then its phase's, the agent's
    /// and the scenario's. A memory belongs to one model, so an agent with a permanent memory has the same
    /// model in all phases.
    pub model: Option<String>,
    /// How replies are sampled, limited and ended.
    pub sampling: Option<WrittenSampling>,
}

/// Pairs of agents, or an expression that returns them.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Pairs", untagged)]
pub enum WrittenPairs {
    /// Pairs of keys.
    List(#[schemars(with = "Vec<(Key, Key)>", extend("minItems" = 1))] Vec<Option<Vec<Option<Key>>>>),
    /// An expression.
    Text(String),
}

/// Picks the speakers when the phase opens: the agents who have read what is nearest to a query. Everything
/// an agent has read and said in earlier phases is compared piece by piece. A piece is a message, or a
/// paragraph of what the stage has told it. The run records who was picked, so a replay needs no model.
/// `query` is required.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Route", deny_unknown_fields, extend("required" = ["query"]))]
pub struct WrittenRoute {
    /// The query, such as `{{ question }}`.
    pub query: Option<WrittenTemplate>,
    /// The agents that can be picked: permanent agents of the phase. Default: all who speak in it. The
    /// phase's other agents are present in any case.
    pub among: Option<Keys>,
    /// Maximum number of agents to pick. Default: 1.
    #[schemars(extend("minimum" = 1))]
    pub take: Option<u64>,
    /// The minimum score for an agent to be picked, from -1 to 1. Models differ in their scores for the same
    /// texts; a run shows its scores. Default: no minimum.
    #[schemars(extend("minimum" = -1, "maximum" = 1))]
    pub least: Option<f64>,
    /// How many of an agent's nearest pieces its score is the mean of. Default: 1.
    #[schemars(extend("minimum" = 1))]
    pub best: Option<u64>,
    /// The agents among them who speak if nobody scores high enough. Default: nobody.
    pub otherwise: Option<Keys>,
}

/// One turn of a written-out order.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Turn", deny_unknown_fields, extend("required" = ["agent"]))]
pub struct WrittenTurn {
    /// Who speaks: a key, or an expression that returns one, such as the name of a value in the state. If it
    /// returns nobody who is present, the turn is not played.
    pub agent: Option<Key>,
    /// The turn is only played if this is true. It can use what was said earlier in the phase, and `round`.
    pub when: Option<WrittenExpression>,
    /// What the speaker is asked. It can use what was said earlier in the phase, and `round`.
    pub ask: Option<WrittenTemplate>,
    /// The form of the reply. A choice counts as one of the phase: in `choices`, `history`, `votes` and payoffs.
    pub answer: Option<WrittenAnswer>,
    /// Who hears it: `all`, `nobody`, or agents, to whom it is whispered. Default: as the phase's `to`.
    pub to: Option<Keys>,
    /// Changes to the state after the turn, if it is played; `each` as in a phase.
    #[schemars(with = "Option<IndexMap<String, WrittenExpression>>")]
    pub set: Option<IndexMap<String, Option<WrittenExpression>>>,
    /// The model that answers: a name under `models`. A turn's takes precedence, then its phase's, the agent's
    /// and the scenario's. A memory belongs to one model, so an agent with a permanent memory has the same
    /// model in all phases.
    pub model: Option<String>,
    /// How replies are sampled, limited and ended.
    pub sampling: Option<WrittenSampling>,
}

/// What else the stage says in a phase: private texts by agent, read when the phase opens,
/// `{ ann: You are rich. }`, or a list of texts.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Says", untagged)]
pub enum WrittenSays {
    /// Private texts.
    Long(#[schemars(with = "IndexMap<String, WrittenTemplate>")] IndexMap<String, Option<WrittenTemplate>>),
    /// Texts with their times and readers.
    List(#[schemars(with = "Vec<WrittenSay>", extend("minItems" = 1))] Vec<Option<WrittenSay>>),
}

/// A text that the stage says, besides the `prompt`. Around rounds it can use `round`, `rounds` (the maximum number
/// of rounds), and the results of the phase so far: its choices and votes, and `payoffs`. If the text is empty,
/// nothing is read.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Say", deny_unknown_fields, extend("required" = ["text"]))]
pub struct WrittenSay {
    /// When it is read. Default: `start`.
    pub at: Option<Moment>,
    /// Who reads it. Default: everybody present.
    pub to: Option<Keys>,
    /// What is read.
    pub text: Option<WrittenTemplate>,
}

/// When something is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// When the phase opens, after the `prompt`. The default.
    #[default]
    Start,
    /// Before each round.
    RoundStart,
    /// After each round.
    RoundEnd,
}

/// A vote: secret, all at once, after the rounds of the phase. The result is announced to all who are present.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Vote", deny_unknown_fields, extend("required" = ["rule", "answer"]))]
pub struct WrittenVote {
    /// How the votes decide.
    pub rule: Option<VoteRule>,
    /// The options: an `answer` that is a choice.
    pub answer: Option<WrittenAnswer>,
    /// What the voters are asked. Default: only the options are listed.
    pub ask: Option<WrittenTemplate>,
    /// Who votes: a list of keys, or an expression that returns one, evaluated before each vote; for the rule
    /// `leader` the key of one agent. Default: all who speak.
    #[schemars(extend("minItems" = 1))]
    pub by: Option<WrittenCast>,
    /// Maximum number of votes for a `consensus`. Default: 3.
    #[schemars(extend("minimum" = 1, "maximum" = 100))]
    pub attempts: Option<u64>,
    /// Whether the result stays secret: it is not announced. Texts can reveal it later. Default: `false`.
    pub secret: Option<bool>,
}

/// Who hears what is said in a phase.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Audience", untagged)]
pub enum WrittenAudience {
    /// `all`, `nobody`, or a single agent.
    One(String),
    /// Several agents.
    Many(#[schemars(with = "Vec<String>", extend("minItems" = 1))] Vec<Option<String>>),
    /// By speaker.
    Long(#[schemars(with = "IndexMap<String, Keys>")] IndexMap<String, Option<Keys>>),
}

/// Changes of the state: new values by name, evaluated from top to bottom, or a list of such mappings. A
/// mapping may have `after`: `phase` (the default) or `round`. After a round, they can use the results of the
/// phase so far, and `round`, and what is said at the end of the round sees them. With `each`, an expression
/// that returns agent keys, the values are those of these agents, in mappings by agent: an expression is
/// evaluated for each of them as `me`, and all of them see the mapping as it was before.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Set", untagged)]
pub enum WrittenSets {
    /// After the phase, or after each round.
    Long(#[schemars(with = "IndexMap<String, WrittenExpression>")] WrittenSet),
    /// Both.
    List(
        #[schemars(with = "Vec<IndexMap<String, WrittenExpression>>", extend("minItems" = 1))]
        Vec<Option<WrittenSet>>,
    ),
}

/// New values by name, and `after`.
pub type WrittenSet = IndexMap<String, Option<WrittenExpression>>;

/// Who speaks when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhoSpeaks {
    /// In each round everybody speaks once, in order, and hears those who spoke before. The default.
    RoundRobin,
    /// Like `round_robin`, but each round begins with the next agent, and the one who spoke first speaks last.
    Rotating,
    /// Like `round_robin`, but each round is in an order of its own, drawn from the run's seed.
    Random,
    /// In each round all speak at once and do not hear each other until the next round.
    Broadcast,
    /// Like `round_robin`, but after each turn the agents who are not next are asked whether to cut in, each
    /// at most once per round. The first in order who wants to cut in speaks.
    Interrupt,
}

/// The rules of a debate.
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
    /// Everybody adds one new thought per round and says whose it builds on.
    Roundtable,
    /// Government and opposition take turns on a motion: the first speaks for the government, the second for
    /// the opposition, and so on.
    Parliamentary,
}

/// How votes decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VoteRule {
    /// The option with the most votes; if several options tie, nothing is decided (`tied`).
    Majority,
    /// All rank all options; the options with the fewest first places are removed until one has more than
    /// half. If the remaining options tie, nothing is decided (`tied`).
    Ranked,
    /// All must agree. Until they do, another round and another vote follow, up to `attempts` votes in total;
    /// once `max_turns` is reached, only votes follow.
    Consensus,
    /// One agent, `by`, chooses for all.
    Leader,
}
