//! Perspectives: the events that a turn's inputs are to one agent.

use super::memories::{Memories, Options, PromptError};
use crate::scenario::render::{Reading, render_stage};
use crate::scenario::results::{Outcome, Said, tally};
use crate::scenario::template::Template;
use crate::scenario::{
    AgentId, Announced, Audience, Decision, Input, Method, Opening, PhaseId, Purpose, TurnId,
};
use crate::timeline::{Event, StageKind};
use std::sync::Arc;

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
                Input::Opening(phase) if self.opens(path, *phase)? => {
                    self.opening(path, *phase, agent, &mut events)?;
                }
                Input::Opening(_) => {}
                Input::Heard(turn) => events.extend(self.heard(path, *turn, agent)?),
                Input::Vote(phase, attempt) => events.extend(self.vote(*phase, *attempt)),
                Input::Announced(announced) => events.extend(self.announced(path, *announced, agent)?),
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
            let end = self.plan.first_of(phase, 0).unwrap_or(self.plan.end());
            let reading = Reading { phase, round: None, agent };
            events.extend(self.stage(path, template, kind, reading, end)?);
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
        if !self.opens(path, phase)? || !self.has_round(path, phase, round)? {
            return Ok(None);
        }
        let template = &self.scenario.phase(phase).announcements[index].text;
        let reading = Reading { phase, round: Some(round), agent };
        self.stage(path, template, StageKind::Announcement, reading, known)
    }

    /// A text of the stage as one agent reads it, who knows what was said before `end`; an empty one is not read.
    fn stage(
        &self,
        path: &str,
        template: &Template,
        kind: StageKind,
        reading: Reading,
        end: TurnId,
    ) -> Result<Option<Event>, PromptError> {
        let said = Arc::new(Said::before(&self.plan, &self.outcomes, &template.quotes, end));
        let text = render_stage(&self.scenario, &template.text, reading, &said);
        let text = if self.is_made_up { text.or_else(|_| Ok(template.text.clone())) } else { text };
        let text = text.map_err(|error| self.failed(path, &template.path, error))?;
        let (text, origin) = (text.trim().to_string(), template.path.to_string());
        Ok((!text.is_empty()).then_some(Event::Stage { kind, text, origin }))
    }

    fn heard(&self, path: &str, turn: TurnId, listener: AgentId) -> Result<Option<Event>, PromptError> {
        let heard = self.plan.turn(turn);
        let text = match &self.outcomes[turn.0] {
            Outcome::Open => {
                let (path, needed) = (path.to_string(), heard.path.clone());
                return Err(PromptError::TooEarly { path, needed });
            }
            Outcome::Said { text, .. } if !text.is_empty() => text.to_string(),
            _ => return Ok(None),
        };
        let name = |agent: &AgentId| self.scenario.agent(*agent).name.clone();
        let from = match &heard.audience {
            Audience::Whisper { to, .. } if to.contains(&listener) => {
                format!("{} (whispers)", name(&heard.speaker))
            }
            Audience::Whisper { to, .. } => {
                let to: Vec<String> = to.iter().map(name).collect();
                format!("{} (whispers to {})", name(&heard.speaker), to.join(" and "))
            }
            _ => name(&heard.speaker),
        };
        Ok(Some(Event::Heard { from, text, origin: heard.path.clone() }))
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
        let counts = tally.votes.iter().enumerate().map(|(id, n)| format!("{} {n}", option(id)));
        let counts = counts.collect::<Vec<_>>().join(", ");
        let text = match (decision, decided) {
            (Decision::Coordinator(who), Some(decided)) => {
                format!("[{} has decided: {decided}.]", self.scenario.agent(who).name)
            }
            (Decision::Coordinator(who), None) => {
                format!("[{} has decided nothing.]", self.scenario.agent(who).name)
            }
            (Decision::RankedChoice, Some(decided)) => {
                format!("[First places: {counts}. Decided by run-off: {decided}.]")
            }
            (Decision::RankedChoice, None) => {
                format!("[First places: {counts}. The options are level: nothing is decided.]")
            }
            (_, Some(decided)) => format!("[The vote: {counts}. Decided: {decided}.]"),
            (Decision::Consensus { .. }, None) => format!("[The vote: {counts}. There is no consensus.]"),
            (_, None) => format!("[The vote: {counts}. Nothing is decided.]"),
        };
        let origin = format!("phases[{}].decision_mode", id.0);
        Some(Event::Stage { kind: StageKind::Vote, text, origin })
    }

    /// The questions to the speaker, and the line that asks for the reply.
    pub(super) fn cue(&self, id: TurnId, options: Option<&Options>) -> Result<Vec<Event>, PromptError> {
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
            Some(Options { choice, open, .. }) => {
                let listed = open.iter().map(|option| format!("\"{}\"", choice.options[*option].text));
                let listed = listed.collect::<Vec<_>>().join(", ");
                match choice.method {
                    Method::Decode => format!("[{} Reply with exactly one of: {listed}.]", turn.cue),
                    Method::Parse => format!("[{} Decide for one of: {listed}.]", turn.cue),
                }
            }
        };
        events.push(Event::Stage { kind: StageKind::Cue, text, origin: String::new() });
        Ok(events)
    }
}
