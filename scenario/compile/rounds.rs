//! The turns of a round, by topology.

use super::{Compiler, TurnDraft};
use crate::choice::{Choice, ChoiceMethod, ChoiceOption};
use crate::hints::Hints;
use crate::language::{Language, Text};
use crate::plan::{Audience, Condition, Constraint, Purpose, Trigger, TurnId};
use crate::{AgentId, Phase, PhaseId, Scenario, ScriptTurn, Topology};
use std::sync::Arc;

/// Number of turns that a phase unrolls into, without unrolling it; those that may be skipped count.
pub(crate) fn n_turns(phase: &Phase) -> usize {
    let (regular, each) = n_each_round(phase);
    let rounds = phase.rounds.saturating_add(super::votes::n_rounds_between(phase));
    let talk = rounds.saturating_mul(regular).min(phase.max_turns.unwrap_or(usize::MAX));
    let each = each.saturating_mul(phase.choices().map(|choice| choice.n_picks).max().unwrap_or(1));
    talk.saturating_mul(each).saturating_add(super::votes::n_ballots(phase, phase.speakers().len()))
}

/// Number of turns of a round, as `max_turns` counts them, and how many of the plan each of them is.
pub(crate) fn n_each_round(phase: &Phase) -> (usize, usize) {
    let n = phase.speakers().len();
    match &phase.topology {
        Topology::RoundRobin | Topology::Rotating | Topology::Broadcast => (n, 1),
        Topology::Random => (n, n),
        Topology::Whisper(pairs) => (2 * pairs.len(), 1),
        Topology::Matched(_) => (2 * n * n.saturating_sub(1), 1),
        Topology::Interrupt => (n, 2 * n.max(1) - 1),
        Topology::Moderated { .. } => (1, n + 1),
        Topology::Script(turns) => (turns.len(), 1),
    }
}

impl Compiler<'_> {
    /// One round; `left` counts the phase's turns down.
    pub(super) fn round(&mut self, id: PhaseId, round: usize, guard: &[Condition], left: &mut usize) {
        let scenario = self.scenario;
        let phase = scenario.phase(id);
        let speakers = phase.speakers();
        match &phase.topology {
            Topology::RoundRobin | Topology::Rotating => {
                let mut speakers = speakers;
                if phase.topology == Topology::Rotating && !speakers.is_empty() {
                    let first = (round - 1) % speakers.len();
                    speakers.rotate_left(first);
                }
                for speaker in take(&speakers, left) {
                    self.speak(id, round, *speaker, guard);
                }
            }
            Topology::Broadcast => {
                let known = Some(self.horizon());
                let drafts = take(&speakers, left).iter().map(|speaker| self.regular(id, *speaker, guard));
                let drafts: Vec<_> = drafts.map(|draft| TurnDraft { known, ..draft }).collect();
                let turns: Vec<_> =
                    drafts.into_iter().flat_map(|draft| self.turns(id, round, draft)).collect();
                turns.into_iter().for_each(|turn| self.deliver(turn));
            }
            Topology::Random => {
                let n_places = take(&speakers, left).len();
                for (place, speaker) in (0..n_places).flat_map(|at| speakers.iter().map(move |of| (at, *of)))
                {
                    let guard: Vec<_> = guard.iter().cloned().chain([Condition::Drawn(place)]).collect();
                    let suffix = format!(".{}", place + 1);
                    self.say(id, round, TurnDraft { suffix, ..self.regular(id, speaker, &guard) });
                }
            }
            Topology::Matched(pairs) => {
                let all = speakers.iter().flat_map(|one| speakers.iter().map(move |other| (*one, *other)));
                for (one, other) in all.filter(|(one, other)| one != other) {
                    let paired = Condition::Paired(one, other, pairs.clone());
                    let guard: Vec<_> = guard.iter().cloned().chain([paired]).collect();
                    self.whisper(id, round, (one, other), "", &guard);
                    self.whisper(id, round, (other, one), ".2", &guard);
                }
            }
            Topology::Whisper(pairs) => {
                let both: Vec<_> = pairs.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]).collect();
                for (speaker, listener) in take(&both, left) {
                    self.whisper(id, round, (*speaker, *listener), "", guard);
                }
            }
            Topology::Interrupt => self.interruptible(id, round, take(&speakers, left), guard),
            Topology::Moderated { by, again } => {
                *left -= 1;
                let is_floor = |turn: &&TurnId| self.purpose(**turn) == Purpose::Floor;
                let before = self.spoken_in[id.0].iter().rfind(is_floor).filter(|_| !again).copied();
                self.moderated(id, round, (*by, before), &speakers, guard);
            }
            Topology::Script(turns) => {
                let mut variants: Vec<Condition> = Vec::new();
                for (at, turn) in take(turns, left).iter().enumerate() {
                    let before = turns[..at].iter().filter(|other| other.agent == turn.agent).count();
                    if turn.variant == 0 {
                        variants.clear();
                    }
                    // What one of them sets must not give the same turn to another.
                    let guard: Vec<Condition> = guard.iter().chain(&variants).cloned().collect();
                    let played = self.scripted(id, round, turn, before, &guard);
                    variants.push(Condition::NotPlayed(played));
                }
            }
        }
    }

    /// A turn as the phase has them: a speech, or its choice.
    fn regular(&self, id: PhaseId, speaker: AgentId, guard: &[Condition]) -> TurnDraft {
        let phase = self.scenario.phase(id);
        let choice = phase.choice.clone().filter(|_| phase.decision.is_none());
        let audience = if phase.is_unheard { Audience::Nobody } else { phase.audience(speaker) };
        TurnDraft {
            speaker,
            suffix: String::new(),
            cue: cue(self.scenario, speaker, &audience),
            ask: phase.ask.clone(),
            guard: guard.to_vec(),
            purpose: if choice.is_some() { Purpose::Choice } else { Purpose::Speech },
            constraint: choice.map(|choice| Constraint { choice, except: Vec::new() }),
            form: phase.form.clone(),
            call: phase.call.clone(),
            audience,
            known: None,
            hints: Hints::default(),
        }
    }

    fn speak(&mut self, id: PhaseId, round: usize, speaker: AgentId, guard: &[Condition]) -> TurnId {
        self.say(id, round, self.regular(id, speaker, guard))
    }

    /// A turn that others hear at once; the first, where several options are picked.
    fn say(&mut self, id: PhaseId, round: usize, draft: TurnDraft) -> TurnId {
        let turns = self.turns(id, round, draft);
        turns.iter().for_each(|turn| self.deliver(*turn));
        turns[0]
    }

    /// A turn; one for each option that it picks.
    fn turns(&mut self, id: PhaseId, round: usize, draft: TurnDraft) -> Vec<TurnId> {
        let picks = draft.constraint.as_ref().filter(|constraint| constraint.choice.n_picks > 1);
        let Some(choice) = picks.map(|constraint| constraint.choice.clone()) else {
            return vec![self.turn(id, round, draft)];
        };
        let (cue, speaker, audience, known) =
            (draft.cue.clone(), draft.speaker, draft.audience.clone(), draft.known);
        let (suffix, hints) = (draft.suffix.clone(), draft.hints.clone());
        let cue = |language: &Language, rank| format!("{cue} {}", language.ordinal(rank));
        let scenario = self.scenario;
        let first = TurnDraft { cue: cue(&scenario.language, 1), ..draft };
        let mut picked = vec![self.turn(id, round, first)];
        let later = Arc::new(Choice { ask: None, ..Choice::clone(&choice) });
        for rank in 2..=choice.n_picks {
            let draft = TurnDraft {
                speaker,
                suffix: format!("{suffix}.pick-{rank}"),
                cue: cue(&scenario.language, rank),
                ask: None,
                guard: vec![Condition::Played(picked[0])],
                constraint: Some(Constraint { choice: later.clone(), except: picked.clone() }),
                form: None,
                call: None,
                purpose: Purpose::Choice,
                audience: audience.clone(),
                known,
                hints: hints.clone(),
            };
            picked.push(self.turn(id, round, draft));
        }
        picked
    }

    /// `nth`: the end of the path, where the same two speak in another order as well.
    fn whisper(
        &mut self,
        id: PhaseId,
        round: usize,
        (speaker, to): (AgentId, AgentId),
        nth: &str,
        guard: &[Condition],
    ) {
        let audience = self.scenario.phase(id).whisper(speaker, &[to]);
        let draft = TurnDraft {
            suffix: format!(".to-{}{nth}", self.scenario.agent(to).key),
            cue: cue(self.scenario, speaker, &audience),
            audience,
            ..self.regular(id, speaker, guard)
        };
        self.say(id, round, draft);
    }

    fn scripted(
        &mut self,
        id: PhaseId,
        round: usize,
        turn: &ScriptTurn,
        before: usize,
        guard: &[Condition],
    ) -> TurnId {
        let phase = self.scenario.phase(id);
        let regular = self.regular(id, turn.agent, guard);
        let holds = turn.when.iter().map(|when| Condition::Holds(when.clone()));
        let own = turn.choice.clone().map(|choice| Constraint { choice, except: Vec::new() });
        let regular = match &turn.form {
            Some(form) => {
                let form = Some(form.clone());
                TurnDraft { form, constraint: None, purpose: Purpose::Speech, ..regular }
            }
            None => regular,
        };
        let audience = match turn.is_unheard {
            Some(true) => Audience::Nobody,
            _ if !turn.to.is_empty() => phase.whisper(turn.agent, &turn.to),
            Some(false) => phase.audience(turn.agent),
            None => regular.audience.clone(),
        };
        let draft = TurnDraft {
            suffix: if before == 0 { String::new() } else { format!(".{}", before + 1) },
            call: turn.call.clone().or_else(|| regular.call.clone().filter(|_| !turn.has_answer())),
            ask: turn.ask.clone().or_else(|| regular.ask.clone()),
            guard: guard.iter().cloned().chain(holds).collect(),
            purpose: if own.is_some() { Purpose::Choice } else { regular.purpose },
            constraint: own.or_else(|| regular.constraint.clone()),
            cue: cue(self.scenario, turn.agent, &audience),
            audience,
            hints: turn.hints.clone(),
            ..regular
        };
        let turns = self.turns(id, round, draft);
        turns.iter().for_each(|turn| self.deliver(*turn));
        // What it sets knows all that it picked.
        self.change(id, Trigger::Turn(turns[0]), &turn.set);
        turns[0]
    }

    /// The moderator chooses one of the speakers, aloud; only that one's turn takes place. `before`: a choice
    /// that is not made again.
    fn moderated(
        &mut self,
        id: PhaseId,
        round: usize,
        (moderator, before): (AgentId, Option<TurnId>),
        speakers: &[AgentId],
        guard: &[Condition],
    ) {
        let option = |agent: &AgentId| {
            let agent = self.scenario.agent(*agent);
            ChoiceOption { value: agent.key.clone().into(), text: agent.name.clone() }
        };
        let constraint = closed(self.scenario.phase(id), speakers.iter().map(option).collect());
        let constraint = Constraint { except: before.into_iter().collect(), ..constraint };
        let draft = TurnDraft {
            cue: self.scenario.language.say(Text::Floor, &[("name", &self.scenario.agent(moderator).name)]),
            purpose: Purpose::Floor,
            constraint: Some(constraint),
            call: None,
            ask: None,
            ..self.regular(id, moderator, guard)
        };
        let floor = self.turn(id, round, draft);
        self.deliver(floor);
        for (option, speaker) in speakers.iter().enumerate() {
            let guard: Vec<_> = guard.iter().cloned().chain([Condition::Chose(floor, option)]).collect();
            self.speak(id, round, *speaker, &guard);
        }
    }

    fn interruptible(&mut self, id: PhaseId, round: usize, speakers: &[AgentId], guard: &[Condition]) {
        let everybody = self.scenario.phase(id).speakers();
        let mut cut_in: Vec<(AgentId, TurnId)> = Vec::new();
        for (at, speaker) in speakers.iter().enumerate() {
            self.speak(id, round, *speaker, guard);
            let next = speakers.get(at + 1);
            let name = &self.scenario.agent(*speaker).name;
            let key = &self.scenario.agent(*speaker).key;
            let others: Vec<_> =
                everybody.iter().copied().filter(|other| other != speaker && Some(other) != next).collect();
            let ask = |other: &AgentId| {
                let once = cut_in.iter().filter(|(agent, _)| agent == other);
                let once = once.map(|(_, turn)| Condition::NotPlayed(*turn));
                let language = &self.scenario.language;
                let options = [(false, language.text(Text::Wait)), (true, language.text(Text::CutIn))];
                let options =
                    options.map(|(value, text)| ChoiceOption { value: value.into(), text: text.into() });
                TurnDraft {
                    suffix: format!(".on-{key}"),
                    cue: language.say(
                        Text::Interrupt,
                        &[("speaker", name), ("name", &self.scenario.agent(*other).name)],
                    ),
                    purpose: Purpose::Floor,
                    constraint: Some(closed(self.scenario.phase(id), options.to_vec())),
                    call: None,
                    ask: None,
                    guard: guard.iter().cloned().chain(once).collect(),
                    audience: Audience::Nobody,
                    ..self.regular(id, *other, guard)
                }
            };
            let drafts: Vec<_> = others.iter().map(ask).collect();
            let asked: Vec<_> = drafts.into_iter().map(|draft| self.turn(id, round, draft)).collect();
            let mut first = Vec::new();
            for (other, asked) in others.into_iter().zip(asked) {
                let sooner = first.iter().map(|turn| Condition::NotPlayed(*turn));
                let wants = [Condition::Chose(asked, 1)].into_iter().chain(sooner);
                let guard: Vec<_> = guard.iter().cloned().chain(wants).collect();
                let draft = TurnDraft { suffix: format!(".cuts-{key}"), ..self.regular(id, other, &guard) };
                let turn = self.say(id, round, draft);
                first.push(turn);
                cut_in.push((other, turn));
            }
        }
    }
}

/// The first of these, as long as turns are left.
fn take<'a, T>(all: &'a [T], left: &mut usize) -> &'a [T] {
    let taken = &all[..all.len().min(*left)];
    *left -= taken.len();
    taken
}

/// A choice that the plan itself asks for.
fn closed(phase: &Phase, options: Vec<ChoiceOption>) -> Constraint {
    let path = phase.path.key("order");
    let choice = Choice {
        path,
        options,
        method: ChoiceMethod::Decode,
        shuffle: false,
        by_length: false,
        ask: None,
        open: None,
        n_picks: 1,
    };
    Constraint { choice: Arc::new(choice), except: Vec::new() }
}

/// The line that asks for the reply.
fn cue(scenario: &Scenario, speaker: AgentId, audience: &Audience) -> String {
    let name = &scenario.agent(speaker).name;
    match audience {
        Audience::Whisper { to, .. } => {
            let to = scenario.language.together(to.iter().map(|agent| scenario.agent(*agent).name.as_str()));
            scenario.language.say(Text::WhisperCue, &[("name", name), ("to", &to)])
        }
        _ => scenario.language.say(Text::Cue, &[("name", name)]),
    }
}
