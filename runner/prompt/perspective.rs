//! Who sees what, as whom: the memories of all agents, and what each reads before its turn.
//!
//! [`Memories`] is driven in any order that the plan's edges allow; what an agent reads depends on the plan
//! alone. It holds no model and does no input or output: playing, checking and replaying share it.

use super::delta::{Conversation, conversation};
use super::spoken::spoken;
use crate::scenario::template::{Line, Said, render_stage};
use crate::scenario::{AgentId, Input, Lifecycle, Opening, PhaseId, Plan, Scenario, TimelineId, TurnId};
use crate::timeline::{Event, StageKind, Timeline};
use std::collections::BTreeMap;
use std::sync::Arc;

/// All agents' timelines and everything said so far.
#[derive(Clone, Debug)]
pub struct Memories {
    scenario: Arc<Scenario>,
    plan: Arc<Plan>,
    timelines: BTreeMap<TimelineId, Timeline>,
    /// What each memory was last sent, and the reply: the next must begin so.
    sent: BTreeMap<TimelineId, (Conversation, Arc<[u32]>)>,
    /// What was heard of each turn; `None`: it has not been played.
    spoken: Vec<Option<String>>,
}

/// What an agent reads at its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// What is new, as one text.
    pub delta: String,
    /// All of it.
    pub conversation: Conversation,
}

/// Why a prompt can't be made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PromptError {
    /// A template failed.
    #[error("{path}: {place}, line {line}: {message}")]
    Template {
        /// The turn.
        path: String,
        /// The template's field.
        place: String,
        /// Line in the template.
        line: usize,
        /// What minijinja said.
        message: String,
    },
    /// The prompt does not begin with what the agent's memory holds.
    #[error(
        "{path}: the prompt does not begin with what {agent} has read and said before (a bug of greenroom)"
    )]
    NotExtended {
        /// The turn.
        path: String,
        /// The agent's key.
        agent: String,
    },
    /// A turn was asked for before what it waits for.
    #[error("{path}: asked for before {needed} was played (a bug of greenroom)")]
    TooEarly {
        /// The turn.
        path: String,
        /// What it waits for.
        needed: String,
    },
}

impl Memories {
    /// Nobody remembers anything, except those (by key) who bring a timeline from an earlier episode.
    pub fn new(scenario: Arc<Scenario>, plan: Arc<Plan>, earlier: BTreeMap<String, Timeline>) -> Self {
        let spoken = vec![None; plan.n_turns()];
        let brought = earlier.into_iter().filter_map(|(key, timeline)| {
            let agent = scenario.agent_by_key(&key)?;
            let permanent = scenario.agent(agent).lifecycle == Lifecycle::Permanent;
            permanent.then_some((TimelineId { agent, phase: None }, timeline))
        });
        let timelines = brought.collect();
        Self { scenario, plan, timelines, sent: BTreeMap::new(), spoken }
    }

    /// The scenario.
    pub fn scenario(&self) -> &Arc<Scenario> {
        &self.scenario
    }

    /// The plan.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The system text that an agent lives with: the one it was born with.
    pub fn system(&self, agent: AgentId) -> &str {
        let brought = self.timelines.get(&TimelineId { agent, phase: None });
        brought.map_or(self.scenario.agent(agent).system.as_str(), |timeline| timeline.system().unwrap_or(""))
    }

    /// Lets what happened since the speaker's last turn happen to it, cue included, and folds its timeline.
    ///
    /// # Errors
    /// A template that fails, or a bug of ours (too early, or a prompt that rewrites history).
    pub fn prompt(&mut self, id: TurnId) -> Result<Prompt, PromptError> {
        let plan = self.plan.clone();
        let turn = plan.turn(id);
        let mut events = self.events(&turn.path, turn.speaker, &turn.inputs)?;
        events.push(Event::Stage { kind: StageKind::Cue, text: turn.cue.clone() });
        let timeline = self.timeline(turn.timeline);
        events.into_iter().for_each(|event| timeline.push(event));
        let conversation = conversation(timeline);
        if let Some((earlier, reply)) = self.sent.get(&turn.timeline)
            && !conversation.extends(earlier, reply)
        {
            let agent = self.scenario.agent(turn.speaker).key.clone();
            return Err(PromptError::NotExtended { path: turn.path.clone(), agent });
        }
        Ok(Prompt { delta: conversation.next.clone(), conversation })
    }

    /// Records the reply to the prompt that [`Self::prompt`] gave; returns what others hear.
    pub fn say(&mut self, id: TurnId, prompt: Conversation, ids: &[u32], raw: &str) -> String {
        let turn = self.plan.turn(id);
        let (timeline, heard) = (turn.timeline, spoken(&self.scenario.agent(turn.speaker).name, raw));
        let ids: Arc<[u32]> = ids.into();
        self.sent.insert(timeline, (prompt, ids.clone()));
        self.timeline(timeline).push(Event::Said { ids, raw: raw.into(), spoken: heard.clone() });
        self.spoken[id.0] = Some(heard.clone());
        heard
    }

    /// Forgets a memory: an ephemeral agent's at the end of its phase.
    pub fn forget(&mut self, timeline: TimelineId) {
        self.timelines.remove(&timeline);
        self.sent.remove(&timeline);
    }

    /// A memory's timeline so far.
    pub fn look(&self, timeline: TimelineId) -> Option<&Timeline> {
        self.timelines.get(&timeline)
    }

    /// What the permanent agents take along into another episode, by key: what they have not read yet too.
    ///
    /// # Errors
    /// A template that fails.
    pub fn carry_on(mut self) -> Result<BTreeMap<String, Timeline>, PromptError> {
        let plan = self.plan.clone();
        for (id, inputs) in plan.unread.iter().filter(|(id, _)| id.phase.is_none()) {
            let events = self.events("the end", id.agent, inputs)?;
            let timeline = self.timeline(*id);
            events.into_iter().for_each(|event| timeline.push(event));
        }
        let permanent = self.timelines.into_iter().filter(|(id, _)| id.phase.is_none());
        Ok(permanent.map(|(id, timeline)| (self.scenario.agent(id.agent).key.clone(), timeline)).collect())
    }

    fn timeline(&mut self, id: TimelineId) -> &mut Timeline {
        let system = &self.scenario.agents[id.agent.0].system;
        self.timelines.entry(id).or_insert_with(|| Timeline::new(system))
    }

    fn events(&self, path: &str, agent: AgentId, inputs: &[Input]) -> Result<Vec<Event>, PromptError> {
        let mut events = Vec::new();
        for input in inputs {
            match input {
                Input::Opening(phase) => self.opening(path, *phase, agent, &mut events)?,
                Input::Heard(turn) => {
                    let heard = self.plan.turn(*turn);
                    let Some(text) = &self.spoken[turn.0] else {
                        let (path, needed) = (path.to_string(), heard.path.clone());
                        return Err(PromptError::TooEarly { path, needed });
                    };
                    if !text.is_empty() {
                        let from = self.scenario.agent(heard.speaker).name.clone();
                        events.push(Event::Heard { from, text: text.clone() });
                    }
                }
            }
        }
        Ok(events)
    }

    fn opening(
        &self,
        path: &str,
        phase: PhaseId,
        agent: AgentId,
        events: &mut Vec<Event>,
    ) -> Result<(), PromptError> {
        for (kind, template) in self.scenario.phase(phase).opening(agent) {
            let said = Arc::new(self.said(&template.quotes));
            let text = render_stage(&self.scenario, &template.text, phase, agent, &said);
            let text = text.map_err(|error| PromptError::Template {
                path: path.to_string(),
                place: template.path.to_string(),
                line: error.line,
                message: error.message,
            })?;
            let kind = match kind {
                Opening::Phase => StageKind::Opening,
                Opening::Private => StageKind::Private,
                Opening::Format => StageKind::Format,
            };
            if !text.trim().is_empty() {
                events.push(Event::Stage { kind, text: text.trim().to_string() });
            }
        }
        Ok(())
    }

    /// What was said in some phases, in plan order whatever the order of playing.
    fn said(&self, phases: &[PhaseId]) -> Said {
        let mut said = Said::default();
        if phases.is_empty() {
            return said;
        }
        for (id, turn) in self.plan.order().filter(|(_, turn)| phases.contains(&turn.phase)) {
            if let Some(text) = self.spoken[id.0].as_ref().filter(|text| !text.is_empty()) {
                let line = Line { speaker: turn.speaker, text: text.clone() };
                said.0.entry(turn.phase).or_default().push(line);
            }
        }
        said
    }
}
