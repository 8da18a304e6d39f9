//! The memories of all agents: what each has lived through, and what became of every turn.
//!
//! [`Memories`] is driven in any order that the plan's edges allow; what an agent reads depends on the plan
//! and on what was said alone. It holds no model and does no input or output: playing, checking and replaying
//! share it.
//!
//! A turn goes through `takes_place`, else `skip`; then `hear`, `ask`, `say`. If the reply is a tool call
//! (`calls`), `called` follows, and `ask` again. A full memory is asked for a summary between `hear` and
//! `ask`: a line of its own, `PATH.summary`, before the turn's; its presence makes a replay begin the epoch.
//! The engine sees a conversation that diverges after the system text.

use super::delta::{Conversation, conversation};
use super::edits::Edits;
use super::notes::EvaluationNotes;
use super::recalled::Recollections;
use super::settled::{Memo, States};
use super::spoken::{one_line, spoken};
use super::stops::StopStrings;
use crate::thoughts::speech_of;
use crate::timeline::{Event, Timeline};
use crate::transcript::call_of;
use greenroom_scenario::evaluate::initial;
use greenroom_scenario::results::{History, Outcome, StateValues};
use greenroom_scenario::template::TemplateError;
use greenroom_scenario::{
    AgentId, Choice, ChoiceMethod, Chosen, Form, Given, Hints, Input, Lifecycle, Path, PhaseId, Plan,
    Reasoning, Recalled, Scenario, Seeds, Stops, StrategyOffer, TimelineId, TurnId, turn_seed,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// All agents' timelines and what became of every turn.
#[derive(Clone, Debug)]
pub struct Memories {
    pub(super) scenario: Arc<Scenario>,
    pub(super) plan: Arc<Plan>,
    pub(super) seeds: Seeds,
    pub(super) timelines: BTreeMap<TimelineId, Timeline>,
    /// Turns that were heard and not answered yet.
    pub(super) unanswered: BTreeMap<TimelineId, Unanswered>,
    /// The prompt that each memory was last sent, and the reply: the next prompt must begin with both.
    pub(super) sent: BTreeMap<TimelineId, (Conversation, Arc<[u32]>)>,
    pub(super) outcomes: Vec<Outcome>,
    /// The state before the first turn.
    pub(super) initial: Result<Arc<StateValues>, (Path, TemplateError)>,
    pub(super) states: States,
    pub(super) settled: Memo,
    /// Inputs of turns that were skipped: they are read at the memory's next turn.
    pub(super) missed: BTreeMap<TimelineId, Vec<Input>>,
    /// Conditions of phases (round 0) and of their rounds, as decided.
    pub(super) decided: BTreeMap<(PhaseId, usize), bool>,
    /// True if replies are made up, to see what could be read.
    pub(super) is_made_up: bool,
    pub(super) edits: Edits,
    pub(super) notes: EvaluationNotes,
    /// Settings of replies that the file's do not change.
    given: Given,
    pub(super) recollections: Recollections,
}

/// A turn to answer, or the summary that a full memory begins again with.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The turn.
    pub id: TurnId,
    /// Path of its line in a transcript.
    pub path: String,
    /// True for a summary.
    pub is_summary: bool,
    /// All that the speaker has read and said; `next` is what is new.
    pub conversation: Conversation,
    /// Seed of the reply.
    pub seed: u64,
    /// The options that the reply chooses from.
    pub choice: Option<OpenOptions>,
    /// The form that the reply is to have.
    pub form: Option<Arc<Form>>,
    /// The calls that the speaker has made in this turn.
    pub n_calls: usize,
    /// True if the reply may be a call of a tool instead.
    pub may_call: bool,
    /// The tool that it has to be a call of; it is no choice and has no form then.
    pub must_call: Option<Arc<str>>,
    /// What the speaker's strategy remembers, if it has one.
    pub recalled: Recalled,
}

/// The options that a reply chooses from.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The choice.
    pub choice: Arc<Choice>,
    /// The options that are open, by index, in the order in which they are listed.
    pub open: Vec<usize>,
    /// Those that the speaker has ranked higher, by index.
    pub ranked: Vec<usize>,
}

impl OpenOptions {
    /// The same for a strategy.
    pub fn offer(&self) -> StrategyOffer<'_> {
        StrategyOffer { choice: &self.choice, open: &self.open, ranked: &self.ranked }
    }
}

/// A turn whose speaker has heard what is new.
#[derive(Clone, Debug)]
pub(super) struct Unanswered {
    /// Index of its first event in the memory.
    pub(super) begin: usize,
    /// True if the memory has begun again for it.
    pub(super) is_new_epoch: bool,
    /// Calls of tools that its speaker has made, as expressions see them.
    pub(super) calls: Vec<Value>,
    pub(super) choice: Option<OpenOptions>,
    /// What the speaker's strategy remembers, if it has one.
    recalled: Recalled,
}

/// A reply as it was sampled.
#[derive(Clone, Copy, Debug)]
pub struct SampledReply<'a> {
    /// Its ids.
    pub ids: &'a [u32],
    /// The ids as text.
    pub raw: &'a str,
    /// The part of it that is said to others.
    pub speech: &'a str,
}

impl<'a> SampledReply<'a> {
    /// A reply that is known as text alone.
    pub fn of_text(raw: &'a str) -> Self {
        Self { ids: &[], raw, speech: &raw[speech_of(raw)] }
    }
}

/// The outcome of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeardReply {
    /// The text that others hear.
    pub spoken: String,
    /// The result of the choice, where one was requested.
    pub choice: Option<Chosen>,
    /// The value of a reply that has a form, or the reason why it is not in it.
    pub value: Option<Result<Value, String>>,
}

/// Reason why a prompt can't be made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PromptError {
    /// A template or an expression failed.
    #[error("{path}: {place}, line {line}: {message}")]
    Template {
        /// The turn.
        path: String,
        /// The field.
        place: String,
        /// Line in the text.
        line: usize,
        /// The message of minijinja.
        message: String,
    },
    /// The prompt does not begin with what the agent's memory holds.
    #[error(
        "{path}: the prompt does not begin with what {agent} has read and said before (a bug in greenroom)"
    )]
    NotExtended {
        /// The turn.
        path: String,
        /// The agent's key.
        agent: String,
    },
    /// A turn was requested before what it waits for.
    #[error("{path}: requested before {needed} was played (a bug in greenroom)")]
    TooEarly {
        /// The turn.
        path: String,
        /// The turn that it waits for.
        needed: String,
    },
    /// A memory has no room for what its next turn reads, and nothing in it that could be summed up.
    #[error("{path}: what {agent} reads in one turn is longer than the model's context")]
    TooLong {
        /// The turn.
        path: String,
        /// The agent's key.
        agent: String,
    },
    /// A piece that an epoch is to begin with, and which is not one of the memory's.
    #[error("{path}: {agent} has not read or said `{piece}`")]
    NotAPiece {
        /// The turn.
        path: String,
        /// The agent's key.
        agent: String,
        /// Name of the piece.
        piece: String,
    },
}

impl Memories {
    /// No agent remembers anything, except those (by key) who bring a timeline from an earlier episode.
    pub fn new(
        scenario: Arc<Scenario>,
        plan: Arc<Plan>,
        earlier: BTreeMap<String, Timeline>,
        seeds: impl Into<Seeds>,
    ) -> Self {
        let outcomes = vec![Outcome::Open; plan.n_turns()];
        let brought = earlier.into_iter().filter_map(|(key, timeline)| {
            let agent = scenario.agent_by_key(&key)?;
            let permanent = scenario.agent(agent).lifecycle == Lifecycle::Permanent;
            permanent.then_some((TimelineId { agent, phase: None }, timeline))
        });
        let timelines: BTreeMap<TimelineId, Timeline> = brought.collect();
        let recollections = Recollections::of_earlier(&timelines);
        let settled = Memo::new(&scenario, &plan);
        let seeds = seeds.into();
        let initial = initial(&scenario, seeds.chance(TurnId(0))).map(Arc::new);
        let states = States::new(plan.changes.len());
        let (unanswered, sent, missed, decided) = Default::default();
        Self {
            scenario,
            plan,
            seeds,
            timelines,
            unanswered,
            sent,
            outcomes,
            initial,
            states,
            settled,
            missed,
            decided,
            is_made_up: false,
            edits: Edits::default(),
            notes: EvaluationNotes::default(),
            given: Given::new(),
            recollections,
        }
    }

    /// The same, where the command line gives some settings.
    pub fn with_given(self, given: Given) -> Self {
        Self { given, ..self }
    }

    /// The settings of a turn's reply that are its own.
    pub fn hints(&self, id: TurnId) -> Hints {
        self.plan.turn(id).hints.without(&self.given)
    }

    /// The scenario.
    pub fn scenario(&self) -> &Arc<Scenario> {
        &self.scenario
    }

    /// The plan.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The agent's system prompt, fixed at the start of its timeline.
    pub fn system(&self, agent: AgentId) -> &str {
        let brought = self.timelines.get(&TimelineId { agent, phase: None });
        brought.map_or(self.scenario.agent(agent).system.as_str(), |timeline| timeline.system().unwrap_or(""))
    }

    /// Appends all events since the speaker's last turn to its timeline, cue included. Once heard, nothing is
    /// heard again until the turn is answered.
    ///
    /// # Errors
    /// A template that fails, or a turn that is requested too early.
    pub fn hear(&mut self, id: TurnId) -> Result<(), PromptError> {
        let of = self.plan.turn(id).timeline;
        if !self.unanswered.contains_key(&of) {
            let choice = self.options(id)?;
            let news = self.news(id, choice.as_ref())?;
            let recalled = self.recalled(id)?;
            self.missed.remove(&of);
            let timeline = self.timeline(of);
            let begin = timeline.events().len();
            news.into_iter().for_each(|event| timeline.push(event));
            let calls = Vec::new();
            self.unanswered.insert(of, Unanswered { begin, is_new_epoch: false, calls, choice, recalled });
        }
        Ok(())
    }

    /// Returns what to ask the speaker of a turn, who has heard what comes before it.
    ///
    /// # Errors
    /// The prompt does not extend what the agent has read (a bug of ours).
    pub fn ask(&self, id: TurnId) -> Result<Asked, PromptError> {
        let turn = self.plan.turn(id);
        let (path, n_calls) = (turn.path.clone(), self.n_calls(id));
        let seeded_by = if n_calls == 0 { path.clone() } else { call_of(&path, n_calls) };
        let (conversation, seed) = (self.conversation(id)?, self.seeds.of(id, &seeded_by));
        let heard = self.unanswered.get(&turn.timeline);
        let must_call = self.must_call(id);
        let is_reply = must_call.is_none();
        let choice = heard.and_then(|turn| turn.choice.clone()).filter(|_| is_reply);
        let recalled = heard.map(|turn| turn.recalled.clone()).unwrap_or_default();
        let (form, may_call) = (turn.form.clone().filter(|_| is_reply), self.may_call(id));
        Ok(Asked {
            id,
            path,
            is_summary: false,
            conversation,
            seed,
            choice,
            form,
            n_calls,
            may_call,
            must_call,
            recalled,
        })
    }

    /// Lets a turn that was heard happen with a made-up reply. Its prompt is not folded, so that thousands
    /// take no time.
    pub fn make_up(&mut self, id: TurnId, raw: &str) {
        self.reply(id, SampledReply::of_text(raw));
        // There is no prompt that the next one could extend.
        self.sent.remove(&self.plan.turn(id).timeline);
    }

    /// Events that the speaker of a turn reads before it.
    fn news(&self, id: TurnId, choice: Option<&OpenOptions>) -> Result<Vec<Event>, PromptError> {
        let turn = self.plan.turn(id);
        let missed = self.missed.get(&turn.timeline).map(Vec::as_slice).unwrap_or_default();
        let inputs: Vec<Input> = missed.iter().chain(&turn.inputs).copied().collect();
        let mut events = self.events_with_added(&turn.path, turn.timeline, &inputs, id)?;
        events.extend(self.cue(id, choice)?);
        Ok(events)
    }

    /// All that the speaker of a turn has read and said by now.
    fn conversation(&self, id: TurnId) -> Result<Conversation, PromptError> {
        let timeline = self.look(self.plan.turn(id).timeline);
        let conversation = self.folded(id, timeline.map(Timeline::events).unwrap_or_default());
        self.is_extended(id, &conversation)?;
        Ok(conversation)
    }

    /// What the speaker of a turn is asked, with these events after it.
    pub(super) fn folded(&self, id: TurnId, events: &[Event]) -> Conversation {
        Conversation { reasoning: self.reasoning(id), ..conversation(events) }
    }

    /// Maximum number of tokens that the speaker may think before what it is asked for.
    pub fn reasoning_budget(&self, asked: &Asked) -> usize {
        self.scenario.reasoning_budget_of(self.plan.turn(asked.id))
    }

    /// How much the speaker of a turn is to think.
    pub(super) fn reasoning(&self, id: TurnId) -> Reasoning {
        self.scenario.reasoning_of(self.plan.turn(id))
    }

    /// The law: a prompt begins with what its memory was last sent, and the reply.
    pub(super) fn is_extended(&self, id: TurnId, conversation: &Conversation) -> Result<(), PromptError> {
        let turn = self.plan.turn(id);
        match self.sent.get(&turn.timeline) {
            Some((earlier, reply)) if !conversation.extends(earlier, reply) => {
                let agent = self.scenario.agent(turn.speaker).key.clone();
                Err(PromptError::NotExtended { path: turn.path.clone(), agent })
            }
            _ => Ok(()),
        }
    }

    /// Records the reply. With a summary a new epoch begins: the speaker remembers that, and what it has just
    /// heard.
    pub fn say(&mut self, asked: Asked, said: SampledReply<'_>) -> HeardReply {
        if asked.is_summary {
            return HeardReply { spoken: self.sum_up(asked.id, said.speech), choice: None, value: None };
        }
        let of = self.plan.turn(asked.id).timeline;
        self.sent.insert(of, (asked.conversation, said.ids.into()));
        self.reply(asked.id, said)
    }

    fn reply(&mut self, id: TurnId, SampledReply { ids, raw, speech }: SampledReply<'_>) -> HeardReply {
        let plan = self.plan.clone();
        let turn = plan.turn(id);
        let spoken = match &turn.form {
            Some(_) => one_line(speech),
            None => spoken(&self.scenario.agent(turn.speaker).name, speech),
        };
        let value = turn.form.as_ref().filter(|_| !self.is_made_up).map(|form| form.read(speech));
        let mut heard = HeardReply { spoken, choice: None, value };
        if let Some(constraint) = &turn.constraint {
            let reply = if constraint.choice.method == ChoiceMethod::Decode { speech } else { &heard.spoken };
            let open = self.unanswered.get(&turn.timeline).and_then(|turn| turn.choice.as_ref());
            let chosen = match constraint.choice.read(reply, &self.scenario.language) {
                Chosen::Option(option) if open.is_some_and(|of| !of.open.contains(&option)) => {
                    Chosen::Invalid
                }
                chosen => chosen,
            };
            if let (ChoiceMethod::Decode, Chosen::Option(option)) = (constraint.choice.method, chosen) {
                heard.spoken = constraint.choice.options[option].text.clone();
            }
            heard.choice = Some(chosen);
        }
        let (spoken, reasoning, origin) = (heard.spoken.clone(), self.reasoning(id), turn.path.clone());
        let phase = self.scenario.phase(turn.phase).name.clone();
        self.timeline(turn.timeline).push(Event::Said {
            ids: ids.into(),
            raw: raw.into(),
            spoken,
            reasoning,
            origin,
            phase,
        });
        let calls = self.unanswered.remove(&turn.timeline).map(|turn| turn.calls).unwrap_or_default();
        let (text, choice) = (heard.spoken.as_str().into(), heard.choice);
        let value = heard.value.clone().map(Result::unwrap_or_default);
        let value = value.or_else(|| turn.form.as_ref().map(|form| form.example()));
        self.outcomes[id.0] = Outcome::Said { text, choice, value, calls };
        heard
    }

    /// Records that a turn does not take place: what happened before it is read at the memory's next one.
    pub fn skip(&mut self, id: TurnId) {
        let turn = self.plan.turn(id);
        self.missed.entry(turn.timeline).or_default().extend(&turn.inputs);
        self.outcomes[id.0] = Outcome::Skipped;
    }

    /// Forgets a memory: an ephemeral agent's at the end of its phase.
    pub fn forget(&mut self, timeline: TimelineId) {
        self.timelines.remove(&timeline);
        self.unanswered.remove(&timeline);
        self.sent.remove(&timeline);
        self.missed.remove(&timeline);
    }

    /// The strings before which a reply ends.
    pub fn stop_strings(&self, asked: &Asked) -> StopStrings {
        let turn = self.plan.turn(asked.id);
        let (of, speaker) = (turn.timeline, &self.scenario.agent(turn.speaker).name);
        if turn.hints.stops.or(self.scenario.hints.stops) == Some(Stops::None) {
            return StopStrings::none(speaker);
        }
        let events = self.look(of).map(Timeline::events).unwrap_or_default();
        let begin = self.unanswered.get(&of).filter(|_| asked.is_summary).map(|turn| turn.begin);
        StopStrings::new(&self.scenario, speaker, &events[..begin.unwrap_or(events.len())])
    }

    /// A memory's timeline so far.
    pub fn look(&self, timeline: TimelineId) -> Option<&Timeline> {
        self.timelines.get(&timeline)
    }

    /// The outcome of a turn.
    pub fn outcome(&self, id: TurnId) -> &Outcome {
        &self.outcomes[id.0]
    }

    /// All that was said in all phases, and what the state has come to.
    ///
    /// # Errors
    /// A change of the state that fails.
    pub fn history(&self) -> Result<Arc<History>, PromptError> {
        let all: Vec<PhaseId> = (0..self.scenario.phases.len()).map(PhaseId).collect();
        self.history_at("the end", &all, true, self.plan.all())
    }

    /// The options that a turn chooses from, if it is a choice.
    fn options(&self, id: TurnId) -> Result<Option<OpenOptions>, PromptError> {
        let turn = self.plan.turn(id);
        let Some(choice) = turn.constraint.as_ref().map(|constraint| &constraint.choice) else {
            return Ok(None);
        };
        let mut open = self.open_options(id, choice)?;
        if choice.shuffle {
            let seed = self.seeds.of(id, &turn.path);
            open.sort_by_key(|option| turn_seed(seed, &format!("option {option}")));
        }
        Ok(Some(OpenOptions { choice: choice.clone(), open, ranked: self.taken(id) }))
    }

    /// Options that the same voter has ranked higher.
    pub fn taken(&self, id: TurnId) -> Vec<usize> {
        let sooner = self.plan.turn(id).constraint.iter().flat_map(|constraint| &constraint.except);
        let option = |sooner: &TurnId| match self.outcomes[sooner.0] {
            Outcome::Said { choice: Some(Chosen::Option(option)), .. } => Some(option),
            _ => None,
        };
        sooner.filter_map(option).collect()
    }

    /// Returns the timelines that the permanent agents take along into another episode, by key, with what
    /// they have not read yet.
    ///
    /// # Errors
    /// A template that fails.
    pub fn carry_on(mut self) -> Result<BTreeMap<String, Timeline>, PromptError> {
        let plan = self.plan.clone();
        for (id, inputs) in plan.unread.iter().filter(|(id, _)| id.phase.is_none()) {
            let mut all = self.missed.remove(id).unwrap_or_default();
            all.extend(inputs);
            let events = self.events_with_added("the end", *id, &all, plan.end())?;
            let timeline = self.timeline(*id);
            events.into_iter().for_each(|event| timeline.push(event));
        }
        let has_read = |id: &TimelineId| plan.unread.iter().any(|(other, _)| other == id);
        for id in self.with_added().into_iter().filter(|id| !has_read(id)) {
            let events = self.events_with_added("the end", id, &[], plan.end())?;
            let timeline = self.timeline(id);
            events.into_iter().for_each(|event| timeline.push(event));
        }
        let permanent = self.timelines.into_iter().filter(|(id, _)| id.phase.is_none());
        Ok(permanent.map(|(id, timeline)| (self.scenario.agent(id.agent).key.clone(), timeline)).collect())
    }

    pub(super) fn timeline(&mut self, id: TimelineId) -> &mut Timeline {
        let born = self.born(id);
        self.timelines.entry(id).or_insert(born)
    }

    pub(super) fn born(&self, id: TimelineId) -> Timeline {
        Timeline::new(&self.scenario.agent(id.agent).system)
    }

    pub(super) fn failed(
        &self,
        path: &str,
        place: &greenroom_scenario::Path,
        error: TemplateError,
    ) -> PromptError {
        PromptError::Template {
            path: path.to_string(),
            place: place.to_string(),
            line: error.line,
            message: error.message,
        }
    }
}
