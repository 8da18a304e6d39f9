//! Every text and expression that depends on phases, tried on all results of a rehearsal.

use super::plays::{Extent, FinishedPlay, PhaseGroup, Rehearsal};
use super::words::{LOOKS_AT_WORDS, LOOKS_BACK, OF_READER, mentions, way, words};
use crate::outcome;
use greenroom_scenario::Assignment;
use greenroom_scenario::render::Reading;
use greenroom_scenario::results::{Outcome, payoffs};
use greenroom_scenario::template::{Expression, Template, TemplateError};
use greenroom_scenario::{
    AgentId, Announced, Horizon, PassId, Path, PayoffRule, PhaseId, Scenario, Steps, TurnId,
};
use std::collections::{BTreeMap, BTreeSet};

/// Something that is tried, and what became of it.
pub(super) struct Trial<'s> {
    pub(super) what: TrialSubject<'s>,
    pub(super) path: &'s Path,
    pub(super) text: &'s str,
    /// Phases whose results it uses.
    pub(super) phases: &'s [PhaseId],
    /// Other phases on which it depends.
    waits: &'s [PhaseId],
    pub(super) n_tried: usize,
    pub(super) n_failed: usize,
    /// The number of times a condition held.
    pub(super) n_held: usize,
    /// The course to the first failure, and its error.
    pub(super) failed: Option<(String, TemplateError)>,
    /// Phases that it uses and that were skipped once.
    pub(super) unplayed: BTreeSet<PhaseId>,
    pub(super) extent: Extent,
    /// True if what it does depends on the words of agents.
    pub(super) has_words: bool,
    /// True if it is tried though nothing led to it.
    pub(super) is_forced: bool,
    /// True if it is in a pass after the second of a block.
    pub(super) is_late: bool,
    /// The code that it runs, with the outcomes and the intermediate values that it uses.
    code: Vec<&'s str>,
}

/// The subject of a trial.
pub(super) enum TrialSubject<'s> {
    /// A text of a phase's opening.
    Opening { template: &'s Template, phase: PhaseId, readers: Vec<AgentId> },
    /// A question to speakers.
    Ask { template: &'s Template, phase: PhaseId },
    /// An announcement, by its index in the phase.
    Announced { template: &'s Template, to: &'s [AgentId], index: usize, phase: PhaseId },
    /// A phase's `when`.
    When(&'s Expression, PhaseId),
    /// A phase's `until`, a turn's `when`, or a condition of a block.
    Condition(&'s Expression, PhaseId),
    /// What is set, who is present or votes, which options are open.
    Worked(&'s Expression, PhaseId),
    /// An outcome or an assertion, and the outcomes above it.
    Result { expression: &'s Expression, above: &'s [(String, Expression)], is_assertion: bool },
    /// The payoff.
    Each,
}

/// All texts and expressions of a scenario that depend on phases.
pub(super) fn trials(scenario: &Scenario) -> Vec<Trial<'_>> {
    let mut trials = Vec::new();
    for pass in &scenario.passes {
        let first = PhaseId(pass.phases.start);
        let until = pass.before.and_then(|before| scenario.pass(before).until.as_ref());
        let conditions = until.into_iter().chain(&pass.when);
        trials.extend(
            conditions.map(|each| Trial::of_expression(scenario, TrialSubject::Condition(each, first), each)),
        );
    }
    for id in (0..scenario.phases.len()).map(PhaseId) {
        of_phase(scenario, id, &mut trials);
    }
    for (at, (_, expression)) in scenario.outcomes.iter().enumerate() {
        let above = &scenario.outcomes[..at];
        let what = TrialSubject::Result { expression, above, is_assertion: false };
        trials.push(Trial::of_expression(scenario, what, expression));
    }
    for assertion in &scenario.assertions {
        let (expression, above) = (&assertion.that, scenario.outcomes.as_slice());
        let what = TrialSubject::Result { expression, above, is_assertion: true };
        trials.push(Trial::of_expression(scenario, what, expression));
    }
    if let Some(payoff) = &scenario.payoff
        && let PayoffRule::Each(each) = &payoff.rule
    {
        let trial = Trial::of_expression(scenario, TrialSubject::Each, each);
        trials.push(Trial { phases: &payoff.phases, waits: &[], ..trial });
    }
    trials
}

/// Those of one phase.
fn of_phase<'s>(scenario: &'s Scenario, id: PhaseId, trials: &mut Vec<Trial<'s>>) {
    let phase = scenario.phase(id);
    let looks_back = |template: &Template| !template.quotes.is_empty() || template.scope.state;
    let voters = phase.voters.iter().filter_map(|voters| voters.among.as_ref());
    let open = phase.choices().filter_map(|choice| choice.open.as_ref());
    let worked = phase
        .cast
        .iter()
        .chain(phase.matched())
        .chain(voters)
        .chain(open)
        .chain(phase.sets().flat_map(Assignment::expressions));
    trials.extend(worked.map(|each| Trial::of_expression(scenario, TrialSubject::Worked(each, id), each)));
    trials.extend(
        phase.when.iter().map(|when| Trial::of_expression(scenario, TrialSubject::When(when, id), when)),
    );
    let conditions = phase.until.iter().chain(phase.script().iter().filter_map(|turn| turn.when.as_ref()));
    trials.extend(
        conditions.map(|each| Trial::of_expression(scenario, TrialSubject::Condition(each, id), each)),
    );
    let mut openings: BTreeMap<String, (&Template, Vec<AgentId>)> = BTreeMap::new();
    for agent in &phase.agents {
        for (_, text) in phase.opening(*agent).filter(|(_, text)| looks_back(text)) {
            openings.entry(text.path.to_string()).or_insert((text, Vec::new())).1.push(*agent);
        }
    }
    if let Some(query) = phase.query().filter(|text| looks_back(text)) {
        openings.insert(query.path.to_string(), (query, phase.agents.clone()));
    }
    for (template, mut readers) in openings.into_values() {
        if !mentions(&template.text, OF_READER) {
            readers.truncate(1);
        }
        trials.push(Trial::of_template(
            scenario,
            TrialSubject::Opening { template, phase: id, readers },
            template,
        ));
    }
    let announcements = phase.announcements.iter().enumerate();
    for (index, announcement) in announcements.filter(|(_, each)| looks_back(&each.text)) {
        let (template, to) = (&announcement.text, announcement.to.as_slice());
        let what = TrialSubject::Announced { template, to, index, phase: id };
        trials.push(Trial::of_template(scenario, what, template));
    }
    for template in phase.asks().filter(|text| looks_back(text)) {
        trials.push(Trial::of_template(scenario, TrialSubject::Ask { template, phase: id }, template));
    }
}

impl TrialSubject<'_> {
    /// Its phase.
    fn at(&self) -> Option<PhaseId> {
        match self {
            Self::Opening { phase, .. }
            | Self::Ask { phase, .. }
            | Self::Announced { phase, .. }
            | Self::When(_, phase)
            | Self::Condition(_, phase)
            | Self::Worked(_, phase) => Some(*phase),
            Self::Result { .. } | Self::Each => None,
        }
    }
}

/// The code of a text or an expression, and of the intermediate values that it uses.
fn codes<'s>(scenario: &'s Scenario, text: &'s str, lets: &[usize]) -> Vec<&'s str> {
    let lets = lets.iter().map(|index| scenario.lets[*index].1.text.as_str());
    std::iter::once(text).chain(lets).collect()
}

impl<'s> Trial<'s> {
    fn of_expression(scenario: &'s Scenario, what: TrialSubject<'s>, of: &'s Expression) -> Self {
        let code = codes(scenario, &of.text, &of.scope.lets);
        Self::new(scenario, what, (&of.path, &of.text), (&of.phases, &of.scope.waits), code)
    }

    fn of_template(scenario: &'s Scenario, what: TrialSubject<'s>, of: &'s Template) -> Self {
        let code = codes(scenario, &of.text, &of.scope.lets);
        Self::new(scenario, what, (&of.path, &of.text), (&of.quotes, &of.scope.waits), code)
    }

    fn new(
        scenario: &'s Scenario,
        what: TrialSubject<'s>,
        (path, text): (&'s Path, &'s str),
        (phases, waits): (&'s [PhaseId], &'s [PhaseId]),
        mut code: Vec<&'s str>,
    ) -> Self {
        if let TrialSubject::Result { above, .. } = what {
            code.extend(above.iter().flat_map(|(_, each)| codes(scenario, &each.text, &each.scope.lets)));
        }
        let mut passes = what.at().into_iter().flat_map(|phase| scenario.passes_of(phase));
        let is_late = passes.any(|pass: PassId| scenario.pass(pass).number > 2);
        Self {
            what,
            path,
            text,
            phases,
            waits,
            n_tried: 0,
            n_failed: 0,
            n_held: 0,
            failed: None,
            unplayed: BTreeSet::new(),
            extent: Extent::Cut,
            has_words: false,
            is_forced: false,
            is_late,
            code,
        }
    }

    /// The phases to play for it; and one of them whose own choices nothing looks at.
    pub(super) fn phases(&self, rehearsal: &Rehearsal) -> (BTreeSet<PhaseId>, Option<PhaseId>) {
        let scenario = &rehearsal.scenario;
        let opens = |phase: PhaseId| {
            scenario.opens_if(phase).chain(&scenario.phase(phase).cast).flat_map(Expression::needs)
        };
        let own = self.phases.iter().chain(self.waits).copied();
        match &self.what {
            TrialSubject::Opening { phase, .. } | TrialSubject::When(_, phase) => {
                (rehearsal.closure(own.chain(opens(*phase))), None)
            }
            TrialSubject::Each => (rehearsal.closure(own), None),
            TrialSubject::Condition(_, phase)
            | TrialSubject::Worked(_, phase)
            | TrialSubject::Announced { phase, .. } => (rehearsal.closure(own.chain([*phase])), None),
            TrialSubject::Ask { phase, .. } => {
                let looks = |expression: &Expression| expression.phases.contains(phase);
                let is_unseen = !self.phases.contains(phase)
                    && !self.waits.contains(phase)
                    && !rehearsal.expressions(*phase).any(looks);
                (rehearsal.closure(own.chain([*phase])), is_unseen.then_some(*phase))
            }
            TrialSubject::Result { above, .. } => {
                let above = above.iter().filter(|_| self.uses_outcomes());
                let above = above.flat_map(|(_, expression)| expression.needs());
                (rehearsal.closure(own.chain(above)), None)
            }
        }
    }

    fn uses_outcomes(&self) -> bool {
        mentions(self.text, &["outcome"])
    }

    /// True if another condition has the same value at all times, so that it need not be tried.
    pub(super) fn is_same(&self, other: &Self, scenario: &Scenario) -> bool {
        let is_in_block = |phase: PhaseId| scenario.phase(phase).pass.is_some();
        match (&self.what, &other.what) {
            (TrialSubject::When(_, own), TrialSubject::When(_, others)) => {
                self.text == other.text
                    && (self.phases, self.waits) == (other.phases, other.waits)
                    && !is_in_block(*own)
                    && !is_in_block(*others)
            }
            _ => false,
        }
    }

    pub(super) fn learn_from(&mut self, other: &Self) {
        (self.n_tried, self.n_failed, self.n_held) = (other.n_tried, other.n_failed, other.n_held);
        (self.failed, self.extent, self.has_words) = (other.failed.clone(), other.extent, other.has_words);
    }

    /// Tries it on a play.
    pub(super) fn look(&mut self, rehearsal: &Rehearsal, played: &FinishedPlay<'_>, steps: &mut Steps) {
        // Once it has failed and not failed, all is known.
        if self.n_failed > 0 && self.n_failed < self.n_tried {
            return;
        }
        match self.what {
            TrialSubject::Condition(expression, phase) | TrialSubject::Worked(expression, phase) => {
                self.look_at_notes(rehearsal, played, (expression, phase), steps);
            }
            TrialSubject::Ask { template, phase } => {
                self.look_at_ask(rehearsal, played, (template, phase), steps)
            }
            // Everything else is evaluated at the end.
            _ if !played.is_complete => {}
            TrialSubject::Opening { template, phase, ref readers } => {
                let readers = readers.clone();
                self.look_at_opening(rehearsal, played, (template, phase, &readers), steps);
            }
            TrialSubject::Announced { template, to, index, phase } => {
                self.look_at_announcement(rehearsal, played, (template, to, index, phase), steps);
            }
            TrialSubject::When(when, phase) => self.look_at_when(rehearsal, played, (when, phase), steps),
            TrialSubject::Result { expression, above, is_assertion } => {
                self.look_at_result(rehearsal, played, (expression, above, is_assertion), steps);
            }
            TrialSubject::Each => self.look_at_payoffs(rehearsal, played, steps),
        }
    }

    /// What was evaluated on the way.
    fn look_at_notes(
        &mut self,
        rehearsal: &Rehearsal,
        played: &FinishedPlay<'_>,
        (expression, phase): (&Expression, PhaseId),
        steps: &mut Steps,
    ) {
        let memories = played.memories;
        // A phase without turns may not have asked whether it opens.
        let at_end = if played.is_complete {
            memories.take_notes();
            let _ = steps.count(|| memories.is_opened(phase));
            memories.take_notes()
        } else {
            Vec::new()
        };
        let own = played.notes.iter().chain(&at_end).filter(|note| note.is(expression));
        let results: Vec<_> = own.map(|note| note.error.clone()).collect();
        let end = played.excerpt.plan.end();
        results.into_iter().for_each(|error| self.note(rehearsal, played, end, error));
    }

    fn look_at_ask(
        &mut self,
        rehearsal: &Rehearsal,
        played: &FinishedPlay<'_>,
        (template, phase): (&Template, PhaseId),
        steps: &mut Steps,
    ) {
        for (reading, known) in question_readings(played, phase, template) {
            self.read(rehearsal, played, (template, reading, known), steps);
        }
        if self.is_forced && played.is_complete {
            let agent = rehearsal.scenario.phase(phase).agents[0];
            let reading = Reading { phase, round: Some(1), agent };
            self.read(rehearsal, played, (template, reading, played.excerpt.plan.all()), steps);
        }
    }

    fn look_at_opening(
        &mut self,
        rehearsal: &Rehearsal,
        played: &FinishedPlay<'_>,
        (template, phase, readers): (&Template, PhaseId, &[AgentId]),
        steps: &mut Steps,
    ) {
        let memories = played.memories;
        if !self.is_forced && !matches!(memories.is_opened(phase), Ok(true)) {
            return;
        }
        let known = played.excerpt.plan.begin_of(phase, 0);
        for agent in memories.present_of(phase, readers) {
            let reading = Reading { phase, round: None, agent };
            self.read(rehearsal, played, (template, reading, known), steps);
        }
    }

    fn look_at_announcement(
        &mut self,
        rehearsal: &Rehearsal,
        played: &FinishedPlay<'_>,
        (template, to, index, phase): (&Template, &[AgentId], usize, PhaseId),
        steps: &mut Steps,
    ) {
        let all = rehearsal.announced.get(&phase).into_iter().flatten();
        for announced in all.filter(|announced| announced.index == index) {
            let known = played.excerpt.map_horizon(announced.known);
            let announced = Announced { known, ..*announced };
            if !matches!(played.memories.is_announced(announced), Ok(true)) {
                continue;
            }
            let n = if mentions(&template.text, OF_READER) { to.len() } else { 1 };
            for agent in played.memories.present_of(phase, to).into_iter().take(n) {
                let reading = Reading { phase, round: Some(announced.round), agent };
                self.read(rehearsal, played, (template, reading, known), steps);
            }
        }
    }

    fn look_at_when(
        &mut self,
        rehearsal: &Rehearsal,
        played: &FinishedPlay<'_>,
        (when, phase): (&Expression, PhaseId),
        steps: &mut Steps,
    ) {
        let (memories, plan) = (played.memories, &played.excerpt.plan);
        steps.spend(rehearsal.steps_of(when.text.len(), plan.n_turns()));
        memories.take_notes();
        let held = steps.count(|| memories.asks_when(phase, when));
        let error = memories.take_notes().into_iter().find(|note| note.is(when));
        let error = error.and_then(|note| note.error);
        if matches!(held, Ok(Some(_))) || error.is_some() {
            self.n_held += usize::from(matches!(held, Ok(Some(true))));
            self.note(rehearsal, played, plan.begin_of(phase, 0).turns, error);
        }
    }

    fn look_at_result(
        &mut self,
        rehearsal: &Rehearsal,
        played: &FinishedPlay<'_>,
        (expression, above, is_assertion): (&Expression, &[(String, Expression)], bool),
        steps: &mut Steps,
    ) {
        let (scenario, plan) = (&rehearsal.scenario, &played.excerpt.plan);
        let above: &[_] = if self.uses_outcomes() { above } else { &[] };
        let Ok(said) = played.memories.history() else { return };
        let n_bytes = above.iter().map(|(_, each)| each.text.len()).sum::<usize>() + self.text.len();
        let cost = rehearsal.steps_of(n_bytes, plan.n_turns());
        steps.spend(cost.saturating_mul(above.len() as u64 + 1));
        let result = steps.count(|| {
            let known = outcome::values(scenario, above, &said);
            match is_assertion {
                true => outcome::holds(scenario, expression, &said, &known),
                false => outcome::value(scenario, expression, &said, &known).map(|_| false),
            }
        });
        self.n_held += usize::from(matches!(result, Ok(true)));
        self.note(rehearsal, played, plan.end(), result.err());
    }

    fn look_at_payoffs(&mut self, rehearsal: &Rehearsal, played: &FinishedPlay<'_>, steps: &mut Steps) {
        let Ok(said) = played.memories.history() else { return };
        if !self.phases.iter().any(|phase| said.has(*phase)) {
            return;
        }
        let lines = self.phases.iter().map(|phase| said.lines(*phase).len() as u64).sum::<u64>();
        steps.spend(lines.saturating_mul(rehearsal.steps_of(self.text.len(), 0)));
        let result = steps.count(|| payoffs(&rehearsal.scenario, &said));
        self.note(rehearsal, played, played.excerpt.plan.end(), result.err());
    }

    /// Lets an agent read a text.
    fn read(
        &mut self,
        rehearsal: &Rehearsal,
        played: &FinishedPlay<'_>,
        (template, reading, known): (&Template, Reading, Horizon),
        steps: &mut Steps,
    ) {
        steps.spend(rehearsal.steps_of(template.text.len(), played.excerpt.plan.n_turns()));
        let error = match steps.count(|| played.memories.try_text(template, reading, known)) {
            Ok(()) => None,
            Err(Some(error)) => Some(error),
            Err(None) => return,
        };
        let said = played.memories.said_before(self.phases, known.turns);
        let own = self.own();
        let unplayed = self.phases.iter().filter(|phase| Some(**phase) != own && !said.has(**phase));
        self.unplayed.extend(unplayed);
        self.note(rehearsal, played, known.turns, error);
    }

    /// The phase in which it is read or asked, of which nothing may have been said yet.
    fn own(&self) -> Option<PhaseId> {
        match self.what {
            TrialSubject::Ask { phase, .. }
            | TrialSubject::Announced { phase, .. }
            | TrialSubject::Condition(_, phase)
            | TrialSubject::Worked(_, phase) => Some(phase),
            _ => None,
        }
    }

    /// Notes what became of it, before a turn of a play.
    fn note(
        &mut self,
        rehearsal: &Rehearsal,
        played: &FinishedPlay<'_>,
        end: TurnId,
        error: Option<TemplateError>,
    ) {
        self.n_tried += 1;
        let Some(error) = error else { return };
        self.n_failed += 1;
        if self.failed.is_none() {
            let mut phases: BTreeSet<PhaseId> = self.phases.iter().copied().collect();
            let all: Vec<PhaseId> = (0..rehearsal.scenario.phases.len()).map(PhaseId).collect();
            let said = played.memories.said_before(&all, end);
            if self.uses_outcomes() {
                phases.extend(said.phases());
            }
            let way = way(&rehearsal.scenario, &phases, self.own(), &said, self.has_words);
            self.failed = Some((way, error));
        }
    }
}

/// The readings of a question in a phase: each turn that was asked it, and what was known by then.
fn question_readings(
    played: &FinishedPlay<'_>,
    phase: PhaseId,
    template: &Template,
) -> Vec<(Reading, Horizon)> {
    let plan = &played.excerpt.plan;
    let turns = plan.order().skip(plan.begin_of(phase, 0).turns.0);
    let turns = turns.take_while(|(_, turn)| turn.phase == phase);
    let turns = turns.filter(|(id, turn)| {
        let of_choice = turn.constraint.as_ref().and_then(|constraint| constraint.choice.ask.as_deref());
        let mut asked = turn.ask.as_deref().into_iter().chain(of_choice);
        let was_played = matches!(played.memories.outcome(*id), Outcome::Said { .. });
        was_played && asked.any(|asked| asked.path == template.path)
    });
    turns
        .map(|(_, turn)| (Reading { phase, round: Some(turn.round), agent: turn.speaker }, turn.known))
        .collect()
}

impl Rehearsal {
    /// The piece that is played for some trials.
    pub(super) fn piece(
        &self,
        phases: BTreeSet<PhaseId>,
        unseen: Option<PhaseId>,
        trials: &mut [&mut Trial<'_>],
    ) -> PhaseGroup {
        let whens = trials.iter().filter_map(|trial| match trial.what {
            TrialSubject::Opening { phase, .. } | TrialSubject::When(_, phase) => Some(phase),
            _ => None,
        });
        let whens = whens.flat_map(|phase| self.scenario.opens_if(phase));
        let shared = phases.iter().flat_map(|phase| self.expressions(*phase)).chain(whens);
        let shared: BTreeSet<&str> =
            shared.flat_map(|each| codes(&self.scenario, &each.text, &each.scope.lets)).collect();
        let has = |texts: &[&str], words: &[&str]| texts.iter().any(|text| mentions(text, words));
        let of_shared = shared.iter().any(|text| mentions(text, LOOKS_AT_WORDS));
        trials.iter_mut().for_each(|trial| trial.has_words = of_shared || has(&trial.code, LOOKS_AT_WORDS));
        let all: Vec<&str> =
            trials.iter().flat_map(|trial| trial.code.iter().copied()).chain(shared).collect();
        let texts = if has(&all, LOOKS_AT_WORDS) { words(&all) } else { vec!["…".into()] };
        PhaseGroup { phases, unseen, looks_back: has(&all, LOOKS_BACK), texts }
    }
}
