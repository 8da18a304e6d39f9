//! Rehearsals: what a scenario can come to, found by playing it without a model, so that a check warns of
//! what can't be reached, may fail or may be missing.
//!
//! `check` rehearses the phases that a text or a condition looks at: all possible courses up to 256, else
//! representative ones. A play is a walk of the plan like any other (`walk`), by the same conditions,
//! presence, options and state (`prompt`); only the answers are invented. Steps are counted, not time: so the
//! verdict does not depend on the machine's load.
//!
//! ```
//! let text = "
//! agents: {ann: {}, ben: {}}
//! phases:
//!   - {name: vote, agents: [ann, ben], rounds: 0, vote: {rule: majority, answer: [stay, leave]}}
//!   - {name: end, agents: [ann, ben], when: vote.decision == 'left', prompt: They leave.}
//! ";
//! let loaded = greenroom_play::rehearsal::load("vote.yaml", text, &[]);
//! assert_eq!(loaded.report.diagnostics[0].code, "unreachable"); // the option is `leave`
//! ```

mod chance;
mod findings;
mod plays;
mod strategies;
mod trials;
mod words;

use greenroom_scenario::{self as scenario, Loaded};
use serde_json::Value;
use std::path::Path;

/// Reads, checks and rehearses a scenario's text, as [`scenario::load`].
pub fn load(name: &str, text: &str, overrides: &[(String, Value)]) -> Loaded {
    rehearsed(scenario::load(name, text, overrides))
}

/// Reads, checks and rehearses a scenario file, as [`scenario::open`].
///
/// # Errors
/// As [`scenario::open`].
pub fn open(path: &Path, overrides: &[(String, Value)]) -> anyhow::Result<Loaded> {
    scenario::open(path, overrides).map(rehearsed)
}

/// The same; its includes are in the folder `root`, if one is given.
///
/// # Errors
/// As [`scenario::open_below`].
pub fn open_below(path: &Path, root: Option<&Path>, overrides: &[(String, Value)]) -> anyhow::Result<Loaded> {
    scenario::open_below(path, root, overrides).map(rehearsed)
}

/// The same for a text that is not in the file at `path` yet.
///
/// # Errors
/// As [`scenario::open_text`].
pub fn open_text(
    path: &Path,
    text: &str,
    root: Option<&Path>,
    overrides: &[(String, Value)],
) -> anyhow::Result<Loaded> {
    scenario::open_text(path, text, root, overrides).map(rehearsed)
}

/// Adds what a rehearsal finds to what is known of a scenario that has no errors.
pub fn rehearsed(loaded: Loaded) -> Loaded {
    let Some(scenario) = &loaded.scenario else { return loaded };
    let found = findings::findings(scenario);
    loaded.with(found)
}
