//! The checked scenario: its agents, blocks and results. Its phases are in `phase`.

use crate::language::Language;
use crate::template::Expression;
use crate::*;
use greenroom_yaml::diagnostic::Sources;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

/// Index of an agent in [`Content::agents`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AgentId(pub usize);

/// Index of a pass in [`Content::passes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PassId(pub usize);

/// Index of a phase in [`Content::phases`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PhaseId(pub usize);

/// A checked scenario, with its plan. Its fields are those of [`Content`].
#[derive(Debug)]
pub struct Scenario {
    content: Content,
    /// Made when it is first asked for; a change of the content removes it.
    plan: OnceLock<Arc<Plan>>,
    /// The files it was read from.
    pub sources: Sources,
    /// The places of values in them.
    pub tree: Tree,
}

impl Deref for Scenario {
    type Target = Content;

    fn deref(&self) -> &Content {
        &self.content
    }
}

/// Removes the plan: it would be another one.
impl DerefMut for Scenario {
    fn deref_mut(&mut self) -> &mut Content {
        self.plan.take();
        &mut self.content
    }
}

/// All that a scenario's plan depends on, and what its texts and results are made from.
#[derive(Debug)]
pub struct Content {
    /// Short name: letters, digits, `-` and `_`.
    pub id: String,
    /// Title shown to people.
    pub title: String,
    /// Its subject.
    pub description: String,
    /// Values for templates, overrides applied.
    pub variables: BTreeMap<String, serde_json::Value>,
    /// The cases of its file, or that which it is played with; none where it names no file, or the file is
    /// not there.
    pub cases: Option<Vec<Case>>,
    /// The state: its values before the first turn; where they are computed, for one seed.
    pub state: BTreeMap<String, serde_json::Value>,
    /// The values among them that are computed when a run begins.
    pub computed: Vec<(String, Expression)>,
    /// Intermediate values, by name; each may use those before it.
    pub lets: Vec<(String, Expression)>,
    /// The overrides: variables (`a`) or parts of them (`a.b`) and their values from outside, in the order
    /// given.
    pub overrides: Vec<(String, serde_json::Value)>,
    /// True if it is read for a recording by the first rules (see `transcript::RULES`).
    pub by_first_rules: bool,
    /// What the stage says.
    pub language: Arc<Language>,
    /// Models by name, as they are written.
    pub models: BTreeMap<String, String>,
    /// Name of the model that memories are looked up by; `None`: the model of who is asked.
    pub embeddings: Option<String>,
    /// Tools that agents may call, in the order of the file.
    pub tools: Vec<Tool>,
    /// Settings of all replies.
    pub hints: Hints,
    /// The agents, in the order of the file.
    pub agents: Vec<Agent>,
    /// The phases, in order; those of a block once for each pass.
    pub phases: Vec<Phase>,
    /// The passes of all blocks, in order.
    pub passes: Vec<Pass>,
    /// The payoff of choices.
    pub payoff: Option<Payoff>,
    /// Results to compute at the end.
    pub outcomes: Vec<(String, Expression)>,
    /// How it ends, for a file of the papers' format.
    pub ending: Option<papers::Ending>,
    /// Assertions that must hold at the end.
    pub assertions: Vec<Assertion>,
}

/// One agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    /// Key in the file.
    pub key: String,
    /// Name that others see.
    pub name: String,
    /// The agent's role; may be empty.
    pub role: String,
    /// What else is known of it, by name.
    pub traits: Arc<BTreeMap<String, serde_json::Value>>,
    /// The system text as rendered: constant for the whole run.
    pub system: String,
    /// The path of the system text in the file.
    pub system_path: Path,
    /// The lifetime of its memory.
    pub lifecycle: Lifecycle,
    /// True if it only listens.
    pub is_silent: bool,
    /// Colour on a terminal.
    pub color: Option<Color>,
    /// The strategy that answers instead of the model.
    pub strategy: Option<Strategy>,
    /// The response to a full context.
    pub memory: MemoryPolicy,
    /// The tools that it may call.
    pub tools: Vec<ToolId>,
    /// Calls that it may make in one turn.
    pub max_calls: usize,
    /// Settings of its replies.
    pub hints: Hints,
    /// True of a judge from outside: no member of the cast, known to nobody, who reads all that was said.
    pub is_outside: bool,
}

/// How an agent's memory continues when it is full: in a new epoch, which begins with the system text and
/// what is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPolicy {
    /// What is kept.
    pub keep: Keep,
    /// The most recent pieces that are kept, at most; `None`: as many as fit.
    pub recent: Option<usize>,
    /// Pieces before them that are kept, at most: the nearest to what the agent has just heard.
    pub nearest: usize,
}

/// What an agent keeps when the model's context is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// Everything: when the context is full, the run ends. `check` predicts this and rejects such a scenario.
    /// The default.
    #[default]
    All,
    /// A summary that the agent writes for itself.
    Summary,
    /// The most recent pieces.
    Window,
    /// The most recent pieces, and of the earlier ones those nearest to what the agent has just heard.
    Retrieve,
}

/// How long an agent remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Lifecycle {
    /// One memory for the whole run, kept afterwards. The default.
    Permanent,
    /// A fresh memory in each phase, forgotten after it.
    Ephemeral,
}

impl Lifecycle {
    /// As files write it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Permanent => "permanent",
            Self::Ephemeral => "ephemeral",
        }
    }
}

/// A colour on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Color {
    /// One of the 256 terminal colours.
    Indexed(u8),
    /// Red, green, blue.
    Rgb(u8, u8, u8),
}

/// One pass of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Its number, from 1.
    pub number: usize,
    /// The number of passes that there can be.
    pub of: usize,
    /// What it is played for, in a block for each item of a list.
    pub item: Option<Arc<Item>>,
    /// The pass of another block that contains it.
    pub within: Option<PassId>,
    /// The pass before it, of the same block.
    pub before: Option<PassId>,
    /// Its phases.
    pub phases: std::ops::Range<usize>,
    /// The block's condition for being played at all.
    pub when: Option<Expression>,
    /// The condition for its being the last.
    pub until: Option<Expression>,
}

impl Pass {
    /// Its number, or its item, in the names of phases.
    pub fn part(&self) -> String {
        self.item.as_ref().map_or_else(|| self.number.to_string(), |item| item.part.clone())
    }
}

/// An item of the list that a block is played for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// How it stands in the names of phases.
    pub part: String,
    /// Its value by the name that the block gives it; its parts, where it gives several.
    pub values: BTreeMap<String, serde_json::Value>,
}

/// A new value of something in the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Its name.
    pub name: String,
    /// The agents whose entries of a mapping are changed, with `me` for each; none: the whole value is.
    pub each: Option<Expression>,
    /// The value.
    pub value: Expression,
}

impl Assignment {
    /// The expressions that it evaluates.
    pub fn expressions(&self) -> impl Iterator<Item = &Expression> {
        self.each.iter().chain([&self.value])
    }
}

/// The payoff of a phase's choices.
#[derive(Clone, Debug, PartialEq)]
pub struct Payoff {
    /// The phases whose choices count.
    pub phases: Vec<PhaseId>,
    /// The players.
    pub players: Vec<AgentId>,
    /// The choice of each of them.
    pub choices: Vec<Arc<Choice>>,
    /// The unit of the payoffs.
    pub unit: String,
    /// The rule.
    pub rule: PayoffRule,
}

/// A rule that values choices.
#[derive(Clone, Debug, PartialEq)]
pub enum PayoffRule {
    /// For each combination of options (by index in `choices`, in the players' order), a value for each
    /// player.
    Matrix(BTreeMap<Vec<usize>, Vec<Expression>>),
    /// One expression for every player.
    Each(Expression),
}

/// Something that must hold at the end.
#[derive(Clone, Debug, PartialEq)]
pub struct Assertion {
    /// The expression; where a judge decides, its scope names the phase of the verdict.
    pub that: Expression,
    /// The meaning of its failure.
    pub why: Option<String>,
    /// The share of many runs in which it must hold; `None`: it must hold in every run.
    pub share: Option<Share>,
}

impl Scenario {
    pub(crate) fn new(content: Content, sources: Sources) -> Self {
        Self { content, plan: OnceLock::new(), sources, tree: Tree::default() }
    }

    /// Turns, and what each depends on.
    pub fn plan(&self) -> &Arc<Plan> {
        self.plan.get_or_init(|| Arc::new(compile::compile(self)))
    }

    /// The agent with an id of this scenario.
    pub fn agent(&self, id: AgentId) -> &Agent {
        &self.agents[id.0]
    }

    /// The phase with an id of this scenario.
    pub fn phase(&self, id: PhaseId) -> &Phase {
        &self.phases[id.0]
    }

    /// A model that the scenario names, resolved: the file itself if there is one of that path next to the
    /// scenario.
    pub fn model(&self, name: &str) -> Option<String> {
        let model = self.models.get(name)?;
        let folder =
            std::path::Path::new(&self.sources.main().name).parent().map(std::path::Path::to_path_buf);
        let file = folder.unwrap_or_default().join(model);
        Some(if file.is_file() { file.display().to_string() } else { model.clone() })
    }

    /// The model of those who have none of their own, if the scenario gives one.
    pub fn own_model(&self) -> Option<String> {
        self.model(self.hints.model.as_ref()?)
    }

    /// The model that a run is played with: the scenario's own; where it gives none and every turn that a
    /// model plays has another, the first of these.
    pub fn usual_model(&self) -> Option<String> {
        let played = self.plan().order().filter(|(_, turn)| self.agent(turn.speaker).strategy.is_none());
        let named = || played.map(|(_, turn)| turn.hints.model.as_deref()).collect::<Option<Vec<_>>>();
        self.own_model().or_else(|| self.model(named()?.first()?))
    }

    /// True if it gives any reply settings of its own, or a model.
    pub fn has_hints(&self) -> bool {
        let agents = self.agents.iter().map(|agent| &agent.hints);
        let phases = self.phases.iter().map(|phase| &phase.hints);
        let turns = self.phases.iter().flat_map(|phase| phase.script()).map(|turn| &turn.hints);
        [&self.hints].into_iter().chain(agents).chain(phases).chain(turns).any(|hints| !hints.is_empty())
    }

    /// The members of the cast: all agents but judges from outside.
    pub fn cast(&self) -> impl Iterator<Item = (AgentId, &Agent)> {
        let all = self.agents.iter().enumerate().map(|(id, agent)| (AgentId(id), agent));
        all.filter(|(_, agent)| !agent.is_outside)
    }

    /// The agent with a key.
    pub fn agent_by_key(&self, key: &str) -> Option<AgentId> {
        self.agents.iter().position(|agent| agent.key == key).map(AgentId)
    }

    /// The name of the agent with a key; the key itself where there is none.
    pub fn name_of<'a>(&'a self, key: &'a str) -> &'a str {
        self.agent_by_key(key).map_or(key, |id| &self.agent(id).name)
    }

    /// The phase with this name in transcripts, or the first of this name.
    pub fn phase_by_name(&self, name: &str) -> Option<PhaseId> {
        let part = self.phases.iter().position(|phase| phase.part == name);
        part.or_else(|| self.phases.iter().position(|phase| phase.name == name)).map(PhaseId)
    }

    /// blake3 (hex) of the files' texts.
    pub fn file_hash(&self) -> String {
        self.sources.hash()
    }

    /// blake3 (hex) of every template, by path.
    pub fn template_hashes(&self) -> BTreeMap<String, String> {
        let hash = |text: &str| blake3::hash(text.as_bytes()).to_hex().to_string();
        let systems = self.agents.iter().map(|agent| (agent.system_path.to_string(), hash(&agent.system)));
        let stages = self.phases.iter().flat_map(Phase::templates);
        systems.chain(stages.map(|template| (template.path.to_string(), hash(&template.text)))).collect()
    }
}
