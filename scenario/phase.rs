//! A phase: who is present, who speaks when, who hears it, and what is read and asked.

use crate::template::{Expression, Template};
use crate::*;
use std::collections::BTreeMap;
use std::sync::Arc;

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
