//! A run as events: its plan, its replies as they are generated, its results.

use crate::backend::{Progress, Usage};
use crate::scenario::{Edge, PhaseId, Plan, Scenario, Turn, TurnId};
use crate::stage::{Scene, Watch};
use crate::transcript::Footer;
use serde_json::{Value, json};
use std::sync::Arc;

/// Maximum number of a plan's edges that are sent.
const MAX_EDGES: usize = 20_000;

/// Watches a run, and sends the name and data of each event.
pub struct RunReporter<T> {
    scenario: Arc<Scenario>,
    plan: Arc<Plan>,
    tell: T,
}

impl<T: FnMut(&'static str, Value)> RunReporter<T> {
    /// Sends the plan of the run of that id (`plan`).
    pub fn begin(scenario: Arc<Scenario>, run: &str, mut tell: T) -> Self {
        let plan = scenario.plan().clone();
        tell("plan", planned(&scenario, &plan, run));
        Self { scenario, plan, tell }
    }

    /// Sends the results, each as a `result`.
    pub fn results(&mut self, footer: &Footer) {
        let mut tell = |kind: &str, name: &str, value: Value| {
            (self.tell)("result", json!({ "kind": kind, "name": name, "value": value }));
        };
        for (phase, decision) in &footer.decisions {
            tell("decision", phase, decision.clone());
        }
        if let Some(payoffs) = &footer.payoffs {
            tell("payoff", &payoffs.unit, json!(payoffs.totals));
        }
        for outcome in &footer.outcomes {
            let value = outcome
                .error
                .as_ref()
                .map_or_else(|| outcome.value.clone(), |error| json!({ "error": error }));
            tell("outcome", &outcome.name, value);
        }
        for assertion in &footer.assertions {
            tell("assertion", &assertion.that, json!(assertion.holds));
        }
    }

    /// A turn by its path and its speaker's key.
    fn of(&self, turn: &Turn) -> Value {
        named(&self.scenario, turn)
    }
}

impl<T: FnMut(&'static str, Value)> Watch for RunReporter<T> {
    fn see(&mut self, id: TurnId, scene: Scene<'_>) {
        // Lines of the stage after the last turn belong to no turn.
        let of = |telling: &Self| telling.of(telling.plan.turn(id));
        let (name, data) = match scene {
            Scene::Started { turn, reads } => {
                let mut data = self.of(turn);
                data["reads"] = json!(reads);
                ("started", data)
            }
            Scene::Paused(is) => ("paused", json!({ "paused": is })),
            Scene::Progress(Progress::Asked(question)) => {
                let mut data = of(self);
                data["reads"] = json!(question.heard);
                data["options"] = json!(question.options);
                data["form"] = json!(question.form.as_ref().map(|form| form.text()));
                ("asked", data)
            }
            Scene::Progress(Progress::Prefill { done, total }) => {
                let mut data = of(self);
                (data["done"], data["total"]) = (json!(done), json!(total));
                ("reading", data)
            }
            Scene::Progress(Progress::Text(text)) => {
                let mut data = of(self);
                data["text"] = json!(text);
                ("text", data)
            }
            Scene::Called(call) => {
                let mut data = of(self);
                data["call"] = json!(call);
                ("call", data)
            }
            Scene::Written { turn, spoken, stop, cut: _, choice, odds: _, usage } => {
                let mut data = self.of(turn);
                data["phase"] = json!(self.scenario.phase(turn.phase).part);
                data["round"] = json!(turn.round);
                data["text"] = json!(spoken);
                data["stop"] = json!(stop);
                data["choice"] = json!(choice);
                data["usage"] = json!(usage.map(cost));
                ("turn", data)
            }
            Scene::Skipped => ("skipped", of(self)),
            Scene::Withheld | Scene::Unveiled => return,
            Scene::Routed(route) => ("route", json!(route)),
            Scene::Directed(direction) => {
                let key = |id| self.scenario.agent(id).key.as_str();
                let to = direction.to.as_ref().map(|to| to.iter().map(|id| key(*id)).collect::<Vec<_>>());
                let phase = &self.scenario.phase(direction.phase).part;
                (
                    "stage",
                    json!({ "phase": phase, "round": direction.round, "to": to, "text": direction.text }),
                )
            }
        };
        (self.tell)(name, data);
    }
}

fn named(scenario: &Scenario, turn: &Turn) -> Value {
    json!({ "path": turn.path, "agent": scenario.agent(turn.speaker).key })
}

/// Phases with their turns, agents, and who hears whom.
fn planned(scenario: &Scenario, plan: &Plan, run: &str) -> Value {
    let mut phases: Vec<(PhaseId, Vec<Value>)> = Vec::new();
    for (_, turn) in plan.order() {
        if phases.last().is_none_or(|(phase, _)| *phase != turn.phase) {
            phases.push((turn.phase, Vec::new()));
        }
        phases.last_mut().into_iter().for_each(|(_, turns)| turns.push(named(scenario, turn)));
    }
    let phases = phases.into_iter().map(|(id, turns)| {
        let phase = scenario.phase(id);
        json!({ "name": phase.part, "title": phase.label, "turns": turns })
    });
    let agents = scenario
        .agents
        .iter()
        .map(|agent| json!({ "key": agent.key, "name": agent.name, "is_human": agent.is_human() }));
    let edges = plan.order().flat_map(|(id, turn)| {
        let heard = plan.needs(id).filter(|(_, edge)| *edge == Edge::Hears);
        heard.map(move |(from, _)| json!([plan.turn(from).path, turn.path]))
    });
    json!({
        "run": run,
        "scenario": scenario.id,
        "title": scenario.title,
        "phases": phases.collect::<Vec<_>>(),
        "agents": agents.collect::<Vec<_>>(),
        "edges": edges.take(MAX_EDGES).collect::<Vec<_>>(),
    })
}

/// The cost of a turn.
fn cost(usage: &Usage) -> Value {
    json!({
        "match": usage.kind,
        "source": usage.source,
        "reused": usage.reused,
        "prefilled": usage.prefilled,
        "recomputed": usage.recomputed,
        "generated": usage.generated,
        "ttft_ms": usage.ttft_ms,
        "total_ms": usage.total_ms,
        "reason": usage.reason,
    })
}
