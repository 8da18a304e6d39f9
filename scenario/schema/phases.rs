//! Phases, blocks of phases and their turns, as written.

use super::replies::{WrittenChoice, WrittenGrammar, WrittenReply};
use super::values::{
    Key, Keys, NAME, WrittenCast, WrittenCount, WrittenExpression, WrittenTemplate, WrittenText,
};
use crate::InteractionKind;
use crate::hints::with_hints;
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

/// Phases that are played in order, repeatedly. A block may contain blocks, but no deeper nesting. In its
/// texts and conditions, `pass` is the number of the pass and `passes` the maximum number of passes; the name
/// of a phase refers to its latest pass. In a block inside another block, `outer.pass` and `outer.passes` are
/// those of the outer block.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Block", deny_unknown_fields, extend("required" = ["repeat", "phases"]))]
pub struct WrittenBlock {
    /// Maximum number of times the phases are played.
    pub repeat: Option<WrittenCount>,
    /// The block ends after the pass in which this is true; `pass` is the number of that pass.
    pub until: Option<WrittenExpression>,
    /// The block is only played if this is true when it would begin; `pass` is 1.
    pub when: Option<WrittenExpression>,
    /// The phases.
    #[schemars(extend("minItems" = 1))]
    pub phases: Option<Vec<Option<WrittenPart>>>,
}

with_hints! {
/// A scene: who is present, who speaks when, who hears it, and what results from it.
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
    pub label: Option<WrittenText>,
    /// Who is present, in speaking order: a list of keys, or an expression that returns one, such as the name
    /// of a list in the state. The expression is evaluated when the phase opens, and the agents in its list
    /// speak in the order of `agents`. Agents who are not present neither speak nor hear.
    #[schemars(extend("minItems" = 1))]
    pub agents: Option<WrittenCast>,
    /// Picks the speakers by what they have read. Agents who are not picked neither speak nor hear.
    pub route: Option<WrittenRoute>,
    /// Who speaks when.
    pub order: Option<WhoSpeaks>,
    /// Rules of a debate, read by everybody when the phase opens.
    pub debate_format: Option<DebateFormat>,
    /// How the phase decides between the options of its `choice`: by a secret vote of all who speak, after
    /// the rounds. The result is announced to all who are present.
    pub decision_mode: Option<DecisionMode>,
    /// What everybody reads when the phase opens. It is rendered for each agent: `me` is the reader. Under
    /// the name `initial_prompt_template`, it is read only by agents without a private text, and replaces an
    /// `initial_prompt` given as well.
    pub prompt: Option<WrittenTemplate>,
    /// Read instead of `initial_prompt` by agents without a private text.
    pub initial_prompt_template: Option<WrittenTemplate>,
    /// Private openings, by agent: what only that agent reads, right after `prompt`.
    #[schemars(with = "Option<IndexMap<String, WrittenTemplate>>")]
    pub private_prompts: Option<IndexMap<String, Option<WrittenTemplate>>>,
    /// What the stage says before or after each round played, such as scores.
    #[schemars(extend("minItems" = 1))]
    pub announce: Option<Vec<Option<WrittenAnnouncement>>>,
    /// Changes to the state after each round played: expressions by name, evaluated from top to bottom. They
    /// can use the results of the phase so far, and `round`. Announcements after the round see the changes.
    #[schemars(with = "Option<IndexMap<String, WrittenExpression>>")]
    pub set_each_round: Option<IndexMap<String, Option<WrittenExpression>>>,
    /// Changes to the state after the phase and its vote, if the phase is played.
    #[schemars(with = "Option<IndexMap<String, WrittenExpression>>")]
    pub set: Option<IndexMap<String, Option<WrittenExpression>>>,
    /// Rounds to play. Default: 1, or as many as `max_turns` needs. With 0, nobody talks: all only vote, or
    /// only read the opening of the phase.
    pub rounds: Option<WrittenCount>,
    /// Maximum number of turns in the phase, not counting votes and the moderator's choices.
    #[schemars(extend("minimum" = 1))]
    pub max_turns: Option<u64>,
    /// The order of turns, written out: each round plays this list. It replaces `order`.
    #[schemars(extend("minItems" = 1))]
    pub turns: Option<Vec<Option<WrittenTurn>>>,
    /// Who hears whom. Default: everybody present hears everything.
    pub interactions: Option<Vec<Option<WrittenInteraction>>>,
    /// The phase is only played if this is true when it would begin.
    pub when: Option<WrittenExpression>,
    /// The phase ends after the round in which this is true; `rounds` is the maximum. It can use the phase's
    /// own results, and `round`.
    pub until: Option<WrittenExpression>,
    /// The options for the reply of every turn; with a `decision_mode`, the options that the phase decides
    /// between. The model can reply with nothing else, and the log-probability of each option is recorded.
    pub choice: Option<WrittenChoice>,
    /// Like `choice`, but the agent answers in its own words, which are searched for the options. A reply is
    /// `invalid` if it is not clear which option it chooses: it names none, or two, or one in a sentence with
    /// a negation, or only in questions. Negations of many languages are known, also of those without spaces
    /// between words. A number counts with its sign and decimals: `-1` does not choose `1`, and `3.5` does
    /// not choose `3`.
    pub parse_choice: Option<WrittenChoice>,
    /// The form of every turn's reply: JSON that fits a schema. The model can reply with nothing else;
    /// `replies` contains the values.
    pub reply: Option<WrittenReply>,
    /// Like `reply`, for a form that is not JSON.
    pub grammar: Option<WrittenGrammar>,
    /// Whether strategies start over: from each time this phase is played, in each pass of a block, the
    /// strategies of the agents who are present go only by what is said and chosen in it and after it.
    /// Default: `false`.
    pub fresh: Option<bool>,
    /// Who gives the floor in a `moderated` phase. Default: the agent whose role is `moderator`.
    pub moderator: Option<Key>,
    /// Whether the moderator may name the agent who spoke last again. Default: `true`.
    pub again: Option<bool>,
    /// Who decides under `coordinator_decides`. Default: the agent whose role is `coordinator`.
    pub coordinator: Option<Key>,
    /// Who votes: a list of keys, or an expression that returns one, evaluated before each vote. Default: all
    /// who speak.
    #[schemars(extend("minItems" = 1))]
    pub voters: Option<WrittenCast>,
    /// Whether choices are secret: nobody hears what others choose in this phase, and the result of its vote
    /// is not announced. Texts can reveal it later. Default: `false`.
    pub secret: Option<bool>,
    /// Who hears what is said in this phase. Default: as `interactions` say.
    pub hears: Option<WhoHears>,
    /// Maximum number of votes in a `consensus`. Default: 3.
    #[schemars(extend("minimum" = 1, "maximum" = 100))]
    pub attempts: Option<u64>,
}
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

with_hints! {
/// One turn of a written-out order.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Turn", deny_unknown_fields, extend(
    "required" = ["agent"],
    "not" = { "required": ["choice", "parse_choice"] }
))]
pub struct WrittenTurn {
    /// Who speaks.
    pub agent: Option<Key>,
    /// What the speaker is asked. It can use what was said earlier in the phase, and `round`.
    pub ask: Option<WrittenTemplate>,
    /// The turn is only played if this is true. It can use what was said earlier in the phase, and `round`.
    pub when: Option<WrittenExpression>,
    /// Like the phase's `choice`, for this turn. It counts as a choice of the phase: in `choices`, `history`,
    /// `votes` and payoffs.
    pub choice: Option<WrittenChoice>,
    /// Like the phase's `parse_choice`, for this turn.
    pub parse_choice: Option<WrittenChoice>,
    /// Like the phase's `reply`, for this turn.
    pub reply: Option<WrittenReply>,
    /// Like the phase's `grammar`, for this turn.
    pub grammar: Option<WrittenGrammar>,
    /// Who hears it: a whisper. Default: as `interactions` say.
    pub to: Option<Keys>,
    /// `none`: nobody hears it. Default: as the phase's `hears`.
    pub hears: Option<WhoHears>,
    /// Changes to the state after the turn, if it is played.
    #[schemars(with = "Option<IndexMap<String, WrittenExpression>>")]
    pub set: Option<IndexMap<String, Option<WrittenExpression>>>,
}
}

/// What the stage says about a round. It can use `round`, `rounds` (the maximum number of rounds), and the
/// results of the phase so far: its choices and votes, and `payoffs`. If the text is empty, nothing is read.
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

/// Who hears whom in a phase. An agent speaks in public or in whispers within one phase, not both; `to` in a
/// written-out turn makes that one turn a whisper.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "Interaction", deny_unknown_fields, extend("required" = ["from", "kind"]))]
pub struct WrittenInteraction {
    /// Who speaks; with `observe`, who listens.
    pub from: Option<Key>,
    /// Whom it concerns. Optional if `kind` is `public`.
    pub to: Option<Keys>,
    /// What happens between them.
    pub kind: Option<InteractionKind>,
}

/// Who speaks when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhoSpeaks {
    /// In each round everybody speaks once, in order, and hears those who spoke before. The default.
    RoundRobin,
    /// Like `round_robin`, but each round begins with the next in order: whoever spoke first speaks last.
    Rotating,
    /// In each round all speak at once and do not hear each other until the next round.
    Broadcast,
    /// In each round the pairs of `interactions` speak to each other, first `from`, then `to`, and only they
    /// hear it. List each pair once.
    Whisper,
    /// Like `round_robin`, but after each turn the agents who are not next are asked whether to cut in, each
    /// at most once per round. The first in order who wants to cut in speaks.
    Interrupt,
    /// In each round the moderator says who speaks.
    Moderated,
}

/// Who hears what is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhoHears {
    /// As set by `interactions`. The default.
    All,
    /// Nobody. Only the speaker remembers it.
    None,
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

/// A way to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DecisionMode {
    /// There is no vote. The default.
    None,
    /// The option with the most votes; if several options tie, nothing is decided (`tied`).
    MajorityVote,
    /// All rank all options; the options with the fewest first places are removed until one has more than
    /// half. If the remaining options tie, nothing is decided (`tied`).
    RankedChoice,
    /// One agent chooses for all.
    CoordinatorDecides,
    /// All must agree. Until they do, another round and another vote follow, up to `attempts` votes in total;
    /// once `max_turns` is reached, only votes follow.
    Consensus,
}

impl DecisionMode {
    /// The word as written in a scenario.
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
