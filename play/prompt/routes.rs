//! Routes: who speaks in a phase, by the nearness of a query to what agents have read by then.
//!
//! How near they are only a model can tell; all else follows from the record: the query, what each candidate
//! has read, whether one has read that very text, and who is picked by given scores.

use super::memories::{Memories, PromptError};
use super::pieces::{Piece, pieces_of};
use crate::timeline::Timeline;
use crate::transcript::{Cause, Drift, Met, RouteRecord};
use greenroom_scenario::render::{Reading, render_stage};
use greenroom_scenario::{AgentId, Lifecycle, PhaseId, Route, TimelineId, TurnId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A phase whose speakers are to be picked.
#[derive(Clone, Debug)]
pub struct Routing {
    /// The phase.
    pub phase: PhaseId,
    /// Its name in transcripts.
    pub path: String,
    /// The query.
    pub query: String,
    /// Those who may be picked, and what each has read and said by then, oldest first.
    pub candidates: Vec<Candidate>,
    route: Arc<Route>,
}

/// A candidate.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The agent.
    pub agent: AgentId,
    /// The agent's key.
    pub key: String,
    /// What the agent has read and said.
    pub pieces: Vec<Piece>,
}

impl Candidate {
    /// True if the agent has read that very text.
    fn has_read(&self, query: &str) -> bool {
        self.pieces.iter().any(|piece| piece.text == query)
    }
}

impl Routing {
    /// The score of a candidate by the nearness of each of its pieces: the mean of the best; `None` where
    /// there are no pieces.
    pub fn score(&self, nearness: &[f32]) -> Option<f64> {
        let mut best: Vec<f32> = nearness.to_vec();
        best.sort_by(|a, b| b.total_cmp(a));
        best.truncate(self.route.best);
        let sum: f64 = best.iter().copied().map(f64::from).sum();
        (!best.is_empty()).then(|| sum / best.len() as f64)
    }

    /// Scores for a play without a model: everybody is as near as everybody else.
    pub fn made_up(&self) -> Vec<Option<f64>> {
        vec![Some(1.0); self.candidates.len()]
    }

    /// The scores that a line of a transcript holds.
    ///
    /// # Errors
    /// [`Drift`]: it was made for another query, or for other candidates.
    pub fn scores_of(&self, was: &RouteRecord) -> Result<Vec<Option<f64>>, Drift> {
        if was.query != hash(&self.query) {
            let detail = "the query for picking speakers differs";
            return Err(
                Drift::new(&self.path, Cause::PromptChanged, detail).texts(&was.query, hash(&self.query))
            );
        }
        let is_candidate = |key: &&String| self.candidates.iter().any(|candidate| candidate.key == **key);
        if let Some(key) = was.scores.keys().find(|key| !is_candidate(key)) {
            let detail = format!("`{key}` is not among the agents that can be picked");
            return Err(Drift::new(&self.path, Cause::RecordAltered, detail));
        }
        Ok(self.candidates.iter().map(|candidate| was.scores.get(&candidate.key).copied()).collect())
    }

    /// Who is picked by these scores.
    fn pick(&self, scores: &[Option<f64>]) -> RouteRecord {
        let exact: Vec<bool> =
            self.candidates.iter().map(|candidate| candidate.has_read(&self.query)).collect();
        let score =
            |at: usize| if exact[at] { Some(1.0) } else { scores.get(at).copied().flatten().map(rounded) };
        let least = self.route.least.unwrap_or(f64::NEG_INFINITY);
        let mut near: Vec<(usize, f64)> =
            (0..self.candidates.len()).filter_map(|at| Some((at, score(at)?))).collect();
        let all = near.iter().map(|(at, score)| (self.candidates[*at].key.clone(), *score)).collect();
        near.retain(|(_, score)| *score >= least);
        near.sort_by(|(a, x), (b, y)| exact[*b].cmp(&exact[*a]).then(y.total_cmp(x)).then(a.cmp(b)));
        near.truncate(self.route.take);
        let met = match near.first() {
            Some((at, _)) if exact[*at] => Met::Exact,
            Some(_) => Met::Partial,
            None => Met::Miss,
        };
        let is_picked = |at: usize, agent: AgentId| match met {
            Met::Miss => self.route.otherwise.contains(&agent),
            _ => near.iter().any(|(other, _)| *other == at),
        };
        let picked = self.candidates.iter().enumerate().filter(|(at, of)| is_picked(*at, of.agent));
        let chosen = picked.map(|(_, candidate)| candidate.key.clone()).collect();
        RouteRecord { path: self.path.clone(), query: hash(&self.query), met, scores: all, chosen }
    }
}

/// A score as it is recorded.
fn rounded(score: f64) -> f64 {
    (score * 1e4).round() / 1e4
}

fn hash(query: &str) -> String {
    blake3::hash(query.as_bytes()).to_hex().to_string()
}

impl Memories {
    /// What the speakers of a turn's phase are to be picked by, if they are picked and have not been yet. All
    /// that the plan has the phase wait for must have been played or skipped.
    ///
    /// # Errors
    /// A template or an expression that fails.
    pub fn routing(&self, id: TurnId) -> Result<Option<Routing>, PromptError> {
        let plan = self.plan.clone();
        let turn = plan.turn(id);
        let phase = turn.phase;
        let here = self.scenario.phase(phase);
        let Some(route) = here.route.as_ref().filter(|_| !self.is_made_up) else { return Ok(None) };
        if self.settled.casts[phase.0].get().is_some() || !self.opens(&turn.path, phase)? {
            return Ok(None);
        }
        let query = self.query(&turn.path, phase, route)?;
        let candidates = route.among.iter().map(|agent| {
            let key = self.scenario.agent(*agent).key.clone();
            Ok(Candidate { agent: *agent, key, pieces: self.read_before(phase, *agent)? })
        });
        let candidates = candidates.collect::<Result<_, PromptError>>()?;
        Ok(Some(Routing { phase, path: here.part.clone(), query, candidates, route: route.clone() }))
    }

    /// Lets those speak in a phase who are picked by the scores of its candidates; returns the line.
    pub fn route(&mut self, routing: &Routing, scores: &[Option<f64>]) -> RouteRecord {
        let picked = routing.pick(scores);
        let here = self.scenario.phase(routing.phase);
        let is_here = |agent: &&AgentId| {
            let candidate = routing.candidates.iter().find(|candidate| candidate.agent == **agent);
            candidate.is_none_or(|candidate| picked.chosen.contains(&candidate.key))
        };
        let present: BTreeSet<AgentId> = here.agents.iter().filter(is_here).copied().collect();
        // The first to get here has computed the same.
        let _ = self.settled.casts[routing.phase.0].set(Arc::new(present));
        picked
    }

    fn query(&self, path: &str, phase: PhaseId, route: &Route) -> Result<String, PromptError> {
        let template = &route.query;
        let known = self.plan.begin_of(phase, 0);
        let said = self.history_at(path, &template.quotes, template.scope.state, known)?;
        let agent = route.among.first().copied().unwrap_or(AgentId(0));
        let text = render_stage(&self.scenario, template, Reading { phase, round: None, agent }, &said);
        let text = text.map_err(|error| self.failed(path, &template.path, error))?;
        Ok(text.trim().to_string())
    }

    /// What a permanent agent has read and said when a phase opens, and what it would read first at its next
    /// turn.
    fn read_before(&self, phase: PhaseId, agent: AgentId) -> Result<Vec<Piece>, PromptError> {
        debug_assert!(self.scenario.agent(agent).lifecycle == Lifecycle::Permanent);
        let (of, plan) = (TimelineId { agent, phase: None }, self.plan.clone());
        let unread = plan.routes.get(&phase).and_then(|route| route.unread.get(&of));
        let missed = self.missed.get(&of).map(Vec::as_slice).unwrap_or_default();
        let inputs: Vec<_> = missed.iter().chain(unread.into_iter().flatten()).copied().collect();
        let news = self.events_with_added("a route", of, &inputs, plan.begin_of(phase, 0).turns)?;
        let timeline = self.look(of);
        let read = timeline
            .into_iter()
            .flat_map(|timeline: &Timeline| timeline.past().iter().chain(timeline.events()));
        Ok(pieces_of(read.chain(&news), &self.scenario.agent(agent).name))
    }
}

/// Scores by agent, as a line has them, the highest first.
pub fn by_score(scores: &BTreeMap<String, f64>) -> Vec<(&String, f64)> {
    let mut all: Vec<_> = scores.iter().map(|(key, score)| (key, *score)).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
    all
}
