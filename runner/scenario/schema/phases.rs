//! Phases, blocks of phases and their turns, as written.

use super::replies::{WrittenChoice, WrittenGrammar, WrittenReply};
use super::values::{Key, Keys, NAME, WrittenCast, WrittenCount, WrittenExpression, WrittenTemplate};
use crate::scenario::InteractionKind;
use crate::scenario::hints::with_hints;
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
