//! By what turns are answered.

use crate::backend::{Backend, Sampling, Session};
use crate::sampling::resolved;
use crate::tools::Toolbox;
use crate::transcript::{CallRecord, RouteRecord, Transcript};
use greenroom_scenario::{Hints, TurnId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Settings for answering turns.
#[derive(Clone, Default)]
pub struct Settings {
    /// Sampling settings.
    pub sampling: Sampling,
    /// Maximum number of tokens of a reply.
    pub max_tokens: usize,
    /// Compute everything from scratch at each turn.
    pub cold: bool,
    /// The run that each agent (by key) brings its memory from.
    pub parents: BTreeMap<String, Session>,
    /// Other temperatures and limits before some turns, the earliest first.
    pub before: Vec<(TurnId, f32, usize)>,
    /// The models that the scenario names, with the sampling settings of turns that have none of their own.
    pub models: BTreeMap<String, ModelHandle>,
    /// What memories are looked up by; `None`: the model of who is asked.
    pub embeddings: Option<Arc<dyn Backend>>,
    /// The tools that agents call.
    pub toolbox: Arc<Toolbox>,
    /// What a recording has looked up already: it is taken from there.
    pub retrievals: RecordedRetrievals,
}

/// What was looked up, by a recording.
#[derive(Clone, Debug, Default)]
pub struct RecordedRetrievals {
    /// Names of the pieces that memories start over with, by the paths of their lines.
    pub kept: BTreeMap<String, Vec<String>>,
    /// Who was picked to speak, by phase.
    pub routes: BTreeMap<String, RouteRecord>,
    /// Calls of tools and what they gave, by the paths of their lines.
    pub calls: BTreeMap<String, CallRecord>,
}

impl RecordedRetrievals {
    /// All that a recording has looked up.
    pub fn of(transcript: &Transcript) -> Self {
        let turns = || transcript.turns.iter().map(|turn| &turn.record);
        let kept = turns().filter_map(|turn| Some((turn.path.clone(), turn.kept.clone()?)));
        let routes = transcript.routes().map(|route| (route.path.clone(), route.clone()));
        let calls = turns().filter_map(|turn| Some((turn.path.clone(), turn.call.clone()?)));
        Self { kept: kept.collect(), routes: routes.collect(), calls: calls.collect() }
    }

    /// Adds what another recording has looked up, which counts before.
    pub fn extend(&mut self, other: Self) {
        self.kept.extend(other.kept);
        self.routes.extend(other.routes);
        self.calls.extend(other.calls);
    }
}

/// A model that a scenario names, ready to answer.
#[derive(Clone)]
pub struct ModelHandle {
    /// The backend that it answers by.
    pub backend: Arc<dyn Backend>,
    /// Sampling settings.
    pub sampling: Sampling,
}

impl std::fmt::Debug for ModelHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelHandle").field("sampling", &self.sampling).finish_non_exhaustive()
    }
}

impl Settings {
    /// The sampling settings of a turn, and the most tokens of its reply.
    pub(super) fn of(&self, id: TurnId, hints: &Hints) -> (Sampling, usize) {
        let named = hints.model.as_ref().and_then(|name| self.models.get(name));
        let (mut base, mut max_tokens) =
            (named.map_or(&self.sampling, |seat| &seat.sampling).clone(), self.max_tokens);
        let earlier = self.before.iter().find(|(before, ..)| id < *before);
        if let Some((_, temperature, most)) = earlier.filter(|_| named.is_none()) {
            (base.temperature, max_tokens) = (*temperature, *most);
        }
        (resolved(hints, &base), hints.max_tokens.unwrap_or(max_tokens))
    }
}
