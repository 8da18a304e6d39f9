//! Perspectives: the events that a turn's inputs are to one agent.

use super::memories::{Memories, OpenOptions, PromptError};
use crate::timeline::{Event, Picked, StageKind};
use greenroom_scenario::language::Text;
use greenroom_scenario::render::Reading;
use greenroom_scenario::results::{Outcome, tally};
use greenroom_scenario::template::Template;
use greenroom_scenario::{
    AgentId, Announced, Audience, ChoiceMethod, Chosen, Decision, Horizon, Input, Opening, PhaseId, Purpose,
    Turn, TurnId,
};

impl Memories {
    pub(super) fn events(
        &self,
        path: &str,
        agent: AgentId,
        inputs: &[Input],
    ) -> Result<Vec<Event>, PromptError> {
        let mut events = Vec::new();
        for input in inputs {
            match input {
                Input::Opening(phase)
                    if self.opens(path, *phase)? && self.is_present(path, *phase, agent)? =>
                {
                    self.opening(path, *phase, agent, &mut events)?;
                }
                Input::Opening(_) => {}
                Input::Heard(turn) => events.extend(self.heard_by(path, *turn, agent)?),
                Input::Vote(phase, _) if !self.is_present(path, *phase, agent)? => {}
                Input::Vote(phase, attempt) => events.extend(self.vote(*phase, *attempt)),
                Input::Announced(announced) => events.extend(self.announced(path, *announced, agent)?),
                Input::Record(phase) => events.extend(self.record(path, *phase)?),
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
            let kind = match kind {
                Opening::Phase => StageKind::Opening,
                Opening::Private => StageKind::Private,
                Opening::Format => StageKind::Format,
            };
            let reading = Reading { phase, round: None, agent };
            events.extend(self.stage(path, template, kind, reading, self.plan.begin_of(phase, 0))?);
        }
        Ok(())
    }

    /// An announcement, if its round is played.
    fn announced(
        &self,
        path: &str,
        announced: Announced,
        agent: AgentId,
    ) -> Result<Option<Event>, PromptError> {
        let Announced { phase, round, index, known } = announced;
        if !self.opens(path, phase)?
            || !self.has_round(path, phase, round)?
            || !self.is_present(path, phase, agent)?
        {
            return Ok(None);
        }
        let template = &self.scenario.phase(phase).announcements[index].text;
        let reading = Reading { phase, round: Some(round), agent };
        self.stage(path, template, StageKind::Announcement, reading, known)
    }

    /// A text of the stage as one agent reads it; an empty one is not read.
    fn stage(
        &self,
        path: &str,
        template: &Template,
        kind: StageKind,
        reading: Reading,
        known: Horizon,
    ) -> Result<Option<Event>, PromptError> {
        let present = self.cast(path, reading.phase)?;
        let text = self.rendered(path, template, (reading, present), known)?;
        let text = if self.is_made_up { text.or_else(|_| Ok(template.text.clone())) } else { text };
        let text = text.map_err(|error| self.failed(path, &template.path, error))?;
        let (text, origin) = (text.trim().to_string(), template.path.to_string());
        let phase = self.scenario.phase(reading.phase).part.clone();
        Ok((!text.is_empty()).then_some(Event::Stage { kind, text, origin, phase }))
    }

    /// All that was said in a phase, although no agent in it may have heard it all: its name, each turn, the
    /// results of its votes.
    fn record(&self, path: &str, phase: PhaseId) -> Result<Vec<Event>, PromptError> {
        let mut events = Vec::new();
        let here = self.plan.order().skip(self.plan.begin_of(phase, 0).turns.0);
        let mut turns = here.take_while(|(_, turn)| turn.phase == phase).peekable();
        while let Some((id, turn)) = turns.next() {
            if turn.purpose == Purpose::Floor && turn.audience == Audience::Nobody {
                continue; // whether to cut in: who did speaks next
            }
            let Purpose::Ballot { attempt, .. } = turn.purpose else {
                events.extend(self.utterance(path, id, None)?);
                continue;
            };
            let goes_on = |next: &(TurnId, &Turn)| {
                matches!(
                    next.1.purpose, Purpose::Ballot { attempt: of, .. } if of == attempt
                )
            };
            if !turns.peek().is_some_and(goes_on) {
                events.extend(self.vote(phase, attempt));
            }
        }
        if !events.is_empty() {
            let label = self.scenario.phase(phase).label.as_str();
            let text = format!("[{}]", self.scenario.language.say(Text::Scene, &[("label", label)]));
            let origin = self.scenario.phase(phase).path.to_string();
            let phase = self.scenario.phase(phase).part.clone();
            events.insert(0, Event::Stage { kind: StageKind::Opening, text, origin, phase });
        }
        Ok(events)
    }

    fn heard_by(&self, path: &str, turn: TurnId, listener: AgentId) -> Result<Option<Event>, PromptError> {
        let event = self.utterance(path, turn, Some(listener))?;
        let phase = self.plan.turn(turn).phase;
        Ok(if event.is_some() && self.is_present(path, phase, listener)? { event } else { None })
    }

    /// What was said in a turn, as a listener hears it; none: somebody who was not there.
    fn utterance(
        &self,
        path: &str,
        turn: TurnId,
        listener: Option<AgentId>,
    ) -> Result<Option<Event>, PromptError> {
        let heard = self.plan.turn(turn);
        let (text, choice) = match &self.outcomes[turn.0] {
            Outcome::Open => {
                let (path, needed) = (path.to_string(), heard.path.clone());
                return Err(PromptError::TooEarly { path, needed });
            }
            Outcome::Said { text, choice, .. } if !text.is_empty() => (text.to_string(), choice),
            _ => return Ok(None),
        };
        let picked = match (&heard.constraint, choice) {
            (Some(of), Some(Chosen::Option(option))) => {
                Some(Picked { of: of.choice.clone(), option: *option })
            }
            _ => None,
        };
        let language = &self.scenario.language;
        let name = |agent: &AgentId| self.scenario.agent(*agent).name.clone();
        let from = match &heard.audience {
            Audience::Whisper { to, .. } if listener.is_some_and(|listener| to.contains(&listener)) => {
                language.say(Text::Whispers, &[("name", &name(&heard.speaker))])
            }
            Audience::Whisper { to, .. } => {
                let to = language.together(to.iter().map(|agent| self.scenario.agent(*agent).name.as_str()));
                language.say(Text::WhispersTo, &[("name", &name(&heard.speaker)), ("to", &to)])
            }
            _ => name(&heard.speaker),
        };
        Ok(Some(Event::Heard { from, text, picked, origin: heard.path.clone() }))
    }

    /// The result of a vote, for everybody who was present; `None` if it did not take place.
    fn vote(&self, id: PhaseId, attempt: usize) -> Option<Event> {
        let phase = self.scenario.phase(id);
        let (decision, choice) = (phase.decision?, phase.choice.as_ref()?);
        let lines = self.ballots_until(id, attempt);
        let is_last =
            |purpose: Purpose| matches!(purpose, Purpose::Ballot { attempt: of, .. } if of == attempt);
        if !lines.iter().any(|line| is_last(line.purpose)) {
            return None;
        }
        let tally = tally(phase, &lines);
        let option = |id: usize| choice.options[id].text.clone();
        let decided = tally.decision.map(option);
        let language = &self.scenario.language;
        // Where not all options are open, those without votes may not have been.
        let counted = |(_, n): &(usize, &usize)| choice.open.is_none() || **n > 0;
        let counts = tally.votes.iter().enumerate().filter(counted);
        let counts = counts.map(|(id, n)| format!("{} {n}", option(id)));
        let counts = counts.collect::<Vec<_>>().join(", ");
        let text = match (decision, decided) {
            (Decision::Coordinator(who), Some(decided)) => {
                let name = self.scenario.agent(who).name.as_str();
                language.say(Text::HasDecided, &[("name", name), ("option", &decided)])
            }
            (Decision::Coordinator(who), None) => {
                language.say(Text::DecidedNothing, &[("name", &self.scenario.agent(who).name)])
            }
            (Decision::RankedChoice, Some(decided)) => {
                language.say(Text::RunOff, &[("counts", &counts), ("option", &decided)])
            }
            (Decision::RankedChoice, None) => language.say(Text::Level, &[("counts", &counts)]),
            (_, Some(decided)) => language.say(Text::Voted, &[("counts", &counts), ("option", &decided)]),
            (Decision::Consensus { .. }, None) => language.say(Text::NoConsensus, &[("counts", &counts)]),
            (_, None) => language.say(Text::Undecided, &[("counts", &counts)]),
        };
        let text = format!("[{text}]");
        let origin = phase.path.key("vote").to_string();
        Some(Event::Stage { kind: StageKind::Vote, text, origin, phase: phase.part.clone() })
    }

    /// The questions to the speaker, and the line that asks for the reply.
    pub(super) fn cue(&self, id: TurnId, options: Option<&OpenOptions>) -> Result<Vec<Event>, PromptError> {
        let turn = self.plan.turn(id);
        let asked = turn.ask.as_deref().into_iter();
        let asked = asked.chain(options.and_then(|options| options.choice.ask.as_deref()));
        let mut events = Vec::new();
        for template in asked {
            let reading = Reading { phase: turn.phase, round: Some(turn.round), agent: turn.speaker };
            events.extend(self.stage(&turn.path, template, StageKind::Cue, reading, turn.known)?);
        }
        let text = match options {
            None => match turn.form.as_deref().filter(|form| form.is_shown) {
                Some(form) => {
                    format!("[{} Reply with JSON that fits this schema: {}]", turn.cue, form.text())
                }
                None => format!("[{}]", turn.cue),
            },
            Some(OpenOptions { choice, open, .. }) => {
                let language = &self.scenario.language;
                let quoted = |option: &usize| {
                    language.say(Text::Quoted, &[("option", choice.options[*option].text.as_str())])
                };
                let listed = open.iter().map(quoted).collect::<Vec<_>>().join(", ");
                let asks = match choice.method {
                    ChoiceMethod::Decode => Text::ReplyOne,
                    ChoiceMethod::Parse => Text::DecideOne,
                };
                format!("[{} {}]", turn.cue, language.say(asks, &[("options", &listed)]))
            }
        };
        events.push(Event::asking(text));
        Ok(events)
    }
}
