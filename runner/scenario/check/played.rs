//! What strategies reply in a rehearsal, as far as what they go by is known there: not all phases are rehearsed, and of some turns it
//! does not matter what they choose.

use super::Checker;
use super::rehearsal::{Play, Rehearsal, Steps};
use crate::scenario::choice::Chosen;
use crate::scenario::plan::{Input, Turn, TurnId};
use crate::scenario::yaml::Path;
use crate::scenario::{Choice, NoReply, Offer, PhaseId, Recalled, Strategy};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Turns of strategies that were rehearsed.
#[derive(Default)]
pub(super) struct Replies(RefCell<BTreeMap<TurnId, Tried>>);

#[derive(Default)]
struct Tried {
    n: usize,
    n_failed: usize,
    failed: Option<NoReply>,
}

impl Replies {
    fn note(&self, turn: TurnId, reply: &Result<String, NoReply>) {
        let mut all = self.0.borrow_mut();
        let tried = all.entry(turn).or_default();
        tried.n += 1;
        if let Err(error) = reply {
            tried.n_failed += 1;
            tried.failed.get_or_insert_with(|| error.clone());
        }
    }
}

impl Play<'_> {
    /// What the strategy of a turn's speaker chooses among the open options; none: the speaker has no strategy, or it is unknown.
    pub(super) fn by_strategy(
        &self,
        id: TurnId,
        turn: &Turn,
        open: &[usize],
        steps: &mut Steps,
    ) -> Option<Result<Chosen, NoReply>> {
        let scenario = &self.rehearsal.scenario;
        let strategy = scenario.strategy_of(turn).filter(|strategy| !strategy.is_random())?;
        let choice = &turn.constraint.as_ref()?.choice;
        if *strategy == Strategy::Human || open.is_empty() {
            return None;
        }
        let recalled = self.recalled(id, turn, strategy, choice, steps)?;
        let ranked: Vec<usize> = self.taken(turn).into_iter().collect();
        let offer = Offer { choice, open, ranked: &ranked };
        let reply = strategy.reply(&turn.path, 0, Some(offer), &recalled);
        self.rehearsal.replies.note(id, &reply);
        Some(reply.map(|text| choice.read(&text, &scenario.language)))
    }

    /// What a strategy remembers at a turn, as far as it goes by it; none: that is unknown here.
    fn recalled(
        &self,
        id: TurnId,
        turn: &Turn,
        strategy: &Strategy,
        choice: &Choice,
        steps: &mut Steps,
    ) -> Option<Recalled> {
        let mut recalled = Recalled::default();
        let (hears, counts) = match strategy {
            Strategy::TitForTat | Strategy::Grim => (true, false),
            Strategy::List(_) => (false, true),
            _ => return Some(recalled),
        };
        let first = self.fresh_from(turn)?;
        let (rehearsal, name) = (self.rehearsal, &self.rehearsal.scenario.phase(turn.phase).name);
        let is_by_phase =
            matches!(rehearsal.scenario.agent(turn.speaker).strategy, Some(Strategy::ByPhase(_)));
        let own = rehearsal.plan.order().take(id.0 + 1).filter(|(_, own)| own.timeline == turn.timeline);
        steps.spend(id.0 as u64 / 16);
        for (own_id, own) in own.filter(|_| hears || counts) {
            steps.spend(own.inputs.len() as u64);
            let heard = own.inputs.iter().filter_map(|input| match input {
                Input::Heard(heard) if hears => Some(*heard),
                _ => None,
            });
            for heard in heard {
                let other = rehearsal.plan.turn(heard);
                let Some(of) = other.constraint.as_ref().filter(|_| other.phase >= first) else { continue };
                if !choice.has_results_of(&of.choice) || !self.was_there(other.phase, turn)? {
                    continue;
                }
                if let Some(option) = self.option(heard)? {
                    recalled.others.extend(choice.with_value(&of.choice.options[option].value));
                }
            }
            let is_own = !is_by_phase || rehearsal.scenario.phase(own.phase).name == *name;
            if counts && own_id < id && own.phase >= first && is_own {
                recalled.n_replies += usize::from(self.is_played(own_id, own)?);
            }
        }
        Some(recalled)
    }

    /// True if the speaker of a turn was present in a phase, if that is known.
    fn was_there(&self, phase: PhaseId, turn: &Turn) -> Option<bool> {
        if !self.rehearsal.scenario.phase(phase).is_cast_open() {
            return Some(true);
        }
        self.casts.get(&phase).map(|cast| cast.contains(&turn.speaker))
    }

    /// True if a turn was played, if that is known.
    fn is_played(&self, id: TurnId, turn: &Turn) -> Option<bool> {
        match self.phases.contains(&turn.phase) {
            true => Some(self.was_played(id)),
            false => turn.guard.is_empty().then_some(true),
        }
    }

    /// The first phase that a strategy goes by at a turn, if it is known.
    fn fresh_from(&self, turn: &Turn) -> Option<PhaseId> {
        let scenario = &self.rehearsal.scenario;
        for id in (0..=turn.phase.0).rev().map(PhaseId) {
            let phase = scenario.phase(id);
            if !phase.fresh || !phase.agents.contains(&turn.speaker) {
                continue;
            }
            let is_certain = scenario.opens_if(id).next().is_none();
            let opens = is_certain.then_some(true).or_else(|| self.decided.get(&(id, 0)).copied());
            if opens? && self.was_there(id, turn)? {
                return Some(id);
            }
        }
        Some(PhaseId(0))
    }
}

impl Checker {
    /// Reports strategies that choose what they can't.
    pub(super) fn stuck(&mut self, rehearsal: &Rehearsal) {
        for (id, tried) in rehearsal.replies.0.take() {
            let (Some(error), turn) = (&tried.failed, rehearsal.plan.turn(id)) else { continue };
            let key = rehearsal.scenario.agent(turn.speaker).key.clone();
            let is_certain = tried.n_failed == tried.n;
            let may = if is_certain { "" } else { "depending on what others choose, " };
            let message = format!("at {}, {may}{error}", turn.path);
            let help = "a run would end there with an error: write an option that is open at that turn";
            let path = Path::default().key("agents").key(key).key("strategy");
            let found = match is_certain {
                true => self.error("not-open", &path, message),
                false => self.warn("not-open", &path, message),
            };
            found.help = Some(help.into());
        }
    }
}
