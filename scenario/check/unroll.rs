//! Unrolls blocks: each of their phases becomes one for each pass. What texts and expressions name is found
//! among them, and what they depend on beyond that is computed: what the state has come to, and which passes
//! were played.

use crate::template::{Expression, Scope, Template, evaluate_in, plain_variables};
use crate::{
    AgentId, Assignment, Choice, Content, Decision, Item, Pass, PassId, Payoff, Phase, PhaseId, Topology,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// A block as it is written.
#[derive(Clone, Debug)]
pub(super) struct BlockDeclaration {
    /// Its block.
    pub(super) within: Option<usize>,
    /// Its phases as they are written, those of blocks in it included.
    pub(super) phases: Range<usize>,
    /// Maximum number of its passes.
    pub(super) n_passes: usize,
    /// What each pass is played for; empty: it is only repeated.
    pub(super) items: Vec<Arc<Item>>,
    pub(super) when: Option<Expression>,
    pub(super) until: Option<Expression>,
}

/// The number of phases that such blocks unroll into, if each has `weight(phase)` parts.
pub(super) fn n_unrolled(
    blocks: &[BlockDeclaration],
    n_phases: usize,
    weight: impl Fn(usize) -> usize,
) -> usize {
    let passes = |phase: usize| {
        let around = blocks.iter().filter(|block| block.phases.contains(&phase));
        around.map(|block| block.n_passes).fold(1, usize::saturating_mul)
    };
    (0..n_phases).map(|phase| passes(phase).saturating_mul(weight(phase))).fold(0, usize::saturating_add)
}

/// Unrolls the blocks of a scenario whose phases, and what names them, are those that are written.
pub(super) fn unroll(scenario: &mut Content, blocks: &[BlockDeclaration]) {
    let mut unrolling =
        Unrolling { blocks, written: std::mem::take(&mut scenario.phases), ..Default::default() };
    unrolling.emit(0..unrolling.written.len(), None, None);
    for id in 0..unrolling.phases.len() {
        let (mut phase, of) = (unrolling.phases[id].clone(), unrolling.of[id]);
        unrolling.name(&mut phase, of);
        unrolling.phase(&mut phase, PhaseId(id), &scenario.payoff);
        if unrolling.chain(phase.pass).into_iter().any(|pass| unrolling.passes[pass.0].item.is_some()) {
            phase = unrolling.narrowed(phase, scenario);
        }
        unrolling.phases[id] = phase;
        unrolling.ends(id, &scenario.payoff);
    }
    let end = Site { at: None, n_known: unrolling.phases.len() };
    let results = scenario.outcomes.iter_mut().map(|(_, value)| value);
    for expression in results.chain(scenario.assertions.iter_mut().map(|assertion| &mut assertion.that)) {
        unrolling.expression(expression, end, &scenario.payoff);
    }
    if let Some(payoff) = &mut scenario.payoff {
        payoff.phases = unrolling.all_of(&payoff.phases, end.n_known);
    }
    (scenario.phases, scenario.passes) = (unrolling.phases, unrolling.passes);
}

/// The place from which names are looked for.
#[derive(Clone, Copy)]
struct Site {
    /// Its phase.
    at: Option<PhaseId>,
    /// The number of phases that something is known of.
    n_known: usize,
}

#[derive(Default)]
struct Unrolling<'a> {
    blocks: &'a [BlockDeclaration],
    written: Vec<Phase>,
    phases: Vec<Phase>,
    /// The phase as written, for each unrolled one.
    of: Vec<usize>,
    passes: Vec<Pass>,
    /// The block of each pass.
    block_of: Vec<usize>,
    /// Phases that decide about the state by now.
    decides: BTreeSet<PhaseId>,
}

impl Unrolling<'_> {
    /// Adds the phases of a range, in a pass of a block.
    fn emit(&mut self, range: Range<usize>, block: Option<usize>, pass: Option<PassId>) {
        let mut at = range.start;
        while at < range.end {
            let inner =
                self.blocks.iter().position(|inner| inner.within == block && inner.phases.start == at);
            let Some(inner) = inner.filter(|inner| !self.blocks[*inner].phases.is_empty()) else {
                self.phases.push(Phase { pass, ..self.written[at].clone() });
                self.of.push(at);
                at += 1;
                continue;
            };
            let BlockDeclaration { phases, n_passes, items, when, until, .. } = self.blocks[inner].clone();
            let mut before = None;
            for number in 1..=n_passes {
                let id = PassId(self.passes.len());
                let (begin, when) = (self.phases.len(), when.clone().filter(|_| number == 1));
                let (within, until) = (pass, until.clone());
                let range = begin..begin;
                let (of, item, phases_here) = (n_passes, items.get(number - 1).cloned(), range);
                self.passes.push(Pass { number, of, item, within, before, phases: phases_here, when, until });
                self.block_of.push(inner);
                self.emit(phases.clone(), Some(inner), Some(id));
                self.passes[id.0].phases.end = self.phases.len();
                before = Some(id);
            }
            at = phases.end;
        }
    }

    fn chain(&self, pass: Option<PassId>) -> Vec<PassId> {
        std::iter::successors(pass, |pass| self.passes[pass.0].within).collect()
    }

    fn up_to(&self, pass: PassId) -> impl Iterator<Item = PassId> {
        std::iter::successors(Some(pass), |pass| self.passes[pass.0].before)
    }

    /// Names a phase in a block after its passes.
    fn name(&self, phase: &mut Phase, of: usize) {
        let passes: Vec<&Pass> =
            self.chain(phase.pass).into_iter().rev().map(|pass| &self.passes[pass.0]).collect();
        let written = &self.written[of];
        phase.part = written.name.clone();
        if !passes.is_empty() {
            let parts: Vec<String> = passes.iter().map(|pass| pass.part()).collect();
            let parts = parts.join(".");
            let is_of_items = passes.iter().any(|pass| pass.item.is_some());
            phase.part = format!("{}.{parts}", written.name);
            phase.label = format!("{}{} {parts}", written.label, if is_of_items { ":" } else { "" });
        }
    }

    /// A phase of the agents alone that its `agents` gives, where that depends on variables and items alone:
    /// phases that share nobody are played at the same time.
    fn narrowed(&self, mut phase: Phase, scenario: &Content) -> Phase {
        let is_fixed = |cast: &&Expression| {
            let Scope { lets, state, payoffs, waits, .. } = &cast.scope;
            !state && !payoffs && lets.is_empty() && waits.is_empty() && cast.phases.is_empty()
        };
        let has_one = matches!(phase.topology, Topology::Moderated { .. }) || phase.route.is_some();
        let has_leader = matches!(phase.decision, Some(Decision::Coordinator(_)));
        let Some(cast) = phase.cast.as_ref().filter(is_fixed).filter(|_| !has_one && !has_leader) else {
            return phase;
        };
        let items = self.chain(phase.pass).into_iter().rev().filter_map(|pass| {
            let pass = &self.passes[pass.0];
            Some(pass.item.as_ref()?.values.clone())
        });
        let names: BTreeMap<String, serde_json::Value> = items.flatten().collect();
        let names = names.iter().map(|(name, value)| (name.as_str(), value.clone()));
        // What can't be worked out yet, such as a draw, is worked out when the phase opens.
        let Ok(serde_json::Value::Array(keys)) =
            evaluate_in(plain_variables(&scenario.variables), cast, names)
        else {
            return phase;
        };
        let id = |key: &serde_json::Value| {
            scenario.agents.iter().position(|agent| *key == agent.key.as_str()).map(AgentId)
        };
        let Some(present) = keys.iter().map(id).collect::<Option<Vec<AgentId>>>() else { return phase };
        phase.keep(&present);
        phase
    }

    fn phase(&mut self, phase: &mut Phase, id: PhaseId, payoff: &Option<Payoff>) {
        let opens = Site { at: Some(id), n_known: id.0 };
        let plays = Site { at: Some(id), n_known: id.0 + 1 };
        // A pass knows of those before it; its own `until` of all in it.
        for pass in self.chain(phase.pass) {
            if self.passes[pass.0].phases.start == id.0 {
                let mut when = self.passes[pass.0].when.take();
                when.iter_mut().for_each(|when| self.condition(when, pass, opens, payoff));
                self.passes[pass.0].when = when;
            }
        }
        let of_opening = [&mut phase.when, &mut phase.cast];
        of_opening.into_iter().flatten().for_each(|expression| self.expression(expression, opens, payoff));
        let texts = [&mut phase.format, &mut phase.initial].into_iter().flatten();
        for text in texts.chain(phase.openings.iter_mut().map(|(_, text)| text)) {
            self.template(text, opens, payoff);
        }
        if let Some(route) = &mut phase.route {
            self.template(&mut Arc::make_mut(route).query, opens, payoff);
        }
        // What the phase itself sets decides about what is read in it.
        let set = [&mut phase.set_each_round, &mut phase.set];
        set.into_iter().for_each(|set| self.set(set, plays, payoff));
        if let Topology::Script(turns) = &mut phase.topology {
            turns.iter_mut().for_each(|turn| self.set(&mut turn.set, plays, payoff));
        }
        if let Topology::Matched(pairs) = &mut phase.topology {
            self.expression(Arc::make_mut(pairs), plays, payoff);
        }
        self.decides_by(phase, id);
        phase.until.iter_mut().for_each(|until| self.expression(until, plays, payoff));
        let voters = phase.voters.iter_mut().filter_map(|voters| voters.among.as_mut());
        voters.for_each(|among| self.expression(among, plays, payoff));
        phase.announcements.iter_mut().for_each(|each| self.template(&mut each.text, plays, payoff));
        let own = phase.choice.take();
        phase.choice = own.map(|choice| self.choice(&choice, plays, payoff));
        if let Topology::Script(turns) = &mut phase.topology {
            for turn in turns {
                turn.when.iter_mut().for_each(|when| self.expression(when, plays, payoff));
                turn.choice = turn.choice.take().map(|choice| self.choice(&choice, plays, payoff));
                turn.ask = self.ask(turn.ask.take(), plays, payoff);
            }
        }
        phase.ask = self.ask(phase.ask.take(), plays, payoff);
    }

    fn ask(&self, ask: Option<Arc<Template>>, site: Site, payoff: &Option<Payoff>) -> Option<Arc<Template>> {
        ask.map(|ask| {
            let mut ask = Template::clone(&ask);
            self.template(&mut ask, site, payoff);
            Arc::new(ask)
        })
    }

    /// Adds what decides about the state from a phase on that changes it.
    fn decides_by(&mut self, phase: &Phase, id: PhaseId) {
        if phase.sets().next().is_none() {
            return;
        }
        let conditions = phase.when.iter().chain(&phase.until).chain(&phase.cast).chain(phase.matched());
        let of_turns = phase.script().iter().filter_map(|turn| turn.when.as_ref());
        let passes = self.chain(phase.pass);
        let passes = passes.into_iter().flat_map(|pass| self.up_to(pass).collect::<Vec<_>>());
        let of_passes = passes.flat_map(|pass| {
            let pass = &self.passes[pass.0];
            pass.when.iter().chain(&pass.until).collect::<Vec<_>>()
        });
        let all =
            phase.sets().flat_map(Assignment::expressions).chain(conditions).chain(of_turns).chain(of_passes);
        let needed: Vec<PhaseId> =
            all.flat_map(Expression::needs).filter(|needed| *needed <= id).chain([id]).collect();
        self.decides.extend(needed);
    }

    /// The passes that end with a phase know all of it.
    fn ends(&mut self, id: usize, payoff: &Option<Payoff>) {
        let site = Site { at: Some(PhaseId(id)), n_known: id + 1 };
        for pass in self.chain(self.phases[id].pass) {
            if self.passes[pass.0].phases.end == id + 1 {
                let mut until = self.passes[pass.0].until.take();
                until.iter_mut().for_each(|until| self.condition(until, pass, site, payoff));
                self.passes[pass.0].until = until;
            }
        }
    }

    fn set(&self, set: &mut Arc<[Assignment]>, site: Site, payoff: &Option<Payoff>) {
        let mut assignments: Vec<Assignment> = set.to_vec();
        for each in &mut assignments {
            each.each.iter_mut().chain([&mut each.value]).for_each(|of| self.expression(of, site, payoff));
        }
        *set = assignments.into();
    }

    fn choice(&self, choice: &Choice, site: Site, payoff: &Option<Payoff>) -> Arc<Choice> {
        let mut choice = choice.clone();
        choice.open.iter_mut().for_each(|open| self.expression(open, site, payoff));
        choice.ask = choice.ask.map(|ask| {
            let mut ask = Template::clone(&ask);
            self.template(&mut ask, site, payoff);
            Arc::new(ask)
        });
        Arc::new(choice)
    }

    fn template(&self, template: &mut Template, site: Site, payoff: &Option<Payoff>) {
        (template.quotes, template.scope.waits) =
            self.resolve_phases(&template.quotes, &template.scope, site, payoff);
        template.scope.at = site.at;
    }

    fn expression(&self, expression: &mut Expression, site: Site, payoff: &Option<Payoff>) {
        (expression.phases, expression.scope.waits) =
            self.resolve_phases(&expression.phases, &expression.scope, site, payoff);
        expression.scope.at = site.at;
        // Judges are asked once, after all blocks.
        let judge = |judge: PhaseId| self.of.iter().position(|of| *of == judge.0).map(PhaseId);
        expression.scope.verdict = expression.scope.verdict.and_then(judge);
    }

    /// A condition of a block, about one of its passes.
    fn condition(&self, condition: &mut Expression, pass: PassId, site: Site, payoff: &Option<Payoff>) {
        self.expression(condition, site, payoff);
        condition.scope.pass = Some(pass);
    }

    /// The phases that are meant where some are named as they are written, and further ones on which this or
    /// the state depends.
    fn resolve_phases(
        &self,
        named: &[PhaseId],
        scope: &Scope,
        site: Site,
        payoff: &Option<Payoff>,
    ) -> (Vec<PhaseId>, Vec<PhaseId>) {
        let (mut phases, mut waits) = (BTreeSet::new(), BTreeSet::new());
        named.iter().for_each(|phase| self.meant_by(phase.0, site, &mut phases, &mut waits));
        if let Some(payoff) = payoff.as_ref().filter(|_| scope.payoffs) {
            phases.extend(self.all_of(&payoff.phases, site.n_known));
        }
        if scope.state {
            waits.extend(self.decides.iter().filter(|phase| phase.0 < site.n_known));
        }
        waits.retain(|phase| !phases.contains(phase));
        (phases.into_iter().collect(), waits.into_iter().collect())
    }

    /// Adds the phases that may be meant by a name: the latest, if its pass is played wherever this is read;
    /// else all of which one is the latest that was played, and the conditions that determine which.
    fn meant_by(
        &self,
        named: usize,
        site: Site,
        phases: &mut BTreeSet<PhaseId>,
        waits: &mut BTreeSet<PhaseId>,
    ) {
        let own = site.at.and_then(|at| self.phases[at.0].pass);
        let certain: Vec<PassId> =
            self.chain(own).into_iter().flat_map(|pass| self.up_to(pass).collect::<Vec<_>>()).collect();
        let all: Vec<usize> = (0..site.n_known).filter(|id| self.of[*id] == named).collect();
        let Some(latest) = all.last() else { return };
        let unsure = self.chain(self.phases[*latest].pass).into_iter().rfind(|pass| !certain.contains(pass));
        let Some(unsure) = unsure else {
            phases.insert(PhaseId(*latest));
            return;
        };
        let (block, within) = (self.block_of[unsure.0], self.passes[unsure.0].within);
        let siblings = self.passes.iter().zip(&self.block_of);
        let siblings = siblings.filter(|(pass, of)| **of == block && pass.within == within);
        for id in siblings.flat_map(|(pass, _)| pass.phases.clone()).filter(|id| *id < site.n_known) {
            if self.of[id] == named {
                phases.insert(PhaseId(id))
            } else {
                waits.insert(PhaseId(id))
            };
        }
    }

    /// All unrolled phases of some that are written, as far as something is known of them.
    fn all_of(&self, written: &[PhaseId], n_known: usize) -> Vec<PhaseId> {
        (0..n_known).filter(|id| written.contains(&PhaseId(self.of[*id]))).map(PhaseId).collect()
    }
}
