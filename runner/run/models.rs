//! The models of a run: the backend for the scenario's own model, and for each model that it names.

use super::RunOptions;
use crate::backend::{Backend, CastBackend, Sampling};
use crate::sampling::{self, resolved};
use crate::scenario::{Plan, Scenario};
use crate::stage::ModelHandle;
use crate::transcript::NamedRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Backends of a run and their default sampling.
pub(super) struct RunModels {
    /// The scenario's own.
    pub(super) own: Arc<dyn Backend>,
    pub(super) sampling: Sampling,
    pub(super) max_tokens: usize,
    /// The named ones that will answer turns.
    pub(super) named: BTreeMap<String, ModelHandle>,
}

impl RunModels {
    /// # Errors
    /// A model can't be found or opened.
    pub(super) fn open(
        scenario: &Scenario,
        plan: &Plan,
        backend: Arc<dyn Backend>,
        options: &RunOptions,
    ) -> anyhow::Result<Self> {
        let open = |name: &str, model: &str| -> anyhow::Result<Arc<dyn Backend>> {
            Ok(backend.named(name, model)?.unwrap_or_else(|| backend.clone()))
        };
        let swept = |name: &str| options.models.get(name).cloned();
        let own = match swept("").or_else(|| scenario.own_model()) {
            Some(model) => open("", &model)?,
            None => backend.clone(),
        };
        let hints = scenario.hints.without(&options.given);
        let settings = |name: &str, of: &dyn Backend| {
            let given = || options.sampling.over(&hints).over(&of.suggested_sampling());
            let recorded = options.recorded.get(name).or_else(|| options.recorded.get(""));
            recorded.cloned().unwrap_or_else(|| resolved(&given(), &sampling::DEFAULT))
        };
        let sampling = settings("", own.as_ref());
        let used: BTreeSet<&String> = plan
            .order()
            .filter_map(|(_, turn)| turn.hints.model.as_ref())
            .chain(&scenario.embeddings)
            .collect();
        let humans = Arc::new(options.control.clone());
        let cast = |model| Arc::new(CastBackend::new(model, humans.clone()));
        let mut named = BTreeMap::new();
        for name in used {
            let model = swept(name).or_else(|| scenario.model(name)).unwrap_or_default();
            let backend = open(name, &model)?;
            let sampling = settings(name, backend.as_ref());
            named.insert(name.clone(), ModelHandle { backend: cast(backend), sampling });
        }
        let max_tokens = hints.max_tokens.unwrap_or(options.max_tokens);
        Ok(Self { own: cast(own), sampling, max_tokens, named })
    }
}

/// The named models in the header's form.
pub fn records(named: &BTreeMap<String, ModelHandle>) -> BTreeMap<String, NamedRecord> {
    let record = |seat: &ModelHandle| {
        let card = seat.backend.card();
        let (model, kv, numerics) = (card.model, card.kv, card.numerics);
        NamedRecord { model, kv, numerics, sampling: seat.sampling.clone() }
    };
    named.iter().map(|(name, seat)| (name.clone(), record(seat))).collect()
}
