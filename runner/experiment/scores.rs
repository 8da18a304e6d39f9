//! Scores: what a program found in a complete run, beside its transcript. Figures count them as outcomes.

use crate::files::{self, FileKind};
use crate::transcript::{OutcomeRecord, Transcript};
use anyhow::{Context as _, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Their file in a run's folder.
pub const SCORES: &str = "scores.json";

/// Scores by their names: numbers, truth values or texts.
pub type Scores = BTreeMap<String, Value>;

/// Writes the scores of a run.
///
/// # Errors
/// A value is a list or an object, or the file can't be written.
pub fn write_scores(run: &Path, scores: &Scores) -> anyhow::Result<()> {
    let lists = |(_, value): &(&String, &Value)| value.is_array() || value.is_object();
    if let Some((name, value)) = scores.iter().find(lists) {
        anyhow::bail!("the score `{name}` is {value}; expected a number, a truth value or a text");
    }
    files::write(&run.join(SCORES), serde_json::to_string_pretty(scores)? + "\n")
}

/// The scores of a run; none if there are none.
///
/// # Errors
/// The file can't be read.
pub fn read_scores(run: &Path) -> anyhow::Result<Scores> {
    let file = run.join(SCORES);
    if !file.exists() {
        return Ok(Scores::new());
    }
    let text = files::read_text(&file, FileKind::Experiment)?;
    serde_json::from_str(&text).with_context(|| format!("{} is not an object of scores", file.display()))
}

/// The transcript of a run, its scores among the outcomes.
pub(super) fn scored(mut transcript: Transcript, run: &Path) -> anyhow::Result<Transcript> {
    let scores = read_scores(run)?;
    if let Some(footer) = &mut transcript.footer {
        let outcomes = &mut footer.record.outcomes;
        for (name, value) in scores {
            let is_taken = outcomes.iter().any(|outcome| outcome.name == name);
            ensure!(!is_taken, "the score `{name}` of {} has the name of an outcome", run.display());
            outcomes.push(OutcomeRecord { name, value, error: None });
        }
    }
    Ok(transcript)
}
