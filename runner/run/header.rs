//! The first line of a run's transcript: everything that its text depends on, and nothing about the machine.

use super::RunOptions;
use super::models::{RunModels, records};
use super::past::RunPast;
use crate::files::portable;
use crate::prompt::Memories;
use crate::replay;
use crate::scenario::CaseId;
use crate::tools::Toolbox;
use crate::transcript::{self, Header, ScenarioRecord};
use std::path::Path;

/// The header of a run.
pub(super) fn header(
    memories: &Memories,
    models: &RunModels,
    options: &RunOptions,
    past: &RunPast,
    toolbox: &Toolbox,
    case: Option<CaseId>,
) -> Header {
    let (scenario, card) = (memories.scenario(), models.own.card());
    Header {
        format: transcript::FORMAT,
        engine: transcript::PROGRAM.to_string(),
        scenario: ScenarioRecord {
            id: scenario.id.clone(),
            path: options
                .named
                .clone()
                .unwrap_or_else(|| portable(Path::new(&scenario.sources.main().name), 1)),
            blake3: scenario.file_hash(),
        },
        plan: memories.plan().hash(),
        templates: scenario.template_hashes(),
        variables: scenario.variables.clone(),
        overrides: scenario.overrides.clone(),
        rules: transcript::rules_of(scenario),
        agents: replay::cast(memories),
        model: card.model,
        kv: card.kv,
        numerics: card.numerics,
        sampling: models.sampling.clone(),
        max_tokens: models.max_tokens,
        hints: scenario.hints.clone(),
        given: scenario.has_hints().then(|| options.given.clone()),
        models: records(&models.named),
        tools: toolbox.specs_by_key(scenario),
        seed: options.seed,
        case,
        continues: past.continues.clone(),
        forked: past.fork.as_ref().map(|fork| fork.record.clone()),
        // Replies that a fork shares with a recording of carried replies count as carried over too.
        carried: past.fork.as_ref().and_then(|fork| fork.carried()),
    }
}
