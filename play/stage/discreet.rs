//! What a human who plays may see of a run: what the human's agent knows by then, and no more until the run
//! is over.
//!
//! A turn is shown once no human will be asked anything before the turn at which its agent hears it; so
//! choices that are made at once stay hidden until the humans among them have chosen. What a human's agent
//! never hears (whispers between others, ballots, calls of tools, whom a route picks) is shown after the run,
//! as are the odds of options.

use super::{Scene, Watch};
use crate::backend::{Progress, Usage};
use crate::prompt::Direction;
use crate::transcript::{CallRecord, ChoiceRecord, Odds, RouteRecord};
use greenroom_engine::StopReason;
use greenroom_scenario::{AgentId, Audience, Input, PhaseId, Plan, Scenario, TurnId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Hides spoilers until the end: another watcher is shown only what the humans at the terminal may see.
pub struct Discreet<'a> {
    inner: &'a mut dyn Watch,
    scenario: Arc<Scenario>,
    plan: Arc<Plan>,
    humans: Vec<Human>,
    /// Turns that are on record, or did not take place.
    over: Vec<bool>,
    /// Turns that are shown as they are generated.
    live: BTreeSet<TurnId>,
    held: Vec<(TurnId, HeldScene)>,
}

/// A human's agent.
struct Human {
    agent: AgentId,
    /// Its turns, in order.
    turns: Vec<TurnId>,
    /// The turn at which it hears each other turn, at most; `None`: it is shown after the human's last turn.
    hears: BTreeMap<TurnId, Option<TurnId>>,
    /// Phases in which it is known to be present.
    seen_in: BTreeSet<PhaseId>,
}

/// Something that is shown later.
enum HeldScene {
    Called(CallRecord),
    Written {
        spoken: String,
        stop: StopReason,
        cut: String,
        choice: Option<Box<ChoiceRecord>>,
        odds: Option<Box<Odds>>,
        usage: Option<Box<Usage>>,
    },
    Skipped,
    Routed(RouteRecord),
    Directed(Direction),
}

impl<'a> Discreet<'a> {
    /// Shows `inner` everything where no human plays.
    pub fn new(scenario: &Arc<Scenario>, plan: &Arc<Plan>, inner: &'a mut dyn Watch) -> Self {
        let (over, live, held) = (vec![false; plan.n_turns()], BTreeSet::new(), Vec::new());
        let mut humans = humans(scenario, plan);
        for human in &mut humans {
            let read = plan.order().filter(|(_, turn)| turn.speaker == human.agent);
            let read = read.map(|(id, turn)| (Some(id), &turn.inputs));
            let unread = plan.unread.iter().filter(|(memory, _)| memory.agent == human.agent);
            for (at, inputs) in read.chain(unread.map(|(_, inputs)| (None, inputs))) {
                let heard = inputs.iter().filter_map(|input| match input {
                    Input::Heard(turn) => Some(*turn),
                    _ => None,
                });
                for turn in heard {
                    human.hears.entry(turn).or_insert(at);
                }
            }
        }
        Self { inner, scenario: scenario.clone(), plan: plan.clone(), humans, over, live, held }
    }

    /// The run is over: shows everything that was hidden.
    pub fn unveil(&mut self) {
        self.humans.clear();
        let held = std::mem::take(&mut self.held);
        if held.iter().any(|(_, held)| !matches!(held, HeldScene::Skipped)) {
            let end = self.plan.end();
            self.inner.see(end, Scene::Unveiled);
        }
        held.into_iter().for_each(|(id, held)| self.show(id, &held));
    }

    /// True if a human knows what is said in a turn, and it is not secret from another human. (Several humans
    /// share the terminal: public speech to one of them is shown, though another one is not there.)
    fn may_show(&self, id: TurnId) -> bool {
        let turn = self.plan.turn(id);
        let is_known = |human: &Human| turn.speaker == human.agent || human.hears.contains_key(&id);
        self.humans.iter().any(is_known)
            && self.humans.iter().all(|human| {
                if turn.speaker == human.agent {
                    return true;
                }
                let Some(at) = human.hears.get(&id) else { return turn.audience == Audience::All };
                let mut before = human.turns.iter().take_while(|turn| at.is_none_or(|at| **turn < at));
                self.is_there(human, turn.phase) && before.all(|turn| self.over[turn.0])
            })
    }

    /// True if a human is certainly present in a phase.
    fn is_there(&self, human: &Human, phase: PhaseId) -> bool {
        let here = self.scenario.phase(phase);
        here.agents.contains(&human.agent) && (!here.is_cast_open() || human.seen_in.contains(&phase))
    }

    /// True if all humans read a line of the stage, or all who are there one that is for everybody.
    fn may_direct(&self, line: &Direction) -> bool {
        match &line.to {
            Some(to) => self.humans.iter().all(|human| to.contains(&human.agent)),
            None => self.humans.iter().any(|human| self.is_there(human, line.phase)),
        }
    }

    /// Shows what was held back and may be shown by now.
    fn release(&mut self) {
        let (now, held) = std::mem::take(&mut self.held).into_iter().partition(|(id, held)| match held {
            HeldScene::Written { .. } | HeldScene::Skipped => self.may_show(*id),
            HeldScene::Directed(line) => self.may_direct(line),
            HeldScene::Called(_) | HeldScene::Routed(_) => false,
        });
        self.held = held;
        let now: Vec<(TurnId, HeldScene)> = now;
        now.into_iter().for_each(|(id, held)| self.show(id, &held));
    }

    fn show(&mut self, id: TurnId, held: &HeldScene) {
        let plan = self.plan.clone();
        let is_over = self.humans.is_empty();
        let scene = match held {
            HeldScene::Called(call) => Scene::Called(call),
            HeldScene::Written { spoken, stop, cut, choice, odds, usage } => Scene::Written {
                turn: plan.turn(id),
                spoken,
                stop: *stop,
                cut: if is_over { cut } else { "" },
                choice: choice.as_deref().filter(|_| is_over),
                odds: odds.as_deref().filter(|_| is_over),
                usage: usage.as_deref(),
            },
            HeldScene::Skipped => Scene::Skipped,
            HeldScene::Routed(route) => Scene::Routed(route),
            HeldScene::Directed(line) => Scene::Directed(line),
        };
        self.inner.see(id, scene);
    }

    /// A turn is on record, or does not take place.
    fn ends(&mut self, id: TurnId, held: HeldScene) {
        self.over[id.0] = true;
        // It may be on the screen in part: what it sets free comes after it.
        if self.may_show(id) {
            self.show(id, &held);
        } else {
            self.held.push((id, held));
            self.inner.see(id, Scene::Withheld);
        }
        self.release();
    }

    fn starts(&mut self, id: TurnId, reads: &str) {
        let (speaker, phase) = (self.plan.turn(id).speaker, self.plan.turn(id).phase);
        let human = self.humans.iter_mut().find(|human| human.agent == speaker);
        if human.is_some_and(|human| human.seen_in.insert(phase)) {
            self.release();
        }
        if self.may_show(id) {
            self.live.insert(id);
            let plan = self.plan.clone();
            // Others may have read what the human must not.
            let reads = if self.humans.iter().any(|human| human.agent == speaker) { reads } else { "" };
            self.inner.see(id, Scene::Started { turn: plan.turn(id), reads });
        }
    }
}

impl Watch for Discreet<'_> {
    fn see(&mut self, id: TurnId, scene: Scene<'_>) {
        if self.humans.is_empty() {
            return self.inner.see(id, scene);
        }
        match scene {
            Scene::Started { reads, .. } => self.starts(id, reads),
            // Whoever is asked must know it, though another human may not know what is said.
            Scene::Progress(Progress::Asked(_)) => self.inner.see(id, scene),
            Scene::Progress(_) if !self.live.contains(&id) => {}
            Scene::Called(call) => self.held.push((id, HeldScene::Called(call.clone()))),
            Scene::Routed(route) => self.held.push((id, HeldScene::Routed(route.clone()))),
            Scene::Directed(line) if !self.may_direct(line) => {
                self.held.push((id, HeldScene::Directed(line.clone())));
            }
            Scene::Written { spoken, stop, cut, choice, odds, usage, .. } => {
                let (spoken, cut) = (spoken.to_string(), cut.to_string());
                let (choice, odds, usage) = (
                    choice.cloned().map(Box::new),
                    odds.cloned().map(Box::new),
                    usage.cloned().map(Box::new),
                );
                self.ends(id, HeldScene::Written { spoken, stop, cut, choice, odds, usage });
            }
            Scene::Skipped => self.ends(id, HeldScene::Skipped),
            scene => self.inner.see(id, scene),
        }
    }
}

/// The human-played agents.
fn humans(scenario: &Scenario, plan: &Plan) -> Vec<Human> {
    let mut turns: BTreeMap<AgentId, Vec<TurnId>> = BTreeMap::new();
    for (id, turn) in plan.order().filter(|(_, turn)| scenario.agent(turn.speaker).is_human()) {
        turns.entry(turn.speaker).or_default().push(id);
    }
    let human = |(agent, turns)| {
        let (hears, seen_in) = Default::default();
        Human { agent, turns, hears, seen_in }
    };
    turns.into_iter().map(human).collect()
}
