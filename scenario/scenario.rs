//! The checked scenario: agents, phases, and what each turn needs to know of them.

use crate::language::Language;
use crate::template::{Expression, Template};
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

/// One phase, in a block in one pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Short name: letters, digits and `_`.
    pub name: String,
    /// The name in transcripts, which no other phase has: `name`, or `name.pass` in a block.
    pub part: String,
    /// Its place in the file.
    pub path: Path,
    /// The innermost pass in which it is played.
    pub pass: Option<PassId>,
    /// Title shown to people.
    pub label: String,
    /// The agents who can be present, in speaking order.
    pub agents: Vec<AgentId>,
    /// An expression for those of them who are present.
    pub cast: Option<Expression>,
    /// How some of them are picked to be present.
    pub route: Option<Arc<Route>>,
    /// The agents who can vote, where not all who speak do, and an expression for those of them who do.
    pub voters: Option<Voters>,
    /// True if the result of its vote is not announced.
    pub is_secret_vote: bool,
    /// True if no agent hears what is said in it.
    pub is_unheard: bool,
    /// True of the question to a judge, after all that the cast plays.
    pub is_judge: bool,
    /// Those of them who only listen.
    pub observers: Vec<AgentId>,
    /// The order of speaking.
    pub topology: Topology,
    /// Those who whisper, and to whom.
    pub whispers: BTreeMap<AgentId, Vec<AgentId>>,
    /// Those who hear the whispers of others, and whose.
    pub overhears: Vec<(AgentId, Vec<AgentId>)>,
    /// The condition for playing it.
    pub when: Option<Expression>,
    /// The condition for ending it before its last round.
    pub until: Option<Expression>,
    /// The choice that every turn, or the decision, makes.
    pub choice: Option<Arc<Choice>>,
    /// The question of every turn that is no choice.
    pub ask: Option<Arc<Template>>,
    /// The form of every turn's reply.
    pub form: Option<Arc<Form>>,
    /// The tool that is called in every turn before the reply.
    pub call: Option<Arc<str>>,
    /// How it decides.
    pub decision: Option<Decision>,
    /// Text of the debate format.
    pub format: Option<Template>,
    /// Opening for everybody.
    pub initial: Option<Template>,
    /// What some read besides when it opens.
    pub openings: Vec<(Vec<AgentId>, Template)>,
    /// Lines of the stage before and after rounds.
    pub announcements: Vec<Announcement>,
    /// Changes of the state after each round.
    pub set_each_round: Arc<[Assignment]>,
    /// Changes of the state after the phase.
    pub set: Arc<[Assignment]>,
    /// Rounds to play.
    pub rounds: usize,
    /// Maximum number of turns of the phase.
    pub max_turns: Option<usize>,
    /// True if strategies remember nothing of what was before it.
    pub fresh: bool,
    /// Settings of its replies.
    pub hints: Hints,
}

/// How those who speak in a phase are picked: by the nearness of a query to what they have read.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The query.
    pub query: Template,
    /// Those who may be picked, permanent agents, in speaking order.
    pub among: Vec<AgentId>,
    /// The number of those who are picked, at most.
    pub take: usize,
    /// The least score of one who is picked, from -1 to 1.
    pub least: Option<f64>,
    /// The number of an agent's nearest pieces that its score is the mean of.
    pub best: usize,
    /// Speakers if no agent is near enough.
    pub otherwise: Vec<AgentId>,
}

// No checked score is NaN.
impl Eq for Route {}

/// Those who vote in a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voters {
    /// The agents who can vote.
    pub agents: Vec<AgentId>,
    /// Those of them who do; none: all.
    pub among: Option<Expression>,
}

/// A line of the stage, read before or after each round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The text; empty: nothing is read.
    pub text: Template,
    /// True if it comes after the round.
    pub is_after: bool,
    /// The agents who read it.
    pub to: Vec<AgentId>,
}

/// The order of speaking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Each round, everybody once, in the order of `agents`; each hears those before.
    RoundRobin,
    /// The same, but each round begins one agent later.
    Rotating,
    /// The same, but each round is in an order of its own, drawn from the run's seed.
    Random,
    /// Each round, all answer at once; they hear each other at the next round.
    Broadcast,
    /// Each round, the first of each pair speaks to the second, then the second to the first.
    Whisper(Vec<(AgentId, AgentId)>),
    /// The same for the pairs that an expression gives at the beginning of the round; an agent is in one at
    /// most.
    Matched(Arc<Expression>),
    /// As round_robin; after each turn everybody else but the next in order is asked, all at once, whether to
    /// cut in, unless they have done so in this round; the first in order who wants to speaks next, once, and
    /// the order continues.
    Interrupt,
    /// Each round, the moderator chooses who speaks.
    Moderated {
        /// The moderator.
        by: AgentId,
        /// True if that may be the one who spoke last.
        again: bool,
    },
    /// Each round, these turns in order.
    Script(Vec<ScriptTurn>),
}

/// A turn of a written-out order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptTurn {
    /// The speaker.
    pub agent: AgentId,
    /// Its number among the agents who may have this turn, of whom one does; 0: the first, or the only one.
    pub variant: usize,
    /// The question to the speaker.
    pub ask: Option<Arc<Template>>,
    /// The condition for playing the turn.
    pub when: Option<Expression>,
    /// The choice that it makes.
    pub choice: Option<Arc<Choice>>,
    /// The form of its reply.
    pub form: Option<Arc<Form>>,
    /// The tool that is called before it.
    pub call: Option<Arc<str>>,
    /// The agents to whom it is whispered; empty: as in the phase.
    pub to: Vec<AgentId>,
    /// True if no agent hears it, false if others do; none: as in the phase.
    pub is_unheard: Option<bool>,
    /// Changes of the state after it.
    pub set: Arc<[Assignment]>,
    /// Settings of its reply.
    pub hints: Hints,
}

impl ScriptTurn {
    /// True if it has an `answer` of its own.
    pub fn has_answer(&self) -> bool {
        self.choice.is_some() || self.form.is_some() || self.call.is_some()
    }
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

impl Phase {
    /// True if it depends on what happens who of its agents is present.
    pub fn is_cast_open(&self) -> bool {
        self.cast.is_some() || self.route.is_some()
    }

    /// Leaves out all agents but these, who are present whatever happens.
    pub(crate) fn keep(&mut self, present: &[AgentId]) {
        let is_here = |agent: &AgentId| present.contains(agent);
        self.cast = None;
        self.agents.retain(is_here);
        self.observers.retain(is_here);
        self.openings.iter_mut().for_each(|(to, _)| to.retain(is_here));
        self.announcements.iter_mut().for_each(|said| said.to.retain(is_here));
        self.whispers.retain(|speaker, _| is_here(speaker));
        self.overhears.retain(|(by, _)| is_here(by));
        if let Some(voters) = &mut self.voters {
            voters.agents.retain(is_here);
        }
        match &mut self.topology {
            Topology::Whisper(pairs) => pairs.retain(|(one, other)| is_here(one) && is_here(other)),
            Topology::Script(turns) => {
                // The first that is left of the agents who may have a turn is its first variant.
                let mut is_first = true;
                turns.retain_mut(|turn| {
                    is_first |= turn.variant == 0;
                    let is_kept = is_here(&turn.agent);
                    if is_kept && std::mem::take(&mut is_first) {
                        turn.variant = 0;
                    }
                    is_kept
                });
            }
            _ => {}
        }
    }

    /// The query that its speakers are picked by.
    pub fn query(&self) -> Option<&Template> {
        self.route.as_ref().map(|route| &route.query)
    }

    /// The speakers of the rounds: not observers, not the moderator.
    pub fn speakers(&self) -> Vec<AgentId> {
        let silent = |agent: &AgentId| {
            self.observers.contains(agent)
                || matches!(&self.topology, Topology::Moderated { by, .. } if by == agent)
        };
        self.agents.iter().copied().filter(|agent| !silent(agent)).collect()
    }

    /// Who hears an agent.
    pub fn audience(&self, speaker: AgentId) -> Audience {
        self.whispers.get(&speaker).map_or(Audience::All, |to| self.whisper(speaker, to))
    }

    /// A whisper to some, and who overhears it.
    pub fn whisper(&self, speaker: AgentId, to: &[AgentId]) -> Audience {
        let others = self.overhears.iter().filter(|(_, of)| of.contains(&speaker)).map(|(by, _)| *by);
        let by = others.filter(|other| *other != speaker && !to.contains(other)).collect();
        Audience::Whisper { to: to.to_vec(), by }
    }

    /// All templates and expressions of the phase that are read before or during its turns.
    pub fn asks(&self) -> impl Iterator<Item = &Template> {
        let asked = self.choices().filter_map(|choice| choice.ask.as_deref()).chain(self.ask.as_deref());
        asked.chain(self.script().iter().filter_map(|turn| turn.ask.as_deref()))
    }

    /// All texts of the phase.
    pub fn templates(&self) -> impl Iterator<Item = &Template> {
        let shared = [&self.format, &self.initial];
        let announced = self.announcements.iter().map(|announcement| &announcement.text);
        let opening = shared.into_iter().flatten().chain(self.query());
        opening.chain(self.openings.iter().map(|(_, text)| text)).chain(self.asks()).chain(announced)
    }

    /// All that changes the state in the phase.
    pub fn sets(&self) -> impl Iterator<Item = &Assignment> {
        let of_turns = self.script().iter().map(|turn| &turn.set);
        [&self.set_each_round, &self.set].into_iter().chain(of_turns).flat_map(|set| set.iter())
    }

    /// The turns of a written-out order; none, where there is a topology.
    pub fn script(&self) -> &[ScriptTurn] {
        match &self.topology {
            Topology::Script(turns) => turns,
            _ => &[],
        }
    }

    /// The expression for its pairs, where one gives them.
    pub fn matched(&self) -> Option<&Expression> {
        match &self.topology {
            Topology::Matched(pairs) => Some(pairs),
            _ => None,
        }
    }

    /// All that its turns, or its decision, are choices of: the phase's own, then those of single turns.
    pub fn choices(&self) -> impl Iterator<Item = &Arc<Choice>> {
        self.choice.iter().chain(self.script().iter().filter_map(|turn| turn.choice.as_ref()))
    }

    /// All that an agent is asked to choose of, votes included.
    pub fn choices_asked(&self, agent: AgentId) -> Vec<&Arc<Choice>> {
        let votes = match self.decision {
            Some(Decision::Coordinator(coordinator)) => coordinator == agent,
            Some(_) => self.speakers().contains(&agent),
            None => false,
        };
        self.choice.iter().filter(|_| votes).chain(self.choices_of(agent)).collect()
    }

    /// The choices of an agent in its turns, votes aside: the phase's choice, or that of a single turn.
    pub fn choices_of(&self, agent: AgentId) -> Vec<&Arc<Choice>> {
        let shared = self.choice.as_ref().filter(|_| self.decision.is_none());
        if let Topology::Script(turns) = &self.topology {
            let own = turns.iter().filter(|turn| turn.agent == agent);
            return own.filter_map(|turn| turn.choice.as_ref().or(shared)).collect();
        }
        shared.into_iter().filter(|_| self.speakers().contains(&agent)).collect()
    }

    /// The templates that make up an agent's opening, in the order in which it reads them.
    pub fn opening(&self, agent: AgentId) -> impl Iterator<Item = (Opening, &Template)> {
        let shared = self.initial.as_ref().map(|template| (Opening::Phase, template));
        let private = self.openings.iter().filter(move |(to, _)| to.contains(&agent));
        let private = private.map(|(_, template)| (Opening::Private, template));
        let format = self.format.as_ref().map(|template| (Opening::Format, template));
        shared.into_iter().chain(private).chain(format)
    }
}

/// A part of a phase's opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// The text that everybody reads.
    Phase,
    /// A text that some read.
    Private,
    /// The debate format.
    Format,
}
